"""The other distribution that is imported as ``pate``: on the package index, a time-series metric.

Two distributions in one site-packages overwrite each other's ``pate/__init__.py``: whichever was
installed last wins, and uninstalling either removes the file.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from pate.errors import PateError

_REMEDY = "run `pip uninstall pate`, then reinstall pate-privacy (pip install --force-reinstall)"


def find_namesake() -> str | None:
    """Return the metadata folder of another distribution called ``pate``, if one is installed.

    An install of this package from before it was called ``pate-privacy`` is none: it has our
    command. Only names of files are read, since ``importlib.metadata`` takes longer to load than
    all that ``import pate`` loads.
    """
    for folder in dict.fromkeys(sys.path):
        with suppress(OSError):
            for name in os.listdir(folder or os.curdir):
                if not name.lower().startswith(
                    "pate-"
                ):  # in metadata, pate-privacy is pate_privacy
                    continue
                if name.endswith((".dist-info", ".egg-info")):
                    found = os.path.join(folder, name)
                    if not _is_own(found):
                        return found
    return None


def _is_own(metadata: str) -> bool:
    with suppress(OSError), open(os.path.join(metadata, "entry_points.txt")) as file:
        return "pate.cli:main" in file.read()
    return False


def namesake_warning() -> str | None:
    """Return a sentence about another distribution called ``pate``, if one is installed."""
    if (found := find_namesake()) is None:
        return None
    return (
        f"the time-series package PATE ({os.path.basename(found)}) is installed, too, and shares "
        f"the import name and files of pate-privacy: {_REMEDY}"
    )


def require_own_package() -> None:
    """Refuse to run a command where another distribution overwrote or removed our ``__init__``."""
    if not hasattr(sys.modules["pate"], "__version__"):
        raise PateError(
            "pate/__init__.py is not that of pate-privacy: the time-series package PATE, which is "
            f"imported by the same name, was installed or uninstalled after it; {_REMEDY}"
        )
