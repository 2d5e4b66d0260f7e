"""``MODEL_CARD.md`` and ``report.html`` of a release, written from its JSON files alone.

So whoever has the release can write both again and compare them byte for byte. Templates belong to
a format: those of format 2 are kept in ``format_2`` and are never edited; what format 3 lacks (the
evaluation, a folder for hubs) the others leave out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache, partial
from typing import Any

from markupsafe import Markup
from pydantic import ValidationError

from pate._format import (
    COMPOSITION_RULES,
    TRAINING_RULES,
    describe_neighbours,
    format_delta,
    format_epsilon,
    format_factor,
    in_units,
    plural,
    strength,
)
from pate.accounting import (
    Accountant,
    Analysis,
    BestOfTries,
    Conversion,
    Event,
    Neighbours,
    Repeated,
    guarantee_of_plan,
)
from pate.accounting.events import tally
from pate.accounting.ledger.data_set import Coverage
from pate.accounting.ledger.running_total import states_records
from pate.datasets.catalogue import CATALOGUE
from pate.dpsgd_runs import DpsgdRecipe, plan_of
from pate.errors import InvalidInput
from pate.mechanisms import make_mechanism
from pate.metrics import Share
from pate.pipeline.recipe import Recipe
from pate.releases.files import is_training
from pate.releases.guarantee import analysis_of, read_events
from pate.releases.records import channels_of
from pate.report.disclosure import Disclosure, OwnerAnswers
from pate.report.facts import AnyRecipe, ClassRow, Cost, Facts, plan_curves, recipe_text
from pate.report.page import render_page
from pate.report.templates import template
from pate.report.training import (
    TrainingFacts,
    class_counts,
    cost_by_steps,
    majority_of,
    measured_epochs,
    render_training_page,
)
from pate.stages.selection import candidates_of, event_of

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


def owner_of(release: Mapping[str, Any]) -> OwnerAnswers | None:
    """Return the owner's answers in ``release.json``; None of a format without an evaluation."""
    return None if release["format"] < 4 else OwnerAnswers.read(release.get("owner") or {})


def disclosure_of(
    statement: Mapping[str, Any], header: Mapping[str, Any], release: Mapping[str, Any]
) -> Disclosure:
    """Return the terms in which conventions state the privacy of a release."""
    gather = _training_facts if is_training(release) else _facts
    return Disclosure.of(gather(statement, header["class_names"], release, curves=False))


def _answers(
    statement: Mapping[str, Any], header: Mapping[str, Any], release: Mapping[str, Any]
) -> tuple[Any, ...]:
    owner = owner_of(release)
    return () if owner is None else disclosure_of(statement, header, release).answers(owner)


def render_card(
    statement: Mapping[str, Any],
    header: Mapping[str, Any],
    release: Mapping[str, Any],
    *,
    hub: bool = False,
) -> str:
    """Return the model card as Markdown; with ``hub`` that of a folder for model hubs.

    It follows from ``guarantee.json``, ``student.json`` and ``release.json`` alone, to the last
    byte: so it can be checked.
    """
    if is_training(release):
        return _training_card(statement, header, release, hub=hub)
    recipe = recipe_of(release)
    events = tally(read_events(statement["labels"]))
    choice = next((event for event in events if isinstance(event, BestOfTries)), None)
    package, folder = _templates(release)
    return template(package, f"{folder}card.md.j2", escape=escape_markdown, joined=False).render(
        hub=hub,
        answers=_answers(statement, header, release),
        statement=statement,
        stated=statement["guarantee"],
        composition_rules=COMPOSITION_RULES,
        data_set=statement["data_set"],
        covers=_covers(statement),
        stated_apart=_stated_apart(statement),
        header=header,
        channels=channels_of,
        release=release,
        student=release["evaluation"]["student"],
        recipe=recipe,
        teacher_models=[]
        if recipe.by_records
        else [entry.model for entry in recipe.teachers.mix] or [recipe.teachers.model],
        mechanism=make_mechanism(recipe.aggregate),
        encoder_steps=[step.name for step in recipe.encoder.steps],
        events=[Repeated(event, count) for event, count in events.items() if event is not choice],
        choice=choice,
        candidates=[] if choice is None else list(Counter(choice.candidates).items()),
        epsilon=partial(format_epsilon, digits=4) if folder else format_epsilon,
        delta=format_delta,
        in_units=in_units,
        factor=format_factor,
        strength=strength,
    )


def render_release_page(
    statement: Mapping[str, Any], header: Mapping[str, Any], release: Mapping[str, Any]
) -> str:
    """Return the page as HTML. A comparison is left out: no charge here covers it."""
    read = {key: value for key, value in release.items() if key != "files"}
    return _rendered(json.dumps((statement, header, read), sort_keys=True))


@lru_cache(maxsize=1)  # a release that is written is verified at once: its plots take a second
def _rendered(content: str) -> str:
    statement, header, release = json.loads(content)
    owner = owner_of(release)
    if is_training(release):
        training = _training_facts(statement, header["class_names"], release)
        return render_training_page(training, owner=owner)
    facts = _facts(statement, header["class_names"], release)
    package, folder = _templates(release)
    if not folder:
        package = "pate.report"
    return render_page(facts, owner=owner, package=package, name=f"{folder}page.html.j2")


def _covers(statement: Mapping[str, Any]) -> str | None:
    covers = statement["data_set"].get("covers")
    if covers is None:
        return None
    stated = statement["data_set"]["guarantee"]["neighbours"]
    return Coverage(covers).describe(Neighbours(stated) if _stated_apart(statement) else None)


def _templates(release: Mapping[str, Any]) -> tuple[str, str]:
    """Return the package and the folder of the templates of a release's format."""
    return "pate.releases", "" if release["format"] > 2 else f"format_{release['format']:d}/"


def _facts(
    statement: Mapping[str, Any],
    names: list[str],
    release: Mapping[str, Any],
    *,
    curves: bool = True,
) -> Facts:
    recipe = recipe_of(release)
    evaluation, answers = release["evaluation"], release["answers"]
    sanitised = statement["sanitised"] or {}
    events = read_events(statement["labels"])
    inputs = release["public_inputs"]
    plan = recipe.plan(inputs=inputs, analysis=caps_analysis(recipe, events, inputs=inputs))
    delta, analysis = recipe.privacy.delta, analysis_of(statement["guarantee"])
    student, labels, agreement = (
        None if evaluation[name] is None else Share.of(evaluation[name])
        for name in ("student", "labels", "agreement")
    )
    assert student is not None
    table = evaluation["confusion"] or []
    tested = [(sum(row), row[at], sum(each[at] for each in table)) for at, row in enumerate(table)]
    return Facts(
        recipe=recipe,
        warns_of_unlearnt=release["format"] > 3,
        recipe_text=recipe_text(recipe, like=release["recipe"]),
        protects=statement["protects"],
        guarantee=Cost.of(statement["guarantee"]),
        plan={
            each.value: Cost.of(
                guarantee_of_plan(
                    events,
                    delta=delta,
                    conversion=each,
                    analysis=analysis,
                    accountant=Accountant.MOMENTS,
                ).as_json()
            )
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
        **plan_curves(recipe, events, queries=plan.queries, answers=plan.answers, analysis=analysis)
        if curves
        else {"curves": None, "profile": None},
        classes=tuple(
            ClassRow(
                name=name,
                labels=count,
                records=row[0],
                correct=row[1],
                predicted=row[2],
            )
            for name, count, row in zip(
                names, answers["by_class"], tested or [(0, 0, 0)] * len(names), strict=True
            )
        ),
        confusion=tuple(map(tuple, table)),
        majority=max(row[0] for row in tested) / student.records
        if tested
        else evaluation["majority"],
        student=student,
        labels=labels,
        agreement=agreement,
        all_releases=Cost.of(statement["data_set"]["guarantee"]),
        covers=_covers(statement),
        seeded=False,
        extended=statement["counted"] == "ledger",
        notes=tuple(release["notes"]),
        digests=(),
        versions=release["versions"],
        written=date.fromisoformat(release["date"]),
        stated_apart=_stated_apart(statement),
    )


def _stated_apart(statement: Mapping[str, Any]) -> bool:
    """Return whether record votes are among all releases of the data set."""
    return any(map(states_records, tally(read_events(statement["data_set"]["events"]))))


def _training_card(
    statement: Mapping[str, Any],
    header: Mapping[str, Any],
    release: Mapping[str, Any],
    *,
    hub: bool,
) -> str:
    facts = _training_facts(statement, header["class_names"], release, curves=False)
    name = "training_card.md.j2"
    return template("pate.releases", name, escape=escape_markdown, joined=False).render(
        statement=statement,
        stated=statement["guarantee"],
        data_set=statement["data_set"],
        header=header,
        channels=channels_of,
        release=release,
        hub=hub,
        answers=_answers(statement, header, release),
        training_rules=TRAINING_RULES,
        facts=facts,
        recipe=facts.recipe,
        events=[Repeated(*each) for each in tally(read_events(statement["events"])).items()],
        epsilon=format_epsilon,
        delta=format_delta,
        in_units=in_units,
        plural=plural,
        factor=format_factor,
        strength=strength,
    )


def _training_facts(
    statement: Mapping[str, Any],
    names: list[str],
    release: Mapping[str, Any],
    *,
    curves: bool = True,
) -> TrainingFacts:
    recipe, training = training_recipe_of(release), release["training"]
    plan = plan_of(
        recipe, records=training["records"], noise_multiplier=training["noise_multiplier"]
    )
    whole = statement["data_set"]["guarantee"]
    confusion = release["evaluation"]["confusion"]
    classes = () if confusion is None else tuple(class_counts(names, confusion))
    return TrainingFacts(
        recipe=recipe,
        recipe_text=recipe_text(recipe, like=release["recipe"]),
        plan=plan,
        protects=statement["protects"],
        guarantee=Cost.of(statement["guarantee"]),
        curve=cost_by_steps(plan, plan.events, delta=recipe.privacy.delta) if curves else (),
        epochs=measured_epochs(training["epochs"]),
        classes=classes,
        majority=majority_of(classes) if classes else release["evaluation"]["majority"],
        student=Share.of(release["evaluation"]["student"]),
        all_releases=Cost.of(whole),
        all_relation=describe_neighbours(whole["neighbours"]),
        not_private=None,
        notes=tuple(release["notes"]),
        digests=(),
        versions=release["versions"],
        written=date.fromisoformat(release["date"]),
    )


def caps_of(recipe: Recipe, *, inputs: int, analysis: Analysis | None) -> tuple[Event, ...]:
    """Return the charge of a recipe: its plan, or the choice that it was part of."""
    if recipe.selection is None:
        return recipe.plan(inputs=inputs, analysis=analysis).events
    chosen = event_of(candidates_of(recipe), recipe.selection, inputs=inputs, analysis=analysis)
    return (chosen,)


def caps_analysis(recipe: Recipe, events: Iterable[Event], *, inputs: int) -> Analysis | None:
    """Return the bounds by which the caps behind events were found, if not those of the recipe.

    Earlier versions found the caps for ``privacy.epsilon`` by the published bounds, where a recipe
    left that open.
    """
    charged = tally(events)
    for analysis in (None, Analysis.PUBLISHED):
        if tally(caps_of(recipe, inputs=inputs, analysis=analysis)) == charged:
            return analysis
        if recipe.privacy.analysis is not None or recipe.privacy.epsilon is None:
            break
    return None


def recipe_of(release: Mapping[str, Any]) -> Recipe:
    """Return the recipe in ``release.json``, every setting checked; its data are nowhere."""
    return _checked_recipe(release, Recipe)


def training_recipe_of(release: Mapping[str, Any]) -> DpsgdRecipe:
    """Return the recipe of a model trained by DP-SGD in the same way."""
    return _checked_recipe(release, DpsgdRecipe)


def _checked_recipe(release: Mapping[str, Any], model: type[AnyRecipe]) -> AnyRecipe:
    sections = dict(release["recipe"])
    if sections["data"]["name"] not in CATALOGUE:
        sections["data"] = sections["data"] | {"source": "-"}
    try:
        return model.model_validate(sections)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise InvalidInput(
            f"recipe.{'.'.join(map(str, first['loc']))} is wrong: {first['msg']}"
        ) from None
