"""The same answer everywhere: one recipe and one seed on every engine, compared byte by byte."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

OTHERS = ["processes:2", "gpus:cpu,cpu", "ray"]
SEED = ("--insecure-seed", "5")

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
    "data": {"name": "tiny", "source": "tiny.npz", "public": 60, "test": 40},
    "teachers": {"count": 32, "mix": MIX},
    "aggregate": {"mechanism": "lnmax", "scale": 4.0, "queries": 20},
    "privacy": {"delta": 1e-3},
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


@pytest.fixture
def copy(origin: Any, tmp_path: Path, project_in: Any) -> Any:
    """Another folder with the same data under the same key, its ledger untouched."""
    return copied(origin, tmp_path / "copy", project_in)


def copied(origin: Any, folder: Path, project_in: Any) -> Any:
    shutil.copytree(origin.folder, folder)
    made = project_in(folder)
    made.sections = origin.sections
    return made


@pytest.fixture(scope="module")
def serial(
    origin: Any, project_in: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """All that a serial run makes, although its libraries were told to use two threads."""
    made = copied(origin, tmp_path_factory.mktemp("serial") / "copy", project_in)
    made.threads = 2
    made.run("--quiet", *SEED)
    said = made.array("vote", "predictions.npy")
    assert said.shape == (32, 60)
    assert len(np.unique(said, axis=0)) > 24  # teachers differ, so that a mix-up would show
    for kind in range(4):
        assert (said[kind::4] != said[kind]).any()
    return made_in(made)


def made_in(project: Any) -> dict[str, bytes]:
    """Every file of a run; a manifest names what its artifact was made from."""
    files = {
        str(file.relative_to(project.run_folder)): file.read_bytes()
        for file in project.run_folder.rglob("*")
        if file.is_file()
    }
    assert len([name for name in files if name.endswith("manifest.json")]) > 32 + 10
    del files["home.json"]  # where the data is
    paid = ("private/pending-labels", "private/pending-sanitised")  # under a number drawn by lot
    return {name: held for name, held in files.items() if not name.startswith(paid)}


def differences(some: dict[str, bytes], others: dict[str, bytes]) -> list[str]:
    """Which files are not in both, or not the same."""
    return sorted(n for n in some.keys() | others.keys() if some.get(n) != others.get(n))


@pytest.mark.parametrize("engine", OTHERS)
def test_every_byte_is_the_same(copy: Any, serial: dict[str, bytes], engine: str) -> None:
    """Teachers, predictions, counts, labels, student, report and the fingerprints of all."""
    copy.engine = engine
    copy.run("--quiet", *SEED)
    assert differences(made_in(copy), serial) == []


def test_another_engine_finds_nothing_to_do(copy: Any, serial: dict[str, bytes]) -> None:
    """An engine goes on where another has stopped; what is there is not made again."""
    copy.run("--quiet", *SEED, stage="vote")
    (teach,) = copy.run_folder.glob("private/teach/*")
    (vote,) = copy.run_folder.glob("private/vote/*")
    gone = sorted(copy.run_folder.glob("private/teacher/*"))[::3]
    for folder in (teach, vote, *gone):
        shutil.rmtree(folder)
    before = times(copy)
    copy.engine = "gpus:cpu@2"
    copy.run("--quiet", *SEED)
    assert before.items() <= times(copy).items()
    assert differences(made_in(copy), serial) == []
    complete = times(copy)
    for engine in ("serial", "processes:2", "ray"):
        copy.engine = engine
        said = copy.call_run(*SEED).stdout
        assert "running" not in said
        assert said.count("done before") == 10
    assert times(copy) == complete


def times(project: Any) -> dict[str, int]:
    """When each artifact was made."""
    manifests = project.run_folder.glob("*/*/*/manifest.json")
    return {str(file): file.stat().st_mtime_ns for file in manifests}
