"""The points of a comparison: for each ε and repetition, a recipe of either method.

Guarantees:
    Everything here is worked out from the recipe, from how many public inputs there are and, unless
    ``dpsgd.training.records`` is stated, from how many private records, a number that is then
    public (zero-out); no record is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpsgd.recipe import Recipe as DpsgdRecipe
from dpsgd.run_plan import RunPlan, plan_run
from pate._validate import LEAST_NOISE
from pate.accounting.calibrate import gnmax, lnmax, moments_epsilon, smallest_noise
from pate.compare.recipe import CompareRecipe
from pate.errors import BudgetExceeded
from pate.mechanisms import Plan
from pate.pipeline.recipe import EvaluateSpec
from pate.pipeline.recipe import Recipe as PateRecipe
from pate.stages.drawing import plan_of
from pate.studies import with_seed

_EVENTS = {"lnmax": lnmax, "gnmax": gnmax}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Both methods at one ε, once."""

    epsilon: float  # what neither may exceed
    seed: int  # 0: the recipe's own
    pate: PateRecipe
    pate_plan: Plan
    dpsgd: DpsgdRecipe
    dpsgd_plan: RunPlan
    baselines: bool  # whether what needs no ε is worked out beside it


def make_points(recipe: CompareRecipe, *, public: int, private: int) -> list[Point]:
    """All points, one ε after the other within each repetition.

    ``public`` inputs can be asked about, and ``private`` records are there, which counts only where
    the recipe states no number of them. Repetitions differ in shards, teachers, student and first
    weights (:func:`pate.studies.with_seed`), and draw noise of their own. What needs no ε goes with
    the largest one.
    """
    points = []
    largest = max(recipe.compare.epsilons)
    evaluated = EvaluateSpec(
        reference=recipe.compare.reference, public_labels=recipe.compare.public_labels
    )
    for epsilon in recipe.compare.epsilons:
        noise = least_noise(recipe, epsilon, public=public)
        pate = recipe.for_pate(epsilon, noise=noise)
        if epsilon == largest:
            pate = pate.model_copy(update={"evaluate": evaluated})
        plan = _planned(pate, public=public)
        dpsgd = recipe.for_dpsgd(epsilon)
        steps = plan_run(dpsgd, records=private)
        points += [
            Point(
                epsilon=epsilon,
                seed=seed,
                pate=with_seed(pate, seed),
                pate_plan=plan,
                dpsgd=_other_start(dpsgd, seed),
                dpsgd_plan=steps,
                baselines=epsilon == largest,
            )
            for seed in range(recipe.compare.seeds)
        ]
    return sorted(points, key=lambda point: (point.seed, point.epsilon))


def least_noise(recipe: CompareRecipe, epsilon: float, *, public: int) -> float:
    """The least noise with which PATE's answers stay within ε, where the recipe leaves it open.

    Guarantees:
        The search ends on the side on which the target is met; the plan is measured again by the
        accountant (:func:`~pate.mechanisms.plan_caps`), and ε caps it besides.
    """
    spec = recipe.pate.aggregate
    if not spec.finds_noise:
        return 1.0  # nothing is open
    assert spec.queries is not None  # the recipe was checked
    found = smallest_noise(
        _EVENTS[spec.mechanism],
        count=min(spec.queries, spec.answers or spec.queries, public),
        target=epsilon,
        epsilon=moments_epsilon(delta=recipe.compare.delta),
    )
    return max(found, LEAST_NOISE)


def _planned(recipe: PateRecipe, *, public: int) -> Plan:
    try:
        return plan_of(recipe, inputs=public)
    except BudgetExceeded as error:
        noise = "raise the noise in [pate.aggregate]"
        if recipe.aggregate.mechanism in _EVENTS:
            noise += ", leave it out"
        raise error.saying(
            f"at ε = {recipe.privacy.epsilon:g} one answer of PATE alone costs "
            f"{error.needed:.6g}; {noise}, or leave out this ε"
        ) from error


def _other_start(recipe: DpsgdRecipe, seed: int) -> DpsgdRecipe:
    """Other first weights; lots and noise are drawn anew in any case."""
    first = recipe.model.model_copy(update={"init": recipe.model.init + seed})
    return recipe.model_copy(update={"model": first})
