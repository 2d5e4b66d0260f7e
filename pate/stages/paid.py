"""Whether everything that is released in a run's folder is in the ledger of its data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pate.artifacts import Store, StoreError
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import Run
from pate.pipeline.spending import ledger_path
from pate.stages.releasing import require_charged


def require_paid(run: Run) -> None:
    """Refuses a run whose ledger lacks a charge of something that is released in its folder.

    Such a ledger was lost, or is older than the release: whatever it says of the data set is too
    little. Also releases of settings that are not asked for now count, and seeded ones, by their
    own ledger. A run whose folder belongs to another ledger is refused by :meth:`Run.execute`.
    """
    if run.is_at_home():
        require_paid_in(run.store, run.recipe, run.options.data_root)


def require_paid_in(store: Store, recipe: Recipe, data_root: Path) -> None:
    """As :func:`require_paid`, whatever folder the run's ledger was in."""
    for seeded in (False, True):
        place = ledger_path(recipe, data_root, seeded=seeded)
        labels = [drawn for drawn, known in _labels(store) if known is seeded]
        require_charged(store, "labels", labels, ledger=place)
        figures = [drawn for drawn, known in _figures(store) if known is seeded]
        require_charged(store, "sanitised", figures, ledger=place)


def _labels(store: Store) -> Iterator[tuple[str, bool]]:
    """What released labels were drawn for, and whether with a seed."""
    for each in store.all("aggregate"):
        if "drawn" in each.facts:
            yield str(each.facts["drawn"]), each.facts["randomness"] != "private"


def _figures(store: Store) -> Iterator[tuple[str, bool]]:
    """The same of sanitised figures that had a price."""
    for each in store.all("account"):
        if "drawn" not in each.facts:
            continue
        costs = store.open("account", str(each.manifest["made_from"])).json("guarantees.json")
        try:
            priced, seeded = costs["sanitised"] is not None, costs["randomness"] != "private"
            priced = priced and bool(costs["sanitised"]["price"])
        except (LookupError, TypeError):
            raise StoreError(
                f"{each.path / 'guarantees.json'} is damaged; remove its folder and run the recipe "
                "again"
            ) from None
        if priced:
            yield str(each.facts["drawn"]), seeded
