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
import json
import signal
from collections.abc import Callable
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

REFERENCE = Path(__file__).parent / "reference"

settings.register_profile("project", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("project")


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


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with tiny data of three classes, the plug-in ``centroids`` and its recipe."""
    return open_project(tmp_path)
