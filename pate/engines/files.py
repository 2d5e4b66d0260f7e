"""Files of a task: references in its payload, so that an engine can transfer them with the task.

A worker on this machine opens them where they are. A worker on another machine gets a copy of the
files the task reads, in a folder of the task's own, and sends back the files it makes; its payload
then names its own copies. The task's function calls :func:`path_of` and :func:`load_rows` in both
cases.

>>> reads("/data/plan.json")
{'$reads': '/data/plan.json'}
>>> path_of(makes("/run/part.npy")).name
'part.npy'
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate._files import remove_abandoned

if TYPE_CHECKING:
    from numpy.typing import NDArray

Reference = dict[str, Any]  # plain JSON, as all of a payload

READS, ROWS, CODE, MAKES = "$reads", "$rows", "$code", "$makes"
_KINDS = (READS, ROWS, CODE, MAKES)

FOLDER_VARIABLE = "PATE_TASK_FOLDER"
TASK_PREFIX, SESSION_PREFIX = "pate-task-", "pate-ray-"
_LONGEST_TEMPORARY = 40  # characters: Ray's sockets lie below it, and their paths have a limit


def reads(path: str | os.PathLike[str]) -> Reference:
    """Return a reference to a file or folder that the task reads."""
    return {READS: os.fspath(path)}


def rows(path: str | os.PathLike[str], start: int, stop: int) -> Reference:
    """Return a reference to rows of an ``.npy`` file that the task reads.

    Guarantees:
        No other row leaves the driver's machine for this task: a teacher's worker sees its shard.
    """
    return {ROWS: os.fspath(path), "start": int(start), "stop": int(stop)}


def code(path: str | os.PathLike[str]) -> Reference:
    """Return a reference to a module, or a folder of modules, that the task imports from."""
    return {CODE: os.fspath(path)}


def modules(path: Path) -> dict[str, Path]:
    """Return the files of a :func:`code` reference: the modules of a folder and of its packages.

    Guarantees:
        Nothing but ``.py`` files: other files beside them may be private.
    """
    if not path.is_dir():
        return {path.name: path}
    return {file.relative_to(path).as_posix(): file for file in _modules_in(path)}


def _modules_in(folder: Path) -> list[Path]:
    packages = [inside.parent for inside in folder.glob("*/__init__.py")]
    found = [file for file in folder.glob("*.py") if file.is_file()]
    return sorted(found + [file for package in packages for file in _modules_in(package)])


def makes(path: str | os.PathLike[str], *, names: Iterable[str] = ()) -> Reference:
    """Return a reference to a file or folder that the task makes.

    With ``names`` the task makes entries of these names in the folder ``path``. Each is written
    under a name with a leading dot and renamed when it is complete. Whatever else a worker on
    another machine makes is not transferred.

    >>> makes("/run", names=["private/teacher/3f"])
    {'$makes': '/run', 'names': ['private/teacher/3f']}
    """
    return {MAKES: os.fspath(path), "names": list(names)}


def path_of(reference: Mapping[str, Any]) -> Path:
    """Return the path of the file or folder on this machine."""
    return Path(reference[kind_of(reference)])


def kind_of(reference: Mapping[str, Any]) -> str:
    """Return which of the four kinds a reference is."""
    (kind,) = (kind for kind in _KINDS if kind in reference)
    return kind


def load_rows(reference: Mapping[str, Any]) -> NDArray[Any]:
    """Load the rows into memory."""
    import numpy as np

    mapped = np.load(path_of(reference), mmap_mode="r", allow_pickle=False)
    return np.array(mapped[reference["start"] : reference["stop"]])


def with_files(payload: Any, replace: Callable[[Reference], Reference]) -> Any:
    """Return the payload with every reference replaced, in the order of the payload.

    >>> with_files({"n": [1, reads("a")]}, lambda file: reads("b"))
    {'n': [1, {'$reads': 'b'}]}
    """
    if isinstance(payload, Mapping):
        if any(kind in payload for kind in _KINDS):
            return replace(dict(payload))
        return {key: with_files(value, replace) for key, value in payload.items()}
    if isinstance(payload, (list, tuple)):
        return [with_files(value, replace) for value in payload]
    return payload


def task_home() -> Path:
    """Return the folder in which tasks have their folders: ``PATE_TASK_FOLDER``, or a default."""
    return Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()).absolute()


def session_home() -> Path:
    """Return the folder in which a local Ray has its folder."""
    default = Path(tempfile.gettempdir()).absolute()
    return default if len(str(default)) <= _LONGEST_TEMPORARY else Path("/tmp")


def sweep(place: Path | None = None, *, prefix: str = TASK_PREFIX) -> int:
    """Remove the folders that killed processes left on this machine; return how many are in use."""
    pattern = prefix + "[a-z0-9_]" * 8  # as tempfile ends a name
    place = place or task_home()
    remove_abandoned(place, drafts=pattern)
    return len(list(place.glob(pattern)))


def sweep_leftovers() -> None:
    """Remove the folders of local Rays and of tasks whose processes were killed on this machine."""
    sweep(session_home(), prefix=SESSION_PREFIX)
    sweep()
