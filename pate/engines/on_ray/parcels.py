"""Files and folders as bytes that travel, and back again: whole, checked, and never elsewhere.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     place = Path(folder)
...     (place / "a.txt").write_text("hello")
...     unpack(pack(place / "a.txt"), place / "b.txt")
...     (place / "b.txt").read_text()
5
'hello'
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, final

from pate.errors import PateError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ParcelError(PateError):
    """What arrived is not what was sent."""


@final
@dataclass(frozen=True, slots=True)
class Item:
    """One file of a parcel: where it goes below the parcel's place, and what must be in it."""

    name: str  # with forward slashes; of a parcel that is one file: ""
    size: int
    digest: str  # SHA-256


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A file, a folder, or the fact that there is none: so that it can be missed elsewhere too."""

    kind: Literal["file", "folder", "missing"]
    items: tuple[Item, ...] = ()
    folders: tuple[str, ...] = ()
    mode: int = 0o700  # of a folder; its files are as the reader's usual ones
    data: NDArray[Any] | None = field(
        default=None, repr=False
    )  # bytes; the files one after another

    @property
    def size(self) -> int:
        """How many bytes its files have."""
        return sum(item.size for item in self.items)


def pack(path: Path) -> Parcel:
    """What is at a path now."""
    try:
        if path.is_dir():
            return _pack_folder(path)
        if path.is_file():
            return _parcel("file", [("", path)])
    except FileNotFoundError:  # it went away while it was read
        pass
    return Parcel(kind="missing")


def pack_rows(path: Path, start: int, stop: int) -> Parcel:
    """Some rows of an ``.npy`` file, as an ``.npy`` file of their own.

    Guarantees:
        No other row is in the parcel. A file that cannot be read becomes an empty one, at which
        whoever opens it fails as here.
    """
    import numpy as np

    if not path.exists():
        return Parcel(kind="missing")
    written = io.BytesIO()
    with contextlib.suppress(OSError, ValueError, EOFError):
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        np.save(written, mapped[start:stop], allow_pickle=False)
    content = np.frombuffer(written.getbuffer(), dtype=np.uint8)
    item = Item("", len(content), _digest(content))
    return Parcel(kind="file", items=(item,), data=content)


def unpack(parcel: Parcel, place: Path) -> None:
    """Puts the content at ``place`` in one step, once all of it is checked.

    A file replaces what was there; of a folder whoever came first stays, as in the store.

    Guarantees:
        Nothing is written but at ``place`` and, until it is whole, at a name with a dot beside it.
    """
    if parcel.kind == "missing":
        return
    if parcel.kind not in ("file", "folder"):
        raise ParcelError("a worker sent something of a kind that there is not")
    contents = list(_checked(parcel))
    working = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    if os.path.lexists(working):  # so that what is removed below was made here
        raise ParcelError(f"there is something at {working}; remove it and run again")
    try:
        if parcel.kind == "file":
            ((_, content),) = contents
            working.write_bytes(content)
            working.replace(place)
            return
        working.mkdir(mode=0o700)
        for name in parcel.folders:
            working.joinpath(*_parts(name)).mkdir(parents=True, exist_ok=True)
        for name, content in contents:
            file = working.joinpath(*_parts(name))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        working.chmod(parcel.mode & 0o700)  # what a worker says cannot open it to others
        try:
            working.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        if working.is_dir():
            shutil.rmtree(working, ignore_errors=True)
        working.unlink(missing_ok=True)


def below(root: Path, name: str, *, names: Sequence[str]) -> Path:
    """The place of one of these names, or of the root itself where there are none.

    >>> below(Path("/store"), "private/teacher/abc", names=["private/teacher/abc"]).as_posix()
    '/store/private/teacher/abc'
    >>> below(Path("/store"), "private/teacher/xyz", names=["private/teacher/abc"])
    Traceback (most recent call last):
    pate.engines.on_ray.parcels.ParcelError: a worker sent something that nobody asked for
    """
    if name not in (names or [""]):
        raise ParcelError("a worker sent something that nobody asked for")
    return root.joinpath(*_parts(name)) if name else root


def _pack_folder(path: Path) -> Parcel:
    files: list[tuple[str, Path]] = []
    folders: list[str] = []
    for inside in sorted(path.rglob("*")):
        name = inside.relative_to(path).as_posix()
        if inside.is_dir():
            folders.append(name)
        elif inside.is_file():
            files.append((name, inside))
    mode = path.stat().st_mode & 0o777
    return _parcel("folder", files, folders=tuple(folders), mode=mode)


def _parcel(
    kind: Literal["file", "folder"], files: Iterable[tuple[str, Path]], **about: Any
) -> Parcel:
    import numpy as np

    items, contents = [], []
    for name, file in files:
        content = np.frombuffer(file.read_bytes(), dtype=np.uint8)
        items.append(Item(name, len(content), _digest(content)))
        contents.append(content)
    data = contents[0] if len(contents) == 1 else np.concatenate([np.empty(0, np.uint8), *contents])
    return Parcel(kind=kind, items=tuple(items), data=data, **about)


def _checked(parcel: Parcel) -> Iterator[tuple[str, memoryview]]:
    data = memoryview(b"") if parcel.data is None else parcel.data.data.cast("B")
    lone = parcel.kind == "file"
    if sum(item.size for item in parcel.items) != len(data) or (lone and len(parcel.items) != 1):
        raise ParcelError("a file arrived shorter or longer than it was sent")
    at = 0
    for item in parcel.items:
        content = data[at : at + item.size]
        at += item.size
        if item.size < 0 or _digest(content) != item.digest:
            raise ParcelError("a file arrived other than it was sent")
        if not lone:
            _parts(item.name)
        yield item.name, content


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _parts(name: str) -> tuple[str, ...]:
    """The steps of a way down; refuses one that leads up, out or nowhere."""
    path = PurePosixPath(name)
    unsafe = "\0" in name or "\\" in name or os.path.splitdrive(name)[0]
    if path.is_absolute() or ".." in path.parts or not path.parts or unsafe:
        raise ParcelError("a worker sent something that leads out of its place")
    return path.parts
