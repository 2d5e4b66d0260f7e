"""What workers do: train some teachers, let some teachers vote.

Apart from the stages that hand out the work, so that a worker loads no more than it needs. In a
group a teacher without ``made_from`` is not asked for; it keeps its place among the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from pate.artifacts import Level, Store, StoreError
from pate.errors import PateError
from pate.teachers import (
    ModelSpec,
    Teacher,
    alike,
    make,
    predict_many_labels,
    restore,
    save,
    train_many,
)

CHUNK = 4096  # inputs predicted at a time
ABSTAINS = -1


def train_group(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Trains some teachers, in a worker; each reads its own slice of the records.

    A model that cannot be made, or a disk that is full, is no teacher's failure: it stops the run.
    """
    store = Store(root=Path(payload["root"]), reader="teach")
    group = payload["teachers"]
    try:
        teachers = [_make(payload, each) if each["made_from"] else None for each in group]
    except PateError as error:
        return {"failed": {}, "stop": str(error)}
    shards = _Shards(payload)
    failed: dict[int, str] = {}
    for family in _families(payload, teachers):
        told = train_many(
            list(family.values()),
            [
                None if teacher is None else shards.read(group[place]["number"])
                for place, teacher in family.items()
            ],
        )
        for (place, teacher), failure in zip(family.items(), told, strict=True):
            if teacher is None:
                continue
            number, made_from = group[place]["number"], group[place]["made_from"]
            try:
                if failure is not None:
                    raise failure
                with store.draft("teacher", made_from, level=Level.PRIVATE, durable=False) as draft:
                    save(teacher, draft.path)
            except StoreError as stop:
                return {"failed": failed, "stop": str(stop)}
            except Exception as why:
                failed[number] = _reason(why)
    return {"failed": failed, "stop": None}


def predict_group(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Predictions of some teachers for all inputs, in a worker, a chunk of inputs at a time."""
    group = payload["teachers"]
    inputs = np.load(payload["inputs"], mmap_mode="r")
    said = open_memmap(payload["part"], mode="w+", dtype=np.int32, shape=(len(group), len(inputs)))
    said[:] = ABSTAINS
    failed: dict[int, str] = {}
    fresh: list[Teacher | None] = [None] * len(group)
    for place, each in enumerate(group):
        try:
            fresh[place] = _make(payload, each) if each["made_from"] else None
        except Exception as error:
            failed[each["number"]] = _reason(error)
    for family in _families(payload, fresh):
        for place, teacher in family.items():
            try:
                if teacher is not None:
                    family[place] = restore(teacher, _folder(payload, group[place]))
            except StoreError as error:
                stop = f"teacher {group[place]['number']}: {error}"
                return {"failed": failed, "stop": stop}
            except Exception as error:
                family[place] = None
                failed[group[place]["number"]] = _reason(error)
        for place, failure in _ask(family, inputs, said, classes=payload["classes"]).items():
            said[place] = ABSTAINS  # all of it: half a vote would be a vote
            failed[group[place]["number"]] = str(failure)
    return {"failed": failed, "stop": None}


def _ask(
    family: dict[int, Teacher | None],
    inputs: NDArray[Any],
    said: NDArray[np.int32],
    *,
    classes: int,
) -> dict[int, PateError]:
    """Writes down what a family says; returns who could not, and why."""
    failed: dict[int, PateError] = {}
    for start in range(0, len(inputs), CHUNK):
        chunk = np.array(inputs[start : start + CHUNK])
        answers = predict_many_labels(list(family.values()), chunk, classes=classes)
        for place, answer in zip(family, answers, strict=True):
            if isinstance(answer, PateError):
                failed[place] = answer
                family[place] = None  # it is not asked again
            elif answer is not None:
                said[place, start : start + CHUNK] = answer
    return failed


def _families(
    payload: Mapping[str, Any], teachers: Sequence[Teacher | None]
) -> Iterator[dict[int, Teacher | None]]:
    """Teachers to be taken together, by their place in the group.

    A family has all places of the group, empty where another teacher or none is: so who is missing
    changes no shape, and no rounding, for the others. Ordinary teachers come one at a time.
    """
    for places in alike(teachers):
        first = teachers[places[0]]
        if payload["batched"] and hasattr(first, "fit_many"):
            yield {p: t if p in places else None for p, t in enumerate(teachers)}
        else:
            for place in places:
                yield {place: teachers[place]}


def _make(payload: Mapping[str, Any], each: Mapping[str, Any]) -> Teacher:
    return make(
        ModelSpec.model_validate(each["model"]),
        classes=payload["classes"],
        seed=each["seed"],
        plugin_path=Path(payload["plugin_path"]) if payload["plugin_path"] else None,
    )


class _Shards:
    """The private records, read a shard at a time."""

    def __init__(self, payload: Mapping[str, Any]) -> None:
        folder = Path(payload["shards"])
        self.offsets = np.load(folder / "offsets.npy")
        self.features = np.load(payload["features"], mmap_mode="r")
        self.labels = np.load(folder / "labels.npy", mmap_mode="r")

    def read(self, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        part = slice(self.offsets[number], self.offsets[number + 1])
        return np.array(self.features[part]), np.array(self.labels[part])


def _folder(payload: Mapping[str, Any], each: Mapping[str, Any]) -> Path:
    """Where a teacher is, its files as they were written."""
    store = Store(root=Path(payload["root"]), reader="vote")
    return store.open("teacher", each["made_from"]).path


def _reason(error: Exception) -> str:
    """Why a teacher failed; the text of other errors than ours may quote private records."""
    return str(error) if isinstance(error, PateError) else type(error).__name__
