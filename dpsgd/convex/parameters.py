"""Public parameters, read once: whatever kind of number is given, a Python one is used.

Arithmetic with a half- or single-precision number of NumPy rounds to that precision, and noise
rounded down is too little noise. So a number is converted, exactly, before anything is computed.
"""

from __future__ import annotations

import math
import operator

import numpy as np

from pate.errors import InvalidInput

SMALLEST, LARGEST = 1e-100, 1e100  # so that products of a few parameters stay numbers
_MOST = 1 << 62  # of a count


def check_positive(name: str, value: object) -> float:
    """A parameter that must be a number above zero, neither tiny nor huge; as a Python float.

    >>> check_positive("epsilon", np.float32(0.5))
    0.5
    """
    number = _as_float(value)
    if not 0 < number < math.inf:
        raise InvalidInput(f"{name} is {value!r}; it must be a finite number above zero")
    if not SMALLEST <= number <= LARGEST:
        raise InvalidInput(f"{name} is {value!r}; it must lie between {SMALLEST:g} and {LARGEST:g}")
    return number


def check_not_negative(name: str, value: object) -> float:
    """As :func:`check_positive`, but it may be zero."""
    number = _as_float(value)
    if not 0 <= number < math.inf:
        raise InvalidInput(f"{name} is {value!r}; it must be finite and not negative")
    return check_positive(name, value) if number else 0.0


def check_failure(value: object, *, allow_zero: bool) -> float:
    """δ: a probability below one."""
    number = _as_float(value)
    if not 0 <= number < 1:
        raise InvalidInput(f"delta is {value!r}; it must be at least 0 and below 1")
    if number == 0 and not allow_zero:
        raise InvalidInput(f"delta is {value!r}; Gaussian noise needs one above zero")
    return check_positive("delta", value) if number else 0.0


def check_whole(name: str, value: object) -> int:
    """A parameter that must be a whole number, one or more; as a Python int."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number, 1 or more")
    number = operator.index(value)
    if number > _MOST:
        raise InvalidInput(f"{name} is above {_MOST}; it must be a smaller whole number")
    return number


def _as_float(value: object) -> float:
    """NaN where it is no number: every comparison with it fails."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf
