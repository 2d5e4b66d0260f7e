"""How likely the right class wins, once noise is on the counts."""

from __future__ import annotations

import numpy as np

from pate.accounting.moments import FloatArray
from pate.mechanisms.noisy_max import gaussian_win_chances
from pate.planner.profile import Profile


def right_with_gaussian(profile: Profile, sigma: float) -> FloatArray:
    """Pr[GNMax answers with the truth], for each input.

    >>> profile = Profile(counts=np.array([[70, 30]]), truth=np.array([0]))
    >>> round(float(right_with_gaussian(profile, 40.0)[0]), 4)  # Φ(40 / (40·√2))
    0.7602
    """
    return gaussian_win_chances(leads(profile), sigma)


def leads(profile: Profile) -> FloatArray:
    """How many votes the truth is ahead of every other class, (inputs, classes − 1)."""
    others = np.ones(profile.counts.shape, dtype=bool)
    rows = np.arange(profile.inputs)
    others[rows, profile.truth] = False
    ahead = profile.counts[rows, profile.truth][:, None] - profile.counts
    return ahead[others].reshape(profile.inputs, -1).astype(np.float64)
