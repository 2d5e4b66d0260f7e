"""The sum of clipped per-example gradients, from one backward pass.

A few examples are also differentiated one at a time by ordinary autograd, and compared. That finds
what the layers' types do not show: a weight that is used outside its layer, examples that are not
in the first dimension, examples that change one another.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dpsgd.backward_pass import find_sites, learn_arguments, trace_pass
from dpsgd.clipping import Clipper
from dpsgd.layers import Materialised, Site, Trace, UnsuitableModel
from dpsgd.layers.trace import added
from dpsgd.losses import Loss

COMPARED = 3  # examples
_ROUNDING = 1e-3  # float32 through a deep network; a wrong gradient is far off
_NOTHING = 1e-15  # a length that stands for zero: squares of lengths are not taken for smaller


def compare(
    model: nn.Module,
    loss: Loss,
    measure: Callable[[], Tensor],
    inputs: tuple[Tensor, ...],
    targets: Tensor,
    *,
    groups: Sequence[tuple[nn.Parameter, ...]],
    names: Sequence[tuple[str, ...]],
) -> bool:
    """Raise an error unless ``measure()`` (groups, examples) equals the lengths of autograd.

    In evaluation mode, and in training mode with dropout off, unless something else there is
    random. Return False if there were too few examples, or one without a finite gradient.
    """
    enough = len(targets) == COMPARED
    for training in (False, True):
        with mode(model, training=training, dropout=False):
            norms = _seeded(measure, 0)
            if not bool(torch.isfinite(norms).all()):
                return False
            if not _close(norms, _seeded(measure, 0)):
                raise UnsuitableModel(
                    "the model gives the same examples other gradients the second time; does it "
                    "keep something of one batch for the next, or use chance that is not torch's?"
                )
            if not _close(norms, _seeded(measure, 1)):
                continue  # randomness of the model's own: one example alone would draw differently
            for index in range(len(targets)):
                one = tuple(each[index : index + 1] for each in inputs)
                value = loss(model(*one), targets[index : index + 1]).sum()
                lengths = _by_autograd(value, groups)
                _require_equal(norms[:, index].tolist(), lengths, names)
    return enough


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


def _seeded(measure: Callable[[], Tensor], seed: int) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return measure()


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=_ROUNDING, atol=_ROUNDING / 100 * float(one.max()))


def _by_autograd(value: Tensor, groups: Sequence[tuple[nn.Parameter, ...]]) -> list[float]:
    parameters = [each for group in groups for each in group]
    grads = iter(torch.autograd.grad(value, parameters, allow_unused=True))
    norms = [[next(grads) for _ in group] for group in groups]
    return [
        math.hypot(*(float(each.norm()) for each in group if each is not None)) for group in norms
    ]


def _require_equal(
    found: list[float], lengths: list[float], names: Sequence[tuple[str, ...]]
) -> None:
    rounding = _NOTHING + _ROUNDING / 100 * math.hypot(*lengths)
    for own, length, group in zip(found, lengths, names, strict=True):
        if abs(own - length) > _ROUNDING * length + rounding:
            raise UnsuitableModel(
                f"the gradient of {', '.join(group)} is not what ordinary differentiation of one "
                "example gives; is a weight used outside its layer, does an example change "
                "another, or are the examples not in the first dimension?"
            )


Inputs = Tensor | tuple[Tensor, ...]


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
        self, inputs: Inputs, targets: Tensor, *, clipper: Clipper, step: int, scale: float
    ) -> None:
        """Add scale · Σ clipped gradients to ``grad`` of every trained parameter."""
        if len(targets) == 0:
            return
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        self._exact = self._exact or self.check(given, targets)
        traces, norms = self._run(given, targets, per_layer=clipper.per_layer)
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

    def norms(self, inputs: Inputs, targets: Tensor, *, clipper: Clipper) -> Tensor:
        """Return the norm of each example's gradient: (groups, examples), or one group for all."""
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        self._exact = self._exact or self.check(given, targets)
        return self._run(given, targets, per_layer=clipper.per_layer)[1]

    def _run(
        self, inputs: tuple[Tensor, ...], targets: Tensor, *, per_layer: bool
    ) -> tuple[list[Trace | None], Tensor]:
        found = trace_pass(self._model, self._sites, self._loss, inputs, targets)
        by_site = dict(zip(map(id, self._sites), found, strict=True))
        with torch.no_grad():
            traces = [_merge([by_site[id(site)] for site in group]) for group in self._merged]
            squares = [None if trace is None else trace.norms_squared() for trace in traces]
            known = [each for each in squares if each is not None]
            if not per_layer:
                return traces, added(known).sqrt_().unsqueeze(0)
            nothing = torch.zeros_like(known[0])
            rows = [nothing if each is None else each for each in squares]
            return traces, torch.stack(rows).sqrt_()

    def fits(self, model: nn.Module) -> bool:
        """Return True if a model still has the layers and the trained parameters it had."""
        found = {(site.module, *site.parameters.values()) for site in find_sites(model)}
        return found == {(site.module, *site.parameters.values()) for site in self._sites}

    def check(self, inputs: Inputs, targets: Tensor) -> bool:
        """Compare a few examples with ordinary autograd; return True once there were enough.

        Raises :class:`UnsuitableModel` where they differ. Every trainer's first lot is checked.
        torch's generators are left as they were: whether a lot is checked, and how far, depends on
        its examples, and must not change the dropout of its gradient pass.
        """
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        few, labels = tuple(each[:COMPARED] for each in given), targets[:COMPARED]
        with torch.random.fork_rng(devices=[labels.device] if labels.is_cuda else []):
            for training in (False, True):
                with mode(self._model, training=training, dropout=False):
                    learn_arguments(self._model, self._sites, few, len(labels))
            return compare(
                self._model,
                self._loss,
                lambda: self._run(few, labels, per_layer=True)[1],
                few,
                labels,
                groups=self.groups,
                names=self.names,
            )


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
