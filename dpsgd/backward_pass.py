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
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast, final

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
@dataclass(slots=True, eq=False, kw_only=True)
class Use:
    """One use of a layer in a forward pass, with any arguments."""

    site: Site
    number: int  # of the use, in the order of the forward pass
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    edges: list[GradientEdge]  # of the outputs as returned, whatever changes them in place
    versions: list[tuple[Tensor, int]]  # of the inputs, whose values are needed
    grads: dict[int, Tensor] = field(default_factory=dict)  # of its float outputs, by position


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
    model: nn.Module, sites: list[Site], loss: Loss, inputs: Tensor, targets: Tensor
) -> list[Trace | None]:
    """Run the model forwards and backwards once; return a trace for each site, None if unused."""
    with recording(model, sites) as uses:
        outputs = model(inputs)
        losses = checked_losses(loss(outputs, targets), len(targets))
        require_apart(loss, outputs, targets, losses)
        return traces_of(sites, uses, losses.sum(), examples=len(targets))


def traces_of(
    sites: list[Site], uses: list[Use], total: Tensor, *, examples: int, scale: float = 1.0
) -> list[Trace | None]:
    """Run backwards from scale · ``total``, the sum of the losses; return a trace for each site."""
    _require_untouched(uses)
    edges = [edge for use in uses for edge in use.edges]
    if not total.requires_grad:
        raise UnsuitableModel("the loss does not depend on any layer that is trained")
    start = torch.full_like(total, scale)
    grads = iter(torch.autograd.grad(total, edges, start, allow_unused=True))
    for use in uses:
        found = enumerate(next(grads) for _ in use.edges)
        use.grads = {place: grad for place, grad in found if grad is not None}
        if use.grads:
            _require_rows(use, examples)
    with torch.no_grad():
        return [
            _trace(site, [use for use in uses if use.site is site and use.grads], examples)
            for site in sites
        ]


def learn_arguments(model: nn.Module, sites: list[Site], inputs: Tensor) -> None:
    """Record which arguments of layers without a rule have one row for each example.

    Two numbers of examples are tried: an argument that all examples share (a mask, a table) may
    happen to have as many rows as there are examples, but not twice.
    """
    if len(inputs) == 1:
        return
    found: dict[tuple[int, int], list[tuple[bool, ...]]] = {}
    for size in (len(inputs), len(inputs) - 1):
        with recording(model, sites) as uses:
            model(inputs[:size])
        for use in uses:
            leaves = pytree.tree_leaves((use.args, use.kwargs))
            found.setdefault((id(use.site), use.number), []).append(_rows_of(leaves, size))
    for site in sites:
        for (key, number), rows in found.items():
            if key == id(site) and len(rows) == 2 and len(rows[0]) == len(rows[1]):
                both = tuple(a and b for a, b in zip(*rows, strict=True))
                site.per_example[site.module.training, number] = both


def _trace(site: Site, uses: list[Use], examples: int) -> Trace | None:
    if not uses:
        return None
    rule = rule_for(site.module)
    if rule is not None:
        return rule(site, [Call(_only_argument(use), use.grads[0]) for use in uses])
    parts = [_one_by_one(use, examples) for use in uses]
    return Materialised(
        {
            parameter: added(part[name] for part in parts)
            for name, parameter in site.parameters.items()
        }
    )


def _only_argument(use: Use) -> Tensor:
    (given,) = (*use.args, *use.kwargs.values())
    return cast(Tensor, given)


def _require_rows(use: Use, examples: int) -> None:
    tensors = list(use.grads.values())
    if rule_for(use.site.module) is not None:
        tensors.append(_only_argument(use))
    for tensor in tensors:
        if tensor.dim() == 0 or tensor.shape[0] != examples:
            raise UnsuitableModel(
                f"layer {use.site} works on shape {tuple(tensor.shape)} in a batch of "
                f"{examples}; keep the examples in the first dimension throughout the model"
            )


@contextlib.contextmanager
def recording(model: nn.Module, sites: list[Site]) -> Iterator[list[Use]]:
    """Record the uses of all sites inside the block.

    Gradients of their parameters, and in-place activations, are off.
    """
    uses: list[Use] = []
    parameters = [each for site in sites for each in site.parameters.values()]
    in_place: list[Any] = [each for each in model.modules() if getattr(each, "inplace", False)]
    for parameter in parameters:
        parameter.requires_grad_(False)
    for module in in_place:
        module.inplace = False
    hooks = [
        site.module.register_forward_hook(partial(_record, site, uses), with_kwargs=True)
        for site in sites
    ]
    try:
        with torch.enable_grad():
            yield uses
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in parameters:
            parameter.requires_grad_(True)
        for module in in_place:
            module.inplace = True


def _record(
    site: Site,
    uses: list[Use],
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
        output = pytree.tree_map(lambda leaf: leaf.clone() if _is_float(leaf) else leaf, output)
    outputs = _floats(output)
    for each in outputs:
        if not each.requires_grad:
            _Begin.apply(each, torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
    args, kwargs = pytree.tree_map_only(Tensor, Tensor.detach, (args, kwargs))
    uses.append(
        Use(
            site=site,
            number=sum(use.site is site for use in uses),
            args=args,
            kwargs=kwargs,
            edges=[get_gradient_edge(each) for each in outputs],
            versions=[(each, each._version) for each in _floats((args, kwargs))],
        )
    )
    return output


def _require_untouched(uses: list[Use]) -> None:
    """Refuse inputs that were changed in place later: their gradient would be wrong."""
    for use in uses:
        if any(tensor._version != version for tensor, version in use.versions):
            raise UnsuitableModel(
                f"the input of layer {use.site} is changed in place later on (x += …, relu_); "
                "write that without working in place"
            )


def _one_by_one(use: Use, examples: int) -> dict[str, Tensor]:
    """Return every example's gradient of each parameter, from a run of the layer alone."""
    site = use.site
    leaves, shape = pytree.tree_flatten((use.args, use.kwargs))
    now = _rows_of(leaves, examples)
    own = site.per_example.get((site.module.training, use.number))
    if own is None and examples == 1:
        own = now  # with one example it makes no difference
    if own is None or len(own) != len(now) or any(a > b for a, b in zip(own, now, strict=True)):
        raise UnsuitableModel(
            f"layer {site} is not used in the same way, with the same kind of arguments, every time"
        )
    given = [leaf for leaf, each in zip(leaves, own, strict=True) if each]
    every = {name: each.detach() for name, each in site.module.named_parameters()}
    values = {name: parameter.detach() for name, parameter in site.parameters.items()}

    def aligned(
        values: dict[str, Tensor], own_leaves: list[Tensor], grads: dict[int, Tensor]
    ) -> Tensor:
        rest = iter(own_leaves)
        filled = [next(rest).unsqueeze(0) if o else x for x, o in zip(leaves, own, strict=True)]
        args, kwargs = pytree.tree_unflatten(filled, shape)
        output = torch.func.functional_call(site.module, {**every, **values}, args, kwargs)
        outputs = _floats(output)
        return added((outputs[place].squeeze(0) * grad).sum() for place, grad in grads.items())

    each = torch.func.vmap(torch.func.grad(aligned), in_dims=(None, 0, 0), randomness="error")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            gradients: dict[str, Tensor] = each(values, given, use.grads)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInput(f"layer {site} cannot be run one example at a time: {reason}") from error
    return gradients


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _floats(value: Any) -> list[Tensor]:
    """Return the floating-point tensors in a layer's arguments or output."""
    return [leaf for leaf in pytree.tree_leaves(value) if _is_float(leaf)]


def _rows_of(leaves: list[Any], examples: int) -> tuple[bool, ...]:
    """Return for each argument whether it has as many rows as there are examples."""
    return tuple(
        isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == examples for leaf in leaves
    )
