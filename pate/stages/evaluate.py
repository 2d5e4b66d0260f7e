"""evaluate: how good the student is; the only stage that sees test labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Artifact, Level
from pate.devices import use_first
from pate.metrics import wilson
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.features import (
    as_student_sees,
    graph_features,
    private_records,
    student_inputs,
)
from pate.stages.teach import plugin_digest
from pate.students.data import StudentData
from pate.students.train import train_student
from pate.teachers.persist import load
from pate.teachers.protocol import predict_labels


def _settings(recipe: Recipe, options: Options) -> Any:
    # What is not asked for is left out: runs of before that key was known stay as they are.
    exclude = set() if recipe.evaluate.public_labels else {"public_labels"}
    return {
        "evaluate": recipe.evaluate.model_dump(exclude=exclude),
        "student": recipe.student.model_dump(mode="json"),
        "plugin": plugin_digest(options.plugin_path),
    }


def _run(context: Context) -> None:
    test, released = context.inputs["data-test"], context.inputs["aggregate"]
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
        said = predict_labels(student, inputs, classes=classes)
        agreement = _agreement(context, student, classes)
        if context.recipe.evaluate.reference:
            _reference(context, inputs, truth, classes)
        if context.recipe.evaluate.public_labels:
            _public_labels(context, inputs, truth, classes)
    with context.draft(Level.RELEASED) as draft:
        draft.save_json(
            "evaluation.json",
            {
                "student": _accuracy(said, truth),
                "classes": _per_class(said, truth, test.json("class_names.json")),
                "confusion": _confusion(said, truth, classes),
                "agreement": agreement,
                "labels": _label_quality(released, context.inputs["data-answers"]),
            },
        )


def _reference(
    context: Context, inputs: NDArray[Any], truth: NDArray[np.int64], classes: int
) -> None:
    """The same model on the private labels themselves: not private, so kept in private."""
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
        said = predict_labels(model, inputs, classes=classes)
        draft.save_json("evaluation.json", {"reference": _accuracy(said, truth)})


def _public_labels(
    context: Context, inputs: NDArray[Any], truth: NDArray[np.int64], classes: int
) -> None:
    """The student as it is, but on the own labels of the very inputs that were asked about.

    Guarantees:
        Costs nothing: which inputs were asked about was released, and their labels are public.
    """
    answers = context.inputs["data-answers"]
    asked = np.array(context.inputs["aggregate"].array("asked.npy"))
    figures: dict[str, Any] = {"student": None, "labels": len(asked)}
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
            said = predict_labels(student, inputs, classes=classes)
            figures["student"] = _accuracy(said, truth)
    with context.draft(Level.RELEASED, part="public-labels") as draft:
        draft.save_json("evaluation.json", figures)


def _accuracy(said: NDArray[np.int64], truth: NDArray[np.int64]) -> dict[str, float]:
    """Share of right answers with a 95 % interval (Wilson 1927)."""
    n, right = len(truth), int((said == truth).sum())
    low, high = wilson(right, n)
    return {"accuracy": right / n, "low": low, "high": high, "records": n}


def _per_class(
    said: NDArray[np.int64], truth: NDArray[np.int64], names: list[str]
) -> list[dict[str, Any]]:
    return [
        {
            "class": name,
            "records": int((truth == label).sum()),
            "right": int(((said == label) & (truth == label)).sum()),
            "said": int((said == label).sum()),
        }
        for label, name in enumerate(names)
    ]


def _confusion(said: NDArray[np.int64], truth: NDArray[np.int64], classes: int) -> list[list[int]]:
    """Records by their class (rows) and by what the student said (columns).

    >>> _confusion(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    [[1, 1], [0, 1]]
    """
    cells = np.bincount(truth * classes + said, minlength=classes * classes)
    table: list[list[int]] = cells.reshape(classes, classes).tolist()
    return table


def _agreement(context: Context, student: Any, classes: int) -> dict[str, float] | None:
    """How often the student says of the inputs that were asked about what was released of them."""
    released = context.inputs["aggregate"]
    rows = np.array(released.array("answered.npy"))
    if not len(rows):
        return None
    said = predict_labels(student, np.array(student_inputs(context)[rows]), classes=classes)
    return _accuracy(said, np.array(released.array("labels.npy")))


def _label_quality(released: Artifact, answers: Artifact) -> dict[str, float] | None:
    """How many released labels agree with the public inputs' own, where those are known."""
    if not (answers.path / "labels.npy").is_file() or not len(released.array("answered.npy")):
        return None
    truth = np.array(answers.array("labels.npy"))[released.array("answered.npy")]
    return _accuracy(np.array(released.array("labels.npy")), truth)


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
