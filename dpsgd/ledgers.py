"""The ledger of a private data set: where it lies, and how a run opens it."""

from __future__ import annotations

from pathlib import Path

from dpsgd.recipe import Recipe
from dpsgd.run_plan import RunPlan
from pate.accounting import Ledger, Neighbours, compose
from pate.accounting.ledger.data_ledger import open_data_ledger
from pate.accounting.ledger.data_set import NOT_PRIVATE


def ledger_path(recipe: Recipe, data_root: Path, insecure_seed: int | None = None) -> Path:
    """Beside the data, by the name of the data set: deleting a run refunds nothing.

    It is not the ledger of ``pate``: costs of votes hold for one record replaced, costs of lots for
    one added, removed or zeroed out, and these do not add up moment by moment. What a guarantee
    does not cover (a seed, shuffled lots, noise that is not cryptographic) is kept apart: no budget
    does.
    """
    covered = recipe.training.sampling == "poisson" and recipe.privacy.noise == "secure"
    private = covered and insecure_seed is None
    kind = "dpsgd.ledger" if private else f"dpsgd.{NOT_PRIVATE}"
    return data_root / "ledgers" / f"{recipe.data.name}.{kind}"


def open_ledger(recipe: Recipe, plan: RunPlan, path: Path) -> Ledger:
    """Opens the data set's ledger, or makes it with the recipe's budget.

    Without a budget it is an odometer: it reports, and refuses nothing; its λ is then the best one
    for the first plan, which was made without a look at any record. It takes charges for one record
    added or removed, and for zero-out; with one of the latter its figures are for zero-out.
    """
    privacy = recipe.privacy
    return open_data_ledger(
        path,
        budget=privacy.budget,
        delta=privacy.delta,
        neighbours=Neighbours.ADD_REMOVE,
        moment=compose(plan.events).guarantee(delta=privacy.delta).moment,
    )
