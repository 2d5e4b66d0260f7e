"""Lots: the examples that a step uses."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from pate._validate import check_choice, check_positive
from pate.errors import InvalidInput

IntArray = NDArray[np.int64]

_SPARSE = 0.25  # below this rate it is faster to draw gaps than to draw for every example


class _Lots:
    """A sampler of lots; ``caveat`` is the reason why guarantees do not hold for it, if any.

    Its rate follows from the public number of records, if there is one.
    """

    caveat: str | None = None

    def __init__(
        self,
        records: int,
        lot_size: float,
        generator: np.random.Generator,
        *,
        public_records: int | None = None,
    ) -> None:
        self.sample_rate = rate_of(records if public_records is None else public_records, lot_size)
        self.records = records
        self.generator = generator

    def state(self) -> dict[str, Any]:
        """Return what the next lot depends on beside the generator."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""


@final
class PoissonLots(_Lots):
    """Poisson sampling: each example is in a lot with probability lot_size / records.

    Examples are drawn independently, so lots differ in size and may be empty. ``lot_size`` is the
    expected size; it is public and need not be whole. With ``public_records``, an agreed number,
    the probability is lot_size / public_records, whatever the true number of ``records`` is.

    Guarantees:
        This is the sampling that the moments of DP-SGD are about (Abadi et al. 2016, Section 3.1;
        Mironov, Talwar & Zhang 2019, Section 2). In a row of independent trials with probability
        q the gaps between successes are independent and geometric, so a sparse lot is drawn gap by
        gap; doubles make the probability of an example right to some 1e-15.

    >>> lots = PoissonLots(100, 10, np.random.default_rng(1))
    >>> lots.sample_rate, lots.lot()
    (0.1, array([10, 13, 65, 69, 71, 89, 94]))
    """

    def lot(self) -> IntArray:
        """Draw the next lot, as indices of examples; it may be empty."""
        if self.sample_rate >= _SPARSE:
            return np.flatnonzero(self.generator.random(self.records) < self.sample_rate)
        expected = self.records * self.sample_rate
        at_once = math.ceil(expected + 4 * math.sqrt(expected) + 4)
        parts: list[IntArray] = []
        last = -1
        while last < self.records:
            gaps = self.generator.geometric(self.sample_rate, size=at_once)
            # All gaps beyond the end are equivalent; limiting them keeps the sum from overflowing.
            places = last + np.cumsum(np.minimum(gaps, self.records + 1))
            parts.append(places)
            last = int(places[-1])
        places = np.concatenate(parts)
        return places[: np.searchsorted(places, self.records)]


@final
class ShuffledLots(_Lots):
    """All examples in random order, lot after lot, reshuffled in each epoch.

    Most training loops sample in this way, and it reads quickly from disk. It is provided for
    comparisons of speed and accuracy: the accounting of DP-SGD is for Poisson sampling.
    """

    caveat = "guarantee does not hold for shuffling; shown for comparison only"

    def __init__(self, records: int, lot_size: float, *more: Any, **named: Any) -> None:
        super().__init__(records, lot_size, *more, **named)
        self.lot_size = max(1, round(lot_size))
        self._order: IntArray = np.empty(0, dtype=np.int64)

    def lot(self) -> IntArray:
        if not len(self._order):
            self._order = self.generator.permutation(self.records)
        lot, self._order = self._order[: self.lot_size], self._order[self.lot_size :]
        return lot

    def state(self) -> dict[str, Any]:
        return {"order": self._order.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        self._order = np.array(state["order"], dtype=np.int64)


Lots = PoissonLots | ShuffledLots
_SAMPLERS: dict[str, type[Lots]] = {"poisson": PoissonLots, "shuffle": ShuffledLots}


def choose_lots(
    sampling: str,
    *,
    records: int,
    public_records: int | None,
    lot_size: float,
    generator: np.random.Generator,
) -> Lots:
    """Return the sampler of this name."""
    check_choice("sampling", sampling, _SAMPLERS)
    return _SAMPLERS[sampling](records, lot_size, generator, public_records=public_records)


def largest_batch(lot_size: float, batch_size: int | None) -> int:
    """Return a number of examples that a batch rarely exceeds: that of a large lot, or less."""
    lot_size = check_positive("lot_size", lot_size)
    lot = math.ceil(lot_size + 4 * math.sqrt(lot_size))
    return lot if batch_size is None else min(lot, batch_size)


def rate_of(records: int, lot_size: float) -> float:
    """Return q = lot_size / records; refuse anything but a probability above zero."""
    if records < 1:
        raise InvalidInput("the data set is empty; there is nothing to train on")
    check_positive("lot_size", lot_size)
    if lot_size > records:
        raise InvalidInput(
            f"lot_size is {lot_size:g}; it must not be larger than the number of records, or of "
            "users where these are sampled"
        )
    return lot_size / records


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return the state of a *seeded* generator; that of a secure one is never stored."""
    state: dict[str, Any] = dict(generator.bit_generator.state)
    return state


def restore_generator(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Restore what :func:`generator_state` returned."""
    try:
        generator.bit_generator.state = state
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"the state of the generator is damaged ({type(error).__name__})"
        ) from None
