"""What engines cost for each teacher, what a second worker gains, and how a large plan would fill.

    python benchmarks/engines.py [--engines serial processes gpus ray] [--rounds 3] [--quick]
                                 [--only dispatch speed-up memory plan]

* dispatch: tiny teachers (two records, one array) go through the real ``teach`` stage, a few of
  them and then many. Beyond its own fit a teacher costs

      (wall time × slots − time in fit) / teachers,

  here between the two numbers of teachers, so that starting workers is not in it. Once in the
  groups that the stage makes, once in groups of one.
* speed-up: teachers that compute half a second each, on one worker and on two, in turn; of each the
  shortest ``teach``, the start of its workers included. Ray's stay from one run to the next: there
  a few teachers go first.
* memory: the driver's own peak over all stages up to ``vote``, without its workers, with few
  teachers and with many, who share the same records.
* plan: durations of real groups (networks, ridge, networks alone) are recorded on one worker, drawn
  again for 100 000 teachers in the groups that their recipe would make, and dealt to 64 slots on a
  clock that is not real. Each task waits besides, as long as it did here between two tasks.

Everything runs on one thread for each worker. Others at work on the machine spoil speed-up and
dispatch; the load average is printed for that.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
QUERIES, CLASSES = 20, 2
SPEED_UP, FLAT, RATIO = 1.8, 1.05, 1.05  # targets
PLAN_TEACHERS, PLAN_SLOTS = 100_000, 64
ONE = {"processes": "processes:1", "gpus": "gpus:cpu", "ray": "ray"}
TWO = {"serial": "serial", "processes": "processes:2", "gpus": "gpus:cpu,cpu", "ray": "ray"}

MODELS = '''
"""Which side of the mean, after some work; the time it takes goes to a file of each worker's."""
import functools
import os
import time

import numpy as np


@functools.cache
def notes(folder):
    return open(f"{folder}/{os.getpid()}", "a", buffering=1)


class Mean:
    def __init__(self, times, work=0):
        self.times, self.work = times, work
        self.middle = np.zeros(1)

    def fit(self, X, y):
        start = time.perf_counter()
        work(self.work)
        self.middle = X.mean(axis=0)
        notes(self.times).write(f"{time.perf_counter() - start}\\n")

    def predict(self, X):
        return (X @ self.middle > self.middle @ self.middle).astype(int)


def work(rounds):
    state = np.full((48, 48), 0.1)
    for _ in range(rounds):
        state = np.tanh(state @ state)


def network(classes):
    from torch import nn

    return nn.Sequential(nn.LazyLinear(32), nn.ReLU(), nn.Linear(32, classes))
'''


# ------------------------------------------------------------------ in a driver of its own


def measure(order: dict[str, Any]) -> list[dict[str, float]]:
    """Runs in this process: the seconds of ``teach`` and of its models, and the peak of memory."""
    from pate.engines import Task, make_engine

    engine = make_engine(order["engine"])
    if order["engine"] == "ray":
        session: Any = importlib.import_module("pate.engines.ray_session")
        session.usable_cores = lambda: order["cpus"]
    if order["alone"]:
        from pate.stages import dispatch

        dispatch._MAX_SIZE = 1
        dispatch._MAX_LINEAR.clear()
    warm = [Task(key=str(n), function="builtins:dict", payload={}) for n in range(8)]
    assert not any(each.error for each in engine.run(warm))  # Ray is there, with its workers
    found = []
    for teachers in order["teachers"]:
        with folder_of_its_own():
            run, times = prepare({**order, "teachers": teachers}, engine)
            run.execute(until="encode")
            start = time.perf_counter()
            run.execute(until="teach")
            seconds = time.perf_counter() - start
            spent = [float(line) for file in times.iterdir() for line in file.open()]
            if order["vote"]:
                run.execute(until="vote")
        found.append({"teach": seconds, "models": sum(spent), "slots": engine.slots,
                      "peak": peak_megabytes()})  # fmt: skip
    return found


@contextlib.contextmanager
def folder_of_its_own() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


def record(order: dict[str, Any]) -> dict[str, Any]:
    """Real groups on one worker: the weight and the seconds of each, and the wait between two."""
    from pate.engines import make_engine

    with folder_of_its_own():
        run, _ = prepare(order, Recorder(make_engine("processes:1")))
        run.execute(until="teach")
    engine = run.options.engine
    jobs = [engine.jobs[key] for key in sorted(engine.jobs)]
    between = (engine.last - engine.first - sum(s for _, s in jobs) + engine.first_seconds) / max(
        1, len(jobs) - 1
    )
    return {"jobs": jobs, "overhead": max(0.0, between)}


class Recorder:
    """An engine that notes how heavy each task was said to be, and how long it took."""

    name, slots, devices = "recorder", 1, ("cpu",)

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.jobs: dict[str, tuple[float, float]] = {}
        self.first = self.last = self.first_seconds = 0.0

    def run(self, tasks: Any, **limits: Any) -> Iterator[Any]:
        weights: dict[str, float] = {}

        def noted() -> Iterator[Any]:
            for task in tasks:
                weights[task.key] = task.weight
                yield task

        for outcome in self.engine.run(noted(), **limits):
            self.last = time.perf_counter()
            if not self.jobs:  # the worker's start, and what it loads, are in the first
                self.first, self.first_seconds = self.last, outcome.seconds
            self.jobs[outcome.key] = (weights[outcome.key], outcome.seconds)
            yield outcome


def prepare(order: dict[str, Any], engine: Any) -> tuple[Any, Path]:
    """A run in this folder, of made-up data; where its models note their times."""
    import numpy as np

    from pate.engines.progress import Silence
    from pate.pipeline.recipe import Recipe
    from pate.pipeline.runner import PipelineRun
    from pate.pipeline.stage import Options
    from pate.stages.catalogue import STAGES

    times = Path("times").absolute()
    times.mkdir()
    Path("plugin").mkdir()
    Path("plugin/models.py").write_text(MODELS)
    rng = np.random.default_rng(0)
    records = int(order["records"] * order["teachers"]) + QUERIES + 50
    labels = np.arange(records) % CLASSES
    features = rng.normal(size=(records, order["features"])).astype(np.float32)
    np.savez("data.npz", X=features + 0.5 * labels[:, None].astype(np.float32), y=labels)
    params: dict[str, Any] = {}
    if order["model"] == "models:Mean":
        params = {"params": {"times": str(times), "work": order["work"]}}
    model = {"model": order["model"], **params}
    recipe = Recipe.model_validate(
        {
            "data": {
                "name": "many",
                "source": "data.npz",
                "public": QUERIES,
                "test": 50,
                "accept_unprotected": True,
            },
            "partition": {"method": order["partition"]},
            "teachers": {"count": order["teachers"], **model},
            "aggregate": {"scale": 20.0},
            "student": model,
        }
    )
    options = Options(
        data_root=Path("root"),
        engine=engine,
        plugin_path=Path("plugin").absolute(),
        report=lambda _: None,
        progress=lambda *_: contextlib.nullcontext(Silence()),
    )
    return PipelineRun(folder=Path("run"), recipe=recipe, stages=STAGES, options=options), times


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_own_driver(kind: str, **order: Any) -> Any:
    order = {"kind": kind, "work": 0, "records": 2, "features": 4, "model": "models:Mean",
             "partition": "shuffle", "alone": False, "cpus": 2, "vote": False,
             **order}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, os.path.abspath(__file__), "--order", json.dumps(order)],
            cwd=folder,
            env=os.environ | ONE_THREAD,
            stdout=subprocess.PIPE,
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])


# ------------------------------------------------------------------ the table


def row(what: str, where: str, how: str, figure: str, target: str = "") -> None:
    print(f"{what:9} {where:13} {how:58} {figure:>17} {target:>7}", flush=True)


def dispatch(engines: list[str], *, quick: bool) -> None:
    few, many = (8, 24) if quick else (250, 2250)
    for name in engines:
        for alone in (False,) if quick else (False, True):
            _, small, large = in_own_driver(  # Ray keeps what the first has started
                "measure", engine=TWO[name], teachers=[few, few, many], alone=alone
            )
            beyond = [each["teach"] * each["slots"] - each["models"] for each in (small, large)]
            each = (beyond[1] - beyond[0]) / (many - few)
            how = f"{many} tiny teachers, {'one by one' if alone else 'in groups'}"
            how += f": {large['teach']:.2f} s"
            row("dispatch", TWO[name], how, f"{1000 * each:.2f} ms each")


def speed_up(engines: list[str], *, rounds: int, quick: bool) -> None:
    teachers, rounds = (8, 1) if quick else (24, rounds)
    work = half_a_second() // (20 if quick else 1)
    for name in engines:
        times = {1: float("inf"), 2: float("inf")}
        for _ in range(rounds):
            for cpus, engine in ((1, ONE[name]), (2, TWO[name])):
                numbers = [4, teachers] if name == "ray" else [teachers]
                *_, found = in_own_driver(
                    "measure", engine=engine, teachers=numbers, work=work, cpus=cpus
                )
                times[cpus] = min(times[cpus], found["teach"])
        how = f"{teachers} teachers on 1 and 2 workers: {times[1]:.2f} s and {times[2]:.2f} s"
        row("speed-up", name, how, f"{times[1] / times[2]:.2f} ×", f"≥ {SPEED_UP}")


def half_a_second() -> int:
    """How many rounds of work that is here, in processor time."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "models.py").write_text(MODELS)
        code = (
            "import time, models; models.work(100); start = time.process_time(); "
            "models.work(2000); print(int(0.5 / (time.process_time() - start) * 2000))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env=os.environ | ONE_THREAD,
            stdout=subprocess.PIPE,
            check=True,
        )
    return int(done.stdout)


def memory(engines: list[str], *, quick: bool) -> None:
    few, many = (8, 24) if quick else (250, 10_000)
    for name in engines:
        small, large = (
            in_own_driver(
                "measure", engine=TWO[name], teachers=[n], records=2 * many / n, vote=True
            )[0]["peak"]
            for n in (few, many)
        )
        how = f"driver with {few} and {many} teachers: {small:.1f} MB and {large:.1f} MB"
        row("memory", TWO[name], how, f"{large / small:.3f} ×", f"≤ {FLAT}")


def plan(*, quick: bool) -> None:
    """Recorded groups, drawn again; hash partitions, so that shards and weights differ."""
    from simulation import Job, simulate

    kinds = (
        ("networks", "models:network", 640, None),
        ("ridge", "ridge", 512 if quick else 1280, None),
        ("one by one", "models:network", 64, 600.0),
    )
    for label, model, count, timeout in kinds[1:2] if quick else kinds:
        records, features = (24, 16) if quick else (120, 64)
        found = in_own_driver(
            "record", model=model, teachers=count, records=records, features=features,
            partition="hash", alone=timeout is not None,
        )  # fmt: skip
        recorded = found["jobs"][1:] or found["jobs"]  # one of them had to load libraries
        sizes = group_sizes(model, timeout)
        draw, full = random.Random(0), max(sizes)

        def job(size: int, full: int = full, draw: Any = draw, recorded: Any = recorded) -> Job:
            weight, seconds = draw.choice(recorded)
            return Job(weight * size / full, seconds * size / full)

        jobs = sorted(map(job, sizes), key=lambda each: -each.weight)  # as the stage does
        done = simulate(jobs, slots=PLAN_SLOTS, overhead=found["overhead"])
        how = f"{PLAN_TEACHERS} teachers, {done.tasks} tasks on {PLAN_SLOTS} slots: "
        how += f"{done.makespan:.1f} s, {done.utilisation:.1%} used"
        row("plan", label, how, f"{done.ratio:.4f} of bound", f"≤ {RATIO}")


def group_sizes(model: str, timeout: float | None) -> list[int]:
    from pate.stages.dispatch import groups
    from pate.teachers.spec import TeachersSpec

    spec = TeachersSpec(count=PLAN_TEACHERS, model=model, timeout=timeout)
    return [len(group) for group in groups(spec)]


def load() -> str:
    return "load average " + " ".join(f"{each:.2f}" for each in os.getloadavg())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = ("dispatch", "speed-up", "memory", "plan")
    parser.add_argument("--engines", nargs="+", choices=list(TWO))
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures say nothing")
    parser.add_argument("--order", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.order:
        order = arguments.order
        print(json.dumps({"measure": measure, "record": record}[order["kind"]](order)))
        return
    quick, asked = arguments.quick, arguments.engines

    def engines(*usual: str) -> list[str]:
        return [name for name in usual if name in (asked or usual)]

    print(f"python benchmarks/engines.py on {os.cpu_count()} cores, {load()}", flush=True)
    row("", "engine", "", "figure", "target")
    if "dispatch" in arguments.only:
        dispatch(engines("serial", "processes", "ray") if quick else engines(*TWO), quick=quick)
    if "speed-up" in arguments.only:
        some = engines("processes") if quick else engines(*ONE)
        speed_up(some, rounds=arguments.rounds, quick=quick)
    if "memory" in arguments.only:
        memory(engines("serial") if quick else engines("processes", "ray"), quick=quick)
    if "plan" in arguments.only:
        plan(quick=quick)
    print(f"at the end: {load()}")


if __name__ == "__main__":
    main()
