"""Caps on queries and answers, fixed before the votes are opened.

A guarantee that is worked out from how many answers happened to be given is not covered by plain
composition. So the caps (most queries, most answers) come first, from public numbers alone, and
the guarantee is the one of the caps, whatever is answered in the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from numpy.typing import ArrayLike

from pate._format import format_epsilon
from pate._validate import check_whole
from pate.accounting import Conversion, Event, Guarantee, compose
from pate.accounting.calibrate import largest_count
from pate.errors import BudgetExceeded, InvalidInput
from pate.mechanisms.mechanism import Mechanism
from pate.mechanisms.spec import AggregateSpec


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The most that will be asked and answered, and its cost at worst.

    Guarantees:
        ``guarantee`` is data-independent and holds for every course of events within the caps
        (log-moments of adaptively chosen mechanisms add up: Abadi et al. 2016, Theorem 2.1).
    """

    queries: int  # most queries asked: the first so many of the public inputs
    answers: int  # most answers given
    events: tuple[Event, ...]  # the caps, as the ledger takes them
    guarantee: Guarantee


def plan_caps(
    mechanism: Mechanism,
    spec: AggregateSpec,
    *,
    epsilon: float | None,
    delta: float,
    available_queries: int,
    moments: ArrayLike | None = None,
    conversion: Conversion = Conversion.IMPROVED,
) -> Plan:
    """Return the largest caps within those of ``spec``, the public inputs, and ``epsilon``.

    Without ``epsilon`` the recipe's caps stand as they are. With it, for a mechanism that checks:

    * ``queries`` given: the most answers that fit beside checking all of them;
    * only ``answers`` given: the most queries, with that many answered;
    * neither given: the most queries, where every one may be answered. This is also done where
      checking all the ``queries`` would leave no room for a single answer.

    If not even one answer fits, BudgetExceeded is raised.

    Guarantees:
        Reads public numbers only: no vote, and no number of answers given so far.

    >>> from pate.mechanisms import make_mechanism
    >>> spec = AggregateSpec(
    ...     mechanism="confident", threshold=200.0, sigma1=150.0, sigma2=40.0, answers=100
    ... )
    >>> plan = plan_caps(
    ...     make_mechanism(spec), spec, epsilon=2.0, delta=1e-5, available_queries=9000
    ... )
    >>> plan.queries, plan.answers, plan.guarantee.epsilon <= 2
    (2059, 100, True)
    """
    check_whole("the number of public inputs", available_queries, least=1)
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise InvalidInput(
            f"epsilon is {epsilon!r}; it must be a finite number above zero, or left out to ask "
            "without a budget"
        )

    def plan(queries: int, answers: int) -> Plan:
        events = mechanism.caps(queries=queries, answers=answers)
        guarantee = compose(events, moments).guarantee(delta=delta, conversion=conversion)
        return Plan(
            queries=queries, answers=min(queries, answers), events=events, guarantee=guarantee
        )

    most_queries = min(spec.queries or available_queries, available_queries)
    most_answers = min(spec.answers or most_queries, most_queries)
    checks = mechanism.checks
    if not checks:  # every query asked is an answer
        most_queries = most_answers
    if epsilon is None:
        return plan(most_queries, most_answers)

    def fits(queries: int, answers: int) -> bool:
        return plan(queries, answers).guarantee.epsilon <= epsilon

    if not fits(1, 1):
        needed = plan(1, 1).guarantee.epsilon
        raise BudgetExceeded(
            needed=needed,
            spent=0.0,
            budget=epsilon,
            why=f"one answer alone costs ε {format_epsilon(needed, 6)} at δ {delta:g}, past the "
            f"budget of {epsilon:.6g}; raise the noise in [aggregate] or epsilon in [privacy]",
        )
    if checks and spec.queries is not None and fits(most_queries, 1):
        return plan(most_queries, largest_count(lambda n: fits(most_queries, n), most=most_answers))
    queries = largest_count(lambda n: fits(n, most_answers), most=most_queries)
    return plan(queries, most_answers)
