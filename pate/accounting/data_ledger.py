"""The ledger of a data set: opened for any run on it, made by the first."""

from __future__ import annotations

import math
from pathlib import Path

from pate.accounting.guarantee import Conversion, Guarantee, Neighbours
from pate.accounting.ledger import Ledger
from pate.accounting.shown import upwards
from pate.accounting.terms import Mode
from pate.errors import LedgerError

NOT_PRIVATE = "not-private.ledger"  # the end of the name of a ledger whose releases are not


def open_data_ledger(
    path: Path,
    *,
    budget: float | None,
    delta: float,
    neighbours: Neighbours,
    conversion: Conversion = Conversion.IMPROVED,
    moment: float | None = None,
) -> Ledger:
    """Opens the ledger at ``path``, or makes it; a ``budget`` that was agreed on never changes.

    Without a budget a new ledger is an odometer: it reports, and refuses nothing. Its λ is then
    ``moment``, the best one for the first plan, which must be made without a look at private data.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"cannot make the folder {path.parent}: {error.strerror}") from error
    if path.exists():
        ledger = Ledger.open(path)
        agreed = ledger.terms.budget
        if budget is not None and budget != agreed.epsilon:
            ledger.close()
            raise LedgerError(
                f"the ledger at {path} was agreed on with a budget of ε {agreed.epsilon:g}; "
                f"privacy.budget is {budget:g}, and a budget never changes"
            )
        return ledger
    terms = Guarantee(
        epsilon=math.inf if budget is None else budget,
        delta=delta,
        moment=moment if budget is None else None,
        neighbours=neighbours,
        conversion=conversion,
    )
    return Ledger.open(path, budget=terms, mode=Mode.ODOMETER if budget is None else Mode.FILTER)


def budget_line(ledger: Ledger) -> str:
    """Spent and left, in a sentence, with the figure that may be published of it all."""
    spent, whole = ledger.spent(), ledger.guarantee()
    if ledger.path.name.endswith(NOT_PRIVATE):
        return (
            f"{ledger.path.name}, all releases: ε {upwards(spent.epsilon)} at δ {spent.delta:g}, "
            "which does not hold: none of them is private"
        )
    text = (
        f"{ledger.path.name}, all releases: so far ε {upwards(spent.epsilon)} at "
        f"δ {spent.delta:g}; to be published: ε {upwards(whole.epsilon)}"
    )
    if ledger.terms.mode is Mode.ODOMETER:
        return f"{text}; no budget was set"
    left = ledger.terms.budget.epsilon - spent.epsilon
    return f"{text}; left {left:.4g} of {ledger.terms.budget.epsilon:g}"
