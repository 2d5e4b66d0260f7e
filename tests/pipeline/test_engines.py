"""The same answer everywhere: one recipe and one seed on every engine, compared byte by byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

OTHERS = [
    "processes:2",
    pytest.param("gpus:cpu,cpu", marks=pytest.mark.campaign),
    pytest.param("ray", marks=[pytest.mark.campaign, pytest.mark.xdist_group("ray")]),
]
SEED = ("--insecure-seed", "5")
pytestmark = pytest.mark.xdist_group("engines")  # in one worker: one serial run to compare with

MODELS = '''
"""A teacher in torch, and a plain one that notes how many threads it could have used."""
import numpy as np
import threadpoolctl
import torch


class Small(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.LazyLinear(32), torch.nn.Tanh(), torch.nn.Linear(32, classes)
        )

    def forward(self, records):
        return self.layers(records)


class Means:
    """Nearest mean of each class, among features that a seed has chosen."""

    def __init__(self, classes, seed):
        self.classes, self.seed = classes, seed
        self.means, self.threads, self.columns = np.zeros((0, 0)), np.zeros(2), np.zeros(0)

    def fit(self, X, y):
        self.columns = np.random.default_rng(self.seed).permutation(X.shape[1])[:8]
        chosen = X[:, self.columns]
        self.means = np.full((self.classes, chosen.shape[1]), 1e9)
        for label in np.unique(y):
            self.means[label] = chosen[y == label].mean(axis=0)
        pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
        self.threads = np.array([max(pools), torch.get_num_threads()])

    def predict(self, X):
        far = (X[:, self.columns][:, None] - self.means[None]) ** 2
        return far.sum(axis=2).argmin(axis=1)
'''

# Eight of each, in groups of four: batched families, a plug-in, scikit-learn.
MIX = [
    {"model": "ridge"},
    {"model": "models:Small", "epochs": 2, "batch_size": 16},
    {"model": "models:Means"},
    {"model": "sklearn.linear_model:LogisticRegression", "params": {"max_iter": 20}},
]
RECIPE: dict[str, dict[str, Any]] = {
    "data": {
        "name": "tiny",
        "source": "tiny.npz",
        "public": 60,
        "test": 40,
        "accept_unprotected": True,
    },
    "teachers": {"count": 32, "mix": MIX},
    "aggregate": {"mechanism": "lnmax", "scale": 4.0, "queries": 20},
    "privacy": {"delta": 1e-3, "sanitise": True},
    "student": {"model": "models:Small", "epochs": 3},
}


@pytest.fixture(scope="module")
def origin(project_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Data that is hard to tell apart, the recipe, and a data key: what all runs have in common."""
    made = project_in(tmp_path_factory.mktemp("origin"))
    made.plugin("models", MODELS)
    made.sections = RECIPE
    rng, y = np.random.default_rng(11), np.arange(1060) % 3
    features = rng.normal(size=(1060, 24)) + 0.8 * np.eye(24)[y]
    np.savez(made.folder / "tiny.npz", X=features, y=y)
    made.write()
    made.run("--quiet", *SEED, stage="partition")
    return made


def copied(origin: Any, folder: Path, project_in: Any) -> Any:
    """Another folder with the same data under the same key, its ledger untouched."""
    shutil.copytree(origin.folder, folder)
    made = project_in(folder)
    made.sections = origin.sections
    return made


@pytest.fixture(scope="module")
def serial(origin: Any, project_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run in this order, although its libraries were told to use two threads."""
    made = copied(origin, tmp_path_factory.mktemp("serial") / "copy", project_in)
    made.threads = 2
    made.run("--quiet", *SEED)
    said = made.array("vote", "predictions.npy")
    assert said.shape == (32, 60)
    assert len(np.unique(said, axis=0)) > 24  # teachers differ, so that a mix-up would show
    for kind in range(4):
        assert (said[kind::4] != said[kind]).any()
    return made


@pytest.fixture(scope="module")
def expected(serial: Any) -> dict[str, bytes]:
    """All that a serial run makes."""
    return made_in(serial)


def made_in(project: Any) -> dict[str, bytes]:
    """Every file of a run; a manifest names what its artifact was made from.

    But for where the data is, and for the numbers of charges, which are drawn by lot: without
    them, two runs could not be told apart in a ledger.
    """
    files = {
        str(file.relative_to(project.run_folder)): file.read_bytes()
        for file in project.run_folder.rglob("*")
        if file.is_file()
    }
    assert len([name for name in files if name.endswith("manifest.json")]) > 32 + 10
    del files["home.json"]
    charges = [name for name in files if name.endswith("/charge.json")]
    assert len(charges) == 2
    for charge in charges:
        assert charge.startswith("private/pending-")
        manifest = json.loads(files[charge.replace("charge", "manifest")])
        assert all(
            json.loads(files[charge])["name"] in each for each in manifest["facts"]["charges"]
        )
        del files[charge], manifest["files"]["charge.json"], manifest["seal"]
        del manifest["facts"]["charges"]
        files[charge.replace("charge", "manifest")] = json.dumps(manifest).encode()
    return files


def differences(some: dict[str, bytes], others: dict[str, bytes]) -> list[str]:
    """Which files are not in both, or not the same."""
    return sorted(n for n in some.keys() | others.keys() if some.get(n) != others.get(n))


@pytest.mark.campaign
@pytest.mark.parametrize("engine", OTHERS)
def test_every_byte_is_the_same(
    origin: Any, expected: dict[str, bytes], tmp_path: Path, project_in: Any, engine: str
) -> None:
    """Teachers, predictions, counts, labels, student, report and the fingerprints of all."""
    copy = copied(origin, tmp_path / "copy", project_in)
    copy.engine = engine
    copy.run("--quiet", *SEED)
    assert differences(made_in(copy), expected) == []


@pytest.mark.campaign
def test_another_engine_goes_on_and_then_finds_nothing_to_do(
    serial: Any, expected: dict[str, bytes]
) -> None:
    """What is there is not made again; what is missing is as it was."""
    (teach,) = serial.run_folder.glob("private/teach/*")
    gone = sorted(serial.run_folder.glob("private/teacher/*"))[::3]
    for folder in (teach, *gone):
        shutil.rmtree(folder)
    before = times(serial)
    serial.engine = "gpus:cpu@2"
    serial.run("--quiet", *SEED)
    assert before.items() <= times(serial).items()
    assert differences(made_in(serial), expected) == []
    complete = times(serial)
    for engine in ("serial", "processes:2", "ray"):
        serial.engine = engine
        said = serial.call_run(*SEED).stdout
        assert "running" not in said
        assert said.count("done before") == 10
    assert times(serial) == complete


def times(project: Any) -> dict[str, int]:
    """When each artifact was made."""
    manifests = project.run_folder.glob("*/*/*/manifest.json")
    return {str(file): file.stat().st_mtime_ns for file in manifests}
