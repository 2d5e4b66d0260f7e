"""Encoders and families of teachers from a recipe: what is noticed, and what must not matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

NET = '''
"""A backbone that scales its records, and a teacher in torch."""
import torch


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, records):
        return records * self.scale


class Small(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.LazyLinear(6), torch.nn.Tanh(), torch.nn.Linear(6, classes)
        )

    def forward(self, records):
        return self.layers(records)
'''


CLOSURES = '''
"""The same teacher twice: one that is stored, and one that no format takes."""
import numpy as np


class Stored:
    def __init__(self, seed):
        self.seed = seed

    def fit(self, X, y):
        if self.seed % 2:
            raise ValueError("half of all seeds do not work")
        self.labels = np.unique(y)
        noise = np.random.default_rng(self.seed).normal(size=X.shape[1])
        self.means = np.stack([X[y == label].mean(axis=0) for label in self.labels]) + noise / 3

    def predict(self, X):
        return self.labels[((X[:, None] - self.means) ** 2).sum(axis=2).argmin(axis=1)]


class Unstored(Stored):
    def fit(self, X, y):
        super().fit(X, y)
        self.answer = lambda X: Stored.predict(self, X)

    def predict(self, X):
        return self.answer(X)
'''


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a worker: numbers of torch may depend on how many threads there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def overlapping(project: Any) -> None:
    """Records of classes that are hard to tell apart, so that teachers disagree."""
    rng, y = np.random.default_rng(11), np.arange(150) % 3
    np.savez(project.folder / "tiny.npz", X=rng.normal(size=(150, 4)) + np.eye(4)[y], y=y)


@pytest.mark.campaign
def test_engines_give_the_same_predictions_and_votes(project: Any) -> None:
    """Three families in one ensemble: ridge, logistic regression and a torch module."""
    project.plugin("net", NET)
    overlapping(project)
    models = [{"model": name, "epochs": 3} for name in ("ridge", "logistic", "net:Small")]
    project.write(
        encoder={"steps": ["standardise", {"name": "pca", "dimension": 3}]},
        teachers={"count": 12, "model": None, "mix": models},
    )
    found = []
    for engine, command in {"serial": project.call_run, "processes:2": project.run}.items():
        project.engine = engine
        run = project.folder / engine.partition(":")[0]
        command("--out", run, stage="vote")
        found.append([project.array("vote", f"{n}.npy", run) for n in ("predictions", "counts")])
    (labels, counts), (labels_again, counts_again) = found
    np.testing.assert_array_equal(labels, labels_again)
    np.testing.assert_array_equal(counts, counts_again)
    assert labels.shape == (12, 30)
    for first in range(3):  # members of each family differ, so that a mix-up would show
        assert (labels[first::3] != labels[first]).any()
    np.testing.assert_array_equal(counts.sum(axis=1), 12)


@pytest.mark.campaign
def test_teachers_that_cannot_be_stored_vote_as_if_they_were(project: Any) -> None:
    """Each is fitted again to its own shard, with the seed that worked."""
    project.plugin("closures", CLOSURES)
    overlapping(project)
    votes = []
    for model, engine in (
        ("Stored", "serial"),
        ("Unstored", "serial"),
        ("Unstored", "processes:2"),
    ):
        project.engine = engine
        model = f"closures:{model}"
        project.write(teachers={"model": model, "count": 9, "on_error": "retry", "retries": 20})
        run = project.folder / f"run-{len(votes)}"
        project.call_run("--out", run, stage="vote")
        votes.append(project.array("vote", "predictions.npy", run))
    np.testing.assert_array_equal(votes[0], votes[1])
    np.testing.assert_array_equal(votes[0], votes[2])
    assert (votes[0] != votes[0][0]).any()


def test_other_weights_of_a_backbone_are_noticed(project: Any) -> None:
    project.plugin("net", NET)
    weights = project.folder / "plugins" / "scaled.safetensors"
    save_file({"scale": torch.ones(4)}, weights)
    step = {"name": "torch", "model": "net:Scaled", "weights": weights.name, "layer": ""}
    project.write(encoder={"steps": [step]})
    project.call_run(stage="encode")
    before = project.array("encode", "features.npy")
    status = ("status", "runs/tiny", "--plugin-path", "plugins")
    assert "weights changed" not in project.call(*status).stdout

    save_file({"scale": torch.full((4,), 2.0)}, weights)
    assert "stale: weights changed" in project.call(*status).stdout
    ran = project.call_run(stage="encode").stdout
    assert "encoder: running" in ran
    assert "encode: running" in ran
    found = [np.load(file) for file in project.run_folder.glob("private/encode/*/features.npy")]
    (now,) = [each for each in found if not np.array_equal(each, before)]
    np.testing.assert_allclose(now, 2 * before)

    weights.unlink()
    assert "encode: done before" in project.call_run(stage="encode").stdout
    missing = project.call_run(stage="teach", code=2)
    assert "scaled.safetensors" in missing.stderr
