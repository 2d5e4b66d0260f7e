"""Private PCA: exact sums, bounded influence, one event; what is refused and what is kept."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dpsgd.pca as module
from dpsgd.pca import (
    LARGEST_WIDTH,
    SEEDED,
    PrivatePCA,
    _sum_of_products,
    _unit_rows,
    add_symmetric_noise,
)
from pate.accounting import Repeated, SampledGaussian, compose
from pate.accounting.calibrate import DpsgdAccountant, Method
from pate.accounting.guarantee import Conversion, Neighbours
from pate.accounting.loss_distributions import PLD_MARGIN
from pate.artifacts import StoreError
from pate.errors import InvalidInput

GRID = 2.0**-14
TINY = 1e-6  # of noise: directions are then those of the data


def records(count=400, width=12, seed=0):
    """Rows whose features have clearly different spreads."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)) * np.linspace(3.0, 0.2, width)


def matrix_of(rows, sample_rate=1.0, seed=0):
    rows = np.asarray(rows)
    return _sum_of_products(
        rows, rows.shape[1], sample_rate=sample_rate, generator=np.random.default_rng(seed)
    )


def one_by_one(rows):
    """Σ xxᵀ over rows of unit norm, in plain arithmetic."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for row in rows:
        norm = np.linalg.norm(row)
        if norm > 0:
            total += np.outer(row / norm, row / norm)
    return total


def spans_the_same(one, other, within):
    """Whether two sets of orthonormal columns span one subspace, to an angle."""
    cosines = np.linalg.svd(one.T @ other, compute_uv=False)
    return cosines.min() > np.cos(within)


# --- against brute force ------------------------------------------------------------------------


def test_the_matrix_is_the_sum_of_products_of_unit_rows():
    rows = records()
    rows[7] = 0
    found = matrix_of(rows)
    # A coordinate is cut by less than one step g, so |xᵢxⱼ| by less than g(|xᵢ| + |xⱼ|).
    sizes = np.abs(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)).sum(0)
    assert (np.abs(found - one_by_one(rows)) < GRID * (sizes[:, None] + sizes)).all()
    # And of the rows so cut the sum is exact: Python's whole numbers agree to the last bit.
    whole = [[int(x) for x in row] for row in _unit_rows(rows.copy())]
    for i, j in itertools.product(range(12), repeat=2):
        assert found[i, j] * 2**28 == sum(row[i] * row[j] for row in whole)


@pytest.mark.parametrize("dimension", [1, 5, 12])
def test_with_hardly_any_noise_components_are_the_eigenvectors(dimension):
    rows = records()
    values, vectors = np.linalg.eigh(one_by_one(rows))
    assert np.diff(values).min() > 0.4  # no two directions are alike
    found = PrivatePCA(dimension, noise_multiplier=TINY).fit(rows).components_
    assert found.shape == (12, dimension)
    assert found.dtype == np.float32
    assert found.T @ found == pytest.approx(np.eye(dimension), abs=1e-5)
    for column, expected in zip(found.T, vectors.T[::-1], strict=False):
        assert abs(column @ expected) == pytest.approx(1, abs=1e-4)
        assert column[np.abs(column).argmax()] > 0


def test_large_noise_drowns_the_directions():
    rows = records(count=8000)
    clear = PrivatePCA(3, noise_multiplier=TINY).fit(rows).components_
    mild = PrivatePCA(3, noise_multiplier=2.0).fit(rows, insecure_seed=1).components_
    drowned = PrivatePCA(3, noise_multiplier=1e5).fit(rows, insecure_seed=1).components_
    assert spans_the_same(clear, mild, within=0.3)
    assert not spans_the_same(clear, drowned, within=1.0)


def test_images_and_whole_numbers_and_maps_of_files_are_records(tmp_path):
    images = np.random.default_rng(1).integers(0, 256, size=(90, 4, 5), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    flat = images.reshape(90, 20).astype(np.float64)
    fits = [
        PrivatePCA(6, noise_multiplier=1.0).fit(X, insecure_seed=3)
        for X in (images, mapped, flat, flat.astype(np.float32))
    ]
    for pca in fits[1:]:
        assert np.array_equal(pca.components_, fits[0].components_)
    projected = fits[0].transform(mapped)
    assert projected.dtype == np.float32
    assert projected == pytest.approx(flat @ fits[0].components_, rel=1e-4, abs=1e-2)


def test_parts_and_order_change_nothing(monkeypatch):
    rows = records(width=13)
    whole = matrix_of(rows)
    expected = PrivatePCA(4, noise_multiplier=1.0, sample_rate=0.5).fit(rows, insecure_seed=2)
    projected = expected.transform(rows)
    monkeypatch.setattr(module, "_CHUNK", 7 * 13)
    assert np.array_equal(matrix_of(rows), whole)  # to the last bit
    assert np.array_equal(matrix_of(rows[::-1]), whole)
    again = PrivatePCA(4, noise_multiplier=1.0, sample_rate=0.5).fit(rows, insecure_seed=2)
    assert np.array_equal(again.components_, expected.components_)
    assert again.transform(rows) == pytest.approx(projected, rel=1e-5, abs=1e-5)


def test_projection_is_of_records_as_they_are():
    rows = records() * 40 + 3
    pca = PrivatePCA(3, noise_multiplier=1.0).fit(rows)
    assert pca.transform(rows) == pytest.approx(rows @ pca.components_, rel=1e-4, abs=1e-3)
    assert pca.transform(rows[:0]).shape == (0, 3)


# --- the influence of one record ----------------------------------------------------------------


def influence(rows, row):
    """‖change of the released triangle‖₂ when one record joins."""
    change = matrix_of(np.vstack([rows, row])) - matrix_of(rows)
    return np.linalg.norm(np.triu(change))


def test_no_record_changes_the_triangle_by_more_than_one():
    rng = np.random.default_rng(5)
    rows = records(width=6)
    found = []
    for _ in range(300):
        scale = 10.0 ** rng.uniform(-200, 200)
        found.append(influence(rows, rng.normal(size=6) * scale * (rng.random(6) < 0.6)))
    assert max(found) <= 1.0
    assert max(found) > 0.9
    for feature in range(6):  # the worst case: all on the diagonal, so nothing is left out
        assert influence(rows, np.eye(6)[feature] * 7) == 1.0
        assert influence(rows, -np.eye(6)[feature]) == 1.0


@settings(max_examples=200, deadline=None)
@given(arrays(np.float64, (1, 5), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_any_row_of_doubles_has_a_norm_of_at_most_one(row):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        units = _unit_rows(row.copy())
    assert np.array_equal(units, np.trunc(units))
    assert (units**2).sum() <= 1 << 28  # exact: whole numbers
    if np.isfinite(row).all() and np.any(row):
        assert (units**2).sum() > (1 - 10 * GRID) * (1 << 28)
    else:
        assert not units.any()


def test_wide_rows_stay_within_the_norm():
    """Where rounding of the norm adds up most."""
    rng = np.random.default_rng(6)
    for rows in (np.ones((3, LARGEST_WIDTH)), rng.normal(size=(20, LARGEST_WIDTH))):
        assert (_unit_rows(rows.copy()) ** 2).sum(axis=1).max() <= 1 << 28
    exact = np.zeros((1, LARGEST_WIDTH))
    exact[0, : 1 << 12] = 1 / 3  # 1/64 each: nothing is cut, and the norm is one
    assert (_unit_rows(exact) ** 2).sum() == 1 << 28


@pytest.mark.parametrize(
    "row", [1e300, 1e-310, np.nan, np.inf, -np.inf], ids=["huge", "tiny", "nan", "inf", "-inf"]
)
def test_one_strange_record_does_not_dominate(row):
    rows = records()
    strange = rows.copy()
    strange[11] = row
    clean = PrivatePCA(3, noise_multiplier=1.0).fit(rows, insecure_seed=4)
    dirty = PrivatePCA(3, noise_multiplier=1.0).fit(strange, insecure_seed=4)
    assert spans_the_same(clean.components_, dirty.components_, within=0.05)
    assert np.linalg.norm(np.triu(matrix_of(strange) - matrix_of(rows))) <= 2
    projected = dirty.transform(strange)
    others = np.arange(len(rows)) != 11
    assert projected[others] == pytest.approx(rows[others] @ dirty.components_, rel=1e-4, abs=1e-4)
    if not np.isfinite(row):
        assert not np.isfinite(projected[11]).all()
        missing = np.delete(rows, 11, axis=0)
        assert np.array_equal(matrix_of(strange), matrix_of(missing))


def test_no_records_at_all_give_pure_noise():
    pca = PrivatePCA(2, noise_multiplier=1.0).fit(np.empty((0, 5)))
    assert pca.components_.shape == (5, 2)
    assert np.isfinite(pca.components_).all()


# --- the sample ---------------------------------------------------------------------------------


def test_the_sample_is_poisson():
    """Row i has feature i alone, so the diagonal shows who was drawn.

    4000 records at rate 0.3, ten times: each count lies within 5 standard deviations of its mean
    (rates 2/3 and 3/2 as large lie 14 or more away), no two samples are alike, and they overlap
    as independent ones do.
    """
    width, rate = 400, 0.3
    rows = np.tile(np.eye(width), (10, 1))
    drawn = []
    for seed in range(10):
        matrix = matrix_of(rows, sample_rate=rate, seed=seed)
        assert np.array_equal(matrix, np.diag(np.diag(matrix)))
        drawn.append(np.diag(matrix))
        assert abs(drawn[-1].sum() - 1200) < 5 * np.sqrt(4000 * rate * (1 - rate))
        assert drawn[-1].var() == pytest.approx(10 * rate * (1 - rate), rel=0.4)
    for seed in range(1, 10):
        together = np.corrcoef(drawn[0], drawn[seed])[0, 1]
        assert abs(together) < 5 / np.sqrt(width)


def test_the_whole_is_taken_at_rate_one_and_a_part_below():
    rows = np.eye(200)
    assert np.array_equal(matrix_of(rows), np.eye(200))
    part = PrivatePCA(200, noise_multiplier=TINY, sample_rate=0.25)
    # Features of records in the sample come first; the others are ties at zero.
    first = np.abs(part.fit(rows, insecure_seed=8).components_[:, :30]) ** 2
    sample = np.diag(matrix_of(rows, sample_rate=0.25, seed=8)) > 0
    assert 20 < sample.sum() < 80
    assert first[~sample].sum() < 1e-6


# --- what it costs ------------------------------------------------------------------------------


def test_the_event_says_what_was_done():
    pca = PrivatePCA(2, noise_multiplier=7, sample_rate=0.5)
    done = SampledGaussian(sample_rate=0.5, noise_multiplier=7.0, public_rate=True)
    assert pca.events == (done,)
    assert PrivatePCA(2, noise_multiplier=7).events[0].sample_rate == 1
    assert pca.events[0].neighbours is Neighbours.ADD_REMOVE
    before = pca.events
    assert pca.fit(records()).events == before


def test_a_second_fit_is_refused():
    pca = PrivatePCA(2, noise_multiplier=7.0).fit(records())
    kept = pca.components_.copy()
    with pytest.raises(InvalidInput, match="costs again"):
        pca.fit(records())
    assert np.array_equal(pca.components_, kept)


def test_cost_adds_to_that_of_training_in_moments():
    """By hand: a Gaussian mechanism's log-moments λ(λ+1)/2σ² on top of those of the steps."""
    step = SampledGaussian(sample_rate=0.01, noise_multiplier=4.0)
    pca = PrivatePCA(60, noise_multiplier=7.0)
    steps = compose([Repeated(step, 1000)])
    lambdas = steps.moments
    total = steps.values + lambdas * (lambdas + 1) / (2 * 7.0**2)
    alphas = lambdas + 1
    by_hand = total / lambdas + np.log1p(-1 / alphas) - np.log(1e-5 * alphas) / lambdas
    found = compose([*pca.events, Repeated(step, 1000)]).guarantee(
        delta=1e-5, conversion=Conversion.IMPROVED
    )
    assert found.epsilon == pytest.approx(by_hand.min(), rel=1e-9)
    assert found.epsilon > steps.guarantee(delta=1e-5).epsilon + 0.05
    assert found.neighbours is Neighbours.ZERO_OUT  # that of the steps, whose rate is not public


@pytest.mark.parametrize("sample_rate", [1.0, 0.2])
def test_cost_adds_to_that_of_training_in_loss_distributions(sample_rate):
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    step = SampledGaussian(sample_rate=0.01, noise_multiplier=4.0)
    pca = PrivatePCA(60, noise_multiplier=7.0, sample_rate=sample_rate)
    peer = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    gaussian = dp_accounting.GaussianDpEvent
    first = gaussian(7.0)
    if sample_rate < 1:
        first = dp_accounting.PoissonSampledDpEvent(sample_rate, first)
    peer.compose(first)
    peer.compose(dp_accounting.PoissonSampledDpEvent(0.01, gaussian(4.0)), 1000)
    events = [*pca.events, Repeated(step, 1000)]
    found = DpsgdAccountant(delta=1e-5, method=Method.PLD).guarantee(events)
    assert found.epsilon == pytest.approx(peer.get_epsilon(1e-5) + PLD_MARGIN, rel=1e-6)
    for method in (Method.MOMENTS, Method.ABADI):
        assert DpsgdAccountant(delta=1e-5, method=method).epsilon(events) >= found.epsilon


# --- seeds, files, mistakes ---------------------------------------------------------------------


def test_a_seed_repeats_and_is_marked():
    rows = records()
    one, two = (PrivatePCA(3, noise_multiplier=1.0).fit(rows, insecure_seed=5) for _ in range(2))
    other = PrivatePCA(3, noise_multiplier=1.0).fit(rows, insecure_seed=6)
    assert np.array_equal(one.components_, two.components_)
    assert not np.array_equal(one.components_, other.components_)
    assert one.caveats == (SEEDED,)


def test_without_a_seed_nothing_repeats():
    rows = records()
    np.random.seed(1)  # noqa: NPY002
    one = PrivatePCA(3, noise_multiplier=1.0).fit(rows)
    np.random.seed(1)  # noqa: NPY002
    two = PrivatePCA(3, noise_multiplier=1.0).fit(rows)
    assert not np.array_equal(one.components_, two.components_)
    assert one.caveats == two.caveats == ()


@pytest.mark.parametrize("seed", [None, 3])
def test_saved_and_loaded_it_is_the_same(tmp_path, seed):
    rows = records()
    pca = PrivatePCA(3, noise_multiplier=1.5, sample_rate=0.7).fit(rows, insecure_seed=seed)
    pca.save(tmp_path / "pca.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["pca.npz"]
    loaded = PrivatePCA.load(tmp_path / "pca.npz")
    assert np.array_equal(loaded.components_, pca.components_)
    assert np.array_equal(loaded.transform(rows), pca.transform(rows))
    assert (loaded.events, loaded.caveats) == (pca.events, pca.caveats)
    assert loaded.dimension == 3
    with pytest.raises(InvalidInput, match="costs again"):
        loaded.fit(rows)
    with np.load(tmp_path / "pca.npz", allow_pickle=False) as stored:
        assert set(stored) == {
            "components",
            "eigenvalues",
            "whiten",
            "noise_multiplier",
            "sample_rate",
            "caveats",
        }


def test_what_is_not_a_saved_pca_is_refused(tmp_path):
    place = tmp_path / "pca.npz"
    with pytest.raises(InvalidInput, match="cannot be read"):
        PrivatePCA.load(place)
    good = PrivatePCA(2, noise_multiplier=1.0).fit(records())
    good.save(place)
    content = place.read_bytes()
    fields = {"noise_multiplier": 1.0, "sample_rate": 1.0, "caveats": np.array([], dtype=str)}
    for bad in (b"", b"text", content[: len(content) // 2]):
        place.write_bytes(bad)
        with pytest.raises(InvalidInput, match="not a saved PCA"):
            PrivatePCA.load(place)
    broken = good.components_.copy()
    broken[0, 0] = np.nan
    for components in (broken, broken.T, np.eye(3), np.array(["a"], dtype=object)):
        np.savez(place, components=components, **fields)
        with pytest.raises(InvalidInput, match="not a saved PCA"):
            PrivatePCA.load(place)


def test_no_spoilt_byte_gets_past_as_another_error(tmp_path):
    place = tmp_path / "pca.npz"
    pca = PrivatePCA(2, noise_multiplier=1.0).fit(records(width=4))
    pca.save(place)
    with np.load(place) as stored:
        fields = dict(stored)
    np.savez_compressed(tmp_path / "small.npz", **fields)
    loaded = 0
    for file in (place, tmp_path / "small.npz"):
        content = file.read_bytes()
        assert PrivatePCA.load(file).events == pca.events
        for position in range(0, len(content), 7):
            spoilt = bytearray(content)
            spoilt[position] ^= 0x55
            file.write_bytes(spoilt)
            try:
                found = PrivatePCA.load(file)
            except InvalidInput:
                continue
            loaded += 1  # a time stamp or an attribute that nobody reads
            assert (found.events, found.caveats) == (pca.events, pca.caveats)
            assert np.array_equal(found.components_, pca.components_)
    assert loaded > 0


def test_no_warning_tells_of_a_record():
    rows = records().astype(np.longdouble)
    rows[3] = np.longdouble("1e400")
    PrivatePCA(2, noise_multiplier=1.0).fit(rows)


def test_a_failed_write_keeps_what_was_there(tmp_path, monkeypatch):
    place = tmp_path / "pca.npz"
    place.write_text("before")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="no space left on device"):
        PrivatePCA(2, noise_multiplier=1.0).fit(records()).save(place)
    assert place.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["pca.npz"]


def test_mistakes_are_named():
    for dimension in (0, -1, 2.0, True, "3"):
        with pytest.raises(InvalidInput, match="dimension is"):
            PrivatePCA(dimension, noise_multiplier=1.0)
    for noise in (0, -1.0, np.inf, np.nan):
        with pytest.raises(InvalidInput, match="noise_multiplier is"):
            PrivatePCA(2, noise_multiplier=noise)
    for rate in (0, 1.5, -0.1):
        with pytest.raises(InvalidInput, match="sample_rate is"):
            PrivatePCA(2, noise_multiplier=1.0, sample_rate=rate)
    pca = PrivatePCA(4, noise_multiplier=1.0)
    with pytest.raises(InvalidInput, match="fit\\(X\\) first"):
        pca.transform(records())
    with pytest.raises(InvalidInput, match="at most 3"):
        pca.fit(records(width=3))
    with pytest.raises(InvalidInput, match=f"at most {LARGEST_WIDTH}"):
        pca.fit(np.broadcast_to(np.float32(0), (2, LARGEST_WIDTH + 1)))
    import torch

    for bad in (
        np.zeros(5), np.zeros((5, 0)), np.array([["a", "b"]]), np.zeros((2, 5), complex),
        [[1, 2], [3]], torch.zeros((9, 5), requires_grad=True), None,
        np.ma.masked_array(np.ones((9, 5)), mask=np.eye(9, 5)),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match="records"):
            pca.fit(bad)
    with pytest.raises(InvalidInput, match="insecure seed"):
        pca.fit(records(), insecure_seed=-1)
    pca.fit(records())  # a refusal spent nothing and left it usable
    with pytest.raises(InvalidInput, match="fitted on 12"):
        pca.transform(records(width=5))


def test_it_needs_no_torch():
    code = "import dpsgd.pca, sys; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_whitening_brings_components_to_a_like_size():
    rows = np.random.default_rng(4).normal(size=(4000, 6)) * [8.0, 4.0, 2.0, 1.0, 0.5, 0.25]
    plain = PrivatePCA(6, noise_multiplier=1e-6).fit(rows, insecure_seed=1)
    half = PrivatePCA(6, noise_multiplier=1e-6, whiten=0.5).fit(rows, insecure_seed=1)
    whole = PrivatePCA(6, noise_multiplier=1e-6, whiten=1.0).fit(rows, insecure_seed=1)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    sizes = [np.sqrt((pca.transform(units) ** 2).mean(axis=0)) for pca in (plain, half, whole)]
    assert np.ptp(sizes[2]) < 0.01 * sizes[2][0]
    assert sizes[1] == pytest.approx(np.sqrt(sizes[0] * sizes[0][0]), rel=0.01)
    assert plain.scales_.tolist() == [1.0] * 6
    assert np.array_equal(half.components_, plain.components_)  # directions stay of norm one


def test_whitening_uses_the_noised_eigenvalues_only():
    """The same noised matrix gives the same scales, whatever the records were."""
    rows = np.eye(5).repeat(40, axis=0)
    noisy = PrivatePCA(3, noise_multiplier=50.0, whiten=1.0).fit(rows, insecure_seed=7)
    matrix = matrix_of(rows)
    generator = np.random.default_rng(7)
    add_symmetric_noise(matrix, std=50.0, generator=generator)
    values = np.linalg.eigvalsh(matrix)[::-1][:3]
    expected = np.maximum(values / values[0], 1e-6) ** -0.5
    assert noisy.scales_ == pytest.approx(expected, rel=1e-5)


def test_weak_and_negative_eigenvalues_stay_finite():
    nothing = PrivatePCA(4, noise_multiplier=3.0, whiten=1.0).fit(np.zeros((10, 4)))
    assert np.isfinite(nothing.scales_).all()
    for whiten in (-0.1, 1.5, math.nan, "1", None):
        with pytest.raises(InvalidInput, match="whiten is"):
            PrivatePCA(2, noise_multiplier=1.0, whiten=whiten)
