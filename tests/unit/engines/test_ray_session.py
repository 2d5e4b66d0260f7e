"""Coming to Ray and leaving it: nothing is removed but what was made, and refusals are one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pate.engines.on_ray import session

pytestmark = pytest.mark.xdist_group("ray")

VISIT = """
import sys
from pate.engines.on_ray.session import connect, disconnect
for _ in range(int(sys.argv[2])):
    ray = connect(sys.argv[1] or None)
    print(len(ray.nodes()), flush=True)
    if "leave" in sys.argv:
        disconnect()
"""


def run(code, *words, folder, **told):
    """A process in a folder of its own, with all that it may call home in it."""
    for name in ("tmp", "home", "work"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "precious.txt").write_text("mine")
    own = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=folder / "work",
        env=environment | own | {name: value for name, value in told.items() if value},
        capture_output=True,
        text=True,
        timeout=120,
    )


def tree(folder):
    return {str(p.relative_to(folder)): p.is_file() and p.read_bytes() for p in folder.rglob("*")}


def in_common_folders():
    """Names in folders that all processes of the machine share."""
    return {p for place in ("/tmp", "/dev/shm") for p in Path(place).iterdir() if "pate" in p.name}


@pytest.fixture
def told():
    """What a process must know to be let in, if this one asks for it."""
    return {name: os.environ.get(name, "") for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}


# ------------------------------------------------------------------ nothing else is removed


@pytest.mark.parametrize("leaving", ["leave", "by the end"])
def test_attaching_and_leaving_removes_nothing(tmp_path, cluster, told, leaving):
    run("", folder=tmp_path)
    mine, theirs = tree(tmp_path), set(cluster.folder.rglob("*"))
    times = 2 if leaving == "leave" else 1
    done = run(VISIT, cluster.address, times, leaving, folder=tmp_path, **told)
    assert (done.stdout, done.stderr) == ("2\n" * times, "")
    assert tree(tmp_path) == mine
    assert len(theirs) > 20
    assert all(path.exists() for path in theirs)
    assert cluster.tasks.is_dir()


def test_starting_and_leaving_removes_its_own_folder_alone(tmp_path):
    run("", folder=tmp_path)
    mine, shared = tree(tmp_path), in_common_folders()
    done = run(VISIT, "", 1, folder=tmp_path)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert tree(tmp_path) == mine
    assert in_common_folders() <= shared


def test_the_child_of_a_fork_leaves_its_parents_ray_alone(tmp_path, monkeypatch):
    (tmp_path / "pate-ray-1").mkdir()
    monkeypatch.setattr(session, "_connected", os.getppid())
    monkeypatch.setattr(session, "_folder", tmp_path / "pate-ray-1")
    session.disconnect()
    assert (tmp_path / "pate-ray-1").is_dir()
    assert session._connected == os.getppid()


@pytest.mark.parametrize("name", [".", "", "work", "/", "pate-ray-1", "..", "./pate-ray-1/.."])
def test_a_folder_that_is_not_its_own_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / "work" / "pate-ray-1").mkdir(parents=True)
    (tmp_path / "work" / "pate-ray-1" / "precious.txt").write_text("mine")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(session.shutil, "rmtree", lambda *_, **__: pytest.fail("removed"))
    session._remove(Path(name))


def test_a_link_in_the_place_of_its_folder_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "pate-ray-1").symlink_to(tmp_path / "mine")
    session._remove(tmp_path / "pate-ray-1")
    assert (tmp_path / "pate-ray-1").exists()
    (tmp_path / "pate-ray-2").mkdir()
    session._remove(tmp_path / "pate-ray-2")
    assert not (tmp_path / "pate-ray-2").exists()
