"""What goes along: a short list, and how each file of it is made."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from pate.artifacts import Artifact
from pate.artifacts.manifest import MANIFEST
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.release.figures import same, undamaged, wrong_with_share
from pate.release.finished import Finished
from pate.release.importing import needs_trust, package_of, provided
from pate.release.student import ENCODER, HEADER, STUDENT, names_of
from pate.stages.selected import candidates_of
from pate.teachers.spec import ModelSpec

LABELS = ("asked.npy", "answered.npy", "labels.npy", "kept.npy", "kept_labels.npy")
_TEXTS = ("MODEL_CARD.md", "SHA256SUMS", "guarantee.json", "release.json", "report.html", HEADER)

# Formats that are read without running code; what a class of one's own saves must be of these.
_SAFE = "npy|npz|json|safetensors|skops|txt|onnx|ubj"
_STUDENT = (
    rf"(teacher\.json|model\.skops|model\.safetensors|arrays\.npz|own/([\w-]+/)*[\w.-]+\.({_SAFE}))"
)
_MAY_LEAVE = re.compile(
    "|".join(
        [
            *(re.escape(name) for name in _TEXTS),
            rf"{STUDENT}/{_STUDENT}",
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
    """``student.json``: all that is needed to build and ask the student, and nothing of the data.

    Class names are those of the evaluation, and the form of a record that of the public inputs.
    """
    recipe = finished.recipe
    public = finished.artifacts["data-public"].array("features.npy")
    model = recipe.student.as_model()
    encoder = released_encoder(finished)
    _require_portable("student", model.model_dump(mode="json"))
    for at, step in enumerate([] if encoder is None else encoder.steps):
        _require_portable(f"encoder.steps[{at}]", step.model_dump(mode="json"))
    file = finished.path("evaluate", "evaluation.json")
    with undamaged(file):
        told = finished.json("evaluate", "evaluation.json")["classes"]
        names = [str(each["class"]) for each in told]
    return {
        "format": 1,
        "model": model.model_dump(mode="json"),
        "seed": recipe.student.seed,
        "class_names": names,
        "input": {"shape": list(public.shape[1:]), "dtype": public.dtype.name},
        "encoder": None if encoder is None else _spelt(encoder),
        **_needs(model, encoder, finished.run.options.plugin_path),
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

    from pate.encoders.backbone import file_digest, found

    file = found(weights, plugin_path=finished.run.options.plugin_path)
    if file.suffix == ".safetensors":
        shutil.copyfile(file, place)
    else:
        state = torch.load(file, map_location="cpu", weights_only=True)
        state = state.get("state_dict", state)
        save_file({key: value.clone().contiguous() for key, value in state.items()}, place)
    return file_digest(place)


def _spelt(encoder: EncoderSpec) -> dict[str, Any]:
    return {"steps": [{"name": step.name, **step.settings()} for step in encoder.steps]}


def _needs(
    model: ModelSpec, encoder: EncoderSpec | None, plugin_path: Path | None
) -> dict[str, list[str]]:
    """Packages of the user's own, and others to be trusted, to load the student."""
    names = names_of(model, encoder)
    own = {package_of(name) for name in names if provided(package_of(name), plugin_path)}
    others = {package_of(name) for name in names if needs_trust(name, plugin_path=plugin_path)}
    return {"plugins": sorted(own), "trust": sorted(others)}


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
        student, labels = evaluation["student"], evaluation["labels"]
        table = np.array(evaluation["confusion"], dtype=np.int64)
        records, right = int(table.sum()), int(np.trace(table))
        told = {
            key: {name: each[name] for name in ("accuracy", "low", "high", "records")}
            for key, each in (("student", student), ("labels", labels))
            if each is not None
        }
        rows = [each["records"] for each in evaluation["classes"]]
        agrees = (
            (table >= 0).all()
            and table.sum(axis=1).tolist() == rows
            and student["records"] == records > 0
            and same(student["accuracy"], right / records)
            and not any(wrong_with_share(each) for each in told.values())
        )
    if not agrees:
        raise InvalidInput(
            f"{file} states another accuracy than its table of confusions comes to; remove its "
            "folder and run the recipe again"
        )
    return {"labels": None} | told


def recipe_told(finished: Finished) -> dict[str, Any]:
    """The settings that say what was done. No path, no column, no key of a partition."""
    recipe = finished.recipe
    teachers, privacy, student = recipe.teachers, recipe.privacy, recipe.student
    models = [entry.model for entry in teachers.mix] or [str(teachers.model)]
    chosen = {} if recipe.selection is None else {"selection": _selection_told(recipe)}
    return chosen | {
        "data": {"name": recipe.data.name},
        "partition": {"method": recipe.partition.method, "by": recipe.partition.by},
        "teachers": {"count": teachers.count, "models": models},
        "aggregate": recipe.aggregate.model_dump(mode="json", exclude_none=True),
        "privacy": privacy.model_dump(mode="json", exclude={"budget"}, exclude_none=True),
        "encoder": [step.name for step in recipe.encoder.steps],
        "student": {"model": student.model, "method": student.method, "inputs": student.inputs},
    }


def _selection_told(recipe: Recipe) -> dict[str, Any]:
    """How the settings were chosen: what each candidate asks, from which its cost follows."""
    assert recipe.selection is not None
    return {
        "mean_tries": recipe.selection.mean_tries,
        "shape": recipe.selection.shape,
        "candidates": [asked_told(each) for each in candidates_of(recipe)],
    }


def asked_told(recipe: Recipe) -> dict[str, Any]:
    """What a recipe asks of how many teachers; its own ε, where it has one."""
    return {
        "teachers": recipe.teachers.count,
        "aggregate": recipe.aggregate.model_dump(mode="json", exclude_none=True),
        "epsilon": recipe.privacy.epsilon,
    }
