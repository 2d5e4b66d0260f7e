"""Votes to released labels, outside a recipe: the plan, its charge, and the draw.

The order is always the same: a plan is fixed from public numbers, its caps are charged to the
ledger (where there is one), and only then noise is drawn.
"""

from __future__ import annotations

import io
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from pate._files import create_once, error_reason, write_atomically
from pate._format import format_cost
from pate._validate import check_delta, check_positive, check_whole
from pate.accounting import (
    Conversion,
    Event,
    Guarantee,
    Ledger,
    Neighbours,
    Repeated,
    event_from_json,
    event_to_json,
)
from pate.accounting.calibrate import largest_count, least_noise
from pate.accounting.ledger.data_ledger import PlannedCharge, secret_key
from pate.accounting.ledger.terms import Mode
from pate.accounting.plan_guarantee import guarantee_of_plan, plan_fits
from pate.artifacts.results import StatedGuarantee
from pate.errors import BudgetExceeded, InvalidInput, LedgerError, ReleaseConflict, SpendNeeded
from pate.mechanisms import MECHANISMS, Mechanism, Plan
from pate.mechanisms.charged import votes_digest
from pate.randomness import secure_generator
from pate.votes import Votes

_PER_TEACHER = 5  # default noise is the number of teachers over this
_HOPELESS = 10  # times the teachers: with such noise an answer is chance
_LEDGER_DELTA = 1e-5  # of a new ledger whose first release is pure: one of log-moments needs some
_PER_CLASS = 10  # labels of each class that default noise leaves room for


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

    ``mechanism`` is the name of one with one noise ("gnmax", "lnmax", "gumbel"), or an object.
    Without ``epsilon`` there is no limit on a mechanism whose noise is given. Without ``queries``
    as many are asked as fit. Without ``noise`` it is the smallest with which ``queries`` fit;
    without ``queries``, a fifth of the teachers, and more only where that leaves fewer than ten
    queries for each class.

    Guarantees:
        Nothing here reads a vote, and the queries are the first inputs, fixed before any answer: so
        the caps' guarantee holds whatever is answered
        (:func:`pate.accounting.guarantee_of_plan`).

    >>> chosen, plan = plan_release(
    ...     "gnmax", epsilon=1.0, delta=1e-5, inputs=1000, teachers=250, classes=2
    ... )
    >>> chosen.sigma, plan.queries, plan.guarantee.epsilon <= 1
    (50.0, 118, True)
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
        if mechanism.uses_student:
            raise InvalidInput(
                f"{mechanism!r} asks a student between rounds, which only a recipe does; use "
                "pate.run, or another mechanism"
            )
        return mechanism, _plan(mechanism, most, epsilon, delta)
    kind = MECHANISMS.get(mechanism)
    if kind is None or kind.calibrated is None:
        simple = ", ".join(repr(name) for name, each in MECHANISMS.items() if each.calibrated)
        raise InvalidInput(
            f"mechanism {mechanism!r} is none of {simple}; give one that has more settings as an "
            "object, such as pate.ConfidentGnmax(threshold=…, sigma1=…, sigma2=…)"
        )
    if noise is None:
        if epsilon is None:
            raise InvalidInput("without epsilon= the noise is not known; give epsilon= or noise=")
        noise = _noise(kind, epsilon, delta, most, queries, teachers, classes)
        if noise > _HOPELESS * teachers:
            raise InvalidInput(
                f"epsilon {epsilon:g} needs noise of {noise:.3g} votes, which hides "
                f"the votes of {teachers} teachers; raise epsilon, use more teachers, or ask fewer "
                "queries"
            )
    chosen = kind.from_keys({kind.calibrated: float(noise)})
    return chosen, _plan(chosen, most, epsilon, delta)


def _noise(
    kind: type[Mechanism],
    epsilon: float,
    delta: float,
    most: int,
    queries: int | None,
    teachers: int,
    classes: int,
) -> float:
    """Return the least noise for the queries wanted, or the default noise."""
    key = kind.calibrated
    assert key is not None

    def least(count: int) -> float:
        def meets(noise: float) -> bool:
            answers = Repeated(kind.from_keys({key: noise}).answer_event, count)
            return plan_fits([answers], epsilon=epsilon, delta=delta, adaptive=False)

        found = least_noise(meets)
        if found is None:
            raise InvalidInput(f"no noise reaches epsilon {epsilon:g}; raise it, or delta")
        return found

    if queries is not None:
        return least(most)
    usual = max(teachers / _PER_TEACHER, least(min(most, _PER_CLASS * classes)))
    return min(usual, least(most))  # no more than what asking about all of them needs


def _plan(mechanism: Mechanism, most: int, epsilon: float | None, delta: float) -> Plan:
    """Return the largest caps within ``epsilon``."""

    def plan(queries: int) -> Plan:
        events = mechanism.caps(queries=queries, answers=queries)
        return Plan(
            queries=queries,
            answers=queries,
            events=events,
            guarantee=guarantee_of_plan(events, delta=delta, adaptive=False),
        )

    if epsilon is None:
        return plan(most)

    def fits(queries: int) -> bool:
        events = mechanism.caps(queries=queries, answers=queries)
        return plan_fits(events, epsilon=epsilon, delta=delta, adaptive=False)

    if not fits(1):
        one = plan(1).guarantee.epsilon
        raise BudgetExceeded(
            needed=one,
            spent=0.0,
            budget=epsilon,
            why=f"one answer of {mechanism!r} costs {format_cost(one, delta)}, "
            f"past epsilon {epsilon:.6g}; raise the noise or epsilon",
        )

    return plan(largest_count(fits, most=most))


@contextmanager
def opened_ledger(
    ledger: str | os.PathLike[str] | Ledger, plan: Plan, *, budget: float | None = None
) -> Iterator[Ledger]:
    """Open a ledger by its path, or pass on one that is open.

    A file that does not exist is created with ``budget``; without one it becomes an odometer,
    which records and refuses nothing. The budget of an existing ledger never changes.
    """
    if isinstance(ledger, Ledger):
        yield ledger
        return
    path = Path(ledger)
    if os.path.lexists(path):
        with Ledger.open(path) as opened:
            agreed = opened.terms.budget.epsilon
            if budget is not None and budget != agreed:
                was = "without a budget" if math.isinf(agreed) else f"with a budget of ε {agreed:g}"
                raise LedgerError(
                    f"the ledger at {path} was made {was}, and a budget never changes; leave "
                    f"{budget:g} out"
                )
            yield opened
        return
    limited = budget is not None
    terms = Guarantee(
        epsilon=check_positive("budget", budget) if limited else math.inf,
        delta=plan.guarantee.delta or _LEDGER_DELTA,
        moment=None if limited else plan.moment,
        neighbours=Neighbours.REPLACE_ONE,
        conversion=Conversion.IMPROVED,
    )
    mode = Mode.FILTER if limited else Mode.ODOMETER
    with Ledger.open(path, budget=terms, mode=mode) as opened:
        yield opened


# --- votes from elsewhere, released once ----------------------------------------------------------

_UNANSWERED = -1


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregatedVotes:
    """Labels released from a file of votes.

    Parameters
    ----------
    labels : ndarray of shape (asked,)
        One class number for each query that was asked, −1 where there is no answer.
    guarantee : Guarantee
        What the plan costs, for one teacher that was given other records.
    release : str
        The name of the charge in the ledger.
    drawn : bool
        Whether this call drew the labels; False where an earlier one had.
    """

    labels: NDArray[np.int64]
    guarantee: Guarantee
    release: str
    drawn: bool

    def _repr_html_(self) -> str:
        answered = int((self.labels >= 0).sum())
        rows = [("labels", f"{answered} of {len(self.labels)} queries"), ("charge", self.release)]
        return self.guarantee.html("Released labels", rows)


def aggregate_votes(
    votes: Votes,
    mechanism: Mechanism,
    *,
    delta: float,
    ledger: str | os.PathLike[str],
    out: str | os.PathLike[str],
    epsilon: float | None = None,
    queries: int | None = None,
    budget: float | None = None,
    spend: bool = False,
    report: Callable[[str], None] | None = None,
) -> AggregatedVotes:
    """Release labels from votes that were counted elsewhere, exactly once.

    Parameters
    ----------
    votes : Votes
        Counts of shape (queries, classes).
    mechanism : Mechanism
        The mechanism with its noise.
    delta : float
        δ of the guarantee.
    ledger : str or path
        The ledger of the private data set; created if it does not exist.
    out : str or path
        The ``.npy`` file of labels. The guarantee is written beside it, with the suffix ``.json``.
    epsilon : float, optional
        What the release may cost: fewer queries are asked where all of them would cost more.
    queries : int, optional
        The most queries to ask, from the first on. By default all.
    budget : float, optional
        The budget of a ledger that is created.
    spend : bool
        Pay again for a release with the same votes and settings, whose labels were lost.
    report : callable, optional
        Called with a line on the charge and its ledger, before it is made.

    Returns
    -------
    AggregatedVotes
        The labels and their guarantee.

    Raises
    ------
    InvalidInput
        If ``out`` holds something else.
    BudgetExceeded
        If the budget does not cover the plan; nothing is charged or released then.
    SpendNeeded
        If the ledger has paid for the same release before, with another ``out``.

    Guarantees:
        * The labels are drawn into a private file beside ``out``, charged under a random name that
          is written there too, and only then published by a rename.
        * A process that is killed before the charge costs nothing; one that is killed after it is
          completed by the next call, with the same labels and the same charge.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from pate.mechanisms import GaussianNoisyMax
    >>> folder = tempfile.TemporaryDirectory()
    >>> votes = Votes(counts=np.array([[240, 10], [5, 245]]))
    >>> answer = aggregate_votes(
    ...     votes, GaussianNoisyMax(sigma=20.0), delta=1e-5,
    ...     ledger=f"{folder.name}/x.ledger", out=f"{folder.name}/labels.npy",
    ... )
    >>> answer.labels, round(answer.guarantee.epsilon, 2)
    (array([0, 1]), 0.32)
    >>> folder.cleanup()
    """
    place = Path(out)
    if place.suffix != ".npy":
        raise InvalidInput(f"--out {place} does not end in .npy; give a file such as labels.npy")
    if not place.parent.is_dir():
        raise InvalidInput(f"the folder {place.parent} does not exist; create it first")
    _, plan = plan_release(
        mechanism,
        epsilon=epsilon,
        delta=delta,
        inputs=votes.queries,
        teachers=votes.teachers,
        classes=votes.classes,
        queries=queries,
    )
    with opened_ledger(ledger, plan, budget=budget) as opened:
        asked = (repr(mechanism), plan.queries, plan.answers)
        settings = votes_digest(
            votes.counts, asked, key=secret_key(Path(ledger).with_suffix(".key"))
        )
        pending, statement = place.with_name(f".{place.name}.pending"), place.with_suffix(".json")
        if not pending.exists() and (place.exists() or statement.exists()):
            return _published(place, statement, settings, opened)
        drawn = not pending.exists()
        if drawn:
            opened.require_room(plan.events)
            if not spend:
                _require_unpaid(opened, settings)
            if report is not None:
                report(str(PlannedCharge.make(opened, plan.events, path=opened.path.absolute())))
            _draw(votes, mechanism, plan, pending, settings)
        return _finish(place, statement, pending, settings, plan, opened, spend=spend, drawn=drawn)


def _require_unpaid(ledger: Ledger, settings: str) -> None:
    if any(settings in each.settings for each in ledger.charges()):
        raise SpendNeeded(
            f"the ledger at {ledger.path} has already paid for labels of these votes with these "
            "settings; use the file they were written to, or, to draw new ones and pay again, add "
            "--spend"
        )


def _draw(votes: Votes, mechanism: Mechanism, plan: Plan, pending: Path, settings: str) -> None:
    """Draw labels into a private file, with the charge they need; of two at once, the first."""
    release = mechanism.release(
        votes.first(plan.queries), rng=secure_generator(), most_answers=plan.answers
    )
    labels = np.full(release.asked, _UNANSWERED, dtype=np.int64)
    labels[release.answered] = release.labels
    record = {
        "settings": settings,
        "release": f"labels {secrets.token_hex(12)}",
        "events": [event_to_json(event) for event in plan.events],
        "labels": labels.tolist(),
    }
    try:
        create_once(pending, json.dumps(record).encode())
    except OSError as error:
        raise InvalidInput(f"cannot write beside {pending}: {error_reason(error)}") from error


def _finish(
    place: Path,
    statement: Path,
    pending: Path,
    settings: str,
    plan: Plan,
    ledger: Ledger,
    *,
    spend: bool,
    drawn: bool,
) -> AggregatedVotes:
    """Charge a pending draw, then publish it."""
    record = _read(pending)
    if record["settings"] != settings:
        raise InvalidInput(
            f"{place} was begun with other votes or settings; finish that with the same command, "
            "or choose another --out"
        )
    events: list[Event] = [event_from_json(text) for text in record["events"]]
    try:
        ledger.charge(events, release=record["release"], settings=[settings], again=spend)
    except (BudgetExceeded, ReleaseConflict) as error:
        pending.unlink(missing_ok=True)  # never seen by anybody
        if isinstance(error, ReleaseConflict):
            _require_unpaid(ledger, settings)
        raise
    labels = np.array(record["labels"], dtype=np.int64)
    stream = io.BytesIO()
    np.save(stream, labels, allow_pickle=False)
    # Nothing that follows from the votes but the labels: a digest of them, even under a key, would
    # reveal whether two releases are of the same votes. The ledger keeps it, in private.
    published = {
        "release": record["release"],
        "events": record["events"],
        "queries": plan.queries,
        "answers": plan.answers,
        "guarantee": plan.guarantee.as_json(),
    }
    write_atomically(place, stream.getvalue(), mode=0o644)
    write_atomically(statement, json.dumps(published, indent=1).encode() + b"\n", mode=0o644)
    pending.unlink(missing_ok=True)
    return AggregatedVotes(
        labels=labels, guarantee=plan.guarantee, release=record["release"], drawn=drawn
    )


def _published(place: Path, statement: Path, settings: str, ledger: Ledger) -> AggregatedVotes:
    """Return what an earlier call published, if it is of the same votes and settings."""
    if not (place.is_file() and statement.is_file()):
        raise InvalidInput(f"{place if place.exists() else statement} exists; choose another --out")
    record = _read(statement)
    charge = next((c for c in ledger.charges() if c.release == record.get("release")), None)
    if charge is None:
        raise LedgerError(
            f"the ledger at {ledger.path} lacks the charge of {place}, so what was spent is not "
            "known: restore the ledger from a backup that was made after that release"
        )
    if settings not in charge.settings:
        raise InvalidInput(f"{place} holds labels of other votes or settings; choose another --out")
    stated = record["guarantee"]
    return AggregatedVotes(
        labels=np.load(place, allow_pickle=False),
        guarantee=StatedGuarantee.from_json(stated).guarantee,
        release=record["release"],
        drawn=False,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict):
        raise InvalidInput(f"{path} cannot be read; choose another --out")
    return record
