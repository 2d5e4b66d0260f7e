"""Elementary functions where the textbook form cancels or overflows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_LOG_2 = float(np.log(2.0))


def log1mexp(x: FloatArray) -> FloatArray:
    """log(1 − eˣ) for x < 0, to full relative accuracy (Mächler 2012).

    >>> bool(log1mexp(np.array([-1e-20]))[0] == np.log(1e-20))
    True
    """
    with np.errstate(divide="ignore"):
        near = np.log(-np.expm1(np.maximum(x, -_LOG_2)))
        far = np.log1p(-np.exp(np.minimum(x, -_LOG_2)))
    return np.where(x > -_LOG_2, near, far)


def exp_excess(x: FloatArray) -> FloatArray:
    """eˣ − 1 − x, which is never negative, to full relative accuracy for |x| ≤ 1 too.

    >>> bool(np.isclose(exp_excess(np.array([1e-9]))[0], 5e-19, rtol=1e-8))
    True
    """
    small = np.clip(x, -1.0, 1.0)
    series = np.zeros_like(small)
    for n in range(20, 2, -1):  # Horner on x²/2! + x³/3! + …; the tail is below 1e-19
        series = (series + 1.0) * small / n
    with np.errstate(over="ignore"):
        return np.where(np.abs(x) <= 1.0, (series + 1.0) * small**2 / 2, np.expm1(x) - x)
