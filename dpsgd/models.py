"""The models, activations and optimisers of a recipe."""

from __future__ import annotations

import copy
import inspect
import math
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from dpsgd.recipe import DpsgdRecipe, NetworkSpec, TrainingSpec
from dpsgd.validation import fix
from pate._validate import check_finite, check_positive
from pate.errors import InvalidInput
from pate.plugins import resolve
from pate.untrusted import make_untrusted


@final
class TemperedSigmoid(nn.Module):
    """Apply ``scale · sigmoid(temperature · x) − offset`` elementwise; by default tanh.

    Papernot, Thakurta, Song, Chien & Erlingsson 2021: bounded activations keep per-example
    gradients small, so clipping removes less of them than with ReLU.

    Parameters
    ----------
    scale : float, default=2.0
        The range of the values; above zero.
    temperature : float, default=2.0
        The steepness; above zero.
    offset : float, default=1.0
        Subtracted from every value.

    >>> x = torch.tensor([-1.0, 0.0, 2.0])
    >>> torch.allclose(TemperedSigmoid()(x), torch.tanh(x))
    True
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale = check_positive("scale", scale)
        self.temperature = check_positive("temperature", temperature)
        self.offset = check_finite("offset", offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        return f"scale={self.scale}, temperature={self.temperature}, offset={self.offset}"


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "tempered-sigmoid": TemperedSigmoid,
}


_HIDDEN = (1000,)
_LEAST_CHANCE = 1e-6  # of a class, by least squares
_COPIES, _BYTES = 3, 4  # weights, their gradient and the noise, in float32
_SMALLEST_IMAGE = 14  # pixels a side that the convolutional network needs


def model_of(
    recipe: DpsgdRecipe, *, shape: tuple[int, ...], classes: int, plugin_path: Path | None = None
) -> nn.Module:
    """Return the model of a recipe, before it is trained."""
    if recipe.least_squares:
        return BoundedLinear(math.prod(shape), classes, norm=recipe.clipping.max_norm[0])
    return build_model(recipe.model, shape=shape, classes=classes, plugin_path=plugin_path)


def build_model(
    spec: NetworkSpec, *, shape: tuple[int, ...], classes: int, plugin_path: Path | None = None
) -> nn.Module:
    """Return a model for records of this shape; equal settings give equal initial weights.

    The state of torch's own generator is left as it was. With ``fix`` it is what ``dpsgd.fix``
    makes of the model.
    """
    model = _built(spec, shape=shape, classes=classes, plugin_path=plugin_path)
    return fix(model) if spec.fix else model


def _built(
    spec: NetworkSpec, *, shape: tuple[int, ...], classes: int, plugin_path: Path | None
) -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(spec.init)
        if spec.entry is not None:
            return _own(spec, shape=shape, classes=classes, plugin_path=plugin_path)
        if spec.kind == "cnn":
            return _small_cnn(spec.activation or "tanh", shape=shape, classes=classes)
        hidden = _HIDDEN if spec.hidden is None else spec.hidden
        return _layers(hidden, spec.activation or "relu", shape=shape, classes=classes)


def build_optimizer(spec: TrainingSpec, model: nn.Module) -> torch.optim.Optimizer:
    """Return the recipe's optimiser of the model's trainable weights."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    assert spec.learning_rate is not None  # the recipe was checked
    rate = spec.learning_rate.start
    if spec.optimizer == "adam":
        return torch.optim.Adam(weights, lr=rate)
    return torch.optim.SGD(weights, lr=rate, momentum=spec.momentum)


@final
class BoundedLinear(nn.Module):
    """The linear model of least squares: rows longer than ``norm`` are scaled to it.

    Scores plus 1/K, cut at a millionth, are probabilities of the K classes; outputs are their
    logarithms, of which a softmax makes the same again.

    >>> model = BoundedLinear(2, 4, norm=1.0)
    >>> model(torch.tensor([[3.0, 4.0]])).exp()
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]], grad_fn=<ExpBackward0>)
    """

    def __init__(self, features: int, classes: int, *, norm: float) -> None:
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(torch.zeros(classes, features))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(1)
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        rows = rows * (self.norm / length.clamp(min=self.norm))
        scores = nn.functional.linear(rows, self.weight, self.bias)
        return (scores + 1 / len(self.bias)).clamp(min=_LEAST_CHANCE).log()


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return one layer without biases, initialised to zero: for features, as a recipe's ``entry``.

    The loss is convex, so there is no symmetry for random weights to break; random weights of many
    features would be noise that no step removes.

    >>> model = linear(shape=(3,), classes=2)
    >>> model(torch.ones(1, 3))
    tensor([[0., 0.]], grad_fn=<MmBackward0>)
    """
    layer = nn.Linear(math.prod(shape), classes, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(nn.Flatten(), layer) if len(shape) > 1 else layer


def _layers(
    hidden: tuple[int, ...] | list[int], name: str, *, shape: tuple[int, ...], classes: int
) -> nn.Module:
    width = math.prod(shape)
    _require_room((width, *hidden, classes))
    parts: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
    for units in hidden:
        parts += [nn.Linear(width, units), ACTIVATIONS[name]()]
        width = units
    return nn.Sequential(*parts, nn.Linear(width, classes))


def _require_room(widths: tuple[int, ...]) -> None:
    """Refuse a network that this machine has not the memory to train."""
    weights = sum((wide + 1) * next_wide for wide, next_wide in pairwise(widths))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if _COPIES * _BYTES * weights > memory:
        raise InvalidInput(
            f"model.hidden makes a network of {weights:.3g} weights, and this machine has not the "
            f"memory to train more than {memory / (_COPIES * _BYTES):.3g}; use fewer units"
        )


def _small_cnn(name: str, *, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the network of Papernot, Thakurta, Song, Chien & Erlingsson 2021 for digits."""
    if len(shape) != 3 or min(shape[1:]) < _SMALLEST_IMAGE:
        raise InvalidInput(
            f'model.kind "cnn" is for images of {_SMALLEST_IMAGE} by {_SMALLEST_IMAGE} pixels or '
            f'more, and records have the shape {shape}; use kind = "mlp"'
        )
    body = nn.Sequential(
        nn.Conv2d(shape[0], 16, 8, stride=2, padding=3),
        ACTIVATIONS[name](),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        ACTIVATIONS[name](),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
    )
    with torch.no_grad():
        width = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 32), ACTIVATIONS[name](), nn.Linear(32, classes))


def _own(
    spec: NetworkSpec, *, shape: tuple[int, ...], classes: int, plugin_path: Path | None
) -> nn.Module:
    """Return a copy of the user's module, or the result of their class or function."""
    assert spec.entry is not None
    found = resolve(spec.entry, path=plugin_path)
    if isinstance(found, nn.Module):
        if spec.params:
            raise InvalidInput(f"model.entry {spec.entry} is a module; it takes no params")
        return copy.deepcopy(found)
    made = call_with(
        found, spec.params, offered={"shape": shape, "classes": classes}, what=spec.entry
    )
    if not isinstance(made, nn.Module):
        raise InvalidInput(
            f"model.entry {spec.entry} gives a {type(made).__name__}; it must give a torch module"
        )
    return made


def call_with(maker: Any, params: dict[str, Any], *, offered: dict[str, Any], what: str) -> Any:
    """Call what a recipe names with its params, and with those offered that it accepts."""
    if not callable(maker):
        raise InvalidInput(f"{what} is a {type(maker).__name__}; it must be a class or a function")
    try:
        takes = set(inspect.signature(maker).parameters)
    except (TypeError, ValueError):  # built in, and without a signature
        takes = set()
    arguments = {key: value for key, value in offered.items() if key in takes} | params
    failure = f"{what} cannot be called with these params"
    return make_untrusted(failure, lambda: maker(**arguments), error=InvalidInput)
