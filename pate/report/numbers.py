"""Figures as people read them."""

from __future__ import annotations

import math
from decimal import Decimal

from pate.accounting.shown import rounded_up

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NARROW = "\u202f"  # a narrow space that does not break


def epsilon(value: float) -> str:
    """ε in four digits, rounded up: a guarantee must not look better than it is.

    >>> epsilon(14.37841), epsilon(0.123412), epsilon(25.0), epsilon(12345.6), epsilon(math.inf)
    ('14.38', '0.1235', '25.00', '12350', '∞')
    >>> epsilon(12.000000000000002)  # what floats do not know is no cost
    '12.00'
    """
    if not math.isfinite(value):
        return "∞"
    up = rounded_up(value)
    if not up:
        return "0"
    return f"{up.quantize(Decimal(1).scaleb(up.adjusted() - 3)):f}"


def decimals(value: float, places: int) -> str:
    """ε with so many digits behind the point, rounded up: for columns.

    >>> decimals(0.25, 2), decimals(3.2501, 2), decimals(math.inf, 2)
    ('0.25', '3.26', '∞')
    """
    if not math.isfinite(value):
        return "∞"
    return f"{rounded_up(value, places=places):f}"


def plain(value: float) -> str:
    """A setting as it was written.

    >>> plain(8.0), plain(0.25), plain(1e-05), plain(12000)
    ('8', '0.25', '10⁻⁵', '12\\u202f000')
    """
    if 0 < value < 1e-3:
        power = math.floor(math.log10(value) + 1e-9)
        lead = value / 10.0**power
        exponent = f"10{str(power).translate(_SUPERSCRIPT)}"
        return exponent if abs(lead - 1) < 1e-9 else f"{lead:.6g}\u202f·\u202f{exponent}"
    if float(value).is_integer():
        return f"{int(value):,}".replace(",", _NARROW)
    return f"{value:.6g}"


def percent(share: float, digits: int = 1) -> str:
    """A share in per cent, never rounded to all or nothing.

    >>> percent(0.7666), percent(1.0), percent(0.9999999)
    ('76.7\\u202f%', '100\\u202f%', '>\\u202f99.9\\u202f%')
    """
    if share in (0.0, 1.0):
        return f"{100 * share:.0f}{_NARROW}%"
    text = f"{100 * share:.{digits}f}"
    if float(text) == 100:
        return f">{_NARROW}{100 - 10.0**-digits:.{digits}f}{_NARROW}%"
    if float(text) == 0:
        return f"<{_NARROW}{10.0**-digits:.{digits}f}{_NARROW}%"
    return f"{text}{_NARROW}%"


def factor(exponent: float) -> str:
    """e to a power, in words, rounded up.

    >>> factor(0.1), factor(2.0), factor(math.log(20.041)), factor(14.38), factor(400.0)
    ('1.11', '7.39', '20.05', '1.8 million', '5.3\\u202f·\\u202f10¹⁷³')
    >>> factor(800.0)
    'more than 10³⁰⁰'
    """
    if exponent > 690:
        return "more than 10³⁰⁰"
    value = math.exp(exponent)
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if size <= value < 1000 * size:
            return f"{math.ceil(value / size * 10 * (1 - 1e-12)) / 10:g} {word}"
    if value >= 1e12:
        power = math.floor(math.log10(value))
        lead = math.ceil(value / 10.0**power * 10 * (1 - 1e-12)) / 10
        return f"{lead:g}\u202f·\u202f10{str(power).translate(_SUPERSCRIPT)}"
    if value >= 100:
        return f"{math.ceil(value):,}".replace(",", _NARROW)
    return f"{math.ceil(value * 100 * (1 - 1e-12)) / 100:.2f}"
