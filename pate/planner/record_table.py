"""A table of record votes as a surrogate would fill it, and whether it labels better than teachers.

The surrogate's public inputs are the cells, and its records vote; as many to a cell as the private
data will have. The table gets the noise of the asked ε and is smoothed as in a run. The surrogate's
classes are public, so the share of right labels can be counted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pate.components import VotingPlaces, make_places
from pate.mechanisms import COUNT_MECHANISMS, AggregateSpec, Plan, count_mechanism, plan_table
from pate.planner.forecast import Budget, Forecast, useful_labels
from pate.planner.profile import Facts
from pate.planner.search import Wish
from pate.planner.surrogate import Surrogate
from pate.record_votes import RecordVotes, VotesSpec
from pate.students.count_smoothing import label_inputs

_TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)  # the asked ε, to show what more of it would buy
_DRAWS, _MANY = 3, 2000  # of noise, and the inputs from which on one draw is enough


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForecast:
    """A table of record votes and what to expect of it. The guarantee holds; all else is predicted.

    It labels all public inputs.
    """

    votes: VotesSpec
    spec: AggregateSpec
    plan: Plan
    label_accuracy: float  # of all labels, expected
    useful: float  # what the labels are worth, in labels without mistakes
    over_epsilon: Mapping[float, float]  # ε → share of right labels
    voted: int  # records of the surrogate that voted
    rows: int  # of the table: the cells, or components, that they voted at
    student_accuracy: float | None = None  # of a student of the labels, on the surrogate

    @property
    def answered(self) -> int:
        """The number of labels."""
        return self.plan.answers

    def as_json(self) -> dict[str, Any]:
        return {
            **self.spec.model_dump(mode="json", exclude_unset=True),
            **self.votes.model_dump(mode="json", exclude_defaults=True),
            "expected_answered": self.answered,
            "predicted_label_accuracy": self.label_accuracy,
            "useful_labels": self.useful,
            "guarantee": self.plan.guarantee.as_json(),
            "rehearsed_student_accuracy": self.student_accuracy,
            "over_epsilon": {f"{epsilon:g}": right for epsilon, right in self.over_epsilon.items()},
        }


def forecast_table(
    surrogate: Surrogate,
    *,
    facts: Facts,
    votes: VotesSpec,
    mechanism: str,
    budget: Budget,
    per_user: int | None = None,
    rehearse: bool = False,
) -> TableForecast:
    """Let a surrogate's records vote, and count the labels that are right.

    ``facts`` are those of the private data: where the surrogate has fewer public inputs, fewer
    records vote in proportion; where it has fewer records, they are counted several times.

    Guarantees:
        Reads the surrogate and public numbers; the guarantee is that of
        :func:`pate.mechanisms.plan_table`, whatever the votes will be.
    """
    rng = np.random.default_rng(0)  # the surrogate is public: this noise hides nothing
    inputs = min(facts.queries, len(surrogate.truth))
    rows = rng.permutation(len(surrogate.truth))[:inputs]
    features, truth = surrogate.inputs[rows].reshape(inputs, -1), surrogate.truth[rows]
    part = inputs / facts.queries
    voters = np.resize(rng.permutation(len(surrogate.labels)), max(1, round(facts.records * part)))

    @functools.cache
    def counted(resolved: VotesSpec) -> tuple[VotingPlaces, RecordVotes]:
        places = make_places(features, resolved)
        along = resolved.components is not None
        reach = 1 if along else min(votes.reach, len(places))
        # Records that vote several times are counted as often.
        often = np.bincount(voters, minlength=len(surrogate.labels))
        counts = sum(
            (
                places.count(
                    surrogate.features[often >= times],
                    surrogate.labels[often >= times],
                    classes=surrogate.classes,
                    reach=reach,
                )
                for times in range(1, often.max() + 1)
            ),
            start=np.zeros((len(places), surrogate.classes), dtype=np.int64),
        )
        return places, RecordVotes(counts=counts, reach=reach, per_user=per_user, components=along)

    def table_at(spec: AggregateSpec) -> tuple[VotingPlaces, RecordVotes]:
        variance = count_mechanism(spec).variance(reach=votes.reach)
        resolved = votes.resolved(
            inputs=facts.queries,
            classes=surrogate.classes,
            deviation=math.sqrt(variance) / votes.reach,
        )
        fewer = {
            key: min(inputs - 1, max(2, round(number * part)))
            for key in ("cells", "components")
            if isinstance(number := getattr(resolved, key), int)
        }
        return counted(resolved.model_copy(update=fewer))

    def labels_at(spec: AggregateSpec, draw: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        noise = np.random.default_rng([draw, inputs])
        places, exact = table_at(spec)
        table = count_mechanism(spec).release(exact, rng=noise).table
        return label_inputs(table, places=places, features=features).labels

    def setting(epsilon: float) -> AggregateSpec:
        kind = COUNT_MECHANISMS[mechanism]
        noise = kind.least_noise(
            epsilon=epsilon,
            delta=budget.delta,
            reach=votes.reach,
            per_user=per_user,
            conversion=budget.conversion,
        )
        return AggregateSpec.model_validate({"mechanism": mechanism, str(kind.calibrated): noise})

    draws = range(1 if inputs > _MANY else _DRAWS)
    over = {}
    for epsilon in (times * budget.epsilon for times in _TIMES):
        drawn = [labels_at(setting(epsilon), draw) for draw in draws]
        over[epsilon] = float(np.mean([labels == truth for labels in drawn]))
        if epsilon == budget.epsilon:
            chosen = drawn
    accuracy = over[budget.epsilon]
    spec = setting(budget.epsilon)
    made = count_mechanism(spec)
    taught = [each for each in chosen if len(np.unique(each)) > 1] if rehearse else []
    return TableForecast(
        votes=votes,
        spec=spec,
        plan=plan_table(
            made,
            epsilon=budget.epsilon,
            delta=0.0 if made.pure else budget.delta,
            inputs=facts.queries,
            reach=votes.reach,
            per_user=per_user,
            components=votes.components is not None,
            conversion=budget.conversion,
        ),
        label_accuracy=accuracy,
        useful=useful_labels(facts.queries, accuracy, classes=surrogate.classes),
        over_epsilon=over,
        voted=len(voters),
        rows=len(table_at(spec)[0]),
        student_accuracy=float(np.mean([surrogate.taught(rows, each) for each in taught]))
        if taught
        else None,
    )


def table_wins(table: TableForecast, teachers: Forecast, wish: Wish) -> bool:
    """Return whether the labels of a table are predicted to be the better ones.

    By the wish; then by what students of them reached, where both were rehearsed, or otherwise by
    what they are worth.
    """
    students = table.student_accuracy, teachers.student_accuracy

    def rank(each: TableForecast | Forecast) -> tuple[bool, float, float]:
        met = wish.met_by(answers=each.answered, accuracy=each.label_accuracy)
        student = 0.0 if None in students else each.student_accuracy or 0.0
        return met, student, each.label_accuracy if wish.answers is not None else each.useful

    return rank(table) > rank(teachers)


def verdict(table: TableForecast, teachers: Forecast | None, *, wins: bool) -> str:
    """Return in a sentence or two which of the two is predicted to label better.

    ``teachers`` is None where they were not considered.
    """
    given = table.plan.guarantee
    records = (
        f"Record votes are predicted to label {100 * table.label_accuracy:.1f} % of all "
        f"{table.answered} public inputs right at ε = {given.epsilon:.4g}"
    )
    if teachers is None:
        return f"{records}."
    sentence = (
        f"{records}; {teachers.teachers} teachers ({teachers.spec.mechanism}) "
        f"{100 * teachers.label_accuracy:.1f} % of {teachers.answered:.0f}. "
    )
    winner = "Record votes" if wins else "Teachers"
    points = 100 * abs(table.label_accuracy - teachers.label_accuracy)
    if table.student_accuracy is not None and teachers.student_accuracy is not None:
        points = 100 * abs(table.student_accuracy - teachers.student_accuracy)
        return sentence + (
            f"{winner} are predicted to win by {points:.1f} points: students of them reached "
            f"{100 * table.student_accuracy:.1f} and {100 * teachers.student_accuracy:.1f} %."
        )
    return sentence + (
        f"{winner} are predicted to win: their labels are worth "
        f"{max(table.useful, teachers.useful):.0f} right ones, against "
        f"{min(table.useful, teachers.useful):.0f}, and {points:.1f} points lie between them."
    )
