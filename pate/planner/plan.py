"""Planning: a recipe and public values in; a proposal and its assumptions out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate._format import format_epsilon
from pate.accounting import Conversion
from pate.datasets.catalogue import data_root as default_root
from pate.datasets.table import Splits
from pate.errors import InvalidInput
from pate.mechanisms import COUNT_MECHANISMS
from pate.pipeline.recipe import Recipe
from pate.planner.forecast import Budget
from pate.planner.profile import (
    RIVAL,
    Facts,
    Profile,
    accuracy_at,
    parse_accuracies,
    public_facts,
    simulated,
    teacher_counts,
)
from pate.planner.record_table import TableForecast, forecast_table, table_wins, verdict
from pate.planner.search import Proposal, Wish, plannable, propose
from pate.planner.surrogate import (
    Surrogate,
    load_surrogate,
    surrogate_splits,
    used_as_private,
)
from pate.recipes.read import as_settings, read_recipe
from pate.record_votes import VotesSpec
from pate.teachers.spec import TeachersSpec

PathLike = str | os.PathLike[str]
Report = Callable[[str], None]


# Of a recipe with record votes, to compare with: quick to train, on any features.
TEACHERS = TeachersSpec(count=2, model="ridge")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A proposal, and in plain sentences what it rests on.

    Attributes
    ----------
    recipe : Recipe
        The one that was planned for.
    facts : Facts
        Public numbers of its data.
    budget : Budget
        What the labels may cost.
    proposal : Proposal or None
        Of teachers; None where only record votes were considered.
    table : TableForecast or None
        Of record votes; None where they were not considered, or nothing predicts them.
    by_records : bool
        Whether record votes are proposed, and not teachers.
    assumptions : tuple of str
        What all of it rests on.
    """

    recipe: Recipe
    facts: Facts
    budget: Budget
    proposal: Proposal | None
    table: TableForecast | None
    by_records: bool
    assumptions: tuple[str, ...]

    @property
    def expected(self) -> str:
        """What is proposed and how many of its labels are expected to be right, in words."""
        best = self.table if self.by_records or self.proposal is None else self.proposal.best
        assert best is not None
        return f"{best.answered:.0f} answers, {100 * best.label_accuracy:.1f} % of them right"

    def as_json(self) -> dict[str, Any]:
        teachers = dict.fromkeys(
            ("wished", "met", "rehearsed", "proposal", "over_teachers", "over_mechanisms", "trade")
        )
        found = {
            "facts": {
                "private_records": self.facts.records,
                "public_inputs": self.facts.queries,
                "classes": self.facts.classes,
            },
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "conversion": self.budget.conversion.value,
        }
        return (
            found
            | (teachers if self.proposal is None else self.proposal.as_json())
            | {
                "by": "records" if self.by_records else "teachers",
                "records": None if self.table is None else self.table.as_json(),
                "assumptions": list(self.assumptions),
            }
        )


def plan(
    recipe: PathLike,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    surrogate: str | None = None,
    accuracy: float | Mapping[int, float] | Sequence[str] | None = None,
    teachers: Sequence[int] = (),
    mechanisms: Sequence[str] | None = None,
    answers: int | None = None,
    label_accuracy: float | None = None,
    rehearse: bool = True,
    records: int | None = None,
    public: int | None = None,
    classes: int | None = None,
    set: Mapping[str, Any] | Sequence[str] | None = None,
    data_root: PathLike | None = None,
    plugin_path: PathLike | None = None,
    report: Callable[[str], None] | None = None,
) -> Planned:
    """Propose teachers or record votes, mechanism, noise and queries, from public values alone.

    Parameters
    ----------
    recipe : str or path
        The recipe to plan for. Its private data are never opened. Where it has record votes, they
        are compared with linear teachers.
    epsilon, delta : float, optional
        What the labels may cost in all. By default the recipe's.
    surrogate : str, optional
        A public data set like yours, by its name or as a file with the columns of the recipe's
        ``[data]``: its teachers show how teachers agree, and its records how records vote.
    accuracy : float, mapping or sequence of str, optional
        Instead of a surrogate: what one teacher may reach, ``0.8``, or ``{500: 0.8}`` among 500.
    teachers : sequence of int
        Numbers of teachers to consider. By default a range around the recipe's.
    mechanisms : sequence of str, optional
        Those to consider. By default all of teachers that can be planned for, and the table of
        record votes that the recipe has, or laplace-counts.
    answers : int, optional
        The fewest answers wanted; the rest goes into accuracy.
    label_accuracy : float, optional
        The least share of right labels wanted.
    rehearse : bool
        With a surrogate, let what a student learns decide.
    records, public, classes : int, optional
        Public numbers of the data set, where the catalogue does not have them.
    set : mapping or sequence of str, optional
        Overrides of the recipe.
    data_root : str or path, optional
        Where data sets are. By default as for :func:`pate.run`.
    plugin_path : str or path, optional
        A folder with modules of your own.
    report : callable, optional
        Receives a line for each step.

    Returns
    -------
    Planned
        ``proposal`` (of teachers, with ``best``), ``table`` (of record votes), which of them is
        better (``by_records``), and the ``assumptions`` that rests on.

    Guarantees:
        No file of the recipe's data set is opened, nor any run's folder or ledger: a plan is a
        function of the arguments, the catalogue and the surrogate, all public.

    Examples
    --------
    >>> planned = plan(
    ...     "mnist-teachers", epsilon=2.0, accuracy=0.8, teachers=[250], mechanisms=["gnmax"]
    ... )
    >>> planned.proposal.best.plan.guarantee.epsilon <= 2.0
    True
    """
    name, checked = read_recipe(str(recipe), as_settings(set), Recipe)
    known = _accuracies(accuracy)
    budget = _budget(name, checked, epsilon, delta)
    voting, tables = _mechanisms(mechanisms, checked)
    _check(surrogate, known, teachers, label_accuracy, answers)
    if not surrogate and (checked.by_records or not voting):
        raise InvalidInput(
            "how records vote cannot be simulated from --accuracy; give --surrogate NAME, a public "
            "data set that is like yours"
        )
    data = checked.data
    report = report or (lambda text: None)
    root = default_root(None if data_root is None else Path(data_root), checked.data_root)
    plugins = checked.plugins.chosen(None if plugin_path is None else Path(plugin_path))
    splits = None
    if surrogate:
        report(f"reading and encoding {surrogate}")
        splits = surrogate_splits(surrogate, checked, root=root, plugin_path=plugins)
        if classes is None and data.own and data.classes is None:
            classes = splits.classes
    facts = public_facts(data, records=records, queries=public, classes=classes)
    own = facts.records + 1 if checked.by_records else checked.teachers.count
    counts = sorted(frozenset(teachers)) or teacher_counts(facts, own=own)
    if counts[-1] > facts.records:
        raise InvalidInput(
            f"{counts[-1]} teachers are more than the {facts.records} private records; "
            "lower --teachers"
        )
    if answers is not None and answers > facts.queries:
        raise InvalidInput(f"--answers {answers} is more than the {facts.queries} public inputs")
    wish = Wish(accuracy=label_accuracy or 0.0, answers=answers)
    rehearse = rehearse and not checked.by_records  # by whose teachers? It has none
    profiles: list[Profile] = []
    stage = table = None
    if surrogate and splits is not None:
        stage, assumptions = _load(
            checked, surrogate, splits, facts, counts, root=root, plugin_path=plugins
        )
        if voting:
            profiles, more = _votes_of(checked, stage, facts, counts, report=report)
            assumptions += more
        table, more = _table(checked, stage, facts, budget, tables, rehearse, report=report)
        if table is None and not voting:
            raise InvalidInput("; ".join(more).rstrip("."))
        assumptions += more
    else:
        profiles, assumptions = _simulated(checked, known, facts, counts)
        assumptions.append(
            "How record votes would do cannot be simulated: with --surrogate they are compared."
        )
    proposal = None
    if voting:
        proposal = propose(
            profiles,
            facts=facts,
            budget=budget,
            wish=wish,
            mechanisms=voting,
            surrogate=stage if rehearse else None,
            ledger_budget=checked.privacy.budget,
            doubt=checked.privacy.doubt,
            report=report,
        )
    wins = table is not None and (proposal is None or table_wins(table, proposal.best, wish))
    source = "as given" if data.own else "the catalogue's values"
    first = (
        f"Taken as public: {facts.records} private records of {data.name}, {facts.queries} public "
        f"inputs, {facts.classes} classes ({source}). No file of {data.name} was opened."
    )
    return Planned(
        recipe=checked,
        facts=facts,
        budget=budget,
        proposal=proposal,
        table=table,
        by_records=wins,
        assumptions=(first, *assumptions, *_reasons(proposal, table, wish, wins=wins)),
    )


def _accuracies(given: float | Mapping[int, float] | Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return tuple(f"{count}={share}" for count, share in given.items())
    return (str(given),) if isinstance(given, int | float) else tuple(given)


def _budget(name: str, recipe: Recipe, epsilon: float | None, delta: float | None) -> Budget:
    wanted = recipe.privacy.epsilon if epsilon is None else epsilon
    if wanted is None:
        raise InvalidInput(
            f"give --epsilon, what the labels may cost, or privacy.epsilon in {name}"
        )
    return Budget(
        epsilon=wanted,
        delta=recipe.privacy.ledger_delta if delta is None else delta,
        conversion=Conversion(recipe.privacy.conversion),
        analysis=recipe.privacy.bounds,
        by_moments=recipe.privacy.budget is not None,
        in_rounds=recipe.aggregate.in_rounds,
        neighbours=recipe.partition.neighbours,
    )


def _mechanisms(
    wanted: Sequence[str] | None, recipe: Recipe
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the mechanisms of teachers' votes, and of tables, to consider."""
    if wanted is None and recipe.by_records:
        return ("gnmax",), (recipe.aggregate.mechanism,)  # teachers to compare with: one is enough
    possible = (*plannable(), *COUNT_MECHANISMS)
    chosen = (*plannable(), *COUNT_MECHANISMS) if wanted is None else tuple(wanted)
    found = tuple(each for each in possible if each in chosen)
    if not found or len(found) < len(set(chosen)):
        raise InvalidInput(
            f"--mechanism {','.join(chosen)}: those one can plan for are {', '.join(possible)}"
        )
    tables = tuple(each for each in found if each in COUNT_MECHANISMS)
    return tuple(each for each in found if each not in tables), tables


def _check(
    surrogate: str | None,
    accuracies: Sequence[str],
    teachers: Sequence[int],
    label_accuracy: float | None,
    answers: int | None,
) -> None:
    if bool(surrogate) == bool(accuracies):
        raise InvalidInput(
            "give --surrogate NAME (a public data set that is like yours) or --accuracy A "
            f"(what one teacher may reach){', not both' if surrogate else ''}; "
            "the votes of the private data itself are not for planning"
        )
    if any(count < 2 for count in teachers):
        raise InvalidInput("--teachers must be whole numbers, 2 or more, such as 250,1000")
    if label_accuracy is not None and not 0 < label_accuracy <= 1:
        raise InvalidInput(
            f"--label-accuracy is {label_accuracy:g}; it must lie above 0, and 1 at most"
        )
    if answers is not None and answers < 1:
        raise InvalidInput(f"--answers is {answers}; it must be 1 or more")


# --- profiles and their assumptions ---------------------------------------------------------------


def _load(
    recipe: Recipe,
    name: str,
    splits: Splits,
    facts: Facts,
    counts: Sequence[int],
    *,
    root: Path,
    plugin_path: Path | None,
) -> tuple[Surrogate, list[str]]:
    surrogate = load_surrogate(
        name,
        recipe,
        splits,
        most=facts.records if recipe.by_records else 4 * -(-facts.records // counts[0]),
        teachers=TEACHERS if recipe.by_records else None,
        plugin_path=plugin_path,
    )
    assumptions = []
    if used_as_private(name, splits, root=root):
        assumptions.append(
            f"{name} was used as private data before: there is a ledger of it. This plan looked at "
            "its records without noise, and no guarantee given for them covers that."
        )
    if surrogate.classes != facts.classes:
        assumptions.append(
            f"{name} has {surrogate.classes} classes, and your data {facts.classes}."
        )
    return surrogate, assumptions


def _votes_of(
    recipe: Recipe, surrogate: Surrogate, facts: Facts, counts: Sequence[int], *, report: Report
) -> tuple[list[Profile], list[str]]:
    """Return the votes of so many teachers of the surrogate, and what they rest on."""
    profiles = []
    name = surrogate.name
    for count in counts:
        report(f"training {count} teachers of {name}")
        profiles.append(
            surrogate.profile(
                teachers=count,
                records=facts.records,
                equal=recipe.partition.method == "shuffle",
            )
        )
    whose = "ridge teachers" if recipe.by_records else "the recipe's teachers"
    assumptions = [
        f"How teachers agree was seen on {name}: {whose}, on shards of {name} as "
        f"large as the private ones will be, voted on {len(surrogate.truth)} of its inputs. Your "
        "data may be easier or harder: then more or fewer labels are right than predicted."
    ]
    if len(surrogate.labels) < facts.records:
        assumptions.append(
            f"{len(surrogate.labels)} records of {name} stood for {facts.records}: its teachers "
            "share records, and agree a little more than teachers with shards of their own."
        )
    return profiles, assumptions


def _table(
    recipe: Recipe,
    surrogate: Surrogate,
    facts: Facts,
    budget: Budget,
    mechanisms: Sequence[str],
    rehearse: bool,
    *,
    report: Report,
) -> tuple[TableForecast | None, list[str]]:
    """Return the best table of record votes and what it rests on; or why there is none."""
    if not mechanisms:
        return None, []
    if not recipe.by_records and recipe.protected_group is not None:
        why = "the recipe protects users, and how many there are is not known"
    elif recipe.partition.method == "shuffle":
        why = "a shuffled partition protects against one record replaced, and a table does not"
    else:
        report(f"letting records of {surrogate.name} vote")
        try:
            found = [
                forecast_table(
                    surrogate,
                    facts=facts,
                    votes=_section_for(recipe, each, facts),
                    mechanism=each,
                    budget=budget,
                    per_user=recipe.per_user,
                    rehearse=rehearse,
                )
                for each in mechanisms
            ]
        except InvalidInput as error:
            if recipe.by_records:
                raise
            why = str(error)
        else:
            best = max(found, key=lambda each: each.label_accuracy)
            return best, _seen(best, surrogate, facts, recipe.per_user)
    return None, [f"Record votes were not considered: {why}."]


def _section_for(recipe: Recipe, mechanism: str, facts: Facts) -> VotesSpec:
    """Return how records would vote: as in the recipe, or in the way that suits a mechanism."""
    pure = COUNT_MECHANISMS[mechanism].pure
    if recipe.by_records and not (pure and recipe.votes.components is not None):
        return recipe.votes
    expected = recipe.votes.expected_records or facts.records
    if pure:
        return VotesSpec(by="records", cells="auto", expected_records=expected)
    return VotesSpec(by="records", components="auto", expected_records=expected)


def _seen(
    table: TableForecast, surrogate: Surrogate, facts: Facts, per_user: int | None
) -> list[str]:
    along = table.votes.components
    sentence = (
        f"How records vote was seen on {surrogate.name}: {table.voted} votes "
        f"{f'at {table.rows} cells' if along is None else f'along {table.rows} components'}, "
        "noised and smoothed as in a run."
    )
    if table.voted < facts.records:
        sentence += (
            f" It has fewer public inputs than the {facts.queries} of your data, so fewer records "
            "voted in proportion."
        )
    if len(surrogate.labels) < table.voted:
        sentence += f" Its {len(surrogate.labels)} records were counted several times."
    if per_user is not None:
        sentence += f" All records voted, although of a user {per_user} at most will."
    return [sentence]


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


def _reasons(
    proposal: Proposal | None, table: TableForecast | None, wish: Wish, *, wins: bool
) -> list[str]:
    assumptions = []
    if proposal is not None:
        assumptions += [_chosen(proposal), *_won(proposal)]
    met = proposal is not None and proposal.met
    if table is not None:
        teachers = None if proposal is None else proposal.best
        assumptions.append(verdict(table, teachers, wins=wins))
        if wins:
            met = wish.met_by(answers=table.answered, accuracy=table.label_accuracy)
    if not met:
        assumptions.append("No plan within this ε does that; this is the one that comes nearest.")
    if wins or proposal is None:
        assumptions.append(
            "The ε of a table holds whatever the private records are, for one added or removed; "
            "all else is a prediction."
        )
    else:
        assumptions += _costs(proposal)
    assumptions.append(
        "Settings that are changed after a look at private votes, or at values marked private, "
        "are tuned on private data, and no ε accounts for that."
    )
    return assumptions


def _chosen(proposal: Proposal) -> str:
    """Return how the teachers' setting was chosen, in a sentence or two."""
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
        return chosen
    if wish.answers is not None:
        return f"Chosen for the most accurate labels, with {wish.answers} answers or more."
    least = f", of which {100 * wish.accuracy:.3g} % or more are right" if wish.accuracy else ""
    return (
        f"Chosen for the most useful labels{least}; n labels with a share η of wrong ones "
        "count as n·(1 − η·C/(C−1))¹² right ones (C classes), and as fewer where a check lets "
        "the easy inputs through. With a surrogate, a rehearsal would decide."
    )


def _costs(proposal: Proposal) -> list[str]:
    """Return what is certain of the costs of teachers' answers, and what is predicted."""
    best = proposal.best
    certain = (
        "The data-independent ε holds whatever the private votes are. All else is a prediction: "
        "the real data-dependent ε will be private."
    )
    if not best.sanitising_pays:
        return [
            certain,
            "No sanitised ε is predicted to pay for itself, so none is asked for "
            "(privacy.sanitise).",
        ]
    assert best.sanitised is not None
    assert best.with_sanitised is not None
    return [
        certain,
        f"A sanitised ε is predicted to pay: about {format_epsilon(best.sanitised)} for the "
        f"data at hand, for a guarantee of {format_epsilon(best.with_sanitised)} that covers "
        "it, too. The recipe asks for it and caps queries and answers in place of ε: set "
        "privacy.sanitise = false to keep the guarantee of the labels.",
    ]


def _won(proposal: Proposal) -> list[str]:
    """Return what the chosen mechanism is better at than the others, in a sentence."""
    best, others = proposal.best, proposal.over_mechanisms
    rivals = [each for each in others if each.spec.mechanism != best.spec.mechanism]
    if not rivals:
        return []
    name = {each.spec.mechanism: f"{100 * each.label_accuracy:.1f} %" for each in rivals}
    beside = ", ".join(
        f"{name[each.spec.mechanism]} of {each.answered:.0f} with {each.spec.mechanism}"
        for each in rivals
    )
    return [
        f"Of teachers, {best.spec.mechanism} is recommended: at this ε "
        f"{100 * best.label_accuracy:.1f} % of {best.answered:.0f} labels are predicted to be "
        f"right, against {beside}."
    ]
