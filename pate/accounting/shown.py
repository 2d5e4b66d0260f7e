"""A cost as people read it: never smaller than it is."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal


def upwards(epsilon: float, digits: int = 4) -> str:
    """ε in so many digits, rounded up.

    >>> upwards(14.37841), upwards(19.2443), upwards(12.000000000000002), upwards(0.00123411)
    ('14.38', '19.25', '12', '0.001235')
    """
    if not math.isfinite(epsilon):
        return f"{epsilon}"
    exact = Decimal(epsilon) * (1 - Decimal("1e-12"))  # what floats do not know anyway
    up = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(exact)
    return f"{float(up):.{digits}g}"
