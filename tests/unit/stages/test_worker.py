"""Groups in a worker: every teacher its own artifact, whoever is missing, failing or beside it."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest
import torch
from limited_device import limited_device

from pate.artifacts import Level, Store
from pate.engines.files import code, makes, path_of, reads, rows
from pate.stages.dispatch import groups
from pate.stages.worker import ABSTAINS, predict_group, train_group
from pate.teachers.spec import TeachersSpec

NETWORK = """
import torch


class Network(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = torch.nn.Linear(5, classes)

    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture
def bench(tmp_path):
    """A function that trains or asks a group, and the store it works in."""
    rng = np.random.default_rng(0)
    sizes = [12, 9, 0, 15, 12, 12]
    np.save(tmp_path / "features.npy", rng.normal(size=(sum(sizes), 5)).astype(np.float32))
    np.save(tmp_path / "labels.npy", rng.integers(0, 3, size=sum(sizes)))
    np.save(tmp_path / "offsets.npy", np.cumsum([0, *sizes]))
    np.save(tmp_path / "inputs.npy", rng.normal(size=(5000, 5)).astype(np.float32))
    (tmp_path / "network.py").write_text(NETWORK)
    return Bench(tmp_path)


class Bench:
    def __init__(self, folder):
        self.folder = folder
        self.store = Store(root=folder / "store")
        self.offsets = np.load(folder / "offsets.npy")

    def payload(self, model, wanted, **more):
        teachers = [
            {
                "number": n,
                "made_from": name if n in wanted else None,
                "model": {"model": model},
                "seed": n,
                "records": rows(self.folder / "features.npy", *self.offsets[n : n + 2]),
                "labels": rows(self.folder / "labels.npy", *self.offsets[n : n + 2]),
                "folder": reads(self.store.folder("teacher", Level.PRIVATE, name)),
            }
            for n in range(6)
            for name in [f"{n}-".ljust(30, "0")]
        ]
        return {
            "store": makes(self.store.root),
            "inputs": reads(self.folder / "inputs.npy"),
            "part": makes(self.folder / "part.npy"),
            "classes": 3,
            "plugins": code(self.folder),
            "batched": True,
            "teachers": teachers,
        } | more

    def votes(self, payload):
        told = predict_group(payload)
        return told, np.array(np.load(path_of(payload["part"])))


MODELS = ["ridge", "logistic", "network:Network", "sklearn.tree:DecisionTreeClassifier"]


@pytest.mark.parametrize("model", MODELS)
def test_a_failure_is_one_teachers_and_the_rest_are_saved(model, bench):
    payload = bench.payload(model, range(6))
    payload["teachers"][1]["labels"] = rows(bench.folder / "labels.npy", 0, 3)  # too few
    told = train_group(payload)
    assert told["stop"] is None
    assert {n: "do not match" in why for n, why in told["failed"].items()} == {1: True}
    assert len(bench.store.all("teacher")) == 5
    assert {artifact.level for artifact in bench.store.all("teacher")} == {Level.PRIVATE}


@pytest.mark.parametrize("model", MODELS)
def test_who_has_no_records_is_kept_without_files_and_abstains(model, bench):
    payload = bench.payload(model, range(6))
    assert train_group(payload) == {"failed": {}, "stop": None}
    kept = {a.manifest["made_from"][0]: a.holds_files for a in bench.store.all("teacher")}
    assert kept == {str(n): n != 2 for n in range(6)}
    told, said = bench.votes(payload)
    assert told == {"failed": {}, "stop": None}
    assert (said[2] == ABSTAINS).all()
    assert set(np.unique(said[[0, 1, 3, 4, 5]])) <= {0, 1, 2}


@pytest.mark.parametrize("model", MODELS)
def test_who_is_missing_changes_no_bit_for_the_others(model, bench):
    present = {0, 1, 3, 4, 5}
    train_group(bench.payload(model, present))
    whole = {a.manifest["made_from"]: a.digest for a in bench.store.all("teacher")}
    told, said = bench.votes(bench.payload(model, present))
    assert told == {"failed": {}, "stop": None}
    assert (said[2] == ABSTAINS).all()
    assert set(np.unique(said[[0, 1, 3, 4, 5]])) <= {0, 1, 2}

    _, fewer = bench.votes(bench.payload(model, {1, 4}))
    np.testing.assert_array_equal(fewer[[1, 4]], said[[1, 4]])
    assert (fewer[[0, 2, 3, 5]] == ABSTAINS).all()

    bench.store.discard(bench.store.all("teacher")[3])  # a resumed run trains one again
    gone = whole.keys() - {a.manifest["made_from"] for a in bench.store.all("teacher")}
    train_group(bench.payload(model, {int(name.split("-")[0]) for name in gone}))
    assert {a.manifest["made_from"]: a.digest for a in bench.store.all("teacher")} == whole


@pytest.mark.parametrize("model", ["ridge", "network:Network"])
def test_one_by_one_where_the_recipe_says_so(model, bench, monkeypatch):
    from pate.teachers import protocol

    def call_family(teachers, *_, **__):
        assert len(teachers) == 1

    wanted = {0, 1, 3}
    train_group(bench.payload(model, wanted))
    _, together = bench.votes(bench.payload(model, wanted))
    alone = Bench(bench.folder)
    alone.store = Store(root=bench.folder / "alone")
    monkeypatch.setattr(protocol, "_call_family", call_family)
    train_group(alone.payload(model, wanted, batched=False))
    _, single = alone.votes(alone.payload(model, wanted, batched=False))
    assert (single == together).mean() > 0.999


def test_a_damaged_teacher_stops_the_vote_and_is_named(bench):
    train_group(bench.payload("ridge", {0, 1}))
    folder = bench.store.folder("teacher", Level.PRIVATE, "1-".ljust(30, "0"))
    (folder / "arrays.npz").write_bytes(b"?")
    told = predict_group(bench.payload("ridge", {0, 1}))
    assert told["stop"].startswith("teacher 1: ")
    assert not (bench.folder / "part.npy").exists()


def test_a_model_that_cannot_be_made_stops_the_run(bench):
    told = train_group(bench.payload("rigde", range(6)))
    assert "built in are" in told["stop"]


def test_groups_hold_every_teacher_once_and_one_model_each():
    mix = [{"model": "ridge", "weight": 2}, {"model": "a:B"}]
    spec = TeachersSpec.model_validate({"count": 900, "mix": mix})
    found = groups(spec)
    assert sorted(n for group in found for n in group) == list(range(900))
    assert {len(group) for group in found[:-1]} <= {64, 32, 600 % 64}
    timed = groups(TeachersSpec.model_validate({"count": 900, "mix": mix, "timeout": 5}))
    assert max(map(len, timed)) == 64
    assert sum(len(group) == 1 for group in timed) == 300


@pytest.mark.campaign
@pytest.mark.parametrize("batched", [True, False])
def test_a_device_too_small_stops_the_run_and_is_no_abstention(bench, batched):
    payload = bench.payload("network:Network", {0, 1, 3}, batched=batched)
    with limited_device(real=2**10):
        told = train_group(payload)
    assert told["failed"] == {}
    assert told["stop"].startswith("limited:1073741824/1024 has not enough memory")
    assert bench.store.all("teacher") == []
    assert train_group(payload)["stop"] is None
    with limited_device(real=100):
        told = predict_group(payload)
    assert told["failed"] == {}
    assert "no teacher is to blame" in told["stop"]
    assert not (bench.folder / "part.npy").exists()
    with limited_device():
        assert predict_group(payload) == {"failed": {}, "stop": None}


CARELESS = """
import random

import numpy as np
import torch


class Careless:
    def __init__(self, classes):
        self.first = random.random() + np.random.rand() + float(torch.rand(()))
        self.drawn = np.zeros(0)

    def fit(self, X, y):
        for _ in range(len(y)):  # as many draws as it has records
            self.drawn = np.array([self.first, random.random(), np.random.rand(), torch.rand(())])

    def predict(self, X):
        return np.random.randint(0, 3, size=len(X))
"""


def test_chance_that_all_share_is_each_teachers_own(bench):
    """Another shard, or nobody before it in the same worker: a teacher draws what it draws."""
    (bench.folder / "careless.py").write_text(CARELESS)

    def drawn(number):
        name = f"{number}-".ljust(30, "0")
        folder = bench.store.folder("teacher", Level.PRIVATE, name)
        return np.load(folder / "arrays.npz")["a_drawn"].tolist()

    train_group(bench.payload("careless:Careless", {0, 1, 3}))
    _, votes = bench.votes(bench.payload("careless:Careless", {0, 1, 3}))
    before = [drawn(n) for n in (0, 1, 3)]
    assert len({tuple(each) for each in before}) == 3
    shutil.rmtree(bench.store.root)
    np.random.seed(5)  # noqa: NPY002
    train_group(bench.payload("careless:Careless", {3}))
    assert drawn(3) == before[2]
    _, alone = bench.votes(bench.payload("careless:Careless", {3}))
    np.testing.assert_array_equal(alone[3], votes[3])
    assert len(np.unique(alone[3])) == 3


def test_shared_generators_are_left_as_they_were(bench):
    (bench.folder / "careless.py").write_text(CARELESS)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    train_group(bench.payload("careless:Careless", {0, 1}))
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected  # noqa: NPY002
