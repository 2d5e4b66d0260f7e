"""Which charges of a ledger paid for what lies in a folder, and whose mark they bear."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pate.accounting import Ledger
from pate.artifacts import Artifact, Store


def release_of(answer: Artifact) -> str:
    """The name under which an answer is charged (:mod:`pate.stages.releasing`)."""
    return f"labels {answer.manifest['made_from'][:40]} {answer.json('charge.json')['name']}"


def releases_in(store: Store, made_from: Collection[str] | None = None) -> set[str]:
    """The names of all answers in a folder, or of those of some labels, and of what they extend."""
    found = set()
    for answer in (each for s in ("pending", "begun") for each in store.all(f"{s}-labels")):
        if made_from is None or answer.manifest["made_from"] in made_from:
            found |= {release_of(answer), answer.json("charge.json").get("extends")}
    return {name for name in found if name is not None}


def others(ledger: Ledger, releases: Iterable[str], *, study: str) -> bool:
    """Whether any of these was charged by itself, or for another study: it came before this one."""
    wanted = set(releases)
    return any(each.release in wanted and each.study != study for each in ledger.charges())


def claim(ledger: Ledger, releases: Iterable[str], *, study: str) -> None:
    """Marks what a study uses and was charged by itself; note first that it was so.

    Whoever releases it later is then asked whether it was chosen by its result.
    """
    wanted = set(releases)
    for each in ledger.charges():
        if each.release in wanted and each.study is None:
            ledger.mark(each.release, study=study)
