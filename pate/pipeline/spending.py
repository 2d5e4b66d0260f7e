"""The ledger of a private data set: where it lies, and how a run opens it."""

from __future__ import annotations

import math
from pathlib import Path

from pate.accounting import Conversion, Guarantee, Ledger, Mode, Neighbours
from pate.errors import LedgerError
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Options


def ledger_path(recipe: Recipe, data_root: Path, *, seeded: bool = False) -> Path:
    """Beside the data, by the name of the data set: deleting a run refunds nothing.

    Releases with seeded noise are not private and no budget covers them: they are kept apart.
    """
    kind = "not-private.ledger" if seeded else "ledger"
    return data_root / "ledgers" / f"{recipe.data.name}.{kind}"


def open_ledger(recipe: Recipe, options: Options, *, moment: float | None = None) -> Ledger:
    """Opens the data set's ledger, or makes it with the recipe's budget.

    Without a budget it is an odometer: it reports, and refuses nothing; its λ is then ``moment``,
    the best one for the first plan, which was made without a look at any vote.
    """
    path = ledger_path(recipe, options.data_root, seeded=options.insecure_seed is not None)
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
    budget = Guarantee(
        epsilon=math.inf if privacy.budget is None else privacy.budget,
        delta=privacy.delta,
        moment=moment if privacy.budget is None else None,
        neighbours=Neighbours.REPLACE_ONE,
        conversion=Conversion(privacy.conversion),
    )
    mode = Mode.ODOMETER if privacy.budget is None else Mode.FILTER
    return Ledger.open(path, budget=budget, mode=mode)
