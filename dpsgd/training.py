"""From a recipe to a released model: prepare in private → charge → train → publish.

    FOLDER/private/NAME/             encoder, PCA and checkpoint of a run; its owner's alone
    FOLDER/released/training/NAME/   model, guarantee, curve and recipe, once it has ended

NAME is a fingerprint of the recipe alone: nothing of the private records goes into it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from dpsgd.checkpoint import releases
from dpsgd.clipping import AdaptiveQuantile, Automatic, Clipping, Flat, PerLayer
from dpsgd.curves import Row, write_curve
from dpsgd.features import Inputs, prepare
from dpsgd.models import build_model, build_optimizer
from dpsgd.recipe import ClippingSpec, DpsgdRecipe
from dpsgd.runs import (
    CHECKPOINT,
    STAGE,
    RunPlan,
    TrainingOutcome,
    bind_to_ledger,
    digest_of_settings,
    discard,
    find_outcome,
    ledger_path,
    locked_folder,
    name_of_run,
    open_ledger,
    plan_run,
    private_folder,
    require_consent,
)
from dpsgd.trainer import Trainer
from dpsgd.validation import UnsuitableModel, problems
from pate.accounting import Ledger, event_to_json
from pate.artifacts import Level, Store
from pate.datasets.loading import load
from pate.datasets.table import Splits
from pate.errors import BudgetExceeded, InvalidInput, ReleaseConflict, SpendNeeded
from pate.untrusted import contained, run_untrusted

_TRIED = 8  # records that a model is tried on beforehand


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of a run; of these, only the insecure seed is part of its fingerprint."""

    data_root: Path
    plugin_path: Path | None = None
    insecure_seed: int | None = None
    spend: bool = False
    study: str | None = None  # the study this run belongs to; recorded with its charges
    report: Callable[[str], None] = print
    show: Callable[[dict[str, Any]], None] = lambda row: None  # each epoch, once on disk


def train(recipe: DpsgdRecipe, folder: Path, options: TrainingOptions) -> TrainingOutcome:
    """Train a recipe, resume its killed run, or return its finished outcome.

    Guarantees:
        * The PCA is fitted and the plan written down in private; then everything the plan can cost
          is charged (:class:`dpsgd.trainer.Trainer`); then training starts. A charge that is
          refused leaves nothing behind.
        * What the ledger has paid for, in whatever folder, is not trained again without ``spend``;
          of several processes that ask for it at once, one is charged.
        * A killed run resumes from its checkpoint, under its one charge. Only one process at a time
          works on it, so that one charge never pays for two draws of noise.
        * What is published follows from noised sums, public settings and public test records.
    """
    seed, root = options.insecure_seed, options.data_root
    done = find_outcome(recipe, folder, data_root=root, insecure_seed=seed)
    if done is not None:
        return done
    name = name_of_run(recipe, seed)
    private = private_folder(folder, name)
    if not options.spend and options.study is None:  # a study was asked for as a whole
        require_consent(recipe, folder, private)
    splits = load(recipe.data, root=root, plugin_path=options.plugin_path)
    plan = plan_run(recipe, records=splits.private.records)
    path = ledger_path(recipe, root, seed)
    with locked_folder(private, folder):
        bind_to_ledger(private, recipe, path)
        store = Store(root=folder)
        store.sweep()
        inputs = prepare(
            recipe,
            splits,
            pca_file=private / "pca.npz",
            encoder_folder=private / "encoder",
            begun=(private / CHECKPOINT).exists(),
            plugin_path=options.plugin_path,
            insecure_seed=seed,
        )
        model = build_model(
            recipe.model,
            shape=inputs.shape,
            classes=inputs.classes,
            plugin_path=options.plugin_path,
        )
        training = _Training(recipe, plan, inputs, options, private)

        def work() -> None:
            with contained() as unsilenced:

                def audible(output: Callable[[Any], None]) -> Callable[[Any], None]:
                    def put_out(value: Any) -> None:
                        with unsilenced():
                            output(value)

                    return put_out

                _require_trainable(model)  # before a ledger is created, whose terms never change
                with open_ledger(recipe, plan, path) as ledger:
                    trainer = training.trainer(model, ledger)
                    training.announce(trainer, audible(options.report))
                    try:
                        training.fit(trainer, audible(options.show))
                    except (BudgetExceeded, ReleaseConflict) as error:
                        if trainer.steps == 0:
                            discard(private)
                        if isinstance(error, ReleaseConflict):
                            raise SpendNeeded(
                                f"the ledger at {path} has already paid for training with these "
                                "settings; resume in the folder where that was begun, or, to "
                                "train another model and pay again, add --spend"
                            ) from error
                        raise
                    training.release(trainer, ledger, store, name)

        run_untrusted("the model", work, private=True, error=InvalidInput, silent=False)
    outcome = find_outcome(recipe, folder, data_root=root, insecure_seed=seed, new=True)
    assert outcome is not None
    return outcome


def check_model(
    recipe: DpsgdRecipe, splits: Splits, plan: RunPlan, *, plugin_path: Path | None = None
) -> None:
    """Refuse what a run would refuse of its model, on a few test records, which are public.

    Nothing is charged or stored, and no private record is read.
    """
    few = splits.test.take(np.arange(min(splits.test.records, _TRIED)))
    if recipe.features.pca is not None:
        wide = recipe.features.pca.dimension
        features = torch.randn(_TRIED, wide, generator=torch.Generator().manual_seed(0))
    else:
        inputs = prepare(
            recipe, replace(splits, private=few, test=few), pca_file=Path(), plugin_path=plugin_path
        )
        features = inputs.test_features
    model = build_model(
        recipe.model,
        shape=tuple(features.shape[1:]),
        classes=splits.classes,
        plugin_path=plugin_path,
    )

    def work() -> None:
        _require_trainable(model)
        Trainer(
            model,
            build_optimizer(recipe.training, model),
            dataset=(features, torch.full((len(features),), splits.classes - 1)),
            lot_size=1,
            noise_multiplier=plan.noise_multiplier,
            delta=recipe.privacy.delta,
            clipping=_clipping(recipe.clipping),
            learning_rate=plan.learning_rate,
        )

    run_untrusted("the model", work, private=False, error=InvalidInput)


def _require_trainable(model: nn.Module) -> None:
    """Refuse a model as :func:`dpsgd.validate` does, in one line, with the remedy of a recipe."""
    serious = [each for each in problems(model) if each.serious]
    if serious:
        fixable = any(each.fixable for each in serious)
        remedy = "; a recipe has dpsgd.fix applied by fix = true in the section of the model"
        raise UnsuitableModel(
            f"the model cannot be trained privately as it is: {', '.join(map(str, serious))}"
            f"{remedy if fixable else ''}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Training:
    """A run whose plan and inputs are prepared."""

    recipe: DpsgdRecipe
    plan: RunPlan
    inputs: Inputs
    options: TrainingOptions
    private: Path

    def trainer(self, model: nn.Module, ledger: Ledger) -> Trainer:
        recipe, plan, options = self.recipe, self.plan, self.options
        return Trainer(
            model,
            build_optimizer(recipe.training, model),
            dataset=(self.inputs.features, self.inputs.labels),
            lot_size=plan.lot_size,
            records=recipe.training.records,
            noise_multiplier=plan.noise_multiplier,
            delta=recipe.privacy.delta,
            clipping=_clipping(recipe.clipping),
            learning_rate=plan.learning_rate,
            batch_size=recipe.training.batch_size,
            sampling=recipe.training.sampling,
            noise=recipe.privacy.noise,
            insecure_seed=options.insecure_seed,
            accountant=recipe.privacy.accountant,
            prior_events=plan.prior,
            ledger=ledger,
            study=options.study,
            settings=[digest_of_settings(recipe, options.insecure_seed)],
            again=options.spend or options.study is not None,  # a study asked for all its settings
            checkpoint=self.private / CHECKPOINT,
        )

    def announce(self, trainer: Trainer, report: Callable[[str], None]) -> None:
        """Report what is about to be done and spent."""
        other = self.options.data_root / "ledgers" / f"{self.recipe.data.name}.ledger"
        if other.exists():
            report(
                f"releases of PATE from these data are charged in {other}; publishing both costs "
                "both: their ε add up, and so do their δ"
            )
        if trainer.steps:
            report(f"resuming after step {trainer.steps} of {self.plan.steps}")
            return
        report(
            f"{self.plan.steps} steps in lots of {self.plan.lot_size} on average, noise multiplier "
            f"{self.plan.noise_multiplier:.4g}"
        )

    def fit(self, trainer: Trainer, show: Callable[[dict[str, Any]], None]) -> None:
        """Train to the end of the plan; show each epoch's row once a checkpoint holds it."""
        for row in trainer.history:  # of the killed run: these are on disk
            show(_public(row))
        epochs = self.recipe.training.epochs
        trainer.fit(
            epochs=epochs,
            steps=self.plan.steps if epochs is None else None,
            evaluate=self.inputs.accuracy if self.recipe.evaluate.each_epoch else None,
            report=lambda row: show(_public(row)),
        )

    def release(self, trainer: Trainer, ledger: Ledger, store: Store, name: str) -> None:
        """Publish what was paid for: the model, its guarantee, its curve, and the recipe.

        The guarantee of a run of a study is that of this run alone, and the file names the study.

        Guarantees:
            The encoder's published files are those written when it was fitted, before any private
            record was encoded; never the object that has seen them.
        """
        recipe, plan, inputs = self.recipe, self.plan, self.inputs
        model, guarantee = trainer.model.eval(), trainer.planned()
        caveats = [*guarantee.caveats, *(inputs.pca.caveats if inputs.pca is not None else ())]
        guarantee = replace(guarantee, caveats=tuple(dict.fromkeys(caveats)))
        charges = releases(self.private / CHECKPOINT)
        # Of the charges, whichever process finishes the run.
        studies = [s for c in ledger.charges() if c.release in charges for s in c.studies]
        report: dict[str, Any] = {
            "guarantee": guarantee.as_json(),
            "accountant": recipe.privacy.accountant,
            "noise_multiplier": plan.noise_multiplier,
            "sample_rate": plan.sample_rate,
            "lot_size": plan.lot_size,
            "steps": plan.steps,
            "events": [event_to_json(event) for event in plan.events],
            "accuracy": inputs.accuracy(model),
            "test_records": len(inputs.test_labels),
            "epochs": [_public(row) for row in trainer.history],
            "pca": inputs.pca is not None,
        }
        if studies:
            report["study"] = studies[0]
        with store.draft(STAGE, name, level=Level.RELEASED) as draft:
            state = model.state_dict()
            weights = {key: value.detach().clone().contiguous() for key, value in state.items()}
            save_file(weights, draft.path / "model.safetensors")
            if inputs.pca is not None:
                inputs.pca.save(draft.path / "pca.npz")
            if inputs.encoder is not None:
                shutil.copytree(self.private / "encoder", draft.path / "encoder")
            draft.facts["charges"] = sorted(charges)  # random names in the ledger
            draft.save_json("guarantee.json", report)
            draft.save_json("recipe.json", recipe.model_dump(mode="json"))
            write_curve([replace(row, seconds=0.0) for row in trainer.history], draft.path)


def _clipping(spec: ClippingSpec) -> Clipping:
    first = spec.max_norm[0]
    match spec.rule:
        case "flat":
            return Flat(first)
        case "per-layer":
            return PerLayer(first if len(spec.max_norm) == 1 else tuple(spec.max_norm))
        case "automatic":
            return Automatic(first)
        case "adaptive":
            return AdaptiveQuantile(first, quantile=spec.quantile or 0.5)


def _public(row: Row) -> dict[str, Any]:
    """Return an epoch without its duration, which depends on the sizes of its lots."""
    public = asdict(row)
    public.pop("seconds")
    return public
