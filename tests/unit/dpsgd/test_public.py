"""Public help: frozen parts stay as they are, public training leaves no trace, features match."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from dpsgd.pca import PrivatePCA
from dpsgd.public import Frozen, encode, freeze, pretrain
from pate.errors import InvalidInput


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(build, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()


def body():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh())


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


# --- Frozen -------------------------------------------------------------------------------------


def test_training_leaves_a_frozen_module_as_it_was():
    model = made(lambda: nn.Sequential(Frozen(body()), nn.Linear(8, 3)))
    before = state(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.train()
    for seed in range(3):
        loss = model(drawn(20, 6, seed=seed) * 9 + 4).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = state(model)
    assert all(torch.equal(before[k], after[k]) for k in before if k.startswith("0."))
    assert not torch.equal(before["1.weight"], after["1.weight"])
    assert all(p.grad is None and not p.requires_grad for p in model[0].parameters())
    # Without the wrapper the same data do change the statistics: the check can fail.
    bare = body().train()
    kept = state(bare)
    bare(drawn(20, 6) * 9 + 4)
    assert not same(kept, state(bare))


def test_it_stays_in_evaluation_mode_whatever_is_called():
    frozen = made(lambda: Frozen(body()))
    model = nn.Sequential(frozen, nn.Linear(8, 2))
    given = drawn(10, 6)
    expected = frozen(given)
    kept = state(frozen)
    model.train()
    assert frozen.training
    assert not any(inner.training for inner in frozen.module.modules())
    for inner in model.modules():
        inner.train()
    frozen.module.train()
    assert torch.equal(frozen(given), expected)  # no dropout, no batch statistics
    assert not frozen.module[1].training
    assert same(kept, state(frozen))
    assert torch.allclose(
        frozen(given[:1]), expected[:1], rtol=0, atol=1e-6
    )  # each record on its own


def test_no_gradient_is_kept_even_if_somebody_thaws_it():
    model = nn.Sequential(Frozen(body()), nn.Linear(8, 2)).requires_grad_(True)
    model(drawn(4, 6)).sum().backward()
    assert all(p.grad is None for p in model[0].parameters())
    assert not model[0](drawn(4, 6)).requires_grad
    assert same(state(copy.deepcopy(model)), state(model))


# --- freeze -------------------------------------------------------------------------------------


def network():
    return nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 4)), nn.Linear(4, 3)
    )


def trained(model):
    return [name for name, p in model.named_parameters() if p.requires_grad]


def test_the_last_layers_are_kept():
    model = network()
    assert freeze(model, except_last=1) is model
    assert trained(model) == ["3.weight", "3.bias"]
    assert trained(freeze(network(), except_last=2)) == [
        "2.0.weight", "2.0.bias", "3.weight", "3.bias",
    ]  # fmt: skip
    assert len(trained(freeze(network(), except_last=3))) == 6
    before = state(model)
    model(drawn(7, 6)).square().sum().backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1).step()
    assert model[0].weight.grad is None
    assert torch.equal(model[2][0].weight, before["2.0.weight"])
    assert not torch.equal(model[3].weight, before["3.weight"])


def test_named_parts_are_kept():
    assert trained(freeze(network(), except_names=["2"])) == ["2.0.weight", "2.0.bias"]
    assert trained(freeze(network(), except_names={"0.bias", "3"})) == [
        "0.bias", "3.weight", "3.bias",
    ]  # fmt: skip
    wide = nn.ModuleDict({"head": nn.Linear(2, 2), "head2": nn.Linear(2, 2)})
    assert trained(freeze(wide, except_names=["head"])) == ["head.weight", "head.bias"]


def test_a_shared_weight_is_kept_if_one_of_its_layers_is():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    freeze(model, except_last=1)
    assert trained(model) == ["0.weight", "1.bias"]
    other = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    other[1].weight = other[0].weight
    assert trained(freeze(other, except_names=["1"])) == ["0.weight", "1.bias"]


def test_freezing_everything_or_nothing_known_is_refused():
    for count in (0, -1, 1.0, True):
        with pytest.raises(InvalidInput, match="except_last is"):
            freeze(network(), except_last=count)
    with pytest.raises(InvalidInput, match="has 3 layers"):
        freeze(network(), except_last=4)
    with pytest.raises(InvalidInput, match="every parameter"):
        freeze(network().requires_grad_(False), except_last=1)
    for names in ([], "3", [3], 5, ["0", None]):
        with pytest.raises(InvalidInput, match="list of names"):
            freeze(network(), except_names=names)
    with pytest.raises(InvalidInput, match="exactly one"):
        freeze(network())
    with pytest.raises(InvalidInput, match="exactly one"):
        freeze(network(), except_last=1, except_names=["3"])
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "classifier": nn.Linear(2, 2)})
    with pytest.raises(InvalidInput, match="did you mean 'classifier'"):
        freeze(model, except_names=["encoder", "clasifier"])
    assert len(trained(model)) == 4  # a refusal froze nothing


# --- pretrain -----------------------------------------------------------------------------------


def public_data(count=241):
    inputs = drawn(count, 6)
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


def classifier():
    return nn.Sequential(body(), nn.Linear(8, 2))


def accuracy(model, inputs, labels):
    with torch.no_grad():
        return float((model.eval()(inputs).argmax(1) == labels).float().mean())


SETTINGS = {"epochs": 40, "batch_size": 16, "learning_rate": 0.02, "seed": 3}


def test_it_learns_and_leaves_torch_as_it_was():
    """Signs of a product, where chance is one half; 241 = 15·16 + 1 leaves a single record over."""
    inputs, labels = public_data()
    model = made(lambda: nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(),
                                       nn.Dropout(0.1), nn.Linear(32, 2)))  # fmt: skip
    model.eval()
    model[2].train()
    assert accuracy(copy.deepcopy(model), inputs, labels) < 0.7
    before = torch.random.get_rng_state()
    modes = [module.training for module in model.modules()]
    assert pretrain(model, inputs, labels, **SETTINGS) is model
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert accuracy(model, inputs, labels) > 0.9
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_seed_alone_decides():
    inputs, labels = public_data(60)

    def result(seed, x, y, noise=0):
        torch.rand(noise)  # whatever the global state is
        given = {**SETTINGS, "epochs": 3, "seed": seed}
        return state(pretrain(made(classifier), x, y, **given))

    first = result(1, inputs, labels)
    assert same(first, result(1, inputs.double().numpy(), labels.tolist(), noise=5))
    assert not same(first, result(2, inputs, labels))


def test_frozen_parts_are_not_trained():
    inputs, labels = public_data(60)
    model = freeze(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), except_last=1)
    before = state(model)
    pretrain(model, inputs, labels, **{**SETTINGS, "epochs": 1})
    assert torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[2].weight, before["2.weight"])
    with pytest.raises(InvalidInput, match="nothing to train"):
        pretrain(model.requires_grad_(False), inputs, labels, **SETTINGS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 2.0}, "batch_size is 2.0"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"labels": [0, 1]}, "60 inputs and 2 labels"),
        ({"labels": [-1] * 60}, "counted from 0"),
        ({"labels": np.arange(60) % 2 + 0.9}, "counted from 0"),
        ({"labels": torch.full((60,), 0.5)}, "counted from 0"),
        ({"labels": [float("nan")] * 60}, "counted from 0"),
        ({"labels": 1}, "counted from 0"),
        ({"labels": ["a"] * 60}, "labels are not"),
        ({"labels": [[0], [0, 1]]}, "labels are not"),
        ({"inputs": np.full((60, 6), "a", dtype=object)}, "inputs are not"),
        ({"inputs": np.float32(3)}, "inputs have no axis"),
        ({"inputs": None}, "inputs are not"),
        ({"seed": None}, "seed is None"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1 << 70}, "seed is"),
        ({"learning_rate": "a"}, "learning_rate is 'a'"),
        ({"labels": [[0]] * 60}, "counted from 0"),
        ({"labels": [7] * 60}, r"\(records, 8\)"),
        ({"inputs": torch.full((60, 6), torch.inf)}, "not finite in epoch 1"),
    ],
)
def test_mistakes_are_named_and_leave_no_mode_behind(change, message):
    inputs, labels = public_data(60)
    model = made(classifier).eval()
    given = {"inputs": inputs, "labels": labels, **SETTINGS, **change}
    with pytest.raises(InvalidInput, match=message):
        pretrain(model, **given)
    assert not model.training


# --- encode -------------------------------------------------------------------------------------


def test_parts_equal_the_whole_for_every_kind_of_encoder():
    X = drawn(23, 6).numpy()
    module = made(body)
    module.train()
    module(torch.from_numpy(X))  # some statistics, so that BatchNorm does something
    kept = state(module)
    pca = PrivatePCA(3, noise_multiplier=1.0).fit(X)
    for encoder in (module, pca, lambda rows: np.tanh(rows) * 2):
        whole = encode(encoder, X)
        assert whole.dtype == np.float32
        assert len(whole) == 23
        for size in (1, 4, 22, 23, 100):
            assert encode(encoder, X, batch_size=size) == pytest.approx(whole, abs=1e-6)
    assert same(kept, state(module))
    assert all(inner.training for inner in module.modules())  # as before
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(X)).numpy()
    assert encode(module, X) == pytest.approx(expected, abs=1e-6)
    assert encode(pca, X) == pytest.approx(X @ pca.components_, abs=1e-5)


def test_maps_of_files_images_and_no_records(tmp_path):
    images = np.random.default_rng(2).integers(0, 256, size=(9, 1, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    network = made(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()))
    features = encode(network, mapped, batch_size=4)
    assert features.shape == (9, 2, 6, 6)
    assert features == pytest.approx(encode(network, images), abs=1e-4)
    assert encode(network, images[:0]).shape == (0, 2, 6, 6)


def test_an_encoder_sees_a_part_at_a_time():
    seen = []
    encode(lambda rows: seen.append(len(rows)) or rows, np.zeros((10, 2)), batch_size=4)
    assert seen == [4, 4, 2]


def test_what_cannot_encode_is_refused():
    X = np.zeros((5, 2))
    with pytest.raises(InvalidInput, match="is a str; it must be"):
        encode("scattering", X)
    for wrong in (lambda rows: rows[:-1], lambda rows: rows.sum()):
        with pytest.raises(InvalidInput, match="one row of features"):
            encode(wrong, X)
    for size in (0, 1.5, True):
        with pytest.raises(InvalidInput, match="batch_size is"):
            encode(np.tanh, X, batch_size=size)
    with pytest.raises(InvalidInput, match="no axis"):
        encode(np.tanh, np.float64(3))
    with pytest.raises(InvalidInput, match="not one array"):
        encode(np.tanh, [[1, 2], [3]])
    with pytest.raises(InvalidInput, match="another shape"):
        encode(lambda rows: np.ones((len(rows), len(rows))), X, batch_size=3)
    with pytest.raises(InvalidInput, match="returned a tuple"):
        encode(nn.LSTM(2, 3), X)
    for wrong in (lambda rows: [["a"]] * len(rows), lambda rows: [[1], [1, 2]], lambda rows: None):
        with pytest.raises(InvalidInput, match="real numbers"):
            encode(wrong, X)
    with pytest.raises(InvalidInput, match="encodes numbers") as refused:
        encode(nn.Linear(2, 1), np.array([["HIV+", "1"]]))
    assert refused.value.__suppress_context__  # which quotes the cell


def test_tensors_that_an_encoder_returns_are_detached():
    X = np.ones((5, 2))
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        made_of = torch.full((5, 3), 2, dtype=dtype)
        made_of.requires_grad_(dtype.is_floating_point)
        assert encode(lambda rows, made_of=made_of: made_of, X).tolist() == [[2.0] * 3] * 5
