"""Forgetting: the records of some people leave a run, and with them all that was made of them.

Shards are disjoint and a record's shard follows from its own id, so only the shards that held the
records are trained again (Bourtoule et al. 2021, "Machine unlearning"); with slices, from the
checkpoint before the first slice that held one of them.

A forgetting is recorded in ``private/forgotten.json`` before anything is changed, and goes through
steps that can each be repeated: make all that is private again without the records, switch over in
one write, remove what is left of the old, write the certificate. A killed one resumes.

Guarantees:
    * Every teacher is, to the last bit, that of a run which never had the records: of a shard that
      held none of them the very same file, of the others one trained by the recipe's own stages.
      A checkpoint is named by the records behind it: one that a forgotten record reached goes.
    * What is RELEASED does not change, and nothing is drawn or charged without ``spend``: the
      forgotten records, like all others, are protected in it by the (ε, δ) that was paid.
    * Ids are kept as digests under the data set's key only.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

import numpy as np

from pate._files import exclusive_lock, sync
from pate.artifacts import Artifact, Level, StoreError, fingerprint
from pate.artifacts.manifest import MANIFEST, ORIGINS
from pate.artifacts.results import LABELS, SANITISED, ChargeNote, PrivateCosts
from pate.datasets.table import Splits, record_ids
from pate.errors import InvalidInput, MissingFile
from pate.forgetting.certificate import FOLDER, Certificate, write_certificate
from pate.pipeline.exclusions import FILE, Begun, Exclusions, names_of, unit_digests
from pate.pipeline.ledger import ledger_path, naming_key
from pate.pipeline.runner import PipelineRun
from pate.stages.account import FORGOTTEN
from pate.stages.caveats import LOOKS
from pate.stages.data import own_data
from pate.stages.exactly_once import releases_in_ledger
from pate.stages.teach import CHECKPOINTS

_PARTS = ("data-public", "data-columns", "data-answers", "data-test")  # beside the records
_CONTENT_NAME = 64  # characters of a name by content; what follows is the number of a copy
_PENDING = tuple(f"pending-{kind}" for kind in (LABELS, SANITISED))
_BEGUN = tuple(f"begun-{kind}" for kind in (LABELS, SANITISED))
_PAID = (*_PENDING, *_BEGUN, "round")  # noised answers that are paid for


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """The end of a forgetting, as :func:`pate.forget` returns it."""

    folder: Path
    requested: int  # ids that were asked for, and not forgotten before
    queued: int  # ids that wait for the next forgetting, if nothing was to be carried out
    certificate: Path | None  # a JSON file, PRIVATE; None if there was nothing to do
    page: Path | None  # the same for people
    released: bool  # whether new labels were paid for

    def as_json(self) -> dict[str, Any]:
        """Return plain values: those of ``pate forget --json``."""
        return {"format": 1, **asdict(self)}

    def lines(self) -> list[str]:
        """Return what was done, and what cannot be undone, in words.

        How many of the ids were found is in the certificate alone, for who may read the private
        folder.
        """
        again = f"pate forget {shlex.quote(str(self.folder))}"
        if self.queued:
            return [f"{self.queued} in the queue; nothing is forgotten yet; next: {again}"]
        found = []
        if self.certificate is None:
            found.append(
                "nothing to forget now: the queue is empty, and ids that were done before are "
                "skipped"
            )
        else:
            found += [
                f"done for {self.requested} ids; how many of them were records of this run, and "
                f"what became of every shard: {self.page} (PRIVATE)",
                "Your own files were not touched; if they still hold the records, this run leaves "
                "them out. Other runs, copies and backups are up to you.",
            ]
        if self.released:
            return [*found, "New labels were drawn from the teachers as they are now, and charged."]
        return [
            *found,
            "What was released stays as it is: nobody can recall it, it is paid for, and its ε "
            f"bounds what it reveals. New labels cost again: {again} --spend",
        ]


def forget_records(
    run: PipelineRun,
    ids: Iterable[str] = (),
    *,
    queue: bool = False,
    unqueue: bool = False,
    spend: bool = False,
    signed_by: str | None = None,
) -> Forgetting:
    """Forget records, or groups where those are protected: see :func:`pate.forget`."""
    _require_forgettable(run)
    busy = InvalidInput(f"another process uses the records of {run.folder}; wait for it")
    with exclusive_lock(run.folder, busy=busy):
        run.store.sweep()
        loaded = Exclusions.load(run.folder)
        exclusions = loaded or Exclusions(named_by=names_of(run.recipe.data))
        named = _digests(run, ids, exclusions)
        if unqueue:
            left = [each for each in exclusions.queued if named and each not in named]
            exclusions = replace(exclusions, queued=tuple(left))
        else:
            begun = () if exclusions.begun is None else exclusions.begun.digests
            known = {*exclusions.digests, *exclusions.queued, *begun}
            asked = [each for each in named if each not in known]
            exclusions = replace(exclusions, queued=(*exclusions.queued, *asked))
            if asked and (queue or begun):
                _held(run, exclusions)  # refused before any of them is noted
        if unqueue or (queue and asked):
            exclusions.save(run.folder)
        waits = queue or unqueue
        requested, written = 0, None
        while not waits and (exclusions.begun is not None or exclusions.queued):
            if exclusions.begun is None:
                exclusions = _begin(run, exclusions, signed_by=signed_by)
            assert exclusions.begun is not None
            requested += len(exclusions.begun.digests)
            exclusions, written = _finish(run, exclusions, signed_by=signed_by)
        released = spend and not waits and _release_again(run, exclusions)
    return Forgetting(
        folder=run.folder,
        requested=requested,
        queued=len(exclusions.queued) if waits else 0,
        certificate=None if written is None else written[0],
        page=None if written is None else written[1],
        released=released,
    )


def read_ids(file: Path) -> list[str]:
    """Return the ids in a text file, one in a line; empty lines do not count."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidInput(f"cannot read ids from {file}: {why}") from error
    found = [each for each in (line.removesuffix("\r") for line in lines) if each]
    if not found:
        raise InvalidInput(f"{file} holds no ids; write one into each line")
    return found


def _require_forgettable(run: PipelineRun) -> None:
    """Refuse runs whose other shards would not stay as they are."""
    if run.recipe.partition.method == "shuffle":
        raise InvalidInput(
            'partition.method is "shuffle": a record that leaves moves all others, so no teacher '
            "would stay; remove the record from the source, run again in a new --out, and remove "
            f"{run.folder}"
        )
    notes = [ChargeNote.load(each) for name in (*_PENDING, *_BEGUN) for each in run.store.all(name)]
    if run.recipe.selection is not None or any(note.study is not None for note in notes):
        raise InvalidInput(
            f"{run.folder} is the folder of a study, whose runs share teachers; remove the records "
            "from the source, run the study again in a new --out, and remove this folder"
        )
    if any("data.name" not in each.manifest["inputs"] for each in run.store.all("data")):
        raise InvalidInput(
            f"{run.folder} is the folder of a party to a federation, which reads its source for "
            "each question; remove the records from the source, and then this folder"
        )
    if not run.store.earlier("vote"):
        raise InvalidInput(
            f"no votes are counted in {run.folder}, so there is nothing to make again; remove the "
            "records from the source, or run up to vote first"
        )


def _digests(run: PipelineRun, ids: Iterable[str], exclusions: Exclusions) -> list[str]:
    """Return the digests of ids, each one once."""
    names, unit = list(ids), run.recipe.partition.by or "record"
    if names and unit == "record" and not _data(run, exclusions).facts["named"]:
        names = [each[:_CONTENT_NAME] for each in names]
    return list(dict.fromkeys(unit_digests(unit, names, key=_key(run))))


def _held(run: PipelineRun, exclusions: Exclusions) -> set[str]:
    """Return the digests of the ids of private records; refuse a request for all of them."""
    names, groups = _names(_data(run, exclusions))
    unit = run.recipe.partition.by or "record"
    held = set(unit_digests(unit, names if unit == "record" else groups or (), key=_key(run)))
    begun = () if exclusions.begun is None else exclusions.begun.digests
    if held <= {*exclusions.queued, *begun}:
        stored = Exclusions.load(run.folder)
        out = f"pate forget {shlex.quote(str(run.folder))} --unqueue"
        waiting = f", or take ids out of the queue: {out}" if stored and stored.queued else ""
        raise InvalidInput(
            f"these are all private records of {run.folder}; remove the folder instead{waiting}"
        )
    return held


def _key(run: PipelineRun) -> str:
    return naming_key(run.recipe, run.options.data_root)


def _data(run: PipelineRun, exclusions: Exclusions) -> Artifact:
    """Return the records that a forgetting starts from: those that were used last."""
    if exclusions.begun is not None and not exclusions.begun.done:
        return run.store.open("data", exclusions.begun.data)
    return max(run.store.all("data"), key=lambda each: (each.path / MANIFEST).stat().st_mtime_ns)


def _names(data: Artifact) -> tuple[list[str], list[str] | None]:
    """Return the names of records, the same for exact copies without ids, and of their groups."""
    names = data.json("ids.json")
    if not data.facts["named"]:
        names = [each[:_CONTENT_NAME] for each in names]
    return names, data.json("groups.json")


# --- the steps ------------------------------------------------------------------------------------


def _begin(run: PipelineRun, exclusions: Exclusions, *, signed_by: str | None) -> Exclusions:
    """Record what is to be forgotten, and how everything is before; nothing is changed yet.

    Guarantees:
        Ids that are no records are forgotten like all others. So neither what is printed, nor what
        is released from then on, depends on whether an id was a record.
    """
    data, held = _data(run, exclusions), _held(run, exclusions)
    before = _pinned(run, exclusions, data)
    keys = {name: _found(before, name).key for name in _private_stages(run)}
    begun = Begun(
        digests=exclusions.queued,
        found=len(held.intersection(exclusions.queued)),
        data=str(data.manifest["made_from"]),
        keys=keys,
        parts=tuple(_part_digests(before)),
        name=f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(4)}",
        signed_by=signed_by,
    )
    exclusions = replace(exclusions, queued=(), begun=begun)
    exclusions.save(run.folder)
    return exclusions


def _finish(
    run: PipelineRun, exclusions: Exclusions, *, signed_by: str | None
) -> tuple[Exclusions, tuple[Path, Path]]:
    """Carry out what was begun, from wherever it was interrupted."""
    begun = exclusions.begun
    assert begun is not None
    if not begun.done:
        digests = (*exclusions.digests, *begun.digests)
        after = replace(exclusions, digests=digests, begun=None)
        data = _without_records(run, after, run.store.open("data", begun.data))
        made = _pinned(run, after, data)
        made.execute(until="vote")
        stands_for = _stand_ins(made, exclusions, begun)
        exclusions = replace(after, stands_for=stands_for, begun=replace(begun, done=True))
        exclusions.save(run.folder)
    made = _pinned(run, replace(exclusions, begun=None), _data(run, exclusions))
    removed = _remove_rest(made)
    _forget_costs(made)
    certificate = Certificate.of(
        made,
        begun,
        after=list(_part_digests(made)),
        removed=removed,
        signed_by=signed_by or begun.signed_by,
    )
    written = write_certificate(certificate, made.folder, begun.name, key=_key(run))
    exclusions = replace(exclusions, begun=None)
    exclusions.save(run.folder)
    return exclusions, written


def _pinned(run: PipelineRun, exclusions: Exclusions, data: Artifact) -> PipelineRun:
    """Return the run as it is with these records, whatever its source holds by now."""
    return replace(run, options=replace(run.options, exclusions=exclusions), pinned={"data": data})


def _found(run: PipelineRun, name: str) -> Artifact:
    """Return a finished result of this run, without reading all of it."""
    found = run.find(name)
    if found is None:
        raise InvalidInput(
            f"{name} of {run.folder} is not made from the records that were used last; finish it "
            "by pate run, up to vote at least"
        )
    return found


def _private_stages(run: PipelineRun) -> list[str]:
    """Return the stages that come before a release and that private records reach."""
    names = [stage.name for stage in run.stages]
    return [name for name in names[: names.index("vote") + 1] if name not in ("encoder", "cells")]


def _without_records(run: PipelineRun, after: Exclusions, before: Artifact) -> Artifact:
    """Return the stored records without those to forget: as they are there, or made now.

    They count as what the source holds now, as far as it holds the same apart from them; so a run
    is complete whether or not its source still has them.
    """
    names, groups = _names(before)
    kept = np.flatnonzero(after.keeps(names, groups, key=_key(run)))
    inputs, made_from = _origin_without(run, after, before, kept)
    store = run.store.cleared("evaluate", Level.PRIVATE)  # which may see all parts
    if store.find("data", made_from) is None:
        for name in _PARTS:
            part = store.find(name, str(before.manifest["made_from"]))
            if part is not None:
                store.add_origin(part, made_from, inputs)
        with store.draft("data", made_from, level=Level.PRIVATE, inputs=inputs) as draft:
            for name in ("features.npy", "labels.npy"):
                draft.save_array(name, before.array(name)[kept])
            for name in ("ids.json", "groups.json"):
                values = before.json(name)
                draft.save_json(name, values and [values[row] for row in kept])
            draft.facts.update(before.facts)
    found = store.find("data", made_from)
    assert found is not None  # it was made above; whoever reads its files checks them
    return found


def _origin_without(
    run: PipelineRun, after: Exclusions, before: Artifact, kept: np.ndarray[Any, Any]
) -> tuple[dict[str, str], str]:
    """Return what the remaining records are made from: the source, or else the stored records."""
    stage, options = run.stages[0], replace(run.options, exclusions=after)
    with suppress(MissingFile):
        if not run.recipe.data.own or _holds(run, own_data(run.recipe, options)[0], before, kept):
            return run.compute_origin(stage, run.recipe, options)
    key, earlier = _key(run), dict(before.manifest["inputs"])
    inputs = earlier | {
        "content": fingerprint(key, earlier["content"], after.digests),
        "forgotten": fingerprint(key, fingerprint(sorted(after.digests))),
    }
    return inputs, fingerprint(stage.name, stage.version, inputs)


def _holds(run: PipelineRun, source: Splits, before: Artifact, kept: np.ndarray[Any, Any]) -> bool:
    """Return whether a source has the stored records that are kept, and the stored other parts."""
    store, made_from = run.store.cleared("evaluate", Level.PRIVATE), before.manifest["made_from"]
    public, answers, test = (
        store.open(name, made_from) for name in ("data-public", "data-answers", "data-test")
    )
    labelled = (answers.path / "labels.npy").is_file()
    names, groups = before.json("ids.json"), before.json("groups.json")
    own = source.private
    pairs = [
        (own.features, before.array("features.npy")[kept]),
        (own.labels, before.array("labels.npy")[kept]),
        (record_ids(own), [names[row] for row in kept]),
        (own.groups or (), [groups[row] for row in kept] if groups else ()),
        (source.public.features, public.array("features.npy")),
        ([] if source.public.labels is None else source.public.labels,
         answers.array("labels.npy") if labelled else []),
        (source.test.features, test.array("features.npy")),
        (source.test.labels, test.array("labels.npy")),
    ]  # fmt: skip
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def _stand_ins(made: PipelineRun, exclusions: Exclusions, begun: Begun) -> dict[str, str]:
    """Return which results stand for those that paid answers were drawn from; none without one."""
    replaced = {name: exclusions.stands_for.get(key, key) for name, key in begun.keys.items()}
    votes = fingerprint(_key(made), replaced["vote"])
    drawn = [each for name in _PAID for each in made.store.all(name)]
    if all(each.manifest["inputs"].get("vote") != votes for each in drawn):
        return {}
    return {_found(made, name).key: old for name, old in replaced.items()}


def _part_digests(run: PipelineRun) -> Iterator[str]:
    """Yield a keyed digest of each teacher's files, or of each shard of records that vote."""
    key = _key(run)
    if run.recipe.by_records:
        for number, digest in enumerate(_found(run, "partition").json("shards.json")):
            yield fingerprint(key, number, digest)
        return
    for name in _found(run, "teach").json("teachers.json"):
        yield fingerprint(key, None if name is None else run.store.open("teacher", name).digest)


# --- the bytes ------------------------------------------------------------------------------------


def _remove_rest(run: PipelineRun) -> int:
    """Remove all that is private and not made without the records; return how much that was.

    Guarantees:
        What stays is listed: results of the stages without the records, answers that are paid for,
        and digests under the data set's key. Whatever else lies in ``private/`` (other settings,
        audits, private pages) may hold the records or follow from them, and goes.
    """
    top, store = run.folder / Level.PRIVATE.folder, run.store
    keep = {top / name for name in (ORIGINS, FILE, FOLDER, LOOKS)}
    for name in _private_stages(run):
        place = _found(run, name).path
        keep |= {place, place.parent.with_name(f"{name}-failures") / place.name}
    if not run.recipe.by_records:
        teach = _found(run, "teach")
        teachers = [name for name in teach.json("teachers.json") if name]
        keep |= {store.folder("teacher", Level.PRIVATE, name) for name in teachers}
        if CHECKPOINTS in teach.manifest["files"]:
            names = np.ravel(teach.json(CHECKPOINTS)).tolist()
            keep |= {store.folder("checkpoint", Level.PRIVATE, name) for name in names}
    ledgers = [
        ledger_path(run.recipe, run.options.data_root, seeded=each) for each in (False, True)
    ]
    paid = {name for ledger in ledgers for name in releases_in_ledger(ledger)}
    for stage in _PAID:
        for each in store.all(stage):
            # An answer that nobody paid for is not released, and may follow from the records.
            note = ChargeNote.load(each) if stage in _PENDING else None
            if note is None or not note.events or note.release in paid:
                keep.add(each.path)
    removed = 0
    for entry in sorted(top.iterdir()):
        if entry in keep:
            continue
        for path in sorted(entry.iterdir()) if entry.is_dir() else [entry]:
            if path not in keep:
                _remove(path)
                removed += 1
        with suppress(OSError):  # not empty
            entry.rmdir()
    sync(top)
    return removed


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            (path / MANIFEST).unlink(missing_ok=True)  # what is left of it counts for nothing
            shutil.rmtree(path)
        else:
            path.unlink()
        sync(path.parent)
    except OSError as error:
        raise StoreError(
            f"cannot remove {path}: {error.strerror}; run pate forget again"
        ) from error


def _forget_costs(run: PipelineRun) -> None:
    """State that no data-dependent cost of the labels is known any more."""
    with suppress(StoreError, InvalidInput):  # no labels are released
        if run.find("account") and not run.find("account-private"):
            with run.context("account").draft(Level.PRIVATE, part="private") as draft:
                PrivateCosts(guarantees={}, why_not=FORGOTTEN).save(draft)


def _release_again(run: PipelineRun, exclusions: Exclusions) -> bool:
    """Draw new labels from the teachers as they are, charge them, and train a student on them."""
    if not exclusions.stands_for:
        return False
    fresh = replace(exclusions, stands_for={})
    made = _pinned(run, fresh, _data(run, exclusions))
    replace(made, options=replace(made.options, spend=True)).execute()
    fresh.save(run.folder)
    return True
