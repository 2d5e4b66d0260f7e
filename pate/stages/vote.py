"""The vote stage: every teacher's prediction for every public input, and the counts of votes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Artifact, Level, StoreError
from pate.engines import Outcome, Progress, Task
from pate.engines.files import makes, reads
from pate.errors import PateError, TeacherError
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.dispatch import Dispatcher, Work, group_task, groups, read_failures, work_for
from pate.stages.encode import public_features_path
from pate.stages.teach import record_abstentions
from pate.stages.worker import ABSTAINS, CHUNK

_TEACHERS = "teachers.json"


def _settings(recipe: Recipe, options: Options) -> Any:
    return {"on_error": recipe.teachers.on_error}


def _run(context: Context) -> None:
    """Write predictions and counts to disk: memory holds one chunk of queries, whatever k is."""
    teachers = context.inputs["teach"].json("teachers.json")
    public = context.inputs["data-public"]
    queries, classes = len(public.array("features.npy")), int(public.facts["classes"])
    with context.draft(Level.PRIVATE) as draft:
        predictions = draft.new_array(
            "predictions.npy", dtype=np.int32, shape=(len(teachers), queries)
        )
        counts = draft.new_array("counts.npy", dtype=np.int32, shape=(queries, classes))
        known = _count_known(context, teachers, predictions, counts)
        voting = [n for n, name in enumerate(teachers) if name is not None and n not in known]
        for number in set(range(len(teachers))) - {*voting, *known}:
            predictions[number] = ABSTAINS
        draft.save_json(_TEACHERS, teachers)
        done, slots = len(teachers) - len(voting), context.options.engine.slots
        with context.options.progress("vote", len(teachers), done, slots) as progress:
            failed = _collect(context, teachers, voting, draft.path, predictions, counts, progress)
        draft.facts.update(context.inputs["teach"].facts)
        if len(failed) == len(voting) and not known:
            raise TeacherError(f"no teacher could vote; teacher {voting[0]}: {failed[voting[0]]}")
        record_abstentions(context, failed)


def _count_known(
    context: Context,
    teachers: list[str | None],
    predictions: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> set[int]:
    """Count the votes that an earlier result holds of the same teachers; return which these are.

    One that cast no vote is asked again: why is recorded with the result.
    """
    asked = {name: context.provenance[name] for name in ("data-public", "encoder", "on_error")}
    best: tuple[list[int], Artifact | None] = ([], None)
    for each in context.store.all("vote"):
        if _TEACHERS in each.manifest["files"] and asked.items() <= each.manifest["inputs"].items():
            voted = each.array("predictions.npy")[:, 0] != ABSTAINS
            pairs = enumerate(zip(teachers, each.json(_TEACHERS), voted, strict=False))
            same = [n for n, (now, before, cast) in pairs if cast and now == before]
            best = max(best, (same, each), key=lambda found: len(found[0]))
    same, earlier = best
    if earlier is not None:
        votes = context.store.open("vote", earlier.manifest["made_from"]).array("predictions.npy")
        _count(votes, Work(list(range(len(votes))), same), predictions, counts)
    return set(same)


def _collect(
    context: Context,
    teachers: list[str | None],
    voting: list[int],
    folder: Path,
    predictions: NDArray[np.int32],
    counts: NDArray[np.int32],
    progress: Progress,
) -> dict[int, str]:
    """Ask all teachers in groups; the members of a lost group are asked one by one.

    Guarantees:
        A teacher abstains on all queries, and for what it did itself: one record still moves one
        vote on a query. After another's failure it is asked in its place, and rounds the same
        (:meth:`pate.stages.dispatch.Work.after_loss`).
    """
    spec = context.recipe.teachers
    dispatcher = Dispatcher(
        engine=context.options.engine,
        timeout=spec.timeout,
        abstaining=spec.on_error == "abstain",
        task=lambda work: _task(context, teachers, work, folder),
        weight=lambda work: float(len(work.wanted)),
        missing=lambda work: work.wanted,
        failures=lambda work, outcome: _failures(context, outcome, work.wanted),
        progress=progress,
    )
    failed: dict[int, str] = {}
    for work, succeeded, failures in dispatcher.run(work_for(groups(spec), voting)):
        for number, why in failures.items():
            if spec.on_error != "abstain":
                raise TeacherError(f"teacher {number} could not vote: {why}")
            predictions[number] = ABSTAINS
            progress.advance()
        failed |= failures
        part = _part(folder, work)
        if succeeded:
            answers = np.load(part, mmap_mode="r")
            _count(answers, Work(work.group, succeeded), predictions, counts)
        part.unlink(missing_ok=True)
    for leftover in [*folder.glob("part-*"), *folder.glob(".part-*")]:  # of workers that were lost
        leftover.unlink()
    return failed


def _failures(context: Context, outcome: Outcome, wanted: list[int]) -> dict[int, str]:
    try:
        return read_failures(outcome, wanted)
    except PateError as stop:
        if outcome.result is None or "damaged" not in outcome.result:
            raise
        place = context.inputs["teach"].path
        raise StoreError(f"{stop}; remove {place} too, to have it trained again") from None


def _count(
    answers: NDArray[np.int32],
    work: Work,
    predictions: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> None:
    """Add the votes of the wanted teachers, a chunk of queries at a time."""
    queries, classes = counts.shape
    rows = [work.group.index(number) for number in work.wanted]
    for start in range(0, queries, CHUNK):
        block = np.array(answers[rows, start : start + CHUNK])
        predictions[work.wanted, start : start + CHUNK] = block
        cells = np.arange(block.shape[1]) * classes + block
        counts[start : start + CHUNK] += np.bincount(
            cells[block != ABSTAINS], minlength=block.shape[1] * classes
        ).reshape(-1, classes)


def _part(folder: Path, work: Work) -> Path:
    """Return the file of a group's predictions until they are counted."""
    return folder / f"part-{work.name}.npy"


def _task(context: Context, teachers: list[str | None], work: Work, folder: Path) -> Task:
    def member(number: int) -> dict[str, Any]:
        place = context.store.folder("teacher", Level.PRIVATE, str(teachers[number]))
        return {"made_from": teachers[number], "folder": reads(place)}

    return group_task(
        context,
        work,
        "predict_group",
        member=member,
        weight=float(len(work.wanted)),
        inputs=reads(public_features_path(context)),
        part=makes(_part(folder, work)),
        classes=context.inputs["data-public"].facts["classes"],
    )


VOTE = Stage(
    name="vote",
    version=1,
    needs=("teach", "data-public", "encoder"),
    clearance=Level.PRIVATE,
    settings=_settings,
    run=_run,
)
