"""The user's own step: ``"module:attr"``."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.encoders.step import guarded, read_arrays, write_arrays
from pate.errors import InvalidInput
from pate.plugins import object_state, resolve
from pate.untrusted import make_untrusted

_VALUES = "values.json"
_OWN = "own"  # the folder a class's own save() writes into


class Plugin:
    """A function, or a class or factory whose object has ``transform(X)`` and maybe ``fit(X)``.

    A function that can be called with ``params`` alone is a factory; one that needs another
    argument is called with the records. A class's own ``save(folder)`` and ``load(folder)`` are
    used if it has both; otherwise its arrays, numbers and texts are saved.

    >>> Plugin("numpy:tanh").transform(np.zeros((2, 3))).shape
    (2, 3)

    Guarantees:
        ``fit`` sees PUBLIC inputs alone. ``transform`` also sees private records; its output and
        the messages of its exceptions are dropped.
    """

    def __init__(
        self, name: str, *, params: dict[str, Any] | None = None, plugin_path: Path | None = None
    ) -> None:
        self.name, self.params = name, dict(params or {})
        self.made = self._make(resolve(name, path=plugin_path))

    def _make(self, target: Any) -> Any:
        if not callable(target):
            if callable(getattr(target, "transform", None)):
                raise InvalidInput(
                    f"{self.name!r} is one {type(target).__name__} object; name its class, or a "
                    "function that makes one"
                )
            raise InvalidInput(f"{self.name!r} is a {type(target).__name__}; a step is a class or "
                               "a function")  # fmt: skip
        if not inspect.isclass(target) and not self._is_factory(target):
            return _Function(target, self.params)
        failure = f"{self.name!r} cannot be made with params {sorted(self.params)}"
        made = make_untrusted(failure, lambda: target(**self.params), error=InvalidInput)
        if not callable(getattr(made, "transform", None)):
            raise InvalidInput(
                f"{self.name!r} makes a {type(made).__name__}, which has no transform(X); an "
                "encoder's step has one"
            )
        return made

    def _is_factory(self, target: Any) -> bool:
        try:
            inspect.signature(target).bind(**self.params)
        except (TypeError, ValueError):  # it takes the records, or has no signature
            return False
        return not isinstance(target, np.ufunc)

    def fit(self, X: NDArray[Any]) -> None:
        if callable(getattr(self.made, "fit", None)):
            guarded(f"fit of {self.name}", lambda: self.made.fit(X))

    def transform(self, X: NDArray[Any]) -> NDArray[Any]:
        answer: NDArray[Any] = guarded(
            f"transform of {self.name}", lambda: np.asarray(self.made.transform(X))
        )
        return answer

    @property
    def _saves_itself(self) -> bool:
        return all(callable(getattr(self.made, name, None)) for name in ("save", "load"))

    def save(self, folder: Path) -> None:
        if self._saves_itself:
            (folder / _OWN).mkdir()
            guarded(f"save of {self.name}", lambda: self.made.save(folder / _OWN))
            return
        own = not isinstance(self.made, _Function)
        arrays, values = object_state(self.made) if own else ({}, {})
        write_arrays(folder, arrays)
        (folder / _VALUES).write_text(json.dumps(values, sort_keys=True), encoding="utf-8")

    def load(self, folder: Path) -> None:
        if self._saves_itself:
            # A class method returns a step; a plain method may fill in its own object.
            loaded = guarded(f"load of {self.name}", lambda: self.made.load(folder / _OWN))
            self.made = self.made if loaded is None else loaded
            return
        try:
            values = json.loads((folder / _VALUES).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InvalidInput(
                f"{folder / _VALUES} is damaged or missing; fit the encoder again"
            ) from None
        arrays = {k: v if v.ndim else v[()] for k, v in read_arrays(folder).items()}
        if isinstance(self.made, _Function):
            return
        self.made.__dict__.clear()
        self.made.__dict__.update(values, **arrays)


class _Function:
    """A function of the records, as a step."""

    def __init__(self, function: Any, params: dict[str, Any]) -> None:
        self.function, self.params = function, params

    def transform(self, X: NDArray[Any]) -> ArrayLike:
        answer: ArrayLike = self.function(X, **self.params)
        return answer
