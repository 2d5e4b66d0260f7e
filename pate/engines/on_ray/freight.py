"""What a task takes along to a cluster: its files, its modules, and where to look for more."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from pate.engines.files import CODE, MAKES, READS, Reference, modules, path_of, with_files
from pate.engines.on_ray.parcels import Parcel, pack, pack_rows
from pate.engines.on_ray.sealing import new_key, seal
from pate.engines.on_ray.steward import Cargo, Shared, Shipped
from pate.engines.task import Task
from pate.errors import PateError

WORTH_SHARING = 1 << 20  # bytes; files that are smaller travel with each task
KEPT = 4  # how many large things are kept for the next task


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One task's files, packed."""

    cargo: Cargo
    shared: tuple[Any, ...]  # references to parcels in Ray's memory
    runtime_env: Mapping[str, Any] | None
    size: int  # bytes that are on their way for this task alone


class Freight:
    """Packs the files of tasks; large files go into Ray's memory once a run, sealed.

    Folders travel with their task, however large: few tasks read the same, and so they count for
    what is on its way at once.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._kept: OrderedDict[tuple[Any, ...], tuple[bytes, Any]] = OrderedDict()
        self._modules: dict[Path, tuple[Shipped, str]] = {}
        self.path = tuple(entry for entry in sys.path if isinstance(entry, str) and entry)

    @staticmethod
    def references(task: Task) -> list[Reference]:
        """The references of a task, in the order in which all sides count them."""
        found: list[Reference] = []

        def note(reference: Reference) -> Reference:
            found.append(reference)
            return reference

        with_files(dict(task.payload), note)
        return found

    def load(self, task: Task) -> Load:
        """Packs what a task reads, as it is now."""
        cargo: list[Parcel | Shared | Shipped | None] = []
        shared: list[Any] = []
        addresses: list[str] = []
        for reference in self.references(task):
            path = path_of(reference)
            if MAKES in reference:
                cargo.append(None)
            elif CODE in reference:
                shipped, address = self._ship(path)
                cargo.append(shipped)
                addresses += [address] if address not in addresses else []
            elif READS not in reference:
                cargo.append(pack_rows(path, reference["start"], reference["stop"]))
            elif path.is_dir() or _size(path) < WORTH_SHARING:  # a teacher: one task's
                cargo.append(pack(path))
            else:
                key, kept = self._keep(path)
                cargo.append(Shared(len(shared), key))
                shared.append(kept)
        return Load(
            cargo=tuple(cargo),
            shared=tuple(shared),
            runtime_env={"py_modules": addresses} if addresses else None,
            size=sum(each.size for each in cargo if isinstance(each, Parcel)),
        )

    def _keep(self, path: Path) -> tuple[bytes, Any]:
        about = path.stat()
        what = (path, about.st_ino, about.st_size, about.st_mtime_ns)
        if what not in self._kept:
            key = new_key()
            self._kept[what] = key, self._ray.put(seal(pack(path), key))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(what)
        return self._kept[what]

    def _ship(self, path: Path) -> tuple[Shipped, str]:
        """Gives modules to Ray's runtime environment, once a run."""
        if path not in self._modules:
            self._modules[path] = _upload(path)
        return self._modules[path]

    def close(self) -> None:
        """Lets go of what was kept; Ray frees it when the last task has read it."""
        self._kept.clear()


def _upload(path: Path) -> tuple[Shipped, str]:
    from ray._private.runtime_env.py_modules import upload_py_modules_if_needed

    try:
        files = {name: file.read_bytes() for name, file in modules(path).items()}
    except OSError as error:
        raise PateError(f"cannot read the plug-ins in {path}: {error.strerror}") from error
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    name = f"pate_plugins_{digest}"
    staging = Path(tempfile.mkdtemp(prefix="pate-plugins-"))
    try:
        (staging / name).mkdir()
        for inside, content in files.items():
            file = staging / name / inside
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        environment = upload_py_modules_if_needed(
            {"py_modules": [str(staging / name)]},
            include_gitignore=False,
            scratch_dir=str(staging),
        )
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    shipped = Shipped(name, path.name if path.is_file() else None)
    (address,) = environment["py_modules"]
    return shipped, address


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_size
    return 0
