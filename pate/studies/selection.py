"""Private selection: a random number of tries among the points of a sweep; the best one leaves.

Choosing the best of a sweep by its table costs all of its points. Here nobody sees a table: a
number of tries is drawn at random, each tries one candidate with fresh noise, and only the best one
leaves, with the labels it was judged by. That is one charge
(:class:`pate.accounting.BestOfTries`), however many candidates there are.

    course (K and the picks) → answers, one for each try → scores → the best

Each of these is stored under ``private`` as soon as it exists, so that a selection that was killed
resumes with the same number of tries, the same picks and the same answers: a second draw because of
something in the first would be another mechanism than the one that is accounted for.

Guarantees:
    * Papernot & Steinke 2022, Theorem 2, with candidates picked uniformly at random: see
      :mod:`pate.accounting.selection` for the bound and what it needs.
    * Everything visible is the same whatever came out, until the charge is in the ledger: all
      candidates are taught, vote and choose their inputs first; tries print nothing, and no error
      of theirs is reported; drawn answers stay PRIVATE. What was drawn but did not win is removed.
    * What remains: how long it takes grows with the number of tries, which must stay private. So
      neither the time nor the times of files in the folder and of the charge in the ledger may be
      published, and the last line printed warns of it. And a machine without memory, or without
      room on its disk, ends a try with an error that is reported, before anything is paid for: that
      it happened may depend on how many tries there were and on what was drawn.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate._files import exclusive_lock
from pate._format import format_cost, format_epsilon
from pate.accounting import BestOfTries, Conversion, Event, Guarantee, Ledger, compose, draw_tries
from pate.artifacts import Artifact, Draft, Level, Store, fingerprint
from pate.artifacts.results import LABELS, Answers, Labels, charge_name
from pate.devices import use_first
from pate.errors import BudgetExceeded, InvalidInput, OutOfMemory, PateError
from pate.mechanisms import Plan, Randomness
from pate.pipeline.ledger import naming_key, open_ledger
from pate.pipeline.recipe import Recipe, SelectionSpec
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import Context, Options
from pate.stages.aggregate import answers_of, chooser_of, draw, noise, stated_plan
from pate.stages.catalogue import stages_of
from pate.stages.data import require_own_ledger
from pate.stages.distill import DISTILL
from pate.stages.encode import as_student_sees, graph_features, student_inputs
from pate.stages.exactly_once import release_once, require_consent, settings_of
from pate.stages.selection import SELECTION, differences, event_of, mark_of
from pate.students.train import StudentData, train_student
from pate.teachers.protocol import predict_labels
from pate.untrusted import silence

_VERSION = 1  # raised when the same candidates would be tried in another way
_COURSE, _TRY, _SCORE = "selection-course", "selection-try", "selection-score"
_SHARED = {  # by all candidates
    "data": "data",
    "partition": "partition",
    "privacy.delta": "δ",
    "privacy.conversion": "conversion",
    "privacy.analysis": "analysis",
    "privacy.budget": "budget",
}
_FAILED = -1.0  # the score of a try without a student: below all others


def select(
    candidates: Sequence[Recipe], *, folder: Path, options: Options, tries: float = 10.0
) -> PipelineRun:
    """Choose one of the candidates privately, and return its finished run, in ``folder``.

    Reports the cost before anything is charged; one that was killed resumes. Which candidates were
    tried, how often, and their scores stay private. ``tries`` is the mean number E[K] of tries,
    above 1. A candidate's ``privacy.sanitise`` is ignored, since a selection has no data-dependent
    ε; so is ``options.study``: a selection is one charge, and its winner may be released.
    """
    candidates = [each.settled() for each in candidates]
    require_choice(candidates)
    spec = SelectionSpec(candidates=differences(candidates), mean_tries=tries)
    selection = _Selection(
        recipes=tuple(candidates), spec=spec, folder=folder, options=replace(options, study=None)
    )
    return selection.execute()


def require_choice(candidates: Sequence[Recipe]) -> None:
    """Refuse candidates among which no private choice is possible."""
    if len(candidates) < 2:
        raise InvalidInput("one candidate alone is no choice; give --over two values or more")
    for each in candidates:
        if each.selection is not None:
            raise InvalidInput("a candidate has a [selection] of its own; remove that section")
        if each.by_records:
            raise InvalidInput(
                "private selection among tables of record votes is not supported; sweep without it"
            )
        if each.aggregate.in_rounds:
            raise InvalidInput(
                "a candidate is asked in rounds (interactive, or choose = uncertain), which pay "
                "for labels before they end; private selection takes the other mechanisms"
            )
    for key, what in _SHARED.items():
        if any(attrgetter(key)(each) != attrgetter(key)(candidates[0]) for each in candidates):
            raise InvalidInput(
                f"candidates differ in {key}; private selection needs one {what} for all of them"
            )


@dataclass(frozen=True, kw_only=True)
class _Selection:
    recipes: tuple[Recipe, ...]
    spec: SelectionSpec
    folder: Path
    options: Options  # one object for all candidates: the user's own data are then read once

    def execute(self) -> PipelineRun:
        report, first = self.options.report, self._runs[0]
        first.execute(until="data")
        for line in self._announced():
            report(line)
        require_own_ledger(self.recipes[0], self.options)
        with self._ledger() as ledger:
            if not self._paid(ledger):
                event, _ = self._cost
                ledger.require_room([event], records=self.recipes[0].neighbours)
        for run in self._runs:  # all of them, so that nothing reveals which will be picked
            if not _voted(run):
                run.execute(until="vote")
        busy = InvalidInput(
            f"another process is selecting in {self.folder}; wait until it has ended, and run the "
            "same command again"
        )
        # What one of two processes removes in the end the other would miss.
        with exclusive_lock(self.folder / Level.PRIVATE.folder, busy=busy):
            released = self._released() or self._release()
            forget(first.store, self._made_from)
        winner = replace(first, recipe=self._winner(int(released.facts["candidate"])))
        winner.execute()
        report(
            "How long this took is private: it reveals how many tries there were. So do the times "
            f"of files in {self.folder} and that of the charge in the ledger: keep these to "
            "yourself."
        )
        return winner

    # --- public -----------------------------------------------------------------------------------

    def _announced(self) -> Iterator[str]:
        _, whole = self._cost
        yield (
            f"private selection among {len(self.recipes)} candidates, {self.spec.mean_tries:g} "
            f"tries on average: {format_cost(whole.epsilon, whole.delta)} in all"
        )
        openly = self._cost_openly
        if openly.epsilon <= whole.epsilon:
            yield (
                f"all {len(self.recipes)} run openly cost no more, "
                f"ε = {format_epsilon(openly.epsilon)} together, and any of them may then be "
                "chosen: leave out --private-selection"
            )
        if any(each.privacy.epsilon is not None for each in self.recipes):
            yield "privacy.epsilon caps what one try may cost, and not the choice among them"

    @cached_property
    def _runs(self) -> list[PipelineRun]:
        return [
            PipelineRun(
                folder=self.folder, recipe=each, stages=stages_of(each), options=self.options
            )
            for each in self.recipes
        ]

    @cached_property
    def _inputs(self) -> int:
        return len(self._runs[0].artifact("data-public").array("features.npy"))

    @cached_property
    def _cost(self) -> tuple[BestOfTries, Guarantee]:
        """The event and its guarantee, from plans alone."""
        event = event_of(self.recipes, self.spec, inputs=self._inputs)
        return event, self._guarantee([event])

    @property
    def _cost_openly(self) -> Guarantee:
        """The cost of a sweep over all candidates; students of the same labels pay once."""
        plans = {
            each.model_dump_json(exclude={"student", "evaluate"}): each.plan(
                inputs=self._inputs
            ).events
            for each in self.recipes
        }
        return self._guarantee(event for events in plans.values() for event in events)

    def _guarantee(self, events: Iterable[Event]) -> Guarantee:
        privacy = self.recipes[0].privacy
        conversion = Conversion(privacy.conversion)
        total = compose(events, analysis=privacy.bounds)
        return total.guarantee(delta=privacy.delta, conversion=conversion)

    def _ledger(self) -> Ledger:
        return open_ledger(self.recipes[0], self.options, moment=self._cost[1].moment)

    def _winner(self, number: int) -> Recipe:
        return self.recipes[number].model_copy(update={"selection": self.spec})

    @cached_property
    def _provenance(self) -> dict[str, str]:
        """The origin of the choice, under the data set's key: every candidate counts."""
        key = naming_key(self.recipes[0], self.options.data_root)
        made = [
            [context.provenance, DISTILL.settings(context.recipe, self.options)]
            for context in self._contexts
        ]
        data = self._runs[0].artifact("data-public").manifest["made_from"]  # and of test records
        return {
            "votes": fingerprint(key, sorted(self._votes)),
            "candidates": fingerprint(key, made),
            "data": fingerprint(key, data),
            "selection": fingerprint(key, self.spec.model_dump(mode="json")),
        }

    @cached_property
    def _contexts(self) -> list[Context]:
        """The context of each candidate's ``aggregate``; once everybody has voted."""
        return [run.context("aggregate") for run in self._runs]

    @cached_property
    def _votes(self) -> frozenset[str]:
        return frozenset(context.provenance["vote"] for context in self._contexts)

    @cached_property
    def _made_from(self) -> str:
        """The selection's own fingerprint; the same whatever came out."""
        return fingerprint(SELECTION, _VERSION, self._provenance)

    def _paid(self, ledger: Ledger) -> bool:
        """Return whether this selection was charged before; without votes it cannot have been."""
        if not all(map(_voted, self._runs)):
            return False
        own = charge_name(LABELS, self._made_from)
        return any(each.release.startswith(own) for each in ledger.charges())

    # --- private ----------------------------------------------------------------------------------

    def _context(self) -> Context:
        return Context(
            recipe=self.recipes[0],
            store=self._runs[0].store.cleared(SELECTION, Level.PRIVATE),
            made_from=self._made_from,
            inputs={},
            provenance=self._provenance,
            options=self.options,
        )

    def _released(self) -> Artifact | None:
        store = self._runs[0].store
        if store.find(SELECTION, self._made_from) is None:
            return None
        return store.open(SELECTION, self._made_from)

    def _release(self) -> Artifact:
        """Try, pay, and release the best one: in this order, and exactly once."""
        context = self._context()
        event, whole = self._cost
        with self._ledger() as ledger:
            fresh = context.store.find("pending-labels", self._made_from) is None
            if fresh:  # votes of all candidates count: a refusal must not depend on the winner
                require_consent(context, "labels", "votes", ledger, sources=self._votes)
            candidates = [
                Candidate.of(each, each.recipe.plan(inputs=self._inputs), run.store)
                for run, each in zip(self._runs, self._contexts, strict=True)
            ]
            if fresh:
                with silence():  # also what a model keeps alive for later prints nothing then
                    _rehearse(candidates)
            self.options.report("selection: trying")

            def prepare(draft: Draft, name: str) -> None:
                tries = Tries(
                    candidates=candidates,
                    selection=self.spec,
                    made_from=self._made_from,
                    store=context.store,
                    options=self.options,
                )
                number, answer = tries.best()
                plan = replace(candidates[number].plan, events=(event,), guarantee=whole)
                Labels.of(
                    Answers.load(answer),
                    events=(event,),
                    plan=stated_plan(plan),
                    randomness=Randomness.open(insecure_seed=self.options.insecure_seed).verdict,
                    family=None,  # an answer that was chosen is never extended
                ).save(draft)
                draft.facts["candidate"] = number

            def publish(answer: Artifact, draft: Draft) -> None:
                number = int(answer.facts["candidate"])
                Labels.load(answer).stated(
                    neighbours=self.recipes[0].neighbours,
                    protects=str(candidates[number].context.inputs["vote"].facts["protects"]),
                ).save(draft)
                draft.facts["candidate"] = number
                draft.facts["winner"] = mark_of(
                    self._winner(number), self.options, self._contexts[number].provenance
                )

            try:
                release_once(
                    context,
                    kind="labels",
                    source="votes",
                    ledger=ledger,
                    events=(event,),
                    prepare=prepare,
                    publish=publish,
                    sources=self._votes,
                    settings=[settings_of(each, self.options.data_root) for each in self.recipes],
                )
            except BudgetExceeded:  # which dropped the answer
                forget(context.store, self._made_from)
                raise
        released = self._released()
        assert released is not None
        return released


def _voted(run: PipelineRun) -> bool:
    return any(state.done for state in run.states() if state.stage == "vote")


def _rehearse(candidates: Sequence[Candidate]) -> None:
    """Train every kind of student on made-up labels once, before anything is drawn.

    A student that fails in a try is a try with the worst score, and the reason is not reported.
    Mistakes in the recipe are found here instead, where nothing is private and nothing was paid
    for.
    """
    kinds: dict[str, Candidate] = {}
    for each in candidates:
        recipe = each.context.recipe
        kinds.setdefault(recipe.model_dump_json(include={"student", "encoder"}), each)
    for each in kinds.values():
        rows = each.rows[: each.plan.answers]
        each.score(rows, np.arange(len(rows)) % each.classes)


# --- tries: everything in here is PRIVATE, and is removed when it is over -------------------------


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A recipe that can be picked, with all that is public about it."""

    context: Context  # of its ``aggregate``: votes, public inputs, encoder
    plan: Plan
    rows: NDArray[np.int64]  # the public inputs it asks about, in order
    test: Artifact  # test records and their labels, which are public

    @classmethod
    def of(cls, context: Context, plan: Plan, store: Store) -> Candidate:
        made_from = context.inputs["data-public"].manifest["made_from"]
        return cls(
            context=context,
            plan=plan,
            rows=chooser_of(context).first(plan.queries),
            test=store.cleared("evaluate", Level.PRIVATE).open("data-test", made_from),
        )

    @property
    def classes(self) -> int:
        return int(self.context.inputs["data-public"].facts["classes"])

    def score(self, rows: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
        """Return the share of test records that a student of these labels gets right.

        It is trained as ``distill`` would train it, and stored nowhere.
        """
        recipe, options = self.context.recipe, self.context.options
        data = StudentData(
            inputs=np.array(student_inputs(self.context)),
            features=graph_features(self.context),
            rows=rows,
            labels=labels,
            classes=self.classes,
        )
        inputs = as_student_sees(self.context, np.array(self.test.array("features.npy")))
        truth = np.array(self.test.array("labels.npy"))
        with use_first(self.context.options.engine.devices):
            student = train_student(recipe.student, data, plugin_path=options.plugin_path)
            predicted = predict_labels(student, inputs, classes=self.classes)
        return float(np.mean(predicted == truth))


@dataclass(frozen=True, kw_only=True)
class Tries:
    """All tries of one selection."""

    candidates: Sequence[Candidate]
    selection: SelectionSpec
    made_from: str  # of the selection
    store: Store
    options: Options

    def best(self) -> tuple[int, Artifact]:
        """Return the candidate of the best try, and the try's answer; make what is missing.

        Guarantees:
            * K and the picks are drawn before any vote is opened, from secure randomness, and each
              try has fresh noise of its own. Scores follow from the answer and public values.
            * Nothing is printed on the way, and whatever a student fails with (labels of one class,
              an error of its own) is the worst score, and no error. Only what the machine lacks is
              reported, memory or room on the disk: the selection stops before anything is paid for,
              and resumes with the same answers.
            * Of equal scores the first try is taken, which among exchangeable tries is one of them
              at random.
        """
        course = self._course()
        picks = [int(each) for each in course.array("picks.npy")]
        token = str(course.facts["token"])
        with silence():
            answers = [self._answer(token, number, pick) for number, pick in enumerate(picks)]
            scores = [
                self._score(token, number, pick, answer)
                for number, (pick, answer) in enumerate(zip(picks, answers, strict=True))
            ]
        first = int(np.argmax(scores))
        return picks[first], answers[first]

    def _course(self) -> Artifact:
        """Return the number of tries and their candidates, which are drawn once."""
        made_from = fingerprint(self.made_from, "course")
        if self.store.find(_COURSE, made_from) is None:
            rng = noise(self.options)
            count = draw_tries(self.selection.mean_tries, self.selection.shape, rng=rng)
            picks = rng.integers(len(self.candidates), size=count)
            with self._draft(_COURSE, made_from) as draft:
                draft.save_array("picks.npy", picks)
                draft.facts["token"] = secrets.token_hex(12)
        return self.store.open(_COURSE, made_from)  # of two processes at once, the first one's

    def _answer(self, token: str, number: int, pick: int) -> Artifact:
        made_from = fingerprint(self.made_from, token, "try", number)
        if self.store.find(_TRY, made_from) is None:
            one = self.candidates[pick]
            drawn = draw(one.context, one.rows, most_answers=one.plan.answers, number=number + 1)
            with self._draft(_TRY, made_from) as draft:
                answers_of([drawn]).save(draft)
        return self.store.open(_TRY, made_from)

    def _score(self, token: str, number: int, pick: int, answer: Artifact) -> float:
        made_from = fingerprint(self.made_from, token, "score", number)
        if self.store.find(_SCORE, made_from) is None:
            score = _score_of(self.candidates[pick], answer)
            with self._draft(_SCORE, made_from) as draft:
                draft.save_json("score.json", score)
        return float(self.store.open(_SCORE, made_from).json("score.json"))

    def _draft(self, stage: str, made_from: str) -> contextlib.AbstractContextManager[Draft]:
        inputs = {"selection": self.made_from}
        return self.store.draft(stage, made_from, level=Level.PRIVATE, inputs=inputs)


def _score_of(one: Candidate, answer: Artifact) -> float:
    """Return the accuracy of a student of this answer; the worst score where there is none."""
    answers = Answers.load(answer)
    if len(np.unique(answers.row_labels)) < 2:
        return _FAILED
    try:
        return one.score(answers.rows, answers.row_labels)
    except (MemoryError, OutOfMemory):  # of the machine, and of no label
        raise PateError(
            "memory ran out while a student was trained; nothing was released or paid for: end "
            "other programs, and run the same command again to resume"
        ) from None
    except (Exception, SystemExit):
        return _FAILED


def forget(store: Store, made_from: str) -> None:
    """Remove every trace of the tries of a selection: their number, picks, answers and scores."""
    for stage in (_SCORE, _TRY, _COURSE):
        for each in store.all(stage):
            if each.manifest["inputs"].get("selection") == made_from:
                store.discard(each)
        with contextlib.suppress(OSError):  # missing, or another selection is running
            (store.root / Level.PRIVATE.folder / stage).rmdir()
