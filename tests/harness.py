"""A tiny project on disk, and the real command line to run in it: for all tests that need one."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest.mock
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from pate._format import format_epsilon
from pate.artifacts import Artifact, Store

# Stores one plain array, so that no test waits for scikit-learn or skops to be imported.
CENTROIDS = '''
"""Nearest centroid: a model small enough that nothing but the framework takes time."""
import numpy as np


class Centroids:
    def __init__(self, classes, shrink=0.0):
        self.shrink = shrink
        self.centres = np.zeros((0, 0))
        self.classes = classes

    def fit(self, X, y):
        self.centres = np.full((self.classes, X.shape[1]), np.inf)
        for label in np.unique(y):
            self.centres[label] = (1 - self.shrink) * X[y == label].mean(axis=0)
        return self

    def predict_proba(self, X):
        distance = ((X[:, None, :] - self.centres[None]) ** 2).sum(axis=2)
        near = np.exp(-(distance - distance.min(axis=1, keepdims=True)))
        return near / near.sum(axis=1, keepdims=True)

    def predict(self, X):
        return self.predict_proba(X).argmax(axis=1)
'''

RECIPE: dict[str, dict[str, Any]] = {
    "data": {
        "name": "tiny",
        "source": "tiny.npz",
        "accept_unprotected": True,
        "public": 30,
        "test": 30,
    },
    "teachers": {"count": 6, "model": "centroids:Centroids"},
    "aggregate": {"mechanism": "lnmax", "scale": 2.0, "queries": 12},
    "privacy": {"delta": 1e-3, "sanitise": True},
    "student": {"model": "centroids:Centroids"},
}


def tiny_records(records: int = 150, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Well separated blobs in four dimensions, of all classes in turn."""
    rng = np.random.default_rng(7)
    labels = np.arange(records) % classes
    features = rng.normal(size=(records, 4))
    features[np.arange(records), labels % 4] += 6.0
    return features, labels


class Raw(str):
    """A value that is TOML already, or is meant to be none."""


def toml(value: Any) -> str:
    """A plain value as TOML writes it."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    return json.dumps(value)


@dataclass
class Project:
    """A folder with data, a plug-in and a recipe; :meth:`pate` runs the command line in it."""

    folder: Path
    sections: dict[str, dict[str, Any]] = field(default_factory=lambda: deepcopy(RECIPE))
    engine: str = "serial"
    threads: int = 1  # that libraries may use
    name: str = "tiny"  # of its recipe
    program: ClassVar[str] = "pate"  # "dpsgd" in a subclass

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / self.name

    @property
    def ledger(self) -> Path:
        return self.folder / "data" / "ledgers" / f"{self.sections['data']['name']}.ledger"

    @property
    def user_folder(self) -> Path:
        return self.folder.with_name(f".user-of-{self.folder.name}")

    def plugin(self, name: str, code: str) -> None:
        """Puts a module into the plug-in folder."""
        (self.folder / "plugins").mkdir(exist_ok=True)
        (self.folder / "plugins" / f"{name}.py").write_text(code)

    def data(self, records: int = 150, classes: int = 3, **more: Any) -> None:
        """Writes tiny.npz (X, y and what is given besides)."""
        features, labels = tiny_records(records, classes)
        np.savez(self.folder / "tiny.npz", X=features, y=labels, **more)

    def write(self, name: str = "tiny", **sections: dict[str, Any] | None) -> Path:
        """Writes the recipe NAME.toml: the tiny one with some keys set, or removed by None."""
        merged = deepcopy(self.sections)
        for section, keys in sections.items():
            if keys is None:
                merged.pop(section, None)
            else:
                merged.setdefault(section, {}).update(keys)
        lines = []
        for section, keys in merged.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {toml(value)}" for key, value in keys.items() if value is not None]
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def command(self, *words: str | Path) -> list[str]:
        return [sys.executable, "-m", self.program, *map(str, words)]

    def environment(self) -> dict[str, str]:
        # What is known of private records belongs to the project, not to whoever runs the tests.
        own = {"XDG_DATA_HOME": str(self.user_folder)}
        own |= {
            "PATE_DATA": "data",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "PYTHONUTF8": "1",
        }
        return os.environ | own | {"OMP_NUM_THREADS": str(self.threads)}

    def pate(self, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a command in the folder; it must end with ``code`` and without a traceback.

        In a process of its own, which is forked from one that has loaded what commands import.
        """
        texts = [str(word) for word in words]
        if self.threads == 1 and not any("ray" in text for text in texts):
            done = call("pate", *texts, folder=self.folder, environment=self.environment())
        else:  # these are settled while libraries are loaded
            done = subprocess.run(
                self.command(*words),
                cwd=self.folder,
                env=self.environment(),
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def call(self, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        """As :meth:`pate`, but in this process: for variations, where start-up is all the time."""
        main = importlib.import_module(f"{self.program}.cli").main
        out, err = io.StringIO(), io.StringIO()
        before, sys.argv = sys.argv, [self.program, *map(str, words)]
        try:
            with (
                contextlib.chdir(self.folder),
                unittest.mock.patch.dict(os.environ, XDG_DATA_HOME=str(self.user_folder)),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                contextlib.ExitStack() as stack,
            ):
                stop = stack.enter_context(pytest.raises(SystemExit))
                main()
        finally:
            sys.argv = before
        ended = int(stop.value.code or 0)
        assert ended == code, f"{words}: {ended}\n{out.getvalue()}\n{err.getvalue()}"
        return subprocess.CompletedProcess(list(words), ended, out.getvalue(), err.getvalue())

    def run(
        self, *words: str | Path, stage: str = "run", recipe: str | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """``pate run`` (or one stage) of NAME.toml with the plug-ins and the project's engine."""
        return self.pate(*self._words(stage, recipe), *words, code=code)

    def call_run(
        self, *words: str | Path, stage: str = "run", recipe: str | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """As :meth:`run`, in this process."""
        return self.call(*self._words(stage, recipe), *words, code=code)

    def _words(self, stage: str, recipe: str | None) -> list[str]:
        plugins = ["--plugin-path", "plugins"] if (self.folder / "plugins").exists() else []
        return [stage, f"{recipe or self.name}.toml", "--engine", self.engine, *plugins]

    def artifacts(self, stage: str, run: Path | None = None) -> set[str]:
        """Fingerprints of the finished artifacts of a stage, or part of one."""
        place = run or self.run_folder
        private = place.glob(f"private/{stage}/*/manifest.json")
        origins = place.glob(f"private/origins/{stage}/*.json")
        return {each.parent.name for each in private} | {each.stem for each in origins}

    def in_the_open(self, stage: str, name: str) -> Path:
        """The folder of the PUBLIC or RELEASED artifact of a fingerprint."""
        file = self.run_folder / "private" / "origins" / stage / f"{name}.json"
        origin = json.loads(file.read_text())
        return self.run_folder / origin["level"].lower() / stage / str(origin["folder"])

    def all_artifacts(self, run: Path | None = None) -> dict[str, set[str]]:
        """All finished artifacts, by their stage."""
        place = run or self.run_folder
        names = {manifest.parents[1].name for manifest in place.glob("*/*/*/manifest.json")}
        return {name: self.artifacts(name, place) for name in sorted(names)}

    def path(self, stage: str, run: Path | None = None) -> Path:
        """The folder of a stage's only artifact."""
        (manifest,) = (run or self.run_folder).glob(f"*/{stage}/*/manifest.json")
        return manifest.parent

    def array(self, stage: str, name: str, run: Path | None = None) -> np.ndarray:
        return np.load(self.path(stage, run) / name)

    def json(self, stage: str, name: str, run: Path | None = None) -> Any:
        return json.loads((self.path(stage, run) / name).read_text())

    def artifact(self, stage: str) -> Artifact:
        """The only artifact of a stage, opened by a stage that may read everything."""
        (artifact,) = Store(root=self.run_folder, reader="evaluate").all(stage)
        return artifact

    def charges(self) -> list[str]:
        """The ids of everything the data set has paid for, in order."""
        from pate.accounting import Ledger

        if not self.ledger.exists():
            return []
        with Ledger.open(self.ledger) as ledger:
            return [charge.release for charge in ledger.charges()]


# Python and what commands import are loaded once; then every command is a forked process in a group
# of its own. So a thousand commands take a minute, and kills fall on the work, not on importing.
SERVER = """
import contextlib, importlib, io, json, os, resource, sys, traceback
import dpsgd.cli, pate.cli

MAINS = {"pate": pate.cli.main, "dpsgd": dpsgd.cli.main}

def run(words):
    sys.argv = words
    try:
        MAINS[words[0]]()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))

def child(words, folder, environment, umask, out, err, memory):
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.umask(umask)
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin = open(os.devnull)
        os.dup2(sys.stdin.fileno(), 0)
        for path, stream in ((out, 1), (err, 2)):
            if path is not None:
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
        if memory is not None:
            own = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (own + memory, own + memory))
        code = run(words)
    except BaseException:
        traceback.print_exc()  # as Python itself would
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)

modules, first = json.loads(sys.stdin.readline())
for module in modules:
    importlib.import_module(module)
with contextlib.redirect_stdout(io.StringIO()):
    for words in first:
        assert not run(words), words
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        child(*json.loads(line))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class CommandServer:
    """Runs ``pate`` and ``dpsgd`` again and again, each time in a process of its own."""

    def __init__(self, project: Project, *first: list[str], modules: Sequence[str] = ()) -> None:
        """``modules``, and commands that succeed, ``first``, load what later commands need."""
        self.project = project
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=project.folder,
            env=project.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._send([list(modules), list(first)])
        assert self._receive() == b"ready"

    def _send(self, order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")  # surrogates as escapes
        self.process.stdin.flush()

    def _receive(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def fork(
        self,
        *words: str,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        out: Path | None = None,
        err: Path | None = None,
        memory: int | None = None,
    ) -> int:
        """Starts a command and returns its process id; :meth:`wait` must follow.

        ``memory`` is how many bytes it may take beyond what is loaded.
        """
        os.umask(umask := os.umask(0o077))  # as a process of ours would have it
        place = [str(folder or self.project.folder), environment or self.project.environment()]
        place.append(umask)
        self._send([words, *place, out and str(out), err and str(err), memory])
        return int(self._receive())

    def wait(self) -> int:
        """The exit code of the command, once it ended; minus the signal that ended it."""
        return int(self._receive())

    def call(
        self,
        *words: str,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        seconds: float = 60,
        memory: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, or kills it after ``seconds``."""
        with tempfile.TemporaryDirectory(prefix="output-") as folder_of_output:
            out, err = Path(folder_of_output, "out"), Path(folder_of_output, "err")
            pid = self.fork(
                *words, folder=folder, environment=environment, out=out, err=err, memory=memory
            )
            timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
            timer.start()
            try:
                code = self.wait()
            finally:
                timer.cancel()
            texts = [path.read_text(errors="replace") for path in (out, err)]
        return subprocess.CompletedProcess(list(words), code, *texts)

    def close(self) -> None:
        self.process.communicate(timeout=300)


@functools.cache
def shared_server(process: int) -> CommandServer:
    """The server of this test process, with everything loaded that commands are slow to import."""
    project = Project(Path(__file__).parents[1])
    server = CommandServer(
        project,
        modules=(
            "matplotlib.pyplot",
            "sklearn.linear_model",
            "skops.io",
            "torch",
            "randomgen",
            "dp_accounting",
            "pate.stages.catalogue",
            "pate.releases.write",
        ),
    )
    atexit.register(server.close)
    return server


def call(
    *words: str, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs ``pate`` or ``dpsgd`` to its end, in a process forked from the shared server."""
    return shared_server(os.getpid()).call(
        *words, folder=folder, environment=environment, seconds=300
    )


def as_written(printed: str) -> dict[str, Any]:
    """What --json printed, without the ε as people read them."""

    def without(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        shown = dict(pairs)
        if "epsilon_printed" in shown:
            assert shown.pop("epsilon_printed") == format_epsilon(shown["epsilon"])
        return shown

    content: dict[str, Any] = json.loads(printed, object_pairs_hook=without)
    return content


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """All that a command printed."""
    return done.stdout + done.stderr


def open_project(folder: Path) -> Project:
    """Makes a project with tiny data of three classes, or opens the one that is there."""
    made = Project(folder)
    if not (folder / "data").exists():
        (folder / "data").mkdir()
        made.plugin("centroids", CENTROIDS)
        made.data()
        made.write()
    return made
