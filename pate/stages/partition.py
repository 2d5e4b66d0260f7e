"""partition: private records → one shard for each teacher."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Level
from pate.partition import Shards, partition
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage


def _settings(recipe: Recipe, options: Options) -> Any:
    return {"partition": recipe.partition.model_dump(), "teachers": recipe.teachers.count}


def _run(context: Context) -> None:
    """Write records shard after shard, so that a worker maps its own slice and no other."""
    data, recipe = context.inputs["data"], context.recipe
    features, labels = data.array("features.npy"), data.array("labels.npy")
    shards = partition(
        data.json("ids.json"),
        teachers=recipe.teachers.count,
        spec=recipe.partition,
        groups=data.json("groups.json"),
    )
    with context.draft(Level.PRIVATE) as draft:
        sorted_features, sorted_labels = features[shards.order], labels[shards.order]
        draft.save_array("features.npy", sorted_features)
        draft.save_array("labels.npy", sorted_labels)
        draft.save_array("offsets.npy", shards.offsets)
        digests = _digests(shards, sorted_features, sorted_labels)
        draft.save_json("shards.json", digests)
        draft.save_json("report.json", _report(shards, sorted_features, sorted_labels))
        draft.facts.update(
            classes=data.facts["classes"],
            teachers=shards.count,
            protects=recipe.partition.protects(named=data.facts["named"]),
        )
    place = context.store.folder("partition", Level.PRIVATE, context.made_from)
    context.options.report(f"partition: sizes, coverage and duplicates are in {place}/report.json")


def _digests(shards: Shards, features: NDArray[Any], labels: NDArray[Any]) -> list[str]:
    """Return a digest of each shard: a teacher is trained again only if its own changed."""
    kind = repr((features.shape[1:], features.dtype.str)).encode()
    digests = []
    for start, stop in pairwise(shards.offsets):
        total = hashlib.sha256(kind)
        total.update(np.ascontiguousarray(features[start:stop]).tobytes())
        total.update(np.ascontiguousarray(labels[start:stop]).tobytes())
        digests.append(total.hexdigest())
    return digests


def _report(shards: Shards, features: NDArray[Any], labels: NDArray[Any]) -> dict[str, Any]:
    """Return how even the shards are. PRIVATE, like everything that describes them."""
    rows = [hashlib.sha256(np.ascontiguousarray(row).tobytes()).digest() for row in features]
    owner = np.repeat(np.arange(shards.count), shards.sizes())
    seen: dict[bytes, set[int]] = {}
    for row, teacher in zip(rows, owner, strict=True):
        seen.setdefault(row, set()).add(int(teacher))
    coverage = [len(np.unique(labels[start:stop])) for start, stop in pairwise(shards.offsets)]
    return {
        "smallest_shard": int(shards.sizes().min()),
        "largest_shard": int(shards.sizes().max()),
        "records_that_several_shards_hold": sum(len(who) > 1 for who in seen.values()),
        "fewest_classes_in_a_shard": min(coverage),
    }


PARTITION = Stage(
    name="partition",
    version=1,
    needs=("data",),
    clearance=Level.PRIVATE,
    settings=_settings,
    run=_run,
)
