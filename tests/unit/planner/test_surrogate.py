"""A surrogate's votes: of its own teachers, on shards of the right size; and what they teach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.planner.forecast import Budget
from pate.planner.profile import Profile
from pate.planner.search import candidates, shortlist
from pate.planner.surrogate import Surrogate, load_surrogate, surrogate_splits
from pate.teachers.spec import TeachersSpec

SECTIONS = {
    "data": {"name": "mine", "source": "nowhere.npz", "public": 30, "test": 30},
    "teachers": {"count": 10, "model": "sklearn.neighbors:NearestCentroid"},
    "aggregate": {"mechanism": "gnmax", "sigma": 5.0},
    "student": {"model": "sklearn.tree:DecisionTreeClassifier"},
}
RECIPE = Recipe.model_validate(SECTIONS)


def blobs(records: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=records)
    return rng.normal(size=(records, 3)) + 3 * np.eye(3)[labels], labels


@pytest.fixture(scope="module")
def surrogate() -> Surrogate:
    (features, labels), (inputs, truth), (test, test_truth) = (
        blobs(size, seed) for seed, size in enumerate((90, 200, 100))
    )
    return Surrogate(
        name="blobs", features=features, labels=labels, inputs=inputs, truth=truth, test=test,
        test_truth=test_truth, classes=3, spec=RECIPE.teachers,
    )  # fmt: skip


class Recorder:
    """A teacher that keeps what it was shown; votes for class one."""

    seen: ClassVar[list[np.ndarray]] = []

    def fit(self, X: np.ndarray, y: np.ndarray) -> None:
        Recorder.seen.append(X)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.ones(len(X), dtype=int)


def test_shards_are_as_large_as_the_private_ones(
    surrogate: Surrogate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pate.planner.surrogate.make", lambda *_, **__: Recorder())
    monkeypatch.setattr(Recorder, "seen", [])
    spec = TeachersSpec(count=2, model="any:Thing")
    other = replace(surrogate, spec=spec)
    profile = other.profile(teachers=30, records=600, equal=True)
    assert profile.counts.tolist() == [[0, 30, 0]] * 200
    assert [len(X) for X in Recorder.seen] == [20] * 30
    for X in Recorder.seen:  # no record twice within a teacher
        assert len(np.unique(X, axis=0)) == 20
    used = np.unique(np.concatenate(Recorder.seen), axis=0, return_counts=True)[1]
    assert used.sum() == 600
    assert len(used) == 90
    assert used.max() - used.min() <= 2  # dealt out evenly

    Recorder.seen.clear()
    other.profile(teachers=30, records=600)
    sizes = [len(X) for X in Recorder.seen]
    assert sum(sizes) == 600
    assert len(set(sizes)) > 3  # a hash is only as even as chance


def test_a_shard_larger_than_the_surrogate_is_refused(surrogate: Surrogate) -> None:
    with pytest.raises(InvalidInput, match="blobs has 90 in all; plan for more teachers"):
        surrogate.profile(teachers=5, records=600)


def test_the_private_set_is_no_surrogate(tmp_path: Path) -> None:
    recipe = RECIPE.model_copy(update={"data": RECIPE.data.model_copy(update={"name": "digits"})})
    with pytest.raises(InvalidInput, match="would look at the private data"):
        surrogate_splits("digits", recipe, root=tmp_path)
    with pytest.raises(InvalidInput, match="run `pate data fetch fashion-mnist`"):
        surrogate_splits("fashion-mnist", recipe, root=tmp_path)
    with pytest.raises(InvalidInput, match="did you mean digits"):
        surrogate_splits("digit", recipe, root=tmp_path)


def test_an_encoder_is_fitted_on_the_surrogates_public_part(tmp_path: Path) -> None:
    splits = surrogate_splits("digits", RECIPE, root=tmp_path)
    raw = load_surrogate("digits", RECIPE, splits)
    assert raw.features.shape[1:] == (8, 8)
    encoder = {"steps": [{"name": "standardise"}, {"name": "pca", "dimension": 7}]}
    recipe = Recipe.model_validate(SECTIONS | {"encoder": encoder})
    made = load_surrogate("digits", recipe, splits)
    assert made.features.shape == (997, 7)
    assert made.inputs.shape == (500, 7)
    assert made.test.shape == (300, 7)
    np.testing.assert_allclose(made.inputs.mean(axis=0), 0, atol=1e-3)  # of the public part
    assert np.abs(made.features.mean(axis=0)).max() > 0.01


def test_a_table_with_text_and_gaps_is_encoded_as_in_a_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = ["" if n % 9 == 0 else f"{rng.normal():.3f}" for n in range(90)]
    rows = [f"{n % 2},{'abc'[n % 3]},{size}" for n, size in enumerate(sizes)]
    file = tmp_path / "like.csv"
    file.write_text("\n".join(["y,kind,size", *rows]))
    data = SECTIONS["data"] | {"source": "mine.csv", "label": "y", "accept_unprotected": True}
    steps = {"encoder": {"steps": ["one-hot", "impute"]}}
    recipe = Recipe.model_validate(SECTIONS | {"data": data} | steps)
    splits = surrogate_splits(str(file), recipe, root=tmp_path)
    made = load_surrogate("like.csv", recipe, splits)
    assert made.features.shape[1] == 4
    assert np.isfinite(made.features).all()
    bare = Recipe.model_validate(SECTIONS | {"data": data})
    with pytest.raises(InvalidInput, match='add the step "one-hot"'):
        load_surrogate("like.csv", bare, splits)


def test_better_labels_teach_more(surrogate: Surrogate) -> None:
    profile = surrogate.profile(teachers=40, records=400)
    found = candidates(profile, budget=Budget(epsilon=3.0, delta=1e-5), queries=150)
    short = shortlist(found)
    assert 3 < len(short) < len(found) / 5
    assert max(found, key=lambda each: each.useful) in short

    def reached(sigma: float) -> float:
        return _reached(surrogate, profile, sigma=sigma, queries=60)

    assert reached(1.0) > 0.85 > reached(200.0)
    assert reached(1.0) == reached(1.0)


def _reached(surrogate: Surrogate, profile: Profile, *, sigma: float, queries: int) -> float:
    from pate.mechanisms import AggregateSpec, make_mechanism, plan_caps

    setting = AggregateSpec.model_validate(
        {"mechanism": "gnmax", "sigma": sigma, "queries": queries}
    )
    plan = plan_caps(
        make_mechanism(setting), setting, epsilon=None, delta=1e-5, available_queries=9999
    )
    accuracy = surrogate.rehearse(profile, setting, plan)
    assert accuracy is not None
    return accuracy


def test_too_few_inputs_for_a_rehearsal(surrogate: Surrogate) -> None:
    from pate.mechanisms import AggregateSpec, make_mechanism, plan_caps

    profile = surrogate.profile(teachers=40, records=400)
    setting = AggregateSpec.model_validate({"mechanism": "gnmax", "sigma": 9.0, "queries": 201})
    plan = plan_caps(
        make_mechanism(setting), setting, epsilon=None, delta=1e-5, available_queries=300
    )
    assert surrogate.rehearse(profile, setting, plan) is None
