"""Components of a kernel of public inputs, along which records may vote instead of at cells.

A vote at one cell reaches the inputs near it only. Along components a record splits its vote over
all of them: it adds a vector of length one, its coordinates, to the sum of its class. A few hundred
components say as much of a class as thousands of cells do, and need far less noise; but a vote is
one in L2 and not in L1, so that the noise is Gaussian and δ is above zero.

With landmarks c, clusters of the public inputs, the kernel of q is k_c = 1/(1 + |q − c|²/s), s the
mean squared distance of two public inputs. The components are those of the largest variance among
the kernels of all public inputs (kernel PCA, Schölkopf, Smola & Müller 1998, by landmarks), each
scaled to the same variance.

Guarantees:
    **The vote of a record is a function of that record and of public inputs alone**, and its length
    is at most one, to the last bit. A rounding that depended on other records could move all votes
    by a unit each. Here no sum is ever rounded:

    * Squared distances are exact: those of :mod:`pate.record_votes`, on its grid.
    * A kernel is one product, one sum, one division and one rounding to a whole number, of IEEE 754
      and of that distance alone. Directions are whole numbers, small enough that all partial sums
      of kernels times directions are below 2⁵³.
    * Coordinates are scaled one by one, rounded to whole numbers and cut, so that their squares sum
      up to less than 2⁵³. With w the vector of these the vote is w · (4096/|w|), cut towards zero:
      its squared length in units of 1/4096 is a whole number below 4096² · (1 + 10⁻¹⁵) < 4096² + 1.

    A record without a finite number in every feature casts no vote.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate._validate import check_whole
from pate.errors import InvalidInput
from pate.record_votes import (
    GRID,
    PER_COMPONENT,
    Cells,
    VotesSpec,
    count_along,
    grid_of,
    make_cells,
    on_grid,
    require_exact,
)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_LANDMARKS, _ROUNDS = 2048, 10  # clusters of the public inputs, and rounds of their k-means
_KERNEL = 1 << 19  # the largest kernel, of a record at a landmark
_EXACT = 1 << 52  # sums of whole numbers below it are exact in doubles, with a bit to spare
_NUMBERS = 1 << 22  # kernels in memory at a time
_FAINT = 1e-6  # variances over the largest that are lost in rounding
_FINE = 1 << 12  # of a coordinate, whose variance among public inputs is one


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Components:
    """The components along which records vote. PUBLIC; made by :func:`make_components`.

    ``landmarks`` (landmarks, features) lie on the grid of ``origin`` and ``step``, ``scale`` is one
    over the mean squared distance of two public inputs in steps of it, and ``directions``
    (landmarks, components), with one factor in ``units`` for each, turn kernels into coordinates.
    """

    along_components: ClassVar[bool] = True

    landmarks: IntArray
    origin: FloatArray
    step: float
    scale: float
    directions: IntArray
    units: FloatArray

    def __post_init__(self) -> None:
        require_exact(self.landmarks, step=self.step)
        whole = self.landmarks.dtype == self.directions.dtype == np.int64
        largest = max(int(self.directions.max(initial=0)), -int(self.directions.min(initial=0)))
        exact = 0 < largest * _KERNEL * len(self.landmarks) <= _EXACT
        shapes = (len(self.landmarks), len(self.units)) == self.directions.shape
        finite = 0 < self.scale < math.inf and bool(np.isfinite(self.units).all())
        if not (whole and exact and shapes and finite):
            raise InvalidInput("these components do not allow for exact sums")

    def __len__(self) -> int:
        return int(self.directions.shape[1])

    def save(self, folder: Path) -> None:
        """Write the components into a folder, as arrays of numbers."""
        for each in fields(self):
            value = np.asarray(getattr(self, each.name))
            np.save(folder / f"{each.name}.npy", value, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the components that :meth:`save` wrote."""
        names = [each.name for each in fields(cls)]
        found = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in names}
        return cls(**found | {name: float(found[name]) for name in ("step", "scale")})

    def count(
        self, features: ArrayLike, labels: ArrayLike, *, classes: int, reach: int = 1
    ) -> IntArray:
        """Return the votes of records, (components, classes), in units of 1/4096; reach is 1."""
        if reach != 1:
            raise InvalidInput(f"reach is {reach}, and votes along components have none")
        points, given = np.asarray(features), np.asarray(labels)
        if given.shape != points.shape[:1]:
            raise InvalidInput(f"records {points.shape} and labels {given.shape} do not match")
        sums, rows = np.zeros((len(self), classes), dtype=np.int64), max(1, _NUMBERS // len(self))
        for block in (slice(start, start + rows) for start in range(0, len(points), rows)):
            sums += count_along(self.coordinates(points[block]), given[block], classes=classes)
        return sums

    def coordinates(self, features: ArrayLike) -> IntArray:
        """Return the vote of each record, (records, components), in units of 1/4096.

        Its length is at most 4096; that of a record without finite features is zero.

        >>> points = np.random.default_rng(0).normal(size=(40, 3))
        >>> votes = make_components(points, components=5).coordinates(points)
        >>> bool(((votes**2).sum(axis=1) <= 4096**2).all())
        True
        """
        points = np.asarray(features)
        points = points.reshape(len(points), math.prod(points.shape[1:]))
        if points.shape[1] != self.landmarks.shape[1]:
            raise InvalidInput(
                f"records have {points.shape[1]} features, and the components "
                f"{self.landmarks.shape[1]}"
            )
        found = np.zeros((len(points), len(self)), dtype=np.int64)
        centres = self.landmarks.T.astype(np.float64)
        squares = (centres**2).sum(axis=0)
        directions = self.directions.astype(np.float64)
        most = math.isqrt(_EXACT // len(self))
        rows = max(1, _NUMBERS // len(self.landmarks))
        for start in range(0, len(points), rows):
            part = points[start : start + rows].astype(np.float64)
            there = np.isfinite(part).all(axis=1)
            placed = on_grid(part[there], origin=self.origin, step=self.step)
            gaps = placed @ centres
            gaps *= -2.0
            gaps += squares
            gaps += (placed**2).sum(axis=1, keepdims=True)
            gaps *= self.scale
            gaps += 1.0
            kernel = np.rint(np.divide(float(_KERNEL), gaps, out=gaps), out=gaps)
            whole = np.clip(np.rint((kernel @ directions) * self.units), -most, most)
            length = np.sqrt((whole**2).sum(axis=1, keepdims=True))
            votes = np.trunc(whole * np.where(length > 0, GRID / np.maximum(length, 1.0), 0.0))
            found[start : start + rows][there] = votes
        return found


VotingPlaces = Cells | Components


def make_places(features: ArrayLike, votes: VotesSpec, *, seed: int = 0) -> VotingPlaces:
    """Return where records vote, by a section ``[votes]`` that is resolved."""
    if votes.components is not None:
        return make_components(features, components=int(votes.components), seed=seed)
    return make_cells(features, cells=None if votes.cells is None else int(votes.cells), seed=seed)


def load_places(folder: Path) -> VotingPlaces:
    """Return the cells or components that were saved into a folder."""
    return (Components if (folder / "directions.npy").exists() else Cells).load(folder)


def make_components(features: ArrayLike, *, components: int, seed: int = 0) -> Components:
    """Return the components of public inputs.

    Parameters
    ----------
    features : array-like, (inputs, …)
        PUBLIC inputs, as the encoder makes them.
    components : int
        Their number, public; fewer than the inputs.
    seed : int
        The seed of the clusters that are landmarks; public.

    Returns
    -------
    Components
        The components. PUBLIC.
    """
    from scipy.linalg import cholesky, eigh, solve_triangular

    points, origin, step = grid_of(features)
    count = check_whole("components", components, least=2)
    if count >= len(points):
        raise InvalidInput(
            f"votes.components is {count}, and there are {len(points)} public inputs; lower it to "
            f"{len(points) // PER_COMPONENT} or so"
        )
    placed = on_grid(points, origin=origin, step=step)
    spread = 2 * float(placed.var(axis=0).sum())  # the mean squared distance
    if not spread > 0:
        raise InvalidInput("all public inputs are the same; they have no components")
    scale, centres = 1 / spread, placed
    if len(points) > _LANDMARKS:
        centres = np.rint(_landmarks(placed, seed))
    kernel = _kernel(placed, centres, scale)
    # Features of which the kernel of two inputs is the product (Nyström), and their components.
    between = _kernel(centres, centres, scale) + _FAINT * len(centres) * np.eye(len(centres))
    root = cholesky(between, lower=True)
    mapped = solve_triangular(root, kernel.T, lower=True)
    last = len(centres) - 1
    products = mapped @ mapped.T / len(points)
    variances, turned = eigh(products, subset_by_index=[max(0, last - count + 1), last])
    kept = variances > _FAINT * variances[-1]
    if count > kept.sum():
        raise InvalidInput(
            f"votes.components is {count}, and the public inputs differ in {kept.sum()} ways only; "
            "lower it"
        )
    turned = turned[:, ::-1] / np.sqrt(variances[::-1])
    directions = solve_triangular(root, turned, lower=True, trans="T")
    directions *= np.where(directions.sum(axis=0) < 0, -1.0, 1.0)
    factors = _EXACT // (_KERNEL * len(centres)) / np.abs(directions).max(axis=0)
    return Components(
        landmarks=centres.astype(np.int64),
        origin=origin,
        step=step,
        scale=scale,
        directions=np.rint(directions * factors).astype(np.int64),
        units=_FINE / (_KERNEL * factors),
    )


def _landmarks(points: FloatArray, seed: int) -> FloatArray:
    """Return the centres of clusters; a few rounds of k-means do for landmarks."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    means = KMeans(_LANDMARKS, init="random", n_init=1, max_iter=_ROUNDS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer clusters: inputs that are equal
        found: FloatArray = means.fit(points).cluster_centers_
    return found


def _kernel(points: FloatArray, centres: FloatArray, scale: float) -> FloatArray:
    gaps = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * points @ centres.T
    found: FloatArray = 1 / (1 + scale * gaps)
    return found
