"""A cost as people read it: never smaller than it is."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal

from pate.accounting.guarantee import Neighbours

_BETWEEN: dict[str, str] = {
    Neighbours.ADD_REMOVE: "one record added or removed",
    Neighbours.REPLACE_ONE: "one record replaced by another",
    Neighbours.ZERO_OUT: (
        "one record's contribution removed (zero-out; the number of records is public)"
    ),
    Neighbours.AS_STATED: "data sets as the sensitivity was stated",
}
AT_A_PUBLIC_RATE = (
    "the same ε holds for one record added or removed where the sample rate does not depend on the "
    "number of records"
)
_RESTATED = (
    "they are not the same promise. Said of one record replaced, DP-SGD's ε is up to twice as "
    "large, and its δ 1 + e^ε times."
)


def between(neighbours: str) -> str:
    """How two neighbouring data sets differ, after "for"; the one table of these phrases.

    >>> between("zero-out")
    "one record's contribution removed (zero-out; the number of records is public)"
    """
    return _BETWEEN.get(neighbours, neighbours)


def side_by_side(pate: str, dpsgd: str) -> str:
    """What the relations of the two methods mean for whoever compares their ε.

    >>> side_by_side("add-remove", "add-remove")
    'Both ε are for one record added or removed, and may be set side by side.'
    """
    if pate == dpsgd:
        return f"Both ε are for {between(pate)}, and may be set side by side."
    each = f"PATE's ε is for {between(pate)}, DP-SGD's for {between(dpsgd)}"
    if (pate, dpsgd) == (Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT):
        return (
            f"{each}, since its sampling rate follows from that number. What holds for a record "
            "added or removed holds where its contribution is removed, so the two ε may be set "
            "side by side; PATE's hides the number of records too, DP-SGD's does not."
        )
    return f"{each}: {_RESTATED}"


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


def printable(text: str) -> str:
    """Text of a file as a terminal may show it: nothing in it moves the cursor or changes colours.

    >>> printable("labels" + chr(27) + "[31m")
    'labels�[31m'
    """
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
