"""Golden numbers, published votes and tiny projects, for every test that wants them."""

from __future__ import annotations

import os

# Read when numpy and torch are first imported: models here are small, and threads that wait for
# one another on cores that other tests use take thirty times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ledgers of tests belong to their own folders, not to whoever runs the tests.
os.environ["PATE_DATA"] = "data"

import functools
import hashlib
import itertools
import json
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Project, open_project
from hypothesis import settings

# Started in the background of a script, a process ignores Ctrl-C, and so does all it starts: tests
# that interrupt a command would wait for it for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _memory() -> str | None:
    """A file system in memory with room for what tests write, if there is one.

    Tests end processes, never the machine, so what they check needs no disk; but every charge and
    every artifact waits until it is on one.
    """
    place, information = "/dev/shm", Path("/proc/meminfo")
    if not (information.exists() and os.access(place, os.W_OK | os.X_OK)):
        return None
    found = re.search(r"^MemAvailable: +(\d+) kB$", information.read_text(), re.MULTILINE)
    room = min(shutil.disk_usage(place).free, int(found[1]) << 10 if found else 0)
    runs_programs = not os.statvfs(place).f_flag & os.ST_NOEXEC
    return place if runs_programs and room > 8 << 30 else None


if (_MEMORY := _memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)  # where pytest has tmp_path
_USERS = tempfile.TemporaryDirectory(
    prefix="pate-users-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")
)
_NUMBERS = itertools.count()
REFERENCE = Path(__file__).parent / "reference"

settings.register_profile("project", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("project")


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the later cases of a test that is marked ``sample(n)`` to the campaigns.

    Tests of an ``xdist_group`` are told to pytest-xdist, which makes out a group by the end of the
    name: since pytest 9.2 it changes an attribute that names are not made of any more, and every
    worker would make the runs of every group for itself.
    """
    for item in items if getattr(config.option, "loadgroup", False) else ():
        group = item.get_closest_marker("xdist_group")
        if group is not None and hasattr(item, "_id"):
            item._id = type(item._id).parse(f"{item.nodeid}@{group.args[0]}")
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is not None:
            test = (str(item.path), getattr(item, "originalname", item.name))
            if seen[test] >= sample.args[0]:
                item.add_marker(pytest.mark.campaign)
            seen[test] += 1


@functools.cache
def load_reference(name: str) -> dict[str, Any]:
    return json.loads((REFERENCE / f"{name}.public.json").read_text())


def reference_cases(
    name: str, kind: str | None = None, *, campaign: Callable[[Any], bool] = lambda case: False
) -> list[Any]:
    """The golden cases of one kind, as pytest parameters named by their id."""
    cases = load_reference(name)["cases"]
    return [
        pytest.param(c, id=c["id"], marks=[pytest.mark.campaign] if campaign(c) else [])
        for c in cases
        if kind is None or c["kind"] == kind
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``@pytest.mark.golden(name, kind)`` runs a test once for every golden case."""
    mark = metafunc.definition.get_closest_marker("golden")
    if mark is not None:
        metafunc.parametrize("case", reference_cases(*mark.args, **mark.kwargs))


@pytest.fixture(scope="session")
def reference() -> Callable[[str], dict[str, Any]]:
    return load_reference


@pytest.fixture(scope="session")
def recipe_votes() -> Callable[[dict[str, Any]], np.ndarray]:
    """The vote matrix of a golden case, made by the recipe in the file and checked by digest."""
    namespace: dict[str, Any] = {}
    exec(load_reference("gnmax")["votes_recipe_python"], namespace)

    @functools.cache
    def make(arguments: str) -> np.ndarray:
        return namespace["make_votes"](**json.loads(arguments))

    def votes(case: dict[str, Any]) -> np.ndarray:
        table = make(json.dumps(case["votes_recipe_args"]))
        digest = hashlib.sha256(np.ascontiguousarray(table, dtype="<i8").tobytes()).hexdigest()
        assert digest == case["votes_sha256_le_int64_c_order"]
        return table

    return votes


@pytest.fixture(scope="session")
def published_votes() -> Path:
    """Votes of the 250 MNIST teachers of PATE 2018: benchmark data that is not in the project."""
    beside = Path(__file__).parents[2] / "shared" / "votes" / "pate2018_mnist_250_teachers.npy"
    place = Path(os.environ.get("PATE_PUBLISHED_VOTES", beside))
    if not place.exists():
        pytest.skip("set PATE_PUBLISHED_VOTES to the published 9000 x 10 vote file")
    return place


@pytest.fixture(scope="session")
def project_in() -> Callable[[Path], Project]:
    """Makes a project in a folder, or opens the one that is there."""
    return open_project


@pytest.fixture(autouse=True)
def _user_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's data folder is another one for each test; it is made when it is first used."""
    monkeypatch.setenv("XDG_DATA_HOME", f"{_USERS.name}/{next(_NUMBERS)}")


@pytest.fixture(scope="module")
def plain_plots() -> Iterator[Callable[..., str]]:
    """Pages with empty plots, which take most of their time: for tests of something else.

    The value is what makes real ones.
    """
    from pate.report import plots

    with pytest.MonkeyPatch.context() as patch:
        real = plots._svg
        patch.setattr(plots, "_svg", lambda name, *_: f'<svg id="{name}"></svg>')
        yield real


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with tiny data of three classes, the plug-in ``centroids`` and its recipe."""
    return open_project(tmp_path)
