"""Linear layers: the gradient of the weight is g aᵀ, summed over positions."""

from __future__ import annotations

from torch import Tensor

from dpsgd.layers.outer import outer_trace
from dpsgd.layers.trace import Call, Site, Trace, joined


def linear(site: Site, calls: list[Call]) -> Trace:
    """Any shape (examples, …, features); several uses of a layer are further positions."""
    weight, bias = site.parameters.get("weight"), site.parameters.get("bias")
    if len(calls) == 1 and calls[0].inputs.dim() == 2:
        return outer_trace(calls[0].inputs, calls[0].grads, weight, bias)
    inputs = joined([_positions(call.inputs) for call in calls])
    grads = joined([_positions(call.grads) for call in calls])
    return outer_trace(inputs, grads, weight, bias)


def _positions(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], -1, values.shape[-1])
