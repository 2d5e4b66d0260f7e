"""The audit of a finished run of ``dpsgd train``. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate._format import in_nouns
from pate.audits.findings import Finding
from pate.audits.options import AuditOptions, Results
from pate.audits.predictions import Predict
from pate.audits.results import Audit, Claim
from pate.audits.shadow_models import ModelFit
from pate.audits.targets import MODEL, REFERENCE, Pool, Target, attack_pool, attributes
from pate.dpsgd_runs import FinishedTraining
from pate.errors import ConditionsFail, InvalidInput

TRAINING, SUMS_MODEL = "DP-SGD training", "least squares model"
_CANARIES = 5000
_AT_ONCE = 8  # networks that train as one program in less than twice the time of one


def audit_training(
    training: FinishedTraining, options: AuditOptions, *, pool: Pool | None = None
) -> Audit:
    """Attack the model of a finished run of ``dpsgd train``. PRIVATE.

    Parameters
    ----------
    training : FinishedTraining
        The run, with the data it was trained on at hand.
    options : AuditOptions
        The extent of the audit.
    pool : Pool, optional
        The records of membership attacks; by default drawn from those of the run.
    """
    from pate.datasets.loading import load

    splits = load(
        training.recipe.data,
        root=training.ledger_path.parent.parent,
        plugin_path=training.plugin_path,
    )
    private, test = splits.private, splits.test
    if private.labels is None or test.labels is None:
        raise InvalidInput(f"the private records of {training.folder} are not at hand")
    guarantee = training.guarantee
    protects = in_nouns(training.protects, **training.recipe.nouns)
    claim = Claim(epsilon=guarantee.epsilon, delta=guarantee.delta, protects=protects)
    results, name = Results(options), SUMS_MODEL if training.plan.one_sum else MODEL
    if "leave-one-out" in options.attacks:
        results.skipped.append(
            "Leave-one-out: a record reaches all weights of this model, and its influence has no "
            "closed form; it is exact for PATE alone."
        )
    records = (np.asarray(private.features), np.asarray(private.labels))
    if "membership" in options.attacks:
        others = (np.asarray(test.features), np.asarray(test.labels))
        drawn = pool or Pool.drawn(records, others, seed=options.seed)
        _training_membership(training, drawn, results, name)
    if "canaries" in options.attacks:
        with results.part("gradient canaries", threads=None):
            results.findings.append(_gradient_canaries(training, *records, options))
    if not training.is_private:
        results.notes.append(f"This run is not private: {training.why_not_private}.")
    return Audit(
        subject=training.asked,
        claims=dict.fromkeys((name, TRAINING), claim),
        findings=tuple(results.findings),
        skipped=tuple(results.skipped),
        notes=tuple(results.notes),
        one_population=training.recipe.data.divided,
        seconds=results.seconds,
    )


def _fresh_network(training: FinishedTraining, features: NDArray[Any]) -> Any:
    from dpsgd.models import model_of

    return model_of(
        training.recipe,
        shape=features.shape[1:],
        classes=len(training.student.class_names),
        plugin_path=training.plugin_path,
    )


def _training_membership(
    training: FinishedTraining, pool: Pool, results: Results, name: str
) -> None:
    seed, model, columns = results.options.seed, training.student, training.columns
    coded = any(each["categories"] for each in columns or ())
    plain: dict[str, Any] = {"numeric": not coded, "columns": attributes(columns, pool.records)}
    with results.part(f"membership inference on the {name}"):
        features, shadows = model.features(pool.records), 0
        privately = partial(_fit_privately, training, features)
        if training.plan.one_sum or training.plan.by_user:
            results.skipped.append(
                f"Shadow models of the {name}: they are for steps of DP-SGD that protect single "
                "records."
            )
        else:
            shadows = results.affordable_shadows(name, partial(privately, *pool.rows(0), seed))
        target = Target(
            name=name,
            model=model.predict_proba,
            fit=privately,
            by_rows=lambda rows: model.predict_proba(pool.records[rows]),
            shadows=shadows,
            **plain,
        )
        results.findings += attack_pool(target, pool, seed=seed)
    if training.recipe.least_squares:
        results.skipped.append(f"A {REFERENCE}: there is none of least squares.")
        return
    with results.part(f"membership inference on a {REFERENCE}"):
        features = model.features(pool.records)
        network = _fresh_network(training, features)
        kind = ModelFit(
            model=network,
            classes=len(model.class_names),
            settings={"epochs": training.recipe.training.epochs or 10, "lr": 1e-3},
        )

        def fit(rows: Any, y: Any, own: int) -> Predict:
            (made,) = kind.fit_many([(features[rows], np.asarray(y))], [own])
            return made

        start = time.process_time()
        reference = fit(*pool.rows(0), seed)
        alone = time.process_time() - start
        shadows = results.affordable_shadows(REFERENCE, seconds=alone / _AT_ONCE)
        target = Target(
            name=REFERENCE,
            model=lambda X: reference(model.features(np.asarray(X))),
            fit=_ByRows(kind, features),
            by_rows=lambda rows: reference(features[rows]),
            shadows=shadows,
            **plain,
        )
        results.findings += attack_pool(target, pool, seed=seed)


def _fit_privately(
    training: FinishedTraining, features: NDArray[Any], rows: Any, y: Any, seed: int
) -> Predict:
    """Return a model by DP-SGD of some rows, with the rate, noise and steps of the run."""
    import torch

    from dpsgd import Trainer
    from dpsgd.models import build_optimizer
    from dpsgd.training import make_clipping

    recipe, plan = training.recipe, training.plan
    network = _fresh_network(training, features)
    Trainer(
        network,
        build_optimizer(recipe.training, network),
        dataset=(features[rows], np.asarray(y)),
        lot_size=plan.sample_rate * len(rows),
        noise_multiplier=plan.noise_multiplier,
        delta=recipe.privacy.delta,
        clipping=make_clipping(recipe.clipping),
        learning_rate=plan.learning_rate,
        batch_size=recipe.training.batch_size,
        insecure_seed=seed,
    ).fit(steps=plan.steps)

    def predict(wanted: Any) -> NDArray[Any]:
        with torch.inference_mode():
            logits = network.eval()(torch.as_tensor(features[wanted]))
        return np.asarray(logits.double().softmax(dim=1).numpy())

    return predict


@dataclass(frozen=True, slots=True)
class _ByRows:
    """A training of rows of features, of several models at once."""

    kind: ModelFit
    features: NDArray[Any]

    def fit_many(self, shards: Sequence[Any], seeds: Sequence[int]) -> list[Predict]:
        parts = [(self.features[rows], labels) for rows, labels in shards]
        made = self.kind.fit_many(parts, seeds)
        return [partial(_ask_rows, each, self.features) for each in made]


def _ask_rows(predict: Predict, features: NDArray[Any], rows: Any) -> Any:
    return predict(features[rows])


def _gradient_canaries(
    training: FinishedTraining, records: NDArray[Any], labels: NDArray[Any], options: AuditOptions
) -> Finding:
    """Train once more with gradient canaries, by the plan of the run; nothing of it is kept."""
    from pate.audits.gradients import audit_dpsgd

    recipe, plan, model = training.recipe, training.plan, training.student
    if plan.one_sum or plan.by_user or recipe.clipping.rule != "flat":
        raise ConditionsFail(
            "they are for steps of DP-SGD that protect single records by one clipping norm"
        )
    features = model.features(records)
    found = audit_dpsgd(
        _fresh_network(training, features),
        features,
        labels,
        canaries=options.canaries or _CANARIES,
        sample_rate=plan.sample_rate,
        noise_multiplier=plan.noise_multiplier,
        max_grad_norm=recipe.clipping.max_norm[0],
        steps=plan.steps,
        delta=training.guarantee.delta,
    )
    # The plan is that of the run, so its claim holds too.
    claimed = min(found.values["claimed ε"], training.guarantee.epsilon)
    return replace(
        found,
        values={**found.values, "claimed ε": claimed},
        publishable=found.publishable and training.is_private,
    )
