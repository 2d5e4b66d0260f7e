"""A stage, the context in which it runs, and the options of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pate.artifacts import Artifact, Draft, Level, Store
from pate.engines import Engine, Show
from pate.errors import MissingFile
from pate.pipeline.exclusions import Exclusions
from pate.pipeline.recipe import Recipe
from pate.recipes.paths import PluginsSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvent:
    """A stage of a run begins, has ended, or is skipped: its name and times, nothing private."""

    stage: str
    state: Literal["running", "done", "done before"]
    seconds: float = 0.0  # that it took; for the person who runs it, and in no artifact
    why: Callable[[], str] = str  # returns why it runs: what changed since an earlier result


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run; none is part of a fingerprint, except the insecure seed."""

    data_root: Path  # of data sets and ledgers
    root_given: bool = True  # by an option or the environment: a recipe does not change it
    engine: Engine
    plugin_path: Path | None = None  # the user's own modules
    insecure_seed: int | None = None  # of all noise, for tests: the run is then not private
    spend: bool = False  # pay again for what was paid for before
    study: str | None = None  # the tag of its study, on all that the run pays for
    report: Callable[[str], None] = print  # prints a line about progress
    progress: Show
    on_stage: Callable[[StageEvent], None] | None = None  # in place of a line for each stage
    whole_folder: bool = False  # count all plug-ins in every cache key, as earlier versions did
    exclusions: Exclusions | None = None  # records to leave out; None: as the run's folder has them

    def with_recipe(self, *, data_root: str | None, plugins: PluginsSpec) -> Options:
        """Return the options with a recipe's data root and plug-ins, unless others were given."""
        own_root = data_root is not None and not self.root_given
        return replace(
            self,
            data_root=Path(str(data_root)) if own_root else self.data_root,
            plugin_path=plugins.chosen(self.plugin_path),
        )

    def source_digest(self, settings: Any) -> str | None:
        """Return a digest of the user's own code that settings use, for a stage's cache key."""
        path = self.plugin_path
        if path is None:
            return None
        from pate.plugin_source import source_digest, whole_folder_digest

        return whole_folder_digest(path) if self.whole_folder else source_digest(settings, path)


@dataclass(frozen=True, slots=True)
class Absent:
    """In place of a setting of a stage that cannot be computed, because a file is not there."""

    problem: MissingFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The surroundings of one stage: its recipe, its inputs, and a store with its clearance."""

    recipe: Recipe
    store: Store
    made_from: str  # the fingerprint of what it is about to make
    inputs: Mapping[str, Artifact]
    provenance: Mapping[str, str]  # digests of the inputs and of the settings, for the manifest
    options: Options

    def draft(
        self,
        level: Level,
        *,
        part: str = "",
        only_for: tuple[str, ...] = (),
    ) -> AbstractContextManager[Draft]:
        """Open a draft of the stage's artifact, or of a named part of it."""
        name = f"{self.store.reader}-{part}" if part else self.store.reader
        return self.store.draft(
            name, self.made_from, level=level, inputs=self.provenance, only_for=only_for
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step: it reads the artifacts it needs and writes its own, named after it, last."""

    name: str
    version: int  # raised when the same inputs would give another result
    needs: tuple[str, ...]  # artifacts, "stage" or "stage-part"
    clearance: Level
    settings: Callable[[Recipe, Options], Any]  # what of the recipe it depends on
    run: Callable[[Context], None]


def producer(artifact: str) -> str:
    """Return the stage that makes an artifact.

    >>> producer("data-public")
    'data'
    """
    return artifact.partition("-")[0]
