"""Tasks on a Ray cluster of two nodes: files are transferred, workers and nodes are lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ray_cluster import alive, descendants

from pate.devices import current_device
from pate.engines import Task, make_engine, ray_session
from pate.engines import ray as ray_engine
from pate.engines.files import code, makes, modules, reads, rows, sweep
from pate.engines.ray_worker import RemoteResult
from pate.errors import InvalidInput, PateError

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.campaign]  # clusters
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def attached(cluster):
    """The engine on the cluster, which this process joins and leaves."""
    ray_session.disconnect()  # tests of another file may have started one
    yield make_engine(f"ray:{cluster.address}")
    ray_session.disconnect()


@pytest.fixture
def engine(attached, cluster, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    yield attached
    wait_until(lambda: list(cluster.tasks.iterdir()) == [])  # whatever has happened


@pytest.fixture
def shard(tmp_path):
    np.save(tmp_path / "X.npy", np.arange(3000.0).reshape(1000, 3))
    return tmp_path / "X.npy"


def job(name, key="only", *, cpus=1.0, gpus=0.0, **payload):
    return Task(key=key, function=f"ray_jobs:{name}", payload=payload, cpus=cpus, gpus=gpus)


def only(outcomes):
    (outcome,) = outcomes
    return outcome


def wait_until(condition):
    deadline = time.monotonic() + 50
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def notes(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# ------------------------------------------------------------------ files


def test_files_go_there_and_back(engine, cluster, shard, tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    task = job(
        "copy",
        text=reads(tmp_path / "a.txt"),
        X=rows(shard, 10, 12),
        file=makes(tmp_path / "out" / "b.txt"),
        folder=makes(tmp_path / "folder"),
        store=makes(tmp_path / "store", names=["private/teacher/a", "private/teacher/z"]),
    )
    outcome = only(engine.run([task]))
    assert outcome.error is None
    assert outcome.result["shape"] == [2, 3]
    assert Path(outcome.result["where"]).parent == cluster.tasks
    assert outcome.result["file"] == str(tmp_path / "out" / "b.txt")  # as the driver says
    assert (tmp_path / "out" / "b.txt").read_text() == "olleh"
    assert (tmp_path / "folder" / "sum.txt").read_text() == str(np.arange(30.0, 36).sum())
    assert [p.name for p in (tmp_path / "store/private/teacher").iterdir()] == ["a"]
    assert [p.name for p in (tmp_path / "store").iterdir()] == ["private"]  # as was asked for


def test_a_large_file_goes_into_rays_memory_once(engine, tmp_path, monkeypatch):
    import ray

    puts = []
    real = ray.put
    monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or real(value))
    big = tmp_path / "big"
    for size in (2 << 20, 3 << 20):  # it changes between two runs
        big.write_bytes(os.urandom(size))
        tasks = [job("size", str(n), big=reads(big)) for n in range(5)]
        assert [o.result["bytes"] for o in engine.run(tasks)] == [size] * 5
    assert len(puts) == 2


def test_modules_of_plugins_travel_and_nothing_beside_them(engine, tmp_path):
    folder = tmp_path / "plugins"
    (folder / "package").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "secret.csv").write_text("private")
    (folder / "data" / "more.py").write_text("# no package")
    (folder / "package" / "secret.npy").write_text("private")
    for word in ("one", "another"):
        (folder / "mine.py").write_text(f"WORD = {word!r}")
        found = only(engine.run([job("plugin", code=code(folder))]))
        assert found.result == {"says": word, "beside": ["mine.py", "package/__init__.py"]}
    assert set(modules(folder)) == {"mine.py", "package/__init__.py"}


def test_what_a_task_asks_for_without_a_file(engine, tmp_path):
    outcome = only(engine.run([job("size", big=reads(tmp_path / "nothing"))]))
    assert outcome.error == "FileNotFoundError"


# ------------------------------------------------------------------ workers that are lost


def sick(shard, tmp_path, how, times=1):
    files = {"X": rows(shard, 0, 5), "made": makes(tmp_path / "made"), "note": str(tmp_path / "n")}
    return job("announce", how=how, times=times, **files)


@pytest.mark.parametrize("who", ["pid", "ray_worker"])
def test_a_process_killed_in_the_middle(engine, shard, tmp_path, who):
    """The worker, or Ray's own: then Ray gives the task to another."""
    run = engine.run([sick(shard, tmp_path, "hang")], rescues=2)
    killed = []

    def kill():
        wait_until(lambda: notes(tmp_path / "n"))
        (note,) = notes(tmp_path / "n")
        assert Path(note["shard"]).exists()
        killed.append(note)
        os.kill(note[who], signal.SIGKILL)

    with beside(kill):
        outcome = only(run)
    assert (outcome.error, outcome.attempts) == (None, 2)
    assert (tmp_path / "made").stat().st_size > 100
    wait_until(lambda: not Path(killed[0]["shard"]).exists())
    wait_until(lambda: not alive(killed[0]["pid"]))


@contextlib.contextmanager
def beside(function):
    """Does something meanwhile; its failure is one of the test."""
    import threading

    failures = []

    def carefully():
        try:
            function()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=carefully)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(("times", "rescues"), [(1, 1), (9, 1)])
def test_a_task_that_segfaults(engine, shard, tmp_path, times, rescues):
    outcome = only(engine.run([sick(shard, tmp_path, "segfault", times)], rescues=rescues))
    assert outcome.attempts == 2
    died = "WorkerDied: the worker process was ended by signal SIGSEGV"
    assert outcome.error == (None if times == 1 else died)
    assert (tmp_path / "made").exists() == (times == 1)


@pytest.mark.parametrize(("rescues", "retries", "attempts"), [(2, 0, 3), (0, 0, 1), (1, 1, 3)])
def test_rays_worker_is_lost_each_time(engine, shard, tmp_path, rescues, retries, attempts):
    """Each is one attempt; the kind of error tells it from a death of the task's own worker."""
    done = []

    def kill():
        while not done:
            wait_until(lambda: done or notes(tmp_path / "n")[len(killed) :])
            for note in notes(tmp_path / "n")[len(killed) :]:
                killed.append(note)
                os.kill(note["ray_worker"], signal.SIGKILL)

    killed = []
    with beside(kill):
        run = engine.run([sick(shard, tmp_path, "hang", 9)], rescues=rescues, retries=retries)
        outcome = only(run)
        done.append(outcome)
    assert outcome.error == "NodeLost: the Ray worker or its node was lost"
    assert outcome.attempts == len(killed) == attempts


SCARCE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from pate.engines import Task, make_engine
from pate.engines.files import makes, rows
files = {"X": rows("X.npy", 0, 5), "made": makes("made"), "note": str(Path("n").absolute())}
task = Task(key="k", function="ray_jobs:announce", payload=files | {"how": "hang", "times": 9})
for outcome in make_engine("ray").run([task], rescues=2):
    print(outcome.attempts, outcome.error, flush=True)
"""


def test_a_node_short_of_memory(shard, tmp_path):
    """Ray ends the worker whenever it is begun; by itself it would begin it again for ever."""
    low = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "200"}
    done = subprocess.run(
        [sys.executable, "-c", SCARCE, str(HERE)],
        cwd=tmp_path, env=os.environ | low, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    said = "3 NodeLost: the Ray worker was ended because its node ran out of memory\n"
    assert done.stdout == said


def test_a_task_that_hangs(engine, shard, tmp_path):
    tasks = [sick(shard, tmp_path, "hang", 9), job("device", "quick")]
    outcomes = {o.key: o for o in engine.run(tasks, timeout=4, rescues=3)}
    assert outcomes["only"].error == "TimedOut: no result within 4 seconds"
    assert outcomes["only"].attempts == 1  # nobody was lost
    assert outcomes["quick"].error is None
    assert not any(alive(note["pid"]) for note in notes(tmp_path / "n"))


def test_a_whole_node_is_lost_in_the_middle(engine, cluster, shard, tmp_path):
    """Its task is done on the other; what it left is removed by the next sweep there."""
    task = replace(sick(shard, tmp_path, "hang"), gpus=0.0)
    hold = [job("pass_on", "hold", X=rows(shard, 0, 1), made=makes(tmp_path / "held"),
                until=str(tmp_path / "go"))]  # fmt: skip

    def kill():
        wait_until(lambda: notes(tmp_path / "n"))
        (note,) = notes(tmp_path / "n")
        theirs = set(descendants(cluster.second))
        if note["ray_worker"] in theirs:
            cluster.kill_second()
        else:  # it is on the first: then the other task is on the second
            os.kill(note["pid"], signal.SIGKILL)
            cluster.kill_second()
        (tmp_path / "go").write_text("")

    from_second = []
    with beside(kill):
        from_second += list(engine.run([task, *hold], rescues=3))
    assert {o.key: o.error for o in from_second} == {"only": None, "hold": None}
    assert sum(o.attempts for o in from_second) >= 3
    sweep(cluster.tasks)  # as the next command or task on that machine does
    cluster.add_second()
    wait_until(lambda: engine.slots == 2)


def test_a_node_without_room_for_the_task(engine, cluster, shard, tmp_path):
    cluster.tasks.rename(cluster.folder / "elsewhere")
    cluster.tasks.write_text("no folder")
    try:
        task = job("pass_on", X=rows(shard, 0, 5), made=makes(tmp_path / "made"))
        with pytest.raises(PateError, match=r"^task 'only' stopped: a worker cannot write .* set "):
            list(engine.run([task], rescues=1))
    finally:
        cluster.tasks.unlink()
        (cluster.folder / "elsewhere").rename(cluster.tasks)
    assert only(engine.run([task])).error is None


# ------------------------------------------------------------------ leaving


@pytest.mark.parametrize("ending", ["close", "exception"])
def test_leaving_the_loop_ends_the_work(engine, cluster, shard, tmp_path, ending):
    outcomes = engine.run(
        [sick(shard, tmp_path, "hang", 9), *(job("device", str(n)) for n in range(3))], rescues=3
    )
    next(outcomes)
    wait_until(lambda: notes(tmp_path / "n"))
    (note,) = notes(tmp_path / "n")
    start = time.monotonic()
    if ending == "close":
        outcomes.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            outcomes.throw(KeyboardInterrupt())
    assert time.monotonic() - start < 30  # where the task would take a minute
    assert not alive(note["pid"])
    assert list(cluster.tasks.iterdir()) == []
    assert len(notes(tmp_path / "n")) == 1  # Ray has not given it to another


def test_leaving_after_ray_was_shut_down_by_another(engine, monkeypatch):
    import ray

    outcomes = engine.run(job("device", str(n)) for n in range(9))
    next(outcomes)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "cancel", lambda *_, **__: pytest.fail("nobody is there"))
    monkeypatch.setattr(ray, "nodes", lambda: pytest.fail("nobody is there"))
    outcomes.close()


LOST = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pate.engines import Task, make_engine
from pate.engines import ray
from pate.errors import PateError
ray._GONE_SECONDS = 3.0
task = Task(key="k", function="ray_jobs:device", payload={"seconds": 60})
quick = [Task(key=str(n), function="ray_jobs:device", payload={}, weight=2) for n in "abc"]
try:
    for outcome in make_engine(f"ray:{sys.argv[1]}").run([*quick, task], rescues=3):
        print(outcome.error, flush=True)
except PateError as error:
    print(error, flush=True)
"""


def test_the_whole_cluster_is_gone(mortal_cluster, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", LOST, mortal_cluster.address, str(HERE)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path,
    ) as process:  # fmt: skip
        assert [process.stdout.readline() for _ in range(3)] == ["None\n"] * 3
        mortal_cluster.kill_all()
        start = time.monotonic()
        (said,) = process.communicate(timeout=100)[0].splitlines()
        assert said.startswith("the Ray cluster does not answer any more; finished work is kept")
        assert process.returncode == 0
        assert time.monotonic() - start < 50  # where the task would take a minute
    # With all its processes killed at once, a node keeps the folder until the next task there.
    assert sweep(mortal_cluster.tasks) == 0
    assert list(mortal_cluster.tasks.iterdir()) == []


# ------------------------------------------------------------------ what a task asks for


def test_more_than_any_node_has(engine, monkeypatch):
    monkeypatch.setattr(ray_engine, "_GRACE_SECONDS", 0.1)  # for a cluster to grow
    words = r"^a task asks for 3 cpus and 0 gpus at once, .* largest have 1 cpus and 1 gpus; lower"
    with pytest.raises(InvalidInput, match=words) as refused:
        list(engine.run([job("device", cpus=3)]))
    assert "only" not in str(refused.value)  # which of them tells of the size of its shard


def test_fractions_of_a_gpu_that_is_none(engine):
    """Two share it, beside one processor; without a driver they work on the processor."""
    tasks = [job("device", str(n), cpus=0.5, gpus=0.5, seconds=0.5) for n in range(4)]
    assert [o.result for o in engine.run(tasks)] == [{"device": "cpu"}] * 4
    assert str(current_device()) == "cpu"


def test_the_driver_runs_only_a_little_ahead(engine, shard, tmp_path):
    """An endless source; each task brings and makes a file, and the driver grows by none of it."""
    big = tmp_path / "big.npy"
    np.save(big, np.zeros((60_000, 1)))
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield job("pass_on", str(taken), X=rows(big, 0, 60_000), made=makes(tmp_path / "made"))

    outcomes = engine.run(endless())
    for done in range(1, 131):
        assert next(outcomes).error is None
        assert taken - done <= 256 + ray_engine._MIN_IN_FLIGHT
        if done == 30:
            before = own_memory()
    grown = own_memory() - before
    outcomes.close()
    assert grown < 12 << 20  # bytes, where the files of 100 tasks have 96 MB


def own_memory():
    """Bytes of this process that it shares with nobody, as it does Ray's memory."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x)
    return int(line.split()[1]) << 10


# ------------------------------------------------------------------ nothing damaged, nothing seen


def change_results(monkeypatch, change):
    """Changes what comes back from a node."""
    import ray

    real = ray.get

    def get(reference, **more):
        found = real(reference, **more)
        return change(found) if isinstance(found, RemoteResult) else found

    monkeypatch.setattr(ray, "get", get)


def flipped(transfer):
    ((name, content),) = transfer.files
    content = content.copy()
    content[7] ^= 1
    return replace(transfer, files=((name, content),))


def test_a_file_that_was_damaged_on_its_way_back_is_rejected(engine, shard, tmp_path, monkeypatch):
    def damaged(returned):
        ((number, name, transfer),) = returned.made
        return replace(returned, made=((number, name, flipped(transfer)),))

    change_results(monkeypatch, damaged)
    task = job("pass_on", "k", X=rows(shard, 0, 5), made=makes(tmp_path / "made"))
    words = r"^task 'k' stopped: a file was damaged in transit; run it again$"
    with pytest.raises(PateError, match=words):
        list(engine.run([task]))
    assert [p.name for p in tmp_path.iterdir()] == ["X.npy"]


def test_a_file_that_was_damaged_on_its_way_there_is_rejected(engine, shard, tmp_path, monkeypatch):
    pack_rows = ray_engine.pack_rows
    monkeypatch.setattr(ray_engine, "pack_rows", lambda *words: flipped(pack_rows(*words)))
    task = job("pass_on", "k", X=rows(shard, 0, 5), made=makes(tmp_path / "made"))
    with pytest.raises(PateError, match=r"^task 'k' stopped: a file was damaged in transit$"):
        list(engine.run([task]))


def test_a_file_that_was_not_requested_is_rejected(engine, shard, tmp_path, monkeypatch):
    def forged(returned):
        ((number, _, transfer),) = returned.made
        return replace(returned, made=((number - 1, "", transfer),))

    change_results(monkeypatch, forged)
    before = shard.read_bytes()
    task = job("pass_on", X=rows(shard, 0, 5), made=makes(tmp_path / "made"))
    with pytest.raises(PateError, match="not asked to make"):
        list(engine.run([task]))
    assert shard.read_bytes() == before


MARK = b"PRIVATE-7f3a91-RECORD-"


def holding(folder):
    """Files below a folder that hold a marked value; but for what Ray has spilled."""
    found = []
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file() and "spilled_objects" not in str(file):
                found += [file] if MARK in file.read_bytes() else []
    return found


def test_private_values_are_in_no_log_and_only_in_the_tasks_folder(engine, cluster, tmp_path):
    """Whatever a task prints, writes to a descriptor or raises; and only while it runs."""
    values = np.frombuffer(MARK * (2 << 20 >> 4), dtype=np.uint8)[: 2 << 20]
    np.save(tmp_path / "X.npy", values.reshape(-1, 1024))
    private = rows(tmp_path / "X.npy", 0, 500)
    waiting = {"until": str(tmp_path / "go"), "made": makes(tmp_path / "made")}
    tasks = [
        job("pass_on", "shard", X=private, **waiting),
        job("quote", "quote", X=private),
        job("refuse", "refuse", X=private),
    ]
    run = engine.run(tasks)
    outcomes = [next(run) for _ in range(2)]
    wait_until(lambda: holding(cluster.tasks))  # there the shard is, while the task runs
    beside_it = [file for file in holding(cluster.folder) if cluster.tasks not in file.parents]
    assert beside_it == []
    (tmp_path / "go").write_text("")
    outcomes += list(run)
    by_key = {o.key: o for o in outcomes}
    assert by_key["quote"].error == "ValueError"
    assert by_key["refuse"].error == "InvalidInput"  # the user's code raised it
    assert by_key["shard"].error is None
    assert MARK.decode() not in repr(outcomes)
    assert holding(cluster.folder) == []
    assert MARK in (tmp_path / "made").read_bytes()[::-1]
