"""Augmentation: random changes to a batch of images that do not change their class.

An augmentation maps a batch, as the data sets give it ((n, h, w) or (n, h, w, channels)), and a
generator to a batch of the same shape. The same generator state gives the same images, on every
device: generators are on the CPU. The user's own functions and transforms run in host memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from pate.errors import InvalidInput
from pate.plugins import resolve
from pate.teachers.placement import seeded_torch

Augment = Callable[[Tensor, Generator], Tensor]


def make_augment(
    name: str, *, shape: tuple[int, ...], plugin_path: Path | None = None
) -> Augment | None:
    """Return the augmentation of that name for records of ``shape``, or None for no change.

    ``auto`` is ``affine`` for images and no change for other records. A ``module:attr`` is a
    function of a batch and ``generator``, or a torchvision transform, which is applied to one
    image (channels, h, w) at a time.

    >>> make_augment("auto", shape=(28, 28)).__name__
    'affine'
    >>> make_augment("auto", shape=(30,)) is None
    True
    """
    images = len(shape) in (2, 3)
    if name == "none" or (name == "auto" and not images):
        return None
    if ":" in name:
        return _own(name, plugin_path)
    if not images:
        raise InvalidInput(
            f"augment = {name!r} is for images, and a public input has shape {shape}; write "
            'augment = "none"'
        )
    built_in: dict[str, Augment] = {"shift": shift, "randaugment": randaugment}
    return built_in.get(name, affine)


def affine(
    images: Tensor,
    generator: Generator,
    *,
    degrees: float = 15.0,
    scale: float = 0.15,
    shear: float = 0.15,
    move: float = 0.1,
) -> Tensor:
    """Rotate, scale, shear and move every image by its own random amounts.

    >>> moved = affine(torch.ones(4, 8, 8), torch.Generator().manual_seed(0))
    >>> moved.shape
    torch.Size([4, 8, 8])
    """
    n = len(images)

    def between(most: float, *size: int) -> Tensor:
        drawn = torch.rand(n, *size, generator=generator).to(images.device)
        return (drawn * 2 - 1) * most

    angle = torch.deg2rad(between(degrees))
    sizes, slant, places = 1 + between(scale, 2), between(shear), between(2 * move, 2)
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    skew = torch.diag_embed(sizes)
    skew[:, 0, 1] = slant
    maps = torch.cat([turn @ skew, places.unsqueeze(2)], dim=2)
    pixels, back = _channels_first(images)
    grid = functional.affine_grid(maps, list(pixels.shape), align_corners=False)
    # A border of zeros would blend into images with bright edges.
    warped = functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    return back(warped)


def shift(images: Tensor, generator: Generator, *, most: float = 0.1) -> Tensor:
    """Move every image by its own number of whole pixels; the border is repeated."""
    height, width = images.shape[1:3]
    up, left = (max(1, round(most * side)) for side in (height, width))
    n = len(images)
    rows = torch.randint(-up, up + 1, (n, 1), generator=generator) + torch.arange(height)
    columns = torch.randint(-left, left + 1, (n, 1), generator=generator) + torch.arange(width)
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    places = torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]
    return images[tuple(each.to(images.device) for each in places)]


def randaugment(images: Tensor, generator: Generator) -> Tensor:
    """Apply torchvision's RandAugment (Cubuk et al. 2020) to images with values in [0, 1]."""
    change = resolve("torchvision.transforms.v2:RandAugment")(num_ops=2, magnitude=9)
    levels = (images.clamp(0, 1) * 255).round().to(torch.uint8)
    return _each(levels, change, generator).to(images.dtype) / 255


def _own(name: str, plugin_path: Path | None) -> Augment:
    made: Any = resolve(name, path=plugin_path)
    if inspect.isclass(made):
        try:
            made = made()
        except Exception as error:
            raise InvalidInput(
                f"the augmentation {name} cannot be made without arguments; name a function "
                "without any, or an object"
            ) from error
    if not callable(made):
        raise InvalidInput(f"the augmentation {name} is not a function of a batch of images")
    try:
        arguments = inspect.signature(made).parameters
    except (TypeError, ValueError):
        arguments = {}  # type: ignore[assignment]
    whole = not isinstance(made, torch.nn.Module) and "generator" in arguments

    def own(images: Tensor, generator: Generator) -> Tensor:
        if whole:  # in host memory, where its generator is
            changed = made(images.cpu(), generator=generator)
        else:
            changed = _each(images, made, generator)
        if not isinstance(changed, Tensor) or changed.shape != images.shape:
            raise InvalidInput(
                f"the augmentation {name} must return a tensor of the same shape, "
                f"{tuple(images.shape)}"
            )
        return changed.to(images.device)

    return own


def _each(images: Tensor, change: Callable[[Tensor], Tensor], generator: Generator) -> Tensor:
    """Apply a transform image by image: on a whole batch it would change all in the same way."""
    seed = int(torch.randint(2**31, (1,), generator=generator))
    pixels, back = _channels_first(images.cpu())
    with seeded_torch(seed):  # transforms draw from torch's own generator, on the processor
        return back(torch.stack([change(image) for image in pixels])).to(images.device)


def _channels_first(images: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return images as (n, channels, h, w), and the inverse function."""
    if images.dim() == 3:
        return images.unsqueeze(1), lambda pixels: pixels.squeeze(1)
    return images.permute(0, 3, 1, 2), lambda pixels: pixels.permute(0, 2, 3, 1)
