"""The command line around its commands: completion, the live table, ``pate doctor``."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from harness import CENTROIDS, Project, open_project

import pate
from pate.accounting import Guarantee, LaplaceNoisyMaxAnswer, Ledger


@pytest.mark.parametrize(
    ("line", "first", "others"),
    [
        ("pate do", "doctor", set()),
        ("pate run dig", "digits", {"digits-teachers"}),
        ("pate compare ", "compare-digits", {"compare-mnist"}),
        ("pate ledger sh", "show", set()),
        ("pate ledger show ", "runs/one", {"runs/two"}),
        ("pate status runs/t", "runs/two", set()),
        ("pate run digits --dry", "--dry-run", set()),
        ("dpsgd train d", "digits-dpsgd", set()),
    ],
)
def test_a_shell_completes_commands_recipes_and_runs(line, first, others, tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    project = Project(tmp_path)
    program = line.partition(" ")[0]
    monkeypatch.setattr(Project, "program", program)
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    monkeypatch.setenv(f"_{program.upper()}_COMPLETE", "complete_bash")
    offered = set(project.call().stdout.splitlines())
    assert {first} | others <= offered
    assert all(each.startswith(line.rpartition(" ")[2]) for each in offered)


def test_bash_accepts_the_completion_that_is_printed(tmp_path, monkeypatch):
    monkeypatch.setenv("_PATE_COMPLETE", "source_bash")
    script = Project(tmp_path).call().stdout
    assert "_PATE_COMPLETE=complete_bash" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def terminal(project, *words, keys=()):
    """Run a command in a pseudo-terminal; return what it wrote, its code, and the settings after.

    ``keys`` are sent once their text was seen.
    """
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (40, 100))
    before = termios.tcgetattr(slave)
    process = subprocess.Popen(
        project.command(*words),
        cwd=project.folder,
        env=project.environment() | {"TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    written, waiting = b"", list(keys)
    while process.poll() is None or select.select([master], [], [], 0.1)[0]:
        if select.select([master], [], [], 0.1)[0]:
            written += os.read(master, 65536)
        if waiting and waiting[0][0] in written:
            os.write(master, waiting.pop(0)[1])
    after = termios.tcgetattr(slave)
    os.close(master)
    os.close(slave)
    return written.decode(), process.returncode, before == after


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor


def test_a_terminal_shows_stages_that_change_in_place(tmp_path):
    project = open_project(tmp_path)
    words = ("run", "tiny.toml", "--engine", "serial", "--plugin-path", "plugins")
    written, code, same = terminal(project, *words)
    assert code == 0
    assert same
    assert written.rfind(SHOW) > written.rfind(HIDE) >= 0
    written = re.sub(r"\x1b\[[\d;]*m", "", written)
    assert re.search(r"teach +running", written)
    assert re.search(r"teach +done +\d+\.\d s +6 of 6", written)
    assert ": running" not in written  # no line for each stage besides
    assert re.search(r"will charge ε .*\n", written)
    assert re.search(r"Time: \d.* s \(data \d.*teach .*evaluate", written.replace("\r\n", ""))
    assert written.rstrip().splitlines()[-1].startswith("Publish: ")


def test_an_interrupted_run_leaves_the_terminal_as_it_was(tmp_path):
    project = open_project(tmp_path)
    slow = CENTROIDS.replace("def fit(self, X, y):", "def fit(self, X, y):\n        import time; "
                             "time.sleep(60)")  # fmt: skip
    project.plugin("centroids", slow)
    words = ("run", "tiny.toml", "--engine", "processes:1", "--plugin-path", "plugins")
    written, code, same = terminal(project, *words, keys=[(b"0 of 6", b"\x03")])
    assert code == 130
    assert same
    assert written.rfind(SHOW) > written.rfind(HIDE) >= 0
    assert re.search(r"teach +stopped", re.sub(r"\x1b\[[\d;]*m", "", written))
    assert written.rstrip().endswith("pate: interrupted; run the same command again to resume")


def test_verbose_prints_why_a_stage_runs_and_how_long_it_took(tmp_path):
    project = open_project(tmp_path)
    first = project.call_run("--verbose").stdout
    assert "teach: running (not made yet)\n" in first
    assert re.search(r"teach: done in \d+\.\d s\n", first)
    again = project.call_run("--verbose", "--set", "student.seed=5").stdout
    assert "teach: done before\n" in again
    assert "distill: running (student.seed changed)\n" in again
    (times,) = (line for line in again.splitlines() if line.startswith("Time: "))
    assert "teach" not in times
    assert "distill" in times


def test_a_dry_run_lists_stages_and_a_stage_before_the_labels_charges_nothing(tmp_path):
    project = open_project(tmp_path)
    shown = project.call_run("--dry-run", stage="teach").stdout.splitlines()
    assert shown[-2:] == [
        "teach: missing",
        "nothing to charge: labels are released later, by `pate aggregate`",
    ]
    assert not project.run_folder.exists()
    labels = project.call_run("--dry-run", stage="aggregate").stdout
    assert labels.count("will charge") == 1  # the sanitised ε comes with `account`
    both = project.call_run("--dry-run").stdout
    assert (both.count("will charge"), both.count("will bring")) == (1, 1)


@pytest.fixture
def healthy(tmp_path, monkeypatch):
    project = open_project(tmp_path)
    monkeypatch.setenv("PATE_DATA", "data")
    (tmp_path / "data" / "ledgers").mkdir()
    budget = Guarantee(epsilon=3.0, delta=1e-5)
    with Ledger.open(project.ledger, budget=budget) as ledger:
        ledger.charge([LaplaceNoisyMaxAnswer(scale=10.0)], release="a")
    return project


def checks(project, code=0):
    report = json.loads(project.call("doctor", "--json", code=code).stdout)
    assert bool(report["broken"]) == bool(code)
    assert set(report) == {"broken", "checks"}
    return {each["name"]: (each["state"], each["text"]) for each in report["checks"]}


def test_doctor_reports_a_healthy_installation_and_changes_nothing(healthy):
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in
              healthy.ledger.parent.iterdir()}  # fmt: skip
    found = checks(healthy)
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in
             healthy.ledger.parent.iterdir()}  # fmt: skip
    assert before == after
    assert found["Python"] == ("ok", f"{sys.version.split()[0]}, {sys.executable}")
    assert {found[name][0] for name in ("pate", "dependencies", "torch", "data root")} == {"ok"}
    state, text = found["tiny.ledger"]
    assert state == "ok"
    assert text.startswith("1 charge; the data set so far ε = ")
    assert text.endswith(" of 3")
    shown = healthy.call("doctor").stdout.splitlines()
    assert [line[:7].strip() for line in shown].count("BROKEN") == 0
    assert len(shown) == len(found)


def test_doctor_leaves_the_log_of_a_crashed_run_as_it_is(healthy, tmp_path):
    with Ledger.open(healthy.ledger) as ledger:
        ledger.charge([LaplaceNoisyMaxAnswer(scale=10.0)], release="b")
        shutil.copytree(healthy.ledger.parent, tmp_path / "crashed" / "ledgers")
    files = [tmp_path / "crashed" / "ledgers" / f"tiny.ledger{end}" for end in ("", "-wal")]
    before = [file.read_bytes() for file in files]
    told = healthy.call("doctor", "--data-root", "crashed").stdout
    assert "tiny.ledger    2 charges" in told
    assert [file.read_bytes() for file in files] == before


def test_doctor_finds_what_is_broken(healthy, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.1")
    (healthy.ledger.parent / "old.ledger").write_bytes(b"not a database, by far" * 100)
    content = bytearray(healthy.ledger.read_bytes())
    content[4096:8192] = bytes(4096)
    healthy.ledger.write_bytes(content)
    other = healthy.folder / "path" / "PATE-0.1.1.dist-info"
    other.mkdir(parents=True)
    monkeypatch.syspath_prepend(other.parent)
    found = checks(healthy, code=1)
    assert found["numpy"][1].startswith("0.0.1; numpy>=2.0 is needed")
    assert "is installed, too" in found["import name"][1]
    for name in ("old.ledger", "tiny.ledger"):
        state, text = found[name]
        assert state == "broken"
        assert str(healthy.ledger.with_name(name)) in text


def test_doctor_refuses_a_data_root_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    told = Project(tmp_path).call("doctor", "--data-root", "file", code=1).stdout
    (line,) = (each for each in told.splitlines() if each.startswith("BROKEN"))
    assert "is not a folder one may write to" in line


def test_a_package_that_is_absent_is_named_with_its_remedy(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *of: None if name == 'torch' else find(name, *of)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(pate.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "pate", "run", "digits", "--out", "out"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "XDG_DATA_HOME": str(tmp_path / "user")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "pate: torch is not installed; run: pip install 'pate-privacy'\n"
    assert done.returncode == 2
