"""The runner of stages: in order, without those that are done, and why a stage is stale."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pate.artifacts import Artifact, Store, fingerprint
from pate.errors import InvalidInput
from pate.pipeline.ledger import key_path, naming_key
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage, producer

_RESOLVED = "recipe.json"
_HOME = "home.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a stage in a run."""

    stage: str
    done: bool
    why: str  # "done", "missing", or what changed
    made_from: str | None  # its fingerprint, where all its inputs are there


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """A recipe in a folder, which holds its artifacts."""

    folder: Path
    recipe: Recipe
    stages: Sequence[Stage]  # all, in an order in which each finds what it needs
    options: Options
    # What each stage is made from and its fingerprint, computed once while stages run.
    _origins: dict[str, tuple[dict[str, str], str]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def store(self) -> Store:
        """The store of the run's artifacts."""
        return Store(root=self.folder)

    def execute(self, until: str | None = None) -> list[str]:
        """Run what is not done, up to a stage, and return the names of the stages that ran."""
        self._write_recipe()
        self.store.sweep()
        self._origins.clear()
        ran = []
        for stage in self.stages:
            made_from = self._made_from(stage)
            if self.store.find(stage.name, made_from) is None:
                self.options.report(f"{stage.name}: running")
                stage.run(self.context(stage.name))
                ran.append(stage.name)
            else:
                self.options.report(f"{stage.name}: done before")
            if stage.name == until:
                break
        return ran

    def is_at_home(self) -> bool:
        """Return whether the folder is new, or belongs to the ledger in the data root given."""
        recorded = _home(self.folder)
        return recorded is None or _has_key(self.recipe, self.options.data_root, recorded)

    def artifact(self, name: str) -> Artifact:
        """Return a finished artifact of this recipe."""
        stage = self._stage(producer(name))
        return self.store.cleared(stage.name, stage.clearance).open(name, self._made_from(stage))

    def states(self) -> Iterator[State]:
        """Yield the state of each stage in order: done, stale or missing, and why."""
        self._origins.clear()
        undone: set[str] = set()
        for stage in self.stages:
            first = next((n for n in map(producer, stage.needs) if n in undone), None)
            if first is not None:
                undone.add(stage.name)
                yield self._state(stage, None, f"{first} is to be made first")
                continue
            made_from = self._made_from(stage)
            if self.store.find(stage.name, made_from):
                yield State(stage=stage.name, done=True, why="done", made_from=made_from)
                continue
            undone.add(stage.name)
            yield self._state(stage, made_from, self._what_changed(stage))

    def _state(self, stage: Stage, made_from: str | None, why: str) -> State:
        earlier = bool(self.store.earlier(stage.name))
        text = f"stale: {why}" if earlier else f"missing: {why}" if made_from is None else "missing"
        return State(stage=stage.name, done=False, why=text, made_from=made_from)

    def _what_changed(self, stage: Stage) -> str:
        """Return which input or setting differs from the newest earlier result."""
        newest = max(self.store.earlier(stage.name), key=lambda p: p.stat().st_mtime, default=None)
        if newest is None:
            return "not made yet"
        try:
            before = dict(json.loads(newest.read_text())["inputs"])
        except (OSError, ValueError, KeyError, TypeError):
            return f"{newest} cannot be read"
        now = self._origin(stage)[0]
        names = sorted(n for n in {**before, **now} if before.get(n) != now.get(n))
        return f"{', '.join(names)} changed" if names else "its code changed"

    def _origin(self, stage: Stage) -> tuple[dict[str, str], str]:
        """Return what a result is made from, under the data set's key, and its fingerprint.

        Guarantees:
            Something PRIVATE counts by how it was made, not by what came out. Otherwise whether
            labels are drawn (and paid for) again after a change of settings would reveal whether
            the votes are the same, which nobody has paid for. (Labels drawn again reveal that
            records changed: docs/sharp-edges.md.) All of it stays on the private side of the store.
        """
        if stage.name not in self._origins:
            origin = self._compute_origin(stage, self.options)
            if "plugin" in origin[0] and self.store.find(stage.name, origin[1]) is None:
                # Earlier versions counted all plug-ins in the folder: their results are still good.
                earlier = self._compute_origin(stage, replace(self.options, whole_folder=True))
                if self.store.find(stage.name, earlier[1]) is not None:
                    origin = earlier
            self._origins[stage.name] = origin
        return self._origins[stage.name]

    def _compute_origin(self, stage: Stage, options: Options) -> tuple[dict[str, str], str]:
        inputs = {need: self._open_for(stage, need).key for need in stage.needs}
        inputs |= dict(_leaves(stage.settings(self.recipe, options)))
        key = naming_key(self.recipe, options.data_root)
        keyed = {name: fingerprint(key, value) for name, value in inputs.items()}
        return keyed, fingerprint(stage.name, stage.version, keyed)

    def _made_from(self, stage: Stage) -> str:
        return self._origin(stage)[1]

    def _open_for(self, stage: Stage, need: str) -> Artifact:
        maker = self._stage(producer(need))
        reader = self.store.cleared(stage.name, stage.clearance)
        artifact = reader.find(need, self._made_from(maker))
        if artifact is None:
            raise InvalidInput(f"{stage.name} needs {need}, which is not there yet; run it first")
        return artifact

    def _stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    def context(self, name: str) -> Context:
        """Return the context of a stage: its inputs, which must be done, and a cleared store."""
        stage = self._stage(name)
        reader = self.store.cleared(stage.name, stage.clearance)
        provenance, made_from = self._origin(stage)
        return Context(
            recipe=self.recipe,
            store=reader,
            made_from=made_from,
            inputs={
                need: reader.open(need, self._made_from(self._stage(producer(need))))
                for need in stage.needs
            },
            provenance=provenance,
            options=self.options,
        )

    def _write_recipe(self) -> None:
        """Write the recipe with every default spelt out, so that the run explains itself."""
        home = {
            "data_root": str(self.options.data_root.absolute()),
            "key": fingerprint("key", naming_key(self.recipe, self.options.data_root)),
        }
        recorded = _home(self.folder)
        if recorded is not None and recorded["key"] != home["key"]:
            raise InvalidInput(
                f"{self.folder} belongs to the data and ledger in {recorded['data_root']}, and not "
                f"to those in {home['data_root']}; give its --data-root, or another --out"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if recorded != home:
                (self.folder / _HOME).write_text(json.dumps(home, indent=1) + "\n")
            draft = self.folder / f".{_RESOLVED}"
            draft.write_text(json.dumps(self.recipe.model_dump(mode="json"), indent=1) + "\n")
            draft.replace(self.folder / _RESOLVED)
        except OSError as error:
            raise InvalidInput(f"cannot write to {self.folder}: {error.strerror}") from error


def _leaves(settings: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting by its name, as a fingerprint, to find out what changed.

    >>> [name for name, _ in _leaves({"aggregate": {"scale": 2.0, "queries": None}, "seed": 1})]
    ['aggregate.scale', 'aggregate.queries', 'seed']
    """
    if isinstance(settings, dict) and settings:
        for key, value in settings.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, fingerprint(settings)


def find_data_root(folder: Path, recipe: Recipe, default: Path) -> Path:
    """Return where the data and the ledger of a run are: here, or where the run was started."""
    home = _home(folder)
    if home is not None:
        for root in (default, Path(home["data_root"])):
            if _has_key(recipe, root, home):
                return root
    return default


def _has_key(recipe: Recipe, data_root: Path, home: dict[str, str]) -> bool:
    """Return whether the key of the data set that a run belongs to is in a data root."""
    known = key_path(recipe, data_root).is_file()
    return known and fingerprint("key", naming_key(recipe, data_root)) == home["key"]


def _home(folder: Path) -> dict[str, str] | None:
    try:
        home: dict[str, str] = json.loads((folder / _HOME).read_text())
        return home if home.keys() >= {"data_root", "key"} else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, AttributeError) as error:
        raise InvalidInput(f"{folder / _HOME} is damaged; remove it") from error


def read_resolved(folder: Path) -> Recipe:
    """Return the recipe of an earlier run."""
    path = folder / _RESOLVED
    if not path.is_file():
        raise InvalidInput(f"there is no run in {folder}")
    try:
        return Recipe.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InvalidInput(f"{path} is damaged; run the recipe again to restore it") from error
