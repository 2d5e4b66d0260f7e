"""A run that is done, opened so that nothing PRIVATE can be read from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate.artifacts import Artifact, Level, Store, StoreError, fingerprint
from pate.datasets.catalogue import data_root as default_root
from pate.errors import InvalidInput, LedgerError
from pate.pipeline.ledger import key_path, ledger_path, naming_key
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import Run, find_data_root, read_resolved
from pate.pipeline.stage import producer
from pate.stages.catalogue import open_run

_READ = ("aggregate", "account", "distill", "evaluate", "encoder", "data-public")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished run: its recipe, its ledger, and what of it is RELEASED or PUBLIC.

    Guarantees:
        ``artifacts`` were opened with RELEASED clearance: the store refuses what is above. Each
        was checked against its manifest, and stands where it was made.
    """

    run: Run
    ledger: Path
    artifacts: dict[str, Artifact]

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    def json(self, artifact: str, name: str) -> Any:
        """A file of an artifact, as JSON."""
        try:
            return self.artifacts[artifact].json(name)
        except (OSError, ValueError):
            raise StoreError(f"{self.path(artifact, name)} cannot be read") from None

    def path(self, artifact: str, name: str) -> Path:
        return self.artifacts[artifact].path / name


def open_finished(
    folder: Path, *, data_root: Path | None = None, plugin_path: Path | None = None
) -> Finished:
    """Opens a run, or says in one sentence why it may not leave.

    Refused are: seeded noise, a ledger that is not here, a stage that is missing or stale, and
    files that are damaged or not where they belong.
    """
    if not folder.is_dir():
        raise InvalidInput(f"there is no run in {folder}")
    recipe = read_resolved(folder)
    store = Store(root=folder).cleared("release", Level.RELEASED)
    _require_unseeded(store)
    root = _root_of(folder, recipe, data_root)
    run = open_run(folder, data_root=root, plugin_path=plugin_path)
    made_from = _all_done(run)
    artifacts = {name: store.open(name, made_from[producer(name)]) for name in _READ}
    for name in ("aggregate", "distill"):
        if artifacts[name].facts["randomness"] != "private":
            raise _seeded(artifacts[name])
    return Finished(run=run, ledger=ledger_path(recipe, root), artifacts=artifacts)


def _require_unseeded(store: Store) -> None:
    """Seeded noise is named as such; it would otherwise look like a stage that is stale."""
    drawn = store.all("aggregate")
    seeded = [each for each in drawn if each.facts["randomness"] != "private"]
    if seeded and len(seeded) == len(drawn):
        raise _seeded(seeded[0])


def _seeded(artifact: Artifact) -> InvalidInput:
    return InvalidInput(
        f"{artifact.path / 'labels.npy'} was drawn with seeded noise, which is not private; run "
        "the recipe without --insecure-seed to release it"
    )


def _root_of(folder: Path, recipe: Recipe, given: Path | None) -> Path:
    """Where the run's own ledger is; asked before anything there could be made anew."""
    root = default_root(given)
    if given is None:
        root = find_data_root(folder, recipe, root)
    ledger, key = ledger_path(recipe, root), key_path(recipe, root)
    for file in (ledger, key):
        if not file.is_file():
            raise LedgerError(
                f"there is no {file}; a release is made where the ledger of its data set is: give "
                "its --data-root, or restore the file from a backup"
            )
    try:
        home = json.loads((folder / "home.json").read_text())["key"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            f"{folder / 'home.json'} is missing or damaged; run the recipe again"
        ) from None
    if fingerprint("key", naming_key(recipe, root)) != home:
        raise LedgerError(f"{folder} belongs to another ledger than {ledger}; give its --data-root")
    return root


def _all_done(run: Run) -> dict[str, str]:
    """The fingerprint of each stage, where all are done."""
    made_from = {}
    for state in run.states():
        if not state.done or state.made_from is None:
            hint = " (if it has plug-ins, give its --plugin-path)" if "plugin" in state.why else ""
            raise InvalidInput(
                f"{run.folder} is not finished: {state.stage} is {state.why}{hint}; run the recipe "
                "to its end first"
            )
        made_from[state.stage] = state.made_from
    return made_from
