"""Votes to released labels, outside a recipe: the plan, its charge, and the draw.

The order is always the same: a plan is fixed from public numbers, its caps are charged to the
ledger (where there is one), and only then noise is drawn.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pate._validate import check_delta, check_positive, check_whole
from pate.accounting import Conversion, Guarantee, Ledger, Neighbours, compose
from pate.accounting.calibrate import gnmax, lnmax, moments_epsilon, smallest_noise
from pate.accounting.terms import Mode
from pate.errors import BudgetExceeded, InvalidInput
from pate.mechanisms import GaussianNoisyMax, LaplaceNoisyMax, Mechanism, Plan
from pate.mechanisms.plan import _largest

_PER_TEACHER = 5  # the standard deviation of default noise is the number of teachers over this
_HOPELESS = 10  # times the teachers: with such noise an answer is chance
_PER_CLASS = 10  # labels of each class that default noise leaves room for
NO_LEDGER = (
    "no ledger has recorded this release: it is the cost of this one alone, and other releases "
    "from the same records add to it"
)


def plan_release(
    mechanism: str | Mechanism,
    *,
    epsilon: float | None,
    delta: float,
    inputs: int,
    teachers: int,
    classes: int,
    queries: int | None = None,
    noise: float | None = None,
) -> tuple[Mechanism, Plan]:
    """Fix the noise and the most that will be asked, from public numbers alone.

    Parameters
    ----------
    mechanism : {"gnmax", "lnmax"} or Mechanism
        Gaussian or Laplace noisy-max by name, or any mechanism with its own noise.
    epsilon : float or None
        What the release may cost. None puts no limit on a mechanism whose noise is given.
    delta : float
        δ of the guarantee.
    inputs, teachers, classes : int
        How many there are; all of it public.
    queries : int, optional
        The most inputs to ask about. None: as many as fit.
    noise : float, optional
        σ of "gnmax" or the scale of "lnmax", in votes. None: the smallest with which ``queries``
        fit; without ``queries`` a fifth of the teachers, and more only where that leaves fewer
        than ten queries for each class.

    Returns
    -------
    tuple of Mechanism and Plan
        The mechanism with its noise, and the caps with their guarantee.

    Raises
    ------
    InvalidInput
        If a value breaks a rule, or ``epsilon`` needs noise that hides all votes.
    BudgetExceeded
        If with the given noise a single answer costs more than ``epsilon``.

    Guarantees:
        Nothing here reads a vote, so the caps' guarantee holds whatever is answered
        (log-moments add up: Abadi et al. 2016, Theorem 2.1).

    Examples
    --------
    >>> chosen, plan = plan_release(
    ...     "gnmax", epsilon=1.0, delta=1e-5, inputs=1000, teachers=250, classes=2
    ... )
    >>> chosen.sigma, plan.queries, plan.guarantee.epsilon <= 1
    (50.0, 76, True)
    """
    check_delta(delta)
    epsilon = None if epsilon is None else check_positive("epsilon", epsilon)
    queries = None if queries is None else check_whole("queries", queries, least=1)
    if inputs < 1:
        raise InvalidInput("there are no public inputs to ask about; give at least one")
    most = min(inputs, queries or inputs)
    if not isinstance(mechanism, str):
        if noise is not None:
            raise InvalidInput(f"{mechanism!r} has its own noise; leave noise= out")
        return mechanism, _plan(mechanism, most, epsilon, delta)
    if mechanism not in ("gnmax", "lnmax"):
        raise InvalidInput(
            f"mechanism {mechanism!r} is neither 'gnmax' nor 'lnmax'; give one that has more "
            "settings as an object, such as pate.ConfidentGnmax(threshold=…, sigma1=…, sigma2=…)"
        )
    made = GaussianNoisyMax if mechanism == "gnmax" else LaplaceNoisyMax
    key = "sigma" if mechanism == "gnmax" else "scale"
    if noise is None:
        if epsilon is None:
            raise InvalidInput("without epsilon= the noise is not known; give epsilon= or noise=")
        noise = _noise(mechanism, epsilon, delta, most, queries, teachers, classes)
        if noise > _HOPELESS * teachers:
            raise InvalidInput(
                f"epsilon {epsilon:g} needs noise of {noise:.3g} votes, which hides what "
                f"{teachers} teachers say; raise epsilon, use more teachers, or ask fewer queries"
            )
    chosen: Mechanism = made(**{key: float(noise)})
    return chosen, _plan(chosen, most, epsilon, delta)


def _noise(
    mechanism: str,
    epsilon: float,
    delta: float,
    most: int,
    queries: int | None,
    teachers: int,
    classes: int,
) -> float:
    """Return the least noise for the queries wanted, or the default noise."""
    event = gnmax if mechanism == "gnmax" else lnmax
    usual = teachers / _PER_TEACHER / (1 if mechanism == "gnmax" else math.sqrt(2))
    enough = most if queries is not None else min(most, _PER_CLASS * classes)
    cost = moments_epsilon(delta=delta)
    least = smallest_noise(event, count=enough, target=epsilon, epsilon=cost)
    if queries is not None:
        return least
    every = smallest_noise(event, count=most, target=epsilon, epsilon=cost)
    return min(max(usual, least), every)  # no more than what asking about all of them needs


def _plan(mechanism: Mechanism, most: int, epsilon: float | None, delta: float) -> Plan:
    def plan(queries: int) -> Plan:
        events = mechanism.caps(queries=queries, answers=queries)
        cost = compose(events).guarantee(delta=delta, conversion=Conversion.IMPROVED)
        return Plan(queries=queries, answers=queries, events=events, guarantee=cost)

    if epsilon is None:
        return plan(most)
    one = plan(1).guarantee.epsilon
    if one > epsilon:
        raise BudgetExceeded(
            needed=one,
            spent=0.0,
            budget=epsilon,
            why=f"one answer of {mechanism!r} costs ε {one:.6g} at δ {delta:g}, past epsilon "
            f"{epsilon:.6g}; raise the noise or epsilon",
        )
    return plan(_largest(lambda n: plan(n).guarantee.epsilon <= epsilon, most=most))


@contextmanager
def opened_ledger(ledger: str | os.PathLike[str] | Ledger, plan: Plan) -> Iterator[Ledger]:
    """Open a ledger by its path, or pass on one that is open.

    A file that does not exist becomes an odometer: it records, and refuses nothing. To set a
    budget, create it first with :meth:`pate.Ledger.open`.
    """
    if isinstance(ledger, Ledger):
        yield ledger
        return
    path = Path(ledger)
    terms = Guarantee(
        epsilon=math.inf,
        delta=plan.guarantee.delta,
        moment=plan.guarantee.moment,
        neighbours=Neighbours.REPLACE_ONE,
        conversion=Conversion.IMPROVED,
    )
    exists = os.path.lexists(path)
    with (
        Ledger.open(path)
        if exists
        else Ledger.open(path, budget=terms, mode=Mode.ODOMETER) as opened
    ):
        yield opened


def charge(ledger: Ledger, plan: Plan, *, neighbours: Neighbours, name: str | None = None) -> str:
    """Pay for a plan's caps; call it before anything is drawn. Return the name of the charge."""
    release = f"labels {name or secrets.token_hex(12)}"
    ledger.charge(plan.events, release=release, records=neighbours)
    return release


def stated_guarantee(
    plan: Plan, *, neighbours: Neighbours, secure: bool, recorded: bool, notes: tuple[str, ...] = ()
) -> Guarantee:
    """Return the plan's guarantee, said of the records behind the teachers."""
    caveats = () if secure else ("the noise was drawn from a seed: this release is not private",)
    remembered = () if recorded else (NO_LEDGER,)
    return replace(
        plan.guarantee, neighbours=neighbours, caveats=caveats, notes=(*remembered, *notes)
    )
