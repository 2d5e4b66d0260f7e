"""Privacy accounting: events, log-moments, composition, conversion, and the ledger.

    events → moments (noisy_max, argmax_divergence, sampled_gaussian, selection) → guarantee
                      │ bounded_range, loss_distributions → plan_guarantee → calibrate
                      └ smooth → sanitise        ledger

Numpy and scipy only; no torch.

>>> events = [Repeated(LaplaceNoisyMaxAnswer(scale=20.0), 100)]
>>> guarantee = compose(events).guarantee(delta=1e-5)
>>> round(guarantee.epsilon, 3), guarantee.publishable
(2.137, True)
"""

from pate.accounting.calibrate import most, smallest_noise
from pate.accounting.events import (
    ApproximateDP,
    BestOfTries,
    Event,
    ForAddRemove,
    ForReplacement,
    Gaussian,
    GaussianNoisyMaxAnswer,
    GumbelNoisyMaxAnswer,
    Laplace,
    LaplaceNoisyMaxAnswer,
    PureDP,
    Repeated,
    SampledGaussian,
    SmoothRelease,
    ThresholdCheck,
    ZeroConcentrated,
    event_from_json,
    event_to_json,
)
from pate.accounting.exact_divergence import ExactDivergence, exact_divergence
from pate.accounting.guarantee import Accountant, Analysis, Conversion, Guarantee, Neighbours
from pate.accounting.ledger import Charge, Ledger
from pate.accounting.ledger.terms import Basis, Mode
from pate.accounting.loss_distributions import pld_guarantee
from pate.accounting.moments import (
    LogMoments,
    compose,
    integer_moments,
    log_moments,
    odometer_epsilon,
)
from pate.accounting.noisy_max import confident_total, gaussian_total, laplace_total
from pate.accounting.plan_guarantee import guarantee_of_plan
from pate.accounting.sampled_gaussian import abadi_log_moments
from pate.accounting.sanitise import ReleasePlan, Sanitised, sanitise
from pate.accounting.selection import draw_tries

__all__ = [
    "Accountant",
    "Analysis",
    "ApproximateDP",
    "Basis",
    "BestOfTries",
    "Charge",
    "Conversion",
    "Event",
    "ExactDivergence",
    "ForAddRemove",
    "ForReplacement",
    "Gaussian",
    "GaussianNoisyMaxAnswer",
    "Guarantee",
    "GumbelNoisyMaxAnswer",
    "Laplace",
    "LaplaceNoisyMaxAnswer",
    "Ledger",
    "LogMoments",
    "Mode",
    "Neighbours",
    "PureDP",
    "ReleasePlan",
    "Repeated",
    "SampledGaussian",
    "Sanitised",
    "SmoothRelease",
    "ThresholdCheck",
    "ZeroConcentrated",
    "abadi_log_moments",
    "compose",
    "confident_total",
    "draw_tries",
    "event_from_json",
    "event_to_json",
    "exact_divergence",
    "gaussian_total",
    "guarantee_of_plan",
    "integer_moments",
    "laplace_total",
    "log_moments",
    "most",
    "odometer_epsilon",
    "pld_guarantee",
    "sanitise",
    "smallest_noise",
]  # fmt: skip
