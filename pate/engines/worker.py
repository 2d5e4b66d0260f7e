"""Running a task: in this process by the serial engine, or in a worker process.

:func:`attempt` is the same on every engine: a task comes in as JSON and a report goes out as JSON,
so that what arrives never depends on the engine; and its libraries use the same number of threads,
so that rounding does not either.

Guarantees:
    * A worker does not outlive its driver. When the socket closes it stops reading; when the
      driver dies in the middle of a task, a watching thread notices that the worker has a new
      parent, removes the task's folder if it has one, and kills the worker with everything the
      task started.
    * A worker that crashes leaves no core dump: records would be in it.
"""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, final

from pate.engines.task import Outcome, Pending, Report, RetryPolicy, Task
from pate.errors import InvalidInput
from pate.untrusted import contained, describe_error, forbid_core_dumps, locate

READY = b"ready"  # the first line a worker writes
BEGUN = b"begun"  # before each report: the modules of the task are loaded
THREADS = 1  # of a worker's libraries from the start: there are as many workers as cores
_WATCH_SECONDS = 0.2
_REMOVALS = 5  # of a folder in which the task may still be writing

_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",  # joblib's n_jobs=-1
)

_folder: str | None = None  # of the current task, if it has copies of its files in one
_scanned: tuple[int, Any] = (0, None)  # how many modules there were, and the libraries behind them


@final
@dataclass(frozen=True, slots=True)
class SerialEngine:
    """Run tasks in order, in this process: the engine to debug with.

    A task's prints and warnings appear on the screen, and a debugger works. A task cannot be
    stopped from outside, so a timeout is refused, and a task that kills its process ends the run.
    """

    name: ClassVar[str] = "serial"
    slots: ClassVar[int] = 1
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def run(
        self,
        tasks: Iterable[Task],
        *,
        retries: int = 0,
        rescues: int = 0,
        timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Yield outcomes in the order of the tasks; see :class:`pate.engines.task.Engine`."""
        policy = RetryPolicy(retries=retries, rescues=rescues, timeout=timeout)
        if timeout is not None:
            raise InvalidInput(
                f"timeout is {timeout:g} seconds, but the serial engine cannot stop a task; "
                "use the engine 'processes', or set no timeout"
            )
        return (_outcome(Pending(task), policy) for task in tasks)


def _outcome(pending: Pending, policy: RetryPolicy) -> Outcome:
    while True:
        pending.attempts += 1
        report = Report.decode(attempt(pending.task.encode()))
        if not policy.tries_again(pending, report):
            return pending.outcome(report)


def attempt(
    request: bytes,
    *,
    started_with: int | None = None,
    begin: Callable[[], object] = lambda: None,
) -> bytes:
    """Run an encoded task once and return an encoded report; an exception becomes a report too.

    ``started_with`` is the number of threads in this process's environment, if known; ``begin`` is
    called when the modules of the task are loaded. Ctrl-C passes through.

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
        function = _resolve(task["function"])
        begin()
        start = time.perf_counter()  # without the time to load modules
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


def _resolve(function: str) -> Callable[[dict[str, Any]], object]:
    try:
        found = pkgutil.resolve_name(function)
    except ModuleNotFoundError as error:
        why = f"there is no module {error.name!r}"
        raise InvalidInput(f"the task function {function!r} cannot be imported: {why}") from error
    except AttributeError as error:
        why = f"check that {function.partition(':')[0]!r} defines it"
        raise InvalidInput(f"the task function {function!r} cannot be resolved; {why}") from error
    if not callable(found):
        raise InvalidInput(f"{function!r} is not a function; a task must name something to call")
    return found  # type: ignore[no-any-return]


# ------------------------------------------------------------------ threads of libraries


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_variables(count: int) -> dict[str, str]:
    """Return the variables that libraries read when they are loaded."""
    return dict.fromkeys(_VARIABLES, str(count))


@contextmanager
def limited_threads(count: int, *, started_with: int | None = None) -> Iterator[None]:
    """Limit BLAS, OpenMP and torch to ``count`` threads inside the block; restore them after it.

    The limit is at most the number of cores: a library that is loaded inside would not use more
    either. A process that was started with the variables for that number needs no change: finding
    the libraries takes milliseconds, longer than many tasks.
    """
    count = min(count, usable_cores())
    if count == started_with:
        _set_torch(count)  # an earlier task may have set another number
        yield
        return
    torch = sys.modules.get("torch")
    torch_before = None if torch is None else int(torch.get_num_threads())
    pools_before = {pool.filepath: pool.num_threads for pool in _pools()}
    variables_before = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    os.environ.update(thread_variables(count))
    try:
        for pool in _pools():
            pool.set_num_threads(count)
        _set_torch(count)
        yield
    finally:
        for name in _VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(variables_before)
        default = started_with or _default_threads()  # for what the task was the first to load
        for pool in _pools():
            pool.set_num_threads(pools_before.get(pool.filepath, default))
        _set_torch(torch_before or default)


def _pools() -> list[Any]:
    """Return the loaded BLAS and OpenMP libraries; searched for when there are new modules."""
    global _scanned
    if _scanned[0] != len(sys.modules):
        from threadpoolctl import ThreadpoolController

        controller = ThreadpoolController()
        _scanned = len(sys.modules), controller
    found: list[Any] = _scanned[1].lib_controllers
    return found


def _set_torch(count: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def _default_threads() -> int:
    """Return the number a library would choose by itself."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    given = int(variable) if variable.isascii() and variable.isdecimal() else 0
    return given or usable_cores()


# ------------------------------------------------------------------ the worker process


def main(descriptor: int) -> None:
    """Serve the driver at the other end of the socket ``descriptor``."""
    global _folder
    forbid_core_dumps()
    os.set_inheritable(descriptor, False)  # a process that a task starts must not hold it open
    driver = os.getppid()
    threading.Thread(target=_die_with, args=(driver,), daemon=True).start()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as requests:
        try:
            connection.sendall(READY + b"\n")
            for request in requests:
                _folder = json.loads(request).get("folder")
                report = attempt(
                    request, started_with=THREADS, begin=lambda: connection.sendall(BEGUN + b"\n")
                )
                connection.sendall(report + b"\n")
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
