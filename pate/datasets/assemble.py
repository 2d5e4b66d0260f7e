"""Parts as read → the checked splits: one set of classes, one shape, finite numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pate.datasets.labels import encode
from pate.datasets.part import Part
from pate.datasets.table import Splits, Table
from pate.errors import InvalidInput

_ROWS_AT_ONCE = 4096


def to_tables(
    parts: Sequence[Part], *, classes: Sequence[str] | None
) -> tuple[list[Table], tuple[str, ...]]:
    """Tables that agree on their classes and on the shape of a record, and the class names."""
    for part in parts:
        _check_features(part)
    for part in parts:
        if part.labels is not None and len(part.labels) != len(part.features):
            raise InvalidInput(
                f"{part.where} has {len(part.features)} records and {len(part.labels)} labels; "
                "give one for each record"
            )
    first = parts[0]
    for part in parts[1:]:
        if part.features.shape[1:] != first.features.shape[1:]:
            raise InvalidInput(
                f"a record of {part.where} has shape {part.features.shape[1:]} and one of "
                f"{first.where} has {first.features.shape[1:]}; make them agree"
            )
    labels, names = encode([(part.where, part.labels) for part in parts], classes=classes)
    precise = np.result_type(*(part.features for part in parts))
    tables = []
    for part, column in zip(parts, labels, strict=True):
        if part.ids is not None and len(set(part.ids)) < len(part.ids):
            raise InvalidInput(
                f"{len(part.ids) - len(set(part.ids))} ids of {part.where} occur more than once; "
                "give each record its own, or name the column as group to keep records together"
            )
        tables.append(
            Table(
                features=part.features.astype(precise, copy=False),
                labels=column,
                ids=part.ids,
                groups=part.groups,
            )
        )
    return tables, names


def check_splits(splits: Splits, *, where: str) -> Splits:
    """The splits, if the private and test roles are labelled and every label is a class."""
    roles = {"private": splits.private, "public": splits.public, "test": splits.test}
    for role, table in roles.items():
        if table.labels is None and role != "public":
            raise InvalidInput(f"the {role} records of {where} have no labels; they need them")
        _check_features(Part(where=where, features=table.features, labels=None))
        if table.features.shape[1:] != splits.private.features.shape[1:]:
            raise InvalidInput(
                f"the {role} records of {where} have another shape than its private ones; "
                "make them agree"
            )
        labels = table.labels
        if labels is not None and (
            labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= splits.classes
        ):
            raise InvalidInput(
                f"the {role} labels of {where} are not whole numbers from 0 to "
                f"{splits.classes - 1}, one for each class name"
            )
    if splits.private.labels is not None and np.unique(splits.private.labels).size < 2:
        raise InvalidInput(
            f"the private records of {where} are all of one class; classification needs 2 or more"
        )
    return splits


def _check_features(part: Part) -> None:
    features = part.features
    if features.ndim == 0 or len(features) == 0 or features.size == 0:
        raise InvalidInput(f"{part.where} holds no records")
    if features.ndim < 2:
        raise InvalidInput(
            f"the features of {part.where} have shape {features.shape}; "
            "give a row of numbers for each record"
        )
    if features.dtype.kind not in "iuf":
        raise InvalidInput(f"the features of {part.where} are {features.dtype}, not numbers")
    for start in range(0, len(features), _ROWS_AT_ONCE):
        finite = np.isfinite(features[start : start + _ROWS_AT_ONCE])
        if not finite.all():
            at = "a feature"
            if part.columns is not None:
                at = f"column {part.columns[int(np.flatnonzero(~finite.all(axis=0))[0])]!r}"
            raise InvalidInput(
                f"{at} of {part.where} holds NaN or infinity; fill it in or remove those records"
            )
