"""The ledger and the secret key of a private data set: where they lie, and how a run opens them.

The key is mixed into every fingerprint of a run. Fingerprints name artifacts, stand in RELEASED
manifests and in the ledger, and follow from private records. Without a key, anyone who knows all
records but one could work out the fingerprint for every guess of the last one, and compare.
"""

from __future__ import annotations

from pathlib import Path

from pate.accounting import Conversion, Ledger, Neighbours
from pate.accounting.ledger.data_ledger import (
    make_ledgers_folder,
    open_data_ledger,
    require_no_earlier,
    secret_key,
)
from pate.accounting.ledger.data_set import NOT_PRIVATE
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Options


def ledger_path(recipe: Recipe, data_root: Path, *, seeded: bool = False) -> Path:
    """Return the ledger's place: beside the data, by the data set's name, so that no run owns it.

    Releases with seeded noise are not private and no budget covers them: they are kept apart.
    """
    kind = NOT_PRIVATE if seeded else "ledger"
    return data_root / "ledgers" / f"{recipe.data.name}.{kind}"


def ledger_of(recipe: Recipe, options: Options) -> Path:
    """Return the place of the ledger that a run with these options is charged to."""
    return ledger_path(recipe, options.data_root, seeded=options.insecure_seed is not None)


def open_ledger(
    recipe: Recipe, options: Options, *, moment: float | None = None, path: Path | None = None
) -> Ledger:
    """Open the data set's ledger, or make it with the recipe's budget.

    Without a budget it is an odometer: it reports, and refuses nothing; its λ is then ``moment``,
    the best one for the first plan, which was made without a look at any vote. So it is where that
    plan may use up the whole budget. ``path`` takes the place of its own.
    """
    privacy = recipe.privacy
    if privacy.budget is not None and privacy.epsilon != privacy.budget:
        moment = None
    return open_data_ledger(
        path or ledger_of(recipe, options),
        budget=privacy.budget,
        delta=privacy.ledger_delta,
        neighbours=Neighbours.REPLACE_ONE,
        conversion=Conversion(privacy.conversion),
        moment=moment,
    )


def key_path(recipe: Recipe, data_root: Path) -> Path:
    """Return the key's place beside the ledger: every run of the data set uses the same key."""
    return ledger_path(recipe, data_root).with_suffix(".key")


def naming_key(recipe: Recipe, data_root: Path) -> str:
    """Return the key; it is drawn where there is none.

    Guarantees:
        Nobody can guess it (:func:`secret_key`): what is published of a run reveals nothing of
        private records through its fingerprints.
    """
    path = key_path(recipe, data_root)
    if not path.exists():
        require_no_earlier(ledger_path(recipe, data_root))
        make_ledgers_folder(path.parent)
    return secret_key(path).hex()
