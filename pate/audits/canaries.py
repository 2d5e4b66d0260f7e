"""Canaries in a PATE run: records that are added for an audit, each in or out by a fair coin.

The whole pipeline runs once over the private records and the canaries that are in: shards,
teachers, votes and a mechanism, or record votes and a noised table. The auditor adds each canary's
own input to the public ones, so that something that is released concerns it. From what is released,
the attacker guesses every coin (Steinke, Nasr & Jagielski 2023).

A canary moves one of many votes, and noise hides one vote: such an audit shows a small ε where
everything is right, and a large one where votes are counted twice, noise is missing or shards
overlap. For record votes it is sharp: the noised count of a canary's own cell is all that the
guarantee lets anybody know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate._validate import check_choice, check_whole
from pate.accounting import compose
from pate.audits.findings import LABELS, TABLE, Finding
from pate.audits.statistics import OneRunBound, audit_one_run
from pate.components import Components
from pate.ensemble import train_teachers, vote
from pate.errors import InvalidInput
from pate.mechanisms import CountMechanism, Mechanism
from pate.randomness import Randomness
from pate.record_votes import count_record_votes, make_cells

IntArray = NDArray[np.int64]

KINDS = ("mislabelled", "noise", "blank")

_SOURCE = "Steinke, Nasr & Jagielski 2023"


def make_canaries(
    inputs: ArrayLike,
    labels: ArrayLike,
    *,
    count: int,
    classes: int,
    kind: str = "mislabelled",
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], IntArray]:
    """Return canaries that look like some records, or like none.

    Parameters
    ----------
    inputs, labels : array-like
        Records to make them from; those of people only if the canaries stay private.
    count : int
        The number of canaries.
    classes : int
        The number of classes.
    kind : {"mislabelled", "noise", "blank"}
        An input with a label that is not its own, once for each such label; features drawn at
        random between the least and the largest of the records; or inputs of one grey level each,
        all different.
    rng : numpy.random.Generator
        The source of the choice.

    Returns
    -------
    tuple of arrays
        Inputs and labels.

    >>> points, labels = np.eye(4).repeat(5, axis=0), np.arange(20) % 2
    >>> rng = np.random.default_rng(1)
    >>> canaries, wrong = make_canaries(points, labels, count=3, classes=2, rng=rng)
    >>> canaries.shape, wrong.tolist()
    ((3, 4), [0, 1, 1])
    """
    points, given = np.asarray(inputs, dtype=np.float64), np.asarray(labels)
    check_whole("count", count, least=1)
    check_choice("kind", kind, KINDS)
    if kind == "mislabelled":
        most = len(points) * (classes - 1)
        if count > most:
            raise InvalidInput(
                f"{count} mislabelled canaries need as many wrong labels, and {len(points)} "
                f"records of {classes} classes have {most}; use fewer"
            )
        order, turns = rng.permutation(len(points)), np.arange(count) // len(points)
        chosen = np.resize(order, count)
        first = rng.integers(1, classes, size=min(count, len(points)))
        away = 1 + (np.resize(first, count) - 1 + turns) % (classes - 1)
        return points[chosen], (given[chosen].astype(np.int64) + away) % classes
    lowest, highest = float(points.min()), float(points.max())
    shape = (count, *points.shape[1:])
    if kind == "noise":
        made = rng.uniform(lowest, highest, size=shape)
    else:
        levels = np.linspace(lowest, highest, count + 2)[1:-1]
        made = np.broadcast_to(levels.reshape(-1, *[1] * (points.ndim - 1)), shape).copy()
    return made, rng.integers(0, classes, size=count)


def audit_pate(
    inputs: ArrayLike,
    labels: ArrayLike,
    *,
    mechanism: Mechanism | CountMechanism,
    classes: int,
    delta: float,
    canaries: int = 200,
    kind: Literal["mislabelled", "noise", "blank"] = "mislabelled",
    copies: int = 1,
    public: ArrayLike | None = None,
    reach: int = 1,
    components: Components | None = None,
    pool: tuple[ArrayLike, ArrayLike] | None = None,
    model: Any = "ridge",
    teachers: int = 50,
    student: Callable[[NDArray[np.float64], IntArray], Any] | None = None,
    guesses: int | Sequence[int] | None = None,
    confidence: float = 0.95,
    insecure_seed: int | None = None,
) -> Finding:
    """Run PATE once with canaries among the records, and bound ε from what it releases.

    The run is one of its own, for the audit alone: it is not charged, and nothing of it may be
    released.

    Parameters
    ----------
    inputs, labels : array-like
        The private records, and their classes 0 … ``classes`` − 1.
    mechanism : Mechanism or CountMechanism
        The mechanism for votes of teachers, or for votes of records.
    classes : int
        The number of classes.
    delta : float
        δ of the bound.
    canaries : int, default=200
        The number of canaries; with teachers also the number of queries.
    kind : {"mislabelled", "noise", "blank"}
        The kind of canaries: :func:`make_canaries`.
    copies : int, default=1
        How often each canary that is in occurs. The bound is still for one record.
    public : array-like, optional
        For record votes: public inputs that are cells beside the canaries' own.
    reach : int, default=1
        The cells at which a record votes.
    components : Components, optional
        For record votes: the components along which records vote, in place of cells.
    pool : pair of array-like, optional
        Inputs and labels that canaries are made from, which are public; by default the private
        records.
    model, teachers
        The teachers' model and number: :func:`pate.train_teachers`.
    student : callable, optional
        Trains a model with ``predict_proba`` on the answered queries and their labels; the attacker
        then sees its confidences instead of the labels.
    guesses : int or sequence of int, optional
        Numbers of guesses, fixed before the run: :func:`~pate.audits.statistics.audit_one_run`.
    confidence : float, default=0.95
        The probability with which the bound holds.
    insecure_seed : int, optional
        Seeds everything, for tests.

    Returns
    -------
    Finding
        The bound; ``values`` holds the ε that the mechanism claims for the audited run.

    Guarantees:
        Coins are fair and independent, and scores depend on released labels (or counts, or the
        student made of labels) and on what the attacker knows, so
        :func:`~pate.audits.statistics.audit_one_run` holds.

    >>> rng = np.random.default_rng(0)
    >>> records, labels = rng.normal(size=(500, 3)), rng.integers(0, 2, 500)
    >>> from pate import LaplaceCounts
    >>> finding = audit_pate(records, labels, mechanism=LaplaceCounts(scale=0.5), classes=2,
    ...                      delta=1e-6, canaries=400, kind="noise", insecure_seed=0)
    >>> round(finding.epsilon, 1), round(finding.values["claimed ε"], 1)
    (1.6, 2.0)
    """
    points, given = np.asarray(inputs, dtype=np.float64), np.asarray(labels).astype(np.int64)
    check_whole("canaries", canaries, least=1)
    check_whole("copies", copies, least=1)
    rng = Randomness.open(insecure_seed=insecure_seed).generator
    looks, wrong = make_canaries(
        *(pool or (points, given)), count=canaries, classes=classes, kind=kind, rng=rng
    )
    coins = rng.random(canaries) < 0.5
    present = np.flatnonzero(coins).repeat(copies)
    records = np.concatenate([points, looks[present]])
    targets = np.concatenate([given, wrong[present]])

    def bound(scores: NDArray[np.float64], **more: Any) -> OneRunBound:
        fixed: dict[str, Any] = {"guesses": guesses, "copies": copies} | more
        return audit_one_run(scores, coins, delta=delta, confidence=confidence, **fixed)

    if isinstance(mechanism, CountMechanism):
        known: dict[str, Any] = {"cells": components, "classes": classes}
        if components is None:
            places = np.unique(looks, axis=0)
            cells = make_cells(places if public is None else np.concatenate([places, public]))
            known |= {"cells": cells, "reach": reach}
        noised = mechanism.release(count_record_votes(records, targets, **known), rng=rng)
        # In whole numbers, so that no rounding depends on how many records are in a cell.
        excess = noised.table.counts - count_record_votes(points, given, **known).counts
        if components is None:
            own = excess[cells.nearest(looks, reach=reach), wrong[:, None]]
            found = own.sum(axis=1) / noised.table.units - copies / 2
        else:
            votes = components.coordinates(looks)
            found = _presences(votes, wrong, excess, copies=copies, variance=noised.table.variance)
        # Laplace noise lets nobody know more than on which side of the middle a count lies.
        exact = {"threshold": 0.0} | ({"guesses": guesses or canaries} if mechanism.pure else {})
        shown = bound(found, **exact)
        events = noised.events
        target, knowledge = TABLE, "the noised table, and all other records"
    else:
        ensemble = train_teachers(
            model,
            records,
            targets,
            teachers=teachers,
            classes=np.arange(classes),
            random_state=insecure_seed,
        )
        answer = mechanism.release(vote(ensemble, looks), rng=rng)
        events = mechanism.caps(queries=canaries, answers=canaries)
        if student is None:
            scores = np.zeros(canaries)
            scores[answer.answered] = np.where(answer.labels == wrong[answer.answered], 1.0, -1.0)
            target, knowledge = LABELS, "released labels of the canaries' own inputs"
        else:
            scores = _confidences(student, looks, answer.answered, answer.labels, wrong)
            target, knowledge = "student", "the student's confidences in the canaries' labels"
        shown = bound(scores)
    return Finding(
        attack=f"canaries ({kind}{f', {copies} copies' if copies > 1 else ''})",
        target=target,
        knowledge=knowledge,
        source=_SOURCE,
        epsilon=shown.epsilon,
        delta=delta,
        confidence=confidence,
        firm_epsilon=shown.firm_epsilon,
        largest_possible=shown.largest_possible,
        values={
            "claimed ε": compose(events).guarantee(delta=delta).epsilon,
            "canaries": float(canaries),
            "guesses": float(shown.guesses),
            "right guesses": float(shown.right),
        },
        note="" if pool or kind != "mislabelled" else "Canaries are private inputs, mislabelled.",
        publishable=target == TABLE and pool is not None and insecure_seed is None,
    )


def _presences(
    votes: IntArray, labels: IntArray, excess: IntArray, *, copies: int, variance: float
) -> NDArray[np.float64]:
    """Return how much more than half of its copies of each canary are in the sums of its class.

    By least squares, with the variance of the noise as a ridge.
    """
    found = np.zeros(len(votes))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        some = votes[own].astype(np.float64)
        more = excess[:, label] - copies / 2 * some.sum(axis=0)
        found[own] = np.linalg.solve(some @ some.T + variance * np.eye(len(own)), some @ more)
    return found


def _confidences(
    student: Callable[[NDArray[np.float64], IntArray], Any],
    looks: NDArray[np.float64],
    answered: IntArray,
    labels: IntArray,
    wrong: IntArray,
) -> NDArray[np.float64]:
    """Return the student's confidence in each canary's label; 0 of a class it does not know."""
    if not len(answered):
        return np.zeros(len(looks))
    trained = student(looks[answered], labels)
    if not hasattr(trained, "predict_proba"):
        raise InvalidInput(
            f"the student is a {type(trained).__name__} without predict_proba; its confidences are "
            "what this attack reads: audit the released labels instead"
        )
    chances = np.asarray(trained.predict_proba(looks), dtype=np.float64)
    known = np.asarray(getattr(trained, "classes_", np.arange(chances.shape[1])))
    matches = known[None, :] == wrong[:, None]
    return np.asarray((chances * matches).sum(axis=1))
