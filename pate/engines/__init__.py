"""Where work runs: tasks are plain data, engines carry them out, outcomes come as they finish.

>>> from pate.engines import Task, make_engine
>>> tasks = [Task(key=f"job-{n}", function="builtins:dict", payload={"n": n}) for n in range(3)]
>>> {outcome.key: outcome.result for outcome in make_engine("serial").run(tasks)}
{'job-0': {'n': 0}, 'job-1': {'n': 1}, 'job-2': {'n': 2}}
"""

from __future__ import annotations

from pate.engines.progress import Progress, Show, terminal_progress
from pate.engines.registry import engine_names, make_engine, register_engine
from pate.engines.task import Engine, Outcome, Task

__all__ = [
    "Engine",
    "Outcome",
    "Progress",
    "Show",
    "Task",
    "engine_names",
    "make_engine",
    "register_engine",
    "terminal_progress",
]
