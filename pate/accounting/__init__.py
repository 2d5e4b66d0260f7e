"""Privacy accounting: events, log-moments, composition, conversion, and the ledger.

    events → moments (noisy_max, sampled_gaussian, selection) → guarantee
                      │
                      └ smooth → sanitise        calibrate        ledger

Numpy and scipy only; no torch.

>>> events = [Repeated(LaplaceNoisyMaxAnswer(scale=20.0), 100)]
>>> guarantee = compose(events).guarantee(delta=1e-5)
>>> round(guarantee.epsilon, 3), guarantee.publishable
(4.729, True)
"""

from pate.accounting.calibrate import most, pld_guarantee, smallest_noise
from pate.accounting.events import (
    ApproximateDP,
    BestOfTries,
    Event,
    ForReplacement,
    Gaussian,
    GaussianNoisyMaxAnswer,
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
from pate.accounting.guarantee import Conversion, Guarantee, Neighbours
from pate.accounting.ledger import Charge, Ledger
from pate.accounting.ledger.terms import Basis, Mode
from pate.accounting.moments import (
    LogMoments,
    compose,
    integer_moments,
    log_moments,
    odometer_epsilon,
)
from pate.accounting.noisy_max import confident_total, gaussian_total, laplace_total
from pate.accounting.sampled_gaussian import abadi_log_moments
from pate.accounting.sanitise import ReleasePlan, Sanitised, sanitise
from pate.accounting.selection import draw_tries

__all__ = [
    "ApproximateDP",
    "Basis",
    "BestOfTries",
    "Charge",
    "Conversion",
    "Event",
    "ForReplacement",
    "Gaussian",
    "GaussianNoisyMaxAnswer",
    "Guarantee",
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
    "gaussian_total",
    "integer_moments",
    "laplace_total",
    "log_moments",
    "most",
    "odometer_epsilon",
    "pld_guarantee",
    "sanitise",
    "smallest_noise",
]  # fmt: skip
