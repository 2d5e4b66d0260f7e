"""LightGBM's and XGBoost's classifiers as estimators, saved in the formats of their own libraries.

Neither library is imported before a recipe or a caller names one of its classes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

# Of each library: settings that repeat to the last bit on every engine, and print nothing.
# LightGBM otherwise times two methods, which round differently, and takes the faster.
_SETTINGS: dict[str, dict[str, Any]] = {
    "lightgbm": {"n_jobs": 1, "deterministic": True, "force_col_wise": True, "verbosity": -1},
    "xgboost": {"n_jobs": 1, "verbosity": 0},
}
_LABELS, _TEXT, _JSON = "labels.json", "booster.txt", "booster.json"


def library_of(thing: Any) -> str | None:
    """Return "lightgbm" or "xgboost" for a classifier of that library, otherwise None."""
    loaded = [name for name in _SETTINGS if name in sys.modules]
    homes = {kind.__module__.partition(".")[0] for kind in type(thing).__mro__}
    found = next((name for name in loaded if name in homes), None)
    if found is None:
        return None
    from sklearn.base import ClassifierMixin

    own_objective = callable(getattr(thing, "objective", None))  # its scores are no probabilities
    return found if isinstance(thing, ClassifierMixin) and not own_objective else None


def make_repeatable(estimator: Any) -> None:
    """Give a classifier, and those inside a pipeline, one thread and settings that repeat."""
    for part in (estimator, *estimator.get_params(deep=True).values()):
        if (library := library_of(part)) is not None:
            settings = dict(_SETTINGS[library])
            if part.get_params().get("force_row_wise"):
                del settings["force_col_wise"]
            part.set_params(**settings)


@final
class BoostedClassifier:
    """A classifier of LightGBM or XGBoost whose labels may have gaps.

    XGBoost takes labels 0 … k − 1 only, and a shard may lack a class.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator
        self.library = library_of(estimator)
        self.classes_ = np.empty(0, dtype=np.int64)
        self._booster: Any = None  # LightGBM's, which cannot be put back into an estimator

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> BoostedClassifier:
        self.classes_, places = np.unique(y, return_inverse=True)
        self.estimator.fit(X, places)
        self._booster = self.estimator.booster_ if self.library == "lightgbm" else None
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[np.int64]:
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        if self.library == "xgboost":
            return np.asarray(self.estimator.predict_proba(X), dtype=np.float64)
        scores = np.asarray(self._booster.predict(X, num_threads=1))
        return scores if scores.ndim == 2 else np.stack([1 - scores, scores], axis=1)

    def save(self, folder: Path) -> None:
        """Write LightGBM's text or XGBoost's JSON, and the labels seen."""
        if self.library == "lightgbm":
            (folder / _TEXT).write_text(self._booster.model_to_string(), encoding="utf-8")
        else:
            (folder / _JSON).write_bytes(self.estimator.get_booster().save_raw("json"))
        (folder / _LABELS).write_text(json.dumps(self.classes_.tolist()), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Read what :meth:`save` wrote; neither library runs code that a file names."""
        if self.library == "lightgbm":
            import lightgbm

            text = (folder / _TEXT).read_text(encoding="utf-8")
            self._booster = lightgbm.Booster(model_str=text, params={"verbosity": -1})
        else:
            self.estimator.load_model(bytearray((folder / _JSON).read_bytes()))
        labels = json.loads((folder / _LABELS).read_text(encoding="utf-8"))
        self.classes_ = np.array(labels, dtype=np.int64)
