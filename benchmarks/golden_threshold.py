"""Write the golden divergences of threshold checks, by mpmath at 40 digits.

    python benchmarks/golden_threshold.py > tests/reference/threshold.public.json

A check passes if count + N(0, σ²) is at least a threshold; a neighbour's count is larger by one.
Nothing here is shared with ``pate``. Of each σ and order the worst count of a fine grid is kept,
and some that are not.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import mpmath

WAYS = ("forward", "reverse")
mpmath.mp.dps = 40
ORDERS = (1.1, 2.0, 5.0, 20.0, 60.0)
AWAY = [mpmath.mpf(n) / 8 for n in range(-48, 49)]  # of the lower count, in standard deviations


def pair(x: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
    return mpmath.ncdf(x), mpmath.ncdf(-x)


def divergence(p: tuple[Any, Any], q: tuple[Any, Any], order: float) -> mpmath.mpf:
    alpha = mpmath.mpf(order)
    both = sum(a**alpha * b ** (1 - alpha) for a, b in zip(p, q, strict=True))
    return mpmath.log(both) / (alpha - 1)


def case(sigma: float, away: mpmath.mpf) -> dict[str, Any]:
    low, high = pair(away), pair(away + 1 / mpmath.mpf(sigma))
    return {
        "id": f"check|{sigma:g}|{float(away):g}",
        "kind": "check",
        "noise": sigma,
        "away": float(away),
        "orders": list(ORDERS),
        "forward": [float(divergence(low, high, order)) for order in ORDERS],
        "reverse": [float(divergence(high, low, order)) for order in ORDERS],
    }


def main() -> None:
    cases = []
    for sigma in (0.5, 1.0, 5.0, 40.0, 150.0):
        every = [case(sigma, away) for away in AWAY]
        worst = {
            max(range(len(every)), key=lambda n: max(every[n][way][i] for way in WAYS))
            for i in range(len(ORDERS))
        }
        cases += [every[n] for n in sorted(worst | {0, 24, 48, 72, 96})]
    record = {
        "name": "threshold",
        "split": "public",
        "description": "Exact Rényi divergences of one noisy threshold check between a count and "
        "one more. `away`: the lower count less the threshold, over σ (`noise`); `forward` is "
        "D(lower || higher) at each of `orders`, `reverse` the other way.",
        "sources": {"all fields": "benchmarks/golden_threshold.py: mpmath at 40 digits"},
        "n_cases": len(cases),
        "cases": cases,
    }
    json.dump(record, sys.stdout, ensure_ascii=False, indent=1)
    print()


if __name__ == "__main__":
    main()
