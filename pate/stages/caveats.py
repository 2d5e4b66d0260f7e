"""Caveats of a run's ε: traces of tuning on the private data, and the scope of a sanitised ε.

A run's ε holds for settings that were chosen without a look at the data, as ``pate plan`` does it.
What a person looked at cannot be known; what left a trace can, and ``pate run``, the report and the
model card show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pate._format import describe_neighbours, format_epsilon
from pate.accounting import Ledger, Neighbours
from pate.accounting.ledger.data_set import sibling_ledger
from pate.artifacts.results import LABELS, SANITISED, Labels, charge_name, drawn_for
from pate.mechanisms import AggregateSpec
from pate.pipeline.ledger import ledger_path
from pate.pipeline.runner import PipelineRun
from pate.stages.exactly_once import charges_behind

if TYPE_CHECKING:
    from pate.accounting.ledger.study_costs import TotalStudyCost

LOOKS = "votes-looked-at.jsonl"  # a line for each look at a run's votes, in its private folder


def tuning_caveats(run: PipelineRun, ledger: Ledger) -> list[str]:
    """Return a sentence for each trace of tuning that this run's own ε does not cover.

    That of the study, where the labels belong to one, is the last.
    """
    found = []
    extended = Labels.load(run.artifact("aggregate")).extended
    earlier = 0 if extended else _earlier_releases(run, ledger)
    if earlier:
        found.append(
            f"{_times(earlier, 'other release was', 'other releases were')} drawn from this data "
            "set before. If what came out led to these settings, this run's own ε does not account "
            "for that tuning; the ε of all PATE releases, to be published, does."
        )
    seeded = _seeded_releases(run)
    if seeded:
        found.append(
            f"{_times(seeded, 'release', 'releases')} of this data set had seeded noise. Settings "
            "chosen by them are tuned on private votes: that is not accounted for by any ε."
        )
    record = run.folder / "private" / LOOKS
    looks = len(record.read_text().splitlines()) if record.is_file() else 0
    if looks:
        found.append(
            f"Votes in this folder were given to `pate epsilon` {_times(looks, 'time', 'times')}. "
            "Settings chosen by its output are tuned on private votes: that is not accounted for "
            "by any ε."
        )
    if run.options.insecure_seed is not None:  # then nothing is a guarantee in any case
        return found
    return found + _trained(ledger) + _compared(run, ledger)


def studies_behind(
    ledger: Ledger, own: Sequence[str], *, one_teacher: Neighbours
) -> tuple[TotalStudyCost, ...]:
    """Return the studies whose results may have led to labels, by the names of their charges.

    Labels of a study, and what builds on them, count; and so do other draws of the same votes, and
    later ones with the same settings, or with a choice among them: whoever draws once more, with a
    study's results at hand, what did best in it has chosen by them just the same.

    Guarantees:
        The cost of a study is that of its plan only if the labels are part of it, and of no other
        study; otherwise the ledgers' total of all their releases, these labels among them.
    """
    charges = ledger.charges()
    begins = tuple(f"{name.rpartition(' ')[0]} " for name in own)
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
    relation = run.recipe.partition.neighbours
    return [
        f"These labels, or others drawn with the same settings, are among {study.releases} "
        "releases that were made to be compared. Whoever chose them by their results has spent "
        f"what all of them cost: {study.describe()}."
        for study in studies_behind(ledger, _own_names(run), one_teacher=relation)
    ]


def _trained(ledger: Ledger) -> list[str]:
    """Return the cost of DP-SGD on the same data, which has a ledger of its own."""
    other = sibling_ledger(ledger.path)
    if not other.exists():
        return []
    with Ledger.open(other) as second:
        trained, whole = len(second.charges()), second.guarantee()
    if not trained:
        return []
    return [
        f"{_times(trained, 'release', 'releases')} of this data set by DP-SGD: "
        f"ε = {format_epsilon(whole.epsilon)} at δ = {format_epsilon(whole.delta)} in all, for "
        f"{describe_neighbours(whole.neighbours)}, by a ledger of its own. That "
        "is on top of the ε of all PATE releases."
    ]


def _own_names(run: PipelineRun) -> list[str]:
    """Return the names of the charges of the run's labels, or their beginning if they are gone."""
    drawn = str(drawn_for(run.artifact("aggregate")))
    return charges_behind(run.store, LABELS, drawn) or [charge_name(LABELS, drawn)]


def _earlier_releases(run: PipelineRun, ledger: Ledger) -> int:
    """Count the releases of labels that were paid for before this run's own.

    Other draws with its very settings count: the best of them may have been taken. A sanitised ε
    belongs to its labels and is not counted again.
    """
    charges = ledger.charges()
    name = _own_names(run)[0]
    # If the draw is gone, the last one that it can be.
    own = [each.number for each in charges if each.release.startswith(name)]
    before = [each.release for each in charges if not own or each.number < own[-1]]
    return sum(not release.startswith(f"{SANITISED} ") for release in before)


def _seeded_releases(run: PipelineRun) -> int:
    if run.options.insecure_seed is not None:  # it is marked as not private
        return 0
    place = ledger_path(run.recipe, run.options.data_root, seeded=True)
    count = 0
    for each in (place, sibling_ledger(place)):
        if each.exists():
            with Ledger.open(each) as ledger:
                names = [charge.release for charge in ledger.charges()]
            count += sum(not name.startswith(f"{SANITISED} ") for name in names)
    return count


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
