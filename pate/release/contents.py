"""What goes along: a short list, and how each file of it is made."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from pydantic import ValidationError

from pate.artifacts import Artifact
from pate.artifacts.manifest import MANIFEST
from pate.datasets.catalogue import CATALOGUE
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.release.figures import same, undamaged, wrong_with_share
from pate.release.finished import Finished
from pate.release.models import ENCODER, GRAPH, STUDENT, TENSORS
from pate.release.schema import FORMAT, HEADER
from pate.report.facts import file_name
from pate.report.recipe_text import without_places

LABELS = ("asked.npy", "answered.npy", "labels.npy", "kept.npy", "kept_labels.npy")
_TEXTS = ("MODEL_CARD.md", "SHA256SUMS", "guarantee.json", "release.json", "report.html", HEADER)

# A class of one's own must save files of these kinds, which are read without running code.
_SAFE = "npy|npz|json|safetensors|skops|txt|onnx|ubj"
_MAY_LEAVE = re.compile(
    "|".join(
        [
            *(re.escape(name) for name in _TEXTS),
            rf"{STUDENT}/({re.escape(GRAPH)}|{re.escape(TENSORS)})",
            rf"{ENCODER}/step-\d+\.(onnx|safetensors)",
            # of a student that needs code
            rf"{STUDENT}/(teacher\.json|model\.skops|arrays\.npz|own/([\w-]+/)*[\w.-]+\.({_SAFE}))",
            rf"{ENCODER}/(encoder\.json|weights-\d+\.safetensors)",
            rf"{ENCODER}/step-\d+/([\w-]+/)*[\w.-]+\.({_SAFE})",
            rf"labels/({'|'.join(re.escape(name) for name in LABELS)})",
        ]
    )
)


def may_leave(name: str) -> bool:
    """Whether a file of this name can be part of a release at all.

    >>> may_leave("student/model.skops"), may_leave("student/model.pkl"), may_leave("votes.npy")
    (True, False, False)
    """
    return _MAY_LEAVE.fullmatch(name) is not None


def copy_student(finished: Finished, draft: Path) -> None:
    """The student's files, without their manifest: that names what they were made from."""
    _copy(finished.artifacts["distill"], draft, STUDENT)


def copy_labels(finished: Finished, draft: Path) -> None:
    """The released labels, and the rows of the public inputs that they belong to."""
    _copy(finished.artifacts["aggregate"], draft, "labels", only=LABELS)


def _copy(
    artifact: Artifact, draft: Path, place: str, *, only: tuple[str, ...] | None = None
) -> None:
    for name in sorted(artifact.manifest["files"]):
        if name == MANIFEST or (only is not None and name not in only):
            continue
        if not may_leave(f"{place}/{name}"):
            raise InvalidInput(
                f"{artifact.path / name} is not of a kind that may leave; let save(folder) write "
                "npy, npz, json, txt, onnx, ubj, safetensors or skops files"
            )
        (draft / place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact.path / name, draft / place / name)


def student_header(finished: Finished) -> dict[str, Any]:
    """The part of ``student.json`` that all kinds share: classes, and the form of a record."""
    recipe = finished.recipe
    public = finished.artifacts["data-public"].array("features.npy")
    encoder = released_encoder(finished)
    _require_portable("student", recipe.student.as_model().model_dump(mode="json"))
    for at, step in enumerate([] if encoder is None else encoder.steps):
        _require_portable(f"encoder.steps[{at}]", step.model_dump(mode="json"))
    with undamaged(finished.path("evaluate", "evaluation.json")):
        told = finished.json("evaluate", "evaluation.json")["classes"]
        names = [str(each["class"]) for each in told]
    return {
        "format": FORMAT,
        "class_names": names,
        "input": {"shape": list(public.shape[1:]), "dtype": public.dtype.name},
    }


def released_encoder(finished: Finished) -> EncoderSpec | None:
    """The encoder that the student needs, its weights named as they are in the release."""
    identity = bool(finished.artifacts["encoder"].facts["identity"])
    if finished.recipe.student.inputs == "raw" or identity:
        return None
    steps = [
        step
        if step.weights is None
        else step.model_copy(update={"weights": f"{ENCODER}/weights-{at}.safetensors"})
        for at, step in enumerate(finished.recipe.encoder.steps)
    ]
    return EncoderSpec(steps=steps)


def copy_encoder(finished: Finished, draft: Path) -> None:
    """What was fitted on public inputs, and a backbone's weights; not the public features."""
    encoder = released_encoder(finished)
    if encoder is None:
        return
    artifact = finished.artifacts["encoder"]
    kept = tuple(name for name in artifact.manifest["files"] if name != "features.npy")
    _copy(artifact, draft, ENCODER, only=kept)
    header = draft / ENCODER / "encoder.json"
    content = json.loads(header.read_text(encoding="utf-8"))
    steps = zip(finished.recipe.encoder.steps, encoder.steps, strict=True)
    for at, (before, now) in enumerate(steps):
        if before.weights is not None and now.weights is not None:
            content["steps"][at]["weights"] = now.weights
            digest = _copy_weights(finished, before.weights, draft / now.weights)
            kept_digest = draft / ENCODER / f"step-{at}" / "weights.json"
            kept_digest.write_text(json.dumps({"sha256": digest}), encoding="utf-8")
    header.write_text(json.dumps(content, sort_keys=True), encoding="utf-8")


def _copy_weights(finished: Finished, weights: str, place: Path) -> str:
    """A backbone's weights as safetensors, whatever they were kept in; their digest."""
    import torch
    from safetensors.torch import save_file

    from pate.encoders.backbone import file_digest, find_weights

    file = find_weights(weights, plugin_path=finished.run.options.plugin_path)
    if file.suffix == ".safetensors":
        shutil.copyfile(file, place)
    else:
        state = torch.load(file, map_location="cpu", weights_only=True)
        state = state.get("state_dict", state)
        save_file({key: value.clone().contiguous() for key, value in state.items()}, place)
    return file_digest(place)


def _require_portable(where: str, value: Any) -> None:
    for text in _texts(value):
        if Path(text).is_absolute() or PureWindowsPath(text).is_absolute() or text[:1] == "~":
            raise InvalidInput(
                f"recipe.json: {where} holds a path of this machine, which nobody else has; let "
                "the model do without, and run the recipe again"
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def evaluation_told(finished: Finished) -> dict[str, Any]:
    """How good the student and the labels are; the student's share must be that of its table."""
    file = finished.path("evaluate", "evaluation.json")
    with undamaged(file):
        evaluation = finished.json("evaluate", "evaluation.json")
        told: dict[str, Any] = {
            name: None
            if evaluation[name] is None
            else {key: evaluation[name][key] for key in ("accuracy", "low", "high", "records")}
            for name in ("student", "labels", "agreement")
        }
        told["confusion"] = [list(map(int, row)) for row in evaluation["confusion"]]
        rows = [each["records"] for each in evaluation["classes"]]
        wrong = wrong_with_evaluation(told, classes=len(rows))
        if wrong is None and [sum(row) for row in told["confusion"]] != rows:
            wrong = "its classes have other numbers of records"
    if wrong is not None:
        raise InvalidInput(
            f"{file} states another accuracy than its table of confusions comes to ({wrong}); "
            "remove its folder and run the recipe again"
        )
    return told


def wrong_with_evaluation(told: Mapping[str, Any], *, classes: int) -> str | None:
    """What does not go together in an evaluation; None where all does."""
    for name in ("student", "labels", "agreement"):
        wrong = None if told[name] is None else wrong_with_share(told[name])
        if wrong is not None:
            return f"{name}: {wrong}"
    table = told["confusion"]
    if len(table) != classes or any(len(row) != classes for row in table):
        return "its table has not a row and a column for each class"
    records, right = sum(map(sum, table)), sum(row[at] for at, row in enumerate(table))
    student = told["student"]
    if student["records"] != records or not same(student["accuracy"], right / records):
        return f"student: {right} of {records} records are right by its table"
    return None


def answers_told(finished: Finished) -> dict[str, Any]:
    """How much was asked and answered, and with which classes."""
    released = finished.artifacts["aggregate"]
    classes = len(finished.json("evaluate", "evaluation.json")["classes"])
    counts = np.bincount(np.asarray(released.array("labels.npy")), minlength=classes)
    told = {key: int(released.facts[key]) for key in ("asked", "answered", "kept")}
    return told | {"by_class": counts.tolist()}


def recipe_told(finished: Finished) -> dict[str, Any]:
    """The recipe as its page shows it: no path, no column, no key of a partition."""
    shown = without_places(finished.recipe)
    told: dict[str, Any] = _without_folders(
        shown.model_dump(mode="json", exclude={"partition": {"key"}})
    )
    return told


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    is_path = isinstance(value, str) and ("/" in value or "\\" in value)
    return file_name(value) if is_path else value


def recipe_of(release: Mapping[str, Any]) -> Recipe:
    """The recipe that a release tells of, every setting checked; its data are nowhere."""
    sections = dict(release["recipe"])
    if sections["data"]["name"] not in CATALOGUE:
        sections["data"] = sections["data"] | {"source": "-"}
    try:
        return Recipe.model_validate(sections)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise InvalidInput(
            f"recipe.{'.'.join(map(str, first['loc']))} is wrong: {first['msg']}"
        ) from None
