"""The validator: every kind of problem, all of them at once, and the repair."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import dpsgd
import dpsgd.backward_pass
from dpsgd.clipping import Flat
from dpsgd.gradients import ClippedGradients
from dpsgd.losses import per_example_loss
from dpsgd.public import Frozen
from dpsgd.validation import Problem, UnsuitableModel, fix, problems, validate
from dpsgd.validation.rules import group_count
from pate.errors import InvalidInput, PateError
from pate.vision import mend_torchvision, torchvision


@pytest.fixture(autouse=True)
def _same_weights() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


def serious(model: nn.Module, examples: Tensor | None = None) -> list[tuple[str, str]]:
    found = problems(model, example_inputs=examples)
    return [(each.where, each.what) for each in found if each.serious]


def notes(model: nn.Module) -> list[tuple[str, str]]:
    return [(each.where, each.what) for each in problems(model) if not each.serious]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Centred(nn.Module):
    """A BatchNorm of somebody's own."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class RunningMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean())
        return x - 0.0 * self.mean


class Function(nn.Module):
    """Any function of the examples, as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Attention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(6, 2, **options)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x, need_weights=False)[0]


class Last(nn.Module):
    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: Tensor) -> Tensor:
        return self.recurrent(x)[0][:, -1]


def trains(model: nn.Module, inputs: Tensor) -> None:
    """One clipped sum through the real gradient pass."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradients = ClippedGradients(model, per_example_loss("cross_entropy"))
    clipper = Flat(1.0).start(len(gradients.groups))
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    gradients.add(inputs, labels, clipper=clipper, step=0, scale=1.0)


# --- what is fine -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2)), draw(5, 4)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()), draw(3, 3, 6, 6)),
        (nn.Sequential(nn.Conv1d(3, 4, 3), nn.InstanceNorm1d(4), nn.Flatten()), draw(4, 3, 9)),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)), draw(4, 4)),
        (nn.Sequential(nn.Embedding(9, 4), nn.Flatten()), torch.arange(8).reshape(4, 2)),
        (nn.Linear(4, 2), torch.zeros(4, 4)),
    ],
    ids=["mlp", "cnn", "instance-norm", "dropout", "embedding", "one-layer-equal-examples"],
)
def test_models_of_plain_layers_have_nothing_to_say_of(model: nn.Module, inputs: Tensor) -> None:
    assert problems(model) == ()
    assert problems(model, example_inputs=inputs) == ()
    validate(model, example_inputs=inputs)


def test_the_probe_leaves_the_model_and_the_global_generator_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), RunningMean(), nn.Dropout(0.5)).eval()
    before = copy.deepcopy(model.state_dict())
    torch_state = torch.get_rng_state()
    problems(model, example_inputs=draw(5, 3))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert not any(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())


# --- examples that meet, and statistics -------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(32), (4, 32)),
        (nn.BatchNorm1d(32), (4, 32, 5)),
        (nn.BatchNorm2d(32), (4, 32, 5, 5)),
        (nn.BatchNorm3d(32), (4, 32, 3, 3, 3)),
        (nn.BatchNorm2d(32, affine=False), (4, 32, 5, 5)),
        (nn.BatchNorm2d(32, track_running_stats=False).eval(), (4, 32, 5, 5)),
        (nn.BatchNorm2d(32).eval().requires_grad_(False), (4, 32, 5, 5)),
        (nn.SyncBatchNorm(32), (4, 32, 5, 5)),
    ],
)
def test_batch_norm_is_named_and_becomes_group_norm(norm: nn.Module, shape: tuple[int]) -> None:
    lead = nn.Linear(shape[-1], shape[-1])
    model = nn.Sequential(lead, norm)
    (found,) = [each for each in problems(model) if each.serious]
    assert found == Problem(
        where="1",
        kind=type(norm).__name__,
        what="mixes the examples of a batch",
        remedy="dpsgd.fix(model) replaces it by GroupNorm",
        fixable=True,
        serious=True,
    )
    fixed = fix(model)
    assert type(fixed[1]) is nn.GroupNorm
    assert fixed[1].training == norm.training
    inputs = draw(*shape)
    assert serious(fixed, inputs) == []
    output = fixed(inputs)
    assert output.shape == inputs.shape
    assert float(output.detach().std()) > 0.5  # it normalises; it does not wipe out
    assert model[1] is norm


def test_affine_parameters_move_to_the_group_norm() -> None:
    norm = nn.BatchNorm2d(6, eps=0.02)
    norm.weight.data.copy_(draw(6))
    norm.bias.data.copy_(draw(6, seed=1))
    norm.bias.requires_grad_(False)
    fixed = fix(nn.Sequential(norm))[0]
    assert isinstance(fixed, nn.GroupNorm)
    assert torch.equal(fixed.weight, norm.weight)
    assert torch.equal(fixed.bias, norm.bias)
    assert (fixed.weight.requires_grad, fixed.bias.requires_grad) == (True, False)
    assert (fixed.eps, fixed.num_groups, fixed.num_channels) == (0.02, 3, 6)
    assert fixed.weight is not norm.weight


@pytest.mark.parametrize("least", [2, 16])
def test_groups_divide_and_are_not_too_small(least: int) -> None:
    for channels in range(1, 130):
        count = group_count(channels, least=least)
        assert channels % count == 0
        assert 1 <= count <= 32
        assert count == 1 or channels // count >= least
        larger = range(count + 1, 33)
        assert not any(channels % more == 0 and channels // more >= least for more in larger)


def test_vectors_survive_the_replacement_of_batch_norm() -> None:
    fixed = fix(nn.Sequential(nn.BatchNorm1d(16)))
    rows = fixed(draw(50, 16)).detach()
    assert len(rows.round(decimals=3).unique()) > 500  # not signs, not zeros


def test_one_feature_alone_is_not_replaced() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    (found,) = problems(model)
    assert found.serious
    assert not found.fixable
    assert type(fix(model)[1]) is nn.BatchNorm1d


def test_batch_norm_is_spared_only_where_nothing_can_wake_it() -> None:
    def encoder() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten())

    spared = nn.Sequential(Frozen(encoder()), nn.Linear(16, 2))
    assert serious(spared, draw(4, 1, 4, 4)) == []
    assert type(fix(spared)[0].module[1]) is nn.BatchNorm2d

    only_eval = nn.Sequential(encoder().eval().requires_grad_(False), nn.Linear(16, 2))
    assert serious(only_eval, draw(4, 1, 4, 4)) == [("0.1", "mixes the examples of a batch")]

    trained = nn.Sequential(Frozen(encoder()), nn.Linear(16, 2))
    trained[0].module[1].weight.requires_grad_(True)
    assert ("0.module.1", "mixes the examples of a batch") in serious(trained)

    for affine in (True, False):
        norm = nn.BatchNorm1d(3, affine=affine, track_running_stats=False)
        blind = nn.Sequential(Frozen(norm), nn.Linear(3, 2))
        assert serious(blind) == [("0.module", "mixes the examples of a batch")]
        (problem,) = [each for each in problems(blind, example_inputs=draw(4, 3)) if each.serious]
        assert "no running statistics" in problem.remedy
        assert not problem.fixable

    inner = encoder()
    both = nn.ModuleDict({"public": Frozen(inner), "awake": inner, "last": nn.Linear(16, 2)})
    assert serious(both) == [("public.module.1", "mixes the examples of a batch")]


def test_instance_norm_with_running_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True))
    inputs = draw(4, 1, 6, 6)
    expected = [("1", "keeps running statistics of private examples")]
    assert serious(model) == expected
    assert serious(model, inputs) == expected  # the probe does not report it twice
    fixed = fix(model)
    assert serious(fixed, inputs) == []
    assert torch.allclose(model(inputs), fixed(inputs), atol=1e-6)  # in training they agree
    assert model[1].track_running_stats
    assert dict(fixed[1].named_buffers()) == {}


def test_a_hand_made_batch_norm_is_caught_by_the_probe() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Centred(), nn.Linear(3, 2))
    assert serious(model) == []
    assert serious(model, draw(5, 3)) == [("1", "mixes the examples of a batch")]
    with pytest.raises(UnsuitableModel, match=r"1 \(Centred\): mixes the examples of a batch"):
        validate(model, example_inputs=draw(3, 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.cumsum(0),
        lambda x: x.flip(0).cumsum(0).flip(0),
        lambda x: x.roll(1, 0),
        lambda x: x / x.abs().max(),
        lambda x: (x @ x.T).softmax(1) @ x,
        lambda x: torch.where(x.mean() > 0, x, -x) + 0.1 * x.mean(0),
        lambda x: torch.cat([x[:1], x[1:] + x[:-1]]),
        lambda x: x + 0.01 * x.std(0),
    ],
)
@pytest.mark.parametrize("same", [False, True])
def test_every_way_for_examples_to_meet(function: Callable[[Tensor], Tensor], same: bool) -> None:
    inputs = torch.ones(5, 3) if same else draw(5, 3)
    model = nn.Sequential(nn.Linear(3, 3), Function(function), nn.Linear(3, 2))
    assert serious(model, inputs) == [("1", "mixes the examples of a batch")]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: x + torch.randn_like(x),
        lambda x: x.softmax(1) * 1e-12,
        lambda x: x * 1e12,
        lambda x: (x - 1e9).log(),
    ],
)
def test_no_false_alarm(function: Callable[[Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), Function(function))
    assert serious(model, draw(5, 3)) == []


def test_chance_inside_a_model_is_no_meeting_of_examples() -> None:
    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5, training=self.training)

    assert serious(nn.Sequential(nn.Linear(3, 3), Dropping()), draw(5, 3)) == []


def test_mixing_between_the_parts_is_laid_at_the_module_that_does_it() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), Centred())

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + x.flip(0)

    model = nn.Sequential(Outer(), nn.Linear(3, 3), Centred())
    mixes = "mixes the examples of a batch"
    assert serious(model, draw(4, 3)) == [("0", mixes), ("0.inner.1", mixes), ("2", mixes)]


def test_a_path_that_depends_on_the_others() -> None:
    class Choice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if x.sum() > 5 else self.b(x)

    examples = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    assert ("", "mixes the examples of a batch") in serious(Choice(), examples)


def test_integer_inputs_and_mixing() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), Centred(), nn.Linear(8, 2))
    tokens = torch.tensor([[0, 1], [2, 3], [4, 5]])
    assert serious(model, tokens) == [("2", "mixes the examples of a batch")]
    with pytest.raises(InvalidInput, match="all the same"):
        problems(model, example_inputs=torch.zeros(4, 2, dtype=torch.int64))


def test_a_buffer_that_a_pass_changes() -> None:
    model = nn.Sequential(nn.Linear(3, 3), RunningMean())
    assert serious(model) == []
    assert serious(model, draw(3, 3)) == [
        ("1", "changes its mean in a forward pass, past clipping and noise")
    ]


@pytest.mark.parametrize("examples", [draw(2, 3), torch.tensor(1.0)])
def test_too_few_examples(examples: Tensor) -> None:
    with pytest.raises(InvalidInput, match="at least 3"):
        problems(nn.Linear(3, 3), example_inputs=examples)


def test_examples_of_another_kind() -> None:
    with pytest.raises(InvalidInput, match="one tensor"):
        problems(nn.Linear(3, 3), example_inputs=[1, 2, 3])  # type: ignore[arg-type]


def test_a_model_that_does_not_run_is_a_problem_beside_the_others() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert serious(model, draw(4, 7)) == [
        ("", "does not run on the example inputs (RuntimeError)"),
        ("1", "mixes the examples of a batch"),
    ]


def test_an_output_without_examples() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Function(torch.mean))
    assert serious(model, draw(4, 3)) == [("", "its output does not have one row for each example")]


# --- layers that hide examples from the gradient pass -----------------------------------------


class Positions(nn.Module):
    """A learnt table of positions, looked up once for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.table(torch.arange(4))).mean(1)


def test_a_layer_that_is_called_without_examples() -> None:
    what = "is called on something that does not have one row for each example"
    # A sequence of four beside four examples, and beside three.
    assert serious(Positions(), draw(4, 4, 6)) == [("table", what)]
    assert serious(Positions(), draw(3, 4, 6)) == [("table", what)]


def test_one_problem_of_a_layer_does_not_hide_another() -> None:
    model = Positions()
    model.table.max_norm = 0.1
    assert serious(model, draw(4, 4, 6)) == [
        ("table", "rescales the rows that a batch uses (max_norm)"),
        ("table", "is called on something that does not have one row for each example"),
    ]


def test_the_examples_stay_as_they_were() -> None:
    inputs = draw(4, 3)
    before = inputs.clone()
    problems(nn.Sequential(Function(lambda x: x.mul_(2)), nn.Linear(3, 2)), example_inputs=inputs)
    assert torch.equal(inputs, before)


def test_examples_in_the_second_dimension() -> None:
    model = nn.Sequential(
        Function(lambda x: x.transpose(0, 1)),
        nn.Linear(6, 6),
        Function(lambda x: x.transpose(0, 1)),
    )
    assert ("1", "is called on something that does not have one row for each example") in serious(
        model, draw(4, 4, 6)
    )


def test_a_weight_used_without_its_layer() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.spare = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(self.first(x), self.second.weight)

    what = "is used without being called, so that its gradients cannot be followed"
    assert serious(Tied(), draw(4, 3)) == [("second", what)]


# --- embeddings -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embedding_options_that_look_at_the_batch(kind: type[nn.Embedding]) -> None:
    model = nn.Sequential(kind(9, 4, max_norm=0.5, scale_grad_by_freq=True, sparse=True))
    tokens = torch.tensor([[0, 1], [2, 3], [4, 4]])
    found = [each for each in problems(model, example_inputs=tokens) if each.serious]
    assert [each.what for each in found] == [
        "rescales the rows that a batch uses (max_norm)",
        "scales gradients by how often a batch holds a word (scale_grad_by_freq)",
        "makes sparse gradients, which leave most rows without noise",
    ]
    assert all(each.fixable for each in found)
    fixed = fix(model)
    assert serious(fixed, tokens) == []
    assert torch.equal(fixed[0].weight, model[0].weight)
    assert (model[0].max_norm, model[0].sparse) == (0.5, True)
    assert type(fixed[0]) is kind


def test_a_frozen_embedding_with_max_norm_still_moves() -> None:
    frozen = nn.Embedding(9, 4, max_norm=0.5, sparse=True).requires_grad_(False)
    model = nn.Sequential(frozen, nn.Linear(4, 2))
    assert serious(model) == [("0", "rescales the rows that a batch uses (max_norm)")]


# --- the slow path ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:LSTM with projections")
@pytest.mark.parametrize(
    "layer",
    [
        nn.RNN(6, 5, batch_first=True),
        nn.GRU(6, 5, batch_first=True),
        nn.LSTM(6, 5, batch_first=True),
        nn.LSTM(6, 5, batch_first=True, num_layers=2, bidirectional=True),
        nn.LSTM(6, 5, batch_first=True, proj_size=3),
    ],
    ids=["RNN", "GRU", "LSTM", "LSTM-deep", "LSTM-projected"],
)
def test_recurrent_layers_are_refused_exactly_where_the_gradient_pass_fails(
    layer: nn.Module,
) -> None:
    model, inputs = Last(layer), draw(4, 5, 6)
    try:
        trains(model, inputs)
    except PateError:
        expected = [
            ("recurrent", "has no per-example gradients: it cannot be run one example at a time")
        ]
    else:
        expected = []
    assert serious(model) == expected
    assert serious(model, inputs) == expected


def test_recurrent_cells() -> None:
    for cell in (nn.RNNCell(3, 3), nn.GRUCell(3, 3), nn.LSTMCell(3, 3)):
        found = serious(nn.ModuleDict({"cell": cell}))
        assert {where for where, _ in found} <= {"cell"}
    frozen = nn.ModuleDict({"cell": nn.GRU(3, 3).requires_grad_(False), "last": nn.Linear(3, 2)})
    assert serious(frozen) == []


def test_sequence_first_layers() -> None:
    what = "takes the sequence, not the examples, along the first dimension"
    assert ("a", what) in serious(nn.ModuleDict({"a": nn.LSTM(3, 3)}))
    assert ("a", what) not in serious(nn.ModuleDict({"a": nn.LSTM(3, 3, batch_first=True)}))
    assert serious(Attention()) == [("attend", what)]
    assert serious(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0)) == [("self_attn", what)]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_dropout_inside_the_slow_path() -> None:
    model, inputs = Attention(dropout=0.2, batch_first=True).train(), draw(4, 3, 6)
    assert serious(model) == [("attend", "has dropout inside the per-example pass")]
    head = nn.Sequential(model, nn.Flatten(), nn.Linear(18, 2))
    fixed = fix(head)
    assert serious(fixed, inputs) == []
    trains(fixed, inputs)
    assert model.attend.dropout == 0.2

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.drop = nn.Dropout(0.1)
            self.slope = nn.RReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.slope(self.drop(x * self.scale))

    expected = [
        ("0.drop", "has dropout inside the per-example pass of 0"),
        ("0.slope", "draws random slopes, which torch.func.vmap cannot run"),
    ]
    assert serious(nn.Sequential(Scaled(), nn.Dropout(0.5), nn.RReLU())) == expected
    fixed = fix(nn.Sequential(Scaled(), nn.Dropout(0.5)))
    assert (fixed[0].drop.p, fixed[1].p) == (0.0, 0.5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transformer_layer_with_its_usual_dropout_can_be_fixed_and_trained() -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(18, 2)).train()
    assert serious(model) == [("0.self_attn", "has dropout inside the per-example pass")]
    fixed = fix(model)
    validate(fixed, example_inputs=draw(4, 3, 6))
    trains(fixed, draw(4, 3, 6))


def test_spectral_norm() -> None:
    what = "changes its buffers in every training pass (spectral_norm)"
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 3)), nn.Linear(3, 2))
    assert serious(model) == [("0", what)]
    assert serious(model, draw(4, 3)) == [("0", what)]
    old = nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 3)))
    assert serious(old, draw(4, 3)) == [("0", what)]


def test_weight_norm_takes_the_slow_path_and_trains() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3, bias=False)))
    assert serious(model, draw(4, 3)) == []
    assert [where for where, what in notes(model) if "materialised" in what] == ["0"]
    trains(model, draw(4, 3))


def test_a_model_that_cannot_be_copied() -> None:
    with pytest.warns(FutureWarning):
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 3)))
    assert serious(model, draw(4, 3)) == [("", "cannot be copied for a trial run (RuntimeError)")]
    with pytest.raises(InvalidInput, match="cannot be copied"):
        fix(model)


def test_parameters_in_a_list_are_never_called() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(3))])

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scales[0]

    what = "holds trainable parameters but is never called on the examples"
    assert serious(Scales()) == [("scales", what)]


# --- parameters -------------------------------------------------------------------------------


def test_lazy_layers() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    found = problems(model)
    assert [(each.where, each.fixable) for each in found if each.serious] == [
        ("0", False),
        ("1", False),
        ("1", False),
    ]
    assert "without a size" in found[0].what
    with pytest.raises(InvalidInput, match="lazy"):
        fix(model)
    assert serious(model, draw(4, 3))[0][0] == ""  # cannot be copied, listed beside the rest
    model(draw(4, 3))
    validate(fix(model))


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [
        (torch.float16, "call model.float() first"),
        (torch.bfloat16, "call model.float() first"),
        (torch.complex64, "use real parameters"),
    ],
)
def test_number_formats(dtype: torch.dtype, remedy: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2, dtype=dtype))
    (found,) = problems(model)
    assert found.where == "1"
    assert str(dtype).removeprefix("torch.") in found.what
    assert found.remedy == remedy
    assert serious(nn.Sequential(nn.Linear(3, 3), model[1].requires_grad_(False))) == []


def test_doubles_are_fine() -> None:
    assert problems(nn.Linear(3, 3).double(), example_inputs=draw(4, 3).double()) == ()


def test_devices() -> None:
    spread = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, device="meta"))
    assert serious(spread) == [("", "is spread over cpu, meta")]
    assert serious(nn.Linear(3, 3, device="meta")) == [
        ("", "is on the meta device, without values")
    ]


@pytest.mark.parametrize("model", [nn.Flatten(), nn.Linear(2, 2).requires_grad_(False)])
def test_nothing_to_train(model: nn.Module) -> None:
    assert serious(model) == [("", "has no trainable parameter")]


def test_wrappers() -> None:
    assert serious(nn.DataParallel(nn.Linear(3, 3))) == [("", "runs copies of the model")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3)))
    assert ("", "is compiled (torch.jit)") in serious(scripted)


# --- notes ------------------------------------------------------------------------------------


def test_notes_do_not_stop_training() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(
        shared, nn.ReLU(inplace=True), nn.PReLU(), nn.Linear(3, 3).requires_grad_(False), shared
    )
    validate(model, example_inputs=draw(4, 3))
    assert notes(model) == [
        ("0", "shares its weight with 4.weight"),
        ("0", "shares its bias with 4.bias"),
        ("1", "works in place"),
        ("2", "per-example gradients of this layer are materialised: slower"),
        ("3", "frozen: stays as it is, costs nothing"),
    ]
    trains(model, draw(4, 3))


def test_tied_weights_and_half_frozen_layers() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    assert notes(model) == [
        ("0", "shares its weight with 1.weight"),
        ("1", "frozen (bias): stays as it is, costs nothing"),
    ]


def test_a_parameter_of_the_model_itself_makes_all_of_it_slow() -> None:
    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(3))
            self.last = nn.Linear(3, 2)
            self.drop = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.last(x + self.token))

    assert notes(Token()) == [
        ("", "per-example gradients of the whole model are materialised: slower")
    ]
    assert serious(Token()) == [("drop", "has dropout inside the per-example pass of the model")]


# --- all at once ------------------------------------------------------------------------------


def test_every_problem_is_listed_at_once_line_by_line() -> None:
    inner = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Centred(), RunningMean())
    model = nn.Sequential(inner, nn.InstanceNorm2d(8, track_running_stats=True), Centred())
    with pytest.raises(UnsuitableModel) as raised:
        validate(model, example_inputs=draw(4, 3, 6, 6))
    assert str(raised.value).splitlines() == [
        "the model cannot be trained privately as it is:",
        "  0.1 (BatchNorm2d): mixes the examples of a batch; "
        "dpsgd.fix(model) replaces it by GroupNorm",
        "  0.2 (Centred): mixes the examples of a batch; "
        "use a layer that treats each example on its own",
        "  0.3 (RunningMean): changes its mean in a forward pass, past clipping and noise; "
        "keep it as it is in training mode",
        "  1 (InstanceNorm2d): keeps running statistics of private examples; "
        "dpsgd.fix(model) turns track_running_stats off",
        "  2 (Centred): mixes the examples of a batch; "
        "use a layer that treats each example on its own",
    ]
    assert isinstance(raised.value, PateError)
    assert UnsuitableModel is dpsgd.backward_pass.UnsuitableModel


def test_fix_leaves_no_fixable_problem_and_the_original_as_it_was() -> None:
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(
        nn.Embedding(9, 4, max_norm=1.0),
        nn.Flatten(),
        nn.Linear(8, 4),
        norm,
        nn.ReLU(),
        norm,
        nn.ModuleDict({"deep": nn.ModuleList([nn.BatchNorm1d(4), norm])}),
    )
    text, state = repr(model), copy.deepcopy(model.state_dict())
    fixed = fix(model)
    assert repr(model) == text
    assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())
    assert not [each for each in problems(fixed) if each.fixable or each.serious]
    assert type(fixed[3]) is nn.GroupNorm
    assert fixed[3] is fixed[5]
    assert fixed[5] is fixed[6]["deep"][1]
    assert fixed[6]["deep"][0] is not fixed[3]
    theirs = {id(parameter) for parameter in model.parameters()}
    assert not any(id(parameter) in theirs for parameter in fixed.parameters())


def test_fixing_twice_changes_nothing_more() -> None:
    once = fix(nn.BatchNorm2d(8))
    assert type(once) is nn.GroupNorm
    assert repr(fix(once)) == repr(once)


@pytest.mark.campaign
def test_resnet18_is_fixed_and_runs() -> None:
    model = torchvision().models.resnet18(num_classes=10)
    found = [each for each in problems(model) if each.serious]
    assert len(found) == 20
    assert {each.kind for each in found} == {"BatchNorm2d"}
    fixed = fix(model)
    inputs = draw(3, 3, 32, 32)
    validate(fixed)
    assert fixed(inputs).shape == (3, 10)
    assert sum(p.numel() for p in fixed.parameters()) == sum(p.numel() for p in model.parameters())
    validate(fixed, example_inputs=inputs)
    trains(fixed, inputs)
    assert all(float(p.grad.norm()) > 0 for p in fixed.parameters())


def test_validator_and_gradient_pass_agree_on_sums_in_place() -> None:
    block = fix(torchvision().models.resnet.BasicBlock(4, 4))  # out += identity
    model = nn.Sequential(nn.Conv2d(3, 4, 3), block, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    inputs = draw(3, 3, 8, 8)
    try:
        trains(model, inputs)
    except PateError:
        assert [where for where, _ in serious(model, inputs)] == [""]
    else:
        assert serious(model, inputs) == []


def test_the_gradient_pass_has_the_last_word() -> None:
    class Twice(nn.Module):
        """Uses a weight in its layer and outside of it."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(self.layer(x), self.layer.weight)

    ((where, what),) = serious(Twice(), draw(4, 3))
    assert where == ""
    assert "layer.weight" in what
    with pytest.raises(PateError):
        trains(Twice(), draw(4, 3))
    # Beside another problem it is silent: it stops at the first fault, which may be that one.
    both = nn.Sequential(Twice(), Centred())
    assert serious(both, draw(4, 3)) == [("1", "mixes the examples of a batch")]


# --- a transformer as those of Hugging Face -------------------------------------------------------


class Embeddings(nn.Module):
    """Word and position embeddings, of which the second are looked up once for all examples."""

    def __init__(self):
        super().__init__()
        self.word_embeddings = nn.Embedding(30, 8, padding_idx=0)
        self.position_embeddings = nn.Embedding(16, 8)
        self.LayerNorm, self.dropout = nn.LayerNorm(8), nn.Dropout(0.1)
        self.register_buffer("position_ids", torch.arange(16).expand((1, -1)), persistent=False)

    def forward(self, input_ids, position_ids=None):
        if position_ids is None:
            position_ids = self.position_ids[:, : input_ids.shape[1]]
        words = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(words))


class Encoder(nn.Module):
    def __init__(self, *, expand=False, norm=None):
        super().__init__()
        self.expand = expand
        self.embeddings, self.norm = Embeddings(), norm or nn.Identity()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, ids):
        own = torch.arange(ids.shape[1]).expand(len(ids), -1) if self.expand else None
        words = self.embeddings(ids, position_ids=own)
        scores = self.query(words) @ self.key(words).transpose(1, 2)
        return self.head(self.norm((scores.softmax(-1) @ self.value(words))[:, 0]))


IDS = torch.randint(1, 30, (40, 10), generator=torch.Generator().manual_seed(0))
POSITIONS = "embeddings.position_embeddings"


def test_everything_about_a_transformer_is_listed_at_once():
    model = Encoder(norm=nn.BatchNorm1d(8))
    model.embeddings.word_embeddings.max_norm = 1.0
    found = [each for each in problems(model, example_inputs=IDS[:6]) if each.serious]
    assert [each.where for each in found] == ["embeddings.word_embeddings", POSITIONS, "norm"]
    assert "position_ids=" in found[1].remedy
    (note,) = [each for each in problems(model) if not each.serious]
    assert (note.where, "example_inputs" in note.remedy) == ("embeddings", True)
    with pytest.raises(UnsuitableModel, match=r"expand\(len\(inputs\), -1\)"):
        validate(Encoder(), example_inputs=IDS[:6])


def test_a_transformer_with_positions_of_each_example_is_trained():
    model = Encoder(expand=True)
    assert not serious(model, IDS[:6])
    optimizer = torch.optim.Adam(model.parameters())
    trainer = dpsgd.Trainer(
        model, optimizer, dataset=(IDS, IDS[:, 0] % 2), lot_size=8, max_grad_norm=1.0,
        noise_multiplier=1.0, delta=1e-3,
    )  # fmt: skip
    assert trainer.fit(steps=2).steps == 2


def test_what_the_gradient_pass_refuses_of_a_repaired_model_is_listed_with_the_repairs():
    class Tied(nn.Module):
        """Its weight is used in its layer and outside of it."""

        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(self.layer(x)) @ self.layer.weight

    found = serious(Tied(), torch.randn(6, 4))
    assert {where for where, _ in found} == {"", "norm"}


def test_a_tiny_bert_of_hugging_face():
    transformers = pytest.importorskip("transformers")
    mend_torchvision()  # transformers imports it where it is installed
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    bert = transformers.BertForSequenceClassification(config)

    class Classifier(nn.Module):
        def __init__(self, *, expand):
            super().__init__()
            self.bert, self.expand = bert, expand

        def forward(self, ids):
            own = torch.arange(ids.shape[1]).expand(len(ids), -1) if self.expand else None
            return self.bert(ids, position_ids=own).logits

    found = serious(Classifier(expand=False), IDS[:6])
    assert [where for where, _ in found] == ["bert.bert.embeddings.position_embeddings"]
    assert not serious(Classifier(expand=True), IDS[:6])
