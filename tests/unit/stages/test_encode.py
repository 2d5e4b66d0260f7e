"""Encoding of records that vote themselves: what is shown of it, and copies."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from pate.encoders.chain import fit_encoder
from pate.encoders.spec import EncoderSpec
from pate.partition import PLACES, RECORD_SHARDS
from pate.stages.encode import _encode_by_place

RNG = np.random.default_rng(0)
PUBLIC = RNG.normal(size=(30, 5)).astype(np.float32)
STEPS = EncoderSpec(steps=["standardise", {"name": "pca", "dimension": 3}])


class Counted:
    """A chain that counts its batches."""

    def __init__(self, chain):
        self.chain, self.shape, self.batches = chain, chain.shape, 0

    def transform(self, batch):
        self.batches += 1
        return self.chain.transform(batch)


def encoded(records, places, tmp_path, *, own_steps=False):
    """The features, the number of batches, and all that the progress was told."""
    chain, shown = Counted(fit_encoder(STEPS, PUBLIC)), []

    @contextmanager
    def progress(title, total, done):
        shown.append((title, total, done))
        yield SimpleNamespace(advance=lambda count: shown.append(count))

    files = {"features.npy": records, "places.npy": np.array(places)}
    files["offsets.npy"] = np.array([0, len(records)])
    out = np.lib.format.open_memmap(
        tmp_path / "out.npy", mode="w+", dtype=np.float32, shape=(len(records), 3)
    )
    context = SimpleNamespace(
        inputs={
            "partition": SimpleNamespace(
                array=files.get, json=lambda name: ["digest"], manifest={"files": files}
            ),
            "data-public": SimpleNamespace(array={"features.npy": PUBLIC}.get),
        },
        recipe=SimpleNamespace(by_records=True, encoder=SimpleNamespace(runs_user_code=own_steps)),
        store=SimpleNamespace(all=lambda stage: []),  # no earlier result
        provenance={"encoder": "", "plugin": ""},
        options=SimpleNamespace(progress=progress),
    )
    draft = SimpleNamespace(new_array=lambda *_, **__: out, save_json=lambda *_: None)
    _encode_by_place(context, chain, draft)
    return np.array(out), chain.batches, shown


@pytest.mark.parametrize("own_steps", [False, True])
def test_progress_shows_no_number_of_records(own_steps, tmp_path):
    told = set()
    for count in (40, 41, 90, 500):
        records = RNG.normal(size=(count, 5)).astype(np.float32)
        places = RNG.integers(PLACES, size=count)
        _, batches, shown = encoded(records, places, tmp_path, own_steps=own_steps)
        assert batches == count if own_steps else batches < count
        told.add(tuple(shown))
    assert {sum(shown[1:]) for shown in told} == {RECORD_SHARDS}
    assert len(told) == 1


def test_copies_in_one_place_are_encoded_once_and_alike(tmp_path):
    records = np.repeat(RNG.normal(size=(3, 5)).astype(np.float32), 100, axis=0)
    places = np.repeat([7, 7, 9], 100)
    features, batches, _ = encoded(records, places, tmp_path)
    assert batches == 2
    alone = [encoded(records[n : n + 1], places[n : n + 1], tmp_path)[0] for n in (0, 100, 200)]
    assert (features == np.repeat(np.concatenate(alone), 100, axis=0)).all()
    nobody, batches, _ = encoded(records[:0], places[:0], tmp_path)
    assert (nobody.shape, batches) == ((0, 3), 0)
