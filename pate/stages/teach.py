"""The teach stage: one teacher for each shard, trained by the engine, each with a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pate.artifacts import Artifact, Level, fingerprint
from pate.engines import Progress, Task
from pate.engines.files import code, makes, modules, rows
from pate.errors import PateError, TeacherError
from pate.pipeline.ledger import naming_key
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.dispatch import Dispatcher, Work, alone, groups, read_failures, work_for
from pate.stages.features import private_features_path
from pate.teachers.spec import NOT_IN_FINGERPRINT, model_for, seed_for

_VERSION = 1


def _settings(recipe: Recipe, options: Options) -> Any:
    spec = recipe.teachers.model_dump(mode="json", exclude=NOT_IN_FINGERPRINT)
    return {"teachers": spec, "plugin": plugin_digest(options.plugin_path)}


def plugin_digest(path: Path | None) -> str | None:
    """Return a digest of the user's own code, so that a changed teacher is trained again."""
    if path is None:
        return None
    try:
        found = [(name, file.read_bytes().hex()) for name, file in modules(path).items()]
    except OSError as error:
        raise PateError(f"cannot read the plug-ins in {path}: {error.strerror}") from error
    return fingerprint(found)


def _run(context: Context) -> None:
    shards = context.inputs["partition"]
    plugin = plugin_digest(context.options.plugin_path)
    classes = shards.facts["classes"]
    encoder = context.inputs["encoder"].digest
    # Under the data set's key: names of folders turn up in messages, and follow from records.
    key = naming_key(context.recipe, context.options.data_root)
    made_from = [
        fingerprint(
            "teacher",
            _VERSION,
            key,
            number,
            digest,
            encoder,
            classes,
            _one(context, number),
            plugin,
        )
        for number, digest in enumerate(shards.json("shards.json"))
    ]
    failed = _train_missing(context, shards, made_from)
    if len(failed) == len(made_from):
        raise TeacherError(f"every teacher failed; teacher 0 because {failed[0]}")
    record_abstentions(context, failed)
    with context.draft(Level.PRIVATE) as draft:
        draft.save_json(
            "teachers.json", [None if n in failed else name for n, name in enumerate(made_from)]
        )
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
    return {"model": model, "seed": seed_for(spec, number), "batched": spec.batched}


def _train_missing(context: Context, shards: Artifact, made_from: list[str]) -> dict[int, str]:
    """Train the missing teachers; return the ones that abstain, with reasons.

    Guarantees:
        A teacher abstains for what happened while it trained alone on its own shard, never
        because another teacher of its group took the worker down: one record still moves one
        teacher's vote. Nor does that change how the others are rounded
        (:meth:`pate.stages.dispatch.Work.after_loss`).
    """
    spec = context.recipe.teachers
    missing = [n for n, name in enumerate(made_from) if context.store.find("teacher", name) is None]
    left = dict.fromkeys(missing, "")
    last = spec.retries if spec.on_error == "retry" else 0
    done, slots = len(made_from) - len(left), context.options.engine.slots
    with context.options.progress("teach", len(made_from), done, slots) as progress:
        for attempt in range(last + 1):
            progress.retried(len(left) if attempt else 0)
            fatal = attempt == last and spec.on_error != "abstain"
            left = _attempt(
                context,
                shards,
                made_from,
                list(left),
                attempt=attempt,
                fatal=fatal,
                progress=progress,
            )
        progress.advance(len(left))
    return left


def _attempt(
    context: Context,
    shards: Artifact,
    made_from: list[str],
    numbers: list[int],
    *,
    attempt: int,
    fatal: bool,
    progress: Progress,
) -> dict[int, str]:
    """Train some teachers in groups; return those that failed, with reasons.

    The others of their groups, which exist already, keep their places. After a failure each
    is alone, so that it does not depend on which others failed.
    """
    spec, sizes = context.recipe.teachers, np.diff(shards.array("offsets.npy"))
    find = context.store.find
    dispatcher = Dispatcher(
        engine=context.options.engine,
        timeout=spec.timeout,
        abstaining=spec.on_error == "abstain",
        task=lambda work: _task(context, shards, made_from, work, attempt=attempt),
        weight=lambda work: float(sizes[work.wanted].sum()),
        missing=lambda work: [n for n in work.wanted if find("teacher", made_from[n]) is None],
        failures=lambda work, outcome: read_failures(outcome.result, outcome.why, work.wanted),
        progress=progress,
    )
    failed: dict[int, str] = {}
    todo = work_for(groups(spec), numbers) if attempt == 0 else alone(numbers)
    for result in dispatcher.run(todo):
        for number, why in result.failed.items():
            if fatal:
                raise TeacherError(f"teacher {number} failed: {why}")
        failed |= result.failed
    return failed


def _task(
    context: Context,
    shards: Artifact,
    made_from: list[str],
    work: Work,
    *,
    attempt: int,
) -> Task:
    spec = context.recipe.teachers
    offsets = shards.array("offsets.npy")
    records, labels = private_features_path(context), shards.path / "labels.npy"
    model = _one(context, work.group[0])["model"]  # once: a group has one model

    def one(number: int) -> dict[str, Any]:
        about = {"number": number, "made_from": None, "model": model}
        about["seed"] = seed_for(spec, number, attempt=attempt)
        if number not in work.wanted:
            return about
        start, stop = offsets[number : number + 2]
        return about | {
            "made_from": made_from[number],
            "records": rows(records, start, stop),
            "labels": rows(labels, start, stop),
        }

    root, place = context.store.root, context.store.folder
    folders = [place("teacher", Level.PRIVATE, made_from[number]) for number in work.wanted]
    names = [folder.relative_to(root).as_posix() for folder in folders]
    return Task(
        key=work.key,
        function="pate.stages.worker:train_group",
        payload={
            "store": makes(context.store.root, names=names),
            "classes": shards.facts["classes"],
            "plugins": plugin_files(context),
            "batched": spec.batched,
            "teachers": [one(number) for number in work.group],
        },
        weight=float(sum(offsets[n + 1] - offsets[n] for n in work.wanted)),
        cpus=spec.cpus,
        gpus=spec.gpus,
    )


def plugin_files(context: Context) -> dict[str, Any] | None:
    """Return a reference to the user's own modules, for a task that imports from them."""
    path = context.options.plugin_path
    return None if path is None else code(path)


TEACH = Stage(
    name="teach",
    version=_VERSION,
    needs=("partition", "encoder", "encode"),
    clearance=Level.PRIVATE,
    settings=_settings,
    run=_run,
)
