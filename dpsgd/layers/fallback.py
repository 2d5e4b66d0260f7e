"""Any other layer: one example at a time, vectorised by ``torch.func.vmap``.

The layer, and not the rest of the model, is run again on its inputs, with the gradient at its
output. Each example's gradient is laid out.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dpsgd.layers.trace import Materialised, Site, Trace, UnsuitableModel, added
from pate.errors import InvalidInput


@final
@dataclass(frozen=True, slots=True, eq=False)
class LooseCall:
    """One use of a layer with any arguments; gradients of its float outputs, by position."""

    number: int  # of the use, in the order of a forward pass
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grads: dict[int, Tensor]
    examples: int


def fallback(site: Site, calls: list[LooseCall]) -> Trace:
    """Return the sum of the gradients of all uses."""
    parts = [_one_by_one(site, call) for call in calls]
    return Materialised(
        {
            parameter: added(part[name] for part in parts)
            for name, parameter in site.parameters.items()
        }
    )


def float_outputs(output: Any) -> list[Tensor]:
    """Return the floating-point tensors in a layer's output."""
    return [
        leaf
        for leaf in pytree.tree_leaves(output)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]


def _one_by_one(site: Site, call: LooseCall) -> dict[str, Tensor]:
    leaves, shape = pytree.tree_flatten((call.args, call.kwargs))
    now = rows_of(leaves, call.examples)
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
        outputs = float_outputs(output)
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


def rows_of(leaves: list[Any], examples: int) -> tuple[bool, ...]:
    """Return for each argument whether it has as many rows as there are examples."""
    return tuple(
        isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == examples for leaf in leaves
    )


def detached(value: Any) -> Any:
    """Return arguments with all tensors detached."""
    return pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, value)
