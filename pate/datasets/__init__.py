"""Named data sets and the user's own files → private, public and test records.

Names are loaded when they are first used: a recipe can be checked without numpy.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate.datasets.catalogue import Listing, listings
from pate.datasets.roots import data_root

if TYPE_CHECKING:
    from pate.datasets.loading import load as load
    from pate.datasets.spec import DataSpec as DataSpec
    from pate.datasets.table import Splits as Splits
    from pate.datasets.table import Table as Table
    from pate.datasets.table import record_ids as record_ids

_HOMES = {
    "DataSpec": "pate.datasets.spec",
    "Splits": "pate.datasets.table",
    "Table": "pate.datasets.table",
    "load": "pate.datasets.loading",
    "record_ids": "pate.datasets.table",
}

__all__ = [
    "DataSpec",
    "Listing",
    "Splits",
    "Table",
    "data_root",
    "load",
    "names",
    "record_ids",
]


def names(root: Path | None = None) -> list[Listing]:
    """Every named set, and whether it is on disk under ``root`` (by default the data root).

    >>> [listing.name for listing in names()][:3]
    ['digits', 'breast-cancer', 'mnist']
    """
    return listings(data_root(root))


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate.datasets' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
