"""A consensus profile: how the votes of k teachers might fall."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput


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
