"""Group normalisation: torch's own, without parameters; each record by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pate.encoders.chain import fit_encoder
from pate.encoders.scaling import GroupNorm
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput


def records(count, *shape):
    return (np.random.default_rng(5).random((count, *shape)) + 2).astype(np.float32)


@pytest.mark.parametrize("groups", [1, 3, 9])
def test_it_is_torchs(groups):
    X = records(4, 9, 5, 5)
    expected = torch.nn.functional.group_norm(torch.from_numpy(X), groups).numpy()
    for given in (X, X.reshape(4, 225)):
        found = GroupNorm(groups=groups).transform(given)
        assert found.dtype == np.float32
        assert found.shape == given.shape
        np.testing.assert_allclose(found.reshape(X.shape), expected, atol=2e-6)


def test_a_record_is_scaled_by_itself_alone():
    X = records(6, 12)
    step = GroupNorm(groups=4)
    together = step.transform(X)
    for row in range(6):
        assert np.array_equal(step.transform(X[row : row + 1])[0], together[row])
    X[1:] *= 100
    assert np.array_equal(step.transform(X)[0], together[0])


def test_a_flat_part_becomes_zeros():
    assert not GroupNorm(groups=2).transform(np.full((1, 4), 7.0)).any()
    assert GroupNorm(groups=2).transform(np.empty((0, 4))).shape == (0, 4)


def test_groups_divide_the_numbers():
    with pytest.raises(InvalidInput, match="records of 10 numbers cannot be cut into 4 groups"):
        GroupNorm(groups=4).transform(records(2, 10))


def test_after_scattering_each_group_of_paths_is_standard():
    spec = EncoderSpec(steps=["scattering", {"name": "groupnorm", "groups": 27}])
    made = fit_encoder(spec, records(1, 16, 16)).transform(records(3, 16, 16))
    parts = made.reshape(3, 27, 3 * 4 * 4)
    np.testing.assert_allclose(parts.mean(axis=2), 0, atol=1e-5)
    assert (parts.std(axis=2) <= 1).all()
    assert (parts.std(axis=2)[:, 0] > 0.99).all()
