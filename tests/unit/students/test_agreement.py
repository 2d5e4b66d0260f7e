"""Learning from what the student says itself of inputs that were given no label."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from pate.students.networks import Mlp
from pate.students.spec import StudentSpec
from pate.students.train import StudentData, train_student
from pate.students.training import fit_agreeing, fit_table
from pate.teachers.spec import Training
from pate.teachers.torch_teacher import TorchTeacher


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def student(inputs):
    torch.manual_seed(0)
    module = Mlp(classes=2, hidden=[16], dropout=0.0)
    module(inputs[:4])
    training = Training(batch_size=16, lr=1e-2, optimizer="adamw")
    return TorchTeacher(module, training=training, classes=2, seed=0)


def clouds(seed=0):
    rng = np.random.default_rng(seed)
    centres = np.repeat([[-2.0] * 4, [2.0] * 4], 60, axis=0)
    inputs = torch.from_numpy((centres + rng.normal(size=centres.shape)).astype(np.float32))
    labels = torch.arange(2).repeat_interleave(60)
    return inputs, labels, torch.nn.functional.one_hot(labels, 2).float()


def weights(teacher):
    return {name: value.clone() for name, value in teacher.module.state_dict().items()}


def test_where_all_are_given_it_is_an_ordinary_fit():
    inputs, _, table = clouds()
    plain, agreeing = student(inputs), student(inputs)
    fit_table(plain, inputs, table, epochs=3, seed=1, average=0.9, smoothing=0.1)
    given = torch.ones(len(inputs), dtype=torch.bool)
    fit_agreeing(agreeing, inputs, table, given, least=0.9, epochs=3, seed=1, average=0.9,
                 smoothing=0.1)  # fmt: skip
    for name, value in weights(plain).items():
        assert torch.allclose(weights(agreeing)[name], value, atol=1e-6), name


def test_a_target_that_was_not_given_is_not_looked_at():
    inputs, labels, table = clouds()
    given = torch.zeros(len(inputs), dtype=torch.bool)
    given[::6] = True
    lies = torch.where(given[:, None], table, 1 - table)
    one, other = student(inputs), student(inputs)
    for teacher, targets in ((one, table), (other, lies)):
        fit_agreeing(teacher, inputs, targets, given, least=0.9, epochs=8, seed=1, average=0.9)
    assert all(torch.equal(weights(other)[name], value) for name, value in weights(one).items())
    assert (one.predict(inputs.numpy()) == labels.numpy()).mean() > 0.95


def test_only_what_is_sure_is_learnt():
    inputs, _, table = clouds()
    given = torch.zeros(len(inputs), dtype=torch.bool)
    given[[0, 60]] = True
    found = {}
    for least in (0.5, 1.0):  # nothing is quite certain: 1.0 takes nothing
        teacher = student(inputs)
        fit_agreeing(teacher, inputs, table, given, least=least, epochs=2, seed=1, average=0.9)
        found[least] = weights(teacher)
    assert any(not torch.equal(found[0.5][name], value) for name, value in found[1.0].items())


def test_it_goes_on_where_it_was_killed(tmp_path):
    digits = load_digits()
    data = StudentData(
        inputs=(digits.images[:200] / 16).astype(np.float32),
        rows=np.arange(40),
        labels=digits.target[:40],
        classes=10,
    )
    spec = StudentSpec(
        model="small-cnn", params={"channels": [4, 8, 8]}, method="self-training",
        fractions=[0.6, 0.8], epochs=3, first_epochs=2, average=0.9, agreement=0.5,
    )  # fmt: skip

    class Bar:
        left = 4

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def advance(self, count=1):
            Bar.left -= count
            if Bar.left < 0:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_student(spec, data, folder=tmp_path, progress=lambda *_: Bar())
    resumed = train_student(spec, data, folder=tmp_path)
    whole = train_student(spec, data)
    for name, value in whole.module.state_dict().items():
        assert torch.equal(resumed.module.state_dict()[name], value), name
