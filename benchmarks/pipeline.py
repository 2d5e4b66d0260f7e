"""What the framework adds to each teacher, and whether the driver's memory grows with them.

    python benchmarks/pipeline.py [--teachers 5000] [--workers 2] [--profile]

Tiny teachers (two records, one array of numbers, no scikit-learn) go through ``teach`` and
``vote`` on the ``processes`` engine, once as many as given and once a tenth of them, each in a
driver of its own. Beyond its own fit and predict, a teacher costs

    (wall time × workers − time in fit and predict) / teachers,

which includes starting the workers, and waiting where others use the machine; the processor time
in it does not. Everything runs on one thread for each worker. The memory is
the driver's own peak, without its workers.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
TARGET = 5.0  # milliseconds for each teacher
QUERIES = 200

MODEL = '''
"""On which side of the mean; the time it takes goes to a file of each worker's own."""
import functools
import os
import time

import numpy as np


@functools.cache
def notes(folder):
    return open(f"{folder}/{os.getpid()}", "a", buffering=1)


class Mean:
    def __init__(self, times):
        self.times = times
        self.middle = np.zeros(1)

    def fit(self, X, y):
        start = time.perf_counter()
        self.middle = X.mean(axis=0)
        self.note(start)

    def predict(self, X):
        start = time.perf_counter()
        labels = (X @ self.middle > self.middle @ self.middle).astype(int)
        self.note(start)
        return labels

    def note(self, start):
        notes(self.times).write(f"{time.perf_counter() - start}\\n")
'''


def measure(teachers: int, *, workers: int, profile: bool) -> dict[str, float]:
    """One run in this process: seconds of each stage, seconds of the models, peak memory."""
    import numpy as np

    from pate.engines import make_engine
    from pate.engines.progress import Silence
    from pate.pipeline.recipe import Recipe
    from pate.pipeline.runner import PipelineRun
    from pate.pipeline.stage import Options
    from pate.stages.catalogue import STAGES

    rng = np.random.default_rng(0)
    records = 2 * teachers + QUERIES + 50
    labels = np.arange(records) % 2
    np.savez("data.npz", X=rng.normal(size=(records, 4)) + 2 * labels[:, None], y=labels)
    Path("plugin").mkdir()
    Path("plugin/tiny.py").write_text(MODEL)
    times = Path("times").absolute()
    times.mkdir()
    model = {"model": "tiny:Mean", "params": {"times": str(times)}}
    run = PipelineRun(
        folder=Path("run"),
        recipe=Recipe.model_validate(
            {
                "data": {
                    "name": "many",
                    "source": "data.npz",
                    "public": QUERIES,
                    "test": 50,
                    "accept_unprotected": True,
                },
                "partition": {"method": "shuffle"},  # equal shards
                "teachers": {"count": teachers, **model},
                "aggregate": {"scale": 20.0},
                "student": model,
            }
        ),
        stages=STAGES,
        options=Options(
            data_root=Path("root"),
            engine=make_engine(f"processes:{workers}"),
            plugin_path=Path("plugin").absolute(),
            report=lambda _: None,
            progress=lambda *_: nullcontext(Silence()),
        ),
    )
    run.execute(until="partition")
    seconds = {"before": peak_megabytes(), "processor": -processor_seconds()}
    watch = cProfile.Profile() if profile else nullcontext()
    with watch:
        for stage in ("teach", "vote"):
            start = time.perf_counter()
            run.execute(until=stage)
            seconds[stage] = time.perf_counter() - start
    if isinstance(watch, cProfile.Profile):
        pstats.Stats(watch, stream=sys.stderr).sort_stats("cumulative").print_stats(40)
    seconds["processor"] += processor_seconds()
    spent = sum(float(line) for file in times.iterdir() for line in file.read_text().splitlines())
    return {**seconds, "models": spent, "peak": peak_megabytes()}


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def processor_seconds() -> float:
    """Of this process and of all workers that have ended."""
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(who)[:2]) for who in both)


def in_own_driver(teachers: int, arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--only", str(teachers), "--workers", arguments.workers]
    if arguments.profile:
        command.append("--profile")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, cwd=folder, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, check=True
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--teachers", type=int, default=5000)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--profile", action="store_true", help="of the larger run's driver")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        found = measure(arguments.only, workers=int(arguments.workers), profile=arguments.profile)
        print(json.dumps(found))
        return
    print(f"python benchmarks/pipeline.py --teachers {arguments.teachers} "
          f"--workers {arguments.workers}")  # fmt: skip
    print(f"{'teachers':>9} {'teach s':>8} {'vote s':>8} {'models s':>9} "
          f"{'ms/teacher':>11} {'of it CPU':>10} {'driver MB':>10} {'grown MB':>9}")  # fmt: skip
    for teachers in (max(2, arguments.teachers // 10), arguments.teachers):
        found = in_own_driver(teachers, arguments)
        busy = (found["teach"] + found["vote"]) * int(arguments.workers)
        each = 1000 * (busy - found["models"]) / teachers
        work = 1000 * (found["processor"] - found["models"]) / teachers
        print(f"{teachers:9} {found['teach']:8.2f} {found['vote']:8.2f} {found['models']:9.2f} "
              f"{each:11.2f} {work:10.2f} {found['peak']:10.1f} "
              f"{found['peak'] - found['before']:9.1f}")  # fmt: skip
    print(f"target: below {TARGET:g} ms for each teacher, and memory that does not grow with them")


if __name__ == "__main__":
    main()
