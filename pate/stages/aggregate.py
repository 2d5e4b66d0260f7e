"""aggregate: private votes → released labels; pays before it speaks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting import Conversion, Event, Ledger, event_from_json, event_to_json
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
from pate.stages.releasing import paid_answers, release_once
from pate.students import StudentData, train_student
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

    with open_ledger(recipe, options, moment=plan.guarantee.moment) as ledger:
        charge, known = _known_answers(context, ledger, plan)
        rest = plan.queries - known.asked
        events = mechanism.caps(queries=rest, answers=rest) if known.asked else plan.events

        def prepare(draft: Draft) -> None:
            counts = context.inputs["vote"].array("counts.npy")[: plan.queries].astype(np.int64)
            cast, rng = Votes(counts=counts[known.asked :]), randomness.generator
            if isinstance(mechanism, InteractiveGnmax):
                inputs = public.array("features.npy")
                rounds = _interact(context, mechanism, cast, plan, rng, inputs)
            else:
                most = plan.answers - known.asked
                drawn = mechanism.release(cast, rng=rng, most_answers=most)
                rounds = [(0, known, None)] if known.asked else []
                rounds.append((known.asked, drawn, None))
            _save(draft, rounds, plan, randomness)
            draft.facts.update(family=_family(context), extended=bool(known.asked))

        def publish(answer: Artifact, draft: Draft) -> None:
            for name in ("answered.npy", "labels.npy", "kept.npy", "kept_labels.npy"):
                draft.save_array(name, answer.array(name))
            draft.save_json("events.json", answer.json("events.json"))
            paid = answer.json("plan.json")
            if answer.facts["extended"]:
                # The plan grew after answers were seen: only what covers that may be printed.
                paid["guarantee"] = ledger.guarantee().as_json()
            # What holds where one teacher changes, said of the records behind the teachers.
            paid["guarantee"]["neighbours"] = recipe.partition.neighbours.value
            draft.save_json("plan.json", paid)
            draft.facts.update(answer.facts)
            draft.facts["protects"] = context.inputs["vote"].facts["protects"]

        release_once(
            context,
            kind="labels",
            source="vote",
            ledger=ledger,
            events=events,
            prepare=prepare,
            publish=publish,
            # Between rounds a student learns from labels: they must be paid for by then.
            pay_first=isinstance(mechanism, InteractiveGnmax),
            extends=charge,
        )


def _known_answers(context: Context, ledger: Ledger, plan: Plan) -> tuple[str | None, Release]:
    """The longest paid release of the same votes with the same noise, and its charge.

    For mechanisms that answer every query (lnmax, gnmax); a check that counts answers, a student
    in between, or an ε for the whole run makes a release one whole.
    """
    empty = np.empty(0, dtype=np.int64)
    charge, best = None, Release(labels=empty, answered=empty, events=(), asked=0)
    capped = context.recipe.privacy.epsilon is not None  # then the plan must hold as it was made
    if capped or context.recipe.aggregate.mechanism not in ("lnmax", "gnmax"):
        return charge, best
    for release, earlier in paid_answers(context, "labels", ledger).items():
        same = earlier.manifest["inputs"]["vote"] == context.provenance["vote"]
        asked = int(earlier.facts["asked"])
        if (
            same
            and earlier.facts["family"] == _family(context)
            and best.asked < asked < plan.queries
        ):
            charge = release
            best = Release(
                labels=np.array(earlier.array("labels.npy")),
                answered=np.array(earlier.array("answered.npy")),
                events=tuple(event_from_json(text) for text in earlier.json("events.json")),
                asked=asked,
            )
    return charge, best


def _family(context: Context) -> str:
    """What makes answers to one query interchangeable: everything but how many are asked."""
    spec = context.recipe.aggregate.model_dump(mode="json", exclude={"queries", "answers"})
    return fingerprint(spec, context.options.insecure_seed)


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
                    StudentData(
                        inputs=np.array(inputs[: plan.queries]),
                        rows=rows,
                        labels=labels,
                        classes=cast.classes,
                    ),
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


def _save(draft: Draft, rounds: list[Round], plan: Plan, randomness: Randomness) -> None:
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
            "guarantee": plan.guarantee.as_json(),
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
