"""Learning from labels that were drawn as planned: which setting teaches a student most?

More labels or better ones, random mistakes or the teachers' own: what is worth more to a student no
formula says. On a surrogate it can be tried, because its votes and its truth are public: labels are
drawn by the mechanism itself, a model of the teachers' kind learns from them, and is asked about
inputs that no teacher was asked about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pate.mechanisms import AggregateSpec, Plan, make_mechanism
from pate.mechanisms.mechanism import IntArray
from pate.planner.profile import Profile
from pate.planner.search import Candidate
from pate.planner.surrogate import Surrogate
from pate.teachers.adapters import make
from pate.teachers.protocol import predict_labels, train
from pate.teachers.spec import TeachersSpec, model_for, seed_for
from pate.votes import Votes

_DRAWS = 3
_WORTH = 0.05  # a setting is tried if its labels are worth this share of the most useful ones


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rehearsal:
    """A surrogate, ready to try settings on. PUBLIC."""

    surrogate: Surrogate
    spec: TeachersSpec
    plugin_path: Path | None = None

    def room(self) -> int:
        """The most queries that can be tried: some inputs are left to ask the student about."""
        return len(self.surrogate.truth)

    def accuracy(self, profile: Profile, setting: AggregateSpec, plan: Plan) -> float | None:
        """What a student reaches, on average over draws; None where there are too few inputs.

        ``profile`` holds the votes on all inputs of the surrogate.
        """
        if plan.queries > self.room():
            return None
        mechanism = make_mechanism(setting)
        reached = []
        for draw in range(_DRAWS):
            rng = np.random.default_rng([draw, profile.teachers])  # the votes are public
            order = rng.permutation(profile.inputs)
            asked = order[: plan.queries]
            release = mechanism.release(
                Votes(counts=profile.counts[asked]), rng=rng, most_answers=plan.answers
            )
            if len(release.labels):
                rows = asked[release.answered]
                reached.append(self._learnt(rows, release.labels, order[plan.queries :]))
        return float(np.mean(reached)) if reached else None

    def _learnt(self, rows: IntArray, labels: IntArray, unasked: IntArray) -> float:
        known = self.surrogate
        student = make(
            model_for(self.spec, 0),
            classes=known.classes,
            seed=seed_for(self.spec, 0),
            plugin_path=self.plugin_path,
        )
        train(student, known.inputs[rows], labels, private=False)
        inputs = np.concatenate([known.inputs[unasked], known.test])
        truth = np.concatenate([known.truth[unasked], known.test_truth])
        said = predict_labels(student, inputs, classes=known.classes, private=False)
        return float((said == truth).mean())


def shortlist(found: Sequence[Candidate]) -> list[Candidate]:
    """Of each mechanism and each size (answers within a factor √2), the most useful setting."""
    best: dict[tuple[str, int], Candidate] = {}
    for each in found:
        place = each.spec.mechanism, round(2 * float(np.log2(max(each.answers, 1.0))))
        if place not in best or each.useful > best[place].useful:
            best[place] = each
    top = max((each.useful for each in best.values()), default=0.0)
    return [each for each in best.values() if each.useful >= _WORTH * top]
