"""ε of DP-SGD by a named accountant, for command lines and comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pate.accounting.events import Event, SampledGaussian, tally
from pate.accounting.guarantee import Conversion, Guarantee
from pate.accounting.moments import LogMoments, compose, integer_moments
from pate.accounting.numerics import FloatArray
from pate.accounting.pld import pld_guarantee
from pate.accounting.sampled_gaussian import ABADI_LARGEST_MOMENT, abadi_log_moments
from pate.errors import UnsupportedEvent


class Method(StrEnum):
    """How the cost of a step is worked out and composed."""

    ABADI = "abadi"  # log max(E₁, E₂) by integration, whole λ ≤ 32, classic tail bound
    MOMENTS = "moments"  # exact moments at whole and fractional λ, either conversion
    PLD = "pld"  # privacy loss distributions, the tightest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DpsgdAccountant:
    """Turns DP-SGD steps into (ε, δ); a step is worked out once, whatever their number.

    >>> from pate.accounting import Repeated
    >>> step = SampledGaussian(sample_rate=0.01, noise_multiplier=4.0)
    >>> abadi = DpsgdAccountant(delta=1e-5, method=Method.ABADI)
    >>> round(abadi.guarantee([Repeated(step, 10_000)]).epsilon, 4)
    1.2586
    """

    delta: float
    method: Method = Method.MOMENTS
    conversion: Conversion = Conversion.IMPROVED  # of Method.MOMENTS
    moments: FloatArray | None = None  # of Method.MOMENTS

    def guarantee(self, events: list[Event]) -> Guarantee:
        if self.method is Method.MOMENTS:
            total = compose(events, self.moments)
            return total.guarantee(delta=self.delta, conversion=self.conversion)
        if self.method is Method.PLD:
            return pld_guarantee(events, delta=self.delta)
        return self._abadi(events).guarantee(delta=self.delta, conversion=Conversion.CLASSIC)

    def epsilon(self, events: list[Event]) -> float:
        """ε alone: the function calibration searches with."""
        return self.guarantee(events).epsilon

    @staticmethod
    def _abadi(events: list[Event]) -> LogMoments:
        grid = integer_moments(ABADI_LARGEST_MOMENT)
        total = compose([], grid)
        for step, count in tally(events).items():
            if not isinstance(step, SampledGaussian):
                raise UnsupportedEvent(f"{type(step).__name__} is not a DP-SGD step")
            total += LogMoments(
                moments=grid,
                values=count * abadi_log_moments(step, grid),
                neighbours=step.neighbours,
            )
        return total
