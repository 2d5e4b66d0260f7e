"""Refusals of a run's models and inputs before anything is charged, for studies and dry runs.

A run refuses them by itself before its own charge; but then other points of a study may be paid
for, and a dry run has printed a price.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pate.accounting import Ledger
from pate.datasets.table import Splits
from pate.mechanisms import Plan
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import Options
from pate.stages.account import order_of, require_computable
from pate.stages.distill import require_learning, require_student
from pate.stages.encode import has_missing, refuse_incomplete
from pate.stages.record_vote import require_distillable
from pate.stages.teach import require_teachers, require_trainable


def require_ready(run: PipelineRun, *, answers: int) -> None:
    """Encode the records of a run, and refuse what it would be refused for after that.

    Its student is trained for an epoch, on made-up labels of public inputs; teachers are made, and
    not trained. Nothing is charged, and no vote is cast.
    """
    recipe, options = run.recipe, run.options
    run.execute(until="cells" if recipe.by_records else "encode")
    public = run.artifact("data-public")
    classes = int(public.facts["classes"])
    context = run.context("vote" if recipe.by_records else "teach")
    if recipe.by_records:
        require_distillable(context)
    else:
        require_trainable(context)
        require_teachers(recipe, options, classes=classes)
    context = replace(context, inputs={**context.inputs, "data-public": public})
    require_learning(context, classes=classes, answers=answers)


def require_cost(run: PipelineRun, plan: Plan, ledger: Ledger) -> None:
    """Refuse settings at which some figure of a run could not be computed by its ledger."""
    if not run.recipe.by_records:
        classes = int(run.artifact("data-public").facts["classes"])
        require_computable(run.recipe, plan, classes=classes, order=order_of(ledger))


def require_models(recipe: Recipe, data: Splits, options: Options) -> None:
    """Refuse models that cannot be made, or that take no records such as these; none is trained.

    For a dry run, which fits no encoder: what only the fitted steps show is found by the run.
    """
    from pate.encoders.chain import make_step

    encoder, classes = recipe.encoder, data.classes
    encoder.require_categories(data.categories)
    for step in encoder.steps:
        make_step(step, plugin_path=options.plugin_path)
    require_student(recipe, options, classes=classes)
    if not recipe.by_records:
        require_teachers(recipe, options, classes=classes)
    incomplete = any(has_missing(each.features) for each in (data.public, data.test))
    encoded = incomplete and not encoder.completes
    own = any(step.own for step in encoder.steps)  # which may fill in what is missing
    private = not encoder.completes and not own and has_missing(data.private.features)
    refuse_incomplete(
        recipe,
        options,
        classes=classes,
        width=int(np.prod(data.public.features.shape[1:])),
        categories=bool(data.categories),
        raw=incomplete,
        encoded=encoded,
        private=not recipe.by_records and (encoded or private),
    )
