"""A teacher of your own around scikit-learn's gradient boosting: fit, predict, save, load."""

import numpy as np
import skops.io
from sklearn.ensemble import GradientBoostingClassifier

TRUSTED = ["sklearn.tree._tree.Tree"]


class Boosting:
    """Boosted trees; a shard of one class is answered with that class."""

    def __init__(self, trees=10, depth=2, random_state=None):
        self.model = GradientBoostingClassifier(
            n_estimators=trees, max_depth=depth, random_state=random_state
        )
        self.only = None

    def fit(self, X, y):
        X = X.reshape(len(X), -1)
        self.only = int(y[0]) if len(np.unique(y)) == 1 else None
        if self.only is None:
            self.model.fit(X, y)
        return self

    def predict(self, X):
        if self.only is not None:
            return np.full(len(X), self.only)
        return self.model.predict(X.reshape(len(X), -1))

    def save(self, folder):
        skops.io.dump({"model": self.model, "only": self.only}, folder / "boosting.skops")

    def load(self, folder):
        vars(self).update(skops.io.load(folder / "boosting.skops", trusted=TRUSTED))
