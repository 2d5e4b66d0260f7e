"""aggregate: private votes → released labels; pays before it speaks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting import (
    Conversion,
    Event,
    Guarantee,
    Ledger,
    compose,
    event_from_json,
    event_to_json,
)
from pate.artifacts import Artifact, Draft, Level, fingerprint
from pate.mechanisms import (
    InteractiveGnmax,
    Plan,
    Randomness,
    Release,
    make_mechanism,
    plan_caps,
)
from pate.pipeline.recipe import Recipe
from pate.pipeline.spending import open_ledger
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.releasing import SpendNeeded, drawn_before, release_once
from pate.students import train_student
from pate.teachers.protocol import probabilities
from pate.votes import Votes


def _settings(recipe: Recipe, options: Options) -> Any:
    return {
        "aggregate": recipe.aggregate.model_dump(mode="json"),
        "epsilon": recipe.privacy.epsilon,
        "delta": recipe.privacy.delta,
        "conversion": recipe.privacy.conversion,
        "insecure_seed": options.insecure_seed,
        # The student takes part in the rounds of an interactive release.
        "student": recipe.student.model_dump(mode="json")
        if recipe.aggregate.mechanism == "interactive"
        else None,
    }


def _run(context: Context) -> None:
    """The plan is fixed before the votes are opened; its caps are what is charged and printed."""
    recipe, options = context.recipe, context.options
    mechanism = make_mechanism(recipe.aggregate)
    public = context.inputs["data-public"]
    plan = plan_caps(
        mechanism,
        recipe.aggregate,
        epsilon=recipe.privacy.epsilon,
        delta=recipe.privacy.delta,
        available_queries=len(public.array("features.npy")),
        conversion=Conversion(recipe.privacy.conversion),
    )
    randomness = Randomness.open(insecure_seed=options.insecure_seed)
    with open_ledger(recipe, options.data_root, moment=plan.guarantee.moment) as ledger:
        known = _known_answers(context, ledger)
        to_ask = max(0, plan.queries - known.asked)
        to_answer = max(0, plan.answers - known.answered_within(plan.queries))
        events = mechanism.caps(queries=to_ask, answers=min(to_answer, to_ask)) if to_ask else ()

        def prepare(draft: Draft) -> None:
            counts = context.inputs["vote"].array("counts.npy")[: plan.queries].astype(np.int64)
            if isinstance(mechanism, InteractiveGnmax):
                rounds = _interact(
                    context, mechanism, Votes(counts=counts), plan, randomness.generator,
                    public.array("features.npy"),
                )  # fmt: skip
            else:
                rest = Votes(counts=counts[known.asked :])
                rounds = [(0, known.release(plan.queries), None)] if known.asked else []
                if to_ask and to_answer:
                    drawn = mechanism.release(
                        rest, rng=randomness.generator, most_answers=to_answer
                    )
                    rounds.append((known.asked, drawn, None))
            promise = plan.guarantee
            if known.asked:  # the plan grew after answers were seen: no longer its best λ, but
                promise = _at_ledger(plan, ledger, promise)  # the one fixed before all of them
            _save(draft, rounds, plan, promise, randomness)
            draft.facts["family"] = _family(context)

        def publish(answer: Artifact, draft: Draft) -> None:
            for name in ("answered.npy", "labels.npy", "kept.npy", "kept_labels.npy"):
                draft.save_array(name, answer.array(name))
            for name in ("events.json", "plan.json"):
                draft.save_json(name, answer.json(name))
            draft.facts.update(answer.facts)
            draft.facts["protects"] = context.inputs["vote"].facts["protects"]

        release_once(
            context, kind="labels", ledger=ledger, events=events, prepare=prepare, publish=publish
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    """Answers that this run has paid for already: asking again gives the same, at no cost."""

    asked: int
    answered: NDArray[np.int64]
    labels: NDArray[np.int64]
    events: tuple[Event, ...]

    def answered_within(self, queries: int) -> int:
        return int((self.answered < queries).sum())

    def release(self, queries: int) -> Release:
        within = self.answered < queries
        return Release(
            labels=self.labels[within],
            answered=self.answered[within],
            events=self.events,
            asked=min(self.asked, queries),
        )


def _known_answers(context: Context, ledger: Ledger) -> _Known:
    """The longest earlier release of the same votes with the same noise.

    Labels of the same votes with *other* noise are a new release of the same queries: it needs
    ``--spend``, so that nobody pays twice for one question unawares.
    """
    nothing = np.empty(0, dtype=np.int64)
    best = _Known(asked=0, answered=nothing, labels=nothing, events=())
    family, other = _family(context), False
    for earlier in drawn_before(context, "labels", ledger):
        if earlier.manifest["inputs"]["vote"] != context.provenance["vote"]:
            continue
        if earlier.facts["family"] != family:
            other = True
        elif earlier.facts["asked"] > best.asked and not len(earlier.array("kept.npy")):
            best = _Known(
                asked=earlier.facts["asked"],
                answered=np.array(earlier.array("answered.npy")),
                labels=np.array(earlier.array("labels.npy")),
                events=tuple(event_from_json(text) for text in earlier.json("events.json")),
            )
    drawn = context.store.find("pending-labels", context.made_from) is not None
    if other and not best.asked and not drawn and not context.options.spend:
        raise SpendNeeded(
            "these votes have answered before, with other noise; asking them again costs again: "
            "add --spend to pay for it"
        )
    return best


def _family(context: Context) -> str:
    """What makes answers to one query interchangeable: everything but how many are asked."""
    spec = context.recipe.aggregate.model_dump(mode="json", exclude={"queries", "answers"})
    rounds = context.made_from if spec["mechanism"] == "interactive" else None
    return fingerprint(spec, context.options.insecure_seed, rounds)


Round = tuple[int, Release, NDArray[np.float64] | None]


def _interact(
    context: Context,
    mechanism: InteractiveGnmax,
    cast: Votes,
    plan: Plan,
    rng: np.random.Generator,
    inputs: NDArray[Any],
) -> list[Round]:
    """Rounds of asking and learning: a student of the labels so far is checked in the next.

    Only labels the mechanism gave out so far, and public inputs, reach the student.
    """
    recipe = context.recipe
    edges = np.linspace(0, cast.queries, recipe.aggregate.rounds + 1).astype(int)
    teachers = int(context.inputs["vote"].facts["teachers"])
    rounds: list[Round] = []
    left = plan.answers
    for start, stop in pairwise(edges):
        shown = None
        if rounds:
            rows, labels = _labelled(rounds)
            if len(rows):
                student = train_student(
                    recipe.student,
                    labelled_X=np.array(inputs[rows]),
                    labels=labels,
                    unlabelled_X=np.array(inputs[: plan.queries]),
                    classes=cast.classes,
                    plugin_path=context.options.plugin_path,
                )
                shown = probabilities(student, np.array(inputs[start:stop]), classes=cast.classes)
        part = Votes(counts=cast.counts[start:stop])
        release = mechanism.release(
            part, rng=rng, most_answers=left, student=shown, teachers=teachers
        )
        rounds.append((int(start), release, shown))
        left -= len(release.answered)
        if left <= 0:
            break
    return rounds


def _labelled(rounds: list[Round]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = [part for start, r, _ in rounds for part in (start + r.answered, start + r.kept)]
    labels = [part for _, r, _ in rounds for part in (r.labels, r.kept_labels)]
    return np.concatenate(rows), np.concatenate(labels)


def _at_ledger(plan: Plan, ledger: Ledger, promise: Guarantee) -> Guarantee:
    """The plan's cost at the ledger's λ, which covers plans that are extended as answers come."""
    moment = ledger.terms.budget.moment
    assert moment is not None and promise.conversion is not None  # noqa: PT018
    total = compose(plan.events, [moment])
    return total.guarantee(delta=promise.delta, conversion=promise.conversion)


def _save(
    draft: Draft,
    rounds: list[Round],
    plan: Plan,
    promise: Guarantee,
    randomness: Randomness,
) -> None:
    """The answer, and what accounting will need of it; the baseline stays private."""
    draft.save_array("answered.npy", np.concatenate([start + r.answered for start, r, _ in rounds]))
    draft.save_array("labels.npy", np.concatenate([r.labels for _, r, _ in rounds]))
    draft.save_array("kept.npy", np.concatenate([start + r.kept for start, r, _ in rounds]))
    draft.save_array("kept_labels.npy", np.concatenate([r.kept_labels for _, r, _ in rounds]))
    happened: list[Event] = [event for _, r, _ in rounds for event in r.events]
    draft.save_json("events.json", [event_to_json(event) for event in happened])
    for number, (start, _, shown) in enumerate(rounds):
        if shown is not None:
            draft.save_array(f"student-{number}-{start}.npy", shown)
    asked = max((start + r.asked for start, r, _ in rounds if r.asked), default=0)
    draft.save_json(
        "plan.json",
        {
            "queries": plan.queries,
            "answers": plan.answers,
            "events": [event_to_json(event) for event in plan.events],
            "guarantee": promise.as_json(),
        },
    )
    draft.facts.update(
        asked=int(asked),
        answered=int(sum(len(r.answered) for _, r, _ in rounds)),
        kept=int(sum(len(r.kept) for _, r, _ in rounds)),
        randomness=randomness.verdict,
    )


AGGREGATE = Stage(
    name="aggregate",
    version=1,
    needs=("vote", "data-public"),
    clearance=Level.PRIVATE,
    settings=_settings,
    run=_run,
)
