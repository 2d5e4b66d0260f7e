"""A reading of what was spent that holds at all times at once.

A figure for "so far" is a guarantee only if *when* it is read does not depend on what was seen. An
odometer may be read at any time, also because of what was seen, and costs a little more.
"""

from __future__ import annotations

import math

import numpy as np

from pate.accounting.guarantee import Conversion
from pate.accounting.moments import epsilon_at


def odometer_epsilon(
    log_moment: float, *, moment: float, delta: float, conversion: Conversion
) -> float:
    """ε of a total log-moment at a λ that was fixed in advance; valid at every time at once.

    Guarantees:
        Feldman & Zrnic 2021, Section 5: a union bound over a geometric ladder of filters, each √2
        times the last, the k-th with δ·6/(π²k²). The reading is that of the lowest filter which
        the total has not passed; all of them hold together with probability 1 − δ.

    >>> once = odometer_epsilon(2.0, moment=8.0, delta=1e-5, conversion=Conversion.IMPROVED)
    >>> later = odometer_epsilon(4.0, moment=8.0, delta=1e-5, conversion=Conversion.IMPROVED)
    >>> round(once, 3), round(later, 3)
    (1.537, 1.964)
    """
    if math.isinf(log_moment):
        return math.inf
    first = -math.log(delta) / 8
    rung = max(1, math.ceil(2 * math.log2(log_moment / first)) + 1) if log_moment > first else 1
    level = max(first * 2 ** ((rung - 1) / 2), log_moment)
    share = delta * 6 / (math.pi * rung) ** 2
    epsilon = epsilon_at(np.array([moment]), np.array([level]), delta=share, conversion=conversion)
    return float(epsilon[0])
