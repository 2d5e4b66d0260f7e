"""The guarantee in words, and how much it says."""

from __future__ import annotations

import math

from pate.mechanisms import AggregateSpec, make_mechanism


def best_guess(epsilon: float, delta: float) -> float:
    """How often the best guesser is right about which of two neighbouring data sets was used.

    Guarantees:
        Both equally likely beforehand. A test with false alarms p and hits h has h ≤ e^ε p + δ and
        1 − p ≤ e^ε (1 − h) + δ (Kairouz, Oh & Viswanath 2015, Theorem 2.1); (1 + h − p)/2 is at
        most (e^ε + δ)/(e^ε + 1).

    >>> best_guess(0.0, 0.0), round(best_guess(1.0, 1e-5), 4), best_guess(800.0, 1e-5)
    (0.5, 0.7311, 1.0)
    """
    if epsilon > 700:
        return 1.0
    odds = math.exp(epsilon)
    return min(1.0, (odds + delta) / (odds + 1))


def sanitised_holds(spec: AggregateSpec) -> str:
    """What a sanitised ε promises and what it does not, in plain words.

    >>> sanitised_holds(AggregateSpec(scale=20.0)).endswith("not the other way round.")
    True
    """
    told = (
        "The sanitised ε holds at the data at hand and in one direction: it bounds how much "
        "likelier the release is with this data than with a neighbour, not the other way round."
    )
    if spec.cost_follows_answers:
        told += " It is ex post: it speaks of the answers that came, not of all that could come."
    return told


def mechanism_formula(spec: AggregateSpec) -> tuple[str, str]:
    """A mechanism's name and what it answers, in symbols."""
    mechanism = make_mechanism(spec)
    return mechanism.title, mechanism.formula()


CONVERSIONS = {
    "improved": (
        "ε = min over λ of α(λ)/λ + log(λ/(λ+1)) − (log δ + log(λ+1))/λ",
        "Canonne, Kamath & Steinke 2020, Proposition 12",
    ),
    "classic": ("ε = min over λ of (α(λ) + log 1/δ)/λ", "Abadi et al. 2016, Theorem 2.2"),
}
