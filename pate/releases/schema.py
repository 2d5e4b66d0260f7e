"""The JSON files of a release: read within limits, every value of its type and in its range."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from pate.errors import InvalidInput
from pate.releases.files import HEADER, RELEASE, STATEMENT

FORMAT = 3  # of release.json, and of the texts of the card and the page
HEADER_FORMAT = 2  # of student.json
_DEEPEST, _LARGEST, _LONGEST = 24, 1e15, 100_000  # of nesting, of a number, of a text


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
            depth > _DEEPEST
            or (number and not abs(each) <= _LARGEST)  # nor infinite, nor NaN
            or (isinstance(each, str) and len(each) > _LONGEST)
        ):
            raise InvalidInput("holds a value that is too large")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Count = Annotated[int, Field(ge=0, le=10**12)]
Whole = Annotated[int, Field(ge=1, le=10**9)]
Label = Annotated[int, Field(ge=0, lt=100_000)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Epsilon = Annotated[float, Field(ge=0)]
Proportion = Annotated[float, Field(ge=0, le=1)]
Moment = Annotated[float, Field(gt=0)]
Conversion = Literal["classic", "improved"]
ChargeName = Annotated[str, Field(pattern=r"^(labels|sanitised) [0-9a-f]{8,64}$")]


# --- student.json ---------------------------------------------------------------------------------


class OnnxModel(_Part):
    """A graph of standard operators, in ``student/model.onnx``."""

    kind: Literal["onnx"]
    classes: Annotated[list[Label], Field(min_length=1)]  # the label of each column


class LinearModel(_Part):
    """``X @ weights + intercept``, in ``student/model.safetensors``."""

    kind: Literal["linear"]


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
        "scattering", "root", "standardise", "normalise", "groupnorm", "pca", "diffusion", "onnx"
    ]


class Input(_Part):
    """The form of one record."""

    shape: list[Whole]
    dtype: str

    @field_validator("dtype")
    @classmethod
    def _numbers(cls, name: str) -> str:
        if name not in {np.dtype(each).name for each in "?bhilqBHILQefd"}:
            raise ValueError("records are numbers")
        return name


class Header(_Part):
    """``student.json``."""

    format: Literal[2]
    class_names: Annotated[list[str], Field(min_length=2, max_length=100_000)]
    input: Input
    encoder: Annotated[list[EncoderStep], Field(max_length=32)]
    model: Annotated[
        OnnxModel | LinearModel | ConstantModel | NetworkModel | CodeModel,
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
    events: Annotated[list[str], Field(max_length=100_000)]
    guarantee: _Guarantee


class _Statement(_Part):
    format: Literal[1]
    protects: str
    labels: Annotated[list[str], Field(min_length=1, max_length=100_000)]
    sanitised: _Sanitised | None
    counted: Literal["plan", "ledger"]
    charges: Annotated[list[ChargeName], Field(min_length=1)]
    events: Annotated[list[str], Field(max_length=100_000)] = []
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
    confusion: list[list[Count]]


class _Answers(_Part):
    asked: Count
    answered: Count
    kept: Count
    by_class: list[Count]


class _Release(_Part):
    format: Literal[2, 3]
    what: str
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    versions: dict[str, str]
    recipe: dict[str, Any]
    public_inputs: Whole
    labels: bool
    notes: list[str]
    why_not: str | None
    evaluation: _Evaluation
    answers: _Answers
    files: dict[str, str]


_KINDS: dict[str, TypeAdapter[Any]] = {
    STATEMENT: TypeAdapter(_Statement),
    RELEASE: TypeAdapter(_Release),
}


def value_problems(name: str, value: Any) -> list[str]:
    """Return the values of one of these files that are of the wrong type, or out of range."""
    try:
        _KINDS[name].validate_python(value)
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
