"""Private selection: a random number of tries among the points of a sweep; the best one leaves.

Choosing the best of a sweep by its table costs all of its points. Here nobody sees a table: a
number of tries is drawn at random, each tries one candidate with fresh noise, and only the best one
leaves, with the labels it was judged by. That costs one charge
(:class:`pate.accounting.BestOfTries`), however many candidates there are.

Guarantees:
    * Papernot & Steinke 2022, Theorem 2, with candidates picked uniformly at random: see
      :mod:`pate.accounting.selection` for the bound and what it needs.
    * Everything that is seen is the same whatever came out, until the charge is in the ledger: all
      candidates are taught, vote and choose their inputs first; tries print nothing, and no error
      of theirs is told; drawn answers stay PRIVATE. What was drawn but did not win is removed.
    * What remains: how long it takes grows with the number of tries, which must stay private. So
      neither the time nor the times of files in the folder and of the charge in the ledger are to
      be published, and what is said at the end says so. And a machine without memory, or without
      room on its disk, ends a try with an error that is told, before anything is paid for: that it
      happened may depend on how many tries there were and on what was drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pate._files import exclusive_lock
from pate._format import format_epsilon
from pate.accounting import BestOfTries, Conversion, Event, Guarantee, Ledger, compose
from pate.artifacts import Artifact, Draft, Level, fingerprint
from pate.errors import BudgetExceeded, InvalidInput
from pate.mechanisms import Randomness
from pate.pipeline.recipe import Recipe, SelectionSpec
from pate.pipeline.runner import Run
from pate.pipeline.secret import naming_key
from pate.pipeline.spending import open_ledger
from pate.pipeline.stage import Context, Options
from pate.silence import silence
from pate.stages.catalogue import STAGES
from pate.stages.distill import DISTILL
from pate.stages.drawing import ANSWER, plan_of, save_events
from pate.stages.releasing import release_once, require_consent, settings_of
from pate.stages.selected import SELECTION, differences, event_of, mark_of
from pate.sweep.trying import Candidate, Tries, forget

_VERSION = 1  # raised when the same candidates would be tried in another way
_SHARED = {
    "data": "data",
    "partition": "partition",
    "privacy.delta": "δ",
    "privacy.conversion": "conversion",
    "privacy.budget": "budget",
}


def select(
    candidates: Sequence[Recipe], *, folder: Path, options: Options, tries: float = 10.0
) -> Run:
    """Chooses one of the candidates privately, and returns its finished run, in ``folder``.

    ``candidates`` are the points' recipes, in the order they were given (``privacy.sanitise`` may
    be anything: no data-dependent figure is given). ``tries`` is the mean number E[K] of tries,
    above 1. ``options`` are those of the command line; ``options.study`` is ignored: a selection is
    one charge of its own, and its winner may be released. Says what it will cost through
    ``options.say`` before anything is charged, and goes on where it was killed.

    The command line prints :func:`pate.cli.summary.show_summary` of what is returned, and no table
    of points: which were tried, how often and how they did stays private.
    """
    require_choice(candidates)
    spec = SelectionSpec(candidates=differences(candidates), mean_tries=tries)
    chosen = _Selection(
        recipes=tuple(candidates), spec=spec, folder=folder, options=replace(options, study=None)
    )
    return chosen.settle()


def require_choice(candidates: Sequence[Recipe]) -> None:
    """Refuses candidates among which nothing can be chosen privately, in one sentence."""
    if len(candidates) < 2:
        raise InvalidInput("one candidate alone is no choice; give --over two values or more")
    for each in candidates:
        if each.selection is not None:
            raise InvalidInput("a candidate has a [selection] of its own; remove that section")
        if each.aggregate.in_rounds:
            raise InvalidInput(
                "a candidate is asked in rounds (interactive, or choose = uncertain), which pay "
                "for labels before they end; private selection takes the other mechanisms"
            )
    first = _shared(candidates[0])
    for each in candidates[1:]:
        for name, value in _shared(each).items():
            if value != first[name]:
                raise InvalidInput(
                    f"candidates differ in {name}; private selection needs one {_SHARED[name]} for "
                    "all of them"
                )


def _shared(recipe: Recipe) -> dict[str, Any]:
    privacy = recipe.privacy
    return {
        "data": recipe.data,
        "partition": recipe.partition,
        "privacy.delta": privacy.delta,
        "privacy.conversion": privacy.conversion,
        "privacy.budget": privacy.budget,
    }


@dataclass(frozen=True, kw_only=True)
class _Selection:
    recipes: tuple[Recipe, ...]
    spec: SelectionSpec
    folder: Path
    options: Options  # one object for all candidates: data of one's own are then read once

    def settle(self) -> Run:
        say, first = self.options.say, self._runs[0]
        first.execute(until="data")
        event, whole = self._cost
        say(
            f"private selection among {len(self.recipes)} candidates, {self.spec.mean_tries:g} "
            f"tries on average: ε = {format_epsilon(whole.epsilon)} at δ = {whole.delta:g} in all"
        )
        openly = self._openly
        if openly.epsilon <= whole.epsilon:
            say(
                f"all {len(self.recipes)} run openly cost no more, "
                f"ε = {format_epsilon(openly.epsilon)} together, and any of them may then be "
                "chosen: leave out --private-selection"
            )
        if any(each.privacy.epsilon is not None for each in self.recipes):
            say("privacy.epsilon caps what one try may cost, and not the choice among them")
        with self._ledger() as ledger:
            if not self._paid(ledger):
                ledger.require_room([event], records=self.recipes[0].partition.neighbours)
        for run in self._runs:  # all of them, so that nothing tells which will be picked
            if not _voted(run):
                run.execute(until="vote")
        with _alone(self.folder):
            released = self._released() or self._release()
            forget(first.store, self._made_from)
        winner = self._winner(int(released.facts["candidate"]))
        run = replace(first, recipe=winner)
        run.execute()
        say(
            "How long this took is private: it tells how many tries there were. So do the times of "
            f"files in {self.folder} and that of the charge in the ledger: keep these to yourself."
        )
        return run

    # --- what is public -----------------------------------------------------------------------

    @cached_property
    def _runs(self) -> list[Run]:
        return [
            Run(folder=self.folder, recipe=each, stages=STAGES, options=self.options)
            for each in self.recipes
        ]

    @cached_property
    def _inputs(self) -> int:
        return len(self._runs[0].artifact("data-public").array("features.npy"))

    @cached_property
    def _cost(self) -> tuple[BestOfTries, Guarantee]:
        """The event, and what it comes to; from plans alone."""
        event = event_of(self.recipes, self.spec, inputs=self._inputs)
        return event, self._guarantee([event])

    @property
    def _openly(self) -> Guarantee:
        """What a sweep of all candidates costs; students of the same labels pay once."""
        plans = {
            each.model_dump_json(exclude={"student", "evaluate"}): plan_of(
                each, inputs=self._inputs
            ).events
            for each in self.recipes
        }
        return self._guarantee(event for events in plans.values() for event in events)

    def _guarantee(self, events: Iterable[Event]) -> Guarantee:
        privacy = self.recipes[0].privacy
        conversion = Conversion(privacy.conversion)
        return compose(events).guarantee(delta=privacy.delta, conversion=conversion)

    def _ledger(self) -> Ledger:
        return open_ledger(self.recipes[0], self.options, moment=self._cost[1].moment)

    def _winner(self, number: int) -> Recipe:
        return self.recipes[number].model_copy(update={"selection": self.spec})

    @cached_property
    def _provenance(self) -> dict[str, str]:
        """What the choice is made from, under the data set's key: every candidate counts."""
        key = naming_key(self.recipes[0], self.options.data_root)
        made = [
            [context.provenance, DISTILL.settings(context.recipe, self.options)]
            for context in self._contexts
        ]
        data = self._runs[0].artifact("data-public").manifest["made_from"]  # and of test records
        told = self.spec.model_dump(mode="json")
        return {
            "votes": fingerprint(key, sorted(self._votes)),
            "candidates": fingerprint(key, made),
            "data": fingerprint(key, data),
            "selection": fingerprint(key, told),
        }

    @cached_property
    def _contexts(self) -> list[Context]:
        """What each candidate's ``aggregate`` would be given; once everybody has voted."""
        return [run.context("aggregate") for run in self._runs]

    @cached_property
    def _votes(self) -> frozenset[str]:
        return frozenset(context.provenance["vote"] for context in self._contexts)

    @cached_property
    def _made_from(self) -> str:
        """The selection's own fingerprint; the same whatever comes out."""
        return fingerprint(SELECTION, _VERSION, self._provenance)

    def _paid(self, ledger: Ledger) -> bool:
        """Whether this selection was charged before; without votes it cannot have been."""
        if not all(map(_voted, self._runs)):
            return False
        own = f"labels {self._made_from[:40]} "
        return any(each.release.startswith(own) for each in ledger.charges())

    def _require_consent(self, context: Context, ledger: Ledger) -> None:
        """Refuses to draw from votes of which labels were released, unless the user agrees to pay.

        Votes of all candidates count: what is refused must not depend on which one will win.
        """
        if context.store.find("pending-labels", self._made_from) is None:
            require_consent(context, "labels", "votes", ledger, sources=self._votes)

    # --- what is not --------------------------------------------------------------------------

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
        """Tries, pays, and lets the best one out: in this order, and exactly once."""
        context = self._context()
        event, whole = self._cost
        with self._ledger() as ledger:
            self._require_consent(context, ledger)
            candidates = [
                Candidate.of(each, plan_of(each.recipe, inputs=self._inputs), run.store)
                for run, each in zip(self._runs, self._contexts, strict=True)
            ]
            if context.store.find("pending-labels", self._made_from) is None:
                with silence():  # also what a model keeps alive for later says nothing then
                    _rehearse(candidates)
            self.options.say("selection: trying")

            def prepare(draft: Draft, name: str) -> None:
                tries = Tries(
                    candidates=candidates,
                    selection=self.spec,
                    made_from=self._made_from,
                    store=context.store,
                    options=self.options,
                )
                number, answer = tries.best()
                for file in ANSWER:
                    draft.save_array(file, answer.array(file))
                plan = replace(candidates[number].plan, events=(event,), guarantee=whole)
                save_events(draft, [event], plan)
                draft.facts.update(answer.facts)
                draft.facts.update(
                    candidate=number,
                    family=None,  # an answer that was chosen is never extended
                    extended=False,
                    randomness=Randomness.open(insecure_seed=self.options.insecure_seed).verdict,
                )

            def publish(answer: Artifact, draft: Draft) -> None:
                number = int(answer.facts["candidate"])
                for file in ANSWER:
                    draft.save_array(file, answer.array(file))
                draft.save_json("events.json", answer.json("events.json"))
                paid = answer.json("plan.json")
                # What holds where one teacher changes, said of the records behind the teachers.
                paid["guarantee"]["neighbours"] = self.recipes[0].partition.neighbours.value
                draft.save_json("plan.json", paid)
                draft.facts.update(answer.facts)
                draft.facts["winner"] = mark_of(
                    self._winner(number), self.options, self._contexts[number].provenance
                )
                draft.facts["protects"] = (
                    candidates[number].context.inputs["vote"].facts["protects"]
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


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time tries: what one of two removes in the end the other would miss."""
    busy = InvalidInput(
        f"another process is selecting in {folder}; wait until it has ended, and run the same "
        "command again"
    )
    with exclusive_lock(folder / Level.PRIVATE.folder, busy=busy):
        yield


def _voted(run: Run) -> bool:
    return any(state.done for state in run.states() if state.stage == "vote")


def _rehearse(candidates: Sequence[Candidate]) -> None:
    """Every kind of student learns from made-up labels once, before anything is drawn.

    A student that fails in a try is a try with the worst score, and nobody is told why. Mistakes in
    the recipe are found here instead, where nothing is private and nothing was paid for.
    """
    kinds: dict[str, Candidate] = {}
    for each in candidates:
        recipe = each.context.recipe
        kinds.setdefault(
            fingerprint(
                recipe.student.model_dump(mode="json"), recipe.encoder.model_dump(mode="json")
            ),
            each,
        )
    for each in kinds.values():
        each.rehearse()
