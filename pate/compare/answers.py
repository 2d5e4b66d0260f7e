"""Which charges of a study paid for what lies in the comparison's folder, and which for more.

A comparison of the same name in another folder is the same study to the ledger, and so is one whose
answers were lost: what came out of it may have been looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpsgd.checkpoint import releases
from dpsgd.runs import CHECKPOINT, STAGE
from pate.accounting import Event, Ledger
from pate.accounting.events import tally
from pate.artifacts import Level
from pate.artifacts.manifest import MANIFEST
from pate.errors import InvalidInput, LedgerError, SpendNeeded
from pate.stages.releasing import releases_in_ledger
from pate.studies.charges import claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models of DP-SGD in the folder, by the names under which they are charged."""

    study: str
    here: frozenset[str]
    own: frozenset[str]  # of the points that are asked for

    def require_consent(self, ledger: Path, plans: Iterable[tuple[Event, ...]]) -> None:
        """Refuses to pay again for a model that the study paid for and that is not here.

        Names of models are random, so it is known again by what it cost.
        """
        if not ledger.exists():
            return
        with Ledger.open(ledger) as opened:
            of_study = [each for each in opened.charges() if self.study in each.studies]
        lost = [tally(each.events) for each in of_study if each.release not in self.here]
        if any(tally(plan) in lost for plan in plans):
            raise SpendNeeded(
                f"the ledger at {ledger} has already paid for such a model of the study "
                f"“{self.study}”, and it is not in this folder; go on in the folder where it is, "
                "or choose an --out of another name, or, to train a new one and pay again, add "
                "--spend"
            )

    def claim(self, ledger: Ledger) -> None:
        """Marks what was charged by itself as part of the study."""
        claim(ledger, self.own, study=self.study)


def require_charged(homes: Iterable[Path], ledger: Path, *, seeded: Path) -> None:
    """Refuses to go on with models that are released and that no ledger knows of.

    ``homes`` are their folders, ``ledger`` and ``seeded`` the files for secure and seeded noise.
    A model whose names are not to be found counts as one that was not charged.
    """
    paid = releases_in_ledger(ledger) | releases_in_ledger(seeded)
    for home in homes:
        if not any(home.glob(f"{Level.RELEASED.folder}/{STAGE}/*/{MANIFEST}")):
            continue  # begun at most
        names = models_in([home])
        if not names:
            raise LedgerError(
                f"{home} holds a model without its {CHECKPOINT}, by which the ledger knows it; "
                "restore that from a backup"
            )
        if not names <= paid:
            raise LedgerError(
                f"the ledger at {ledger} lacks the charge of the model that is released in {home}; "
                "restore the ledger from a backup"
            )


def models_in(folders: Iterable[Path]) -> frozenset[str]:
    """The names under which models in some folders are charged; a damaged one counts as lost."""
    found: set[str] = set()
    for folder in folders:
        for file in folder.glob(f"{Level.PRIVATE.folder}/*/{CHECKPOINT}"):
            with contextlib.suppress(InvalidInput):
                found |= releases(file)
    return frozenset(found)
