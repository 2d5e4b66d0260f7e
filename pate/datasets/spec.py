"""The ``[data]`` section of a recipe."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from pate.datasets.catalogue import CATALOGUE, named_set
from pate.recipes.paths import Located

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST_NAME = 220  # a file's name may have 255 characters, and a ledger's has endings
# A data set of such a name would share a ledger with another one (pate.accounting.ledger.data_set).
_RESERVED = (".dpsgd", ".not-private")
_PARTS = ("private_path", "public_path", "test_path")
WORDING: set[str] = {"unit"}  # keys that change nothing but words: part of no cache key
_OWN_ONLY = ("label", "id", "group", "features", "categorical", "classes", "image_size")


def _amount(value: Any) -> Any:
    if value is None or (type(value) is int and value >= 1):
        return value
    if type(value) is float and 0 < value < 1:
        return value
    raise ValueError(
        f"{value!r} is not an amount of records; give a whole number of 1 or more, "
        "or a share strictly between 0 and 1"
    )


def _noun(value: str) -> str:
    if not (re.fullmatch(r"[^\W\d_]+(?:[ -][^\W\d_]+)*", value) and len(value) <= 40):
        raise ValueError(
            f"{value!r} is not a noun to word guarantees with; use letters, spaces and '-', 40 at "
            'most, such as "patient"'
        )
    return value


Amount = Annotated[int | float | None, BeforeValidator(_amount)]


class DataSpec(Located):
    """``[data]``: which records are private, which are public inputs, which are for testing.

    Either ``name`` is one of the named sets, or it is a name of the user's choice and the data come
    from ``source`` (one pool, split by ``public`` and ``test``) or from three files.

    >>> DataSpec(name="digits").public is None  # the set's own default
    True
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        description="A named set (`pate data list`), or a name of your choice for your own data: "
        "its ledger is kept under this name."
    )
    public: Amount = Field(
        default=None,
        description="Public inputs, as a count or a share of the records that are not for testing; "
        "named sets have a default.",
    )
    test: Amount = Field(
        default=None, description="Test records, as a count or a share; named sets have a default."
    )
    private: Amount = Field(
        default=None, description="Most private records, as a count or a share; default: all left."
    )
    seed: int = Field(default=0, ge=0, description="Seed of the split; public.")
    public_from: Literal["test", "training"] = Field(
        default="test",
        description="Part that public inputs come from, for named sets with a test part.",
    )
    order: Literal["hash", "file"] = Field(
        default="hash",
        description="Order in which the test part is divided: by a hash, or as in the file (the "
        "first are public, the last are for testing).",
    )

    source: str | None = Field(
        default=None,
        description="Your own data as one pool: a CSV, Parquet or .npz file, an image folder, or "
        '"module:attr". Paths are relative to the recipe.',
    )
    private_path: str | None = Field(
        default=None, description="File or image folder of the private records, if there are three."
    )
    public_path: str | None = Field(
        default=None, description="File or image folder of the public inputs, if there are three."
    )
    test_path: str | None = Field(
        default=None, description="File or image folder of the test records, if there are three."
    )

    accept_unprotected: bool = Field(
        default=False,
        exclude=True,  # it decides whether a run starts, never what comes out: no fingerprint
        description="The people in public and test records of one file are not protected; true "
        "accepts that.",
    )

    label: str | None = Field(
        default=None, description="Column of the labels (in .npz files an array; default `y`)."
    )
    id: str | None = Field(
        default=None, description="Column that identifies a record; default: a hash of its content."
    )
    group: str | None = Field(
        default=None,
        description="Column that identifies the person a record belongs to: all records of a "
        'person are then protected together, unless `by` is "record" in `[partition]` (PATE) or '
        "`[training]` (DP-SGD).",
    )
    features: list[str] | None = Field(
        default=None,
        description="Columns of the features; default: all others (in .npz files the array `X`).",
    )
    categorical: list[str] | dict[str, list[str]] | None = Field(
        default=None,
        description='Columns of categories, such as `["sex"]`, or with their categories in '
        'order, `{ size = ["S", "M", "L"] }`; default: columns in which public records hold text.',
    )
    classes: list[str] | None = Field(
        default=None,
        description="Class names, in order; required if a class occurs in private records only.",
    )
    image_size: int | None = Field(
        default=None, ge=1, le=4096, description="Resize images to so many pixels a side."
    )
    unit: Annotated[str, AfterValidator(_noun)] | None = Field(
        default=None,
        description="Singular noun for what one record is (or, by group, one group), such as "
        '"patient": guarantees are worded with it. Default: "record", or "user" by group.',
    )

    @model_serializer(mode="wrap")
    def _without_categorical(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Fingerprints of recipes without the key are as before there was one.
        written: dict[str, Any] = handler(self)
        if written.get("categorical") is None:
            written.pop("categorical", None)
        return written

    @property
    def categories(self) -> dict[str, list[str]]:
        """The columns that hold categories by the recipe, with their categories if it has them."""
        given = self.categorical or {}
        return given if isinstance(given, dict) else {name: [] for name in given}

    @property
    def own(self) -> bool:
        """Whether the data are the user's own, and no named set."""
        return self.source is not None or self.private_path is not None

    @property
    def divided(self) -> bool:
        """Whether private and test records were divided at random, one by one, from one source."""
        if self.own:  # "module:attr" may have divided them in a way of its own
            return self.source is not None and ":" not in self.source and self.group is None
        return not CATALOGUE[self.name].official_test

    @model_validator(mode="after")
    def _one_source(self) -> DataSpec:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} cannot name a data set; use letters, digits, '.', '-' and '_'"
            )
        if len(self.name) > _LONGEST_NAME:
            raise ValueError(
                f"a name of {len(self.name)} characters is too long for the file of a ledger; use "
                f"at most {_LONGEST_NAME}"
            )
        taken = [end for end in _RESERVED if self.name.lower().endswith(end)]
        if taken:
            raise ValueError(
                f"{self.name!r} cannot name a data set: its ledger would be that of another one; "
                f"choose a name that does not end in {taken[0]!r}"
            )
        given = [part for part in _PARTS if getattr(self, part) is not None]
        if self.source is not None and given:
            raise ValueError(f"source and {given[0]} are both set; keep one of them")
        if given and len(given) < len(_PARTS):
            missing = next(part for part in _PARTS if part not in given)
            raise ValueError(
                f"{given[0]} is set and {missing} is not; set all of {', '.join(_PARTS)}, or source"
            )
        if self.own:
            self._check_own()
        else:
            self._check_named()
        return self

    def _check_named(self) -> None:
        if self.name not in CATALOGUE:
            try:
                named_set(self.name)
            except ValueError as error:
                raise ValueError(f"{error}; for your own data set source or private_path") from None
        for option in _OWN_ONLY:
            if getattr(self, option) is not None:
                raise ValueError(
                    f"{option} is for your own data, and {self.name} is a named set; remove it"
                )
        if self.public_from == "training" and self.order == "file":
            raise ValueError(
                'order = "file" is for public inputs from the test part; leave out one of '
                "public_from and order"
            )
        if not CATALOGUE[self.name].official_test:
            self._check_one_pool()

    def _check_one_pool(self) -> None:
        for option in ("public_from", "order"):
            if getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(
                    f"{option} is for named sets that have an official test part; remove it"
                )

    def _check_own(self) -> None:
        self._check_one_pool()
        if self.name in CATALOGUE:
            raise ValueError(
                f"{self.name} is the name of a built-in data set; give your own data another name"
            )
        roles = {"label": self.label, "id": self.id, "group": self.group}
        taken: dict[str, str] = {}
        for role, column in roles.items():
            if column is None:
                continue
            if column in taken:
                raise ValueError(f"{role} and {taken[column]} both name column {column!r}")
            taken[column] = role
        if self.features is not None:
            if not self.features:
                raise ValueError("features is empty; name at least one column, or leave it out")
            if len(set(self.features)) < len(self.features):
                raise ValueError("features names a column twice; name each once")
            for column in self.features:
                # A group may be a feature too; a label must not be, and an id never helps.
                if taken.get(column) in ("label", "id"):
                    raise ValueError(f"{taken[column]} column {column!r} is also among features")
        for column, names in self.categories.items():
            if column in taken:
                raise ValueError(f"{taken[column]} column {column!r} is also in categorical")
            if self.features is not None and column not in self.features:
                raise ValueError(f"categorical names {column!r}, which is not among features")
            if len(set(names)) < len(names):
                raise ValueError(f"categorical names a category of {column!r} twice; name it once")
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError("classes must name two or more classes, each once")
