"""Data from the user's own code, ``"module:attr"``, as parts or splits.

Accepted, from the object itself or from calling it without arguments: :class:`Splits`; one pool
as ``(X, y)``, ``{"X": …, "y": …, "ids": …, "groups": …}``, a :class:`Table` or a torch Dataset;
or three parts as ``(private, public, test)`` or ``{"private": …, "public": …, "test": …}``, each
of which is a pool, or an array alone for public inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.parts import Part, to_names, to_numbers
from pate.datasets.table import Splits, Table
from pate.errors import InvalidInput
from pate.untrusted import run_untrusted

_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_ROLES = ("private", "public", "test")
_POOL = ("X", "y", "ids", "groups")


def is_entry(source: str) -> bool:
    """Return whether ``source`` is "module:attr" rather than a path.

    >>> is_entry("hospital.data:load"), is_entry("data/hospital.csv")
    (True, False)
    """
    return _ENTRY.fullmatch(source) is not None


def read_entry(source: str, *, plugin_path: Path | None) -> Splits | list[Part]:
    """Return complete splits, one pool, or three parts in the order private, public, test."""
    from pate.plugins import resolve

    found = resolve(source, path=plugin_path)

    def read() -> Splits | list[Part]:
        made = found() if callable(found) and not _is_data(found) else found
        return _interpret(made, source)

    read_it: Splits | list[Part] = run_untrusted(
        source, read, private=True, error=InvalidInput, advice="; run it on its own to see why"
    )
    return read_it


def _is_data(value: Any) -> bool:
    return isinstance(value, (Splits, Table, Mapping, tuple, list, np.ndarray)) or (
        not isinstance(value, type) and hasattr(value, "__getitem__") and hasattr(value, "__len__")
    )


def _interpret(value: Any, source: str) -> Splits | list[Part]:
    if isinstance(value, Splits):
        return value
    if isinstance(value, Mapping) and any(role in value for role in _ROLES):
        _check_keys(value, _ROLES, source)
        missing = [role for role in _ROLES if role not in value]
        if missing:
            raise InvalidInput(f"{source} returned no {missing[0]!r}; return {', '.join(_ROLES)}")
        value = tuple(value[role] for role in _ROLES)
    if isinstance(value, (tuple, list)) and len(value) == 3:
        return [
            _part(piece, f"{source} ({role})") for piece, role in zip(value, _ROLES, strict=True)
        ]
    return [_part(value, source)]


def _part(value: Any, where: str) -> Part:
    if isinstance(value, Table):
        return Part(
            where=where,
            features=value.features,
            labels=value.labels,
            ids=value.ids,
            groups=value.groups,
        )
    if isinstance(value, Mapping):
        return _from_mapping(value, where)
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise InvalidInput(
                f"{where} returned {len(value)} objects; return (X, y), or (private, public, test)"
            )
        return _from_mapping({"X": value[0], "y": value[1]}, where)
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        return _from_mapping({"X": value}, where)
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return _from_dataset(value, where)
    raise InvalidInput(
        f"{where} returned {type(value).__name__}; "
        "return arrays, a Table, Splits or a torch Dataset"
    )


def _check_keys(value: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
    if not all(key in known for key in value):  # the key is not quoted: it may name a person
        raise InvalidInput(f"{where} returned an unknown key; known are {', '.join(known)}")


def _from_mapping(value: Mapping[Any, Any], where: str) -> Part:
    _check_keys(value, _POOL, where)
    if value.get("X") is None:
        raise InvalidInput(f"{where} returned no 'X'; return the features under that key")
    names = {
        key: None
        if value.get(key) is None
        else to_names(_array(value[key]), where=where, what=f"{key!r}")
        for key in ("ids", "groups")
    }
    return Part(
        where=where,
        features=to_numbers(_array(value["X"]), where=where),
        labels=None if value.get("y") is None else _array(value["y"]),
        ids=names["ids"],
        groups=names["groups"],
    )


def _from_dataset(dataset: Any, where: str) -> Part:
    """Read a torch Dataset of (features, label) pairs, or of features alone."""
    features: list[NDArray[Any]] = []
    labels: list[Any] = []
    for row in range(len(dataset)):
        item = dataset[row]
        paired = isinstance(item, (tuple, list))
        if paired and len(item) != 2:
            raise InvalidInput(
                f"{where} returns {len(item)} objects for a record; return (features, label)"
            )
        features.append(_record(item[0] if paired else item))
        if paired:
            labels.append(item[1].item() if hasattr(item[1], "item") else item[1])
    if not features:
        raise InvalidInput(f"{where} holds no records")
    if len({record.shape for record in features}) > 1:
        raise InvalidInput(f"{where} returns records of several shapes; make them agree")
    if labels and len(labels) != len(features):
        raise InvalidInput(f"{where} returns a label with some records only; label all or none")
    return Part(
        where=where,
        features=to_numbers(np.stack(features), where=where),
        labels=np.array(labels) if labels else None,
    )


def _record(value: Any) -> NDArray[Any]:
    array = _array(value)
    if hasattr(value, "getbands") and array.dtype == np.uint8:  # a PIL image
        array = array / np.float32(255)
    return array


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
