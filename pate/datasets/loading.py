"""From the ``[data]`` section to private, public and test records; readers of the named sets."""

from __future__ import annotations

import importlib
import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.catalogue import CATALOGUE, NamedSet
from pate.datasets.spec import DataSpec
from pate.datasets.table import Splits, Table, cap, check_splits, divide, divide_in_order
from pate.errors import InvalidInput, PateError


def load(spec: DataSpec, *, root: Path, plugin_path: Path | None = None) -> Splits:
    """Return the three roles of a named set or of the user's own data.

    Guarantees:
        * No record has two roles; :mod:`pate.datasets.table` describes what changes when a private
          record is added or removed.
        * Nothing is scaled, encoded or chosen by a statistic of private records; class names
          count as public (:mod:`pate.datasets.parts`).

    >>> splits = load(DataSpec(name="digits"), root=Path("data"))
    >>> splits.private.records, splits.public.records, splits.test.records, splits.classes
    (997, 500, 300, 10)
    """
    if not spec.own:
        return check_splits(_load_named(spec, root), where=spec.name)
    from pate.datasets.own import load_own

    splits = check_splits(load_own(spec, root=root, plugin_path=plugin_path), where=spec.name)
    if spec.classes is None:
        _check_class_names_are_public(splits, spec.name)
    return splits


def _check_class_names_are_public(splits: Splits, where: str) -> None:
    """Refuse class names that occur in private records alone: class names are published."""
    open_labels = [t.labels for t in (splits.public, splits.test) if t.labels is not None]
    assert splits.private.labels is not None
    if not np.isin(splits.private.labels, np.concatenate(open_labels)).all():
        raise InvalidInput(
            f"the private records of {where} hold a class that no public or test record has; name "
            "all classes in data.classes, so that their names do not come from private records"
        )


def _load_named(spec: DataSpec, root: Path) -> Splits:
    named = CATALOGUE[spec.name]
    train, test = _read_named(named, root)
    amounts = {
        "test": named.test if spec.test is None else spec.test,
        "public": named.public if spec.public is None else spec.public,
    }
    roles = list(amounts.items())
    private = ("private", spec.private)
    take = partial(divide, seed=spec.seed)
    where = f"the official test part of {spec.name}"
    if test is None:
        parts = take(train, [*roles, private], where=spec.name)
    elif spec.public_from == "training":
        parts = take(train, [roles[1], private], where=f"the training part of {spec.name}")
        parts["test"] = cap(test, spec.test, role="test", seed=spec.seed, where=where)
    else:
        by_file = spec.order == "file"
        parts = (
            divide_in_order(test, roles, where=where) if by_file else take(test, roles, where=where)
        )
        parts["private"] = cap(train, spec.private, role="private", seed=spec.seed, where=spec.name)
    found: dict[str, Any] = dict(parts)
    return Splits(**found, class_names=named.class_names, pooled=False)


def require_files(named: NamedSet, root: Path) -> None:
    """Refuse a named set whose files are not under the data root."""
    if named.folder is not None and not named.present(root):
        fetch = f"run `pate data fetch {named.name}`"
        raise InvalidInput(f"{named.name} is not under {root}; {fetch}")


def _read_named(named: NamedSet, root: Path) -> tuple[Table, Table | None]:
    """Return the training part and the official test part; None if the set has no such part."""
    if named.folder is None:
        return _from_sklearn(named.name), None
    require_files(named, root)
    folder, again = root / named.folder, f"run `pate data fetch {named.name}`"
    try:
        with warnings.catch_warnings():  # of torchvision, about numpy
            warnings.simplefilter("ignore")
            train, test = (_from_disk(named.name, folder, train=part) for part in (True, False))
    except (PateError, MemoryError):
        raise
    except Exception as error:  # torchvision raises all kinds for a damaged file
        raise InvalidInput(
            f"the files of {named.name} in {folder} are damaged; {again} again"
        ) from error
    for labels in (train.labels, test.labels):
        if labels is None or labels.min() < 0 or labels.max() >= len(named.class_names):
            raise InvalidInput(
                f"the files of {named.name} in {folder} hold other classes; {again} again"
            )
    return train, test


def _from_sklearn(name: str) -> Table:
    datasets = importlib.import_module("sklearn.datasets")
    if name == "digits":
        digits = datasets.load_digits()
        return _table(digits.images / 16, digits.target)
    cells = datasets.load_breast_cancer()  # measurements, not scaled
    return Table(
        features=np.asarray(cells.data, dtype=np.float64),
        labels=np.asarray(cells.target, dtype=np.int64),
    )


def _from_disk(name: str, folder: Path, *, train: bool) -> Table:
    """Read one part. CIFAR-10 is pickled: torchvision checks its MD5 before opening it."""
    if name == "adult":
        return read_adult(folder / ("adult.data" if train else "adult.test"))
    from pate.vision import torchvision

    datasets = torchvision().datasets
    if name == "cifar10":
        images = datasets.CIFAR10(folder.parent, train=train)
        return _table(_unit(images.data), images.targets)
    if name == "svhn":
        images = datasets.SVHN(folder, split="train" if train else "test")
        return _table(_unit(images.data.transpose(0, 2, 3, 1)), images.labels)
    kind = datasets.MNIST if name == "mnist" else datasets.FashionMNIST
    images = kind(folder.parents[1], train=train)
    return _table(_unit(images.data.numpy()), images.targets.numpy())


def _unit(pixels: NDArray[Any]) -> NDArray[Any]:
    scaled: NDArray[Any] = np.divide(pixels, np.float32(255), dtype=np.float32)
    return scaled


def _table(features: NDArray[Any], labels: Any) -> Table:
    return Table(
        features=np.ascontiguousarray(features, dtype=np.float32),
        labels=np.asarray(labels, dtype=np.int64),
    )


# The columns of UCI Adult, in the order of the file: a category with its values, or a number with
# its range and whether it spans so many powers of ten that its logarithm is the better scale.
_ADULT: dict[str, str | tuple[float, float, bool]] = {
    "age": (0, 100, False),
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
    "Without-pay Never-worked ?",
    "fnlwgt": (0, 1_500_000, False),
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th "
    "12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    "education-num": (0, 16, False),
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
    "Priv-house-serv Protective-serv Armed-Forces ?",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "capital-gain": (0, 99_999, True),
    "capital-loss": (0, 4_356, True),
    "hours-per-week": (0, 99, False),
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany "
    "Outlying-US(Guam-USVI-etc) India Japan Greece South Cuba Iran Honduras Philippines Italy "
    "Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan "
    "Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
    "Trinadad&Tobago Peru Hong Holand-Netherlands China ?",
}
ADULT_FEATURES = tuple(
    column
    for name, kind in _ADULT.items()
    for column in (
        [f"{name}={value}" for value in kind.split()] if isinstance(kind, str) else [name]
    )
)


def read_adult(path: Path) -> Table:
    """Return the records of ``adult.data`` or ``adult.test``, (n, 108) float32."""
    position = {column: at for at, column in enumerate(ADULT_FEATURES)}
    rows: list[NDArray[np.float32]] = []
    labels: list[int] = []
    number, lines = 0, path.read_text(encoding="ascii", errors="replace").splitlines()
    # The error of float() quotes the value, so it is not passed on.
    damaged = "{} is not the UCI Adult file of that name{}; run `pate data fetch adult` again"
    try:
        for number, line in enumerate(lines, start=1):  # noqa: B007
            if not line.strip() or line.startswith("|"):  # adult.test opens with a remark
                continue
            *cells, label = (cell.strip() for cell in line.split(","))
            row = np.zeros(len(ADULT_FEATURES), dtype=np.float32)
            for cell, (name, kind) in zip(cells, _ADULT.items(), strict=True):
                if not isinstance(kind, str):
                    row[position[name]] = 0 if cell == "?" else _scaled(cell, *kind)
                elif f"{name}={cell}" in position or cell != "?":
                    row[position[f"{name}={cell}"]] = 1
            rows.append(row)
            # adult.test ends its labels with a full stop
            labels.append({"<=50K": 0, ">50K": 1}[label.rstrip(".")])
    except (ValueError, KeyError):
        raise InvalidInput(damaged.format(path, f" (line {number})")) from None
    if not rows:
        raise InvalidInput(damaged.format(path, ""))
    return Table(features=np.stack(rows), labels=np.array(labels, dtype=np.int64))


def _scaled(cell: str, low: float, high: float, logarithmic: bool) -> float:
    value = min(max(float(cell), low), high) - low
    if math.isnan(value):
        raise ValueError
    return math.log1p(value) / math.log1p(high - low) if logarithmic else value / (high - low)
