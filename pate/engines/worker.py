"""The worker process: reads a task, runs it, reports, until its driver closes the socket.

:func:`attempt` is the same on every engine: a task comes in as JSON and a report goes out as JSON,
in the serial engine too, so that what arrives never depends on the engine.

Guarantees:
    * A worker does not outlive its driver. When the socket closes it stops reading; when the
      driver dies in the middle of a task, a watching thread notices that the worker has a new
      parent, removes the task's folder if it has one, and kills the worker with everything the
      task started.
    * A worker that crashes leaves no core dump: records would be in it.
"""

from __future__ import annotations

import importlib
import json
import operator
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from pate.engines.task import Report
from pate.engines.threads import limited_threads
from pate.errors import InvalidInput
from pate.untrusted import contained, describe_error, forbid_core_dumps, locate

READY = b"ready\n"  # the first line a worker writes
THREADS = 1  # of a worker's libraries from the start: there are as many workers as cores
_WATCH_SECONDS = 0.2
_REMOVALS = 5  # of a folder in which the task may still be writing

_folder: str | None = None  # of the current task, if it has copies of its files in one


def attempt(request: bytes, *, started_with: int | None = None) -> bytes:
    """Run an encoded task once and return an encoded report; an exception becomes a report too.

    ``started_with`` is the number of threads in this process's environment, if known. Ctrl-C is not
    the task's failure and passes through.

    >>> Report.decode(attempt(b'{"function": "builtins:dict", "payload": {"n": 1}}')).result
    {'n': 1}
    >>> Report.decode(attempt(b'{"function": "math:sqrt", "payload": {"n": 1}}')).error
    'TypeError'

    Guarantees:
        The report of an exception carries its message only if our code raised it on purpose
        (:func:`pate.untrusted.describe_error`).
    """
    start = time.perf_counter()
    try:
        task = json.loads(request)
        function = resolve(task["function"])
        start = time.perf_counter()
        threads = limited_threads(task.get("threads", 1), started_with=started_with)
        with threads, contained(silent=False):
            result = function(task["payload"])
        seconds = time.perf_counter() - start
        return _report(result, seconds=seconds, function=task["function"])
    except BaseException as error:
        if type(error) is KeyboardInterrupt:  # not the task's doing
            raise
        seconds = time.perf_counter() - start
        return Report(error=describe_error(error), where=locate(error), seconds=seconds).encode()


def _report(result: object, *, seconds: float, function: str) -> bytes:
    if not isinstance(result, dict):
        kind = type(result).__name__
        raise InvalidInput(f"{function} returned {kind}; a task's function must return a dict")
    try:
        return Report(result=result, seconds=seconds).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{function} returned a dict that is not plain JSON data ({type(error).__name__}); "
            "write large values to files, and convert numpy numbers to Python's"
        ) from None


def resolve(function: str) -> Callable[[dict[str, Any]], object]:
    """Return the function behind ``"package.module:name"``.

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


def main(descriptor: int) -> None:
    """Serve the driver at the other end of the socket ``descriptor``."""
    global _folder
    forbid_core_dumps()
    os.set_inheritable(descriptor, False)  # a process that a task starts must not hold it open
    driver = os.getppid()
    threading.Thread(target=_die_with, args=(driver,), daemon=True).start()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as requests:
        try:
            connection.sendall(READY)
            for request in requests:
                _folder = json.loads(request).get("folder")
                connection.sendall(attempt(request, started_with=THREADS) + b"\n")
        except OSError:  # the driver is gone
            return


def _die_with(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(_WATCH_SECONDS)
    for _ in range(_REMOVALS if _folder else 0):
        shutil.rmtree(str(_folder), ignore_errors=True)
    if os.getpgrp() == os.getpid():  # as the driver arranged; never kill another group
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
