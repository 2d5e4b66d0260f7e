"""Fingerprints: the same parts, the same hash; anything else, another one."""

from __future__ import annotations

import hashlib

import pytest

from pate.artifacts import digest_of, fingerprint


def test_order_of_keys_does_not_matter_and_all_else_does():
    parts = [
        ({"a": 1, "b": [1, 2]},),
        ({"a": 1, "b": [2, 1]},),
        ({"a": 1, "b": [1, 2]}, None),
        ({"a": "1", "b": [1, 2]},),
        ({"a": 1.5, "b": [1, 2]},),
        ([{"a": 1, "b": [1, 2]}],),
        (),
    ]
    assert len({fingerprint(*each) for each in parts}) == len(parts)
    assert fingerprint({"b": [1, 2], "a": 1}) == fingerprint(*parts[0])


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        fingerprint(float("nan"))


def test_digest_of_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 100_000)
    assert digest_of(tmp_path / "file") == hashlib.sha256(b"abc" * 100_000).hexdigest()
