"""The user's own data: from files, or from the user's own code, ``"module:attr"``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.columns import column_names, column_values, frame_cells, is_frame
from pate.datasets.files import has_colour, read
from pate.datasets.parts import (
    Part,
    Wanted,
    pool_names,
    read_columns,
    read_pool_columns,
    to_names,
    to_numbers,
    to_tables,
)
from pate.datasets.spec import DataSpec
from pate.datasets.table import ROLES, Splits, Table, cap, divide
from pate.errors import InvalidInput, MissingFile
from pate.plugins import resolve
from pate.recipes.paths import find_path
from pate.untrusted import run_untrusted

_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # "module:attr"
_POOL = ("X", "y", "ids", "groups")


def load_own(spec: DataSpec, *, root: Path, plugin_path: Path | None) -> Splits:
    """Return the three roles of the data behind ``source`` or three paths."""
    if spec.source is None:
        parts = _read_three(spec, root)
    elif is_entry(spec.source):
        found = read_entry(spec.source, plugin_path=plugin_path)
        if isinstance(found, Splits):
            return _capped(spec, [found.private, found.public, found.test], found.class_names)
        parts = found
    else:
        parts = [read(find_file(spec, spec.source, root), _wanted(spec))]
    for role, part in zip(ROLES, parts, strict=False):  # of one pool, all records may be private
        if part.labels is None and role != "public":
            raise InvalidInput(f"{part.where} has no labels; {role} records need them")
    if len(parts) == 1:
        return _split_pool(spec, parts[0])
    parts, columns = read_columns(parts, categorical=spec.categories)
    tables, names = to_tables(parts, classes=spec.classes)
    unused = () if spec.features else (*parts[1].unused, *parts[2].unused)
    return replace(_capped(spec, tables, names), columns=columns, unused=unused)


def is_entry(source: str) -> bool:
    """Return whether a source is the user's own code, ``"module:attr"``, and no file."""
    return _ENTRY.fullmatch(source) is not None and not Path(source).exists()


def find_file(spec: DataSpec, name: str, root: Path) -> Path:
    """Return the file or folder that the section names: beside its recipe, or in the data root."""
    return find_path(name, folder=spec.folder, elsewhere=[root])


def _split_pool(spec: DataSpec, part: Part) -> Splits:
    for option, amount in (("public", spec.public), ("test", spec.test)):
        if amount is None:  # the owner decides who is not protected, not a default
            raise InvalidInput(
                f"{option} is not set; give the number of {option} records of {part.where}, "
                "as a count or a share"
            )
    (table,), names = to_tables([part], classes=spec.classes)
    amounts = [("test", spec.test), ("public", spec.public), ("private", spec.private)]
    # By what is written in a record: its numbers follow from public records, which come of this.
    rows = replace(
        table,
        features=np.arange(table.records)[:, None],
        ids=table.ids if table.groups is not None else pool_names(part, table),
    )
    divided = divide(rows, amounts, seed=spec.seed, where=part.where)
    places = {role: each.features[:, 0] for role, each in divided.items()}
    features, columns = read_pool_columns(part, places["public"], categorical=spec.categories)
    table = replace(table, features=features)
    roles: dict[str, Any] = {role: table.take(each) for role, each in places.items()}
    return Splits(**roles, class_names=names, columns=columns, pooled=True)


def _capped(spec: DataSpec, tables: list[Table], names: tuple[str, ...]) -> Splits:
    """Return the three roles, each limited to its amount if the recipe gives one."""
    parts: dict[str, Any] = {
        role: cap(
            table,
            getattr(spec, role),
            role=role,
            seed=spec.seed,
            where=f"the {role} part of {spec.name}",
        )
        for role, table in zip(ROLES, tables, strict=True)
    }
    return Splits(**parts, class_names=names, pooled=False)


def _read_three(spec: DataSpec, root: Path) -> list[Part]:
    names = (spec.private_path or "", spec.public_path or "", spec.test_path or "")
    paths = [find_file(spec, name, root) for name in names]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InvalidInput(
            f"private_path, public_path and test_path of {spec.name} name one file twice; "
            "the roles must not share records"
        )
    # Public images decide whether images are read in colour: no private image does.
    folders = [path for path in paths[1:] if path.is_dir()]
    colour = any(has_colour(folder) for folder in folders) if folders else None
    private = read(paths[0], _wanted(spec, colour=colour))
    # The other files are read by the names of the private one.
    others = partial(_wanted, spec, colour=colour, columns=private.columns, needs_keys=False)
    return [private, read(paths[1], others(needs_label=False)), read(paths[2], others())]


def _wanted(
    spec: DataSpec,
    *,
    needs_label: bool = True,
    needs_keys: bool = True,
    colour: bool | None = None,
    columns: tuple[str, ...] | None = None,
) -> Wanted:
    return Wanted(
        label=spec.label,
        id=spec.id,
        group=spec.group,
        features=columns if spec.features is None else tuple(spec.features),
        image_size=spec.image_size,
        colour=colour,
        needs_label=needs_label,
        needs_keys=needs_keys,
    )


def read_entry(source: str, *, plugin_path: Path | None) -> Splits | list[Part]:
    """Return the data behind ``"module:attr"``: splits, one pool, or private, public and test.

    Accepted, from the object itself or from calling it without arguments: :class:`Splits`; one pool
    as ``(X, y)``, ``{"X": …, "y": …, "ids": …, "groups": …}``, a :class:`Table` or a torch Dataset;
    or three parts as ``(private, public, test)`` or ``{"private": …, "public": …, "test": …}``,
    each of which is a pool, or an array alone for public inputs.
    """
    found = resolve(source, path=plugin_path)

    def read() -> Splits | list[Part]:
        try:
            made = found() if callable(found) and not _is_dataset(found) else found
            return _interpret(made, source)
        except FileNotFoundError:  # its text names a file of the user's
            pass
        raise MissingFile(f"{source} did not find a file that it reads; run it on its own")

    data: Splits | list[Part] = run_untrusted(
        source, read, private=True, error=InvalidInput, advice="; run it on its own to see why"
    )
    return data


def _is_dataset(value: Any) -> bool:
    return not isinstance(value, type) and all(
        hasattr(value, name) for name in ("__getitem__", "__len__")
    )


def _interpret(value: Any, source: str) -> Splits | list[Part]:
    if isinstance(value, Splits):
        return value
    if isinstance(value, Mapping) and any(role in value for role in ROLES):
        _check_keys(value, ROLES, source)
        missing = [role for role in ROLES if role not in value]
        if missing:
            raise InvalidInput(f"{source} returned no {missing[0]!r}; return {', '.join(ROLES)}")
        value = tuple(value[role] for role in ROLES)
    if isinstance(value, (tuple, list)) and len(value) == 3:
        return [
            _part(piece, f"{source} ({role})") for piece, role in zip(value, ROLES, strict=True)
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
    if isinstance(value, np.ndarray) or hasattr(value, "detach") or is_frame(value):
        return _from_mapping({"X": value}, where)
    if _is_dataset(value):
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
    X, y, ids, groups = (None if value.get(key) is None else _array(value[key]) for key in _POOL)
    if X is None:
        raise InvalidInput(f"{where} returned no 'X'; return the features under that key")
    more: dict[str, Any] = {
        "where": where,
        "labels": y,
        "ids": None if ids is None else to_names(ids, where=where, what="'ids'"),
        "groups": None if groups is None else to_names(groups, where=where, what="'groups'"),
    }
    if is_frame(value["X"]):
        frame = value["X"]
        columns = frame_cells(frame, where=where)
        # The type of a column changes with one missing value or text in it, and with the type the
        # names of all records that have no ids. So there is one for all, unless all are float32.
        arrays = [np.asarray(column_values(frame, name)) for name in column_names(frame) or ()]
        if {each.dtype for each in arrays} == {np.dtype(np.float32)}:
            return Part(features=np.column_stack(arrays), columns=tuple(columns), **more)
        return Part.of_cells(list(columns.values()), columns=tuple(columns), **more)
    return Part(features=to_numbers(X, where=where), **more)


def _from_dataset(dataset: Any, where: str) -> Part:
    """Read a torch Dataset of (features, label) pairs, or of features alone."""
    features: list[NDArray[Any]] = []
    labels: list[Any] = []
    for row in range(len(dataset)):
        item = dataset[row]
        if isinstance(item, (tuple, list)):
            if len(item) != 2:
                raise InvalidInput(
                    f"{where} returns {len(item)} objects for a record; return (features, label)"
                )
            item, label = item
            labels.append(label.item() if hasattr(label, "item") else label)
        record = _array(item)
        if hasattr(item, "getbands") and record.dtype == np.uint8:  # a PIL image
            record = record / np.float32(255)
        features.append(record)
    if not features:
        raise InvalidInput(f"{where} holds no records")
    # One type, too: that of the whole array is part of the names of all records.
    if len({(record.shape, record.dtype) for record in features}) > 1:
        raise InvalidInput(f"{where} returns records of several shapes or types; make them agree")
    if labels and len(labels) != len(features):
        raise InvalidInput(f"{where} returns a label with some records only; label all or none")
    return Part(
        where=where,
        features=to_numbers(np.stack(features), where=where),
        labels=np.array(labels) if labels else None,
    )


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
