"""Self-training: label the most certain inputs, learn from them, and repeat.

torch modules start from labels spread over the graph of public inputs and use a larger share of
their own labels in every round; other models start from a fit to the released labels, and use
labels above a threshold.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput
from pate.students.spec import StudentSpec, derived_seed
from pate.students.train import (
    StudentData,
    Tools,
    as_torch,
    refuse_torch_keys,
    sure_places,
)
from pate.teachers.protocol import Teacher, guarded, probabilities, train

if TYPE_CHECKING:
    from pate.students.training import Checkpoint
    from pate.teachers.torch_teacher import TorchTeacher

Table = NDArray[np.float64]  # (n, classes)

FRACTIONS = (0.8, 0.85, 0.9, 0.93, 0.96, 0.97, 0.98)  # of pseudo-labels, round by round
ROUNDS, CONFIDENCE = 3, 0.9  # where a threshold chooses


def self_training(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    """Train in rounds: label unlabelled inputs, and fit a new model to all labels.

    With released labels of a single class there is one fit to them: the model would be certain of
    everything.
    """
    first = tools.fresh()
    if as_torch(first) is not None:
        return _torch_rounds(spec, data, tools)
    refuse_torch_keys(spec)
    if not hasattr(first, "predict_proba"):
        raise InvalidInput(
            f"self-training needs a model with predict_proba, and {spec.model} as set up has none; "
            'choose another model, or method = "supervised"'
        )
    return _model_rounds(spec, data, tools)


def most_confident(table: Table, *, fraction: float) -> NDArray[np.bool_]:
    """Mark the most certain share of the rows of each class, so that every class is present.

    >>> table = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.4, 0.6], [0.45, 0.55]])
    >>> most_confident(table, fraction=0.5)
    array([ True,  True, False, False,  True, False])
    """
    predicted, sure = table.argmax(axis=1), table.max(axis=1)
    chosen = np.zeros(len(table), dtype=bool)
    for label in np.unique(predicted):
        members = np.flatnonzero(predicted == label)
        count = int(np.ceil(fraction * len(members)))
        chosen[members[np.argsort(-sure[members], kind="stable")[:count]]] = True
    return chosen


def spread_labels(spec: StudentSpec, data: StudentData, places: NDArray[np.int64]) -> Table:
    """Spread the released labels at ``places`` over all public inputs; soft ones are spread."""
    if data.soft is not None:
        table = np.full((len(data.inputs), data.classes), 1 / data.classes)
        table[data.rows] = data.soft
        return table
    from pate.students.propagation import propagate

    return propagate(
        data.graph_features,
        data.rows[places],
        data.labels[places],
        classes=data.classes,
        **spec.propagation.model_dump(),
    )


# --- models with fit and predict_proba ------------------------------------------------------------


def _model_rounds(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    learn, stop = tools.held_out(data)
    learn = sure_places(data, learn)
    rows, labels = data.rows[learn], data.labels[learn]
    best = _Best(spec, data, stop)

    def fit(given: NDArray[np.int64]) -> Teacher:
        used = np.flatnonzero(given >= 0)
        student = tools.fresh()
        train(
            student,
            np.concatenate([data.inputs[rows], data.inputs[used]]),
            np.concatenate([labels, given[used]]),
            private=False,
        )
        return student

    given = np.full(len(data.inputs), -1, dtype=np.int64)
    one_class, spread = len(np.unique(labels)) < 2, spec.start == "propagation"
    if one_class or not spread:
        student = fit(given)
        best.offer(student)
        if one_class:
            return student
    open_ = np.setdiff1d(np.arange(len(data.inputs)), rows)
    table = spread_labels(spec, data, learn) if spread else None
    rounds = len(spec.fractions) or spec.rounds or ROUNDS
    with tools.progress(rounds, 0) as bar:
        for number in range(rounds):
            if table is None:
                table = np.zeros((len(data.inputs), data.classes))
                if len(open_):
                    table[open_] = probabilities(student, data.inputs[open_], classes=data.classes)
            added = _add(given, table, open_, spec, number)
            if not added and (number or not spread):
                break
            student, table = fit(given), None
            bar.advance()
            best.offer(student)
            if best.stop:
                break
    return student if best.kept is None else best.kept


def _add(
    given: NDArray[np.int64], table: Table, open_: NDArray[np.int64], spec: StudentSpec, number: int
) -> bool:
    """Assign pseudo-labels to unlabelled rows; return whether any changed.

    With a threshold a pseudo-label is kept once assigned; with fractions each round chooses again.
    """
    before = given.copy()
    if not len(open_):
        return False
    if spec.fractions:
        given[open_] = -1
        sure = open_[most_confident(table[open_], fraction=spec.fractions[number])]
    else:
        least = CONFIDENCE if spec.confidence is None else spec.confidence
        sure = open_[(table[open_].max(axis=1) >= least) & (given[open_] < 0)]
    given[sure] = table[sure].argmax(axis=1)
    return not np.array_equal(before, given)


class _Best:
    """The best round so far, by released labels that were held out; otherwise the last."""

    def __init__(self, spec: StudentSpec, data: StudentData, stop: NDArray[np.int64]) -> None:
        self._patience = spec.patience
        self._inputs, self._labels = data.inputs[data.rows[stop]], data.labels[stop]
        self.score, self.waited = -1.0, 0
        self.kept: Teacher | None = None

    def offer(self, student: Teacher) -> None:
        """Record a round's model; later ones win among equals."""
        score = self.score
        if len(self._labels):
            predicted = guarded("predict", lambda: student.predict(self._inputs), private=False)
            score = float((np.asarray(predicted) == self._labels).mean())
            self.waited = 0 if score > self.score else self.waited + 1
        if score >= self.score:
            self.score, self.kept = score, student

    @property
    def stop(self) -> bool:
        return self.waited >= self._patience


# --- torch modules --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: its choice of pseudo-labels, and its epochs."""

    epochs: int
    fraction: float | None = None  # of each class; None: by confidence
    confidence: float = 2.0  # more than any probability: released labels only


def planned_rounds(spec: StudentSpec) -> list[Round]:
    """Return the rounds of a torch student; epochs rise evenly from the first to the last.

    >>> spec = StudentSpec(model="small-cnn", method="self-training", fractions=[0.5, 0.7, 0.9])
    >>> [(each.fraction, each.epochs) for each in planned_rounds(spec)]
    [(0.5, 6), (0.7, 10), (0.9, 14)]
    """
    if spec.confidence is None and spec.rounds is None:
        chosen = [{"fraction": fraction} for fraction in spec.fractions or FRACTIONS]
    else:
        least = CONFIDENCE if spec.confidence is None else spec.confidence
        chosen = [{"confidence": least}] * (spec.rounds or ROUNDS)
    first = min(spec.first_epochs, spec.epochs)
    ramp = np.ceil(np.linspace(spec.epochs, first, len(chosen)))[::-1]
    planned = [Round(epochs=int(epochs), **kind) for epochs, kind in zip(ramp, chosen, strict=True)]
    if spec.start == "model":
        planned.insert(0, Round(epochs=spec.epochs))
    return planned


def _torch_rounds(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    """Label in all rounds but the last, and fit the student to the result in the last."""
    import torch

    from pate.students.augment import make_augment
    from pate.students.training import fit_agreeing, fit_table, initialise

    learn, stop = tools.held_out(data)
    learn = sure_places(data, learn)
    several = len(np.unique(data.labels[learn])) > 1
    planned = planned_rounds(spec) if several else [Round(epochs=spec.epochs)]
    shape = data.inputs.shape[1:]
    augment = make_augment(spec.augment, shape=shape, plugin_path=tools.plugin_path)
    inputs = torch.from_numpy(np.array(data.inputs, dtype=np.float32))
    state = _Labelling.resume(spec, data, learn, tools, spread=several)
    parts = [(number, part) for number in range(len(planned) - 1) for part in range(spec.folds)]
    total = sum(each.epochs for each in planned[:-1]) * spec.folds + planned[-1].epochs
    past = sum(planned[number].epochs for number, _ in parts[: state.done])

    with tools.progress(total, past) as bar:

        def fit(each: Round, rows: NDArray[np.int64], targets: Any, name: str) -> TorchTeacher:
            fresh = as_torch(tools.fresh(name))
            assert fresh is not None
            student = initialise(fresh, data.inputs)
            settings: dict[str, Any] = {
                "augment": augment,
                "smoothing": spec.smoothing,
                "epochs": each.epochs,
                "seed": derived_seed(spec.seed, name),
                "average": spec.average,
                "checkpoint": tools.checkpoint("epochs"),
                "name": name,
                "advance": bar.advance,
            }
            if spec.agreement == 1:
                fit_table(student, inputs[rows], torch.from_numpy(targets), **settings)
                return student
            table = torch.zeros(len(inputs), data.classes)
            table[rows] = torch.from_numpy(targets)
            given = torch.zeros(len(inputs), dtype=torch.bool)
            given[rows] = True
            fit_agreeing(student, inputs, table, given, least=spec.agreement, **settings)
            return student

        for number, part in parts[state.done :]:
            if state.waited >= spec.patience:
                bar.advance(planned[number].epochs)
                continue
            rows, targets = _targets(planned[number], state.table, data, learn, spec)
            folds = _folds(len(inputs), spec, number)
            if spec.overrule == 1:  # otherwise models that did not see them may overrule them
                folds[data.rows[learn]] = -1  # released labels are for every part
            mine = np.flatnonzero((folds == part) | (folds < 0))
            seen = (folds[rows] != part) | (spec.folds == 1)
            student = fit(planned[number], rows[seen], targets[seen], f"round {number} {part}")
            state.coming[mine] += student.predict_proba(data.inputs[mine])
            state.finish(part, stop)
        each = planned[min(state.rounds, len(planned) - 1)]
        each = dataclasses.replace(each, epochs=planned[-1].epochs)
        rows, targets = _targets(each, state.best, data, learn, spec)
        return fit(each, rows, targets, "last")


class _Labelling:
    """The labels of all public inputs, round by round, and the best of them."""

    def __init__(self, spec: StudentSpec, data: StudentData, kept: Checkpoint | None) -> None:
        self._spec, self._data, self._kept = spec, data, kept
        self.done = 0  # fits
        self.rounds = 0  # of the best labels
        self.table: Table | None = None  # of the rounds before
        self.best: Table | None = None
        self.coming = np.zeros((len(data.inputs), data.classes))
        self.score, self.waited = -1.0, 0

    @classmethod
    def resume(
        cls,
        spec: StudentSpec,
        data: StudentData,
        learn: NDArray[np.int64],
        tools: Tools,
        *,
        spread: bool,
    ) -> _Labelling:
        state = cls(spec, data, tools.checkpoint("rounds"))
        before = None if state._kept is None else state._kept.read()
        if before is not None:
            tensors, record = before
            for name, value in {**{k: v.numpy() for k, v in tensors.items()}, **record}.items():
                setattr(state, name, value)
        elif spread and spec.start != "model":
            state.table = state.best = spread_labels(spec, data, learn)
        return state

    def finish(self, part: int, stop: NDArray[np.int64]) -> None:
        """Record a fit; the last part of a round completes its labels."""
        self.done += 1
        if part == self._spec.folds - 1:
            fresh = self.coming / self.coming.sum(axis=1, keepdims=True)
            number = self.done // self._spec.folds
            # Averaged with earlier rounds: the errors of one network fade.
            self.table = fresh if number == 1 or self.table is None else (self.table + fresh) / 2
            self.coming = np.zeros_like(self.coming)
            self._judge(number, stop)
        if self._kept is not None:
            self._write()

    def _judge(self, number: int, stop: NDArray[np.int64]) -> None:
        """Score the labels by released ones that were held out; later rounds win among equals."""
        score, table = self.score, self.table
        assert table is not None
        if len(stop):
            predicted = table[self._data.rows[stop]].argmax(axis=1)
            score = float((predicted == self._data.labels[stop]).mean())
            self.waited = 0 if score > self.score else self.waited + 1
        if score >= self.score:
            self.score, self.rounds, self.best = score, number, table

    def _write(self) -> None:
        import torch

        tables = {name: getattr(self, name) for name in ("table", "best", "coming")}
        stored = {k: torch.from_numpy(v) for k, v in tables.items() if v is not None}
        record = {name: getattr(self, name) for name in ("done", "rounds", "score", "waited")}
        assert self._kept is not None
        self._kept.write(stored, record)


def _folds(count: int, spec: StudentSpec, number: int) -> NDArray[np.int64]:
    """Return the part of every input; the division differs in every round.

    An input is labelled by a network that has not seen its label of the round before, which it
    would only repeat, right or wrong.
    """
    rng = np.random.default_rng(derived_seed(spec.seed, "folds", number))
    return np.asarray(rng.permutation(count) % spec.folds, dtype=np.int64)


def _targets(
    each: Round,
    table: Table | None,
    data: StudentData,
    learn: NDArray[np.int64],
    spec: StudentSpec,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows that a round learns from, and a table of their targets."""
    rows, labels = data.rows[learn], data.labels[learn]
    targets = np.zeros((len(data.inputs), data.classes), dtype=np.float32)
    used = np.zeros(len(data.inputs), dtype=bool)
    if table is not None:
        if each.fraction is not None:
            used = most_confident(table, fraction=each.fraction)
        else:
            used = table.max(axis=1) >= each.confidence
        targets[used, table[used].argmax(axis=1)] = 1
        # A released label may be noise: one that its neighbours contradict may be dropped.
        against = table[rows].max(axis=1) * (table[rows].argmax(axis=1) != labels)
        fair = against < spec.overrule if spec.overrule < 1 else np.ones(len(rows), dtype=bool)
        rows, labels = rows[fair], labels[fair]
    targets[rows] = 0
    np.add.at(targets, (rows, labels), 1)
    used[rows] = True
    chosen = np.flatnonzero(used)
    return chosen, targets[chosen] / targets[chosen].sum(axis=1, keepdims=True)
