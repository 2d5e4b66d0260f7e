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
from dpsgd.workplace import CHECKPOINT
from pate.accounting import Charge, Event, Ledger
from pate.accounting.events import tally
from pate.artifacts import Level
from pate.errors import InvalidInput, SpendNeeded
from pate.studies.charges import claim, others


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What of one method lies in the folder, by the names under which it is charged."""

    ledger: Path
    study: str
    here: frozenset[str]
    own: frozenset[str]  # of the points that are asked for

    def came_before(self) -> bool:
        """Whether some were not fixed together: drawn elsewhere, lost, or charged by themselves."""
        if not self.ledger.exists():
            return False
        with Ledger.open(self.ledger) as ledger:
            return bool(self._lost(ledger)) or others(ledger, self.own, study=self.study)

    def claim(self) -> None:
        """Marks what was charged by itself as part of the study."""
        if self.ledger.exists():
            with Ledger.open(self.ledger) as ledger:
                claim(ledger, self.own, study=self.study)

    def require_consent(self, plans: Iterable[tuple[Event, ...]]) -> None:
        """Refuses to pay again for a model that the study paid for and that is not here.

        Names of models are random, so it is known again by what it cost.
        """
        if not self.ledger.exists():
            return
        with Ledger.open(self.ledger) as ledger:
            lost = [tally(each.events) for each in self._lost(ledger)]
        if any(tally(plan) in lost for plan in plans):
            raise SpendNeeded(
                f"the ledger at {self.ledger} has already paid for such a model of this study, and "
                "it is not in this folder; to train a new one and pay again, add --spend"
            )

    def _lost(self, ledger: Ledger) -> list[Charge]:
        charges = ledger.charges()
        return [c for c in charges if c.study == self.study and c.release not in self.here]


def models_in(folders: Iterable[Path]) -> frozenset[str]:
    """The names under which models in some folders are charged; a damaged one counts as lost."""
    found: set[str] = set()
    for folder in folders:
        for file in folder.glob(f"{Level.PRIVATE.folder}/*/{CHECKPOINT}"):
            with contextlib.suppress(InvalidInput):
                found |= releases(file)
    return frozenset(found)
