"""The tries of a private selection. Everything in here is PRIVATE, and goes when it is over.

    course (K and the picks) → answers, one for each try → scores → the best

Each is stored as soon as it is there, under ``private``, so that a selection that was killed goes
on with the same number of tries, the same picks and the same answers: a second draw because of
something in the first would be another mechanism than the one that is accounted for.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting import draw_tries
from pate.artifacts import Artifact, Level, Store, fingerprint
from pate.devices import use_first
from pate.errors import PateError
from pate.mechanisms import Plan
from pate.pipeline.recipe import SelectionSpec
from pate.pipeline.stage import Context, Options
from pate.silence import silence
from pate.stages.drawing import chooser_of, draw, noise, save_answer
from pate.stages.features import as_student_sees, graph_features, student_inputs
from pate.students import StudentData, train_student
from pate.teachers import predict_labels
from pate.teachers.errors import OutOfMemory

_COURSE, _TRY, _SCORE = "selection-course", "selection-try", "selection-score"
_FAILED = -1.0  # the score of a try without a student: below all others


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One that can be picked, and all that is public about it."""

    context: Context  # of its ``aggregate``: votes, public inputs, encoder
    plan: Plan
    rows: NDArray[np.int64]  # the public inputs it asks about, in order
    test: Artifact  # test records and their labels, which are public

    @classmethod
    def of(cls, context: Context, plan: Plan, store: Store) -> Candidate:
        made_from = context.inputs["data-public"].manifest["made_from"]
        return cls(
            context=context,
            plan=plan,
            rows=chooser_of(context).first(plan.queries),
            test=store.cleared("evaluate", Level.PRIVATE).open("data-test", made_from),
        )

    @property
    def classes(self) -> int:
        return int(self.context.inputs["data-public"].facts["classes"])

    def rehearse(self) -> None:
        """Trains on made-up labels: settings with which no student can learn are found for free."""
        rows = self.rows[: self.plan.answers]
        self.scored(rows, np.arange(len(rows)) % self.classes)

    def scored(self, rows: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
        """The share of test records that a student of these labels gets right.

        It is trained as ``distill`` would do it, and is stored nowhere.
        """
        recipe, options = self.context.recipe, self.context.options
        data = StudentData(
            inputs=np.array(student_inputs(self.context)),
            features=graph_features(self.context),
            rows=rows,
            labels=labels,
            classes=self.classes,
        )
        inputs = as_student_sees(self.context, np.array(self.test.array("features.npy")))
        truth = np.array(self.test.array("labels.npy"))
        with use_first(self.context.options.engine.devices):
            student = train_student(recipe.student, data, plugin_path=options.plugin_path)
            said = predict_labels(student, inputs, classes=self.classes)
        return float(np.mean(said == truth))


@dataclass(frozen=True, kw_only=True)
class Tries:
    """All tries of one selection."""

    candidates: Sequence[Candidate]
    selection: SelectionSpec
    made_from: str  # of the selection
    store: Store
    options: Options

    def best(self) -> tuple[int, Artifact]:
        """The candidate of the best try, and the try's answer; made where it is not there yet.

        Guarantees:
            * K and the picks are drawn before any vote is opened, from secure randomness, and each
              try has fresh noise of its own. Scores follow from the answer and public things.
            * Nothing is said on the way, and whatever a student fails with (labels of one class, an
              error of its own) is the worst score, and no error. Only what the machine lacks is
              told, memory or room on the disk: the selection stops before anything is paid for, and
              goes on with the same answers.
            * Of equal scores the first one's try is taken, which among tries that are exchangeable
              is one of them at random.
        """
        course = self._course()
        picks = [int(each) for each in course.array("picks.npy")]
        token = str(course.facts["token"])
        with silence():
            answers = [self._answer(token, number, pick) for number, pick in enumerate(picks)]
            scores = [
                self._score(token, number, pick, answer)
                for number, (pick, answer) in enumerate(zip(picks, answers, strict=True))
            ]
        first = int(np.argmax(scores))
        return picks[first], answers[first]

    def _course(self) -> Artifact:
        """How many tries there are, and of which candidates; drawn once."""
        made_from = fingerprint(self.made_from, "course")
        if self.store.find(_COURSE, made_from) is None:
            rng = noise(self.options)
            count = draw_tries(self.selection.mean_tries, self.selection.shape, rng=rng)
            picks = rng.integers(len(self.candidates), size=count)
            with self._draft(_COURSE, made_from) as draft:
                draft.save_array("picks.npy", picks)
                draft.facts["token"] = secrets.token_hex(12)
        return self.store.open(_COURSE, made_from)  # of two processes at once, the first one's

    def _answer(self, token: str, number: int, pick: int) -> Artifact:
        made_from = fingerprint(self.made_from, token, "try", number)
        if self.store.find(_TRY, made_from) is None:
            one = self.candidates[pick]
            drawn = draw(one.context, one.rows, most_answers=one.plan.answers, number=number + 1)
            with self._draft(_TRY, made_from) as draft:
                save_answer(draft, [drawn])
        return self.store.open(_TRY, made_from)

    def _score(self, token: str, number: int, pick: int, answer: Artifact) -> float:
        made_from = fingerprint(self.made_from, token, "score", number)
        if self.store.find(_SCORE, made_from) is None:
            score = _scored(self.candidates[pick], answer)
            with self._draft(_SCORE, made_from) as draft:
                draft.save_json("score.json", score)
        return float(self.store.open(_SCORE, made_from).json("score.json"))

    def _draft(self, stage: str, made_from: str) -> Any:
        inputs = {"selection": self.made_from}
        return self.store.draft(stage, made_from, level=Level.PRIVATE, inputs=inputs)


def _scored(one: Candidate, answer: Artifact) -> float:
    """How good a student of this answer is; the worst score where there is none."""
    names = (("answered.npy", "kept.npy"), ("labels.npy", "kept_labels.npy"))
    rows, labels = (np.concatenate([answer.array(name) for name in part]) for part in names)
    if len(np.unique(labels)) < 2:
        return _FAILED
    try:
        return one.scored(rows, labels)
    except (MemoryError, OutOfMemory):  # of the machine, and of no label
        raise PateError(
            "memory ran out while a student was trained; nothing was released or paid for: end "
            "other programs, and run the same command again to go on where it was"
        ) from None
    except (Exception, SystemExit):
        return _FAILED


def forget(store: Store, made_from: str) -> None:
    """Removes every trace of the tries of a selection: how many, which, and how they did."""
    for stage in (_SCORE, _TRY, _COURSE):
        for each in store.all(stage):
            if each.manifest["inputs"].get("selection") == made_from:
                store.discard(each)
        with contextlib.suppress(OSError):  # not there, or another selection is under way
            (store.root / Level.PRIVATE.folder / stage).rmdir()
