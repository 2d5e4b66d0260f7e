"""Where data sets live on disk."""

from __future__ import annotations

import os
from pathlib import Path


def data_root(option: Path | None = None) -> Path:
    """The option, else ``$PATE_DATA``, else ``./data`` where it exists, else the user's cache.

    >>> data_root(Path("elsewhere")).name
    'elsewhere'
    """
    if option is not None:
        return option.expanduser()
    if chosen := os.environ.get("PATE_DATA"):
        return Path(chosen).expanduser()
    beside = Path("data")
    if beside.is_dir():
        return beside
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The standard says that a relative path is to be ignored.
    home = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return home / "pate"
