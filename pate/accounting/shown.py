"""A cost as people read it: never smaller than it is."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal


def upwards(epsilon: float, digits: int = 4) -> str:
    """ε in so many digits, rounded up.

    >>> upwards(14.37841), upwards(19.2443), upwards(12.000000000000002), upwards(0.00123411)
    ('14.38', '19.25', '12', '0.001235')
    >>> upwards(12345.6), upwards(1.00001e-5), upwards(math.inf)
    ('12350', '1.001e-05', '∞')
    """
    if not math.isfinite(epsilon):
        return "∞"
    up = rounded_up(epsilon, digits=digits)
    return f"{float(up):.{digits}g}" if up < 10**digits else f"{up:f}"


def rounded_up(value: float, *, digits: int = 4, places: int | None = None) -> Decimal:
    """A finite cost in so many digits, or with so many ``places`` behind the point, rounded up.

    A part in 10¹² is let go first: that much floats do not know anyway.

    >>> rounded_up(14.37841), rounded_up(3.2501, places=2), rounded_up(3.0000000000000004, places=0)
    (Decimal('14.38'), Decimal('3.26'), Decimal('3'))
    """
    exact = Decimal(value) * (1 - Decimal("1e-12"))
    if places is not None:
        return exact.quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING)
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal(exact)
