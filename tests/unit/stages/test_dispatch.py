"""How teach and vote hand out their tasks, and what they tell of it."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from pate.engines import Outcome
from pate.engines.worker import SerialEngine
from pate.errors import PateError
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import Options
from pate.stages.catalogue import STAGES
from pate.stages.dispatch import RESCUES

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

    def __init__(self, slots, lose=None, crowd=()):
        self.slots, self.lose, self.given = slots, lose, []
        self.crowd = crowd  # the teachers that are lost while others work beside them

    def run(self, tasks, *, retries=0, rescues=0, timeout=None):
        tasks = list(tasks)
        run = {"rescues": rescues, "weights": [], "places": []}
        self.given.append(run)
        for number, task in enumerate(tasks):
            run["weights"].append(task.weight)
            group = task.payload["teachers"]
            asked = [each["number"] for each in group if each["made_from"]]
            run["places"].append((len(group), asked))
            if len(tasks) > 1 and set(asked) & set(self.crowd):
                yield Outcome(key=task.key, result=None, error=self.lose, seconds=0, attempts=3)
                continue
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


def run(folder: Path, engine, until, told, **teachers):
    rng = np.random.default_rng(0)
    labels = np.arange(700) % 2
    np.savez(folder / "data.npz", X=rng.normal(size=(700, 4)) + 2 * labels[:, None], y=labels)
    (folder / "mean.py").write_text(MEAN)
    PipelineRun(
        folder=folder / "run",
        recipe=Recipe.model_validate(
            {
                "data": {
                    "name": "many",
                    "source": str(folder / "data.npz"),
                    "public": 20,
                    "test": 20,
                    "accept_unprotected": True,
                },
                "teachers": {"count": 40, "model": "mean:Mean", **teachers},
                "aggregate": {"scale": 20.0},
                "student": {"model": "mean:Mean"},
            }
        ),
        stages=STAGES,
        options=Options(
            data_root=folder / "root",
            engine=engine,
            plugin_path=folder / "mean.py",
            report=lambda _: None,
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


def answers(folder, kind):
    (file,) = (folder / "run" / "private").glob(kind)
    return json.loads(file.read_text()) if file.suffix == ".json" else np.load(file)


@pytest.mark.parametrize("stage", ["teach", "vote"])
@pytest.mark.parametrize("on_error", ["abstain", "fail"])
@pytest.mark.parametrize("error", ["WorkerDied: killed", "TimedOut: no result", "MemoryError"])
@pytest.mark.sample(3)
def test_a_crowd_makes_nobody_abstain_or_change_its_place(tmp_path, on_error, stage, error):
    """Another teacher may have taken all memory: who is lost beside others is tried alone."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    run(tmp_path / "a", Recording(2), "vote", Told(), on_error=on_error)
    crowded, told = Recording(2, lose=error, crowd=[3, 17]), Told()
    if stage == "vote":
        run(tmp_path / "b", Recording(2), "teach", Told(), on_error=on_error)
    run(tmp_path / "b", crowded, "vote", told, on_error=on_error)
    for kind in ("teach/*/teachers.json", "vote/*/predictions.npy", "vote/*/counts.npy"):
        found = answers(tmp_path / "b", kind)
        if kind.endswith(".npy"):
            np.testing.assert_array_equal(found, answers(tmp_path / "a", kind))
        else:
            assert None not in found
    quiet = [each["places"] for each in crowded.given if len(each["places"]) == 1]
    assert [(5, [3])] in quiet  # in its place of five, and not alone in a group of one
    assert [(5, [17])] in quiet
    assert not [place for (place,) in quiet if place[0] == 1]
    assert (told.again > 0) == (on_error == "fail")  # whether any failed is nobody's business


@pytest.mark.parametrize("error", ["WorkerDied: killed", "NodeLost: gone"])
def test_who_is_lost_alone_abstains_but_not_with_its_machine(tmp_path, error):
    class Doomed(Recording):
        def run(self, tasks, **limits):
            tasks = list(tasks)
            numbers = [e["number"] for t in tasks for e in t.payload["teachers"] if e["made_from"]]
            if len(tasks) == 1 and numbers == [3]:
                self.given.append({"places": [(len(tasks[0].payload["teachers"]), [3])]})
                return iter([Outcome(key=tasks[0].key, result=None, error=error, seconds=0,
                                     attempts=3)])  # fmt: skip
            return super().run(tasks, **limits)

    engine = Doomed(2, lose=error, crowd=[3])
    if error.startswith("NodeLost"):
        with pytest.raises(PateError, match="teacher 3 was lost: NodeLost: gone"):
            run(tmp_path, engine, "vote", Told(), on_error="abstain")
        return
    run(tmp_path, engine, "vote", Told(), on_error="abstain")
    assert [n for n, name in enumerate(answers(tmp_path, "teach/*/teachers.json")) if not name] == [
        3
    ]
    assert (answers(tmp_path, "vote/*/predictions.npy")[3] == -1).all()
    assert [(1, [3])] in [each["places"] for each in engine.given]  # by itself, at last
