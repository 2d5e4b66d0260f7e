"""Traces of settings that were tuned on the private data, and what no ε says of them.

A run's ε holds for settings that were chosen without a look at the data (``pate plan`` does it so).
What a person looked at cannot be known; what left a trace can, and ``pate run`` and the report
say it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pate.accounting import Ledger
    from pate.pipeline.runner import Run

LOOKS = "votes-looked-at.jsonl"  # beside the private artifacts of a run


def tuning_told(run: Run, ledger: Ledger) -> list[str]:
    """A sentence for each trace of tuning that this run's own ε does not cover."""
    told = []
    earlier = 0 if run.artifact("aggregate").facts["extended"] else _earlier_releases(run, ledger)
    if earlier:
        told.append(
            f"{_times(earlier, 'other release was', 'other releases were')} drawn from this data "
            "set before. If what came out led to these settings, this run's own ε does not account "
            "for that tuning; the ε of all releases, to be published, does."
        )
    seeded = _seeded_releases(run)
    if seeded:
        told.append(
            f"{_times(seeded, 'release', 'releases')} of this data set had seeded noise. Settings "
            "chosen by them are tuned on private votes: that is not accounted for by any ε."
        )
    looks = _looks(run.folder)
    if looks:
        told.append(
            f"Votes in this folder were given to `pate epsilon` {_times(looks, 'time', 'times')}. "
            "Settings chosen by its figures are tuned on private votes: that is not accounted for "
            "by any ε."
        )
    return told


def _earlier_releases(run: Run, ledger: Ledger) -> int:
    """Releases, of labels or of models, that were paid for before this run's, from other settings.

    A sanitised figure goes with its labels and is not counted again.
    """
    drawn = str(run.artifact("aggregate").facts["drawn"])
    own = f"labels {drawn[:40]} "
    charges = ledger.charges()
    first = min((each.number for each in charges if each.release.startswith(own)), default=0)
    before = [each.release for each in charges if each.number < first]
    return sum(not release.startswith((own, "sanitised ")) for release in before)


def _seeded_releases(run: Run) -> int:
    from pate.accounting import Ledger
    from pate.pipeline.spending import ledger_path

    if run.options.insecure_seed is not None:  # this run is not private anyhow, and says so
        return 0
    place = ledger_path(run.recipe, run.options.data_root, seeded=True)
    if not place.exists():
        return 0
    with Ledger.open(place) as ledger:
        return sum(not each.release.startswith("sanitised ") for each in ledger.charges())


def _looks(folder: Path) -> int:
    try:
        return len((folder / "private" / LOOKS).read_text().splitlines())
    except OSError:
        return 0


def _times(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
