"""Private convex learning: linear classifiers that follow scikit-learn's conventions.

    OutputPerturbation      minimise, then add noise             ε or (ε, δ), replace-one
    ObjectivePerturbation   add a random tilt, then minimise     ε or (ε, δ), replace-one
    NoisyGradientDescent    noise on every step's gradient       (ε, δ), add-remove
    NoisyLeastSquares       noise on XᵀX and XᵀY, then solve     (ε, δ), add-remove

Each has ``fit``, ``predict``, ``decision_function``, ``score`` and (for the logistic loss)
``predict_proba``; after ``fit``, ``coef_``, ``intercept_``, ``guarantee_``, ``events_`` and
``calibration_``, which are safe to publish. ``classes`` and ``data_norm`` (a bound on the norm of
a row of features) are public and given, never read off the data.

>>> model = OutputPerturbation(epsilon=1.0, classes=["no", "yes"])
>>> model.get_params()["regularisation"]
0.01
"""

from dpsgd.convex.descent import NoisyGradientDescent
from dpsgd.convex.least_squares import NoisyLeastSquares
from dpsgd.convex.losses import Hinge, Huber, Logistic, MarginLoss
from dpsgd.convex.perturbation import ObjectivePerturbation, OutputPerturbation

__all__ = [
    "Hinge",
    "Huber",
    "Logistic",
    "MarginLoss",
    "NoisyGradientDescent",
    "NoisyLeastSquares",
    "ObjectivePerturbation",
    "OutputPerturbation",
]
