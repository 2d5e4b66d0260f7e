"""PATE behind scikit-learn's contract: arrays in, a student and its guarantee out."""

from __future__ import annotations

import math
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pate._format import describe_neighbours, format_cost
from pate._validate import check_whole
from pate.accounting import Guarantee, Neighbours
from pate.aggregation import opened_ledger, plan_release
from pate.components import make_places
from pate.datasets.roles import shared_rows
from pate.datasets.table import Table
from pate.ensemble import (
    Model,
    Records,
    encode_labels,
    train_teachers,
    vote,
)
from pate.errors import InvalidInput
from pate.frames import (
    Encoder,
    align_columns,
    as_array,
    encode_each,
    fit_frame_encoder,
    is_frame,
    is_number,
    require_same_kinds,
    split_frame,
)
from pate.mechanisms import COUNT_MECHANISMS, BaseMechanism, CountMechanism, Mechanism, plan_table
from pate.randomness import Randomness
from pate.record_votes import VotesSpec, column_name, count_record_votes, unnamed_group
from pate.students.count_smoothing import label_inputs
from pate.students.spec import StudentSpec
from pate.students.train import METHODS, StudentData, train_student
from pate.teachers.adapters import takes_missing
from pate.teachers.protocol import predict_labels, probabilities

if TYPE_CHECKING:
    from pate.accounting import Ledger

_SEEDED = "the noise was drawn from a seed: this release is not private"
_NO_LEDGER = (
    "no ledger has recorded this release: it is the cost of this one alone, and other releases "
    "from the same records add to it"
)
_CLASSES_FROM_Y = (
    "the set of classes was read from the private labels; name all classes with classes="
)


def _shared(records: Records, inputs: Records) -> int:
    """Return how many public inputs equal a private record; a gap equals another."""
    private, public = np.asarray(records), np.asarray(inputs)
    if all(each.dtype.kind in "biuf" for each in (private, public)):
        tables = (Table(features=each, labels=None) for each in (private, public))
        return shared_rows(*tables)

    def rows(values: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        flat = values.reshape(len(values), -1).tolist()
        return (tuple(None if cell != cell else cell for cell in row) for row in flat)  # NaN

    known = set(rows(private))
    return sum(row in known for row in rows(public))


def _standard_student() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def _has_probabilities(self: PATEClassifier) -> bool:
    return hasattr(self, "student_") and hasattr(self.student_, "predict_proba")


class PATEClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns from private records by Private Aggregation of Teacher Ensembles.

    ``fit`` splits the private records into disjoint shards, trains a teacher on each, lets the
    teachers vote on public inputs, releases noisy labels, and trains a student on those. Only the
    student, the labels and the guarantee are kept: they may be published. Teachers and votes are
    dropped.

    With ``votes="records"`` there are no teachers: every record votes for its own class at the
    public inputs nearest to it, and the table of these votes is released once, with noise on every
    count. That is pure differential privacy (δ = 0), and better where near records share a class.

    The plan (noise, and the most queries) is fixed from public numbers before any vote is counted.
    The guarantee is the one of the plan, so it does not depend on the data, and holds for one
    record added or removed (with ``groups``: for all records of one person).

    Parameters
    ----------
    teachers : int, default=250
        The number of teachers. More teachers allow more noise, and leave each fewer records.
    teacher : str, class, callable, estimator or torch.nn.Module, default="ridge"
        The teachers' model: "ridge", "logistic", an import name "module:attr", a class or factory,
        or an object, of which every teacher trains its own copy.
    mechanism : str, Mechanism or CountMechanism, optional
        How votes become labels: "gnmax" (the default), "lnmax" or "gumbel", Gaussian, Laplace or
        Gumbel noisy-max, or an object such as
        ``pate.ConfidentGnmax(threshold=…, sigma1=…, sigma2=…)``. With ``votes="records"``:
        "laplace-counts" (the default) or "gaussian-counts" (with ``components``), or an object of
        these.
    epsilon : float or None, default=1.0
        What one call of ``fit`` may cost. None sets no limit where the noise is given.
    delta : float, default=1e-5
        δ of the guarantee: well below one over the number of records. That of "laplace-counts" is
        0, whatever is given here.
    student : str, class, callable, estimator or torch.nn.Module, default="self-training"
        A method ("supervised", "self-training", "fixmatch", "mixmatch", "gan") with its standard
        model, or a model, which is fitted to the released labels.
    votes : {"teachers", "records"}, default="teachers"
        Who votes on the public inputs.
    cells : int or "auto", optional
        Clusters of public inputs at which records vote; by default at every public input. "auto":
        as few as the noise demands, by ``expected_records``
        (:func:`pate.record_votes.automatic_cells`).
    components : int or "auto", optional
        Components of a kernel of the public inputs along which records vote, in place of cells,
        with ``mechanism="gaussian-counts"``. "auto": as many as the noise allows, by
        ``expected_records`` (:func:`pate.record_votes.automatic_components`).
    expected_records : int, optional
        With ``cells="auto"`` or ``components="auto"``, about how many private records will vote: a
        public number, agreed beforehand and never counted.
    reach : int, default=1
        Nearest cells among which a record splits its one vote. Nearness is the Euclidean distance
        of features as they are given: scale them first.
    per_user : int, default=1
        With ``groups`` and ``votes="records"``, the most records of a person that vote.
    queries : int, optional
        The most public inputs to ask about. By default as many as the noise allows.
    noise : float, optional
        σ ("gnmax", "gaussian-counts") or scale (the others) in votes. By default the least noise
        with which ``queries`` fit ``epsilon``; without ``queries`` a fifth of the teachers.
    encoder : list of str or dict, or transformer, optional
        Turns records into features, for tables with text and gaps: steps as in a recipe's
        ``[encoder]``, such as ``["one-hot", "impute", "standardise"]``, or a transformer of
        scikit-learn. It is fitted on ``public`` alone; a category that no public input has is
        unknown.
    classes : array-like, optional
        All labels that exist. By default those in ``y``; the guarantee then carries a caveat and
        is not publishable, because one record can add a class.
    teacher_params : dict, optional
        Keys of a recipe's ``[teachers]``: ``params`` (arguments of the model), ``epochs``,
        ``batch_size``, ``lr``, ``optimizer``, ``weight_decay``.
    student_params : dict, optional
        Keys of a recipe's ``[student]``, such as ``model``, ``method``, ``params``, ``epochs``.
    on_error : {"raise", "abstain"}, default="raise"
        What becomes of a teacher that fails: "raise" stops, "abstain" lets it cast no vote.
    n_jobs : int, optional
        Processes that train and ask teachers, as in joblib. The result does not depend on it.
    random_state : int, RandomState instance or None, default=None
        Seeds the partition, which inputs are asked about, and training. It never seeds noise.
    insecure_seed : int, optional
        Seeds the noise, for tests: the result is NOT PRIVATE, and its guarantee carries a caveat.
    verbose : bool, default=False
        Show progress bars, on a terminal or in a notebook.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    guarantee_ : Guarantee
        (ε, δ) of this fit, and between whom it holds. Without a ledger, a note states that nothing
        has recorded it.
    labels_ : ndarray of shape (n_labels,)
        The released labels.
    labelled_ : ndarray of shape (n_labels,)
        The rows of ``public`` that they belong to.
    mechanism_ : Mechanism or CountMechanism
        The mechanism with the noise that was used.
    plan_ : Plan
        The most queries and answers, fixed before votes were counted.
    encoder_ : object
        The encoder, fitted on public inputs; None without one.
    student_ : object
        The trained student; it predicts places in ``classes_`` from features.
    table_ : NoisedCounts
        With ``votes="records"``, the noised counts; they may be published and used again.
    protects_ : str
        In words, between which data sets the guarantee holds.
    n_features_in_ : int
        The number of features seen in ``fit``.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, where X has names.

    Notes
    -----
    Each call of ``fit`` is a release of its own and costs its own ε; fitting twice with one ledger
    charges it twice. Cross-validation fits many times.

    Examples
    --------
    >>> import numpy as np, pate
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(5000, 2)); y = np.where(X.sum(axis=1) > 0, "yes", "no")
    >>> U = rng.normal(size=(500, 2))
    >>> clf = pate.PATEClassifier(teachers=100, epsilon=1.0, random_state=0).fit(X, y, public=U)
    >>> clf.predict([[2.0, 1.0], [-2.0, -1.0]])
    array(['yes', 'no'], dtype='<U3')
    >>> clf.guarantee_.epsilon <= 1.0, clf.guarantee_.neighbours.value
    (True, 'add-remove')
    """

    def __init__(
        self,
        teachers: int = 250,
        teacher: Any = "ridge",
        mechanism: str | Mechanism | CountMechanism | None = None,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        student: Any = "self-training",
        *,
        votes: str = "teachers",
        cells: int | Literal["auto"] | None = None,
        components: int | Literal["auto"] | None = None,
        expected_records: int | None = None,
        reach: int = 1,
        per_user: int = 1,
        queries: int | None = None,
        noise: float | None = None,
        encoder: Any = None,
        classes: Any = None,
        teacher_params: Mapping[str, Any] | None = None,
        student_params: Mapping[str, Any] | None = None,
        on_error: str = "raise",
        n_jobs: int | None = None,
        random_state: Any = None,
        insecure_seed: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.teachers = teachers
        self.teacher = teacher
        self.mechanism = mechanism
        self.epsilon = epsilon
        self.delta = delta
        self.student = student
        self.votes = votes
        self.cells = cells
        self.components = components
        self.expected_records = expected_records
        self.reach = reach
        self.per_user = per_user
        self.queries = queries
        self.noise = noise
        self.encoder = encoder
        self.classes = classes
        self.teacher_params = teacher_params
        self.student_params = student_params
        self.on_error = on_error
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.insecure_seed = insecure_seed
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        public: Any = None,
        groups: Any = None,
        ledger: str | os.PathLike[str] | Ledger | None = None,
        accept_overlap: bool = False,
    ) -> Self:
        """Train teachers on private records, release labels of public inputs, train the student.

        Parameters
        ----------
        X : array-like of shape (n_records, n_features) or (n_records, …), or table
            Private records. A table is a DataFrame of pandas or polars, a table of pyarrow or a
            ``datasets.Dataset``.
        y : array-like of shape (n_records,), or str
            Their labels: whole numbers, booleans or strings; or the name of their column in X.
        public : array-like of shape (n_inputs, n_features) or table
            Public inputs without labels, with the columns of X. Required. Where labels and groups
            are columns of X, those of public are not used.
        groups : array-like of shape (n_records,) or str, optional
            The person each record belongs to, or the name of their column in X; the guarantee then
            protects persons. Releases in a ledger add up for the same persons where this is a
            column of the same name.
        ledger : str, path or Ledger, optional
            The ledger of the private data set. It is charged before noise is drawn, and a charge
            past its budget is refused. A file that does not exist is created without a budget.
        accept_overlap : bool, default=False
            Take public inputs that equal private records. They are refused otherwise: nobody in a
            public input is protected. Set it where equal rows are different people, as in tables of
            few values.

        Returns
        -------
        PATEClassifier
            The fitted classifier.

        Raises
        ------
        InvalidInput
            If an argument breaks a rule, such as a missing ``public``, or if public inputs are
            among the private records. That message has their number, a fact about private records.
        BudgetExceeded
            If ``epsilon`` does not cover one answer, or the ledger's budget does not cover the
            plan. Nothing is charged then.
        """
        if public is None:
            raise InvalidInput(
                "fit needs public=, inputs without labels that the teachers vote on and the "
                "student learns from; give fit(X, y, public=U)"
            )
        if self.on_error not in ("raise", "abstain"):
            raise InvalidInput(f"on_error is {self.on_error!r}; it is 'raise' or 'abstain'")
        if self.insecure_seed is not None and ledger is not None:
            raise InvalidInput(
                "insecure_seed= makes a release that is not private, and no ledger covers it; "
                "leave one of the two out"
            )
        self._named = [each for each in (y, groups) if isinstance(each, str)]
        X, y, groups = split_frame(X, y, groups, classes=self.classes)
        records, y = self._validated(X, y)
        check_classification_targets(y)
        names, _ = encode_labels(y, self.classes, records=len(y))
        inputs = self._compared(public, "public")
        if is_frame(X) and is_frame(inputs):
            require_same_kinds(X, inputs)
        self.encoder_: Encoder | None = None
        if self.encoder is not None:
            self.encoder_ = fit_frame_encoder(self.encoder, inputs)
        if not accept_overlap and (shared := _shared(records, inputs)):
            raise InvalidInput(
                f"{shared} of {len(inputs)} public inputs are among the private records too; "
                "remove them there, or, if equal rows are different people, give "
                "accept_overlap=True"
            )
        if self.votes not in ("teachers", "records"):
            raise InvalidInput(f"votes is {self.votes!r}; it is 'teachers' or 'records'")
        if self.votes == "records":
            return self._fit_by_records(records, y, inputs, names, groups, ledger)
        if isinstance(self.teachers, int | np.integer) and self.teachers > len(y):
            warnings.warn(
                f"{self.teachers} teachers are more than the records: most have one record or "
                "none, and abstain; lower teachers=",
                stacklevel=2,
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        features = self._encoded(inputs)
        student, spec = self._student(features, seed)
        self._require_complete(features, Model.of(self.teacher, self.teacher_params), "teachers")
        mechanism, plan = plan_release(
            "gnmax" if self.mechanism is None else self.mechanism,  # type: ignore[arg-type]
            epsilon=self.epsilon,
            delta=self.delta,
            inputs=len(inputs),
            teachers=self.teachers,
            classes=len(names),
            queries=self.queries,
            noise=self.noise,
        )
        if ledger is not None:
            with opened_ledger(ledger, plan) as opened:  # before hours of training
                opened.require_room(plan.events, records=Neighbours.ADD_REMOVE)
        ensemble = train_teachers(
            self.teacher,
            records,
            y,
            teachers=self.teachers,
            groups=groups,
            classes=names,
            settings=self.teacher_params,
            encoder=self.encoder_,
            on_error=self.on_error,  # type: ignore[arg-type]
            random_state=seed,
            n_jobs=self.n_jobs,
            verbose=self.verbose,
        )
        rows = np.sort(np.random.default_rng(seed).permutation(len(inputs))[: plan.queries])
        votes = vote(
            ensemble,
            inputs.iloc[rows] if is_frame(inputs) else inputs[rows],
            on_error=self.on_error,  # type: ignore[arg-type]
            n_jobs=self.n_jobs,
            verbose=self.verbose,
        )
        randomness = Randomness.open(insecure_seed=self.insecure_seed)
        if ledger is not None:
            with opened_ledger(ledger, plan) as opened:
                release = f"labels {secrets.token_hex(12)}"
                opened.charge(
                    plan.events,
                    release=release,
                    records=ensemble.neighbours,
                    group=_column(groups, release),
                )
        drawn = mechanism.release(votes, rng=randomness.generator, most_answers=plan.answers)
        self.classes_, self.protects_ = names, ensemble.protects
        self.mechanism_: BaseMechanism = mechanism
        self.plan_ = plan
        # Persons are hashed, so that one added or removed changes one teacher, as one record does.
        protected = ensemble.neighbours if groups is None else Neighbours.USER_ADD_REMOVE
        self.guarantee_ = self._stated(
            replace(plan.guarantee, neighbours=protected), randomness, ledger
        )
        self.labels_, self.labelled_ = names[drawn.labels], rows[drawn.answered]
        if not len(drawn.labels):
            raise InvalidInput(
                "no label was released, so there is nothing for a student to learn from; lower the "
                "threshold of the mechanism"
            )
        data = StudentData(
            inputs=np.asarray(features),
            rows=self.labelled_,
            labels=drawn.labels,
            classes=len(names),
        )
        self.student_ = train_student(spec, data, factory=student.factory)
        return self

    def _stated(self, guarantee: Guarantee, randomness: Randomness, ledger: Any) -> Guarantee:
        """Return the guarantee with what limits it, and what to read with it."""
        return replace(
            guarantee,
            caveats=(
                *(() if randomness.secure else (_SEEDED,)),
                *(() if self.classes is not None else (_CLASSES_FROM_Y,)),
            ),
            notes=(_NO_LEDGER,) if ledger is None else (),
        )

    def _fit_by_records(
        self,
        records: Any,
        y: NDArray[Any],
        inputs: Any,
        names: NDArray[Any],
        groups: Any,
        ledger: str | os.PathLike[str] | Ledger | None,
    ) -> Self:
        """Fit where every record votes itself."""
        section = self._section()
        features = self._encoded(inputs)
        if self.encoder_ is not None:
            records = encode_each(self.encoder_, records)
        points, public = (Records.of(each).array for each in (records, features))
        if points.dtype.kind != "f" or public.dtype.kind != "f":
            raise InvalidInput(
                "a column does not hold numbers, and records vote by the distance of features; "
                "encode it, or leave it out"
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        student, spec = self._student(features, seed)
        per_user = None if groups is None else self.per_user
        mechanism = self._count_mechanism(per_user)
        plan = plan_table(
            mechanism,
            epsilon=self.epsilon,
            delta=0.0 if mechanism.pure else self.delta,
            inputs=len(public),
            reach=self.reach,
            per_user=per_user,
            components=section.components is not None,
        )
        resolved = section.resolved(
            inputs=len(public),
            classes=len(names),
            deviation=math.sqrt(mechanism.variance(reach=self.reach)) / self.reach,
        )
        places = make_places(public, resolved, seed=seed)
        _, labels = encode_labels(y, self.classes, records=len(y))
        votes = count_record_votes(
            points,
            labels,
            cells=places,
            classes=len(names),
            reach=self.reach,
            groups=groups,
            per_user=self.per_user,
        )
        randomness = Randomness.open(insecure_seed=self.insecure_seed)
        if ledger is not None:
            with opened_ledger(ledger, plan) as opened:
                release = f"table {secrets.token_hex(12)}"
                opened.charge(
                    plan.events,
                    release=release,
                    records=votes.neighbours,
                    group=_column(groups, release),
                )
        self.table_ = mechanism.release(votes, rng=randomness.generator).table
        soft = label_inputs(self.table_, places=places, features=public)
        self.classes_, self.protects_ = names, describe_neighbours(votes.neighbours)
        self.mechanism_, self.plan_ = mechanism, plan
        self.guarantee_ = self._stated(plan.guarantee, randomness, ledger)
        self.labels_, self.labelled_ = names[soft.labels], np.arange(len(public))
        data = StudentData(
            inputs=np.asarray(features),
            rows=self.labelled_,
            labels=soft.labels,
            classes=len(names),
            soft=soft.probabilities,
            weights=soft.confidence,
        )
        self.student_ = train_student(spec, data, factory=student.factory)
        return self

    def _section(self) -> VotesSpec:
        """Return how records vote as a recipe's section, whose rules hold here, too."""
        keys = ("cells", "components", "expected_records", "reach")
        given: dict[str, Any] = {key: getattr(self, key) for key in keys}
        for key, value in given.items():
            if value is not None and not isinstance(value, str):
                given[key] = check_whole(key, value)
        try:
            return VotesSpec(by="records", **given)
        except ValidationError as error:
            found = error.errors(include_url=False)[0]
            name = "".join(f"{each}: " for each in found["loc"][:1])
            raise InvalidInput(name + found["msg"].removeprefix("Value error, ")) from None

    def _count_mechanism(self, per_user: int | None) -> CountMechanism:
        """Return the mechanism of a table, with the noise that is given or fits ``epsilon``."""
        if isinstance(self.mechanism, CountMechanism):
            if self.noise is not None:
                raise InvalidInput("the mechanism has its own noise; leave noise= out")
            return self.mechanism
        default = "laplace-counts" if self.components is None else "gaussian-counts"
        name = default if self.mechanism is None else self.mechanism
        kind = COUNT_MECHANISMS.get(name) if isinstance(name, str) else None
        if kind is None:
            known = ", ".join(map(repr, COUNT_MECHANISMS))
            raise InvalidInput(f"mechanism is {name!r}; with votes='records' it is one of {known}")
        if self.queries is not None:
            raise InvalidInput("votes='records' labels all public inputs; leave queries= out")
        noise = self.noise
        if noise is None:
            if self.epsilon is None:
                raise InvalidInput("give epsilon=, or noise=, which decides it")
            noise = kind.least_noise(
                epsilon=self.epsilon, delta=self.delta, reach=self.reach, per_user=per_user
            )
        return kind.from_keys({str(kind.calibrated): noise})

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict labels with the student.

        Parameters
        ----------
        X : array-like of shape (n_inputs, n_features) or table
            Inputs; columns of a table are found by name.

        Returns
        -------
        ndarray of shape (n_inputs,)
            One of ``classes_`` for each input.
        """
        check_is_fitted(self, "student_")
        array = np.asarray(self._encoded(self._compared(X, "X")))
        places = predict_labels(self.student_, array, classes=len(self.classes_), private=False)
        return np.asarray(self.classes_[places])

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the probability of each class, where the student can.

        Parameters
        ----------
        X : array-like of shape (n_inputs, n_features) or table
            Inputs; columns of a table are found by name.

        Returns
        -------
        ndarray of shape (n_inputs, n_classes)
            Probabilities, in the order of ``classes_``.
        """
        check_is_fitted(self, "student_")
        array = np.asarray(self._encoded(self._compared(X, "X")))
        return probabilities(self.student_, array, classes=len(self.classes_))

    def report(self, file: str | os.PathLike[str]) -> Path:
        """Write what was released as one HTML page, which may be published with the student.

        Parameters
        ----------
        file : str or path
            The page to write.

        Returns
        -------
        Path
            The file.
        """
        check_is_fitted(self, "student_")
        path = Path(file)
        try:
            path.write_text(_page(self), encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"cannot write {path}: {error.strerror}") from error
        return path

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.insecure_seed is None  # the noise is secure
        return tags

    # --- input --------------------------------------------------------------------------------

    def _validated(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        """Check the private records and remember their shape."""
        if self._is_raw(X):
            validate_data(self, X, skip_check_array=True)
            X = X if is_frame(X) else as_array(X)
            self._shape = _record_shape(X)
            return X, np.asarray(y).ravel()
        try:
            array, labels = validate_data(self, X, y, allow_nd=True, dtype="numeric")
        except ValueError as error:
            if "could not convert" not in str(error):
                raise
        else:
            self._shape = array.shape[1:]
            return (X if is_frame(X) else array), np.asarray(labels)
        # Outside the handler: the message of the other quotes a private value.
        raise InvalidInput("X holds text; give a table with encoder=, or numbers alone")

    def _compared(self, X: Any, name: str) -> Any:
        """Check inputs against the private records."""
        (X, *_) = split_frame(X, *self._named, where=name, missing_ok=True)
        if is_frame(X) and hasattr(self, "feature_names_in_"):
            others = "X" if name == "public" else "the table of fit"
            X = align_columns(X, self.feature_names_in_, where=name, others=others)
        if self._is_raw(X):
            validate_data(self, X, skip_check_array=True, reset=False)
            X = X if is_frame(X) else as_array(X)
            if _record_shape(X) != self._shape:
                raise InvalidInput(
                    f"{name} has records of shape {_record_shape(X)}, and the private ones have "
                    f"{self._shape}; give the same columns in both"
                )
            return X
        if name == "public":
            array = check_array(X, allow_nd=True, dtype="numeric")
            if array.shape[1:] != self._shape:
                raise InvalidInput(
                    f"public has records of shape {array.shape[1:]} and X of {self._shape}; give "
                    "the same columns in both"
                )
        else:
            array = validate_data(self, X, reset=False, allow_nd=True, dtype="numeric")
        return X if is_frame(X) else array

    def _is_raw(self, X: Any) -> bool:
        """Return whether records are for the encoder, or hold columns that are not numbers."""
        return self.encoder is not None or (is_frame(X) and not all(map(is_number, X.dtypes)))

    def _encoded(self, inputs: Any) -> Any:
        """Return what teachers and the student see of inputs."""
        return inputs if self.encoder_ is None else self.encoder_.transform(inputs)

    def _student(self, inputs: Any, seed: int) -> tuple[Model, StudentSpec]:
        """Return how to make the student and its section, checked before anything is charged."""
        given = dict(self.student_params or {})
        unknown = given.keys() - StudentSpec.model_fields.keys()
        if unknown:
            raise InvalidInput(
                f"student_params has no key {sorted(unknown)[0]!r}; its keys are those of a "
                f"recipe's [student]: {', '.join(StudentSpec.model_fields)}"
            )
        model: Any = self.student
        if isinstance(self.student, str) and self.student in METHODS:
            given.setdefault("method", self.student)
            model = given.pop("model", None)
            if model is None and self.student in ("supervised", "self-training"):
                model = _standard_student
            elif model is None:
                model = "small-cnn" if np.asarray(inputs).ndim > 2 else "mlp"
        elif "model" in given:
            raise InvalidInput(
                "student= is a model already; leave 'model' out of student_params, or give a "
                "method as student="
            )
        params = {"params": given.pop("params")} if "params" in given else {}
        made = Records.of(inputs).fitting(Model.of(model, params))
        try:
            spec = StudentSpec(**{"seed": seed} | given | params | {"model": made.training.model})
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidInput(
                f"student_params: {'.'.join(map(str, first['loc']))} {first['msg']}"
            ) from None
        made.build(classes=2, seed=seed)  # a model that cannot be made is found before it costs
        if spec.method != "supervised":
            self._require_complete(inputs, None, f"a {spec.method} student")
        self._require_complete(inputs, made, "the student")
        return made, spec

    def _require_complete(self, features: Any, model: Model | None, who: str) -> None:
        """Refuse gaps in features that a model does not take, before anything is charged."""
        if self.encoder_ is None or not np.isnan(features).any():
            return
        width = features.shape[1]
        if model is None or not takes_missing(model.build(classes=2, seed=0), width=width):
            raise InvalidInput(
                f"features of public have missing values, and the model of {who} takes none; add "
                "'impute' to encoder=, or choose a model that takes them"
            )


def _column(groups: Any, release: str) -> str | None:
    """Return the column of whose groups a release protects all records, for its charge."""
    return None if groups is None else column_name(groups) or unnamed_group(release)


def _record_shape(X: Any) -> tuple[int, ...]:
    return (len(X.columns),) if is_frame(X) else X.shape[1:]


def _page(clf: PATEClassifier) -> str:
    """Return a page of released values only; every text is escaped."""
    from pate.report.templates import template

    plan = clf.plan_
    voters = [
        ("Teachers", f"{clf.teachers} × {Model.of(clf.teacher, clf.teacher_params).name}"),
        ("Plan", f"at most {plan.queries} queries and {plan.answers} answers"),
    ]
    if clf.votes == "records":
        width, classes = clf.table_.counts.shape
        where, what = "at the nearest public inputs", "counts"
        if clf.components is not None:
            where, what = "along components of the public inputs", "sums"
        voters = [
            ("Votes", f"one of every private record, {where}"),
            ("Plan", f"one table of {width} × {classes} noised {what}"),
        ]
    rows = [
        voters[0],
        ("Mechanism", repr(clf.mechanism_)),
        voters[1],
        ("Student", clf.student if isinstance(clf.student, str) else Model.of(clf.student).name),
    ]
    return template("pate.report", "classifier.html.j2").render(
        guarantee=clf.guarantee_,
        cost=format_cost(clf.guarantee_.epsilon, clf.guarantee_.delta),
        protects=clf.protects_,
        rows=rows,
        counts=[(name, int((clf.labels_ == name).sum())) for name in clf.classes_],
    )
