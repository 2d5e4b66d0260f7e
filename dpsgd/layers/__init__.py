"""Per-example gradients, with a rule of its own for each kind of layer.

A rule takes a layer and what one backward pass left at it, and returns a trace: the length of every
example's gradient, and their sum for given factors. Layers without a rule take the slow path of
:mod:`dpsgd.backward_pass`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from dpsgd.layers.convolution import convolution
from dpsgd.layers.embedding import embedding
from dpsgd.layers.linear import linear
from dpsgd.layers.normalisation import group_norm, instance_norm, layer_norm, rms_norm
from dpsgd.layers.trace import Call, Materialised, Site, Trace, UnsuitableModel

__all__ = ["Call", "Materialised", "Site", "Trace", "UnsuitableModel", "rule_for"]

Rule = Callable[[Site, list[Call]], Trace]

# By exact type: a subclass may compute something else.
_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.Embedding: embedding,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
    nn.GroupNorm: group_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
}


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule for a layer of a known kind that holds only that kind's parameters.

    >>> rule_for(nn.Linear(2, 3)) is linear, rule_for(nn.Bilinear(2, 2, 3)) is None
    (True, True)
    """
    if not module._parameters or not set(module._parameters) <= {"weight", "bias"}:
        return None
    if module._modules:  # a submodule may change what the layer computes
        return None
    return _RULES.get(type(module))
