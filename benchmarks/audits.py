"""The figures of docs/how-to/audit.md that no audit of a run prints.

    OMP_NUM_THREADS=1 python benchmarks/audits.py rates
    OMP_NUM_THREADS=1 python benchmarks/audits.py lira

* ``rates``: how many records of ridge teachers are left out in a minute of processor time, at 200
  queries: made-up records around one centre for each class.
* ``lira``: LiRA on an overfit network on 1 000 MNIST images: 65 models, each trained on a random
  half, of which 24 are the target in turn. MNIST is in the data root (``pate data fetch mnist``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

CLASSES, QUERIES = 10, 200
SHAPES = ((25, 50), (240, 784))  # records of a shard, features


def rates(records: int) -> Iterator[str]:
    """Yield the rate of each size of a shard."""
    from pate import GaussianNoisyMax, Votes
    from pate.audits.leave_one_out import cast_votes, teacher_exposure
    from pate.teachers.linear import RidgeTeacher

    rng = np.random.default_rng(0)
    for size, features in SHAPES:
        centres = rng.normal(size=(CLASSES, features)) * 0.4
        labels = rng.integers(0, CLASSES, size=(max(2, records // size), size))
        queries = centres[rng.integers(0, CLASSES, QUERIES)]
        queries = queries + rng.normal(size=queries.shape)
        shards = [(centres[y] + rng.normal(size=(size, features)), y) for y in labels]
        teachers = [RidgeTeacher(classes=CLASSES) for _ in shards]
        cast = cast_votes(teachers, shards, queries, seeds=range(len(shards)), classes=CLASSES)
        votes = Votes.from_labels(cast, classes=CLASSES)
        start = time.process_time()
        found = teacher_exposure(
            shards,
            queries,
            make=lambda number: RidgeTeacher(classes=CLASSES),
            votes=votes.counts,
            mechanism=GaussianNoisyMax(sigma=40.0),
            delta=1e-5,
        )
        rate = len(found.epsilons) / (time.process_time() - start) * 60
        yield f"{size} records, {features} features: {rate:,.0f} records left out in a minute"


def lira(models: int = 65, targets: int = 24, images: int = 1000) -> Iterator[str]:
    """Yield TPR at 0.1 % FPR, with intervals, of LiRA online and offline, and of a threshold."""
    from torch import nn

    from pate.audits.membership import lira_scores
    from pate.audits.roc import roc
    from pate.audits.shadow_models import ModelFit, train_shadows
    from pate.datasets.catalogue import data_root
    from pate.datasets.loading import load
    from pate.datasets.spec import DataSpec

    table = load(DataSpec(name="mnist", private=images), root=data_root()).private
    X = np.asarray(table.features, dtype=np.float32).reshape(images, -1)
    y, half = np.asarray(table.labels), images // 2

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    fit = ModelFit(model=network, classes=10, settings={"epochs": 60, "lr": 3e-3})
    shadows = train_shadows(fit, (X[:half], y[:half]), (X[half:], y[half:]), count=models, seed=1)
    for name, online in (("online", True), ("offline", False)):
        inside, outside = [], []
        for number in range(targets):
            observed, included, rest = shadows.pick_target(number)
            scores = lira_scores(observed, rest, online=online)
            inside.append(scores[included])
            outside.append(scores[~included])
        rate = roc(np.concatenate(inside), np.concatenate(outside)).tpr_at(0.001)
        yield (
            f"LiRA ({name}): {100 * rate.value:.1f} % ({100 * rate.low:.1f} … "
            f"{100 * rate.high:.1f}) at 0.1 % FPR"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["rates", "lira"])
    parser.add_argument("--records", type=int, default=2000)
    given = parser.parse_args()
    for line in rates(given.records) if given.what == "rates" else lira():
        print(line, flush=True)
