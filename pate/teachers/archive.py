"""scikit-learn models as bytes: skops, always the same bytes for the same model, and no pickle.

skops names things by their address in memory and stamps them with the time. Both are replaced, so
that a digest of the file says whether two teachers are equal.
"""

from __future__ import annotations

import importlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

from pate.errors import InvalidInput

_LIBRARIES = ("sklearn", "numpy", "scipy")
_SCHEMA = "schema.json"


def pack(model: Any, *, home: str) -> bytes:
    """The model as a skops archive. What could not be loaded again is refused here already."""
    import skops.io  # type: ignore[import-untyped]
    from skops.io.exceptions import (  # type: ignore[import-untyped]
        UnsupportedTypeException,
    )

    try:
        raw = skops.io.dumps(model)
    except (UnsupportedTypeException, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"a {type(model).__name__} cannot be saved by skops ({type(error).__name__}); give its "
            "class methods save(folder) and load(folder)"
        ) from None
    data = _canonical(raw)
    _trusted(data, home=home)
    return data


def unpack(file: Path, *, home: str) -> Any:
    """The model in an archive.

    Guarantees:
        Types come from scikit-learn, numpy and scipy, classes only, or from the package ``home``
        that the recipe names; an archive that asks for anything else is refused unread.
    """
    import skops.io

    try:
        data = file.read_bytes()
        return skops.io.loads(data, trusted=_trusted(data, home=home))
    except InvalidInput:
        raise
    except OSError as error:
        raise InvalidInput(f"the model file {file} cannot be read: {error.strerror}") from None
    except Exception as error:
        raise InvalidInput(
            f"{file} is not a model that can be read ({type(error).__name__}); train it again"
        ) from None  # its own words may quote what the model learned


def _trusted(data: bytes, *, home: str) -> list[str]:
    import skops.io

    types: list[str] = skops.io.get_untrusted_types(data=data)
    strangers = [name for name in types if not _may_load(name, home=home)]
    if strangers:
        raise InvalidInput(
            f"the model holds {', '.join(strangers)}, which is neither of scikit-learn nor of the "
            "model's own module; give its class methods save(folder) and load(folder)"
        )
    return types


def _may_load(name: str, *, home: str) -> bool:
    package = name.partition(".")[0]
    if package == home.partition(".")[0] and package not in _LIBRARIES:
        return True
    # A library's functions are left out: one of them runs text as a program.
    return package in _LIBRARIES and isinstance(_find(name), type)


def _find(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None


def _canonical(raw: bytes) -> bytes:
    """The same archive with members named and numbered in their order, and no times."""
    numbers: dict[Any, int] = {}
    files: dict[str, str] = {}

    def renumber(node: Any) -> None:
        if isinstance(node, dict):
            if "__id__" in node:
                node["__id__"] = numbers.setdefault(node["__id__"], len(numbers) + 1)
            file = node.get("file")
            if isinstance(file, str) and file in members:
                node["file"] = files.setdefault(file, f"{len(files)}{Path(file).suffix}")
            for child in node.values():
                renumber(child)
        elif isinstance(node, list):
            for child in node:
                renumber(child)

    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        members = set(old.namelist()) - {_SCHEMA}
        schema = json.loads(old.read(_SCHEMA))
        renumber(schema)
        for name in sorted(members, key=lambda name: int(Path(files[name]).stem)):
            new.writestr(zipfile.ZipInfo(files[name]), old.read(name))
        new.writestr(zipfile.ZipInfo(_SCHEMA), json.dumps(schema, separators=(",", ":")))
    return out.getvalue()
