"""Normalisation within an example: one gradient for each channel, small enough to lay out.

Batch normalisation is absent: its examples share a mean, and clipping does not bound the influence
of one of them on the others' gradients.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from dpsgd.layers.trace import Call, Materialised, Site, Trace, added


def layer_norm(site: Site, calls: list[Call]) -> Trace:
    """The rule for normalisation over the last dimensions, which the weight spans."""
    module = site.module
    assert isinstance(module, nn.LayerNorm)

    def normalised(inputs: Tensor) -> Tensor:
        return functional.layer_norm(inputs, module.normalized_shape, eps=module.eps)

    return _trailing(site, calls, normalised, len(module.normalized_shape))


def rms_norm(site: Site, calls: list[Call]) -> Trace:
    """The rule for layer normalisation without the mean."""
    module = site.module
    assert isinstance(module, nn.RMSNorm)
    shape = list(module.normalized_shape)

    def normalised(inputs: Tensor) -> Tensor:
        return functional.rms_norm(inputs, shape, eps=module.eps)

    return _trailing(site, calls, normalised, len(shape))


def group_norm(site: Site, calls: list[Call]) -> Trace:
    """The rule for normalisation over groups of channels, the second dimension."""
    module = site.module
    assert isinstance(module, nn.GroupNorm)
    return _channels(
        site,
        calls,
        lambda inputs: functional.group_norm(inputs, module.num_groups, eps=module.eps),
    )


def instance_norm(site: Site, calls: list[Call]) -> Trace:
    """The rule for normalisation over each channel, without running statistics."""
    module = site.module
    assert isinstance(module, nn.modules.instancenorm._InstanceNorm)
    return _channels(site, calls, lambda inputs: functional.instance_norm(inputs, eps=module.eps))


def _trailing(
    site: Site, calls: list[Call], normalised: Callable[[Tensor], Tensor], spanned: int
) -> Trace:
    def over_positions(values: Tensor) -> Tensor:
        kept = values.shape[values.dim() - spanned :]
        return values.reshape(values.shape[0], -1, *kept).sum(1)

    return _affine(site, calls, normalised, over_positions)


def _channels(site: Site, calls: list[Call], normalised: Callable[[Tensor], Tensor]) -> Trace:
    def over_positions(values: Tensor) -> Tensor:
        return values.flatten(2).sum(2) if values.dim() > 2 else values

    return _affine(site, calls, normalised, over_positions)


def _affine(
    site: Site,
    calls: list[Call],
    normalised: Callable[[Tensor], Tensor],
    over_positions: Callable[[Tensor], Tensor],
) -> Trace:
    """Return gradients of weight · normalised + bias: g · normalised and g, over positions."""
    gradients = {}
    if "weight" in site.parameters:
        gradients[site.parameters["weight"]] = added(
            over_positions(call.grads * normalised(call.inputs)) for call in calls
        )
    if "bias" in site.parameters:
        gradients[site.parameters["bias"]] = added(over_positions(call.grads) for call in calls)
    return Materialised(gradients)
