"""Which charges of a ledger paid for what lies in a folder, and whose mark they bear."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pate.accounting import Ledger
from pate.artifacts import Artifact, Store
from pate.pipeline.runner import Run
from pate.stages.exactly_once import charges_behind


def release_of(answer: Artifact) -> str:
    """The name under which an answer is charged (:mod:`pate.stages.exactly_once`)."""
    return f"labels {answer.manifest['made_from'][:40]} {answer.json('charge.json')['name']}"


def releases_in(store: Store, made_from: Collection[str] | None = None) -> set[str]:
    """The names of all answers in a folder, or of those of some labels, and of what they extend."""
    found = set()
    for answer in (each for s in ("pending", "begun") for each in store.all(f"{s}-labels")):
        if made_from is None or answer.manifest["made_from"] in made_from:
            found |= {release_of(answer), answer.json("charge.json").get("extends")}
    return {name for name in found if name is not None}


def drawn_for(runs: Iterable[Run]) -> set[str]:
    """The fingerprints of the labels of some runs, as far as their votes are there."""
    states = (state for run in runs for state in run.states() if state.stage == "aggregate")
    return {state.made_from for state in states if state.made_from is not None}


def claim(ledger: Ledger, releases: Iterable[str], *, study: str) -> None:
    """Marks what a study uses and was charged by itself, or for another study.

    Whoever releases it later is then asked whether it was chosen by its result.
    """
    wanted = set(releases)
    for each in ledger.charges():
        if each.release in wanted and study not in each.studies:
            ledger.mark(each.release, study=study)


def claim_labels(ledger: Ledger, runs: Iterable[Run], *, study: str) -> None:
    """Marks the charges of the labels that runs rest on, whoever drew them, and when."""
    begins: list[str] = []
    for run in runs:
        drawn = str(run.artifact("aggregate").facts["drawn"])
        begins += charges_behind(run.store, "labels", drawn) or [f"labels {drawn[:40]} "]
    known = [each.release for each in ledger.charges()]
    claim(ledger, [each for each in known if each.startswith(tuple(begins))], study=study)


def is_paid(run: Run, ledger: Ledger) -> bool:
    """Whether a run's labels are released, or paid for and at hand."""
    state = next(each for each in run.states() if each.stage == "aggregate")
    if state.done or state.made_from is None:
        return state.done
    kept = [run.store.find(f"{s}-labels", state.made_from) for s in ("pending", "begun")]
    paid = ledger.releases()
    return any(release_of(answer) in paid for answer in kept if answer is not None)
