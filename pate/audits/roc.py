"""ROC curves of membership scores, and the most that (ε, δ) allows at each false positive rate.

A membership attack gives every record a score: the higher, the likelier it was trained on. Members
above a threshold are true positives, other records above it are false positives. What matters is
the true positive rate where false positives are rare (Carlini et al. 2022): an attack that names a
few records with certainty is a breach even if it is no better than a coin on average.

A curve alone bounds no ε: its thresholds were chosen on the scores that it counts. Scores do, where
:mod:`pate.audits.statistics` keeps the two apart: those of independent trainings
(:func:`~pate.audits.statistics.epsilon_at_least`), or of one training to which each record was
added by a fair coin (:func:`~pate.audits.statistics.audit_one_run`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import ArrayLike

from pate._validate import check_delta, check_not_negative
from pate.audits.findings import FloatArray
from pate.audits.statistics import clopper_pearson
from pate.errors import InvalidInput

CONFIDENCE: Final = 0.95  # of intervals
LOW_RATES: Final = {"0.1 %": 0.001, "1 %": 0.01}  # false positive rates that are reported


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share with its Clopper–Pearson interval.

    Parameters
    ----------
    value : float
        The share that was seen.
    low, high : float
        The ends of the interval.
    """

    value: float
    low: float
    high: float


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roc:
    """The ROC curve of membership scores: a point for every score that occurs. PRIVATE.

    Parameters
    ----------
    fpr, tpr : ndarray of shape (n_points,)
        The shares of others and of members that score at least the threshold, both ascending.
    thresholds : ndarray of shape (n_points,)
        The thresholds, descending; the first is infinite.
    members, others : int
        The numbers of records on either side.

    >>> curve = roc([3.0, 2.0, 2.0], [2.0, 1.0])
    >>> curve.fpr, curve.tpr
    (array([0. , 0. , 0.5, 1. ]), array([0.        , 0.33333333, 1.        , 1.        ]))
    >>> round(curve.advantage, 6), round(curve.balanced_accuracy, 6), round(curve.auc, 6)
    (0.5, 0.75, 0.833333)
    >>> curve.tpr_at(0.01)
    Rate(value=0.3333333333333333, low=0.008403758659..., high=0.905700675949...)
    """

    fpr: FloatArray
    tpr: FloatArray
    thresholds: FloatArray
    members: int
    others: int

    @property
    def advantage(self) -> float:
        """The largest TPR − FPR; optimistic by chance, as its threshold was chosen on the curve."""
        return float(np.max(self.tpr - self.fpr))

    @property
    def balanced_accuracy(self) -> float:
        """The largest mean of TPR and 1 − FPR, which is (1 + advantage)/2."""
        return (1 + self.advantage) / 2

    @property
    def auc(self) -> float:
        """The area under the curve: the chance that a member outscores another, ties half."""
        return float(np.trapezoid(self.tpr, self.fpr))

    def tpr_at(self, fpr: float, *, confidence: float = CONFIDENCE) -> Rate:
        """Return the TPR at the lowest threshold whose FPR is at most ``fpr``.

        The threshold depends on the others alone, so the interval holds for the TPR at it. Others
        fewer than 1/``fpr`` leave a FPR of 0, a stricter one than was asked for.
        """
        place = int(np.searchsorted(self.fpr, fpr, side="right")) - 1
        hits = round(self.tpr[place] * self.members)
        low, high = clopper_pearson(hits, self.members, error=(1 - confidence) / 2)
        return Rate(value=float(self.tpr[place]), low=float(low), high=float(high))

    def exceeds(self, *, epsilon: float, delta: float, error: float = 1e-6) -> bool:
        """Return whether the curve is above what (ε, δ) allows, at any FPR, by more than chance.

        Parameters
        ----------
        epsilon, delta : float
            The claim, for one record added or removed.
        error : float
            The probability with which scores that are independent of one another, and allowed,
            exceed it by chance. Scores of one model are not quite independent: a bound on ε that
            needs no such assumption is :func:`pate.audits.statistics.audit_one_run`.

        Guarantees:
            Thresholds are at ranks among the others that were fixed before: 0, 1, 2, … false
            positives, about eight to an octave. The share of the population above such a threshold
            has a beta distribution (Wilks 1941), whose quantile is the bound of Clopper & Pearson
            1934; so is the TPR's, as members do not move the threshold. The error is divided among
            all bounds.
        """
        octaves = np.arange(0, math.log2(self.others), 1 / 8)
        counts = np.append(0, np.unique(np.floor(2**octaves)))
        places = np.searchsorted(self.fpr, (counts + 0.5) / self.others, side="right") - 1
        each = error / (2 * len(counts))
        low, _ = clopper_pearson(np.rint(self.tpr[places] * self.members), self.members, error=each)
        _, high = clopper_pearson(counts, self.others, error=each)
        return bool((low > most_tpr(high, epsilon=epsilon, delta=delta)).any())

    def values(self) -> dict[str, float]:
        """Return what a finding reports of the curve, by name."""
        found: dict[str, float] = {}
        for name, fpr in LOW_RATES.items():
            rate = self.tpr_at(fpr)
            found[f"TPR at {name} FPR"] = rate.value
            found[f"TPR at {name} FPR, low"] = rate.low
            found[f"TPR at {name} FPR, high"] = rate.high
        found["balanced accuracy"] = self.balanced_accuracy
        found["advantage"] = self.advantage
        found["AUC"] = self.auc
        found["members"], found["others"] = float(self.members), float(self.others)
        return found


def roc(members: ArrayLike, others: ArrayLike) -> Roc:
    """Return the ROC curve of scores, the higher the likelier a member.

    Parameters
    ----------
    members : array-like of shape (n_members,)
        Scores of records the model was trained on.
    others : array-like of shape (n_others,)
        Scores of records it was not trained on.
    """
    inside, outside = _scores("members", members), _scores("others", others)
    both = np.concatenate([inside, outside])
    order = np.argsort(-both, kind="stable")
    ranked = both[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(both) - 1)  # of equal scores
    hits = np.cumsum(order < len(inside))[last]
    zero = np.zeros(1)
    return Roc(
        fpr=np.concatenate([zero, (last + 1 - hits) / len(outside)]),
        tpr=np.concatenate([zero, hits / len(inside)]),
        thresholds=np.concatenate([[np.inf], ranked[last]]),
        members=len(inside),
        others=len(outside),
    )


def most_tpr(fpr: ArrayLike, *, epsilon: float, delta: float) -> FloatArray:
    """Return the largest true positive rate that (ε, δ) allows at each false positive rate.

    Parameters
    ----------
    fpr : array-like
        False positive rates, from 0 to 1.
    epsilon : float
        ε between data sets with and without a record.
    delta : float
        Its δ.

    Guarantees:
        Kairouz, Oh & Viswanath 2015, Theorem 2.1 (the region of Wasserman & Zhou 2010 with δ): a
        test that tells a data set from its neighbour has FPR + e^ε FNR ≥ 1 − δ and
        e^ε FPR + FNR ≥ 1 − δ, so TPR ≤ min(1, e^ε FPR + δ, 1 − e^−ε (1 − δ − FPR)), and some
        (ε, δ) mechanism reaches it. It is about the *expected* rates at a threshold fixed in
        advance; a curve from few records can be above it by chance.

    >>> most_tpr([0.001, 0.5], epsilon=1.0, delta=1e-5).round(6)
    array([0.002728, 0.816064])
    """
    rates = np.asarray(fpr, dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all():  # NaN too
        raise InvalidInput("a false positive rate is not between 0 and 1; give shares, not percent")
    epsilon, delta = check_not_negative("epsilon", epsilon), check_delta(delta, allow_zero=True)
    with np.errstate(over="ignore"):
        steep = np.minimum(1.0, np.exp(epsilon) * rates + delta)
    flat = 1 - math.exp(-epsilon) * (1 - delta - rates)
    return np.asarray(np.minimum(steep, np.minimum(1.0, flat)), dtype=np.float64)


def most_advantage(*, epsilon: float, delta: float) -> float:
    """Return the largest TPR − FPR that (ε, δ) allows: (e^ε − 1 + 2δ)/(e^ε + 1).

    Parameters
    ----------
    epsilon : float
        ε between data sets with and without a record.
    delta : float
        Its δ.

    Guarantees:
        Kairouz, Oh & Viswanath 2015: the total variation distance that the region of
        :func:`most_tpr` allows, reached where its two bounds meet, at FPR = (1 − δ)/(e^ε + 1). It
        is below the e^ε − 1 of Yeom et al. 2018, Theorem 1.

    >>> round(most_advantage(epsilon=1.0, delta=0.0), 6)
    0.462117
    """
    epsilon, delta = check_not_negative("epsilon", epsilon), check_delta(delta, allow_zero=True)
    half = math.exp(-epsilon)
    return (1 - half + 2 * delta * half) / (1 + half)


def _scores(name: str, values: ArrayLike) -> FloatArray:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not len(scores):
        raise InvalidInput(f"scores of {name} have shape {scores.shape}; give one for each record")
    if np.isnan(scores).any():
        raise InvalidInput(f"a score of {name} is NaN; scores are numbers, or infinite")
    return scores
