"""Encoders as a whole: fitted in turn, applied in batches, kept on disk bit for bit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pate.encoders import chain as chains
from pate.encoders.chain import fit_encoder, load_encoder, save_encoder
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput

STEPS = ["scattering", {"name": "standardise", "floor": 0.1}, {"name": "pca", "dimension": 6},
         "normalise"]  # fmt: skip


def spec_of(*steps):
    return EncoderSpec.model_validate({"steps": list(steps)})


def pictures(count, seed=0, shape=(8, 8)):
    return np.random.default_rng(seed).random((count, *shape), dtype=np.float32)


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_steps_are_fitted_in_turn():
    public = pictures(40)
    chain = fit_encoder(spec_of(*STEPS), public)
    features = public
    for step in STEPS:
        one = fit_encoder(spec_of(step), features)
        features = one.transform(features)
    assert np.array_equal(chain.transform(public), features)
    assert chain.shape == (6,)
    assert chain.input_shape == (8, 8)
    assert chain.widest == 81 * 2 * 2
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-6)


def test_no_steps_leave_the_inputs_as_they_are():
    public = pictures(5).astype(np.float64)
    chain = fit_encoder(spec_of(), public)
    assert chain.shape == (8, 8)
    assert np.array_equal(chain.transform(public), public.astype(np.float32))
    assert chain.transform(public[:0]).shape == (0, 8, 8)


def test_fitting_twice_gives_the_same_bytes_and_loading_the_same_features(tmp_path):
    public, others = pictures(40), pictures(300, seed=1)
    spec = spec_of(*STEPS)
    for name in ("one", "two"):
        save_encoder(fit_encoder(spec, public), tmp_path / name)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    chain, loaded = fit_encoder(spec, public), load_encoder(spec, tmp_path / "one")
    assert (loaded.shape, loaded.input_shape, loaded.widest) == ((6,), (8, 8), 324)
    assert np.array_equal(loaded.transform(others), chain.transform(others))
    save_encoder(loaded, tmp_path / "three")
    assert files(tmp_path / "three") == files(tmp_path / "one")


def test_private_records_leave_no_trace(tmp_path):
    """Encoding other records changes nothing in the encoder."""
    chain = fit_encoder(spec_of(*STEPS), pictures(40))
    save_encoder(chain, tmp_path / "before")
    chain.transform(100 * pictures(70, seed=3))
    save_encoder(chain, tmp_path / "after")
    assert files(tmp_path / "before") == files(tmp_path / "after")


def test_other_records_change_nothing():
    """Bit for bit: what the others are; and how many, for the first of a batch."""
    chain = fit_encoder(spec_of(*STEPS), pictures(40))
    X = pictures(300, seed=1)
    together = chain.transform(X)
    for row in (0, 256):
        assert np.array_equal(chain.transform(X[row : row + 1])[0], together[row])
    assert np.array_equal(chain.transform(X[:-1]), together[:-1])  # one record less at the end
    for row in range(0, 300, 37):
        changed = X.copy()
        changed[row] = 0.5
        again = chain.transform(changed)
        assert np.array_equal(np.delete(again, row, axis=0), np.delete(together, row, axis=0))
        assert not np.array_equal(again[row], together[row])


def test_into_a_memory_map_a_batch_at_a_time(tmp_path, monkeypatch):
    chain = fit_encoder(spec_of("scattering", "standardise"), pictures(40))
    X = pictures(100, seed=1)
    np.save(tmp_path / "x.npy", X)
    out = np.lib.format.open_memmap(
        tmp_path / "features.npy", mode="w+", dtype=np.float32, shape=(100, *chain.shape)
    )
    expected = chain.transform(X)
    seen = []
    monkeypatch.setattr(chains, "_MOST_NUMBERS", 32 * 324)
    applied = chains.apply_step
    monkeypatch.setattr(
        chains,
        "apply_step",
        lambda step, part, name: seen.append(len(part)) or applied(step, part, name=name),
    )
    chain.transform_into(np.load(tmp_path / "x.npy", mmap_mode="r"), out)
    out.flush()
    assert seen[::2] == [32, 32, 32, 4]
    assert np.array_equal(np.load(tmp_path / "features.npy"), expected)


def test_features_that_do_not_fit_into_memory_wait_in_a_file(monkeypatch):
    public = pictures(40)
    spec = spec_of(*STEPS)
    expected = fit_encoder(spec, public).transform(public)
    made = []
    mapped = np.memmap
    monkeypatch.setattr(np, "memmap", lambda *a, **k: made.append(a[0]) or mapped(*a, **k))
    monkeypatch.setattr(chains, "_IN_MEMORY", 40 * 324 * 4 - 1)
    assert np.array_equal(fit_encoder(spec, public).transform(public), expected)
    assert len(made) == 2  # after scattering and after standardise; pca's answer is small
    assert not any(file.exists() for file in made)


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (np.zeros((0, 8, 8)), "there are none"),
        (np.float32(3), "there are none"),
        (np.full((4, 8, 8), np.nan), 'scattering takes no missing values; put the step "impute"'),
        (np.full((4, 8, 8), 1e300), "infinite or NaN in float32"),
        (np.array([["a"]]), "features are numbers"),
        (np.zeros((4, 64)), "scattering needs images"),
    ],
)
def test_inputs_that_cannot_be_encoded(public, message):
    with pytest.raises(InvalidInput, match=message):
        fit_encoder(spec_of(*STEPS), public)


def test_records_of_another_shape_or_not_finite_are_refused():
    chain = fit_encoder(spec_of("standardise"), pictures(4))
    for wrong in (pictures(4, shape=(64,)), np.float32(1)):
        with pytest.raises(InvalidInput, match=r"fitted on records of shape \(8, 8\)"):
            chain.transform(wrong)
    bad = pictures(4)
    bad[2, 1, 1] = np.inf
    with pytest.raises(InvalidInput, match="infinite or NaN"):
        chain.transform(bad)


def test_what_cannot_be_loaded(tmp_path):
    spec = spec_of("standardise", {"name": "pca", "dimension": 2})
    with pytest.raises(InvalidInput, match="no saved encoder"):
        load_encoder(spec, tmp_path)
    folder = tmp_path / "saved"
    save_encoder(fit_encoder(spec, pictures(9)), folder)
    for other in (
        spec_of("standardise"),
        spec_of("standardise", {"name": "pca", "dimension": 3}),
        spec_of("normalise", {"name": "pca", "dimension": 2}),
    ):
        with pytest.raises(InvalidInput, match="other steps than the recipe's"):
            load_encoder(other, folder)
    header = (folder / "encoder.json").read_text()
    for damaged in ("", "[]", json.dumps({**json.loads(header), "shape": "x"})):
        (folder / "encoder.json").write_text(damaged)
        with pytest.raises(InvalidInput, match="is damaged"):
            load_encoder(spec, folder)
    (folder / "encoder.json").write_text(header)
    arrays = folder / "step-1" / "arrays.npz"
    arrays.write_bytes(arrays.read_bytes()[:50])
    with pytest.raises(InvalidInput, match=r"step-1.arrays.npz is damaged"):
        load_encoder(spec, folder)
    np.savez(arrays, a_mean=np.zeros(3))
    with pytest.raises(InvalidInput, match="is damaged"):
        load_encoder(spec, folder)


def test_nothing_is_read_where_there_are_no_files():
    assert spec_of(*STEPS).weight_digests() == []
