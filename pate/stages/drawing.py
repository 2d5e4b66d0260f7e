"""What an answer is made of: its plan, the inputs it asks about, the draw, and how it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting import Conversion, Event, event_to_json
from pate.artifacts import Draft
from pate.mechanisms import Plan, Randomness, make_mechanism, plan_caps
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options
from pate.querying import Chooser
from pate.stages.features import public_features
from pate.stages.rounds import Round
from pate.votes import Votes

# What leaves: inputs by their row among the public ones, in the order in which they were asked.
ANSWER = ("asked.npy", "answered.npy", "labels.npy", "kept.npy", "kept_labels.npy")


def plan_of(recipe: Recipe, *, inputs: int) -> Plan:
    """The most that a recipe asks of so many public inputs; made before the votes are opened."""
    mechanism = make_mechanism(recipe.aggregate)
    mechanism.check_reachable(teachers=recipe.teachers.count)
    return plan_caps(
        mechanism,
        recipe.aggregate,
        epsilon=recipe.privacy.epsilon,
        delta=recipe.privacy.delta,
        available_queries=inputs,
        conversion=Conversion(recipe.privacy.conversion),
    )


def chooser_of(context: Context) -> Chooser:
    """How inputs are chosen; for a stage that needs ``encoder`` and ``data-public``."""
    spec = context.recipe.aggregate
    return Chooser(
        how=spec.choose,
        inputs=len(context.inputs["data-public"].array("features.npy")),
        features=lambda: public_features(context),
        seed=spec.choose_seed,
    )


def draw(context: Context, rows: NDArray[np.int64], *, most_answers: int, number: int = 0) -> Round:
    """One drawing of all ``rows``, with noise of its own. PRIVATE until it is paid for."""
    release = make_mechanism(context.recipe.aggregate).release(
        votes_on(context, rows), rng=noise(context.options, number), most_answers=most_answers
    )
    return Round(rows=rows, release=release)


def votes_on(context: Context, rows: NDArray[np.int64]) -> Votes:
    """The votes on some inputs; of the others nothing is read."""
    return Votes(counts=context.inputs["vote"].array("counts.npy")[rows].astype(np.int64))


def noise(options: Options, number: int = 0) -> np.random.Generator:
    """Randomness for one drawing; with a seed, for tests, the same for the same number."""
    randomness = Randomness.open(insecure_seed=options.insecure_seed)
    if randomness.secure or number == 0:
        return randomness.generator
    return randomness.generator.spawn(number)[-1]


def save_answer(draft: Draft, rounds: Sequence[Round]) -> None:
    """The rows and labels of an answer, and how many they are."""
    parts = {
        "asked.npy": [each.asked for each in rounds],
        "answered.npy": [each.answered for each in rounds],
        "labels.npy": [each.release.labels for each in rounds],
        "kept.npy": [each.kept for each in rounds],
        "kept_labels.npy": [each.release.kept_labels for each in rounds],
    }
    assert set(parts) == set(ANSWER)
    for name, values in parts.items():
        draft.save_array(name, np.concatenate(values))
    draft.facts.update(
        asked=sum(len(each.asked) for each in rounds),
        answered=sum(len(each.answered) for each in rounds),
        kept=sum(len(each.kept) for each in rounds),
    )


def save_events(draft: Draft, happened: Sequence[Event], plan: Plan) -> None:
    """What happened, and what was planned: accounting reads both."""
    draft.save_json("events.json", [event_to_json(event) for event in happened])
    planned: dict[str, Any] = {
        "queries": plan.queries,
        "answers": plan.answers,
        "events": [event_to_json(event) for event in plan.events],
        "guarantee": plan.guarantee.as_json(),
    }
    draft.save_json("plan.json", planned)
