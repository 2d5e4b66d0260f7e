"""The finished run that a release is made from, opened so that nothing PRIVATE can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from pate.artifacts import Artifact, Level, Store, StoreError, fingerprint
from pate.artifacts.results import is_seeded
from pate.datasets.catalogue import data_root as default_root
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput, LedgerError, PateError
from pate.metrics import wilson
from pate.pipeline.ledger import key_path, ledger_path, naming_key
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun, find_data_root, read_resolved
from pate.pipeline.stage import producer
from pate.releases.files import ENCODER
from pate.releases.guarantee import agrees
from pate.releases.schema import HEADER_FORMAT
from pate.report.facts import finished_stages, without_folder, without_places
from pate.stages.catalogue import open_run

_READ = ("aggregate", "account", "distill", "evaluate", "encoder", "data-public")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished run: its recipe, its ledger, and what of it is RELEASED or PUBLIC.

    Guarantees:
        ``artifacts`` were opened with RELEASED clearance: the store refuses what is above. Each
        was checked against its manifest, and is in the place where it was made.
    """

    run: PipelineRun
    ledger: Path
    artifacts: dict[str, Artifact]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.run.recipe

    def path(self, artifact: str, name: str) -> Path:
        """Return the path of a file of an artifact."""
        return self.artifacts[artifact].path / name

    def json(self, artifact: str, name: str) -> Any:
        """Return a file of an artifact, as JSON."""
        try:
            return self.artifacts[artifact].json(name)
        except (OSError, ValueError):
            raise StoreError(f"{self.path(artifact, name)} cannot be read") from None

    @property
    def encoder(self) -> EncoderSpec | None:
        """The encoder that the student needs, its weights named as they are in the release."""
        identity = bool(self.artifacts["encoder"].facts["identity"])
        if self.recipe.student.inputs == "raw" or identity:
            return None
        steps = [
            step
            if step.weights is None
            else step.model_copy(update={"weights": f"{ENCODER}/weights-{at}.safetensors"})
            for at, step in enumerate(self.recipe.encoder.steps)
        ]
        return EncoderSpec(steps=steps)


def open_finished_run(
    folder: Path, *, data_root: Path | None = None, plugin_path: Path | None = None
) -> FinishedRun:
    """Open a run that may be released.

    Raises
    ------
    InvalidInput, LedgerError, StoreError
        For seeded noise, a ledger that is not here, a stage that is missing or stale, and files
        that are damaged or not where they belong.
    """
    if not folder.is_dir():
        raise InvalidInput(f"there is no run in {folder}")
    recipe = read_resolved(folder)
    store = Store(root=folder).cleared("release", Level.RELEASED)
    _require_unseeded(store)
    root = _root_of(folder, recipe, data_root)
    run = open_run(folder, data_root=root, plugin_path=plugin_path)
    made_from = finished_stages(run)
    artifacts = {name: store.open(name, made_from[producer(name)]) for name in _READ}
    for name in ("aggregate", "distill"):
        if is_seeded(artifacts[name]):
            raise _seeded(artifacts[name])
    return FinishedRun(run=run, ledger=ledger_path(recipe, root), artifacts=artifacts)


def _require_unseeded(store: Store) -> None:
    """Name seeded noise as such; it would otherwise look like a stage that is stale."""
    drawn = store.all("aggregate")
    seeded = [each for each in drawn if is_seeded(each)]
    if seeded and len(seeded) == len(drawn):
        raise _seeded(seeded[0])


def _seeded(artifact: Artifact) -> InvalidInput:
    return InvalidInput(
        f"{artifact.path / 'labels.npy'} was drawn with seeded noise, which is not private; run "
        "the recipe without --insecure-seed to release it"
    )


def _root_of(folder: Path, recipe: Recipe, given: Path | None) -> Path:
    """Find the run's own ledger, before anything could be created in its place."""
    root = default_root(given)
    if given is None:
        root = find_data_root(folder, recipe, root)
    ledger, key = ledger_path(recipe, root), key_path(recipe, root)
    for file in (ledger, key):
        if not file.is_file():
            raise LedgerError(
                f"there is no {file}; a release is made where the ledger of its data set is: give "
                "its --data-root, or restore the file from a backup"
            )
    try:
        home = json.loads((folder / "home.json").read_text())["key"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            f"{folder / 'home.json'} is missing or damaged; run the recipe again"
        ) from None
    if fingerprint("key", naming_key(recipe, root)) != home:
        raise LedgerError(f"{folder} belongs to another ledger than {ledger}; give its --data-root")
    return root


@contextmanager
def undamaged(file: Path) -> Iterator[None]:
    """Report whatever cannot be read from a file as damage of that file."""
    try:
        yield
    except PateError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        raise InvalidInput(
            f"{file} is damaged; remove its folder and run the recipe again"
        ) from None


# --- parts of the JSON files ----------------------------------------------------------------------


def student_header(run: FinishedRun) -> dict[str, Any]:
    """Return the part of ``student.json`` that students of every kind share."""
    recipe, encoder = run.recipe, run.encoder
    public = run.artifacts["data-public"].array("features.npy")
    _require_portable("student", recipe.student.as_model().model_dump(mode="json"))
    for at, step in enumerate([] if encoder is None else encoder.steps):
        _require_portable(f"encoder.steps[{at}]", step.model_dump(mode="json"))
    with undamaged(run.path("evaluate", "evaluation.json")):
        classes = run.json("evaluate", "evaluation.json")["classes"]
        names = [str(each["class"]) for each in classes]
    return {
        "format": HEADER_FORMAT,
        "class_names": names,
        "input": {"shape": list(public.shape[1:]), "dtype": public.dtype.name},
    }


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


def evaluation_record(run: FinishedRun) -> dict[str, Any]:
    """Return the accuracy of the student and of the labels, once it agrees with its own table."""
    file = run.path("evaluate", "evaluation.json")
    with undamaged(file):
        evaluation = run.json("evaluate", "evaluation.json")
        record: dict[str, Any] = {
            name: None
            if evaluation[name] is None
            else {key: evaluation[name][key] for key in ("accuracy", "low", "high", "records")}
            for name in ("student", "labels", "agreement")
        }
        record["confusion"] = [list(map(int, row)) for row in evaluation["confusion"]]
        rows = [each["records"] for each in evaluation["classes"]]
        problem = evaluation_problem(record, classes=len(rows))
        if problem is None and [sum(row) for row in record["confusion"]] != rows:
            problem = "its classes have other numbers of records"
    if problem is not None:
        raise InvalidInput(
            f"{file} states another accuracy than its table of confusions comes to ({problem}); "
            "remove its folder and run the recipe again"
        )
    return record


def evaluation_problem(record: Mapping[str, Any], *, classes: int) -> str | None:
    """Return what is inconsistent in an evaluation; None if nothing is."""
    for name in ("student", "labels", "agreement"):
        problem = None if record[name] is None else share_problem(record[name])
        if problem is not None:
            return f"{name}: {problem}"
    table = record["confusion"]
    if len(table) != classes or any(len(row) != classes for row in table):
        return "its table has not a row and a column for each class"
    records, right = sum(map(sum, table)), sum(row[at] for at, row in enumerate(table))
    student = record["student"]
    if student["records"] != records or not agrees(student["accuracy"], right / records):
        return f"student: {right} of {records} records are right by its table"
    return None


def share_problem(share: Mapping[str, Any]) -> str | None:
    """Return what is inconsistent in a share of records with its 95 % interval; None if nothing is.

    Guarantees:
        The interval is that of Wilson 1927 for the share and the number of records.
    """
    records, accuracy = share["records"], share["accuracy"]
    if type(records) is not int or records < 1:
        return f"its number of records is {str(records)[:40]}"
    right = round(accuracy * records)
    if not (0 <= right <= records and agrees(accuracy, right / records)):
        return f"its accuracy is {str(accuracy)[:40]}, which is no share of {records} records"
    for name, bound in zip(("low", "high"), wilson(right, records), strict=True):
        if not agrees(share[name], bound):
            return f"its {name} is {str(share[name])[:40]}, and the records come to {bound}"
    return None


def answers_record(run: FinishedRun) -> dict[str, Any]:
    """Return how many queries were asked and answered, and the labels by class."""
    released = run.artifacts["aggregate"]
    classes = len(run.json("evaluate", "evaluation.json")["classes"])
    counts = np.bincount(np.asarray(released.array("labels.npy")), minlength=classes)
    record = {key: int(released.facts[key]) for key in ("asked", "answered", "kept")}
    return record | {"by_class": counts.tolist()}


def recipe_record(run: FinishedRun) -> dict[str, Any]:
    """Return the recipe as its page shows it: no path, no column, no key of a partition."""
    shown = without_places(run.recipe)
    record: dict[str, Any] = _without_folders(
        shown.model_dump(mode="json", exclude={"partition": {"key"}})
    )
    return record


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return without_folder(value)
