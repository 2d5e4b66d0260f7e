"""Second-order wavelet scattering: fixed features of images, fitted on no data.

An image x is filtered by Morlet wavelets, the modulus is taken, and a Gaussian averages the result
over 2^J pixels; the moduli are filtered once more and treated in the same way (Mallat 2012; Bruna
and Mallat 2013; Oyallon and Mallat 2015):

    x ∗ φ,     |x ∗ ψ₁| ∗ φ,     ||x ∗ ψ₁| ∗ ψ₂| ∗ φ

The mother wavelet is ψ(u) = (exp(iξu₁) − β) exp(−(u₁² + s²u₂²)/2σ²) with σ = 0.8, ξ = 3π/4 and the
slant s = 4/L; β makes its mean zero. ψ_{j,l} is ψ rotated by lπ/L and dilated 2^j times, and the
low-pass φ is a Gaussian of standard deviation 0.8 · 2^(J−1) (Bruna and Mallat 2013, section 2).

The wavelets are applied in the Fourier domain. A band of scale j is kept at every 2^j-th pixel,
which in the Fourier domain is a sum of blocks before the inverse transform, and the Gaussian, being
a product of two, is a matrix on either side.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.encoders.step import Step
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor


_BLOCK = 32  # images of one channel that go through together: what they need stays in the cache
_MOST_NUMBERS = 2**23  # complex numbers of one step of one block, for large images
_DENSE = 2**17  # entries up to which both Gaussians are one matrix


class Scattering(Step):
    """Scattering coefficients of (n, h, w) or (n, h, w, channels) images, as (n, d) float32.

    A record's numbers are in the order channel, path, row, column. Paths come as: the average; then
    first order by scale j₁ and angle l₁; then second order by (j₁, l₁) and, within, (j₂, l₂) with
    j₂ > j₁. Rows and columns are every 2^J-th of the image, ⌈h/2^J⌉ × ⌈w/2^J⌉.

    >>> encoder = Scattering()
    >>> encoder.paths, encoder.transform(np.zeros((2, 28, 28))).shape  # 81 x 7 x 7
    (81, (2, 3969))

    Guarantees:
        Nothing is fitted, and a record's features come from its own pixels alone. Blocks always
        have the same shape, so other records cannot even change the rounding; a record's place in
        its block is all that the last bits may depend on.
    """

    def __init__(self, *, J: int = 2, L: int = 8, order: int = 2) -> None:
        self.J, self.L, self.order = J, L, order

    @property
    def paths(self) -> int:
        """The number of coefficients for each kept pixel of a channel."""
        pairs = self.J * (self.J - 1) // 2 if self.order == 2 else 0
        return 1 + self.J * self.L + pairs * self.L**2

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        images = self._images(X)
        records, height, width, channels = images.shape
        plan = _Plan.of(height, width, J=self.J, L=self.L, order=self.order)
        out = np.empty((records, channels, self.paths, *plan.kept), dtype=np.float32)

        def fill(place: tuple[int, int]) -> None:
            start, channel = place
            some = np.asarray(images[start : start + plan.block, ..., channel], dtype=np.float32)
            out[start : start + plan.block, channel] = plan.scattered(some)

        starts = range(0, records, plan.block)
        _in_threads(fill, [(start, channel) for start in starts for channel in range(channels)])
        return out.reshape(records, math.prod(out.shape[1:]))

    def _images(self, X: NDArray[Any]) -> NDArray[Any]:
        if X.ndim == 3:
            X = X[..., np.newaxis]
        if X.ndim != 4:
            raise InvalidInput(
                f"scattering needs images (n, height, width) or (n, height, width, channels), and "
                f"these records have shape {X.shape[1:]}; put it before every step that flattens, "
                "or leave it out"
            )
        if min(X.shape[1:3]) < 2**self.J:
            raise InvalidInput(
                f"images of {X.shape[1]} x {X.shape[2]} pixels are too small for scattering with "
                f"J = {self.J}, which averages over {2**self.J} pixels; lower J"
            )
        return X


def _in_threads(work: Callable[[tuple[int, int]], None], places: list[tuple[int, int]]) -> None:
    """Run blocks in parallel, each on one thread: results do not depend on the thread count."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(work, places):  # also raises what a block raised
                pass
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The padding, wavelets and averages for one image size."""

    rows: NDArray[np.int64]  # where each row of the padded image comes from
    columns: NDArray[np.int64]
    padded: tuple[int, int]
    kept: tuple[int, int]
    block: int
    scales: int
    angles: int
    order: int
    wavelets: dict[tuple[int, int], Tensor]  # at which resolution, and of which scale
    averages: dict[int, tuple[Tensor, ...]]  # at which resolution

    @classmethod
    @functools.lru_cache(maxsize=4)
    def of(cls, height: int, width: int, *, J: int, L: int, order: int) -> _Plan:
        import torch

        step = 2**J
        kept = -(-height // step), -(-width // step)
        # A margin of one averaged pixel on every side; whole multiples can be kept at all scales.
        tall, wide = (count * step + 2 * step for count in kept)
        spectra = {
            j: np.stack(
                [
                    np.fft.fft2(morlet(tall, wide, scale=j, angle=angle, angles=L)).real
                    for angle in range(L)
                ]
            )
            for j in range(J)
        }
        pairs = [(0, j) for j in range(J)]
        pairs += [(i, j) for i in range(1, J) for j in range(i + 1, J) if order == 2]
        wavelets = {}
        for i, j in pairs:
            # Seen at every 2^i-th pixel, the spectrum repeats: blocks add up. Each block of what is
            # left is one part of the sum that keeps every 2^(j-i)-th pixel of the answer.
            blocks = _blocks(_blocks(spectra[j], 2**i).sum(axis=-3), 2 ** (j - i))
            blocks = np.moveaxis(blocks, -3, 0) / 4 ** (j - i)
            flat = blocks.reshape(*blocks.shape[:2], -1)
            wavelets[i, j] = torch.from_numpy(np.repeat(flat, 2, axis=-1).astype(np.float32))
        averages = {}
        for i in range(J):
            down = _average(tall, kept[0], J=J, resolution=i)
            across = _average(wide, kept[1], J=J, resolution=i)
            dense = down.size * across.size <= _DENSE
            both = (np.kron(down, across).T,) if dense else (down, across.T)
            averages[i] = tuple(torch.from_numpy(m.astype(np.float32)) for m in both)
        most = tall * wide * L * max(L // 4, 1)
        return cls(
            rows=_reflected(height, tall, step),
            columns=_reflected(width, wide, step),
            padded=(tall, wide),
            kept=kept,
            block=max(1, min(_BLOCK, _MOST_NUMBERS // most)),
            scales=J,
            angles=L,
            order=order,
            wavelets=wavelets,
            averages=averages,
        )

    def scattered(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the coefficients of at most a block of images, padded with black ones."""
        import torch

        block = torch.zeros((self.block, *self.padded))
        block[: len(images)] = torch.from_numpy(images[:, self.rows][:, :, self.columns])
        with torch.inference_mode():
            features: NDArray[np.float32] = self._scatter(block)[: len(images)].numpy()
        return features

    def _scatter(self, images: Tensor) -> Tensor:
        """Return the coefficients (n, paths, rows, columns) of padded images."""
        import torch

        count, angles, kept = len(images), self.angles, self.kept
        first, second = [self._averaged(images.unsqueeze(1), 0)], []
        spectrum = torch.fft.fft2(images)
        for i in range(self.scales):
            moduli = self._filtered(spectrum, 0, i)
            first.append(self._averaged(moduli, i))
            if self.order == 2 and i + 1 < self.scales:
                inner = torch.fft.fft2(moduli.flatten(0, 1))
                deeper = [
                    self._averaged(self._filtered(inner, i, j), j).view(count, angles, -1, *kept)
                    for j in range(i + 1, self.scales)
                ]
                second.append(torch.cat(deeper, dim=2).flatten(1, 2))
        return torch.cat(first + second, dim=1)

    def _filtered(self, spectrum: Tensor, i: int, j: int) -> Tensor:
        """Return |u ∗ ψ_{j,l}| for every angle l, of a u at resolution i, at resolution j."""
        import torch

        wavelets = self.wavelets[i, j]
        tall, wide = (side >> j for side in self.padded)
        ratio = 2 ** (j - i)
        count = spectrum.shape[0]
        # Real spectra of wavelets times complex spectra of images: pairs of real numbers.
        parts = torch.view_as_real(spectrum.view(count, ratio, tall, ratio, wide))
        parts = parts.movedim(3, 2).reshape(count, ratio**2, 1, -1)
        product = parts[:, 0] * wavelets[0]
        for block in range(1, ratio**2):
            product.addcmul_(parts[:, block], wavelets[block])
        bands = torch.view_as_complex(product.view(count, self.angles, tall, wide, 2))
        answer = torch.view_as_real(torch.fft.ifft2(bands))
        modulus = answer[..., 0].square()
        return modulus.addcmul_(answer[..., 1], answer[..., 1]).sqrt_()

    def _averaged(self, values: Tensor, i: int) -> Tensor:
        """Return u ∗ φ at every 2^J-th pixel, of a u (n, paths, rows, columns) at resolution i."""
        import torch

        average = self.averages[i]
        if len(average) == 1:
            return (values.flatten(2) @ average[0]).view(*values.shape[:2], *self.kept)
        return torch.matmul(average[0], values @ average[1])


def _blocks(spectrum: NDArray[np.float64], ratio: int) -> NDArray[np.float64]:
    """Cut (…, height, width) into blocks: (…, ratio², height / ratio, width / ratio)."""
    *head, height, width = spectrum.shape
    tall, wide = height // ratio, width // ratio
    cut = spectrum.reshape(*head, ratio, tall, ratio, wide)
    return np.moveaxis(cut, -2, -3).reshape(*head, ratio**2, tall, wide)


def _average(length: int, kept: int, *, J: int, resolution: int) -> NDArray[np.float64]:
    """Return the matrix that averages one axis at a resolution, and keeps the image's pixels."""
    phi = gaussian(length, scale=J) * 2**resolution
    centres = (np.arange(kept) + 1) * 2**J  # one averaged pixel of margin comes first
    places = np.arange(0, length, 2**resolution)
    matrix: NDArray[np.float64] = phi[(centres[:, None] - places[None, :]) % length]
    return matrix


def _reflected(length: int, padded: int, before: int) -> NDArray[np.int64]:
    """Return the source pixel of each padded one, reflected at the first and the last pixel.

    >>> _reflected(3, 8, 2).tolist()
    [2, 1, 0, 1, 2, 1, 0, 1]
    """
    period = max(2 * length - 2, 1)
    place = (np.arange(padded) - before) % period
    return np.minimum(place, period - place).astype(np.int64) if length > 1 else place * 0


SIGMA = 0.8  # of the mother wavelet, in pixels
XI = 3 * math.pi / 4  # its frequency, in radians per pixel
_REACH = 9.0  # standard deviations beyond which a Gaussian is negligible: exp(-40) is below 1e-17


def morlet(
    height: int, width: int, *, scale: int, angle: int, angles: int
) -> NDArray[np.complex128]:
    """Return ψ_{j,l} on a periodic grid, centred at the first pixel.

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
    """Return φ along one axis of a periodic grid, centred at 0, of sum 1; φ is a product of two.

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
    """Return the positions 0 … length − 1, shifted by every period that still matters."""
    most = math.ceil(_REACH * sigma / length) + 1
    places = np.arange(length, dtype=np.float64)
    return [places + length * period for period in range(-most, most + 1)]
