"""A budget as noise, and what one setting comes to if the teachers agree as in a profile.

With room(λ) the total log-moment that becomes ε at λ, answers fit if their log-moments do at *some*
λ of the accountant's grid. Gaussian costs are all ρ·λ(λ+1), so one number, the largest ρ, decides
what fits.

Guarantees:
    Every noise is rounded up, and a plan is measured again by the accountant before it is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr

from pate._validate import check_delta
from pate.accounting import Conversion, Guarantee, Neighbours, ReleasePlan, sanitise
from pate.accounting.ledger.terms import moment_for
from pate.accounting.moments import DEFAULT_MOMENTS, FloatArray, log_moment_at
from pate.errors import ConditionsFail, InvalidInput
from pate.mechanisms import AggregateSpec, Mechanism, Plan, make_mechanism, plan_caps
from pate.planner.profile import Profile, leads

_DIGITS = 4  # of a noise, in a recipe
_ROWS = 250  # of a profile, for the sanitised ε: its walk over the votes takes long
_DRAWS = 201
_STEEP = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """(ε, δ), and how it is worked out."""

    epsilon: float
    delta: float
    conversion: Conversion = Conversion.IMPROVED

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InvalidInput(f"epsilon is {self.epsilon:g}; it must be finite and above zero")
        check_delta(self.delta)
        if not self.rho > 0:
            raise InvalidInput(
                f"epsilon {self.epsilon:g} at delta {self.delta:g} pays for nothing; raise one"
            )

    @property
    def rho(self) -> float:
        """The largest ρ for which a cost of ρ·λ(λ+1) is within the budget.

        >>> budget = Budget(epsilon=1.0, delta=1e-5)
        >>> answers = 100
        >>> round(math.sqrt(answers / budget.rho), 1)  # σ of GNMax, in votes
        57.2
        """
        moments, room = self._room()
        return float(np.max(room / (moments * (moments + 1))))

    def plan(self, spec: AggregateSpec, *, queries: int) -> Plan:
        """Return the caps of a setting within the budget, where there are so many public inputs."""
        return plan_caps(
            make_mechanism(spec),
            spec,
            epsilon=self.epsilon,
            delta=self.delta,
            available_queries=queries,
            conversion=self.conversion,
        )

    def least_noise(self, kind: type[Mechanism], answers: int) -> float:
        """Return the least noise of a mechanism with which so many answers fit."""
        moments, room = self._room()
        return kind.least_noise(answers, moments=moments, room=room)

    def gaussian(self, answers: float, *, share: float = 1.0) -> float:
        """Return the least σ with which so many answers fit into a share of the budget."""
        return math.sqrt(answers / (share * self.rho))

    def checks(self, queries: int, *, share: float) -> float:
        """Return the least σ₁ with which so many checks fit into a share of the budget."""
        return math.sqrt(queries / (2 * share * self.rho))

    def _room(self) -> tuple[FloatArray, FloatArray]:
        moments = DEFAULT_MOMENTS
        room = log_moment_at(moments, self.epsilon, delta=self.delta, conversion=self.conversion)
        return moments, room


def rounded_up(noise: float) -> float:
    """Return a noise with few digits that hides no less.

    >>> rounded_up(67.4812), rounded_up(123456.0)
    (67.49, 123500.0)
    """
    unit = 10.0 ** (math.floor(math.log10(noise)) - _DIGITS + 1)
    return float(f"{math.ceil(noise * (1 + 1e-9) / unit) * unit:.{_DIGITS + 8}g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A setting and what to expect of it. The guarantee holds; all else is a prediction."""

    teachers: int
    spec: AggregateSpec
    plan: Plan  # its guarantee is data-independent: it holds whatever the votes are
    teacher_accuracy: float
    plurality_accuracy: float
    answered: float  # expected
    label_accuracy: float  # of the answers, expected
    useful: float  # what the answers are worth, in labels without mistakes
    data_dependent: Guarantee  # predicted; the real one will be private
    sanitised: float | None  # the median of what would be published
    why_not_sanitised: str | None
    student_accuracy: float | None = None  # where labels drawn so were learnt from, on a surrogate

    def as_json(self) -> dict[str, Any]:
        return {
            "teachers": self.teachers,
            **self.spec.model_dump(mode="json", exclude_unset=True),
            "predicted_teacher_accuracy": self.teacher_accuracy,
            "predicted_plurality_accuracy": self.plurality_accuracy,
            "expected_answered": self.answered,
            "predicted_label_accuracy": self.label_accuracy,
            "useful_labels": self.useful,
            "data_independent": self.plan.guarantee.as_json(),
            "predicted_data_dependent": self.data_dependent.epsilon,
            "rehearsed_student_accuracy": self.student_accuracy,
            "predicted_sanitised": self.sanitised,
            "why_not_sanitised": self.why_not_sanitised,
        }


def useful_labels(
    answers: float,
    accuracy: float,
    *,
    classes: int,
    evenness: float = 1.0,
    on_all: float | None = None,
) -> float:
    """Return about how many labels without mistakes so many labels of this accuracy are worth.

    A share η of wrong labels leaves the signal s = 1 − η·C/(C−1) of C classes: one for right
    labels, zero for guesses. Labels are worth their number times s¹²: so steep because the next
    label teaches less than the one before, while mistakes, the teachers' own above all, stay. The
    power fits what linear students reached on Fashion-MNIST over a wide range of settings; where
    there is a surrogate, a rehearsal decides instead.

    Labels of inputs that a check let through are right more often because those are easy, and teach
    less than that; so ``on_all``, the accuracy of the same noise on all inputs, counts for half.

    >>> useful_labels(100, 1.0, classes=10), round(useful_labels(100, 0.95, classes=10))
    (100.0, 50)
    """
    if on_all is not None:
        accuracy = (accuracy + on_all) / 2
    signal = max(1 - (1 - accuracy) * classes / (classes - 1), 0.0)
    return float(answers * evenness * signal**_STEEP)


def evenness(chances: FloatArray) -> float:
    """Return the share that counts of labels that some inputs are likelier to get (Kish 1965).

    A check lets the easy inputs through; a student learns less from those alone.

    >>> evenness(np.array([0.3, 0.3])), evenness(np.array([1.0, 0.0]))
    (1.0, 0.5)
    """
    return float(chances.mean() ** 2 / np.mean(chances**2))


def forecast(
    profile: Profile,
    spec: AggregateSpec,
    *,
    budget: Budget,
    queries: int,
    ledger_budget: float | None = None,
    doubt: float = 0.01,
) -> Forecast:
    """Return the values of one setting, each by the accountant or in expectation over the profile.

    ``queries`` is the number of public inputs. The profile stands for them: what it holds of one
    input is what is expected of one query.
    """
    mechanism = make_mechanism(spec)
    plan = budget.plan(spec, queries=queries)
    weights = mechanism.answer_chances(profile.counts)
    asked, answered = expected_answers(
        float(weights.mean()), queries=plan.queries, most=plan.answers
    )
    right = mechanism.win_chances(leads(profile))
    accuracy = float(weights @ right / weights.sum())
    order = _ledger_order(plan, budget, ledger_budget)
    # As pate.stages.account reads it: the best λ only where no answer decides on it.
    moments = [order - 1] if spec.cost_follows_answers else None
    total = mechanism.data_dependent_cost(profile.counts, moments=moments)
    dependent = replace(total, values=total.values * (asked / profile.inputs))
    sanitised, why_not = _sanitised(profile, mechanism, asked, order, budget, doubt)
    return Forecast(
        teachers=profile.teachers,
        spec=spec,
        plan=plan,
        teacher_accuracy=profile.teacher_accuracy,
        plurality_accuracy=profile.plurality_accuracy,
        answered=answered,
        label_accuracy=accuracy,
        useful=useful_labels(
            answered,
            accuracy,
            classes=profile.classes,
            evenness=evenness(weights),
            on_all=float(right.mean()),
        ),
        data_dependent=dependent.guarantee(delta=budget.delta, conversion=budget.conversion),
        sanitised=sanitised,
        why_not_sanitised=why_not,
    )


def expected_answers(chance: float, *, queries: int, most: int) -> tuple[float, float]:
    """Return the expected queries and answers, where asking ends with the ``most``-th answer.

    ``chance`` is that of a query drawn from the profile, so that without an end the number of
    answers is binomial; it is taken as normal.

    >>> expected_answers(1.0, queries=100, most=80)
    (80.0, 80.0)
    >>> asked, answered = expected_answers(0.5, queries=100, most=50)
    >>> round(asked, 1), round(answered, 1)
    (96.0, 48.0)
    """
    mean = chance * queries
    deviation = math.sqrt(max(chance * (1 - chance) * queries, 0.0))
    if deviation < 1e-9:
        answered = min(mean, float(most))
    else:  # E min(X, most) for a normal X
        z = (most - mean) / deviation
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        answered = mean - deviation * (density - z * float(ndtr(-z)))
        answered = min(max(answered, 0.0), float(most))
    return (min(float(queries), answered / chance) if chance > 0 else float(queries)), answered


def _ledger_order(plan: Plan, budget: Budget, ledger_budget: float | None) -> float:
    """Return the Rényi order of a new ledger, as :mod:`pate.pipeline.ledger` opens it."""
    if ledger_budget is None:
        assert plan.guarantee.moment is not None
        return plan.guarantee.moment + 1
    whole = Guarantee(
        epsilon=ledger_budget,
        delta=budget.delta,
        neighbours=Neighbours.REPLACE_ONE,
        conversion=budget.conversion,
    )
    return moment_for(whole) + 1


def _sanitised(
    profile: Profile, mechanism: Mechanism, asked: float, order: float, budget: Budget, doubt: float
) -> tuple[float | None, str | None]:
    """Return the median ε that publishing would give, its price included; or why there is none."""
    rows = np.linspace(0, profile.inputs - 1, min(profile.inputs, _ROWS)).astype(np.int64)
    part = Profile(counts=profile.counts[rows], truth=profile.truth[rows])
    try:
        whole = mechanism.sensitive_cost(
            part.counts,
            order=order,
            teachers=part.teachers,
            answered=mechanism.answer_chances(part.counts),
        )
        factor = asked / part.inputs
        cost = replace(
            whole,
            value=whole.value * factor,
            ceiling=whole.ceiling * factor,
            local_sensitivity=whole.local_sensitivity * factor,
        )
        plan = ReleasePlan.default(order=order, doubt=doubt)
    except (ConditionsFail, InvalidInput) as error:
        return None, str(error)
    rng = np.random.default_rng(0)  # the profile is public: this noise hides nothing
    drawn = [
        sanitise(
            cost, plan=plan, delta=budget.delta, rng=rng, conversion=budget.conversion
        ).guarantee.epsilon
        for _ in range(_DRAWS)
    ]
    return float(np.median(drawn)), None
