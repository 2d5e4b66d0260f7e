"""``dpsgd epsilon``: the cost of a training run, without training and data."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.console import print_json
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from pate.accounting import Event, Guarantee


class _AccountantName(StrEnum):
    tightest = "tightest"
    abadi = "abadi"
    moments = "moments"
    pld = "pld"
    strong = "strong"


def epsilon(
    sample_rate: Annotated[float, typer.Option(help="q: chance of a record to be in a lot.")],
    delta: Annotated[float, typer.Option(help="δ: well below one over the records.")],
    steps: Annotated[int | None, typer.Option(min=1, help="Lots.", show_default=False)] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="σ over the clipping norm.", show_default=False)
    ] = None,
    target_epsilon: Annotated[
        float | None,
        typer.Option(help="Find the noise for this ε; or, where the noise is given, how many "
                     "lots it allows.", show_default=False),
    ] = None,
    accountant: Annotated[
        _AccountantName,
        typer.Option(help="tightest: the smaller of the next two; moments: log-moments on a fine "
                     "grid; pld: privacy loss distributions; abadi: whole λ ≤ 32, classic; strong: "
                     "strong composition, to compare with."),
    ] = _AccountantName.tightest,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:  # fmt: skip
    """Print ε of a training run; or the noise, or the number of lots, for an ε."""
    from pate._format import (
        SAME_AT_PUBLIC_RATE,
        describe_neighbours,
        format_delta,
        format_epsilon,
        round_up,
    )
    from pate.accounting import Repeated, SampledGaussian

    def step(noise: float) -> SampledGaussian:
        return SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise)

    def cost(events: list[Event]) -> Guarantee:
        return _guarantee(events, accountant, delta)

    noise, count, found = _solve(
        noise_multiplier, steps, target_epsilon, step, cost, **_search(accountant, delta)
    )
    guarantee = cost([Repeated(step(noise), count)])
    if json:
        report = {
            **guarantee.as_json(),
            "sample_rate": sample_rate,
            "noise_multiplier": noise,
            "steps": count,
            "accountant": accountant.value,
            "target_epsilon": target_epsilon,
            "found": found,
        }
        print_json(report)
        return
    if found is not None:
        up = f"{float(round_up(noise, digits=7)):.7g}"  # a user who copies it has enough noise
        value = up if found == "noise_multiplier" else str(count)
        typer.echo(f"{found.replace('_', ' ')} = {value}")
    typer.echo(
        f"ε = {format_epsilon(guarantee.epsilon)} at δ = {format_delta(delta)} "
        f"({_NAMES.get(accountant, f'{accountant} accountant')}), for "
        f"{describe_neighbours(guarantee.neighbours)}; {SAME_AT_PUBLIC_RATE}"
    )


_NAMES = {_AccountantName.strong: "strong composition; the other accountants are tighter"}


def _guarantee(events: list[Event], accountant: _AccountantName, delta: float) -> Guarantee:
    """Return the cost of steps of one kind."""
    from pate._validate import check_delta
    from pate.accounting import Guarantee, SampledGaussian
    from pate.accounting.calibrate import DpsgdAccountant, Method
    from pate.accounting.composition import sampled_gaussian_strong
    from pate.accounting.events import tally

    check_delta(delta)
    if accountant is not _AccountantName.strong:
        return DpsgdAccountant(delta=delta, method=Method(accountant.value)).guarantee(events)
    ((step, count),) = tally(events).items()
    assert isinstance(step, SampledGaussian)
    spent = sampled_gaussian_strong(
        sample_rate=step.sample_rate,
        noise_multiplier=step.noise_multiplier,
        steps=count,
        delta=delta,
        exact_gaussian=True,  # both together make it a guarantee
        exact_amplification=True,
    )
    return Guarantee(epsilon=spent, delta=delta, neighbours=step.neighbours)


def _search(accountant: _AccountantName, delta: float) -> dict[str, Any]:
    """Return the start and the precision of a search with an accountant."""
    from pate.accounting.calibrate import DpsgdAccountant, Method

    if accountant is _AccountantName.strong:
        return {"rough": None, "tolerance": 1e-7}
    method = DpsgdAccountant(delta=delta, method=Method(accountant.value))
    return {"rough": method.rough, "tolerance": method.tolerance}


def _solve(  # type: ignore[no-untyped-def]
    noise: float | None, steps: int | None, target: float | None, step, cost, *, rough, tolerance
) -> tuple[float, int, str | None]:
    """Return noise, steps, and the name of the missing one, which is found for the target."""
    from pate.accounting.calibrate import most, smallest_noise

    def epsilon(events: list[Event]) -> float:
        return float(cost(events).epsilon)

    if noise is not None and steps is not None:
        if target is not None:
            raise InvalidInput(
                "--target-epsilon needs one of --noise-multiplier and --steps left open"
            )
        return noise, steps, None
    if target is None:
        flags = {"--noise-multiplier": noise, "--steps": steps}
        missing = " and ".join(flag for flag, given in flags.items() if given is None)
        raise InvalidInput(f"give {missing}, or --target-epsilon to find it")
    if steps is not None:
        found = smallest_noise(
            step, count=steps, target=target, epsilon=epsilon, rough=rough, tolerance=tolerance
        )
        return found, steps, "noise_multiplier"
    if noise is None:
        raise InvalidInput("--target-epsilon needs --noise-multiplier or --steps")
    count = most(step(noise), target=target, epsilon=epsilon, rough=rough)
    if count == 0:
        raise InvalidInput(
            f"with --noise-multiplier {noise:g} not even one step stays within ε {target:g}"
        )
    return noise, count, "steps"
