"""Gumbel noisy-max: the exponential mechanism, drawn without a floating-point number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from pate._format import format_number
from pate._validate import check_noise
from pate.accounting import Analysis, Event, GumbelNoisyMaxAnswer, LogMoments
from pate.accounting.bounded_range import gumbel_total
from pate.accounting.smooth import SensitiveCost
from pate.errors import ConditionsFail
from pate.mechanisms.mechanism import FloatArray, IntArray, moved_counts
from pate.mechanisms.noisy_max import NoisyMax
from pate.randomness import bernoulli_exp

# Parts of a vote: gaps up to 2^24 votes, and b up to 10^9 votes, in parts fit in 64 bits.
_UNIT, _SMALL_UNIT = 1 << 20, 1 << 38


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GumbelNoisyMax(NoisyMax):
    """Answer a query with the class whose count plus Gumbel(scale) is largest.

    Parameters
    ----------
    scale : float
        The Gumbel b, in votes. Public.

    Guarantees:
        * Class j is the answer with a chance in proportion to e^{count/scale}: the exponential
          mechanism (McSherry & Talwar 2007). A record reaches one teacher and a teacher casts one
          vote or none, so the losses of all answers lie in an interval of length 2/scale, and each
          answer is 1/(2·scale²)-zCDP and (2/scale)-DP (Dong, Durfee & Rogers 2020; Cesar & Rogers
          2021, Lemma 3.4).
        * The chances are those of the theorem to the last bit: a class is proposed at random, and
          accepted with chance e^{−(behind the leader)/scale} by comparisons of whole random numbers
          (Canonne, Kamath & Steinke 2020, Algorithm 1). No noise is drawn that doubles would round.
          For that, ``scale`` is rounded up to a multiple of 2⁻²⁰ (2⁻³⁸ below one).
        * Only the winning label leaves. Which queries are answered depends on public numbers alone.

    Examples
    --------
    >>> import pate
    >>> votes = pate.Votes(counts=np.array([[990, 5, 5], [3, 995, 2]]))
    >>> answer = GumbelNoisyMax(scale=20.0).release(votes, rng=pate.secure_generator())
    >>> answer.labels, round(pate.compose(answer.events).guarantee(delta=1e-5).epsilon, 3)
    (array([0, 1]), 0.186)
    """

    name: ClassVar[str] = "gumbel"
    title: ClassVar[str] = "Gumbel noisy-max"
    calibrated: ClassVar[str | None] = "scale"

    scale: float

    def __post_init__(self) -> None:
        check_noise("scale", self.scale)

    @property
    def answer_event(self) -> Event:
        return GumbelNoisyMaxAnswer(scale=self.scale)

    def answers(self, counts: IntArray, rng: np.random.Generator) -> IntArray:
        unit = _UNIT if self.scale >= 1 else _SMALL_UNIT
        denominator = math.ceil(self.scale * unit)
        counts = counts.astype(np.int64)  # of narrower kinds: parts of a vote need all 64 bits
        behind = counts.max(axis=1, keepdims=True) - counts
        np.minimum(behind, (1 << 62) // unit, out=behind)  # further behind, e^{−2²⁴} or less
        labels = np.empty(len(counts), dtype=np.int64)
        going = np.arange(len(counts))
        while going.size:
            labels[going] = rng.integers(counts.shape[1], size=going.size)
            accepted = bernoulli_exp(behind[going, labels[going]] * unit, denominator, rng)
            going = going[~accepted]
        return labels

    def data_dependent_cost(
        self,
        counts: IntArray,
        *,
        moments: ArrayLike | None = None,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
        analysis: Analysis = Analysis.TIGHT,
    ) -> LogMoments:
        return gumbel_total(counts, scale=self.scale, moments=moments)

    def sensitive_cost(
        self,
        counts: IntArray,
        *,
        order: float,
        teachers: int,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
    ) -> SensitiveCost:
        raise ConditionsFail("no bound is known of the smooth sensitivity of Gumbel noisy-max")

    def formula(self) -> str:
        return f"answer = argmaxⱼ (nⱼ + Gumbel(b)), b = {format_number(self.scale)} votes"

    def settings(self) -> str:
        return f"b {self.scale:g}"

    def win_chances(self, leads: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            chances: FloatArray = 1 / (1 + np.exp(-leads / self.scale).sum(axis=1))
        return chances

    def neighbour_chances(
        self, counts: IntArray, source: IntArray, target: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        there = moved_counts(counts, source, target)
        here, other = (softmax(each / self.scale, axis=1) for each in (counts, there))
        return np.asarray(here), np.asarray(other)
