"""The contract suite of teachers: call it in the tests of your own classes.

>>> from sklearn.tree import DecisionTreeClassifier
>>> check_teacher(DecisionTreeClassifier)
"""

from __future__ import annotations

import contextlib
import functools
import io
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import PateError
from pate.teachers.adapters import SklearnTeacher, build, make_model, takes_seed
from pate.teachers.persist import restore, save
from pate.teachers.placement import isolated_randomness
from pate.teachers.protocol import Teacher, checked_labels
from pate.teachers.spec import Training
from pate.teachers.torch_teacher import TorchTeacher

_Array = NDArray[Any]


def check_teacher(
    factory_or_class: Any,
    *,
    classes: int = 3,
    features: int = 8,
    records: int = 60,
    seed: int = 0,
    params: dict[str, Any] | None = None,
    inputs: ArrayLike | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Check a teacher class, or a factory of teachers, against every rule of a teacher.

    scikit-learn classes, torch modules and your own classes are built as a recipe builds them.
    The data are made up or examples, so messages may quote them.

    Parameters
    ----------
    factory_or_class : callable
        The class, or a function that returns a new teacher; not an object.
    classes : int
        The number of classes of the made-up data.
    features : int
        The number of features.
    records : int
        The number of records.
    seed : int
        The seed of the data and of the teachers.
    params : dict, optional
        Arguments of the class or factory, as in a recipe's ``params``.
    inputs : array_like, optional
        Example inputs (n, …) for models that need records of a certain form, such as images of
        the data set's shape. Records are drawn from them, in place of ``features`` numbers; labels
        are made up. Give public or made-up ones.
    settings : dict, optional
        Other keys of a recipe's ``[teachers]`` about one model: ``epochs``, ``channels`` …

    Raises
    ------
    AssertionError
        If a rule is broken; its message has one line for each.
    """
    bench = _Bench.of(
        factory_or_class,
        classes=classes,
        features=features,
        records=records,
        seed=seed,
        training=Training(params=params or {}, **(settings or {})),
        inputs=inputs,
    )
    name = getattr(factory_or_class, "__qualname__", type(factory_or_class).__qualname__)
    with warnings.catch_warnings(), _one_torch_thread():
        warnings.simplefilter("ignore")
        failures = _failures(bench)
    if failures:
        rules = "a rule" if len(failures) == 1 else f"{len(failures)} rules"
        lines = "".join(f"\n  - {failure}" for failure in failures)
        raise AssertionError(f"{name} breaks {rules} of a teacher:{lines}")


def stored_as(
    factory_or_class: Any,
    *,
    classes: int = 3,
    seed: int = 0,
    params: dict[str, Any] | None = None,
    inputs: ArrayLike | None = None,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Return the form in which trained teachers of a class are kept between training and voting.

    One is trained on made-up data. Parameters are as in :func:`check_teacher`.

    Returns
    -------
    str
        ``"own"`` (``save`` and ``load``, also LightGBM's text and XGBoost's JSON), ``"skops"``,
        ``"safetensors"``, ``"arrays"``, or ``"refit"``: its shard is kept in its place, and the
        teacher is fitted again to vote.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> stored_as(DecisionTreeClassifier)
    'skops'
    """
    bench = _Bench.of(
        factory_or_class,
        classes=classes,
        seed=seed,
        training=Training(params=params or {}, **(settings or {})),
        inputs=inputs,
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        header = save(bench.trained(), Path(folder), shard=bench.data(), seed=seed)
    return str(header["format"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """A factory of teachers, and made-up data to check them with."""

    make: Callable[[], Teacher]
    raw: Callable[[], Any]  # returns the factory's own object: make() copies it
    takes_seed: bool
    classes: int
    records: int
    seed: int
    examples: _Array  # (n, …) records are drawn from them; or (classes, features): around them
    drawn: bool

    @classmethod
    def of(
        cls,
        target: Any,
        *,
        training: Training,
        classes: int,
        seed: int,
        features: int = 8,
        records: int = 60,
        inputs: ArrayLike | None,
    ) -> _Bench:
        centres = np.random.default_rng(seed).normal(size=(classes, features))
        return cls(
            make=functools.partial(build, target, training, classes=classes, seed=seed),
            raw=functools.partial(make_model, target, training, classes=classes, seed=seed),
            takes_seed=takes_seed(target),
            classes=classes,
            records=records,
            seed=seed,
            examples=centres if inputs is None else np.asarray(inputs),
            drawn=inputs is not None,
        )

    def seeded(self, teacher: Teacher) -> bool:
        """Return whether one seed must give one teacher: it is seeded, or takes a seed."""
        return self.takes_seed or isinstance(teacher, (SklearnTeacher, TorchTeacher))

    def data(
        self, *, salt: int = 0, labels: tuple[int, ...] | None = None
    ) -> tuple[_Array, _Array]:
        """Return examples, or records around a centre of each label, which can be learned."""
        rng = np.random.default_rng([self.seed, salt])
        y = np.resize(np.arange(self.classes) if labels is None else labels, self.records)
        if self.drawn:
            X = self.examples[rng.integers(len(self.examples), size=self.records)]
        else:
            X = 2 * self.examples[y] + rng.normal(size=(self.records, self.examples.shape[1]))
        return X, y.astype(np.int64)

    def trained(self, *, salt: int = 0, labels: tuple[int, ...] | None = None) -> Teacher:
        teacher = self.make()
        teacher.fit(*self.data(salt=salt, labels=labels))
        return teacher

    def predict(self, teacher: Teacher, *, salt: int = 1) -> _Array:
        queries, _ = self.data(salt=salt)
        answer = np.asarray(teacher.predict(queries))
        return checked_labels(answer, records=len(queries), classes=self.classes)


class _Broken(Exception):
    """A rule does not hold; the message describes how."""


def _failures(bench: _Bench) -> list[str]:
    silence = io.StringIO()
    failures: list[str] = []
    for number, (name, rule) in enumerate(_RULES.items()):
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(silence),
            contextlib.redirect_stderr(silence),
        ):
            try:
                rule(bench, Path(folder))
            except (_Broken, PateError) as error:
                failures.append(f"{name}: {error}")
            except (Exception, SystemExit) as error:
                reason = "".join(str(error).strip().splitlines()[:1])
                failures.append(f"{name}: it raised {type(error).__name__}: {reason}")
        if failures and number == 0:
            break  # a model that cannot learn or predict at all cannot be checked further
    return failures


def _predicts_any_number(bench: _Bench, folder: Path) -> None:
    teacher = bench.trained()
    queries, _ = bench.data(salt=1)
    for count in (1, 2):
        answer = np.asarray(teacher.predict(queries[:count]))
        checked_labels(answer, records=count, classes=bench.classes)


def _handles_read_only_data(bench: _Bench, folder: Path) -> None:
    teacher = bench.make()
    X, y = bench.data()
    X.setflags(write=False)
    y.setflags(write=False)
    teacher.fit(X, y)
    teacher.predict(X)


def _keeps_data(bench: _Bench, folder: Path) -> None:
    teacher = bench.make()
    X, y = bench.data()
    before = X.copy(), y.copy()
    teacher.fit(X, y)
    teacher.predict(X)
    if not (np.array_equal(X, before[0]) and np.array_equal(y, before[1])):
        raise _Broken("fit or predict changed the arrays it was given")


def _same_seed_same_teacher(bench: _Bench, folder: Path) -> None:
    first, second = bench.trained(), bench.trained()
    if bench.seeded(first) and not np.array_equal(bench.predict(first), bench.predict(second)):
        raise _Broken(
            "two teachers with one seed and the same data predict differently; draw from its "
            "'random_state' or 'seed' alone"
        )


def _survives_saving(bench: _Bench, folder: Path) -> None:
    for name, labels in (("all", None), ("one", (bench.classes - 1,))):
        with isolated_randomness(bench.seed):  # as in a run: it may be fitted again
            teacher = bench.trained(labels=labels)
        before = bench.predict(teacher)
        save(teacher, folder / name, shard=bench.data(labels=labels), seed=bench.seed)
        if not np.array_equal(before, bench.predict(teacher)):
            raise _Broken("saving changed its predictions")
        if not np.array_equal(before, bench.predict(restore(bench.make(), folder / name))):
            raise _Broken("it predicts differently after it was saved and loaded")


def _predict_changes_nothing(bench: _Bench, folder: Path) -> None:
    teacher = bench.trained()
    state = _state(teacher)
    first = bench.predict(teacher)
    bench.predict(teacher, salt=2)
    if not np.array_equal(first, bench.predict(teacher)):
        raise _Broken("the same records are predicted differently after other predictions")
    if state != _state(teacher):
        raise _Broken("predict changes attributes of the teacher")


def _teachers_are_independent(bench: _Bench, folder: Path) -> None:
    """Guarantees: a record that reached another teacher through shared state would count twice."""
    first = bench.trained()
    before, state = bench.predict(first), _state(first)
    second = bench.trained(salt=3, labels=(0, 1))
    alone = bench.predict(second)
    if state != _state(first) or not np.array_equal(before, bench.predict(first)):
        raise _Broken("training a second teacher changes the first; do not share state in a class")
    bench.trained(salt=4)
    if not bench.seeded(first):
        return  # it may differ by chance
    if not np.array_equal(alone, bench.predict(bench.trained(salt=3, labels=(0, 1)))):
        raise _Broken("what one teacher learns depends on others trained before it")


def _shares_nothing(bench: _Bench, folder: Path) -> None:
    """Guarantees: two teachers with one array would both change with a record of either."""
    for first, second in ((bench.raw(), bench.raw()), (bench.trained(), bench.trained(salt=3))):
        if first is second:
            raise _Broken("the factory returns the same object twice")
        held = _held(second)
        if any(_overlap(mine, other) for mine in _held(first) for other in held):
            raise _Broken(
                "two teachers share weights or arrays; make new ones in every call, not once in "
                "the module"
            )


def _prints_nothing(bench: _Bench, folder: Path) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        bench.predict(bench.trained())
    if output.getvalue():
        raise _Broken("fit or predict prints; a teacher's output about its records is private")


def _keeps_global_random_state(bench: _Bench, folder: Path) -> None:
    with isolated_randomness(bench.seed):
        before = _random_states()
        bench.predict(bench.trained())
        after = _random_states()
    changed = [name for name, state in after.items() if state != before.get(name, state)]
    if changed:
        raise _Broken(
            f"it draws from the global random state of {' and '.join(changed)}; "
            "use a generator of its own"
        )


_RULES: dict[str, Callable[[_Bench, Path], object]] = {
    "fit and predict": lambda bench, _: bench.predict(bench.trained()),
    "any number of records": _predicts_any_number,
    "labels its shard never saw": lambda bench, _: bench.predict(
        bench.trained(labels=(0, bench.classes - 1))
    ),
    "a shard of one class": lambda bench, _: bench.predict(
        bench.trained(labels=(bench.classes - 1,))
    ),
    "read-only data": _handles_read_only_data,
    "data unchanged": _keeps_data,
    "one seed, one teacher": _same_seed_same_teacher,
    "save and load": _survives_saving,
    "predict only reads": _predict_changes_nothing,
    "nothing shared": _shares_nothing,
    "independent teachers": _teachers_are_independent,
    "no output": _prints_nothing,
    "global random state": _keeps_global_random_state,
}


@contextlib.contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Use one thread, as a worker does: small models are slower with several, and vary."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _random_states() -> dict[str, str]:
    """Return the global random states of the libraries that are loaded."""
    found = {"random": repr(random.getstate()), "numpy": _text(np.random.get_state())}  # noqa: NPY002
    if torch := sys.modules.get("torch"):
        found["torch"] = torch.get_rng_state().numpy().tobytes().hex()
    return found


def _state(teacher: Any) -> str:
    """Return the state of a teacher as text to compare: arrays, tensors, numbers and text."""
    teacher = _inner(teacher)
    if hasattr(teacher, "state_dict"):
        return _text(teacher.state_dict())
    return _text(getattr(teacher, "__dict__", {}))


def _inner(teacher: Any) -> Any:
    """Return the module or estimator behind a teacher."""
    if isinstance(teacher, TorchTeacher):
        return teacher.module
    return teacher.estimator if isinstance(teacher, SklearnTeacher) else teacher


def _held(teacher: Any) -> list[Any]:
    """Return the arrays, and tensors of a module, that a teacher could change."""
    teacher = _inner(teacher)
    found = list(getattr(teacher, "__dict__", {}).values())
    if hasattr(teacher, "state_dict"):
        found += [*teacher.parameters(), *teacher.buffers()]
    arrays = [value for value in found if isinstance(value, np.ndarray) and value.flags.writeable]
    return arrays + [value for value in found if hasattr(value, "untyped_storage")]


def _overlap(one: Any, other: Any) -> bool:
    """Return whether two arrays, or two tensors, share memory."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return bool(one.size and other.size) and np.may_share_memory(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return False
    import torch

    if any(torch.nn.parameter.is_lazy(tensor) for tensor in (one, other)):
        return False  # it has no memory yet
    places = [tensor.untyped_storage().data_ptr() for tensor in (one, other)]
    return bool(places[0] == places[1] != 0)


def _text(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    if isinstance(value, dict):
        return ",".join(f"{key}={_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(_text(item) for item in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        return _text(value.detach().cpu().double().numpy())
    return type(value).__name__  # another object: its predictions are compared
