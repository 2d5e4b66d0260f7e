"""The page: its frame, its sections in order, its style and its few lines of script.

Guarantees:
    * Everything is in the one file. Its own security policy forbids it to load anything: a browser
      makes no request for it.
    * Every text from a recipe or a data set is escaped (:mod:`pate.report.markup`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib import resources

from pate._format import (
    format_epsilon_fixed as epsilon,
)
from pate._format import (
    format_number as plain,
)
from pate._format import (
    format_percent as percent,
)
from pate._format import (
    strength,
)
from pate.report import contest, private_sections, sections
from pate.report.facts import Facts
from pate.report.markup import Markup, join, tag

STAMP = "PRIVATE – do not publish"

# Identifier, name in the navigation, and what it says; None leaves a section out.
_SECTIONS: tuple[tuple[str, str, Callable[[Facts], Markup | None]], ...] = (
    ("warnings", "Warnings", sections.warnings),
    ("guarantee", "Guarantee", sections.guarantee),
    ("run", "Run", sections.run),
    ("cost", "Cost", sections.cost),
    ("labels", "Labels", sections.consensus),
    ("student", "Student", sections.student),
    ("comparison", "Comparison", contest.comparison),
    ("raw", "Raw panels", private_sections.raw),
    ("provenance", "Provenance", sections.provenance),
)


def build_page(facts: Facts) -> str:
    """The whole page as HTML; the same facts give the same page, byte by byte."""
    made = [(name, title, part(facts)) for name, title, part in _SECTIONS]
    there = [(name, title, part) for name, title, part in made if part is not None]
    private = facts.private is not None
    script = _file("page.js")
    title = f"{facts.recipe.data.name}: privacy report"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{STAMP}: {title}" if private else title),
        tag("style", Markup(_file("page.css") + (_file("private.css") if private else ""))),
    )
    body = tag(
        "body",
        tag("a", "Skip to the report", href="#report", class_="skip"),
        tag("div", STAMP, class_="stamp", role="note") if private else "",
        tag("div", tag("span", STAMP), class_="watermark", aria_hidden="true") if private else "",
        _header(facts),
        _navigation([(name, title) for name, title, _ in there]),
        tag("main", *(_section(name, part) for name, _, part in there), id="report", tabindex="-1"),
        tag("footer", f"Written by pate {facts.versions['pate']} on {facts.written.isoformat()}. "
            + ("This page holds private figures. Keep it where the private data is." if private
               else "This page holds public and released figures only.")),
        tag("script", Markup(script)),
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _file(name: str) -> str:
    return resources.files("pate.report").joinpath(name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def _header(facts: Facts) -> Markup:
    word, _ = strength(facts.guarantee.epsilon)
    share, student = facts.answered, facts.student
    cards = [
        ("Privacy guarantee", f"ε = {epsilon(facts.guarantee.epsilon)}",
         "does not hold: seeded noise" if facts.seeded
         else f"δ = {plain(facts.guarantee.delta)}; {word}"),
        ("Student’s accuracy", percent(student.accuracy),
         f"{percent(student.low)} to {percent(student.high)}, of {plain(student.records)}"),
        ("Labels released", plain(share), f"of {plain(facts.asked)} queries asked"),
        ("Teachers", plain(facts.recipe.teachers.count), "at most one vote each on a query"),
    ]  # fmt: skip
    if facts.sanitised is not None and facts.sanitised.epsilon < facts.guarantee.epsilon:
        cards.insert(
            1,
            (
                "Sanitised ε",
                epsilon(facts.sanitised.epsilon),
                "does not hold"
                if facts.seeded
                else f"{percent(facts.confidence or 0, 0)} sure; at this data, one direction",
            ),
        )
    lead = (
        "This run used seeded noise and is not private. The page shows what it would have come to."
        if facts.seeded
        else "What was learnt from private data, what of it was released, and how much the release "
        "can tell about any one record."
    )
    return tag(
        "header",
        tag("p", "Privacy report", class_="eyebrow"),
        tag("h1", facts.recipe.data.name),
        tag("p", lead, class_="lead"),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", value, class_="big"),
                        tag("dd", more, class_="small")) for name, value, more in cards),
            class_="figures"),
    )  # fmt: skip


def _navigation(names: list[tuple[str, str]]) -> Markup:
    links = [tag("li", tag("a", title, href=f"#{name}")) for name, title in names]
    return tag("nav", tag("ul", *links), aria_label="Sections")


def _section(name: str, part: Markup) -> Markup:
    kind = "private-panel" if name == "raw" else None
    return tag("section", join(part), id=name, aria_labelledby=f"{name}-title", class_=kind)
