"""encoder: fits the recipe's encoder to public inputs, and nothing else; encodes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pate.artifacts import Level
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.teach import plugin_digest


def _settings(recipe: Recipe, options: Options) -> Any:
    spec = recipe.encoder
    return {
        "encoder": spec.model_dump(mode="json"),
        "weights": spec.weight_digests(plugin_path=options.plugin_path),
        "plugin": plugin_digest(options.plugin_path) if spec.steps else None,
    }


def _run(context: Context) -> None:
    """Write what was fitted, and the features of the public inputs, once.

    Guarantees:
        The stage's clearance is PUBLIC: the store refuses it anything above. So the encoder is a
        function of public inputs, and encoding a private record costs nothing.
    """
    spec = context.recipe.encoder
    with context.draft(Level.PUBLIC) as draft:
        draft.facts["identity"] = not spec.steps
        if spec.steps:
            from pate.encoders.chain import fit_encoder, save_encoder

            inputs = context.inputs["data-public"].array("features.npy")
            chain = fit_encoder(spec, inputs, plugin_path=context.options.plugin_path)
            save_encoder(chain, draft.path)
            shape = (len(inputs), *chain.shape)
            out = draft.new_array("features.npy", dtype=np.float32, shape=shape)
            chain.transform_into(inputs, out)
            out.flush()  # type: ignore[attr-defined]


ENCODER = Stage(
    name="encoder",
    version=1,
    needs=("data-public",),
    clearance=Level.PUBLIC,
    settings=_settings,
    run=_run,
)
