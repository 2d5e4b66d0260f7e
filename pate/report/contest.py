"""The section on other methods: rows that may be published, and what publishing them costs."""

from __future__ import annotations

from pate._format import compare_neighbours, describe_neighbours
from pate._format import (
    format_epsilon_fixed as epsilon,
)
from pate._format import (
    format_number as plain,
)
from pate._format import (
    format_percent as percent,
)
from pate.report import plots
from pate.report.comparison import Contender, Terms
from pate.report.facts import Facts
from pate.report.markup import Markup, join, tag
from pate.report.tables import Cell, table

_NONE = "–"


def comparison(facts: Facts) -> Markup | None:
    """Accuracy at each ε, side by side; None where nothing was compared."""
    rows = facts.comparison
    if not rows:
        return None
    terms = rows[0].terms
    alike = len({row.neighbours for row in rows if row.neighbours}) == 1
    times = "once" if terms.repetitions == 1 else f"{terms.repetitions} times"
    return join(
        tag("h2", "Beside other methods", id="comparison-title"),
        tag("p", "PATE and DP-SGD, which adds noise to the gradients of one model, learnt from the "
            "same private records and were tested on the same test records, at the same ε and at "
            f"δ = {plain(terms.delta)}, {times} each"
            + ("" if terms.repetitions == 1 else ", with other shards, first weights and noise")
            + "."),
        tag("div", tag("p", tag("strong", "What this section costs. "), _cost(terms)),
            class_="notice"),
        tag("figure", plots.comparison_picture(facts),
            tag("figcaption", "Accuracy on the same test records"
                + (", with the standard deviation over repetitions." if terms.repetitions > 1
                   else "."))),
        table(
            "Methods on the same split: mean accuracy, its standard deviation over repetitions, and"
            " the 95 % interval that so many test records leave (Wilson)",
            ["Method", "ε", "Accuracy", "±", "95 % interval", *([] if alike else ["Neighbours"])],
            [_row(each, alike=alike) for each in rows],
            numeric=(1, 2, 3),
        ),
        tag("p", _differences(rows), class_="small"),
    )  # fmt: skip


def _row(row: Contender, *, alike: bool) -> list[Cell | object]:
    cost = Cell(_NONE, -1.0) if row.epsilon is None else Cell(epsilon(row.epsilon), row.epsilon)
    spread = Cell(_NONE, -1.0) if row.spread is None else Cell(percent(row.spread), row.spread)
    return [
        row.name,
        cost,
        Cell(percent(row.accuracy), row.accuracy),
        spread,
        f"{percent(row.low)} to {percent(row.high)}",
        *([] if alike else [describe_neighbours(row.neighbours) if row.neighbours else _NONE]),
    ]


def _cost(terms: Terms) -> str:
    alone = (
        "It rests on every run that was compared. A run alone costs the ε of its row; to publish "
        "this section costs all of them together"
    )
    if terms.epsilon_together is None or terms.delta_together is None:
        return f"{alone}, for which nothing can be promised of one record replaced."
    relation = describe_neighbours(terms.neighbours_together or "")
    return (
        f"{alone}: ε = {epsilon(terms.epsilon_together)} at δ = {plain(terms.delta_together)} "
        f"for {relation}. The guarantee at the head of this page is that of its own run, without "
        "this section."
    )


def _differences(rows: tuple[Contender, ...]) -> str:
    relations = {row.method: row.neighbours for row in rows if row.neighbours}
    if {"pate", "dpsgd"} <= relations.keys():
        same = compare_neighbours(relations["pate"], relations["dpsgd"])
    else:  # a row may not be published
        phrases = map(describe_neighbours, sorted({*relations.values()}))
        same = f"All ε here are for {' and '.join(phrases)}."
    return (
        f"{same} They are data-independent. How the settings of either method were chosen is in no "
        "ε. Methods without an ε used no private record."
    )
