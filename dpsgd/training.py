"""From a recipe to a released model: prepare in private → charge → train → publish.

    FOLDER/private/NAME/             encoder, PCA and checkpoint of a run; its owner's alone
    FOLDER/released/training/NAME/   model, guarantee, evaluation and recipe, once it has ended

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
from dpsgd.least_squares import LeastSquaresTrainer
from dpsgd.models import BoundedLinear, build_model, build_optimizer, model_of
from dpsgd.recipe import ClippingSpec, DpsgdRecipe
from dpsgd.runs import (
    CHECKPOINT,
    COLUMNS,
    EXAMPLES,
    STAGE,
    RunPlan,
    TrainingOutcome,
    as_begun,
    bind_to_ledger,
    digest_of_settings,
    discard,
    find_outcome,
    ledger_path,
    locked_folder,
    name_of_run,
    open_ledger,
    paid_before,
    plan_run,
    private_folder,
    require_consent,
    require_ledger,
    require_unpaid,
)
from dpsgd.trainer import Trainer
from dpsgd.validation import UnsuitableModel, problems
from pate.accounting import Ledger, compose, event_to_json
from pate.accounting.ledger.data_ledger import PlannedCharge, Preview, trial_ledger
from pate.artifacts import Level, Store
from pate.datasets.content import require_own_ledger
from pate.datasets.loading import load
from pate.datasets.roles import (
    equal_rows_notes,
    require_accepted,
    require_apart,
    require_named_groups,
)
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
    splits, _ = _planned(recipe, private, options)
    path = ledger_path(recipe, root, seed)
    require_ledger(private, path)
    if options.study is None:  # a study has asked before its first run
        _require_own_ledger(recipe, splits, path, options)
    with locked_folder(private, folder):
        done = find_outcome(recipe, folder, data_root=root, insecure_seed=seed)
        if done is not None:  # another process was faster
            return done
        plan = _plan(recipe, private, splits)
        noise, plugins = plan.noise_multiplier, options.plugin_path
        bind_to_ledger(private, recipe, path, noise_multiplier=noise, plugin_path=plugins)
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
        model = model_of(
            recipe,
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

                if not recipe.least_squares:
                    _require_trainable(model)  # before a ledger is created: its terms never change
                with open_ledger(recipe, plan, path) as ledger:
                    trainer = training.trainer(model, ledger)
                    try:
                        training.announce(trainer, ledger, audible(options.report))
                        training.fit(trainer, audible(options.show))
                    except (BudgetExceeded, ReleaseConflict, SpendNeeded) as error:
                        if trainer.steps == 0 and not _is_charged(private, ledger):
                            discard(private)
                        if isinstance(error, ReleaseConflict):
                            raise paid_before(path) from error
                        raise
                    training.release(trainer, ledger, store, name)

        run_untrusted("the model", work, private=True, error=InvalidInput, silent=False)
    outcome = find_outcome(recipe, folder, data_root=root, insecure_seed=seed, new=True)
    assert outcome is not None
    return outcome


def _planned(
    recipe: DpsgdRecipe, private: Path, options: TrainingOptions
) -> tuple[Splits, RunPlan]:
    """Return the data and what they are trained with; refuse a new run that mixes up people."""
    new = not (private / CHECKPOINT).exists()
    if new:
        require_accepted(recipe.data)
    splits = load(recipe.data, root=options.data_root, plugin_path=options.plugin_path)
    if new:
        require_named_groups(recipe.data, splits, protected=recipe.by_user, section="training")
        for note in equal_rows_notes(require_apart(recipe.data, splits)):
            options.report(note)
    return splits, _plan(recipe, private, splits)


def _plan(recipe: DpsgdRecipe, private: Path, splits: Splits) -> RunPlan:
    """Return the plan of a new run, or of the one that was begun."""
    begun = as_begun(recipe, private)
    return plan_run(begun, records=splits.private.records, groups=splits.private.groups)


def preview(recipe: DpsgdRecipe, folder: Path, options: TrainingOptions) -> Preview:
    """Return what training would be charged with; nothing is trained or written.

    Raises
    ------
    BudgetExceeded
        If training would be refused for it.
    """
    seed, root = options.insecure_seed, options.data_root
    paid = Preview(charges=(), notes=(f"nothing to charge: training in {folder} is paid for",))
    if find_outcome(recipe, folder, data_root=root, insecure_seed=seed) is not None:
        return paid
    private, notes = private_folder(folder, name_of_run(recipe, seed)), list[str]()
    path = ledger_path(recipe, root, seed)
    require_ledger(private, path)
    options = replace(options, report=notes.append)
    splits, plan = _planned(recipe, private, options)
    try:
        _require_own_ledger(recipe, splits, path, options, trial=True)
    except SpendNeeded as error:
        notes.append(str(error))
    with trial_ledger(path, lambda place: open_ledger(recipe, plan, place)) as ledger:
        if _is_charged(private, ledger):
            return paid
        try:
            if not options.spend:
                require_consent(recipe, folder, private)
                require_unpaid(ledger, recipe, seed)
        except SpendNeeded as error:
            notes.append(str(error))
        _require_room(recipe, plan, ledger)
        charge = PlannedCharge.make(ledger, plan.events, path=path.absolute())
    return Preview(charges=(charge,), notes=tuple(notes))


def _require_own_ledger(
    recipe: DpsgdRecipe,
    splits: Splits,
    ledger: Path,
    options: TrainingOptions,
    *,
    trial: bool = False,
) -> None:
    require_own_ledger(
        recipe.data,
        splits,
        root=options.data_root,
        ledger=ledger,
        spend=options.spend,
        report=options.report,
        remember=not trial,
    )


def _require_room(recipe: DpsgdRecipe, plan: RunPlan, ledger: Ledger) -> None:
    """Refuse what the budget does not cover; name the remedy where the noise is not by moments."""
    try:
        ledger.require_room(plan.events)
    except BudgetExceeded as error:
        privacy = recipe.privacy
        by_moments = compose(plan.events).guarantee(delta=privacy.delta).epsilon
        if privacy.epsilon is None or by_moments <= privacy.epsilon:
            raise
        raise error.with_reason(
            f"this charge would {error.excess}; nothing was charged: choose a smaller "
            'privacy.epsilon, or privacy.accountant = "moments", whose noise costs a ledger less, '
            "since it adds up log-moments"
        ) from None


def _is_charged(private: Path, ledger: Ledger) -> bool:
    """Return whether a run was begun in this folder, and paid for."""
    begun = private / CHECKPOINT
    names = releases(begun) if begun.exists() else set()
    return bool(names) and names <= ledger.releases()


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
    if recipe.least_squares:  # the model is ours
        return
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
            clipping=make_clipping(recipe.clipping),
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

    def trainer(self, model: nn.Module, ledger: Ledger) -> Trainer | LeastSquaresTrainer:
        recipe, plan, options = self.recipe, self.plan, self.options
        settings = [digest_of_settings(recipe, options.insecure_seed)]
        again = options.spend or options.study is not None  # a study asked for all its settings
        if isinstance(model, BoundedLinear):
            return LeastSquaresTrainer(
                model,
                recipe=recipe,
                plan=plan,
                inputs=self.inputs,
                ledger=ledger,
                checkpoint=self.private / CHECKPOINT,
                study=options.study,
                settings=settings,
                again=again,
                insecure_seed=options.insecure_seed,
            )
        return Trainer(
            model,
            build_optimizer(recipe.training, model),
            dataset=(self.inputs.features, self.inputs.labels),
            lot_size=plan.lot_size,
            records=recipe.training.records,
            groups=self.inputs.groups if plan.by_user else None,
            grouped_by=recipe.data.group or "groups",
            per_user=recipe.training.per_user,
            users=recipe.training.users,
            noise_multiplier=plan.noise_multiplier,
            delta=recipe.privacy.delta,
            clipping=make_clipping(recipe.clipping),
            learning_rate=plan.learning_rate,
            batch_size=recipe.training.batch_size,
            sampling=recipe.training.sampling,
            noise=recipe.privacy.noise,
            insecure_seed=options.insecure_seed,
            accountant=recipe.privacy.accountant,
            prior_events=plan.prior,
            ledger=ledger,
            study=options.study,
            settings=settings,
            again=again,
            checkpoint=self.private / CHECKPOINT,
        )

    def announce(
        self, trainer: Trainer | LeastSquaresTrainer, ledger: Ledger, report: Callable[[str], None]
    ) -> None:
        """Report what is about to be done and spent; refuse what the budget does not cover."""
        other = self.options.data_root / "ledgers" / f"{self.recipe.data.name}.ledger"
        if other.exists():
            report(
                f"releases of PATE from these data are charged in {other}; publishing both costs "
                "both: their ε add up, and so do their δ"
            )
        if trainer.steps:
            report(f"resuming after step {trainer.steps} of {self.plan.steps}")
            return
        report(self.plan.describe(self.recipe.unit))
        if _is_charged(self.private, ledger):
            return
        if not (self.options.spend or self.options.study is not None):
            require_unpaid(ledger, self.recipe, self.options.insecure_seed)
        _require_room(self.recipe, self.plan, ledger)
        report(str(PlannedCharge.make(ledger, self.plan.events)))

    def fit(
        self, trainer: Trainer | LeastSquaresTrainer, show: Callable[[dict[str, Any]], None]
    ) -> None:
        """Train to the end of the plan; show each epoch's row once a checkpoint holds it."""
        evaluate = self.inputs.accuracy if self.recipe.evaluate.each_epoch else None
        if isinstance(trainer, LeastSquaresTrainer):
            trainer.fit(evaluate=evaluate, report=lambda row: show(_public(row)))
            return
        for row in trainer.history:  # of the killed run: these are on disk
            show(_public(row))
        epochs = self.recipe.training.epochs
        trainer.fit(
            epochs=epochs,
            steps=self.plan.steps if epochs is None else None,
            evaluate=evaluate,
            report=lambda row: show(_public(row)),
        )

    def release(
        self, trainer: Trainer | LeastSquaresTrainer, ledger: Ledger, store: Store, name: str
    ) -> None:
        """Publish what was paid for: the model, its guarantee, its curve, and the recipe.

        The guarantee of a run of a study is that of this run alone, and the file names the study.

        Guarantees:
            The encoder's published files are those written when it was fitted, before any private
            record was encoded; never the object that has seen them.
        """
        recipe, plan, inputs = self.recipe, self.plan, self.inputs
        model, guarantee = trainer.model.eval(), trainer.planned()
        evaluation = inputs.evaluation(model)
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
            "accuracy": evaluation.student.accuracy,
            "test_records": evaluation.student.records,
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
            evaluation.save(draft)
            draft.save_array(EXAMPLES, inputs.examples)
            if inputs.columns is not None:
                draft.save_json(COLUMNS, [asdict(each) for each in inputs.columns])
            write_curve([replace(row, seconds=0.0) for row in trainer.history], draft.path)


def make_clipping(spec: ClippingSpec) -> Clipping:
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
