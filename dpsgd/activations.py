"""Activations by name, and one that suits private training: bounded, so gradients stay small."""

from __future__ import annotations

import math
from collections.abc import Callable
from difflib import get_close_matches
from typing import final

import torch
from torch import nn

from pate.errors import InvalidInput


@final
class TemperedSigmoid(nn.Module):
    """``scale · sigmoid(temperature · x) − offset``, entry by entry; with the defaults, tanh.

    Papernot, Thakurta, Song, Chien & Erlingsson 2021: activations that do not grow keep
    per-example gradients small, so clipping takes less off them than with ReLU.

    >>> x = torch.tensor([-1.0, 0.0, 2.0])
    >>> torch.allclose(TemperedSigmoid()(x), torch.tanh(x))
    True
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        for name, value in (("scale", scale), ("temperature", temperature)):
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise InvalidInput(f"{name} is {value!r}; it must be a finite number above zero")
        if not isinstance(offset, (int, float)) or not math.isfinite(offset):
            raise InvalidInput(f"offset is {offset!r}; it must be a finite number")
        self.scale = scale
        self.temperature = temperature
        self.offset = offset

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


def activation(name: str) -> nn.Module:
    """A new activation layer by its name in a recipe, or an error that offers the nearest.

    >>> activation("tanh")
    Tanh()
    >>> activation("tempered_sigmoid")
    Traceback (most recent call last):
    pate.errors.InvalidInput: there is no activation named 'tempered_sigmoid'; did you mean \
tempered-sigmoid?
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        near = get_close_matches(str(name).lower(), ACTIVATIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ACTIVATIONS)}"
        raise InvalidInput(f"there is no activation named {name!r}; {hint}")
    return ACTIVATIONS[name]()
