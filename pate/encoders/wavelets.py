"""Morlet wavelets and the Gaussian that goes with them, on the grid of one image size.

The mother wavelet is ψ(u) = (exp(iξu₁) − β) exp(−(u₁² + s²u₂²)/2σ²) with σ = 0.8, ξ = 3π/4 and the
slant s = 4/L; β makes its mean zero. ψ_{j,l} is ψ turned by lπ/L and widened 2^j times, and the
low-pass φ is a Gaussian of standard deviation 0.8 · 2^(J−1) (Bruna and Mallat 2013, section 2).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

SIGMA = 0.8  # of the mother wavelet, in pixels
XI = 3 * math.pi / 4  # its frequency, in radians per pixel
_REACH = 9.0  # standard deviations after which a Gaussian counts as over: exp(-40) is below 1e-17


def morlet(
    height: int, width: int, *, scale: int, angle: int, angles: int
) -> NDArray[np.complex128]:
    """ψ_{j,l} on a periodic grid, its middle at the first pixel.

    >>> bool(abs(morlet(16, 16, scale=1, angle=3, angles=8).sum()) < 1e-12)
    True
    """
    sigma, slant = SIGMA * 2**scale, 4 / angles
    turn, frequency = math.pi * angle / angles, XI / 2**scale
    envelope = np.zeros((height, width))
    wave = np.zeros((height, width), dtype=np.complex128)
    longest = sigma / min(slant, 1.0)
    for rows in _periods(height, longest):
        for columns in _periods(width, longest):
            u, v = np.meshgrid(rows, columns, indexing="ij")
            along = u * math.cos(turn) + v * math.sin(turn)
            across = v * math.cos(turn) - u * math.sin(turn)
            bell = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
            envelope += bell
            wave += bell * np.exp(1j * frequency * along)
    size = 2 * math.pi * sigma**2 / slant
    psi: NDArray[np.complex128] = (wave - wave.sum() / envelope.sum() * envelope) / size
    return psi


def gaussian(length: int, *, scale: int) -> NDArray[np.float64]:
    """φ along one axis of a periodic grid, its middle first, its sum 1; φ is the product of two.

    >>> float(gaussian(16, scale=2).sum().round(12))
    1.0
    """
    sigma = SIGMA * 2 ** (scale - 1)
    bell = np.zeros(length)
    for places in _periods(length, sigma):
        bell += np.exp(-(places**2) / (2 * sigma**2))
    phi: NDArray[np.float64] = bell / bell.sum()
    return phi


def _periods(length: int, sigma: float) -> list[NDArray[np.float64]]:
    """The places 0 … length − 1, moved by every number of periods that still matters."""
    most = math.ceil(_REACH * sigma / length) + 1
    places = np.arange(length, dtype=np.float64)
    return [places + length * period for period in range(-most, most + 1)]
