"""What holds for every method of training a student."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import get_args

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from pate.students.spec import StudentSpec
from pate.students.train import METHODS, StudentData, find_method, train_student
from pate.teachers.persist import load, save
from pate.teachers.protocol import predict_labels

# Settings that make a method quick on small images; a method without an entry runs as it is.
QUICK = {
    "supervised": {"epochs": 30, "lr": 0.01},
    "self-training": {"fractions": [0.8, 0.95], "first_epochs": 4, "epochs": 4},
    "fixmatch": {"epochs": 12, "batch_size": 64, "lr": 0.01, "average": 0.9},
    "mixmatch": {"epochs": 12, "batch_size": 64, "lr": 0.01, "average": 0.9},
    "gan": {"epochs": 20, "batch_size": 64, "lr": 0.005, "average": 0.95, "gan": {"hidden": [100]}},
}

# What is compared bit for bit need not have learnt much: fewer inputs, and fewer epochs.
SHORT_INPUTS = 240
SHORT = {"self-training": {"fractions": [0.8, 0.95], "first_epochs": 3, "epochs": 3}}

# Students of a method are trained once, in one worker.
methods = pytest.mark.parametrize(
    "method",
    [pytest.param(each, marks=pytest.mark.xdist_group(each)) for each in sorted(METHODS)],
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def spec(method, **changes):
    settings = {"model": "small-cnn", "params": {"channels": [8, 16, 16]}, "seed": 3}
    settings |= {"batch_size": 16, "augment": "shift"}
    return StudentSpec(method=method, **(settings | QUICK.get(method, {}) | changes))


def short(method, **changes):
    return spec(method, **(SHORT.get(method, {"epochs": 8}) | changes))


def short_data(labelled=80):
    return data(labelled=labelled, inputs=SHORT_INPUTS)


def data(labelled=80, inputs=600):
    digits = load_digits()
    return StudentData(
        inputs=(digits.images[:inputs] / 16).astype(np.float32),
        rows=np.arange(labelled),
        labels=digits.target[:labelled],
        classes=10,
    )


def weights(student):
    return torch.cat([v.double().flatten() for v in student.module.state_dict().values()])


@pytest.fixture(scope="module")
def trained():
    """One student for each method, made when it is first asked for."""
    return functools.cache(lambda method: train_student(spec(method), data()))


@pytest.fixture(scope="module")
def briefly():
    """As ``trained``, with few epochs on few inputs."""
    return functools.cache(lambda method: train_student(short(method), short_data()))


def test_every_method_can_be_named():
    assert set(METHODS) == set(get_args(StudentSpec.model_fields["method"].annotation))


def test_there_is_no_door_for_other_labels():
    fields = {field.name for field in dataclasses.fields(StudentData)}
    # Soft labels and weights follow from a released table, as labels do.
    assert fields == {"inputs", "features", "rows", "labels", "classes", "soft", "weights"}
    for method in METHODS:
        assert list(inspect.signature(find_method(method)).parameters) == ["spec", "data", "tools"]


@methods
@pytest.mark.sample(1)
def test_it_learns(method, trained):
    digits = load_digits()
    said = predict_labels(trained(method), digits.images[600:1200] / 16, classes=10)
    assert (said == digits.target[600:1200]).mean() > 0.7


@methods
@pytest.mark.sample(2)
def test_the_seed_decides_and_nothing_else_is_touched(method, briefly):
    first = weights(briefly(method))
    seen, state = short_data(), torch.random.get_rng_state()
    before = seen.digest()
    again = train_student(short(method), seen)
    assert torch.equal(weights(again), first)
    assert seen.digest() == before
    assert torch.equal(torch.random.get_rng_state(), state)
    other = train_student(short(method, seed=4), seen)
    assert not torch.equal(weights(other), weights(again))


@methods
@pytest.mark.sample(2)
def test_it_is_stored_and_loaded_as_a_teacher_is(method, trained, tmp_path):
    save(trained(method), tmp_path)
    again = load(tmp_path, spec(method).as_model(), classes=10, seed=3)
    X = data().inputs
    np.testing.assert_array_equal(again.predict_proba(X), trained(method).predict_proba(X))


@methods
def test_progress_ends_where_it_said(method):
    shown = []

    class Bar:
        def advance(self, count=1):
            shown[-1][2] += count

    @contextmanager
    def show(title, total, done):
        shown.append([title, total, done])
        yield Bar()

    train_student(short(method), short_data(), progress=show)
    assert [(title, done) for title, total, done in shown] == [("distill", shown[0][1])]


@methods
@pytest.mark.sample(2)
def test_labels_of_one_class(method):
    seen = dataclasses.replace(data(labelled=12, inputs=100), labels=np.full(12, 7))
    student = train_student(spec(method, epochs=30), seen)
    assert (predict_labels(student, seen.inputs[:12], classes=10) == 7).mean() > 0.9


@methods
@pytest.mark.sample(1)
def test_held_out_labels_are_not_learnt_from(method):
    """They choose among rounds or epochs, and do no more."""
    from pate.students.train import Tools

    held = short(method, validation=0.25, patience=100)
    seen = short_data()
    learn, stop = Tools(spec=held, classes=10).held_out(seen)
    assert len(stop) == 20
    assert not np.intersect1d(seen.rows[learn], seen.rows[stop]).size
    found = []
    for nobodys in (10, 11):  # no model says it, so that no round or epoch is the better one
        labels = seen.labels.copy()
        labels[stop] = nobodys
        said = dataclasses.replace(seen, labels=labels, classes=12)
        student = train_student(held, said)
        assert nobodys not in student.predict(seen.inputs)
        found.append(weights(student))
    assert torch.equal(*found)


CHILD = """
import json, os, signal, sys
from contextlib import contextmanager
from pathlib import Path
import numpy as np, torch
from sklearn.datasets import load_digits
from pate.students.train import StudentData
from pate.students.spec import StudentSpec
from pate.students.train import train_student
torch.set_num_threads(1)
digits = load_digits()
data = StudentData(
    inputs=(digits.images[:240] / 16).astype(np.float32), rows=np.arange(80),
    labels=digits.target[:80], classes=10,
)
class Bar:
    def __init__(self, done, die, told): self.done, self.die, self.told = done, die, told
    def advance(self, count=1):
        self.done += count
        os.write(self.told, b"%d " % self.done)
        if self.done >= self.die:
            os.kill(os.getpid(), signal.SIGKILL)
def learn(settings, folder, die, told):
    @contextmanager
    def show(title, total, done):
        yield Bar(done, die, told)
    train_student(StudentSpec.model_validate(settings), data, folder=Path(folder), progress=show)
warm = StudentSpec(model="small-cnn", params={"channels": [2]}, epochs=1, augment="shift")
train_student(warm, data)  # what is loaded once need not be again
for order in sys.stdin:
    told, telling = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            learn(*json.loads(order), telling)
            code = 0
        finally:
            os._exit(code)
    os.close(telling)
    with open(told) as lines:
        done = [int(word) for word in lines.read().split()]
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), done]), flush=True)
"""


@pytest.fixture(scope="module")
def learn_and_die():
    """Trains in a process of its own, which ends itself: its exit code, and what it had shown.

    The processes are forked from one that has torch loaded: loading it takes seconds.
    """
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:

        def learn(settings, folder, die):
            parent.stdin.write(json.dumps([settings, str(folder), die]) + "\n")
            parent.stdin.flush()
            return json.loads(parent.stdout.readline())

        yield learn
        parent.stdin.close()


@methods
@pytest.mark.sample(1)
def test_a_killed_student_goes_on_bit_for_bit(method, briefly, learn_and_die, tmp_path):
    settings = short(method).model_dump(mode="json", exclude_unset=True)
    reached = 0
    for die in (2, 6):  # within a first part, and again further on
        code, told = learn_and_die(settings, tmp_path, die)
        assert code == -signal.SIGKILL
        assert told[0] >= reached, "it began anew"
        reached = told[-1]
    first = []

    class Bar:
        def advance(self, count=1):
            first.append(count)

    @contextmanager
    def show(title, total, done):
        first.append(done)
        yield Bar()

    rest = train_student(short(method), short_data(), folder=tmp_path, progress=show)
    assert first[0] + first[1] >= 5, "it began anew"
    assert torch.equal(weights(rest), weights(briefly(method)))
    done = train_student(short(method), short_data(), folder=tmp_path)
    assert torch.equal(weights(done), weights(rest))


@methods
@pytest.mark.sample(1)
def test_a_checkpoint_of_other_data_is_not_used(method, briefly, tmp_path):
    train_student(short(method), short_data(labelled=60), folder=tmp_path)
    assert list(tmp_path.glob("*.safetensors"))
    student = train_student(short(method), short_data(), folder=tmp_path)
    assert torch.equal(weights(student), weights(briefly(method)))
