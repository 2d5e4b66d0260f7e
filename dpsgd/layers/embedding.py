"""Embeddings: an example's gradient touches the rows it looked up, and no other."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from dpsgd.layers.trace import Call, Site, Trace, blocks, gradient_of, joined


def embedding(site: Site, calls: list[Call]) -> Trace:
    """Indices (examples, …); the row of ``padding_idx`` is not trained."""
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
        return total

    def add_sum(self, factors: Tensor) -> None:
        scaled = self._grads * factors.view(-1, 1, 1)
        gradient_of(self._weight).index_add_(0, self._rows.flatten(), scaled.flatten(0, 1))

    def materialised(self) -> dict[nn.Parameter, Tensor]:
        laid_out = self._grads.new_zeros(len(self._rows), *self._weight.shape)
        index = self._rows.unsqueeze(2).expand_as(self._grads)
        return {self._weight: laid_out.scatter_add_(1, index, self._grads)}
