"""Private principal components: eigenvectors of the noised matrix of the records' products.

A projection to few dimensions before training means fewer weights, so less noise in every step.
The eigenvalues of the *noised* matrix are released with its eigenvectors at no further cost, and
can scale the components alike, which saves many training steps. The share of variance that the
components explain is not reported: it would be one more query of the records.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate._files import write_atomically
from pate._validate import check_probability, check_whole
from pate.accounting.events import Event, SampledGaussian
from pate.errors import InvalidInput
from pate.randomness import Randomness

LARGEST_WIDTH = 8192  # features; a matrix of their products then takes half a gigabyte
SEEDED = "seeded noise: not private"

_CHUNK = 1 << 20  # numbers of a data set held at a time
_LEAST_SHARE = 1e-6  # of the largest eigenvalue: what a weak component is taken to have
_GRID = 1 << 14  # coordinates of a unit row are whole multiples of 1/_GRID
_UNREADABLE = (  # what numpy and zipfile raise where bytes are not what they wrote
    KeyError, TypeError, ValueError, EOFError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip

FloatMatrix = NDArray[np.float64]
Projection = NDArray[np.float32]


@final
class PrivatePCA:
    """The leading eigenvectors of AᵀA plus noise, where A holds a sample of unit-norm records.

    One object makes one release: a second ``fit`` is refused, since it would cost a second time.

    Parameters
    ----------
    dimension : int
        The number of components.
    noise_multiplier : float
        The standard deviation of the noise on the matrix, whose sensitivity is 1.
    sample_rate : float, default=1.0
        The probability of each record to be used.
    whiten : float, default=0.0
        From 0 (projections as they are) to 1 (all components of about one size): component j is
        scaled by (eigenvalue 1 / eigenvalue j)^(whiten/2), from the noised eigenvalues.

    Guarantees:
        * Abadi et al. 2016, Section 4, after Dwork, Talwar, Thakurta & Zhang 2014 ("Analyze
          Gauss"), Algorithm 1. A record joins with probability ``sample_rate`` on its own, and
          every entry on and above the diagonal gets its own N(0, noise_multiplier²).
        * A record x more or less changes the released triangle by that of xxᵀ, and
          ‖triu(xxᵀ)‖₂ ≤ ‖xxᵀ‖₂ = ‖x‖² ≤ 1 (reached by a record with one feature), so a fit
          costs one ``SampledGaussian``. The sampling rate is given, and nothing released depends
          on the number of records, so it holds for one record added or removed.
        * Every record is scaled to norm one, whatever its size; one that is zero stays zero, and
          one that is not finite counts as zero. Coordinates are cut towards zero to multiples of
          2⁻¹⁴, so ‖x‖ ≤ 1 holds to the last bit, and sums of up to 2²⁵ records are exact: no
          rounding depends on who else is in the data.
        * Directions and scales are computed from the noised matrix alone: post-processing.
        * The noise is drawn in doubles. Eigenvectors rounded to single precision are released, not
          the noised sums; that the gaps between doubles reveal nothing (Mironov 2012) is
          believed, not proved.

    >>> rows = np.random.default_rng(0).normal(size=(5000, 20)) * np.linspace(3.0, 0.1, 20)
    >>> pca = PrivatePCA(4, noise_multiplier=7.0).fit(rows)
    >>> pca.transform(rows).shape, [event.noise_multiplier for event in pca.events]
    ((5000, 4), [7.0])
    """

    def __init__(
        self,
        dimension: int,
        *,
        noise_multiplier: float,
        sample_rate: float = 1.0,
        whiten: float = 0.0,
    ) -> None:
        self.dimension = check_whole("dimension", dimension, least=1)
        self.whiten = check_probability("whiten", whiten)
        self._event = SampledGaussian(
            sample_rate=sample_rate, noise_multiplier=noise_multiplier, public_rate=True
        )
        self._components: Projection | None = None
        self._eigenvalues = np.ones(self.dimension)
        self._caveats: tuple[str, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        """The cost of the one fit; known before it happens."""
        return (self._event,)

    @property
    def caveats(self) -> tuple[str, ...]:
        """The reasons why the guarantee does not hold; () for a secure fit."""
        return self._caveats

    @property
    def components_(self) -> Projection:
        """The directions as columns, (features, dimension): strongest first, of unit norm.

        The largest coordinate of each is positive. Released: they may be published at the cost
        in ``events``.
        """
        if self._components is None:
            raise InvalidInput("this PCA has no components yet; call fit(X) first")
        return self._components

    @property
    def scales_(self) -> Projection:
        """The factor of each component; released like the components."""
        largest = self._eigenvalues[0]
        if largest <= 0:  # nothing but noise
            return np.ones(self.dimension, dtype=np.float32)
        shares = np.maximum(self._eigenvalues / largest, _LEAST_SHARE)
        return np.asarray(shares ** (-self.whiten / 2), dtype=np.float32)

    def fit(self, X: ArrayLike, *, insecure_seed: int | None = None) -> Self:
        """Find the directions, once.

        Parameters
        ----------
        X : array-like of shape (n_records, …)
            The private records; a memory-mapped file is read in parts.
        insecure_seed : int, optional
            Draw the noise from this seed, for tests. The result is not private.

        Returns
        -------
        PrivatePCA
            The object itself.
        """
        if self._components is not None:
            raise InvalidInput("this PCA is fitted; another fit costs again: make a new PrivatePCA")
        records, width = _records(X)
        if width > LARGEST_WIDTH:
            raise InvalidInput(
                f"records have {width} features, and the matrix of their products would not fit "
                f"in memory; use at most {LARGEST_WIDTH}"
            )
        if self.dimension > width:
            raise InvalidInput(
                f"dimension is {self.dimension} and records have {width} features; choose at "
                f"most {width}"
            )
        randomness = Randomness.open(insecure_seed=insecure_seed)
        rate = self._event.sample_rate
        matrix = _sum_of_products(records, width, sample_rate=rate, generator=randomness.generator)
        add_symmetric_noise(
            matrix, std=self._event.noise_multiplier, generator=randomness.generator
        )
        self._eigenvalues, self._components = _leading_eigenvectors(matrix, self.dimension)
        self._caveats = () if randomness.secure else (SEEDED,)
        return self

    def transform(self, X: ArrayLike) -> Projection:
        """Return projections of records, not scaled to norm one; of private records, private.

        A record that is not finite has a projection that is not finite.
        """
        components = self.components_ * self.scales_
        records, width = _records(X)
        if width != len(components):
            raise InvalidInput(
                f"records have {width} features; this PCA was fitted on {len(components)}"
            )
        projected = np.empty((len(records), self.dimension), dtype=np.float32)
        # A warning would reveal a private record; clipping leaves out those that are not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            for rows in _chunks(len(records), width):
                part = np.asarray(records[rows], dtype=np.float32).reshape(-1, width)
                np.matmul(part, components, out=projected[rows])
        return projected

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the components and their cost atomically as npz, without pickle."""
        stored = io.BytesIO()
        np.savez(
            stored,
            components=self.components_,
            eigenvalues=self._eigenvalues,
            whiten=np.float64(self.whiten),
            noise_multiplier=np.float64(self._event.noise_multiplier),
            sample_rate=np.float64(self._event.sample_rate),
            caveats=np.array(self._caveats, dtype=np.str_),
        )
        write_atomically(Path(path), stored.getvalue(), name=f"the PCA {path}", make_parents=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the fitted PCA that ``save`` wrote; refuse any other file."""
        file_path = Path(path)
        try:
            with file_path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                components = np.asarray(stored["components"])
                eigenvalues = np.asarray(stored["eigenvalues"], dtype=np.float64)
                whiten = float(stored["whiten"])
                caveats = tuple(str(caveat) for caveat in stored["caveats"])
                noise = float(stored["noise_multiplier"])
                rate = float(stored["sample_rate"])
            if components.ndim != 2 or not 1 <= components.shape[1] <= components.shape[0]:
                raise ValueError
            if components.dtype != np.float32 or not np.isfinite(components).all():
                raise ValueError
            if eigenvalues.shape != components.shape[1:] or not np.isfinite(eigenvalues).all():
                raise ValueError
            pca = cls(components.shape[1], noise_multiplier=noise, sample_rate=rate, whiten=whiten)
        except OSError as error:
            why = error.strerror or "it is damaged"
            raise InvalidInput(f"{file_path} cannot be read: {why.lower()}") from None
        except _UNREADABLE:
            raise InvalidInput(f"{file_path} is not a saved PCA; fit and save it again") from None
        pca._components, pca._eigenvalues, pca._caveats = components, eigenvalues, caveats
        return pca


def add_symmetric_noise(matrix: FloatMatrix, *, std: float, generator: np.random.Generator) -> None:
    """Add N(0, std²) to every entry on and above the diagonal, and mirror them below it."""
    for i in range(len(matrix)):
        matrix[i, i:] += std * generator.standard_normal(len(matrix) - i)
        matrix[i + 1 :, i] = matrix[i, i + 1 :]


def _sum_of_products(
    records: NDArray[Any], width: int, *, sample_rate: float, generator: np.random.Generator
) -> FloatMatrix:
    """Return AᵀA of a Poisson sample of the records, each of norm at most one."""
    total = np.zeros((width, width))
    for rows in _chunks(len(records), width):
        part = records[rows]
        if sample_rate < 1:
            part = part[generator.random(len(part)) < sample_rate]
        with np.errstate(over="ignore"):  # a warning would reveal a private record
            doubles = np.array(part, dtype=np.float64)
        units = _unit_rows(doubles.reshape(len(part), width))
        total += units.T @ units
    return total / _GRID**2  # a power of two: exact


def _unit_rows(rows: FloatMatrix) -> FloatMatrix:
    """Scale rows to norm one, in whole multiples of 1/_GRID, in place.

    Scaling is off by some 1e-12 at most, and the squared norm in units of the grid is a whole
    number below _GRID² · (1 + 1e-12) < _GRID² + 1: it is at most _GRID².
    """
    largest = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    strange = ~np.isfinite(largest)
    if strange.any():
        rows[strange] = 0.0
        largest[strange] = 0.0
    rows /= np.where(largest > 0, largest, 1.0)[:, None]  # so that no square overflows
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows *= (_GRID / np.maximum(norms, 1.0))[:, None]
    return np.trunc(rows, out=rows)


def _leading_eigenvectors(matrix: FloatMatrix, count: int) -> tuple[FloatMatrix, Projection]:
    """Return eigenvalues, largest first, and vectors as columns, largest entry positive."""
    from scipy.linalg import eigh

    width = len(matrix)
    values, vectors = eigh(
        matrix, subset_by_index=(width - count, width - 1), overwrite_a=True, check_finite=False
    )
    vectors = vectors[:, ::-1]
    peaks = vectors[np.abs(vectors).argmax(axis=0), np.arange(count)]
    return values[::-1].copy(), np.ascontiguousarray(vectors * np.sign(peaks), dtype=np.float32)


def _records(X: ArrayLike) -> tuple[NDArray[Any], int]:
    """Return the records as they are stored, and the number of features of one, flattened."""
    try:
        records = np.asanyarray(X)  # a memory map stays one
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, a tensor with grad
        raise InvalidInput("records are not a table of real numbers") from None
    if isinstance(records, np.ma.MaskedArray):
        raise InvalidInput("records are a masked array; fill or remove what is masked first")
    if records.dtype.kind not in "biuf":
        raise InvalidInput(f"records are of type {records.dtype}; they must be real numbers")
    width = math.prod(records.shape[1:])
    if records.ndim < 2 or width < 1:
        raise InvalidInput(
            f"records have {records.ndim} axes and {width} features; give an array "
            "(records, features)"
        )
    return records, width


def _chunks(count: int, width: int) -> Iterator[slice]:
    step = max(1, _CHUNK // width)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
