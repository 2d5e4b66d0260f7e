"""encode: features of the private records, shard after shard, each record on its own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from pate.artifacts import Level
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.teach import plugin_digest


def _settings(recipe: Recipe, options: Options) -> Any:
    # All else is in the encoder and in the shards; code of the user's runs here once more.
    return {"plugin": plugin_digest(options.plugin_path) if recipe.encoder.runs_user_code else None}


def _run(context: Context) -> None:
    """Encode one shard at a time, into a memory-mapped array.

    Guarantees:
        No batch holds records of two shards. So features of a shard are a function of that shard
        alone, down to the last bit: sums in floating point may depend on a record's neighbours in
        a batch, and those are of its own shard. Steps of one's own are loaded afresh for every
        shard, so that they have seen no other; one that changes all the same is refused.
    """
    encoder, shards = context.inputs["encoder"], context.inputs["partition"]
    with context.draft(Level.PRIVATE) as draft:
        draft.facts["identity"] = bool(encoder.facts["identity"])
        if encoder.facts["identity"]:
            return
        from pate.encoders.chain import load_encoder

        spec, plugins = context.recipe.encoder, context.options.plugin_path
        chain = load_encoder(spec, encoder.path, plugin_path=plugins)
        records, offsets = shards.array("features.npy"), shards.array("offsets.npy")
        shape = (len(records), *chain.shape)
        out = draft.new_array("features.npy", dtype=np.float32, shape=shape)
        with context.options.progress("encode", len(offsets) - 1, 0) as shown:
            for start, stop in pairwise(offsets.tolist()):
                if stop > start:
                    if start and spec.runs_user_code:
                        chain = load_encoder(spec, encoder.path, plugin_path=plugins)
                    out[start:stop] = chain.transform(np.array(records[start:stop]))
                shown.advance(1)
        out.flush()  # type: ignore[attr-defined]


ENCODE = Stage(
    name="encode",
    version=2,
    needs=("partition", "encoder"),
    clearance=Level.PRIVATE,
    settings=_settings,
    run=_run,
)
