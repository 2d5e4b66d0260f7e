"""Readers of the named data sets, from scikit-learn or from disk; nothing is downloaded here."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.catalogue import NamedSet
from pate.datasets.table import Table
from pate.errors import InvalidInput, PateError
from pate.vision import torchvision


def read_named(named: NamedSet, root: Path) -> tuple[Table, Table | None]:
    """Return the training part and the official test part; None if the set has no such part."""
    if named.folder is None:
        return _EMBEDDED[named.name](), None
    if not named.present(root):
        raise InvalidInput(f"{named.name} is not under {root}; run `pate data fetch {named.name}`")
    reader = _ON_DISK[named.name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of torchvision about numpy; a user can do nothing about them
            train, test = reader(root / named.folder, True), reader(root / named.folder, False)
    except (PateError, MemoryError):
        raise
    except Exception as error:  # torchvision raises all kinds for a damaged file
        raise InvalidInput(
            f"the files of {named.name} in {root / named.folder} are damaged; "
            f"run `pate data fetch {named.name}` again"
        ) from error
    for table in (train, test):
        labels = table.labels
        if labels is None or labels.min() < 0 or labels.max() >= len(named.class_names):
            raise InvalidInput(
                f"the files of {named.name} in {root / named.folder} hold other classes; "
                f"run `pate data fetch {named.name}` again"
            )
    return train, test


def _digits() -> Table:
    digits = importlib.import_module("sklearn.datasets").load_digits()
    return _table(digits.images / 16, digits.target)


def _breast_cancer() -> Table:
    """Read ten measurements of cell nuclei: mean, standard error and worst; not scaled."""
    cells = importlib.import_module("sklearn.datasets").load_breast_cancer()
    return Table(
        features=np.asarray(cells.data, dtype=np.float64),
        labels=np.asarray(cells.target, dtype=np.int64),
    )


def _idx(kind: str) -> Callable[[Path, bool], Table]:
    def read(folder: Path, train: bool) -> Table:
        images = getattr(torchvision().datasets, kind)(folder.parents[1], train=train)
        return _table(_unit(images.data.numpy()), images.targets.numpy())

    return read


def _cifar10(folder: Path, train: bool) -> Table:
    """Read Python batches. They are pickles: torchvision checks their MD5 before opening them."""
    images = torchvision().datasets.CIFAR10(folder.parent, train=train)
    return _table(_unit(images.data), images.targets)


def _svhn(folder: Path, train: bool) -> Table:
    images = torchvision().datasets.SVHN(folder, split="train" if train else "test")
    return _table(_unit(images.data.transpose(0, 2, 3, 1)), images.labels)


def _adult(folder: Path, train: bool) -> Table:
    return read_adult(folder / ("adult.data" if train else "adult.test"))


def _unit(pixels: NDArray[Any]) -> NDArray[Any]:
    scaled: NDArray[Any] = np.divide(pixels, np.float32(255), dtype=np.float32)
    return scaled


def _table(features: NDArray[Any], labels: Any) -> Table:
    return Table(
        features=np.ascontiguousarray(features, dtype=np.float32),
        labels=np.asarray(labels, dtype=np.int64),
    )


_EMBEDDED: dict[str, Callable[[], Table]] = {"digits": _digits, "breast-cancer": _breast_cancer}
_ON_DISK: dict[str, Callable[[Path, bool], Table]] = {
    "mnist": _idx("MNIST"),
    "fashion-mnist": _idx("FashionMNIST"),
    "cifar10": _cifar10,
    "svhn": _svhn,
    "adult": _adult,
}


def _values(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# In the order of the file: a category with its values, or a number with its range and whether it
# spans so many powers of ten that its logarithm is the better scale.
_COLUMNS: tuple[tuple[str, tuple[str, ...] | tuple[float, float, bool]], ...] = (
    ("age", (0, 100, False)),
    (
        "workclass",
        _values(
            "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
            "Never-worked ?"
        ),
    ),
    ("fnlwgt", (0, 1_500_000, False)),
    (
        "education",
        _values(
            "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
            "Masters 1st-4th 10th Doctorate 5th-6th Preschool"
        ),
    ),
    ("education-num", (0, 16, False)),
    (
        "marital-status",
        _values(
            "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
            "Married-AF-spouse"
        ),
    ),
    (
        "occupation",
        _values(
            "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
            "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
            "Priv-house-serv Protective-serv Armed-Forces ?"
        ),
    ),
    ("relationship", _values("Wife Own-child Husband Not-in-family Other-relative Unmarried")),
    ("race", _values("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black")),
    ("sex", ("Female", "Male")),
    ("capital-gain", (0, 99_999, True)),
    ("capital-loss", (0, 4_356, True)),
    ("hours-per-week", (0, 99, False)),
    (
        "native-country",
        _values(
            "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) "
            "India Japan Greece South Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam "
            "Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia "
            "Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago "
            "Peru Hong Holand-Netherlands China ?"
        ),
    ),
)
_LABELS = {"<=50K": 0, ">50K": 1}


def _is_number(kind: tuple[str, ...] | tuple[float, float, bool]) -> bool:
    return isinstance(kind[-1], bool)


FEATURES = tuple(
    column
    for name, kind in _COLUMNS
    for column in ([name] if _is_number(kind) else [f"{name}={value}" for value in kind])
)


def read_adult(path: Path) -> Table:
    """Return the records of ``adult.data`` or ``adult.test``, (n, 108) float32."""
    position = {column: at for at, column in enumerate(FEATURES)}
    rows: list[np.ndarray] = []
    labels: list[int] = []
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("|"):  # adult.test opens with a remark
            continue
        cells = [cell.strip() for cell in line.split(",")]
        label = _LABELS.get(cells[-1].rstrip("."))  # adult.test ends its labels with a full stop
        if len(cells) != len(_COLUMNS) + 1 or label is None:
            raise _damaged(path, number)
        row = np.zeros(len(FEATURES), dtype=np.float32)
        for cell, (name, kind) in zip(cells, _COLUMNS, strict=False):
            if not _is_number(kind):
                at = position.get(f"{name}={cell}")
                if at is None and cell != "?":
                    raise _damaged(path, number)
                if at is not None:
                    row[at] = 1
            elif cell != "?":  # a missing number stays at 0
                row[position[name]] = _scaled(cell, kind, path=path, line=number)
        rows.append(row)
        labels.append(label)
    if not rows:
        raise _damaged(path)
    return Table(features=np.stack(rows), labels=np.array(labels, dtype=np.int64))


def _scaled(
    cell: str, kind: tuple[str, ...] | tuple[float, float, bool], *, path: Path, line: int
) -> float:
    low, high, logarithmic = float(kind[0]), float(kind[1]), kind[2]
    try:
        value = min(max(float(cell), low), high) - low
    except ValueError:  # its message quotes the value, so it is not passed on
        raise _damaged(path, line) from None
    if math.isnan(value):
        raise _damaged(path, line)
    return math.log1p(value) / math.log1p(high - low) if logarithmic else value / (high - low)


def _damaged(path: Path, line: int | None = None) -> InvalidInput:
    at = "" if line is None else f" (line {line})"
    return InvalidInput(
        f"{path} is not the UCI Adult file of that name{at}; run `pate data fetch adult` again"
    )
