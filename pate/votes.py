"""Votes of teachers, and files of them: counts for each class, or the predictions behind them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Votes:
    """The number of teachers that voted for each class, query by query. PRIVATE.

    Parameters
    ----------
    counts : ndarray of int64
        One row for each query, one column for each class.

    Examples
    --------
    >>> votes = Votes(counts=np.array([[240, 5, 5], [130, 100, 20]]))
    >>> votes.queries, votes.classes, votes.teachers
    (2, 3, 250)
    """

    counts: NDArray[np.int64] = field(repr=False)

    @property
    def queries(self) -> int:
        """The number of queries."""
        return int(self.counts.shape[0])

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.counts.shape[1])

    @property
    def teachers(self) -> int:
        """The most votes cast on any query: all teachers, where none abstains."""
        return int(self.counts.sum(axis=1).max())

    @classmethod
    def from_labels(cls, labels: ArrayLike, *, classes: int, abstentions: bool = False) -> Votes:
        """Count the predictions of teachers.

        Parameters
        ----------
        labels : array-like of shape (teachers, queries)
            The class that each teacher predicts for each query, 0 … classes − 1.
        classes : int
            The number of classes. It is public, and never read off the labels: otherwise one
            teacher's vote could decide it.
        abstentions : bool
            Allow −1, a teacher that casts no vote.

        Returns
        -------
        Votes
            The counts. PRIVATE.

        Raises
        ------
        InvalidInput
            If the labels are not a table of whole numbers, or one is not a class.

        Examples
        --------
        >>> Votes.from_labels([[0, 2], [0, 1], [1, 2]], classes=3).counts
        array([[2, 1, 0],
               [0, 1, 2]])
        """
        table = np.asarray(labels)
        if table.ndim != 2 or table.size == 0:
            raise InvalidInput(
                f"labels have shape {table.shape}; give a table with a row for each teacher"
            )
        return _count(_whole_numbers(table, "labels"), "labels", classes, abstentions)

    def first(self, queries: int | None) -> Votes:
        """Return the first ``queries`` queries; all of them if None."""
        if queries is None:
            return self
        if not 1 <= queries <= self.queries:
            raise InvalidInput(f"asked for {queries} queries, and the votes hold {self.queries}")
        return Votes(counts=self.counts[:queries])


def read_counts(
    path: str | os.PathLike[str], *, abstentions: bool = False, certain: bool = False
) -> Votes:
    """Read counts, (queries, classes), from a ``.npy`` file.

    ``certain`` states that the file holds counts where it could also be read as labels.
    """
    table = _whole_numbers(load_table(path), path)
    if table.min() < 0:
        raise InvalidInput(f"{path} holds a negative count")
    if table.shape[1] < 2:
        raise InvalidInput(f"{path} has one column; counts need a column for each class, 2 or more")
    totals = table.sum(axis=1)
    if totals.max() < 1:
        raise InvalidInput(f"{path} holds no votes")
    if totals.min() != totals.max() and not abstentions:
        raise InvalidInput(
            f"the rows of {path} do not sum to one number of teachers; if it holds (teachers, "
            "queries) labels add --labels, if teachers may abstain add --abstentions"
        )
    if not certain and not abstentions and _could_be_labels(table):
        raise InvalidInput(
            f"{path} of shape {table.shape} could be (queries, classes) counts or (teachers, "
            "queries) labels; add --counts or --labels"
        )
    return Votes(counts=table)


def read_labels(
    path: str | os.PathLike[str], *, classes: int | None = None, abstentions: bool = False
) -> Votes:
    """Read counts from a ``.npy`` file of labels, (teachers, queries); −1 is an abstention.

    Without ``classes`` their number is taken from the largest label. Give it where classes exist
    that no teacher voted for: they count, and leaving them out makes ε too small.
    """
    return _count(_whole_numbers(load_table(path), path), path, classes, abstentions)


def _count(
    labels: NDArray[np.int64],
    name: str | os.PathLike[str],
    classes: int | None,
    abstentions: bool,
) -> Votes:
    """Count labels (teachers, queries); ``name`` is the file or argument for messages."""
    if labels.min() < (-1 if abstentions else 0):
        raise InvalidInput(
            f"{name} holds a negative label; if it means abstention add --abstentions"
        )
    width = max(2, int(labels.max()) + 1) if classes is None else classes
    if width <= labels.max():
        raise InvalidInput(f"{name} holds a label beyond the {width} classes given")
    queries = labels.shape[1]
    if width > 1 << 20 or queries * width > 1 << 28:
        raise InvalidInput(f"{name} holds labels too large to be class numbers")
    cast = labels >= 0
    cells = (np.arange(queries) * width + labels)[cast]
    counts = np.bincount(cells, minlength=queries * width).reshape(queries, width)
    return Votes(counts=counts.astype(np.int64, copy=False))


def _could_be_labels(table: NDArray[np.int64]) -> bool:
    """Return whether counts with equal totals would also pass for teachers that always agree.

    Read as labels, every value is a class below the number of columns, and they are not nearly
    all zero.
    """
    rows, columns = table.shape
    return bool(rows > 1 and table.max() < columns and 4 * int(table[0].sum()) >= columns)


def load_table(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Return a table of numbers from a ``.npy`` file, memory-mapped; never unpickles."""
    place = Path(path)
    if not place.is_file():
        raise InvalidInput(f"there is no vote file at {path}")
    with place.open("rb") as file:
        if file.read(2) == b"PK":
            raise InvalidInput(f"{path} is an archive of arrays; save the votes alone as .npy")
    try:
        table: NDArray[Any] = np.load(place, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # whatever a damaged file makes the reader trip over
        raise InvalidInput(
            f"{path} is not a readable .npy file of numbers (pickled or damaged files are refused)"
        ) from error
    if table.ndim != 2 or table.size == 0:
        raise InvalidInput(f"{path} has shape {table.shape}; votes are a table that is not empty")
    return table


def _whole_numbers(table: NDArray[Any], path: str | os.PathLike[str]) -> NDArray[np.int64]:
    if table.dtype.kind in "iu":
        if table.dtype.kind == "u" and table.max() > np.iinfo(np.int64).max:
            raise InvalidInput(f"{path} holds numbers too large to be votes")
        return np.asarray(table, dtype=np.int64)
    if table.dtype.kind != "f":
        raise InvalidInput(f"{path} holds {table.dtype}, not numbers of votes")
    if not np.all(np.abs(table) < 2.0**53):  # false for NaN too
        raise InvalidInput(f"{path} holds NaN, infinity or numbers too large to be votes")
    whole = np.asarray(table).astype(np.int64)
    if not np.array_equal(whole, table):
        raise InvalidInput(f"{path} holds fractions; votes are whole numbers")
    return whole
