"""Planning: a recipe and public values in; a proposal, its assumptions, a recipe and a plot out."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate._plots import COLOURS, new_figure, plain_axes, render_figure
from pate.accounting import Conversion
from pate.datasets.catalogue import data_root as default_root
from pate.datasets.catalogue import named_set
from pate.errors import InvalidInput
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
from pate.planner.search import Proposal, plannable, propose
from pate.planner.surrogate import Surrogate, load_surrogate, used_as_private
from pate.recipes.read import as_settings, find_recipe, read_recipe, to_toml

PathLike = str | os.PathLike[str]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A proposal, and in plain sentences what it rests on."""

    recipe: Recipe  # the one that was planned for
    proposal: Proposal
    assumptions: tuple[str, ...]


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
    """Propose teachers, mechanism, noise and queries for an ε, from public values alone.

    Parameters
    ----------
    recipe : str or path
        The recipe to plan for. Its private data are never opened.
    epsilon, delta : float, optional
        What the labels may cost in all. By default the recipe's.
    surrogate : str, optional
        A named public data set like yours: its teachers show how teachers agree.
    accuracy : float, mapping or sequence of str, optional
        Instead of a surrogate: what one teacher may reach, ``0.8``, or ``{500: 0.8}`` among 500.
    teachers : sequence of int
        Numbers of teachers to consider. By default a range around the recipe's.
    mechanisms : sequence of str, optional
        Those to consider. By default all that can be planned for.
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
        ``proposal`` (with ``best``) and the ``assumptions`` it rests on.

    Guarantees:
        No file of the recipe's data set is opened, nor any run's folder or ledger: a plan is a
        function of the arguments, the catalogue and the surrogate, all public.

    Examples
    --------
    >>> planned = plan("mnist", epsilon=2.0, accuracy=0.8, teachers=[250], mechanisms=["gnmax"])
    >>> planned.proposal.best.plan.guarantee.epsilon <= 2.0
    True
    """
    name, checked = read_recipe(str(recipe), as_settings(set), Recipe)
    known = _accuracies(accuracy)
    budget = _budget(name, checked, epsilon, delta)
    found = _mechanisms(mechanisms)
    _check(surrogate, known, teachers, label_accuracy, answers)
    data = checked.data
    if classes is None and surrogate and data.own and data.classes is None:
        classes = len(named_set(surrogate).class_names)
    facts = public_facts(data, records=records, queries=public, classes=classes)
    counts = sorted(frozenset(teachers)) or teacher_counts(facts, own=checked.teachers.count)
    if counts[-1] > facts.records:
        raise InvalidInput(
            f"{counts[-1]} teachers are more than the {facts.records} private records; "
            "lower --teachers"
        )
    report = report or (lambda text: None)
    stage = None
    if surrogate:
        profiles, assumptions, stage = _on_surrogate(
            checked,
            surrogate,
            facts,
            counts,
            root=default_root(None if data_root is None else Path(data_root), checked.data_root),
            plugin_path=None if plugin_path is None else Path(plugin_path).absolute(),
            report=report,
        )
    else:
        profiles, assumptions = _simulated(checked, known, facts, counts)
    proposal = propose(
        profiles,
        facts=facts,
        budget=budget,
        label_accuracy=label_accuracy,
        answers=answers,
        mechanisms=found,
        surrogate=stage if rehearse else None,
        ledger_budget=checked.privacy.budget,
        doubt=checked.privacy.doubt,
        report=report,
    )
    source = "as given" if data.own else "the catalogue's values"
    first = (
        f"Taken as public: {facts.records} private records of {data.name}, {facts.queries} public "
        f"inputs, {facts.classes} classes ({source}). No file of {data.name} was opened."
    )
    return Planned(
        recipe=checked, proposal=proposal, assumptions=(first, *assumptions, *_reasons(proposal))
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
        delta=recipe.privacy.delta if delta is None else delta,
        conversion=Conversion(recipe.privacy.conversion),
    )


def _mechanisms(wanted: Sequence[str] | None) -> tuple[str, ...]:
    possible = plannable()
    chosen = possible if wanted is None else tuple(wanted)
    found = tuple(each for each in possible if each in chosen)
    if not found or len(found) < len(set(chosen)):
        raise InvalidInput(
            f"--mechanism {','.join(chosen)}: those one can plan for are {', '.join(possible)}"
        )
    return found


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


def _on_surrogate(
    recipe: Recipe,
    name: str,
    facts: Facts,
    counts: Sequence[int],
    *,
    root: Path,
    plugin_path: Path | None,
    report: Report,
) -> tuple[list[Profile], list[str], Surrogate]:
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
            surrogate.profile(
                teachers=count,
                records=facts.records,
                equal=recipe.partition.method == "shuffle",
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
    return profiles, assumptions, surrogate


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
        "Settings that are changed after a look at private votes, or at values marked private, "
        "are tuned on private data, and no ε accounts for that."
    )
    return assumptions


# --- a recipe and a plot --------------------------------------------------------------------------


def write_planned(
    path: Path,
    planned: Planned,
    *,
    source: str,
    settings: Sequence[str],
    comment: Sequence[str],
    force: bool = False,
) -> None:
    """Write the recipe at ``source`` with the plan in place of its own values.

    Keys that it leaves to defaults stay out. An existing file is replaced only with ``force``.
    """
    given = _keys_in(find_recipe(source).read_text(encoding="utf-8-sig"), settings)
    best, budget = planned.proposal.best, planned.proposal.budget
    plan: dict[str, dict[str, Any]] = {
        "teachers": {"count": best.teachers},
        "aggregate": best.spec.model_dump(mode="json", exclude_unset=True),
        "privacy": {"epsilon": budget.epsilon, "delta": budget.delta},
    }
    full = planned.recipe.model_dump(mode="json", exclude_unset=True)
    content: dict[str, dict[str, Any]] = {}
    for name in Recipe.model_fields:
        kept = {key: full[name][key] for key in given.get(name, ()) if key in full.get(name, {})}
        if name == "aggregate":
            kept = _choosing(kept)
        if merged := kept | plan.get(name, {}):
            content[name] = {key: value for key, value in merged.items() if value is not None}
    Recipe.model_validate(content)
    lines = [f"# {line}".rstrip() for line in comment]
    for section, keys in content.items():
        lines += ["", f"[{section}]", *(f"{k} = {_value(v)}" for k, v in keys.items())]
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except FileExistsError:
        raise InvalidInput(f"{path} exists; add --force to replace it") from None
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error


def _keys_in(text: str, settings: Sequence[str]) -> dict[str, list[str]]:
    """Return the keys of each section that a recipe's text and ``--set`` give, in their order.

    >>> _keys_in('[data]\\nname = "digits"', ["data.test=30", "teachers.params.depth=2"])
    {'data': ['name', 'test'], 'teachers': ['params']}
    """
    sections = tomllib.loads(text).items()
    given = {name: list(keys) for name, keys in sections if isinstance(keys, dict)}
    for setting in settings:
        section, key = setting.partition("=")[0].strip().split(".")[:2]
        if key not in given.setdefault(section, []):
            given[section].append(key)
    return given


def _choosing(aggregate: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that choose inputs: not planned, so they stay."""
    used = {"random": ("choose_seed",), "uncertain": ("rounds",)}
    keys = ("choose", *used.get(aggregate.get("choose", ""), ()))  # no plan is interactive
    return {key: aggregate[key] for key in keys if key in aggregate}


def _value(value: Any) -> str:
    """Return a value in TOML, with a line for each table of a list."""
    if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        return "[\n" + "".join(f"  {to_toml(each)},\n" for each in value) + "]"
    return to_toml(value)


def plot_trade(proposal: Proposal, path: Path, *, title: str) -> None:
    """Plot how often one teacher, the plurality, and labels at ε are right, over the teachers."""
    rows = proposal.over_teachers
    counts = [row.teachers for row in rows]
    with new_figure() as figure:
        axes = plain_axes(figure.subplots(), title=title, x="teachers", y="right, %")
        axes.plot(counts, [100 * row.teacher_accuracy for row in rows], "o--", color=COLOURS[1],
                  label="one teacher")  # fmt: skip
        axes.plot(counts, [100 * row.plurality_accuracy for row in rows], "s-", color=COLOURS[0],
                  label="plurality of all, without noise")  # fmt: skip
        planned = round(proposal.best.answered)
        for number, right in proposal.trade.items():
            main = number == min(proposal.trade, key=lambda each: abs(each - planned))
            axes.plot(
                counts,
                [100 * share for share in right],
                "-" if main else ":" if number < planned else "-.",
                marker="D" if main else None,
                color=COLOURS[2],
                linewidth=2.2 if main else 1.4,
                alpha=1.0 if main else 0.7,
                label=f"labels of gnmax, {number} at ε = {proposal.budget.epsilon:g}",
            )
        best = proposal.best
        axes.plot(best.teachers, 100 * best.label_accuracy, marker="*", markersize=17,
                  color=COLOURS[3], linestyle="none", zorder=5,
                  label=f"proposed: {best.spec.mechanism}, {best.teachers} teachers")  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_ylim(top=101)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        try:
            kind = path.suffix.removeprefix(".").lower() or "png"
            path.write_bytes(render_figure(figure, kind))
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot plot {path}: {error}") from error
