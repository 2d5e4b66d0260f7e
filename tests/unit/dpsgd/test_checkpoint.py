"""Checkpoints: whole or the one before, for the owner alone, and for the same run only."""

from __future__ import annotations

import errno
import os
import stat

import numpy as np
import pytest
import torch
from torch import nn

from dpsgd import checkpoint
from dpsgd.trainer import Trainer
from pate.accounting import Gaussian, Guarantee, Ledger
from pate.artifacts import StoreError
from pate.errors import InvalidInput

X = np.random.default_rng(0).normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(np.int64)


def make(path, *, optimizer=torch.optim.SGD, rate=0.1, hidden=5, **more):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 2))
    settings = {
        "dataset": (X, Y), "lot_size": 12, "max_grad_norm": 1.0, "noise_multiplier": 2.0,
        "delta": 1e-3, "checkpoint": path, "insecure_seed": 8, **more,
    }  # fmt: skip
    return Trainer(model, optimizer(model.parameters(), lr=rate), **settings)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.safetensors"


def test_tensors_and_record_come_back_as_they_were(path):
    tensors = {"a": torch.randn(3, 2), "b": torch.tensor(7), "c": torch.empty(0)}
    tensors["tied"] = tensors["a"]
    record = {"revision": "r1", "number": 0.1, "nested": {"list": [1, None, "x"]}}
    checkpoint.write(path, tensors, record)
    found, read = checkpoint.read(path)
    assert read == record
    assert set(found) == set(tensors)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert checkpoint.revision(path) == "r1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert checkpoint.revision(path.with_name("none")) is None


def test_any_changed_byte_is_noticed(path):
    checkpoint.write(path, {"a": torch.arange(8.0)}, {"revision": "r", "steps": 5})
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            assert checkpoint.read(path)[1] == {"revision": "r", "steps": 5}  # padding
        except InvalidInput:
            continue
        assert chr(whole[place]) == " ", place
    for content in (b"", whole[:-1], whole[:40], b"nonsense" * 20):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="damaged"):
            checkpoint.read(path)


def test_a_full_disk_leaves_the_old_file(path, monkeypatch):
    trainer = make(path).fit(steps=3)
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"no space left on device; nothing was changed"):
        trainer.fit(steps=2)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.glob(".*-*")] == []
    assert make(path).steps == 3


def test_left_overs_of_a_killed_process_do_no_harm(path):
    left = path.with_name(f".{path.name}-abcdefgh")
    left.mkdir(parents=True)
    (left / "draft").write_text("half a file")
    make(path).fit(steps=2)
    assert make(path).steps == 2
    assert not left.exists()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lot_size": 13}, "lot_size"),
        ({"noise_multiplier": 2.1}, "noise_multiplier"),
        ({"max_grad_norm": 0.9}, "clipping"),
        ({"delta": 1e-4}, "delta"),
        ({"hidden": 6}, "model"),
        ({"optimizer": torch.optim.Adam}, "optimizer"),
        ({"rate": 0.2}, "optimizer"),
        ({"learning_rate": 0.1}, "learning_rate"),
        ({"dataset": (X[:50], Y[:50])}, "data set"),
        ({"insecure_seed": None}, "insecure_seed"),
        ({"noise": "fast"}, "noise"),
        ({"sampling": "shuffle"}, "sampling"),
        ({"accountant": "abadi"}, "accountant"),
        ({"max_epsilon": 9.0}, "max_epsilon"),
        ({"prior_events": [Gaussian(noise_multiplier=9.0)]}, "prior_events"),
        ({"loss": lambda outputs, targets: outputs[:, 0]}, "loss"),
    ],
)
@pytest.mark.sample(5)
def test_another_configuration_is_refused_by_name(path, change, word):
    make(path).fit(steps=2)
    with pytest.raises(InvalidInput, match=f"another run: .*{word}"):
        make(path, **change)


def test_what_does_not_change_the_result_may_change(path):
    make(path).fit(steps=2)
    assert make(path, batch_size=3, checkpoint_every=1).steps == 2


def test_a_run_that_was_charged_asks_for_its_ledger(path, tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Guarantee(epsilon=20, delta=1e-3)) as ledger:
        make(path, ledger=ledger).fit(steps=2)
    with pytest.raises(InvalidInput, match="ledger"):
        make(path)


def test_two_trainers_cannot_draw_the_same_step(path):
    make(path).fit(steps=2)
    first, second = make(path), make(path)
    first.fit(steps=5)
    with pytest.raises(InvalidInput, match="no longer"):
        second.fit(steps=5)
    with checkpoint.held(path), pytest.raises(StoreError, match="another process"):
        first.step()
    path.unlink()
    with pytest.raises(InvalidInput, match="no longer"):
        first.step()


def test_an_optimiser_with_strange_memory_is_told_so(path):
    trainer = make(None)
    trainer.optimizer.param_groups[0]["strange"] = object()
    with pytest.raises(InvalidInput, match="SGD keeps a object"):
        checkpoint.pack_optimizer(trainer.optimizer)
