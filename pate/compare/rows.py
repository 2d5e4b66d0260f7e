"""The rows of the table: each method at each ε over its repetitions, and what needs no ε."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pate.compare.measuring import Measure
from pate.compare.running import Ran
from pate.metrics import wilson

NAMES = {
    "pate": "PATE",
    "dpsgd": "DP-SGD",
    "public-labels": "true public labels",
    "majority": "commonest class",
    "reference": "without privacy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """One repetition."""

    seed: int
    accuracy: float
    epsilon: float | None = None
    delta: float | None = None
    labels: int | None = None
    seconds: float | None = None
    peak_memory_mb: float | None = None
    whole: bool = True  # False: it was killed on the way, and took longer than ``seconds``


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A method at an ε.

    ``accuracy`` is the mean over repetitions, ``spread`` their standard deviation; ``low`` and
    ``high`` are the 95 % interval that so many test records leave for the mean (Wilson 1927).
    """

    method: str  # a key of NAMES
    epsilon: float | None  # what it costs; None where no private record was used, or without bound
    target: float | None  # what it was asked to cost at most
    accuracy: float
    spread: float | None  # None for one repetition
    low: float
    high: float
    runs: tuple[Once, ...]
    neighbours: str | None
    data_dependent: bool | None
    publishable: bool

    @property
    def name(self) -> str:
        return NAMES[self.method]

    @property
    def labels(self) -> int | None:
        """Labels the model learnt from, on average."""
        return _whole_mean(once.labels for once in self.runs)

    @property
    def seconds(self) -> float | None:
        """From data to model, on average."""
        known = [once.seconds for once in self.runs if once.seconds is not None]
        return statistics.fmean(known) if known else None

    @property
    def peak_memory_mb(self) -> float | None:
        known = [once.peak_memory_mb for once in self.runs if once.peak_memory_mb is not None]
        return max(known) if known else None

    @property
    def whole(self) -> bool:
        """Whether times are those of all the work."""
        return all(once.whole for once in self.runs)

    def as_json(self) -> dict[str, Any]:
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


def make_rows(ran: Sequence[Ran], *, seeded: bool) -> list[Row]:
    """PATE and DP-SGD at each ε, then what needs none.

    Guarantees:
        A row is publishable where it rests on what was charged (labels, a student, a noised model)
        or on public data alone. The model that saw private records without noise is not; nor is
        anything if the noise was seeded.
    """
    rows = []
    for epsilon in sorted({each.point.epsilon for each in ran}):
        at = [each for each in ran if each.point.epsilon == epsilon]
        rows += [_pate(at, epsilon, seeded=seeded), _dpsgd(at, epsilon, seeded=seeded)]
    beside = [each for each in ran if each.point.baselines]
    return [*rows, *_beside(beside, seeded=seeded)]


def _pate(ran: Sequence[Ran], epsilon: float, *, seeded: bool) -> Row:
    runs, records, publishable, neighbours = [], 0, not seeded, set()
    for each in ran:
        told = each.pate.artifact("account").json("guarantees.json")["guarantee"]
        share = each.pate.artifact("evaluate").json("evaluation.json")["student"]
        labels = int(each.pate.artifact("aggregate").facts["answered"])
        runs.append(_once(each, share["accuracy"], told, each.pate_took, labels=labels))
        records = share["records"]
        publishable = publishable and told["publishable"]
        neighbours.add(told["neighbours"])
    return _row("pate", runs, records, epsilon, neighbours=neighbours, publishable=publishable)


def _dpsgd(ran: Sequence[Ran], epsilon: float, *, seeded: bool) -> Row:
    runs, records, publishable, neighbours = [], 0, not seeded, set()
    for each in ran:
        report = each.dpsgd.report
        told = report["guarantee"]
        runs.append(_once(each, report["accuracy"], told, each.dpsgd_took))
        records = report["test_records"]
        publishable = publishable and told["publishable"]
        neighbours.add(told["neighbours"])
    return _row("dpsgd", runs, records, epsilon, neighbours=neighbours, publishable=publishable)


def _once(
    ran: Ran,
    accuracy: float,
    guarantee: Mapping[str, Any],
    took: Measure | None,
    *,
    labels: int | None = None,
) -> Once:
    return Once(
        seed=ran.point.seed,
        accuracy=accuracy,
        epsilon=guarantee["epsilon"],
        delta=guarantee["delta"],
        labels=labels,
        seconds=None if took is None else took.seconds,
        peak_memory_mb=None if took is None else took.megabytes,
        whole=took is None or took.whole,
    )


def _beside(ran: Sequence[Ran], *, seeded: bool) -> list[Row]:
    """What the figures are to be held against: two from public labels, one without privacy.

    Guarantees:
        Which inputs were asked about is public where it was fixed before the votes were opened.
        Where answers decided on it, true labels of these inputs cost what PATE's did, and the row
        says so.
    """
    rows = []
    informed, reference = [], []
    records = majority = 0
    follows = any(each.pate.recipe.aggregate.cost_follows_answers for each in ran)
    guarantees = [
        each.pate.artifact("account").json("guarantees.json")["guarantee"] for each in ran
    ]
    for each, paid in zip(ran, guarantees, strict=True):
        evaluation = each.pate.artifact("evaluate").json("evaluation.json")
        records = evaluation["student"]["records"]
        majority = max(row["records"] for row in evaluation["classes"])
        asked = each.pate.recipe.evaluate
        if asked.public_labels:
            told = each.pate.artifact("evaluate-public-labels").json("evaluation.json")
            if told["student"] is not None:
                informed.append(
                    Once(
                        seed=each.point.seed,
                        accuracy=told["student"]["accuracy"],
                        epsilon=paid["epsilon"] if follows else None,
                        delta=paid["delta"] if follows else None,
                        labels=told["labels"],
                    )
                )
        if asked.reference:
            told = each.pate.artifact("evaluate-reference").json("evaluation.json")["reference"]
            reference.append(Once(seed=each.point.seed, accuracy=told["accuracy"]))
    if informed:
        rows.append(
            _row(
                "public-labels",
                informed,
                records,
                neighbours={paid["neighbours"] for paid in guarantees} if follows else (),
                publishable=not follows
                or (not seeded and all(p["publishable"] for p in guarantees)),
            )
        )
    constant = Once(seed=0, accuracy=majority / records)
    rows.append(_row("majority", [constant], records, publishable=True))
    if reference:
        rows.append(_row("reference", reference, records, publishable=False))
    return rows


def _row(
    method: str,
    runs: Sequence[Once],
    records: int,
    target: float | None = None,
    *,
    neighbours: Iterable[str] = (),
    publishable: bool,
) -> Row:
    accuracies = [once.accuracy for once in runs]
    mean = statistics.fmean(accuracies)
    low, high = wilson(mean * records, records)
    costs = [once.epsilon for once in runs if once.epsilon is not None]
    relations = sorted(set(neighbours))
    return Row(
        method=method,
        epsilon=max(costs) if costs else None,
        target=target,
        accuracy=mean,
        spread=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        low=low,
        high=high,
        runs=tuple(runs),
        neighbours=" and ".join(relations) or None,
        data_dependent=False if costs else None,
        publishable=publishable,
    )


def _whole_mean(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known)) if known else None
