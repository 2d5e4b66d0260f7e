"""A running ε that holds whenever one stops, also because of what was seen.

The best λ for all charges so far is chosen by them, and so by the answers that led to them: it
covers a plan that was fixed in advance, not a series that was decided on as answers came in. At one
λ that was fixed in advance the running sum does.
"""

from __future__ import annotations

import math

import numpy as np

from pate.accounting.guarantee import Conversion
from pate.accounting.moments import tail_epsilon_at
from pate.errors import InvalidInput


def odometer_epsilon(
    log_moment: float, *, moment: float, delta: float, conversion: Conversion
) -> float:
    """ε of a running total at a λ fixed before the first charge; valid whenever one stops.

    Guarantees:
        Let L_t be the privacy loss log P(o)/P′(o) of the first t outputs o, drawn from P, and A_t
        the sum of their log-moments a_i(λ). The i-th mechanism may be chosen by the outputs before
        it, and a_i with it; whatever these were, E[e^{λ loss_i} | past] ≤ e^{a_i}. So
        M_t = exp(λL_t − A_t) is a non-negative supermartingale with M_0 = 1, and E[M_τ] ≤ 1 at
        every stopping time τ, i.e. whenever stopping is decided by outputs alone (Feldman & Zrnic
        2021, Theorem 4.3; Whitehouse, Ramdas, Rogers & Wu 2023).

        With A = A_τ and ε(o) = (A + log 1/δ)/λ + (log c)/λ:

        * **improved**, c = (1/(λ+1))(λ/(λ+1))^λ: (1 − e^{−x})₊ ≤ c e^{λx} for all x, hence
          E[(1 − e^{ε(o) − L_τ})₊] ≤ δ E[M_τ] ≤ δ. That is
          Pr[o ∈ S] ≤ Σ_{o ∈ S} e^{ε(o)} P′(o) + δ for every set S of what may have been published
          when one stopped: (ε, δ)-DP with the ε that is read then. It holds at **any one stopping
          time**, not for all times at once: whoever looks back over a finished series for the
          moment at which the reading was exceeded most has not stopped there.
        * **classic**, c = 1: moreover Pr[L_t > ε_t for some t] ≤ δ (Ville 1939), for **all times
          at once**: several readings of one series then hold together.

        Neither needs a union bound over a ladder of filters. Several λ need one: each gets its
        share of δ, fixed in advance; the best of them afterwards, at the whole δ, is no guarantee.

    >>> once = odometer_epsilon(2.0, moment=8.0, delta=1e-5, conversion=Conversion.IMPROVED)
    >>> later = odometer_epsilon(4.0, moment=8.0, delta=1e-5, conversion=Conversion.IMPROVED)
    >>> round(once, 3), round(later, 3)
    (1.297, 1.547)
    """
    if not (0 < moment < math.inf and log_moment >= 0):  # also false for NaN: fails closed
        raise InvalidInput(f"a log-moment of {log_moment} at λ {moment} cannot be turned into ε")
    # Not epsilon_at: its ε = 0 rests on a bound of the whole divergence that is fixed in advance.
    epsilon = tail_epsilon_at(
        np.array([moment]), np.array([log_moment]), delta=delta, conversion=conversion
    )
    return max(0.0, float(epsilon[0]))
