"""The search for settings: which mechanism wins where."""

from __future__ import annotations

import pytest

from pate.planner.forecast import Budget
from pate.planner.profile import simulated
from pate.planner.search import Wish, candidates


@pytest.mark.parametrize(("classes", "winner"), [(2, "gumbel"), (10, "gnmax")])
def test_gumbel_noise_wins_for_many_answers_about_two_classes_at_small_epsilon(
    classes: int, winner: str
) -> None:
    profile = simulated(teachers=1000, accuracy=0.8, classes=classes, inputs=400)
    found = candidates(profile, budget=Budget(epsilon=0.1, delta=1e-5), queries=300)
    best = Wish(answers=300).best(found)
    assert best is not None
    assert best.spec.mechanism == winner
    rivals = [e.accuracy for e in found if e.answers >= 298.5 and e.spec.mechanism != winner]
    assert best.accuracy > max(rivals) + 0.005
