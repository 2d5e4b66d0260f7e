"""Engines run tasks: in this process, in worker processes, on GPUs or on a Ray cluster.

Tasks are plain data; outcomes come as they finish.

>>> from pate.engines import Task, make_engine
>>> tasks = [Task(key=f"job-{n}", function="builtins:dict", payload={"n": n}) for n in range(3)]
>>> {outcome.key: outcome.result for outcome in make_engine("serial").run(tasks)}
{'job-0': {'n': 0}, 'job-1': {'n': 1}, 'job-2': {'n': 2}}
"""

from __future__ import annotations

from collections.abc import Callable

from pate.engines.progress import Progress, Show, terminal_progress
from pate.engines.task import Engine, Outcome, Task
from pate.errors import InvalidInput

__all__ = [
    "Engine",
    "EngineFactory",
    "Outcome",
    "Progress",
    "Show",
    "Task",
    "engine_names",
    "make_engine",
    "register_engine",
    "terminal_progress",
]

# Receives the text after the colon of "name:option", or None without a colon. The "@" of
# "name@option" is part of the option.
EngineFactory = Callable[[str | None], Engine]


def _serial(option: str | None) -> Engine:
    from pate.engines.worker import SerialEngine

    if option is not None:
        raise InvalidInput(f"{option!r} after 'serial' means nothing; 'serial' takes no number")
    return SerialEngine()


def _processes(option: str | None) -> Engine:
    from pate.engines.worker_pool import ProcessEngine

    if option is None:
        return ProcessEngine()
    if not (option.isascii() and option.isdecimal() and int(option) > 0):
        raise InvalidInput(
            f"{option!r} is not a number of workers; "
            "after a colon comes a whole number, such as 'processes:4'"
        )
    return ProcessEngine(workers=int(option))


def _gpus(option: str | None) -> Engine:
    from pate.engines.worker_pool import GpuEngine

    return GpuEngine.from_option(option)


def _ray(option: str | None) -> Engine:
    from pate.engines.ray import RayEngine

    if option is not None and (not option or option.startswith("@")):
        raise InvalidInput(
            f"{option!r} is not a cluster's address; "
            "write 'ray' for this machine, 'ray:auto', or 'ray:HOST:PORT'"
        )
    return RayEngine(address=option)


_FACTORIES: dict[str, EngineFactory] = {
    "serial": _serial,
    "processes": _processes,
    "gpus": _gpus,
    "ray": _ray,
}
_EXAMPLES = {"processes": "processes:4", "gpus": "gpus:0,1", "ray": "ray:auto"}


def engine_names() -> tuple[str, ...]:
    """Return the names of all engines."""
    return tuple(_FACTORIES)


def register_engine(name: str, factory: EngineFactory) -> None:
    """Add an engine.

    Parameters
    ----------
    name
        A word without ``:`` and ``@``, as written on the command line.
    factory
        Called with the text after the colon, or None, and returns the engine.

    Raises
    ------
    InvalidInput
        If the name is taken or cannot be written on the command line.
    """
    if name in _FACTORIES:
        raise InvalidInput(f"there is an engine named {name!r} already; choose another name")
    if not name or ":" in name or "@" in name:
        raise InvalidInput(f"{name!r} cannot name an engine; use a word without ':' and '@'")
    _FACTORIES[name] = factory


def make_engine(text: str) -> Engine:
    """Return the engine that a user asked for: a name, and an option after a colon.

    >>> make_engine("processes:4")
    ProcessEngine(workers=4)
    >>> make_engine("gpus:cpu,cpu")
    GpuEngine(devices=('cpu', 'cpu'))
    """
    name, colon, option = text.partition(":")
    if "@" in name:
        name, _, rest = text.partition("@")
        colon, option = "@", f"@{rest}"
    if name not in _FACTORIES:
        raise InvalidInput(f"{text!r} is not an engine; choose one of: {_choices()}")
    try:
        return _FACTORIES[name](option if colon else None)
    except ValueError as error:  # a rule of ours, or a number of thousands of digits
        raise InvalidInput(f"engine {text[:60]!r}: {error}") from None


def _choices() -> str:
    return ", ".join(
        f"{name} ({_EXAMPLES[name]})" if name in _EXAMPLES else name for name in engine_names()
    )
