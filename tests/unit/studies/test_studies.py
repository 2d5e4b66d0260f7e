"""What sweeps and comparisons share: seeds, memory, tables and pictures."""

from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
import sys
import time

import pytest

from pate._files import draft_folder
from pate.errors import StoreError
from pate.pipeline.recipe import Recipe
from pate.studies import PeakMemory, with_seed
from pate.studies import figure as figures
from pate.studies import memory as memories
from pate.studies.files import write_owned, write_table


def recipe(**sections):
    return Recipe.model_validate(
        {
            "data": {"name": "digits"},
            "teachers": {"count": 5, "model": "ridge", "seed": 3},
            "aggregate": {"scale": 2.0},
            "student": {"model": "ridge", "seed": 2**32 - 1},
            **sections,
        }
    )


def test_a_repetition_changes_chance_and_nothing_else():
    first, other = recipe(), with_seed(recipe(), 1)
    changed = {name for name in Recipe.model_fields if getattr(first, name) != getattr(other, name)}
    assert changed == {"partition", "teachers", "student"}
    assert other.partition.key != first.partition.key
    assert (other.teachers.seed, other.student.seed) == (4, 0)  # a student's seed has an end
    assert Recipe.model_validate(other.model_dump(mode="json")) == other
    assert len({with_seed(first, n).partition.key for n in range(5)}) == 5


def test_random_inputs_to_ask_about_are_others():
    asked = recipe(aggregate={"scale": 2.0, "choose": "random", "choose_seed": 5})
    assert with_seed(asked, 2).aggregate.choose_seed == 7
    assert with_seed(recipe(), 2).aggregate.choose_seed == 0  # nothing reads it


def test_peak_memory_counts_children_and_what_is_gone_again():
    size = 120_000_000
    code = f"import time; kept = bytearray({size}); print('made', flush=True); time.sleep(60)"
    with PeakMemory() as alone:
        pass
    enough = alone.megabytes + 0.9 * size / 1e6
    with PeakMemory() as peak:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"made\n"
            end = time.monotonic() + 10
            while peak.megabytes < enough and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
    assert peak.megabytes > enough


def test_peak_memory_without_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(memories, "_PROC", tmp_path)
    with PeakMemory() as peak:
        pass
    assert peak.megabytes > 10


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


def test_a_table_that_cannot_be_written_is_said_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*table.json: "):
        write_table(tmp_path / "file", "table", {}, rows=[], columns=[])


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    code = (
        "import os, sys, pathlib\n"
        "from pate.studies import files\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), 9)\n"
        "files.write_owned(pathlib.Path(sys.argv[1]), b'half')\n"
    )
    for name in ("table.json", "other.json"):
        killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=False)
        assert killed.returncode == -9
    assert len(os.listdir(tmp_path)) == 2
    with draft_folder(tmp_path, prefix=".table.json-") as held:  # of a writer that is still at it
        write_owned(tmp_path / "table.json", b"whole")
        assert held.is_dir()
    assert (tmp_path / "table.json").read_bytes() == b"whole"
    assert not list(tmp_path.glob(".table.json-*"))
    assert len(list(tmp_path.glob(".other.json-*"))) == 1  # it is of another file


def test_a_letter_that_the_font_lacks_is_a_box_and_no_warning(tmp_path):
    with figures.drawing() as figure:
        figure.subplots().set_title("\u05d0\u4e00")  # pytest makes an error of any warning
        figures.save(figure, tmp_path, "picture")


def test_pictures_are_the_same_every_time_and_undated(tmp_path):
    made = []
    for name in ("one", "two"):
        with figures.drawing() as figure:
            figure.subplots().plot([1, 2], [3, 4], label="$a")
            made.append(figures.save(figure, tmp_path / name, "picture"))
    (png, svg), (png_again, svg_again) = made
    assert png.read_bytes() == png_again.read_bytes()
    assert svg.read_bytes() == svg_again.read_bytes()
    assert b"matplotlib.org" not in png.read_bytes()
    assert "date" not in svg.read_text()
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in made[0])
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()


def test_studies_load_nothing_heavy():
    code = (
        "import pate.studies, pate.studies.figure, pate.studies.files, sys\n"
        "print([m for m in ('torch', 'sklearn', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
