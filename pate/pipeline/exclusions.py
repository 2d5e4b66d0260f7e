"""The records that a run was asked to forget, known by keyed digests of their ids. PRIVATE.

They are in ``private/forgotten.json`` of the run. The user's source may still hold the records, so
every reading of it leaves them out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pate._files import write_atomically
from pate.artifacts import Level, fingerprint
from pate.datasets.spec import DataSpec
from pate.datasets.table import Table, content_names
from pate.errors import InvalidInput

FILE = "forgotten.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A forgetting that is not finished: what it needs to resume."""

    digests: tuple[str, ...]  # of all ids that were asked for, whether or not they are records
    found: int  # of them, in the private records
    data: str  # the fingerprint of the data that hold the records
    keys: Mapping[str, str]  # by stage: that of the result that is to be replaced
    parts: tuple[str, ...]  # keyed digests of all teachers, or shards of records, as they were
    name: str  # of its certificate
    done: bool = False  # all is made again: what is left is to remove the old
    signed_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusions:
    """The digests of forgotten records or groups, and what is known of their forgetting."""

    digests: tuple[str, ...] = ()  # in force
    queued: tuple[str, ...] = ()  # to be forgotten
    # Fingerprints of results without the records, and those of the results that labels which are
    # released were drawn from: the labels are the run's own until new ones are paid for.
    stands_for: Mapping[str, str] = field(default_factory=dict)
    begun: Begun | None = None
    named_by: str = ""  # the settings that records are recognised by, see :func:`names_of`

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Return the exclusions of the run in a folder; None if it never forgot anything."""
        place = _place(folder)
        try:
            content = json.loads(place.read_text())
            seal, begun = content.pop("seal"), content["begun"]
            if fingerprint(content) != seal:
                raise ValueError
            return cls(
                digests=tuple(content["digests"]),
                queued=tuple(content["queued"]),
                stands_for=content["stands_for"],
                named_by=content["named_by"],
                begun=None
                if begun is None
                else Begun(**begun | {name: tuple(begun[name]) for name in ("digests", "parts")}),
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{place} is damaged; restore it from a backup") from error

    def save(self, folder: Path) -> None:
        """Write the exclusions of the run in a folder, in one step."""
        content = json.loads(json.dumps(asdict(self)))
        sealed = {**content, "seal": fingerprint(content)}
        text = json.dumps(sealed, indent=1, sort_keys=True) + "\n"
        write_atomically(_place(folder), text.encode(), make_parents=True)

    def without(self, table: Table, *, key: str) -> Table:
        """Return a table without the records that are forgotten."""
        if not self.digests:
            return table
        kept = self.keeps(content_names(table), table.groups, key=key)
        return table if kept.all() else table.take(np.flatnonzero(kept))

    def keeps(
        self, names: Sequence[str], groups: Sequence[str] | None, *, key: str
    ) -> NDArray[np.bool_]:
        """Return for each record whether it is kept; exact copies without ids share a name."""
        known = frozenset(self.digests)
        kept = np.array([each not in known for each in unit_digests("record", names, key=key)])
        if groups is not None:
            kept &= [each not in known for each in unit_digests("group", groups, key=key)]
        return kept


def names_of(data: DataSpec) -> str:
    """Return a digest of the settings that decide the names of records and groups.

    Under others a forgotten record would have another name, and not be recognised.
    """
    own = {"id", "group"}
    if data.id is None:  # then a name is a digest of all values
        own |= {"label", "features", "categorical", "classes", "image_size"}
    return fingerprint(data.model_dump(mode="json", include=own))


def unit_digests(unit: str, names: Iterable[str], *, key: str) -> list[str]:
    """Return a digest of each record's, or group's, name under the data set's key.

    Guarantees:
        Keyed BLAKE2b is a pseudorandom function: without the key nobody can test a guess of a name.

    >>> unit_digests("record", ["7"], key="aa") == unit_digests("group", ["7"], key="aa")
    False
    """
    secret = hashlib.blake2b(f"forgotten {unit}".encode(), key=bytes.fromhex(key)).digest()
    return [
        hashlib.blake2b(name.encode(errors="surrogatepass"), key=secret, digest_size=16).hexdigest()
        for name in names
    ]


def _place(folder: Path) -> Path:
    return folder / Level.PRIVATE.folder / FILE
