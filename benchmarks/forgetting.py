"""The cost of forgetting records against making everything again: MNIST, ridge teachers.

    python benchmarks/forgetting.py [--teachers 250,1000] [--records 1,10,100] [--repeats 3]
    python benchmarks/forgetting.py --teachers 10 --slices 5

Seconds are CPU time of this process, on the serial engine: the least of some repetitions, each of
which makes everything from nothing and then forgets records of it.

* train: the training of teachers alone, from features that are encoded once: all of them, or those
  whose shards held records;
* models: the work of all models: features of private records, training, and votes on public inputs;
* all: everything. On one side `pate run` up to the votes (reading, shards, features, teachers,
  votes), on the other `pate.forget` with its files, its removals and its certificate.

With ``--slices`` teachers are small networks on a tenth of the records, and one record of the first
or of the last slice is forgotten; seconds are the median of the repetitions.

Nothing is released: no budget is spent.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

import pate
import pate.stages.worker as worker
from pate.api import make_options, prepare_run
from pate.datasets.catalogue import data_root
from pate.encoders.chain import Chain
from pate.partition import partition

Seconds = dict[str, float]


@contextmanager
def timed() -> Iterator[Seconds]:
    """Measure a block, and the work of models within it."""
    spent = defaultdict[str, float](float)

    def measured(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            start = time.process_time()
            done = function(*given, **more)
            for name in names:
                spent[name] += time.process_time() - start
            return done

        return call

    start = time.process_time()
    with (
        mock.patch.object(worker, "train_many", measured(worker.train_many, "train", "models")),
        mock.patch.object(
            worker, "predict_many_labels", measured(worker.predict_many_labels, "models")
        ),
        mock.patch.object(Chain, "transform", measured(Chain.transform, "models")),
    ):
        yield spent
    spent["all"] = time.process_time() - start


def compare(recipe: str, teachers: int, records: list[int], *, repeats: int) -> None:
    found: dict[int, list[Seconds]] = defaultdict(list)  # by records to forget; 0: from nothing
    rng = np.random.default_rng(0)
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="pate-benchmark-") as folder:
            root, copy = Path(folder) / "data", Path(folder) / "copy"
            root.mkdir()
            (root / "MNIST").symlink_to(data_root(None).absolute() / "MNIST")
            options = make_options(data_root=root, engine="serial")
            settings = {"teachers.count": teachers}
            run = prepare_run(recipe, set=settings, out=Path(folder) / "run", options=options)
            with timed() as spent:
                run.execute(until="vote")
            found[0].append(dict(spent))
            ids = run.artifact("data").json("ids.json")
            for count in records:
                shutil.copytree(run.folder, copy)
                chosen = rng.choice(len(ids), count, replace=False)
                with timed() as spent:
                    pate.forget(copy, [ids[row] for row in chosen], data_root=root)
                found[count].append(dict(spent))
                shutil.rmtree(copy)
    least = {
        count: {name: min(each[name] for each in spent) for name in spent[0]}
        for count, spent in found.items()
    }
    everything = least.pop(0)
    print(f"{teachers} teachers, {len(ids)} records", flush=True)
    print(f"  from nothing: {_seconds(everything)}", flush=True)
    for count, spent in least.items():
        ratios = [f"{name} {everything[name] / spent[name]:.1f} ×" for name in everything]
        print(f"  forget {count}: {_seconds(spent)}; {', '.join(ratios)}", flush=True)


def network(classes: int) -> Any:
    """Return a small network."""
    from torch import nn

    return nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, classes))


def compare_slices(recipe: str, teachers: int, slices: int, *, repeats: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pate-benchmark-") as folder:
        root, copy = Path(folder) / "data", Path(folder) / "copy"
        root.mkdir()
        (root / "MNIST").symlink_to(data_root(None).absolute() / "MNIST")
        here = Path(__file__).absolute()
        options = make_options(data_root=root, engine="serial", plugin_path=here)
        settings = {
            "data.private": 0.1,
            "teachers.count": teachers,
            "teachers.model": f"{here.stem}:network",
            "teachers.params": {},
            "teachers.slices": slices,
        }
        run = prepare_run(recipe, set=settings, out=Path(folder) / "run", options=options)
        with timed() as spent:
            run.execute(until="vote")
        ids = run.artifact("data").json("ids.json")
        print(f"{teachers} networks, {len(ids)} records, {slices} slices", flush=True)
        print(f"  from nothing: {_seconds(spent)}", flush=True)
        spec = run.recipe.partition
        shards = partition(ids, teachers=teachers, spec=spec, slices=slices)
        assert shards.slices is not None
        for number in (1, slices):
            found: list[Seconds] = []
            for teacher in range(repeats):
                shutil.copytree(run.folder, copy)
                record = ids[shards.order[shards.slices[teacher * slices + number - 1]]]
                with timed() as spent:
                    pate.forget(copy, [record], data_root=root, plugin_path=here)
                found.append(dict(spent))
                shutil.rmtree(copy)
            middle = {name: median(each[name] for each in found) for name in found[0]}
            print(f"  forget one of slice {number}: {_seconds(middle)}", flush=True)


def _seconds(spent: Seconds) -> str:
    return ", ".join(f"{name} {seconds:.4f} s" for name, seconds in spent.items())


def main() -> None:
    parser = argparse.ArgumentParser(description="forgetting against making everything again")
    parser.add_argument("--recipe", default="mnist-teachers")
    parser.add_argument("--teachers", default="250,1000")
    parser.add_argument("--records", default="1,10,100")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slices", type=int, default=1)
    given = parser.parse_args()
    records = [int(each) for each in given.records.split(",")]
    for teachers in given.teachers.split(","):
        if given.slices > 1:
            compare_slices(given.recipe, int(teachers), given.slices, repeats=given.repeats)
            continue
        compare(given.recipe, int(teachers), records, repeats=given.repeats)


if __name__ == "__main__":
    main()
