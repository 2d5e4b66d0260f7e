"""``pate epsilon``: what answers cost, with no training and no data beyond votes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pate.cli import options
from pate.cli.options import AccountantName, ConversionName
from pate.cli.questions import (
    Question,
    Report,
    Terms,
    described,
    plain,
    read_baseline,
    read_votes,
    show,
    solve,
)
from pate.errors import InvalidInput

app = typer.Typer(
    help="What answers cost: ε from noise, counts and votes. Trains nothing, charges nothing.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


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
    from pate.mechanisms import LaplaceNoisyMax

    question = Question(
        cast=read_votes(votes, queries, labels, counts, abstentions, classes),
        queries=queries,
        target=target_epsilon,
        terms=Terms.of(delta, conversion, max_moment),
    )
    show(question.answer(LaplaceNoisyMax, noise=scale), json=json)


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
    from pate.mechanisms import GaussianNoisyMax

    question = Question(
        cast=read_votes(votes, queries, labels, counts, abstentions, classes),
        queries=queries,
        target=target_epsilon,
        terms=Terms.of(delta, conversion, max_moment),
    )
    show(question.answer(GaussianNoisyMax, noise=sigma), json=json)


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

    terms = Terms.of(delta, conversion, max_moment)
    check, answer = ThresholdCheck(sigma=sigma1), GaussianNoisyMaxAnswer(sigma=sigma2)
    cast = read_votes(votes, queries, labels, counts, abstentions, classes)
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
        show(report | terms.as_json(), json=json)
        return
    if answers is not None:
        raise InvalidInput("--answers goes without --votes; with votes it is worked out")

    from pate.accounting.noisy_max import answer_weights, checked_statistic

    lead = None if baseline is None else read_baseline(baseline, cast)
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
    report |= described(cast) | {
        "expected_answered": float(weights.sum()),
        "data_independent": terms.convert(expected[False]),
        "data_dependent": terms.convert(expected[True]),
        "all_answered": terms.convert(everything),
    }
    show(report | terms.as_json(), json=json)


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
    """DP-SGD with Poisson-sampled lots (zero-out; add/remove at a rate that is public)."""
    from pate.accounting import Repeated, SampledGaussian
    from pate.accounting.calibrate import DpsgdAccountant, Method

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

    noise, count, found = solve(
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
    show(report, json=json)


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

    plain("laplace", "scale", scale, sensitivity, queries, target_epsilon,
           Terms.of(delta, conversion, max_moment),
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

    plain("gaussian", "sigma", sigma, sensitivity, queries, target_epsilon,
           Terms.of(delta, conversion, max_moment),
           lambda z: Gaussian(noise_multiplier=z), json)  # fmt: skip
