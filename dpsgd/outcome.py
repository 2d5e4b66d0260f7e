"""What a finished run has released, found again without loading torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsgd.ledgers import ledger_path
from dpsgd.recipe import Recipe
from dpsgd.workplace import private_folder, require_home
from pate.accounting import Ledger
from pate.accounting.events import event_from_json, relation_of
from pate.accounting.ledger.data_ledger import budget_line
from pate.artifacts import Artifact, Store, fingerprint
from pate.errors import LedgerError

STAGE = "training"
_VERSION = 1  # raised when the same recipe would give another result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What a run has come to; everything in it was released."""

    artifact: Artifact
    new: bool  # False: it was complete before
    ledger: str | None  # what the data set has spent, in a sentence

    @property
    def report(self) -> dict[str, Any]:
        """The guarantee and what it rests on, and the accuracy of every epoch."""
        report: dict[str, Any] = self.artifact.json("guarantee.json")
        # The relation follows from the events: before zero-out had a name, more was claimed.
        events = map(event_from_json, report["events"])
        report["guarantee"]["neighbours"] = relation_of(events).value
        return report


def name_of_run(recipe: Recipe, insecure_seed: int | None) -> str:
    """A fingerprint of the settings; of the private records nothing goes into it.

    The data set's budget does not change what is made, and is left out; so is what was added to
    recipes later, where it is not used.
    """
    settings = recipe.model_dump(mode="json")
    settings["privacy"].pop("budget")
    if settings["training"]["records"] is None:
        settings["training"].pop("records")
    return fingerprint("dpsgd train", _VERSION, settings, insecure_seed)


def digest_of_settings(recipe: Recipe, insecure_seed: int | None) -> str:
    """A digest of everything that decides what is trained and what it costs.

    Where the data lie is left out: the ledger that it is noted in is that of the data set. So is
    what is done the same with any value (the data set's budget, records in memory, which epochs are
    tested).
    """
    settings = recipe.model_dump(mode="json", exclude={"evaluate"})
    settings["privacy"].pop("budget")
    settings["training"].pop("batch_size")
    for key in ("source", "private_path", "public_path", "test_path"):
        settings["data"].pop(key)
    return fingerprint("dpsgd settings", settings, insecure_seed)[:40]


def find_outcome(
    recipe: Recipe,
    folder: Path,
    *,
    data_root: Path,
    insecure_seed: int | None = None,
    new: bool = False,
) -> Outcome | None:
    """The outcome of this recipe in a folder, its files checked; None where it is not complete."""
    store, name = Store(root=folder), name_of_run(recipe, insecure_seed)
    if store.find(STAGE, name) is None:
        return None
    path = ledger_path(recipe, data_root, insecure_seed)
    require_home(private_folder(folder, name), path)
    artifact, line = store.open(STAGE, name), None
    charged = set(artifact.facts.get("charges", ()))  # earlier versions did not note them
    if path.exists():
        with Ledger.open(path) as ledger:
            line = budget_line(ledger)
            charged -= ledger.releases()
    if charged:
        raise LedgerError(
            f"the ledger at {path} lacks the charge of the model that is released in {folder}, so "
            "what was spent is not known: restore the ledger from a backup that was made after that"
        )
    return Outcome(artifact=artifact, new=new, ledger=line)
