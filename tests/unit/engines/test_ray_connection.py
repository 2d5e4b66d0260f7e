"""Connecting to Ray and leaving it: only our own folders are removed, and refusals are one line."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pate.engines import files, ray_session
from pate.errors import InvalidInput

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.campaign]  # Ray, again and again

VISIT = """
import sys
from pate.engines.ray_session import connect, disconnect
for _ in range(int(sys.argv[2])):
    ray = connect(sys.argv[1] or None)
    print(sum(node["Alive"] for node in ray.nodes()), flush=True)
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


@pytest.fixture
def told():
    """What a process must know to be let in, if this one asks for it."""
    return {name: os.environ.get(name, "") for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}


# ------------------------------------------------------------------ nothing else is removed


@pytest.mark.parametrize("leaving", ["leave", "by the end"])
def test_attaching_and_leaving_removes_nothing(tmp_path, cluster, told, leaving):
    run("", folder=tmp_path)
    mine, theirs = tree(tmp_path), {*cluster.folder.rglob("sockets/*")}
    times = 2 if leaving == "leave" else 1
    done = run(VISIT, cluster.address, times, leaving, folder=tmp_path, **told)
    assert (done.stdout, done.stderr) == ("2\n" * times, "")
    assert tree(tmp_path) == mine
    assert len(theirs) >= 4
    assert all(path.exists() for path in theirs)
    assert cluster.tasks.is_dir()


def test_starting_and_leaving_removes_its_own_folder_alone(tmp_path):
    run("", folder=tmp_path)
    mine = tree(tmp_path)
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as short:  # where Ray's folder fits
        (Path(short) / "precious.txt").write_text("mine")
        code = f"{VISIT}\nimport os; print(os.listdir({short!r}))"
        done = run(code, "", 1, folder=tmp_path, TMPDIR=short)
        assert done.stderr == ""
        count, there = done.stdout.splitlines()
        assert count == "1"
        assert "pate-ray-" in there
        assert tree(Path(short)) == {"precious.txt": b"mine"}
    assert tree(tmp_path) == mine


def test_the_child_of_a_fork_leaves_its_parents_ray_alone(monkeypatch):
    session = ray_session._Session(None, pid=os.getppid())
    session.folders.callback(pytest.fail, "removed")
    monkeypatch.setattr(ray_session, "_session", session)
    ray_session.disconnect()
    assert ray_session._session is session


def test_folders_of_killed_drivers_are_removed_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_LONGEST_TEMPORARY", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stay = ["pate-ray-1", "pate-ray-abcdefghi", "pate-ray-ABCDEFGH", "xpate-ray-abcdefgh", "mine"]
    gone = ["pate-ray-a1b2_3c4", "pate-task-0a1_b2c3"]
    for name in [*stay, *gone]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious.txt").write_text("mine")
    (tmp_path / "pate-ray-aaaaaaaa").symlink_to(tmp_path / "mine")
    files.sweep_leftovers()
    assert {path.name for path in tmp_path.iterdir()} == {*stay, "pate-ray-aaaaaaaa"}
    assert all((tmp_path / name / "precious.txt").exists() for name in stay)


SPILL = """
import os
from pathlib import Path
import numpy as np
from pate.engines import ray_session
ray_session._store_bytes = lambda: 80 << 20
ray = ray_session.connect(None)
kept = [ray.put(np.zeros(20 << 20, dtype=np.uint8)) for _ in range(8)]
(folder,) = Path(os.environ["PATE_TASK_FOLDER"]).iterdir()
print(oct(folder.stat().st_mode & 0o777))
print(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) > 40 << 20)
"""


def test_objects_are_spilled_to_the_folder_of_tasks(tmp_path):
    """To a folder of its owner's, which is removed."""
    (tmp_path / "tasks").mkdir()
    done = run(SPILL, folder=tmp_path, PATE_TASK_FOLDER=str(tmp_path / "tasks"))
    assert (done.stdout.split(), done.stderr) == (["0o700", "True"], "")
    assert list((tmp_path / "tasks").iterdir()) == []


TERMINATED = """
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from pate.engines import Task, make_engine
from pate.engines.ray_session import connect
if sys.argv[1] == "own":
    signal.signal(signal.SIGTERM, lambda *_: (print("heard", flush=True), Path("go").touch()))
    before = signal.getsignal(signal.SIGTERM)
connect(None)
if sys.argv[1] == "own":
    assert signal.getsignal(signal.SIGTERM) is before

def tell():
    while len(list(Path(os.environ["TMPDIR"]).glob("pate-task-*"))) < 2:  # one is for spilling
        time.sleep(0.1)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=tell).start()
task = Task(key="k", function="jobs:wait_for", payload={"file": str(Path("go").absolute())})
try:
    list(make_engine("ray").run([task], rescues=2))
finally:
    print("in order", flush=True)
"""


@pytest.mark.parametrize(
    ("handler", "status", "said"), [("default", 143, "in order\n"), ("own", 0, "heard\nin order\n")]
)
def test_a_driver_that_is_told_to_end(tmp_path, handler, status, said):
    """It goes as at its own end, and leaves nothing; but what the caller wants then, is done."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as short:
        mark = secrets.token_hex(8)
        told = {"TMPDIR": short, "PATE_TEST_MARK": mark}
        done = run(TERMINATED, handler, Path(__file__).parent, folder=tmp_path, **told)
        assert (done.stdout, done.stderr) == (said, "")
        assert done.returncode == status
        deadline = time.monotonic() + 50
        while marked(mark) or list(Path(short).iterdir()):
            assert time.monotonic() < deadline, "something stays"
            time.sleep(0.1)


def marked(mark):
    """The processes that have this in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            found += [file] if mark.encode() in file.read_bytes() else []
    return found


# ------------------------------------------------------------------ refusals, in one line

TRY = """
import sys
from pate.engines.ray_session import _import_ray, connect
from pate.errors import PateError
if sys.argv[1] == "auto":
    import functools
    ray = _import_ray()  # others may have one on this machine
    ray._private.services.find_gcs_addresses = functools.cache(set)
    ray._private.services.find_bootstrap_address = lambda *_: None
for address in sys.argv[1:]:
    try:
        print(sum(node["Alive"] for node in connect(address).nodes()))
    except PateError as error:
        print(error)
"""


@pytest.mark.parametrize(
    "address", ["nowhere", ":6379", "host:", "host:x", "host:70000", "", "a:²"]
)
def test_nonsense_is_no_address(address):
    with pytest.raises(
        InvalidInput, match=r"is not a cluster's address; write HOST:PORT, or auto$"
    ):
        ray_session.connect(address)


@pytest.mark.parametrize("place", ["127.0.0.1:1", "no-such-host.invalid:6379"])
def test_auto_where_the_cluster_that_is_meant_is_gone(tmp_path, place):
    start = time.monotonic()
    done = run(TRY.replace('== "auto"', '== "never"'), "auto", folder=tmp_path, RAY_ADDRESS=place)
    (said,) = done.stdout.splitlines()
    assert said.startswith(f"cannot reach the Ray cluster at {place}: ")
    assert done.stderr == ""
    assert time.monotonic() - start < 50  # not after as many minutes as Ray would try


def test_an_address_of_rays_client_is_told_what_to_write():
    with pytest.raises(InvalidInput, match=r"run pate on a machine of the cluster"):
        ray_session.connect("ray://head:10001")


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"is not installed: pip install 'pate-privacy\[ray\]'$"):
        ray_session.connect(None)


def test_nobody_there(tmp_path):
    done = run(TRY, "auto", "127.0.0.1:1", "no-such-host.invalid:6379", folder=tmp_path)
    auto, closed, unknown = done.stdout.splitlines()
    assert done.stderr == ""
    assert auto == (
        "no Ray cluster runs on this machine; start one with 'ray start --head', or use 'ray'"
    )
    assert closed == (
        "cannot reach the Ray cluster at 127.0.0.1:1: Connection refused; check the address"
    )
    assert unknown.startswith("cannot reach the Ray cluster at no-such-host.invalid:6379: ")


def test_a_wrong_token(tmp_path, cluster):
    told = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    done = run(TRY, cluster.address, folder=tmp_path, RAY_NUM_REDIS_GET_RETRIES="2", **told)
    (said,) = done.stdout.splitlines()
    assert said.startswith(
        f"the Ray cluster at {cluster.address} does not let this process in; set RAY_AUTH_MODE="
    )
    assert "0" * 64 not in said + done.stderr


def test_auto_is_the_cluster_of_this_machine(tmp_path, cluster, told):
    code = TRY.replace('== "auto"', '== "never"')
    done = run(code, "auto", folder=tmp_path, RAY_ADDRESS=cluster.address, **told)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_one_process_has_one_ray(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_session, "_session", ray_session._Session("10.0.0.1:6379"))
    with pytest.raises(
        InvalidInput, match=r"connected to the Ray cluster at 10\.0\.0\.1:6379 already, and Ray"
    ):
        ray_session.connect(None)


@pytest.mark.parametrize(
    ("address", "same"),
    [
        ("auto", True),
        (None, True),
        ("127.0.0.1:7001", True),
        ("localhost:7001", True),
        ("127.0.0.1:7002", False),
        ("10.255.255.1:7001", False),
        ("no-such-host.invalid:7001", False),
    ],
)
def test_the_callers_connection_is_to_no_other_cluster(monkeypatch, address, same):
    """Private data goes to the cluster that was asked for, or nowhere."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray_session, "_session", None)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    about = type("", (), {"gcs_address": "127.0.0.1:7001"})
    monkeypatch.setattr(ray, "get_runtime_context", lambda: about)
    if same:
        assert ray_session.connect(address) is ray
    else:
        with pytest.raises(InvalidInput, match=r"connected to the Ray cluster at 127\.0\.0\.1:70"):
            ray_session.connect(address)


@pytest.mark.parametrize(
    ("shared", "store"), [(64 << 20, 75 << 20), (120 << 20, 96 << 20), (1 << 40, 4 << 30)]
)
def test_the_store_fits_into_shared_memory(monkeypatch, shared, store):
    """Otherwise Ray puts it on a disk; less than 75 MB it does not take."""
    about = type("", (), {"f_bavail": shared >> 12, "f_frsize": 1 << 12})
    monkeypatch.setattr(os, "statvfs", lambda place: about)
    assert ray_session._store_bytes() == store
