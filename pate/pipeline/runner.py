"""The runner of stages: in order, without those that are done, and why a stage is stale."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pate._files import shared_lock, write_atomically
from pate._validate import LEAST_NOISE, MOST_NOISE
from pate.artifacts import Artifact, Store, fingerprint
from pate.artifacts.manifest import MANIFEST
from pate.datasets.catalogue import CATALOGUE
from pate.datasets.loading import require_files
from pate.datasets.roles import require_accepted
from pate.errors import InvalidInput, MissingFile, SpendNeeded
from pate.pipeline.exclusions import Exclusions, names_of
from pate.pipeline.ledger import key_path, naming_key
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Absent, Context, Options, Stage, StageEvent, producer
from pate.recipes.paths import set_file

_RESOLVED = "recipe.json"
_HOME = "home.json"
_AFTER_VOTES = ("aggregate", "account", "distill", "evaluate")
_NOISE = "noise.json"  # that was found for recipes that leave it open, by its target


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
    # Results that count as those of their stages, whatever the files of the recipe are now.
    pinned: Mapping[str, Artifact] = field(default_factory=dict)
    # What each stage is made from and its fingerprint, computed once while stages run.
    _origins: dict[str, tuple[dict[str, str], str]] = field(
        default_factory=dict, init=False, repr=False
    )
    # Files that are not there, for stages whose stored result is taken as current.
    _missing: dict[str, MissingFile] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.options.exclusions is None and (found := Exclusions.load(self.folder)) is not None:
            # Of a frozen object, while it is made.
            object.__setattr__(self, "options", replace(self.options, exclusions=found))

    @property
    def store(self) -> Store:
        """The store of the run's artifacts."""
        return Store(root=self.folder)

    def execute(self, until: str | None = None) -> list[str]:
        """Run what is not done, up to a stage, and return the names of the stages that ran.

        If a file of the recipe is missing, nothing is run: the file may have changed since.
        """
        self.names_until(until)
        self._require_forgotten()
        if not self.store.earlier(self.stages[0].name):
            require_accepted(self.recipe.data)  # of a new run, before any file is read
        self._require_same_unit()
        self._require_data()
        self._write_recipe()
        with self.kept():
            return self._run_stages(until)

    def names_until(self, stage: str | None) -> list[str]:
        """Return the names of the stages up to one of them, or of all."""
        names = [each.name for each in self.stages]
        if stage is None:
            return names
        if stage not in names:
            raise InvalidInput(
                f"a recipe with votes.by = {self.recipe.votes.by!r} has no stage {stage!r}; its "
                f"stages are {', '.join(names)}"
            )
        return names[: names.index(stage) + 1]

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Hold the run against a forgetting, which has pinned what it starts from.

        Guarantees:
            Nothing is made of records that were forgotten after this run was opened.
        """
        if self.pinned:
            yield
            return
        busy = InvalidInput(f"another process is forgetting records of {self.folder}; wait for it")
        with shared_lock(self.folder, busy=busy):
            if Exclusions.load(self.folder) != self.options.exclusions:
                raise InvalidInput(
                    f"records of {self.folder} were forgotten since it was opened; open it again"
                )
            yield

    def _run_stages(self, until: str | None) -> list[str]:
        self.store.sweep()
        self._clear()
        ran = []
        for stage in self.stages:
            made_from = self._made_from(stage)
            done = self.store.find(stage.name, made_from)
            if done is None:
                for problem in self._missing.values():
                    raise problem
                why = partial(self._what_changed, stage)
                self._announce(StageEvent(stage=stage.name, state="running", why=why))
                start = time.monotonic()
                stage.run(self.context(stage.name))
                seconds = time.monotonic() - start
                self._announce(StageEvent(stage=stage.name, state="done", seconds=seconds))
                ran.append(stage.name)
            else:
                self._announce(StageEvent(stage=stage.name, state="done before"))
                if not stage.needs:
                    self._mark_used(stage, done)
            if stage.name == until:
                break
        return ran

    def _announce(self, event: StageEvent) -> None:
        if self.options.on_stage is not None:
            self.options.on_stage(event)
        elif event.state != "done":
            self.options.report(f"{event.stage}: {event.state}")

    def _require_forgotten(self) -> None:
        exclusions = self.options.exclusions
        if exclusions is None:
            return
        if exclusions.begun is not None:
            raise InvalidInput(
                f"a forgetting in {self.folder} was interrupted; finish it first: pate forget "
                f"{self.folder}"
            )
        if self.options.study is not None:  # DP-SGD of a comparison would train on the records
            raise InvalidInput(
                f"records of {self.folder} were forgotten, which only runs leave out; remove them "
                "from the source, and choose another --out for a study"
            )
        if exclusions.named_by != names_of(self.recipe.data):
            raise InvalidInput(
                f"records of {self.folder} were forgotten by names that data.id, data.group or the "
                "columns of [data] gave them, which changed: undo that, or choose another --out "
                "and remove the records from the source"
            )

    def _require_data(self) -> None:
        """Refuse data that cannot be read, before a key is drawn for them and a folder is made."""
        if key_path(self.recipe, self.options.data_root).exists():
            return
        if self.recipe.data.own:
            for value in self.stages[0].settings(self.recipe, self.options).values():  # reads them
                if isinstance(value, Absent):
                    raise value.problem
        else:
            require_files(CATALOGUE[self.recipe.data.name], self.options.data_root)

    def is_at_home(self) -> bool:
        """Return whether the folder is new, or belongs to the ledger in the data root given."""
        recorded = _home(self.folder)
        return recorded is None or _has_key(self.recipe, self.options.data_root, recorded)

    def artifact(self, name: str) -> Artifact:
        """Return a finished artifact of this recipe."""
        stage = self._stage(producer(name))
        return self.store.cleared(stage.name, stage.clearance).open(name, self._made_from(stage))

    def find(self, name: str) -> Artifact | None:
        """Return a finished artifact, its files not checked; None if it is not there."""
        return self.store.find(name, self._made_from(self._stage(producer(name))))

    def states(self) -> Iterator[State]:
        """Yield the state of each stage in order: done, stale or missing, and why."""
        self._clear()
        undone: set[str] = set()
        for stage in self.stages:
            first = next((n for n in map(producer, stage.needs) if n in undone), None)
            if first is not None:
                undone.add(stage.name)
                yield self._state(stage, None, f"{first} is to be made first")
                continue
            made_from = self._made_from(stage)
            if self.store.find(stage.name, made_from):
                problem = self._missing.get(stage.name)
                why = "done" if problem is None else f"done earlier ({problem})"
                yield State(stage=stage.name, done=True, why=why, made_from=made_from)
                continue
            undone.add(stage.name)
            yield self._state(stage, made_from, self._what_changed(stage))

    def _mark_used(self, stage: Stage, done: Artifact) -> None:
        """Make a result the newest of its stage: it stands in while a file is missing."""
        newest = max(self.store.earlier(stage.name), key=_modified, default=None)
        if newest != done.path / MANIFEST:
            with contextlib.suppress(OSError):  # a copy one may only read
                os.utime(done.path / MANIFEST)

    def _clear(self) -> None:
        self._origins.clear()
        self._missing.clear()

    def _state(self, stage: Stage, made_from: str | None, why: str) -> State:
        earlier = bool(self.store.earlier(stage.name))
        text = f"stale: {why}" if earlier else f"missing: {why}" if made_from is None else "missing"
        return State(stage=stage.name, done=False, why=text, made_from=made_from)

    def _what_changed(self, stage: Stage) -> str:
        """Return the inputs and settings that differ from the earlier result that is most alike."""
        newest_first = sorted(self.store.earlier(stage.name), key=_modified, reverse=True)
        if not newest_first:
            return "not made yet"
        unlike = []
        for file in newest_first:
            before = _inputs(file)
            if before is None:
                return f"{file} cannot be read"
            unlike.append(sorted(self._differences(stage, before)))
        names = min(unlike, key=len)
        return f"{', '.join(names)} changed" if names else "its code changed"

    def _differences(self, stage: Stage, before: Mapping[str, str]) -> set[str]:
        """Return the settings that differ, also those of stages before it; an input if none does.

        An input that was made again differs by what *it* was made from, as far as that is recorded.
        """
        now, found = self._origin(stage)[0], set[str]()
        for name in {*before, *now}:
            if before.get(name) == now.get(name):
                continue
            deeper = set[str]()
            if name in stage.needs and name in before:
                maker = self._stage(producer(name))
                if (recorded := self._recorded(maker, before[name])) is not None:
                    deeper = self._differences(maker, recorded)
            found |= deeper or {name}
        return {each for each in found if not any(n.startswith(f"{each}.") for n in found)}

    def _recorded(self, stage: Stage, keyed: str) -> dict[str, str] | None:
        """Return what an earlier result of a stage was made from, by its keyed fingerprint."""
        key = naming_key(self.recipe, self.options.data_root)
        for file in self.store.earlier(stage.name):
            inputs = _inputs(file)
            if inputs is None:
                continue
            made = self.store.find(stage.name, fingerprint(stage.name, stage.version, inputs))
            if made is not None and fingerprint(key, made.key) == keyed:
                return inputs
        return None

    def _origin(self, stage: Stage) -> tuple[dict[str, str], str]:
        """Return what a result is made from, under the data set's key, and its fingerprint.

        Guarantees:
            Something PRIVATE counts by how it was made, not by what came out. Otherwise whether
            labels are drawn (and paid for) again after a change of settings would reveal whether
            the votes are the same, which nobody has paid for. (Labels drawn again reveal that
            records changed: docs/explanation/sharp-edges.md.) All of it stays on the private side
            of the store.
        """
        if (pinned := self.pinned.get(stage.name)) is not None:
            return pinned.manifest["inputs"], pinned.manifest["made_from"]
        if stage.name not in self._origins:
            origin = self.compute_origin(stage, self.recipe, self.options)
            if self.store.find(stage.name, origin[1]) is None:
                for recipe, options in self._earlier(origin[0]):
                    earlier = self.compute_origin(stage, recipe, options)
                    if self.store.find(stage.name, earlier[1]) is not None:
                        origin = earlier
            self._origins[stage.name] = origin
        return self._origins[stage.name]

    def _earlier(self, inputs: dict[str, str]) -> Iterator[tuple[Recipe, Options]]:
        """Yield what earlier versions made of the same settings: their results are still good."""
        if "plugin" in inputs:  # they counted all plug-ins in the folder
            yield self.recipe, replace(self.options, whole_folder=True)
        if "privacy.sanitise" in inputs and self.recipe.privacy.sanitise is None:  # it was the rule
            privacy = self.recipe.privacy.model_copy(update={"sanitise": True})
            yield self.recipe.model_copy(update={"privacy": privacy}), self.options

    def compute_origin(
        self, stage: Stage, recipe: Recipe, options: Options
    ) -> tuple[dict[str, str], str]:
        """Return what a result would be made from by now, and its fingerprint."""
        inputs = {need: self._key_for(stage, need) for need in stage.needs}
        settings = dict(_leaves(stage.settings(recipe, options)))
        absent = {name: v.problem for name, v in settings.items() if isinstance(v, Absent)}
        inputs |= {name: fingerprint(v) for name, v in settings.items() if name not in absent}
        key = naming_key(self.recipe, options.data_root)
        keyed = {name: fingerprint(key, value) for name, value in inputs.items()}
        if absent:
            problem = next(iter(absent.values()))
            keyed = self._stored_inputs(stage, keyed, absent, problem)
            self._missing[stage.name] = problem
        return keyed, fingerprint(stage.name, stage.version, keyed)

    def _stored_inputs(
        self, stage: Stage, known: dict[str, str], absent: Collection[str], problem: MissingFile
    ) -> dict[str, str]:
        """Return the inputs of the last used result that differs in absent settings at most.

        Guarantees:
            What is released was paid for with that very result; nothing is run on it.
        """
        for file in sorted(self.store.earlier(stage.name), key=_modified, reverse=True):
            inputs = _inputs(file)
            if inputs is None:
                continue
            made_from = fingerprint(stage.name, stage.version, inputs)
            rest = {name: value for name, value in inputs.items() if name not in absent}
            same = rest == known and len(inputs) == len(known) + len(absent)
            if same and self.store.find(stage.name, made_from) is not None:
                return inputs
        raise problem

    def _made_from(self, stage: Stage) -> str:
        return self._origin(stage)[1]

    def _open_for(self, stage: Stage, need: str) -> Artifact:
        maker = self._stage(producer(need))
        reader = self.store.cleared(stage.name, stage.clearance)
        artifact = reader.find(need, self._made_from(maker))
        if artifact is None:
            raise InvalidInput(f"{stage.name} needs {need}, which is not there yet; run it first")
        return artifact

    def _key_for(self, stage: Stage, need: str) -> str:
        """Return the key of an input; labels that are released keep that of what they came from.

        Guarantees:
            After records were forgotten, what is RELEASED stays as it is, and nothing is drawn
            again, until its owner pays: nobody sees from it that any record was forgotten.
        """
        key, exclusions = self._open_for(stage, need).key, self.options.exclusions
        if exclusions is None or stage.name not in _AFTER_VOTES:
            return key
        return exclusions.stands_for.get(key, key)

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

    def _require_same_unit(self) -> None:
        """Refuse to go from records to users, or back, in a folder with labels, without consent."""
        if self.options.spend or not self.store.earlier("aggregate"):
            return
        before = now = self.recipe.partition.by
        with contextlib.suppress(InvalidInput):  # a damaged recipe is about to be restored
            before = read_resolved(self.folder).partition.by
        if before == now:
            return
        with contextlib.suppress(InvalidInput):  # where data are not here yet, nor is anything else
            if self.store.find("partition", self._made_from(self._stage("partition"))) is not None:
                return
        raise SpendNeeded(
            f'the labels in {self.folder} protect each {before} (partition.by = "{before}"), and '
            f'this recipe each {now}: set by = "{before}" in [partition] to keep them, choose '
            "another --out, or add --spend to pay for new ones"
        )

    def _write_recipe(self) -> None:
        """Write the recipe with every default spelt out, so that the run explains itself."""
        places = {
            "data_root": self.options.data_root,
            "recipe": self.recipe.data.file,
            "plugin_path": self.options.plugin_path,
        }
        absolute = {name: str(p.absolute()) for name, p in places.items() if p is not None}
        here = self.folder.absolute()
        home: dict[str, Any] = {
            **absolute,
            # For a project that was moved, or copied, with its runs.
            "folder": str(here),
            "relative": {name: os.path.relpath(path, here) for name, path in absolute.items()},
            "key": fingerprint("key", naming_key(self.recipe, self.options.data_root)),
        }
        recorded = _home(self.folder)
        if recorded is not None and recorded["key"] != home["key"]:
            raise InvalidInput(
                f"{self.folder} belongs to the data and ledger in {recorded['data_root']}, and not "
                f"to those in {home['data_root']}; give its --data-root, or another --out"
            )
        files = {} if recorded == home else {_HOME: home}
        files[_RESOLVED] = self.recipe.model_dump(mode="json")
        if (found := self.recipe.found_noise) is not None:
            files[_NOISE] = {self.recipe.noise_target: found[1]} | _recorded_noise(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"cannot write to {self.folder}: {error.strerror}") from error
        for name, content in files.items():  # other processes may write the same at the same time
            text = f"{json.dumps(content, indent=1)}\n"
            write_atomically(self.folder / name, text.encode(), mode=0o666)


def _modified(file: Path) -> float:
    return file.stat().st_mtime


def _inputs(file: Path) -> dict[str, str] | None:
    """Return what the result that a file describes was made from; None if it cannot be read."""
    try:
        return dict(json.loads(file.read_text())["inputs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def with_recorded_noise(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe with the noise that was found for it in this folder before.

    A version with a tighter accountant would find less, and labels that are paid for would no
    longer be those of the recipe. Whatever is recorded, ``privacy.epsilon`` caps the plan.
    """
    if recipe.found_noise is None:
        return recipe
    noise = _recorded_noise(folder).get(recipe.noise_target)
    return recipe if noise is None else recipe.with_found(noise)


def _recorded_noise(folder: Path) -> dict[str, float]:
    try:
        found: dict[str, float] = json.loads((folder / _NOISE).read_text())
        if all(LEAST_NOISE <= noise <= MOST_NOISE for noise in found.values()):
            return found
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, AttributeError, TypeError):
        pass
    raise InvalidInput(f"{folder / _NOISE} is damaged; restore it from a backup, or remove it")


def _leaves(settings: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting by its name, to find out what changed.

    >>> [name for name, _ in _leaves({"aggregate": {"scale": 2.0, "queries": None}, "seed": 1})]
    ['aggregate.scale', 'aggregate.queries', 'seed']
    """
    if isinstance(settings, dict) and settings:
        for key, value in settings.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, settings


def find_data_root(folder: Path, recipe: Recipe, default: Path) -> Path:
    """Return where the data and the ledger of a run are: here, or where the run was started."""
    home = _home(folder)
    if home is not None:
        for root in (default, *_remembered(folder, home, "data_root")):
            if _has_key(recipe, root, home):
                return root
    return default


def find_plugins(folder: Path) -> Path | None:
    """Return the plug-in path that the run in a folder was started with, if it is still there."""
    places = _remembered(folder, _home(folder) or {}, "plugin_path")
    return next(filter(Path.exists, places), None)


def _remembered(folder: Path, home: Mapping[str, Any], name: str) -> list[Path]:
    """Return where a place of a run was, and where it is if it was moved with the run.

    A run that is not where it was may have been copied with its project: then that comes first.
    """
    if name not in home:
        return []
    here = folder.absolute()
    places = [Path(home[name])]
    if "relative" in home:
        places.append(Path(os.path.normpath(here / home["relative"][name])))
    return places if home.get("folder") == str(here) else places[::-1]


def _has_key(recipe: Recipe, data_root: Path, home: Mapping[str, Any]) -> bool:
    """Return whether the key of the data set that a run belongs to is in a data root."""
    known = key_path(recipe, data_root).is_file()
    return known and fingerprint("key", naming_key(recipe, data_root)) == home["key"]


def _home(folder: Path) -> dict[str, Any] | None:
    try:
        home: dict[str, Any] = json.loads((folder / _HOME).read_text())
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
        recipe = Recipe.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InvalidInput(f"{path} is damaged; run the recipe again to restore it") from error
    files = _remembered(folder, _home(folder) or {}, "recipe")
    set_file(recipe, next(filter(Path.is_file, files), files[0] if files else None))
    return recipe
