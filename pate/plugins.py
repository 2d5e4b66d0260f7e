"""Objects by name, as recipes give them: ``"module:attr"``, or an entry point.

Names come from a recipe or the command line, never from a stored file: importing runs code.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.metadata
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pate.errors import IN_EXTRA, InvalidInput, MissingPackage
from pate.untrusted import contained, debugging, locate, propagates
from pate.vision import mend_torchvision

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_importing = threading.RLock()  # sys.path belongs to the whole process
_LONGEST = 500  # characters of an import name: errors quote it
_plugins: dict[str, Path] = {}  # top-level modules that came from a plug-in folder, and which


def resolve(entry: str, *, path: Path | None = None, group: str | None = None) -> Any:
    """Return the object ``"module:attr"`` or, without a colon, an entry point of ``group``.

    ``path`` is a folder or a ``.py`` file that comes first on ``sys.path`` for this import only. A
    plug-in is imported once per folder, so edits take effect in the next process.

    >>> resolve("math:pi")
    3.141592653589793
    >>> resolve("pathlib:Path.home").__name__
    'home'
    """
    if len(entry) > _LONGEST:
        raise InvalidInput(f"an import name has {len(entry)} characters; it takes {_LONGEST}")
    module_name, colon, attribute = entry.partition(":")
    if not colon:
        return _from_entry_point(entry, group=group)
    if not (_DOTTED.fullmatch(module_name) and _DOTTED.fullmatch(attribute)):
        raise InvalidInput(f"{entry!r} is not an import name; write it as 'module:attr'")
    module = _import(module_name, path=path)
    found: Any = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            owner = f"module {module_name!r}" if found is module else f"{found!r} in {entry!r}"
            raise InvalidInput(f"{owner} has no {name!r}{_nearest(name, dir(found))}") from None
    return found


@functools.cache
def entry_points(group: str) -> tuple[str, ...]:
    """Return the names that installed packages offer in an entry-point group, sorted."""
    return tuple(sorted({point.name for point in importlib.metadata.entry_points(group=group)}))


def _from_entry_point(name: str, *, group: str | None) -> Any:
    known = entry_points(group) if group is not None else ()
    if name not in known:
        hint = _nearest(name, known)
        if "." in name:
            head, _, tail = name.rpartition(".")
            hint = f"; did you mean '{head}:{tail}'?"
        offered = f"no installed package offers it in {group!r}, and " if group else ""
        raise InvalidInput(f"{name!r} is not known: {offered}an import name has a colon{hint}")
    (point, *_) = importlib.metadata.entry_points(group=str(group), name=name)
    return resolve(point.value.split("[")[0].replace(" ", ""))


def _import(name: str, *, path: Path | None) -> ModuleType:
    known = _known(name, path)
    if known is not None:
        return known
    with _importing, _first_on_path(name, path):
        try:
            with contained():
                mend_torchvision()
                return importlib.import_module(name)
        except BaseException as error:
            if propagates(error):
                raise
            absent = error.name if isinstance(error, ModuleNotFoundError) else None
            reason = f"module {name!r} cannot be imported: {_reason(error)}"
        if absent is not None and f"{name}.".startswith(f"{absent}."):
            reason = (
                f"there is no module {absent!r}; check the name, or give its folder with "
                "--plugin-path"
                if path is None
                else f"there is no module {absent!r} in {path} or among installed packages; check "
                "the name"
            )
            if absent in IN_EXTRA:
                reason = str(MissingPackage(absent))
        raise InvalidInput(reason)


def _known(name: str, path: Path | None) -> ModuleType | None:
    """Return a plug-in already imported from this path: thousands of teachers ask for it."""
    home = _plugins.get(name.partition(".")[0])
    if path is None or home is None:
        return None
    folder = path.parent if path.suffix == ".py" and path.is_file() else path
    return sys.modules.get(name) if home in (folder, folder.resolve()) else None


@contextlib.contextmanager
def _first_on_path(name: str, path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    if not path.exists():
        raise InvalidInput(f"there is no plug-in path {path}; give a folder or a .py file")
    if path.is_file() and path.suffix != ".py":
        raise InvalidInput(f"the plug-in path {path} is a file, and not a .py file")
    folder = (path if path.is_dir() else path.parent).resolve()
    _make_way(name.partition(".")[0], folder)
    before = set(sys.modules)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for new in {loaded.partition(".")[0] for loaded in set(sys.modules) - before}:
            if new in sys.modules and _provides(folder, new):
                _plugins.setdefault(new, folder)


def _make_way(name: str, folder: Path) -> None:
    """Unload plug-ins of another folder that have the name of one in this folder."""
    for other, home in list(_plugins.items()):
        if home != folder and _provides(folder, other):
            for loaded in [m for m in sys.modules if m.partition(".")[0] == other]:
                del sys.modules[loaded]
            del _plugins[other]
    loaded_from = getattr(sys.modules.get(name), "__file__", None)
    taken = name in sys.modules and name not in _plugins
    if taken and _provides(folder, name) and not _inside(loaded_from, folder):
        raise InvalidInput(
            f"{name!r} in {folder} has the name of a module that is already loaded; rename the file"
        )


def _provides(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def _inside(file: str | None, folder: Path) -> bool:
    return file is not None and Path(file).resolve().is_relative_to(folder)


def _nearest(name: str, names: Any) -> str:
    close = difflib.get_close_matches(name, [n for n in names if not n.startswith("_")], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _reason(error: BaseException) -> str:
    """Return the reason of a failed import, on one line.

    Guarantees:
        Only errors about code are quoted: a module that reads records when it is imported may quote
        them in any other.
    """
    kind = type(error).__name__
    lines = str(error).strip().splitlines()
    if lines and (debugging() or isinstance(error, (ImportError, SyntaxError, NameError))):
        return f"{kind}: {lines[0]}"
    place = locate(error)
    return f"{kind} in {place}" if place else kind


def object_state(thing: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of an object, and its numbers and texts: what can be saved without pickle.

    An object that has other attributes, or keeps them in slots, is refused.
    """
    import numpy as np

    name = type(thing).__name__
    advice = "give the class methods save(folder) and load(folder)"
    if not hasattr(thing, "__dict__"):
        raise InvalidInput(f"{name} keeps its attributes in slots, which cannot be saved; {advice}")
    arrays: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for attribute, value in vars(thing).items():
        if value is None or type(value) in (bool, int, float, str):
            values[attribute] = value
        elif isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
            arrays[attribute] = np.asarray(value)
        else:
            raise InvalidInput(
                f"{name}.{attribute} is a {type(value).__name__}, and only arrays, numbers and "
                f"text can be saved; {advice}"
            )
    return arrays, values
