"""Functions that the tests of Ray name in their tasks: what has to do with files."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import time
from pathlib import Path

from pate.devices import current_device
from pate.engines.files import load_rows, path_of
from pate.errors import InvalidInput


def copy(payload):
    """Reads a file and some rows, and makes a file, a folder and a store."""
    text = path_of(payload["text"]).read_text()
    X = load_rows(payload["X"])
    path_of(payload["file"]).write_text(text[::-1])
    path_of(payload["folder"]).mkdir()
    (path_of(payload["folder"]) / "sum.txt").write_text(str(X.sum()))
    store = path_of(payload["store"])
    for name in ("private/teacher/a", "private/teacher/.draft-b", "released/labels/forged"):
        (store / name).mkdir(parents=True)
        (store / name / "x").write_text("x")
    there = path_of(payload["X"]).parent.parent
    return {"shape": X.shape, "where": str(there), "file": str(path_of(payload["file"]))}


def size(payload):
    return {"bytes": path_of(payload["big"]).stat().st_size}


def plugin(payload):
    place = path_of(payload["code"])
    sys.path.insert(0, str(place))
    try:
        importlib.invalidate_caches()
        module = importlib.import_module("mine")
        beside = sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())
        return {"says": module.WORD, "beside": [n for n in beside if "__pycache__" not in n]}
    finally:
        sys.path.remove(str(place))
        sys.modules.pop("mine", None)


def announce(payload):
    """Says who works where, and on the first ``times`` tries something happens to it."""
    note = Path(payload["note"])
    with note.open("a") as file:
        line = {"pid": os.getpid(), "ray_worker": os.getppid(), "shard": str(path_of(payload["X"]))}
        file.write(json.dumps(line) + "\n")
    if len(note.read_text().splitlines()) <= payload["times"]:
        if payload["how"] == "segfault":
            ctypes.string_at(0)
        time.sleep(60)
    path_of(payload["made"]).write_bytes(path_of(payload["X"]).read_bytes())
    return {}


def device(payload):
    time.sleep(payload.get("seconds", 0))
    return {"device": str(current_device())}


def quote(payload):
    """Fails with private words on its lips, said and written in all ways there are."""
    text = path_of(payload["X"]).read_bytes()[:64].decode(errors="replace")
    print(text, file=sys.stderr, flush=True)
    os.write(1, text.encode())
    raise ValueError(text)


def refuse(payload):
    raise InvalidInput(f"the file {path_of(payload['X'])} is not good; make another")


def pass_on(payload):
    """Makes as much as it reads, and waits until it may go."""
    content = path_of(payload["X"]).read_bytes()
    while payload.get("until") and not Path(payload["until"]).exists():
        time.sleep(0.01)
    path_of(payload["made"]).write_bytes(content[::-1])
    return {"bytes": len(content)}


def where(payload):
    return {"path": str(path_of(payload["big"]))}
