"""Losses that return one number for each example.

A mean over the batch would hide whose gradient is whose, so every loss here has the shape
(examples,). Several outputs of one example (the words of a sentence) are added up within it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from pate._validate import check_choice
from pate.errors import InvalidInput

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return −log softmax at the class; outputs (examples, classes, …), targets (examples, …)."""
    return _within(functional.cross_entropy(outputs, targets, reduction="none"))


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of two classes, from one logit; targets 0 or 1."""
    targets = targets.to(outputs.dtype).reshape(outputs.shape)
    return _within(functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none"))


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (output − target)²."""
    targets = targets.to(outputs.dtype).reshape(outputs.shape)
    return _within(functional.mse_loss(outputs, targets, reduction="none"))


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared_error": squared_error,
}


def mixed_outputs(output: Any, targets: Tensor) -> Tensor:
    """Return a made-up loss that weights every output differently: no layer's gradient cancels."""
    generator = torch.Generator().manual_seed(0)
    losses = torch.zeros(len(targets), device=targets.device)
    for each in pytree.tree_leaves(output):
        if (
            isinstance(each, Tensor)
            and each.is_floating_point()
            and each.dim()
            and each.shape[0] == len(targets)
        ):
            weights = torch.randn(each.shape[1:], generator=generator).to(each)
            losses = losses + (each * weights).flatten(1).sum(1)
    return losses


def per_example_loss(loss: str | Loss) -> Loss:
    """Return a loss by name, or the user's own function of (outputs, targets) → (examples,)."""
    return loss if callable(loss) else LOSSES[check_choice("loss", loss, LOSSES)]


def checked_losses(losses: Tensor, examples: int) -> Tensor:
    """Return the losses; refuse a mean, which would mix the examples."""
    if losses.shape != (examples,):
        raise InvalidInput(
            f"the loss returned shape {tuple(losses.shape)} for {examples} examples; it must "
            'return one number for each example, shape (examples,): use reduction="none"'
        )
    return losses


def require_apart(loss: Loss, outputs: Any, targets: Tensor, losses: Tensor) -> None:
    """Refuse a user's loss in which one example's loss depends on the others.

    Weights by class frequency, or a mean multiplied by the batch size, have the right shape, but
    clipping would not bound the influence of one example through the others' losses. So part of the
    batch must give the same losses. The built-in losses need no check.
    """
    if loss in LOSSES.values() or len(targets) < 2:
        return
    middle = len(targets) // 2
    with torch.no_grad():
        for part in (slice(0, 1), slice(0, middle), slice(middle, None)):
            alone = loss(_part(outputs, part, len(targets)), targets[part])
            same = torch.isclose(alone, losses[part].detach(), rtol=1e-4, atol=1e-6, equal_nan=True)
            if alone.shape != losses[part].shape or not bool(same.all()):
                raise InvalidInput(
                    "the loss of an example changes with the others in its batch; use a loss that "
                    "looks at each example on its own"
                )


def _part(outputs: Any, part: slice, examples: int) -> Any:
    """Return the outputs of some examples, in whatever structure a model returns."""

    def rows(leaf: Any) -> Any:
        own = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == examples
        return leaf[part].detach() if own else leaf

    return pytree.tree_map(rows, outputs)


def _within(losses: Tensor) -> Tensor:
    return losses.flatten(1).sum(1) if losses.dim() > 1 else losses
