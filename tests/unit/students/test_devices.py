"""Models on a device that is not the processor: nothing that takes part is left behind.

The device is called ``meta`` here and is none: its tensors hold their values in host memory. An
operation refuses tensors of two devices, as a GPU does, and numbers of double precision, as MPS
does.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from limited_device import LimitedDevice
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pate.devices import use_device
from pate.engines.progress import Silence
from pate.students.spec import StudentSpec
from pate.students.train import StudentData, train_student
from pate.teachers.adapters import build
from pate.teachers.placement import device_of
from pate.teachers.protocol import predict_labels, train_many
from pate.teachers.spec import Training
from pate.teachers.torch_teacher import TorchTeacher

ELSEWHERE = torch.device("meta")
COPIES = ("_to_copy", "copy_")


class Far(torch.Tensor):
    """A tensor elsewhere."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=ELSEWHERE,
        )

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return carried_out(func, args, kwargs or {})


def is_number(tensor):
    return tensor.dim() == 0  # a GPU takes single numbers from the host


def carried_out(func, args, kwargs):
    name = func._schema.name.removeprefix("aten::")
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    far = [each for each in tensors if isinstance(each, Far)]
    near = [each for each in tensors if not isinstance(each, Far) and not is_number(each)]
    if far and near and name not in COPIES:
        raise RuntimeError(f"{name}: tensors are on two devices")
    there = kwargs["device"] == ELSEWHERE if kwargs.get("device") is not None else bool(far)
    if name == "copy_":
        there = isinstance(args[0], Far)
    kwargs = {key: value for key, value in kwargs.items() if key != "device"}
    unwrapped = tree_map(lambda x: x.held if isinstance(x, Far) else x, (args, kwargs))
    said = func(*unwrapped[0], **unwrapped[1])
    if not there:
        return said
    if any(isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in tree_leaves(said)):
        raise TypeError(f"{name}: there are no double numbers elsewhere")
    if func._schema.is_mutable:  # what was changed is what is returned
        return args[0]
    return tree_map(lambda x: Far(x) if isinstance(x, torch.Tensor) else x, said)


class Elsewhere(TorchDispatchMode):
    """Sees what moves there and is made there."""

    def __init__(self):
        super().__init__()
        self.products = {True: 0, False: 0}  # elsewhere, here

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "mm" in func._schema.name or "convolution" in func._schema.name:
            self.products[isinstance(tree_leaves(args)[1], Far)] += 1
        return carried_out(func, args, kwargs or {})


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setattr(LimitedDevice, "torch", lambda device: ELSEWHERE)
    with use_device(LimitedDevice()), Elsewhere() as mode:
        yield mode


def test_the_device_refuses_what_is_left_behind(elsewhere):
    here, there = torch.ones(3), torch.ones(3).to(ELSEWHERE)
    assert (there + 1).device == ELSEWHERE
    assert (there + 1).cpu().tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="two devices"):
        there + here
    with pytest.raises(RuntimeError, match="two devices"):
        here[torch.zeros(1, dtype=torch.int64).to(ELSEWHERE)]
    with pytest.raises(TypeError, match="double"):
        there.double()
    with pytest.raises(RuntimeError, match="two devices"):
        torch.nn.Linear(3, 3)(there)


class Net(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.LazyLinear(classes)
        )
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, x):
        return self.layers(x) * self.scale


class Alone(Net):
    def __init__(self, classes):
        super().__init__(classes)
        self.norm = torch.nn.BatchNorm1d(classes)

    def forward(self, x):
        return self.norm(super().forward(x))


def taught(module, optimizer):
    rng = np.random.default_rng(0)
    shards = [(rng.normal(size=(n, 6)), rng.integers(0, 3, n)) for n in (20, 9, 1, 33)]
    training = Training(epochs=2, batch_size=8, optimizer=optimizer, weight_decay=0.01)
    group = [build(module, training, classes=3, seed=n) for n in range(4)]
    fit = train_many if module is Alone else TorchTeacher.fit_many  # the latter hides no error
    assert fit(group, shards) == [None] * 4
    return group, [predict_labels(each, shards[3][0], classes=3) for each in group]


def assert_same(one, other):
    states = one.module.state_dict().items(), other.module.state_dict().values()
    for (name, a), b in zip(*states, strict=True):
        assert not isinstance(b, Far), name
        assert torch.equal(a, b), name


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("module", [Net, Alone])
@pytest.mark.sample(2)
def test_teachers(module, optimizer, request):
    here, said = taught(module, optimizer)
    mode = request.getfixturevalue("elsewhere")
    there, said_there = taught(module, optimizer)
    assert mode.products[True] > 2 * mode.products[False] > 0  # sizes are found here
    np.testing.assert_array_equal(said, said_there)
    for one, other in zip(here, there, strict=True):
        assert device_of(other.module) == torch.device("cpu")
        assert_same(one, other)


def student(folder=None, progress=None, **section):
    rng = np.random.default_rng(0)
    shape = (12, 12) if section.get("model", "small-cnn") == "small-cnn" else (6,)
    data = StudentData(
        inputs=rng.random((40, *shape), dtype=np.float32),
        rows=rng.permutation(40)[:16],
        labels=rng.integers(0, 3, 16),
        classes=3,
    )
    settings = {"model": "small-cnn", "epochs": 2, "batch_size": 8, "validation": 0.2} | section
    trained = train_student(StudentSpec(**settings), data, folder=folder, progress=progress)
    return trained, predict_labels(trained, data.inputs, classes=3)


def brighter(images, generator):
    return images * (1 + torch.rand(len(images), 1, 1, generator=generator))


FEW = {"fractions": [0.5, 0.8]}
CASES = [
    {"method": "supervised"},
    {"method": "supervised", "augment": "affine", "average": 0.9, "smoothing": 0.1},
    {"method": "supervised", "augment": "shift"},
    {"method": "supervised", "augment": "randaugment"},
    {"method": "supervised", "augment": f"{__name__}:brighter"},
    {"method": "self-training", **FEW},
    {"method": "self-training", "agreement": 0.5, "average": 0.9, **FEW},
    {"method": "self-training", "model": "mlp", "folds": 2, **FEW},
    {"method": "fixmatch", "average": 0.9},
    {"method": "fixmatch", "model": "mlp"},
    {"method": "mixmatch"},
    {"method": "mixmatch", "model": "mlp", "optimizer": "sgd"},
    {"method": "gan"},
    {"method": "gan", "model": "mlp"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.sample(4)
def test_students(case, request):
    here, said = student(**case)
    mode = request.getfixturevalue("elsewhere")
    there, said_there = student(**case)
    assert mode.products[True] > mode.products[False] > 0  # here sizes are found, and transforms
    np.testing.assert_array_equal(said, said_there)
    assert_same(here, there)


Killed = KeyboardInterrupt  # the one exception that a student's training lets pass


@contextlib.contextmanager
def killing(title, total, done, *_):
    """Progress that ends a training after its first epoch, whose checkpoint is there."""

    class Bar(Silence):
        def advance(self, count=1):
            if count:
                raise Killed

    yield Bar()


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")  # it is no such device
@pytest.mark.parametrize("case", [CASES[1], CASES[6], CASES[8]], ids=lambda case: case["method"])
@pytest.mark.sample(1)
def test_a_student_goes_on_from_its_checkpoint_on_another_device(case, tmp_path, request):
    here, _ = student(**case)
    with pytest.raises(Killed):
        student(tmp_path, killing, **case)
    assert list(tmp_path.iterdir())
    request.getfixturevalue("elsewhere")
    there, _ = student(tmp_path, **case)
    assert_same(here, there)
