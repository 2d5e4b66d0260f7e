"""What workers do: train some teachers, let some teachers vote.

Apart from the stages that hand out the work, so that a worker loads no more than it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from pate.artifacts import Level, Store, StoreError
from pate.errors import PateError
from pate.teachers import ModelSpec, Teacher, load, make, predict_labels, save, train

CHUNK = 4096  # inputs predicted at a time
ABSTAINS = -1


def train_group(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Trains some teachers, in a worker; each reads its own slice of the records.

    A model that cannot be made, or a disk that is full, is no teacher's failure: it stops the run.
    """
    store = Store(root=Path(payload["root"]), reader="teach")
    shards = Path(payload["shards"])
    offsets = np.load(shards / "offsets.npy")
    features = np.load(payload["features"], mmap_mode="r")
    labels = np.load(shards / "labels.npy", mmap_mode="r")
    failed: dict[int, str] = {}
    for each in payload["teachers"]:
        number = each["number"]
        part = slice(offsets[number], offsets[number + 1])
        try:
            teacher = make(
                ModelSpec.model_validate(each["model"]),
                classes=payload["classes"],
                seed=each["seed"],
                plugin_path=Path(payload["plugin_path"]) if payload["plugin_path"] else None,
            )
        except PateError as error:
            return {"failed": failed, "stop": str(error)}
        try:
            train(teacher, np.array(features[part]), np.array(labels[part]))
            made_from = each["made_from"]
            with store.draft("teacher", made_from, level=Level.PRIVATE, durable=False) as draft:
                save(teacher, draft.path)
        except StoreError as error:
            return {"failed": failed, "stop": str(error)}
        except PateError as error:
            failed[number] = str(error)
        except Exception as error:  # its text may quote private records
            failed[number] = type(error).__name__
    return {"failed": failed, "stop": None}


def predict_group(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Predictions of some teachers for all inputs, in a worker, a chunk of inputs at a time."""
    inputs = np.load(payload["inputs"], mmap_mode="r")
    said = open_memmap(
        payload["part"],
        mode="w+",
        dtype=np.int32,
        shape=(len(payload["teachers"]), len(inputs)),
    )
    failed: dict[int, str] = {}
    for row, each in enumerate(payload["teachers"]):
        try:
            teacher = _load(payload, each)
            for start in range(0, len(inputs), CHUNK):
                chunk = np.array(inputs[start : start + CHUNK])
                said[row, start : start + CHUNK] = predict_labels(
                    teacher, chunk, classes=payload["classes"]
                )
        except StoreError as error:
            return {"failed": failed, "stop": f"teacher {each['number']}: {error}"}
        except Exception as error:
            said[row] = ABSTAINS  # all of it: half a vote would be a vote
            failed[each["number"]] = (
                str(error) if isinstance(error, PateError) else type(error).__name__
            )
    return {"failed": failed, "stop": None}


def _load(payload: Mapping[str, Any], each: Mapping[str, Any]) -> Teacher:
    """A teacher whose files are as they were written."""
    store = Store(root=Path(payload["root"]), reader="vote")
    return load(
        store.open("teacher", each["made_from"]).path,
        ModelSpec.model_validate(each["model"]),
        classes=payload["classes"],
        seed=each["seed"],
        plugin_path=Path(payload["plugin_path"]) if payload["plugin_path"] else None,
    )
