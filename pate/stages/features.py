"""Features for stages: the encoder's, or the inputs themselves where there is no encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pate.artifacts import Artifact
from pate.pipeline.stage import Context

_FILE = "features.npy"


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
    shards = context.inputs["partition"]
    if context.recipe.student.inputs == "raw" or context.inputs["encode"].facts["identity"]:
        return shards.array(_FILE), shards.array("labels.npy")
    return context.inputs["encode"].array(_FILE), shards.array("labels.npy")


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

    chain = load_encoder(
        context.recipe.encoder, encoder.path, plugin_path=context.options.plugin_path
    )
    return chain.transform(inputs)
