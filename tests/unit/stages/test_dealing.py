"""How teach and vote hand out their tasks, and what they tell of it."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from pate.engines.serial import SerialEngine
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import Run
from pate.pipeline.stage import Options
from pate.stages.catalogue import STAGES
from pate.stages.teach import RESCUES

MEAN = """
import numpy as np


class Mean:
    def __init__(self, classes):
        self.middle = np.zeros(0)

    def fit(self, X, y):
        self.middle = X.mean(axis=0)

    def predict(self, X):
        return (X @ self.middle > self.middle @ self.middle).astype(int)
"""


class Recording:
    """Runs in this process, notes what it is given, and says that the first task took 3 tries."""

    name, devices = "recording", ("cpu", "cpu")

    def __init__(self, slots, lose=None):
        self.slots, self.lose, self.given = slots, lose, []

    def run(self, tasks, *, retries=0, rescues=0, timeout=None):
        run = {"rescues": rescues, "weights": []}
        self.given.append(run)
        for number, task in enumerate(tasks):
            run["weights"].append(task.weight)
            (outcome,) = SerialEngine().run([task])
            if number == 0 and len(self.given) == self.lose:
                outcome = dataclasses.replace(outcome, result=None, error="WorkerDied")
            yield dataclasses.replace(outcome, attempts=3 if number == 0 else 1)


class Told:
    def __init__(self):
        self.shows, self.done, self.again = [], 0, 0

    def show(self, title, total, done, slots=None, /):
        self.shows.append((title, total, done, slots))
        return nullcontext(self)

    def advance(self, count=1):
        self.done += count

    def retried(self, count):
        self.again += count


def run(folder: Path, engine, until, told):
    rng = np.random.default_rng(0)
    labels = np.arange(700) % 2
    np.savez(folder / "data.npz", X=rng.normal(size=(700, 4)) + 2 * labels[:, None], y=labels)
    (folder / "mean.py").write_text(MEAN)
    Run(
        folder=folder / "run",
        recipe=Recipe.model_validate(
            {
                "data": {
                    "name": "many",
                    "source": str(folder / "data.npz"),
                    "public": 20,
                    "test": 20,
                },
                "teachers": {"count": 40, "model": "mean:Mean"},
                "aggregate": {"scale": 20.0},
                "student": {"model": "mean:Mean"},
            }
        ),
        stages=STAGES,
        options=Options(
            data_root=folder / "root",
            engine=engine,
            plugin_path=folder / "mean.py",
            say=lambda _: None,
            progress=told.show,
        ),
    ).execute(until=until)


def test_the_longest_go_first_where_several_work_and_lost_workers_are_rescued_from(tmp_path):
    engine, told = Recording(2), Told()
    run(tmp_path, engine, "vote", told)
    teach, vote = engine.given
    assert teach["weights"] == sorted(teach["weights"], reverse=True)
    assert len(set(teach["weights"])) > 1
    assert vote["weights"] == sorted(vote["weights"], reverse=True)
    assert teach["rescues"] == vote["rescues"] == RESCUES == 2


def test_one_after_another_they_keep_their_order(tmp_path):
    engine = Recording(1)
    run(tmp_path, engine, "teach", Told())
    assert engine.given[0]["weights"] != sorted(engine.given[0]["weights"], reverse=True)


def test_slots_and_retries_are_told(tmp_path):
    engine, told = Recording(2), Told()
    run(tmp_path, engine, "vote", told)
    shows = [show for show in told.shows if show[0] in ("teach", "vote")]
    assert shows == [("teach", 40, 0, 2), ("vote", 40, 0, 2)]
    assert told.again == 2 * 2  # the first task of each stage, tried three times


def test_members_of_a_lost_group_count_as_tried_again(tmp_path):
    engine, told = Recording(2, lose=2), Told()  # in the second run, which is vote's
    run(tmp_path, engine, "vote", told)
    members = int(engine.given[1]["weights"][0])
    assert members > 1
    assert len(engine.given) == 3
    assert len(engine.given[2]["weights"]) == members
    assert told.again == 3 * 2 + members
