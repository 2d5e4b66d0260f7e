"""The noise of a run, found for a target before anything is drawn."""

from __future__ import annotations

from dpsgd.spending import method_named
from pate.accounting import Event, smallest_noise
from pate.accounting.calibrate import DpsgdAccountant, Method, dpsgd_step
from pate.errors import InvalidInput

# Of the noise found: it is never too small, and at most this much too large. Loss distributions
# take half a second for each guess.
_TOLERANCE = {Method.MOMENTS: 1e-4, Method.ABADI: 1e-4, Method.PLD: 1e-3}


def noise_for(
    *,
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: str = "moments",
    prior: tuple[Event, ...] = (),
    tolerance: float | None = None,
) -> float:
    """The smallest noise multiplier with which steps and prior events stay within a target.

    >>> z = noise_for(target_epsilon=1.0, delta=1e-5, sample_rate=0.01, steps=1000)
    >>> round(z, 3)
    1.513
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InvalidInput(f"the number of steps is {steps!r}; it must be whole, 1 or more")
    account = DpsgdAccountant(delta=delta, method=method_named(accountant))
    before = account.epsilon(list(prior)) if prior else 0.0
    if prior and before >= target_epsilon:
        raise InvalidInput(
            f"the target is ε = {target_epsilon:g}, and what comes before the steps costs "
            f"{before:.4g} alone; raise the target, or the noise of what comes before (of a PCA in "
            "a recipe: features.pca.noise_multiplier)"
        )
    return smallest_noise(
        dpsgd_step(sample_rate),
        count=steps,
        target=target_epsilon,
        epsilon=lambda events: account.epsilon([*prior, *events]),
        tolerance=_TOLERANCE[account.method] if tolerance is None else tolerance,
    )
