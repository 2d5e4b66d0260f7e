"""Convolutions: matrix products of output gradients and patches of the input.

A convolution is a linear layer on the patches under its kernel, one for each position. Patches are
cut out for a few examples at a time, so that they never take the memory of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsgd.layers.linear import Ghost, cancelling, paired
from dpsgd.layers.trace import Call, Materialised, Site, Trace, added, blocks, gradient_of

_LAID_OUT = 2  # an example's gradient is laid out up to this many times its patches and outputs


def convolution(site: Site, calls: list[Call]) -> Trace:
    """The rule for one to three dimensions, any stride, padding, dilation and groups."""
    module = site.module
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    positions = sum(call.grads[0, 0].numel() for call in calls)
    wide = module.weight[0].numel()
    high = module.out_channels
    small = wide * high <= _LAID_OUT * positions * (wide * module.groups + high)
    if small or len(calls) > 1 or "weight" not in site.parameters:
        return Materialised(_laid_out(site, calls))
    return _Patches(site, calls[0])


def _laid_out(site: Site, calls: list[Call]) -> dict[nn.Parameter, Tensor]:
    laid_out = {}
    if "weight" in site.parameters:
        laid_out[site.parameters["weight"]] = added(_kernels(site.module, call) for call in calls)
    if "bias" in site.parameters:
        laid_out[site.parameters["bias"]] = added(call.grads.flatten(2).sum(2) for call in calls)
    return laid_out


def _kernels(module: Any, call: Call) -> Tensor:
    """Return every example's gradient of the kernel."""
    gradients = call.grads.new_empty(len(call.grads), *module.weight.shape)
    inputs = _padded(module, call.inputs)
    for block in _patch_blocks(module, call.grads):
        patches, grads = _patches(module, inputs[block]), _grouped(module, call.grads[block])
        products = torch.bmm(grads.flatten(0, 1), patches.flatten(0, 1).transpose(1, 2))
        gradients[block] = products.view(len(grads), *module.weight.shape)
    return gradients


@final
class _Patches(Ghost):
    """Lengths through inner products of positions; the sum as one ordinary convolution."""

    def __init__(self, site: Site, call: Call) -> None:
        weight, bias = site.parameters["weight"], site.parameters.get("bias")
        super().__init__(call.inputs, call.grads, weight, bias)
        self._site = site

    def _measure(self) -> Tensor:
        module = self._site.module
        total = self._grads.new_empty(len(self._grads))
        doubtful = []
        inputs = _padded(module, self._inputs)
        for block in _patch_blocks(module, self._grads):
            patches, grads = _patches(module, inputs[block]), _grouped(module, self._grads[block])
            groups = patches.shape[1]
            wide, high = (each.flatten(0, 1).transpose(1, 2) for each in (patches, grads))
            lengths = paired(wide, high)
            doubtful.append(cancelling(lengths, wide, high) // groups + block.start)
            total[block] = lengths.view(-1, groups).sum(1)
        self._cancelling = torch.unique(torch.cat(doubtful))
        return total

    def _add_weight_sum(self, factors: Tensor) -> None:
        module: Any = self._site.module
        scaled = self._grads * factors.view(-1, *[1] * (self._grads.dim() - 1))
        dimensions = scaled.dim() - 2
        _, summed, _ = torch.ops.aten.convolution_backward(
            scaled,
            _padded(module, self._inputs),
            module.weight,
            None,
            module.stride,
            [0] * dimensions,
            module.dilation,
            False,
            [0] * dimensions,
            module.groups,
            (False, True, False),
        )
        gradient_of(self._weight).add_(summed)

    def _weight_gradients(self, rows: Tensor) -> Tensor:
        return _kernels(self._site.module, Call(self._inputs[rows], self._grads[rows]))

    def _bias_gradients(self) -> Tensor:
        return self._grads.flatten(2).sum(2)

    def materialised(self) -> dict[nn.Parameter, Tensor]:
        return _laid_out(self._site, [Call(self._inputs, self._grads)])


def _padded(module: Any, inputs: Tensor) -> Tensor:
    amounts = module._reversed_padding_repeated_twice
    if not any(amounts):
        return inputs
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(inputs, amounts, mode=mode)


def _patches(module: Any, inputs: Tensor) -> Tensor:
    """Return patches (examples, groups, channels of a group × kernel, positions)."""
    views = inputs
    dimensions = inputs.dim() - 2
    for axis in range(dimensions):
        reach = module.dilation[axis] * (module.kernel_size[axis] - 1) + 1
        views = views.unfold(2 + axis, reach, module.stride[axis])[..., :: module.dilation[axis]]
    kernel_first = (0, 1, *range(2 + dimensions, 2 + 2 * dimensions), *range(2, 2 + dimensions))
    positions = math.prod(views.shape[2 : 2 + dimensions])
    return views.permute(kernel_first).reshape(len(inputs), module.groups, -1, positions)


def _grouped(module: Any, grads: Tensor) -> Tensor:
    """Return gradients (examples, groups, outputs of a group, positions)."""
    return grads.reshape(len(grads), module.groups, module.out_channels // module.groups, -1)


def _patch_blocks(module: Any, grads: Tensor) -> Iterator[slice]:
    positions = grads[0, 0].numel()
    return blocks(len(grads), positions * module.weight[0].numel() * module.groups)
