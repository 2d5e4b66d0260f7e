"""What only the private page says."""

from __future__ import annotations

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
from pate.report.facts import Facts
from pate.report.markup import Markup, join, tag
from pate.report.tables import Cell, table


def raw(facts: Facts) -> Markup | None:
    """The raw panels; None on the public page."""
    private = facts.private
    if private is None:
        return None
    rows: list[list[Cell | object]] = []
    if private.dependent is not None:
        rows += [
            [
                "Data-dependent ε",
                Cell(epsilon(private.dependent.epsilon), private.dependent.epsilon),
                "worked out from the votes, and so itself private",
            ],
            [
                "ε of what was answered",
                Cell(epsilon(private.reading.epsilon), private.reading.epsilon),
                "a reading: how much was answered was not fixed in advance",
            ],
        ]
    if private.reference is not None:
        rows.append(
            [
                "Student without privacy",
                Cell(percent(private.reference.accuracy), private.reference.accuracy),
                "the student’s model trained on the private labels themselves",
            ]
        )
    for name, value in private.shards.items():
        rows.append(
            [
                name.replace("_", " ").capitalize(),
                Cell(plain(value), value),
                "of the private records",
            ]
        )
    return join(
        tag("h2", "Raw panels", id="raw-title"),
        tag("p", tag("strong", "Nothing in this section is covered by the guarantee. "),
            "It was worked out from private data without noise."),
        table("Figures that may not be published", ["Figure", "Value", "What it is"], rows,
              numeric=(1,)),
        tag("h3", "How far teachers agree"),
        tag("figure", plots.consensus_picture(private.winners),
            tag("figcaption", "Queries that were asked, by the share of teachers behind the "
                "winner, before any noise.")),
        "" if private.dependent_curve else tag("p", _no_curve(facts), class_="small"),
    )  # fmt: skip


def _no_curve(facts: Facts) -> str:
    if facts.recipe.selection is not None:
        return (
            "The settings were chosen privately among several: the votes behind the winner do not "
            "tell what the choice cost, so there is no data-dependent ε."
        )
    return (
        "The data-dependent ε of an interactive release hangs on the student of each round; it is "
        "given in sum only."
    )
