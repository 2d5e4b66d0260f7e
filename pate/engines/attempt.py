"""One attempt at one task, the same on every engine: order in, report out, both JSON.

An order is what :meth:`pate.engines.task.Task.order` writes. A report is a :class:`Report`.
Serial work goes through the same two encodings as remote work, so that what arrives never
depends on the engine.
"""

from __future__ import annotations

import importlib
import json
import operator
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

from pate.engines.threads import limited_threads
from pate.errors import InvalidInput
from pate.untrusted import contained, locate, shown


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of one attempt."""

    result: dict[str, Any] | None = None
    error: str | None = None
    where: str | None = None
    seconds: float = 0.0
    lost: bool = False  # said by the driver: the worker went without a word

    def encode(self) -> bytes:
        """One line of JSON, without the line's end."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, line: bytes) -> Report:
        """The report that :meth:`encode` wrote."""
        return cls(**json.loads(line))


def attempt(order: bytes, *, born_with: int | None = None) -> bytes:
    """Carries out an order and reports; an exception becomes a report too.

    ``born_with`` is how many threads this process was started with, if it was told. Ctrl-C is not
    the task's failure and passes through.

    >>> Report.decode(attempt(b'{"function": "builtins:dict", "payload": {"n": 1}}')).result
    {'n': 1}
    >>> Report.decode(attempt(b'{"function": "math:sqrt", "payload": {"n": 1}}')).error
    'TypeError'

    Guarantees:
        The report of an exception carries its message only if our code raised it on purpose
        (:func:`pate.untrusted.shown`).
    """
    start = time.perf_counter()
    try:
        task = json.loads(order)
        function = resolve(task["function"])
        start = time.perf_counter()
        threads = limited_threads(task.get("threads", 1), born_with=born_with)
        with threads, contained(silent=False):
            result = function(task["payload"])
        seconds = time.perf_counter() - start
        return _report(result, seconds=seconds, function=task["function"])
    except BaseException as error:
        if type(error) is KeyboardInterrupt:  # not the task's doing
            raise
        seconds = time.perf_counter() - start
        return Report(error=shown(error), where=locate(error), seconds=seconds).encode()


def _report(result: object, *, seconds: float, function: str) -> bytes:
    if not isinstance(result, dict):
        kind = type(result).__name__
        raise InvalidInput(f"{function} returned {kind}; a task's function must return a dict")
    try:
        return Report(result=result, seconds=seconds).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{function} returned a dict that is not plain JSON data ({type(error).__name__}); "
            "write what is big to files, and turn numpy numbers into Python's"
        ) from None


def resolve(function: str) -> Callable[[dict[str, Any]], object]:
    """The function behind ``"package.module:name"``.

    >>> resolve("builtins:dict")
    <class 'dict'>
    """
    module, _, name = function.partition(":")
    try:
        found: Callable[[dict[str, Any]], object] = operator.attrgetter(name)(
            importlib.import_module(module)
        )
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the task function {function!r} cannot be imported: there is no module {error.name!r}"
        ) from error
    except AttributeError as error:
        raise InvalidInput(
            f"the task function {function!r} cannot be resolved; check that {module!r} defines it"
        ) from error
    if not callable(found):
        raise InvalidInput(f"{function!r} is not a function; a task must name something to call")
    return found
