"""The data and partition stages: records as memory-mapped arrays, then one shard per teacher."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Artifact, Level
from pate.datasets import content
from pate.datasets.loading import load
from pate.datasets.roles import equal_rows_notes, require_apart, require_named_groups
from pate.datasets.spec import WORDING, DataSpec
from pate.datasets.table import Splits, Table, record_ids
from pate.errors import MissingFile, SpendNeeded
from pate.partition import Shards, partition, record_shards
from pate.pipeline.ledger import ledger_of, naming_key
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Absent, Context, Options, Stage


def _data_settings(recipe: Recipe, options: Options) -> Any:
    """Return the section, and for the user's own data a digest; named sets never change."""
    own: str | Absent | None = None
    if recipe.data.own:
        try:
            own = own_data(recipe, options)[1]
        except MissingFile as problem:
            own = Absent(problem)
    forgotten = options.exclusions.digests if options.exclusions is not None else ()
    return {"data": recipe.data.model_dump(mode="json", exclude=WORDING), "content": own} | (
        {"forgotten": sorted(forgotten)} if forgotten else {}
    )


_EQUAL = "equal_rows.json"  # of different people, between private records and the others
_read: tuple[Options, DataSpec, tuple[Splits, str]] | None = None


def own_data(recipe: Recipe, options: Options) -> tuple[Splits, str]:
    """Return the user's data without forgotten records, and their digest, read once for a run.

    So whether the source still holds records that are forgotten makes no difference.
    """
    global _read
    if _read is None or _read[0] is not options or _read[1] != recipe.data:
        splits = _load(recipe, options)
        _read = (options, recipe.data, (splits, _digest(splits)))
    return _read[2]


def _load(recipe: Recipe, options: Options) -> Splits:
    splits = load(recipe.data, root=options.data_root, plugin_path=options.plugin_path)
    if options.exclusions is None:
        return splits
    key = naming_key(recipe, options.data_root)
    return replace(splits, private=options.exclusions.without(splits.private, key=key))


def require_own_ledger(
    recipe: Recipe,
    options: Options,
    *,
    report: Callable[[str], None] | None = None,
    remember: bool = True,
) -> None:
    """Refuse a second ledger of the same private records: before anything is charged.

    ``report`` takes the place of the options' own.
    """
    if recipe.data.own:
        content.require_own_ledger(
            recipe.data,
            own_data(recipe, options)[0],
            root=options.data_root,
            ledger=ledger_of(recipe, options),
            spend=options.spend,
            report=report or options.report,
            remember=remember,
        )


def _digest(splits: Splits) -> str:
    total = hashlib.sha256(repr(splits.class_names).encode())
    for table in (splits.private, splits.public, splits.test):
        for values in (table.features, table.labels):
            if values is not None:
                total.update(repr((values.shape, values.dtype.str)).encode())
                total.update(np.ascontiguousarray(values).tobytes())
        total.update(repr((table.ids, table.groups)).encode())
    if splits.categories:  # of which the features hold codes
        total.update(repr(splits.columns).encode())
    return total.hexdigest()


def _write_data(context: Context) -> None:
    """Write the splits; only ``evaluate`` may open labels of public inputs and the test set."""
    spec, options = context.recipe.data, context.options
    if spec.own:
        splits, _ = own_data(context.recipe, options)
        try:
            require_own_ledger(context.recipe, options, remember=False)
        except SpendNeeded as error:  # known early; a charge is refused when it is to be made
            options.report(str(error))
    else:
        splits = _load(context.recipe, options)
    protected = context.recipe.protected_group is not None
    require_named_groups(spec, splits, protected=protected, section="partition")
    equal = require_apart(spec, splits)
    for note in equal_rows_notes(equal):
        options.report(note)
    write_splits(context, splits, equal=equal)


def write_splits(context: Context, splits: Splits, *, equal: dict[str, int]) -> None:
    """Write the artifacts of the three roles; ``equal`` counts equal rows of different people."""
    with context.draft(Level.PUBLIC, part="public") as draft:
        draft.save_array("features.npy", splits.public.features)
        draft.facts["classes"] = splits.classes
        # Left out where they say nothing: then the artifact is the one of earlier versions.
        if splits.categories:
            draft.facts["categories"] = list(splits.categories)
        if any(_has_missing(table) for table in (splits.public, splits.test)):
            draft.facts["missing"] = True
    if splits.columns is not None:
        with context.draft(Level.PUBLIC, part="columns") as draft:
            draft.save_json("columns.json", [asdict(each) for each in splits.columns])
    with context.draft(Level.PUBLIC, part="answers", only_for=("evaluate",)) as draft:
        _save_labels(draft, splits.public)
    with context.draft(Level.PUBLIC, part="test", only_for=("evaluate",)) as draft:
        draft.save_array("features.npy", splits.test.features)
        _save_labels(draft, splits.test)
        draft.save_json("class_names.json", list(splits.class_names))
    with context.draft(Level.PRIVATE) as draft:
        draft.save_array("features.npy", splits.private.features)
        _save_labels(draft, splits.private)
        draft.save_json("ids.json", record_ids(splits.private))
        groups = splits.private.groups
        draft.save_json("groups.json", None if groups is None else list(groups))
        draft.save_json(_EQUAL, equal)
        draft.facts.update(classes=splits.classes, named=splits.private.ids is not None)


def equal_rows(data: Artifact) -> dict[str, int]:
    """Return the numbers of equal rows that a result of the stage holds; earlier ones held none."""
    return data.json(_EQUAL) if (data.path / _EQUAL).is_file() else {}


def _has_missing(table: Table) -> bool:
    return table.features.ndim == 2 and bool(np.isnan(table.features).any())


def _save_labels(draft: Any, table: Table) -> None:
    if table.labels is not None:
        draft.save_array("labels.npy", table.labels)


# ------------------------------------------------------------------ partition


def _partition_settings(recipe: Recipe, options: Options) -> Any:
    section = recipe.partition.model_dump()
    if recipe.by_records:
        return {"partition": section, "per_user": recipe.per_user}
    spec = recipe.teachers
    # Left out where they say nothing: then fingerprints are those of earlier versions.
    slices = {"slices": spec.slices} if spec.slices > 1 else {}
    return {"partition": section, "teachers": spec.count} | slices


def _write_shards(context: Context) -> None:
    """Write records shard after shard, so that a worker maps its own slice and no other."""
    data, recipe = context.inputs["data"], context.recipe
    features, labels = data.array("features.npy"), data.array("labels.npy")
    ids, groups, places = data.json("ids.json"), data.json("groups.json"), None
    if recipe.by_records:
        shards, places = record_shards(
            ids, spec=recipe.partition, groups=groups, per_user=recipe.per_user
        )
    else:
        own = recipe.teachers
        shards = partition(
            ids, teachers=own.count, spec=recipe.partition, groups=groups, slices=own.slices
        )
    with context.draft(Level.PRIVATE) as draft:
        if places is not None:
            draft.save_array("places.npy", places)
        sorted_features, sorted_labels = features[shards.order], labels[shards.order]
        draft.save_array("features.npy", sorted_features)
        draft.save_array("labels.npy", sorted_labels)
        draft.save_array("offsets.npy", shards.offsets)
        digests = _digests(shards.offsets, sorted_features, sorted_labels)
        draft.save_json("shards.json", digests)
        if shards.slices is not None and len(shards.slices) > len(shards.offsets):
            draft.save_array("slices.npy", shards.slices)
            draft.save_json("slices.json", _digests(shards.slices, sorted_features, sorted_labels))
        report = _shard_report(shards, sorted_features, sorted_labels)
        draft.save_json("report.json", report | equal_rows(data))
        draft.facts.update(
            classes=data.facts["classes"],
            teachers=shards.count,
            protects=recipe.protects(named=data.facts["named"]),
        )
    place = context.store.folder("partition", Level.PRIVATE, context.made_from)
    context.options.report(f"partition: sizes, coverage and duplicates are in {place}/report.json")


def _digests(offsets: NDArray[np.int64], features: NDArray[Any], labels: NDArray[Any]) -> list[str]:
    """Return a digest of each shard or slice: only for another one a teacher is trained again."""
    kind = repr((features.shape[1:], features.dtype.str)).encode()
    digests = []
    for start, stop in pairwise(offsets):
        total = hashlib.sha256(kind)
        total.update(np.ascontiguousarray(features[start:stop]).tobytes())
        total.update(np.ascontiguousarray(labels[start:stop]).tobytes())
        digests.append(total.hexdigest())
    return digests


def _shard_report(shards: Shards, features: NDArray[Any], labels: NDArray[Any]) -> dict[str, Any]:
    """Return how even the shards are. PRIVATE, like everything that describes them."""
    rows = [hashlib.sha256(np.ascontiguousarray(row).tobytes()).digest() for row in features]
    owner = np.repeat(np.arange(shards.count), shards.sizes()).tolist()
    first: dict[bytes, int] = {}
    pairs = zip(rows, owner, strict=True)
    shared = {row for row, teacher in pairs if first.setdefault(row, teacher) != teacher}
    coverage = [len(np.unique(labels[start:stop])) for start, stop in pairwise(shards.offsets)]
    return {
        "smallest_shard": int(shards.sizes().min()),
        "largest_shard": int(shards.sizes().max()),
        "records_that_several_shards_hold": len(shared),
        "fewest_classes_in_a_shard": min(coverage),
    }


DATA = Stage(
    name="data",
    version=1,
    needs=(),
    clearance=Level.PRIVATE,
    settings=_data_settings,
    run=_write_data,
)

PARTITION = Stage(
    name="partition",
    version=1,
    needs=("data",),
    clearance=Level.PRIVATE,
    settings=_partition_settings,
    run=_write_shards,
)
