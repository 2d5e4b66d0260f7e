"""The ledger of a private data set: where it lies, how a run opens it, and what it says."""

from __future__ import annotations

import math
from pathlib import Path

from dpsgd.recipe import Recipe
from dpsgd.run_plan import RunPlan
from pate.accounting import Conversion, Guarantee, Ledger, Mode, Neighbours, compose
from pate.errors import LedgerError


def ledger_path(recipe: Recipe, data_root: Path, *, seeded: bool = False) -> Path:
    """Beside the data, by the name of the data set: deleting a run refunds nothing.

    It is not the ledger of ``pate``: costs of votes hold for one record replaced, costs of lots for
    one added or removed, and the two do not add up moment by moment.
    """
    kind = "dpsgd.not-private.ledger" if seeded else "dpsgd.ledger"
    return data_root / "ledgers" / f"{recipe.data.name}.{kind}"


def open_ledger(recipe: Recipe, plan: RunPlan, path: Path) -> Ledger:
    """Opens the data set's ledger, or makes it with the recipe's budget.

    Without a budget it is an odometer: it reports, and refuses nothing; its λ is then the best one
    for the first plan, which was made without a look at any record.
    """
    privacy = recipe.privacy
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"cannot make the folder {path.parent}: {error.strerror}") from error
    if path.exists():
        ledger = Ledger.open(path)
        agreed = ledger.terms.budget
        if privacy.budget is not None and privacy.budget != agreed.epsilon:
            ledger.close()
            raise LedgerError(
                f"the ledger at {path} was agreed on with a budget of ε {agreed.epsilon:g}; "
                f"privacy.budget is {privacy.budget:g}, and a budget never changes"
            )
        return ledger
    moment = None
    if privacy.budget is None:
        moment = compose(plan.events).guarantee(delta=privacy.delta).moment
    budget = Guarantee(
        epsilon=math.inf if privacy.budget is None else privacy.budget,
        delta=privacy.delta,
        moment=moment,
        neighbours=Neighbours.ADD_REMOVE,
        conversion=Conversion.IMPROVED,
    )
    mode = Mode.ODOMETER if privacy.budget is None else Mode.FILTER
    return Ledger.open(path, budget=budget, mode=mode)


def ledger_line(ledger: Ledger) -> str:
    """Spent and left, in a sentence, with the figure that may be published of it all."""
    spent, whole = ledger.spent(), ledger.guarantee()
    text = (
        f"{ledger.path.name}, all releases: so far ε {spent.epsilon:.4g} at δ {spent.delta:g}; "
        f"to be published: ε {whole.epsilon:.4g}"
    )
    if ledger.terms.mode is Mode.ODOMETER:
        return f"{text}; no budget was set"
    left = ledger.terms.budget.epsilon - spent.epsilon
    return f"{text}; left {left:.4g} of {ledger.terms.budget.epsilon:g}"
