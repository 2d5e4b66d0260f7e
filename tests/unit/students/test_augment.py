"""Augmentations keep shapes, follow their generator, and change every image in its own way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pate.errors import InvalidInput
from pate.students.augment import affine, make_augment, shift


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=6, *shape):
    size = shape or (16, 16)
    return torch.rand(n, *size, generator=seeded(9))


@pytest.mark.parametrize(
    "name", ["affine", "shift", "randaugment", "torchvision.transforms.v2:RandomHorizontalFlip"]
)
@pytest.mark.parametrize("shape", [(16, 16), (16, 20, 3)])
def test_same_generator_same_images(name, shape):
    change, before = make_augment(name, shape=shape), images(6, *shape)
    kept = before.clone()
    state = torch.random.get_rng_state()
    once, again, other = (change(before, seeded(s)) for s in (1, 1, 2))
    assert once.shape == before.shape
    assert once.dtype == before.dtype
    torch.testing.assert_close(once, again, rtol=0, atol=0)
    assert not torch.equal(once, other)
    torch.testing.assert_close(before, kept, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), state)  # torch's own generator is left alone


@pytest.mark.parametrize("name", ["affine", "shift", "randaugment"])
def test_each_image_changes_on_its_own(name):
    same = images(1).expand(8, 16, 16)
    changed = make_augment(name, shape=(16, 16))(same, seeded())
    assert len({tuple(each.flatten().tolist()) for each in changed}) > 4


def test_affine_without_room_is_the_identity():
    before = images(3, 9, 12)
    same = affine(before, seeded(), degrees=0, scale=0, shear=0, move=0)
    torch.testing.assert_close(same, before)


def test_affine_moves_but_keeps_what_there_is():
    """A blob in the middle stays whole: turned, scaled within 15 %, moved within 10 %."""
    blob = torch.zeros(200, 32, 32)
    blob[:, 12:20, 12:20] = 1
    moved = affine(blob, seeded())
    mass = moved.sum(dim=(1, 2)) / 64
    assert 0.7 < float(mass.min()) < 0.85
    assert 1.15 < float(mass.max()) < 1.45
    middle = (moved.sum(dim=2) * torch.arange(32)).sum(dim=1) / moved.sum(dim=(1, 2)) - 15.5
    assert 2.5 < float(middle.abs().max()) < 4.2


def test_shift_moves_whole_pixels():
    before = images(50, 20, 20)
    after = shift(before, seeded())
    found = set()
    for old, new in zip(before.numpy(), after.numpy(), strict=True):
        padded = np.pad(old, 2, mode="edge")
        found |= {
            (i, j)
            for i in range(5)
            for j in range(5)
            if np.array_equal(padded[i : i + 20, j : j + 20], new)
        }
    assert len(found) > 15


def test_a_transform_that_does_nothing():
    change = make_augment("torchvision.transforms.v2:Identity", shape=(16, 16))
    torch.testing.assert_close(change(images(), seeded()), images())


def test_own_function_of_a_batch(tmp_path):
    (tmp_path / "ours.py").write_text(
        "import torch\n"
        "def louder(batch, generator):\n"
        "    return batch + torch.rand(1, generator=generator)\n"
        "def shrinks(batch, generator):\n"
        "    return batch[:1]\n"
        "number = 3\n"
    )
    louder = make_augment("ours:louder", shape=(5,), plugin_path=tmp_path)
    ones = torch.ones(2, 5)
    torch.testing.assert_close(louder(ones, seeded()), 1 + torch.rand(1, generator=seeded()) * ones)
    with pytest.raises(InvalidInput, match="tensor of the same shape"):
        make_augment("ours:shrinks", shape=(5,), plugin_path=tmp_path)(ones, seeded())
    with pytest.raises(InvalidInput, match="not a function of a batch"):
        make_augment("ours:number", shape=(5,), plugin_path=tmp_path)


def test_names_that_do_not_fit():
    assert make_augment("none", shape=(8, 8)) is None
    assert make_augment("auto", shape=(8,)) is None
    assert make_augment("auto", shape=(8, 8)) is affine
    with pytest.raises(InvalidInput, match="is for images"):
        make_augment("affine", shape=(30,))
    with pytest.raises(InvalidInput, match="without arguments"):
        make_augment("torchvision.transforms.v2:Resize", shape=(8, 8))
