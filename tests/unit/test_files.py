"""Files on disk: whole or as before, one winner, locks that end with their process."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys

import pytest

from pate._files import (
    create_once,
    draft_folder,
    exclusive_lock,
    remove_abandoned_files,
    write_atomically,
)
from pate.errors import InvalidInput, StoreError


def test_a_file_is_replaced_with_its_permissions(tmp_path):
    file = tmp_path / "new" / "file"
    write_atomically(file, b"one", make_parents=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    before = os.umask(0o027)
    try:
        write_atomically(file, b"two", mode=0o666)
    finally:
        os.umask(before)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"two", 0o640)
    assert os.listdir(file.parent) == ["file"]


def test_a_failed_write_changes_nothing(tmp_path, monkeypatch):
    file = tmp_path / "file"
    write_atomically(file, b"one")

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"^cannot write it: no space left on device; nothing was"):
        write_atomically(file, b"two", name="it")
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"one", ["file"])


def test_a_missing_folder_is_reported(tmp_path):
    with pytest.raises(StoreError, match=r"cannot write .*file: no such file or directory"):
        write_atomically(tmp_path / "no" / "file", b"")


def test_the_first_creator_wins(tmp_path):
    assert create_once(tmp_path / "key", b"one")
    assert not create_once(tmp_path / "key", b"two")
    assert ((tmp_path / "key").read_bytes(), os.listdir(tmp_path)) == (b"one", ["key"])


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_lock_is_for_one_process_and_ends_with_it(tmp_path, kind):
    place = tmp_path / kind
    if kind == "folder":
        place.mkdir()
    code = (
        "import sys, pathlib, time\n"
        "from pate._files import exclusive_lock\n"
        "with exclusive_lock(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, place], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    with (
        pytest.raises(InvalidInput, match="busy"),
        exclusive_lock(place, busy=InvalidInput("busy")),
    ):
        pass
    waited = []

    def end():
        waited.append(True)
        other.kill()

    with exclusive_lock(place, on_wait=end):
        assert waited == [True]
    other.communicate()


def test_abandoned_drafts_are_removed_and_others_kept(tmp_path):
    (tmp_path / ".table.json-abcdefgh").mkdir()
    (tmp_path / ".config").mkdir()
    with draft_folder(tmp_path, prefix=".page.html-") as held:
        remove_abandoned_files(tmp_path)
        assert sorted(os.listdir(tmp_path)) == sorted([".config", held.name])
    assert os.listdir(tmp_path) == [".config"]
