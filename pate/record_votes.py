"""Record votes: every private record votes its own label at the public inputs nearest to it.

The cells of the table are public inputs, or clusters of them; a record votes at its nearest cell,
or at its ``reach`` nearest ones with one vote in all. So one record is in one place of the whole
(cells × classes) table, however large that is. Instead of cells a table may have components, along
which a record's vote is a vector of length one (:mod:`pate.components`).

Guarantees:
    The sensitivity of the table rests on this: **the cells of a record are a function of that
    record and of public inputs alone**. Distances in floating point would break it: a matrix
    product rounds by its shape and by a row's place in it, and a record more or less, which moves
    others to other places, could change the cell of a record that lies between two cells. Here no
    result is ever rounded:

    * Features are placed on a grid of whole numbers, |q| ≤ Q, each by one subtraction, one division
      and one rounding of IEEE 754 that see that feature alone. Origin and step of the grid are
      public.
    * The nearest cell c of q minimises |c|² − 2q·c. With d features, all products and all partial
      sums of it, in any order, with or without fused operations, are whole numbers of absolute
      value at most 3dQ² < 2⁵³: every one is exact in a double. So blocks, threads, libraries and
      devices cannot change a bit of it, and neither can other records. A GPU whose library only
      emulates doubles is refused: a product of the largest numbers is tried on it first.
    * Of equally near cells the first one in order is taken.

    A record without a finite number in every feature, or with a label outside the public list of
    classes, casts no vote; that, too, depends on it alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from pate._validate import check_whole
from pate.accounting import Neighbours
from pate.devices import Device, current_device
from pate.errors import InvalidInput

IntArray = NDArray[np.int64]

GRID = 1 << 12  # units of a vote of length one along components

_LARGEST = 1 << 51  # of d·Q²: three times that is exact in a double
_FINEST = 1 << 22  # Q, where few features would allow for more
_HEADROOM = 4  # how far beyond the public inputs a record may lie before it is moved to the edge
_NUMBERS = 1 << 22  # distances in memory at a time
_NOWHERE = -1  # the cell of a record that casts no vote
_CLEAR = 4.0  # standard deviations of its noise that the votes of an automatic cell should be
_PER_CLASS = 2  # automatic cells or components of a class at least
_PER_NOISE = 16.0  # records of an automatic component, over the standard deviation of the noise
PER_COMPONENT = 12  # public inputs of an automatic component, which scale it, at least


class VotesSpec(BaseModel):
    """``[votes]``: who votes on the public inputs, teachers or the records themselves."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    by: Literal["teachers", "records"] = Field(
        default="teachers",
        description="Votes of teachers on each public input, or one vote of every private record "
        "at the public inputs nearest to it; then there is no [teachers] section.",
    )
    cells: Annotated[int, Field(ge=2)] | Literal["auto"] | None = Field(
        default=None,
        description="Clusters of public inputs at which records vote (k-means on public features), "
        'or "auto": as few as the noise demands, by `expected_records`. Default: every public '
        "input is a cell of its own.",
    )
    components: Annotated[int, Field(ge=2)] | Literal["auto"] | None = Field(
        default=None,
        description="Components of a kernel of the public inputs along which records vote, in "
        'place of cells, or "auto": as many as the noise allows, by `expected_records`. A vote is '
        'a vector of length one, for mechanism = "gaussian-counts".',
    )
    expected_records: int | None = Field(
        default=None,
        ge=1,
        description='With "auto": about how many private records will vote. It is public and '
        "agreed beforehand, never counted.",
    )
    reach: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Nearest cells among which a record splits its one vote.",
    )
    per_user: int | None = Field(
        default=None,
        ge=1,
        description="Most records of a user that vote, where `data.group` names users; others are "
        "left out by a keyed order. Default: 1.",
    )

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave components out where there are none: digests of such sections do not change."""
        given: dict[str, Any] = write(self)
        return {k: v for k, v in given.items() if k != "components" or v is not None}

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.by == "teachers":
            fields = type(self).model_fields
            for key in ("cells", "components", "expected_records", "reach", "per_user"):
                if getattr(self, key) != fields[key].default:
                    raise ValueError(f'{key} belongs to by = "records", and by is "teachers"')
        require_consistent(
            self.cells, self.components, self.reach, expected_records=self.expected_records
        )
        return self

    def resolved(self, *, inputs: int, classes: int, deviation: float) -> Self:
        """Return the section with numbers in place of "auto", from public numbers.

        ``deviation`` is that of the noise on a count, in votes.
        """
        if self.expected_records is None:
            return self
        rule = automatic_cells if self.cells == "auto" else automatic_components
        found = rule(self.expected_records, inputs=inputs, classes=classes, deviation=deviation)
        key = "cells" if self.cells == "auto" else "components"
        return self.model_copy(update={key: found, "expected_records": None})

    def rows(self, *, inputs: int) -> int:
        """Return the number of rows of the table, of a section that is resolved."""
        found = self.components or self.cells or inputs
        assert isinstance(found, int)
        return found


def require_consistent(
    cells: object, components: object, reach: int, *, expected_records: int | None
) -> None:
    """Refuse settings of record votes that do not go together."""
    if components is not None and (cells is not None or reach != 1):
        other = "reach" if cells is None else "cells"
        raise InvalidInput(
            f"components is {components!r} and {other} is {cells or reach!r}: along components "
            f"there are no cells; leave {other} out"
        )
    given = {"cells": cells, "components": components}
    automatic = next((key for key, value in given.items() if value == "auto"), None)
    if automatic is not None and expected_records is None:
        raise InvalidInput(f'{automatic} = "auto" needs expected_records, a public number')
    if automatic is None and expected_records is not None:
        raise InvalidInput(
            f'expected_records is {expected_records}, and only cells = "auto" and components = '
            '"auto" use it'
        )


def automatic_cells(
    expected_records: int, *, inputs: int, classes: int, deviation: float
) -> int | None:
    """Return the number of clusters at which records should vote; None for every public input.

    In a cluster one draw of noise takes the place of one for each of its inputs. The expected votes
    of a cell are four standard deviations of the noise on a count; a class has two cells at least,
    and where a cell would have fewer than two inputs, each is a cell of its own. The rule was
    chosen by the labels of public images of MNIST and Fashion-MNIST.

    Parameters
    ----------
    expected_records : int
        About how many private records will vote. It must be PUBLIC: a number that is agreed
        beforehand. The cells of one more record would otherwise be other cells.
    inputs : int
        The number of public inputs.
    classes : int
        The public number of classes.
    deviation : float
        The standard deviation of the noise on a count, in votes.

    Returns
    -------
    int or None
        The number of clusters.

    >>> automatic_cells(1200, inputs=300, classes=10, deviation=14.1)
    21
    >>> automatic_cells(1200, inputs=300, classes=10, deviation=1.4) is None
    True
    """
    check_whole("expected_records", expected_records, least=1)
    wanted = expected_records / (_CLEAR * deviation) if deviation > 0 else math.inf
    wanted = max(wanted, _PER_CLASS * classes)
    return None if 2 * wanted > inputs else int(wanted)


def automatic_components(
    expected_records: int, *, inputs: int, classes: int, deviation: float
) -> int:
    """Return the number of components along which records should vote.

    More components tell more apart, and each brings its noise: the noise on what they predict of a
    class is that of one component, times their number, over the records. The rule keeps it at 1/16;
    a class has two components at least, and a component twelve public inputs. It was chosen on
    training images of Fashion-MNIST.

    Parameters
    ----------
    expected_records : int
        About how many private records will vote. It must be PUBLIC: a number that is agreed
        beforehand.
    inputs : int
        The number of public inputs.
    classes : int
        The public number of classes.
    deviation : float
        The standard deviation of the noise on a sum, in votes.

    Returns
    -------
    int
        The number of components.

    >>> automatic_components(60_000, inputs=9000, classes=10, deviation=7.5)
    500
    """
    check_whole("expected_records", expected_records, least=1)
    wanted = expected_records / (_PER_NOISE * deviation) if deviation > 0 else math.inf
    return max(2, int(min(max(wanted, _PER_CLASS * classes), inputs // PER_COMPONENT)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordVotes:
    """The votes of records in every cell of a table, or along its components. PRIVATE.

    Parameters
    ----------
    counts : ndarray of int64
        (cells, classes), in units of 1/reach of a vote, or (components, classes), in units of
        1/4096.
    reach : int
        The number of cells that a record votes at, one unit at each. Public.
    per_user : int, optional
        The most records of one user that voted; None where single records are protected. Public.
    group : str, optional
        The name of the column of users. Releases by one column add up for the same users; by
        default these are taken for users of their own. Public.
    components : bool
        Whether a record's vote is a vector along components, of length one in L2. Public.
    """

    counts: IntArray = field(repr=False)
    reach: int = 1
    per_user: int | None = None
    group: str | None = None
    components: bool = False

    def __post_init__(self) -> None:
        check_whole("reach", self.reach, least=1)
        if self.components and self.reach != 1:
            raise InvalidInput(f"reach is {self.reach}, and votes along components have none")
        if self.per_user is not None:
            check_whole("per_user", self.per_user, least=1)
        elif self.group is not None:
            raise InvalidInput("group names a column of users, and per_user is missing")
        counts = np.asarray(self.counts)
        if counts.ndim != 2 or counts.shape[1] < 2 or counts.dtype.kind not in "iu":
            raise InvalidInput(
                f"record votes of shape {counts.shape} and kind {counts.dtype} are not whole "
                "counts, (cells, classes ≥ 2)"
            )
        object.__setattr__(self, "counts", counts.astype(np.int64))

    @property
    def grid(self) -> int:
        """The parts of a unit of 1/reach vote that the counts are in."""
        return GRID if self.components else 1

    @property
    def neighbours(self) -> Neighbours:
        """The relation between data sets for which the sensitivity holds."""
        return Neighbours.ADD_REMOVE if self.per_user is None else Neighbours.USER_ADD_REMOVE


class Counting(Protocol):
    """What counts the votes of records: cells, or components (:mod:`pate.components`). PUBLIC."""

    along_components: ClassVar[bool]

    def count(
        self, features: ArrayLike, labels: ArrayLike, *, classes: int, reach: int = 1
    ) -> IntArray: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells:
    """The cells at which records vote, on a grid of whole numbers. PUBLIC.

    Made by :func:`make_cells`. ``centres`` are the cells (cells, features) on the grid, ``origin``
    the grid's origin, ``step`` its width, and ``members`` the cell of each public input.
    """

    along_components: ClassVar[bool] = False

    centres: NDArray[np.int64]
    origin: NDArray[np.float64]
    step: float
    members: IntArray

    def __post_init__(self) -> None:
        require_exact(self.centres, step=self.step)

    def __len__(self) -> int:
        return len(self.centres)

    def save(self, folder: Path) -> None:
        """Write the cells into a folder, as arrays of numbers."""
        for name in ("centres", "origin", "members"):
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)
        np.save(folder / "step.npy", np.array(self.step), allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the cells that :meth:`save` wrote."""
        names = ("centres", "origin", "members", "step")
        found = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in names}
        return cls(**found | {"step": float(found["step"])})

    def count(
        self, features: ArrayLike, labels: ArrayLike, *, classes: int, reach: int = 1
    ) -> IntArray:
        """Return the votes of records, (cells, classes), in units of 1/reach vote."""
        found = self.nearest(features, reach=reach)
        return count_votes(found, labels, classes=classes, table=(len(self), classes))

    def nearest(
        self, features: ArrayLike, *, reach: int = 1, device: Device | None = None
    ) -> IntArray:
        """Return the ``reach`` nearest cells of each record, (records, reach), the nearest first.

        A record with a feature that is no finite number gets −1. ``device`` is where torch works
        distances out; by default the worker's GPU, or numpy. The cells are the same on all of them.

        >>> cells = make_cells([[0.0], [1.0], [5.0]])
        >>> cells.nearest([[0.4], [4.0], [np.nan]], reach=2).tolist()
        [[0, 1], [2, 1], [-1, -1]]
        """
        points = np.asarray(features)
        points = points.reshape(len(points), math.prod(points.shape[1:]))  # also of no records
        if points.shape[1] != self.centres.shape[1]:
            raise InvalidInput(
                f"records have {points.shape[1]} features, and the cells {self.centres.shape[1]}"
            )
        if not 1 <= check_whole("reach", reach) <= len(self):
            raise InvalidInput(f"reach is {reach}, and there are {len(self)} cells")
        found = np.full((len(points), reach), _NOWHERE, dtype=np.int64)
        # |c|² − 2q·c as one product: the ones of a record meet the squares of the cells.
        squares = (self.centres**2).sum(axis=1, keepdims=True)
        table = np.ascontiguousarray(np.hstack([-2 * self.centres, squares]).T.astype(np.float64))
        rows = max(1, _NUMBERS // len(self))
        block = np.ones((rows, table.shape[0]))
        room = np.empty((rows, len(self)))
        if device is None and current_device().kind == "cuda":  # other GPUs have no doubles
            device = current_device()
        on_device = None if device is None else _DeviceSearch(table, reach, device)
        for start in range(0, len(points), rows):
            part = points[start : start + rows].astype(np.float64)
            there = np.isfinite(part).all(axis=1)
            count = int(there.sum())
            block[:count, :-1] = on_grid(part[there], origin=self.origin, step=self.step)
            if on_device is not None:
                found[start : start + rows][there] = on_device.nearest(block[:count])
                continue
            gaps = np.matmul(block[:count], table, out=room[:count])
            found[start : start + rows][there] = _smallest(gaps, reach)
        return found


class _DeviceSearch:
    """The same search by torch, on a GPU: whole numbers in doubles, so the same cells."""

    def __init__(self, table: NDArray[np.float64], reach: int, device: Device) -> None:
        import torch

        self.torch, self.place, self.reach = torch, device.torch(), reach
        self.table = torch.from_numpy(table).to(self.place)
        self.columns = torch.arange(table.shape[1], device=self.place)
        # Odd numbers of the largest size: their sum has all the bits that a distance may have.
        width, largest = len(table), (_most(len(table) - 1) - 1) | 1
        tried = torch.full((64, width), float(largest), dtype=torch.float64, device=self.place)
        if not bool((tried @ tried.T == width * largest**2).all()):
            raise InvalidInput(f"{device} rounds sums of doubles; let records vote on cpu")

    def nearest(self, block: NDArray[np.float64]) -> IntArray:
        gaps = self.torch.from_numpy(block).to(self.place) @ self.table
        if self.reach == 1:  # of equally near cells the first, which argmin does not promise
            least = gaps.amin(dim=1, keepdim=True)
            far = self.columns.new_tensor(len(self.columns))
            found = self.torch.where(gaps == least, self.columns, far).amin(dim=1, keepdim=True)
        else:
            found = self.torch.sort(gaps, dim=1, stable=True).indices[:, : self.reach]
        cells: IntArray = found.cpu().numpy().astype(np.int64)
        return cells


def make_cells(features: ArrayLike, *, cells: int | None = None, seed: int = 0) -> Cells:
    """Return the cells of public inputs: each input, or the clusters of a k-means.

    Parameters
    ----------
    features : array-like, (inputs, …)
        PUBLIC inputs, as the encoder makes them.
    cells : int, optional
        The number of clusters; every input is a cell of its own if it is left out.
    seed : int
        The seed of the k-means; public.

    Returns
    -------
    Cells
        The cells, and the cell of each input. PUBLIC.
    """
    points, origin, step = grid_of(features)
    members = np.arange(len(points), dtype=np.int64)
    if cells is not None:
        if cells > len(points):
            raise InvalidInput(
                f"votes.cells is {cells}, and there are {len(points)} public inputs; lower it, or "
                "leave it out"
            )
        points, members = _clusters(points, cells, seed)
    return Cells(
        centres=on_grid(points, origin=origin, step=step).astype(np.int64),
        origin=origin,
        step=step,
        members=members,
    )


def require_exact(centres: IntArray, *, step: float) -> None:
    """Refuse centres from which some distance is not exact."""
    if 2 * int(np.abs(centres).max(initial=0)) > _most(centres.shape[1]) or not step > 0:
        raise InvalidInput("the cells do not lie on a grid on which distances are exact")


def grid_of(features: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return public inputs as rows, and the origin and the step of the grid that they decide on."""
    points = np.asarray(features, dtype=np.float64)
    points = points.reshape(len(points), -1)
    if not len(points) or not points.shape[1] or not np.isfinite(points).all():
        raise InvalidInput(
            "record votes need public inputs of finite features; fill missing values in by the "
            'encoder step "impute"'
        )
    origin = points.mean(axis=0)
    widest = float(np.abs(points - origin).max())
    return points, origin, _HEADROOM * widest / _most(points.shape[1]) if widest > 0 else 1.0


def on_grid(
    points: NDArray[np.float64], *, origin: NDArray[np.float64], step: float
) -> NDArray[np.float64]:
    """Return finite points as whole numbers of steps from the origin, at most Q of them."""
    most = _most(points.shape[1])
    with np.errstate(over="ignore"):  # an overflow lies beyond the edge like any far point
        return np.clip(np.rint((points - origin) / step), -most, most)


def count_votes(
    cells: IntArray, labels: ArrayLike, *, classes: int, table: tuple[int, int] | None = None
) -> IntArray:
    """Return how many units fell on each cell and class.

    Parameters
    ----------
    cells : ndarray of int64
        The cells of each record, (records, reach), by :meth:`Cells.nearest`.
    labels : array-like of int, (records,)
        A label outside 0 … classes − 1 casts no vote.
    classes : int
        The number of classes. It is public, and never read off the labels.
    table : (int, int), optional
        The shape of the table; its number of cells is the largest one's if left out.

    >>> count_votes(np.array([[0], [2], [2], [-1]]), [1, 0, 7, 1], classes=2).tolist()
    [[0, 1], [0, 0], [1, 0]]
    """
    given = np.asarray(labels)
    if given.shape != cells.shape[:1]:
        raise InvalidInput(f"cells {cells.shape} and labels {given.shape} do not match")
    shape = table or (int(cells.max(initial=0)) + 1, classes)
    valid = (given >= 0) & (given < classes) & (cells >= 0).all(axis=1)
    places = (cells[valid] * classes + given[valid, None].astype(np.int64)).ravel()
    return np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape).astype(np.int64)


def count_along(coordinates: IntArray, labels: ArrayLike, *, classes: int) -> IntArray:
    """Return the sum of the coordinates of the records of each class, (components, classes).

    >>> count_along(np.array([[3, -1], [5, 0], [2, 2]]), [1, 7, 1], classes=2).tolist()
    [[0, 5], [0, 1]]
    """
    given = np.asarray(labels)
    if given.shape != coordinates.shape[:1]:
        raise InvalidInput(f"records {coordinates.shape} and labels {given.shape} do not match")
    if given.size and given.dtype.kind not in "iu":
        raise InvalidInput(f"labels have type {given.dtype}; they must be whole numbers")
    return np.stack([coordinates[given == each].sum(axis=0) for each in range(classes)], axis=1)


def capped(order: Sequence[str] | NDArray[Any], groups: Sequence[str], most: int) -> IntArray:
    """Return the places of records that vote: of each group the ``most`` first by ``order``.

    ``order`` is a value of each record that no other record influences, such as a keyed hash of
    its id. A group's choice is a function of that group alone.

    >>> capped(["c", "a", "b", "d"], ["x", "x", "x", "y"], 2).tolist()
    [1, 2, 3]
    """
    seen: dict[str, int] = {}
    kept = []
    for place in np.lexsort((np.arange(len(groups)), np.asarray(order))).tolist():
        seen[groups[place]] = seen.get(groups[place], 0) + 1
        if seen[groups[place]] <= most:
            kept.append(place)
    return np.array(sorted(kept), dtype=np.int64)


def group_names(groups: Any, records: int) -> list[str]:
    """Return the owners' names, each by its own value: 1 and 1.0 are one owner.

    Guarantees:
        A name is a function of its entry alone, and numbers that differ have different names:
        neither the type of another entry nor a rounding makes two owners of one, or one of two.

    >>> group_names([1, 1.0, "ann", 2**60, 2**60 + 1], 5)
    ['1', '1', 'ann', '1152921504606846976', '1152921504606846977']
    """
    owners = groups.tolist() if hasattr(groups, "tolist") else list(groups)
    if len(owners) != records or any(isinstance(each, list) for each in owners):
        raise InvalidInput(
            f"groups hold {len(owners)} entries for {records} records; give one for each record"
        )
    if any(_is_missing(each) for each in owners):
        raise InvalidInput("groups have missing values; give each record its owner")
    return list(map(_owner, owners))


def _require_one_type(groups: Any) -> None:
    """Refuse a name that is a number here and a text there: one user's cap may be another's."""
    numbers, texts = set[str](), set[str]()
    for each in groups:
        (texts if isinstance(each, str) else numbers).add(_owner(each))
    if numbers & texts:
        raise InvalidInput(
            "groups hold one name both as a number and as a text, so whose records these are is "
            "not known; read the column as text, such as by read_csv(…, dtype={'user': str})"
        )


def _is_missing(owner: Any) -> bool:
    try:
        return owner is None or bool(owner != owner)
    except TypeError:  # pandas.NA compares to nothing
        return True


def _owner(value: Any) -> str:
    if isinstance(value, (int, np.integer, np.bool_)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return str(int(value)) if value.is_integer() else repr(float(value))
    return str(value)


def count_record_votes(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    cells: Counting,
    classes: int,
    reach: int = 1,
    groups: Any = None,
    per_user: int = 1,
    key: str = "pate",
    group: str | None = None,
) -> RecordVotes:
    """Return the votes of private records in every cell. PRIVATE.

    Parameters
    ----------
    features : array-like, (records, …)
        The private records, as the encoder makes them: each must be a function of its record.
    labels : array-like of int, (records,)
        Their labels; one outside 0 … classes − 1 casts no vote.
    cells : Cells or Components
        The public cells, by :func:`make_cells`, or the components to vote along, by
        :func:`pate.make_components`.
    classes : int
        The public number of classes.
    reach : int
        The number of nearest cells among which a record splits its vote.
    groups : array-like of str or numbers, optional
        The user of each record, none missing; then all records of one user are protected together.
    per_user : int
        The most records of a user that vote; others are left out by a keyed hash of their content.
    key : str
        The key of that hash; public.
    group : str, optional
        The name of the column that ``groups`` is; by default a Series' own
        (:class:`RecordVotes`).

    Returns
    -------
    RecordVotes
        The counts, in units of 1/reach vote, or of 1/4096 along components.

    >>> cells = make_cells([[0.0], [1.0], [5.0]])
    >>> count_record_votes([[0.1], [4.0], [4.5]], [1, 0, 0], cells=cells, classes=2).counts.tolist()
    [[0, 1], [0, 0], [2, 0]]
    """
    # Doubles and 64 bits for all: one record's fraction must not decide how others are stored.
    points, given = np.asarray(features).astype("<f8"), np.asarray(labels)
    if points.ndim < 1 or given.ndim != 1 or len(points) != len(given):
        raise InvalidInput(f"records {points.shape} and labels {given.shape} do not match")
    if given.dtype.kind not in "iu":
        raise InvalidInput(f"labels have type {given.dtype}; they must be whole numbers")
    given = given.astype("<i8")  # one beyond 2⁶³ becomes negative, and casts no vote either
    if groups is not None:
        check_whole("per_user", per_user, least=1)
        owners = group_names(groups, len(given))
        _require_one_type(groups)
        kept = capped(_content_order(points, given, key), owners, per_user)
        points, given = points[kept], given[kept]
    return RecordVotes(
        counts=cells.count(points, given, classes=classes, reach=reach),
        reach=reach,
        components=cells.along_components,
        per_user=None if groups is None else per_user,
        group=group or column_name(groups),
    )


def column_name(groups: Any) -> str | None:
    """Return the name of the column that groups are, if they are a pandas Series with a name."""
    name = getattr(groups, "name", None)
    return None if name is None else str(name)


def unnamed_group(release: str) -> str:
    """Return a name for the column of users of a release, where nobody named it.

    No two releases share it: the users of one may be patients, and those of the other wards.
    """
    return f"users of {release}"


def _content_order(points: NDArray[np.float64], labels: NDArray[np.int64], key: str) -> list[str]:
    secret = hashlib.sha256(key.encode()).digest()
    return [
        hashlib.blake2b(row.tobytes() + label.tobytes(), key=secret).hexdigest()
        for row, label in zip(points, labels, strict=True)
    ]


def _most(features: int) -> int:
    """Return Q: the largest whole number of a grid on which distances are exact.

    >>> 3 * 100 * _most(100) ** 2 < 2**53
    True
    """
    return min(_FINEST, math.isqrt(_LARGEST // features))


def _smallest(gaps: NDArray[np.float64], reach: int) -> IntArray:
    """Return the places of the smallest numbers of each row; of equal ones the first."""
    if reach == 1:
        return np.asarray(np.argmin(gaps, axis=1, keepdims=True), dtype=np.int64)
    # The last of the nearest among some cells is a bound: few lie below it, and these are sorted.
    some = gaps[:, :: max(1, gaps.shape[1] // max(reach, math.isqrt(2 * reach * gaps.shape[1])))]
    near = gaps <= np.partition(some, reach - 1, axis=1)[:, reach - 1 : reach]
    found = np.empty((len(gaps), reach), dtype=np.int64)
    for row in range(len(gaps)):
        places = np.flatnonzero(near[row])
        found[row] = places[np.argsort(gaps[row, places], kind="stable")[:reach]]
    return found


def _clusters(
    points: NDArray[np.float64], count: int, seed: int
) -> tuple[NDArray[np.float64], IntArray]:
    from sklearn.cluster import KMeans

    made = KMeans(n_clusters=count, n_init=1, random_state=seed).fit(points)
    return made.cluster_centers_, made.labels_.astype(np.int64)
