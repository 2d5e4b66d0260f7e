"""distill: released labels and public inputs → a student. Cannot open anything PRIVATE."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np

from pate.artifacts import Level
from pate.artifacts.results import Labels
from pate.devices import use_first
from pate.errors import InvalidInput, TeacherError
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.encode import graph_features, student_inputs
from pate.students.train import StudentData, train_student
from pate.teachers.adapters import make
from pate.teachers.persist import save


def _settings(recipe: Recipe, options: Options) -> Any:
    student = recipe.student.model_dump(mode="json")
    return {"student": student, "plugin": options.source_digest(student)}


def require_student(context: Context, *, classes: int) -> None:
    """Refuse a student that cannot be made: for stages before labels are paid for."""
    spec = context.recipe.student
    try:
        make(
            spec.as_model(),
            classes=classes,
            seed=spec.seed,
            plugin_path=context.options.plugin_path,
        )
    except (TeacherError, InvalidInput) as error:
        raise type(error)(f"the student cannot be made, so nothing was charged: {error}") from None


def _run(context: Context) -> None:
    """Train a student, which costs nothing: it is made from what is already paid for."""
    released = Labels.load(context.inputs["aggregate"])
    classes = int(context.inputs["data-public"].facts["classes"])
    rows, labels = released.rows, released.row_labels
    if len(np.unique(labels)) < 2:
        raise InvalidInput(
            f"{len(rows)} released labels of {len(np.unique(labels))} class are too few for a "
            "student; allow more queries, or lower the threshold"
        )
    data = StudentData(
        inputs=np.array(student_inputs(context)),
        features=graph_features(context),
        rows=rows,
        labels=labels,
        classes=classes,
    )
    # On the private side: its name follows from what the labels were drawn from.
    place = context.store.folder("distill", Level.PRIVATE, context.made_from)
    checkpoints = place.with_name(f".checkpoint-{place.name}")
    with use_first(context.options.engine.devices):
        student = train_student(
            context.recipe.student,
            data,
            plugin_path=context.options.plugin_path,
            folder=checkpoints,
            progress=context.options.progress,
        )
    with context.draft(Level.RELEASED) as draft:
        save(student, draft.path)
        draft.facts.update(
            labels=len(rows),
            classes=classes,
            student=context.recipe.student.model_dump(mode="json"),
            randomness=released.randomness,
        )
    shutil.rmtree(checkpoints, ignore_errors=True)


DISTILL = Stage(
    name="distill",
    version=1,
    needs=("aggregate", "data-public", "encoder"),
    clearance=Level.RELEASED,
    settings=_settings,
    run=_run,
)
