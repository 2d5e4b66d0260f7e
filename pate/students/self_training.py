"""Self-training: labels what it is surest of, learns from that, and looks again.

torch modules start from labels spread over the graph of public inputs and take a larger share of
their own labels in every round; other models start from a fit to the released labels, and keep
what passes a threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput
from pate.students.data import StudentData
from pate.students.propagation import propagate
from pate.students.seeds import sub_seed
from pate.students.spec import StudentSpec
from pate.students.tools import Tools, refuse_torch_keys
from pate.teachers.protocol import Teacher, guarded, probabilities, train
from pate.teachers.torch_teacher import TorchTeacher

T = TypeVar("T")
Table = NDArray[np.float64]  # (n, classes)

FRACTIONS = (0.8, 0.9, 0.95, 0.97, 0.985, 0.99, 0.995)  # of pseudo-labels, round by round
ROUNDS, CONFIDENCE = 3, 0.9  # where a threshold chooses


def self_training(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    """Several rounds of labelling what has no label and fitting a fresh model to all of it.

    With labels of a single class the model would be sure of everything, so it stays at a fit to
    the released labels.
    """
    first = tools.fresh()
    if isinstance(first, TorchTeacher):
        return _torch_rounds(spec, data, tools)
    refuse_torch_keys(spec)
    if not hasattr(first, "predict_proba"):
        raise InvalidInput(
            f"self-training needs a model with predict_proba, and {spec.model} as set up has none; "
            'choose another model, or method = "supervised"'
        )
    return _model_rounds(spec, data, tools)


def most_confident(table: Table, *, fraction: float) -> NDArray[np.bool_]:
    """The surest share of the rows of each class, so that no class is crowded out.

    >>> table = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.4, 0.6], [0.45, 0.55]])
    >>> most_confident(table, fraction=0.5)
    array([ True,  True, False, False,  True, False])
    """
    said, sure = table.argmax(axis=1), table.max(axis=1)
    chosen = np.zeros(len(table), dtype=bool)
    for label in np.unique(said):
        members = np.flatnonzero(said == label)
        count = int(np.ceil(fraction * len(members)))
        chosen[members[np.argsort(-sure[members], kind="stable")[:count]]] = True
    return chosen


def spread_labels(spec: StudentSpec, data: StudentData, places: NDArray[np.int64]) -> Table:
    """The released labels at ``places``, spread over all public inputs."""
    settings = spec.propagation
    return propagate(
        data.graph_features,
        data.rows[places],
        data.labels[places],
        classes=data.classes,
        neighbours=settings.neighbours,
        alpha=settings.alpha,
        metric=settings.metric,
        balance=settings.balance,
    )


# --- models with fit and predict_proba ------------------------------------------------------------


def _model_rounds(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    learn, stop = tools.held_out(data)
    rows, labels = data.rows[learn], data.labels[learn]
    best: _Best[Teacher] = _Best(spec, data, stop)

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
    one_class = len(np.unique(labels)) < 2
    if one_class or spec.start != "propagation":
        student = fit(given)
        best.offer(student, student)
        if one_class:
            return student
    open_ = np.setdiff1d(np.arange(len(data.inputs)), rows)
    table = None
    if spec.start == "propagation":
        table = spread_labels(spec, data, learn)
    rounds = len(spec.fractions) or spec.rounds or ROUNDS
    with tools.progress(rounds, 0) as bar:
        for number in range(rounds):
            if table is None:
                table = np.zeros((len(data.inputs), data.classes))
                if len(open_):
                    table[open_] = probabilities(student, data.inputs[open_], classes=data.classes)
            added = _add(given, table, open_, spec, number)
            if not added and number + (spec.start != "propagation") > 0:
                break
            student, table = fit(given), None
            bar.advance()
            best.offer(student, student)
            if best.stop:
                break
    return student if best.kept is None else best.kept


def _add(
    given: NDArray[np.int64], table: Table, open_: NDArray[np.int64], spec: StudentSpec, number: int
) -> bool:
    """Gives pseudo-labels to open rows; says whether any changed.

    By a threshold a pseudo-label stays once given; by fractions each round chooses anew.
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


class _Best(Generic[T]):
    """The best round so far, by released labels that no round learnt from; or else the last."""

    def __init__(self, spec: StudentSpec, data: StudentData, stop: NDArray[np.int64]) -> None:
        self._patience = spec.patience
        self._inputs, self._labels = data.inputs[data.rows[stop]], data.labels[stop]
        self.score, self.waited = -1.0, 0
        self.kept: T | None = None

    def offer(self, student: Teacher, what: T) -> None:
        """Takes note of a round's model; later ones win among equals."""
        score = self.score
        if len(self._labels):
            said = guarded("predict", lambda: student.predict(self._inputs), private=False)
            score = float((np.asarray(said) == self._labels).mean())
            self.waited = 0 if score > self.score else self.waited + 1
        if score >= self.score:
            self.score, self.kept = score, what

    @property
    def stop(self) -> bool:
        return self.waited >= self._patience


# --- torch modules --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: how pseudo-labels are chosen, and how long it trains."""

    epochs: int
    fraction: float | None = None  # of each class; None: by confidence
    confidence: float = 2.0  # more than any probability: released labels only


def planned_rounds(spec: StudentSpec) -> list[Round]:
    """The rounds of a torch student; epochs rise evenly from the first round to the last.

    >>> spec = StudentSpec(model="small-cnn", method="self-training", fractions=[0.5, 0.7, 0.9])
    >>> [(each.fraction, each.epochs) for each in planned_rounds(spec)]
    [(0.5, 5), (0.7, 10), (0.9, 14)]
    """
    if spec.confidence is None and spec.rounds is None:
        chosen = [{"fraction": fraction} for fraction in spec.fractions or FRACTIONS]
    else:
        least = CONFIDENCE if spec.confidence is None else spec.confidence
        chosen = [{"confidence": least}] * (spec.rounds or ROUNDS)
    first = min(spec.first_epochs, spec.epochs)
    ramp = (
        np.ceil(np.linspace(first, spec.epochs, len(chosen))) if len(chosen) > 1 else [spec.epochs]
    )
    planned = [Round(epochs=int(epochs), **kind) for epochs, kind in zip(ramp, chosen, strict=True)]
    if spec.start == "model":
        planned.insert(0, Round(epochs=spec.epochs))
    return planned


def _torch_rounds(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    import torch

    from pate.students.augment import make_augment
    from pate.students.checkpoint import pack, unpack
    from pate.students.training import fit_table, settle

    learn, stop = tools.held_out(data)
    several = len(np.unique(data.labels[learn])) > 1
    planned = planned_rounds(spec) if several else [Round(epochs=spec.epochs)]
    shape = data.inputs.shape[1:]
    augment = make_augment(spec.augment, shape=shape, plugin_path=tools.plugin_path)
    inputs = torch.from_numpy(np.array(data.inputs, dtype=np.float32))
    best: _Best[dict[str, Any]] = _Best(spec, data, stop)
    rounds = tools.checkpoint("rounds")
    before = None if rounds is None else rounds.read()
    done, table = 0, None
    if before is not None:
        tensors, record = before
        done, table = int(record["done"]), tensors["table"].numpy()
        best.score, best.waited = record["score"], record["waited"]
        best.kept = unpack("module", tensors)
    elif several and spec.start != "model":
        table = spread_labels(spec, data, learn)
    past = sum(each.epochs for each in planned[:done])
    with tools.progress(sum(each.epochs for each in planned), past) as bar:
        for number, each in list(enumerate(planned))[done:]:
            if best.stop:
                break
            student = settle(_torch(tools.fresh(number)), data.inputs)
            rows, targets = _targets(each, table, data, learn, spec)
            fit_table(
                student,
                inputs[rows],
                torch.from_numpy(targets),
                augment=augment,
                smoothing=spec.smoothing,
                epochs=each.epochs,
                seed=sub_seed(spec.seed, "round", number),
                average=spec.average,
                checkpoint=tools.checkpoint("epochs"),
                name=f"round {number}",
                advance=bar.advance,
            )
            table = student.predict_proba(data.inputs)
            best.offer(student, student.module.state_dict())
            if rounds is not None:
                rounds.write(
                    {"table": torch.from_numpy(table)} | pack("module", best.kept or {}),
                    {"done": number + 1, "score": best.score, "waited": best.waited},
                )
    student = settle(_torch(tools.fresh()), data.inputs)
    student.module.load_state_dict(best.kept or {})
    return student


def _torch(teacher: Teacher) -> TorchTeacher:
    assert isinstance(teacher, TorchTeacher)
    return teacher


def _targets(
    each: Round,
    table: Table | None,
    data: StudentData,
    learn: NDArray[np.int64],
    spec: StudentSpec,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The rows a round learns from, and a table of what to say on each."""
    rows, labels = data.rows[learn], data.labels[learn]
    targets = np.zeros((len(data.inputs), data.classes), dtype=np.float32)
    used = np.zeros(len(data.inputs), dtype=bool)
    if table is not None:
        if each.fraction is not None:
            used = most_confident(table, fraction=each.fraction)
        else:
            used = table.max(axis=1) >= each.confidence
        targets[used, table[used].argmax(axis=1)] = 1
        # A released label may be noise: what all its surroundings deny can be let go.
        against = table[rows].max(axis=1) * (table[rows].argmax(axis=1) != labels)
        fair = against < spec.overrule if spec.overrule < 1 else np.ones(len(rows), dtype=bool)
        rows, labels = rows[fair], labels[fair]
    targets[rows] = 0
    np.add.at(targets, (rows, labels), 1)
    used[rows] = True
    chosen = np.flatnonzero(used)
    return chosen, targets[chosen] / targets[chosen].sum(axis=1, keepdims=True)
