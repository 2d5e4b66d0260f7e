"""What an index costs: published bounds, certified ones, and the exact worst case found; and speed.

    python benchmarks/tightness.py [--table]

1. ε of plans by the published and the tight log-moments (δ = 1e-5, improved conversion); the ε that
   is stated of a plan, by the best accountant, if its queries are fixed in advance and if they
   follow answers; and the ε that the exact divergences of the worst votes come to: no analysis by
   moments can be lower.
2. The time of a plan's ε on the full grid of λ, after the first call, as a ratio to the published
   analysis; exact divergences of 10-class histograms at 8 orders, per second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pate.accounting import (
    Analysis,
    Conversion,
    Event,
    GaussianNoisyMaxAnswer,
    GumbelNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Repeated,
    ThresholdCheck,
    compose,
    exact_divergence,
    guarantee_of_plan,
    log_moments,
)
from pate.accounting.argmax_divergence import gaussian_index, laplace_index
from pate.accounting.bounded_range import gumbel_total
from pate.accounting.moments import DEFAULT_MOMENTS, epsilon_at

DELTA = 1e-5
PLANS: list[tuple[str, Event, int]] = [
    ("LNMax, b = 20", LaplaceNoisyMaxAnswer(scale=20.0), 100),
    ("LNMax, b = 40", LaplaceNoisyMaxAnswer(scale=40.0), 100),
    ("LNMax, b = 20", LaplaceNoisyMaxAnswer(scale=20.0), 1000),
    ("GNMax, σ = 240.5", GaussianNoisyMaxAnswer(sigma=240.5), 191),
    ("GNMax, σ = 115.3", GaussianNoisyMaxAnswer(sigma=115.3), 1310),
    ("checks, σ₁ = 150", ThresholdCheck(sigma=150.0), 2000),
    ("Gumbel, b = 209", GumbelNoisyMaxAnswer(scale=209.0), 191),
    ("Gumbel, b = 100", GumbelNoisyMaxAnswer(scale=100.0), 1310),
]


def epsilon(values: NDArray[np.float64], moments: NDArray[np.float64]) -> float:
    found = epsilon_at(moments, values, delta=DELTA, conversion=Conversion.IMPROVED)
    return float(found.min())


def two_classes(event: Event) -> NDArray[np.float64] | None:
    if isinstance(event, LaplaceNoisyMaxAnswer):
        return laplace_index(event.scale, DEFAULT_MOMENTS, two_classes=True)
    if isinstance(event, GaussianNoisyMaxAnswer):
        return gaussian_index(event.sigma, DEFAULT_MOMENTS, two_classes=True)
    return None


def worst_found(event: Event) -> NDArray[np.float64] | None:
    """Return the largest exact log-moments over near ties of two and three classes."""
    noise = {name: getattr(event, name) for name in ("scale", "sigma") if hasattr(event, name)}
    if isinstance(event, ThresholdCheck):
        return None
    size = int(next(iter(noise.values())))
    leads = np.unique(np.round(np.geomspace(1, 6 * size, 16)).astype(int)) - 1
    votes = [[6 * size, 6 * size - a, c] for a in leads for c in (0, 6 * size - a)]
    orders = DEFAULT_MOMENTS[DEFAULT_MOMENTS < 200] + 1
    if isinstance(event, GumbelNoisyMaxAnswer):  # both directions: also from each neighbour
        near = [row + move for row in np.array(votes) for move in ([-1, 1, 0], [1, -1, 0])]
        rows = np.maximum([*votes, *near], 0)
        every = [gumbel_total([row], **noise, moments=orders - 1).values for row in rows]
        return np.max(every, axis=0)
    return exact_divergence(votes, orders=orders, **noise).largest.max(axis=0) * (orders - 1)


def best_of(call: Callable[[], object], times: int = 7) -> float:
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only the first part")
    only_table = parser.parse_args().table
    print(f"{'plan':18} {'answers':>7} {'published':>10} {'tight':>8} {'stated':>8} "
          f"{'adaptive':>8} {'two classes':>11} {'worst found':>11} accountant")  # fmt: skip
    for name, event, count in PLANS:
        plan = [Repeated(event, count)]
        columns = [
            compose(plan, analysis=analysis).guarantee(delta=DELTA).epsilon
            for analysis in (Analysis.PUBLISHED, Analysis.TIGHT)
        ]
        two, worst = two_classes(event), worst_found(event)
        grid = DEFAULT_MOMENTS[DEFAULT_MOMENTS < 200]
        stated = [guarantee_of_plan(plan, delta=DELTA, adaptive=each) for each in (False, True)]
        cells = [f"{each:8.4f}" for each in (*columns, *(each.epsilon for each in stated))]
        cells.append("" if two is None else f"{epsilon(count * two, DEFAULT_MOMENTS):.4f}")
        cells.append("" if worst is None else f"{epsilon(count * worst, grid):.4f}")
        print(f"{name:18} {count:7}   {' '.join(cells[:4])} {cells[4]:>11} {cells[5]:>11} "
              f"{stated[0].accountant.value}")  # fmt: skip

    if only_table:
        return

    def cost(analysis: Analysis) -> Callable[[], object]:  # log_moments keeps no results
        event = GaussianNoisyMaxAnswer(sigma=240.5)
        return lambda: log_moments(event, DEFAULT_MOMENTS, analysis=analysis)

    tight, published = (best_of(cost(each)) for each in (Analysis.TIGHT, Analysis.PUBLISHED))
    print(f"\none event on {len(DEFAULT_MOMENTS)} λ: {tight * 1e3:.2f} ms, "
          f"{tight / published:.0f} times the published formula")  # fmt: skip
    votes = np.random.default_rng(0).multinomial(250, np.full(10, 0.1), size=1000)
    for noise in ({"sigma": 40.0}, {"scale": 20.0}):
        taken = best_of(
            lambda noise=noise: exact_divergence(votes, orders=np.arange(2.0, 10.0), **noise), 3
        )
        print(f"exact divergences, {noise}: {len(votes) / taken:.0f} histograms a second")


if __name__ == "__main__":
    main()
