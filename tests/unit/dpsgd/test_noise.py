"""Noise: the right law, written where it belongs, and nothing of a secure source kept."""

from __future__ import annotations

import math
import ssl

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from dpsgd.noise import FastNoise, SecureNoise, SeededNoise, _FromBytes
from pate.errors import InvalidInput

KINDS = pytest.mark.parametrize(
    "make",
    [lambda: SeededNoise(4), lambda: FastNoise(seed=4)],
    ids=["bytes", "torch"],
)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_standard_normal(make, dtype):
    """Kolmogorov–Smirnov on 300 001 numbers (odd: the last pair is cut); fixed seed."""
    values = torch.empty(300_001, dtype=dtype)
    make().fill([values], [1.0])
    assert kstest(values.numpy().astype(np.float64), "norm").pvalue > 1e-6
    wrong = values.numpy().astype(np.float64) * 1.05
    assert kstest(wrong, "norm").pvalue < 1e-6


def test_both_halves_of_a_pair_are_independent_of_each_other():
    values = torch.empty(1 << 15, dtype=torch.float64)
    SeededNoise(9).fill([values], [1.0])
    cosine, sine = values.view(2, -1)
    for one, other in [(cosine, sine), (cosine**2, sine**2), (cosine[1:], cosine[:-1])]:
        correlation = float(torch.corrcoef(torch.stack([one, other]))[0, 1])
        assert abs(correlation) < 5 / math.sqrt(len(one))


@KINDS
def test_each_tensor_has_its_own_scale_whatever_its_layout(make):
    tensors = [torch.empty(100, 80), torch.empty(80, 100).t(), torch.zeros(8000), torch.empty(0)]
    stds = [1.0, 3.0, 0.0, 1.0]
    make().fill(tensors, stds)
    for tensor, std in zip(tensors[:3], stds, strict=False):
        assert float(tensor.std()) == pytest.approx(std, rel=5 / math.sqrt(2 * 8000))
    assert abs(float(torch.corrcoef(torch.stack([t.flatten() for t in tensors[:2]]))[0, 1])) < 0.06


def test_mixed_precisions_are_filled():
    tensors = [torch.empty(3000, dtype=torch.float64), torch.empty(3000)]
    SeededNoise(1).fill(tensors, [2.0, 2.0])
    for tensor in tensors:
        assert float(tensor.std()) == pytest.approx(2.0, rel=0.07)


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F])
def test_no_bytes_give_anything_but_a_number(byte):
    values = torch.empty(5)
    _FromBytes(lambda count: bytes([byte]) * count).fill([values], [1.0])
    assert bool(values.isfinite().all())
    assert float(values.abs().max()) < 9.5


def test_the_tail_is_there():
    """Words of 2⁻⁶⁰ of the range are 9.1 standard deviations out: no 24-bit uniform gets there."""
    word = (8).to_bytes(8, "little")
    values = torch.empty(2)
    _FromBytes(lambda count: word * (count // 8)).fill([values], [1.0])
    assert float(values.norm()) == pytest.approx(math.sqrt(2 * 60 * math.log(2)), rel=1e-6)


def test_secure_noise_never_repeats_and_keeps_nothing(monkeypatch):
    one, other = torch.empty(50), torch.empty(50)
    source = SecureNoise()
    source.fill([one], [1.0])
    SecureNoise().fill([other], [1.0])
    assert not bool((one == other).any())
    assert source.state() == {}
    source.restore({"anything": 1})
    assert source.caveat is None
    asked = []
    monkeypatch.setattr(ssl, "RAND_bytes", lambda count: asked.append(count) or bytes(count))
    SecureNoise().normal()
    assert asked == [16]


def test_what_is_not_private_says_so():
    assert "not cryptographic" in FastNoise().caveat
    assert FastNoise().state() == {}
    assert "not private" in FastNoise(seed=1).caveat
    assert "not private" in SeededNoise(1).caveat
    assert FastNoise().normal() != FastNoise().normal()


@KINDS
def test_a_seeded_source_goes_on_where_it_was(make):
    source = make()
    source.normal()
    state = source.state()
    rest = [source.normal() for _ in range(5)]
    other = make()
    other.restore(state)
    assert [other.normal() for _ in range(5)] == rest
    with pytest.raises(InvalidInput, match="damaged"):
        other.restore({"torch": "zz", "bit_generator": "none"})
