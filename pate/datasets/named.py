"""The named sets, read from scikit-learn or from disk; nothing is downloaded here."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.adult import read_adult
from pate.datasets.catalogue import NamedSet
from pate.datasets.table import Table
from pate.errors import InvalidInput, PateError
from pate.vision import torchvision


def read_named(named: NamedSet, root: Path) -> tuple[Table, Table | None]:
    """The training part and the official test part; None where there is no such part."""
    if named.folder is None:
        return _EMBEDDED[named.name](), None
    if not named.present(root):
        raise InvalidInput(f"{named.name} is not under {root}; run `pate data fetch {named.name}`")
    reader = _ON_DISK[named.name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torchvision about numpy; nothing a user can do
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
    """Ten measurements of cell nuclei: mean, standard error and worst. As published, unscaled."""
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
    """Python batches. They are pickles: torchvision opens them only if their MD5 is right."""
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
