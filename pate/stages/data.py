"""data: private, public and test records as memory-mapped arrays."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from pate.artifacts import Level
from pate.datasets.loading import load
from pate.datasets.spec import DataSpec
from pate.datasets.table import Splits, Table, record_ids
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage


def _settings(recipe: Recipe, options: Options) -> Any:
    """Return the section, and for the user's own data a digest; named sets never change."""
    content = _own_data(recipe.data, options)[1] if recipe.data.own else None
    return {"data": recipe.data.model_dump(mode="json"), "content": content}


_read: tuple[Options, DataSpec, tuple[Splits, str]] | None = None


def _own_data(spec: DataSpec, options: Options) -> tuple[Splits, str]:
    """Return the user's data and their digest, read once for a run."""
    global _read
    if _read is None or _read[0] is not options or _read[1] != spec:
        splits = load(spec, root=options.data_root, plugin_path=options.plugin_path)
        _read = (options, spec, (splits, _digest(splits)))
    return _read[2]


def _digest(splits: Splits) -> str:
    total = hashlib.sha256(repr(splits.class_names).encode())
    for table in (splits.private, splits.public, splits.test):
        for values in (table.features, table.labels):
            if values is not None:
                total.update(repr((values.shape, values.dtype.str)).encode())
                total.update(np.ascontiguousarray(values).tobytes())
        total.update(repr((table.ids, table.groups)).encode())
    return total.hexdigest()


def _run(context: Context) -> None:
    """Write the splits; only ``evaluate`` may open labels of public inputs and the test set."""
    spec, options = context.recipe.data, context.options
    if spec.own:
        splits, _ = _own_data(spec, options)
    else:
        splits = load(spec, root=options.data_root, plugin_path=options.plugin_path)
    with context.draft(Level.PUBLIC, part="public") as draft:
        draft.save_array("features.npy", splits.public.features)
        draft.facts["classes"] = splits.classes
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
        draft.facts.update(classes=splits.classes, named=splits.private.ids is not None)


def _save_labels(draft: Any, table: Table) -> None:
    if table.labels is not None:
        draft.save_array("labels.npy", table.labels)


DATA = Stage(
    name="data", version=1, needs=(), clearance=Level.PRIVATE, settings=_settings, run=_run
)
