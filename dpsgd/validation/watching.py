"""Watching every module of one forward pass through hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_RELATIVE = 1e-4  # of the kept example's largest value
_ROUNDING = 1e-6  # of the largest value of all: what cancellation may leave

Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]


def tensors(value: object) -> Iterator[Tensor]:
    """The tensors in what a module takes or returns, in order."""
    yield from (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same; what is not a number counts as the same as itself."""
    if one.shape != other.shape or torch.equal(one, other):
        return one.shape == other.shape
    return bool(((one == other) | ((one != one) & (other != other))).all())


@contextmanager
def same_chance(model: nn.Module) -> Iterator[None]:
    """Inside, whatever chance there is falls alike every time; outside, nothing has changed."""
    first = next(model.parameters(), None)
    devices = [first.device] if first is not None and first.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(0)
        for device in devices:
            torch.cuda.default_generators[device.index or 0].manual_seed(0)
        yield


@final
@dataclass(slots=True)
class Recorder:
    """What every call returned, in order; which modules were called, and which not row by row."""

    examples: int
    answers: list[tuple[str, list[Tensor]]] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    odd: set[str] = field(default_factory=set)

    def hook(self, name: str) -> Hook:
        """Records the calls of the module of this name."""

        def record(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            self.called.add(name)
            given, returned = list(tensors((args, kwargs))), _by_example(module, output)
            if not all(self._row_each(each) for each in [*given[:1], *returned[:1]]):
                self.odd.add(name)
            self.answers.append((name, [each.detach().clone() for each in returned]))

        return record

    def _row_each(self, value: Tensor) -> bool:
        return value.dim() > 0 and value.shape[0] == self.examples


@final
@dataclass(slots=True)
class Kept:
    """Compares one kept example with an earlier run, and puts right what differs."""

    row: int
    reference: Recorder
    mixing: list[str] = field(default_factory=list)
    calls: int = 0

    def hook(self, name: str) -> Hook:
        """Checks the calls of the module of this name."""

        def compare(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> Any:
            answers = self.reference.answers
            position, self.calls = self.calls, self.calls + 1
            if position >= len(answers) or answers[position][0] != name:
                if not self.mixing:  # another way through the model, because of other examples
                    self.mixing.append("")
                return None
            right: dict[int, Tensor] = {}
            mixes = False
            for now, before in zip(_by_example(module, output), answers[position][1], strict=False):
                mixes = mixes or self._differs(now, before)
                right[id(now)] = self._put_right(now, before)
            if mixes:
                self.mixing.append(name)
            return pytree.tree_map(lambda leaf: right.get(id(leaf), leaf), output)

        return compare

    def _differs(self, now: Tensor, before: Tensor) -> bool:
        if now.shape != before.shape:
            return True
        if not now.dim() or now.shape[0] != self.reference.examples:
            return False  # not by example; the rule on rows speaks of it
        return not _close(now[self.row], before[self.row], overall=before)

    def _put_right(self, now: Tensor, before: Tensor) -> Tensor:
        """Also rounding is put right, or it would grow on the way to a module that has no part."""
        if now.shape != before.shape or not now.dim() or now.shape[0] != self.reference.examples:
            return now
        if torch.equal(now[self.row], before[self.row]):
            return now
        now = now.clone()  # an output may be a view of an input
        now[self.row] = before[self.row]
        return now


def _by_example(module: nn.Module, output: Any) -> list[Tensor]:
    """Tensors of an output that may have the examples first; the last states of an RNN do not."""
    if isinstance(module, nn.RNNBase) and isinstance(output, tuple):
        output = output[0]
    return list(tensors(output))


def _close(a: Tensor, b: Tensor, *, overall: Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return bool((a == b).all())
    finite = a.isfinite()
    if not bool((finite == b.isfinite()).all()):
        return False
    a, b, all_finite = a[finite], b[finite], overall[overall.isfinite()]
    if not a.numel():
        return True
    own = max(float(a.abs().max()), float(b.abs().max()))
    allowed = _RELATIVE * own + _ROUNDING * float(all_finite.abs().max())
    return float((a - b).abs().max()) <= allowed
