"""The private folder of a run that is under way: whose it is, and who works in it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpsgd.recipe import Recipe
from pate._files import exclusive_lock, write_atomically
from pate.artifacts import Level, StoreError
from pate.errors import InvalidInput, SpendNeeded

CHECKPOINT = "checkpoint.safetensors"
_HOME, _LOCK = "home.json", "lock"


def private_folder(folder: Path, made_from: str) -> Path:
    """Where the PCA and the checkpoint of a run are kept."""
    return folder / Level.PRIVATE.folder / made_from[:20]


def require_consent(recipe: Recipe, folder: Path, private: Path) -> None:
    """Refuses to train anew in a folder where something else was trained, unless told to pay."""
    runs = folder / Level.PRIVATE.folder
    # A checkpoint is written just before the charge: without one nothing was paid for.
    others = [file.parent for file in runs.glob(f"*/{CHECKPOINT}") if file.parent != private]
    if not others:
        return
    newest = max(others, key=lambda path: path.stat().st_mtime)
    try:
        before = json.loads((newest / _HOME).read_text())["recipe"]
    except (OSError, ValueError, KeyError, TypeError):
        before = {}
    now = recipe.model_dump(mode="json")
    changed = [key for key, value in _leaves(now) if dict(_leaves(before)).get(key) != value]
    what = f"{', '.join(changed[:3])} changed" if changed and before else "other settings"
    raise SpendNeeded(
        f"{folder} holds a run of another recipe ({what}); training again costs again: choose "
        "another --out, or add --spend to train and pay here"
    )


def _leaves(settings: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its name.

    >>> list(_leaves({"a": {"b": 1, "c": [2]}}))
    [('a.b', 1), ('a.c', [2])]
    """
    if isinstance(settings, dict) and settings:
        for key, value in settings.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, settings


@contextlib.contextmanager
def working_in(private: Path, folder: Path) -> Iterator[None]:
    """The run's private folder, made where it is missing, and held by this process alone."""
    busy = InvalidInput(
        f"another process is training in {folder}; wait for it, or choose another --out"
    )
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            private.parent.mkdir(mode=0o700, exist_ok=True)
            private.parent.chmod(0o700)
            private.mkdir(mode=0o700, exist_ok=True)
            stack.enter_context(exclusive_lock(private / _LOCK, busy=busy))
        except OSError as error:
            raise StoreError(f"cannot write to {folder}: {error.strerror}") from error
        yield


def clear(private: Path) -> None:
    """Forgets a run of which nothing was done; the lock stays, for it is held."""
    for file in private.iterdir():
        if file.name != _LOCK:
            with contextlib.suppress(OSError):
                file.unlink()


def at_home(private: Path, recipe: Recipe, ledger_file: Path) -> None:
    """A run that was begun under one ledger is not finished under another."""
    if require_home(private, ledger_file):
        return
    path = private / _HOME
    home = {"ledger": str(ledger_file.absolute()), "recipe": recipe.model_dump(mode="json")}
    write_atomically(path, f"{json.dumps(home, indent=1)}\n".encode())


def require_home(private: Path, ledger_file: Path) -> bool:
    """Whether a run was begun here; refuses one that was begun under another ledger."""
    path, ledger = private / _HOME, str(ledger_file.absolute())
    if not path.exists():
        return False
    try:
        begun = json.loads(path.read_text())["ledger"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged; choose another --out") from error
    if begun != ledger:
        raise InvalidInput(
            f"this run was begun with the ledger at {begun}, and not with the one at {ledger}; "
            "give its --data-root, or another --out"
        )
    return True
