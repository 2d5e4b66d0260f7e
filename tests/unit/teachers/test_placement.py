"""Programs on a device with a limit: as wide as it allows, and never as wide as the data say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from limited_device import limited_device
from torch import nn

from pate.errors import OutOfMemory, TeacherError
from pate.teachers import placement as sizing
from pate.teachers import torch_family
from pate.teachers.adapters import build
from pate.teachers.placement import SHARE, largest_fitting, memory_need
from pate.teachers.protocol import predict_many_labels, train, train_many
from pate.teachers.spec import Training
from pate.teachers.torch_teacher import CHUNK, TorchTeacher

SETTINGS = {"epochs": 2, "batch_size": 8}
EQUAL = [20] * 12
UNEQUAL = [400, 1, 9, 20, 33, 3, 20, 20, 250, 17, 8, 2]


class Mlp(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, classes))

    def forward(self, x):
        return self.layers(x)


class Cnn(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)
        )

    def forward(self, x):
        return self.layers(x)


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(sizing, "_SIZES", {})


@pytest.fixture
def widths(monkeypatch):
    """How many networks each program had, in order; those with made-up records are negative."""
    found, run, try_out = [], torch_family._run, torch_family._try_out
    monkeypatch.setattr(
        torch_family, "_run", lambda first, lanes: (found.append(len(lanes)), run(first, lanes))[1]
    )
    monkeypatch.setattr(
        torch_family, "_try_out", lambda first, n: (found.append(-n), try_out(first, n))[1]
    )
    return found


def shards(sizes=EQUAL):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, 6)).astype(np.float32), rng.integers(0, 3, n)) for n in sizes]


def teachers(module=Mlp, count=12, **settings):
    training = Training(**SETTINGS | settings)
    return [build(module, training, classes=3, seed=n) for n in range(count)]


def need(**settings):
    """Bytes of one network, in training and in asking."""
    training = Training(**SETTINGS | settings)
    teacher = build(Mlp, training, classes=3, seed=0)
    return memory_need(teacher.module, training, (6,))


def program(networks):
    return need().bytes_for(networks, records=9)


def weights(teacher):
    return torch.cat([value.flatten() for value in teacher.module.state_dict().values()])


def assert_same(ones, others):
    assert all(torch.equal(weights(a), weights(b)) for a, b in zip(ones, others, strict=True))


def unlimited(module=Mlp, sizes=EQUAL):
    group = teachers(module, len(sizes))
    assert train_many(group, shards(sizes)) == [None] * len(sizes)
    return group


def test_the_estimate_covers_what_torch_keeps():
    estimate = need()
    values = 6 * 32 + 32 + 32 * 3 + 3
    assert estimate.network >= 4 * 4 * values  # weights, gradients, two moments
    assert estimate.record >= 4 * (6 + 32 + 3)  # the record, the hidden layer, the logits
    assert estimate.record < 20 * 4 * (6 + 32 + 3)
    assert need(optimizer="sgd").network < estimate.network


def test_as_many_networks_as_are_said_to_be_free(widths):
    group = teachers()
    with limited_device(program(5) / SHARE + 1, program(5)):
        assert train_many(group, shards()) == [None] * 12
    assert widths == [-5, 5, 5, 2]
    assert_same(group, unlimited())  # linear layers round the same in any company


@pytest.mark.campaign
def test_half_as_many_until_they_fit_and_the_next_group_knows(widths):
    group, again = teachers(), teachers()
    with limited_device(2**30, program(3)):
        assert train_many(group, shards()) == [None] * 12
        assert widths == [-64, -32, -16, -8, -4, -2, *[2] * 6]
        del widths[:]
        assert train_many(again, shards()) == [None] * 12
    assert widths == [2] * 6
    assert_same(group, unlimited())
    assert_same(again, group)


@pytest.mark.campaign
def test_sizes_of_shards_and_who_is_there_change_no_width(widths):
    seen = []
    for sizes, missing in ((EQUAL, []), (UNEQUAL, []), (UNEQUAL, [0, 1, 2, 3, 8, 9, 10, 11])):
        sizing._SIZES.clear()
        del widths[:]
        group = [None if n in missing else each for n, each in enumerate(teachers())]
        given = [None if n in missing else each for n, each in enumerate(shards(sizes))]
        with limited_device(2**30, program(5)):
            train_many(group, given)
        seen.append(list(widths))
        alone = unlimited(sizes=sizes)
        assert_same(filter(None, group), [alone[n] for n in range(12) if n not in missing])
    assert seen[0] == seen[1] == [-64, -32, -16, -8, -4, 4, 4, 4]
    assert seen[2] == [-64, -32, -16, -8, -4, 4]  # programs with nobody in them are left out


@pytest.mark.campaign
def test_a_small_group_that_comes_first_decides_nothing(widths):
    with limited_device(2**30, program(13)):
        for count in (12, 64, 12):
            train_many(teachers(count=count), shards([4] * count))
    assert widths == [-64, -32, -16, -8, 8, 4, *[8] * 8, 8, 4]


@pytest.mark.campaign
def test_convolutions_say_the_same_at_another_width(widths):
    queries = shards([300])[0][0]
    wide = unlimited(Cnn)
    said = predict_many_labels(wide, queries, classes=3)
    narrow = teachers(Cnn)
    with limited_device(
        2**30, memory_need(wide[0].module, wide[0].training, (6,)).bytes_for(3, records=9)
    ):
        assert train_many(narrow, shards()) == [None] * 12
    assert widths[-6:] == [2] * 6
    for one, other in zip(wide, narrow, strict=True):
        torch.testing.assert_close(weights(one), weights(other), rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(said, predict_many_labels(narrow, queries, classes=3))


def test_shortage_in_the_middle_begins_all_programs_anew(widths, monkeypatch):
    step, left = torch_family._Program.step, [9]

    def short(program, *batch):  # another process has taken the memory
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("MPS backend out of memory")
        return step(program, *batch)

    monkeypatch.setattr(torch_family._Program, "step", short)
    group = teachers()
    with limited_device(program(4) / SHARE + 1, 2**30):
        assert train_many(group, shards()) == [None] * 12
    assert widths == [-4, 4, 4, *[2] * 6]
    monkeypatch.undo()
    assert_same(group, unlimited())


@pytest.mark.campaign
def test_one_network_that_does_not_fit_stops_and_nobody_trains_alone(widths, monkeypatch):
    fresh = teachers()
    group = teachers()
    monkeypatch.setattr(TorchTeacher, "fit", lambda *_: pytest.fail("trained alone"))
    with limited_device(2**30, program(1) - 1), pytest.raises(OutOfMemory) as stopped:
        train_many(group, shards())
    assert widths == [-64, -32, -16, -8, -4, -2, -1]
    assert "gpus:0@1" in str(stopped.value)
    assert "'batch_size'" in str(stopped.value)
    assert str(stopped.value).startswith("limited:1073741824/")
    assert_same(group, fresh)


class Norm(Mlp):
    """Trains alone."""

    def __init__(self, classes):
        super().__init__(classes)
        self.layers.append(nn.BatchNorm1d(classes))


@pytest.mark.campaign
def test_a_teacher_that_trains_alone_and_does_not_fit_stops():
    with limited_device(2**30, 1000):
        for call in (
            lambda: train(teachers()[0], *shards()[0]),
            lambda: train_many(teachers(Norm), shards()),
            lambda: train_many(teachers()[:1], shards()[:1]),
        ):
            with pytest.raises(OutOfMemory, match="no teacher is to blame"):
                call()


def test_the_order_of_a_model_that_is_alone_is_the_same_on_every_device():
    here, there = teachers(Norm), teachers(Norm)
    assert train_many(here, shards(UNEQUAL)) == [None] * 12
    with limited_device(2**30, 2**30):
        assert train_many(there, shards(UNEQUAL)) == [None] * 12
    assert_same(here, there)


@pytest.mark.campaign
def test_predictions_come_in_smaller_chunks_until_those_fit(monkeypatch):
    group, queries = unlimited(), shards([3000])[0][0]
    said = predict_many_labels(group, queries, classes=3)
    chunks, forward = [], Mlp.forward
    monkeypatch.setattr(Mlp, "forward", lambda m, x: (chunks.append(len(x)), forward(m, x))[1])
    limit = need().bytes_for(1, records=CHUNK // 4)
    with limited_device(2**30, limit):
        np.testing.assert_array_equal(predict_many_labels(group, queries, classes=3), said)
    measured = {2}  # records with which the device's double measures what a chunk needs
    assert set(chunks) - measured == {CHUNK // 4, 3000 % (CHUNK // 4)}
    with limited_device(2**30, need().network), pytest.raises(OutOfMemory):
        predict_many_labels(group, queries, classes=3)


def test_other_errors_are_not_swallowed(widths, monkeypatch):
    def breaks(*_):
        raise RuntimeError("size mismatch")

    monkeypatch.setattr(torch_family._Program, "step", breaks)
    with limited_device(2**30, 2**30), pytest.raises(RuntimeError, match="size mismatch"):
        TorchTeacher.fit_many(teachers(), shards())
    assert widths == [-64]
    with pytest.raises(ZeroDivisionError):
        largest_fitting(lambda size: 1 // 0, lambda: 8, kind="broken")


class Hungry:
    """A teacher of one's own that runs out of memory."""

    def __init__(self, error):
        self.error = error

    def fit(self, X, y):
        raise self.error

    def predict(self, X):
        raise self.error


def test_teachers_of_ones_own_too():
    hungry = Hungry(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(OutOfMemory):
        train_many([hungry], shards([5]))
    with pytest.raises(OutOfMemory):
        predict_many_labels([hungry], np.zeros((2, 6)), classes=3)
    host = Hungry(MemoryError())  # of the host, for a shard: that is the teacher's own
    assert isinstance(train_many([host], shards([5]))[0], TeacherError)


def test_the_processor_has_no_limit(widths, monkeypatch):
    monkeypatch.setattr(sizing, "memory_need", None)
    monkeypatch.setattr(torch_family, "memory_need", None)
    train_many(teachers(count=70), shards([4] * 70))
    assert widths == [64, 6]
    assert sizing._SIZES == {}
