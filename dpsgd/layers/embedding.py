"""Embeddings: an example's gradient is zero outside the rows it looked up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn

from dpsgd.layers.trace import Call, Site, Trace, blocks, gradient_of, joined, zeroed

_CANCELS = 16  # times below the sum of its positions' squares, a squared length is doubtful


def embedding(site: Site, calls: list[Call]) -> Trace:
    """The rule for indices (examples, …); the row of ``padding_idx`` is not trained."""
    module = site.module
    assert isinstance(module, nn.Embedding)
    rows = joined([call.inputs.reshape(len(call.inputs), -1) for call in calls])
    grads = joined(
        [call.grads.reshape(len(call.grads), -1, module.embedding_dim) for call in calls]
    )
    if module.padding_idx is not None:
        grads = grads.masked_fill((rows == module.padding_idx).unsqueeze(2), 0.0)
    return _Lookup(rows, grads, site.parameters["weight"])


@final
class _Lookup:
    """Positions of one example that looked up one row add up before their length is taken."""

    def __init__(self, rows: Tensor, grads: Tensor, weight: nn.Parameter) -> None:
        self._rows = rows
        self._grads = grads
        self._weight = weight

    def norms_squared(self) -> Tensor:
        total = self._grads.new_empty(len(self._rows))
        for block in blocks(len(total), 2 * self._rows.shape[1] ** 2):
            rows, grads = self._rows[block], self._grads[block]
            products = torch.bmm(grads, grads.transpose(1, 2))
            products *= rows.unsqueeze(2) == rows.unsqueeze(1)
            total[block] = products.flatten(1).sum(1).clamp_(min=0)
        # Positions that looked up one row may cancel: their sum is then measured, and added.
        spread = self._grads.square().sum((1, 2))
        self._cancelling = (total * _CANCELS < spread).nonzero().squeeze(1)
        for example, _, summed in self._one_by_one():
            total[example] = summed.square().sum()
        return total

    def _one_by_one(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield examples that nearly cancel: the rows they looked up, and their gradients."""
        for example in self._cancelling:
            rows, positions = torch.unique(self._rows[example], return_inverse=True)
            summed = self._grads.new_zeros(len(rows), self._grads.shape[2])
            yield example, rows, summed.index_add_(0, positions, self._grads[example])

    def add_sum(self, factors: Tensor) -> None:
        rest = factors.index_fill(0, self._cancelling, 0.0)
        scaled = self._grads * rest.view(-1, 1, 1)
        gradient = gradient_of(self._weight)
        gradient.index_add_(0, self._rows.flatten(), scaled.flatten(0, 1))
        for example, rows, summed in self._one_by_one():
            gradient.index_add_(0, rows, summed * factors[example])

    def zero_rows(self, rows: Tensor) -> None:
        self._grads = zeroed(self._grads, rows)

    def materialised(self) -> dict[nn.Parameter, Tensor]:
        laid_out = self._grads.new_zeros(len(self._rows), *self._weight.shape)
        index = self._rows.unsqueeze(2).expand_as(self._grads)
        return {self._weight: laid_out.scatter_add_(1, index, self._grads)}
