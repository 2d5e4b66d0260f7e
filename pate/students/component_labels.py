"""Soft labels of public inputs from the noised sums of votes along components.

The exact sums S of all records' votes, one vector for each class, say what least squares need to
know of their labels: with M the mean product of the coordinates of a record, M⁻¹S/N are the
weights that predict its class. Public inputs stand in for the records in M, for nothing. As few of
the first components are used as predict best; that is judged by a score that is unbiased for the
exact sums: the noised sums S + z are split into S + z + g, which predict, and S + z − g, which are
scored, with g drawn like z (as in :mod:`pate.students.count_smoothing`; for Gaussian noise the two
are independent).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from pate.artifacts.results import SoftLabels

FloatArray = NDArray[np.float64]

_RIDGE = 0.2  # over the mean variance of a component
_SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)  # of the components
_SPLITS = 8
_CLEAR = 3.0  # standard deviations of noise by which predicted classes lead


def label_by_components(
    sums: FloatArray, coordinates: FloatArray, *, deviation: float
) -> SoftLabels:
    """Return soft labels of public inputs from the noised sums of all votes.

    Parameters
    ----------
    sums : ndarray of float, (components, classes)
        The sums of votes along each component, with noise, in votes.
    coordinates : ndarray of float, (inputs, components)
        The coordinates of the public inputs: of a length of one at most.
    deviation : float
        The standard deviation of the noise on a sum, in votes.

    Returns
    -------
    SoftLabels
        Probabilities of the classes of each input; equal shares where noise explains all that is
        predicted.

    Guarantees:
        The sums are RELEASED and all else is public, so this costs no privacy (post-processing:
        Dwork and Roth 2014, Proposition 2.1).

    >>> line = np.eye(2)[[0, 0, 1, 1]]
    >>> label_by_components(np.array([[90.0, 4.0], [2.0, 70.0]]), line, deviation=1.0).labels
    array([0, 0, 1, 1])
    """
    inputs, width = coordinates.shape
    classes = sums.shape[1]
    products = coordinates.T @ coordinates / inputs
    # The same splits for every table: the result is a function of it.
    rng = np.random.default_rng(0)
    noise = rng.normal(scale=deviation, size=(_SPLITS, *sums.shape))
    tables = np.concatenate([sums[None], sums + noise])
    best, chosen, records = -math.inf, np.full((inputs, classes), 1 / classes), 0.0
    for count in sorted({max(2, round(share * width)) for share in _SHARES}):
        part = products[:count, :count]
        ridge = _RIDGE * float(np.trace(part)) / count
        factor = cho_factor(part + ridge * np.eye(count))
        weights, *tried = (cho_solve(factor, table[:count]) for table in tables)
        if not records:  # which all classes of an input add up to; the fewest have the least noise
            means = coordinates[:, :count].mean(axis=0)
            records = max(float(means @ weights.sum(axis=1)), 1.0)
        score, lead, spread = 0.0, 0.0, 0.0
        for each, sample in zip(tried, sums - noise, strict=True):
            predicted = each / records
            # Quadratic score of every vote (Brier 1950); linear in the sums, so unbiased.
            squares = records * float(np.sum(predicted * (part @ predicted)))
            score += 2 * float(np.sum(predicted * sample[:count])) - squares
            apart = predicted - predicted.mean(axis=1, keepdims=True)
            lead += float(np.sum(apart * sample[:count]))
            spread += float(np.sqrt(np.sum(apart * apart)))
        if score > best and lead > _CLEAR * math.sqrt(2) * deviation * spread:
            shares = np.maximum(coordinates[:, :count] @ weights, 0.0) / records
            shares += np.finfo(np.float64).tiny
            best, chosen = score, shares / shares.sum(axis=1, keepdims=True)
    return SoftLabels(probabilities=chosen, confidence=chosen.max(axis=1))
