"""Opening the ledger of a data set, and its state in a sentence."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path

from pate._files import create_once, earlier_data_folders, error_reason, user_data_folder
from pate._format import describe_neighbours, format_epsilon, format_remaining
from pate.accounting.events import Event
from pate.accounting.guarantee import Conversion, Guarantee, Neighbours
from pate.accounting.ledger import Ledger
from pate.accounting.ledger.data_set import NOT_PRIVATE, shares_budget, sibling_ledger
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
    budget a new ledger is an odometer, which refuses nothing. Its λ is then ``moment``, the best
    one for the first plan, which must not depend on private data.
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
    if limit < math.inf:
        moment = _moment_for_rest(limit - spent, delta, conversion) if spent else None
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
            f"δ {spent.delta:g}, which does not hold: none of them is private"
        )
    text = (
        f"{ledger.path.absolute()}, all releases: so far ε {format_epsilon(spent.epsilon)} at "
        f"δ {spent.delta:g}; to be published: ε {format_epsilon(whole.epsilon)}"
    )
    if whole.neighbours in (Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT):
        text += f" for {describe_neighbours(whole.neighbours)}"
    if own:
        return text
    total, used = ledger.data_set_total(), spent.epsilon
    if len(total.shares) > 1 or total.restated:
        text += f"; the data set in all: {total}"
        used = total.epsilon
    return f"{text}; {_remainder(ledger, used)}"


def data_set_line(ledger: Ledger) -> str:
    """Return a sentence on what a data set has spent, by both of its ledgers."""
    names = sorted((ledger.path.name, sibling_ledger(ledger.path).name), key=len)
    total = ledger.data_set_total()
    left = _remainder(ledger, total.epsilon)
    return f"{names[0].removesuffix('.ledger')}, by all ledgers: {total}; {left}"


def charge_line(
    ledger: Ledger, events: Sequence[Event], *, records: Neighbours, path: Path | None = None
) -> str:
    """Return what charging events will cost a data set, where, and what is left after it.

    It is the difference that the charge makes to the data set's total: at the λ of its ledgers,
    which is not the best one for the events alone. ``path`` is that of a ledger to be made.
    """
    before = ledger.data_set_total().epsilon
    after = ledger.data_set_total(more=events, records=records).epsilon
    budget = ledger.data_set_budget
    left = f"{format_remaining(budget - after)} of {budget:g} left after it"
    return (
        f"will charge ε {format_epsilon(after - before)} (δ {ledger.terms.budget.delta:g}) to "
        f"{path or ledger.path}; {'no budget is set' if math.isinf(budget) else left}"
    )


def _remainder(ledger: Ledger, used: float) -> str:
    limit = ledger.data_set_budget
    if math.isinf(limit):
        return "no budget was set"
    return f"left {format_remaining(limit - used)} of {limit:g}"
