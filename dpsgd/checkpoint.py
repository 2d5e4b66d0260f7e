"""A run on disk: one safetensors file, replaced atomically, and the guard against its copies.

Tensors (weights, buffers, the optimiser's state) are stored as tensors, everything else as JSON in
the file's header. Nothing is pickled. The weights in it cost what the steps cost, but a *seeded*
run stores its generators too, and an unfinished run is private: only its owner can read the file.

A checkpoint can be copied, or restored from a backup. Resuming from one that is not the last, or
from two copies at once, would draw steps a second time for a charge that paid for one draw. So each
plan has a record beside the ledger, with a line for every checkpoint: the process that draws holds
an exclusive lock on it, and appends a line only after the one that it read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from dpsgd.plan import FitPlans
from pate._files import error_reason, exclusive_lock, sync, write_atomically
from pate.artifacts import StoreError
from pate.errors import InvalidInput, LedgerError

_VERSION = 1
_OPTIMIZER = "optimizer"


def write(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Replace a checkpoint atomically."""
    from safetensors.torch import save

    # Copies: every tensor contiguous and in memory of its own, tied weights too.
    stored = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    header = {
        "version": str(_VERSION),
        "record": json.dumps(record, sort_keys=True),
        "digest": _digest(stored, json.dumps(record, sort_keys=True)),
    }
    content = save(stored, metadata=header)
    write_atomically(path, content, name=f"the checkpoint {path}", make_parents=True)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the record of a checkpoint; refuse a damaged file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        known = header.get("version") == str(_VERSION)
        whole = known and _digest(tensors, header["record"]) == header["digest"]
        record: dict[str, Any] = json.loads(header["record"]) if whole else {}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error
    if not known and "record" in header:
        raise InvalidInput(f"the checkpoint {path} was written by another version of dpsgd")
    if not whole:
        raise _damaged(path)
    return tensors, record


def revision(path: Path) -> str | None:
    """Return the revision of a checkpoint on disk; None if there is none."""
    return str(_noted(path, "revision")) if path.exists() else None


def releases(path: Path) -> set[str]:
    """Return the names of the charges for what a checkpoint holds."""
    return FitPlans.from_json(_noted(path, "plans")).releases


def _noted(path: Path, key: str) -> Any:
    """Return one entry of a checkpoint's record without reading its tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["record"])[key]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep other trainers of the same checkpoint from taking a step inside the block.

    Two of them would draw the noise of one step twice and pay for it once.
    """
    busy = StoreError(
        f"another process is training with the checkpoint {path}; wait for it, or give this run a "
        "checkpoint of its own"
    )
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_lock(path.with_name(f".{path.name}.lock"), busy=busy))
        except OSError as error:
            raise StoreError(f"cannot hold the checkpoint {path}: {error_reason(error)}") from error
        yield


def require_same(path: Path, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another configuration, and name what differs."""
    differs = [name for name in {**stored, **given} if stored.get(name) != given.get(name)]
    if differs:
        raise InvalidInput(
            f"the checkpoint {path} belongs to another run: {', '.join(sorted(differs))} "
            f"{'differs' if len(differs) == 1 else 'differ'}; give the same settings to resume, or "
            "another checkpoint to start again"
        )


# --- the optimiser --------------------------------------------------------------------------------


def pack_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimiser's state as tensors and plain values."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for index, memory in state["state"].items():
        scalars[str(index)] = {}
        for key, value in memory.items():
            if isinstance(value, Tensor):
                tensors[f"{_OPTIMIZER}.{index}.{key}"] = value
            else:
                scalars[str(index)][key] = _plain(value, optimizer)
    groups = [
        {k: _plain(v, optimizer) for k, v in group.items()} for group in state["param_groups"]
    ]
    return tensors, {"state": scalars, "param_groups": groups}


def unpack_optimizer(
    optimizer: Optimizer, tensors: Mapping[str, Tensor], record: Mapping[str, Any]
) -> None:
    """Restore what :func:`pack_optimizer` returned, into an optimiser of the same kind."""
    fresh = optimizer.state_dict()
    groups = [
        {key: _like(now.get(key), value) for key, value in stored.items()}
        for now, stored in zip(fresh["param_groups"], record["param_groups"], strict=True)
    ]
    state: dict[int, dict[str, Any]] = {int(k): dict(v) for k, v in record["state"].items()}
    for name, value in tensors.items():
        place, _, rest = name.partition(".")
        if place == _OPTIMIZER:
            index, _, key = rest.partition(".")
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _plain(value: Any, optimizer: Optimizer) -> Any:
    if isinstance(value, Tensor) and value.dim() == 0:
        return {"tensor": value.item()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each, optimizer) for each in value]
    raise InvalidInput(
        f"{type(optimizer).__name__} keeps a {type(value).__name__}, and only tensors, numbers and "
        "text can be stored; train without a checkpoint, or with another optimiser"
    )


def _like(now: Any, value: Any) -> Any:
    """Return a stored value in the type that the optimiser uses for it."""
    if isinstance(value, dict):
        return torch.tensor(value["tensor"], dtype=now.dtype if isinstance(now, Tensor) else None)
    return tuple(value) if isinstance(now, tuple) else value


def _digest(tensors: Mapping[str, Tensor], record: str) -> str:
    """Return a digest of names, shapes, types and bytes: safetensors has no checksum."""
    found = hashlib.sha256(record.encode())
    for name in sorted(tensors):
        value = tensors[name]
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _damaged(path: Path) -> InvalidInput:
    return InvalidInput(
        f"the checkpoint {path} is damaged or not one of dpsgd; remove it to start again, which "
        "costs again"
    )


# --- the guard against copies ---------------------------------------------------------------------


@final
class ResumeGuard:
    """The records of all plans that were charged to one ledger, in a folder beside it.

    Guarantees:
        One charge pays for one draw of every step, however often a checkpoint is copied: the
        charge is for one run of Abadi et al. 2016, Algorithm 1, and two would compose to more.
    """

    def __init__(self, ledger: Path) -> None:
        place = ledger.resolve()  # a charge has one record, whatever links lead to its ledger
        self._folder = place.with_name(f"{place.name}.runs")

    @contextlib.contextmanager
    def held(self, plan: str) -> Iterator[Mark]:
        """Lock the record of a plan: no other process draws for it until the block ends.

        The operating system releases the lock of a process that is killed.
        """
        path = self._folder / plan
        busy = LedgerError(
            "another process is training this run, from its checkpoint or a copy of it, and one "
            "charge pays for one draw; wait for it to end"
        )
        with contextlib.ExitStack() as stack:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                # A process that is about to be refused holds the lock for a moment, too.
                stack.enter_context(exclusive_lock(path, busy=busy, patience=1.0))
                sync(self._folder)
            except OSError as error:
                raise _unwritable(path, error) from error
            yield Mark(path)

    def admit(
        self, plan: str, *, revision: str, before: str | None, paid: Callable[[], bool]
    ) -> None:
        """Refuse the checkpoint ``revision`` of an unfinished plan unless it is the last.

        ``before`` is the revision that it replaced. A crash may have come between the checkpoint
        and its line in the record; nothing of it was shown then, and it becomes the last one now.
        """
        mark = Mark(self._folder / plan)
        mark.require(revision, before, paid=paid)
        if mark.last is not None and mark.last != revision:
            with self.held(plan) as mark:
                mark.require(revision, before, paid=paid)
                if mark.last != revision:
                    mark.prepare(revision)
                    mark.commit()


@final
class Mark:
    """The record of one plan: the revisions of its checkpoints, of which the last one counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = self._prepared = self._read()

    def require(self, *revisions: str | None, paid: Callable[[], bool]) -> None:
        """Refuse to resume a plan from any checkpoint but its last."""
        if self.last is None:
            if paid():
                raise LedgerError(
                    f"{self.path.parent} lacks the record of how far this run was drawn; resuming "
                    "could draw steps a second time: start a new run, which costs again"
                )
        elif self.last not in revisions:
            raise LedgerError(
                "this checkpoint is not the last of its run (a copy, or an old one restored); "
                "steps after it were drawn already, and drawing them again costs again: resume "
                "from the last checkpoint, or start a new run"
            )

    def prepare(self, revision: str) -> None:
        """Write the line of a checkpoint that is about to be written; it counts once committed.

        Raises :class:`LedgerError`, and changes nothing, if the record is no longer as it was
        read: another process has drawn for this plan.
        """
        try:
            with self.path.open("r+b") as file:
                lines = _complete(file.read())
                if _last(lines) not in (self.last, self._prepared):  # ours, if interrupted
                    raise LedgerError(
                        "another process has trained this run meanwhile, and one charge pays for "
                        "one draw; what was drawn here since its last checkpoint is dropped"
                    )
                file.seek(len(lines))
                file.truncate()
                file.write(revision.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self._prepared = revision

    def commit(self) -> None:
        """Make the prepared line count: its checkpoint is on disk, and may be shown from now on."""
        try:
            with self.path.open("ab") as file:
                file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.last = self._prepared

    def settle(self, revision: str) -> None:
        """Commit the prepared line if its checkpoint is the one on disk, which is shown next."""
        if revision == self._prepared != self.last:
            self.commit()

    def _read(self) -> str | None:
        try:
            return _last(_complete(self.path.read_bytes()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error


def _complete(content: bytes) -> bytes:
    """Return the lines that were written completely."""
    return content[: content.rfind(b"\n") + 1]


def _last(lines: bytes) -> str | None:
    return lines.split()[-1].decode(errors="replace") if lines.strip() else None


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write the record of a run, {path}: {error_reason(error)}")
