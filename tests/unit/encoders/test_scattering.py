"""Scattering: equal to the direct sums, stable, and blind to the neighbours of a record."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from pate.encoders.scattering import Scattering
from pate.errors import InvalidInput


def _direct():
    spec = importlib.util.spec_from_file_location("direct", Path(__file__).parent / "direct.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


direct = _direct()


def pictures(count, *shape, seed=0):
    return np.random.default_rng(seed).random((count, *shape), dtype=np.float32)


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((28, 28), {}),
        ((8, 8), {}),
        ((9, 14), {"L": 4}),
        ((4, 5), {"L": 3, "order": 1}),
        ((16, 11), {"J": 3, "L": 3}),
        ((6, 6), {"J": 1, "L": 2}),
    ],
)
@pytest.mark.sample(1)
def test_it_equals_the_direct_sums(shape, settings):
    images = pictures(1, *shape) - np.float32(0.3)
    encoder = Scattering(**settings)
    got = encoder.transform(images)
    for image, row in zip(images, got, strict=True):
        expected = direct.scattering(image, **settings)
        assert encoder.paths == len(expected)
        # seven digits of single precision, after sums of about a hundred numbers of size one
        np.testing.assert_allclose(row.reshape(expected.shape), expected, rtol=0, atol=2e-6)
        assert abs(expected).max() > 0.1


@pytest.mark.campaign
def test_large_images_take_the_other_way_to_average():
    """Where one dense matrix would be too large, two thin ones give the same."""
    image = pictures(1, 60, 52)
    encoder = Scattering(L=4, order=1)
    expected = direct.scattering(image[0], L=4, order=1)
    got = encoder.transform(image).reshape(expected.shape)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)


def test_shape_and_order_of_channels():
    images = pictures(5, 28, 28, 3)
    encoder = Scattering()
    together = encoder.transform(images)
    assert together.shape == (5, 3 * 81 * 7 * 7)
    assert together.dtype == np.float32
    one_by_one = [encoder.transform(images[..., channel]) for channel in range(3)]
    assert np.array_equal(together, np.concatenate(one_by_one, axis=1))
    assert encoder.transform(images[:0]).shape == (0, 3 * 81 * 7 * 7)
    assert Scattering(order=1).transform(images[..., 0]).shape == (5, 17 * 49)


def test_other_records_change_nothing():
    """Bit for bit: alone, among others, and on any number of threads."""
    encoder = Scattering()
    images = pictures(70, 12, 12)
    together = encoder.transform(images)
    for row in (0, 32, 64):  # the first of a block, as it is alone
        assert np.array_equal(encoder.transform(images[row : row + 1])[0], together[row])
    others = np.concatenate([images[:5], 100 * pictures(65, 12, 12, seed=1)])
    assert np.array_equal(encoder.transform(others)[:5], together[:5])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert np.array_equal(encoder.transform(images), together)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_a_moved_image_has_nearly_the_same_features():
    """One pixel to the side: the image changes a lot, its scattering much less."""
    smooth = np.zeros((1, 40, 40), dtype=np.float32)
    smooth[0, 12:28, 12:28] = pictures(1, 16, 16)[0]
    moved = np.roll(smooth, 1, axis=2)

    def change(a, b):
        return float(np.linalg.norm(a - b) / np.linalg.norm(a))

    pixels = change(smooth, moved)
    stable = {J: change(*map(Scattering(J=J).transform, (smooth, moved))) for J in (1, 2, 3)}
    assert pixels > 0.5
    assert stable[3] < stable[2] < stable[1] < pixels
    assert stable[2] < 0.3
    assert stable[3] < 0.15


def test_energy_decays_and_never_grows():
    """The filter bank is a contraction: no path adds energy, and deeper paths hold less."""
    images = pictures(4, 28, 28)
    features = Scattering().transform(images).reshape(4, 81, 49).astype(np.float64)
    energy = [float((features[:, a:b] ** 2).sum()) for a, b in ((0, 1), (1, 17), (17, 81))]
    assert energy[0] > energy[1] > energy[2] > 0
    assert sum(energy) * 16 < float((images.astype(np.float64) ** 2).sum()) * 36**2 / 28**2
    flat = Scattering().transform(np.full((1, 28, 28), 0.5, dtype=np.float32)).reshape(81, 49)
    np.testing.assert_allclose(flat[0], 0.5, rtol=1e-6)
    np.testing.assert_allclose(flat[1:], 0, rtol=0, atol=1e-6)


def test_an_edge_answers_to_its_own_angle():
    """Stripes across the first axis excite the wavelet that waves along it most."""
    stripes = np.cos(0.75 * np.pi * np.arange(28, dtype=np.float32))[:, None] * np.ones((1, 28))
    first = Scattering(order=1).transform(stripes[None].astype(np.float32)).reshape(17, 49)
    assert int(first[1:].mean(axis=1).argmax()) == 0
    turned = Scattering(order=1).transform(stripes.T[None].astype(np.float32)).reshape(17, 49)
    assert int(turned[1:].mean(axis=1).argmax()) == 4


def test_memory_maps_and_other_types(tmp_path):
    images = (pictures(40, 8, 8) * 255).astype(np.uint8)
    np.save(tmp_path / "x.npy", images)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = Scattering().transform(images.astype(np.float32))
    assert np.array_equal(Scattering().transform(mapped), expected)
    assert np.array_equal(Scattering().transform(images.astype(np.float64)), expected)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 784), "these records have shape .784,."),
        ((3, 2, 2, 2, 2), "needs images"),
        ((3, 3, 28), "images of 3 x 28 pixels are too small .* J = 2"),
    ],
)
def test_what_is_no_image_is_refused(shape, message):
    with pytest.raises(InvalidInput, match=message):
        Scattering().transform(np.zeros(shape, dtype=np.float32))
