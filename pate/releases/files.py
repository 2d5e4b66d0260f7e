"""Files of a release: their names and checksums, and the values in those that are JSON.

Whatever is read here may come from a stranger: sizes, types and ranges are checked first.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from pate.artifacts import digest_of
from pate.datasets.columns import MOST_CATEGORIES
from pate.datasets.table import Column
from pate.errors import InvalidInput
from pate.releases.records import RecordForm
from pate.teachers.persist import RELEASABLE

FORMAT = 4  # of release.json, and of the texts of the card and the page
HEADER_FORMAT = 3  # of student.json
SUMS, HEADER, STATEMENT, RELEASE = "SHA256SUMS", "student.json", "guarantee.json", "release.json"
CARD, PAGE, DEPLOYMENT = "MODEL_CARD.md", "report.html", "deployment.yaml"
HUB, HUB_CARD, CONFIG = "hf", "README.md", "config.json"  # the folder for hubs, and its own files
STUDENT, ENCODER = "student", "encoder"
GRAPH, TENSORS = "model.onnx", "model.safetensors"
LABELS = ("asked.npy", "answered.npy", "labels.npy", "kept.npy", "kept_labels.npy")
LABELS_CSV, CROISSANT = "labels.csv", "croissant.json"  # the same for others to read
TABLE = ("noised.npy", "probabilities.npy", "confidence.npy")  # of record votes, beside them

_MAY_LEAVE = re.compile(
    "|".join(
        [
            *map(re.escape, (CARD, SUMS, STATEMENT, RELEASE, PAGE, HEADER, DEPLOYMENT)),
            # of a folder for hubs, alone or as part of a release
            rf"({HUB}/)?({'|'.join(map(re.escape, (HUB_CARD, CONFIG, GRAPH, TENSORS)))})",
            rf"{HUB}/({'|'.join(map(re.escape, (SUMS, STATEMENT, RELEASE, HEADER)))})",
            rf"{HUB}/{ENCODER}/step-\d+\.(onnx|safetensors)",
            rf"{STUDENT}/({re.escape(GRAPH)}|{re.escape(TENSORS)})",
            rf"{ENCODER}/step-\d+\.(onnx|safetensors)",
            # of a student that needs code
            rf"{STUDENT}/(teacher\.json|model\.skops|arrays\.npz|own/([\w-]+/)*[\w.-]+\.({RELEASABLE}))",
            rf"{ENCODER}/(encoder\.json|weights-\d+\.safetensors)",
            rf"{ENCODER}/step-\d+/([\w-]+/)*[\w.-]+\.({RELEASABLE})",
            rf"labels/({'|'.join(map(re.escape, (*LABELS, *TABLE, LABELS_CSV, CROISSANT)))})",
        ]
    )
)
_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+(?:/[\w.-]+)*)")

_MIB = 2**20
# Bytes of a file that is read at all; a model of another kind may have 2 GiB, as ONNX allows.
_LARGEST = {"": 10 * _MIB, ".json": 16 * _MIB, ".md": 16 * _MIB, ".html": 64 * _MIB, ".yaml": _MIB}
_LARGEST_MODEL = 2048 * _MIB
_MOST_FILES, _DEEPEST = 1000, 8
_OF_HUBS = (".gitattributes", ".cache", ".git")  # that a hub or its program adds


def may_leave(name: str) -> bool:
    """Return whether a file of this name can be part of a release at all.

    >>> may_leave("student/model.skops"), may_leave("student/model.pkl"), may_leave("votes.npy")
    (True, False, False)
    """
    return _MAY_LEAVE.fullmatch(name) is not None


def is_hub(folder: Path) -> bool:
    """Return whether a folder is one for hubs, which is a release of its own."""
    return (folder / CONFIG).is_file() and not (folder / CARD).exists()


def sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file below a folder by its name; no file is opened.

    Refuses a link, a device, a pipe, and a file that is larger than any of a release. Files that
    the hub itself adds to a folder are not part of it.
    """
    beside = _OF_HUBS if is_hub(folder) else ()
    found: dict[str, int] = {}
    waiting = [(folder, "", 1)]
    while waiting:
        place, prefix, depth = waiting.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                name = prefix + entry.name
                if name in beside:
                    continue
                state = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(state.st_mode) and depth < _DEEPEST:
                    waiting.append((Path(entry.path), f"{name}/", depth + 1))
                elif not stat.S_ISREG(state.st_mode):
                    raise InvalidInput(
                        f"{name} is not a regular file and does not belong to the release"
                    )
                elif state.st_size > _LARGEST.get(Path(name).suffix, _LARGEST_MODEL):
                    raise InvalidInput(f"{name} is larger than any such file of a release")
                else:
                    found[name] = state.st_size
                if len(found) + len(waiting) > _MOST_FILES:
                    raise InvalidInput(f"{folder} holds more files than any release")
    return found


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file but the list itself, by its name, in order."""
    return {name: digest_of(folder / name) for name in sorted(sizes(folder)) if name != SUMS}


def render_sums(known: Mapping[str, str]) -> str:
    """Return the list of checksums as a file: a line for each, in order.

    >>> render_sums({"a.txt": "0" * 64})[60:]
    '0000  a.txt\\n'
    """
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(known.items()))


def read_sums(folder: Path) -> dict[str, str]:
    """Return the checksums of a release; refuse a list that :func:`render_sums` did not write."""
    if not folder.is_dir() or SUMS not in sizes(folder):
        raise InvalidInput(f"there is no release in {folder}: {SUMS} cannot be read")
    try:
        text = (folder / SUMS).read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(f"there is no release in {folder}: {SUMS} cannot be read") from None
    found = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
    known = {match[2]: match[1] for match in found if match is not None}
    if render_sums(known) != text or not known or any(".." in name.split("/") for name in known):
        raise InvalidInput(f"{folder / SUMS} was damaged or changed")
    return known


def file_problems(folder: Path, *tops: str) -> Iterator[str]:
    """Yield how the files of a release, or those below some names, differ from the list."""
    known = read_sums(folder)
    there = sizes(folder)
    for name in sorted(known.keys() | there.keys() - {SUMS}):
        if tops and name.split("/")[0] not in tops:
            continue
        if name not in known:
            yield f"{name} does not belong to the release"
        elif not may_leave(name):
            yield f"{name} is not of a kind that belongs to a release"
        elif name not in there:
            yield f"{name} is missing"
        elif digest_of(folder / name) != known[name]:
            yield f"{name} was damaged or changed"


# --- JSON -----------------------------------------------------------------------------------------


def read_json(file: Path) -> Any:
    """Return a JSON file in which no key is repeated and no number is infinite, NaN or huge."""
    try:
        value = json.loads(
            file.read_bytes().decode(), object_pairs_hook=_unique, parse_constant=_refuse
        )
        _require_moderate(value)
    except InvalidInput as error:
        raise InvalidInput(f"{file} {error}") from None
    except (OSError, ValueError, RecursionError):
        raise InvalidInput(f"{file} cannot be read as JSON") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidInput("gives a key twice")
    return found


def _refuse(constant: str) -> Any:
    raise InvalidInput(f"holds {constant}, which is not a number")


def _require_moderate(value: Any) -> None:
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        if isinstance(each, (dict, list)):
            inside = [*each, *each.values()] if isinstance(each, dict) else each
            waiting += [(part, depth + 1) for part in inside]
        number = isinstance(each, (int, float)) and not isinstance(each, bool)
        if (
            depth > 24
            or (number and not abs(each) <= 1e15)  # nor infinite, nor NaN
            or (isinstance(each, str) and len(each) > 100_000)
        ):
            raise InvalidInput("holds a value that is too large")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Count = Annotated[int, Field(ge=0, le=10**12)]
Whole = Annotated[int, Field(ge=1, le=10**9)]
Label = Annotated[int, Field(ge=0, lt=100_000)]
Delta = Annotated[float, Field(ge=0, lt=1)]
Epsilon = Annotated[float, Field(ge=0)]
Proportion = Annotated[float, Field(ge=0, le=1)]
Moment = Annotated[float, Field(gt=0)]
Conversion = Literal["classic", "improved"]
Analysis = Literal["published", "tight"]
Accountant = Literal["gaussian", "bounded-range", "adaptive-bounded-range", "pure", "pld"]
ChargeName = Annotated[str, Field(pattern=r"^(labels|sanitised) [0-9a-f]{8,64}$")]
Events = Annotated[list[str], Field(max_length=100_000)]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]


# --- student.json ---------------------------------------------------------------------------------


class OnnxModel(_Part):
    """A graph of standard operators, in ``student/model.onnx``."""

    kind: Literal["onnx"]
    classes: Annotated[list[Label], Field(min_length=1)]  # the label of each column


class LinearModel(_Part):
    """``X @ weights + intercept``, in ``student/model.safetensors``."""

    kind: Literal["linear"]


class KernelModel(_Part):
    """A :class:`~pate.students.kernel_ridge.KernelRidge`, in ``student/model.safetensors``."""

    kind: Literal["kernel"]


class ConstantModel(_Part):
    """One label for every record."""

    kind: Literal["constant"]
    label: Label


class NetworkModel(_Part):
    """A network of :mod:`pate.students.networks`, its weights in ``student/model.safetensors``."""

    kind: Literal["network"]
    name: Literal["small-cnn", "mlp"]
    widths: Annotated[list[Annotated[int, Field(ge=1, le=2**20)]], Field(max_length=32)]


class CodeModel(_Part):
    """A class that must be imported; also every release of format 1."""

    kind: Literal["code"]
    model: dict[str, Any]
    encoder: dict[str, Any] | None
    seed: int
    needs: Annotated[list[str], Field(min_length=1)]  # "module:attr" of the classes
    why: str  # it could not be expressed otherwise


class EncoderStep(BaseModel):
    """A built-in step with its settings, or ``onnx``: a network as a graph."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Literal[
        "scattering", "root", "standardise", "normalise", "groupnorm", "pca", "diffusion",
        "impute", "one-hot", "ordinal", "onnx",
    ]  # fmt: skip


class InputColumn(_Part):
    """A column of a table: of numbers, or of categories."""

    name: Annotated[str, Field(max_length=1000)] | None
    categories: (
        Annotated[
            list[Annotated[str, Field(max_length=1000)]],
            Field(min_length=1, max_length=MOST_CATEGORIES),
        ]
        | None
    )


class Input(_Part):
    """The form of one record."""

    shape: list[Whole]
    dtype: str
    # Of format 3: see pate.releases.records.
    columns: Annotated[list[InputColumn], Field(max_length=1_000_000)] | None = None
    range: list[Literal[0, 1, 255]] | None = None
    missing: bool | None = None

    @field_validator("missing")
    @classmethod
    def _stated(cls, value: bool | None) -> bool | None:
        if value is None:  # left out by earlier formats, never null
            raise ValueError("missing is null; it must be true or false")
        return value

    @property
    def form(self) -> RecordForm:
        """The form by which records are read."""
        columns = self.columns and tuple(
            Column(
                name=each.name,
                categories=None if each.categories is None else tuple(each.categories),
            )
            for each in self.columns
        )
        low_high = None if self.range is None else (self.range[0], self.range[1])
        return RecordForm(
            shape=tuple(self.shape),
            dtype=self.dtype,
            columns=columns or None,
            range=low_high,
            missing=self.missing,
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [each.name for each in self.columns or ()]
        known = [name for name in names if name is not None]
        if self.columns is not None and self.shape != [len(names)]:
            raise ValueError("it has another number of columns than its shape")
        if known and len(set(known)) < len(names):
            raise ValueError("columns have names of their own, all or none")
        for each in self.columns or ():
            if len(set(each.categories or ())) < len(each.categories or ()):
                raise ValueError("a category is named twice")
        if self.range not in (None, [0, 1], [0, 255]):
            raise ValueError("pixels are from 0 to 1 or 255")
        return self

    @field_validator("dtype")
    @classmethod
    def _numbers(cls, name: str) -> str:
        if name not in {np.dtype(each).name for each in "?bhilqBHILQefd"}:
            raise ValueError("records are numbers")
        return name


class Header(_Part):
    """``student.json``."""

    format: Literal[2, 3]
    class_names: Annotated[list[str], Field(min_length=2, max_length=100_000)]
    input: Input
    encoder: Annotated[list[EncoderStep], Field(max_length=32)]
    model: Annotated[
        OnnxModel | LinearModel | KernelModel | ConstantModel | NetworkModel | CodeModel,
        Field(discriminator="kind"),
    ]


def read_header(folder: Path) -> Header:
    """Return ``student.json``; one of format 1 needs code."""
    file = folder / HEADER
    value = read_json(file)
    try:
        if isinstance(value, dict) and value.get("format") == 1:
            value = _from_first_format(value)
        header = Header.model_validate(value)
    except (ValidationError, LookupError, TypeError, AttributeError):
        raise InvalidInput(f"{file} is damaged, or of another version of pate") from None
    if math.prod(header.input.shape) > 2**28:
        raise InvalidInput(f"{file}: records of shape {header.input.shape} are too large")
    return header


def _from_first_format(old: dict[str, Any]) -> dict[str, Any]:
    steps = [] if old["encoder"] is None else old["encoder"]["steps"]
    names = [old["model"]["model"], *(each.get("model", each["name"]) for each in steps)]
    return {
        "format": 2,
        "class_names": old["class_names"],
        "input": old["input"],
        "encoder": [],
        "model": {
            "kind": "code",
            "model": old["model"],
            "encoder": old["encoder"],
            "seed": old["seed"],
            "needs": names,
            "why": "it was released in format 1",
        },
    }


# --- guarantee.json -------------------------------------------------------------------------------


class _Guarantee(_Part):
    epsilon: Epsilon
    delta: Delta
    moment: Moment | None
    conversion: Conversion | None
    neighbours: str
    analysis: Analysis | None = None  # published, where it is not said
    accountant: Accountant | None = None  # log-moments, where it is not said


class _Sanitised(_Part):
    epsilon: Epsilon
    delta: Delta
    moment: Moment
    conversion: Conversion
    confidence: Annotated[float, Field(gt=0.5, le=1)]
    price: Epsilon
    event: str
    charged: bool


class _DataSet(_Part):
    name: str
    terms: dict[str, Any]  # as the ledger has them; read by it
    events: Events
    covers: Literal["record", "user", "mixed"] | None = None  # None: of an earlier version
    records: list[str | None] | None = None  # relations of the charges, with record votes
    guarantee: _Guarantee


class _Statement(_Part):
    format: Literal[1]
    protects: str
    labels: Annotated[list[str], Field(min_length=1, max_length=100_000)]
    sanitised: _Sanitised | None
    counted: Literal["plan", "ledger"]
    charges: Annotated[list[ChargeName], Field(min_length=1)]
    events: Events = []
    guarantee: _Guarantee
    data_set: _DataSet


# --- release.json ---------------------------------------------------------------------------------


class _Share(_Part):
    accuracy: Proportion
    low: Proportion
    high: Proportion
    records: Whole


class _Evaluation(_Part):
    student: _Share
    labels: _Share | None
    agreement: _Share | None
    confusion: list[list[Count]] | None  # None: of people who are not public, and not asked for
    majority: Proportion | None = None  # share of the majority class, where there is no table


class _Answers(_Part):
    asked: Count
    answered: Count
    kept: Count
    by_class: list[Count]


class _Release(_Part):
    format: Literal[2, 3, 4]
    what: str
    date: Day
    versions: dict[str, str]
    recipe: dict[str, Any]
    public_inputs: Whole
    labels: bool
    notes: list[str]
    why_not: str | None
    evaluation: _Evaluation
    answers: _Answers
    owner: dict[str, Any] | None = None  # the owner's answers, of format 4
    files: dict[str, str]


# --- of a model trained by DP-SGD -----------------------------------------------------------------


class _TrainingStatement(_Part):
    format: Literal[1]
    method: Literal["dpsgd"]
    protects: str
    accountant: Literal["tightest", "moments", "abadi", "pld"]
    events: Annotated[list[str], Field(min_length=1, max_length=1000)]
    charges: Annotated[
        list[Annotated[str, Field(pattern=r"^dpsgd [0-9a-f]{8,64}$")]], Field(min_length=1)
    ]
    guarantee: _Guarantee
    data_set: _DataSet


class _Epoch(_Part):
    epoch: Whole
    step: Whole
    accuracy: Proportion | None


class _Training(_Part):
    # That the sampling rate follows from; 0 for least squares, where nothing follows from it.
    records: Annotated[int, Field(ge=0, le=10**9)]
    noise_multiplier: Annotated[float, Field(gt=0)]
    epochs: Annotated[list[_Epoch], Field(max_length=100_000)]


class _TrainingRelease(_Part):
    format: Literal[3, 4]
    what: str
    date: Day
    versions: dict[str, str]
    recipe: dict[str, Any]
    training: _Training
    notes: list[str]
    evaluation: _Evaluation
    owner: dict[str, Any] | None = None
    files: dict[str, str]


def is_training(release: Any) -> bool:
    """Return whether a ``release.json`` is that of a model trained by DP-SGD."""
    return isinstance(release, dict) and "training" in release


def value_problems(name: str, value: Any, *, training: bool = False) -> list[str]:
    """Return the values of ``guarantee.json`` or ``release.json`` of a wrong type or range."""
    models: tuple[type[_Part], type[_Part]] = (_Statement, _Release)
    if training:
        models = (_TrainingStatement, _TrainingRelease)
    try:
        models[name != STATEMENT].model_validate(value)
    except ValidationError as error:
        return [
            f"{name}: {'.'.join(map(str, each['loc'])) or 'it'} is wrong: {each['msg'].lower()}"
            for each in error.errors(include_url=False, include_input=False, include_context=False)
        ][:10]
    return []


def unpublishable(value: Any) -> Iterator[str]:
    """Yield a sentence for each part of a JSON value that is marked as not publishable.

    >>> list(unpublishable({"a": [{"epsilon": 1.0, "publishable": False}]}))
    ['a value that may not be published']
    """
    if isinstance(value, dict):
        if value.get("publishable") is False or value.get("data_dependent") is True:
            yield "a value that may not be published"
        for each in value.values():
            yield from unpublishable(each)
    elif isinstance(value, list):
        for each in value:
            yield from unpublishable(each)
