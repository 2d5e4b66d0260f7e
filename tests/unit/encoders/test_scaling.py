"""Scaling and principal components: exact, stable, and of public inputs alone."""

from __future__ import annotations

import numpy as np
import pytest

from pate.encoders.reduction import PCA
from pate.encoders.scaling import Normalise, Standardise
from pate.errors import InvalidInput


def numbers(rows=300, columns=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)) @ rng.normal(size=(columns, columns)) + 3


def test_standardise_gives_mean_zero_and_scale_one():
    X = numbers() * np.array([1e-3, 1, 1e3, 5, 6, 7, 8])
    step = Standardise()
    step.fit(X)
    features = step.transform(X).astype(np.float64)
    np.testing.assert_allclose(features.mean(axis=0), 0, rtol=0, atol=1e-5)
    np.testing.assert_allclose(features.std(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(features, (X - X.mean(axis=0)) / X.std(axis=0), rtol=0, atol=1e-5)


def test_a_constant_number_has_scale_one():
    X = np.stack([np.full(1000, 0.1), np.zeros(1000), np.arange(1000.0)], axis=1)
    step = Standardise()
    assert X[:, 0].std() > 0  # by rounding alone
    step.fit(X)
    assert step.scale[:2].tolist() == [1, 1]
    assert step.transform(np.array([[1.1, 2.0, 0.0]]))[0, :2] == pytest.approx([1.0, 2.0])


def test_the_floor_holds_back_numbers_that_hardly_vary():
    X = numbers(columns=5)
    X[:, 0] = 0.0
    X[0, 0] = 1e-4  # one public input differs by next to nothing
    free, held = Standardise(), Standardise(floor=0.1)
    for step in (free, held):
        step.fit(X)
    one = np.ones((1, 5))
    assert abs(free.transform(one)[0, 0]) > 1e4
    scales = X.std(axis=0)
    assert held.scale[0] == pytest.approx(0.1 * np.median(scales))
    assert held.scale[1:] == pytest.approx(scales[1:])
    held.fit(np.concatenate([X, np.zeros((len(X), 20))], axis=1))  # constants have no say
    assert held.scale[0] == pytest.approx(0.1 * np.median(scales))


def test_standardise_keeps_shapes():
    X = numbers(40, 12).reshape(40, 3, 4)
    step = Standardise()
    step.fit(X)
    assert step.transform(X).shape == (40, 3, 4)
    assert step.mean.shape == (3, 4)


def test_records_of_length_one():
    some = numbers() / np.abs(numbers()).max()
    X = np.concatenate([some, 1e-36 * some, 3e38 * some]).astype(np.float32)
    X[7] = 0
    features = Normalise().transform(X)
    norms = np.linalg.norm(features.astype(np.float64), axis=1)
    assert norms[7] == 0
    np.testing.assert_allclose(np.delete(norms, 7), 1, rtol=1e-6)
    cosine = (features[3] @ X[3]) / np.linalg.norm(X[3])
    assert cosine == pytest.approx(1, abs=1e-6)
    images = Normalise().transform(X.reshape(-1, 7, 1))
    assert np.array_equal(images.reshape(features.shape), features)


@pytest.mark.parametrize(("rows", "columns"), [(300, 7), (6, 40), (9, 9)])
def test_components_are_those_of_the_singular_value_decomposition(rows, columns):
    X = numbers(rows, columns)
    step = PCA(dimension=4)
    step.fit(X)
    centred = X - X.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(step.variances, sizes[:4] ** 2 / rows, rtol=1e-9)
    for component, axis in zip(step.components.T, axes, strict=False):
        assert abs(component @ axis) == pytest.approx(1, abs=1e-6)
        assert component[np.abs(component).argmax()] > 0
    np.testing.assert_allclose(
        step.transform(X), centred @ step.components, rtol=0, atol=1e-4 * sizes[0]
    )
    assert step.transform(X).dtype == np.float32


@pytest.mark.parametrize(("rows", "columns"), [(300, 7), (6, 40)])
@pytest.mark.parametrize("whiten", [0.0, 0.5, 1.0])
def test_whitening_by_degrees(rows, columns, whiten):
    X = numbers(rows, columns)
    step = PCA(dimension=4, whiten=whiten)
    step.fit(X)
    variances = step.transform(X).astype(np.float64).var(axis=0)
    np.testing.assert_allclose(variances, step.variances ** (1 - whiten), rtol=1e-4)


def test_all_components_where_nothing_varies_any_more():
    """As many components as inputs: centred inputs vary in one direction less."""
    X = numbers(5, 12)
    step = PCA(dimension=5)
    step.fit(X)
    np.testing.assert_allclose(step.components.T @ step.components, np.eye(5), atol=1e-6)
    with pytest.raises(InvalidInput, match="vary in 4 directions only"):
        PCA(dimension=5, whiten=1.0).fit(X)
    for same in (np.ones((5, 12)), np.ones((12, 5))):
        with pytest.raises(InvalidInput, match="vary in 0 directions only"):
            PCA(dimension=1, whiten=0.5).fit(same)


@pytest.mark.parametrize(("rows", "columns"), [(300, 7), (7, 300)])
def test_more_components_than_there_are(rows, columns):
    with pytest.raises(InvalidInput, match=r"dimension is 8, and .* have at most 7 components"):
        PCA(dimension=8).fit(numbers(rows, columns))


@pytest.mark.parametrize("make", [Standardise, lambda: PCA(dimension=3, whiten=1.0)])
def test_fitting_twice_gives_the_same_bytes(make, tmp_path):
    X = numbers()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        step = make()
        step.fit(X)
        step.save(tmp_path / name)
    one, two = ((tmp_path / name / "arrays.npz").read_bytes() for name in ("one", "two"))
    assert one == two
    fresh = make()
    fresh.load(tmp_path / "one")
    assert np.array_equal(fresh.transform(X), step.transform(X))


@pytest.mark.parametrize("make", [Standardise, Normalise, lambda: PCA(dimension=3)])
def test_other_records_change_nothing(make):
    X = numbers()
    step = make()
    step.fit(X)
    together = step.transform(X)
    for row in (0, 64, 128):  # the first of a product, as it is alone
        assert np.array_equal(step.transform(X[row : row + 1])[0], together[row])
    others = np.concatenate([X[:5], 1e3 * numbers(200, seed=1)])
    assert np.array_equal(step.transform(others)[:5], together[:5])


@pytest.mark.parametrize("make", [Standardise, lambda: PCA(dimension=3), lambda: PCA(dimension=9)])
def test_a_memory_map_is_read_in_parts(make, tmp_path, monkeypatch):
    X = numbers(200, 9)
    np.save(tmp_path / "x.npy", X)
    whole, parts = make(), make()
    whole.fit(X)
    monkeypatch.setattr("pate.encoders.step._MOST_NUMBERS", 9 * 16)
    parts.fit(np.load(tmp_path / "x.npy", mmap_mode="r"))
    np.testing.assert_allclose(parts.transform(X), whole.transform(X), rtol=0, atol=1e-4)
