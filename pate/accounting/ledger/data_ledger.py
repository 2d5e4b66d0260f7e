"""Opening the ledger of a data set, and its state in a sentence."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pate._files import create_once, earlier_data_folders, error_reason, user_data_folder
from pate._format import (
    describe_neighbours,
    format_cost,
    format_delta,
    format_epsilon,
    format_remaining,
    in_units,
)
from pate.accounting.events import Event
from pate.accounting.guarantee import Conversion, Guarantee, Neighbours
from pate.accounting.ledger import Ledger
from pate.accounting.ledger.data_set import NOT_PRIVATE, Coverage, shares_budget, sibling_ledger
from pate.accounting.ledger.schema import copy_charges
from pate.accounting.ledger.terms import Mode, moment_for
from pate.errors import InvalidInput, LedgerError

_KEY_BYTES = 32


def make_ledgers_folder(folder: Path) -> None:
    """Create the folder of ledgers and keys with mode 0700, whatever the umask.

    An existing folder of ours that is open to others is closed to them.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            with contextlib.suppress(PermissionError):
                folder.chmod(0o700)
    except OSError as error:
        raise LedgerError(f"cannot make the folder {folder}: {error.strerror}") from error


def secret_key(path: Path) -> bytes:
    """Return the key of a data set; it is drawn where there is none, and the first process wins.

    Guarantees:
        256 bits from the operating system in a file that only its owner can read.
    """
    try:
        if not path.exists():
            create_once(path, os.urandom(_KEY_BYTES))
        key = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"cannot keep a key at {path}: {error_reason(error)}") from error
    if len(key) != _KEY_BYTES:
        raise LedgerError(f"the key at {path} is damaged; restore it from a backup")
    return key


def open_data_ledger(
    path: Path,
    *,
    budget: float | None,
    delta: float,
    neighbours: Neighbours,
    conversion: Conversion = Conversion.IMPROVED,
    moment: float | None = None,
) -> Ledger:
    """Open the ledger at ``path``, or create it; a budget never changes once it is set.

    The budget belongs to the data set, over both of its ledgers: one that was set with the other
    ledger binds this one, too, and the λ of a new ledger suits what the other left of it. Without a
    budget a new ledger is an odometer, which refuses nothing. Its λ is ``moment``, which must not
    depend on private data; by default the best one for the budget.
    """
    require_no_earlier(path)
    make_ledgers_folder(path.parent)
    agreed, spent = _sibling(path)
    if path.exists():
        ledger = Ledger.open(path)
        own = ledger.terms.budget.epsilon
        if budget is not None and budget not in (own, agreed):
            ledger.close()
            raise LedgerError(
                f"the ledger at {path} was made {_describe_budget(own)}; privacy.budget is "
                f"{budget:g}, and a budget never changes"
            )
        return ledger
    if budget is not None and agreed < math.inf and budget != agreed:
        raise LedgerError(
            f"the ledger at {sibling_ledger(path)}, of the same data set, was made "
            f"{_describe_budget(agreed)}; privacy.budget is {budget:g}, and a budget never changes"
        )
    limit = agreed if budget is None else budget
    if limit < math.inf and spent:
        moment = _moment_for_rest(limit - spent, delta, conversion)
    terms = Guarantee(
        epsilon=limit,
        delta=delta,
        moment=moment,
        neighbours=neighbours,
        conversion=conversion,
    )
    return Ledger.open(path, budget=terms, mode=Mode.ODOMETER if math.isinf(limit) else Mode.FILTER)


def require_no_earlier(path: Path) -> None:
    """Refuse a ledger in the user's data folder while an earlier version's lies elsewhere."""
    if path.parent.parent != user_data_folder():
        return
    for folder in earlier_data_folders():
        for name in (path.name, sibling_ledger(path).name):
            earlier = folder / "ledgers" / name
            if earlier.exists():
                raise LedgerError(
                    f"{earlier.absolute()} has charges of this data set, from before ledgers were "
                    f"kept in {path.parent}; move it and its key there, or give --data-root "
                    f"{folder}"
                )


def _sibling(path: Path) -> tuple[float, float]:
    """Return the budget (infinite: none) and the spending of the data set's other ledger."""
    if not (shares_budget(path) and sibling_ledger(path).exists()):
        return math.inf, 0.0
    with Ledger.open(sibling_ledger(path)) as other:
        return other.terms.budget.epsilon, other.spent().epsilon


def _moment_for_rest(left: float, delta: float, conversion: Conversion) -> float | None:
    """Return the λ that suits what the other ledger left of a budget; None if nothing is left.

    Guarantees:
        What was spent is public, and λ is fixed before the first charge at it.
    """
    if left > 0:
        with contextlib.suppress(InvalidInput):
            return moment_for(Guarantee(epsilon=left, delta=delta, conversion=conversion))
    return None


def _describe_budget(budget: float) -> str:
    return "without a budget" if math.isinf(budget) else f"with a budget of ε {budget:g}"


def budget_line(ledger: Ledger, *, own: bool = False) -> str:
    """Return a sentence on what was spent and is left, with the ε that can be published.

    With ``own`` it is about this ledger alone (:func:`data_set_line` is about both).
    """
    spent, whole = ledger.spent(), ledger.guarantee()
    if ledger.path.name.endswith(NOT_PRIVATE):
        return (
            f"{ledger.path.absolute()}, all releases: ε {format_epsilon(spent.epsilon)} at "
            f"δ {format_delta(spent.delta)}, which does not hold: none of them is private"
        )
    text = (
        f"{ledger.path.absolute()}, all releases: so far ε {format_epsilon(spent.epsilon)} at "
        f"δ {format_delta(spent.delta)}; to be published: ε {format_epsilon(whole.epsilon)}"
    )
    if whole.neighbours not in (Neighbours.REPLACE_ONE, Neighbours.AS_STATED):
        text += f" for {describe_neighbours(whole.neighbours)}"
    coverage = ledger.coverage()
    if coverage is not Coverage.RECORD and not whole.neighbours.of_users:
        text += f" ({coverage.describe(whole.neighbours)})"
    if own:
        return text
    total, used = ledger.data_set_total(), spent.epsilon
    if len(total.shares) > 1 or total.restated:
        text += f"; the data set in all: {total}"
        used = total.epsilon
    return f"{text}; {_remainder(ledger, used)}"


def ledger_report(ledger: Ledger) -> dict[str, Any]:
    """Return what :func:`budget_line` prints, as plain values for JSON."""
    spent, whole, total = ledger.spent(), ledger.guarantee(), ledger.data_set_total()
    budget = ledger.data_set_budget
    known = whole.neighbours not in (Neighbours.REPLACE_ONE, Neighbours.AS_STATED)
    return {
        "path": str(ledger.path.absolute()),
        "not_private": ledger.path.name.endswith(NOT_PRIVATE),
        "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
        "publish": {
            "epsilon": whole.epsilon,
            "delta": whole.delta,
            "neighbours": whole.neighbours.value if known else None,
        },
        "data_set": {
            "epsilon": total.epsilon,
            "delta": total.delta,
            "neighbours": None if total.neighbours is None else total.neighbours.value,
        },
        "budget": None if math.isinf(budget) else budget,
        "left": None if math.isinf(budget) else max(0.0, budget - total.epsilon),
    }


def data_set_line(ledger: Ledger) -> str:
    """Return a sentence on what a data set has spent, by both of its ledgers."""
    names = sorted((ledger.path.name, sibling_ledger(ledger.path).name), key=len)
    total = ledger.data_set_total()
    left = _remainder(ledger, total.epsilon)
    return f"{names[0].removesuffix('.ledger')}, by all ledgers: {total}; {left}"


def total_line(ledger: Ledger, unit: str = "record", *, user: str = "user") -> str:
    """Return a sentence on what a data set has spent so far, in one ε, and its ledger's place.

    ``unit`` is the owner's noun for one record, and ``user`` for whoever has several.
    """
    place = ledger.path.absolute()
    if ledger.path.name.endswith(NOT_PRIVATE):
        return f"All releases so far: no ε, because none of them is private ({place})"
    total = ledger.data_set_total()
    figure = format_cost(total.epsilon, total.delta)
    left = _remainder(ledger, total.epsilon)
    relation = in_units(total.relation, user if total.coverage is Coverage.USER else unit)
    return f"Whole data set so far: {figure}, for {relation}; {left} ({place})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCharge:
    """A charge that is to be made: what it costs a data set, where, and what is left after it.

    ``epsilon`` is the difference that it makes to the data set's total: at the λ of its ledgers,
    which is not the best one for its events alone.
    """

    ledger: Path
    epsilon: float
    delta: float
    budget: float | None  # of the data set; None: none is set
    left: float | None
    of: str = ""  # what is paid for, where there is more than one charge
    total: float = 0.0  # of the data set, after it

    @classmethod
    def make(
        cls,
        ledger: Ledger,
        events: Sequence[Event],
        *,
        records: Neighbours | None = None,
        path: Path | None = None,
        after: Sequence[Event] = (),
        of: str = "",
    ) -> PlannedCharge:
        """Return the charge of events, ``after`` others that are to be charged to it first.

        ``path`` is that of a ledger to be made.
        """
        before = ledger.data_set_total(more=after, records=records).epsilon
        total = ledger.data_set_total(more=[*after, *events], records=records).epsilon
        budget = None if math.isinf(ledger.data_set_budget) else ledger.data_set_budget
        return cls(
            ledger=path or ledger.path,
            epsilon=total - before,
            delta=ledger.terms.budget.delta,
            budget=budget,
            left=None if budget is None else budget - total,
            of=of,
            total=total,
        )

    def __str__(self) -> str:
        left = "no budget is set"
        if self.left is not None:
            left = f"{format_remaining(self.left)} of {self.budget:g} left after it"
        what = f" for {self.of}" if self.of else ""
        delta = f"(δ {format_delta(self.delta)})"
        if self.total > self.epsilon:  # not the first charge: less than the run's own ε
            return (
                f"will bring the data set's ε to {format_epsilon(self.total)} {delta} by a charge"
                f"{what} to {self.ledger}; its increment of {format_epsilon(self.epsilon)} is not "
                f"an ε to publish; {left}"
            )
        epsilon = format_epsilon(self.epsilon)
        return f"will charge ε {epsilon} {delta}{what} to {self.ledger}; {left}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ledger": str(self.ledger)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The charges that a run would make, and remarks: why there is none, and what it needs."""

    charges: tuple[PlannedCharge, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.notes, *self.charges)))

    def as_json(self) -> dict[str, Any]:
        return {"charges": [each.as_json() for each in self.charges], "notes": list(self.notes)}


@contextlib.contextmanager
def trial_ledger(path: Path, open_at: Callable[[Path], Ledger]) -> Iterator[Ledger]:
    """Open a ledger to compute what would be charged to it; none is made at ``path``.

    Where there is none, one like it is made in a temporary folder, beside a copy of what the data
    set's other ledger has.
    """
    require_no_earlier(path)
    if path.exists():
        with open_at(path) as ledger:
            yield ledger
        return
    with tempfile.TemporaryDirectory() as folder:
        if sibling_ledger(path).exists():
            copy_charges(sibling_ledger(path), Path(folder) / sibling_ledger(path).name)
        with open_at(Path(folder) / path.name) as ledger:
            yield ledger


def _remainder(ledger: Ledger, used: float) -> str:
    limit = ledger.data_set_budget
    if math.isinf(limit):
        return "no budget was set"
    return f"left {format_remaining(limit - used)} of {limit:g}"
