"""From a model's name to a teacher: scikit-learn, torch, or the user's own class.

Neither library is imported for the test: an object of a library can exist only where the library
is loaded already.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import InvalidInput, PateError
from pate.plugins import resolve
from pate.teachers.placement import isolated_randomness, out_of_memory, short_of_memory
from pate.teachers.protocol import Teacher, guarded
from pate.teachers.spec import ENTRY_POINTS, ModelSpec, Training
from pate.untrusted import make_untrusted

if TYPE_CHECKING:
    from pate.teachers.torch_teacher import TorchTeacher

# Arguments that a class or factory is given by name, where the recipe leaves them out.
_SEEDS = ("random_state", "seed")
_CLASSES = ("classes", "num_classes", "n_classes")

# Teachers that come with the framework, by their short names.
BUILT_IN = {
    "logistic": "pate.teachers.linear:LogisticTeacher",
    "ridge": "pate.teachers.linear:RidgeTeacher",
}


@final
class SklearnTeacher:
    """A teacher around an estimator, which sees features flattened to (n, features).

    Many estimators refuse labels of a single class. A shard may hold just one: then the teacher
    predicts that class, and the estimator is not used.
    """

    def __init__(self, estimator: Any, *, home: str = "") -> None:
        self.estimator = estimator
        self.home = home  # the module that the recipe names: its classes may be loaded
        self.only_label: int | None = None

    @property
    def classes_(self) -> NDArray[np.int64]:
        """The labels that the estimator has seen, in the order of its probabilities."""
        if self.only_label is not None:
            return np.array([self.only_label])
        return np.asarray(self.estimator.classes_)

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> SklearnTeacher:
        labels = np.asarray(y)
        seen = np.unique(labels)
        self.only_label = int(seen[0]) if len(seen) == 1 else None
        if self.only_label is None:
            weights = {}
            if sample_weight is not None:
                from sklearn.utils.validation import has_fit_parameter

                if has_fit_parameter(self.estimator, "sample_weight"):
                    weights = {"sample_weight": np.asarray(sample_weight)}
            self.estimator.fit(_flat(X), labels, **weights)
        return self

    def predict(self, X: ArrayLike) -> ArrayLike:
        if self.only_label is not None:
            return np.full(len(np.asarray(X)), self.only_label, dtype=np.int64)
        return np.asarray(self.estimator.predict(_flat(X)))

    def __getattr__(self, name: str) -> Any:
        # Only some estimators have probabilities: ``hasattr`` must be right about them.
        if name == "predict_proba" and hasattr(self.estimator, "predict_proba"):
            return self._probabilities
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def _probabilities(self, X: ArrayLike) -> NDArray[np.float64]:
        if self.only_label is not None:
            return np.ones((len(np.asarray(X)), 1))
        return np.asarray(self.estimator.predict_proba(_flat(X)), dtype=np.float64)


def _flat(X: ArrayLike) -> NDArray[Any]:
    records = np.asarray(X)
    return records if records.ndim == 2 else records.reshape(len(records), -1)


def make(model: ModelSpec, *, classes: int, seed: int, plugin_path: Path | None = None) -> Teacher:
    """Return an untrained teacher for the model that a recipe names.

    The model is ``"ridge"``, ``"logistic"``, a class or a factory. If it has an argument
    ``random_state`` or ``seed``, ``classes``, ``num_classes`` or ``n_classes`` that ``params``
    leaves out, it is passed.

    >>> spec = ModelSpec(model="sklearn.tree:DecisionTreeClassifier", params={"max_depth": 3})
    >>> make(spec, classes=10, seed=7).estimator
    DecisionTreeClassifier(max_depth=3, random_state=7)
    """
    if model.model in BUILT_IN:
        target = resolve(BUILT_IN[model.model])
    else:
        target = _resolve(model.model, plugin_path)
    return build(target, model, classes=classes, seed=seed)


def build(target: Any, training: Training, *, classes: int, seed: int) -> Teacher:
    """Return an untrained teacher from a class or a factory.

    Guarantees:
        Each call returns an independent teacher: a copy of what the factory returns, so that
        layers, arrays or whole objects that it returns twice are not trained twice. An object
        named in place of a class is refused; so is an object that cannot be copied, if it is a
        torch module or is returned again.
    """
    made = independent_copy(make_model(target, training, classes=classes, seed=seed))
    if is_torch_module(made) and not _is_teacher(made):
        from pate.teachers.torch_teacher import TorchTeacher

        if training.channels == "first":
            from pate.teachers.channels import ChannelsFirst

            made = ChannelsFirst(made)
        return TorchTeacher(made, training=training, classes=classes, seed=seed)
    if is_sklearn(made):
        _seed_parts(made, seed)
        if {"lightgbm", "xgboost"} & sys.modules.keys():
            from pate.teachers.boosting import BoostedClassifier, library_of, make_repeatable

            make_repeatable(made)
            made = BoostedClassifier(made) if library_of(made) else made
        return SklearnTeacher(made, home=_module_of(target))
    teacher: Teacher = made
    return teacher


def takes_missing(teacher: Any, *, width: int) -> bool:
    """Return whether a model takes records with missing values (NaN), of so many columns.

    An estimator is tried on a few random records. A class of the user's own, and a torch module,
    takes them if it has an attribute ``takes_missing`` that is true.
    """
    if not isinstance(teacher, SklearnTeacher):
        module = teacher.module if is_torch_teacher(teacher) else teacher
        return bool(getattr(module, "takes_missing", False))
    records = np.random.default_rng(0).normal(size=(40, width))
    records[::3] = np.nan
    trial = SklearnTeacher(copy.deepcopy(teacher.estimator))
    try:
        guarded("fit", lambda: trial.fit(records, np.arange(40) % 2), private=False)
        guarded("predict", lambda: trial.predict(records), private=False)
    except PateError:
        return False
    return True


def make_model(target: Any, training: Training, *, classes: int, seed: int) -> Any:
    """Call a class or factory; return its torch module, estimator or teacher."""
    name = getattr(target, "__qualname__", type(target).__qualname__)
    if not callable(target) or is_torch_module(target) or is_sklearn(target):
        raise InvalidInput(
            f"the model is one {name} object; name its class or a function that makes one, so that "
            "every teacher is its own"
        )
    arguments = dict(training.params) | _offered_arguments(target, training.params, classes, seed)
    with isolated_randomness(seed):
        made = _call(target, arguments, name=name)  # torch draws the first weights here
    if not is_torch_module(made) and not _is_teacher(made):
        raise InvalidInput(
            f"the model {name} makes a {type(made).__name__}, which has no fit and predict; "
            "a teacher has both, or is a torch module"
        )
    return made


# Objects that could not be copied, while they are alive: none may be returned twice.
_UNCOPIED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def independent_copy(made: Any) -> Any:
    """Return a copy that shares nothing with objects that its factory keeps.

    >>> class Shares:
    ...     memory = [0]
    ...     def __init__(self): self.memory = Shares.memory
    >>> independent_copy(Shares()).memory is Shares.memory
    False
    """
    kind = type(made).__name__
    try:
        copied = copy.deepcopy(made)
    except Exception as error:  # no data has been seen; and any class may fail in its own way
        if is_torch_module(made):
            raise InvalidInput(
                f"the model {kind} cannot be copied ({type(error).__name__}), so it may share "
                "weights with another teacher; make it of layers that copy.deepcopy takes"
            ) from error
        copied = made
    if copied is not made:
        return copied
    if is_torch_module(made) or _UNCOPIED.get(id(made)) is made:
        raise InvalidInput(
            f"the model returned one {kind} object again; every call must make a new one, so that "
            "every teacher is its own"
        )
    try:
        _UNCOPIED[id(made)] = made
    except TypeError:
        raise InvalidInput(
            f"the model {kind} can neither be copied nor referenced weakly, so teachers may "
            "share it; make it work with copy.deepcopy, or add '__weakref__' to its __slots__"
        ) from None
    return made


def _resolve(name: str, plugin_path: Path | None) -> Any:
    try:
        return resolve(name, path=plugin_path, group=ENTRY_POINTS)
    except InvalidInput as error:
        if ":" in name:
            raise
        known = " and ".join(repr(each) for each in BUILT_IN)
        raise InvalidInput(f"{error}; built in are {known}") from None


def takes_seed(target: Any) -> bool:
    """Return whether a class or factory has an argument for a seed."""
    return bool(_offered_arguments(target, {}, 0, 0).keys() & set(_SEEDS))


def _module_of(target: Any) -> str:
    """Return the module that defines a class or factory."""
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(target, "__module__", ""))


def is_torch_module(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.nn.Module)


def is_torch_teacher(thing: Any) -> TypeGuard[TorchTeacher]:
    module = sys.modules.get("pate.teachers.torch_teacher")
    return module is not None and isinstance(thing, module.TorchTeacher)


def is_sklearn(thing: Any) -> bool:
    base = sys.modules.get("sklearn.base")
    return base is not None and isinstance(thing, base.BaseEstimator)


def _is_teacher(thing: Any) -> bool:
    return all(callable(getattr(thing, name, None)) for name in ("fit", "predict"))


def _offered_arguments(target: Any, params: Any, classes: int, seed: int) -> dict[str, Any]:
    try:
        accepted = _arguments(target)
    except TypeError:  # a callable object that is not hashable
        accepted = _arguments.__wrapped__(target)
    offers = dict.fromkeys(_SEEDS, seed) | dict.fromkeys(_CLASSES, classes)
    return {
        name: value for name, value in offers.items() if name in accepted and name not in params
    }


@functools.lru_cache(maxsize=64)
def _arguments(target: Any) -> frozenset[str]:
    """Return the argument names of a class or factory; looked up once, not for every teacher."""
    try:
        return frozenset(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # some compiled classes have no signature
        return frozenset()


def _call(target: Callable[..., Any], arguments: dict[str, Any], *, name: str) -> Any:
    def made() -> Any:
        try:
            found = target(**arguments)
            if is_sklearn(found) and hasattr(found, "_parameter_constraints"):
                found._validate_params()  # otherwise a bad parameter is found only in fit
            return found
        except Exception as error:
            if not short_of_memory(error):
                raise
        raise out_of_memory()

    failure = f"the model {name} cannot be made with params {sorted(arguments)}"
    return make_untrusted(failure, made, error=InvalidInput)


def _seed_parts(estimator: Any, seed: int) -> None:
    """Set every ``random_state`` that is None, also inside pipelines and ensembles."""
    unseeded = {
        name: seed
        for name, value in estimator.get_params(deep=True).items()
        if value is None and name.rpartition("__")[2] == "random_state"
    }
    if unseeded:
        estimator.set_params(**unseeded)
