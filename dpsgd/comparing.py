"""A few examples, one at a time through ordinary autograd, against the fast way.

Finds what no look at the layers' types can: a weight that is used outside its layer, examples that
are not in the first dimension, examples that change one another.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dpsgd.layers import UnsuitableModel
from dpsgd.losses import Loss

COMPARED = 3  # examples
_ROUNDING = 1e-3  # float32 through a deep network; a wrong gradient is far off
_NOTHING = 1e-15  # a length that stands for zero: squares of lengths are not taken for smaller


def compare(
    model: nn.Module,
    loss: Loss,
    measure: Callable[[], Tensor],
    inputs: tuple[Tensor, ...],
    targets: Tensor,
    *,
    groups: Sequence[tuple[nn.Parameter, ...]],
    names: Sequence[tuple[str, ...]],
) -> bool:
    """Requires ``measure()`` (groups, examples) to be the lengths that autograd gives.

    In evaluation mode, and in training mode with dropout off, unless something else there is left
    to chance. False where there were too few examples, or none with a finite gradient, to tell.
    """
    told = len(targets) == COMPARED
    for training in (False, True):
        with without_chance(model, training=training):
            norms = _seeded(measure, 0)
            if not bool(torch.isfinite(norms).all()):
                return False
            if not _close(norms, _seeded(measure, 0)):
                raise UnsuitableModel(
                    "the model gives the same examples other gradients the second time; does it "
                    "keep something of one batch for the next, or use chance that is not torch's?"
                )
            if not _close(norms, _seeded(measure, 1)):
                continue  # chance of the model's own: one example alone meets another one
            for index in range(len(targets)):
                one = tuple(each[index : index + 1] for each in inputs)
                value = loss(model(*one), targets[index : index + 1]).sum()
                lengths = _by_autograd(value, groups)
                _require_equal(norms[:, index].tolist(), lengths, names)
    return told


@contextlib.contextmanager
def without_chance(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Inside, the model is in one mode and drops nothing out; after, it is as it was."""
    modes = {module: module.training for module in model.modules()}
    model.train(training)
    for module in modes:
        if isinstance(module, _DropoutNd):
            module.eval()
    try:
        yield
    finally:
        for module, before in modes.items():
            module.training = before


def _seeded(measure: Callable[[], Tensor], seed: int) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return measure()


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=_ROUNDING, atol=_ROUNDING / 100 * float(one.max()))


def _by_autograd(value: Tensor, groups: Sequence[tuple[nn.Parameter, ...]]) -> list[float]:
    parameters = [each for group in groups for each in group]
    grads = iter(torch.autograd.grad(value, parameters, allow_unused=True))
    norms = [[next(grads) for _ in group] for group in groups]
    return [
        math.hypot(*(float(each.norm()) for each in group if each is not None)) for group in norms
    ]


def _require_equal(
    found: list[float], lengths: list[float], names: Sequence[tuple[str, ...]]
) -> None:
    rounding = _NOTHING + _ROUNDING / 100 * math.hypot(*lengths)
    for own, length, group in zip(found, lengths, names, strict=True):
        if abs(own - length) > _ROUNDING * length + rounding:
            raise UnsuitableModel(
                f"the gradient of {', '.join(group)} is not what ordinary differentiation of one "
                "example gives; is a weight used outside its layer, does an example change "
                "another, or are the examples not in the first dimension?"
            )
