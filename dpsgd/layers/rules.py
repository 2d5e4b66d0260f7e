"""Which rule is for which layer."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from dpsgd.layers.convolution import convolution
from dpsgd.layers.embedding import embedding
from dpsgd.layers.linear import linear
from dpsgd.layers.normalisation import group_norm, instance_norm, layer_norm, rms_norm
from dpsgd.layers.trace import Call, Site, Trace

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
    """The rule for a layer, if it is one of the known kinds and holds nothing but their parameters.

    >>> rule_for(nn.Linear(2, 3)) is linear, rule_for(nn.Bilinear(2, 2, 3)) is None
    (True, True)
    """
    if not module._parameters or not set(module._parameters) <= {"weight", "bias"}:
        return None
    if module._modules:  # something was put into it, and may work on what it gives
        return None
    return _RULES.get(type(module))
