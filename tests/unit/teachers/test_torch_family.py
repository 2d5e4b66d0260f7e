"""Networks trained together are the networks trained alone, whoever is beside them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from pate.errors import TeacherError
from pate.teachers.adapters import build
from pate.teachers.protocol import group_families, predict_labels, predict_many_labels, train_many
from pate.teachers.spec import Training
from pate.teachers.torch_stack import stacked_optimizer
from pate.teachers.torch_teacher import TorchTeacher

SIZES = [33, 7, 20, 1, 16, 41]  # of batches of 8: left-over ones, a single record, a full batch


class MLP(nn.Module):
    def __init__(self, classes, hidden=12):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.layers(x)


class CNN(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.LazyLinear(classes)
        )

    def forward(self, x):
        return self.layers(x)


class Tied(nn.Module):
    """One matrix used twice, and one that is not trained."""

    def __init__(self, classes):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.two.weight = self.one.weight
        self.head = nn.Linear(6, classes)
        self.head.bias.requires_grad_(False)

    def forward(self, x):
        return self.head(self.two(self.one(x).tanh()).tanh())


def shards(shape=(6,), sizes=SIZES, classes=3):
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(0, classes, size=n))
        for n in sizes
    ]


def teachers(module, count=6, **settings):
    settings = {"epochs": 3, "batch_size": 8} | settings
    return [build(module, Training(**settings), classes=3, seed=100 + n) for n in range(count)]


def weights(teacher):
    return [value.detach().clone() for value in teacher.module.state_dict().values()]


def assert_close(one, other):
    """Equal to float tolerance: Adam divides by the size of gradients that may be tiny."""
    for a, b in zip(weights(one), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


def assert_same(one, other):
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize(("module", "shape"), [(MLP, (6,)), (CNN, (1, 5, 5)), (Tied, (6,))])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.sample(6)
def test_together_as_alone(module, shape, optimizer, weight_decay):
    settings = {"optimizer": optimizer, "weight_decay": weight_decay}
    group, single = teachers(module, **settings), teachers(module, **settings)
    assert group_families(group) == [list(range(len(SIZES)))]
    assert TorchTeacher.fit_many(group, shards(shape)) == [None] * len(SIZES)
    for number, (X, y) in enumerate(shards(shape)):
        single[number].fit(X, y)
        assert_close(group[number], single[number])
        assert not group[number].module.training


def test_the_tolerance_is_small_beside_what_is_learned():
    group = teachers(MLP)
    TorchTeacher.fit_many(group, shards())
    for teacher, fresh in zip(group, teachers(MLP), strict=True):
        moved = [(a - b).abs().max() for a, b in zip(weights(teacher), weights(fresh), strict=True)]
        assert min(moved) > 100 * 2e-5


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_any_size_of_batches(batch_size):
    group, single = (teachers(MLP, batch_size=batch_size, optimizer="sgd") for _ in range(2))
    assert TorchTeacher.fit_many(group, shards()) == [None] * len(SIZES)
    for teacher, other, (X, y) in zip(group, single, shards(), strict=True):
        assert_close(teacher, other.fit(X, y))


def test_more_networks_than_one_program_holds(monkeypatch):
    from pate.teachers import torch_family

    monkeypatch.setattr(torch_family, "MOST_NETWORKS", 4)
    group, single = teachers(MLP), teachers(MLP)
    assert TorchTeacher.fit_many(group, shards()) == [None] * len(SIZES)
    for teacher, other, (X, y) in zip(group, single, shards(), strict=True):
        assert_close(teacher, other.fit(X, y))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("change", ["a record", "a size", "missing", "no shard", "not finite"])
def test_a_shard_changes_one_teacher_and_no_bit_of_another(change, optimizer):
    before, after = teachers(MLP, optimizer=optimizer), teachers(MLP, optimizer=optimizer)
    TorchTeacher.fit_many(before, shards())
    changed, others = shards(), list(after)
    X, y = changed[5]  # the longest: the others' last step of an epoch is not the group's
    match change:
        case "a record":
            X[3] += 1.0
        case "a size":
            changed[5] = (X[:5], y[:5])
        case "missing":
            others[5], changed[5] = None, None
        case "no shard":
            changed[5] = None
        case "not finite":
            X[3] = np.inf
    errors = TorchTeacher.fit_many(others, changed)
    assert [error is not None for error in errors] == [False] * 5 + [change == "not finite"]
    for one, other in zip(before[:5], after[:5], strict=True):
        assert_same(one, other)
    assert any(not torch.equal(a, b) for a, b in zip(weights(before[5]), weights(after[5])))  # noqa: B905


def test_one_members_failure_is_its_own():
    bad = shards()
    bad[1] = (bad[1][0], bad[1][1] + 31337)
    bad[2][0][4] = np.nan
    group = teachers(MLP)
    errors = train_many(group, bad)
    assert [error is None for error in errors] == [True, False, False, True, True, True]
    assert "a label does not exist" in str(errors[1])
    assert "31337" not in str(errors[1])
    assert str(errors[2]) == "the loss is not finite in epoch 1; lower 'lr'"
    fine = teachers(MLP)
    train_many(fine, shards())
    for number in (0, 3, 4, 5):
        assert_same(group[number], fine[number])


class BatchNorm(MLP):
    def __init__(self, classes):
        super().__init__(classes)
        self.norm = nn.BatchNorm1d(classes)

    def forward(self, x):
        return self.norm(super().forward(x))


class Dropout(MLP):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, training=self.training))


class Centred(MLP):
    def forward(self, x):
        return super().forward(x - x.mean(dim=0))


class Counts(MLP):
    def __init__(self, classes):
        super().__init__(classes)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


class Looks(MLP):
    def forward(self, x):
        return super().forward(x if float(x.sum()) > -1e9 else -x)


@pytest.mark.parametrize("module", [BatchNorm, Dropout, Centred, Counts, Looks])
def test_modules_that_cannot_be_one_program_train_one_by_one(module):
    with pytest.raises((TeacherError, RuntimeError)):
        TorchTeacher.fit_many(teachers(module), shards())
    group, single = teachers(module), teachers(module)
    assert train_many(group, shards()) == [None] * len(SIZES)
    for teacher, other, (X, y) in zip(group, single, shards(), strict=True):
        assert_same(teacher, other.fit(X, y))


class Codes(nn.Module):
    """Looks up rows by the numbers in a record: under vmap, also those of its neighbours."""

    def __init__(self, classes):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(5, 4)), nn.Linear(24, classes)

    def forward(self, x):
        return self.head(self.look_up(x.long()).flatten(1))

    def look_up(self, codes):
        return nn.functional.embedding(codes, self.table)


class Rows(Codes):
    def look_up(self, codes):
        return self.table[codes]


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class OwnGradient(MLP):
    def forward(self, x):
        return Doubled.apply(super().forward(x))


class Remembers(MLP):
    def forward(self, x):
        self.last = x
        return super().forward(x)


def coded(bad=None):
    found = [(np.abs(X * 2).round() % 5, y) for X, y in shards()]
    if bad is not None:
        found[1][0][3] = bad
    return found


@pytest.mark.parametrize("bad", [7, 12, -3, 999])
@pytest.mark.parametrize("module", [Codes, Rows])
def test_codes_out_of_range_reach_no_other_teacher(module, bad):
    with pytest.raises(TeacherError, match="may mix networks"):
        TorchTeacher.fit_many(teachers(module), coded())
    before, after = teachers(module), teachers(module)
    assert train_many(before, coded()) == [None] * len(SIZES)
    train_many(after, coded(bad))
    for number in set(range(len(SIZES))) - {1}:
        assert_same(before[number], after[number])


@pytest.mark.parametrize("module", [OwnGradient, Remembers])
def test_modules_with_rules_or_a_memory_of_their_own_train_one_by_one(module):
    with pytest.raises(TeacherError):
        TorchTeacher.fit_many(teachers(module), shards())
    assert train_many(teachers(module), shards()) == [None] * len(SIZES)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_convolutions_keep_what_is_not_finite_to_themselves(bad):
    class Deep(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                nn.Conv2d(3, 5, 3, padding=1), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(),
                nn.LayerNorm(20), nn.Linear(20, classes),
            )  # fmt: skip

        def forward(self, x):
            return self.layers(x)

    before, after, changed = teachers(Deep), teachers(Deep), shards((1, 8, 8))
    assert TorchTeacher.fit_many(before, changed) == [None] * len(SIZES)
    changed[2][0][4] = bad
    TorchTeacher.fit_many(after, changed)
    for number in set(range(len(SIZES))) - {2}:
        assert_same(before[number], after[number])


def test_a_program_that_fails_changes_no_bit_of_the_others(monkeypatch):
    from pate.teachers import torch_family

    run = torch_family._run

    def fails(first, lanes):  # as a module would that cannot bear one record
        if any(lane is not None and (lane.records > 1e6).any() for lane in lanes):
            raise RuntimeError
        return run(first, lanes)

    monkeypatch.setattr(torch_family, "_run", fails)
    before, after, changed = teachers(MLP), teachers(MLP), shards()
    train_many(before, changed)
    changed[0][0][3] = 1e7
    assert train_many(after, changed) == [None] * len(SIZES)
    for one, other in zip(before[1:], after[1:], strict=True):
        assert_same(one, other)


def test_who_comes_first_does_not_decide_whether_modules_run_together():
    class Proud(MLP):
        """Loud beside a small answer: with these first weights others would not be seen."""

        def __init__(self, classes, seed):
            super().__init__(classes)
            self.share = nn.Parameter(torch.tensor(0.0 if seed == 100 else 1.0))

        def forward(self, x):
            return super().forward(x) + self.share * x.mean(dim=0)[:3]

    for group in (teachers(Proud), [None, *teachers(Proud)[1:]]):
        with pytest.raises(TeacherError, match="depends on other records"):
            TorchTeacher.fit_many(group, [s if t else None for t, s in zip(group, shards())])  # noqa: B905


def test_dropout_that_is_off_does_not_keep_modules_apart():
    class Off(MLP):
        def __init__(self, classes):
            super().__init__(classes)
            self.layers.append(nn.Dropout(0.0))

    assert TorchTeacher.fit_many(teachers(Off), shards()) == [None] * len(SIZES)


class Chosen(nn.Module):
    """Modules that look alike and compute something else."""

    def __init__(self, classes, seed):
        super().__init__()
        self.layer = nn.Linear(6, classes)
        self.function = torch.tanh if seed % 2 else torch.relu

    def forward(self, x):
        return self.layer(self.function(x))


class Scaled(MLP):
    def __init__(self, classes):
        super().__init__(classes)
        self.scale = torch.rand(1)  # a tensor that is neither parameter nor buffer

    def forward(self, x):
        return super().forward(x * self.scale)


def test_only_modules_that_compute_the_same_go_together():
    assert group_families(teachers(Chosen, 4)) == [[0, 2], [1, 3]]
    assert group_families(teachers(Scaled, 2)) == [[0], [1]]
    assert group_families([*teachers(MLP, 1), *teachers(MLP, 1, lr=0.5)]) == [[0], [1]]
    assert group_families([*teachers(MLP, 1), *teachers(lambda classes: MLP(classes, 5), 1)]) == [
        [0],
        [1],
    ]
    hooked = teachers(MLP, 2)
    hooked[1].module.register_forward_hook(lambda *_: None)
    assert group_families(hooked) == [[0], [1]]
    group, single = teachers(Scaled), teachers(Scaled)
    for family in group_families(group):
        train_many([group[p] for p in family], [shards()[p] for p in family])
    for teacher, other, (X, y) in zip(group, single, shards(), strict=True):
        assert_same(teacher, other.fit(X, y))


def test_predictions_of_a_group():
    group = teachers(MLP)
    train_many(group, shards())
    queries = shards(sizes=[50])[0][0]
    said = predict_many_labels([group[0], None, group[2]], queries, classes=3)
    np.testing.assert_array_equal(said[0], predict_labels(group[0], queries, classes=3))
    assert said[1] is None


def test_the_global_state_of_torch_is_left_alone():
    before = torch.get_rng_state()
    train_many(teachers(CNN), shards((1, 5, 5)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_stacked_optimizer_takes_torchs_steps(optimizer, decay):
    spec = Training(optimizer=optimizer, lr=0.05, weight_decay=decay)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 4, 2, generator=generator, dtype=torch.float64)
    gradients = torch.randn(7, 3, 4, 2, generator=generator, dtype=torch.float64)
    active = torch.rand(7, 3, generator=generator) < 0.6
    stack = start.clone()
    step = stacked_optimizer([stack], spec)
    for gradient, who in zip(gradients, active, strict=True):
        step([gradient], who)
    for place in range(3):
        alone = nn.Parameter(start[place].clone())
        made = {
            "sgd": lambda p: torch.optim.SGD([p], lr=0.05, momentum=0.9, weight_decay=decay),
            "adam": lambda p: torch.optim.Adam([p], lr=0.05, weight_decay=decay),
            "adamw": lambda p: torch.optim.AdamW([p], lr=0.05, weight_decay=decay),
        }[optimizer](alone)
        for gradient, who in zip(gradients, active, strict=True):
            if who[place]:
                alone.grad = copy.deepcopy(gradient[place])
                made.step()
        torch.testing.assert_close(stack[place], alone.detach(), rtol=1e-12, atol=1e-12)
