"""Engines by name: ``serial``, ``processes``, ``processes:4``, and any that are registered."""

from __future__ import annotations

from collections.abc import Callable

from pate.engines.task import Engine
from pate.errors import InvalidInput

# What follows the colon of "name:option" is handed over as it stands; None without a colon.
EngineFactory = Callable[[str | None], Engine]


def _serial(option: str | None) -> Engine:
    from pate.engines.serial import SerialEngine

    if option is not None:
        raise InvalidInput(f"'serial:{option}' is not an engine; 'serial' takes no number")
    return SerialEngine()


def _processes(option: str | None) -> Engine:
    from pate.engines.processes import ProcessEngine

    if option is None:
        return ProcessEngine()
    if not (option.isascii() and option.isdecimal() and int(option) > 0):
        raise InvalidInput(
            f"'processes:{option}' is not an engine; "
            "after the colon comes the number of workers, such as 'processes:4'"
        )
    return ProcessEngine(workers=int(option))


_FACTORIES: dict[str, EngineFactory] = {"serial": _serial, "processes": _processes}


def engine_names() -> tuple[str, ...]:
    """The engines there are.

    >>> engine_names()
    ('serial', 'processes')
    """
    return tuple(_FACTORIES)


def register_engine(name: str, factory: EngineFactory) -> None:
    """Adds an engine; ``factory`` gets the text after the colon, or None."""
    if name in _FACTORIES:
        raise InvalidInput(f"there is an engine named {name!r} already; choose another name")
    if not name or ":" in name:
        raise InvalidInput(f"{name!r} cannot name an engine; use a word without a colon")
    _FACTORIES[name] = factory


def make_engine(text: str) -> Engine:
    """The engine a user asked for.

    >>> make_engine("processes:4")
    ProcessEngine(workers=4)
    >>> make_engine("threads")
    Traceback (most recent call last):
    pate.errors.InvalidInput: 'threads' is not an engine; choose one of: serial, processes
    """
    name, colon, option = text.partition(":")
    if name not in _FACTORIES:
        choices = ", ".join(engine_names())
        raise InvalidInput(f"{text!r} is not an engine; choose one of: {choices}")
    return _FACTORIES[name](option if colon else None)
