"""A scikit-learn estimator as a teacher: flat features, and shards of a single class."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray


@final
class SklearnTeacher:
    """Wraps an estimator, which sees features flattened to (n, features).

    Many estimators refuse labels of one class only. A shard may hold just one: then the teacher
    says that one, and the estimator is not asked.
    """

    def __init__(self, estimator: Any, *, home: str = "") -> None:
        self.estimator = estimator
        self.home = home  # the module the recipe named: its classes may be loaded again
        self.only_label: int | None = None

    @property
    def classes_(self) -> NDArray[np.int64]:
        """The labels the estimator has seen, in the order of its probabilities."""
        if self.only_label is not None:
            return np.array([self.only_label])
        return np.asarray(self.estimator.classes_)

    def fit(self, X: ArrayLike, y: ArrayLike) -> SklearnTeacher:
        labels = np.asarray(y)
        seen = np.unique(labels)
        self.only_label = int(seen[0]) if len(seen) == 1 else None
        if self.only_label is None:
            self.estimator.fit(_flat(X), labels)
        return self

    def predict(self, X: ArrayLike) -> ArrayLike:
        if self.only_label is not None:
            return np.full(len(np.asarray(X)), self.only_label, dtype=np.int64)
        return np.asarray(self.estimator.predict(_flat(X)))

    def __getattr__(self, name: str) -> Any:
        # Only some estimators have probabilities: ``hasattr`` must tell the truth.
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
