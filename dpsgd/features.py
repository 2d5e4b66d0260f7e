"""Records as a model takes them: scaled, encoded and projected, each on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpsgd.models import call_with
from dpsgd.pca import PrivatePCA
from dpsgd.public import encode
from dpsgd.recipe import DpsgdRecipe, FeaturesSpec, PcaSpec
from pate.artifacts.results import Evaluation
from pate.datasets.table import Column, Splits, Table
from pate.encoders.chain import Chain, fit_encoder, load_encoder, save_encoder
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.plugins import resolve
from pate.untrusted import run_untrusted

_FITTED = ("standardise", "pca", "diffusion", "impute")  # built-in steps that need public inputs
_LEAST_PUBLIC = 100  # inputs: means and directions of fewer are mostly noise
_HEADER = "encoder.json"  # written last: the folder is complete if it exists


def make_encoder(
    spec: FeaturesSpec,
    public: NDArray[np.float32],
    *,
    categories: Sequence[int] = (),
    folder: Path | None = None,
    plugin_path: Path | None = None,
) -> Chain | None:
    """Return the recipe's steps, fitted on public inputs; save them in, or load from, ``folder``.

    Guarantees:
        Steps are fixed, or fitted on PUBLIC inputs, and each record is encoded on its own
        (:class:`pate.encoders.chain.Chain`). So the encoder is settled before any private record is
        read, data sets that differ by one record differ by one row of features (up to rounding),
        and nothing is charged: Dwork & Roth 2014, Proposition 2.1.
    """
    steps = EncoderSpec(steps=spec.steps)
    steps.require_categories(categories)
    if any(categories) and spec.scale != 1:
        raise InvalidInput(
            f"features.scale is {spec.scale:g}, and columns hold categories, whose codes it would "
            'change; leave it out, and put the step "standardise" after "one-hot"'
        )
    if not spec.steps:
        return None
    if folder is not None and (folder / _HEADER).exists():
        return load_encoder(steps, folder, plugin_path=plugin_path)
    fitted = [step.name for step in spec.steps if step.name in _FITTED]
    if fitted and len(public) < _LEAST_PUBLIC:
        raise InvalidInput(
            f'step "{fitted[0]}" of [features] is fitted on public inputs, and {len(public)} of '
            f"them are too few to fit it; raise data.public to {_LEAST_PUBLIC} or more, or take "
            '"groupnorm" or "normalise", which look at each record alone'
        )
    chain = fit_encoder(steps, public, categories=categories, plugin_path=plugin_path)
    if folder is not None:
        save_encoder(chain, folder)
    return chain


_TEST_BATCH = 2048
MOST_EXAMPLES = 500  # public records that are kept with a model


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inputs:
    """The training and test records. PRIVATE, except for the test records."""

    features: Tensor
    labels: Tensor
    test_features: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]
    examples: NDArray[Any]  # public records as they are, to try an exported model on
    pca: PrivatePCA | None
    encoder: Chain | None  # of [features] steps; public
    groups: tuple[str, ...] | None = None  # the user of each training record
    columns: tuple[Column, ...] | None = None  # of a table; public

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def records(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.features.shape[1:])

    def predictions(self, model: nn.Module) -> NDArray[np.int64]:
        """Return the class that a model predicts for each test record."""
        with torch.no_grad():
            starts = range(0, len(self.test_labels), _TEST_BATCH)
            parts = [
                model(self.test_features[start : start + _TEST_BATCH]).argmax(dim=1)
                for start in starts
            ]
        return np.asarray(torch.cat(parts).numpy(), dtype=np.int64)

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of test records, which are public, that a model classifies right."""
        return float((self.predictions(model) == self.test_labels.numpy()).mean())

    def evaluation(self, model: nn.Module) -> Evaluation:
        """Return the accuracy of a model on the test records, by class."""
        truth = np.asarray(self.test_labels.numpy())
        return Evaluation.of(self.predictions(model), truth, class_names=self.class_names)


def prepare(
    recipe: DpsgdRecipe,
    splits: Splits,
    *,
    pca_file: Path,
    encoder_folder: Path | None = None,
    begun: bool = False,
    plugin_path: Path | None = None,
    insecure_seed: int | None = None,
) -> Inputs:
    """Return the inputs of a run; a PCA is fitted once and kept in ``pca_file``, which is private.

    Each record is encoded once, for the whole run; the features are held in memory. The encoder of
    ``steps`` is kept in ``encoder_folder``, so that a killed run resumes with the same one.

    Guarantees:
        * Scaling and encoding treat each record on its own and learn nothing from other private
          records, so neighbouring data sets stay neighbours. Steps that are fitted are fitted on
          public inputs (:func:`dpsgd.features.make_encoder`), which is free. Features are exact
          up to rounding: a record's position in a block may decide its last bits (with ``pca``
          some 4·10⁻⁷ of their size), and that is not covered, nor is rounding of the noised sums.
        * The PCA is drawn once: a run that resumes after a crash reads it back. Its cost
          (``events``) must be charged before anything that depends on it is shown.
    """
    spec = recipe.features
    chain = make_encoder(
        spec,
        _scaled(splits.public.features, spec),
        categories=splits.categories,
        folder=encoder_folder,
        plugin_path=plugin_path,
    )
    encoder = user_encoder(spec, plugin_path)
    private, test = (
        encode_records(spec, table.features, chain=chain, encoder=encoder)
        for table in (splits.private, splits.test)
    )
    pca = None
    if spec.pca is not None:
        pca = _fitted_pca(
            spec.pca, private, file=pca_file, begun=begun, insecure_seed=insecure_seed
        )
        private, test = pca.transform(private), pca.transform(test)
    elif recipe.model.kind == "cnn":
        private, test = in_torch_order(private), in_torch_order(test)
    return Inputs(
        features=torch.from_numpy(private),
        labels=torch.from_numpy(_labels(splits.private)),
        test_features=torch.from_numpy(test),
        test_labels=torch.from_numpy(_labels(splits.test)),
        class_names=splits.class_names,
        examples=np.asarray(splits.public.features[:MOST_EXAMPLES]),
        pca=pca,
        encoder=chain,
        groups=splits.private.groups,
        columns=splits.columns,
    )


def encode_records(
    spec: FeaturesSpec, features: NDArray[Any], *, chain: Chain | None, encoder: Any
) -> NDArray[np.float32]:
    """Return records as they are before a PCA: scaled, and encoded one by one."""
    records = _scaled(features, spec)
    if chain is not None:
        records = chain.transform(records)
    if encoder is not None:
        records = run_untrusted(
            f"the encoder {spec.encoder}",
            partial(encode, encoder, records),
            private=True,
            error=InvalidInput,
        )
    if np.isnan(records).any():
        raise InvalidInput(
            'records have missing values, and the model takes none; add the step "impute" to '
            "[features]"
        )
    return np.ascontiguousarray(records, dtype=np.float32)


def in_torch_order(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return images (n, h, w) or (n, h, w, c) as (n, c, h, w)."""
    return np.ascontiguousarray(images[:, None] if images.ndim == 3 else np.moveaxis(images, -1, 1))


def _scaled(features: NDArray[Any], spec: FeaturesSpec) -> NDArray[np.float32]:
    records: NDArray[np.float32] = np.multiply(features, spec.scale, dtype=np.float32)
    return records


def user_encoder(spec: FeaturesSpec, plugin_path: Path | None) -> Any:
    """Return the encoder of the user's own that a recipe names; None if it names none."""
    if spec.encoder is None:
        return None
    found = resolve(spec.encoder, path=plugin_path)
    if isinstance(found, type) or spec.params:
        return call_with(found, spec.params, offered={}, what=spec.encoder)
    return found


def _fitted_pca(
    spec: PcaSpec, private: NDArray[Any], *, file: Path, begun: bool, insecure_seed: int | None
) -> PrivatePCA:
    pca = PrivatePCA(**spec.model_dump())
    if file.exists():
        stored = PrivatePCA.load(file)
        terms = [(each.dimension, each.whiten, each.events) for each in (stored, pca)]
        if terms[0] != terms[1]:
            raise InvalidInput(
                "the stored principal components were made under another [features.pca]; restore "
                "the recipe, or use a new run folder, whose components cost again"
            )
        return stored
    if begun:
        raise InvalidInput(
            f"{file.name} of this run is gone, and its training was begun with it; another one "
            "costs again: use a new run folder"
        )
    pca.fit(private, insecure_seed=insecure_seed)
    pca.save(file)
    return pca


def _labels(table: Table) -> NDArray[np.int64]:
    if table.labels is None:
        raise InvalidInput("these records have no labels; training and testing need them")
    return np.ascontiguousarray(table.labels, dtype=np.int64)
