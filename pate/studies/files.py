"""Tables of a study as JSON and CSV: whole or not at all, and for their owner only.

A study's tables hold figures that may not be published, and what publishing the rest costs is for
its owner to decide.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pate._files import write_atomically
from pate.errors import InvalidInput


def write_table(
    folder: Path,
    stem: str,
    content: Mapping[str, Any],
    *,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
) -> tuple[Path, Path]:
    """Writes ``STEM.json``, which holds ``content``, and ``STEM.csv``, which holds ``rows``.

    A row's keys that are no columns are left out of the CSV file; what is missing, or None, is an
    empty cell, and a list is its parts with blanks between.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    files = folder / f"{stem}.json", folder / f"{stem}.csv"
    whole = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_owned(files[0], whole.encode())
    write_owned(files[1], text.getvalue().encode())
    return files


def require_own(folder: Path, stem: str, *, seeded: bool) -> None:
    """Refuses to write a table of seeded noise over one of secure noise, or the other way round."""
    file = folder / f"{stem}.json"
    try:
        found = json.loads(file.read_text())["seeded"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # none, or nothing worth keeping
    if found is not seeded:
        kinds = ("secure", "seeded")
        raise InvalidInput(
            f"{file} is of {kinds[bool(found)]} noise, and would be written over by one of "
            f"{kinds[seeded]} noise; choose another --out"
        )


def _cell(value: Any) -> str:
    """A value in a table of plain text.

    >>> [_cell(each) for each in (None, True, 0.25, [1, 2], {"a": 1}, "word")]
    ['', 'true', '0.25', '1 2', '{"a": 1}', 'word']
    """
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return " ".join(map(_cell, value))
    return value if isinstance(value, str) else json.dumps(value)


def write_owned(file: Path, content: bytes) -> None:
    """Write a file of mode 0600 atomically."""
    write_atomically(file, content, make_parents=True)
