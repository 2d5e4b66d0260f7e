"""How much faster families of teachers are than the same teachers one by one.

    python benchmarks/teachers.py [--teachers 250] [--records 240] [--cores 1 2] [--rounds 3]

* ``ridge`` and ``logistic`` against scikit-learn's ``LogisticRegression``, one by one on the same
  features: once with its default settings, and once with the penalty that ``logistic`` uses.
  Features are made up, with the spectrum that scattering and PCA to 400 dimensions give.
* Networks of one architecture as one program against a plain loop over the same teachers.

Both sides take turns in one process and the shortest time of each counts, with as many threads as
``cores``. On one core it is processor time, else wall time. Of networks, and of scikit-learn's
models, a part is timed and scaled up: each takes as long as the others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
FEATURES, CLASSES, QUERIES = 400, 10, 10_000
SOME = 10  # teachers that are timed one by one

Work = Callable[[], object]
Clock = Callable[[], float]


def shards(teachers: int, records: int, shape: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """Records around one centre for each class; of vectors, some directions matter far more."""
    import numpy as np

    rng = np.random.default_rng(0)
    scale = 25 / np.sqrt(1 + np.arange(FEATURES)) if shape == (FEATURES,) else np.float64(1)
    centres = rng.normal(size=(CLASSES, *shape)) * 0.6
    found = []
    for _ in range(teachers):
        y = rng.integers(0, CLASSES, size=records)
        X = (centres[y] + rng.normal(size=(records, *shape))) * scale
        found.append((X.astype(np.float32), y))
    return found


def shortest(works: dict[str, Work], *, rounds: int, clock: Clock) -> dict[str, float]:
    """The shortest time of each, all in turn."""
    times = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = clock()
            work()
            times[name] = min(times[name], clock() - start)
    return times


def linear(teachers: int, records: int, *, rounds: int, clock: Clock) -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

    from pate.teachers.linear import LogisticTeacher, RidgeTeacher

    data = shards(teachers, records, (FEATURES,))
    queries = np.concatenate([X for X, _ in shards(1, QUERIES, (FEATURES,))])
    some = min(SOME, teachers)
    unit = np.square(data[0][0] - data[0][0].mean(axis=0)).sum() / records

    def family(cls: Any) -> list[Any]:
        made = [cls(classes=CLASSES) for _ in data]
        assert not any(cls.fit_many(made, data))
        return made

    def one_by_one(**settings: Any) -> None:
        for X, y in data[:some]:
            LogisticRegression(**settings).fit(X, y)

    trained = family(RidgeTeacher)
    same = 1 / (LogisticTeacher(classes=CLASSES).alpha * float(unit))
    times = shortest(
        {
            "ridge": lambda: family(RidgeTeacher),
            "logistic": lambda: family(LogisticTeacher),
            "vote": lambda: RidgeTeacher.predict_many(trained, queries),
            "default": lambda: one_by_one(),
            "same penalty": lambda: one_by_one(C=same),
        },
        rounds=rounds,
        clock=clock,
    )
    print(f"  {teachers} linear teachers, {records} x {FEATURES} each")
    print(f"    ridge    {times['ridge']:8.2f} s, and {times['vote']:.2f} s to vote on {QUERIES}")
    print(f"    logistic {times['logistic']:8.2f} s")
    for name in ("default", "same penalty"):
        alone = times[name] / some * teachers
        print(
            f"    LogisticRegression, {name:12} {alone:8.2f} s:  "
            f"ridge x {alone / times['ridge']:.1f},  logistic x {alone / times['logistic']:.1f}"
        )


def networks(teachers: int, *, rounds: int, clock: Clock) -> None:
    from torch import nn

    from pate.teachers.adapters import build
    from pate.teachers.protocol import train, train_many
    from pate.teachers.spec import Training

    def perceptron(inputs: int) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def convolutions() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(16 * 36, CLASSES)),
        )

    models: list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = [
        ("MLP 64-32-10", perceptron(64), (64,)),
        ("MLP 400-32-10", perceptron(FEATURES), (FEATURES,)),
        ("CNN 8-16", convolutions, (1, 28, 28)),
    ]
    for name, model, shape in models:
        data = shards(teachers, 96, shape)
        some = min(SOME, teachers)
        training = Training(epochs=5)

        def made(
            count: int, model: Callable[[], nn.Module] = model, training: Training = training
        ) -> list[Any]:
            return [build(model, training, classes=CLASSES, seed=n) for n in range(count)]

        together, apart = made(teachers), made(some)

        def group(together: list[Any] = together, data: list[Any] = data) -> None:
            assert not any(train_many(together, data))

        def loop(apart: list[Any] = apart, data: list[Any] = data) -> None:
            for teacher, (X, y) in zip(apart, data, strict=False):
                train(teacher, X, y)

        times = shortest({"group": group, "loop": loop}, rounds=rounds, clock=clock)
        alone = times["loop"] / some * teachers
        print(
            f"  {teachers} networks {name:14} together {times['group']:7.2f} s, "
            f"loop {alone:7.2f} s:  x {alone / times['group']:.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--teachers", type=int, default=250)
    parser.add_argument("--records", type=int, default=240)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.here:  # libraries read their number of threads when they are loaded
        for cores in arguments.cores:
            again = [sys.executable, __file__, "--here", "--cores", str(cores)]
            for name in ("teachers", "records", "rounds"):
                again += [f"--{name}", str(getattr(arguments, name))]
            subprocess.run(again, env=os.environ | dict.fromkeys(THREADS, str(cores)), check=True)
        return
    (cores,) = arguments.cores
    warnings.simplefilter("ignore")  # LogisticRegression says that it has not converged
    clock = time.process_time if cores == 1 else time.perf_counter
    print(f"{cores} core{'s' if cores > 1 else ''}", flush=True)
    linear(arguments.teachers, arguments.records, rounds=arguments.rounds, clock=clock)
    networks(arguments.teachers, rounds=arguments.rounds, clock=clock)


if __name__ == "__main__":
    main()
