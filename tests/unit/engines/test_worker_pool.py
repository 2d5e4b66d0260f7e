"""The queue and the pool of worker processes, beyond the contract of engines."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from pate.engines import Task, make_engine
from pate.engines.task import TaskQueue
from pate.errors import PateError


def tasks(count, size=0):
    text = "x" * size
    return (
        Task(key=str(n), function="builtins:dict", payload={"n": n, "text": text + str(n)})
        for n in range(count)
    )


def test_the_queue_reads_no_further_than_its_window():
    source = tasks(100)
    queue = TaskQueue(source, read_ahead=10)
    assert (len(queue), next(source).key) == (10, "10")
    queue.take()
    assert (len(queue), next(source).key) == (10, "12")


def test_the_queue_takes_a_task_back_without_reading_on():
    source = tasks(100)
    queue = TaskQueue(source, read_ahead=2)
    first = queue.take()
    queue.put_back(first)
    assert [queue.take().task.key for _ in range(3)] == ["1", "2", "0"]
    assert next(source).key == "5"


@pytest.mark.campaign
def test_memory_does_not_grow_with_the_number_of_tasks():
    def peak(count):
        tracemalloc.start()
        try:
            done = sum(1 for _ in make_engine("processes:2").run(tasks(count, size=2000)))
            assert done == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # imports
    assert peak(4500) < 1.2 * peak(1500)


def test_workers_that_cannot_start_end_the_run_with_a_sentence(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(PateError, match="3 worker processes in a row ended with exit code 1"):
        list(make_engine("processes:2").run(tasks(5)))


def test_no_interpreter_to_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(PateError, match=r"worker process 1 of 2 cannot be started \(No such file"):
        list(make_engine("processes:2").run(tasks(5)))


def test_no_more_workers_than_tasks(monkeypatch):
    from pate.engines import worker_pool

    started = []
    real = worker_pool._Worker
    monkeypatch.setattr(worker_pool, "_Worker", lambda *a, **k: started.append(1) or real(*a, **k))
    assert len(list(make_engine("processes:50").run(tasks(2)))) == 2
    assert len(started) == 2


def test_a_module_in_the_working_folder_does_not_break_a_worker(monkeypatch, tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    assert [o.error for o in make_engine("processes:1").run(tasks(1))] == [None]


def test_a_timeout_does_not_count_the_loading_of_modules(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text(
        "import time\ntime.sleep(2)\n\ndef nap(payload):\n    time.sleep(payload['seconds'])\n"
        "    return {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    naps = [
        Task(key=key, function="slow_module:nap", payload={"seconds": seconds})
        for key, seconds in (("short", 0), ("long", 60))
    ]
    outcomes = {outcome.key: outcome for outcome in make_engine("processes:2").run(naps, timeout=1)}
    assert outcomes["short"].error is None
    assert outcomes["long"].error == "TimedOut: no result within 1 seconds"
    assert outcomes["long"].seconds < 2


def test_a_module_that_never_loads_times_out(tmp_path, monkeypatch):
    from pate.engines import worker_pool

    monkeypatch.setattr(worker_pool, "_LOAD_SECONDS", 1.0)
    (tmp_path / "stuck_module.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    task = Task(key="stuck", function="stuck_module:nap", payload={})
    (outcome,) = make_engine("processes:1").run([task], timeout=1)
    assert outcome.error == "TimedOut: no result within 1 seconds"
