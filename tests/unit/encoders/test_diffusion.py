"""Diffusion maps: coordinates of a walk over public inputs."""

from __future__ import annotations

import numpy as np
import pytest

from pate.encoders.chain import fit_encoder, load_encoder, save_encoder
from pate.encoders.reduction import Diffusion
from pate.encoders.scaling import Standardise
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput


def rings(seed, count=150):
    """Two arms that bend round each other: no straight line parts them."""
    rng = np.random.default_rng(seed)
    along = rng.uniform(0.2, 1.0, size=(2, count))
    angle = along * 2.5 + np.array([[0.0], [np.pi]])
    points = np.stack([along * np.cos(angle), along * np.sin(angle)], axis=-1)
    points += rng.normal(scale=0.02, size=points.shape)
    # A third number, so that directions tell distances too.
    points = np.concatenate([points, np.ones((2, count, 1))], axis=-1)
    return points.reshape(-1, 3), np.repeat([0, 1], count)


def test_it_is_the_walks_own_map():
    """Against the whole matrix of the walk, worked out densely."""
    public, _ = rings(0, 40)
    step = Diffusion(dimension=5, neighbours=6, time=3.0)
    step.fit(public)
    unit = public / np.linalg.norm(public, axis=1, keepdims=True)
    gaps = 2 - 2 * unit @ unit.T
    np.fill_diagonal(gaps, np.inf)
    order = np.argsort(gaps, axis=1)[:, :6]
    reach = np.sqrt(np.take_along_axis(gaps, order[:, -1:], axis=1)).ravel()
    near = np.zeros(gaps.shape, dtype=bool)
    np.put_along_axis(near, order, True, axis=1)
    weights = np.where(near | near.T, np.exp(-gaps / np.outer(reach, reach)), 0.0)
    walk = weights / weights.sum(axis=1, keepdims=True)
    # Eigenvectors of the walk itself: each coordinate is stretched by its eigenvalue.
    coordinates = step.coordinates.astype(np.float64)
    values = np.sort(np.linalg.eigvals(walk).real)[::-1][:5]
    assert np.allclose(walk @ coordinates, coordinates * values, atol=1e-4)
    # Of mean square one under the walk's own weights, times eigenvalue to the power time − 1.
    share = weights.sum(axis=1) / weights.sum()
    assert np.allclose((share[:, None] * coordinates**2).sum(axis=0), values**4, atol=1e-4)


def test_few_labels_are_enough_where_public_inputs_show_the_shape():
    public, _ = rings(1)
    private, labels = rings(2)
    step = Diffusion(dimension=4, neighbours=6, time=1000.0)
    step.fit(public)

    def right(features):
        first = np.array([0, len(labels) // 2])  # one labelled record of each arm
        gaps = ((features[:, None] - features[first]) ** 2).sum(axis=-1)
        return (gaps.argmin(axis=1) == labels).mean()

    assert right(step.transform(private)) > 0.97
    assert right(private) < 0.9


def test_other_records_change_not_one_bit():
    public, _ = rings(3)
    private, _ = rings(4)
    step = Diffusion(dimension=6)
    step.fit(public)
    alone = step.transform(private[:40])
    other = private.copy()
    other[40:] += 1.0
    assert np.array_equal(step.transform(other)[:40], alone)


def test_it_is_the_same_every_time_and_after_loading(tmp_path):
    public, _ = rings(5)
    spec = EncoderSpec(steps=["root", "standardise", {"name": "diffusion", "dimension": 5}])
    one, two = fit_encoder(spec, public), fit_encoder(spec, public)
    assert np.array_equal(one.transform(public), two.transform(public))
    save_encoder(one, tmp_path)
    assert np.array_equal(load_encoder(spec, tmp_path).transform(public), one.transform(public))


def test_doubles_and_zeros_are_points_like_others():
    public, _ = rings(6, 30)
    public[:10] = public[0]
    public[10] = 0.0
    step = Diffusion(dimension=3, neighbours=4)
    step.fit(public)
    assert np.isfinite(step.transform(public)).all()


def test_too_few_public_inputs_are_refused():
    with pytest.raises(InvalidInput, match="needs more than 20 public inputs; lower them"):
        Diffusion(dimension=19).fit(np.random.default_rng(0).normal(size=(20, 3)))


def test_groups_share_a_scale():
    step = Standardise(groups=2)
    step.fit(np.array([[0.0, 0.0, 0.0, 1.0], [2.0, 0.0, 4.0, 1.0]]))
    assert np.allclose(step.scale, [np.sqrt(0.5), np.sqrt(0.5), np.sqrt(2), np.sqrt(2)])
    with pytest.raises(InvalidInput, match="cannot be cut into 3 groups"):
        Standardise(groups=3).fit(np.zeros((2, 4)))
