"""Facts for the owner of the data alone: raw votes in sum, the data-dependent ε, the reference.

Nothing here is ever on the public page. The page that shows it is stamped on every sheet, and its
file can be read by its owner only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.accounting import Conversion
from pate.artifacts.results import Costs, Labels, PrivateCosts, load_reference
from pate.mechanisms import voting_mechanism
from pate.metrics import Share
from pate.pipeline.runner import PipelineRun
from pate.report.curves import shown_queries
from pate.report.facts import Cost

_BINS = 20
_POINTS = 30  # a prefix of the votes is costed for each


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateFacts:
    """The content of the private panels. All of it is PRIVATE."""

    dependent: Cost | None  # worked out from the votes; None of settings chosen privately
    dependent_queries: tuple[int, ...]
    dependent_curve: tuple[float, ...]  # empty for an interactive release
    reading: Cost  # of what was answered; not fixed in advance, so no guarantee
    winners: tuple[int, ...]  # queries by the share of teachers that voted for the winner
    reference: Share | None  # the student's model on the private labels themselves
    shards: Mapping[str, int]


def gather_private(run: PipelineRun) -> PrivateFacts:
    """Return the private facts of a run, for the owner of the data."""
    recipe = run.recipe
    if recipe.by_records:
        return _of_records(run)
    conversion = Conversion(recipe.privacy.conversion)
    found = PrivateCosts.load(run.artifact("account-private")).guarantees.get(conversion.value)
    dependent = None if found is None else Cost.of(found.as_json())
    costs = Costs.load(run.artifact("account"))
    counts, answered, teachers = _votes(run)
    fixed = None
    if dependent is not None and recipe.aggregate.cost_follows_answers:
        assert dependent.moment is not None  # it has the λ it was computed at
        fixed = [dependent.moment]
    # The cost of one try is not that of a choice among several: then there is no curve either.
    steps = shown_queries(len(counts), _POINTS) if len(counts) and dependent is not None else ()
    mechanism = voting_mechanism(recipe.aggregate)
    totals = [
        mechanism.data_dependent_cost(counts[:n], moments=fixed, answered=answered[:n])
        for n in steps
        if not mechanism.uses_student  # its cost depends on the students of its rounds
    ]
    reference = None
    if recipe.evaluate.reference and run.find("evaluate-reference"):
        reference = load_reference(run.artifact("evaluate-reference"))
    return PrivateFacts(
        dependent=dependent,
        dependent_queries=steps,
        dependent_curve=tuple(
            total.guarantee(delta=recipe.privacy.delta, conversion=conversion).epsilon
            for total in totals
        ),
        reading=Cost.of(costs.odometer[conversion.value].as_json()),
        winners=_winners(counts, teachers),
        reference=reference,
        shards=run.artifact("partition").json("report.json"),
    )


def _of_records(run: PipelineRun) -> PrivateFacts:
    """Return what there is of record votes: their cost is the same for all data."""
    costs, conversion = Costs.load(run.artifact("account")), run.recipe.privacy.conversion
    asked = run.recipe.evaluate.reference and run.find("evaluate-reference") is not None
    return PrivateFacts(
        dependent=None,
        dependent_queries=(),
        dependent_curve=(),
        reading=Cost.of(costs.odometer[conversion].as_json()),
        winners=(),
        reference=load_reference(run.artifact("evaluate-reference")) if asked else None,
        shards=run.artifact("partition").json("report.json"),
    )


def _votes(run: PipelineRun) -> tuple[NDArray[np.int64], NDArray[np.bool_], int]:
    """Return the counts of the queries asked, in order, which were answered, and the teachers."""
    votes, released = run.artifact("vote"), Labels.load(run.artifact("aggregate"))
    counts = votes.array("counts.npy")[np.array(released.asked)].astype(np.int64)
    return counts, np.isin(released.asked, released.answered), int(votes.facts["teachers"])


def _winners(counts: NDArray[np.int64], teachers: int) -> tuple[int, ...]:
    """Count the queries whose winner had 0 … 5 %, 5 … 10 % … of the teachers.

    >>> _winners(np.array([[9, 1], [10, 0], [5, 5]]), 10)[-3:]
    (0, 1, 1)
    """
    bins = np.minimum(counts.max(axis=1, initial=0) * _BINS // teachers, _BINS - 1)
    return tuple(np.bincount(bins, minlength=_BINS).tolist())
