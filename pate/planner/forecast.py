"""A budget as noise, and what one setting comes to if the teachers agree as in a profile.

Guarantees:
    Every noise is rounded up, and a plan is measured again by the accountant before it is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr

from pate._validate import MOST_NOISE, check_delta
from pate.accounting import (
    Analysis,
    Conversion,
    Event,
    GaussianNoisyMaxAnswer,
    Guarantee,
    Neighbours,
    ReleasePlan,
    Repeated,
    ThresholdCheck,
    compose,
    sanitise,
)
from pate.accounting.calibrate import least_noise
from pate.accounting.ledger.terms import moment_for
from pate.accounting.moments import DEFAULT_MOMENTS, FloatArray
from pate.accounting.plan_guarantee import plan_fits
from pate.errors import ConditionsFail, InvalidInput
from pate.mechanisms import (
    AggregateSpec,
    GaussianNoisyMax,
    Mechanism,
    Plan,
    plan_caps,
    voting_mechanism,
)
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
    analysis: Analysis = Analysis.TIGHT
    by_moments: bool = False  # a ledger with a budget adds up log-moments
    in_rounds: bool = False  # answers decide what is asked next: ``choose = "uncertain"``
    neighbours: Neighbours = Neighbours.REPLACE_ONE  # as the partition has it: no ε follows from it

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InvalidInput(f"epsilon is {self.epsilon:g}; it must be finite and above zero")
        check_delta(self.delta)
        least_answer = GaussianNoisyMaxAnswer(sigma=MOST_NOISE)
        if not self.fits(least_answer, 1):
            raise InvalidInput(
                f"epsilon {self.epsilon:g} at delta {self.delta:g} pays for nothing; raise one"
            )

    def plan(self, spec: AggregateSpec, *, queries: int) -> Plan:
        """Return the caps of a setting within the budget, where there are so many public inputs."""
        if self.in_rounds:
            spec = spec.model_copy(update={"choose": "uncertain"})
        plan = plan_caps(
            voting_mechanism(spec),
            spec,
            epsilon=self.epsilon,
            delta=self.delta,
            available_queries=queries,
            conversion=self.conversion,
            analysis=self.analysis,
            by_moments=self.by_moments,
        )
        return replace(plan, guarantee=replace(plan.guarantee, neighbours=self.neighbours))

    def least_noise(self, kind: type[Mechanism], answers: int) -> float:
        """Return the least noise of a mechanism with which so many answers fit.

        >>> from pate.mechanisms import GaussianNoisyMax
        >>> round(Budget(epsilon=1.0, delta=1e-5).least_noise(GaussianNoisyMax, 100), 1)
        45.9
        """
        return _noise_for(self, kind, answers)

    def gaussian(self, answers: float, *, share: float = 1.0) -> float:
        """Return about the least σ with which so many answers fit into a share of the budget."""
        return self._scaled(GaussianNoisyMax, answers / share)

    def checks(self, queries: int, *, share: float) -> float:
        """Return about the least σ₁ with which so many checks fit into a share of the budget."""
        return self._scaled(ThresholdCheck, queries / share)

    def _scaled(self, kind: Any, count: float) -> float:
        """Return the noise for so many events, by that for a power of two that is no larger.

        It grows with the root of their number, and a little less: the cost of an index falls with
        λ over σ.
        """
        fewer = 2 ** math.floor(math.log2(max(count, 1.0)))
        noise = _noise_for(self, kind, fewer)
        return noise * math.sqrt(count / fewer)

    def fits(self, event: Event, count: int) -> bool:
        """Return whether an event may happen so often."""
        return plan_fits(
            [Repeated(event, count)],
            epsilon=self.epsilon,
            delta=self.delta,
            conversion=self.conversion,
            analysis=self.analysis,
            adaptive=self.in_rounds,
            by_moments=self.by_moments,
        )


@lru_cache(maxsize=1024)  # the same for every number of teachers
def _noise_for(budget: Budget, kind: type[Any], count: int) -> float:
    """Return the least noise with which a mechanism of one noise, or a check, fits so often."""

    def meets(noise: float) -> bool:
        if issubclass(kind, ThresholdCheck):
            return budget.fits(kind(sigma=noise), count)
        return budget.fits(kind.from_keys({str(kind.calibrated): noise}).answer_event, count)

    guess = math.sqrt(count * math.log(1 / budget.delta)) / budget.epsilon
    found = least_noise(meets, tolerance=1e-5, start=guess, stride=1.4)
    if found is None:
        raise InvalidInput(f"no noise reaches epsilon {budget.epsilon:g}; raise it, or delta")
    return found


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
    with_sanitised: float | None  # the guarantee of labels and sanitised ε together
    student_accuracy: float | None = None  # where labels drawn so were learnt from, on a surrogate

    @property
    def sanitising_pays(self) -> bool:
        """Whether a sanitised ε is predicted to lie further below the guarantee than it raises it.

        It follows from the profile and the plan, which are public.
        """
        if self.sanitised is None or self.with_sanitised is None:
            return False
        own = self.plan.guarantee.epsilon
        return own - self.sanitised > self.with_sanitised - own

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
            "sanitise": self.sanitising_pays,
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
    mechanism = voting_mechanism(spec)
    plan = budget.plan(spec, queries=queries)
    weights = mechanism.answer_chances(profile.counts)
    asked, answered = expected_answers(
        float(weights.mean()), queries=plan.queries, most=plan.answers
    )
    right = mechanism.win_chances(leads(profile))
    accuracy = float(weights @ right / weights.sum())
    order = _ledger_order(plan, budget, ledger_budget)
    # As pate.stages.account reads it: the best λ only where no answer decides on it. Every fourth
    # λ is enough for a prediction.
    moments = [order - 1] if spec.cost_follows_answers else DEFAULT_MOMENTS[::4]
    total = mechanism.data_dependent_cost(profile.counts, moments=moments)
    dependent = replace(total, values=total.values * (asked / profile.inputs))
    sanitised, why_not = _sanitised(profile, mechanism, asked, order, budget, doubt)
    both = None
    if sanitised is not None:
        price = ReleasePlan.default(order=order, doubt=doubt).event
        both = compose([*plan.events, price]).guarantee(
            delta=budget.delta, conversion=budget.conversion
        )
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
        with_sanitised=None if both is None else both.epsilon,
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
        assert plan.moment is not None
        return plan.moment + 1
    if ledger_budget == budget.epsilon and plan.moment is not None:
        return plan.moment + 1
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
