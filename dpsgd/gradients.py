"""The sum of clipped per-example gradients, from one backward pass.

A few examples are also differentiated one at a time by ordinary autograd, and compared. That finds
what the layers' types do not show: a weight that is used outside its layer, examples that are not
in the first dimension, examples that change one another.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dpsgd.backward_pass import (
    Use,
    find_sites,
    learn_arguments,
    recording,
    trace_pass,
    traces_of,
)
from dpsgd.clipping import Clipper
from dpsgd.layers import Materialised, Site, Trace, UnsuitableModel
from dpsgd.layers.trace import added
from dpsgd.losses import Loss
from dpsgd.noise import torch_seed

_Laid = dict[nn.Parameter, Tensor]  # the gradients of users, (users, …)
_UserBatch = tuple[Tensor, Tensor, Tensor]  # inputs, targets, and the user of each example

COMPARED = 3  # examples
_ROUNDING = 1e-3  # float32 through a deep network; a wrong gradient is far off
_NOTHING = 1e-15  # a length that stands for zero: squares of lengths are not taken for smaller


@contextlib.contextmanager
def mode(model: nn.Module, *, training: bool, dropout: bool = True) -> Iterator[None]:
    """Set training or evaluation mode inside the block, and restore every module after it."""
    before = {module: module.training for module in model.modules()}
    model.train(training)
    for module in before:
        if not dropout and isinstance(module, _DropoutNd):
            module.eval()
    try:
        yield
    finally:
        for module, was in before.items():
            module.training = was


@final
class ClippedGradients:
    """The sum of all examples' gradients, each clipped.

    ``groups`` are the trained parameters layer by layer; layers that share a parameter are one
    group.

    Guarantees:
        * What one example adds to a group's sum is at most the clipper's bound long, up to the
          rounding of the numbers in use.
        * An example whose gradient is not finite adds nothing: its influence could not be bounded.
          The lot is never run a second time for it: dropout would be drawn again for all, because
          of one example (Abadi et al. 2016, Algorithm 1, needs one bounded term for each example).

    >>> from dpsgd.clipping import Flat
    >>> from dpsgd.losses import cross_entropy
    >>> model = nn.Linear(2, 3)
    >>> for parameter in model.parameters():
    ...     _ = nn.init.zeros_(parameter)
    ...     parameter.grad = torch.zeros_like(parameter)
    >>> gradients = ClippedGradients(model, cross_entropy)
    >>> clipper = Flat(0.5).start(len(gradients.groups))
    >>> one = (100 * torch.ones(1, 2), torch.tensor([0]))
    >>> gradients.add(*one, clipper=clipper, step=0, scale=1.0)
    >>> squares = [float(parameter.grad.square().sum()) for parameter in model.parameters()]
    >>> round(sum(squares) ** 0.5, 4)
    0.5
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self._model = model
        self._loss = loss
        self._sites = find_sites(model)
        self._merged = _share_parameters(self._sites)
        if not self._sites:
            raise UnsuitableModel("the model has no parameter to train; all are frozen")
        named = [_named_parameters(group) for group in self._merged]
        self.groups = tuple(tuple(group.values()) for group in named)
        self.names = tuple(tuple(group) for group in named)
        self._exact = False  # until compared with autograd

    def add(
        self, inputs: Tensor, targets: Tensor, *, clipper: Clipper, step: int, scale: float
    ) -> None:
        """Add scale · Σ clipped gradients to ``grad`` of every trained parameter."""
        if len(targets) == 0:
            return
        self._exact = self._exact or self.check(inputs, targets)
        traces, norms = self._run(inputs, targets, per_layer=clipper.per_layer)
        self._add(traces, norms, clipper, step=step, scale=scale)

    def add_by_user(
        self,
        batches: Iterable[_UserBatch],
        *,
        clipper: Clipper,
        step: int,
        scale: float,
    ) -> None:
        """Add scale · Σ clipped gradients, where those of a user are added up and then clipped.

        A batch is inputs, targets and the number of each example's user. The examples of a user
        follow one another, and may go on in the next batch.

        Guarantees:
            What one user adds to a group's sum is at most the clipper's bound long, however many
            examples they have (McMahan, Ramage, Talwar & Zhang 2018, Algorithm 1, with one step of
            gradient descent for each user). Where the length of a sum is in doubt it is laid out,
            so that what is measured is what is added.
        """
        held: tuple[int, _Laid] | None = None  # the last user of a batch, who goes on in the next
        for (inputs, targets, owners), after in _with_next(batches):
            self._exact = self._exact or self.check(inputs, targets)
            found = trace_pass(self._model, self._sites, self._loss, inputs, targets)
            users, rows = torch.unique_consecutive(owners, return_inverse=True)
            rows = rows.to(targets.device)
            if held is None and (after is None or int(after[2][0]) != int(users[-1])):
                with torch.no_grad():
                    found = [each and each.by_user(rows, len(users)) for each in found]
                traces, norms = self._measured(found, per_layer=clipper.per_layer)
                self._add(traces, norms, clipper, step=step, scale=scale)
                continue
            sums = self._summed(found, rows, users=len(users))
            if held is not None:
                last, laid = held
                if last == int(users[0]):
                    for parameter, each in laid.items():
                        sums[parameter][:1] += each
                else:
                    self._add_laid(laid, clipper=clipper, step=step, scale=scale)
            complete = {p: each[:-1] for p, each in sums.items()}
            self._add_laid(complete, clipper=clipper, step=step, scale=scale)
            held = int(users[-1]), {p: each[-1:].clone() for p, each in sums.items()}
        if held is not None:
            self._add_laid(held[1], clipper=clipper, step=step, scale=scale)

    @torch.no_grad()
    def _summed(self, found: list[Trace | None], rows: Tensor, *, users: int) -> _Laid:
        """Return the sum of each user's gradients; ``rows`` has the user of each example."""
        every = (each for group in self.groups for each in group)
        sums = {each: each.new_zeros(users, *each.shape) for each in every}
        for trace in found:
            for parameter, laid in ({} if trace is None else trace.materialised()).items():
                sums[parameter].index_add_(0, rows, laid)
        return sums

    def _add_laid(self, laid: _Laid, *, clipper: Clipper, step: int, scale: float) -> None:
        """Clip and add the sums of users that are complete."""
        if len(next(iter(laid.values()))):
            traces = [Materialised({each: laid[each] for each in group}) for group in self.groups]
            norms = _lengths(traces, per_layer=clipper.per_layer)
            self._add(traces, norms, clipper, step=step, scale=scale)

    def recording(self) -> contextlib.AbstractContextManager[list[Use]]:
        """Record a forward pass inside the block, for :meth:`add_recorded`."""
        return recording(self._model, self._sites)

    def add_recorded(
        self,
        uses: list[Use],
        total: Tensor,
        *,
        examples: int,
        factor: float,
        clipper: Clipper,
        step: int,
        scale: float,
    ) -> None:
        """Do the same for a recorded pass; factor · ``total`` is the sum of the losses."""
        found = traces_of(self._sites, uses, total, examples=examples, scale=factor)
        traces, norms = self._measured(found, per_layer=clipper.per_layer)
        self._add(traces, norms, clipper, step=step, scale=scale)

    def _add(
        self,
        traces: Sequence[Trace | None],
        norms: Tensor,
        clipper: Clipper,
        *,
        step: int,
        scale: float,
    ) -> None:
        finite = torch.isfinite(norms).all(0)
        all_finite = bool(finite.all())
        factors = torch.zeros_like(norms)
        factors[:, finite] = clipper.factors(norms[:, finite], step) * scale
        with torch.no_grad():
            for group, trace in enumerate(traces):
                if trace is not None:
                    if not all_finite:
                        trace.zero_rows(~finite)
                    trace.add_sum(factors[group if clipper.per_layer else 0])

    def _run(
        self, inputs: Tensor, targets: Tensor, *, per_layer: bool
    ) -> tuple[list[Trace | None], Tensor]:
        found = trace_pass(self._model, self._sites, self._loss, inputs, targets)
        return self._measured(found, per_layer=per_layer)

    def _measured(
        self, found: list[Trace | None], *, per_layer: bool
    ) -> tuple[list[Trace | None], Tensor]:
        """Return the traces group by group, and the lengths of the examples' gradients."""
        by_site = dict(zip(map(id, self._sites), found, strict=True))
        with torch.no_grad():
            traces = [_merge([by_site[id(site)] for site in group]) for group in self._merged]
            return traces, _lengths(traces, per_layer=per_layer)

    def fits(self, model: nn.Module) -> bool:
        """Return True if a model still has the layers and the trained parameters it had."""
        found = {(site.module, *site.parameters.values()) for site in find_sites(model)}
        return found == {(site.module, *site.parameters.values()) for site in self._sites}

    def check(self, inputs: Tensor, targets: Tensor) -> bool:
        """Compare a few examples with ordinary autograd; return True once there were enough.

        Raises :class:`UnsuitableModel` where they differ. Every trainer's first lot is checked.
        torch's generators are left as they were: whether a lot is checked, and how far, depends on
        its examples, and must not change the dropout of its gradient pass.
        """
        few, labels = inputs[:COMPARED], targets[:COMPARED]
        modes = [partial(mode, self._model, training=each, dropout=False) for each in (False, True)]
        with torch.random.fork_rng(devices=[labels.device] if labels.is_cuda else []):
            for each in modes:
                with each():
                    learn_arguments(self._model, self._sites, few)
            for each in modes:
                with each():
                    if not self._equals_autograd(few, labels):
                        return False
        return len(labels) == COMPARED

    def _equals_autograd(self, inputs: Tensor, targets: Tensor) -> bool:
        """Require lengths of gradients as by autograd; return False if one is not finite.

        Nothing is required where the model itself is random, whatever its mode.
        """

        def measured(seed: int) -> Tensor:
            with torch_seed(seed):
                return self._run(inputs, targets, per_layer=True)[1]

        def same(one: Tensor, other: Tensor) -> bool:
            atol = _ROUNDING / 100 * float(one.max())
            return torch.allclose(one, other, rtol=_ROUNDING, atol=atol)

        norms = measured(0)
        if not bool(torch.isfinite(norms).all()):
            return False
        if not same(norms, measured(0)):
            raise UnsuitableModel(
                "the model gives the same examples other gradients the second time; does it "
                "keep something of one batch for the next, or use chance that is not torch's?"
            )
        if not same(norms, measured(1)):
            return True  # randomness of the model's own: one example alone would draw differently
        for index in range(len(targets)):
            one = slice(index, index + 1)
            value = self._loss(self._model(inputs[one]), targets[one]).sum()
            lengths = self._lengths_by_autograd(value)
            rounding = _NOTHING + _ROUNDING / 100 * math.hypot(*lengths)
            for own, length, names in zip(norms[:, index], lengths, self.names, strict=True):
                if abs(float(own) - length) > _ROUNDING * length + rounding:
                    raise UnsuitableModel(
                        f"the gradient of {', '.join(names)} is not what ordinary differentiation "
                        "of one example gives; is a weight used outside its layer, does an example "
                        "change another, or are the examples not in the first dimension?"
                    )
        return True

    def _lengths_by_autograd(self, value: Tensor) -> list[float]:
        parameters = [each for group in self.groups for each in group]
        grads = iter(torch.autograd.grad(value, parameters, allow_unused=True))
        norms = [[next(grads) for _ in group] for group in self.groups]
        return [
            math.hypot(*(float(each.norm()) for each in group if each is not None))
            for group in norms
        ]


def _named_parameters(group: list[Site]) -> dict[str, nn.Parameter]:
    named: dict[str, nn.Parameter] = {}
    for site in group:
        for local, parameter in site.parameters.items():
            if all(parameter is not each for each in named.values()):
                named[f"{site.name}.{local}" if site.name else local] = parameter
    return named


def _share_parameters(sites: list[Site]) -> list[list[Site]]:
    """Group sites so that no parameter is in two groups."""
    groups: list[list[Site]] = []
    for site in sites:
        own = {id(each) for each in site.parameters.values()}
        touching = [
            group
            for group in groups
            if any(id(each) in own for other in group for each in other.parameters.values())
        ]
        for group in touching[1:]:
            touching[0].extend(group)
            groups.remove(group)
        if touching:
            touching[0].append(site)
        else:
            groups.append([site])
    return groups


def _lengths(traces: Sequence[Trace | None], *, per_layer: bool) -> Tensor:
    """Return the lengths of the gradients, (groups or 1, examples)."""
    squares = [None if trace is None else trace.norms_squared() for trace in traces]
    known = [each for each in squares if each is not None]
    if not per_layer:
        return added(known).sqrt_().unsqueeze(0)
    nothing = torch.zeros_like(known[0])
    return torch.stack([nothing if each is None else each for each in squares]).sqrt_()


def _with_next(batches: Iterable[_UserBatch]) -> Iterator[tuple[_UserBatch, _UserBatch | None]]:
    """Yield each batch with the one after it."""
    before: _UserBatch | None = None
    for batch in batches:
        if before is not None:
            yield before, batch
        before = batch
    if before is not None:
        yield before, None


def _merge(traces: list[Trace | None]) -> Trace | None:
    """Return one trace of a group; gradients of shared parameters are added first."""
    used = [trace for trace in traces if trace is not None]
    if len(used) < 2:
        return used[0] if used else None
    together: dict[nn.Parameter, Tensor] = {}
    for trace in used:
        for parameter, gradients in trace.materialised().items():
            known = together.get(parameter)
            together[parameter] = gradients if known is None else known + gradients
    return Materialised(together)
