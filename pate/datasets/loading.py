"""From the ``[data]`` section to private, public and test records."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from pate.datasets.catalogue import CATALOGUE
from pate.datasets.files import has_colour, locate, read
from pate.datasets.named import read_named
from pate.datasets.parts import Part, Wanted, check_splits, to_tables
from pate.datasets.plugin import is_entry, read_entry
from pate.datasets.spec import DataSpec
from pate.datasets.split import cap, divide, divide_in_order
from pate.datasets.table import Splits, Table
from pate.errors import InvalidInput

_ROLES = ("private", "public", "test")


def load(spec: DataSpec, *, root: Path, plugin_path: Path | None = None) -> Splits:
    """Return the three roles of a named set or of the user's own data.

    Guarantees:
        * No record has two roles; :mod:`pate.datasets.split` describes what changes when a private
          record is added or removed.
        * Nothing is scaled, encoded or chosen by a statistic of private records; class names
          count as public (:mod:`pate.datasets.parts`).

    >>> splits = load(DataSpec(name="digits"), root=Path("data"))
    >>> splits.private.records, splits.public.records, splits.test.records, splits.classes
    (997, 500, 300, 10)
    """
    if not spec.own:
        return check_splits(_load_named(spec, root), where=spec.name)
    splits = check_splits(_load_own(spec, root, plugin_path), where=spec.name)
    if spec.classes is None:
        _check_class_names_are_public(splits, spec.name)
    return splits


def _check_class_names_are_public(splits: Splits, where: str) -> None:
    """Refuse class names that occur in private records alone: class names are published."""
    open_labels = [t.labels for t in (splits.public, splits.test) if t.labels is not None]
    known = np.unique(np.concatenate(open_labels)) if open_labels else np.empty(0)
    if splits.private.labels is not None and not np.isin(splits.private.labels, known).all():
        raise InvalidInput(
            f"the private records of {where} hold a class that no public or test record has; name "
            "all classes in data.classes, so that their names do not come from private records"
        )


def _load_named(spec: DataSpec, root: Path) -> Splits:
    named = CATALOGUE[spec.name]
    train, test = read_named(named, root)
    amounts = {
        "test": named.test if spec.test is None else spec.test,
        "public": named.public if spec.public is None else spec.public,
    }
    take = partial(divide, seed=spec.seed)
    where = f"the official test part of {spec.name}"
    if test is None:
        parts = take(train, [*amounts.items(), ("private", spec.private)], where=spec.name)
    elif spec.public_from == "training":
        parts = take(train, [("public", amounts["public"]), ("private", spec.private)],
                     where=f"the training part of {spec.name}")  # fmt: skip
        parts["test"] = cap(test, spec.test, role="test", seed=spec.seed, where=where)
    else:
        in_order = spec.order == "file"
        roles = list(amounts.items())
        parts = (
            divide_in_order(test, roles, where=where)
            if in_order
            else take(test, roles, where=where)
        )
        parts["private"] = cap(train, spec.private, role="private", seed=spec.seed, where=spec.name)
    return Splits(**parts, class_names=named.class_names)


def _load_own(spec: DataSpec, root: Path, plugin_path: Path | None) -> Splits:
    if spec.source is None:
        parts = _read_three(spec, root)
    elif is_entry(spec.source) and not Path(spec.source).exists():
        found = read_entry(spec.source, plugin_path=plugin_path)
        if isinstance(found, Splits):
            return _capped(spec, (found.private, found.public, found.test), found.class_names)
        parts = found
    else:
        parts = [read(locate(spec.source, root), _wanted(spec, needs=True))]
    if len(parts) == 1 and parts[0].labels is None:
        raise InvalidInput(f"{parts[0].where} has no labels; private records need them")
    if len(parts) == 1:
        return _split_pool(spec, parts[0])
    for role, part in zip(_ROLES, parts, strict=True):
        if part.labels is None and role != "public":
            raise InvalidInput(f"{part.where} has no labels; {role} records need them")
    tables, names = to_tables(parts, classes=spec.classes)
    return _capped(spec, (tables[0], tables[1], tables[2]), names)


def _split_pool(spec: DataSpec, part: Part) -> Splits:
    for option, amount in (("public", spec.public), ("test", spec.test)):
        if amount is None:  # the owner decides who is not protected, not a default
            raise InvalidInput(
                f"{option} is not set; give the number of {option} records of {part.where}, "
                "as a count or a share"
            )
    (table,), names = to_tables([part], classes=spec.classes)
    amounts = [("test", spec.test), ("public", spec.public), ("private", spec.private)]
    return Splits(**divide(table, amounts, seed=spec.seed, where=part.where), class_names=names)


def _capped(spec: DataSpec, tables: tuple[Table, Table, Table], names: tuple[str, ...]) -> Splits:
    """Return the three roles, each limited to its amount if the recipe gives one."""
    amounts = (spec.private, spec.public, spec.test)
    private, public, test = (
        cap(table, amount, role=role, seed=spec.seed, where=f"the {role} part of {spec.name}")
        for table, amount, role in zip(tables, amounts, _ROLES, strict=True)
    )
    return Splits(private=private, public=public, test=test, class_names=names)


def _read_three(spec: DataSpec, root: Path) -> list[Part]:
    names = (spec.private_path or "", spec.public_path or "", spec.test_path or "")
    paths = [locate(name, root) for name in names]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InvalidInput(
            f"private_path, public_path and test_path of {spec.name} name one file twice; "
            "the roles must not share records"
        )
    # Public images decide whether images are read in colour: no private image does.
    folders = [path for path in paths[1:] if path.is_dir()]
    colour = any(has_colour(folder) for folder in folders) if folders else None
    private = read(paths[0], _wanted(spec, needs=True, colour=colour))
    columns = private.columns  # the other files are read by the names of the private one
    public = read(paths[1], _wanted(spec, needs=False, colour=colour, columns=columns))
    test = read(paths[2], _wanted(spec, needs=False, colour=colour, columns=columns, label=True))
    return [private, public, test]


def _wanted(
    spec: DataSpec,
    *,
    needs: bool,
    colour: bool | None = None,
    columns: tuple[str, ...] | None = None,
    label: bool = False,
) -> Wanted:
    named = None if spec.features is None else tuple(spec.features)
    return Wanted(
        label=spec.label,
        id=spec.id,
        group=spec.group,
        features=columns if named is None else named,
        image_size=spec.image_size,
        colour=colour,
        needs_label=needs or label,
        needs_keys=needs,
    )
