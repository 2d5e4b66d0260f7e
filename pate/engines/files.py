"""The files of a task, named in its payload: so that an engine can bring them along.

A worker on this machine opens them where they are. A worker elsewhere gets a copy of what it reads
and sends back what it makes; the payload it sees then names its own copies. Either way the task's
function asks :func:`path_of` and :func:`load_rows` and cannot tell the difference.

>>> reads("/data/plan.json")
{'$reads': '/data/plan.json'}
>>> path_of(makes("/run/part.npy")).name
'part.npy'
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

Reference = dict[str, Any]  # plain JSON, as all of a payload

READS, ROWS, CODE, MAKES = "$reads", "$rows", "$code", "$makes"
KINDS = (READS, ROWS, CODE, MAKES)


def reads(path: str | os.PathLike[str]) -> Reference:
    """A file or folder that the task reads, all of it."""
    return {READS: os.fspath(path)}


def rows(path: str | os.PathLike[str], start: int, stop: int) -> Reference:
    """Rows of an ``.npy`` file that the task reads.

    Guarantees:
        No other row leaves the driver's machine for this task: a teacher's worker sees its shard.
    """
    return {ROWS: os.fspath(path), "start": int(start), "stop": int(stop)}


def code(path: str | os.PathLike[str]) -> Reference:
    """A module, or a folder of modules and packages, that the task imports from."""
    return {CODE: os.fspath(path)}


def modules(path: Path) -> dict[str, Path]:
    """What :func:`code` stands for: a file, or the modules of a folder and of the packages in it.

    Guarantees:
        Nothing but ``.py`` files: what else lies beside them may be private.
    """
    if not path.is_dir():
        return {path.name: path}
    return {file.relative_to(path).as_posix(): file for file in _modules_in(path)}


def _modules_in(folder: Path) -> list[Path]:
    packages = [inside.parent for inside in folder.glob("*/__init__.py")]
    found = [file for file in folder.glob("*.py") if file.is_file()]
    return sorted(found + [file for package in packages for file in _modules_in(package)])


def makes(path: str | os.PathLike[str], *, names: Iterable[str] = ()) -> Reference:
    """A file or folder that the task makes; or those of these names in a folder, and no other.

    Each is written under a name with a leading dot and renamed when it is whole. What a worker
    elsewhere makes besides stays there.

    >>> makes("/run", names=["private/teacher/3f"])
    {'$makes': '/run', 'names': ['private/teacher/3f']}
    """
    return {MAKES: os.fspath(path), "names": list(names)}


def path_of(reference: Mapping[str, Any]) -> Path:
    """Where the file or folder is, for whoever asks."""
    (path,) = (reference[kind] for kind in KINDS if kind in reference)
    return Path(path)


def load_rows(reference: Mapping[str, Any]) -> NDArray[Any]:
    """The rows, in memory."""
    import numpy as np

    mapped = np.load(path_of(reference), mmap_mode="r", allow_pickle=False)
    return np.array(mapped[reference["start"] : reference["stop"]])


def with_files(payload: Any, replace: Callable[[Reference], Reference]) -> Any:
    """The payload with every reference in it replaced; the order is that of the payload.

    >>> with_files({"n": [1, reads("a")]}, lambda file: reads("b"))
    {'n': [1, {'$reads': 'b'}]}
    """
    if isinstance(payload, Mapping):
        if any(kind in payload for kind in KINDS):
            return replace(dict(payload))
        return {key: with_files(value, replace) for key, value in payload.items()}
    if isinstance(payload, (list, tuple)):
        return [with_files(value, replace) for value in payload]
    return payload
