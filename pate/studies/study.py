"""A study: releases that are made to be compared (a sweep, a comparison).

A study has a folder of its own, whose name is in its tag. Its charges carry that tag from the
moment they are made, and it uses no other release: so the charges with its tag are all that its
results rest on. What choosing by these results costs is the cost of the plan that the ledger
recorded before the first charge, if the plan covers all of them; otherwise what the ledger states
for all its releases (:func:`pate.accounting.ledger.study_costs.study_cost`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pate.accounting import Ledger
from pate.artifacts import Artifact
from pate.errors import InvalidInput
from pate.pipeline.runner import Run

_DRAWS = ("pending-labels", "begun-labels")  # as pate.stages.releasing keeps them


def tag_of(kind: str, folder: Path) -> str:
    """Return the tag of a study: its kind, and the name of its folder.

    >>> tag_of("sweep", Path("runs/digits-sweep"))
    'sweep digits-sweep'
    """
    name = folder.absolute().name
    if not name.isprintable():
        raise InvalidInput(f"--out {folder!s:.80} has unprintable characters; choose another")
    return f"{kind} {name}"


def is_paid(run: Run, ledger: Ledger) -> bool:
    """Return whether a run's labels are released, or drawn and charged."""
    state = next(each for each in run.states() if each.stage == "aggregate")
    if state.done or state.made_from is None:
        return state.done
    paid = ledger.releases()
    return any(_charge_name(draw) in paid for draw in _draws(run, state.made_from))


def require_own_labels(runs: Iterable[Run], ledger: Ledger, *, tag: str) -> None:
    """Refuse to use labels that were not released for the study.

    To be called before anything is charged, and again for what was released since: another command
    may have released labels in the folder meanwhile.

    Guarantees:
        Every charge behind the labels of these runs carries the tag, so that none is missing from
        the cost of the study.
    """
    charges = {each.release: each.studies for each in ledger.charges()}
    for run in runs:
        for release, planned_for in _releases_behind(run, charges):
            tags = charges.get(release, (planned_for or tag,))
            if tag not in tags:
                made = f"for the study “{tags[0]}”" if tags else "by a run of its own"
                raise InvalidInput(
                    f"{run.folder} holds labels that were released {made}, and a study uses only "
                    f"what was released for it, here “{tag}”; choose another --out"
                )


def _releases_behind(run: Run, charged: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the charges behind a run's labels, each with the study that a draw is to be paid for.

    None are known where the votes, from which the labels' fingerprint follows, are not there yet.
    """
    state = next(each for each in run.states() if each.stage == "aggregate")
    if state.made_from is None:
        return
    drawn = str(run.artifact("aggregate").facts["drawn"]) if state.done else state.made_from
    draws = _draws(run, drawn)
    for draw in draws:
        note = draw.json("charge.json")
        yield _charge_name(draw), note.get("study")
        for release in draw.facts.get("charges", ())[1:]:  # what it extends
            yield release, None
    if state.done and not draws:  # of a draw that is gone the last part of its name is unknown
        for release in charged:
            if release.startswith(f"labels {drawn[:40]} "):
                yield release, None


def _draws(run: Run, drawn: str) -> list[Artifact]:
    """Return the draw of some labels, from before or after its charge, where it is in the store."""
    found = (run.store.find(kind, drawn) for kind in _DRAWS)
    return [each for each in found if each is not None]


def _charge_name(draw: Artifact) -> str:
    """Return the name under which a draw is charged (:mod:`pate.stages.releasing`)."""
    return f"labels {draw.manifest['made_from'][:40]} {draw.json('charge.json')['name']}"
