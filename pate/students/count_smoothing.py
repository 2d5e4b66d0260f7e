"""Soft labels of public inputs from a noised table of votes, smoothed over their graph.

Every row of the table belongs to a cell of public inputs and holds one noised count for each class.
Counts of near cells are averaged by a random walk over the graph of nearest public inputs: few
steps keep the noise, many steps mix the classes. The number of steps, and how sharply averaged
counts become probabilities, are chosen by the table itself, through a score that is unbiased for
the exact votes:

* Where every input is a cell, the counts of some cells are left out, predicted from the others, and
  scored. The noise of a cell is independent of all others and has mean zero.
* Clusters of inputs may hold most of a class, which no other cell predicts. So a table n + L with
  exact votes n and noise L is split in two: n + L + g predicts and n + L − g is scored, where g is
  drawn like L. L and g are exchangeable, so given L + g the mean of L − g is zero. g is Laplace
  noise: where L is Gaussian, whose tails are lighter, large predictions are scored too low.

Where no prediction agrees with the votes by more than noise explains, all classes get equal shares.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.artifacts.results import NoisedCounts, SoftLabels
from pate.components import VotingPlaces
from pate.errors import InvalidInput
from pate.record_votes import GRID, Cells
from pate.students.component_labels import label_by_components
from pate.students.propagation import neighbour_graph

_NEIGHBOURS = 8
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # of the walk
_POWERS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # from averaged counts to probabilities
_FOLDS = 5
_SPLITS = 8  # of the noise of clusters
_CLEAR, _CLEAR_SPLIT = 5.0, 3.0  # standard deviations of noise by which predicted classes lead


def label_inputs(table: NoisedCounts, *, places: VotingPlaces, features: ArrayLike) -> SoftLabels:
    """Return soft labels of all public inputs from a noised table of record votes.

    Parameters
    ----------
    table : NoisedCounts
        The released table.
    places : Cells or Components
        The cells at which records voted, or the components along which they did.
    features : array-like, (inputs, …)
        The features of all public inputs, as the cells or components were made of.

    Returns
    -------
    SoftLabels
        Probabilities of the classes of each input: of a table of cells by :func:`smooth_counts`, of
        components by :func:`pate.students.component_labels.label_by_components`.

    Guarantees:
        The table is RELEASED and all else is public, so this costs no privacy (post-processing:
        Dwork and Roth 2014, Proposition 2.1).

    >>> from pate import LaplaceCounts, count_record_votes, make_cells, secure_generator
    >>> public, rng = np.array([[0.0], [0.2], [5.0], [5.2]]), np.random.default_rng(0)
    >>> records, cells = rng.uniform(0, 0.3, size=(50, 1)), make_cells(public)
    >>> votes = count_record_votes(records, [1] * 50, cells=cells, classes=2)
    >>> table = LaplaceCounts(scale=1.0).release(votes, rng=secure_generator()).table
    >>> label_inputs(table, places=cells, features=public).probabilities.shape
    (4, 2)
    """
    if isinstance(places, Cells):
        return smooth_counts(
            table.counts,
            units=table.units,
            features=features,
            cells=places.members,
            variance=table.variance,
        )
    coordinates = places.coordinates(features) / GRID
    deviation = math.sqrt(table.variance) / table.units
    return label_by_components(table.votes, coordinates, deviation=deviation)


def smooth_counts(
    noised: ArrayLike,
    *,
    units: int,
    features: ArrayLike,
    cells: ArrayLike,
    variance: float,
) -> SoftLabels:
    """Return soft labels of all public inputs from noised counts of their cells.

    Parameters
    ----------
    noised : array-like of int, (cells, classes)
        Votes in each cell for each class, with noise, in units.
    units : int
        What one vote counts in the table.
    features : array-like, (inputs, …)
        The features of all public inputs; near ones tend to share their class.
    cells : array-like of int, (inputs,)
        The cell of each public input.
    variance : float
        The variance of the noise of one count, in units²; 0 is a table without noise.

    Returns
    -------
    SoftLabels
        Probabilities of the classes of each input, and the confidence in the most probable one.

    >>> line = np.array([[1, 0.0], [1, 0.1], [1, 0.2], [0, 1], [0.1, 1], [0.2, 1]])
    >>> counts = [[29, -1], [-2, 1], [24, 0], [1, 26], [1, -1], [0, 28]]
    >>> soft = smooth_counts(counts, units=1, features=line, cells=np.arange(6), variance=2.0)
    >>> soft.probabilities.argmax(axis=1)
    array([0, 0, 0, 1, 1, 1])

    Guarantees:
        The noised table is RELEASED and all else is public, so this costs no privacy
        (post-processing: Dwork and Roth 2014, Proposition 2.1).
    """
    counts, where, points = _checked(noised, cells, features)
    votes = counts / units
    sizes = np.bincount(where, minlength=len(votes))
    graph = neighbour_graph(points, neighbours=_NEIGHBOURS)
    deviation = math.sqrt(variance) / units
    clusters = len(votes) < len(where)
    # The same folds and splits for every table of that shape: the result is a function of it.
    rng = np.random.default_rng(0)
    if clusters:
        noise = rng.laplace(scale=deviation / math.sqrt(2), size=(_SPLITS, *votes.shape))
        tables, scored = votes + noise, votes - noise
        least = _CLEAR_SPLIT * math.sqrt(2) * deviation
    else:
        folds = rng.permutation(len(votes)) % min(_FOLDS, len(votes))
        tables = np.stack([votes * (folds != part)[:, None] for part in range(folds.max() + 1)])
        scored, least = votes[None], _CLEAR * deviation
    starts = np.concatenate([votes[None], tables]) / np.maximum(sizes, 1)[:, None]
    walked = np.hstack(list(starts[:, where]))
    inputs, classes = len(where), votes.shape[1]
    chosen = np.full((inputs, classes), 1 / classes)
    best, done = -math.inf, 0
    for steps in (0, *_STEPS) if clusters else _STEPS:
        for _ in range(steps - done):
            walked = (walked + graph @ walked) / 2
        done = steps
        smoothed = walked.reshape(inputs, len(starts), classes).swapaxes(0, 1)
        tried = smoothed[1:] if clusters else smoothed[folds[where] + 1, np.arange(inputs)][None]
        for power in _POWERS:
            predicted = np.stack([_cell_means(_shares(t, power), where, sizes) for t in tried])
            # Quadratic score of every vote (Brier 1950); linear in the votes, so unbiased.
            squares = (predicted * predicted).sum(axis=2, keepdims=True)
            score = float((scored * (2 * predicted - squares)).sum())
            if score > best and _is_clear(scored, predicted, least):
                best, chosen = score, _shares(smoothed[0], power)
    return SoftLabels(probabilities=chosen, confidence=chosen.max(axis=1))


def _is_clear(scored: NDArray[np.float64], predicted: NDArray[np.float64], least: float) -> bool:
    """Return whether votes lie where they were predicted, more than noise alone explains."""
    lead = predicted - 1 / predicted.shape[2]
    return bool((scored * lead).sum() > least * np.sqrt((lead * lead).sum(axis=(1, 2))).sum())


def _shares(table: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Return rows to a power, scaled to sum to one; equal shares where nothing is positive."""
    most = table.max(axis=1, keepdims=True)
    scaled = np.maximum(table / np.where(most > 0, most, 1.0), 0.0) ** power
    scaled[most[:, 0] <= 0] = 1.0
    shares: NDArray[np.float64] = scaled / scaled.sum(axis=1, keepdims=True)
    return shares


def _cell_means(
    table: NDArray[np.float64], where: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the mean of each cell's rows; zeros for a cell without inputs."""
    sums = np.zeros((len(sizes), table.shape[1]))
    np.add.at(sums, where, table)
    means: NDArray[np.float64] = sums / np.maximum(sizes, 1)[:, None]
    return means


def _checked(
    noised: ArrayLike, cells: ArrayLike, features: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    counts, where, given = np.asarray(noised), np.asarray(cells), np.asarray(features)
    if counts.ndim != 2 or counts.dtype.kind not in "iu" or min(counts.shape) < 2:
        raise InvalidInput(
            f"noised counts are whole numbers, (cells, classes) with two of each or more, not "
            f"{counts.dtype} of shape {counts.shape}"
        )
    if where.ndim != 1 or where.dtype.kind not in "iu" or len(where) != len(given):
        raise InvalidInput(
            f"cells has one whole number for each public input, not shape {where.shape} for "
            f"{len(given)} inputs"
        )
    if where.min() < 0 or where.max() >= len(counts):
        raise InvalidInput(
            f"cells run from {where.min()} to {where.max()}, and the table has {len(counts)} rows"
        )
    points = given.reshape(len(given), -1).astype(np.float32)
    return counts.astype(np.int64), where.astype(np.int64), points
