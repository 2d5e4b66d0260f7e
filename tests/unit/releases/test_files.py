"""Parts of a release: the list of what may leave, checksums, the card."""

from __future__ import annotations

import math
import subprocess

import pytest

from pate._format import format_epsilon
from pate.errors import InvalidInput
from pate.releases.files import SUMS, digests, may_leave, read_sums, render_sums, unpublishable


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "student/manifest.json",
        "student/model.pkl",
        "student/own/all.pickle",
        "student/own/../../x.json",
        "student/../votes.npy",
        "labels/counts.npy",
        "encoder/features.npy",
        "encoder/step-0/state.pt",
        "encoder/weights-0.pt",
        "encoder/step-0.pt",
        "student/model.onnx.data",
        "report-private.html",
        "home.json",
        "recipe.json",
        "",
        ".hidden",
    ],
)
def test_what_is_not_on_the_list_stays(name):
    assert not may_leave(name)


@pytest.mark.parametrize("epsilon", [1e-7, 0.123449, 0.99999, 1.0, 4.7291, 14.3784, 99999.5])
def test_the_card_rounds_up_and_by_little(epsilon):
    shown = float(format_epsilon(epsilon))
    assert epsilon <= shown <= epsilon * 1.01
    assert format_epsilon(math.inf) == "∞"


def test_sums_are_read_as_they_are_written(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("x")
    (tmp_path / "c.txt").write_text("y")
    (tmp_path / SUMS).write_text(render_sums(digests(tmp_path)))
    assert read_sums(tmp_path) == digests(tmp_path)
    subprocess.run(["sha256sum", "-c", "--quiet", SUMS], cwd=tmp_path, check=True)
    text = (tmp_path / SUMS).read_text()
    outside = text.replace("a/b", "../b")
    for other in ("", text + text, text[:-1], outside, text.upper(), "\n" + text):
        (tmp_path / SUMS).write_text(other)
        with pytest.raises(InvalidInput, match=SUMS):
            read_sums(tmp_path)


def test_unpublishable_values_are_found_wherever_they_are():
    assert list(unpublishable({"a": {"b": [1, {"data_dependent": True}]}}))
    assert not list(unpublishable({"a": {"b": [1, {"publishable": True}]}, "c": None}))
