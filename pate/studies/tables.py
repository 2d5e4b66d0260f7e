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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate._files import write_atomically
from pate._format import compare_neighbours, describe_neighbours, format_epsilon
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
from pate.metrics import Share, wilson

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
            "teachers": self.point.recipe.teachers.count,
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
    "pate": "PATE",
    "dpsgd": "DP-SGD",
    "public-labels": "true public labels",
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
    """Both methods at one ε, once, with their results in the folder."""

    epsilon: float
    seed: int
    baselines: bool  # whether what needs no ε was evaluated beside it
    pate: PipelineRun
    pate_measure: Measure | None
    dpsgd: Mapping[str, Any]  # DP-SGD's own report
    dpsgd_measure: Measure | None


def comparison_rows(
    finished: Sequence[FinishedPoint], *, seeded: bool
) -> tuple[ComparisonRow, ...]:
    """Return PATE and DP-SGD at each ε, then two baselines from public labels, one without privacy.

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
        rows.append(_row("pate", list(map(_pate, at)), target=epsilon, seeded=seeded))
        rows.append(_row("dpsgd", list(map(_dpsgd, at)), target=epsilon, seeded=seeded))
    beside = [each for each in finished if each.baselines]
    informed = [each for each in map(_public_labels, beside) if each is not None]
    if informed:
        paid = any(guarantee is not None for _, _, guarantee in informed)
        rows.append(_row("public-labels", informed, seeded=seeded and paid))
    found = Evaluation.load(beside[-1].pate.artifact("evaluate"))
    records = found.student.records
    majority = max(each.records for each in found.classes)
    rows.append(_row("majority", [_result(0, majority / records, records)]))
    references = [
        (each.seed, load_reference(each.pate.artifact("evaluate-reference")))
        for each in beside
        if each.pate.recipe.evaluate.reference
    ]
    if references:
        results = [_result(seed, each.accuracy, each.records) for seed, each in references]
        rows.append(_row("reference", results, publishable=False))
    return tuple(rows)


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


def _guarantee(point: FinishedPoint) -> StatedGuarantee:
    return Costs.load(point.pate.artifact("account")).guarantee


def _pate(point: FinishedPoint) -> _Result:
    student = Evaluation.load(point.pate.artifact("evaluate")).student
    return _result(
        point.seed,
        student.accuracy,
        student.records,
        guarantee=_guarantee(point),
        measure=point.pate_measure,
        labels=len(Answers.load(point.pate.artifact("aggregate")).answered),
    )


def _dpsgd(point: FinishedPoint) -> _Result:
    report = point.dpsgd
    return _result(
        point.seed,
        report["accuracy"],
        report["test_records"],
        guarantee=StatedGuarantee.from_json(report["guarantee"]),
        measure=point.dpsgd_measure,
    )


def _public_labels(point: FinishedPoint) -> _Result | None:
    if not point.pate.recipe.evaluate.public_labels:
        return None
    found = PublicLabels.load(point.pate.artifact("evaluate-public-labels"))
    if found.student is None:
        return None
    follows = point.pate.recipe.aggregate.cost_follows_answers
    return _result(
        point.seed,
        found.student.accuracy,
        found.student.records,
        guarantee=_guarantee(point) if follows else None,
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


# --- notes below a comparison ---------------------------------------------------------------------

_ACCOUNTANTS = {
    "moments": "log-moments on a fine grid of λ",
    "abadi": "log-moments at whole λ up to 32, classic conversion",
    "pld": "privacy loss distributions, the tightest",
}
_SPREAD = (
    "± is the standard deviation over repetitions: other shards, teachers, students, first weights "
    "and noise, on the same split."
)


def comparison_notes(
    rows: Sequence[ComparisonRow],
    cost: TotalStudyCost,
    *,
    accountant: str,
    delta: float,
    tuning: str,
    seeded: bool,
) -> tuple[str, ...]:
    """Return the sentences that a reader of the table needs: differences and costs.

    ``tuning`` is the recipe's own text on how its settings were chosen; empty if it has none.
    """
    relation = {row.method: row.neighbours or "" for row in rows if row.target is not None}
    repeated = any(len(row.runs) > 1 for row in rows)
    notes = [
        compare_neighbours(relation["pate"], relation["dpsgd"]),
        "Both ε are data-independent and cover all that a run releases. PATE's is by log-moments "
        f"(improved conversion), DP-SGD's by {_ACCOUNTANTS[accountant]}; δ = {delta:g} for both.",
        "How settings were chosen is in neither ε. "
        + (f"The recipe states: “{tuning}”" if tuning else "The recipe does not state it."),
        _SPREAD if repeated else "One repetition has no spread: add --seeds 3.",
        "Times and memory are for you alone: they follow from the private records.",
        *([] if seeded else _cost_notes(cost, own_accountant=accountant != "moments")),
    ]
    if any(row.method == "reference" for row in rows):
        notes.append(
            "“without privacy” is the student's model trained on the private records themselves: "
            "do not publish it."
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
    'ε = 1.235 at δ = 1e-05'
    >>> cost_in_words(Guarantee(epsilon=9.0, delta=0.00041731))
    'ε = 9 at δ = 0.0004174'
    """
    if guarantee is None:
        return "no guarantee under one record replaced"
    value = f"ε = {format_epsilon(guarantee.epsilon)} at δ = {format_epsilon(guarantee.delta)}"
    stated = guarantee.neighbours is not Neighbours.AS_STATED
    return f"{value} for {describe_neighbours(guarantee.neighbours)}" if stated else value
