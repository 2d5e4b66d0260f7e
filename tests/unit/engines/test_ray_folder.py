"""A task's directory: gone with the task, however that ends; and nothing else is ever touched."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pate.engines.on_ray import folder as folders
from pate.engines.on_ray.folder import TaskFolderError, is_ours, remove, sweep, task_folder

OURS = "pate-task-0123456789abcdef"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where tasks have their directories; the working folder has something to lose."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "precious.txt").write_text("mine")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv(folders.VARIABLE, str(tmp_path / "home"))
    yield tmp_path / "home"
    assert (tmp_path / "work" / "precious.txt").read_text() == "mine"


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def filled(folder, mode=0o700):
    folder.mkdir()
    (folder / "shard.npy").write_text("private")
    folder.chmod(mode)
    return folder


# ------------------------------------------------------------------ its directory


def test_only_the_owner_can_read_it_and_it_goes(home):
    with task_folder() as folder:
        assert folder.parent == home
        assert folder.stat().st_mode & 0o777 == 0o700
        filled(folder / "locked", mode=0o500)
        assert sweep() == 1  # it is in use
        assert (folder / "locked" / "shard.npy").exists()
    assert list(home.iterdir()) == []


def test_it_goes_with_an_exception_too(home):
    def fail():
        with task_folder() as folder:
            (folder / "shard.npy").write_text("private")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert list(home.iterdir()) == []


def test_a_relative_place_is_meant_from_where_the_worker_is(home, monkeypatch):
    monkeypatch.setenv(folders.VARIABLE, "tasks")
    Path("tasks").mkdir()
    with task_folder() as folder:
        assert folder.is_absolute()
        os.chdir("/")
    assert not folder.exists()


def test_no_room_is_said_in_one_sentence(home, monkeypatch):
    (home / "file").write_text("")
    monkeypatch.setenv(folders.VARIABLE, str(home / "file"))
    with pytest.raises(
        TaskFolderError, match=r"file: not a directory; make room there, or set PATE_"
    ):
        task_folder().__enter__()


def test_a_place_that_does_not_exist_is_not_made(home, monkeypatch):
    """It may be a slip of the pen, or a disk that is not there today."""
    monkeypatch.setenv(folders.VARIABLE, str(home / "scratch" / "tasks"))
    words = r"scratch/tasks, does not exist; make it on that machine, or set PATE_TASK_FOLDER"
    with pytest.raises(TaskFolderError, match=words):
        task_folder().__enter__()
    assert list(home.iterdir()) == []
    assert sweep() == 0


# ------------------------------------------------------------------ sweeping


def test_what_a_dead_task_left_is_swept(home):
    filled(home / OURS, mode=0o500)
    assert sweep() == 0
    assert list(home.iterdir()) == []


def test_what_has_another_name_is_not(home):
    names = ["pate-task-force", "pate-task-", f"{OURS}0", f"x{OURS}", "pate-task-0123456789ABCDEF"]
    for name in names:
        filled(home / name)
    (home / "pate-task-aaaaaaaaaaaaaaaa").write_text("a file")
    (home / "pate-task-bbbbbbbbbbbbbbbb").symlink_to(filled(home / "mine"))
    assert sweep() == 0
    assert len(list(home.iterdir())) == len(names) + 3
    assert all((home / name / "shard.npy").exists() for name in [*names, "mine"])


def test_what_another_user_has_is_not(home, monkeypatch):
    filled(home / OURS)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert sweep() == 0
    assert (home / OURS / "shard.npy").exists()


@pytest.mark.parametrize("moment", ["open", "flock"])
def test_one_swept_before_it_was_locked_is_made_again(home, monkeypatch, moment):
    """A sweeper cannot tell it from a dead one's; there is nothing in it yet."""
    module = os if moment == "open" else fcntl
    real, swept = getattr(module, moment), []

    def late(*words, **more):
        if not swept:
            swept.append(True)
            for folder in home.iterdir():
                folder.rmdir()
        return real(*words, **more)

    monkeypatch.setattr(module, moment, late)
    with task_folder() as folder:
        assert list(home.iterdir()) == [folder]
        assert sweep() == 1
    assert swept
    assert list(home.iterdir()) == []


def test_what_is_in_use_is_not_swept(home):
    handle = os.open(filled(home / OURS), os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert sweep() == 1
    os.close(handle)
    assert sweep() == 0


@pytest.mark.parametrize("name", ["", ".", "..", "/", OURS, f"./{OURS}", "work", f"{OURS}/.."])
def test_what_is_no_tasks_directory_is_not_removed(home, monkeypatch, name):
    filled(Path(OURS))
    (home / OURS).symlink_to(filled(home / "mine"))
    monkeypatch.setattr(folders.shutil, "rmtree", lambda *_, **__: pytest.fail("removed"))
    monkeypatch.setattr(os, "chmod", lambda *_: pytest.fail("changed"))
    for path in (Path(name), home, home / OURS):
        assert not is_ours(path)
        remove(path)


def test_a_link_inside_is_removed_and_not_what_it_leads_to(home):
    with task_folder() as folder:
        (folder / "out").symlink_to(filled(home / "mine", mode=0o500))
    assert (home / "mine" / "shard.npy").exists()
    assert (home / "mine").stat().st_mode & 0o777 == 0o500


# ------------------------------------------------------------------ the warden

WATCHED = """
import sys, time
from pathlib import Path
from pate.engines.on_ray.folder import Warden
warden = Warden()
if sys.argv[1]:
    warden.watch_worker(int(sys.argv[1]))
warden.watch_folder(Path(sys.argv[2]) if sys.argv[2] else None)
if len(sys.argv) > 3:
    warden._process.stdin.write(sys.argv[3].encode())
    warden._process.stdin.flush()
print("watched", flush=True)
time.sleep(60)
"""


@pytest.fixture
def worker():
    """A process with a group of its own."""
    with subprocess.Popen(["sleep", "60"], process_group=0) as process:
        yield process
        process.kill()


def killed_while_watching(*words):
    """A process that has a warden is killed, and the warden has done what it does."""
    mark = secrets.token_hex(8)
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED, *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PATE_TEST_MARK": mark},
    ) as process:
        assert process.stdout.readline() == "watched\n"
        assert len(marked(mark)) == 2
        process.kill()
    wait_until(lambda: not marked(mark))


def marked(mark):
    """The processes that have this in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


def test_the_warden_ends_the_worker_and_removes_its_directory(home, worker):
    threading.Thread(target=worker.wait).start()  # as the system does where the parent is dead
    killed_while_watching(worker.pid, filled(home / OURS, mode=0o500))
    wait_until(lambda: not (home / OURS).exists())
    assert worker.wait(timeout=5) == -signal.SIGKILL


@pytest.mark.parametrize("name", ["", ".", "/", OURS, "home/pate-task-force", "home", "home/link"])
def test_the_warden_removes_nothing_else(home, tmp_path, name):
    filled(Path(OURS))
    filled(home / "pate-task-force")
    (home / "link").symlink_to(filled(home / "mine"))
    place = tmp_path / name if name.startswith("home") else name
    killed_while_watching("", place)
    assert (Path(OURS) / "shard.npy").exists()
    assert (home / "pate-task-force" / "shard.npy").exists()
    assert (home / "mine" / "shard.npy").exists()


def test_a_line_that_was_cut_off_means_nothing(home, worker):
    filled(home / OURS)
    cut = f"folder {os.fsencode(home / OURS).hex()}"
    killed_while_watching("", "", cut)
    assert (home / OURS).exists()
    killed_while_watching("", "", f"worker {worker.pid} {folders._born(worker.pid)}")
    assert worker.poll() is None


@pytest.mark.parametrize("pid", [0, 1])
def test_the_warden_ends_no_one_elses_process(worker, pid):
    killed_while_watching("", "", f"worker {pid} -\n")
    killed_while_watching("", "", f"worker {worker.pid} 1\n")  # born at another time
    time.sleep(0.1)
    assert worker.poll() is None


def test_the_warden_has_nothing_to_do_after_a_good_end(home):
    killed_while_watching("", filled(home / OURS), "folder \n")
    assert (home / OURS / "shard.npy").exists()
