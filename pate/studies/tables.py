"""The tables of a study: rows of sweeps and comparisons, and their JSON and CSV files.

The files have mode 0600: some rows may not be published, and the owner decides whether to pay what
publishing the rest costs.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate._files import write_atomically
from pate._format import (
    compare_neighbours,
    describe_neighbours,
    format_cost,
    format_delta,
    in_nouns,
)
from pate.accounting import Guarantee, Neighbours
from pate.accounting.ledger.study_costs import NOT_PLANNED, TotalStudyCost, earlier_releases_caveat
from pate.artifacts.results import (
    Answers,
    Costs,
    Evaluation,
    PublicLabels,
    StatedGuarantee,
    load_reference,
)
from pate.errors import InvalidInput
from pate.metrics import Share, no_better, wilson
from pate.record_votes import VotesSpec
from pate.stages.evaluate import EVALUATE
from pate.studies.study import enough_labels

if TYPE_CHECKING:
    from pate.pipeline.runner import PipelineRun
    from pate.studies.measure import Measure
    from pate.studies.sweep import Grid, Point


# --- files ----------------------------------------------------------------------------------------


def write_private_file(file: Path, content: bytes) -> None:
    """Write a file of mode 0600 atomically; its folder is made if it is missing."""
    write_atomically(file, content, make_parents=True)


def write_table(
    folder: Path,
    stem: str,
    content: Mapping[str, Any],
    *,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
) -> tuple[Path, Path]:
    """Write ``content`` to ``STEM.json`` and the ``columns`` of ``rows`` to ``STEM.csv``.

    In the CSV file None and missing values are empty cells; the items of a list are separated by
    blanks.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    files = folder / f"{stem}.json", folder / f"{stem}.csv"
    whole = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_private_file(files[0], whole.encode())
    write_private_file(files[1], text.getvalue().encode())
    return files


def _cell(value: Any) -> str:
    """Return a value as text.

    >>> [_cell(each) for each in (None, True, 0.25, [1, 2], {"a": 1}, "word")]
    ['', 'true', '0.25', '1 2', '{"a": 1}', 'word']
    """
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return " ".join(map(_cell, value))
    return value if isinstance(value, str) else json.dumps(value)


def require_same_noise(folder: Path, stem: str, *, seeded: bool) -> None:
    """Refuse to overwrite a table of secure noise with one of seeded noise, or the reverse."""
    file = folder / f"{stem}.json"
    try:
        found = json.loads(file.read_text())["seeded"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # none, or nothing worth keeping
    if found is not seeded:
        kinds = ("secure", "seeded")
        raise InvalidInput(
            f"{file} is of {kinds[bool(found)]} noise, and would be overwritten by one of "
            f"{kinds[seeded]} noise; choose another --out"
        )


# --- a sweep --------------------------------------------------------------------------------------

SWEEP_COLUMNS = (
    "epsilon", "delta", "teachers", "asked", "answered", "labels_right", "accuracy", "low", "high",
    "records",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """A finished point of a sweep; everything in it was released."""

    point: Point
    epsilon: float  # of this point alone, if it was fixed before any result was seen
    delta: float
    neighbours: str
    protects: str
    private: bool  # False where the noise was seeded
    asked: int
    answered: int
    labels: Share | None  # the share of correct labels, where the truth is known
    student: Share | None  # None where the labels were too few for a student

    @classmethod
    def of(cls, point: Point, run: PipelineRun, *, student: bool) -> SweepRow:
        """Read a finished run; ``student`` is False where its labels were too few for one."""
        answers = Answers.load(run.artifact("aggregate"))
        costs = Costs.load(run.artifact("account"))
        found = Evaluation.load(run.artifact("evaluate")) if student else None
        return cls(
            point=point,
            epsilon=costs.guarantee.epsilon,
            delta=costs.guarantee.delta,
            neighbours=costs.guarantee.neighbours,
            protects=costs.protects,
            private=not costs.seeded,
            asked=len(answers.asked),
            answered=len(answers.answered),
            labels=None if found is None else found.labels,
            student=None if found is None else found.student,
        )

    def as_json(self, grid: Grid) -> dict[str, Any]:
        """Return the row as ``sweep.json`` holds it."""
        return {
            "point": self.point.number,
            "settings": {
                axis.key: value for axis, value in zip(grid.axes, self.point.values, strict=True)
            },
            "epsilon": self.epsilon,
            "delta": self.delta,
            "neighbours": self.neighbours,
            "protects": self.protects,
            "private": self.private,
            "teachers": None if self.point.recipe.by_records else self.point.recipe.teachers.count,
            "asked": self.asked,
            "answered": self.answered,
            "labels": None if self.labels is None else asdict(self.labels),
            "student": None if self.student is None else asdict(self.student),
        }


def write_sweep_table(folder: Path, content: Mapping[str, Any]) -> None:
    """Write ``sweep.json`` and ``sweep.csv``."""
    keys = list(content["over"])
    rows = [
        {
            **row,
            **(row["student"] or {}),
            **row["settings"],
            "labels_right": (row["labels"] or {}).get("accuracy"),
        }
        for row in content["rows"]
    ]
    columns = ["point", *keys, *(each for each in SWEEP_COLUMNS if each not in keys)]
    write_table(folder, "sweep", content, rows=rows, columns=columns)


# --- a comparison ---------------------------------------------------------------------------------

METHODS = {
    "pate": "PATE (teachers)",
    "record-votes": "PATE (record votes)",
    "dpsgd": "DP-SGD",
    "least-squares": "least squares",
    "public-labels": "true public labels",
    "record-public-labels": "true labels of all public inputs",
    "majority": "majority class",
    "reference": "without privacy",
}
COMPARISON_COLUMNS = (
    "method", "name", "epsilon", "target", "delta", "accuracy", "spread", "low", "high", "labels",
    "seconds", "peak_memory_mb", "neighbours", "data_dependent", "publishable",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """One run of a method."""

    seed: int
    accuracy: float
    epsilon: float | None = None
    delta: float | None = None
    labels: int | None = None
    seconds: float | None = None
    peak_memory_mb: float | None = None
    whole: bool = True  # False: it was killed on the way, and took longer than ``seconds``
    trained: bool = True  # False: its labels are of one class, which it always predicts


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A method at one ε, or a baseline that needs none.

    ``accuracy`` is the mean over repetitions, ``spread`` their standard deviation; ``low`` and
    ``high`` are the 95 % interval of the mean for this number of test records (Wilson 1927).
    """

    method: str  # a key of METHODS
    epsilon: float | None  # its cost; None where no private record was used, or without a bound
    target: float | None  # the ε that it may not exceed
    accuracy: float
    spread: float | None  # None for one repetition
    low: float
    high: float
    runs: tuple[Repetition, ...]
    neighbours: str | None
    data_dependent: bool | None
    publishable: bool

    @property
    def name(self) -> str:
        return METHODS[self.method]

    @property
    def labels(self) -> int | None:
        """The mean number of labels that the model was trained on."""
        known = [once.labels for once in self.runs if once.labels is not None]
        return round(statistics.fmean(known)) if known else None

    @property
    def seconds(self) -> float | None:
        """The mean time from data to model."""
        known = [once.seconds for once in self.runs if once.seconds is not None]
        return statistics.fmean(known) if known else None

    @property
    def peak_memory_mb(self) -> float | None:
        known = [once.peak_memory_mb for once in self.runs if once.peak_memory_mb is not None]
        return max(known) if known else None

    @property
    def whole(self) -> bool:
        """Whether the times include all the work."""
        return all(once.whole for once in self.runs)

    def as_json(self) -> dict[str, Any]:
        """Return the row as ``compare.json`` holds it."""
        return {
            "method": self.method,
            "name": self.name,
            "epsilon": self.epsilon,
            "target": self.target,
            "accuracy": self.accuracy,
            "spread": self.spread,
            "low": self.low,
            "high": self.high,
            "runs": [asdict(once) for once in self.runs],
            "seconds": self.seconds,
            "peak_memory_mb": self.peak_memory_mb,
            "labels": self.labels,
            "neighbours": self.neighbours,
            "data_dependent": self.data_dependent,
            "publishable": self.publishable,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPoint:
    """All methods at one ε, once, with their results in the folder."""

    epsilon: float
    seed: int
    baselines: bool  # whether what needs no ε was evaluated beside it
    # The runs of teachers and of record votes, where they are compared; by method.
    labels: Mapping[str, tuple[PipelineRun, Measure | None]]
    # The reports of DP-SGD and, where it is compared, least squares; by method.
    models: Mapping[str, tuple[Mapping[str, Any], Measure | None]]


def comparison_rows(
    finished: Sequence[FinishedPoint], *, seeded: bool
) -> tuple[ComparisonRow, ...]:
    """Return all methods at each ε, then baselines from public labels, and one without privacy.

    Guarantees:
        * A row is publishable where it rests on what was charged (labels, a student, a noised
          model) or on public data alone. The model that saw private records without noise is not;
          nor is anything if the noise was seeded.
        * Which inputs were asked about is public where it was fixed before the votes were opened.
          Where answers decided on it, true labels of these inputs cost what PATE's did, and their
          row has that ε.
    """
    rows = []
    for epsilon in sorted({each.epsilon for each in finished}):
        at = [each for each in finished if each.epsilon == epsilon]
        for method in at[0].labels:
            results = [_labels(each, method) for each in at]
            rows.append(_row(method, results, target=epsilon, seeded=seeded))
        for method in at[0].models:
            results = [_model(each, method) for each in at]
            rows.append(_row(method, results, target=epsilon, seeded=seeded))
    beside = [each for each in finished if each.baselines]
    for method in beside[-1].labels:
        informed = [_public_labels(each.seed, each.labels[method][0]) for each in beside]
        known = [each for each in informed if each is not None]
        if known:
            paid = any(guarantee is not None for _, _, guarantee in known)
            rows.append(_row(_INFORMED[method], known, seeded=seeded and paid))
    truth = _truth(_first_run(beside[-1]))
    majority = int(np.bincount(truth).max())
    rows.append(_row("majority", [_result(0, majority / len(truth), len(truth))]))
    references = [
        (each.seed, load_reference(_first_run(each).artifact("evaluate-reference")))
        for each in beside
        if _first_run(each).recipe.evaluate.reference and enough_labels(_first_run(each))
    ]
    if references:
        results = [_result(seed, each.accuracy, each.records) for seed, each in references]
        rows.append(_row("reference", results, publishable=False))
    return tuple(rows)


_INFORMED = {"pate": "public-labels", "record-votes": "record-public-labels"}


def _first_run(point: FinishedPoint) -> PipelineRun:
    return next(iter(point.labels.values()))[0]


_Result = tuple[Repetition, int, StatedGuarantee | None]  # with test records and its cost


def _result(
    seed: int,
    accuracy: float,
    records: int,
    *,
    guarantee: StatedGuarantee | None = None,
    measure: Measure | None = None,
    labels: int | None = None,
) -> _Result:
    once = Repetition(
        seed=seed,
        accuracy=accuracy,
        epsilon=None if guarantee is None else guarantee.epsilon,
        delta=None if guarantee is None else guarantee.delta,
        labels=labels,
        seconds=None if measure is None else measure.seconds,
        peak_memory_mb=None if measure is None else measure.megabytes,
        whole=measure is None or measure.whole,
    )
    return once, records, guarantee


def _guarantee(run: PipelineRun) -> StatedGuarantee:
    stated = Costs.load(run.artifact("account")).guarantee
    if run.recipe.protected_group is None:
        return stated
    return replace(stated, neighbours=Neighbours.USER_ADD_REMOVE.value)  # partitioned by hash


def _labels(point: FinishedPoint, method: str) -> _Result:
    run, measure = point.labels[method]
    answers, truth = Answers.load(run.artifact("aggregate")), _truth(run)
    trained = enough_labels(run)
    if trained:
        accuracy = Evaluation.load(run.artifact("evaluate")).student.accuracy
    else:
        only = answers.row_labels[0] if len(answers.row_labels) else 0
        accuracy = float((truth == only).mean())
    once, records, guarantee = _result(
        point.seed,
        accuracy,
        len(truth),
        guarantee=_guarantee(run),
        measure=measure,
        labels=len(answers.answered),
    )
    return replace(once, trained=trained), records, guarantee


def _truth(run: PipelineRun) -> NDArray[np.int64]:
    """Return the classes of the test records, which are for evaluation alone."""
    data = next(state for state in run.states() if state.stage == "data")
    evaluating = run.store.cleared(EVALUATE.name, EVALUATE.clearance)
    return np.array(evaluating.open("data-test", data.made_from or "").array("labels.npy"))


def _model(point: FinishedPoint, method: str) -> _Result:
    report, measure = point.models[method]
    return _result(
        point.seed,
        report["accuracy"],
        report["test_records"],
        guarantee=StatedGuarantee.from_json(report["guarantee"]),
        measure=measure,
    )


def _public_labels(seed: int, run: PipelineRun) -> _Result | None:
    if not (run.recipe.evaluate.public_labels and enough_labels(run)):
        return None
    found = PublicLabels.load(run.artifact("evaluate-public-labels"))
    if found.student is None:
        return None
    follows = run.recipe.aggregate.cost_follows_answers
    return _result(
        seed,
        found.student.accuracy,
        found.student.records,
        guarantee=_guarantee(run) if follows else None,
        labels=found.labels,
    )


def _row(
    method: str,
    results: Sequence[_Result],
    *,
    target: float | None = None,
    seeded: bool = False,
    publishable: bool = True,
) -> ComparisonRow:
    runs = tuple(once for once, _, _ in results)
    costs = [guarantee for _, _, guarantee in results if guarantee is not None]
    accuracies = [once.accuracy for once in runs]
    mean, records = statistics.fmean(accuracies), results[-1][1]
    low, high = wilson(mean * records, records)
    return ComparisonRow(
        method=method,
        epsilon=max(cost.epsilon for cost in costs) if costs else None,
        target=target,
        accuracy=mean,
        spread=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        low=low,
        high=high,
        runs=runs,
        neighbours=" and ".join(sorted({cost.neighbours for cost in costs})) or None,
        data_dependent=False if costs else None,
        publishable=publishable and not seeded and all(cost.publishable for cost in costs),
    )


def no_better_rows(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    """Return the rows of private methods that do not beat the majority class on the test records.

    The 95 % interval decides, as everywhere (:func:`pate.metrics.no_better`).
    """
    most = [row.accuracy for row in rows if row.method == "majority"]
    private = [row for row in rows if row.target is not None]
    return tuple(row for row in private if most and no_better(row.low, most[0]))


# --- notes below a comparison ---------------------------------------------------------------------

_ACCOUNTANTS = {
    "tightest": "the smaller of log-moments and privacy loss distributions",
    "moments": "log-moments on a fine grid of λ",
    "abadi": "log-moments at whole λ up to 32, classic conversion",
    "pld": "privacy loss distributions",
}
_SPREAD = (
    "± is the standard deviation over repetitions: other shards, teachers, students, first weights "
    "and noise, on the same split."
)


_SQUARES = (
    "Least squares is a linear model from sums over all records, to which noise is added once; its "
    "ε is for {}, and it is charged to the ledger of DP-SGD."
)


def _records_note(
    rows: Sequence[ComparisonRow], *, per_user: int | None, unit: str, votes: VotesSpec
) -> str:
    """Return who votes by record votes, and at which δ; and where teachers were left out."""
    own = [row for row in rows if row.method == "record-votes"]
    pure = all(once.delta == 0 for row in own for once in row.runs)
    voters = "every private record votes once"
    if per_user is not None:
        some = f"at most {per_user} records of each {unit} vote once each"
        voters = f"one record of each {unit} votes once" if per_user == 1 else some
    where = "at the public input nearest to it"
    if votes.reach > 1:
        where = f"at the {votes.reach} public inputs nearest to it"
    if votes.components is not None:
        where = "along components of a kernel of the public inputs"
    note = (
        f"By record votes {voters}, {where}; one table of noised counts labels all public inputs."
    )
    if pure:
        note += " Its ε is pure: δ = 0, so that it also holds at the δ of the others."
    at = {row.target for row in rows if row.method == "pate"}
    without = [f"{row.target:g}" for row in own if row.target not in at]
    if at and without:
        note += f" Teachers were left out at ε = {', '.join(without)}, by the recipe."
    return note


def comparison_notes(
    rows: Sequence[ComparisonRow],
    cost: TotalStudyCost,
    *,
    accountant: str,
    delta: float,
    tuning: str,
    seeded: bool,
    per_user: int | None = None,
    unit: str = "record",
    votes: VotesSpec | None = None,
) -> tuple[str, ...]:
    """Return the sentences that a reader of the table needs: differences and costs.

    ``tuning`` is the recipe's own text on how its settings were chosen; empty if it has none. With
    ``per_user`` PATE protects all records of one user, and so many of them vote by record votes,
    as the section ``votes`` states.
    ``unit`` is the noun for whoever is protected.
    """
    nouns = {"record": unit} if per_user is None else {"user": unit}
    relation = {row.method: row.neighbours or "" for row in rows if row.target is not None}
    ours = relation.get("pate") or relation["record-votes"]  # which hold for the same data sets
    repeated = any(len(row.runs) > 1 for row in rows)
    costs = [] if seeded else _cost_notes(cost, own_accountant=accountant != "moments")
    squares = relation.get("least-squares")
    own = None
    if "record-votes" in relation:
        assert votes is not None
        own = _records_note(rows, per_user=per_user, unit=unit, votes=votes)
    notes = [
        in_nouns(compare_neighbours(ours, relation["dpsgd"], users=per_user is not None), **nouns),
        *([] if squares is None else [_SQUARES.format(describe_neighbours(squares, unit))]),
        *([] if own is None else [own]),
        "All ε are data-independent and cover all that a run releases. PATE's is the smallest of "
        "all accountants that cover its plan (mostly log-moments), DP-SGD's is by "
        f"{_ACCOUNTANTS[accountant]}; δ = {format_delta(delta)}.",
        "How settings were chosen is in no ε. "
        + (f"The recipe states: “{tuning}”" if tuning else "The recipe does not state it."),
        _SPREAD if repeated else "One repetition has no spread: add --seeds 3.",
        "Times and memory are for you alone: they follow from the private records.",
        *(in_nouns(note, **nouns) for note in costs),
    ]
    weak = [f"{row.name} at ε = {row.target:g}" for row in no_better_rows(rows)]
    if weak:
        notes.insert(
            0,
            f"No better than always predicting the majority class, within the 95 % interval of the "
            f"test: {', '.join(weak)}.",
        )
    if any(row.method == "reference" for row in rows):
        notes.append(
            "“without privacy” is the student's model trained on the private records themselves: "
            "do not publish it."
        )
    if not all(once.trained for row in rows for once in row.runs):
        notes.append(
            "Where all labels that PATE released are of one class, no student was trained: the "
            "accuracy is that of always predicting it."
        )
    if not all(row.whole for row in rows):
        notes.append("≥: a run was killed on the way; the time until then is not counted.")
    if seeded:
        notes.insert(0, "The noise was seeded: nothing in this table is private.")
    return tuple(notes)


def _cost_notes(cost: TotalStudyCost, *, own_accountant: bool) -> list[str]:
    models = None if cost.other is None else cost.other.guarantee
    before = earlier_releases_caveat(*cost.parts)
    return [
        "Each run alone costs the ε of its row, if it was fixed before any result was seen.",
        f"All PATE students together: {cost_in_words(cost.here.guarantee)}. All DP-SGD models "
        f"together: {cost_in_words(models)}. This table, which rests on all of them: "
        f"{cost_in_words(cost.together)}."
        + ("" if cost.in_advance else f" These are {NOT_PLANNED}.")
        + (" Ledgers add up log-moments, DP-SGD's too." if own_accountant else ""),
        *([] if before is None else [before]),
    ]


def cost_in_words(guarantee: Guarantee | None) -> str:
    """Return a cost in a few words, rounded up.

    >>> cost_in_words(Guarantee(epsilon=1.23451, delta=1e-5))
    'ε = 1.24 at δ = 1e-5'
    >>> cost_in_words(Guarantee(epsilon=9.0, delta=0.00041731))
    'ε = 9 at δ = 0.0004174'
    """
    if guarantee is None:
        return "no guarantee under one record replaced"
    value = format_cost(guarantee.epsilon, guarantee.delta)
    stated = guarantee.neighbours is not Neighbours.AS_STATED
    return f"{value} for {describe_neighbours(guarantee.neighbours)}" if stated else value
