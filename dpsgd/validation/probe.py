"""What only a run can show: layers in which examples meet, and state that a forward pass changes.

A copy of the model runs in training mode on a few examples. Then one example is kept, all the
others are exchanged, and every module must give the kept example what it gave before. Where a
module does not, its answer is put right before the next module sees it, so that each fault shows at
the innermost module that has it and none hides another. The examples are kept one after the other:
what a cumulative sum does to the last it does not do to the first.

The probe is evidence, not proof: a layer that mixes examples only on inputs of another kind passes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dpsgd.validation.places import Place
from dpsgd.validation.rules import MIXES, Finding
from dpsgd.validation.trial import refused
from dpsgd.validation.watching import Kept, Recorder, same_chance, same_values, tensors
from pate.errors import InvalidInput

_EXAMPLES = 4
_FEWEST = 3
_KEPT = 3  # of all the examples: the first, the last and one between

PAST_NOISE = "in a forward pass, past clipping and noise"
Found = tuple[str, Finding]  # under the name of the module


class _Stopped(Exception):
    """The probe cannot go on, and this is the finding."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding


def probe(model: nn.Module, found: tuple[Place, ...], *, examples: Tensor) -> Iterator[Found]:
    """What running copies of the model on a few examples shows; the model itself is untouched."""
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
    """Whether examples meet when there are as many as in a lot, and not when there are few.

    As in :func:`probe`, of a few rows, and of what the model returns: what every layer returned for
    a whole lot would take more memory than training does.
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
    """What the gradient pass has against the model, asked of a copy."""
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
    """The modules that give one of these rows something else when all others are exchanged."""
    mixing: dict[str, None] = {}
    for row in rows:
        kept = Kept(row=row, reference=reference)
        _run(model, _others_exchanged(examples, row), kept, inside=inside)
        mixing |= dict.fromkeys(kept.mixing)
    return mixing


def few(examples: Tensor) -> Tensor:
    """The first few of the examples, which every row is tried of."""
    return examples[:_EXAMPLES]


def checked_examples(example_inputs: object, *, model: nn.Module) -> Tensor:
    """The examples on the model's device, checked."""
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


def _rows(more: Recorder, fewer: Recorder, found: tuple[Place, ...]) -> Iterator[Found]:
    """Trained layers whose calls do not have one row for each example, whatever their number.

    Their gradients could not be told apart by example. Two numbers of examples are compared: a
    sequence may happen to be as long as one of them.
    """
    sites = {place.name for place in found if place.is_site}
    for name in sorted(sites & (more.odd | fewer.odd)):
        yield (
            name,
            Finding(
                "is called on something that does not have one row for each example",
                "keep the examples along the first dimension (expand what they share)",
            ),
        )


def _unseen(
    model: nn.Module, reference: Recorder, found: tuple[Place, ...], examples: Tensor
) -> Iterator[Found]:
    """Trained layers that are never called: unused, or used in a way no gradient pass can see."""
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
    """What a copy of the model returns; it is watched, and its modules too where ``inside``."""
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
    with same_chance(copied):
        try:
            return copied(examples.clone())  # a model may work in place on what it is given
        except Exception as error:  # the model is anybody's code
            what = f"does not run on the example inputs ({type(error).__name__})"
            raise _Stopped(Finding(what, "try model(example_inputs) in training mode")) from error


def _others_exchanged(examples: Tensor, row: int) -> Tensor:
    """All but one example become copies of it, which are valid inputs; or noise, if they were."""
    copies = examples[row].expand_as(examples).clone()
    if not torch.equal(copies, examples):
        return copies
    copies += torch.randn(copies.shape, generator=torch.Generator().manual_seed(0)).to(copies)
    copies[row] = examples[row]
    return copies


def _state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
