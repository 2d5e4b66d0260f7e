"""The public numbers of a mechanism, and the rules they keep."""

from __future__ import annotations

from typing import Final

from pate.errors import InvalidInput

# In votes. Beyond these a noise hides nothing or leaves nothing, and its square leaves doubles.
LEAST_NOISE: Final = 1e-9
MOST_NOISE: Final = 1e9


def check_noise(name: str, value: float) -> None:
    """A scale or a standard deviation, in votes."""
    if not (_is_number(value) and LEAST_NOISE <= value <= MOST_NOISE):
        raise InvalidInput(
            f"{name} is {value!r}; noise is a number of votes between {LEAST_NOISE:g} and "
            f"{MOST_NOISE:g}"
        )


def check_threshold(name: str, value: float) -> None:
    """A number of votes that a check compares with."""
    if not (_is_number(value) and 0 < value <= MOST_NOISE):
        raise InvalidInput(
            f"{name} is {value!r}; it must be a number of votes above zero, at most {MOST_NOISE:g}"
        )


def check_share(name: str, value: float) -> None:
    """A probability."""
    if not (_is_number(value) and 0 <= value <= 1):
        raise InvalidInput(f"{name} is {value!r}; it must lie between 0 and 1")


def check_count(name: str, value: int, *, least: int = 0) -> None:
    """A number of queries, answers or teachers."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number, {least} or more")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
