"""The encoder and encode stages, and the features that other stages read.

``encoder`` fits the recipe's encoder to public inputs, and nothing else, and encodes them;
``encode`` makes the features of the private records. Without an encoder both leave the inputs as
they are.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Artifact, Level
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage

_FILE = "features.npy"


def _encoder_settings(recipe: Recipe, options: Options) -> Any:
    spec = recipe.encoder
    return {
        "encoder": spec.model_dump(mode="json"),
        "weights": spec.weight_digests(plugin_path=options.plugin_path),
        "plugin": options.source_digest(spec.model_dump(mode="json")) if spec.steps else None,
    }


def _fit(context: Context) -> None:
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

            inputs = context.inputs["data-public"].array(_FILE)
            chain = fit_encoder(spec, inputs, plugin_path=context.options.plugin_path)
            save_encoder(chain, draft.path)
            shape = (len(inputs), *chain.shape)
            out = draft.new_array(_FILE, dtype=np.float32, shape=shape)
            chain.transform_into(inputs, out)
            out.flush()  # type: ignore[attr-defined]


def _encode_settings(recipe: Recipe, options: Options) -> Any:
    # All else is in the encoder and in the shards; code of the user's runs here once more.
    spec = recipe.encoder
    own = options.source_digest(spec.model_dump(mode="json")) if spec.runs_user_code else None
    return {"plugin": own}


def _encode(context: Context) -> None:
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
        records, offsets = shards.array(_FILE), shards.array("offsets.npy")
        out = draft.new_array(_FILE, dtype=np.float32, shape=(len(records), *chain.shape))
        with context.options.progress("encode", len(offsets) - 1, 0) as shown:
            for start, stop in pairwise(offsets.tolist()):
                if stop > start:
                    if start and spec.runs_user_code:
                        chain = load_encoder(spec, encoder.path, plugin_path=plugins)
                    out[start:stop] = chain.transform(np.array(records[start:stop]))
                shown.advance(1)
        out.flush()  # type: ignore[attr-defined]


# ------------------------------------------------------------------ features for other stages


def public_features_path(context: Context) -> Path:
    """Return the file of public features, to a stage that needs ``encoder``, ``data-public``."""
    return _public_home(context).path / _FILE


def public_features(context: Context) -> NDArray[Any]:
    """Return the public features, memory-mapped."""
    return _public_home(context).array(_FILE)


def _public_home(context: Context) -> Artifact:
    encoder = context.inputs["encoder"]
    return context.inputs["data-public"] if encoder.facts["identity"] else encoder


def private_features_path(context: Context) -> Path:
    """Return the file of private features, in the order of the shards."""
    encoded = context.inputs["encode"]
    home = context.inputs["partition"] if encoded.facts["identity"] else encoded
    return home.path / _FILE


def private_records(context: Context) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return all private records as the student's model would see them, and labels. PRIVATE."""
    shards, encoded = context.inputs["partition"], context.inputs["encode"]
    raw = context.recipe.student.inputs == "raw" or encoded.facts["identity"]
    return (shards if raw else encoded).array(_FILE), shards.array("labels.npy")


def student_inputs(context: Context) -> NDArray[Any]:
    """Return the public inputs as the student's model sees them."""
    if context.recipe.student.inputs == "features":
        return public_features(context)
    return context.inputs["data-public"].array(_FILE)


def graph_features(context: Context) -> NDArray[Any] | None:
    """Return the encoder's features of public inputs, as (n, d); None without an encoder."""
    encoder = context.inputs["encoder"]
    if encoder.facts["identity"]:
        return None
    features = encoder.array(_FILE)
    return features.reshape(len(features), -1)


def as_student_sees(context: Context, inputs: NDArray[Any]) -> NDArray[Any]:
    """Return other inputs, such as the test set's, in the form the student's model sees."""
    encoder = context.inputs["encoder"]
    if context.recipe.student.inputs == "raw" or encoder.facts["identity"]:
        return inputs
    from pate.encoders.chain import load_encoder

    spec, plugins = context.recipe.encoder, context.options.plugin_path
    return load_encoder(spec, encoder.path, plugin_path=plugins).transform(inputs)


ENCODER = Stage(
    name="encoder",
    version=1,
    needs=("data-public",),
    clearance=Level.PUBLIC,
    settings=_encoder_settings,
    run=_fit,
)

ENCODE = Stage(
    name="encode",
    version=2,
    needs=("partition", "encoder"),
    clearance=Level.PRIVATE,
    settings=_encode_settings,
    run=_encode,
)
