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

from dpsgd.layers.linear import cancelling, paired
from dpsgd.layers.trace import (
    Call,
    Materialised,
    Site,
    Trace,
    add_rows,
    added,
    blocks,
    gradient_of,
    squared_norms,
    zeroed,
)

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
    for block in _patch_blocks(module, call):
        patches, grads = _patches(module, inputs[block]), _grouped(module, call.grads[block])
        products = torch.bmm(grads.flatten(0, 1), patches.flatten(0, 1).transpose(1, 2))
        gradients[block] = products.view(len(grads), *module.weight.shape)
    return gradients


@final
class _Patches:
    """Lengths through inner products of positions; the sum as one ordinary convolution.

    Examples whose positions nearly cancel are laid out, as in :mod:`dpsgd.layers.linear`.
    """

    def __init__(self, site: Site, call: Call) -> None:
        self._site = site
        self._call = call
        self._weight = site.parameters["weight"]
        self._bias = site.parameters.get("bias")

    def norms_squared(self) -> Tensor:
        module, call = self._site.module, self._call
        total = call.grads.new_empty(len(call.grads))
        doubtful = []
        inputs = _padded(module, call.inputs)
        for block in _patch_blocks(module, call):
            patches, grads = _patches(module, inputs[block]), _grouped(module, call.grads[block])
            groups = patches.shape[1]
            wide, high = (each.flatten(0, 1).transpose(1, 2) for each in (patches, grads))
            lengths = paired(wide, high)
            doubtful.append(cancelling(lengths, wide, high) // groups + block.start)
            total[block] = lengths.view(-1, groups).sum(1)
        self._cancelling = torch.unique(torch.cat(doubtful))
        for rows, gradients in self._cancelled():
            total[rows] = squared_norms(gradients)
        if self._bias is not None:
            total += squared_norms(call.grads.flatten(2).sum(2))
        return total

    def _cancelled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield examples that nearly cancel, with gradients that are bit for bit reproducible."""
        for block in blocks(len(self._cancelling), self._weight.numel()):
            rows = self._cancelling[block]
            call = Call(self._call.inputs[rows], self._call.grads[rows])
            yield rows, _kernels(self._site.module, call)

    def add_sum(self, factors: Tensor) -> None:
        module: Any = self._site.module
        call = self._call
        if self._bias is not None:
            add_rows(self._bias, call.grads.flatten(2).sum(2), factors)
        rest = factors.index_fill(0, self._cancelling, 0.0)
        scaled = call.grads * rest.view(-1, *[1] * (call.grads.dim() - 1))
        dimensions = scaled.dim() - 2
        _, summed, _ = torch.ops.aten.convolution_backward(
            scaled,
            _padded(module, call.inputs),
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
        for rows, gradients in self._cancelled():
            add_rows(self._weight, gradients, factors[rows])

    def zero_rows(self, rows: Tensor) -> None:
        self._call = Call(zeroed(self._call.inputs, rows), zeroed(self._call.grads, rows))

    def materialised(self) -> dict[nn.Parameter, Tensor]:
        return _laid_out(self._site, [self._call])


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


def _patch_blocks(module: Any, call: Call) -> Iterator[slice]:
    positions = call.grads[0, 0].numel()
    return blocks(len(call.grads), positions * module.weight[0].numel() * module.groups)
