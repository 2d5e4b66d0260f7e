"""Images for torch modules: channels first where a recipe asks for it, and a word on wrong shapes.

Data sets have channels last, (n, height, width, channels), or none; torch's convolutions want
(n, channels, height, width).
"""

from __future__ import annotations

import math

from torch import Tensor, nn

_STEPS = "the steps of [encoder] that turn images into rows"


class ChannelsFirst(nn.Module):
    """A module that is given images with channels first; grey images get one channel.

    >>> import torch
    >>> ChannelsFirst(nn.Identity())(torch.zeros(2, 28, 20, 3)).shape
    torch.Size([2, 3, 28, 20])
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
        return self.module(images)  # type: ignore[no-any-return]


def shape_problem(module: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Return in one line how the shape of a record does not fit a module's first layer.

    ``shape`` is public. None if it fits, or the layer cannot tell.

    >>> shape_problem(nn.Conv2d(3, 8, 3), (28, 28, 3))
    'the model got (n, 28, 28, 3), the first layer wants 3 channels first: add channels = "first"'
    """
    got = f"the model got {_records(shape)}"
    if isinstance(module, ChannelsFirst):
        if len(shape) not in (2, 3):
            return f'{got}, and channels = "first" is for images: drop it, or {_STEPS}'
        shape = (1, *shape) if len(shape) == 2 else (shape[-1], *shape[:-1])
        got += f", as {_records(shape)}"
    layers = (each for each in module.modules() if isinstance(each, nn.Conv2d | nn.Linear))
    match next(layers, None):
        case nn.Linear(in_features=wanted) if wanted and shape[-1:] != (wanted,):
            flat = math.prod(shape)
            remedy = "add nn.Flatten() before it" if flat == wanted else f"make it take {flat}"
            return f"{got}, the first layer wants {wanted} features: {remedy}"
        case nn.Conv2d(in_channels=wanted) if wanted and len(shape) in (2, 3):
            if shape[:-2] == (wanted,):
                return None
            first = isinstance(module, ChannelsFirst)
            channels = shape[0] if first else shape[-1] if len(shape) == 3 else 1
            remedies = [f"make it take {channels}"] * (channels != wanted)
            remedies += ['add channels = "first"'] * (not first)
            noun = "channel" if wanted == 1 else "channels"
            return f"{got}, the first layer wants {wanted} {noun} first: {' and '.join(remedies)}"
        case nn.Conv2d(in_channels=wanted) if wanted and len(shape) == 1:
            return f"{got}, the first layer wants images of {wanted} channels: drop {_STEPS}"
    return None


def _records(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, ('n', *shape)))})"
