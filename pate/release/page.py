"""``report.html`` of a release: the page of its run, written from the JSON files alone.

So whoever has the release can write it again, and compare it byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from pate.accounting import Conversion
from pate.mechanisms import make_mechanism
from pate.metrics import Share
from pate.release.contents import recipe_of
from pate.release.figures import of_plan, read_events
from pate.report.curves import cost_curves, moment_profile
from pate.report.facts import ClassRow, Facts, Figure, warnings_of
from pate.report.page import build_page

PAGE = "report.html"


def write_page(
    statement: Mapping[str, Any], header: Mapping[str, Any], release: Mapping[str, Any]
) -> str:
    """The page as HTML. A comparison stays at home: no charge here covers what was compared."""
    return build_page(_facts(statement, header["class_names"], release))


def _facts(statement: Mapping[str, Any], names: list[str], release: Mapping[str, Any]) -> Facts:
    recipe = recipe_of(release)
    evaluation, answers, figure = release["evaluation"], release["answers"], statement["sanitised"]
    events = tuple(read_events(statement["labels"]))
    plan = recipe.plan(inputs=release["public_inputs"])
    extended = statement["counted"] == "ledger"
    delta, conversion = recipe.privacy.delta, Conversion(recipe.privacy.conversion)
    shares = {
        name: None if evaluation[name] is None else Share.of(evaluation[name])
        for name in ("student", "labels", "agreement")
    }
    assert shares["student"] is not None
    return Facts(
        recipe=recipe,
        protects=statement["protects"],
        neighbours=statement["guarantee"]["neighbours"],
        guarantee=_figure(statement["guarantee"]),
        plan={
            each.value: _figure(of_plan(events, delta=delta, conversion=each).as_json())
            for each in Conversion
        },
        sanitised=None if figure is None else _figure(figure),
        confidence=None if figure is None else figure["confidence"],
        price=None if figure is None else figure["price"],
        why_not=release["why_not"],
        events=events,
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
        classes=_classes(names, answers["by_class"], evaluation["confusion"]),
        confusion=tuple(map(tuple, evaluation["confusion"])),
        student=shares["student"],
        labels=shares["labels"],
        agreement=shares["agreement"],
        all_releases=_figure(statement["data_set"]["guarantee"]),
        seeded=False,
        extended=extended,
        warnings=(*warnings_of(recipe, seeded=False, extended=extended), *release["notes"]),
        digests=(),
        versions=release["versions"],
        written=date.fromisoformat(release["date"]),
    )


def _figure(figure: Mapping[str, Any]) -> Figure:
    return Figure(**{key: figure[key] for key in ("epsilon", "delta", "moment", "conversion")})


def _classes(
    names: list[str], labels: list[int], confusion: list[list[int]]
) -> tuple[ClassRow, ...]:
    return tuple(
        ClassRow(
            name=name,
            labels=count,
            records=sum(confusion[at]),
            right=confusion[at][at],
            said=sum(row[at] for row in confusion),
        )
        for at, (name, count) in enumerate(zip(names, labels, strict=True))
    )
