"""What every engine promises, on every built-in engine; then what those with workers promise."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pate.engines import Task, make_engine, worker
from pate.errors import InvalidInput

JOBS = Path(__file__).parents[1] / "unit" / "engines"
RAY = pytest.param("ray", marks=[pytest.mark.xdist_group("ray"), pytest.mark.campaign])
SHARED = pytest.param("gpus:cpu@2", marks=pytest.mark.campaign)
ENGINES = ["serial", "processes:1", "processes:2", "gpus:cpu,cpu", SHARED, RAY]
ONE_WORKER = ["processes:1", "gpus:cpu"]
TWO_WORKERS = ["processes:2", "gpus:cpu,cpu"]
THREE_WORKERS = ["processes:3", "gpus:cpu@3"]
LIMIT = 3  # seconds; enough on a busy machine for a new worker to load the jobs

pytestmark = pytest.mark.usefixtures("jobs")


@pytest.fixture
def jobs(monkeypatch):
    monkeypatch.syspath_prepend(str(JOBS))


@pytest.fixture(scope="module", autouse=True)
def leave_ray():
    """One Ray for all tests here, and none after them."""
    yield
    if "pate.engines.ray_session" in sys.modules:
        sys.modules["pate.engines.ray_session"].disconnect()


@pytest.fixture(params=ENGINES)
def engine(request):
    return make_engine(request.param)


@pytest.fixture(params=ONE_WORKER)
def one_worker(request):
    return make_engine(request.param)


@pytest.fixture(params=TWO_WORKERS)
def two_workers(request):
    return make_engine(request.param)


def job(name, key="only", *, weight=1.0, cpus=1.0, **payload):
    return Task(key=key, function=f"jobs:{name}", payload=payload, weight=weight, cpus=cpus)


def only(outcomes):
    (outcome,) = outcomes
    return outcome


def alive(pid):
    """Whether the process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status not in "ZX"


def wait_until(condition):
    """Waits for what takes a moment, on a busy machine some more; tasks sleep for a minute."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 30, "waited in vain"
        time.sleep(0.01)


# ------------------------------------------------------------------ every engine


def test_every_task_has_one_outcome(engine):
    tasks = [job("double", f"job-{n}", n=n, weight=n % 7) for n in range(50)]
    outcomes = list(engine.run(tasks))
    assert len(outcomes) == 50
    results = {outcome.key: outcome.result for outcome in outcomes}
    assert results == {f"job-{n}": {"double": 2 * n} for n in range(50)}
    assert all(o.error is None and o.attempts == 1 and o.seconds >= 0 for o in outcomes)


@pytest.mark.xdist_group("ray")
@pytest.mark.campaign
def test_ray_in_short():
    """The rest of its contract is a campaign: starting Ray takes seconds."""
    tasks = [job("double", f"job-{n}", n=n) for n in range(6)] + [job("fail", "bad")]
    outcomes = {outcome.key: outcome for outcome in make_engine("ray").run(tasks, timeout=60)}
    assert [outcomes[f"job-{n}"].result for n in range(6)] == [{"double": 2 * n} for n in range(6)]
    assert outcomes["bad"].error == "ValueError"
    assert "SECRET" not in repr(outcomes)


def test_no_tasks_no_outcomes(engine):
    assert list(engine.run([])) == []


def test_what_arrives_does_not_depend_on_the_engine(engine):
    payload = {"tuple": (1, 2), 3: None, "text": "ε\n\x00\ud800", "number": 0.1 + 0.2, "big": 2**80}
    task = Task(key="k", function="jobs:echo", payload=payload)
    got = only(engine.run([task])).result["got"]
    assert got == {
        "tuple": [1, 2], "3": None, "text": "ε\n\x00\ud800", "number": 0.1 + 0.2, "big": 2**80
    }  # fmt: skip


def test_a_large_payload_and_result_pass(engine):
    text = "x" * 3_000_000
    assert only(engine.run([job("echo", text=text)])).result == {"got": {"text": text}}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fail", "ValueError"),
        ("refuse", "InvalidInput"),  # an error of ours, but whoever raises it chooses the words
        ("leave", "SystemExit"),
        ("end_generator", "GeneratorExit"),
    ],
)
def test_an_exception_is_an_outcome_without_private_words(engine, name, error):
    outcome = only(engine.run([job(name)]))
    assert (outcome.result, outcome.error, outcome.attempts) == (None, error, 1)
    assert re.fullmatch(r"engines/jobs\.py line \d+", outcome.where)
    assert outcome.why == f"{error} in {outcome.where}"
    assert "SECRET" not in repr(outcome)


def test_numpy_is_as_it_was_after_a_task_that_changed_it(one_worker):
    """The same worker takes both tasks."""
    outcomes = one_worker.run([job("strict_numpy", "first", weight=2.0), job("numpy_state")])
    assert [outcome.result for outcome in outcomes] == [{"over": "raise"}, {"over": "warn"}]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("jobs:not_a_dict", "jobs:not_a_dict returned list"),
        ("jobs:not_json", "not plain JSON data (TypeError)"),
        ("jobs:nothing_here", "check that 'jobs' defines it"),
        ("jobs:NOT_A_FUNCTION", "is not a function"),
        ("no_such_module_at_all:f", "there is no module 'no_such_module_at_all'"),
    ],
)
def test_a_function_that_breaks_the_rules_is_named(engine, function, words):
    outcome = only(engine.run([Task(key="k", function=function, payload={})]))
    assert outcome.result is None
    assert outcome.error.startswith("InvalidInput: ")
    assert words in outcome.error


def test_a_failure_leaves_the_others_alone(engine):
    tasks = [job("fail" if n % 3 == 0 else "double", str(n), n=n) for n in range(12)]
    errors = {int(o.key): o.error for o in engine.run(tasks)}
    assert errors == {n: "ValueError" if n % 3 == 0 else None for n in range(12)}


def test_retries_until_it_works(engine, tmp_path):
    outcome = only(
        engine.run([job("count_tries", file=str(tmp_path / "f"), works_at=3)], retries=4)
    )
    assert (outcome.result, outcome.error, outcome.attempts) == ({"tries": 3}, None, 3)


def test_retries_end(engine, tmp_path):
    file = tmp_path / "f"
    outcome = only(engine.run([job("count_tries", file=str(file), works_at=9)], retries=2))
    assert (outcome.result, outcome.error, outcome.attempts) == (None, "RuntimeError", 3)
    assert len(file.read_text().splitlines()) == 3


def test_tasks_are_taken_as_they_are_needed(engine):
    """An endless source is fine, and the driver runs at most a fixed window ahead of it."""
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield job("double", str(taken), n=taken)

    outcomes = engine.run(endless())
    for finished in range(1, 301):
        next(outcomes)
        assert taken - finished <= 256 + 4
    outcomes.close()
    with pytest.raises(StopIteration):
        next(outcomes)


def test_an_error_in_the_source_reaches_the_caller(engine):
    def broken():
        yield job("double", n=1)
        raise LookupError("the source")

    with pytest.raises(LookupError, match="the source"):
        list(engine.run(broken()))


def test_a_failure_is_nothing_to_rescue_from(engine, tmp_path):
    task = job("count_tries", file=str(tmp_path / "f"), works_at=9)
    outcome = only(engine.run([task], rescues=5, retries=1))
    assert (outcome.error, outcome.attempts) == ("RuntimeError", 2)


@pytest.mark.parametrize(
    "limits", [{"retries": -1}, {"retries": 1.5}, {"rescues": -1}, {"timeout": 0.0}]
)
def test_limits_without_meaning_are_refused_at_once(engine, limits):
    with pytest.raises(InvalidInput, match=r"retries is|rescues is|timeout is"):
        engine.run([], **limits)


def test_slots_and_devices_agree(engine):
    assert engine.slots >= 1
    assert len(engine.devices) == (1 if engine.name == "ray" else engine.slots)  # of this machine


def used(found):
    """The numbers of threads that libraries have, all of them."""
    return set(found["blas"] + found["openmp"] + [found["torch"]])


def check_threads(engine, cpus):
    tasks = {
        str(n): job("threads", str(n), cpus=count, weight=9 - n) for n, count in enumerate(cpus)
    }
    for outcome in engine.run(tasks.values()):
        expected = min(tasks[outcome.key].threads, worker.usable_cores())
        assert used(outcome.result) == {expected}
        assert outcome.result["joblib"] == str(expected)


@pytest.mark.campaign
def test_a_task_has_as_many_threads_on_every_engine(engine):
    """Whatever an earlier task has set, and loaded."""
    check_threads(engine, [1, 2.9, 0.25, 2, 1])


@pytest.mark.campaign
@pytest.mark.parametrize("text", ["serial", "processes:2", "gpus:cpu,cpu"])
def test_overhead_of_2000_trivial_tasks(text, capsys):
    start = time.perf_counter()
    tasks = (job("double", str(n), n=n) for n in range(2000))
    outcomes = list(make_engine(text).run(tasks))
    each = (time.perf_counter() - start) / 2000
    assert sum(outcome.result["double"] for outcome in outcomes) == 2000 * 1999
    with capsys.disabled():
        print(f"\n{text}: {1000 * each:.3f} ms of overhead for each of 2000 tasks")


# ------------------------------------------------------------------ serial alone


def test_serial_refuses_a_timeout():
    with pytest.raises(InvalidInput, match="serial engine cannot stop a task"):
        make_engine("serial").run([], timeout=1.0)


ALONE = """
import os, sys
sys.path.insert(0, {jobs!r})
from pate.engines import Task, make_engine
(outcome,) = make_engine("serial").run([Task(key="k", function="jobs:threads", payload={{}})])
import jobs
for found in (outcome.result, jobs.threads({{}})):
    print(sorted(set(found["blas"] + found["openmp"] + [found["torch"]])), found["joblib"])
print(sorted(name for name in os.environ if name.endswith("_NUM_THREADS")))
"""


@pytest.mark.parametrize("told", [{}, {"OMP_NUM_THREADS": "3"}])
@pytest.mark.sample(1)
def test_serial_gives_the_threads_back_though_a_task_loaded_the_libraries(told):
    clean = {name: value for name, value in os.environ.items() if name not in worker._VARIABLES}
    run = subprocess.run(
        [sys.executable, "-c", ALONE.format(jobs=str(JOBS))],
        env=clean | told, capture_output=True, text=True, check=True,
    )  # fmt: skip
    usual = told.get("OMP_NUM_THREADS", worker.usable_cores())
    assert run.stdout.splitlines() == ["[1] 1", f"[{usual}] None", str(sorted(told))]


def test_serial_gives_back_what_was_set_before():
    import jobs
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    try:
        with threadpool_limits(limits=2):
            torch.set_num_threads(2)
            assert used(only(make_engine("serial").run([job("threads")])).result) == {1}
            assert used(jobs.threads({})) == {2}
    finally:
        torch.set_num_threads(before)


# ------------------------------------------------------------------ engines with workers


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("kill", "WorkerDied: the worker process was ended by signal SIGKILL"),
        ("exit", "WorkerDied: the worker process was ended with exit code 7"),
        ("segfault", "WorkerDied: the worker process was ended by signal SIGSEGV"),
    ],
)
@pytest.mark.parametrize("limit", ["retries", "rescues"])
@pytest.mark.sample(3)
def test_a_task_that_ends_its_worker(two_workers, tmp_path, how, error, limit):
    hopeless = job("count_tries", "hopeless", file=str(tmp_path / "a"), works_at=99, how=how)
    lucky = job("count_tries", "lucky", file=str(tmp_path / "b"), works_at=3, how=how)
    others = [job("double", str(n), n=n) for n in range(20)]
    outcomes = {o.key: o for o in two_workers.run([hopeless, lucky, *others], **{limit: 2})}
    assert len(outcomes) == 22
    assert (outcomes["hopeless"].error, outcomes["hopeless"].attempts) == (error, 3)
    assert (outcomes["lucky"].result, outcomes["lucky"].attempts) == ({"tries": 3}, 3)
    assert all(outcomes[str(n)].result == {"double": 2 * n} for n in range(20))


@pytest.mark.parametrize(
    ("how", "limits", "attempts", "works"),
    [
        (["kill", "kill", "raise"], {"retries": 1, "rescues": 2}, 4, True),
        (["raise", "kill", "kill"], {"retries": 1, "rescues": 2}, 4, True),
        (["kill", "kill", "kill"], {"retries": 1, "rescues": 2}, 4, True),
        (["kill", "raise", "kill"], {"retries": 1, "rescues": 1}, 3, False),
        (["raise", "kill", "raise"], {"retries": 1, "rescues": 2}, 3, False),
        (["kill", "kill", "kill"], {"retries": 0, "rescues": 2}, 3, False),
    ],
)
@pytest.mark.sample(4)
def test_a_rescue_uses_up_no_retry(one_worker, tmp_path, how, limits, attempts, works):
    task = job("count_tries", file=str(tmp_path / "f"), works_at=4, how=how)
    outcome = only(one_worker.run([task], **limits))
    assert outcome.attempts == attempts
    assert outcome.result == ({"tries": 4} if works else None)


def test_a_timeout_is_nothing_to_rescue_from(one_worker, tmp_path):
    task = job("count_tries", file=str(tmp_path / "f"), works_at=2, how="hang")
    outcome = only(one_worker.run([task], rescues=3, timeout=0.5))
    assert (outcome.error, outcome.attempts) == ("TimedOut: no result within 0.5 seconds", 1)


def test_a_worker_killed_from_outside_is_replaced(two_workers, tmp_path):
    file = tmp_path / "note"
    outcomes = two_workers.run(
        [job("announce", "long", file=str(file), weight=9), job("double", "short", n=1)]
    )
    assert next(outcomes).key == "short"
    wait_until(file.exists)
    os.kill(json.loads(file.read_text())["pid"], signal.SIGSEGV)
    outcome = next(outcomes)
    assert outcome.error == "WorkerDied: the worker process was ended by signal SIGSEGV"
    assert list(outcomes) == []


def test_a_dead_worker_is_noticed_though_a_fork_holds_its_socket(one_worker, tmp_path):
    file = tmp_path / "pid"
    outcome = only(one_worker.run([job("die_leaving_a_fork", file=str(file))]))
    assert outcome.error == "WorkerDied: the worker process was ended with exit code 5"
    assert outcome.seconds < 30  # the fork itself stays for a minute
    wait_until(lambda: not alive(int(file.read_text())))


def test_a_timeout_ends_the_worker_and_what_it_started(one_worker, tmp_path):
    file = tmp_path / "note"
    tasks = [job("announce", "slow", file=str(file), child=True), job("double", "quick", n=2)]
    outcomes = {o.key: o for o in one_worker.run(tasks, timeout=LIMIT)}
    assert outcomes["slow"].error == f"TimedOut: no result within {LIMIT} seconds"
    assert outcomes["slow"].seconds >= LIMIT
    assert outcomes["quick"].result == {"double": 4}
    note = json.loads(file.read_text())
    wait_until(lambda: not alive(note["pid"]) and not alive(note["child"]))


def test_a_timed_out_task_is_retried(one_worker, tmp_path):
    task = job("count_tries", file=str(tmp_path / "f"), works_at=2, how="hang")
    outcome = only(one_worker.run([task], retries=1, timeout=LIMIT))
    assert (outcome.result, outcome.attempts) == ({"tries": 2}, 2)


def test_a_result_that_waits_for_a_slow_reader_is_not_late(two_workers):
    outcomes = two_workers.run([job("who", n, seconds=0.1) for n in "ab"], timeout=LIMIT)
    first = next(outcomes)
    time.sleep(LIMIT + 0.2)
    assert [first.error, next(outcomes).error] == [None, None]


def test_both_workers_work_and_each_takes_many_tasks(two_workers, tmp_path):
    """Once both have begun, which the first tasks wait for, no other process takes any."""
    tasks = [job("meet", n, folder=str(tmp_path), count=2, weight=9) for n in "ab"]
    tasks += [job("who", str(n), seconds=0.01) for n in range(40)]
    results = {o.key: o.result for o in two_workers.run(tasks)}
    both = {results.pop(n)["pid"] for n in "ab"}
    assert len(both) == 2
    assert {r["pid"] for r in results.values()} == both
    assert all(r["pid"] == r["group"] != os.getpid() for r in results.values())


def test_a_slow_task_does_not_hold_up_the_other_worker(two_workers, tmp_path):
    """It waits for a file that the last of the others makes: none may queue up behind it."""
    done = tmp_path / "done"
    slow = job("wait_for", "slow", file=str(done), weight=99)
    others = [job("who", str(n), weight=n % 3 + 1) for n in range(20)]
    last = job("touch", "last", file=str(done), weight=0)
    outcomes = list(two_workers.run([*others, last, slow], timeout=60))
    assert [o.error for o in outcomes] == [None] * 22
    assert {o.key for o in outcomes[-2:]} == {"slow", "last"}


def test_the_heaviest_task_starts_first(one_worker):
    tasks = [job("double", f"{weight:02}", n=1, weight=weight) for weight in (3, 10, 1, 7, 7.5)]
    keys = [o.key for o in one_worker.run(tasks)]
    assert keys == ["10", "7.5", "07", "03", "01"]


def test_workers_start_with_one_thread(one_worker, monkeypatch):
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
    for name in names:
        monkeypatch.setenv(name, "2")
    found = only(one_worker.run([job("environment", names=names)])).result
    assert found == {"numpy": False, **dict.fromkeys(names, "1")}
    assert [os.environ[name] for name in names] == ["2"] * 3


@pytest.mark.campaign
def test_more_threads_for_whoever_loads_the_libraries_first():
    check_threads(make_engine("processes:1"), [2, 1])


def test_one_thread_costs_a_worker_nothing(one_worker):
    assert only(one_worker.run([job("modules")])).result == {"threadpoolctl": False}


def test_workers_say_nothing_and_read_nothing(one_worker, capfd):
    assert only(one_worker.run([job("noisy")])).result == {"stdin": ""}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("text", THREE_WORKERS)
@pytest.mark.parametrize("ending", ["close", "exception", "drop"])
def test_leaving_the_loop_ends_the_work(tmp_path, ending, text):
    files = [tmp_path / "0", tmp_path / "1"]
    slow = [job("announce", f.name, file=str(f), spin=True, child=True) for f in files]
    outcomes = make_engine(text).run([*slow, job("double", "quick", n=1)])
    assert next(outcomes).key == "quick"
    wait_until(lambda: all(file.exists() for file in files))
    notes = [json.loads(file.read_text()) for file in files]
    start = time.monotonic()
    if ending == "close":
        outcomes.close()
    elif ending == "exception":
        with pytest.raises(LookupError):
            outcomes.throw(LookupError())
    else:
        del outcomes
    assert time.monotonic() - start < 30  # at once, where the tasks would take a minute
    wait_until(lambda: not any(alive(pid) for note in notes for pid in note.values()))


DRIVER = """
import sys
sys.path.insert(0, {jobs!r})
from pate.engines import Task, make_engine
payloads = [{{"file": sys.argv[1], "child": True}}, {{"file": sys.argv[2], "spin": True}}]
tasks = [Task(key=p["file"], function="jobs:announce", payload=p) for p in payloads]
tasks += [Task(key="idle", function="jobs:who", payload={{}}, weight=0)]
for outcome in make_engine({engine!r}).run(tasks):  # no guard: the script is not imported
    print(outcome.result["pid"], flush=True)
"""


@pytest.mark.parametrize("text", THREE_WORKERS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_driver(tmp_path, number, text):
    """Busy in C, busy in Python, idle: all are gone soon after the driver, however it ends."""
    files = [tmp_path / "0", tmp_path / "1"]
    script = DRIVER.format(jobs=str(JOBS), engine=text)
    command = [sys.executable, "-c", script, *map(str, files)]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root, text=True
    ) as driver:
        idle = int(driver.stdout.readline())
        wait_until(lambda: all(file.exists() for file in files))
        notes = [json.loads(file.read_text()) for file in files]
        pids = [idle, *(pid for note in notes for pid in note.values())]
        assert len(pids) == 4
        assert all(alive(pid) for pid in pids)
        driver.send_signal(number)
        driver.wait(timeout=30)
        wait_until(lambda: not any(alive(pid) for pid in pids))
        expected = "KeyboardInterrupt" if number == signal.SIGINT else ""
        assert expected in driver.stderr.read()


# ------------------------------------------------------------------ devices


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs, as far as torch reports in this process; workers only tell which one they see."""
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_every_worker_has_the_device_of_its_slot(tmp_path, two_gpus):
    tasks = [job("meet", n, folder=str(tmp_path), count=4) for n in "abcd"]
    found = [o.result for o in make_engine("gpus:0,1@2").run(tasks, timeout=60)]  # all at once
    assert sorted(r["CUDA_VISIBLE_DEVICES"] for r in found) == ["0", "0", "1", "1"]
    assert len({r["pid"] for r in found}) == 4
    assert {r["PATE_DEVICE_SHARERS"] for r in found} == {"2"}


def test_the_processor_is_the_device_of_a_process(monkeypatch):
    monkeypatch.setenv("PATE_DEVICE", "cuda:7")  # of whoever started this process
    found = only(make_engine("processes:1").run([job("device")])).result
    assert (found["PATE_DEVICE"], found["CUBLAS_WORKSPACE_CONFIG"]) == ("cpu", None)


@pytest.mark.parametrize(
    ("visible", "seen"),
    [(None, ["0", "1"]), ("3,5", ["3", "5"]), ("GPU-a,GPU-b", ["GPU-a", "GPU-b"])],
)
def test_a_worker_sees_one_gpu(monkeypatch, tmp_path, two_gpus, visible, seen):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    tasks = [job("meet", n, folder=str(tmp_path), count=2) for n in "ab"]
    found = [o.result for o in make_engine("gpus").run(tasks, timeout=60)]
    assert sorted(r["CUDA_VISIBLE_DEVICES"] for r in found) == seen
    assert {(r["device"], r["CUBLAS_WORKSPACE_CONFIG"]) for r in found} == {("cuda:0", ":4096:8")}


@pytest.mark.parametrize("how", ["kill", "hang"])
@pytest.mark.parametrize("devices", ["01", "10"])
def test_a_new_worker_has_the_device_of_the_one_that_was_lost(tmp_path, two_gpus, how, devices):
    task = job("device_at_last", file=str(tmp_path / "f"), works_at=2, how=how)
    limits = {"rescues": 1} if how == "kill" else {"retries": 1, "timeout": LIMIT}
    found = only(make_engine(f"gpus:{','.join(devices)}").run([task], **limits)).result
    assert (found["tries"], found["CUDA_VISIBLE_DEVICES"]) == (2, devices[0])


def test_no_device_is_left_without_a_worker(tmp_path, two_gpus):
    """The first worker dies while the other waits to meet somebody: its successor."""
    folder = tmp_path / "here"
    folder.mkdir()
    lost = job("count_tries", "lost", file=str(tmp_path / "f"), works_at=2, how="kill", weight=9)
    tasks = [job("meet", n, folder=str(folder), count=2) for n in "ab"]
    outcomes = make_engine("gpus:0,1").run([lost, *tasks], rescues=1, timeout=60)
    found = {outcome.key: outcome.result for outcome in outcomes}
    assert found["lost"] == {"tries": 2}
    assert sorted(found[n]["CUDA_VISIBLE_DEVICES"] for n in "ab") == ["0", "1"]
