"""``MODEL_CARD.md`` and ``report.html`` of a release, written from its JSON files alone.

So whoever has the release can write both again and compare them byte for byte. Templates belong to
a format: those of format 2 are kept in ``format_2`` and are never edited.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Any

from markupsafe import Markup
from pydantic import ValidationError

from pate._format import format_epsilon, format_factor, strength
from pate.accounting import BestOfTries, Conversion, Repeated
from pate.accounting.events import tally
from pate.datasets.catalogue import CATALOGUE
from pate.errors import InvalidInput
from pate.mechanisms import make_mechanism
from pate.metrics import Share
from pate.pipeline.recipe import Recipe
from pate.releases.files import FORMAT
from pate.releases.guarantee import guarantee_of_plan, read_events
from pate.report.curves import cost_curves, moment_profile
from pate.report.facts import ClassRow, Cost, Facts, recipe_text
from pate.report.page import render_page
from pate.report.templates import template

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#!|~]|:(?=//))")


def escape_markdown(value: object) -> Markup:
    r"""Return a value on one line, so that it is neither Markdown nor HTML.

    >>> print(escape_markdown("a  *b*"), escape_markdown("<img>"), escape_markdown("http://x"))
    a \*b\* &lt;img&gt; http\://x
    """
    if hasattr(value, "__html__"):
        return Markup(value)
    shown = "".join(each if each.isprintable() else " " for each in str(value))
    line = _MARKDOWN.sub(r"\\\1", " ".join(shown.split()))
    return Markup(line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def render_card(
    statement: Mapping[str, Any], header: Mapping[str, Any], release: Mapping[str, Any]
) -> str:
    """Return the model card as Markdown.

    It follows from ``guarantee.json``, ``student.json`` and ``release.json`` alone, to the last
    byte: so it can be checked.
    """
    recipe = recipe_of(release)
    events = tally(read_events(statement["labels"]))
    choice = next((event for event in events if isinstance(event, BestOfTries)), None)
    package, folder = _templates(release)
    return template(package, f"{folder}card.md.j2", escape=escape_markdown, joined=False).render(
        statement=statement,
        stated=statement["guarantee"],
        data_set=statement["data_set"],
        header=header,
        release=release,
        student=release["evaluation"]["student"],
        recipe=recipe,
        teacher_models=[entry.model for entry in recipe.teachers.mix] or [recipe.teachers.model],
        encoder_steps=[step.name for step in recipe.encoder.steps],
        events=[Repeated(event, count) for event, count in events.items() if event is not choice],
        choice=choice,
        candidates=[] if choice is None else list(Counter(choice.candidates).items()),
        epsilon=format_epsilon,
        factor=format_factor,
        strength=strength,
    )


def render_release_page(
    statement: Mapping[str, Any], header: Mapping[str, Any], release: Mapping[str, Any]
) -> str:
    """Return the page as HTML. A comparison is left out: no charge here covers it."""
    facts = _facts(statement, header["class_names"], release)
    package, folder = _templates(release)
    if not folder:
        package = "pate.report"
    return render_page(facts, package=package, name=f"{folder}page.html.j2")


def _templates(release: Mapping[str, Any]) -> tuple[str, str]:
    """Return the package and the folder of the templates of a release's format."""
    return "pate.releases", "" if release["format"] == FORMAT else f"format_{release['format']:d}/"


def _facts(statement: Mapping[str, Any], names: list[str], release: Mapping[str, Any]) -> Facts:
    recipe = recipe_of(release)
    evaluation, answers = release["evaluation"], release["answers"]
    sanitised = statement["sanitised"] or {}
    events = read_events(statement["labels"])
    plan = recipe.plan(inputs=release["public_inputs"])
    delta, conversion = recipe.privacy.delta, Conversion(recipe.privacy.conversion)
    student, labels, agreement = (
        None if evaluation[name] is None else Share.of(evaluation[name])
        for name in ("student", "labels", "agreement")
    )
    assert student is not None
    table = evaluation["confusion"]
    return Facts(
        recipe=recipe,
        recipe_text=recipe_text(recipe, like=release["recipe"]),
        protects=statement["protects"],
        guarantee=Cost.of(statement["guarantee"]),
        plan={
            each.value: Cost.of(guarantee_of_plan(events, delta=delta, conversion=each).as_json())
            for each in Conversion
        },
        sanitised=Cost.of(sanitised) if sanitised else None,
        confidence=sanitised.get("confidence"),
        price=sanitised.get("price"),
        why_not=release["why_not"],
        queries=plan.queries,
        answers=plan.answers,
        asked=answers["asked"],
        answered=answers["answered"],
        kept=answers["kept"],
        curves=cost_curves(
            make_mechanism(recipe.aggregate),
            queries=plan.queries,
            answers=plan.answers,
            delta=delta,
            conversion=conversion,
        ),
        profile=moment_profile(events, delta=delta, conversion=conversion),
        classes=tuple(
            ClassRow(
                name=name,
                labels=count,
                records=sum(table[at]),
                correct=table[at][at],
                predicted=sum(row[at] for row in table),
            )
            for at, (name, count) in enumerate(zip(names, answers["by_class"], strict=True))
        ),
        confusion=tuple(map(tuple, table)),
        student=student,
        labels=labels,
        agreement=agreement,
        all_releases=Cost.of(statement["data_set"]["guarantee"]),
        seeded=False,
        extended=statement["counted"] == "ledger",
        notes=tuple(release["notes"]),
        digests=(),
        versions=release["versions"],
        written=date.fromisoformat(release["date"]),
    )


def recipe_of(release: Mapping[str, Any]) -> Recipe:
    """Return the recipe in ``release.json``, every setting checked; its data are nowhere."""
    sections = dict(release["recipe"])
    if sections["data"]["name"] not in CATALOGUE:
        sections["data"] = sections["data"] | {"source": "-"}
    try:
        return Recipe.model_validate(sections)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise InvalidInput(
            f"recipe.{'.'.join(map(str, first['loc']))} is wrong: {first['msg']}"
        ) from None
