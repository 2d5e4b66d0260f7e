"""The ledger of a private data set: where it lies, and how a run opens it."""

from __future__ import annotations

from pathlib import Path

from pate.accounting import Conversion, Ledger, Neighbours
from pate.accounting.ledger.data_ledger import open_data_ledger
from pate.accounting.ledger.data_set import NOT_PRIVATE
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Options


def ledger_path(recipe: Recipe, data_root: Path, *, seeded: bool = False) -> Path:
    """Beside the data, by the name of the data set: deleting a run refunds nothing.

    Releases with seeded noise are not private and no budget covers them: they are kept apart.
    """
    kind = NOT_PRIVATE if seeded else "ledger"
    return data_root / "ledgers" / f"{recipe.data.name}.{kind}"


def ledger_of(recipe: Recipe, options: Options) -> Path:
    """Where the ledger is that a run with these options is charged to."""
    return ledger_path(recipe, options.data_root, seeded=options.insecure_seed is not None)


def open_ledger(recipe: Recipe, options: Options, *, moment: float | None = None) -> Ledger:
    """Opens the data set's ledger, or makes it with the recipe's budget.

    Without a budget it is an odometer: it reports, and refuses nothing; its λ is then ``moment``,
    the best one for the first plan, which was made without a look at any vote.
    """
    privacy = recipe.privacy
    return open_data_ledger(
        ledger_of(recipe, options),
        budget=privacy.budget,
        delta=privacy.delta,
        neighbours=Neighbours.REPLACE_ONE,
        conversion=Conversion(privacy.conversion),
        moment=moment,
    )
