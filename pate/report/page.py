"""The page of a run: ``page.html.j2``, filled with facts, its style and its few lines of script.

Guarantees:
    * Everything is in the one file. Its own security policy forbids it to load anything: a browser
      makes no request for it.
    * Every text from a recipe or a data set is escaped (:mod:`pate.report.templates`).
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pate._files import write_atomically
from pate._format import (
    COMPOSITION_RULES,
    compare_neighbours,
    describe_neighbours,
    format_epsilon,
    format_epsilon_fixed,
    format_factor,
    format_number,
    format_percent,
    in_units,
    plural,
    strength,
)
from pate.pipeline.runner import PipelineRun
from pate.report import plots
from pate.report.disclosure import Disclosure, OwnerAnswers
from pate.report.epsilons import WHEN, why_above
from pate.report.facts import Facts, best_guess, gather_facts
from pate.report.templates import template
from pate.stages.caveats import sanitised_caveat

if TYPE_CHECKING:
    from pate.report.training import TrainingFacts

STAMP = "PRIVATE – do not publish"
_NAME = "report.html"
_FOUR_DIGITS = {
    "epsilon": partial(format_epsilon_fixed, digits=4),
    "rounded_up": partial(format_epsilon, digits=4),
}


def write_report(
    run: PipelineRun,
    file: Path | None = None,
    *,
    private: bool = False,
    with_confusion: bool = False,
) -> Path:
    """Write the page of a finished run and return its path: ``report.html`` by default.

    The ``private`` one, ``private/report.html`` by default, adds the votes in sum and the
    data-dependent ε: it may not be published. ``with_confusion`` shows the errors by class also of
    test records that are the user's own; the private page always does.

    Guarantees:
        The public page is made from RELEASED and PUBLIC artifacts only. The private one is stamped,
        and a file of mode 0600.
    """
    facts = gather_facts(run, confusion=private or with_confusion)
    if private:
        from pate.report.private import gather_private

        facts = replace(facts, private=gather_private(run))
    place = file or (run.folder / "private" / _NAME if private else run.folder / _NAME)
    page = render_page(facts, owner=None if facts.seeded else OwnerAnswers())
    write_atomically(place, page.encode(), mode=0o600 if private else 0o644)
    return place


def render_page(
    facts: Facts,
    *,
    owner: OwnerAnswers | None = None,
    package: str = "pate.report",
    name: str = "page.html.j2",
) -> str:
    """Return the page as HTML; the same facts give the same page, byte for byte.

    ``owner`` holds the owner's answers in the evaluation, which earlier formats lack (None).
    Templates of another ``package`` are those of an earlier format, which had four digits of an ε.
    """
    return fill_page(
        facts,
        owner=owner,
        package=package,
        name=name,
        css=("page.css",) if facts.private is None else ("page.css", "private.css"),
        stamp=STAMP,
        compare_neighbours=compare_neighbours,
        when=WHEN,
        why_above=why_above,
        composition_rules=COMPOSITION_RULES,
        sanitised_caveat=sanitised_caveat(facts.recipe.aggregate),
        **({} if package == "pate.report" else _FOUR_DIGITS),
    )


def fill_page(
    facts: Facts | TrainingFacts,
    *,
    name: str,
    owner: OwnerAnswers | None = None,
    package: str = "pate.report",
    css: Sequence[str] = ("page.css",),
    **more: Any,
) -> str:
    """Return a template of a page, filled with facts and with what formats them."""
    formats = {"epsilon": format_epsilon_fixed, "rounded_up": format_epsilon, **more}
    page = template(package, name).render(
        facts=facts,
        answers=() if owner is None else Disclosure.of(facts).answers(owner),
        plots=plots,
        guess=_guess(best_guess(facts.guarantee.epsilon, facts.guarantee.delta)),
        number=format_number,
        percent=format_percent,
        factor=format_factor,
        strength=strength,
        describe_neighbours=describe_neighbours,
        in_units=in_units,
        plural=plural,
        **page_frame(*css),
        **formats,
    )
    return f"<!DOCTYPE html>\n{page}\n"


def page_frame(*css: str) -> dict[str, Any]:
    """Return what every page has: its style, its script, and the policy that allows that alone."""
    script = _file("page.js")
    return {
        "policy": _policy(script),
        "css": Markup("".join(map(_file, css))),
        "script": Markup(script),
    }


def _file(name: str) -> str:
    return resources.files("pate.report").joinpath(name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def _guess(share: float) -> str | None:
    """Return how often a guess is right, rounded up; None if that is nearly always."""
    if share > 0.9999:
        return None
    digits = 2 if share > 0.99 else 1
    return format_percent(math.ceil(share * 100 * 10**digits) / 10**digits / 100, digits)
