"""Small networks for students; records come as the data sets give them.

>>> import torch
>>> SmallCNN(classes=10)(torch.zeros(2, 28, 28)).shape
torch.Size([2, 10])
>>> SmallCNN(classes=3)(torch.zeros(2, 32, 32, 3)).shape
torch.Size([2, 3])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

SMALLEST = 8  # pixels along a side


def channels_first(images: Tensor) -> Tensor:
    """Return images (n, h, w) or (n, h, w, channels) as (n, channels, h, w).

    The memory layout stays channels last, in which small convolutions are about twice as fast.
    """
    if images.dim() == 3:
        images = images.unsqueeze(-1)
    if images.dim() != 4 or min(images.shape[1:3]) < SMALLEST:
        raise ValueError(
            f"images are (n, h, w) or (n, h, w, channels) with at least {SMALLEST} pixels a side, "
            f"not {tuple(images.shape)}"
        )
    return images.permute(0, 3, 1, 2)


@final
class SmallCNN(nn.Module):
    """Three convolutions with BatchNorm and one linear layer, for images of any size and depth.

    The first two pool by two before BatchNorm, which leaves it a quarter of the numbers; a 3 × 3
    average ends them.
    """

    def __init__(
        self, classes: int, channels: Sequence[int] = (16, 32, 64), dropout: float = 0.0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 0
        for depth, width in enumerate(channels):
            if depth == 0:
                layers.append(nn.LazyConv2d(width, 3, padding=1, bias=False))
            else:
                layers.append(nn.Conv2d(before, width, 3, padding=1, bias=False))
            if depth < 2:
                layers.append(nn.MaxPool2d(2))
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            before = width
        self.body = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(3)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(before * 9, classes)

    def features(self, images: Tensor) -> Tensor:
        """Return the input of the last layer, (n, 9 × the last width)."""
        pooled: Tensor = self.pool(self.body(channels_first(images)))
        return pooled.flatten(1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.drop(self.features(images)))
        return logits


@final
class Mlp(nn.Module):
    """Linear layers with BatchNorm and dropout, for features; records are flattened."""

    def __init__(self, classes: int, hidden: Sequence[int] = (256,), dropout: float = 0.1) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers += [
                nn.LazyLinear(width, bias=False),
                nn.BatchNorm1d(width),
                nn.ReLU(),
                nn.Dropout(dropout),
            ]
        layers.append(nn.LazyLinear(classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, records: Tensor) -> Tensor:
        logits: Tensor = self.layers(records)
        return logits
