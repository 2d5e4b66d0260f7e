"""Trial runs of a model: layers in which examples meet, and state that a forward pass changes.

A copy of the model runs in training mode on a few examples. Then one example is kept, all the
others are exchanged, and every module must return for the kept example what it returned before.
Where a module does not, its output is corrected before the next module sees it, so that each fault
shows at the innermost module that has it and none hides another. The examples are kept one after
the other: what a cumulative sum does to the last it does not do to the first.

The probe is evidence, not proof: a layer that mixes examples only on inputs of another kind passes.

Last comes the gradient pass itself, which compares its gradients with ordinary differentiation of
one example at a time: whatever rules and probe cannot see (a weight used in its layer and
elsewhere, a tensor changed in place) shows there. It stops at the first fault, so it is tried only
when no other problem was found.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from dpsgd.clipping import Flat
from dpsgd.gradients import ClippedGradients
from dpsgd.validation.modules import ModuleInfo
from dpsgd.validation.rules import MIXES, Finding
from pate.errors import InvalidInput, PateError

_RELATIVE = 1e-4  # of the kept example's largest value
_ROUNDING = 1e-6  # of the largest value of all: what cancellation may leave

Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]


def tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors in the arguments or the output of a module, in order."""
    yield from (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def same_values(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors hold the same values; NaN counts as equal to NaN."""
    if one.shape != other.shape or torch.equal(one, other):
        return one.shape == other.shape
    return bool(((one == other) | ((one != one) & (other != other))).all())


@contextmanager
def fixed_seed(model: nn.Module) -> Iterator[None]:
    """Seed torch's generators inside the block, and restore them after it."""
    first = next(model.parameters(), None)
    devices = [first.device] if first is not None and first.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(0)
        for device in devices:
            torch.cuda.default_generators[device.index or 0].manual_seed(0)
        yield


@final
@dataclass(slots=True)
class Recorder:
    """The outputs of all calls, in order; the modules called, and those not called row by row."""

    examples: int
    answers: list[tuple[str, list[Tensor]]] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    odd: set[str] = field(default_factory=set)

    def hook(self, name: str) -> Hook:
        """Return a hook that records the calls of the module of this name."""

        def record(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            self.called.add(name)
            given, returned = list(tensors((args, kwargs))), _by_example(module, output)
            if not all(self._row_each(each) for each in [*given[:1], *returned[:1]]):
                self.odd.add(name)
            self.answers.append((name, [each.detach().clone() for each in returned]))

        return record

    def _row_each(self, value: Tensor) -> bool:
        return value.dim() > 0 and value.shape[0] == self.examples


@final
@dataclass(slots=True)
class Kept:
    """A comparison of one kept example with an earlier run, which corrects what differs."""

    row: int
    reference: Recorder
    mixing: list[str] = field(default_factory=list)
    calls: int = 0

    def hook(self, name: str) -> Hook:
        """Return a hook that checks the calls of the module of this name."""

        def compare(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> Any:
            answers = self.reference.answers
            position, self.calls = self.calls, self.calls + 1
            if position >= len(answers) or answers[position][0] != name:
                if not self.mixing:  # another path through the model, because of other examples
                    self.mixing.append("")
                return None
            right: dict[int, Tensor] = {}
            mixes = False
            for now, before in zip(_by_example(module, output), answers[position][1], strict=False):
                mixes = mixes or self._differs(now, before)
                right[id(now)] = self._put_right(now, before)
            if mixes:
                self.mixing.append(name)
            return pytree.tree_map(lambda leaf: right.get(id(leaf), leaf), output)

        return compare

    def _differs(self, now: Tensor, before: Tensor) -> bool:
        if now.shape != before.shape:
            return True
        if not now.dim() or now.shape[0] != self.reference.examples:
            return False  # not by example; the rule on rows reports it
        return not _close(now[self.row], before[self.row], overall=before)

    def _put_right(self, now: Tensor, before: Tensor) -> Tensor:
        """Correct rounding too, or it would grow until it reaches a module without fault."""
        if now.shape != before.shape or not now.dim() or now.shape[0] != self.reference.examples:
            return now
        if torch.equal(now[self.row], before[self.row]):
            return now
        now = now.clone()  # an output may be a view of an input
        now[self.row] = before[self.row]
        return now


def _by_example(module: nn.Module, output: Any) -> list[Tensor]:
    """Return the tensors that may have the examples first; last states of an RNN do not."""
    if isinstance(module, nn.RNNBase) and isinstance(output, tuple):
        output = output[0]
    return list(tensors(output))


def _close(a: Tensor, b: Tensor, *, overall: Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return bool((a == b).all())
    finite = a.isfinite()
    if not bool((finite == b.isfinite()).all()):
        return False
    a, b, all_finite = a[finite], b[finite], overall[overall.isfinite()]
    if not a.numel():
        return True
    own = max(float(a.abs().max()), float(b.abs().max()))
    allowed = _RELATIVE * own + _ROUNDING * float(all_finite.abs().max())
    return float((a - b).abs().max()) <= allowed


_EXAMPLES = 4
_FEWEST = 3
_KEPT = 3  # of all the examples: the first, the last and one between

PAST_NOISE = "in a forward pass, past clipping and noise"
Found = tuple[str, Finding]  # under the name of the module


class _Stopped(Exception):
    """The probe cannot continue because of this finding."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding


def probe(model: nn.Module, found: tuple[ModuleInfo, ...], *, examples: Tensor) -> Iterator[Found]:
    """Yield the findings of running copies of the model on a few examples."""
    try:
        yield from _changed_state(model, examples)
        reference = _record(model, examples)
        yield from _rows(reference, _record(model, examples[:-1]), found)
        yield from _unseen(model, reference, found, examples)
        for name in _mixing(model, reference, examples, rows=range(len(examples))):
            yield name, Finding(MIXES, "use a layer that treats each example on its own")
    except _Stopped as stopped:
        yield "", stopped.finding


def probe_together(model: nn.Module, *, examples: Tensor) -> Iterator[Found]:
    """Yield a finding if examples meet in a batch as large as a lot.

    Only a few rows of the model's own output are compared: keeping the output of every layer for a
    whole lot would take more memory than training does.
    """
    try:
        rows = sorted({round(at * (len(examples) - 1) / (_KEPT - 1)) for at in range(_KEPT)})
        reference = _record(model, examples, inside=False)
        for name in _mixing(model, reference, examples, rows=rows, inside=False):
            what = f"{MIXES} when it holds {len(examples)}"
            yield name, Finding(what, "use layers that treat each example on its own")
    except _Stopped as stopped:
        yield "", stopped.finding


def trial(model: nn.Module, *, examples: Tensor) -> Iterator[Found]:
    """Yield the finding of the gradient pass on a copy of the model, if there is one."""
    finding = refused(_copy(model), examples.clone())
    if finding is not None:
        yield "", finding


def _mixing(
    model: nn.Module,
    reference: Recorder,
    examples: Tensor,
    *,
    rows: Iterable[int],
    inside: bool = True,
) -> dict[str, None]:
    """Return the modules whose output for one of these rows depends on the other rows."""
    mixing: dict[str, None] = {}
    for row in rows:
        kept = Kept(row=row, reference=reference)
        _run(model, _others_exchanged(examples, row), kept, inside=inside)
        mixing |= dict.fromkeys(kept.mixing)
    return mixing


def few(examples: Tensor) -> Tensor:
    """Return the first few examples, each of which is kept in turn."""
    return examples[:_EXAMPLES]


def checked_examples(example_inputs: object, *, model: nn.Module) -> Tensor:
    """Return the examples on the model's device; refuse anything but three or more of them."""
    if not isinstance(example_inputs, Tensor):
        kind = type(example_inputs).__name__
        raise InvalidInput(f"example_inputs is of type {kind}; it must be one tensor of examples")
    count = len(example_inputs) if example_inputs.dim() else 0
    if count < _FEWEST:
        raise InvalidInput(f"example_inputs holds {count} examples; give at least {_FEWEST}")
    examples = example_inputs.detach()
    if not examples.is_floating_point() and bool((few(examples) == examples[0]).all()):
        raise InvalidInput("the example_inputs are all the same; give different examples")
    device = next((parameter.device for parameter in model.parameters()), examples.device)
    return examples if device.type == "meta" else examples.to(device)


def _record(model: nn.Module, examples: Tensor, *, inside: bool = True) -> Recorder:
    recorder = Recorder(examples=len(examples))
    output = _run(model, examples, recorder, inside=inside)
    if not any(each.dim() and each.shape[0] == len(examples) for each in tensors(output)):
        what = "its output does not have one row for each example"
        raise _Stopped(Finding(what, "return outputs with the examples along the first dimension"))
    return recorder


def _changed_state(model: nn.Module, examples: Tensor) -> Iterator[Found]:
    copied = _copy(model)
    before = {name: tensor.detach().clone() for name, tensor in _state(copied)}
    with torch.no_grad():
        _forward(copied, examples)
    for name, tensor in _state(copied):
        if name not in before or not same_values(before[name], tensor):
            owner, _, own = name.rpartition(".")
            layer = owner.partition("parametrizations.")[0].removesuffix(".")
            yield (
                layer if "parametrizations" in owner.split(".") else owner,
                Finding(
                    f"changes its {own} {PAST_NOISE}",
                    "keep it as it is in training mode",
                ),
            )


def _rows(more: Recorder, fewer: Recorder, found: tuple[ModuleInfo, ...]) -> Iterator[Found]:
    """Yield trained layers whose calls do not have one row for each example.

    Their gradients could not be separated by example. Two numbers of examples are compared: a
    sequence may happen to be as long as one of them.
    """
    sites = {info.name for info in found if info.is_site}
    for name in sorted(sites & (more.odd | fewer.odd)):
        yield (
            name,
            Finding(
                "is called on something that does not have one row for each example",
                "keep the examples along the first dimension (expand what they share)",
            ),
        )


def _unseen(
    model: nn.Module, reference: Recorder, found: tuple[ModuleInfo, ...], examples: Tensor
) -> Iterator[Found]:
    """Yield trained layers that are used without being called."""
    unseen = {p.name for p in found if p.is_site and p.name not in reference.called}
    if not unseen:
        return
    copied = _copy(model)
    total = sum(each.sum() for each in tensors(_forward(copied, examples)) if each.requires_grad)
    for name in sorted(unseen):
        parameters = [p for p in copied.get_submodule(name).parameters() if p.requires_grad]
        used = isinstance(total, Tensor) and any(
            each is not None
            for each in torch.autograd.grad(total, parameters, allow_unused=True, retain_graph=True)
        )
        if used:
            what = "is used without being called, so that its gradients cannot be followed"
            yield name, Finding(what, "call the module, or register the parameters where used")


def _run(
    model: nn.Module, examples: Tensor, watcher: Recorder | Kept, *, inside: bool = True
) -> object:
    """Run a copy of the model under a watcher's hooks, on all its modules if ``inside``."""
    copied = _copy(model)
    for name, module in copied.named_modules() if inside else [("", copied)]:
        module.register_forward_hook(watcher.hook(name), with_kwargs=True)
    with torch.no_grad():
        return _forward(copied, examples)


def _copy(model: nn.Module) -> nn.Module:
    try:
        copied = copy.deepcopy(model).train()
    except (RuntimeError, ValueError, TypeError) as error:
        what = f"cannot be copied for a trial run ({type(error).__name__})"
        remedy = "take off weight_norm hooks and run lazy layers once"
        raise _Stopped(Finding(what, remedy)) from error
    for module in copied.modules():
        if isinstance(module, _DropoutNd):
            module.eval()
    return copied


def _forward(copied: nn.Module, examples: Tensor) -> object:
    with fixed_seed(copied):
        try:
            return copied(examples.clone())  # a model may change its inputs in place
        except Exception as error:  # the model is arbitrary code
            what = f"does not run on the example inputs ({type(error).__name__})"
            raise _Stopped(Finding(what, "try model(example_inputs) in training mode")) from error


def _others_exchanged(examples: Tensor, row: int) -> Tensor:
    """Replace all but one example by copies of it, or by noise if they were copies already."""
    copies = examples[row].expand_as(examples).clone()
    if not torch.equal(copies, examples):
        return copies
    copies += torch.randn(copies.shape, generator=torch.Generator().manual_seed(0)).to(copies)
    copies[row] = examples[row]
    return copies


def _state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


_REMEDY = "change the model so that each example's gradient can be followed"


def refused(copied: nn.Module, examples: Tensor) -> Finding | None:
    """Return the error of the gradient pass on a copy of the model, whose ``grad`` it changes."""
    for parameter in copied.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    with warnings.catch_warnings(), fixed_seed(copied):
        warnings.simplefilter("ignore")
        try:
            gradients = ClippedGradients(copied, _mixed_outputs)
            clipper = Flat(1.0).start(len(gradients.groups))
            targets = torch.zeros(len(examples), device=examples.device)
            gradients.add(examples, targets, clipper=clipper, step=0, scale=1.0)
        except PateError as error:
            return Finding(f"is refused by the gradient pass: {error}", _REMEDY)
        except Exception as error:  # the model is arbitrary code
            return Finding(f"stops the gradient pass ({type(error).__name__})", _REMEDY)
    return None


def _mixed_outputs(output: Any, targets: Tensor) -> Tensor:
    """A loss that weights every output differently, so that no layer's gradient cancels."""
    generator = torch.Generator().manual_seed(0)
    losses = torch.zeros(len(targets), device=targets.device)
    for each in tensors(output):
        if each.is_floating_point() and each.dim() and each.shape[0] == len(targets):
            weights = torch.randn(each.shape[1:], generator=generator).to(each)
            losses = losses + (each * weights).flatten(1).sum(1)
    return losses
