"""A last look at everything that is about to leave, for what must not be in it.

The list of files that may leave is short, and each is made from what is RELEASED or PUBLIC. This is
the net below it: paths of the machine, the secret key, and names that follow from private records
are searched for in every byte.
"""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pate.errors import InvalidInput
from pate.pipeline.ledger import naming_key
from pate.release.finished import Finished

_ARRAYS = (".npy", ".npz")


def require_clean(draft: Path, finished: Finished) -> None:
    """Refuses to let anything out in which a forbidden text stands; the file is named."""
    marks = dict(_forbidden(finished))
    for file in sorted(draft.rglob("*")):
        if not file.is_file():
            continue
        name = file.relative_to(draft).as_posix()
        for content in _layers(file.read_bytes()):
            for mark, what in marks.items():
                if mark in content:
                    raise InvalidInput(f"{name} would carry {what}; nothing was released")
        if file.suffix in _ARRAYS:
            _require_plain(file, name)
        if file.suffix == ".json":
            _require_publishable(json.loads(file.read_text(encoding="utf-8")), name)


def _forbidden(finished: Finished) -> Iterator[tuple[bytes, str]]:
    run, options = finished.run.folder, finished.run.options
    for path, what in (
        (run, "the path of the run"),
        (options.data_root, "the path of the data"),
        (options.plugin_path, "the path of the plug-ins"),
    ):
        for form in () if path is None else {path.absolute(), path.resolve()}:
            if len(form.parts) > 1:
                yield os.fsencode(form), what
    home = os.path.expanduser("~")  # as it is written where nobody has a home
    places = [Path.cwd(), Path(sys.prefix), Path(__file__).parents[2]]
    for place in (home, *(each for each in places if len(each.parts) > 2)):
        if str(place) not in ("~", "/"):
            yield os.fsencode(str(place)) + b"/", "a path of this machine"
    key = naming_key(finished.recipe, options.data_root)
    yield key.encode(), "the key of the data set"
    yield bytes.fromhex(key), "the key of the data set"
    for name in finished.run.store.fingerprints():
        yield name.encode(), "a fingerprint of private records"


def _layers(content: bytes) -> Iterator[bytes]:
    """The bytes of a file, and of the files in it where it is an archive."""
    yield content
    if content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield from _layers(archive.read(member))


def _require_plain(file: Path, name: str) -> None:
    """Arrays hold numbers and text: objects would be pickles."""
    try:
        with file.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            if file.suffix == ".npz":
                for member in loaded.files:
                    loaded[member]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInput(
            f"{name} is no array of plain numbers ({type(error).__name__}); nothing was released"
        ) from None


def _require_publishable(value: Any, name: str) -> None:
    for problem in unpublishable(value):
        raise InvalidInput(f"{name} holds {problem}; nothing was released")


def unpublishable(value: Any) -> Iterator[str]:
    """What in a JSON value says of itself that it may not be published.

    >>> list(unpublishable({"a": [{"epsilon": 1.0, "publishable": False}]}))
    ['a figure that may not be published']
    """
    if isinstance(value, dict):
        if value.get("publishable") is False or value.get("data_dependent") is True:
            yield "a figure that may not be published"
        for each in value.values():
            yield from unpublishable(each)
    elif isinstance(value, list):
        for each in value:
            yield from unpublishable(each)
