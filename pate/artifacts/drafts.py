"""Drafts: folders that become artifacts."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draft:
    """A folder that becomes an artifact when its ``with`` block ends well."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def save_array(self, name: str, values: NDArray[Any]) -> None:
        np.save(self.path / name, np.ascontiguousarray(values), allow_pickle=False)

    def save_json(self, name: str, value: Any) -> None:
        (self.path / name).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")

    def new_array(self, name: str, *, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """A memory-mapped array to fill, its space on disk taken at once.

        Without that a full disk would end the process with a signal at some later write.
        """
        file = self.path / name
        mapped: NDArray[Any] = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):
            with file.open("rb+") as stream:
                os.posix_fallocate(stream.fileno(), 0, os.fstat(stream.fileno()).st_size)
        return mapped
