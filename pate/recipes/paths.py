"""Paths in a recipe: relative to the recipe file, whatever the current folder is."""

from __future__ import annotations

import filecmp
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from pate.errors import InvalidInput, MissingFile


class Located(BaseModel):
    """A section that knows its recipe file, in whose folder its relative paths start.

    The file is no key: it enters no fingerprint and no stored copy of a recipe, so that a project
    can be moved.
    """

    _file: Path | None = PrivateAttr(default=None)

    @property
    def file(self) -> Path | None:
        """The recipe file; None for settings that come from none."""
        return self._file

    @property
    def folder(self) -> Path | None:
        """The folder of the recipe file."""
        return None if self._file is None else self._file.parent


class PluginsSpec(BaseModel):
    """``[plugins]``: modules of your own, for teachers, students, encoders and data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = Field(
        default=None,
        description="Folder with your own modules, or one .py file, relative to the recipe; "
        "`--plugin-path` comes first.",
    )

    def chosen(self, option: Path | None) -> Path | None:
        """Return the plug-in path: that of the option, or else the recipe's; it must exist."""
        path, name = option, "--plugin-path"
        if path is None and self.path is not None:
            path, name = Path(self.path), "plugins.path"
        if path is not None and not path.exists():
            raise InvalidInput(f"there is nothing at {name} {path}")
        return None if path is None else path.absolute()


def set_file(section: Any, file: Path | None) -> None:
    """Let the sections of a recipe know its file."""
    if isinstance(section, Located):
        section._file = file
    if isinstance(section, BaseModel):
        section = [getattr(section, name) for name in type(section).model_fields]
    if isinstance(section, list):
        for each in section:
            set_file(each, file)


def find_path(name: str, *, folder: Path | None, elsewhere: Iterable[Path] = ()) -> Path:
    """Return the file or folder that a recipe names: beside the recipe, or else ``elsewhere``.

    Earlier versions looked in the current folder first: it counts as a place elsewhere. A name for
    which there are two different files is refused; exact copies of a file are not different.

    >>> find_path("nowhere.csv", folder=Path("/project"))
    Traceback (most recent call last):
    pate.errors.MissingFile: there is no file at /project/nowhere.csv
    """
    given = Path(name).expanduser()
    if given.is_absolute():
        places = [given]
    else:
        places = [place / given for place in (folder or Path(), Path(), *elsewhere)]
    found: list[Path] = []
    for place in filter(Path.exists, places):
        if not any(_same(place, other) for other in found):
            found.append(place)
    if not found:
        raise MissingFile(f"there is no file at {_shown(places[0])}")
    if len(found) > 1:
        first, second = (place.absolute() for place in found[:2])
        raise InvalidInput(
            f"{name} may be {first} or {second}: paths are relative to the recipe; rename one of "
            "them, or give the whole path"
        )
    return _shown(found[0])


def _same(one: Path, other: Path) -> bool:
    files = one.is_file() and other.is_file()
    return one.samefile(other) or (files and filecmp.cmp(one, other, shallow=False))


def _shown(path: Path) -> Path:
    """Return a path as messages show it: relative if it is in the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
