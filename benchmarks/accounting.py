"""Speed of the accountant, as ratios against straightforward code in the same run.

    python benchmarks/accounting.py [--rows 1000000] [--charges 50000]

1. Data-dependent log-moments of a whole vote matrix (32 moments), LNMax and GNMax, against a
   per-row Python loop of the same formulas on a sample of its rows; peak memory of the process.
2. ε of 10 000 DP-SGD steps in one evaluation, against adding the steps up one by one.
3. ε of plans on the full grid of λ, by the best accountant, after the first call in the process.
4. One charge to a ledger of many distinct ones, against one to a ledger that is new, and against
   adding all of them up again; opening it, which compares its running total with its charges.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from pate.accounting import (
    Conversion,
    Event,
    GaussianNoisyMaxAnswer,
    Guarantee,
    GumbelNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Ledger,
    LogMoments,
    Mode,
    Repeated,
    SampledGaussian,
    ThresholdCheck,
    compose,
    event_to_json,
    gaussian_total,
    guarantee_of_plan,
    integer_moments,
    laplace_total,
    log_moments,
)

MOMENTS = integer_moments(32)
SCALE, SIGMA, TEACHERS, CLASSES = 20.0, 40.0, 250, 10


def make_votes(rows: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Votes from easy to hard: the share of right teachers is uniform between 0.3 and 1."""
    rng = np.random.default_rng(seed)
    right = rng.binomial(TEACHERS, 0.3 + 0.7 * rng.random(rows))
    wrong = rng.multinomial(TEACHERS - right, np.full(CLASSES - 1, 1 / (CLASSES - 1)))
    return rng.permuted(np.column_stack([right, wrong]), axis=1)


def log1mexp(x: float) -> float:
    return math.log(-math.expm1(x)) if x > -0.693 else math.log1p(-math.exp(x))


def log_add(x: float, y: float) -> float:
    top = max(x, y)
    return top + math.log1p(math.exp(-abs(x - y)))


def laplace_loop(votes: NDArray[np.int64]) -> list[float]:
    """The formulas of the 2017 paper, row by row."""
    total = [0.0] * len(MOMENTS)
    epsilon = 2 / SCALE
    for row in votes:
        winner = int(np.argmax(row))
        q = 0.0
        for j, count in enumerate(row):
            if j != winner:
                gap = (row[winner] - count) / SCALE
                q += (2 + gap) / (4 * math.exp(gap))
        q = min(q, 1 - 1 / len(row))
        for i, moment in enumerate(MOMENTS):
            cost = min(epsilon * moment, 0.5 * epsilon**2 * moment * (moment + 1))
            if q < 1 / (math.exp(epsilon) + 1):
                stay = math.log1p(-q)
                log_ratio = stay - math.log1p(-math.exp(epsilon) * q)
                cost = min(cost, log_add(stay + moment * log_ratio, math.log(q) + epsilon * moment))
            total[i] += cost
    return total


def gaussian_loop(votes: NDArray[np.int64]) -> list[float]:
    """The formulas of the 2018 paper, row by row."""
    total = [0.0] * len(MOMENTS)
    for row in votes:
        winner = int(np.argmax(row))
        logs = [
            float(log_ndtr(-(row[winner] - count) / (math.sqrt(2) * SIGMA)))
            for j, count in enumerate(row)
            if j != winner
        ]
        top = max(logs)
        log_q = min(top + math.log(sum(math.exp(x - top) for x in logs)), math.log1p(-1 / len(row)))
        mu2 = SIGMA * math.sqrt(-log_q)
        mu1 = mu2 + 1
        for i, moment in enumerate(MOMENTS):
            cost = moment * (moment + 1) / SIGMA**2
            epsilon1, epsilon2 = mu1 / SIGMA**2, mu2 / SIGMA**2
            if (
                mu2 > 1
                and mu1 > moment + 1
                and -log_q > epsilon2
                and log_q
                <= (mu2 - 1) * epsilon2
                - mu2 * (math.log1p(1 / (mu1 - 1)) + math.log1p(1 / (mu2 - 1)))
            ):
                stay = math.log1p(-math.exp(log_q))
                a = stay - log1mexp((log_q + epsilon2) * (1 - 1 / mu2))
                b = epsilon1 - log_q / (mu1 - 1)
                cost = min(cost, log_add(stay + moment * a, log_q + moment * b))
            total[i] += cost
    return total


def seconds(run: Callable[[], object], *, repeats: int) -> float:
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def epsilon(events: list[Event]) -> float:
    """ε of the events with nothing remembered from earlier runs."""
    values = sum(log_moments(event, MOMENTS) for event in events)
    total = LogMoments(moments=MOMENTS, values=np.asarray(values))
    return total.guarantee(delta=1e-5, conversion=Conversion.CLASSIC).epsilon


def plans() -> None:
    """The median CPU time of a plan's ε, each with noise that was not asked about before."""
    kinds: dict[str, Callable[[float], list[Event]]] = {
        "191 GNMax answers": lambda x: [Repeated(GaussianNoisyMaxAnswer(sigma=240.5 * x), 191)],
        "100 LNMax answers": lambda x: [Repeated(LaplaceNoisyMaxAnswer(scale=20 * x), 100)],
        "640 checks and 191 answers": lambda x: [
            Repeated(ThresholdCheck(sigma=150 * x), 640),
            Repeated(GaussianNoisyMaxAnswer(sigma=40 * x), 191),
        ],
        "191 Gumbel answers": lambda x: [Repeated(GumbelNoisyMaxAnswer(scale=209 * x), 191)],
        "1310 Gumbel answers": lambda x: [Repeated(GumbelNoisyMaxAnswer(scale=100 * x), 1310)],
        "10 000 DP-SGD steps": lambda x: [
            Repeated(SampledGaussian(sample_rate=0.01, noise_multiplier=4 * x), 10_000)
        ],
    }
    for name, plan in kinds.items():
        took = []
        for number in range(8):
            start = time.process_time()
            found = guarantee_of_plan(plan(1 + number / 100), delta=1e-5)
            took.append(time.process_time() - start)
        print(f"epsilon of {name}: {1e3 * statistics.median(took[1:]):.0f} ms "
              f"({found.accountant.value})")  # fmt: skip


def make_ledger(path: Path, charges: int) -> None:
    """A ledger of so many charges, each for another event; written at once, to save waits."""
    terms = Guarantee(epsilon=math.inf, delta=1e-5)
    with Ledger.open(path, budget=terms, mode=Mode.ODOMETER) as ledger:
        connection = ledger._connection
        connection.execute("BEGIN IMMEDIATE")
        for number in range(1, charges + 1):
            event = event_to_json(GaussianNoisyMaxAnswer(sigma=100 + number / 1000))
            name = f"release {number}"
            connection.execute(
                "INSERT INTO charges (release, basis) VALUES (?, 'fixed-moment')", (name,)
            )
            connection.execute("INSERT INTO entries VALUES (?, ?, 1)", (number, event))
        ledger._running.rebuild()
        connection.execute("COMMIT")


def charge_seconds(ledger: Ledger, repeats: int = 15) -> float:
    """The median time of a charge for an event that is new to the ledger."""
    took = []
    for number in range(repeats):
        start = time.perf_counter()
        ledger.charge([GaussianNoisyMaxAnswer(sigma=50 + number)], release=f"one more {number}")
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def ledgers(charges: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        new, old = Path(folder) / "new", Path(folder) / "old"
        make_ledger(new, 0)
        make_ledger(old, charges)
        opening = seconds(lambda: Ledger.open(old).close(), repeats=3)
        with Ledger.open(new) as small, Ledger.open(old) as large:
            few, many = charge_seconds(small), charge_seconds(large)
            events = [event for charge in large.charges() for event in charge.events]
            again = seconds(lambda: compose(events, [10.0]), repeats=1)
    print(
        f"a charge among {charges} distinct ones: {many * 1e3:.1f} ms, {many / few:.2f} x that of "
        f"a new ledger; adding them up again would take {again * 1e3:.0f} ms: {again / many:.0f} x "
        f"as long; opening it: {opening * 1e3:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--charges", type=int, default=50_000)
    asked = parser.parse_args()
    rows = asked.rows
    votes = make_votes(rows)
    sample = votes[np.random.default_rng(1).choice(rows, size=min(rows, 1000), replace=False)]
    print(f"{rows} x {CLASSES} votes of {TEACHERS} teachers, {len(MOMENTS)} moments, one thread")
    for name, ours, loop in (
        ("LNMax", lambda v: laplace_total(v, scale=SCALE, moments=MOMENTS).values, laplace_loop),
        ("GNMax", lambda v: gaussian_total(v, sigma=SIGMA, moments=MOMENTS).values, gaussian_loop),
    ):
        difference = np.max(np.abs(np.asarray(loop(sample)) / ours(sample) - 1))
        fast = slow = math.inf
        for _ in range(
            3
        ):  # interleaved, the least of each: other work on the machine comes and goes
            fast = min(fast, seconds(lambda: ours(votes), repeats=1) / rows)  # noqa: B023
            slow = min(slow, seconds(lambda: loop(sample), repeats=1) / len(sample))  # noqa: B023
        print(
            f"{name}: {fast * 1e6:.3f} us a query, Python loop {slow * 1e6:.1f} us: "
            f"{slow / fast:.0f} x faster (totals agree to {difference:.0e})"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"peak memory of this process: {peak:.2f} GiB")

    step, steps = SampledGaussian(sample_rate=0.01, noise_multiplier=4.0), 10_000
    once = seconds(lambda: epsilon([Repeated(step, steps)]), repeats=10)
    some = seconds(lambda: epsilon([step] * (steps // 100)), repeats=2)
    print(
        f"epsilon of {steps} DP-SGD steps: {once * 1e3:.1f} ms in one evaluation, "
        f"{some * 100 * 1e3:.0f} ms step by step (from {steps // 100}): {some * 100 / once:.0f} x"
    )
    plans()
    ledgers(asked.charges)


if __name__ == "__main__":
    main()
