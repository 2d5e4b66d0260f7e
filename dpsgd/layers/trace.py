"""Traces: what the examples of one layer contributed in one backward pass.

A trace knows the length of each example's gradient, and adds the gradients up once a factor is
chosen for each. Where the layer has a short cut, neither needs the gradients themselves; otherwise
they are laid out one by one (:class:`Materialised`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, final

import torch
from torch import Tensor, nn

from pate.errors import PateError


class UnsuitableModel(PateError):
    """A model whose per-example gradients cannot be computed, or not exactly."""


BLOCK = 1 << 20  # numbers in a temporary: some 16 MiB, so that it stays in the cache


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A layer, and its trained parameters by their names within it.

    ``per_example`` holds, for each use of a layer without a rule, in training mode or not, which of
    its arguments have one row for each example; it is filled in when the model is first tried.
    """

    name: str
    module: nn.Module
    parameters: dict[str, nn.Parameter]
    per_example: dict[tuple[bool, int], tuple[bool, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name or 'model'} ({type(self.module).__name__})"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One use of a layer: its input, and the gradient of the losses' sum at its output."""

    inputs: Tensor
    grads: Tensor


class Trace(Protocol):
    """Gradients of one layer, example by example."""

    def norms_squared(self) -> Tensor:
        """Return the squared length of each example's gradient over the layer's parameters."""

    def add_sum(self, factors: Tensor) -> None:
        """Add Σ factorᵢ · gradientᵢ to ``grad`` of every parameter of the layer."""

    def zero_rows(self, rows: Tensor) -> None:
        """Set the gradients of these examples, (examples,) of bool, to zero, whatever they were.

        Called after :meth:`norms_squared` and before :meth:`add_sum`. Values are replaced, not
        multiplied: zero times infinity is not zero.
        """

    def materialised(self) -> dict[nn.Parameter, Tensor]:
        """Return every example's gradient, (examples, …)."""

    def by_user(self, rows: Tensor, users: int) -> Trace:
        """Return the trace of users, who add up the gradients of their examples.

        ``rows`` has the user of each example, from 0, in ascending order.
        """


@final
class Materialised:
    """Gradients laid out one by one."""

    def __init__(self, gradients: dict[nn.Parameter, Tensor]) -> None:
        self._gradients = gradients

    def norms_squared(self) -> Tensor:
        return added(squared_norms(each) for each in self._gradients.values())

    def add_sum(self, factors: Tensor) -> None:
        for parameter, gradients in self._gradients.items():
            add_rows(parameter, gradients, factors)

    def zero_rows(self, rows: Tensor) -> None:
        self._gradients = {key: zeroed(each, rows) for key, each in self._gradients.items()}

    def materialised(self) -> dict[nn.Parameter, Tensor]:
        return self._gradients

    def by_user(self, rows: Tensor, users: int) -> Trace:
        return Materialised(
            {
                parameter: each.new_zeros(users, *each.shape[1:]).index_add_(0, rows, each)
                for parameter, each in self._gradients.items()
            }
        )


def zeroed(values: Tensor, rows: Tensor) -> Tensor:
    """Return the values (examples, …) with zeros for some examples."""
    return values.masked_fill(rows.view(-1, *[1] * (values.dim() - 1)), 0.0)


def squared_norms(rows: Tensor) -> Tensor:
    """Return ‖row‖² for each example."""
    lengths: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1)
    return lengths.square_()


def added(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape."""
    first, *rest = parts
    for each in rest:
        first = first + each
    return first


def add_rows(parameter: nn.Parameter, rows: Tensor, factors: Tensor) -> None:
    """Add Σ factorᵢ · rowᵢ to ``grad``."""
    gradient = gradient_of(parameter)
    if gradient.is_contiguous():
        gradient.view(-1).addmv_(rows.flatten(1).T, factors)
    else:
        gradient.add_((factors @ rows.flatten(1)).view(gradient.shape))


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return the tensor that the sum is added to; the caller has put noise or zeros there."""
    assert parameter.grad is not None
    return parameter.grad


def joined(uses: list[Tensor]) -> Tensor:
    """Join the positions of several uses of a layer; one use is not copied."""
    return uses[0] if len(uses) == 1 else torch.cat(uses, 1)


def blocks(examples: int, numbers: int) -> Iterator[slice]:
    """Yield slices of examples whose temporaries, of ``numbers`` for each, fit into a block."""
    size = max(1, BLOCK // max(1, numbers))
    for start in range(0, examples, size):
        yield slice(start, start + size)
