"""The noise of private PCA has the size the theorem asks for, on and off the diagonal.

The sum of squares of n draws over the variance they should have is chi-square with n degrees of
freedom. Every test rejects right noise once in a million seeds (seeds are fixed, so never by
chance); with 300 draws or more, noise 2/3 or 3/2 as large is accepted with a probability below
1e-6, worked out by the first test.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2, kstest, norm

from dpsgd.pca import PrivatePCA, add_symmetric_noise

DRAWS = 300
SIZES = pytest.mark.parametrize(
    "size", [1.0, pytest.param(2 / 3, id="too little"), pytest.param(3 / 2, id="too much")]
)


def bounds(draws):
    return chi2.ppf(5e-7, draws), chi2.isf(5e-7, draws)


def accepted(values, std):
    """Whether values look like independent N(0, std²), by their sum of squares."""
    low, high = bounds(len(values))
    return low < float((np.asarray(values) ** 2).sum()) / std**2 < high


def test_wrong_noise_is_found():
    low, high = bounds(DRAWS)
    assert chi2.sf(low * 9 / 4, DRAWS) < 1e-6  # noise 2/3 as large stays above the lower bound
    assert chi2.cdf(high * 4 / 9, DRAWS) < 1e-6  # noise 3/2 as large stays below the upper one


@SIZES
def test_the_matrix_has_noise_of_one_size_everywhere(size):
    std = 4.0
    width = 320
    matrix = np.zeros((width, width))
    add_symmetric_noise(matrix, std=std * size, generator=np.random.default_rng(21))
    assert np.array_equal(matrix, matrix.T)
    above = matrix[np.triu_indices(width, k=1)]
    for entries in (np.diag(matrix), above, matrix[0, 1:], matrix[1:, -1]):
        assert accepted(entries, std) == (size == 1)
    both = matrix[np.triu_indices(width)]
    assert (kstest(both, norm(scale=std).cdf).pvalue > 1e-6) == (size == 1)
    assert len(np.unique(both)) == len(both)


def test_entries_do_not_depend_on_each_other():
    """Correlations of rows of the upper half, of the diagonal with its neighbours, and of fits."""
    width = 400
    one, two = np.zeros((width, width)), np.zeros((width, width))
    generator = np.random.default_rng(22)
    add_symmetric_noise(one, std=1.0, generator=generator)
    add_symmetric_noise(two, std=1.0, generator=generator)
    half = width // 2
    pairs = [
        (one[0, half:], one[1, half:]),
        (np.diag(one)[:-1], np.diag(one, 1)),
        (np.diag(one)[1:], np.diag(one)[:-1]),
        (one[np.triu_indices(width)], two[np.triu_indices(width)]),
    ]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(len(a))


@SIZES
@pytest.mark.parametrize("secure", [False, True], ids=["seeded", "secure"])
@pytest.mark.sample(2)
def test_components_turn_by_the_noise_off_the_diagonal(size, secure):
    """Through a whole fit. All n records lie along the first axis, so the leading eigenvector is
    e₁ + Σ_j (N_1j / n) e_j to first order: with n = 10⁶·σ the rest is below 1e-4 of the noise.

    The secure fit is not seeded: right noise fails it once in a million runs.
    """
    width, count, noise = DRAWS + 1, 200_000, 0.2
    rows = np.broadcast_to(np.eye(1, width, dtype=np.float32), (count, width))
    pca = PrivatePCA(1, noise_multiplier=noise * size)
    leading = pca.fit(rows, insecure_seed=None if secure else 23).components_[:, 0]
    assert leading[0] == pytest.approx(1, abs=1e-6)
    assert accepted(leading[1:].astype(np.float64) * count, noise) == (size == 1)


@SIZES
def test_components_turn_by_the_noise_on_the_diagonal(size):
    """Through whole fits. All n records are (1, 1)/√2, so the leading eigenvector turns by
    (N_11 − N_22)/2n to first order: the noise off the diagonal has no part in it.
    """
    count, noise = 2000, 1.0
    turns = []
    for seed in range(DRAWS):
        pca = PrivatePCA(1, noise_multiplier=noise * size)
        first, second = pca.fit(np.ones((count, 2)), insecure_seed=seed).components_[:, 0]
        turns.append((float(first) - float(second)) / math.sqrt(2))
    assert accepted(np.array(turns) * count, noise / math.sqrt(2)) == (size == 1)


@SIZES
def test_a_sample_gets_the_same_noise_as_the_whole(size):
    """Noise is not scaled by the sampling rate: the signal is n·q, the noise as before."""
    width, count, noise, rate = DRAWS + 1, 100_000, 0.2, 0.25
    rows = np.broadcast_to(np.eye(1, width, dtype=np.float32), (count, width))
    pca = PrivatePCA(1, noise_multiplier=noise * size, sample_rate=rate)
    leading = pca.fit(rows, insecure_seed=24).components_[:, 0]
    drawn = count * rate  # right to 2.7 % at 5 standard deviations: far less than 2/3 or 3/2
    assert accepted(leading[1:].astype(np.float64) * drawn, noise) == (size == 1)
