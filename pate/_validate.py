"""Checks of public parameters: the value, the rule and the remedy in one line.

Every check returns the value as a Python number. Arithmetic with a half- or single-precision number
of NumPy rounds to that precision, and noise rounded down is too little noise; so a number is
converted, exactly, before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, Final, TypeVar

from pate.errors import InvalidInput

T = TypeVar("T")

SMALLEST, LARGEST = 1e-100, 1e100  # so that products of a few parameters stay finite
_LARGEST_COUNT = 1 << 62  # as much as the file of a ledger can hold

# In votes. Outside these limits noise hides nothing or leaves nothing, and its square overflows.
LEAST_NOISE: Final = 1e-9
MOST_NOISE: Final = 1e9


def check_positive(name: str, value: object) -> float:
    """Require a number above zero, neither tiny nor huge.

    >>> check_positive("lot_size", 64)
    64.0
    >>> check_positive("lot_size", 0)
    Traceback (most recent call last):
    pate.errors.InvalidInput: lot_size is 0; it must be a finite number above zero
    """
    number = _as_float(value)
    if not 0 < number < math.inf:
        raise _invalid(name, value, "it must be a finite number above zero")
    if not SMALLEST <= number <= LARGEST:
        raise _invalid(name, value, f"it must lie between {SMALLEST:g} and {LARGEST:g}")
    return number


def check_not_negative(name: str, value: object) -> float:
    """Require a number as :func:`check_positive` does, or zero."""
    number = _as_float(value)
    if not 0 <= number < math.inf:
        raise _invalid(name, value, "it must be finite and not negative")
    return check_positive(name, value) if number else 0.0


def check_finite(name: str, value: object) -> float:
    """Require a number that is neither infinite nor NaN."""
    number = _as_float(value)
    if not math.isfinite(number):
        raise _invalid(name, value, "it must be a finite number")
    return number


def check_whole(
    name: str, value: object, *, least: int = 0, most: int | None = _LARGEST_COUNT
) -> int:
    """Require a whole number from ``least`` to ``most``; None is no upper limit.

    >>> check_whole("teachers", 2.5, least=1)
    Traceback (most recent call last):
    pate.errors.InvalidInput: teachers is 2.5; it must be a whole number, 1 or more
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise _invalid(name, value, f"it must be a whole number, {least} or more")
    number = int(value)
    if most is not None and number > most:
        raise InvalidInput(f"{name} is above {most}; it must be a smaller whole number")
    return number


def check_probability(name: str, value: object) -> float:
    """Require a number from 0 to 1, both included."""
    number = _as_float(value)
    if not 0 <= number <= 1:
        raise _invalid(name, value, "it must lie between 0 and 1")
    return number


def check_delta(value: object, *, allow_zero: bool = False) -> float:
    """Require a δ: a probability below one, and above zero where a tail bound divides by it.

    >>> check_delta(1e-5), check_delta(0, allow_zero=True)
    (1e-05, 0.0)
    """
    number = _as_float(value)
    if allow_zero and not 0 <= number < 1:
        raise _invalid("delta", value, "it must be at least 0 and below 1")
    if not allow_zero and not 0 < number < 1:
        raise _invalid("delta", value, "it must lie strictly between 0 and 1")
    return number


def check_noise(name: str, value: object) -> float:
    """Require a scale or a standard deviation of noise, in votes.

    Mechanisms keep the value as it is given, so only a Python number will do.
    """
    number = _as_python_float(value)
    if not LEAST_NOISE <= number <= MOST_NOISE:
        rule = f"noise is a number of votes between {LEAST_NOISE:g} and {MOST_NOISE:g}"
        raise _invalid(name, value, rule)
    return number


def check_threshold(name: str, value: object) -> float:
    """Require a number of votes that a check compares with; a Python number, as for noise."""
    number = _as_python_float(value)
    if not 0 < number <= MOST_NOISE:
        rule = f"it must be a number of votes above zero, at most {MOST_NOISE:g}"
        raise _invalid(name, value, rule)
    return number


def check_choice(name: str, value: T, known: Iterable[T]) -> T:
    """Require one of some known values.

    >>> check_choice("accountant", "moment", ["rdp", "pld"])
    Traceback (most recent call last):
    pate.errors.InvalidInput: accountant is 'moment'; it must be one of rdp, pld
    """
    choices = list(known)
    if value not in choices:
        raise _invalid(name, value, f"it must be one of {', '.join(map(str, choices))}")
    return value


def _as_float(value: object) -> float:
    """Return NaN for what is not a number: every comparison with it fails."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an int of hundreds of digits
        return math.inf


def _as_python_float(value: object) -> float:
    return _as_float(value) if isinstance(value, (int, float)) else math.nan


def _invalid(name: str, value: Any, rule: str) -> InvalidInput:
    plain = value.item() if type(value).__module__ == "numpy" and not value.shape else value
    return InvalidInput(f"{name} is {plain!r}; {rule}")
