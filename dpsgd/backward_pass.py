"""One forward and one backward pass, recorded at every layer.

Parameters are held fixed during the pass, so that autograd computes no gradient of theirs: only the
gradients at the layers' outputs, which is all that per-example gradients need.

A layer without a rule, and not the rest of the model, is run again on its inputs, one example at a
time, vectorised by ``torch.func.vmap``; each example's gradient is laid out.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from dpsgd.layers import Call, Materialised, Site, Trace, UnsuitableModel, rule_for
from dpsgd.layers.trace import added
from dpsgd.losses import Loss, checked_losses, require_apart
from pate.errors import InvalidInput


def find_sites(model: nn.Module) -> list[Site]:
    """Return the layers that own trained parameters, in the order in which the model lists them.

    A layer with a rule stands alone. Any other module that owns a parameter, or computes one, is
    one site together with everything below it.
    """
    return list(_sites(model, "", set()))


def _sites(module: nn.Module, name: str, seen: set[nn.Module]) -> Iterator[Site]:
    if module in seen:
        return
    seen.add(module)
    if _trains(module):
        own = module.named_parameters(recurse=rule_for(module) is None)
        trained = {local: parameter for local, parameter in own if parameter.requires_grad}
        yield Site(name=name, module=module, parameters=trained)
        return
    for local, child in module.named_children():
        yield from _sites(child, f"{name}.{local}" if name else local, seen)


def _trains(module: nn.Module) -> bool:
    """Return True if a module itself owns a trained parameter, or computes one from others."""
    parametrised = parametrize.is_parametrized(module)
    return any(each.requires_grad for each in module.parameters(recurse=parametrised))


@final
@dataclass(slots=True, eq=False)
class _Record:
    site: Site
    number: int  # of the use
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    edges: list[GradientEdge]  # of the outputs as returned, whatever changes them in place
    versions: list[tuple[Tensor, int]]  # of the inputs, whose values are needed


@final
class _Begin(torch.autograd.Function):
    """The identity, with an output that requires a gradient."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def trace_pass(
    model: nn.Module, sites: list[Site], loss: Loss, inputs: tuple[Tensor, ...], targets: Tensor
) -> list[Trace | None]:
    """Run the model forwards and backwards once; return a trace for each site, None if unused."""
    records: list[_Record] = []
    with _held_fixed(model, sites), _recording(sites, records), torch.enable_grad():
        outputs = model(*inputs)
        losses = checked_losses(loss(outputs, targets), len(targets))
        require_apart(loss, outputs, targets, losses)
        _require_untouched(records)
        edges = [edge for record in records for edge in record.edges]
        if not losses.requires_grad:
            raise UnsuitableModel("the loss does not depend on any layer that is trained")
        grads = iter(torch.autograd.grad(losses.sum(), edges, allow_unused=True))
    calls: dict[int, list[Any]] = {id(site): [] for site in sites}
    for record in records:
        found = enumerate(next(grads) for _ in record.edges)
        came_back = {place: grad for place, grad in found if grad is not None}
        if came_back:
            calls[id(record.site)].append(_call(record, came_back, len(targets)))
    with torch.no_grad():
        return [_trace(site, calls[id(site)]) for site in sites]


def learn_arguments(
    model: nn.Module, sites: list[Site], inputs: tuple[Tensor, ...], examples: int
) -> None:
    """Record which arguments of layers without a rule have one row for each example.

    Two numbers of examples are tried: an argument that all examples share (a mask, a table) may
    happen to have as many rows as there are examples, but not twice.
    """
    if examples == 1:
        return
    found: dict[tuple[int, int], list[tuple[bool, ...]]] = {}
    for size in (examples, examples - 1):
        records: list[_Record] = []
        with _held_fixed(model, sites), _recording(sites, records), torch.enable_grad():
            model(*(each[:size] for each in inputs))
        for record in records:
            leaves = pytree.tree_leaves((record.args, record.kwargs))
            key = id(record.site), record.number
            found.setdefault(key, []).append(_rows_of(leaves, size))
    for site in sites:
        uses = [(number, rows) for (key, number), rows in found.items() if key == id(site)]
        for number, rows in uses:
            if len(rows) == 2 and len(rows[0]) == len(rows[1]):
                both = tuple(a and b for a, b in zip(*rows, strict=True))
                site.per_example[site.module.training, number] = both


def _trace(site: Site, calls: list[Any]) -> Trace | None:
    if not calls:
        return None
    rule = rule_for(site.module)
    return _fallback(site, calls) if rule is None else rule(site, calls)


def _call(record: _Record, came_back: dict[int, Tensor], examples: int) -> Call | _LooseCall:
    tensors = list(came_back.values())
    if rule_for(record.site.module) is None:
        call: Call | _LooseCall = _LooseCall(
            record.number, record.args, record.kwargs, came_back, examples
        )
    else:
        (given,) = (*record.args, *record.kwargs.values())
        tensors.append(given)
        call = Call(given, came_back[0])
    for tensor in tensors:
        if tensor.dim() == 0 or tensor.shape[0] != examples:
            raise UnsuitableModel(
                f"layer {record.site} works on shape {tuple(tensor.shape)} in a batch of "
                f"{examples}; keep the examples in the first dimension throughout the model"
            )
    return call


@contextlib.contextmanager
def _held_fixed(model: nn.Module, sites: list[Site]) -> Iterator[None]:
    """Turn off gradients of the sites' parameters, and in-place activations, inside the block."""
    parameters = [each for site in sites for each in site.parameters.values()]
    in_place: list[Any] = [each for each in model.modules() if getattr(each, "inplace", False)]
    for parameter in parameters:
        parameter.requires_grad_(False)
    for module in in_place:
        module.inplace = False
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
        for module in in_place:
            module.inplace = True


@contextlib.contextmanager
def _recording(sites: list[Site], records: list[_Record]) -> Iterator[None]:
    hooks = [
        site.module.register_forward_hook(partial(_record, site, records), with_kwargs=True)
        for site in sites
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _record(
    site: Site,
    records: list[_Record],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Any,
) -> Any:
    if not torch.is_grad_enabled():
        raise UnsuitableModel(
            f"layer {site} is trained and runs without gradients (under no_grad, or in a "
            "checkpoint that recomputes it); run it plainly, or freeze its parameters"
        )
    if rule_for(module) is None:  # it may return its own input
        output = pytree.tree_map(_copied, output)
    outputs = _float_outputs(output)
    for each in outputs:
        if not each.requires_grad:
            _Begin.apply(each, torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
    args, kwargs = _detached(args), _detached(kwargs)
    records.append(
        _Record(
            site=site,
            number=sum(record.site is site for record in records),
            args=args,
            kwargs=kwargs,
            edges=[get_gradient_edge(each) for each in outputs],
            versions=[(each, each._version) for each in _float_outputs((args, kwargs))],
        )
    )
    return output


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _require_untouched(records: list[_Record]) -> None:
    """Refuse inputs that were changed in place later: their gradient would be wrong."""
    for record in records:
        if any(tensor._version != version for tensor, version in record.versions):
            raise UnsuitableModel(
                f"the input of layer {record.site} is changed in place later on (x += …, relu_); "
                "write that without working in place"
            )


@final
@dataclass(frozen=True, slots=True, eq=False)
class _LooseCall:
    """One use of a layer with any arguments; gradients of its float outputs, by position."""

    number: int  # of the use, in the order of a forward pass
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grads: dict[int, Tensor]
    examples: int


def _fallback(site: Site, calls: list[_LooseCall]) -> Trace:
    """Return the sum of the gradients of all uses."""
    parts = [_one_by_one(site, call) for call in calls]
    return Materialised(
        {
            parameter: added(part[name] for part in parts)
            for name, parameter in site.parameters.items()
        }
    )


def _float_outputs(output: Any) -> list[Tensor]:
    """Return the floating-point tensors in a layer's output."""
    return [
        leaf
        for leaf in pytree.tree_leaves(output)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]


def _one_by_one(site: Site, call: _LooseCall) -> dict[str, Tensor]:
    leaves, shape = pytree.tree_flatten((call.args, call.kwargs))
    now = _rows_of(leaves, call.examples)
    own = site.per_example.get((site.module.training, call.number))
    if own is None and call.examples == 1:
        own = now  # with one example it makes no difference
    if own is None or len(own) != len(now) or any(a > b for a, b in zip(own, now, strict=True)):
        raise UnsuitableModel(
            f"layer {site} is not used in the same way, with the same kind of arguments, every time"
        )
    given = [leaf for leaf, each in zip(leaves, own, strict=True) if each]
    others = {
        name: parameter.detach()
        for name, parameter in site.module.named_parameters()
        if name not in site.parameters
    }
    values = {name: parameter.detach() for name, parameter in site.parameters.items()}

    def aligned(
        values: dict[str, Tensor], own_leaves: list[Tensor], grads: dict[int, Tensor]
    ) -> Tensor:
        rest = iter(own_leaves)
        filled = [next(rest).unsqueeze(0) if o else x for x, o in zip(leaves, own, strict=True)]
        args, kwargs = pytree.tree_unflatten(filled, shape)
        output = torch.func.functional_call(site.module, {**others, **values}, args, kwargs)
        outputs = _float_outputs(output)
        return added((outputs[place].squeeze(0) * grad).sum() for place, grad in grads.items())

    each = torch.func.vmap(torch.func.grad(aligned), in_dims=(None, 0, 0), randomness="error")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            gradients: dict[str, Tensor] = each(values, given, call.grads)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInput(f"layer {site} cannot be run one example at a time: {reason}") from error
    return gradients


def _rows_of(leaves: list[Any], examples: int) -> tuple[bool, ...]:
    """Return for each argument whether it has as many rows as there are examples."""
    return tuple(
        isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == examples for leaf in leaves
    )


def _detached(value: Any) -> Any:
    """Return arguments with all tensors detached."""
    return pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, value)
