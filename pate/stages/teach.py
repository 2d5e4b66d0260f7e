"""The teach stage: one teacher for each shard, trained by the engine, each with a manifest."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pate.artifacts import Artifact, Level, fingerprint
from pate.engines import Task
from pate.engines.files import makes, reads, rows
from pate.errors import InvalidInput, TeacherError
from pate.pipeline.ledger import naming_key
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.dispatch import (
    Dispatcher,
    Work,
    alone,
    group_task,
    groups,
    read_failures,
    work_for,
)
from pate.stages.distill import require_student
from pate.stages.encode import private_features_path, require_complete
from pate.teachers.adapters import is_torch_teacher, make
from pate.teachers.spec import NOT_IN_FINGERPRINT, TeachersSpec, model_for, no_slices, seed_for

_VERSION = 1
CHECKPOINTS = "checkpoints.json"  # names of all that may be there, in a run with slices


def _settings(recipe: Recipe, options: Options) -> Any:
    spec = recipe.teachers.model_dump(mode="json", exclude=NOT_IN_FINGERPRINT)
    return {"teachers": spec, "plugin": options.source_digest(spec)}


def _run(context: Context) -> None:
    shards = context.inputs["partition"]
    plugin = _settings(context.recipe, context.options)["plugin"]
    classes = shards.facts["classes"]
    require_trainable(context)
    encoder = context.inputs["encoder"].digest
    # Under the data set's key: names of folders turn up in messages, and follow from records.
    key = naming_key(context.recipe, context.options.data_root)

    def name(kind: str, number: int, digest: Any, **more: int) -> str:
        one = _one(context, number) | more
        return fingerprint(kind, _VERSION, key, number, digest, encoder, classes, one, plugin)

    spec, digests = context.recipe.teachers, shards.json("shards.json")
    if spec.slices > 1:
        flat = shards.json("slices.json")
        digests = [flat[at : at + spec.slices] for at in range(0, len(flat), spec.slices)]
    checkpoints = [
        [
            [name("checkpoint", n, each[:s], attempt=attempt) for s in range(1, spec.slices)]
            for n, each in enumerate(digests)
        ]
        for attempt in range(_attempts(spec))
    ]
    made_from = [name("teacher", number, digest) for number, digest in enumerate(digests)]
    failed = _train_missing(context, shards, made_from, checkpoints)
    if len(failed) == len(made_from):
        raise TeacherError(f"every teacher failed; teacher 0 because {failed[0]}")
    record_abstentions(context, failed)
    with context.draft(Level.PRIVATE) as draft:
        draft.save_json(
            "teachers.json", [None if n in failed else name for n, name in enumerate(made_from)]
        )
        if spec.slices > 1:
            draft.save_json(CHECKPOINTS, checkpoints)
        draft.facts.update(shards.facts)


def record_abstentions(context: Context, failed: Mapping[int, str]) -> None:
    """Save, as private, which teachers abstain and why; whether any does is private too."""
    if context.recipe.teachers.on_error != "abstain":
        return
    with context.draft(Level.PRIVATE, part="failures") as draft:
        draft.save_json("failed.json", {str(n): why for n, why in sorted(failed.items())})
    name = context.store.reader
    place = context.store.folder(f"{name}-failures", Level.PRIVATE, context.made_from)
    context.options.report(f"{name}: which teachers abstain, if any, is in {place}/failed.json")


def _one(context: Context, number: int) -> dict[str, Any]:
    """Return all that decides how one teacher is trained, except its shard."""
    spec = context.recipe.teachers
    model = model_for(spec, number).model_dump(mode="json", exclude={"weight"})
    slices = {"slices": spec.slices} if spec.slices > 1 else {}
    return {"model": model, "seed": seed_for(spec, number), "batched": spec.batched} | slices


def _attempts(spec: TeachersSpec) -> int:
    return 1 + (spec.retries if spec.on_error == "retry" else 0)


def require_trainable(context: Context) -> None:
    """Refuse what training would be refused for, of teachers and of the student; none is trained.

    For this stage, and for a study before its first charge.
    """
    recipe, options = context.recipe, context.options
    classes = context.inputs["partition"].facts["classes"]
    require_student(recipe, options, classes=classes)
    private = np.load(private_features_path(context), mmap_mode="r")
    width = int(np.prod(private.shape[1:]))
    require_complete(context, classes=classes, width=width, private=private)
    if recipe.teachers.slices > 1:
        require_teachers(recipe, options, classes=classes)


def require_teachers(recipe: Recipe, options: Options, *, classes: int) -> None:
    """Refuse teachers that cannot be made, and slices for some that cannot resume a checkpoint."""
    spec = recipe.teachers
    for each in spec.mix or [model_for(spec, 0)]:
        made = make(each, classes=classes, seed=0, plugin_path=options.plugin_path)
        if spec.slices > 1 and not is_torch_teacher(made):
            raise InvalidInput(no_slices(each.model))


def _train_missing(
    context: Context,
    shards: Artifact,
    made_from: list[str],
    checkpoints: list[list[list[str]]],
) -> dict[int, str]:
    """Train the missing teachers; return the ones that abstain, with reasons.

    Guarantees:
        A teacher abstains for what happened while it trained alone on its own shard, never
        because another teacher of its group took the worker down: one record still moves one
        teacher's vote. Nor does that change how the others are rounded
        (:meth:`pate.stages.dispatch.Work.after_loss`).
    """
    spec = context.recipe.teachers
    sizes = np.diff(shards.array("offsets.npy"))

    def missing(numbers: Iterable[int]) -> list[int]:
        return [n for n in numbers if context.store.find("teacher", made_from[n]) is None]

    left = dict.fromkeys(missing(range(len(made_from))), "")
    last = _attempts(spec) - 1
    done, slots = len(made_from) - len(left), context.options.engine.slots
    with context.options.progress("teach", len(made_from), done, slots) as progress:
        for attempt in range(last + 1):
            progress.retried(len(left) if attempt else 0)
            dispatcher = Dispatcher(
                engine=context.options.engine,
                timeout=spec.timeout,
                abstaining=spec.on_error == "abstain",
                task=functools.partial(
                    _task,
                    context,
                    shards,
                    made_from,
                    checkpoints[attempt],
                    attempt,
                ),
                weight=lambda work: float(sizes[work.wanted].sum()),
                missing=lambda work: missing(work.wanted),
                failures=lambda work, outcome: read_failures(outcome, work.wanted),
                progress=progress,
            )
            # After a failure each is alone, so that it does not depend on which others failed.
            todo = work_for(groups(spec), left) if attempt == 0 else alone(left)
            left = {}
            for result in dispatcher.run(todo):
                left |= result.failed
                if left and attempt == last and spec.on_error != "abstain":
                    number, why = next(iter(left.items()))
                    raise TeacherError(f"teacher {number} failed: {why}")
        progress.advance(len(left))
    return left


def _task(
    context: Context,
    shards: Artifact,
    made_from: list[str],
    checkpoints: list[list[str]],
    attempt: int,
    work: Work,
) -> Task:
    offsets, store = shards.array("offsets.npy"), context.store
    slices = context.recipe.teachers.slices
    bounds = shards.array("slices.npy") if slices > 1 else offsets
    records, labels = private_features_path(context), shards.path / "labels.npy"

    def member(number: int) -> dict[str, Any]:
        start, stop = offsets[number : number + 2]
        steps = zip(checkpoints[number], bounds[number * slices + 1 :], strict=False)
        return {
            "made_from": made_from[number],
            "records": rows(records, start, stop),
            "labels": rows(labels, start, stop),
            "checkpoints": [checkpoint(name, int(end)) for name, end in steps],
        }

    def checkpoint(name: str, stop: int) -> dict[str, Any]:
        there = store.find("checkpoint", name)
        folder = None if there is None else reads(there.path)
        return {"made_from": name, "stop": stop, "folder": folder}

    folders = [store.folder("teacher", Level.PRIVATE, made_from[n]) for n in work.wanted]
    for n in work.wanted:
        folders += [store.folder("checkpoint", Level.PRIVATE, name) for name in checkpoints[n]]
    names = [folder.relative_to(store.root).as_posix() for folder in folders]
    return group_task(
        context,
        work,
        "train_group",
        member=member,
        weight=float(sum(offsets[n + 1] - offsets[n] for n in work.wanted)),
        attempt=attempt,
        store=makes(store.root, names=names),
        classes=shards.facts["classes"],
        slices=slices,
    )


TEACH = Stage(
    name="teach",
    version=_VERSION,
    needs=("partition", "encoder", "encode"),
    clearance=Level.PRIVATE,
    settings=_settings,
    run=_run,
)
