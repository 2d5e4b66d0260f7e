"""evaluate: the accuracy of the student; the only stage that sees test labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Artifact, Level
from pate.artifacts.results import Evaluation, Labels, PublicLabels, save_reference
from pate.devices import use_first
from pate.metrics import Share
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.encode import (
    as_student_sees,
    graph_features,
    private_records,
    student_inputs,
)
from pate.students.train import StudentData, train_student
from pate.teachers.persist import load
from pate.teachers.protocol import predict_labels


def _settings(recipe: Recipe, options: Options) -> Any:
    # What is not asked for is left out: runs of before that key was known stay as they are.
    exclude = set() if recipe.evaluate.public_labels else {"public_labels"}
    settings = {
        "evaluate": recipe.evaluate.model_dump(exclude=exclude),
        "student": recipe.student.model_dump(mode="json"),
    }
    return settings | {"plugin": options.source_digest(settings)}


def _run(context: Context) -> None:
    """Measure the student, and what the recipe asks to compare it with."""
    test, released = context.inputs["data-test"], Labels.load(context.inputs["aggregate"])
    classes = int(context.inputs["data-public"].facts["classes"])
    truth = np.array(test.array("labels.npy"))
    inputs = as_student_sees(context, np.array(test.array("features.npy")))
    student = load(
        context.inputs["distill"].path,
        context.recipe.student.as_model(),
        classes=classes,
        seed=context.recipe.student.seed,
        plugin_path=context.options.plugin_path,
    )
    with use_first(context.options.engine.devices):
        predicted = predict_labels(student, inputs, classes=classes)
        agreement = _agreement(context, released, student, classes)
        if context.recipe.evaluate.reference:
            _reference(context, inputs, truth, classes)
        if context.recipe.evaluate.public_labels:
            _public_labels(context, inputs, truth, classes)
    evaluation = Evaluation.of(
        predicted,
        truth,
        class_names=test.json("class_names.json"),
        agreement=agreement,
        labels=_label_quality(released, context.inputs["data-answers"]),
    )
    with context.draft(Level.RELEASED) as draft:
        evaluation.save(draft)


def _reference(
    context: Context, inputs: NDArray[Any], truth: NDArray[np.int64], classes: int
) -> None:
    """Train the same model on the private labels: not private, so kept in private."""
    records, labels = private_records(context)
    model = train_student(
        context.recipe.student.model_copy(update={"method": "supervised", "validation": 0.0}),
        StudentData(
            inputs=np.array(records),
            rows=np.arange(len(labels)),
            labels=np.array(labels),
            classes=classes,
        ),
        plugin_path=context.options.plugin_path,
        private=True,
    )
    with context.draft(Level.PRIVATE, part="reference") as draft:
        predicted = predict_labels(model, inputs, classes=classes)
        save_reference(draft, _accuracy(predicted, truth))


def _public_labels(
    context: Context, inputs: NDArray[Any], truth: NDArray[np.int64], classes: int
) -> None:
    """Train the student on the own labels of the very inputs that were asked about.

    Guarantees:
        Costs nothing: which inputs were asked about was released, and their labels are public.
    """
    answers = context.inputs["data-answers"]
    asked = np.array(Labels.load(context.inputs["aggregate"]).asked)
    found = None
    if (answers.path / "labels.npy").is_file():
        labels = np.array(answers.array("labels.npy"))[asked]
        if len(np.unique(labels)) > 1:
            student = train_student(
                context.recipe.student,
                StudentData(
                    inputs=np.array(student_inputs(context)),
                    features=graph_features(context),
                    rows=asked,
                    labels=labels,
                    classes=classes,
                ),
                plugin_path=context.options.plugin_path,
            )
            predicted = predict_labels(student, inputs, classes=classes)
            found = _accuracy(predicted, truth)
    with context.draft(Level.RELEASED, part="public-labels") as draft:
        PublicLabels(student=found, labels=len(asked)).save(draft)


def _accuracy(predicted: NDArray[np.int64], truth: NDArray[np.int64]) -> Share:
    """Return the share of right predictions."""
    return Share.counted(int((predicted == truth).sum()), len(truth))


def _agreement(context: Context, released: Labels, student: Any, classes: int) -> Share | None:
    """Return how often the student predicts the label that was released of an input."""
    rows = np.array(released.answered)
    if not len(rows):
        return None
    predicted = predict_labels(student, np.array(student_inputs(context)[rows]), classes=classes)
    return _accuracy(predicted, np.array(released.labels))


def _label_quality(released: Labels, answers: Artifact) -> Share | None:
    """Return how many released labels agree with the public inputs' own, where those are known."""
    if not (answers.path / "labels.npy").is_file() or not len(released.answered):
        return None
    truth = np.array(answers.array("labels.npy"))[released.answered]
    return _accuracy(np.array(released.labels), truth)


EVALUATE = Stage(
    name="evaluate",
    version=2,
    needs=(
        "distill",
        "aggregate",
        "partition",
        "encoder",
        "encode",
        "data-public",
        "data-test",
        "data-answers",
    ),
    clearance=Level.PRIVATE,
    settings=_settings,
    run=_run,
)
