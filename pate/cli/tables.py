"""Reports as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from pate._format import SAME_AT_PUBLIC_RATE, describe_neighbours

_TITLES = {
    "data_independent": "data-independent",
    "data_dependent": "data-dependent",
    "all_answered": "if all were answered",
}


def show_report(report: dict[str, Any]) -> None:
    """A line on what was asked, and a row for each guarantee."""
    guarantees = {key: report[key] for key in _TITLES if key in report}
    plain = {
        key: value
        for key, value in report.items()
        if key not in guarantees and not (key in ("epsilon", "moment") and guarantees)
    }
    console = Console(width=None if Console().is_terminal else 100)
    facts = Table(show_header=False, box=None, pad_edge=False)
    for key, value in plain.items():
        text = f"{value:.10g}" if isinstance(value, float) else str(value)
        facts.add_row(key.replace("_", " "), text)
    console.print(facts)
    console.print()
    table = Table()
    for heading, justify in (("cost", "left"), ("ε", "right"), ("λ", "right"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for key, guarantee in guarantees.items():
        moment = guarantee["moment"]
        table.add_row(
            _TITLES[key],
            f"{guarantee['epsilon']:.6g}",
            "" if moment is None else f"{moment:g}",
            "may be published" if guarantee["publishable"] else "private: do not publish",
        )
    console.print(table)
    console.print(_reading(report), soft_wrap=True)


def _reading(report: dict[str, Any]) -> str:
    guarantee = report["data_independent"]
    text = (
        f"δ = {guarantee['delta']:g}; neighbours: {describe_neighbours(guarantee['neighbours'])}."
    )
    if report.get("mechanism") == "dpsgd":
        text += f" {SAME_AT_PUBLIC_RATE.capitalize()}."
    if "data_dependent" in report:
        text += " The data-dependent ε was worked out from private votes and is itself private."
    if "expected_answered" in report:
        text += " Costs are expected costs, for planning; a run pays for what it answers."
    return text
