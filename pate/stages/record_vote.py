"""The cells and vote stages of record votes: public cells, then a count of records in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pate.artifacts import Level
from pate.components import load_places, make_places
from pate.engines import Progress, Task
from pate.engines.files import makes, reads, rows
from pate.errors import InvalidInput, PateError
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.dispatch import Dispatcher, Work, read_failures
from pate.stages.distill import require_student
from pate.stages.encode import private_features_path, public_features, require_complete

_TASKS = 8  # that the shards are grouped into: a fixed number, so that tasks follow from settings


def _cells_settings(recipe: Recipe, options: Options) -> Any:
    votes = recipe.votes
    found: dict[str, Any] = {} if votes.components is None else {"components": votes.components}
    if votes.expected_records is None:
        return found or {"cells": votes.cells}
    public = {"expected_records": votes.expected_records, "deviation": recipe.count_deviation}
    return found | public


def _make_cells(context: Context) -> None:
    """Write the cells or components, from public features: the store refuses anything else."""
    features = np.array(public_features(context))
    classes = int(context.inputs["data-public"].facts["classes"])
    votes = context.recipe.resolved_votes(inputs=len(features), classes=classes)
    made = make_places(features, votes)
    if context.recipe.votes.reach > len(made):
        raise InvalidInput(
            f"votes.reach is {context.recipe.votes.reach}, and there are {len(made)} cells; lower "
            "it"
        )
    with context.draft(Level.PUBLIC) as draft:
        made.save(draft.path)


# ------------------------------------------------------------------ vote


def _vote_settings(recipe: Recipe, options: Options) -> Any:
    return {"reach": recipe.votes.reach}


def _vote(context: Context) -> None:
    """Write the table of votes; memory holds one block of distances, whatever the records are."""
    classes = int(context.inputs["data-public"].facts["classes"])
    require_distillable(context)
    cells = len(load_places(context.inputs["cells"].path))
    shards = context.inputs["partition"]
    count = len(shards.array("offsets.npy")) - 1
    with context.draft(Level.PRIVATE) as draft:
        counts = np.zeros((cells, classes), dtype=np.int64)
        slots = context.options.engine.slots
        with context.options.progress("vote", count, 0, slots) as progress:
            for part in _parts(context, draft.path, count, progress):
                counts += np.load(part, allow_pickle=False)
                part.unlink()
        for leftover in [*draft.path.glob("part-*"), *draft.path.glob(".part-*")]:
            leftover.unlink()  # of workers that were lost
        draft.save_array("counts.npy", counts)
        draft.facts.update(shards.facts)


def require_distillable(context: Context) -> None:
    """Refuse a student that cannot be made, or that takes no inputs such as these.

    For this stage, and for a study before its first charge.
    """
    classes = int(context.inputs["data-public"].facts["classes"])
    width = int(np.prod(public_features(context).shape[1:]))
    require_student(context.recipe, context.options, classes=classes)
    require_complete(context, classes=classes, width=width)


def _parts(context: Context, folder: Path, count: int, progress: Progress) -> Any:
    """Yield the tables of all shards, each counted once, as workers finish them."""
    offsets = context.inputs["partition"].array("offsets.npy")
    dispatcher = Dispatcher(
        engine=context.options.engine,
        timeout=None,
        abstaining=False,
        task=lambda work: _task(context, work, folder),
        weight=lambda work: float(sum(offsets[n + 1] - offsets[n] for n in work.wanted)),
        missing=lambda work: work.wanted,
        failures=lambda work, outcome: read_failures(outcome, work.wanted),
        progress=progress,
    )
    size = -(-count // _TASKS)
    groups = [list(range(n, min(n + size, count))) for n in range(0, count, size)]
    for work, succeeded, failed in dispatcher.run(Work(group, group) for group in groups):
        for number, why in failed.items():
            raise PateError(f"the records of part {number} could not vote: {why}")
        if succeeded:
            yield _part(folder, work)


def _part(folder: Path, work: Work) -> Path:
    return folder / f"part-{work.name}.npy"


def _task(context: Context, work: Work, folder: Path) -> Task:
    shards = context.inputs["partition"]
    offsets, labels = shards.array("offsets.npy"), shards.path / "labels.npy"
    features = private_features_path(context)
    slices = [offsets[number : number + 2] for number in work.wanted]
    return Task(
        key=work.name,
        function="pate.stages.worker:count_group",
        payload={
            "cells": reads(context.inputs["cells"].path),
            "classes": context.inputs["data-public"].facts["classes"],
            "reach": context.recipe.votes.reach,
            "part": makes(_part(folder, work)),
            "shards": [
                {"records": rows(features, *each), "labels": rows(labels, *each)} for each in slices
            ],
        },
        weight=float(sum(stop - start for start, stop in slices)),
    )


CELLS = Stage(
    name="cells",
    version=1,
    needs=("data-public", "encoder"),
    clearance=Level.PUBLIC,
    settings=_cells_settings,
    run=_make_cells,
)

VOTE_RECORDS = Stage(
    name="vote",
    version=1,
    needs=("partition", "encoder", "encode", "data-public", "cells"),
    clearance=Level.PRIVATE,
    settings=_vote_settings,
    run=_vote,
)
