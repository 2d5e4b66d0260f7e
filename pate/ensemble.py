"""Teachers in memory: disjoint shards of arrays, one model for each, and their votes.

The pipeline trains teachers as files, by an engine (:mod:`pate.stages`). This module does the same
for arrays in one call, for a notebook and for :class:`pate.PATEClassifier`.
"""

from __future__ import annotations

import copy
import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError
from sklearn.utils.metaestimators import available_if

from pate._validate import check_whole
from pate.accounting import Neighbours
from pate.datasets.table import Table, record_ids
from pate.engines.progress import terminal_progress
from pate.errors import InvalidInput, PateError, TeacherError
from pate.frames import (
    Encoder,
    align_columns,
    as_array,
    as_frame,
    fitted_encoder,
    is_frame,
    rebuild_frame,
    split_frame,
)
from pate.partition import PartitionSpec, partition
from pate.record_votes import group_names
from pate.students.spec import NETWORKS
from pate.teachers.adapters import build, is_sklearn, is_torch_module, make
from pate.teachers.protocol import Teacher, group_families, predict_many_labels, train_many
from pate.teachers.spec import ModelSpec, TeachersSpec, Training, seed_for
from pate.votes import Votes

_GROUP = 32  # teachers trained together: a public number, so rounding does not depend on n_jobs
_CHUNK = 4096  # inputs predicted at a time
_ABSTAINS = -1


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """A model as a user names it: a name, a class, a factory, or an object to be copied.

    >>> Model.of("ridge", {"params": {"alpha": 0.5}}).build(classes=3, seed=0).alpha
    0.5
    """

    name: str  # for messages and specs
    training: ModelSpec
    factory: Callable[..., Any] | None = None  # None: found by its name

    @classmethod
    def of(cls, model: Any, settings: Mapping[str, Any] | None = None) -> Model:
        """Check what was given and return how to make one.

        ``settings`` are keys of a recipe's model: ``params``, and for torch modules ``epochs``,
        ``batch_size``, ``lr``, ``optimizer``, ``weight_decay``.
        """
        factory: Callable[..., Any] | None = None
        if isinstance(model, str):
            name = NETWORKS.get(model, model)
        else:
            factory = _factory(model)
            kind = model if isinstance(model, type) or not _is_model(model) else type(model)
            name = f"own:{getattr(kind, '__name__', type(kind).__name__).strip('<>')}"
        keys = ", ".join(Training.model_fields)
        try:
            training = ModelSpec(model=name, **dict(settings or {}))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "model"
            raise InvalidInput(
                f"{place}: {first['msg']}; the settings of a model are {keys}"
            ) from None
        except TypeError:
            raise InvalidInput(
                f"settings of a model are a mapping with keys among {keys}"
            ) from None
        return cls(name=name.removeprefix("own:"), training=training, factory=factory)

    def build(self, *, classes: int, seed: int) -> Teacher:
        """Make an untrained model."""
        if self.factory is None:
            return make(self.training, classes=classes, seed=seed)
        return build(self.factory, self.training, classes=classes, seed=seed)


def _is_model(thing: Any) -> bool:
    return is_torch_module(thing) or all(
        callable(getattr(thing, name, None)) for name in ("fit", "predict")
    )


def _factory(model: Any) -> Callable[..., Any]:
    if isinstance(model, type) or (callable(model) and not _is_model(model)):
        return model  # type: ignore[no-any-return]
    if is_sklearn(model):
        from sklearn.base import clone

        return lambda: clone(model)
    if _is_model(model):
        return lambda: copy.deepcopy(model)
    raise InvalidInput(
        f"a model is a name, a class, a function that makes one, an estimator with fit and predict "
        f"or a torch module, not {type(model).__name__}"
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ensemble:
    """Trained teachers. PRIVATE: whoever sees a teacher sees its records.

    Parameters
    ----------
    teachers : tuple of Teacher or None
        None stands for a teacher without records, or one that failed: it abstains.
    classes : ndarray
        The labels that votes are counted for, in the order of the columns of the counts.
    seeds : tuple of int
        One for each teacher.
    neighbours : Neighbours
        The relation between data sets under which one teacher changes, and no more.
    protects : str
        The same in words.
    encoder : object, optional
        The encoder that records and inputs go through, fitted on public inputs.
    columns : tuple of str, optional
        The names of the columns of a table.
    """

    teachers: tuple[Teacher | None, ...]
    classes: NDArray[Any]
    seeds: tuple[int, ...]
    neighbours: Neighbours
    protects: str
    encoder: Encoder | None = None
    columns: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        return len(self.teachers)

    def __repr__(self) -> str:
        return f"<Ensemble of {len(self)} teachers for {len(self.classes)} classes, PRIVATE>"


def train_teachers(
    model: Any,
    X: ArrayLike,
    y: ArrayLike,
    *,
    teachers: int,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    classes: Sequence[Any] | NDArray[Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    encoder: Any = None,
    on_error: Literal["raise", "abstain"] = "raise",
    random_state: int | None = None,
    n_jobs: int | None = None,
    verbose: bool = False,
) -> Ensemble:
    """Split records into disjoint shards and train one teacher on each.

    Parameters
    ----------
    model : str, class, callable, estimator or torch.nn.Module
        The teachers' model: a short name (``"ridge"``, ``"logistic"``, ``"small-cnn"``, ``"mlp"``),
        an import name ``"module:attr"``, a class or factory, or an object with ``fit`` and
        ``predict`` or a torch module, of which every teacher gets its own copy.
    X : array-like of shape (n_records, …) or table
        Private records; a table is a DataFrame of pandas or polars, a table of pyarrow or a
        ``datasets.Dataset``. It reaches scikit-learn estimators as a DataFrame of pandas.
    y : array-like of shape (n_records,), or str
        Their labels, numbers or strings; or the name of their column in a table.
    teachers : int
        The number of teachers, 2 or more.
    groups : array-like of shape (n_records,) or str, optional
        The person each record belongs to, or the name of their column in a table. All records of a
        person go to one teacher, so that the guarantee protects persons rather than records.
    classes : array-like, optional
        All labels that exist. None takes those that occur in ``y``, which is right only where
        that set is public knowledge.
    settings : mapping, optional
        Keys of a recipe's ``[teachers]``: ``params``, ``epochs``, ``batch_size``, ``lr``, ….
    encoder : object with ``transform``, optional
        Applied to each shard, and by :func:`vote` to inputs. It must have been fitted on PUBLIC
        inputs, such as ``OneHotEncoder(handle_unknown="ignore").fit(public)``.
    on_error : {"raise", "abstain"}
        What happens to a teacher that cannot be trained: "raise" stops, "abstain" lets it cast no
        vote.
    random_state : int, optional
        Seeds training and the key of the partition. None draws both from the operating system.
    n_jobs : int, optional
        Processes, as in joblib. None is one.
    verbose : bool
        Show a progress bar, on a terminal or in a notebook.

    Returns
    -------
    Ensemble
        The trained teachers, for :func:`vote`. PRIVATE.

    Raises
    ------
    InvalidInput
        If records, labels and groups do not go together, or a label is not among ``classes``.
    TeacherError
        If a teacher cannot be trained and ``on_error`` is "raise", or none can.

    Guarantees:
        A record's teacher is a keyed hash of the record (or of its group) alone, so one record
        added or removed changes one teacher and no other.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> ensemble = train_teachers("ridge", X, X[:, 0] > 0, teachers=10, random_state=0)
    >>> vote(ensemble, [[3.0, 0.0], [-3.0, 0.0]]).counts
    array([[ 0, 10],
           [10,  0]])
    """
    teachers = check_whole("teachers", teachers, least=2)
    made = Model.of(model, settings)
    X, y, groups = split_frame(X, y, groups, classes=classes)
    records = Records.of(X)
    names, labels = encode_labels(y, classes, records=len(records.array))
    owners = None if groups is None else group_names(groups, len(labels))
    encoder = fitted_encoder(encoder, template=records.template)
    made = records.fitting(made) if encoder is None else made
    seed = secrets.randbits(32) if random_state is None else int(random_state)
    spec = PartitionSpec(
        key=secrets.token_hex(32) if random_state is None else f"random state {seed}",
    ).settled(grouped=owners is not None)
    shards = partition(_ids(records.array, labels), teachers=teachers, spec=spec, groups=owners)
    own = TeachersSpec(count=teachers, model="ridge", seed=seed)  # for the seeds alone
    seeds = tuple(seed_for(own, number) for number in range(own.count))
    rows = [shards.order[a:b] for a, b in zip(shards.offsets, shards.offsets[1:], strict=False)]

    def shard(own: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Encode no records of two shards together: rounding follows the shape of a batch."""
        found = records.array[own]
        return found if encoder is None else encoder.transform(found), labels[own]

    def jobs() -> Iterator[tuple[Any, ...]]:
        for group in _groups(own.count):
            given = [shard(rows[n]) if len(rows[n]) else None for n in group]
            yield made, given, len(names), [seeds[n] for n in group]

    found: list[Teacher | PateError | None] = []
    with terminal_progress("teach", own.count, quiet=not verbose, json_logs=False) as bar:
        for part in _parallel(_train_group, jobs(), n_jobs):
            found += part
            bar.advance(len(part))
    failed = [(n, each) for n, each in enumerate(found) if isinstance(each, PateError)]
    trained = tuple(None if isinstance(each, PateError) else each for each in found)
    if failed and (on_error == "raise" or not any(each is not None for each in trained)):
        raise TeacherError(f"teacher {failed[0][0]} failed: {failed[0][1]}")
    return Ensemble(
        teachers=trained,
        classes=names,
        seeds=seeds,
        neighbours=spec.neighbours,
        protects=spec.protects(named=False),
        encoder=encoder,
        columns=None if records.template is None else tuple(records.template.columns),
    )


def vote(
    ensemble: Ensemble | Sequence[Any],
    inputs: ArrayLike,
    *,
    classes: int | None = None,
    on_error: Literal["raise", "abstain"] = "raise",
    n_jobs: int | None = None,
    verbose: bool = False,
) -> Votes:
    """Count the teachers' predictions for each public input.

    Parameters
    ----------
    ensemble : Ensemble or sequence
        What :func:`train_teachers` returned, or fitted objects whose ``predict`` returns labels
        0 … classes − 1.
    inputs : array-like of shape (n_inputs, …) or table
        Public inputs, with the columns of the private records, in any order.
    classes : int, optional
        How many classes there are; needed with a sequence.
    on_error : {"raise", "abstain"}
        What happens to a teacher that cannot predict: "raise" stops, "abstain" takes its vote out
        of every count.
    n_jobs : int, optional
        Processes, as in joblib. None is one.
    verbose : bool
        Show a progress bar, on a terminal or in a notebook.

    Returns
    -------
    Votes
        Counts of shape (n_inputs, classes). PRIVATE: pass them to a mechanism's ``release``.

    Raises
    ------
    TeacherError
        If a teacher cannot predict and ``on_error`` is "raise", or none can.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> ensemble = train_teachers("ridge", X, X[:, 0] > 0, teachers=4, random_state=0)
    >>> vote(ensemble, [[3.0, 0.0]]).queries
    1
    """
    if isinstance(ensemble, Ensemble):
        teachers, seeds, width = ensemble.teachers, ensemble.seeds, len(ensemble.classes)
    else:
        if classes is None or classes < 2:
            raise InvalidInput("a sequence of teachers needs classes=, 2 or more")
        teachers, seeds, width = tuple(ensemble), tuple(range(len(ensemble))), classes
    inputs = as_frame(inputs, where="inputs")
    if isinstance(ensemble, Ensemble):
        if ensemble.columns is not None and is_frame(inputs):
            inputs = align_columns(inputs, ensemble.columns, where="inputs", others="X")
        if ensemble.encoder is not None:
            inputs = ensemble.encoder.transform(Records.of(inputs).array)
    array = Records.of(inputs).array
    counts = np.zeros((len(array), width), dtype=np.int64)
    groups = list(_groups(len(teachers)))
    jobs = (
        ([teachers[n] for n in group], array, width, [seeds[n] for n in group]) for group in groups
    )
    voting = 0
    with terminal_progress("vote", len(teachers), quiet=not verbose, json_logs=False) as bar:
        for group, (predicted, failed) in zip(
            groups, _parallel(_ask_group, jobs, n_jobs), strict=True
        ):
            for place, why in failed.items():
                if on_error == "raise":
                    raise TeacherError(f"teacher {group[place]} could not vote: {why}")
                predicted[place] = _ABSTAINS
            voting += sum(bool((each != _ABSTAINS).any()) for each in predicted)
            cells = np.arange(len(array)) * width + predicted
            cast = cells[predicted != _ABSTAINS]
            counts += np.bincount(cast, minlength=counts.size).reshape(counts.shape)
            bar.advance(len(group))
    if not voting and len(array):
        raise TeacherError("no teacher could vote; use fewer teachers, or another model")
    return Votes(counts=counts)


# --- records and labels ---------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """Records as an array; of a DataFrame also what is needed to make one again.

    Guarantees:
        Numbers are doubles and everything else is objects, so that no single record (one fraction
        among whole numbers, one longer string) decides how the others are stored or named.
    """

    array: NDArray[Any]
    template: Any = None  # a DataFrame's first no rows

    @classmethod
    def of(cls, X: Any) -> Records:
        """Take an array-like or a DataFrame, of which mixed columns become objects."""
        array = as_array(X)
        if array.ndim < 2:
            raise InvalidInput(
                f"records have shape {array.shape}; give an array with a row for each record"
            )
        if array.dtype.kind in "biuf":
            array = array.astype(np.float64, copy=False)
        else:
            array = np.frompyfunc(_as_double, 1, 1)(array.astype(object))
        return cls(array=array, template=X.iloc[:0] if is_frame(X) else None)

    def fitting(self, model: Model) -> Model:
        """Return the model as these records need it: estimators see DataFrames as such."""
        if self.template is not None and model.factory is not None:
            probe = model.build(classes=2, seed=0)
            if hasattr(probe, "estimator"):
                factory, template = model.factory, self.template
                return Model(
                    name=model.name,
                    training=model.training,
                    factory=lambda **given: FrameEstimator(factory(**given), template),
                )
        if self.array.dtype.kind not in "biuf" and (
            model.factory is None or is_torch_module(model.build(classes=2, seed=0))
        ):
            raise InvalidInput(
                f"the model {model.name!r} takes numbers only, and the records hold "
                f"{self.array.dtype}; encode them, or give an estimator that does, such as a "
                "Pipeline with a ColumnTransformer"
            )
        return model


class FrameEstimator:
    """An estimator that is given rows of a DataFrame as a DataFrame of the same columns."""

    def __init__(self, estimator: Any, template: Any) -> None:
        self.estimator = estimator
        self.template = template

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> FrameEstimator:
        """Fit the estimator to a DataFrame; a shard of one class is remembered as that class."""
        seen = np.unique(y)
        self.only_label = int(seen[0]) if len(seen) == 1 else None
        self.classes_ = seen
        if self.only_label is None:
            self.estimator.fit(self._frame(X), y)
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Predict labels."""
        if self.only_label is not None:
            return np.full(len(X), self.only_label, dtype=np.int64)
        return np.asarray(self.estimator.predict(self._frame(X)))

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Predict probabilities, where the estimator can."""
        if self.only_label is not None:
            return np.ones((len(X), 1))
        return np.asarray(self.estimator.predict_proba(self._frame(X)), dtype=np.float64)

    def _frame(self, X: NDArray[Any]) -> Any:
        return rebuild_frame(X, self.template)


def encode_labels(
    y: Any, classes: Sequence[Any] | NDArray[Any] | None, *, records: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the classes in order, and each label's place among them. No message shows a label.

    >>> encode_labels(["no", "yes", "no"], None, records=3)
    (array(['no', 'yes'], dtype='<U3'), array([0, 1, 0]))
    """
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or len(labels) != records:
        raise InvalidInput(
            f"labels have shape {labels.shape} for {records} records; give one for each record"
        )
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.trunc(labels)):
        raise InvalidInput("the labels hold fractions or NaN; labels are classes")
    if labels.dtype.kind not in "iufbUO":
        raise InvalidInput(f"the labels are {labels.dtype}; give numbers, booleans or strings")
    try:
        names = np.unique(labels) if classes is None else np.unique(np.asarray(classes))
        places = np.searchsorted(names, labels)
        known = names[np.minimum(places, len(names) - 1)] == labels
    except TypeError:
        raise InvalidInput(
            "the labels mix kinds that cannot be compared; give all as numbers or all as strings"
        ) from None
    if len(names) < 2:
        raise InvalidInput(
            f"there is {len(names)} class; a classifier needs 2 or more: name all with classes="
        )
    if not np.all(known):
        raise InvalidInput(
            "a label is not among the given classes; add it to classes=, or remove those records"
        )
    return names, places.astype(np.int64)


def _ids(array: NDArray[Any], labels: NDArray[np.int64]) -> list[str]:
    """Return a name for each record by what it holds (:func:`pate.datasets.table.record_ids`).

    Guarantees:
        A record of numbers has the same name whether or not another one holds text.
    """
    if array.dtype.kind != "O":
        return record_ids(Table(features=array, labels=labels))
    seen: Counter[str] = Counter()
    names = []
    for at, label in enumerate(labels.tolist()):
        row = array[at].ravel().tolist()
        if all(isinstance(each, float) for each in row):
            numbers = array[at : at + 1].astype(np.float64)
            (name,) = record_ids(Table(features=numbers, labels=labels[at : at + 1]))
        else:
            cells = [_cell(each) for each in row]
            name = hashlib.sha256(repr((cells, label)).encode()).hexdigest()
        names.append(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def _as_double(value: Any) -> Any:
    """Return a number as a double, so that records of equal names are equal; others unchanged."""
    return float(value) if isinstance(value, (bool, int, float, np.number, np.bool_)) else value


def _cell(value: Any) -> tuple[str, str]:
    """Return a cell by its type and value alone."""
    return type(value).__name__, value.hex() if isinstance(value, float) else str(value)


# --- groups of teachers, in this process or in others ---------------------------------------------


def _groups(count: int) -> Iterator[range]:
    return (range(start, min(start + _GROUP, count)) for start in range(0, count, _GROUP))


def _train_group(
    model: Model, shards: list[Any], classes: int, seeds: list[int]
) -> list[Teacher | PateError | None]:
    """Train some teachers; for each the teacher, what went wrong, or None without records."""
    teachers = [
        None if shard is None else model.build(classes=classes, seed=seed)
        for shard, seed in zip(shards, seeds, strict=True)
    ]
    found: list[Teacher | PateError | None] = list(teachers)
    for family in _families(teachers):
        failures = train_many(
            list(family.values()),
            [None if each is None else shards[place] for place, each in family.items()],
            seeds=[seeds[place] for place in family],
        )
        for (place, teacher), failure in zip(family.items(), failures, strict=True):
            if failure is not None and teacher is not None:
                found[place] = failure
    return found


def _ask_group(
    teachers: list[Teacher | None], inputs: NDArray[Any], classes: int, seeds: list[int]
) -> tuple[NDArray[np.int64], dict[int, PateError]]:
    """Return the labels of some teachers for all inputs, and who could not predict."""
    predicted = np.full((len(teachers), len(inputs)), _ABSTAINS, dtype=np.int64)
    failed: dict[int, PateError] = {}
    for family in _families(teachers):
        for start in range(0, len(inputs), _CHUNK):
            answers = predict_many_labels(
                list(family.values()),
                inputs[start : start + _CHUNK],
                classes=classes,
                seeds=[seeds[place] for place in family],
            )
            for place, answer in zip(list(family), answers, strict=True):
                if isinstance(answer, PateError):
                    failed[place] = answer
                    family[place] = None
                elif answer is not None:
                    predicted[place, start : start + _CHUNK] = answer
    return predicted, failed


def _families(teachers: Sequence[Teacher | None]) -> Iterator[dict[int, Teacher | None]]:
    """Yield teachers to be taken together, by their place in the group.

    Guarantees:
        A family has all places of the group, None where another teacher or none is, so an empty
        shard or a failure changes no shape, and no rounding, for the others.
    """
    for places in group_families(teachers):
        if hasattr(teachers[places[0]], "fit_many"):
            yield {p: each if p in places else None for p, each in enumerate(teachers)}
        else:
            yield from ({place: teachers[place]} for place in places)


def _parallel(
    function: Callable[..., Any], jobs: Iterator[tuple[Any, ...]], n_jobs: int | None
) -> Iterator[Any]:
    """Yield results in order; in other processes where ``n_jobs`` asks for them."""
    if n_jobs in (None, 1):
        yield from (function(*job) for job in jobs)
        return
    from joblib import Parallel, delayed

    try:
        # max_nbytes=None: shards go through pipes, so a kill leaves none of them in files
        pool = Parallel(n_jobs=n_jobs, return_as="generator", max_nbytes=None)
    except ValueError as error:
        raise InvalidInput(f"n_jobs is {n_jobs!r}: {error}") from None
    yield from pool(delayed(function)(*job) for job in jobs)
