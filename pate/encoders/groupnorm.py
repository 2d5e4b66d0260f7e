"""Group normalisation: each part of a record is centred and scaled by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.encoders.step import Fixed, flat
from pate.errors import InvalidInput

_STABILITY = 1e-5  # added to each variance, so that a flat part does not become loud


class GroupNorm(Fixed):
    """Cuts a record into ``groups`` parts of equal length, and gives each mean 0 and variance 1.

    Wu & He 2018, without the learned scale and shift. Parts are consecutive numbers; scattering
    puts a path's pixels one after another, so 27 groups of its 81 paths hold 3 paths each. A record
    of d numbers is then about √d long, whatever its contrast, which is what clipped gradients like
    (Tramèr & Boneh 2021, Section 2.2).

    >>> GroupNorm(groups=2).transform(np.array([[1.0, 3.0, 10.0, 50.0]])).round(3)
    array([[-1.,  1., -1.,  1.]], dtype=float32)

    Guarantees:
        Nothing is fitted: a record's features depend on it alone, bit for bit.
    """

    def __init__(self, *, groups: int) -> None:
        if type(groups) is not int or groups < 1:
            raise InvalidInput(f"groups is {groups!r}; groupnorm needs a whole number from 1")
        self.groups = groups

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        width = math.prod(X.shape[1:])
        if width == 0 or width % self.groups:
            raise InvalidInput(
                f"records of {width} numbers cannot be cut into {self.groups} groups of equal "
                "length; choose groups that divide their number"
            )
        parts = flat(np.asarray(X, dtype=np.float64)).reshape(
            len(X), self.groups, width // self.groups
        )
        parts = parts - parts.mean(axis=2, keepdims=True)
        parts /= np.sqrt(np.square(parts).mean(axis=2, keepdims=True) + _STABILITY)
        features: NDArray[np.float32] = parts.reshape(X.shape).astype(np.float32)
        return features
