"""The functions that workers run: train some teachers, let some teachers vote.

Apart from the stages that dispatch the work, so that a worker loads no more than it needs. In a
group a teacher without ``made_from`` is not wanted; it keeps its place among the others. Files are
named by references (:mod:`pate.engines.files`): a worker may be on another machine.

A teacher whose shard is empty is kept as an artifact without files, and casts no vote. The same
holds for a checkpoint: from one without files a teacher begins.

Guarantees:
    A record more or less makes a teacher vote that abstained, or the other way round: one count
    moves by one, which is within what every bound allows for (two counts by one each). A teacher
    of an empty shard takes its turn like the others, so that neither progress nor messages show it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from pate.artifacts import Artifact, Draft, Level, Store, StoreError, open_alone
from pate.components import load_places
from pate.engines.files import load_rows, path_of, reads
from pate.errors import OutOfMemory, PateError
from pate.teachers.adapters import is_torch_teacher, make
from pate.teachers.persist import restore, save
from pate.teachers.protocol import Teacher, group_families, predict_many_labels, train_many
from pate.teachers.spec import ModelSpec, epochs_of_step, seed_of_step
from pate.untrusted import describe_error, is_own

CHUNK = 4096  # inputs predicted at a time
ABSTAINS = -1


def train_group(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Train some teachers; each reads its own rows of the records.

    With slices there is a step for each: it goes on from the checkpoint of the step before, on the
    records of all slices up to its own. Weights always come from the file, so that a teacher is the
    same whether its checkpoints were there or are made now. An optimizer begins anew in each step.

    A model that cannot be made, a full disk or a device that is too small for one network is no
    teacher's failure: it stops the run.
    """
    store = Store(root=path_of(payload["store"]), reader="teach")
    failed: dict[int, str] = {}
    for step in range(1, payload.get("slices", 1) + 1):
        try:
            group = [_at_step(store, each, step, failed) for each in payload["teachers"]]
            done = _train_step(store, payload, group)
        except StoreError as error:
            done = {"failed": {}, "stop": str(error)}
        failed |= done["failed"]
        if done["stop"]:
            return {"failed": failed, "stop": done["stop"]}
    return {"failed": failed, "stop": None}


def _at_step(
    store: Store, each: Mapping[str, Any], step: int, failed: Iterable[int]
) -> dict[str, Any]:
    """Return what one teacher needs for a step; without ``made_from`` if it does not take it."""
    found, checkpoints = {**each, "step": step}, each.get("checkpoints", [])
    there = [at["folder"] or store.find("checkpoint", at["made_from"]) for at in checkpoints]
    if each["number"] in failed or any(there[step - 1 :]):
        found["made_from"] = None
    elif checkpoints:
        epochs = epochs_of_step(each["model"]["epochs"], len(checkpoints) + 1)
        found["model"] = {**each["model"], "epochs": epochs}
        if step > 1:
            at = checkpoints[step - 2]
            made = store.folder("checkpoint", Level.PRIVATE, at["made_from"])
            found["before"] = _open({**at, "folder": at["folder"] or reads(made)}, "checkpoint")
        if step <= len(checkpoints):
            at = checkpoints[step - 1]
            found |= {"made_from": at["made_from"], "stage": "checkpoint"}
            found |= {name: {**each[name], "stop": at["stop"]} for name in ("records", "labels")}
    return found


def _continued(teacher: Teacher, each: Mapping[str, Any]) -> Teacher:
    """Return a new teacher as it is before a step."""
    if is_torch_teacher(teacher):  # the stage refuses slices for others
        teacher.seed = seed_of_step(each["seed"], each["step"])
    before = each.get("before")
    return teacher if before is None or not before.holds_files else restore(teacher, before.path)


def _train_step(
    store: Store, payload: Mapping[str, Any], group: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    try:
        teachers = [
            _continued(_make(payload, each), each) if each["made_from"] else None for each in group
        ]
    except PateError as error:
        return {"failed": {}, "stop": str(error)}
    failed: dict[int, str] = {}
    try:
        for place, each in enumerate(group):
            if each["made_from"] and each["records"]["stop"] <= each["records"]["start"]:
                teachers[place] = None
                with _draft(store, each):
                    pass
        for family in _families(payload, teachers):
            data = [None if t is None else _shard(group[place]) for place, t in family.items()]
            seeds = _seeds(group, family)
            failures = train_many(list(family.values()), data, seeds=seeds)
            members = zip(family.items(), data, seeds, failures, strict=True)
            for (place, teacher), shard, seed, failure in members:
                try:
                    if failure is not None:
                        raise failure
                    if teacher is not None:
                        with _draft(store, group[place]) as draft:
                            kept = None if group[place].get("checkpoints") else shard
                            save(teacher, draft.path, shard=kept, seed=seed)
                except (StoreError, OutOfMemory):
                    raise
                except Exception as error:
                    failed[group[place]["number"]] = _reason(error)
    except (StoreError, OutOfMemory) as stop:
        return {"failed": failed, "stop": str(stop)}
    return {"failed": failed, "stop": None}


def predict_group(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Write the predictions of some teachers for all inputs, a chunk of inputs at a time.

    What stops the run is as in :func:`train_group`; ``damaged`` marks a teacher's damaged files.
    """
    try:
        return _predict_group(payload)
    except OutOfMemory as stop:
        return {"failed": {}, "stop": str(stop)}


def _predict_group(payload: Mapping[str, Any]) -> dict[str, Any]:
    group = payload["teachers"]
    inputs = np.load(path_of(payload["inputs"]), mmap_mode="r", allow_pickle=False)
    part = path_of(payload["part"])
    unfinished = part.with_name(f".{part.name}")
    shape = (len(group), len(inputs))
    predictions = open_memmap(unfinished, mode="w+", dtype=np.int32, shape=shape)
    predictions[:] = ABSTAINS
    failed: dict[int, str] = {}
    fresh: list[Teacher | None] = [None] * len(group)
    for place, each in enumerate(group):
        try:
            fresh[place] = _make(payload, each) if each["made_from"] else None
        except OutOfMemory:
            raise
        except Exception as error:
            failed[each["number"]] = _reason(error)
    for family in _families(payload, fresh):
        for place, teacher in family.items():
            try:
                if teacher is not None:
                    found = _open(group[place])
                    family[place] = None  # without files it has learnt nothing
                    if found.holds_files:
                        remake = functools.partial(_make, payload, group[place])
                        family[place] = restore(teacher, found.path, remake=remake)
            except StoreError as error:
                stop = f"teacher {group[place]['number']}: {error}"
                return {"failed": failed, "stop": stop, "damaged": True}
            except OutOfMemory:
                raise
            except Exception as error:
                family[place] = None
                failed[group[place]["number"]] = _reason(error)
        seeds = _seeds(group, family)
        failures = _predict(family, inputs, predictions, classes=payload["classes"], seeds=seeds)
        for place, failure in failures.items():
            predictions[place] = ABSTAINS  # all of it: half a vote would be a vote
            failed[group[place]["number"]] = str(failure)
    unfinished.rename(part)
    return {"failed": failed, "stop": None}


def count_group(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Write the table of the votes of some shards of records.

    Guarantees:
        The vote of a record is a function of it and of public inputs (:mod:`pate.record_votes`),
        and whole numbers add up exactly: the table is the same however records are grouped.
    """
    cells, classes = load_places(path_of(payload["cells"])), int(payload["classes"])
    counts = np.zeros((len(cells), classes), dtype=np.int64)
    for shard in payload["shards"]:
        records, labels = _shard(shard)
        counts += cells.count(records, labels, classes=classes, reach=int(payload["reach"]))
    part = path_of(payload["part"])
    unfinished = part.with_name(f".{part.name}")
    np.save(unfinished, counts, allow_pickle=False)
    unfinished.rename(part)
    return {"failed": {}, "stop": None}


def _predict(
    family: dict[int, Teacher | None],
    inputs: NDArray[Any],
    predictions: NDArray[np.int32],
    *,
    classes: int,
    seeds: Sequence[int],
) -> dict[int, PateError]:
    """Fill in the predictions of a family; return the places that failed, with their errors."""
    failed: dict[int, PateError] = {}
    for start in range(0, len(inputs), CHUNK):
        chunk = np.array(inputs[start : start + CHUNK])
        answers = predict_many_labels(list(family.values()), chunk, classes=classes, seeds=seeds)
        for place, answer in zip(family, answers, strict=True):
            if isinstance(answer, PateError):
                failed[place] = answer
                family[place] = None  # not asked again
            elif answer is not None:
                predictions[place, start : start + CHUNK] = answer
    return failed


def _families(
    payload: Mapping[str, Any], teachers: Sequence[Teacher | None]
) -> Iterator[dict[int, Teacher | None]]:
    """Yield teachers that are computed together, by their place in the group.

    A family has all places of the group, empty where another teacher or none is: so a missing one
    changes no shape, and no rounding, for the others. Ordinary teachers come one at a time.
    """
    for places in group_families(teachers):
        first = teachers[places[0]]
        if payload["batched"] and hasattr(first, "fit_many"):
            yield {p: t if p in places else None for p, t in enumerate(teachers)}
        else:
            for place in places:
                yield {place: teachers[place]}


def _seeds(group: Sequence[Mapping[str, Any]], family: Iterable[int]) -> list[int]:
    """Return one seed for each place, so that draws follow from the recipe alone."""
    return [seed_of_step(group[place]["seed"], group[place].get("step", 1)) for place in family]


def _make(payload: Mapping[str, Any], each: Mapping[str, Any], seed: int | None = None) -> Teacher:
    return make(
        ModelSpec.model_validate(each["model"]),
        classes=payload["classes"],
        seed=each["seed"] if seed is None else seed,
        plugin_path=path_of(payload["plugins"]) if payload["plugins"] else None,
    )


def _draft(store: Store, each: Mapping[str, Any]) -> AbstractContextManager[Draft]:
    """Open a teacher's artifact; it can be trained again, so nothing waits for the disk."""
    stage = each.get("stage", "teacher")
    return store.draft(stage, each["made_from"], level=Level.PRIVATE, durable=False)


def _shard(each: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Load one teacher's records and labels, and no other's."""
    return load_rows(each["records"]), load_rows(each["labels"])


def _open(each: Mapping[str, Any], stage: str = "teacher") -> Artifact:
    """Open a teacher's artifact, or a checkpoint, and verify its files."""
    return open_alone(
        path_of(each["folder"]),
        stage=stage,
        level=Level.PRIVATE,
        made_from=each["made_from"],
    )


def _reason(error: Exception) -> str:
    """Return why a teacher failed; the text of errors other than ours may quote private records."""
    return str(error) if is_own(error) else describe_error(error)
