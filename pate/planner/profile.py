"""Consensus profiles: votes of k teachers as they might fall, and of a simple model.

In the model each input has a share p of teachers that are right about it, drawn from a Beta
distribution whose mean is the accuracy of one teacher: most inputs are easy, some are hard for
everybody. Half of the wrong votes fall on one class, and the others on any.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.accounting.moments import FloatArray
from pate.errors import InvalidInput
from pate.mechanisms.noisy_max import gaussian_win_chances


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """Votes on inputs whose class is known. PUBLIC: none of it comes from the private data."""

    counts: NDArray[np.int64]  # (inputs, classes); every row sums to the number of teachers
    truth: NDArray[np.int64]  # (inputs,)

    def __post_init__(self) -> None:
        counts, truth = self.counts, self.truth
        if counts.ndim != 2 or not len(counts) or truth.shape != counts.shape[:1]:
            raise InvalidInput("a profile needs a row of counts, and a class, for each input")
        totals = counts.sum(axis=1)
        if totals.min() != totals.max() or totals[0] < 1 or counts.min() < 0:
            raise InvalidInput("a profile needs the same number of votes on every input")

    @property
    def teachers(self) -> int:
        return int(self.counts[0].sum())

    @property
    def classes(self) -> int:
        return int(self.counts.shape[1])

    @property
    def inputs(self) -> int:
        return int(self.counts.shape[0])

    def first(self, inputs: int) -> Profile:
        """The first so many inputs."""
        return Profile(counts=self.counts[:inputs], truth=self.truth[:inputs])

    @property
    def teacher_accuracy(self) -> float:
        """Of one teacher, on average."""
        right = self.counts[np.arange(self.inputs), self.truth]
        return float(right.mean()) / self.teachers

    @property
    def plurality_accuracy(self) -> float:
        """Of the class with the most votes, without noise; ties count by the share of the truth.

        >>> Profile(counts=np.array([[3, 1], [2, 2]]), truth=np.array([0, 1])).plurality_accuracy
        0.75
        """
        largest = self.counts == self.counts.max(axis=1, keepdims=True)
        right = largest[np.arange(self.inputs), self.truth] / largest.sum(axis=1)
        return float(right.mean())

    @property
    def consensus(self) -> float:
        """The share of the teachers that agree on the winning class, on average."""
        return float(self.counts.max(axis=1).mean()) / self.teachers


def right_with_gaussian(profile: Profile, sigma: float) -> FloatArray:
    """Pr[GNMax answers with the truth], for each input.

    >>> profile = Profile(counts=np.array([[70, 30]]), truth=np.array([0]))
    >>> round(float(right_with_gaussian(profile, 40.0)[0]), 4)  # Φ(40 / (40·√2))
    0.7602
    """
    return gaussian_win_chances(leads(profile), sigma)


def leads(profile: Profile) -> FloatArray:
    """Return the lead of the truth over every other class, in votes, (inputs, classes − 1)."""
    others = np.ones(profile.counts.shape, dtype=bool)
    rows = np.arange(profile.inputs)
    others[rows, profile.truth] = False
    ahead = profile.counts[rows, profile.truth][:, None] - profile.counts
    return ahead[others].reshape(profile.inputs, -1).astype(np.float64)


# Both so that plurality and consensus come out as linear teachers of Fashion-MNIST have them.
SPREAD = 2.0  # α + β of the Beta distribution: the smaller, the more inputs are easy or hopeless
RIVAL = 0.5  # of the wrong votes, the share of the wrong class that tempts most
_EXPONENT = 0.5  # a teacher's error falls with shard ** −0.5, where one accuracy is all we know
_INPUTS = 2000


def simulated(
    *, teachers: int, accuracy: float, classes: int, inputs: int = _INPUTS, seed: int = 0
) -> Profile:
    """Return votes of ``teachers`` that are right with probability ``accuracy`` on average.

    >>> profile = simulated(teachers=250, accuracy=0.8, classes=10)
    >>> round(profile.teacher_accuracy, 2), profile.plurality_accuracy > 0.8
    (0.8, True)
    """
    if not 1 / classes < accuracy < 1:
        raise InvalidInput(
            f"--accuracy {accuracy:g} must be below 1 and above {1 / classes:g}, which guessing "
            f"among {classes} classes reaches"
        )
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=inputs)
    right = rng.beta(SPREAD * accuracy, SPREAD * (1 - accuracy), size=inputs)
    wrong = 1 - right
    rival = (truth + rng.integers(1, classes, size=inputs)) % classes
    others = 1 - RIVAL if classes > 2 else 0.0
    shares = np.repeat((wrong * others / max(1, classes - 2))[:, None], classes, axis=1)
    rows = np.arange(inputs)
    shares[rows, rival] = wrong * (1 - others)
    shares[rows, truth] = right
    shares /= shares.sum(axis=1, keepdims=True)
    return Profile(counts=rng.multinomial(teachers, shares).astype(np.int64), truth=truth)


def parse_accuracies(texts: Sequence[str], *, own: int) -> dict[int, float]:
    """``["0.8"]`` at the recipe's ``own`` teachers, or ``["100=0.9", "1000=0.7"]`` at any.

    >>> parse_accuracies(["0.8"], own=250), parse_accuracies(["100=0.9", "1000=0.7"], own=250)
    ({250: 0.8}, {100: 0.9, 1000: 0.7})
    """
    known: dict[int, float] = {}
    for text in texts:
        count, equals, value = text.rpartition("=")
        try:
            known[int(count) if equals else own] = float(value)
        except ValueError:
            raise InvalidInput(
                f"--accuracy {text} is neither a share such as 0.8 nor one for a number of "
                "teachers such as 500=0.8"
            ) from None
    if any(count < 1 or not 0 < share < 1 for count, share in known.items()):
        raise InvalidInput(f"--accuracy {' '.join(texts)}: accuracies lie between 0 and 1")
    return known


def accuracy_at(teachers: int, known: Mapping[int, float], *, classes: int) -> float:
    """Return one teacher's accuracy among so many, from accuracies at other numbers.

    Between two known numbers log error is linear in log k; beyond them, and where only one is
    known, the error grows with the square root of k, as it falls with that of a shard's records.

    >>> round(accuracy_at(1000, {250: 0.9}, classes=10), 2)
    0.8
    """
    counts = sorted(known)
    errors = [math.log(1 - known[count]) for count in counts]
    if teachers <= counts[0]:
        error = errors[0] + _EXPONENT * math.log(teachers / counts[0])
    elif teachers >= counts[-1]:
        error = errors[-1] + _EXPONENT * math.log(teachers / counts[-1])
    else:
        error = float(np.interp(math.log(teachers), np.log(counts), errors))
    worst = 1 - 1.05 / classes  # a little better than guessing
    return 1 - min(math.exp(error), worst)
