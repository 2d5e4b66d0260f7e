"""Linear layers: the gradient is a sum of outer products Σ_t g_t a_tᵀ over positions t.

The examples of a user are positions, too: their gradients add up before they are measured.

With one position the length is a product, ‖g aᵀ‖ = ‖g‖·‖a‖, and nothing has to be laid out
(Goodfellow 2015). With several, ‖Σ_t g_t a_tᵀ‖² = Σ_{t,u} (a_t·a_u)(g_t·g_u), which needs the
positions' inner products only (Li, Tramèr, Liang & Hashimoto 2022, "ghost clipping"). The sum over
examples is one matrix product of what the backward pass left behind, g scaled by the factors (Bu,
Wang, Zha & Karypis 2023, "book-keeping"). Where an example's gradient is smaller than its inputs
and outputs together, laying it out is less work than either.

Embeddings are linear layers on one-hot inputs: an example's gradient is zero outside the rows that
it looked up.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn

from dpsgd.layers.trace import (
    Call,
    Materialised,
    Site,
    Trace,
    add_rows,
    blocks,
    gradient_of,
    joined,
    squared_norms,
    zeroed,
)

_CANCELS = 16  # times below what its positions allow, a squared length is doubtful
_PADDED = 4  # times as many positions as examples, where users have unlike numbers of them
_NOTHING = 1e-20  # a squared length that no clipping norm in use is near


def linear(site: Site, calls: list[Call]) -> Trace:
    """The rule for any shape (examples, …, features); further uses are further positions."""
    weight, bias = site.parameters.get("weight"), site.parameters.get("bias")
    if len(calls) == 1 and calls[0].inputs.dim() == 2:
        return _Single(calls[0].inputs, calls[0].grads, weight, bias)
    inputs = joined([_positions(call.inputs) for call in calls])
    grads = joined([_positions(call.grads) for call in calls])
    return _of_positions(inputs, grads, weight, bias)


def _of_positions(
    inputs: Tensor, grads: Tensor, weight: nn.Parameter | None, bias: nn.Parameter | None
) -> Trace:
    positions, wide, high = inputs.shape[1], inputs.shape[2], grads.shape[2]
    if weight is None or wide * high <= positions * (wide + high):
        return Materialised(_laid_out(inputs, grads, weight, bias))
    return _Sequence(inputs, grads, weight, bias)


def _positions(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], -1, values.shape[-1])


def _laid_out(
    inputs: Tensor, grads: Tensor, weight: nn.Parameter | None, bias: nn.Parameter | None
) -> dict[nn.Parameter, Tensor]:
    laid_out = {}
    if weight is not None:
        laid_out[weight] = torch.bmm(grads.transpose(1, 2), inputs)
    if bias is not None:
        laid_out[bias] = grads.sum(1)
    return laid_out


class Outer:
    """Inputs, output gradients, and the trained parameters between them."""

    def __init__(
        self,
        inputs: Tensor,
        grads: Tensor,
        weight: nn.Parameter | None,
        bias: nn.Parameter | None,
    ) -> None:
        self._inputs = inputs
        self._grads = grads
        self._weight = weight
        self._bias = bias

    def zero_rows(self, rows: Tensor) -> None:
        self._inputs, self._grads = zeroed(self._inputs, rows), zeroed(self._grads, rows)

    @abstractmethod
    def materialised(self) -> dict[nn.Parameter, Tensor]:
        """Return every example's gradient."""

    def by_user(self, rows: Tensor, users: int) -> Trace:
        return Materialised(self.materialised()).by_user(rows, users)

    def _by_positions(self, rows: Tensor, users: int) -> Trace:
        """Return the trace of users whose examples are positions, filled up with zeros."""
        counts = torch.bincount(rows, minlength=users)
        most = int(counts.max())
        if users * most > _PADDED * len(rows):
            return Outer.by_user(self, rows, users)
        within = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]

        def laid(values: Tensor) -> Tensor:
            padded = values.new_zeros(users, most, *values.shape[1:])
            padded[rows, within] = values
            return _positions(padded)

        return _of_positions(laid(self._inputs), laid(self._grads), self._weight, self._bias)


@final
class _Single(Outer):
    """One position for each example."""

    def norms_squared(self) -> Tensor:
        lengths = squared_norms(self._grads)
        if self._weight is None:
            return lengths
        # The square of a tiny gradient may come out as zero, and its product with a huge input
        # is not: no factor is taken for smaller than the smallest square there is.
        lengths = lengths.clamp_(min=torch.finfo(lengths.dtype).tiny)
        widths = squared_norms(self._inputs)
        return lengths * (widths if self._bias is None else widths + 1)

    def add_sum(self, factors: Tensor) -> None:
        if self._bias is not None:
            add_rows(self._bias, self._grads, factors)
        if self._weight is not None:
            inputs, grads = _scaled(self._inputs, self._grads, factors.unsqueeze(1))
            gradient_of(self._weight).addmm_(grads.T, inputs)

    def materialised(self) -> dict[nn.Parameter, Tensor]:
        inputs, grads = self._inputs.unsqueeze(1), self._grads.unsqueeze(1)
        return _laid_out(inputs, grads, self._weight, self._bias)

    def by_user(self, rows: Tensor, users: int) -> Trace:
        return self._by_positions(rows, users)


class Ghost(Outer):
    """Several positions for each example: neither their gradients nor a copy of them is kept.

    Where an example's positions nearly cancel, its length is a small difference of large numbers,
    and so is what it adds to a sum over all examples. Such an example is laid out, and added as
    it was laid out: what is measured is then what is added, however it was rounded.
    """

    _weight: nn.Parameter
    _cancelling: Tensor  # the examples whose positions nearly cancel

    @abstractmethod
    def _measure(self) -> Tensor:
        """Return the squared length of each gradient of the weight; set ``_cancelling``."""

    @abstractmethod
    def _add_weight_sum(self, factors: Tensor) -> None:
        """Add Σ factorᵢ · gradientᵢ to ``grad`` of the weight, without laying out any."""

    @abstractmethod
    def _weight_gradients(self, rows: Tensor) -> Tensor:
        """Return the gradients of some examples, bit for bit reproducible."""

    @abstractmethod
    def _bias_gradients(self) -> Tensor:
        """Return every example's gradient of the bias."""

    def norms_squared(self) -> Tensor:
        total = self._measure()
        for rows, gradients in self._cancelled():
            total[rows] = squared_norms(gradients)
        if self._bias is not None:
            total += squared_norms(self._bias_gradients())
        return total

    def add_sum(self, factors: Tensor) -> None:
        if self._bias is not None:
            add_rows(self._bias, self._bias_gradients(), factors)
        self._add_weight_sum(factors.index_fill(0, self._cancelling, 0.0))
        for rows, gradients in self._cancelled():
            add_rows(self._weight, gradients, factors[rows])

    def _cancelled(self) -> Iterator[tuple[Tensor, Tensor]]:
        for block in blocks(len(self._cancelling), self._weight.numel()):
            rows = self._cancelling[block]
            yield rows, self._weight_gradients(rows)


@final
class _Sequence(Ghost):
    """Inputs (examples, positions, p) and output gradients (examples, positions, q)."""

    def _measure(self) -> Tensor:
        examples, positions, _ = self._inputs.shape
        lengths = self._grads.new_empty(examples)
        for block in blocks(examples, 2 * positions**2):
            lengths[block] = paired(self._inputs[block], self._grads[block])
        self._cancelling = cancelling(lengths, self._inputs, self._grads)
        return lengths

    def _add_weight_sum(self, factors: Tensor) -> None:
        inputs, grads = _scaled(self._inputs, self._grads, factors.view(-1, 1, 1))
        gradient_of(self._weight).addmm_(grads.flatten(0, 1).T, inputs.flatten(0, 1))

    def _weight_gradients(self, rows: Tensor) -> Tensor:
        return torch.bmm(self._grads[rows].transpose(1, 2), self._inputs[rows])

    def _bias_gradients(self) -> Tensor:
        return self._grads.sum(1)

    def materialised(self) -> dict[nn.Parameter, Tensor]:
        return _laid_out(self._inputs, self._grads, self._weight, self._bias)

    def by_user(self, rows: Tensor, users: int) -> Trace:
        return self._by_positions(rows, users)


def cancelling(lengths: Tensor, inputs: Tensor, grads: Tensor) -> Tensor:
    """Return the examples whose squared lengths are far below what their positions allow.

    Of inputs (examples, positions, p) and output gradients (examples, positions, q). T unrelated
    positions add up to S²/T, where S is the sum of their single lengths; a rounding error is some
    eps·S². Below S²/(16·T) an example counts as cancelling; above it the
    squared length is right to some 16·T·eps.
    """
    least = torch.finfo(grads.dtype).tiny ** 0.5  # a smaller length may have come out as zero
    wide = torch.linalg.vector_norm(inputs, dim=2)
    high = torch.linalg.vector_norm(grads, dim=2).clamp_(min=least)
    spread = (wide * high).sum(1).square()
    doubtful: Tensor = (lengths * (_CANCELS * inputs.shape[1])).clamp_(min=_NOTHING) < spread
    return doubtful.nonzero().squeeze(1)


def paired(inputs: Tensor, grads: Tensor) -> Tensor:
    """Return Σ_{t,u} (a_t·a_u)(g_t·g_u) for each example, never negative."""
    near = torch.bmm(inputs, inputs.transpose(1, 2))
    near *= torch.bmm(grads, grads.transpose(1, 2))
    return near.flatten(1).sum(1).clamp_(min=0)


def _scaled(inputs: Tensor, grads: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply the factors into the smaller of the two."""
    if inputs.shape[-1] < grads.shape[-1]:
        return inputs * factors, grads
    return inputs, grads * factors


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

    def by_user(self, rows: Tensor, users: int) -> Trace:
        return Materialised(self.materialised()).by_user(rows, users)
