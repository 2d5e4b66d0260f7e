"""``pate epsilon``: what answers cost, with no training and no data beyond votes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.cli import options
from pate.cli.options import AccountantName, ConversionName
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from pate.accounting import Conversion, Event, LogMoments
    from pate.accounting.calibrate import Epsilon
    from pate.accounting.numerics import FloatArray
    from pate.votes import Votes

app = typer.Typer(
    help="What answers cost: ε from noise, counts and votes. Trains nothing, charges nothing.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Report = dict[str, Any]


@app.command()
def lnmax(
    delta: options.Delta,
    scale: Annotated[float | None, typer.Option(help="Laplace b, in votes.")] = None,
    votes: options.VotesFile = None,
    queries: options.Queries = None,
    target_epsilon: options.TargetEpsilon = None,
    max_moment: options.MaxMoment = None,
    conversion: options.Conversion = ConversionName.improved,
    labels: options.Labels = False,
    counts: options.Counts = False,
    abstentions: options.Abstentions = False,
    classes: options.Classes = None,
    json: options.Json = False,
) -> None:
    """Laplace noisy-max (PATE 2017): Lap(scale) on every count, the winner is told."""
    from pate.accounting import LaplaceNoisyMaxAnswer, laplace_total

    question = _Question(
        cast=_read_votes(votes, queries, labels, counts, abstentions, classes),
        queries=queries,
        target=target_epsilon,
        terms=_Terms.of(delta, conversion, max_moment),
    )
    report = question.answer(
        "lnmax",
        noise=("scale", scale),
        event=lambda b: LaplaceNoisyMaxAnswer(scale=b),
        total=lambda cast, b, grid: laplace_total(cast.counts, scale=b, moments=grid),
    )
    _show(report, json=json)


@app.command()
def gnmax(
    delta: options.Delta,
    sigma: Annotated[float | None, typer.Option(help="Standard deviation, in votes.")] = None,
    votes: options.VotesFile = None,
    queries: options.Queries = None,
    target_epsilon: options.TargetEpsilon = None,
    max_moment: options.MaxMoment = None,
    conversion: options.Conversion = ConversionName.improved,
    labels: options.Labels = False,
    counts: options.Counts = False,
    abstentions: options.Abstentions = False,
    classes: options.Classes = None,
    json: options.Json = False,
) -> None:
    """Gaussian noisy-max (PATE 2018): N(0, sigma²) on every count, the winner is told."""
    from pate.accounting import GaussianNoisyMaxAnswer, gaussian_total

    question = _Question(
        cast=_read_votes(votes, queries, labels, counts, abstentions, classes),
        queries=queries,
        target=target_epsilon,
        terms=_Terms.of(delta, conversion, max_moment),
    )
    report = question.answer(
        "gnmax",
        noise=("sigma", sigma),
        event=lambda s: GaussianNoisyMaxAnswer(sigma=s),
        total=lambda cast, s, grid: gaussian_total(cast.counts, sigma=s, moments=grid),
    )
    _show(report, json=json)


@app.command()
def confident(
    delta: options.Delta,
    threshold: Annotated[float, typer.Option(help="T: consensus needed for an answer, in votes.")],
    sigma1: Annotated[float, typer.Option(help="Standard deviation of the check.")],
    sigma2: Annotated[float, typer.Option(help="Standard deviation of the answer.")],
    votes: options.VotesFile = None,
    queries: options.Queries = None,
    answers: Annotated[
        int | None, typer.Option(min=0, help="Without votes: the most answers.", show_default=False)
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Student's probabilities (.npy): Interactive-GNMax.", show_default=False),
    ] = None,
    max_moment: options.MaxMoment = None,
    conversion: options.Conversion = ConversionName.improved,
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
        compose,
        confident_total,
    )

    terms = _Terms.of(delta, conversion, max_moment)
    check, answer = ThresholdCheck(sigma=sigma1), GaussianNoisyMaxAnswer(sigma=sigma2)
    cast = _read_votes(votes, queries, labels, counts, abstentions, classes)
    report: Report = {
        "mechanism": "confident",
        "threshold": threshold,
        "sigma1": sigma1,
        "sigma2": sigma2,
    }
    if cast is None:
        if queries is None:
            raise InvalidInput("give --votes or --queries")
        if baseline is not None:
            raise InvalidInput("--baseline goes with --votes")
        most = queries if answers is None else answers
        if most > queries:
            raise InvalidInput(f"--answers {most} is more than --queries {queries}")
        total = compose([Repeated(check, queries), Repeated(answer, most)], terms.grid)
        report |= {"queries": queries, "answers": most, "data_independent": terms.convert(total)}
        _show(report | terms.as_json(), json=json)
        return
    if answers is not None:
        raise InvalidInput("--answers goes without --votes; with votes it is worked out")

    from pate.accounting.noisy_max import answer_weights, checked_statistic

    lead = None if baseline is None else _read_baseline(baseline, cast)
    everything = compose(
        [Repeated(check, cast.queries), Repeated(answer, cast.queries)], terms.grid
    )
    expected = {
        dependent: confident_total(
            cast.counts,
            threshold=threshold,
            sigma1=sigma1,
            sigma2=sigma2,
            moments=terms.grid,
            baseline=lead,
            data_dependent=dependent,
        )
        for dependent in (False, True)
    }
    statistic = checked_statistic(cast.counts, baseline=lead)
    weights = answer_weights(statistic, threshold=threshold, sigma=sigma1, answered=None)
    report |= _described(cast) | {
        "expected_answered": float(weights.sum()),
        "data_independent": terms.convert(expected[False]),
        "data_dependent": terms.convert(expected[True]),
        "all_answered": terms.convert(everything),
    }
    _show(report | terms.as_json(), json=json)


@app.command()
def dpsgd(
    delta: options.Delta,
    sample_rate: Annotated[float, typer.Option(help="q: chance of a record to be in a lot.")],
    steps: Annotated[int | None, typer.Option(min=1, help="Lots.", show_default=False)] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="σ over the clipping norm.", show_default=False)
    ] = None,
    target_epsilon: options.TargetEpsilon = None,
    accountant: Annotated[
        AccountantName,
        typer.Option(help="abadi: whole λ ≤ 32, classic; moments: fine grid; pld: tightest."),
    ] = AccountantName.moments,
    max_moment: options.MaxMoment = None,
    conversion: Annotated[
        ConversionName | None,
        typer.Option(help="How log-moments become ε (moments).", show_default=False),
    ] = None,
    json: options.Json = False,
) -> None:
    """DP-SGD with Poisson-sampled lots, for records added or removed."""
    from pate.accounting import Repeated, SampledGaussian
    from pate.accounting.dpsgd import DpsgdAccountant, Method

    if accountant is not AccountantName.moments and (max_moment or conversion):
        raise InvalidInput(
            f"--max-moment and --conversion do not go with --accountant {accountant}"
        )
    terms = _Terms.of(delta, conversion or ConversionName.improved, max_moment)
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


@app.command()
def laplace(
    delta: options.Delta,
    scale: Annotated[float | None, typer.Option(help="Laplace b.")] = None,
    sensitivity: Annotated[float, typer.Option(help="L1 sensitivity of the value.")] = 1.0,
    queries: options.Queries = None,
    target_epsilon: options.TargetEpsilon = None,
    max_moment: options.MaxMoment = None,
    conversion: options.Conversion = ConversionName.improved,
    json: options.Json = False,
) -> None:
    """The plain Laplace mechanism, answered several times."""
    from pate.accounting import Laplace

    _plain("laplace", "scale", scale, sensitivity, queries, target_epsilon,
           _Terms.of(delta, conversion, max_moment),
           lambda z: Laplace(noise_multiplier=z), json)  # fmt: skip


@app.command()
def gaussian(
    delta: options.Delta,
    sigma: Annotated[float | None, typer.Option(help="Standard deviation.")] = None,
    sensitivity: Annotated[float, typer.Option(help="L2 sensitivity of the value.")] = 1.0,
    queries: options.Queries = None,
    target_epsilon: options.TargetEpsilon = None,
    max_moment: options.MaxMoment = None,
    conversion: options.Conversion = ConversionName.improved,
    json: options.Json = False,
) -> None:
    """The plain Gaussian mechanism, answered several times."""
    from pate.accounting import Gaussian

    _plain("gaussian", "sigma", sigma, sensitivity, queries, target_epsilon,
           _Terms.of(delta, conversion, max_moment),
           lambda z: Gaussian(noise_multiplier=z), json)  # fmt: skip


# --- how a question becomes a report ------------------------------------------------------------


@dataclass(frozen=True)
class _Terms:
    """δ, the conversion and the grid of λ that all figures of one report share."""

    delta: float
    conversion: Conversion
    grid: FloatArray | None
    max_moment: int | None

    @classmethod
    def of(cls, delta: float, conversion: ConversionName, max_moment: int | None) -> _Terms:
        from pate.accounting import Conversion, integer_moments
        from pate.accounting.guarantee import check_delta

        check_delta(delta)
        grid = None if max_moment is None else integer_moments(max_moment)
        return cls(delta, Conversion(conversion.value), grid, max_moment)

    def convert(self, total: LogMoments) -> Report:
        return total.guarantee(delta=self.delta, conversion=self.conversion).as_json()

    def epsilon(self) -> Epsilon:
        from pate.accounting.calibrate import moments_epsilon

        return moments_epsilon(delta=self.delta, conversion=self.conversion, moments=self.grid)

    def as_json(self) -> Report:
        return {"delta": self.delta, "conversion": self.conversion, "max_moment": self.max_moment}


@dataclass(frozen=True)
class _Question:
    """A noisy-max question: votes or a number of queries, and perhaps a target."""

    cast: Votes | None
    queries: int | None
    target: float | None
    terms: _Terms

    def answer(
        self,
        mechanism: str,
        *,
        noise: tuple[str, float | None],
        event: Callable[[float], Event],
        total: Callable[[Votes, float, FloatArray | None], LogMoments],
    ) -> Report:
        from pate.accounting import Repeated, compose

        asked = self.queries if self.cast is None else self.cast.queries
        amount, count, solved = _solve(
            noise, ("queries", asked), self.target, event, self.terms.epsilon()
        )
        independent = compose([Repeated(event(amount), count)], self.terms.grid)
        report: Report = {"mechanism": mechanism, noise[0]: amount, "queries": count}
        if self.cast is not None:
            report |= _described(self.cast)
        report |= {"target_epsilon": self.target, "found": solved}
        report["data_independent"] = self.terms.convert(independent)
        if self.cast is not None:
            report["data_dependent"] = self.terms.convert(total(self.cast, amount, self.terms.grid))
        return report | self.terms.as_json()


def _plain(
    mechanism: str,
    noise_name: str,
    noise: float | None,
    sensitivity: float,
    queries: int | None,
    target: float | None,
    terms: _Terms,
    event: Callable[[float], Event],
    json: bool,
) -> None:
    from pate.accounting import Repeated, compose

    if not 0 < sensitivity < float("inf"):
        raise InvalidInput(f"--sensitivity is {sensitivity}; it must be finite and above zero")
    count = queries if queries is not None or (target is not None and noise is not None) else 1
    multiplier = None if noise is None else noise / sensitivity
    multiplier, count, solved = _solve(
        (noise_name, multiplier), ("queries", count), target, event, terms.epsilon()
    )
    total = compose([Repeated(event(multiplier), count)], terms.grid)
    report = {
        "mechanism": mechanism,
        noise_name: multiplier * sensitivity,
        "sensitivity": sensitivity,
        "queries": count,
        "target_epsilon": target,
        "found": solved,
        "data_independent": terms.convert(total),
    }
    _show(report | terms.as_json(), json=json)


def _solve(
    noise: tuple[str, float | None],
    count: tuple[str, int | None],
    target: float | None,
    event: Callable[[float], Event],
    epsilon: Epsilon,
) -> tuple[float, int, str | None]:
    """Noise and count; whichever is missing is found for the target. Also says which it was."""
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
        return smallest_noise(event, count=times, target=target, epsilon=epsilon), times, noise_name
    if amount is None:
        raise InvalidInput(f"--target-epsilon needs {flags[0]} or {flags[1]}")
    found = most(event(amount), target=target, epsilon=epsilon)
    if found == 0:
        raise InvalidInput(
            f"with {flags[0]} {amount:g} not even one of them stays within ε {target:g}"
        )
    return amount, found, count_name


def _read_votes(
    path: Path | None,
    queries: int | None,
    labels: bool,
    counts: bool,
    abstentions: bool,
    classes: int | None,
) -> Votes | None:
    if path is None:
        if labels or counts or abstentions or classes:
            raise InvalidInput("--labels, --counts, --abstentions and --classes go with --votes")
        return None
    from pate.votes import read_counts, read_labels

    if labels and counts:
        raise InvalidInput("--labels and --counts contradict each other")
    if not labels:
        if classes:
            raise InvalidInput("--classes goes with --labels; counts have a column for each class")
        cast = read_counts(path, abstentions=abstentions, certain=counts)
        if not counts and cast.queries > 1 and (cast.counts == cast.counts[0]).all():
            typer.echo(
                f"pate: all {cast.queries} rows are the same; read as counts of {cast.teachers} "
                "teachers (if they are labels of teachers that agree, add --labels)",
                err=True,
            )
        return cast.first(queries)
    cast = read_labels(path, classes=classes, abstentions=abstentions).first(queries)
    if classes is None:
        typer.echo(
            f"pate: {cast.classes} classes, taken from the largest label; if there are more, say "
            "so with --classes, or the data-dependent ε is too small",
            err=True,
        )
    return cast


def _read_baseline(path: Path, cast: Votes) -> FloatArray:
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


def _finite(value: Any) -> Any:
    """JSON knows no infinity: an unbounded ε is the string "inf"."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return "inf" if value == float("inf") else value


def _show(report: Report, *, json: bool) -> None:
    report = {key: value for key, value in report.items() if key == "moment" or value is not None}
    if json:
        import json as encoder

        typer.echo(encoder.dumps(_finite(report), allow_nan=False))
        return
    from pate.cli.tables import show_report

    show_report(report)
