"""The number of threads a task's libraries use, equal on every engine so that rounding is.

Libraries that are loaded already are set by call; one that a task loads reads the environment.

>>> import os
>>> with limited_threads(1):
...     os.environ["OMP_NUM_THREADS"]
'1'
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",  # joblib's n_jobs=-1
)

_scanned: tuple[int, Any] = (0, None)  # how many modules there were, and the libraries behind them


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def environment(count: int) -> dict[str, str]:
    """Return the variables that libraries read when they are loaded."""
    return dict.fromkeys(VARIABLES, str(count))


@contextmanager
def limited_threads(count: int, *, started_with: int | None = None) -> Iterator[None]:
    """Limit BLAS, OpenMP and torch to ``count`` threads inside the block; restore them after it.

    The limit is at most the number of cores: a library that is loaded inside would not use more
    either. A process that was started in :func:`environment` ``(started_with)`` needs no change for
    that number: finding the libraries takes milliseconds, longer than many tasks.
    """
    count = min(count, usable_cores())
    if count == started_with:
        _set_torch(count)  # an earlier task may have set another number
        yield
        return
    torch_before = _torch_threads()
    pools_before = {pool.filepath: pool.num_threads for pool in _pools()}
    environment_before = {name: os.environ.get(name) for name in VARIABLES}
    os.environ.update(environment(count))
    try:
        for pool in _pools():
            pool.set_num_threads(count)
        _set_torch(count)
        yield
    finally:
        _restore_environment(environment_before)
        default = started_with or _default_threads()  # for what the task was the first to load
        for pool in _pools():
            pool.set_num_threads(pools_before.get(pool.filepath, default))
        _set_torch(torch_before or default)


def _pools() -> list[Any]:
    """Return the loaded BLAS and OpenMP libraries; searched for when there are new modules."""
    global _scanned
    modules = len(sys.modules)
    if _scanned[0] != modules:
        from threadpoolctl import ThreadpoolController

        controller = ThreadpoolController()
        _scanned = len(sys.modules), controller
    found: list[Any] = _scanned[1].lib_controllers
    return found


def _torch_threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _set_torch(count: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def _default_threads() -> int:
    """Return the number a library would choose by itself."""
    variable = os.environ.get("OMP_NUM_THREADS", "")
    return (
        int(variable)
        if variable.isascii() and variable.isdecimal() and int(variable)
        else usable_cores()
    )


def _restore_environment(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
