"""A run on disk: one safetensors file, replaced atomically.

Tensors (weights, buffers, the optimiser's state) are stored as tensors, everything else as JSON in
the file's header. Nothing is pickled. The weights in it cost what the steps cost, but a *seeded*
run stores its generators too, and an unfinished run is private: only its owner can read the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dpsgd.plan import FitPlans
from pate._files import error_reason, exclusive_lock, write_atomically
from pate.artifacts import StoreError
from pate.errors import InvalidInput

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
    """Refuse a checkpoint of another configuration, and name what differs.

    >>> require_same(Path("run"), {"delta": 1e-5, "loss": "a"}, {"delta": 1e-5, "loss": "a"})
    """
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
