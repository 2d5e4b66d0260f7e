"""Progress on a real terminal, in a log, and nowhere."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from pate.engines import progress, terminal_progress

SHOW = """
import sys, time
from pate.engines import terminal_progress
with terminal_progress("teach [50]", 50, done=30, **{options}) as progress:
    for _ in range(20):
        time.sleep(0.02)
        progress.advance()
        progress.retried({retries})
    print("to stdout")
"""


def on_a_terminal(*, quiet=False, json_logs=False, slots=None, retries=0, columns=100):
    """What a stage writes to a stderr that is a terminal, and to a stdout that is a pipe."""
    outside, inside = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    options = {"quiet": quiet, "json_logs": json_logs, "slots": slots}
    with subprocess.Popen(
        [sys.executable, "-c", SHOW.format(options=options, retries=retries)],
        stdout=subprocess.PIPE, stderr=inside, env=environment,
    ) as process:  # fmt: skip
        os.close(inside)
        shown = b""
        while True:
            try:
                chunk = os.read(outside, 65536)
            except OSError:  # how Linux says that the other side of a terminal is closed
                break
            if not chunk:
                break
            shown += chunk
        os.close(outside)
        assert process.stdout.read() == b"to stdout\n"
    assert process.returncode == 0
    return shown.decode()


def test_a_terminal_shows_a_bar_with_count_rate_and_time_left():
    shown = on_a_terminal()
    assert "teach [50]" in shown
    assert "50/50" in shown
    assert "/s, 0:00:00 left" in shown
    assert "/s, took 0:0" in shown
    rates = [float(text.split()[-1]) for text in shown.replace("m", " ").split("/s,")[:-1]]
    assert max(rates) < 100  # 20 new ones, not 50, count towards the rate
    assert not any(word in shown for word in ("slot", "retries", "retry"))


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_slots_and_retries_where_there_are_any(columns):
    shown = on_a_terminal(slots=64, retries=2, columns=columns)
    last = plain(shown).splitlines()[-1]
    assert last.startswith("teach [50] ━")
    assert re.fullmatch(r".*50/50 64 slots, [0-9.]+/s, took 0:00:0[0-9], 40 retries", last.rstrip())


def plain(shown):
    """The words on a terminal, without what moves and colours them."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "\n").strip()


def test_quiet_is_quiet():
    assert on_a_terminal(quiet=True) == ""
    assert on_a_terminal(quiet=True, json_logs=True) == ""


def test_json_lines_on_a_terminal_too():
    record = json.loads(on_a_terminal(json_logs=True, slots=2, retries=1))
    seconds, rate = record.pop("seconds"), record.pop("rate")
    assert record == {
        "stage": "teach [50]", "done": 50, "total": 50, "slots": 2, "left_seconds": 0, "retries": 20
    }  # fmt: skip
    assert 0.4 <= seconds < 10
    assert rate == pytest.approx(20 / seconds, rel=0.01)


def test_nothing_without_a_terminal(capsys):
    with terminal_progress("teach", 3, quiet=False, json_logs=False) as shown:
        shown.advance()
        shown.advance(2)
        shown.retried(1)
    assert capsys.readouterr() == ("", "")


def test_json_lines_come_once_a_second_and_at_the_end(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with terminal_progress("teach", 100, quiet=False, json_logs=True) as log:
        for _ in range(10):
            clock[0] += 0.4
            log.advance(10)
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in err.splitlines()]
    assert out == ""
    assert [line["done"] for line in lines] == [30, 60, 90, 100]
    assert [line["seconds"] for line in lines] == [1.2, 2.4, 3.6, 4.0]
    assert [line["rate"] for line in lines] == [25.0] * 4
    assert [line["left_seconds"] for line in lines] == [2.8, 1.6, 0.4, 0.0]
    assert [(line["slots"], line["retries"]) for line in lines] == [(None, 0)] * 4


def test_json_lines_tell_of_retries_though_nothing_is_done(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with terminal_progress("teach", 9, quiet=False, json_logs=True, done=3, slots=4) as log:
        clock[0] += 2.0
        log.retried(5)
        line = json.loads(capsys.readouterr().err)
    assert line == {
        "stage": "teach", "done": 3, "total": 9, "slots": 4, "seconds": 2.0,
        "rate": 0.0, "left_seconds": None, "retries": 5,
    }  # fmt: skip


def test_a_stage_that_fails_still_says_how_far_it_came(capsys):
    def stage():
        with terminal_progress("teach", 9, quiet=False, json_logs=True) as log:
            log.advance(4)
            raise LookupError("SECRET")

    with pytest.raises(LookupError):
        stage()
    err = capsys.readouterr().err
    assert json.loads(err)["done"] == 4
    assert "SECRET" not in err


def test_a_closed_log_does_not_stop_the_work(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1, closefd=False) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal_progress("teach", 2, quiet=False, json_logs=True) as log:
            log.advance(2)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), writing)  # so that closing can flush
    os.close(writing)


def test_without_any_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with terminal_progress("teach", 1, quiet=False, json_logs=True) as log:
        log.advance()


def test_no_time_stays_in_a_notebook(monkeypatch):
    """A notebook is shared with its output, and how long private stages took is private."""
    display = pytest.importorskip("IPython.display")
    shown = []

    class Handle:
        def update(self, line):
            shown.append(f"{line!r} {line._repr_html_()}")

    monkeypatch.setattr(display, "display", lambda line, display_id: Handle())
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    with terminal_progress("teach", 2, quiet=False, json_logs=False, slots=2) as bar:
        bar.advance(2)
    html = '<progress value="2" max="2"></progress> <code>teach 2/2</code>'
    assert shown[-1] == f"teach 2/2 {html}"
