"""Per-example gradients, with a rule of its own for each kind of layer.

A rule takes a layer and what one backward pass left at it, and returns a trace: the length of every
example's gradient, and their sum for given factors. Layers without a rule take the slow path of
:mod:`dpsgd.backward_pass`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from dpsgd.layers.convolution import convolution
from dpsgd.layers.linear import embedding, linear
from dpsgd.layers.trace import Call, Materialised, Site, Trace, UnsuitableModel, added

__all__ = ["Call", "Materialised", "Site", "Trace", "UnsuitableModel", "rule_for"]

Rule = Callable[[Site, list[Call]], Trace]


def _normalisation(site: Site, calls: list[Call]) -> Trace:
    """The rule for normalisation within an example: one gradient for each channel, laid out.

    Batch normalisation has none: its examples share a mean, and clipping does not bound the
    influence of one of them on the others' gradients.
    """
    module = site.module

    def normalised(inputs: Tensor) -> Tensor:
        if isinstance(module, nn.LayerNorm):
            return functional.layer_norm(inputs, module.normalized_shape, eps=module.eps)
        if isinstance(module, nn.RMSNorm):
            return functional.rms_norm(inputs, list(module.normalized_shape), eps=module.eps)
        if isinstance(module, nn.GroupNorm):
            return functional.group_norm(inputs, module.num_groups, eps=module.eps)
        assert isinstance(module, nn.modules.instancenorm._InstanceNorm)
        return functional.instance_norm(inputs, eps=module.eps)

    def over_positions(values: Tensor) -> Tensor:
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):  # the weight spans the last dimensions
            return values.reshape(values.shape[0], -1, *module.normalized_shape).sum(1)
        return values.flatten(2).sum(2) if values.dim() > 2 else values

    gradients = {}
    if "weight" in site.parameters:
        gradients[site.parameters["weight"]] = added(
            over_positions(call.grads * normalised(call.inputs)) for call in calls
        )
    if "bias" in site.parameters:
        gradients[site.parameters["bias"]] = added(over_positions(call.grads) for call in calls)
    return Materialised(gradients)


# By exact type: a subclass may compute something else.
_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Embedding: embedding,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), convolution),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm, nn.GroupNorm), _normalisation),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _normalisation),
}


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule for a layer of a known kind that holds only that kind's parameters."""
    if not module._parameters or not set(module._parameters) <= {"weight", "bias"}:
        return None
    if module._modules:  # a submodule may change what the layer computes
        return None
    return _RULES.get(type(module))
