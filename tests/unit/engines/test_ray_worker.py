"""The node's side of the Ray engine: folders of tasks, files in transit, and one task's run.

No Ray is started here.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import pate
from pate.engines import Task, ray_worker
from pate.engines.files import FOLDER_VARIABLE, code, makes, reads, sweep
from pate.engines.ray import _InFlight
from pate.engines.ray_worker import (
    RemoteTask,
    TaskFolderError,
    Transfer,
    TransferError,
    pack,
    pack_modules,
    pack_rows,
    place_of,
    run_task,
    task_folder,
    unpack,
)
from pate.errors import PateError

HERE = Path(__file__).parent
LEFT = "pate-task-0a1_b2c3"  # as a killed task leaves


def tree(folder):
    return {str(p.relative_to(folder)): p.is_file() and p.read_bytes() for p in folder.rglob("*")}


def wait_until(condition):
    deadline = time.monotonic() + 50
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


# ------------------------------------------------------------------ folders of tasks


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder of all tasks' folders; the working directory holds something to lose."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "precious.txt").write_text("mine")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "home"))
    yield tmp_path / "home"
    assert (tmp_path / "work" / "precious.txt").read_text() == "mine"


def filled(folder, mode=0o700):
    folder.mkdir()
    (folder / "shard.npy").write_text("private")
    folder.chmod(mode)
    return folder


def test_a_task_folder_is_its_owners_alone_and_is_removed(home):
    with task_folder() as folder:
        assert folder.parent == home
        assert folder.stat().st_mode & 0o777 == 0o700
        filled(folder / "read-only", mode=0o500)
        assert sweep() == 1  # it is in use
        assert (folder / "read-only" / "shard.npy").exists()
    assert list(home.iterdir()) == []


def test_a_task_folder_is_removed_after_an_exception(home):
    def fail():
        with task_folder() as folder:
            (folder / "shard.npy").write_text("private")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert list(home.iterdir()) == []


def test_a_relative_home_is_resolved_at_once(home, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, "tasks")
    Path("tasks").mkdir()
    with task_folder() as folder:
        assert folder.is_absolute()
        os.chdir("/")
    assert not folder.exists()


def test_no_room_is_one_sentence(home, monkeypatch):
    (home / "file").write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(home / "file"))
    with pytest.raises(
        TaskFolderError, match=r"file: not a directory; make room there, or set PATE_"
    ):
        task_folder().__enter__()


def test_a_missing_home_is_not_made(home, monkeypatch):
    """It may be misspelled, or on a disk that is not mounted."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(home / "scratch" / "tasks"))
    words = r"scratch/tasks, does not exist; make it on that machine, or set PATE_TASK_FOLDER"
    with pytest.raises(TaskFolderError, match=words):
        task_folder().__enter__()
    assert list(home.iterdir()) == []
    assert sweep() == 0


def test_the_folder_of_a_killed_task_is_swept(home):
    filled(home / LEFT)
    assert sweep() == 0
    assert list(home.iterdir()) == []


def test_nothing_else_is_swept(home):
    names = ["pate-task-force", "pate-task-", f"{LEFT}0", f"x{LEFT}", "pate-task-ABCDEFGH"]
    for name in names:
        filled(home / name)
    (home / "pate-task-bbbbbbbb").symlink_to(filled(home / "mine"))
    sweep()
    assert len(list(home.iterdir())) == len(names) + 2
    assert all((home / name / "shard.npy").exists() for name in [*names, "mine"])


def test_a_folder_in_use_is_not_swept(home):
    lock = os.open(filled(home / LEFT), os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert sweep() == 1
    os.close(lock)
    assert sweep() == 0


def test_a_link_inside_is_removed_and_its_target_is_not(home):
    with task_folder() as folder:
        (folder / "out").symlink_to(filled(home / "mine", mode=0o500))
    assert (home / "mine" / "shard.npy").exists()
    assert (home / "mine").stat().st_mode & 0o777 == 0o500


# ------------------------------------------------------------------ files there and back


@pytest.fixture
def folder(tmp_path):
    """A folder like an artifact."""
    made = tmp_path / "teacher"
    (made / "deep" / "empty").mkdir(parents=True)
    (made / "weights.npy").write_bytes(bytes(range(256)) * 9)
    (made / "deep" / "none").write_bytes(b"")
    (made / "deep" / "name with ε").write_bytes(b"x")
    return made


def received(transfer):
    return pickle.loads(pickle.dumps(transfer, protocol=5))


def test_a_file_arrives(tmp_path):
    for content in (b"", b"hello" * 1000):
        (tmp_path / "a").write_bytes(content)
        transfer = pack(tmp_path / "a")
        assert transfer.size == len(content)
        unpack(received(transfer), tmp_path / "b")  # it replaces the one before
        assert (tmp_path / "b").read_bytes() == content
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_folder_arrives_as_its_owners_alone(tmp_path, folder):
    folder.chmod(0o777)
    unpack(received(pack(folder)), tmp_path / "copy")
    assert tree(tmp_path / "copy") == tree(folder)
    assert (tmp_path / "copy").stat().st_mode & 0o7777 == 0o700


def test_of_a_folder_the_first_to_arrive_stays(tmp_path, folder):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "first").write_text("here")
    unpack(pack(folder), tmp_path / "copy")
    assert tree(tmp_path / "copy") == {"first": b"here"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "teacher"]


def test_a_missing_file_is_missing_there_too(tmp_path):
    transfer = pack(tmp_path / "nothing")
    assert transfer.files == ()
    unpack(transfer, tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_the_content_is_not_in_the_repr(tmp_path):
    (tmp_path / "a").write_bytes(b"SECRET")
    transfer = pack(tmp_path / "a")
    assert "SECRET" not in repr(transfer)
    assert repr(list(b"SECRET"))[1:10] not in repr(transfer)


def test_of_rows_only_those_travel(tmp_path):
    table = np.arange(1000, dtype=np.int64)[:, None] + [10**12, 10**13]
    np.save(tmp_path / "X.npy", table)
    transfer = received(pack_rows(tmp_path / "X.npy", 30, 50))
    unpack(transfer, tmp_path / "part.npy")
    assert np.array_equal(np.load(tmp_path / "part.npy"), table[30:50])
    sent = pickle.dumps(transfer)
    for row, value in enumerate(table[:, 0]):
        assert (value.tobytes() in sent) == (30 <= row < 50)


def test_rows_of_a_missing_or_damaged_file(tmp_path):
    assert pack_rows(tmp_path / "X.npy", 0, 1).files == ()
    (tmp_path / "X.npy").write_bytes(b"not numbers")
    assert pack_rows(tmp_path / "X.npy", 0, 1).size == 0
    np.save(tmp_path / "Y.npy", np.array([{}]), allow_pickle=True)
    assert pack_rows(tmp_path / "Y.npy", 0, 1).size == 0


def test_modules_travel_and_nothing_beside_them(tmp_path):
    plugins = tmp_path / "plugins"
    (plugins / "package").mkdir(parents=True)
    (plugins / "data").mkdir()
    (plugins / "mine.py").write_text("WORD = 1")
    (plugins / "package" / "__init__.py").write_text("")
    (plugins / "secret.csv").write_text("private")
    (plugins / "data" / "more.py").write_text("# no package")
    (plugins / "package" / "secret.npy").write_text("private")
    unpack(pack_modules(plugins), tmp_path / "copy")
    files = {name for name, content in tree(tmp_path / "copy").items() if content is not False}
    assert files == {"mine.py", "package/__init__.py"}
    unpack(pack_modules(plugins / "mine.py"), tmp_path / "mine.py")
    assert (tmp_path / "mine.py").read_text() == "WORD = 1"


# ------------------------------------------------------------------ files that are not as sent


def damaged(transfer):
    """The transfer with one thing changed, in each of several ways."""
    (name, content), *others = transfer.files[::-1]
    flipped = content.copy()
    flipped[len(flipped) // 2] ^= 1
    yield replace(transfer, files=((name, flipped), *others)[::-1])
    yield replace(transfer, files=((name, content[:-1]), *others)[::-1])
    yield replace(transfer, files=((name, np.append(content, np.uint8(0))), *others)[::-1])
    yield replace(transfer, digest="0" * 64)
    yield replace(transfer, files=(*transfer.files, transfer.files[0]))
    yield replace(transfer, files=())


@pytest.mark.parametrize("way", range(6))
def test_a_damaged_file_is_rejected_and_leaves_nothing(tmp_path, folder, way):
    for transfer in (pack(folder), pack(folder / "weights.npy")):
        bad = list(damaged(transfer))[way]
        with pytest.raises(TransferError, match=r"^a file was damaged in transit$"):
            unpack(bad, tmp_path / "copy")
    assert [p.name for p in tmp_path.iterdir()] == ["teacher"]


@pytest.mark.parametrize(
    "name", ["../x", "/x", "content/../../x", "", ".", "x", "content/\0", ".."]
)
def test_a_name_that_leads_out_is_rejected(tmp_path, name):
    place = tmp_path / "in" / "copy"
    place.parent.mkdir()
    content = np.frombuffer(b"x", dtype=np.uint8)
    for files in (((name, content),), ((f"{name}/", content[:0]),)):
        with pytest.raises(TransferError, match="leads out of its place"):
            unpack(Transfer(files, ray_worker._digest(files)), place)
    assert sorted(tree(tmp_path)) == ["in"]


def test_a_requested_file_has_its_place():
    names = ["private/teacher/a", "private/teacher/b"]
    assert place_of(makes("/store", names=names), names[1]) == Path("/store/private/teacher/b")
    assert place_of(makes("/store/part.npy"), "") == Path("/store/part.npy")


@pytest.mark.parametrize(
    "name", ["", "released/labels/x", "private/teacher/c", "../private/teacher/a", "/a", "a"]
)
def test_no_other_file_has_a_place(name):
    with pytest.raises(TransferError, match="not asked to make"):
        place_of(makes("/store", names=["private/teacher/a"]), name)
    with pytest.raises(TransferError, match="not asked to make"):
        place_of(reads("/store"), name)
    if name:
        with pytest.raises(TransferError, match="not asked to make"):
            place_of(makes("/store"), name)


# ------------------------------------------------------------------ one task


def remote(name, **payload):
    """A task as the driver sends it."""
    task = Task(key="k", function=f"ray_jobs:{name}", payload=payload)
    inputs, shared = _InFlight(Mock(), Mock())._inputs(task)
    assert shared == []
    return RemoteTask(
        version=pate.__version__, task=task, inputs=inputs, path=(str(HERE),),
        gpus=0.0, timeout=60,
    )  # fmt: skip


@pytest.fixture
def node(home, monkeypatch):
    """A Ray worker's state, whose process ends with the test."""
    made = ray_worker._Node()
    monkeypatch.setattr(ray_worker, "_node", made)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield made
    made.close()


def test_a_task_runs_on_copies(node, home, tmp_path):
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text("WORD = 'hello'")
    returned = run_task(remote("plugin", code=code(tmp_path / "plugins")))
    assert json.loads(returned.report)["result"] == {"says": "hello", "beside": ["mine.py"]}
    (tmp_path / "plugins" / "mine.py").write_text("WORD = 'changed'")
    returned = run_task(remote("plugin", code=code(tmp_path / "plugins")))  # in the same process
    assert json.loads(returned.report)["result"]["says"] == "changed"
    assert list(home.iterdir()) == []


def test_reports_name_the_drivers_files(node, tmp_path):
    (tmp_path / "a").write_text("a")
    task = remote("where", big=reads(tmp_path / "a"))
    returned = run_task(task)
    assert str(tmp_path) not in repr(task) + repr(returned)  # nor any result or parameter
    assert json.loads(returned.report)["result"] == {"path": str(tmp_path / "a")}


def test_a_full_disk_is_one_sentence(node, home, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "SECRET")

    (tmp_path / "a").write_text("a")
    task = remote("size", big=reads(tmp_path / "a"))
    monkeypatch.setattr(ray_worker, "unpack", full)
    returned = run_task(task)
    assert returned.stop
    assert json.loads(returned.report)["lost"]
    error = json.loads(returned.report)["error"]
    assert error.startswith("TaskFolderError: a worker cannot write the files of its task to ")
    assert f"{home}: no space left on device; make room there, or set PATE_TASK_F" in error
    assert "SECRET" not in error
    assert list(home.iterdir()) == []


def test_another_version_is_one_sentence(node, tmp_path):
    returned = run_task(replace(remote("size", big=reads(tmp_path)), version="9"))
    assert returned.stop
    assert "the driver has 9; install the same version on all" in returned.report.decode()


def test_files_of_a_task_count_and_large_ones_are_shared(tmp_path):
    """Otherwise the folders of many tasks would fill Ray's memory without being counted."""
    for n in range(4):
        (tmp_path / f"teacher-{n}").mkdir()
        (tmp_path / f"teacher-{n}" / "w.npy").write_bytes(bytes(3 << 20))
    (tmp_path / "public").write_bytes(bytes(5 << 20))
    teachers = [{"folder": reads(tmp_path / f"teacher-{n}")} for n in range(4)]
    task = Task(
        key="k", function="m:f", payload={"X": reads(tmp_path / "public"), "teachers": teachers}
    )
    cluster = Mock()
    inputs, shared = _InFlight(cluster, Mock())._inputs(task)
    assert (inputs[0], len(shared), cluster.ray.put.call_count) == (0, 1, 1)
    assert [each.size for each in inputs[1:]] == [3 << 20] * 4


def test_unreadable_plugins_are_one_sentence(tmp_path):
    with pytest.raises(PateError, match=r"cannot read the plug-ins in .*nothing\.py: No such file"):
        pack_modules(tmp_path / "nothing.py")


RAY_WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from pate.engines import Task
from pate.engines.files import makes, reads
from pate.engines.ray_worker import RemoteTask, pack, run_task
import pate
payload = {"note": sys.argv[2], "times": 9, "how": "hang", "X": reads(sys.argv[3]),
           "made": makes("/nowhere")}
run_task(RemoteTask(version=pate.__version__,
                    task=Task(key="k", function="ray_jobs:announce", payload=payload),
                    inputs=(pack(Path(sys.argv[3])), None), path=(), gpus=0.0, timeout=None))
"""


def test_a_killed_ray_worker_leaves_neither_process_nor_files(home, tmp_path):
    """Its worker process removes the task's folder and ends itself."""
    (tmp_path / "shard").write_text("private")
    command = [sys.executable, "-c", RAY_WORKER, HERE, tmp_path / "note", tmp_path / "shard"]
    with subprocess.Popen(list(map(str, command))) as process:
        wait_until((tmp_path / "note").exists)
        wait_until(lambda: (tmp_path / "note").read_text())
        (note,) = map(json.loads, (tmp_path / "note").read_text().splitlines())
        assert Path(note["shard"]).read_text() == "private"
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: list(home.iterdir()) == [])
    wait_until(lambda: not Path(f"/proc/{note['pid']}/exe").exists())
