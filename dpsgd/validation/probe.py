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
when no other problem was found, or on a copy in which all that were found are repaired.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from dpsgd.clipping import Flat
from dpsgd.gradients import ClippedGradients
from dpsgd.losses import mixed_outputs
from dpsgd.noise import torch_seed
from dpsgd.validation.rules import EXPAND, MIXES, Finding, ModuleInfo
from pate.errors import InvalidInput, PateError

PAST_NOISE = "in a forward pass, past clipping and noise"

_EXAMPLES = 4
_FEWEST = 3
_KEPT = 3  # of all the examples: the first, the last and one between
_RELATIVE = 1e-4  # of the kept example's largest value
_ROUNDING = 1e-6  # of the largest value of all: what cancellation may leave
_REMEDY = "change the model so that each example's gradient can be followed"

Found = tuple[str, Finding]  # under the name of the module
Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]


class _Stopped(Exception):
    """The probe cannot continue because of this finding."""

    def __init__(self, what: str, remedy: str) -> None:
        self.finding = Finding(what, remedy)


def probe(model: nn.Module, found: tuple[ModuleInfo, ...], *, examples: Tensor) -> Iterator[Found]:
    """Yield the findings of running copies of the model on a few examples."""
    sites = {info.name for info in found if info.is_site}
    try:
        yield from _changed_state(model, examples)
        reference, fewer = _record(model, examples), _record(model, examples[:-1])
        # Two numbers of examples: a sequence may happen to be as long as one of them.
        for name in sorted(sites & (reference.odd | fewer.odd)):
            what = "is called on something that does not have one row for each example"
            embeds = isinstance(model.get_submodule(name), nn.Embedding)
            remedy = "keep the examples along the first dimension (expand what they share)"
            yield name, Finding(what, EXPAND if embeds else remedy)
        yield from _used_uncalled(model, sorted(sites - reference.called), examples)
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


def trial(model: nn.Module, *, examples: Tensor) -> Iterator[Finding]:
    """Yield the error of the gradient pass on a copy of the model, if there is one."""
    copied = _copy(model)
    for parameter in copied.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    with warnings.catch_warnings(), torch_seed(0, _device_of(copied)):
        warnings.simplefilter("ignore")
        try:
            gradients = ClippedGradients(copied, mixed_outputs)
            clipper = Flat(1.0).start(len(gradients.groups))
            targets = torch.zeros(len(examples), device=examples.device)
            gradients.add(examples.clone(), targets, clipper=clipper, step=0, scale=1.0)
        except PateError as error:
            yield Finding(f"is refused by the gradient pass: {error}", _REMEDY)
        except Exception as error:  # the model is arbitrary code
            yield Finding(f"stops the gradient pass ({type(error).__name__})", _REMEDY)


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


def same_values(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors hold the same values; NaN counts as equal to NaN."""
    if one.shape != other.shape or torch.equal(one, other):
        return one.shape == other.shape
    return bool(((one == other) | ((one != one) & (other != other))).all())


# --- runs of a copy under hooks -------------------------------------------------------------------


@final
@dataclass(slots=True)
class _Recorder:
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
            given, returned = _tensors((args, kwargs)), _by_example(module, output)
            if not all(self.has_rows(each) for each in [*given[:1], *returned[:1]]):
                self.odd.add(name)
            self.answers.append((name, [each.detach().clone() for each in returned]))

        return record

    def has_rows(self, value: Tensor) -> bool:
        return value.dim() > 0 and value.shape[0] == self.examples


@final
@dataclass(slots=True)
class _Kept:
    """A comparison of one kept example with an earlier run, which corrects what differs."""

    row: int
    reference: _Recorder
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
                if now.shape != before.shape:
                    mixes = True
                elif self.reference.has_rows(now):  # otherwise the rule on rows reports it
                    mixes = mixes or not _close(now[self.row], before[self.row], overall=before)
                    right[id(now)] = self._put_right(now, before)
            if mixes:
                self.mixing.append(name)
            return pytree.tree_map(lambda leaf: right.get(id(leaf), leaf), output)

        return compare

    def _put_right(self, now: Tensor, before: Tensor) -> Tensor:
        """Correct rounding too, or it would grow until it reaches a module without fault."""
        if torch.equal(now[self.row], before[self.row]):
            return now
        now = now.clone()  # an output may be a view of an input
        now[self.row] = before[self.row]
        return now


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _by_example(module: nn.Module, output: Any) -> list[Tensor]:
    """Return the tensors that may have the examples first; last states of an RNN do not."""
    if isinstance(module, nn.RNNBase) and isinstance(output, tuple):
        output = output[0]
    return _tensors(output)


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


def _record(model: nn.Module, examples: Tensor, *, inside: bool = True) -> _Recorder:
    recorder = _Recorder(examples=len(examples))
    output = _run(model, examples, recorder, inside=inside)
    if not any(map(recorder.has_rows, _tensors(output))):
        what = "its output does not have one row for each example"
        raise _Stopped(what, "return outputs with the examples along the first dimension")
    return recorder


def _mixing(
    model: nn.Module,
    reference: _Recorder,
    examples: Tensor,
    *,
    rows: Iterable[int],
    inside: bool = True,
) -> dict[str, None]:
    """Return the modules whose output for one of these rows depends on the other rows."""
    mixing: dict[str, None] = {}
    for row in rows:
        kept = _Kept(row=row, reference=reference)
        _run(model, _others_exchanged(examples, row), kept, inside=inside)
        mixing |= dict.fromkeys(kept.mixing)
    return mixing


def _others_exchanged(examples: Tensor, row: int) -> Tensor:
    """Replace all but one example by copies of it, or by noise if they were copies already."""
    copies = examples[row].expand_as(examples).clone()
    if not torch.equal(copies, examples):
        return copies
    copies += torch.randn(copies.shape, generator=torch.Generator().manual_seed(0)).to(copies)
    copies[row] = examples[row]
    return copies


def _changed_state(model: nn.Module, examples: Tensor) -> Iterator[Found]:
    """Yield parameters and buffers that a forward pass changes, under the layer that owns them."""
    copied = _copy(model)

    def state() -> list[tuple[str, Tensor]]:
        return [*copied.named_parameters(), *copied.named_buffers()]

    before = {name: tensor.detach().clone() for name, tensor in state()}
    with torch.no_grad():
        _forward(copied, examples)
    for name, tensor in state():
        if name not in before or not same_values(before[name], tensor):
            owner, _, own = name.rpartition(".")
            if "parametrizations" in owner.split("."):
                owner = owner.partition("parametrizations.")[0].removesuffix(".")
            what = f"changes its {own} {PAST_NOISE}"
            yield owner, Finding(what, "keep it as it is in training mode")


def _used_uncalled(model: nn.Module, names: list[str], examples: Tensor) -> Iterator[Found]:
    """Yield the layers of these names, which were not called, if they are used all the same."""
    if not names:
        return
    copied = _copy(model)
    total = sum(each.sum() for each in _tensors(_forward(copied, examples)) if each.requires_grad)
    for name in names:
        parameters = [p for p in copied.get_submodule(name).parameters() if p.requires_grad]
        if isinstance(total, Tensor) and any(
            each is not None
            for each in torch.autograd.grad(total, parameters, allow_unused=True, retain_graph=True)
        ):
            what = "is used without being called, so that its gradients cannot be followed"
            yield name, Finding(what, "call the module, or register the parameters where used")


def _run(
    model: nn.Module, examples: Tensor, watcher: _Recorder | _Kept, *, inside: bool = True
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
        raise _Stopped(what, "take off weight_norm hooks and run lazy layers once") from error
    for module in copied.modules():
        if isinstance(module, _DropoutNd):
            module.eval()
    return copied


def _forward(copied: nn.Module, examples: Tensor) -> object:
    with torch_seed(0, _device_of(copied)):
        try:
            return copied(examples.clone())  # a model may change its inputs in place
        except Exception as error:  # the model is arbitrary code
            what = f"does not run on the example inputs ({type(error).__name__})"
            raise _Stopped(what, "try model(example_inputs) in training mode") from error


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
