"""Checkpoints of a student's training, replaced atomically.

A checkpoint only saves time: one of other settings or data, or a damaged one, is ignored, and
training starts from scratch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate._files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One file of tensors and a JSON record; ``identity`` identifies the training."""

    path: Path
    identity: str

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the content last written under the same identity, or None."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                header = file.metadata() or {}
                if header.get("identity") != self.identity:
                    return None
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads(header["record"])
        except (OSError, SafetensorError, ValueError, KeyError):
            return None

    def write(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Replace the previous checkpoint atomically."""
        from safetensors.torch import save

        # Copies: every tensor whole and in memory of its own, also tied weights.
        stored = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
        header = {"identity": self.identity, "record": json.dumps(record, sort_keys=True)}
        content = save(stored, metadata=header)
        write_atomically(self.path, content, name=f"the checkpoint {self.path}", make_parents=True)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


def pack(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under prefixed names, to share a file with others.

    >>> list(pack("model", {"weight": 1}))
    ['model/weight']
    """
    return {f"{prefix}/{name}": value for name, value in values.items()}


def unpack(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that :func:`pack` stored under that prefix."""
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


def pack_optimizer(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the state of SGD, Adam or AdamW as tensors; the settings come from the recipe."""
    import torch

    return {
        f"optimizer/{index}/{name}": value
        for index, memory in optimizer.state_dict()["state"].items()
        for name, value in memory.items()
        if isinstance(value, torch.Tensor)
    }


def unpack_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state from :func:`pack_optimizer` in an optimizer with the same settings."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in unpack("optimizer", tensors).items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
