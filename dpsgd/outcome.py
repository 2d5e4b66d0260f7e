"""What a finished run has released, found again without loading torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsgd.ledgers import ledger_path
from dpsgd.recipe import Recipe
from dpsgd.workplace import private_folder, require_home
from pate.accounting import Ledger
from pate.accounting.data_ledger import budget_line
from pate.artifacts import Artifact, Store, fingerprint

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
        return report


def name_of_run(recipe: Recipe, insecure_seed: int | None) -> str:
    """A fingerprint of the settings; of the private records nothing goes into it.

    The data set's budget does not change what is made, and is left out.
    """
    settings = recipe.model_dump(mode="json")
    settings["privacy"].pop("budget")
    return fingerprint("dpsgd train", _VERSION, settings, insecure_seed)


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
    line = None
    if path.exists():
        with Ledger.open(path) as ledger:
            line = budget_line(ledger)
    return Outcome(artifact=store.open(STAGE, name), new=new, ledger=line)
