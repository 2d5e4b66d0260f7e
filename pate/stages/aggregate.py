"""aggregate: private votes → released labels; pays before it publishes.

Which public inputs are asked about is chosen by :mod:`pate.queries`, from public features and
released answers only, which costs nothing for the reason given there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting import Event, Ledger
from pate.artifacts import Artifact, Draft, Level, fingerprint
from pate.artifacts.results import (
    LABELS,
    Answers,
    Labels,
    NoisedCounts,
    StatedGuarantee,
    StatedPlan,
)
from pate.components import load_places
from pate.devices import use_first
from pate.mechanisms import (
    Mechanism,
    Plan,
    Randomness,
    Release,
    count_mechanism,
    voting_mechanism,
)
from pate.pipeline.ledger import open_ledger
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.queries import Chooser
from pate.record_votes import RecordVotes
from pate.stages.account import order_of, require_computable
from pate.stages.data import require_own_ledger
from pate.stages.distill import require_learning
from pate.stages.encode import graph_features, public_features, student_inputs
from pate.stages.exactly_once import (
    Round,
    covers_unit,
    draw_once,
    guarantee_of_all,
    is_drawn_and_paid,
    paid_answers,
    release_once,
    require_consent,
)
from pate.students.count_smoothing import label_inputs
from pate.students.train import StudentData, train_student
from pate.teachers.protocol import probabilities
from pate.votes import Votes

_NONE = np.empty(0, dtype=np.int64)


def _settings(recipe: Recipe, options: Options) -> Any:
    chosen: dict[str, Any] = {}
    if recipe.selection is not None:
        chosen["selection"] = recipe.selection.model_dump()
    if recipe.privacy.analysis is not None and recipe.privacy.epsilon is not None:
        chosen["analysis"] = recipe.privacy.analysis  # the caps depend on it
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
    """Fix the plan before the votes are opened; its caps are what is charged and reported."""
    recipe, options = context.recipe, context.options
    if recipe.selection is not None:
        from pate.stages.selection import publish_selected

        publish_selected(context)
        return
    if recipe.by_records:
        _release_table(context)
        return
    mechanism = voting_mechanism(recipe.aggregate)
    plan = recipe.plan(inputs=len(context.inputs["data-public"].array("features.npy")))
    chooser = chooser_of(context)
    classes = int(context.inputs["data-public"].facts["classes"])
    # What is refused here leaves no ledger behind, whose terms would never change.
    require_learning(context, classes=classes, answers=plan.answers)
    if options.study is None:  # a study has asked before its first point
        require_own_ledger(recipe, options)

    with open_ledger(recipe, options, moment=plan.moment) as ledger:
        require_computable(recipe, plan, classes=classes, order=order_of(ledger))
        # One drawing of all is chosen before the votes are opened; rounds choose as they go.
        rows = _NONE if recipe.aggregate.in_rounds else chooser.first(plan.queries)
        charge, known = _known_answers(context, ledger, plan, rows)
        asked = len(known.rows)
        events = _events_beyond(asked, plan, mechanism)

        def prepare(draft: Draft, name: str) -> None:
            if recipe.aggregate.in_rounds:
                rounds = _in_rounds(context, ledger, mechanism, plan, chooser, course=name)
            else:
                drawn = draw(context, rows[asked:], most_answers=plan.answers - asked)
                rounds = [known, drawn] if asked else [drawn]
            Labels.of(
                answers_of(rounds),
                events=[event for each in rounds for event in each.release.events],
                plan=stated_plan(plan),
                randomness=Randomness.open(insecure_seed=options.insecure_seed).verdict,
                family=_family(context),
                extended=bool(asked),
            ).save(draft)
            _save_shown(draft, rounds)

        def publish(answer: Artifact, draft: Draft) -> None:
            labels = Labels.load(answer)
            labels.stated(
                neighbours=recipe.neighbours,
                protects=str(context.inputs["vote"].facts["protects"]),
                # A plan that grew after answers were seen: only what covers that may be printed.
                guarantee=StatedGuarantee.of(guarantee_of_all(recipe, ledger))
                if labels.extended
                else None,
            ).save(draft)

        release_once(
            context,
            kind=LABELS,
            source="vote",
            ledger=ledger,
            events=events,
            prepare=prepare,
            publish=publish,
            # Labels are used between rounds: they must be paid for by then.
            pay_first=recipe.aggregate.in_rounds,
            extends=charge,
        )


def _release_table(context: Context) -> None:
    """Noise the table of record votes once, pay for it, and label public inputs by it.

    Guarantees:
        The labels are worked out of the noised table, which is paid for by then, and of public
        features: post-processing (Dwork & Roth 2014, Proposition 2.1).
    """
    recipe, options, public = context.recipe, context.options, context.inputs["data-public"]
    inputs, classes = len(public.array("features.npy")), int(public.facts["classes"])
    plan = recipe.plan(inputs=inputs)
    require_learning(context, classes=classes, answers=plan.answers)
    if options.study is None:
        require_own_ledger(recipe, options)

    def prepare(draft: Draft, name: str) -> None:
        votes = RecordVotes(
            counts=context.inputs["vote"].array("counts.npy"),
            reach=recipe.votes.reach,
            per_user=recipe.per_user,
            components=recipe.votes.components is not None,
        )
        drawn = count_mechanism(recipe.aggregate).release(votes, rng=noise(options))
        drawn.table.save(draft)

    def publish(answer: Artifact, draft: Draft) -> None:
        table = NoisedCounts.load(answer)
        assert table is not None  # it was prepared above
        places = load_places(context.inputs["cells"].path)
        soft = label_inputs(table, places=places, features=_flat_features(context))
        labels = Labels.of(
            Answers(
                asked=np.arange(inputs),
                answered=np.arange(inputs),
                labels=soft.labels,
                kept=_NONE,
                kept_labels=_NONE,
            ),
            events=plan.events,
            plan=stated_plan(plan),
            randomness=Randomness.open(insecure_seed=options.insecure_seed).verdict,
        )
        stated = labels.stated(
            neighbours=recipe.neighbours, protects=str(context.inputs["vote"].facts["protects"])
        )
        replace(stated, table=table, soft=soft).save(draft)

    with open_ledger(recipe, options, moment=plan.guarantee.moment) as ledger:
        release_once(
            context,
            kind=LABELS,
            source="vote",
            ledger=ledger,
            events=plan.events,
            prepare=prepare,
            publish=publish,
        )


def _flat_features(context: Context) -> NDArray[np.float64]:
    features = np.array(public_features(context), dtype=np.float64)
    return features.reshape(len(features), -1)


def _events_beyond(asked: int, plan: Plan, mechanism: Mechanism) -> tuple[Event, ...]:
    """Return what a plan costs beyond answers that are paid for."""
    rest = plan.queries - asked
    return mechanism.caps(queries=rest, answers=rest) if asked else plan.events


def events_to_pay(context: Context, ledger: Ledger, plan: Plan) -> tuple[Event, ...]:
    """Return what the labels of a run would be charged with; nothing is drawn.

    Raises
    ------
    SpendNeeded
        If they would not be drawn without ``--spend``.
    """
    spec = context.recipe.aggregate
    if context.recipe.by_records:
        if is_drawn_and_paid(context, LABELS, ledger):
            return ()
        require_consent(context, LABELS, "vote", ledger)
        return plan.events
    rows = _NONE if spec.in_rounds else chooser_of(context).first(plan.queries)
    charge, known = _known_answers(context, ledger, plan, rows)
    if is_drawn_and_paid(context, LABELS, ledger):
        return ()
    if charge is None:
        require_consent(context, LABELS, "vote", ledger)
    return _events_beyond(len(known.rows), plan, voting_mechanism(spec))


def chooser_of(context: Context) -> Chooser:
    """Return how inputs are chosen; for a stage that needs ``encoder`` and ``data-public``."""
    spec = context.recipe.aggregate
    return Chooser(
        how=spec.choose,
        inputs=len(context.inputs["data-public"].array("features.npy")),
        features=lambda: public_features(context),
        seed=spec.choose_seed,
    )


def draw(context: Context, rows: NDArray[np.int64], *, most_answers: int, number: int = 0) -> Round:
    """Draw answers to all ``rows``, with noise of their own. PRIVATE until they are paid for."""
    release = voting_mechanism(context.recipe.aggregate).release(
        _votes_on(context, rows), rng=noise(context.options, number), most_answers=most_answers
    )
    return Round(rows=rows, release=release)


def _votes_on(context: Context, rows: NDArray[np.int64]) -> Votes:
    """Return the votes on some inputs; of the others nothing is read."""
    return Votes(counts=context.inputs["vote"].array("counts.npy")[rows].astype(np.int64))


def noise(options: Options, number: int = 0) -> np.random.Generator:
    """Return randomness for one drawing; with a seed, for tests, the same for the same number."""
    randomness = Randomness.open(insecure_seed=options.insecure_seed)
    if randomness.secure or number == 0:
        return randomness.generator
    return randomness.generator.spawn(number)[-1]


def answers_of(rounds: Sequence[Round]) -> Answers:
    """Return the answers of all rounds."""
    return Answers(
        asked=np.concatenate([each.asked for each in rounds]),
        answered=np.concatenate([each.answered for each in rounds]),
        labels=np.concatenate([each.release.labels for each in rounds]),
        kept=np.concatenate([each.kept for each in rounds]),
        kept_labels=np.concatenate([each.release.kept_labels for each in rounds]),
    )


def stated_plan(plan: Plan) -> StatedPlan:
    """Return a plan as labels state it."""
    return StatedPlan(
        queries=plan.queries,
        answers=plan.answers,
        events=plan.events,
        guarantee=StatedGuarantee.of(plan.guarantee),
    )


def _known_answers(
    context: Context, ledger: Ledger, plan: Plan, rows: NDArray[np.int64]
) -> tuple[str | None, Round]:
    """Return the longest paid release of the same votes with the same noise, and its charge.

    For mechanisms without a check, which answer every query asked, in an order that was fixed in
    advance, of which the earlier release asked the beginning; a check that counts answers, answers
    used in between, or an ε for the whole run makes a release one whole.
    """
    charge, best = None, Round(rows=_NONE, release=_complete_release(_NONE, ()))
    capped = context.recipe.privacy.epsilon is not None  # then the plan must hold as it was made
    spec = context.recipe.aggregate
    # A run of a study draws its own answers: its cost is then its own, and its label noise too.
    if context.options.study is not None:
        return charge, best
    if capped or spec.kind.checks or spec.in_rounds:
        return charge, best
    # The ledger's figure, which covers a plan that grew, would not hold under this relation.
    if not ledger.relations() <= {context.recipe.neighbours, None}:
        return charge, best
    if not covers_unit(context.recipe, ledger):
        return charge, best
    for release, answer in paid_answers(context, LABELS, ledger).items():
        if answer.manifest["inputs"].get("vote") != context.provenance["vote"]:
            continue
        earlier = Labels.load(answer)
        if earlier.family != _family(context):
            continue
        begins = np.array_equal(earlier.asked, rows[: len(earlier.asked)])
        if begins and len(best.rows) < len(earlier.asked) < plan.queries:
            complete = _complete_release(np.array(earlier.labels), earlier.events)
            charge, best = release, Round(rows=np.array(earlier.asked), release=complete)
    return charge, best


def _complete_release(labels: NDArray[np.int64], events: tuple[Event, ...]) -> Release:
    """Return a release that answered every query."""
    answered = np.arange(len(labels), dtype=np.int64)
    return Release(labels=labels, answered=answered, events=events, asked=len(labels))


def _family(context: Context) -> str:
    """Return what makes answers to one query interchangeable: all but how many are asked."""
    spec = context.recipe.aggregate.model_dump(mode="json", exclude={"queries", "answers"})
    return fingerprint(spec, context.options.insecure_seed)


def round_edges(queries: int, *, rounds: int) -> NDArray[np.int64]:
    """Return where rounds begin and end among the planned queries; public."""
    return np.unique(np.linspace(0, queries, rounds + 1).astype(np.int64))


def _in_rounds(
    context: Context,
    ledger: Ledger,
    mechanism: Mechanism,
    plan: Plan,
    chooser: Chooser,
    *,
    course: str,
) -> list[Round]:
    """Ask and learn in rounds, each chosen and checked by what the ones before released.

    Only labels the mechanism gave out so far, and public inputs, reach the chooser and the student
    (which an interactive release compares the teachers with).
    """
    spec = context.recipe.aggregate
    classes = int(context.inputs["data-public"].facts["classes"])
    edges = round_edges(plan.queries, rounds=spec.rounds)
    rounds: list[Round] = []
    left = plan.answers

    def ask() -> Round:
        rows, shown = chooser.first(int(stop - start)), None
        if rounds:
            known, labels = _labelled(rounds)
            asked = np.concatenate([each.rows for each in rounds])
            rows = chooser.next(
                int(stop - start), asked=asked, rows=known, labels=labels, classes=classes
            )
            if mechanism.uses_student and len(known):
                shown = _predictions(context, rows, known, labels, classes=classes)
        votes, rng = _votes_on(context, rows), noise(context.options, number=len(rounds))
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


def _labelled(rounds: list[Round]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return every row with a released label so far, and the labels."""
    rows = [part for each in rounds for part in (each.answered, each.kept)]
    labels = [part for each in rounds for part in (each.release.labels, each.release.kept_labels)]
    return np.concatenate(rows), np.concatenate(labels)


def _predictions(
    context: Context,
    rows: NDArray[np.int64],
    known: NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    classes: int,
) -> NDArray[Any]:
    """Train a student on the labels released so far, and return its probabilities of ``rows``."""
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
        return probabilities(student, inputs[rows], classes=classes)


def _save_shown(draft: Draft, rounds: list[Round]) -> None:
    """Write what accounting will need of an interactive release; it stays private."""
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

AGGREGATE_RECORDS = replace(AGGREGATE, needs=(*AGGREGATE.needs, "cells"))
