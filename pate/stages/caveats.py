"""The ε of a run to quote, and its caveats: unprotected people, and traces of tuning.

A run's ε holds for settings that were chosen without a look at the data, as ``pate plan`` does it.
What a person looked at cannot be known; what left a trace can, and ``pate run``, the report and the
model card show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pate._format import describe_neighbours, format_cost, in_nouns
from pate.accounting import Guarantee, Ledger, Neighbours
from pate.accounting.ledger.data_set import NOT_PRIVATE, sibling_ledger
from pate.accounting.ledger.known_records import other_ledgers
from pate.artifacts.results import (
    LABELS,
    SANITISED,
    Costs,
    Labels,
    StatedGuarantee,
    charge_name,
    drawn_for,
)
from pate.datasets.roles import unprotected_people
from pate.datasets.spec import DataSpec
from pate.mechanisms import AggregateSpec
from pate.pipeline.runner import PipelineRun
from pate.stages.exactly_once import charges_behind

if TYPE_CHECKING:
    from pate.accounting.ledger.study_costs import TotalStudyCost

LOOKS = "votes-looked-at.jsonl"  # a line for each look at a run's votes, in its private folder


def tuning_caveats(run: PipelineRun, ledger: Ledger) -> list[str]:
    """Return a sentence for everything that this run's own ε does not cover.

    People whose records are not private come first, then traces of tuning; that of the study, where
    the labels belong to one, is the last.
    """
    people = unprotected_people(run.recipe.data)
    found, traces = [] if people is None else [people], _Traces.of(run, ledger)
    if traces.others:
        found.append(
            f"{_times(traces.others, 'other release was', 'other releases were')} drawn from this "
            "data set. If what came out led to the choice of these settings, this run's own ε does "
            "not account for that tuning; the ε of the whole data set does."
        )
    seeded = run.options.insecure_seed is not None  # it is marked as not private
    found += _seeded(traces.seeded)
    if traces.looks:
        found.append(
            f"Votes in this folder were given to `pate epsilon` "
            f"{_times(traces.looks, 'time', 'times')}. Settings chosen by its output are tuned on "
            "private votes: that is not accounted for by any ε."
        )
    if seeded:  # then nothing is a guarantee in any case
        return found
    found += _of_other_method(ledger) + charged_elsewhere(ledger) + _compared(run, ledger)
    return [in_nouns(each, **run.recipe.nouns) for each in found]


def training_caveats(
    ledger: Ledger, own: Sequence[str], *, data: DataSpec, nouns: Mapping[str, str] | None = None
) -> list[str]:
    """Return the same for a model trained by DP-SGD on ``data``, by the names of its charges.

    That of the study, where the model belongs to one, is the last. ``nouns`` are those of the
    recipe for one record and for one user.
    """
    people, charges = unprotected_people(data), ledger.charges()
    found = [] if people is None else [people]
    others = sum(each.release not in own for each in charges)
    if others:
        found.append(
            f"{_times(others, 'other model was', 'other models were')} trained on this data set "
            "by DP-SGD. If what came out led to the choice of these settings, this run's own ε "
            "does not account for that tuning; the ε of all DP-SGD releases does."
        )
    compared = [
        f"This model, or another trained with the same settings, is among {study.releases} "
        "releases that were made to be compared. Whoever chose it by their results has spent "
        f"what all of them cost: {study.describe()}."
        for study in studies_behind(ledger, own)
    ]
    notes = _seeded(_seeded_releases(ledger)) + _of_other_method(ledger) + charged_elsewhere(ledger)
    return [in_nouns(each, **(nouns or {})) for each in found + notes + compared]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traces:
    """Counts of what may have led to the settings of a run, and is in none of its ε."""

    others: int  # releases, before or after: one may go back to settings after others were tried
    seeded: int  # releases with seeded noise
    looks: int  # at private votes

    @classmethod
    def of(cls, run: PipelineRun, ledger: Ledger) -> Self:
        extended = Labels.load(run.artifact("aggregate")).extended
        record = run.folder / "private" / LOOKS
        return cls(
            others=0 if extended else _other_releases(run, ledger),
            seeded=0 if run.options.insecure_seed is not None else _seeded_releases(ledger),
            looks=len(record.read_text().splitlines()) if record.is_file() else 0,
        )


def publish_line(run: PipelineRun, ledger: Ledger) -> str:
    """Return the one line of a run to quote: its guarantee, or the one that holds in its place.

    It ends the summary of ``pate run``. What the guarantee includes, or may not cover, is a clause.
    """
    costs = Costs.load(run.artifact("account"))
    own = _quoted(costs.guarantee, run.recipe.unit)
    if costs.seeded:
        return (
            "Publish: no ε, because the noise was seeded and this run is NOT PRIVATE; with secret "
            f"noise it would be {own}."
        )
    if not costs.guarantee.publishable:
        return f"Publish: no ε, because {'; '.join(costs.guarantee.caveats)}."
    names, relation = _own_names(run), run.recipe.neighbours
    studies = studies_behind(ledger, names, one_teacher=relation)
    if studies:
        releases = f"the {sum(study.releases for study in studies)} releases compared with it"
        known = [study.together for study in studies if study.together is not None]
        if len(known) < len(studies):
            return f"Publish: no ε, because {releases} together have no guarantee."
        whole = max(known, key=lambda each: each.epsilon)
        return f"Publish: {_quoted(whole, run.recipe.record_unit)}, which covers {releases}."
    included = ""
    if costs.sanitised is not None and costs.sanitised.price:
        included = ", the price of its sanitised ε included"
    elif run.recipe.selection is not None:
        included = ", the choice of its settings included"
    traces, unless = _Traces.of(run, ledger), ""
    if traces.seeded or traces.looks:
        unless = "; no ε, if a look at private votes led to these settings"
    elif traces.others:
        total = ledger.data_set_total()
        unless = (
            f"; the whole data set's {format_cost(total.epsilon, total.delta)}, if another release "
            "led to the choice of these settings"
        )
    return f"Publish: {own}{included}{unless}."


def _quoted(guarantee: StatedGuarantee | Guarantee, unit: str) -> str:
    return (
        f"{format_cost(guarantee.epsilon, guarantee.delta)}, for "
        f"{describe_neighbours(guarantee.neighbours, unit)}"
    )


def studies_behind(
    ledger: Ledger, own: Sequence[str], *, one_teacher: Neighbours | None = None
) -> tuple[TotalStudyCost, ...]:
    """Return the studies whose results may have led to a release, by the names of its charges.

    Labels of a study, and what builds on them, count; and so do other draws of the same votes, and
    later ones with the same settings, or with a choice among them: whoever draws once more, with a
    study's results at hand, what did best in it has chosen by them just the same.

    Guarantees:
        The cost of a study is that of its plan only if the labels are part of it, and of no other
        study; otherwise the ledgers' total of all their releases, these labels among them.
    """
    charges = ledger.charges()
    # "labels VOTES DRAW": other draws of the votes count. "dpsgd DRAW" stands for itself.
    begins = tuple(f"{name.rpartition(' ')[0]} " if name.count(" ") > 1 else name for name in own)
    drawn = [each for each in charges if each.release.startswith(tuple(own))]
    settings = frozenset[str]().union(*(each.settings for each in drawn))
    last = max((each.number for each in drawn), default=0)
    names = {
        study
        for each in charges
        if each.release.startswith(begins) or (each.settings & settings and each.number < last)
        for study in each.studies
    }
    if not names:
        return ()
    from pate.accounting.ledger.study_costs import total_study_costs

    inside = len(names) == 1 and drawn != [] and all(names <= set(each.studies) for each in drawn)
    return total_study_costs(ledger, among=names, one_teacher=one_teacher, by_plan=inside)


def _compared(run: PipelineRun, ledger: Ledger) -> list[str]:
    relation = run.recipe.neighbours
    return [
        f"These labels, or others drawn with the same settings, are among {study.releases} "
        "releases that were made to be compared. Whoever chose them by their results has spent "
        f"what all of them cost: {study.describe()}."
        for study in studies_behind(ledger, _own_names(run), one_teacher=relation)
    ]


def _of_other_method(ledger: Ledger) -> list[str]:
    """Return the cost of the other method on the same data, which has a ledger of its own."""
    other = sibling_ledger(ledger.path)
    if not other.exists():
        return []
    with Ledger.open(other) as second:
        made, whole = len(second.charges()), second.guarantee()
    if not made:
        return []
    votes = whole.neighbours is Neighbours.REPLACE_ONE
    here, there = ("DP-SGD", "PATE") if votes else ("PATE", "DP-SGD")
    relation = "one teacher changed" if votes else describe_neighbours(whole.neighbours)
    return [
        f"{_times(made, 'release', 'releases')} of this data set by {there}: "
        f"{format_cost(whole.epsilon, whole.delta)} in all, for "
        f"{relation}, by a ledger of its own. That is on top of the ε of all {here} releases."
    ]


def charged_elsewhere(ledger: Ledger) -> list[str]:
    """Return the cost of the same records by other ledgers, under another name or data root."""
    found = []
    for path in other_ledgers(ledger.path):
        with Ledger.open(path) as other:
            total = other.data_set_total()
        found.append(
            "The same records were charged to another ledger, too: "
            f"{format_cost(total.epsilon, total.delta)} so far. That "
            "is on top of every ε here."
        )
    return found


def _own_names(run: PipelineRun) -> list[str]:
    """Return the names of the charges of the run's labels, or their beginning if they are gone."""
    drawn = str(drawn_for(run.artifact("aggregate")))
    return charges_behind(run.store, LABELS, drawn) or [charge_name(LABELS, drawn)]


def _other_releases(run: PipelineRun, ledger: Ledger) -> int:
    """Count the releases of labels that were paid for besides this run's own.

    Other draws with its very settings count: the best of them may have been taken. A sanitised ε
    belongs to its labels and is not counted again.
    """
    drawn = [e.release for e in ledger.charges() if not e.release.startswith(f"{SANITISED} ")]
    own = any(release.startswith(_own_names(run)[0]) for release in drawn)
    return len(drawn) - own


def _seeded_releases(ledger: Ledger) -> int:
    """Count the releases of a data set that were not private; they are kept in other ledgers."""
    place = ledger.path.with_name(f"{ledger.path.name.removesuffix('.ledger')}.{NOT_PRIVATE}")
    count = 0
    for each in (place, sibling_ledger(place)):
        if each.exists():
            with Ledger.open(each) as ledger:
                names = [charge.release for charge in ledger.charges()]
            count += sum(not name.startswith(f"{SANITISED} ") for name in names)
    return count


def _seeded(count: int) -> list[str]:
    if not count:
        return []
    return [
        f"{_times(count, 'release', 'releases')} of this data set had seeded noise. Settings "
        "chosen by them are tuned on private records: that is not accounted for by any ε."
    ]


def sanitised_caveat(spec: AggregateSpec) -> str:
    """Return what a sanitised ε promises and what it does not.

    >>> from pate.mechanisms import AggregateSpec
    >>> sanitised_caveat(AggregateSpec(scale=20.0)).endswith("not the other way round.")
    True
    """
    caveat = (
        "The sanitised ε holds for the data at hand and in one direction: it bounds how much more "
        "likely the release is with this data than with a neighbour, not the other way round."
    )
    if spec.cost_follows_answers:
        caveat += " It is ex post: it covers the answers that were given, not all possible ones."
    return caveat


def _times(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
