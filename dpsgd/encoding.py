"""The steps of ``[features]``: made before training, from public inputs alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpsgd.recipe import FeaturesSpec
from pate.encoders.chain import Chain, fit_encoder, load_encoder, save_encoder
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput

_FITTED = (
    "standardise",
    "pca",
    "diffusion",
)  # of the built-in steps; the others need no public input at all
_LEAST_PUBLIC = 100  # inputs: means and directions of fewer are mostly chance
_HEADER = "encoder.json"  # written last: where it is, the folder is whole


def make_encoder(
    spec: FeaturesSpec,
    public: NDArray[np.float32],
    *,
    folder: Path | None = None,
    plugin_path: Path | None = None,
) -> Chain | None:
    """The recipe's steps, fitted on public inputs; kept in ``folder``, and read back from there.

    Guarantees:
        Steps are fixed, or fitted on PUBLIC inputs, and each record is encoded on its own
        (:class:`pate.encoders.chain.Chain`). So the encoder is settled before any private record is
        read, data sets that differ by one record differ by one row of features (up to rounding),
        and nothing is charged: Dwork & Roth 2014, Proposition 2.1.
    """
    if not spec.steps:
        return None
    steps = EncoderSpec(steps=spec.steps)
    if folder is not None and (folder / _HEADER).exists():
        return load_encoder(steps, folder, plugin_path=plugin_path)
    fitted = [step.name for step in spec.steps if step.name in _FITTED]
    if fitted and len(public) < _LEAST_PUBLIC:
        raise InvalidInput(
            f'step "{fitted[0]}" of [features] is fitted on public inputs, and {len(public)} of '
            f"them are too few to fit it; raise data.public to {_LEAST_PUBLIC} or more, or take "
            '"groupnorm" or "normalise", which look at each record alone'
        )
    chain = fit_encoder(steps, public, plugin_path=plugin_path)
    if folder is not None:
        save_encoder(chain, folder)
    return chain
