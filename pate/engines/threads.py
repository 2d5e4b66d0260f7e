"""How many threads a task's libraries use: as many on every engine, so rounding is the same.

A library that is loaded already is told; one that a task loads reads the environment.

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
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def environment(count: int) -> dict[str, str]:
    """What libraries read when they are loaded."""
    return dict.fromkeys(VARIABLES, str(count))


@contextmanager
def limited_threads(count: int, *, born_with: int | None = None) -> Iterator[None]:
    """Inside, BLAS, OpenMP and torch use ``count`` threads; outside, what they used before.

    There are no more than cores: a library that is loaded inside would not take more either. A
    process that was started in :func:`environment` ``(born_with)`` has nothing to do for as many:
    looking for libraries takes milliseconds, longer than many a task.
    """
    count = min(count, usable_cores())
    if count == born_with:
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
        usual = born_with or _usual_threads()  # for what the task was the first to load
        for pool in _pools():
            pool.set_num_threads(pools_before.get(pool.filepath, usual))
        _set_torch(torch_before or usual)


def _pools() -> list[Any]:
    """The BLAS and OpenMP libraries that are loaded; looked for when there are new modules."""
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


def _usual_threads() -> int:
    """What a library would have chosen by itself."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isascii() and told.isdecimal() and int(told) else usable_cores()


def _restore_environment(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
