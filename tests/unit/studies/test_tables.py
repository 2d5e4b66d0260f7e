"""Tables of a study as files: whole, for their owner, and light to import."""

from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
import sys

import pytest

from pate._files import draft_folder
from pate.errors import StoreError
from pate.studies.tables import write_private_file, write_table


def test_tables_are_whole_and_for_their_owner(tmp_path):
    rows = [{"name": "a, b", "epsilon": 1.5, "runs": [1, 2]}, {"name": "c", "other": 3}]
    files = write_table(
        tmp_path / "new", "table", {"rows": rows}, rows=rows, columns=["name", "epsilon", "runs"]
    )
    assert [file.name for file in files] == ["table.json", "table.csv"]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert json.loads(files[0].read_text())["rows"] == rows
    with files[1].open(newline="") as stream:
        assert list(csv.reader(stream)) == [
            ["name", "epsilon", "runs"],
            ["a, b", "1.5", "1 2"],
            ["c", "", ""],
        ]
    assert sorted(os.listdir(tmp_path / "new")) == ["table.csv", "table.json"]


def test_a_table_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*table.json: "):
        write_table(tmp_path / "file", "table", {}, rows=[], columns=[])


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    code = (
        "import os, sys, pathlib\n"
        "from pate.studies import tables\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), 9)\n"
        "tables.write_private_file(pathlib.Path(sys.argv[1]), b'half')\n"
    )
    for name in ("table.json", "other.json"):
        killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=False)
        assert killed.returncode == -9
    assert len(os.listdir(tmp_path)) == 2
    with draft_folder(tmp_path, prefix=".table.json-") as held:  # of a writer that is still at it
        write_private_file(tmp_path / "table.json", b"whole")
        assert held.is_dir()
    assert (tmp_path / "table.json").read_bytes() == b"whole"
    assert not list(tmp_path.glob(".table.json-*"))
    assert len(list(tmp_path.glob(".other.json-*"))) == 1  # it is of another file


def test_studies_load_nothing_heavy():
    code = (
        "import pate.studies.plots, pate.studies.tables, sys\n"
        "print([m for m in ('torch', 'sklearn', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
