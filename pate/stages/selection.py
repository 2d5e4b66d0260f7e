"""A recipe that was chosen privately: its candidates, and the labels of the winner.

A selection (:mod:`pate.studies.selection`) draws and pays; what it releases is an artifact of its
own. The winner's ``aggregate`` publishes that, so the rest of its run is like any other's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pate.accounting import Analysis, BestOfTries
from pate.artifacts import Level, Store, fingerprint
from pate.artifacts.results import LABELS, Labels, drawn_for
from pate.datasets.spec import WORDING
from pate.errors import InvalidInput
from pate.pipeline.ledger import ledger_of, naming_key
from pate.pipeline.recipe import Recipe, SelectionSpec
from pate.pipeline.stage import Context, Options
from pate.recipes.paths import set_file
from pate.stages.exactly_once import require_charged

SELECTION = "selection"  # the artifact that a selection releases
_BY_HAND = (
    "[selection] is written by `pate sweep --private-selection`, and cannot be run by hand: remove "
    "the section to run the recipe by itself"
)


def differences(candidates: Sequence[Recipe]) -> tuple[dict[str, Any], ...]:
    """Return each candidate as the settings that differ from the others', by section and key."""
    flat = [_flat(each) for each in candidates]
    keys = [key for key in flat[0] if any(each[key] != flat[0][key] for each in flat)]
    return tuple({key: each[key] for key in keys} for each in flat)


def _flat(recipe: Recipe) -> dict[str, Any]:
    sections = recipe.model_dump(mode="json", exclude={"selection"})
    return {
        f"{name}.{key}": value for name, each in sections.items() for key, value in each.items()
    }


def candidate(recipe: Recipe, settings: dict[str, Any]) -> Recipe:
    """Return the candidate of these settings, from any other one of the same selection."""
    sections = recipe.model_dump(mode="json", exclude={"selection"})
    for name, value in settings.items():
        section, _, key = name.partition(".")
        sections[section][key] = value
    sections["data"]["accept_unprotected"] = recipe.data.accept_unprotected  # is never dumped
    made = Recipe.model_validate_json(json.dumps(sections))
    set_file(made, recipe.data.file)
    return made


def candidates_of(recipe: Recipe) -> list[Recipe]:
    """Return all that could have been chosen, where a recipe was; itself among them."""
    assert recipe.selection is not None
    found = [candidate(recipe, each) for each in recipe.selection.candidates]
    if _flat(recipe) not in map(_flat, found):
        raise InvalidInput("the recipe is not among the candidates of its [selection]")
    return found


def event_of(
    candidates: Sequence[Recipe],
    selection: SelectionSpec,
    *,
    inputs: int,
    analysis: Analysis | None = None,
) -> BestOfTries:
    """Return the event of a selection, from plans alone: no vote is read.

    ``analysis`` takes the place of those of the recipes.

    Guarantees:
        Every candidate counts with the caps of its own plan, fixed before the votes are opened, and
        each is as likely to be tried as the others (:mod:`pate.accounting.selection`).
    """
    return BestOfTries(
        candidates=tuple(each.plan(inputs=inputs, analysis=analysis).events for each in candidates),
        mean_tries=selection.mean_tries,
        shape=selection.shape,
    )


def mark_of(recipe: Recipe, options: Options, provenance: Mapping[str, str]) -> str:
    """Return a mark of the recipe that was chosen, and from which votes and noise, under the key.

    ``provenance`` is that of its ``aggregate``: the same recipe may have been chosen twice in one
    folder, with a seed and without, or before and after the data changed.
    """
    chosen = recipe.model_dump(mode="json", exclude={"evaluate": True, "data": WORDING})
    if recipe.privacy.sanitise is None:  # a selection ignores it; earlier versions wrote a default
        chosen["privacy"]["sanitise"] = True
    drawn_from = [provenance["vote"], provenance["data-public"]]
    key = naming_key(recipe, options.data_root)
    return fingerprint(key, chosen, options.insecure_seed, drawn_from)


def require_made(recipe: Recipe, store: Store) -> None:
    """Refuse a recipe that states a selection where none was made, before anything is run."""
    if recipe.selection is not None and not any(store.all(SELECTION)):
        raise InvalidInput(_BY_HAND)


def publish_selected(context: Context) -> None:
    """Publish the labels that the selection of a recipe released; nothing is drawn, or paid.

    Guarantees:
        The labels come from a RELEASED artifact, which exists only if the selection was charged;
        and the charge must still be in the ledger.
    """
    mark = mark_of(context.recipe, context.options, context.provenance)
    found = [each for each in context.store.all(SELECTION) if each.facts["winner"] == mark]
    if not found:
        raise InvalidInput(_BY_HAND)
    chosen = context.store.open(SELECTION, found[0].manifest["made_from"])
    place = ledger_of(context.recipe, context.options)
    require_charged(context.store, LABELS, str(drawn_for(chosen)), ledger=place)
    with context.draft(Level.RELEASED) as draft:
        Labels.load(chosen).save(draft)
        draft.facts.update({key: chosen.facts[key] for key in chosen.facts if key != "winner"})
