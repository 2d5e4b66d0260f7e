"""``pate epsilon``: what answers cost, with no training and no data beyond votes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.cli import options
from pate.cli.aggregate_votes import read_votes
from pate.cli.options import AnalysisName, ConversionName, PartitionName
from pate.console import print_json
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from pate.accounting import Analysis, Conversion, Event, Guarantee, LogMoments
    from pate.accounting.calibrate import Epsilon
    from pate.accounting.moments import FloatArray
    from pate.votes import Votes

Report = dict[str, Any]

app = options.new_app(
    help="What answers cost: ε from noise, counts and votes. Trains nothing, charges nothing.",
    no_args_is_help=True,
)


class AccountantName(StrEnum):
    tightest = "tightest"
    abadi = "abadi"
    moments = "moments"
    pld = "pld"


@dataclass(frozen=True)
class Terms:
    """δ, the conversion and the grid of λ that all values of one report share."""

    delta: float
    conversion: Conversion
    grid: FloatArray | None
    max_moment: int | None
    partition: PartitionName | None = None  # of votes: decides what one record changes
    analysis: Analysis | None = None  # of votes; there are none if it is left out
    fixed_queries: bool = False  # no answer decides what is asked next

    @classmethod
    def of(
        cls,
        delta: float,
        conversion: ConversionName,
        max_moment: int | None,
        partition: PartitionName | None = None,
        analysis: AnalysisName | None = None,
    ) -> Terms:
        from pate._validate import check_delta
        from pate.accounting import Analysis, Conversion, integer_moments

        check_delta(delta)
        grid = None if max_moment is None else integer_moments(max_moment)
        bounds = None if analysis is None else Analysis(analysis.value)
        return cls(delta, Conversion(conversion.value), grid, max_moment, partition, bounds)

    @property
    def bounds(self) -> Analysis:
        from pate.accounting import Analysis

        return self.analysis or Analysis.TIGHT

    def plan(self, events: Iterable[Event]) -> Guarantee:
        """Return the guarantee of events whose number is fixed in advance."""
        from pate.accounting import guarantee_of_plan

        return guarantee_of_plan(
            events,
            delta=self.delta,
            conversion=self.conversion,
            moments=self.grid,
            analysis=self.bounds,
            adaptive=not self.fixed_queries,
        )

    def compose(self, events: Iterable[Event]) -> Report:
        return self._stated(self.plan(events))

    def convert(self, total: LogMoments) -> Report:
        return self._stated(total.guarantee(delta=self.delta, conversion=self.conversion))

    def _stated(self, guarantee: Guarantee) -> Report:
        if self.partition is not None:
            from pate.partition import PartitionSpec

            relation = PartitionSpec(method=self.partition.value).neighbours
            guarantee = replace(guarantee, neighbours=relation)
        return guarantee.as_json()

    def epsilon(self, events: list[Event]) -> float:
        return self.plan(events).epsilon

    @property
    def rough(self) -> Epsilon:
        """The ε by log-moments alone: a quick start for a search."""
        from pate.accounting.calibrate import moments_epsilon

        return moments_epsilon(
            delta=self.delta,
            conversion=self.conversion,
            moments=self.grid,
            analysis=self.bounds,
        )

    def as_json(self) -> Report:
        return {
            "delta": self.delta,
            "conversion": self.conversion,
            "max_moment": self.max_moment,
            "partition": self.partition,
            "analysis": self.analysis,
            "fixed_queries": self.fixed_queries or None,
        }


def _solve(
    noise: tuple[str, float | None],
    count: tuple[str, int | None],
    target: float | None,
    event: Callable[[float], Event],
    epsilon: Epsilon,
    *,
    rough: Epsilon | None = None,
    tolerance: float = 1e-7,
) -> tuple[float, int, str | None]:
    """Return noise, count and which of them was found for the target, if one was."""
    from pate.accounting.calibrate import most, smallest_noise

    (noise_name, amount), (count_name, times) = noise, count
    flags = [f"--{name.replace('_', '-')}" for name in (noise_name, count_name)]
    if amount is not None and times is not None:
        if target is not None:
            raise InvalidInput(f"--target-epsilon needs one of {flags[0]} and {flags[1]} left open")
        return amount, times, None
    if target is None:
        missing = [
            flag for flag, given in zip(flags, (amount, times), strict=True) if given is None
        ]
        raise InvalidInput(f"give {' and '.join(missing)}, or --target-epsilon to find it")
    if times is not None:
        solved = smallest_noise(
            event, count=times, target=target, epsilon=epsilon, rough=rough, tolerance=tolerance
        )
        return solved, times, noise_name
    if amount is None:
        raise InvalidInput(f"--target-epsilon needs {flags[0]} or {flags[1]}")
    found = most(event(amount), target=target, epsilon=epsilon, rough=rough)
    if found == 0:
        raise InvalidInput(
            f"with {flags[0]} {amount:g} not even one of them stays within ε {target:g}"
        )
    return amount, found, count_name


def _noisy_max(name: str, key: str, *, noise: str, help: str, ordered: bool = False) -> None:
    """Add the command of a mechanism whose one setting is its noise.

    ``ordered``: it matters for its cost whether answers decide what is asked next.
    """

    def command(
        delta: options.Delta,
        amount: float | None = typer.Option(None, f"--{key}", help=noise),
        votes: options.VotesFile = None,
        queries: options.Queries = None,
        target_epsilon: options.TargetEpsilon = None,
        max_moment: options.MaxMoment = None,
        conversion: options.Conversion = ConversionName.improved,
        partition: options.Partition = PartitionName.hash,
        analysis: options.Analysis = AnalysisName.tight,
        labels: options.Labels = False,
        counts: options.Counts = False,
        abstentions: options.Abstentions = False,
        classes: options.Classes = None,
        fixed_queries: bool = typer.Option(
            False,
            "--fixed-queries",
            hidden=not ordered,
            help="All queries are fixed before the first answer: no answer decides what is asked "
            "next. They cost less then.",
        ),
        json: options.Json = False,
    ) -> None:
        from pate.mechanisms import MECHANISMS

        kind = MECHANISMS[name]
        cast = read_votes(votes, queries, labels, counts, abstentions, classes)
        terms = Terms.of(delta, conversion, max_moment, partition, analysis)
        terms = replace(terms, fixed_queries=fixed_queries)
        found, count, solved = _solve(
            (key, amount),
            ("queries", queries if cast is None else cast.queries),
            target_epsilon,
            lambda value: kind.from_keys({key: value}).answer_event,
            terms.epsilon,
            rough=terms.rough,
        )
        mechanism = kind.from_keys({key: found})
        report: Report = {"mechanism": kind.name, key: found, "queries": count}
        if cast is not None:
            report |= _described(cast)
        report |= {"target_epsilon": target_epsilon, "found": solved}
        caps = mechanism.caps(queries=count, answers=count)
        report["data_independent"] = terms.compose(caps)
        if cast is not None:
            total = mechanism.data_dependent_cost(
                cast.counts, moments=terms.grid, analysis=terms.bounds
            )
            report["data_dependent"] = terms.convert(total)
        _show(report | terms.as_json(), json=json)

    app.command(name, help=help)(command)


_noisy_max(
    "lnmax",
    "scale",
    noise="Laplace b, in votes.",
    help="Laplace noisy-max (PATE 2017): add Lap(scale) to every count, release the winner.",
)
_noisy_max(
    "gnmax",
    "sigma",
    noise="Standard deviation, in votes.",
    help="Gaussian noisy-max (PATE 2018): add N(0, sigma²) to every count, release the winner.",
)
_noisy_max(
    "gumbel",
    "scale",
    noise="Gumbel b, in votes.",
    help="Gumbel noisy-max (exponential mechanism): release class j with chance ∝ e^(votes/scale).",
    ordered=True,
)


@app.command()
def confident(
    delta: options.Delta,
    threshold: Annotated[float, typer.Option(help="T: consensus needed for an answer, in votes.")],
    sigma1: Annotated[float, typer.Option(help="Standard deviation of the check.")],
    sigma2: Annotated[float, typer.Option(help="Standard deviation of the answer.")],
    votes: options.VotesFile = None,
    queries: options.Queries = None,
    answers: Annotated[
        int | None, typer.Option(min=0, help="Without votes: the most answers.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Student's probabilities (.npy): Interactive-GNMax.")
    ] = None,
    max_moment: options.MaxMoment = None,
    conversion: options.Conversion = ConversionName.improved,
    partition: options.Partition = PartitionName.hash,
    analysis: options.Analysis = AnalysisName.tight,
    labels: options.Labels = False,
    counts: options.Counts = False,
    abstentions: options.Abstentions = False,
    classes: options.Classes = None,
    json: options.Json = False,
) -> None:
    """Confident-GNMax (PATE 2018): a noisy check of consensus, then a noisy answer.

    With votes, costs are expected costs: every query pays for its check and, with the probability
    that it passes, for its answer. Without votes, all queries (or --answers) are answered.
    """
    from pate.accounting import (
        GaussianNoisyMaxAnswer,
        Repeated,
        ThresholdCheck,
        confident_total,
    )
    from pate.accounting.noisy_max import answer_weights, checked_statistic

    terms = Terms.of(delta, conversion, max_moment, partition, analysis)
    check, answer = ThresholdCheck(sigma=sigma1), GaussianNoisyMaxAnswer(sigma=sigma2)
    cast = read_votes(votes, queries, labels, counts, abstentions, classes)
    settings = {"threshold": threshold, "sigma1": sigma1, "sigma2": sigma2}
    report: Report = {"mechanism": "confident", **settings}

    def all_of(asked: int, answered: int) -> Report:
        caps = [Repeated(check, asked), Repeated(answer, answered)]
        return terms.compose(caps)

    if cast is None:
        if queries is None:
            raise InvalidInput("give --votes or --queries")
        if baseline is not None:
            raise InvalidInput("--baseline goes with --votes")
        most = queries if answers is None else answers
        if most > queries:
            raise InvalidInput(f"--answers {most} is more than --queries {queries}")
        report |= {"queries": queries, "answers": most, "data_independent": all_of(queries, most)}
        _show(report | terms.as_json(), json=json)
        return
    if answers is not None:
        raise InvalidInput("--answers goes without --votes; with votes it is worked out")
    lead = None if baseline is None else _read_baseline(baseline, cast)

    def expected(*, data_dependent: bool) -> Report:
        total = confident_total(
            cast.counts,
            **settings,
            moments=terms.grid,
            baseline=lead,
            data_dependent=data_dependent,
            analysis=terms.bounds,
        )
        return terms.convert(total)

    statistic = checked_statistic(cast.counts, baseline=lead)
    weights = answer_weights(statistic, threshold=threshold, sigma=sigma1, answered=None)
    report |= _described(cast) | {
        "expected_answered": float(weights.sum()),
        "data_independent": expected(data_dependent=False),
        "data_dependent": expected(data_dependent=True),
        "all_answered": all_of(cast.queries, cast.queries),
    }
    _show(report | terms.as_json(), json=json)


def _read_baseline(path: Path, cast: Votes) -> FloatArray:
    """Return the votes that a student expects: teachers × its probabilities."""
    import numpy as np

    from pate.votes import load_table

    table = load_table(path)
    if table.dtype.kind not in "fiu":
        raise InvalidInput(f"{path} holds {table.dtype}, not probabilities")
    probabilities = np.asarray(table[: cast.queries], dtype=np.float64)
    if probabilities.shape != cast.counts.shape:
        raise InvalidInput(f"{path} must hold a probability for each query and class of the votes")
    if not np.all((probabilities >= 0) & (np.abs(probabilities.sum(axis=1) - 1) < 1e-6)[:, None]):
        raise InvalidInput(f"the rows of {path} must be probabilities that sum to one")
    return cast.teachers * probabilities


def _described(cast: Votes) -> Report:
    return {"queries": cast.queries, "classes": cast.classes, "teachers": cast.teachers}


@app.command()
def dpsgd(
    delta: options.Delta,
    sample_rate: Annotated[float, typer.Option(help="q: chance of a record to be in a lot.")],
    steps: Annotated[int | None, typer.Option(min=1, help="Lots.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="σ over the clipping norm.")
    ] = None,
    target_epsilon: options.TargetEpsilon = None,
    accountant: Annotated[
        AccountantName,
        typer.Option(
            help="tightest: the smaller of moments and pld; moments: log-moments on a fine grid; "
            "pld: privacy loss distributions; abadi: whole λ ≤ 32, classic."
        ),
    ] = AccountantName.tightest,
    max_moment: options.MaxMoment = None,
    conversion: Annotated[
        ConversionName | None, typer.Option(help="How log-moments become ε (moments).")
    ] = None,
    json: options.Json = False,
) -> None:
    """DP-SGD with Poisson-sampled lots (zero-out; add/remove at a rate that is public)."""
    from pate.accounting import Repeated, SampledGaussian
    from pate.accounting.calibrate import DpsgdAccountant, Method

    if accountant is AccountantName.tightest and (max_moment or conversion):
        accountant = AccountantName.moments  # which they are settings of
    if accountant is not AccountantName.moments and (max_moment or conversion):
        raise InvalidInput(
            f"--max-moment and --conversion do not go with --accountant {accountant}"
        )
    terms = Terms.of(delta, conversion or ConversionName.improved, max_moment)
    method = DpsgdAccountant(
        delta=delta,
        method=Method(accountant.value),
        conversion=terms.conversion,
        moments=terms.grid,
    )

    def step(noise: float) -> SampledGaussian:
        return SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise)

    noise, count, found = _solve(
        ("noise_multiplier", noise_multiplier),
        ("steps", steps),
        target_epsilon,
        step,
        method.epsilon,
        rough=method.rough,
        tolerance=method.tolerance,
    )
    guarantee = method.guarantee([Repeated(step(noise), count)]).as_json()
    report = {
        "mechanism": "dpsgd",
        "sample_rate": sample_rate,
        "noise_multiplier": noise,
        "steps": count,
        "accountant": accountant.value,
        "target_epsilon": target_epsilon,
        "found": found,
        **{key: guarantee[key] for key in ("epsilon", "delta", "moment", "conversion")},
        "data_independent": guarantee,
    }
    _show(report, json=json)


def _plain(mechanism: str, key: str, *, noise: str, norm: str) -> None:
    """Add the command of a plain mechanism that is asked several times."""

    def command(
        delta: options.Delta,
        amount: float | None = typer.Option(None, f"--{key}", help=noise),
        sensitivity: float = typer.Option(1.0, help=f"{norm} sensitivity of the value."),
        queries: options.Queries = None,
        target_epsilon: options.TargetEpsilon = None,
        max_moment: options.MaxMoment = None,
        conversion: options.Conversion = ConversionName.improved,
        json: options.Json = False,
    ) -> None:
        from pate.accounting import Gaussian, Laplace, Repeated

        kind = Laplace if mechanism == "laplace" else Gaussian
        terms = Terms.of(delta, conversion, max_moment)
        if not 0 < sensitivity < float("inf"):
            raise InvalidInput(f"--sensitivity is {sensitivity}; it must be finite and above zero")
        open_ended = target_epsilon is not None and amount is not None
        multiplier, count, solved = _solve(
            (key, None if amount is None else amount / sensitivity),
            ("queries", queries if queries is not None or open_ended else 1),
            target_epsilon,
            lambda value: kind(noise_multiplier=value),
            terms.epsilon,
            rough=terms.rough,
            tolerance=1e-4 if kind is Laplace else 1e-7,  # loss distributions take long
        )
        total = terms.compose([Repeated(kind(noise_multiplier=multiplier), count)])
        report = {
            "mechanism": mechanism,
            key: multiplier * sensitivity,
            "sensitivity": sensitivity,
            "queries": count,
            "target_epsilon": target_epsilon,
            "found": solved,
            "data_independent": total,
        }
        _show(report | terms.as_json(), json=json)

    what = f"The plain {mechanism.capitalize()} mechanism, answered several times."
    app.command(mechanism, help=what)(command)


_plain("laplace", "scale", noise="Laplace b.", norm="L1")
_plain("gaussian", "sigma", noise="Standard deviation.", norm="L2")


# --- reports --------------------------------------------------------------------------------------

_TITLES = {
    "data_independent": "data-independent",
    "data_dependent": "data-dependent",
    "all_answered": "if all were answered",
}


def _show(report: Report, *, json: bool) -> None:
    """Print a report: JSON for machines, or the question and a row for each guarantee."""
    report = {key: value for key, value in report.items() if key == "moment" or value is not None}
    if json:
        print_json(report)
        return
    from rich.console import Console
    from rich.table import Table

    from pate._format import format_epsilon

    guarantees = {key: report[key] for key in _TITLES if key in report}
    console = Console(width=None if Console().is_terminal else 100)
    facts = Table(show_header=False, box=None, pad_edge=False)
    for key, value in report.items():
        if key not in guarantees and key not in ("epsilon", "moment"):
            text = f"{value:.10g}" if isinstance(value, float) else str(value)
            facts.add_row(key.replace("_", " "), text)
    console.print(facts)
    console.print()
    table = Table("cost", "ε", "λ", "")
    for column in table.columns[1:3]:
        column.justify = "right"
    for key, guarantee in guarantees.items():
        moment = guarantee["moment"]
        table.add_row(
            _TITLES[key],
            format_epsilon(guarantee["epsilon"]),
            "" if moment is None else f"{moment:g}",
            "may be published" if guarantee["publishable"] else "private: do not publish",
        )
    console.print(table)
    console.print(_reading(report), soft_wrap=True)


def _reading(report: Report) -> str:
    from pate._format import SAME_AT_PUBLIC_RATE, describe_neighbours, format_delta

    guarantee = report["data_independent"]
    relation = describe_neighbours(guarantee["neighbours"])
    text = f"δ = {format_delta(guarantee['delta'])}, for {relation}."
    if report.get("mechanism") == "dpsgd":
        text += f" {SAME_AT_PUBLIC_RATE.capitalize()}."
    if "data_dependent" in report:
        text += " The data-dependent ε was worked out from private votes and is itself private."
    if "expected_answered" in report:
        text += " Costs are expected costs, for planning; a run pays for what it answers."
    return text
