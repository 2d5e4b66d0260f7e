"""Scattering by sums over pixels in double precision: slow, and easy to check by eye."""

from __future__ import annotations

import math

import numpy as np


def mother(u, v, *, scale, angle, angles):
    """The Morlet wavelet's bell, and its bell times its wave, at points of the plane."""
    sigma, slant = 0.8 * 2**scale, 4 / angles
    turn = math.pi * angle / angles
    along = u * math.cos(turn) + v * math.sin(turn)
    across = v * math.cos(turn) - u * math.sin(turn)
    bell = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    return bell, bell * np.exp(1j * 0.75 * math.pi / 2**scale * along)


def wavelet(height, width, *, scale, angle, angles):
    """The wavelet on a torus of pixels: every point is the sum of its images in the plane."""
    u, v = (np.arange(side) for side in (height, width))
    bells, waves = 0.0, 0.0
    for up in range(-4, 5):
        for over in range(-4, 5):
            bell, wave = mother(
                u[:, None] + up * height, v[None, :] + over * width,
                scale=scale, angle=angle, angles=angles,
            )  # fmt: skip
            bells, waves = bells + bell, waves + wave
    size = 2 * math.pi * (0.8 * 2**scale) ** 2 / (4 / angles)
    return (waves - waves.sum() / bells.sum() * bells) / size


def low_pass(height, width, *, scale):
    sigma = 0.8 * 2 ** (scale - 1)

    def bell(length):
        at = np.arange(length)[:, None] + length * np.arange(-4, 5)[None, :]
        return np.exp(-(at**2) / (2 * sigma**2)).sum(axis=1)

    both = np.outer(bell(height), bell(width))
    return both / both.sum()


def convolved(image, kernel):
    """The circular convolution, one pixel of the kernel at a time."""
    total = np.zeros(image.shape, dtype=complex)
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            total += kernel[row, column] * np.roll(image, (row, column), axis=(0, 1))
    return total


def scattering(image, *, J=2, L=8, order=2, filters=None):
    """All paths of one image of one channel, (paths, rows, columns)."""
    step = 2**J
    kept = [math.ceil(side / step) for side in image.shape]
    tall, wide = ((count + 2) * step for count in kept)
    margins = [
        (step, total - step - side) for side, total in zip(image.shape, (tall, wide), strict=True)
    ]
    padded = np.pad(image.astype(float), margins, mode="reflect")
    psi, phi = filters or made_filters(tall, wide, J=J, L=L)

    def seen(filter_, i):  # at every 2^i-th pixel, with the weight of those left out
        return filter_[:: 2**i, :: 2**i] * 4**i

    def averaged(u, i):
        every = 2 ** (J - i)
        return convolved(u, seen(phi, i)).real[::every, ::every][1 : 1 + kept[0], 1 : 1 + kept[1]]

    zeroth, first, second = [averaged(padded, 0)], [], []
    for i in range(J):
        for angle in range(L):
            u = np.abs(convolved(padded, psi[i, angle]))[:: 2**i, :: 2**i]
            first.append(averaged(u, i))
            for j in range(i + 1, J if order == 2 else 0):
                for other in range(L):
                    every = 2 ** (j - i)
                    v = np.abs(convolved(u, seen(psi[j, other], i)))[::every, ::every]
                    second.append(averaged(v, j))
    return np.stack(zeroth + first + second)


def made_filters(tall, wide, *, J, L):
    psi = {
        (j, angle): wavelet(tall, wide, scale=j, angle=angle, angles=L)
        for j in range(J)
        for angle in range(L)
    }
    return psi, low_pass(tall, wide, scale=J)
