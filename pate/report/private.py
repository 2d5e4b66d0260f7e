"""What only the owner of the data may see: raw votes in sum, the data-dependent ε, the reference.

Nothing here is ever on the public page. The page that shows it says so on every sheet, and its file
can be read by its owner only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting import Conversion
from pate.mechanisms import make_mechanism
from pate.metrics import Share
from pate.pipeline.runner import Run
from pate.report.curves import shown_queries
from pate.report.facts import Figure

_BINS = 20
_POINTS = 30  # a prefix of the votes is costed for each


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateFacts:
    """PRIVATE, all of it."""

    dependent: Figure | None  # worked out from the votes; None of settings chosen privately
    dependent_queries: tuple[int, ...]
    dependent_curve: tuple[float, ...]  # empty for an interactive release
    reading: Figure  # of what was answered; not fixed in advance, so no guarantee
    winners: tuple[int, ...]  # queries by the share of teachers that voted for the winner
    reference: Share | None  # the student's model on the private labels themselves
    shards: Mapping[str, int]


def gather_private(run: Run) -> PrivateFacts:
    """Opens what is PRIVATE, for the eyes of the data's owner."""
    recipe = run.recipe
    conversion = Conversion(recipe.privacy.conversion)
    figures = run.artifact("account-private").json("guarantees.json")
    dependent = None if recipe.selection is not None else _figure(figures[conversion.value])
    costs = run.artifact("account").json("guarantees.json")
    counts, answered, teachers = _votes(run)
    # One try's cost says nothing of a choice among several: then there is no curve either.
    follows = recipe.aggregate.cost_follows_answers
    fixed = [_set(dependent.moment)] if dependent is not None and follows else None
    steps = shown_queries(len(counts), _POINTS) if len(counts) and dependent is not None else ()
    mechanism = make_mechanism(recipe.aggregate)
    totals = [
        mechanism.data_dependent_cost(counts[:n], moments=fixed, answered=answered[:n])
        for n in steps
        if not mechanism.uses_student  # its cost hangs on the students of its rounds
    ]
    reference = None
    if recipe.evaluate.reference:
        found = run.artifact("evaluate-reference").json("evaluation.json")["reference"]
        reference = Share(**found)
    return PrivateFacts(
        dependent=dependent,
        dependent_queries=steps,
        dependent_curve=tuple(
            total.guarantee(delta=recipe.privacy.delta, conversion=conversion).epsilon
            for total in totals
        ),
        reading=_figure(costs["odometer"][conversion.value]),
        winners=_winners(counts, teachers),
        reference=reference,
        shards=run.artifact("partition").json("report.json"),
    )


def _votes(run: Run) -> tuple[NDArray[np.int64], NDArray[np.bool_], int]:
    """Counts of the queries that were asked, in that order, and which of them were answered."""
    votes, released = run.artifact("vote"), run.artifact("aggregate")
    asked = np.array(released.array("asked.npy"))
    counts = votes.array("counts.npy")[asked].astype(np.int64)
    return counts, np.isin(asked, released.array("answered.npy")), int(votes.facts["teachers"])


def _winners(counts: NDArray[np.int64], teachers: int) -> tuple[int, ...]:
    """How many queries had a winner with 0 … 5 %, 5 … 10 % … of the teachers.

    >>> _winners(np.array([[9, 1], [10, 0], [5, 5]]), 10)[-3:]
    (0, 1, 1)
    """
    bins = np.minimum(counts.max(axis=1, initial=0) * _BINS // teachers, _BINS - 1)
    return tuple(np.bincount(bins, minlength=_BINS).tolist())


def _figure(figure: Mapping[str, Any]) -> Figure:
    return Figure(**{key: figure[key] for key in ("epsilon", "delta", "moment", "conversion")})


def _set(value: float | None) -> float:
    assert value is not None  # a data-dependent figure has the λ it was read at
    return value
