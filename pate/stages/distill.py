"""distill: released labels and public inputs → a student. Cannot open anything PRIVATE."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Level, fingerprint
from pate.artifacts.results import Labels
from pate.devices import use_first
from pate.errors import InvalidInput, TeacherError
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.encode import graph_features, require_complete, student_inputs
from pate.students.spec import StudentSpec
from pate.students.train import StudentData, train_student
from pate.teachers.adapters import make
from pate.teachers.persist import require_releasable, restore, save
from pate.teachers.placement import isolated_randomness
from pate.teachers.protocol import Teacher, predict_labels

_TRIED = 256  # public inputs that a student is tried on
_ASKED = 8
_passed: tuple[Options, set[str]] | None = None  # what was tried: points of a study share it


def _settings(recipe: Recipe, options: Options) -> Any:
    student = recipe.student.model_dump(mode="json")
    return {"student": student, "plugin": options.source_digest(student)}


def require_student(recipe: Recipe, options: Options, *, classes: int) -> None:
    """Refuse a student that cannot be made: for stages before labels are paid for."""
    with _before_the_charge("be made", options):
        _fresh(recipe, options, classes=classes)


def require_learning(context: Context, *, classes: int, answers: int) -> None:
    """Refuse a student that cannot learn, predict or be stored, before labels are paid for.

    See :func:`try_student`.
    """
    global _passed
    require_student(context.recipe, context.options, classes=classes)
    public = [context.inputs[name].digest for name in ("data-public", "encoder")]
    tried = fingerprint(_settings(context.recipe, context.options), public, classes, answers)
    if _passed is None or _passed[0] is not context.options:
        _passed = (context.options, set())
    if tried in _passed[1]:
        return
    features = graph_features(context)
    with _before_the_charge("be trained, asked and stored", context.options):
        try_student(
            context.recipe.student,
            np.array(student_inputs(context)),
            features=features,
            classes=classes,
            answers=answers,
            plugin_path=context.options.plugin_path,
            devices=context.options.engine.devices,
        )
    _passed[1].add(tried)


def try_student(
    spec: StudentSpec,
    inputs: NDArray[Any],
    *,
    features: NDArray[Any] | None,
    classes: int,
    answers: int,
    plugin_path: Path | None,
    devices: Sequence[str] = (),
) -> None:
    """Train a student for an epoch on made-up labels of a few inputs, ask it, store and load it.

    If that fails it is tried on all inputs: a model may need more than a few.
    """
    for most in sorted({min(_TRIED, len(inputs)), len(inputs)}):
        rows = np.arange(min(answers, most))
        data = StudentData(
            inputs=inputs[:most],
            features=None if features is None else features[:most],
            rows=rows,
            labels=rows % classes,
            classes=classes,
        )
        try:
            with use_first(devices):
                _try(spec, data, plugin_path=plugin_path)
            return
        except (TeacherError, InvalidInput):
            if most == len(inputs):
                raise


def _try(spec: StudentSpec, data: StudentData, *, plugin_path: Path | None) -> None:
    quick = spec.model_copy(update={"epochs": 1, "first_epochs": 1})
    with isolated_randomness(spec.seed), tempfile.TemporaryDirectory() as folder:
        student = train_student(quick, data, plugin_path=plugin_path)
        few = data.inputs[:_ASKED]
        predict_labels(student, few, classes=data.classes, private=False)
        save(student, Path(folder))
        require_releasable(Path(folder))
        fresh = make(spec.as_model(), classes=data.classes, seed=spec.seed, plugin_path=plugin_path)
        again = restore(fresh, Path(folder))
        predict_labels(again, few, classes=data.classes, private=False)


def _fresh(recipe: Recipe, options: Options, *, classes: int) -> Teacher:
    spec, path = recipe.student, options.plugin_path
    return make(spec.as_model(), classes=classes, seed=spec.seed, plugin_path=path)


@contextmanager
def _before_the_charge(what: str, options: Options) -> Iterator[None]:
    # Other points of a study may be paid for.
    so = "nothing was charged" if options.study is None else "its labels were not charged"
    try:
        yield
    except (TeacherError, InvalidInput) as error:
        text = str(error).removeprefix("the student failed: ")
        raise type(error)(f"the student cannot {what}, so {so}: {text}") from None


def _run(context: Context) -> None:
    """Train a student, which costs nothing: it is made from what is already paid for."""
    released = Labels.load(context.inputs["aggregate"])
    classes = int(context.inputs["data-public"].facts["classes"])
    inputs = np.array(student_inputs(context))
    require_complete(context, classes=classes, width=int(np.prod(inputs.shape[1:])))
    rows, labels = released.rows, released.row_labels
    if len(np.unique(labels)) < 2 and released.table is not None:
        raise InvalidInput(
            "the noise on the counts leaves no class ahead of the others; raise privacy.epsilon, "
            "or let records vote at fewer cells: lower votes.cells, or votes.components"
        )
    if len(np.unique(labels)) < 2:
        lower = "threshold" if context.recipe.aggregate.kind.checks else "noise"
        raise InvalidInput(
            f"{len(rows)} released labels of {len(np.unique(labels))} class are too few for a "
            f"student; allow more queries, or lower the {lower}"
        )
    data = StudentData(
        inputs=inputs,
        features=graph_features(context),
        rows=rows,
        labels=labels,
        classes=classes,
        soft=None if released.soft is None else np.array(released.soft.probabilities),
        weights=None if released.soft is None else np.array(released.soft.confidence),
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
