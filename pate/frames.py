"""Tables of records as objects: DataFrames of pandas and polars, tables of pyarrow, ``datasets``.

All of them become a pandas DataFrame whose columns of numbers are doubles and all others objects;
a missing value is NaN in both. What a column holds, and the categories there are, follows from
public inputs, and an encoder is fitted on these alone.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from pate.datasets.columns import (
    array_cells,
    choose_columns,
    column_names,
    column_values,
    encode_columns,
)
from pate.datasets.table import Column
from pate.encoders.chain import Chain, fit_encoder
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.teachers.adapters import is_sklearn
from pate.untrusted import run_untrusted

_UNKNOWN = "pate: a category that no public input has"
_NUMBERS = re.compile(r"u?int\d|float|double|halffloat|bool", re.IGNORECASE)  # names of dtypes


class Encoder(Protocol):
    """Turns records into features; fitted on PUBLIC inputs."""

    def transform(self, X: Any) -> NDArray[np.float64]: ...


# --- frames ---------------------------------------------------------------------------------------


def is_frame(X: Any) -> bool:
    """Return whether X is a pandas DataFrame, or behaves like one."""
    return all(hasattr(X, name) for name in ("iloc", "columns", "dtypes"))


def is_number(dtype: Any) -> bool:
    """Return whether a column of this dtype holds numbers."""
    return getattr(dtype, "kind", "O") in "biuf"


def as_array(X: Any) -> NDArray[Any]:
    """Return records as an array, in which no text of one record makes text of another's numbers.

    >>> as_array([[1, "a"], [True, "b"]]).tolist()
    [[1, 'a'], [True, 'b']]
    """
    array = np.asarray(X)
    if array.dtype.kind == "U" and not isinstance(X, np.ndarray):
        return np.asarray(X, dtype=object)
    return array


def as_frame(X: Any, *, where: str = "X") -> Any:
    """Return a table with named columns as a DataFrame; what has no names, unchanged.

    A table whose one column holds arrays or images is an array of them. A frame that is none of
    pandas', but behaves like one, is left as it is.

    Guarantees:
        What a column becomes follows from its declared type, so that no record decides it for all.

    >>> as_frame([[1.0, 2.0]])
    [[1.0, 2.0]]
    """
    return split_frame(X, where=where)[0]


def split_frame(
    X: Any,
    labels: Any = None,
    groups: Any = None,
    *,
    classes: Any = None,
    where: str = "X",
    missing_ok: bool = False,
) -> tuple[Any, Any, Any]:
    """Return a table as :func:`as_frame`, without the columns that are named, and these apart.

    Labels that a table holds by numbers with names (``ClassLabel`` of datasets) are names where the
    ``classes`` are texts. Groups are not made doubles, which would make one of two long numbers.

    >>> split_frame([[1.0]], ["yes"])
    ([[1.0]], ['yes'], None)
    """
    X = _in_memory(X, where=where)
    names = None if isinstance(X, np.ndarray) else column_names(X)
    if names is None or (is_frame(X) and type(X).__module__.partition(".")[0] != "pandas"):
        rest, labels, groups = split_columns(X, labels, groups, where=where, missing_ok=missing_ok)
        return rest, labels, groups
    if len(set(names)) < len(names):
        raise InvalidInput(f"{where} has two columns of one name; give each its own name")
    apart = [each for each in (labels, groups) if isinstance(each, str)]
    _require_columns(names, [] if missing_ok else apart, where=where)
    rest = _frame(
        {
            name: _column(column_values(X, name), name, _declares_numbers(X, name), where=where)
            for name in names
            if name not in apart
        },
        where=where,
    )
    if isinstance(labels, str) and labels in names:
        values = _label_names(X, labels, classes)
        if values is None:
            numbers = _declares_numbers(X, labels)
            values = _column(column_values(X, labels), labels, numbers, where=where)
        labels = _series(values, labels)
    if isinstance(groups, str) and groups in names:
        groups = _series(np.array(_listing(X[groups]), dtype=object), groups)
    return rest, labels, groups


def _in_memory(X: Any, *, where: str) -> Any:
    """Return a table that is to be computed first; refuse what is no table, but several."""
    kind = type(X)
    if kind.__module__.partition(".")[0] == "polars" and hasattr(X, "collect"):
        return X.collect()
    if isinstance(X, Mapping) and any(hasattr(each, "column_names") for each in X.values()):
        first = next(iter(X))
        raise InvalidInput(
            f"{where} is a {kind.__name__} of {', '.join(map(str, X))}; give one of them, "
            f"such as {where}[{first!r}]"
        )
    if kind.__name__ == "IterableDataset":
        raise InvalidInput(f"{where} is an IterableDataset, which is streamed; load it as a table")
    return X


def _frame(columns: dict[Any, NDArray[Any]], *, where: str) -> Any:
    if len(columns) == 1:
        (only,) = columns.values()
        if only.ndim > 1:
            return only
    for name, values in columns.items():
        if values.ndim != 1 or values.dtype.kind not in "fO":
            raise InvalidInput(
                f"column {name!r} of {where} holds values that are neither numbers nor text; turn "
                "them into one of these, or leave the column out (arrays and images are taken "
                "where no other column is left)"
            )
    try:
        from pandas import DataFrame, Series
    except ImportError:
        if all(values.dtype.kind == "f" for values in columns.values()):
            return np.column_stack(list(columns.values()))
        raise InvalidInput(
            f"{where} has columns of text, for which scikit-learn needs pandas; install pandas"
        ) from None
    # Of a stated dtype: pandas would find one by the values.
    return DataFrame({name: Series(each, dtype=each.dtype) for name, each in columns.items()})


def _series(values: NDArray[Any], name: str) -> Any:
    """Return a column with its name, which a charge records of groups."""
    try:
        from pandas import Series
    except ImportError:
        return values
    return Series(values, dtype=values.dtype, name=name)


def _label_names(table: Any, name: str, classes: Any) -> NDArray[Any] | None:
    """Return labels by the names that their type has for them; None if they count as they are."""
    features = getattr(table, "features", None)  # of datasets
    known = getattr(features[name], "names", None) if isinstance(features, Mapping) else None
    if known is None or classes is None or not all(isinstance(each, str) for each in classes):
        return None
    places = np.array([-1 if each is None else each for each in _listing(table[name])], dtype=int)
    if places.size and not (places.min() >= 0 and places.max() < len(known)):
        raise InvalidInput(f"column {name!r} has a label without a name; leave such records out")
    names: NDArray[Any] = np.array(known, dtype=object)
    return names[places]  # type: ignore[no-any-return]


def _listing(values: Any) -> list[Any]:
    for method in ("tolist", "to_list", "to_pylist"):  # pandas', polars', pyarrow's
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def _declares_numbers(table: Any, name: Any) -> bool:
    """Return whether a column is one of numbers by its type, and not by its values."""
    features = getattr(table, "features", None)  # of datasets
    column = features[name] if isinstance(features, Mapping) else column_values(table, name)
    return _NUMBERS.match(str(getattr(column, "dtype", getattr(column, "type", "")))) is not None


def _column(values: Any, name: Any, numbers: bool, *, where: str) -> NDArray[Any]:
    """Return a column as doubles, objects with NaN for missing ones, or an array of arrays."""
    if hasattr(next(iter(values), None), "getbands"):  # images of PIL
        images = [np.asarray(image) for image in values]
        if len({image.shape for image in images}) > 1:
            raise InvalidInput("the images have several shapes; make them agree")
        # One by one: an image of another depth does not change how the others are scaled.
        return np.stack([each / (255.0 if each.dtype == np.uint8 else 1.0) for each in images])
    try:
        array = as_array(values)
    except ValueError:  # of lists; outside the handler, as its message may quote one
        array = None
    if array is None:
        raise InvalidInput(f"column {name!r} of {where} has arrays of several shapes; make one")
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    if array.ndim > 1 or array.dtype.kind not in "OUT":
        return array
    objects = array.astype(object)
    objects[np.array([_is_missing(each) for each in objects.tolist()], dtype=bool)] = np.nan
    # As whole numbers with gaps are, in some libraries.
    return objects.astype(np.float64) if numbers else objects


def _is_missing(value: Any) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")  # pandas'
        or (isinstance(value, float) and value != value)
    )


def split_columns(
    X: Any, *chosen: Any, where: str = "X", missing_ok: bool = False
) -> tuple[Any, ...]:
    """Return a table without the columns that are ``chosen`` by name, and these as arrays.

    What is chosen by no name is returned as it is. A column of ``missing_ok`` may be absent.

    >>> split_columns([[1.0]], ["yes"])
    ([[1.0]], ['yes'])
    """
    names = [each for each in chosen if isinstance(each, str)]
    if not names:
        return (X, *chosen)
    if not is_frame(X):
        if missing_ok:
            return (X, *chosen)
        raise InvalidInput(f"{names[0]!r} names a column, and {where} is no table with names")
    known = list(X.columns)
    _require_columns(known, [] if missing_ok else names, where=where)
    taken = [
        X[each] if isinstance(each, str) and each in known else each for each in chosen
    ]  # as Series: a charge records the name of a column of people
    return (X[[name for name in known if name not in names]], *taken)


def _require_columns(known: Sequence[Any], wanted: Sequence[str], *, where: str) -> None:
    absent = [name for name in wanted if name not in known]
    if absent:
        raise InvalidInput(f"{where} has no column {absent[0]!r}; it has {_listed(known)}")


def align_columns(frame: Any, columns: Sequence[Any], *, where: str, others: str) -> Any:
    """Return a frame with its columns in this order; raise where they are not the same ones."""
    given = list(frame.columns)
    if given == list(columns):
        return frame
    missing = [name for name in columns if name not in given]
    if missing:
        raise InvalidInput(f"{where} lacks {_listed(missing)}, which {others} has; give both alike")
    more = [name for name in given if name not in columns]
    if more:
        raise InvalidInput(f"{where} has {_listed(more)}, which {others} lacks; give both alike")
    return frame[list(columns)]


def require_same_kinds(X: Any, public: Any) -> None:
    """Refuse a column of numbers that is text in the other table; names are public, values not."""
    pairs = zip(X.columns, X.dtypes, public.dtypes, strict=True)
    odd = [name for name, one, other in pairs if is_number(one) != is_number(other)]
    if odd:
        raise InvalidInput(
            f"{_listed(odd)}: a column holds numbers in X or in public only; give each column one "
            "type in both"
        )


def rebuild_frame(array: NDArray[Any], template: Any) -> Any:
    """Return rows as a DataFrame like ``template``: numbers are doubles, all others objects."""
    kinds = [np.float64 if is_number(kind) else object for kind in template.dtypes]
    frame = type(template)(array, columns=template.columns)
    return frame.astype(dict(zip(template.columns, kinds, strict=True)))


def _listed(names: Sequence[Any]) -> str:
    """Return names of columns for a message, the first few of them.

    >>> _listed(["a", "b"]), _listed(list("abcdef"))
    ("columns 'a', 'b'", "columns 'a', 'b', 'c', 'd' and 2 more")
    """
    shown = ", ".join(repr(str(name)) for name in names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"column{'s' if len(names) > 1 else ''} {shown}{more}"


# --- encoders -------------------------------------------------------------------------------------


def fit_frame_encoder(encoder: Any, public: Any) -> Encoder:
    """Fit steps of a recipe, or a copy of a transformer of scikit-learn, on public inputs.

    Guarantees:
        The inputs must be PUBLIC. No record that is transformed leaves anything in the encoder, and
        errors on records show no value of them. A category that no public input has is unknown: a
        transformer that would refuse it is refused here, before any private record is looked at.
    """
    if isinstance(encoder, str):
        encoder = [encoder]
    if isinstance(encoder, Sequence):
        return _fit_steps(list(encoder), public)
    if not all(callable(getattr(encoder, name, None)) for name in ("fit", "transform")):
        raise InvalidInput(
            f"encoder is a {type(encoder).__name__}; give steps such as ['one-hot', 'impute'], or "
            "a transformer with fit and transform"
        )
    return _fit_transformer(encoder, public)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepsEncoder:
    """The steps of a recipe, on tables and arrays in memory."""

    chain: Chain
    columns: tuple[Column, ...] | None  # of a table; None for arrays of numbers

    def transform(self, X: Any) -> NDArray[np.float64]:
        array = as_array(X)
        if self.columns is not None:
            if array.ndim != 2 or array.shape[1] != len(self.columns):
                raise InvalidInput(
                    f"X has shape {array.shape}, and the encoder takes {len(self.columns)} columns"
                )
            cells = [
                array_cells(array[:, at], name=str(column.name), where="X")
                for at, column in enumerate(self.columns)
            ]
            array = encode_columns(self.columns, cells, where="X")
        return self.chain.transform(array).astype(np.float64)


def _fit_steps(steps: list[Any], public: Any) -> StepsEncoder:
    try:
        spec = EncoderSpec(steps=steps)
    except ValidationError as error:
        raise InvalidInput(f"encoder: {error.errors()[0]['msg']}") from None
    array = as_array(public)
    if not is_frame(public) and array.dtype.kind in "biuf":
        return StepsEncoder(chain=fit_encoder(spec, array), columns=None)
    if array.ndim != 2:
        raise InvalidInput(f"public has shape {array.shape}; text is taken in tables only")
    names = map(str, public.columns if is_frame(public) else range(1, array.shape[1] + 1))
    # As private records are read: by their values, whatever dtype other values made of a column.
    cells = {
        name: array_cells(array[:, at], name=name, where="public") for at, name in enumerate(names)
    }
    columns = choose_columns(list(cells), list(cells.values()), where="public")
    codes = encode_columns(columns, list(cells.values()), where="public")
    counts = [len(column.categories or ()) for column in columns]
    chain = fit_encoder(spec, codes, categories=counts if any(counts) else ())
    return StepsEncoder(chain=chain, columns=columns)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TransformerEncoder:
    """A transformer of scikit-learn, or one like it, that was fitted on public inputs."""

    transformer: Any
    template: Any  # a DataFrame's first no rows; None for arrays

    def transform(self, X: Any) -> NDArray[np.float64]:
        records = len(X)

        def made() -> Any:
            frame = X
            if self.template is not None and not is_frame(X):
                frame = rebuild_frame(X, self.template)
            # A copy, so that no record leaves anything behind for the next.
            found = copy.deepcopy(self.transformer).transform(frame)
            return found.toarray() if hasattr(found, "toarray") else np.asarray(found)

        features = run_untrusted(
            "encoder", made, private=True, error=InvalidInput, advice="; try it on public inputs"
        )
        if features.dtype.kind not in "biuf" or features.ndim < 2 or len(features) != records:
            raise InvalidInput(
                f"encoder made an array of {features.dtype} with rows of shape "
                f"{features.shape[1:]}; it must make one row of numbers for each record"
            )
        return np.asarray(features, dtype=np.float64)


def _fit_transformer(transformer: Any, public: Any) -> TransformerEncoder:
    if is_sklearn(transformer):
        from sklearn.base import clone

        own = clone(transformer)
    else:
        own = copy.deepcopy(transformer)
    frame: Any = public if is_frame(public) else np.asarray(public)
    try:
        own.fit(frame)
    except Exception as error:  # the inputs are public, and so is the reason
        raise InvalidInput(f"encoder cannot be fitted on public: {error}") from error
    fitted = TransformerEncoder(
        transformer=own, template=frame.iloc[:0] if is_frame(frame) else None
    )
    several = fitted.transform(frame[:8])
    alone = fitted.transform(frame[:1])
    if alone.shape[1:] != several.shape[1:] or not np.allclose(
        alone[0], several[0], rtol=1e-4, atol=1e-8, equal_nan=True
    ):
        raise InvalidInput(
            "encoder gives a record different features when others are present; it must encode "
            "each by itself"
        )
    if fitted.template is not None:
        _require_unknowns(fitted, frame)
    return fitted


def _require_unknowns(fitted: TransformerEncoder, public: Any) -> None:
    """Refuse a transformer that cannot take a text, or a gap, that no public input has."""
    texts = [
        name
        for name, kind in zip(public.columns, public.dtypes, strict=True)
        if not is_number(kind)
    ]
    for value in (_UNKNOWN, np.nan) if texts else ():
        probe = public.iloc[:1].copy()
        for name in texts:
            probe[name] = np.array([value], dtype=object)
        try:
            fitted.transform(probe)
        except InvalidInput:
            what = "a category that no public input has" if value is _UNKNOWN else "a missing text"
            raise InvalidInput(
                f"encoder refuses {what}, and a private record may hold one; set "
                "handle_unknown='ignore', or 'use_encoded_value' of an OrdinalEncoder, or put a "
                "SimpleImputer before it"
            ) from None


def fitted_encoder(encoder: Any, *, template: Any) -> Encoder | None:
    """Return a transformer that the user has fitted, as an encoder of records like ``template``."""
    if encoder is None or isinstance(encoder, (StepsEncoder, TransformerEncoder)):
        return encoder
    if not callable(getattr(encoder, "transform", None)):
        raise InvalidInput(
            f"encoder is a {type(encoder).__name__}; give a transformer that was fitted on public "
            "inputs"
        )
    return TransformerEncoder(transformer=encoder, template=template)


def encode_each(encoder: Encoder, X: Any) -> NDArray[np.float64]:
    """Return the features of records that were encoded one at a time.

    Guarantees:
        Features of a record depend on that record alone, down to the last bit: matrix products
        round by the shape of a batch.
    """
    rows = [encoder.transform(X[at : at + 1])[0] for at in range(len(X))]
    return np.stack(rows)
