"""How far a student has come, on disk: whole or as it was before.

A checkpoint is a help and no result: one of other settings or data, or a damaged one, counts for
nothing, and training begins anew.
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
    """One file of tensors and a JSON record; ``identity`` says of which training."""

    path: Path
    identity: str

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What was written last under the same identity; None where there is nothing to use."""
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
        """Takes the place of the one before, in one step."""
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
    """Tensors under names of their own kind, to share a file with others.

    >>> list(pack("model", {"weight": 1}))
    ['model/weight']
    """
    return {f"{prefix}/{name}": value for name, value in values.items()}


def unpack(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What :func:`pack` put in under that prefix."""
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


def pack_optimizer(optimizer: Optimizer) -> dict[str, Tensor]:
    """The memory of SGD, Adam or AdamW, which is all tensors; the settings are the recipe's."""
    import torch

    return {
        f"optimizer/{index}/{name}": value
        for index, memory in optimizer.state_dict()["state"].items()
        for name, value in memory.items()
        if isinstance(value, torch.Tensor)
    }


def unpack_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Brings back what :func:`pack_optimizer` took, into an optimizer made in the same way."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in unpack("optimizer", tensors).items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
