"""Steps that are not ours: the user's own code, and trained networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pate.encoders.chain import fit_encoder, load_encoder, save_encoder
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.vision import torchvision

CODE = """
import json
import numpy as np
import torch
from torch import nn

class Centre:
    def __init__(self, times=1):
        self.times = times
    def fit(self, X):
        self.mean = X.mean(axis=0)
        self.count = np.int64(len(X))
        return self
    def transform(self, X):
        print("a private record")
        return (X - self.mean) * self.times

class Keeper(Centre):
    def save(self, folder):
        (folder / "mean.json").write_text(json.dumps(self.mean.tolist()))
    def load(self, folder):
        self.mean = np.array(json.loads((folder / "mean.json").read_text()), dtype=np.float32)

class Stateless:
    def transform(self, X):
        return X[:, :2]

class Hoarder(Centre):
    def fit(self, X):
        super().fit(X)
        self.rows = [1, 2]

class Follows(Centre):
    def transform(self, X):
        features = super().transform(X)
        self.mean = 0.9999 * self.mean + 0.0001 * X.mean(axis=0)
        return features

class Wakes(Centre):
    def fit(self, X):
        super().fit(X)
        self.rare = 0.0
    def transform(self, X):
        if X.max() > 100:
            self.rare = float(X.max())
        return super().transform(X) + self.rare

class Tracks(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 4), nn.Linear(4, 3))
        self.register_buffer("largest", torch.zeros(()), persistent=False)
    def forward(self, x):
        self.largest.copy_(torch.maximum(self.largest, x.max()))
        return super().forward(x)

def factory(times=2):
    return Centre(times)

def doubled(X, times=2):
    return X * times

def talker(X):
    if len(X) > 8:
        raise ValueError(f"record {X[0]}")
    return X

ready = Stateless()
number = 3
lossy = lambda X: X[:-1]
texts = lambda X: X.astype(str)
holes = lambda X: np.where(X > 0, np.nan, X)
batchy = lambda X: X - X.mean(axis=0)
ragged = lambda X: X if len(X) <= 8 else X[:, :1]
def broken():
    raise RuntimeError("no")
def nothing():
    return 3

class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, classes)
    def forward(self, x):
        return self.head(self.drop(self.norm(self.first(x)).mean((2, 3))))

class Flat(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 4)
    def forward(self, x):
        return x, x
"""


@pytest.fixture
def plugins(tmp_path):
    (tmp_path / "own_steps.py").write_text(CODE)
    return tmp_path


def fitted(plugins, X, name, **settings):
    spec = EncoderSpec.model_validate({"steps": [{"name": name, **settings}]})
    return spec, fit_encoder(spec, X, plugin_path=plugins)


def numbers(rows=20, columns=5, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "params", "times"),
    [
        ("own_steps:Centre", {}, 1),
        ("own_steps:Centre", {"times": 3}, 3),
        ("own_steps:factory", {}, 2),
        ("own_steps:factory", {"times": 5}, 5),
        ("own_steps:Keeper", {}, 1),
    ],
)
def test_a_class_or_a_factory(plugins, tmp_path, capsys, name, params, times):
    public, others = numbers(), numbers(seed=1)
    spec, chain = fitted(plugins, public, name, params=params)
    expected = (others - public.mean(axis=0)) * times
    np.testing.assert_allclose(chain.transform(others), expected, atol=1e-5)
    save_encoder(chain, tmp_path / "saved")
    loaded = load_encoder(spec, tmp_path / "saved", plugin_path=plugins)
    assert np.array_equal(loaded.transform(others), chain.transform(others))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("own_steps:doubled", None, lambda X: X * 2),
        ("own_steps:doubled", {"times": 7}, lambda X: X * 7),
        ("own_steps:Stateless", None, lambda X: X[:, :2]),
        ("numpy:tanh", None, np.tanh),
        ("numpy:square", None, np.square),
    ],
)
def test_a_function_of_the_records(plugins, tmp_path, name, params, expected):
    X = numbers()
    spec, chain = fitted(plugins, X, name, params=params)
    assert np.array_equal(chain.transform(X), expected(X))
    save_encoder(chain, tmp_path / "saved")
    loaded = load_encoder(spec, tmp_path / "saved", plugin_path=plugins)
    assert np.array_equal(loaded.transform(X), expected(X))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_steps:ready", "is one Stateless object; name its class"),
        ("own_steps:number", "is one int object; a step is a class or a function"),
        ("own_steps:broken", "cannot be made with params .*RuntimeError: no"),
        ("own_steps:nothing", "makes a int, which has no transform"),
        ("own_steps:lossy", "returned shape .* one row for each"),
        ("own_steps:texts", "features are numbers"),
        ("own_steps:holes", "infinite or NaN"),
        ("own_steps:batchy", "different features when others are present"),
        ("own_steps:missing", "has no 'missing'"),
    ],
)
def test_steps_that_break_a_rule(plugins, name, message):
    with pytest.raises(InvalidInput, match=message):
        fitted(plugins, numbers(), name)


def test_another_shape_later(plugins):
    _, chain = fitted(plugins, numbers(8), "own_steps:ragged")
    with pytest.raises(InvalidInput, match="same shape of every record"):
        chain.transform(numbers(20))


def test_an_exception_quotes_no_record(plugins):
    _, chain = fitted(plugins, numbers(8), "own_steps:talker")
    with pytest.raises(InvalidInput) as caught:
        chain.transform(numbers(20))
    assert "ValueError in" in str(caught.value)
    assert "own_steps.py line" in str(caught.value)
    assert "record [" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_what_cannot_be_kept_is_said(plugins):
    with pytest.raises(InvalidInput, match=r"Hoarder.rows is a list, .* save\(folder\)"):
        fitted(plugins, numbers(), "own_steps:Hoarder")


def test_a_step_that_remembers_records_is_refused(plugins, tmp_path):
    changes = "changes when it transforms records"
    with pytest.raises(InvalidInput, match=f"own_steps:Follows {changes}"):
        fitted(plugins, numbers(), "own_steps:Follows")
    _, chain = fitted(plugins, numbers(), "own_steps:Wakes")
    chain.transform(numbers(seed=1))
    with pytest.raises(InvalidInput, match=f"own_steps:Wakes {changes}"):
        chain.transform(numbers(seed=1) + 200)
    file = tmp_path / "weights.pt"
    weights_of(plugins, "own_steps:Tracks", file)
    settings = {"model": "own_steps:Tracks", "weights": str(file)}
    with pytest.raises(InvalidInput, match=f"torch {changes}"):
        fitted(plugins, numbers(), "torch", **settings)


def weights_of(plugins, name, file, **params):
    from pate.plugins import resolve

    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = resolve(name, path=plugins)(**params)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.uniform_(-1, 1)
                part.running_var.uniform_(0.5, 2)
    if file.suffix == ".safetensors":
        save_file(module.state_dict(), file)
    else:
        torch.save(module.state_dict(), file)
    return module.eval()


def images(count=6, *, channels=None, side=9):
    shape = (count, side, side) if channels is None else (count, side, side, channels)
    return np.random.default_rng(0).random(shape, dtype=np.float32)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_backbone_without_its_last_layer(plugins, tmp_path, suffix):
    file = tmp_path / f"weights{suffix}"
    module = weights_of(plugins, "own_steps:Net", file, classes=7)
    X = images(70, channels=3)
    settings = {"model": "own_steps:Net", "weights": str(file)}  # ten classes: the head is gone
    spec, chain = fitted(plugins, X, "torch", **settings)
    module.head = nn.Identity()
    with torch.no_grad():
        expected = module(torch.from_numpy(X).movedim(3, 1)).numpy()
    assert chain.shape == (4,)
    np.testing.assert_allclose(chain.transform(X), expected, rtol=0, atol=1e-5)
    assert chain.transform(X[:0]).shape == (0, 4)
    save_encoder(chain, tmp_path / "saved")
    loaded = load_encoder(spec, tmp_path / "saved", plugin_path=plugins)
    assert np.array_equal(loaded.transform(X), chain.transform(X))


def test_other_weights_are_noticed(plugins, tmp_path):
    file = plugins / "weights.safetensors"
    weights_of(plugins, "own_steps:Net", file)
    settings = {"model": "own_steps:Net", "weights": file.name}  # beside the user's code
    spec, chain = fitted(plugins, images(channels=3), "torch", **settings)
    before = spec.weight_digests(plugin_path=plugins)
    save_encoder(chain, tmp_path / "saved")
    state = {k: v + 1 for k, v in chain.steps[0].module.state_dict().items()}
    save_file({**state, "head.weight": torch.zeros(10, 4), "head.bias": torch.zeros(10)}, file)
    with pytest.raises(InvalidInput, match="does not hold the weights that the encoder was fitted"):
        load_encoder(spec, tmp_path / "saved", plugin_path=plugins)
    assert spec.weight_digests(plugin_path=plugins) != before


def test_grey_images_resized_and_scaled(plugins, tmp_path):
    file = tmp_path / "weights.pt"
    module = weights_of(plugins, "own_steps:Net", file)
    X = images()
    _, chain = fitted(
        plugins, X, "torch", model="own_steps:Net", weights=str(file), channels=3, resize=18,
        mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4],
    )  # fmt: skip
    module.head = nn.Identity()
    grey = torch.from_numpy(X)[:, None]
    large = nn.functional.interpolate(grey, size=(18, 18), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
    with torch.no_grad():
        expected = module((large.repeat(1, 3, 1, 1) - mean) / std).numpy()
    np.testing.assert_allclose(chain.transform(X), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("layer", "width"), [(None, 4), ("2", 4), ("0", 3), ("", 3)])
def test_the_layer_to_take_away(plugins, tmp_path, layer, width):
    file = tmp_path / "weights.pt"
    weights_of(plugins, "own_steps:Flat", file)
    X = numbers() if layer != "0" else numbers(columns=4)
    _, chain = fitted(plugins, X, "torch", model="own_steps:Flat", weights=str(file), layer=layer)
    assert chain.shape == (width,)


@pytest.mark.parametrize(
    ("settings", "records", "message"),
    [
        ({"weights": "gone.pt"}, {"channels": 3}, "there is no file at gone.pt"),
        ({"model": "own_steps:Flat"}, {"channels": 3}, "does not hold the weights of this Flat"),
        ({"model": "own_steps:ready"}, {"channels": 3}, "neither a class nor a function"),
        ({"model": "own_steps:broken"}, {"channels": 3}, "RuntimeError: no"),
        ({"model": "own_steps:nothing"}, {"channels": 3}, "a backbone is a torch module"),
        ({"layer": "tail"}, {"channels": 3}, "has no layer 'tail'; its last is 'head'"),
        ({"channels": 3}, {"channels": 2}, "only grey images can be repeated"),
        ({"mean": [0.5], "std": [0.5]}, {"channels": 3}, "1 numbers, and the images have 3"),
        ({}, {"channels": 1}, "the backbone raised RuntimeError"),
    ],
)
def test_backbones_that_cannot_be(plugins, tmp_path, settings, records, message):
    file = tmp_path / "weights.pt"
    weights_of(plugins, "own_steps:Net", file)
    with pytest.raises(InvalidInput, match=message):
        fitted(
            plugins, images(**records), "torch",
            **{"model": "own_steps:Net", "weights": str(file), **settings},
        )  # fmt: skip


def test_a_backbone_answers_with_one_tensor_and_images_only_are_resized(plugins, tmp_path):
    file = tmp_path / "weights.pt"
    weights_of(plugins, "own_steps:Pair", file)
    with pytest.raises(InvalidInput, match="returned a tuple"):
        fitted(plugins, numbers(), "torch", model="own_steps:Pair", weights=str(file), layer="")
    weights_of(plugins, "own_steps:Flat", file)
    with pytest.raises(InvalidInput, match="resize, channels, mean and std are for images"):
        fitted(plugins, numbers(), "torch", model="own_steps:Flat", weights=str(file), resize=9)


class Trap:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_a_file_of_weights_runs_no_code(plugins, tmp_path):
    file = tmp_path / "weights.pt"
    torch.save(Trap(tmp_path / "sprung"), file)
    with pytest.raises(InvalidInput, match="does not hold the weights"):
        fitted(plugins, images(channels=3), "torch", model="own_steps:Net", weights=str(file))
    assert not (tmp_path / "sprung").exists()


def test_a_network_of_torchvision(tmp_path):
    torchvision()
    file = tmp_path / "resnet.safetensors"
    weights_of(None, "torchvision.models:resnet18", file, num_classes=5)
    X = images(2, side=32)
    settings = {"model": "torchvision.models:resnet18", "weights": str(file), "channels": 3}
    before = torch.random.get_rng_state()
    _, chain = fitted(None, X, "torch", **settings)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert chain.transform(X).shape == (2, 512)
