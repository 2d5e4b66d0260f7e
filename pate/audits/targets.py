"""Models under membership attacks: of a run, or any other, and the records to attack them with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.audits.attributes import worst_attribute
from pate.audits.findings import Finding
from pate.audits.membership import (
    boundary_attack,
    lira_attack,
    rmia_attack,
    robustness_attack,
    shadow_attack,
    shift_images,
    threshold_attack,
)
from pate.audits.predictions import Labelled, Predict, gives_confidences
from pate.audits.shadow_models import Fit, FitMany, train_shadows

IntArray = NDArray[np.int64]

STUDENT, MODEL, REFERENCE = "student", "DP-SGD model", "model without privacy"

_MOST_JUDGED = 2000  # members, and others, in a membership attack
_MOST_COLUMNS = 100  # of a table whose attributes are guessed
_COPIES = 8  # noisy copies of each record, or halvings of a line, for attacks by labels
_NOISE = 0.5  # in standard deviations of a feature
_LINES = 2  # from each record towards others


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """A model under attack, and how to train others like it.

    Parameters
    ----------
    name : str
        Its name in findings.
    model : object or callable
        The model: an object with ``predict_proba``, or that function; or with ``predict`` alone.
    fit : callable or object with ``fit_many``, optional
        The training, for shadow models, of records, labels and a seed.
    by_rows : callable, optional
        Probabilities by the rows of a pool of records, where ``fit`` takes rows.
    shadows : int
        The number of shadow models.
    numeric : bool
        Whether noise may be added to its records: not to codes of categories.
    columns : mapping of int to str
        The names of the columns of a table by their places, which are attributes to be guessed.
    """

    name: str
    model: Any
    fit: Fit | FitMany | None = None
    by_rows: Predict | None = None
    shadows: int = 0
    numeric: bool = True
    columns: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Members, others and a population: records that are known to trainings by their rows."""

    records: NDArray[Any]
    labels: IntArray
    numbers: tuple[IntArray, IntArray, IntArray]

    @classmethod
    def drawn(cls, members: Labelled, others: Labelled, *, seed: int) -> Pool:
        """Return some of the private records, and of the test records; a third is a population."""
        rng = np.random.default_rng(seed)
        (X, y), (test, test_labels) = ((np.asarray(a), np.asarray(b)) for a, b in (members, others))
        inside = np.sort(rng.permutation(len(y))[:_MOST_JUDGED])
        drawn = rng.permutation(len(test_labels))
        third = len(drawn) // 3
        outside, more = drawn[third:][:_MOST_JUDGED], drawn[:third][:_MOST_JUDGED]
        ends = np.cumsum([0, len(inside), len(outside), len(more)]).tolist()
        first, second, last = (np.arange(a, b) for a, b in pairwise(ends))
        return cls(
            records=np.concatenate([X[inside], test[outside], test[more]]),
            labels=np.concatenate([y[inside], test_labels[outside], test_labels[more]]),
            numbers=(first, second, last),
        )

    def rows(self, part: int) -> Labelled:
        """Return the rows of members (0), others (1) or the population (2), with labels."""
        return self.numbers[part], self.labels[self.numbers[part]]

    def part(self, part: int) -> Labelled:
        """Return the records themselves, with labels."""
        return self.records[self.numbers[part]], self.labels[self.numbers[part]]


def attributes(
    columns: Sequence[Mapping[str, Any]] | None, records: NDArray[Any]
) -> dict[int, str]:
    """Return the columns of a table by their places, with names; none of images, or of many."""
    if records.ndim != 2 or records.shape[1] > _MOST_COLUMNS:
        return {}
    names = [each["name"] for each in columns or ()] or [None] * records.shape[1]
    return {place: name or f"column {place}" for place, name in enumerate(names)}


def attack_pool(target: Target, pool: Pool, *, seed: int) -> Iterator[Finding]:
    """Return the findings of all membership attacks on records of a pool."""
    by_rows = (pool.rows(0), pool.rows(1), pool.rows(2)) if target.by_rows is not None else None
    return attack_membership(
        target, pool.part(0), pool.part(1), population=pool.part(2), rows=by_rows, seed=seed
    )


def attack_membership(
    target: Target,
    members: Labelled,
    others: Labelled,
    *,
    population: Labelled | None = None,
    rows: tuple[Labelled, Labelled, Labelled | None] | None = None,
    seed: int = 0,
) -> Iterator[Finding]:
    """Make every membership attack that applies to a model. PRIVATE.

    Parameters
    ----------
    target : Target
        The model.
    members, others : pair of arrays
        Records it was and was not trained on, with labels.
    population : pair of arrays, optional
        Further records it was not trained on.
    rows : triple, optional
        The same three by their rows, where the target is trained by rows.
    seed : int
        Seeds shadow models and perturbations.
    """
    known: Any = {"members": members, "others": others, "target": target.name}
    ends = None if population is None else np.asarray(population[0])
    if gives_confidences(target.model):
        for score in ("loss", "confidence", "entropy"):
            yield threshold_attack(target.model, **known, score=score)
        worst = worst_attribute(target.model, **known, columns=target.columns)
        if worst is not None:
            yield worst
    if target.numeric and np.isfinite(np.asarray(members[0], dtype=np.float64)).all():
        change: Any = shift_images if np.ndim(members[0]) > 2 else _NOISE
        yield robustness_attack(target.model, **known, perturb=change, count=_COPIES, seed=seed)
        if ends is not None and len(ends):
            yield boundary_attack(
                target.model, **known, population=ends, neighbours=_LINES, steps=_COPIES
            )
    if not target.shadows or target.fit is None:
        return
    inside, outside, more = rows or (members, others, population)
    given: Any = {"members": inside, "others": outside, "target": target.name}
    ask: Any = target.by_rows or target.model
    trained = train_shadows(
        target.fit, inside, outside, population=more, count=target.shadows, seed=seed
    )
    yield shadow_attack(ask, **given, shadows=trained, seed=seed)
    yield lira_attack(ask, **given, shadows=trained)
    if more is not None and len(np.asarray(more[1])):
        yield rmia_attack(ask, **given, population=more, shadows=trained)
