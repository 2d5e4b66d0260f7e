"""aggregate: private votes → released labels; pays before it speaks.

Which public inputs are asked about is chosen by :mod:`pate.querying`, from public features and
released answers only; it says there why that costs nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting import Event, Ledger, event_from_json
from pate.artifacts import Artifact, Draft, Level, fingerprint
from pate.devices import use_first
from pate.mechanisms import Mechanism, Plan, Randomness, Release, make_mechanism
from pate.pipeline.recipe import Recipe
from pate.pipeline.spending import open_ledger
from pate.pipeline.stage import Context, Options, Stage
from pate.querying import Chooser
from pate.stages.account import order_of, rehearse
from pate.stages.drawing import (
    ANSWER,
    chooser_of,
    draw,
    noise,
    plan_of,
    save_answer,
    save_events,
    votes_on,
)
from pate.stages.features import graph_features, student_inputs
from pate.stages.releasing import paid_answers, release_once
from pate.stages.rounds import Round, draw_once, labelled
from pate.stages.selected import take_up
from pate.students.data import StudentData
from pate.students.train import train_student
from pate.teachers.protocol import probabilities

_NONE = np.empty(0, dtype=np.int64)


def _settings(recipe: Recipe, options: Options) -> Any:
    chosen = {} if recipe.selection is None else {"selection": recipe.selection.model_dump()}
    return chosen | {
        "aggregate": recipe.aggregate.model_dump(mode="json"),
        "epsilon": recipe.privacy.epsilon,
        "delta": recipe.privacy.delta,
        "conversion": recipe.privacy.conversion,
        "insecure_seed": options.insecure_seed,
        # The student takes part in the rounds of an interactive release.
        "student": recipe.student.model_dump(mode="json")
        if recipe.aggregate.kind.uses_student
        else None,
    }


def _run(context: Context) -> None:
    """The plan is fixed before the votes are opened; its caps are what is charged and printed."""
    recipe, options = context.recipe, context.options
    if recipe.selection is not None:
        take_up(context)
        return
    mechanism = make_mechanism(recipe.aggregate)
    plan = plan_of(recipe, inputs=len(context.inputs["data-public"].array("features.npy")))
    chooser = chooser_of(context)

    with open_ledger(recipe, options, moment=plan.guarantee.moment) as ledger:
        classes = int(context.inputs["data-public"].facts["classes"])
        rehearse(recipe, plan, classes=classes, order=order_of(ledger))
        # One drawing of all is chosen before the votes are opened; rounds choose as they go.
        rows = _NONE if recipe.aggregate.in_rounds else chooser.first(plan.queries)
        charge, known = _known_answers(context, ledger, plan, rows)
        asked = len(known.rows)
        rest = plan.queries - asked
        events = mechanism.caps(queries=rest, answers=rest) if asked else plan.events

        def prepare(draft: Draft, name: str) -> None:
            if recipe.aggregate.in_rounds:
                rounds = _in_rounds(context, ledger, mechanism, plan, chooser, course=name)
            else:
                drawn = draw(context, rows[asked:], most_answers=plan.answers - asked)
                rounds = [known, drawn] if asked else [drawn]
            save_answer(draft, rounds)
            save_events(draft, [event for each in rounds for event in each.release.events], plan)
            _save_shown(draft, rounds)
            draft.facts.update(
                family=_family(context),
                extended=bool(asked),
                randomness=Randomness.open(insecure_seed=options.insecure_seed).verdict,
            )

        def publish(answer: Artifact, draft: Draft) -> None:
            for name in ANSWER:
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
            # Between rounds labels are looked at: they must be paid for by then.
            pay_first=recipe.aggregate.in_rounds,
            extends=charge,
        )


def _known_answers(
    context: Context, ledger: Ledger, plan: Plan, rows: NDArray[np.int64]
) -> tuple[str | None, Round]:
    """The longest paid release of the same votes with the same noise, and its charge.

    For mechanisms without a check, which answer every query asked, in an order that was fixed in
    advance, of which the earlier release asked the beginning; a check that counts answers, answers
    looked at in between, or an ε for the whole run makes a release one whole.
    """
    charge, best = None, Round(rows=_NONE, release=_release(_NONE, ()))
    capped = context.recipe.privacy.epsilon is not None  # then the plan must hold as it was made
    spec = context.recipe.aggregate
    # A run of a study draws its own answers: its cost is then its own, and its label noise too.
    if context.options.study is not None:
        return charge, best
    if capped or spec.kind.checks or spec.in_rounds:
        return charge, best
    # The ledger's figure, which covers a plan that grew, would not hold under this relation.
    if not ledger.relations() <= {context.recipe.partition.neighbours, None}:
        return charge, best
    for release, earlier in paid_answers(context, "labels", ledger).items():
        same = earlier.manifest["inputs"].get("vote") == context.provenance["vote"]
        if not same or earlier.facts["family"] != _family(context):
            continue
        asked = np.array(earlier.array("asked.npy"))
        begins = np.array_equal(asked, rows[: len(asked)])
        if begins and len(best.rows) < len(asked) < plan.queries:
            events = tuple(event_from_json(text) for text in earlier.json("events.json"))
            labels = np.array(earlier.array("labels.npy"))
            charge, best = release, Round(rows=asked, release=_release(labels, events))
    return charge, best


def _release(labels: NDArray[np.int64], events: tuple[Event, ...]) -> Release:
    """A release that answered every query."""
    answered = np.arange(len(labels), dtype=np.int64)
    return Release(labels=labels, answered=answered, events=events, asked=len(labels))


def _family(context: Context) -> str:
    """What makes answers to one query interchangeable: everything but how many are asked."""
    spec = context.recipe.aggregate.model_dump(mode="json", exclude={"queries", "answers"})
    return fingerprint(spec, context.options.insecure_seed)


def _in_rounds(
    context: Context,
    ledger: Ledger,
    mechanism: Mechanism,
    plan: Plan,
    chooser: Chooser,
    *,
    course: str,
) -> list[Round]:
    """Rounds of asking and learning, each chosen and checked by what the ones before released.

    Only labels the mechanism gave out so far, and public inputs, reach the chooser and the student
    (which an interactive release compares the teachers with).
    """
    spec, public = context.recipe.aggregate, context.inputs["data-public"]
    classes = int(public.facts["classes"])
    edges = np.unique(np.linspace(0, plan.queries, spec.rounds + 1).astype(int))
    rounds: list[Round] = []
    left = plan.answers

    def ask() -> Round:
        rows, shown = chooser.first(int(stop - start)), None
        if rounds:
            known, labels = labelled(rounds)
            asked = np.concatenate([each.rows for each in rounds])
            rows = chooser.next(
                int(stop - start), asked=asked, rows=known, labels=labels, classes=classes
            )
            if mechanism.uses_student and len(known):
                inputs = np.array(student_inputs(context))
                data = StudentData(
                    inputs=inputs,
                    features=graph_features(context),
                    rows=known,
                    labels=labels,
                    classes=classes,
                )
                with use_first(context.options.engine.devices):
                    student = train_student(
                        context.recipe.student,
                        data,
                        plugin_path=context.options.plugin_path,
                        progress=context.options.progress,
                    )
                    shown = probabilities(student, inputs[rows], classes=classes)
        votes, rng = votes_on(context, rows), noise(context.options, number=len(rounds))
        if mechanism.uses_student:
            teachers = int(context.inputs["vote"].facts["teachers"])
            release = mechanism.release(
                votes, rng=rng, most_answers=left, student=shown, teachers=teachers
            )
        else:
            release = mechanism.release(votes, rng=rng, most_answers=left)
        return Round(rows=rows, release=release, shown=shown)

    for number, (start, stop) in enumerate(pairwise(edges)):  # noqa: B007, read by ask
        rounds.append(draw_once(context, ledger, course=course, number=number, draw=ask))
        left -= len(rounds[-1].release.answered)
        if left <= 0:
            break
    return rounds


def _save_shown(draft: Draft, rounds: list[Round]) -> None:
    """What accounting will need of an interactive release; it stays private."""
    starts = np.cumsum([0, *(len(each.rows) for each in rounds)])
    for number, (start, each) in enumerate(zip(starts, rounds, strict=False)):
        if each.shown is not None:
            draft.save_array(f"student-{number}-{start}.npy", each.shown)


AGGREGATE = Stage(
    name="aggregate",
    version=2,
    needs=("vote", "data-public", "encoder"),
    clearance=Level.PRIVATE,
    settings=_settings,
    run=_run,
)
