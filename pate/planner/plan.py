"""Planning in one call: a recipe and public values in, a proposal and its assumptions out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pate.datasets.catalogue import named_set
from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.planner.forecast import Budget
from pate.planner.profile import RIVAL, Profile, accuracy_at, parse_accuracies, simulated
from pate.planner.proposal import Facts, Proposal, propose, public_facts, teacher_counts
from pate.planner.search import plannable
from pate.planner.surrogate import Rehearsal, load_surrogate, surrogate_profile, used_as_private

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request; nothing in it may come from private votes."""

    budget: Budget
    surrogate: str | None = None  # a named public data set
    accuracies: Sequence[str] = ()  # of one teacher: "0.8" or "500=0.8"
    teachers: Sequence[int] = ()
    mechanisms: Sequence[str] = field(default_factory=plannable)
    label_accuracy: float | None = None
    answers: int | None = None
    rehearse: bool = True  # on a surrogate, let a student decide
    records: int | None = None
    public: int | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        if bool(self.surrogate) == bool(self.accuracies):
            raise InvalidInput(
                "give --surrogate NAME (a public data set that is like yours) or --accuracy A "
                f"(what one teacher may reach){', not both' if self.surrogate else ''}; "
                "the votes of the private data itself are not for planning"
            )
        if any(count < 2 for count in self.teachers):
            raise InvalidInput("--teachers must be whole numbers, 2 or more, such as 250,1000")
        if self.label_accuracy is not None and not 0 < self.label_accuracy <= 1:
            raise InvalidInput(
                f"--label-accuracy is {self.label_accuracy:g}; it must lie above 0, and 1 at most"
            )
        if self.answers is not None and self.answers < 1:
            raise InvalidInput(f"--answers is {self.answers}; it must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A proposal, and in plain sentences what it rests on."""

    recipe: Recipe  # the one that was planned for
    proposal: Proposal
    assumptions: tuple[str, ...]


def plan(
    recipe: Recipe,
    request: Request,
    *,
    root: Path,
    plugin_path: Path | None = None,
    report: Report = lambda text: None,
) -> Planned:
    """Propose teachers, mechanism, noise and queries for a recipe.

    Guarantees:
        No file of the recipe's data set is opened, nor any run's folder or ledger: a plan is a
        function of the request, the catalogue and the surrogate, all public.
    """
    classes = request.classes
    if classes is None and request.surrogate and recipe.data.own and recipe.data.classes is None:
        classes = len(named_set(request.surrogate).class_names)
    facts = public_facts(
        recipe.data, records=request.records, queries=request.public, classes=classes
    )
    counts = sorted(set(request.teachers)) or teacher_counts(facts, own=recipe.teachers.count)
    if counts[-1] > facts.records:
        raise InvalidInput(
            f"{counts[-1]} teachers are more than the {facts.records} private records; "
            "lower --teachers"
        )
    if request.surrogate:
        profiles, assumptions, rehearsal = _on_surrogate(
            recipe,
            request.surrogate,
            facts,
            counts,
            root=root,
            plugin_path=plugin_path,
            report=report,
        )
    else:
        profiles, assumptions = _simulated(recipe, request.accuracies, facts, counts)
        rehearsal = None
    proposal = propose(
        profiles,
        facts=facts,
        budget=request.budget,
        label_accuracy=request.label_accuracy,
        answers=request.answers,
        mechanisms=request.mechanisms,
        rehearsal=rehearsal if request.rehearse else None,
        ledger_budget=recipe.privacy.budget,
        doubt=recipe.privacy.doubt,
        report=report,
    )
    known = "the catalogue's figures" if not recipe.data.own else "as given"
    first = (
        f"Taken as public: {facts.records} private records of {recipe.data.name}, "
        f"{facts.queries} public inputs, {facts.classes} classes ({known}). No file of "
        f"{recipe.data.name} was opened."
    )
    return Planned(
        recipe=recipe, proposal=proposal, assumptions=(first, *assumptions, *_reasons(proposal))
    )


def _on_surrogate(
    recipe: Recipe,
    name: str,
    facts: Facts,
    counts: Sequence[int],
    *,
    root: Path,
    plugin_path: Path | None,
    report: Report,
) -> tuple[list[Profile], list[str], Rehearsal]:
    report(f"reading and encoding {name}")
    surrogate = load_surrogate(
        name,
        recipe,
        root=root,
        largest_shard=-(-facts.records // counts[0]),
        plugin_path=plugin_path,
    )
    profiles = []
    for count in counts:
        report(f"training {count} teachers of {name}")
        profiles.append(
            surrogate_profile(
                surrogate,
                recipe.teachers,
                teachers=count,
                records=facts.records,
                equal=recipe.partition.method == "shuffle",
                plugin_path=plugin_path,
            )
        )
    assumptions = [
        f"How teachers agree was seen on {name}: the recipe's teachers, on shards of {name} as "
        f"large as the private ones will be, voted on {len(surrogate.truth)} of its inputs. Your "
        "data may be easier or harder: then more or fewer labels are right than predicted."
    ]
    if used_as_private(name, root=root):
        assumptions.append(
            f"{name} was used as private data before: there is a ledger of it. This plan looked at "
            "its records without noise, and no guarantee given for them covers that."
        )
    if surrogate.classes != facts.classes:
        assumptions.append(
            f"{name} has {surrogate.classes} classes, and your data {facts.classes}."
        )
    if len(surrogate.labels) < facts.records:
        assumptions.append(
            f"{len(surrogate.labels)} records of {name} stood for {facts.records}: its teachers "
            "share records, and agree a little more than teachers with shards of their own."
        )
    rehearsal = Rehearsal(surrogate=surrogate, spec=recipe.teachers, plugin_path=plugin_path)
    return profiles, assumptions, rehearsal


def _simulated(
    recipe: Recipe, texts: Sequence[str], facts: Facts, counts: Sequence[int]
) -> tuple[list[Profile], list[str]]:
    known = parse_accuracies(texts, own=recipe.teachers.count)
    profiles = [
        simulated(
            teachers=count,
            accuracy=accuracy_at(count, known, classes=facts.classes),
            classes=facts.classes,
        )
        for count in counts
    ]
    given = ", ".join(f"{100 * known[count]:g} % among {count}" for count in sorted(known))
    assumptions = [
        f"How teachers agree was simulated: one teacher is right on {given} (as given); elsewhere "
        "its error grows with the square root of their number. Inputs differ in difficulty (a Beta "
        f"distribution), and {100 * RIVAL:g} % of the wrong votes fall on one class. Your data may "
        "differ from this in every way: a surrogate data set is a better guide."
    ]
    return profiles, assumptions


def _reasons(proposal: Proposal) -> list[str]:
    wish = proposal.wish
    if proposal.rehearsed:
        chosen = (
            "Chosen by rehearsal: labels were drawn with each setting from the surrogate's votes, "
            "a model of the teachers' kind learnt from them, and the setting whose model was right "
            "most often won. Another kind of student may do better with fewer or more labels."
        )
        if wish.answers is not None:
            chosen += f" Only settings with {wish.answers} answers or more took part."
        elif wish.accuracy:
            chosen += f" Only settings with {100 * wish.accuracy:.3g} % right labels took part."
    elif wish.answers is not None:
        chosen = f"Chosen for the most accurate labels, with {wish.answers} answers or more."
    else:
        least = f", of which {100 * wish.accuracy:.3g} % or more are right" if wish.accuracy else ""
        chosen = (
            f"Chosen for the most useful labels{least}; n labels with a share η of wrong ones "
            "count as n·(1 − η·C/(C−1))¹² right ones (C classes), and as fewer where a check lets "
            "the easy inputs through. With a surrogate, a rehearsal would decide."
        )
    assumptions = [chosen]
    if not proposal.met:
        assumptions.append("No plan within this ε does that; this is the one that comes nearest.")
    assumptions.append(
        "The data-independent ε holds whatever the private votes are. All else is a prediction: "
        "the real data-dependent ε will be private, and a run that is held to an ε "
        "(privacy.epsilon) publishes no sanitised one, because its price would come on top."
    )
    assumptions.append(
        "Settings that are changed after a look at private votes, or at figures marked private, "
        "are tuned on private data, and no ε accounts for that."
    )
    return assumptions
