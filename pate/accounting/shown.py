"""A cost as people read it: never smaller than it is."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal


def upwards(epsilon: float, digits: int = 4) -> str:
    """ε in so many digits, rounded up.

    >>> upwards(14.37841), upwards(19.2443), upwards(2.0), upwards(0.00123411), upwards(math.inf)
    ('14.38', '19.25', '2', '0.001235', 'inf')
    """
    if not math.isfinite(epsilon):
        return f"{epsilon}"
    up = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(epsilon))
    return f"{float(up):.{digits}g}"
