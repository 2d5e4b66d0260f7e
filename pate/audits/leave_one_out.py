"""Exact leave-one-out: how much the released labels depend on each single record. PRIVATE.

A record reaches one teacher. To leave it out is to fit that teacher again without it, and what
changes are votes of that one teacher: the distributions of the noisy answers with and without the
record are known exactly, and so is the Rényi divergence between them, query by query. Where no vote
changes the record's realised ε is zero, and nothing has to be computed.

Where records vote themselves, one record adds a unit to a few counts of a table, and the noise does
not depend on the counts: the realised ε is the same for every record that votes.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from pate._files import write_atomically
from pate.accounting import Conversion
from pate.accounting.exact_divergence import renyi_divergences
from pate.accounting.moments import DEFAULT_MOMENTS, epsilon_at
from pate.audits.findings import LABELS, Finding, FloatArray
from pate.engines.progress import Progress, Silence
from pate.errors import InvalidInput
from pate.mechanisms import CountMechanism, GaussianCounts, Mechanism
from pate.record_votes import GRID
from pate.teachers.protocol import Teacher, group_families, predict_many_labels, train_many

IntArray = NDArray[np.int64]
Shard = tuple[NDArray[Any], NDArray[Any]]
Chances = tuple[FloatArray, FloatArray]  # of outcomes with and without a record, (…, outcomes)

ABSTAINS = -1
_TOGETHER = 256  # teachers fitted at a time
_MOVES = 2048  # distributions held at a time
_SEARCHED = 3  # most exposed records whose exact ε is looked for
_BINS = 1 << 16  # of a grid of losses
_ROUNDING = 1e-11  # in δ, of chances multiplied up by Fourier transforms
_FINE = 1e-9  # relative to the largest loss, to which an ε is searched for
_SLACK = 1e-13  # relative to an ε, of sums in floats
_OF_LOSS = 1e-15  # of one loss, whose two logarithms are rounded; times one more than their size
_FAINT = np.finfo(np.float64).tiny
_ORDERS = DEFAULT_MOMENTS + 1
_OF_SIGMA = 1000.0  # parts of a standard deviation, in which a shift along components is looked at
_ATTACK = "leave-one-out, exact"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exposure:
    """The realised ε of single records, or of users. PRIVATE.

    Parameters
    ----------
    epsilons : ndarray of float64
        The realised ε at ``delta`` of each, by the exact Rényi divergences; zero where leaving it
        out changes nothing.
    changed : ndarray of int64
        The number of queries on which a vote changes without it; of counts, where records vote.
    delta : float
        The δ of every ε.
    shown : float
        The largest ε at ``delta`` that the distributions with and without one of them show: no
        valid guarantee at this δ is smaller.

    Guarantees:
        Rényi divergences of independent answers add up (van Erven & Harremoës 2014, Theorem 28);
        ``epsilons`` convert their sum (Canonne, Kamath & Steinke 2020, Proposition 12), or are the
        largest privacy loss if that is less. ``shown`` is a hockey-stick divergence with every loss
        rounded down, so it is never above the truth. Both are of one data set and its neighbours
        without one record: what other data sets would show is not looked at.
    """

    epsilons: FloatArray
    changed: IntArray
    delta: float
    shown: float

    @property
    def order(self) -> IntArray:
        """The places of all, the most exposed first."""
        return np.lexsort((-self.changed, -self.epsilons)).astype(np.int64)

    def finding(self, *, target: str = LABELS, note: str = "") -> Finding:
        """Return the result as a finding."""
        found = self.epsilons
        return Finding(
            attack=_ATTACK,
            target=target,
            knowledge="all other records, all settings and the noise's distribution",
            source="this package",
            epsilon=self.shown,
            delta=self.delta,
            values={
                "records": float(len(found)),
                "records that change a vote": float((self.changed > 0).sum()),
                "largest realised ε": float(found.max(initial=0.0)),
                "mean realised ε": float(found.mean()) if len(found) else 0.0,
                "median realised ε": float(np.median(found)) if len(found) else 0.0,
            },
            note=note,
        )


# --- votes of teachers --------------------------------------------------------------------------


def teacher_exposure(
    shards: Sequence[Shard],
    queries: ArrayLike,
    *,
    make: Callable[[int], Teacher],
    votes: ArrayLike,
    mechanism: Mechanism,
    delta: float,
    seeds: Sequence[int] | None = None,
    left_out: Mapping[int, Sequence[ArrayLike]] | None = None,
    always_asked: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Exposure:
    """Return the realised ε of records behind the votes of teachers. PRIVATE.

    Parameters
    ----------
    shards : sequence of (records, labels)
        The records of each teacher, and their labels.
    queries : array-like
        The public inputs that were asked about, as teachers see them.
    make : callable
        Returns an untrained teacher by its number, seeded as it was.
    votes : array-like of int, (queries, classes)
        The votes of all teachers on the queries.
    mechanism : Mechanism
        The mechanism that answered, such as :class:`pate.GaussianNoisyMax`.
    delta : float
        The δ at which ε is stated; zero for the largest privacy loss.
    seeds : sequence of int, optional
        The seed of each teacher, for models that draw from process-wide generators.
    left_out : mapping of int to sequence of array-like, optional
        By the number of a teacher, the places in its shard to leave out together: one for a
        record, several for a user. By default every single record.
    always_asked : int, optional
        How many of the queries, from the first on, are asked whatever is answered: ``shown`` is of
        these alone. By default all of them.
    folder : path, optional
        Keeps the votes that change, shard by shard, so that an interrupted audit resumes. What is
        in it must be of the same arguments.
    progress : Progress, optional
        Advanced by the number of records.

    Returns
    -------
    Exposure
        In the order of the teachers' numbers, and of ``left_out`` within each.

    Raises
    ------
    ConditionsFail
        If the mechanism's chances are not known, as where earlier answers decide what is asked.

    Examples
    --------
    >>> from pate.mechanisms import GaussianNoisyMax
    >>> from pate.teachers.linear import RidgeTeacher
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(40, 3)), rng.integers(0, 2, size=40)
    >>> shards = [(X[n::8], y[n::8]) for n in range(8)]
    >>> inputs = rng.normal(size=(20, 3))
    >>> labels = [RidgeTeacher(classes=2).fit(*shard).predict(inputs) for shard in shards]
    >>> found = teacher_exposure(
    ...     shards, inputs, make=lambda number: RidgeTeacher(classes=2), delta=1e-5,
    ...     votes=np.stack([np.bincount(each, minlength=2) for each in np.transpose(labels)]),
    ...     mechanism=GaussianNoisyMax(sigma=4.0),
    ... )
    >>> len(found.epsilons), bool((found.epsilons[found.changed == 0] == 0).all())
    (40, True)
    """
    counts, inputs = np.asarray(votes, dtype=np.int64), np.asarray(queries)
    if counts.ndim != 2 or len(counts) != len(inputs):
        raise InvalidInput(f"votes {counts.shape} do not match {len(inputs)} queries")
    shown = progress or Silence()
    if left_out is None:
        left_out = {
            number: [[place] for place in range(len(y))] for number, (_, y) in enumerate(shards)
        }
    changes, units = [], 0
    for number, parts in sorted(left_out.items()):
        chosen = [np.atleast_1d(np.asarray(part, dtype=np.int64)) for part in parts]
        found = _kept(folder, number, len(chosen))
        if found is None:
            found = _changed_votes(
                shards[number],
                inputs,
                chosen,
                make=functools.partial(make, number),
                seed=0 if seeds is None else seeds[number],
                classes=counts.shape[1],
            )
            _keep(folder, number, len(chosen), found)
        changes.append(np.column_stack([found[:, 0] + units, found[:, 1:]]))
        units += len(chosen)
        shown.advance(len(chosen))
    table = np.concatenate([np.empty((0, 4), dtype=np.int64), *changes])
    return _exposure(
        table,
        units=units,
        counts=counts,
        mechanism=mechanism,
        delta=delta,
        always_asked=len(counts) if always_asked is None else always_asked,
    )


def _changed_votes(
    shard: Shard,
    inputs: NDArray[Any],
    left_out: Sequence[IntArray],
    *,
    make: Callable[[], Teacher],
    seed: int,
    classes: int,
) -> IntArray:
    """Return (unit, query, vote with it, vote without it) of all votes that change.

    The whole shard is fitted beside its parts, so that both are rounded alike.
    """
    records, labels = shard
    found = []
    for start in range(0, len(left_out), _TOGETHER):
        parts = left_out[start : start + _TOGETHER]
        kept = [np.arange(len(labels)), *(np.delete(np.arange(len(labels)), p) for p in parts)]
        parted = [(records[rows], labels[rows]) for rows in kept]
        teachers = [make() if len(rows) else None for rows in kept]
        # One seed for all: the teacher's own randomness is the same with and without a record.
        same = [seed] * len(kept)
        cast = cast_votes(teachers, parted, inputs, seeds=same, classes=classes)
        unit, query = np.nonzero(cast[1:] != cast[0])
        before, after = cast[0, query], cast[unit + 1, query]
        found.append(np.stack([unit + start, query, before, after], axis=1))
    return np.concatenate([np.empty((0, 4), dtype=np.int64), *found]).astype(np.int64)


def cast_votes(
    teachers: Sequence[Teacher | None],
    shards: Sequence[Shard],
    inputs: NDArray[Any],
    *,
    seeds: Sequence[int],
    classes: int,
) -> IntArray:
    """Train teachers and return their votes on all inputs, (teachers, inputs).

    As in a run, a missing teacher and one that cannot be trained cast no vote: −1.
    """
    votes = np.full((len(shards), len(inputs)), ABSTAINS, dtype=np.int64)
    for places in group_families(teachers):
        family = [teachers[place] for place in places]
        own = [seeds[place] for place in places]
        failed = train_many(family, [shards[place] for place in places], seeds=own)
        trained = [None if why else each for each, why in zip(family, failed, strict=True)]
        answers = predict_many_labels(trained, inputs, classes=classes, seeds=own)
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, np.ndarray):
                votes[place] = answer
    return votes


def _kept(folder: Path | None, number: int, units: int) -> IntArray | None:
    file = None if folder is None else folder / f"shard-{number}.npy"
    if file is None or not file.is_file():
        return None
    table: IntArray = np.load(file, allow_pickle=False)
    return table[1:] if len(table) and table[0, 0] == units else None


def _keep(folder: Path | None, number: int, units: int, changes: IntArray) -> None:
    """Write the changes of a shard after a first row with the number of its units."""
    if folder is not None:
        stream = io.BytesIO()
        np.save(stream, np.concatenate([[[units, 0, 0, 0]], changes]), allow_pickle=False)
        write_atomically(folder / f"shard-{number}.npy", stream.getvalue(), make_parents=True)


def _exposure(
    changes: IntArray,
    *,
    units: int,
    counts: IntArray,
    mechanism: Mechanism,
    delta: float,
    always_asked: int,
) -> Exposure:
    """Add up the divergences of changed votes; equal moves of equal queries are computed once."""
    moves, inverse = np.unique(changes[:, 1:], axis=0, return_inverse=True)
    uses = sparse.csr_array(
        (np.ones(len(changes)), (changes[:, 0], inverse.ravel())), shape=(units, len(moves))
    )
    total = _Total.zero(units)
    for start in range(0, len(moves), _MOVES):
        chances = _chances(moves[start : start + _MOVES], counts, mechanism)
        total = total.plus(chances, uses[:, start : start + _MOVES])
    epsilons = total.epsilons(delta)
    changed = np.bincount(changes[:, 0], minlength=units)
    shown = [0.0]
    for unit in np.argsort(-epsilons, kind="stable")[:_SEARCHED]:
        mine = changes[(changes[:, 0] == unit) & (changes[:, 1] < always_asked), 1:]
        if len(mine):
            pairs = list(zip(*_chances(mine, counts, mechanism), strict=True))
            shown.append(shown_epsilon(pairs, delta=delta))
    return Exposure(epsilons=epsilons, changed=changed, delta=delta, shown=max(shown))


def _chances(moves: IntArray, counts: IntArray, mechanism: Mechanism) -> Chances:
    query, before, after = moves.T
    return mechanism.neighbour_chances(counts[query], before, after)


# --- votes of records ---------------------------------------------------------------------------


def record_exposure(
    cells: ArrayLike,
    labels: ArrayLike,
    *,
    mechanism: CountMechanism,
    delta: float,
    classes: int,
    groups: ArrayLike | None = None,
) -> Exposure:
    """Return the realised ε of records that vote themselves. PRIVATE.

    Parameters
    ----------
    cells : array-like of int, (records, reach)
        The cells at which each record votes, by :meth:`pate.record_votes.Cells.nearest`; −1 where
        it casts no vote.
    labels : array-like of int, (records,)
        Their labels; one outside 0 … classes − 1 casts no vote.
    mechanism : CountMechanism
        The mechanism that noised the table, such as :class:`pate.LaplaceCounts`.
    delta : float
        The δ at which ε is stated; zero for the largest privacy loss.
    classes : int
        The number of classes.
    groups : array-like, optional
        The user of each record, where users are protected: all that vote of one count together.

    Returns
    -------
    Exposure
        One value for each record, or for each user in the order of ``numpy.unique``.

    Examples
    --------
    >>> from pate.mechanisms import LaplaceCounts
    >>> noise = LaplaceCounts(scale=2.0)
    >>> record_exposure([[0], [3], [-1]], [1, 0, 0], mechanism=noise, delta=0, classes=2).epsilons
    array([0.5, 0.5, 0. ])
    """
    places, given = np.atleast_2d(np.asarray(cells, dtype=np.int64)), np.asarray(labels)
    reach = places.shape[1]
    owner = np.arange(len(given))
    if groups is not None:
        owner = np.unique(np.asarray(groups), return_inverse=True)[1]
    valid = (given >= 0) & (given < classes) & (places >= 0).all(axis=1)
    units = int(owner.max(initial=-1)) + 1
    counts = places[valid] * classes + given[valid, None]
    # (unit, count) with how many units fall on it: the shift of that count
    cast = np.stack([np.repeat(owner[valid], reach), counts.ravel()], axis=1)
    shifted, sizes = np.unique(cast, axis=0, return_counts=True)
    kinds = {
        size: mechanism.neighbour_chances(reach=reach, units=size) for size in set(sizes.tolist())
    }
    total = _Total.zero(units)
    for size, (here, there) in kinds.items():
        often = np.bincount(shifted[sizes == size, 0], minlength=units)
        total = total.plus((here[None], there[None]), sparse.csr_array(often[:, None]))
    epsilons = total.epsilons(delta)
    mine = shifted[:, 0] == (np.argmax(epsilons) if units else ABSTAINS)
    return Exposure(
        epsilons=epsilons,
        changed=np.bincount(shifted[:, 0], minlength=units),
        delta=delta,
        shown=shown_epsilon([kinds[size] for size in sizes[mine].tolist()], delta=delta),
    )


def component_exposure(
    coordinates: IntArray,
    labels: ArrayLike,
    *,
    mechanism: CountMechanism,
    delta: float,
    classes: int,
    groups: ArrayLike | None = None,
) -> Exposure:
    """Return the realised ε of records that vote along components. PRIVATE.

    Parameters
    ----------
    coordinates : ndarray of int, (records, components)
        The vote of each record, by :meth:`pate.components.Components.coordinates`.
    labels, mechanism, delta, classes, groups
        As for :func:`record_exposure`; ``delta`` is above zero.

    Returns
    -------
    Exposure
        One value for each record, or for each user in the order of ``numpy.unique``.

    Guarantees:
        A vector u of whole numbers shifts discrete Gaussian noise of variance σ² by a Rényi
        divergence of α|u|²/(2σ²) at most (Canonne, Kamath & Steinke 2020, Proposition 5), which is
        exact where α·u is whole.
    """
    given, records = np.asarray(labels), np.arange(len(coordinates))
    owner = records if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    units = int(owner.max(initial=-1)) + 1
    squares, changed = np.zeros(units), np.zeros(units, dtype=np.int64)
    owned = sparse.csr_array((np.ones(len(given)), (owner, records)), shape=(units, len(given)))
    for label in range(classes):  # the votes of a user for one class add up
        votes = owned @ np.where((given == label)[:, None], coordinates, 0)
        squares += (votes**2).sum(axis=1)
        changed += (votes != 0).sum(axis=1)
    variance = mechanism.variance(reach=1, grid=GRID)
    table, most = squares[:, None] * _ORDERS / (2 * variance), np.where(squares > 0, np.inf, 0.0)
    total = _Total(forward=table, reverse=table, most_forward=most, most_reverse=most)
    # The worst as a shift of one count, rounded down: a Gaussian looks the same in all directions.
    shift = int(_OF_SIGMA * math.sqrt(squares.max(initial=0.0) / variance))
    noise = GaussianCounts(sigma=_OF_SIGMA)
    pairs = [noise.neighbour_chances(reach=1, units=shift)] if shift else []
    return Exposure(
        epsilons=total.epsilons(delta),
        changed=changed,
        delta=delta,
        shown=shown_epsilon(pairs, delta=delta),
    )


# --- divergences and their ε --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Total:
    """Divergences of all outcomes together, in both directions, (units, orders) and (units,)."""

    forward: FloatArray
    reverse: FloatArray
    most_forward: FloatArray  # the largest privacy loss: order ∞
    most_reverse: FloatArray

    @classmethod
    def zero(cls, units: int) -> _Total:
        tables = {name: np.zeros((units, len(_ORDERS))) for name in ("forward", "reverse")}
        return cls(**tables, most_forward=np.zeros(units), most_reverse=np.zeros(units))

    def plus(self, chances: Chances, uses: Any) -> _Total:
        """Add what independent outcomes contribute, each as often as ``uses`` (units, outcomes)."""
        here, there = chances
        forward, reverse = renyi_divergences(here, there, _ORDERS)
        losses = _losses(here, there)
        return _Total(
            forward=self.forward + uses @ forward,
            reverse=self.reverse + uses @ reverse,
            most_forward=self.most_forward + uses @ losses.max(axis=-1),
            most_reverse=self.most_reverse + uses @ (-losses).max(axis=-1),
        )

    def epsilons(self, delta: float) -> FloatArray:
        """Return the ε at δ of every unit, the larger of both directions."""
        found = []
        directions = ((self.forward, self.most_forward), (self.reverse, self.most_reverse))
        for table, most in directions:
            if delta > 0:
                moments = _ORDERS - 1
                by_order = epsilon_at(
                    moments, table * moments, delta=delta, conversion=Conversion.IMPROVED
                )
                most = np.minimum(most, by_order.min(axis=1, initial=np.inf))
            found.append(most)
        return np.maximum(*found)


def shown_epsilon(pairs: Sequence[Chances], *, delta: float) -> float:
    """Return an ε that is needed at δ to cover independent outcomes with and without a record.

    Parameters
    ----------
    pairs : sequence of (ndarray, ndarray)
        The chances of each outcome with and without the record.
    delta : float
        The δ; zero for the largest privacy loss.

    Guarantees:
        (ε, δ)-DP bounds the hockey-stick divergence E[(1 − e^{ε − loss})₊] by δ in both directions
        (Balle & Wang 2018, Theorem 5). It grows with the losses, which are rounded down to a grid
        here, and δ is raised by what sums in floats may be off: the ε returned is never above the
        exact one.

    >>> round(shown_epsilon([(np.array([0.75, 0.25]), np.array([0.25, 0.75]))], delta=0.0), 4)
    1.0986
    """
    if not pairs:
        return 0.0
    found = (_hockey_stick(pairs, delta), _hockey_stick([(q, p) for p, q in pairs], delta))
    size = sum(1.0 + float(np.abs(np.log(np.clip(each, _FAINT, 1.0))).max()) for each in pairs)
    return max(0.0, max(found) * (1 - _SLACK) - _OF_LOSS * size)


def _hockey_stick(pairs: Sequence[Chances], delta: float) -> float:
    losses = [_losses(p, q) for p, q in pairs]
    highest, lowest = (float(sum(f(each) for each in losses)) for f in (np.max, np.min))
    if delta == 0 or highest <= 0:
        return max(highest, 0.0)
    width = (highest - lowest) / _BINS
    places = [np.floor((each - each.min()) / width).astype(np.int64) for each in losses]
    size = int(sum(each.max() for each in places)) + 1
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for (p, _), place in zip(pairs, places, strict=True):
        spectrum *= np.fft.rfft(np.bincount(place, weights=p, minlength=size), n=size)
    chances = np.fft.irfft(spectrum, n=size)
    grid = lowest + width * np.arange(size)

    def exceeds(epsilon: float) -> bool:
        above = grid > epsilon
        return bool(chances[above] @ -np.expm1(epsilon - grid[above]) > delta + _ROUNDING)

    low, high = 0.0, highest
    if not exceeds(low):
        return 0.0
    while high - low > _FINE * highest:
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return low


def _losses(p: FloatArray, q: FloatArray) -> FloatArray:
    found: FloatArray = np.log(np.maximum(p, _FAINT)) - np.log(np.maximum(q, _FAINT))
    return found
