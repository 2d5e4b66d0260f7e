"""Runs of ``dpsgd train``, as ``pate status``, ``report`` and ``release`` read them.

A run of ``dpsgd`` is known by its folder. Its network is rebuilt by the code that trained it, so
this module and :mod:`pate.studies.compare` import :mod:`dpsgd`, and no others of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from dpsgd.recipe import DpsgdRecipe
from dpsgd.runs import (
    CHECKPOINT,
    COLUMNS,
    EXAMPLES,
    STAGE,
    RunPlan,
    TrainingOutcome,
    ledger_of_run,
    place_of_run,
    plan_for,
)
from pate._format import describe_neighbours
from pate.accounting import Conversion, Guarantee, Ledger, Neighbours
from pate.accounting.ledger.data_set import NOT_PRIVATE
from pate.artifacts import Artifact, Level, Store
from pate.artifacts.results import Evaluation
from pate.datasets.catalogue import data_root as default_root
from pate.errors import InvalidInput, LedgerError
from pate.recipes.paths import PluginsSpec, set_file
from pate.stages.caveats import training_caveats

if TYPE_CHECKING:
    from pate.encoders.chain import Chain

__all__ = ["DpsgdRecipe", "FinishedTraining", "RunPlan", "TrainedModel", "open_training"]

_PIPELINE = "recipe.json"  # in the folder of a run of PATE


def is_dpsgd_run(folder: Path) -> bool:
    """Return whether a folder holds a run of ``dpsgd train``, finished or not."""
    begun = any(folder.glob(f"{Level.PRIVATE.folder}/*/{CHECKPOINT}"))
    finished = (folder / Level.RELEASED.folder / STAGE).is_dir()
    return (begun or finished) and not (folder / _PIPELINE).exists()


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedTraining:
    """A finished run of ``dpsgd train``: what it released, and what that costs.

    Everything on it is RELEASED.
    """

    folder: Path
    recipe: DpsgdRecipe
    evaluation: Evaluation
    examples: NDArray[Any]  # public records, as they are in the data
    artifact: Artifact
    stated: Mapping[str, Any]  # guarantee.json
    ledger_path: Path
    plugin_path: Path | None

    @property
    def asked(self) -> str:
        """The settings in a few words."""
        return f"{self.recipe.data.name} by DP-SGD ({self.plan.describe(self.recipe.unit)})"

    @property
    def is_private(self) -> bool:
        """Whether lots and noise were drawn as the theorem requires."""
        seeded = self.ledger_path.name.endswith(NOT_PRIVATE)
        return not seeded and not self.stated["guarantee"]["caveats"]

    @property
    def why_not_private(self) -> str:
        """The reason, if it is not."""
        reasons = [
            each.removesuffix(": not private") for each in self.stated["guarantee"]["caveats"]
        ]
        return "; ".join(reasons) or "seeded noise"

    @property
    def charges(self) -> tuple[str, ...]:
        """The names of its charges in the ledger."""
        return tuple(self.artifact.facts.get("charges", ()))

    @property
    def protects(self) -> str:
        """The difference between two data sets that the guarantee hides, as a phrase."""
        return describe_neighbours(self.stated["guarantee"]["neighbours"])

    @property
    def records(self) -> int:
        """The number that the sampling rate follows from: an agreed one, or a public one."""
        count: int = round(self.stated["lot_size"] / self.stated["sample_rate"])
        return count

    @property
    def columns(self) -> list[dict[str, Any]] | None:
        """The columns of a table; None for other records."""
        there = (self.artifact.path / COLUMNS).is_file()
        return self.artifact.json(COLUMNS) if there else None

    @property
    def takes_missing(self) -> bool:
        """Whether values may be missing from the records of a table: its steps fill them in."""
        from pate.encoders.spec import EncoderSpec

        spec = EncoderSpec(steps=self.recipe.features.steps)
        return self.columns is not None and spec.completes

    @cached_property
    def plan(self) -> RunPlan:
        """Lots, steps and noise."""
        return plan_of(
            self.recipe, records=self.records, noise_multiplier=self.stated["noise_multiplier"]
        )

    @property
    def notes(self) -> list[str]:
        """Traces of tuning that its ε does not cover."""
        with Ledger.open(self.ledger_path) as ledger:
            if not self.is_private:
                return []
            return training_caveats(
                ledger, self.charges, data=self.recipe.data, nouns=self.recipe.nouns
            )

    @property
    def guarantee(self) -> Guarantee:
        """The cost of everything the run released, and between whom it holds.

        Its notes state what this ε does not cover: other releases of the data set, a study.
        """
        stated = self.stated["guarantee"]
        conversion = stated["conversion"]
        return Guarantee(
            epsilon=stated["epsilon"],
            delta=stated["delta"],
            moment=stated["moment"],
            neighbours=Neighbours(stated["neighbours"]),
            conversion=None if conversion is None else Conversion(conversion),
            caveats=tuple(stated["caveats"]),
            notes=tuple(self.notes),
        )

    @cached_property
    def student(self) -> TrainedModel:
        """The trained model: ``predict`` returns class numbers of records as they are."""
        return TrainedModel(
            self.recipe,
            self.artifact.path,
            class_names=tuple(each.name for each in self.evaluation.classes),
            example=self.examples[:1],
            plugin_path=self.plugin_path,
        )


def plan_of(recipe: DpsgdRecipe, *, records: int, noise_multiplier: float) -> RunPlan:
    """Return the plan of a recipe for so many records or users, with noise computed before."""
    known = {"epsilon": None, "noise_multiplier": noise_multiplier}
    settled = {"privacy": recipe.privacy.model_copy(update=known)}
    return plan_for(recipe.model_copy(update=settled), count=records)


def open_training(
    folder: Path, *, data_root: Path | None = None, plugin_path: Path | None = None
) -> FinishedTraining:
    """Open a finished run; where several were trained in a folder, the one charged last.

    Its ledger and plug-ins are found where they were, unless ``data_root`` or ``plugin_path`` is
    given. Refuses a run that is not finished, one whose ledger lacks its charge, and files that are
    damaged.
    """
    store = Store(root=folder)
    finished = store.all(STAGE)
    if not finished:
        raise InvalidInput(
            f"{folder} is not finished: training was begun; run `dpsgd train` again to resume it"
        )
    numbers: dict[int, tuple[Artifact, Path]] = {}
    for artifact in finished:
        place = _ledger_of(folder, artifact, data_root)
        with Ledger.open(place) as ledger:
            charged = {each.release: each.number for each in ledger.charges()}
        own = set(artifact.facts.get("charges", ()))
        if not own or not own <= charged.keys():
            raise LedgerError(
                f"the ledger at {place} lacks the charge of the model in {artifact.path}; give the "
                "run's own --data-root, or restore the ledger from a backup made after training"
            )
        numbers[max(map(charged.__getitem__, own))] = artifact, place
    artifact, place = numbers[max(numbers)]
    name = str(artifact.manifest["made_from"])
    artifact, plugins = store.open(STAGE, name), PluginsSpec().chosen(plugin_path)
    plugin_path = plugins or place_of_run(folder, name, "plugin_path")
    try:
        recipe = DpsgdRecipe.model_validate_json((artifact.path / "recipe.json").read_bytes())
    except (OSError, ValidationError):
        raise InvalidInput(f"{artifact.path / 'recipe.json'} is damaged") from None
    set_file(recipe, place_of_run(folder, name, "recipe_file"))
    if (artifact.path / EXAMPLES).is_file():
        evaluation, examples = Evaluation.load(artifact), artifact.array(EXAMPLES)
    else:
        evaluation, examples = _from_data(recipe, artifact, place, plugin_path)
    return FinishedTraining(
        folder=folder,
        recipe=recipe,
        evaluation=evaluation,
        examples=examples,
        artifact=artifact,
        stated=TrainingOutcome(artifact=artifact, new=False, ledger=None).report,
        ledger_path=place,
        plugin_path=plugin_path,
    )


def _from_data(
    recipe: DpsgdRecipe, artifact: Artifact, ledger: Path, plugin_path: Path | None
) -> tuple[Evaluation, NDArray[Any]]:
    """Return what earlier versions did not keep with a model: its test by class, public records."""
    from dpsgd.features import MOST_EXAMPLES
    from pate.datasets.loading import load

    splits = load(recipe.data, root=ledger.parent.parent, plugin_path=plugin_path)
    examples, names = np.asarray(splits.public.features[:MOST_EXAMPLES]), splits.class_names
    model = TrainedModel(
        recipe,
        artifact.path,
        class_names=names,
        example=examples[:1],
        plugin_path=plugin_path,
    )
    assert splits.test.labels is not None
    predicted = model.predict(splits.test.features)
    return Evaluation.of(predicted, splits.test.labels, class_names=names), examples


def _ledger_of(folder: Path, artifact: Artifact, data_root: Path | None) -> Path:
    """Return the ledger that a run was charged to: where it was, or below another data root."""
    began = ledger_of_run(folder, str(artifact.manifest["made_from"]))
    places = [default_root(data_root) / "ledgers" / began.name]
    for place in places if data_root is not None else [began, *places]:
        if place.is_file():
            return place
    raise LedgerError(
        f"there is no {began if data_root is None else places[0]}; a report or release is made "
        "where the ledger of its data set is: give its --data-root, or restore it from a backup"
    )


def is_finished(folder: Path) -> bool:
    """Return whether a model was trained in a folder."""
    return bool(Store(root=folder).all(STAGE))


@final
class TrainedModel:
    """A trained network, with everything that records go through before it."""

    def __init__(
        self,
        recipe: DpsgdRecipe,
        place: Path,
        *,
        class_names: tuple[str, ...],
        example: NDArray[Any],
        plugin_path: Path | None,
    ) -> None:
        import torch
        from safetensors.torch import load_file

        from dpsgd.features import user_encoder
        from dpsgd.models import model_of
        from dpsgd.pca import PrivatePCA
        from pate.encoders.chain import load_encoder
        from pate.encoders.spec import EncoderSpec

        self.recipe, self.class_names = recipe, class_names
        self.chain: Chain | None = None
        if recipe.features.steps:
            spec = EncoderSpec(steps=recipe.features.steps)
            self.chain = load_encoder(spec, place / "encoder", plugin_path=plugin_path)
        self.encoder = user_encoder(recipe.features, plugin_path)
        self.pca = PrivatePCA.load(place / "pca.npz") if recipe.features.pca else None
        zero = torch.from_numpy(self.features(np.zeros_like(example)))
        network = model_of(
            recipe,
            shape=tuple(zero.shape[1:]),
            classes=len(class_names),
            plugin_path=plugin_path,
        )
        network.load_state_dict(load_file(place / "model.safetensors"))
        self.network: Any = network.eval()

    def encoded(self, records: NDArray[Any]) -> NDArray[np.float32]:
        """Return records scaled and encoded, each on its own."""
        from dpsgd.features import encode_records

        spec = self.recipe.features
        return encode_records(spec, records, chain=self.chain, encoder=self.encoder)

    def features(self, records: NDArray[Any]) -> NDArray[np.float32]:
        """Return records in the form that the network takes."""
        from dpsgd.features import in_torch_order

        found = self.encoded(records)
        if self.pca is not None:
            return self.pca.transform(found)
        return in_torch_order(found) if self.recipe.model.kind == "cnn" else found

    def logits(self, X: ArrayLike) -> NDArray[Any]:
        """Return the network's outputs for records as they are in the data."""
        import torch

        with torch.no_grad():
            outputs = self.network(torch.from_numpy(self.features(np.asarray(X))))
        return np.asarray(outputs.numpy())

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the label of each record, from 0."""
        return np.asarray(self.logits(X).argmax(axis=1), dtype=np.int64)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return a probability for each class."""
        from scipy.special import softmax

        return np.asarray(softmax(self.logits(X).astype(np.float64), axis=1))
