"""Membership attacks: against likelihoods in closed form, other libraries, and bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.linear_model import Perceptron
from sklearn.tree import DecisionTreeClassifier

from pate.audits.membership import (
    Coins,
    boundary_attack,
    finding,
    lira_attack,
    lira_scores,
    rmia_attack,
    rmia_scores,
    robustness_attack,
    shadow_attack,
    shadow_scores,
    shift_images,
    threshold_attack,
)
from pate.audits.predictions import confidences, log_odds
from pate.audits.shadow_models import ModelFit, Shadows, train_shadows
from pate.errors import InvalidInput


def table(odds):
    """Probabilities of two classes with these log-odds of class 0."""
    p = 1 / (1 + np.exp(-np.asarray(odds, dtype=np.float64)))
    return np.stack([p, 1 - p], axis=-1)


def made_up_shadows(rng, *, shadows, records, gain, population=0):
    """Log-odds of shadows that are N(mean of the record, 1), ``gain`` higher for its members."""
    total = records + population
    included = rng.random((shadows, total)) < 0.5
    included[:2], included[2:4] = True, False
    means = rng.normal(0, 2, total)
    odds = rng.normal(means + gain * included, 1.0)
    return means, Shadows(
        probabilities=table(odds).astype(np.float32),
        included=included,
        labels=np.zeros(total, dtype=np.int64),
        members=records // 2,
        others=records - records // 2,
    )


def test_lira_reaches_the_power_of_the_likelihood_ratio():
    """Normal log-odds: with many shadows, TPR at each FPR is that of Neyman and Pearson."""
    rng = np.random.default_rng(0)
    means, shadows = made_up_shadows(rng, shadows=200, records=8_000, gain=1.5)
    truth = np.repeat([1.0, 0.0], 4_000)
    observed = table(rng.normal(means + 1.5 * truth, 1.0))
    for online in (True, False):
        scores = lira_scores(observed, shadows, online=online)
        for fpr in (0.05, 0.2):
            level = np.quantile(scores[4_000:], 1 - fpr)
            best = norm.sf(norm.isf(fpr) - 1.5)
            assert (scores[:4_000] > level).mean() == pytest.approx(
                best, abs=0.05
            )  # four standard errors


def test_lira_is_the_ratio_of_two_normal_densities():
    rng = np.random.default_rng(1)
    _, shadows = made_up_shadows(rng, shadows=80, records=6, gain=1.0)
    odds = rng.normal(size=6)
    found = lira_scores(table(odds), shadows)
    seen = np.stack([log_odds(each, shadows.labels) for each in shadows.probabilities])
    for place in range(6):
        inside = seen[shadows.included[:, place], place]
        outside = seen[~shadows.included[:, place], place]
        ratio = norm.logpdf(odds[place], inside.mean(), inside.std(ddof=1)) - norm.logpdf(
            odds[place], outside.mean(), outside.std(ddof=1)
        )
        assert found[place] == pytest.approx(ratio, abs=1e-6)


def test_rmia_is_the_share_of_the_population_that_is_outdone():
    rng = np.random.default_rng(2)
    _, shadows = made_up_shadows(rng, shadows=8, records=10, gain=1.0, population=15)
    own = table(rng.normal(size=25))
    p = own[:, 0]
    seen = shadows.probabilities[:, :, 0].astype(np.float64)
    for online in (True, False):
        ratios = []
        for place in range(25):
            inside = seen[shadows.included[:, place], place].mean()
            outside = seen[~shadows.included[:, place], place].mean()
            usual = (inside + outside) / 2 if online else (1.3 * outside + 0.7) / 2
            ratios.append(p[place] / usual)
        expected = [np.mean([ratios[x] / ratios[z] >= 2 for z in range(10, 25)]) for x in range(10)]
        found = rmia_scores(own, shadows, online=online)
        assert np.floor(found * 15) / 15 == pytest.approx(expected, abs=1e-12)
        assert np.argsort(found).tolist() == np.argsort(ratios[:10]).tolist()


def test_shadow_attack_tells_members_apart():
    rng = np.random.default_rng(3)
    means, shadows = made_up_shadows(rng, shadows=40, records=400, gain=4.0)
    shadows.labels[::2] = 1  # the gain is a loss there: another classifier for each class
    observed = table(rng.normal(means + 4.0 * np.repeat([1, 0], 200), 1.0))
    scores = shadow_scores(observed, shadows)
    assert np.mean(scores[:200] > 0) - np.mean(scores[200:] > 0) > 0.5


def overfit(records=240, features=30, seed=0):
    """Random labels: a tree that is right on all it saw, and on a tenth of the rest."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(records, features)), rng.integers(0, 4, records)
    half = records // 3
    parts = [(X[k : k + half], y[k : k + half]) for k in range(0, records, half)]
    return DecisionTreeClassifier(random_state=0).fit(*parts[0]), parts


def test_every_attack_sees_an_overfit_model():
    model, (members, others, population) = overfit()
    fit = ModelFit(model=DecisionTreeClassifier(max_depth=6), classes=4)
    shadows = train_shadows(fit, members, others, population=population, count=16)
    given = {"target": "tree"}
    findings = [
        *(threshold_attack(model, members, others, score=s, **given) for s in ("loss",)),
        lira_attack(model, members, others, shadows=shadows, **given),
        lira_attack(model, members, others, shadows=shadows, online=False, **given),
        rmia_attack(model, members, others, population=population, shadows=shadows, **given),
        shadow_attack(model, members, others, shadows=shadows, **given),
        robustness_attack(model, members, others, perturb=0.05, count=8, **given),
        boundary_attack(model, members, others, population=population[0], **given),
    ]
    assert len({each.attack for each in findings}) == len(findings)
    for each in findings:
        assert each.target == "tree"
        assert each.epsilon is None
        assert each.values["advantage"] > 0.4, each.attack
        assert each.curve.fpr[-1] == each.curve.tpr[-1] == 1.0


def test_no_attack_sees_what_is_not_there():
    """Members and others that the model never saw: advantages are those of chance."""
    model, (_, members, others) = overfit(records=1500, seed=1)
    for each in (
        threshold_attack(model, members, others),
        threshold_attack(model, members, others, score="entropy"),
        robustness_attack(model, members, others, count=4),
    ):
        # Kolmogorov & Smirnov: 500 records on either side, an error of 1e-6.
        assert each.values["advantage"] < math.sqrt(math.log(2 / 1e-6) / 2 * 2 / 500)


def test_coins_bound_epsilon_and_others_do_not():
    rng = np.random.default_rng(4)
    coins = rng.random(1000) < 0.5
    scores = coins + 0.1 * rng.normal(size=1000)
    words = {"attack": "a", "target": "t", "knowledge": "k", "source": "s"}
    assert finding(scores[coins], scores[~coins], **words).epsilon is None
    found = finding(scores[coins], scores[~coins], coins=Coins(delta=1e-6), **words)
    assert 3 < found.epsilon <= found.largest_possible
    assert (found.delta, found.confidence) == (1e-6, 0.95)
    few = np.where(coins & (np.arange(1000) < 150), 9.0, rng.normal(size=1000))  # sure of some 75
    found = finding(few[coins], few[~coins], coins=Coins(delta=0.0), **words)
    assert found.epsilon > 2
    assert found.contradicts(1.0)
    nothing = rng.normal(size=1000)
    found = finding(
        nothing[coins], nothing[~coins], coins=Coins(delta=0.0, confidence=0.999999), **words
    )
    assert found.epsilon == 0
    with pytest.raises(InvalidInput, match="fair coins do not give"):
        finding(scores[:900], scores[900:], coins=Coins(delta=0.0), **words)


def test_equal_scores_are_not_ordered_by_membership():
    """Of 268 equal scores with 134 members, a fixed order showed ε = 0.11 in every audit."""
    words = {"attack": "none", "target": "model", "knowledge": "nothing", "source": "none"}
    bounds = [
        finding(np.zeros(134), np.zeros(134), coins=Coins(delta=0.0), **words).epsilon
        for _ in range(20)
    ]
    assert min(bounds) == 0  # each is above 0 in at most 5 of 100


def test_offline_shadows_never_see_the_judged_records():
    _, (members, others, population) = overfit()
    fit = ModelFit(model="ridge", classes=4)
    shadows = train_shadows(fit, members, others, population=population, online=False, count=8)
    assert not shadows.included[:, :160].any()
    assert shadows.included[:, 160:].any(axis=0).all()
    with pytest.raises(InvalidInput, match="too few shadow models with"):
        lira_scores(shadows.probabilities[0][:160], shadows)
    assert np.isfinite(lira_scores(shadows.probabilities[0][:160], shadows, online=False)).all()


def test_shadows_train_alike_alone_and_together():
    torch = pytest.importorskip("torch")
    _, (members, others, _) = overfit()

    def network():
        return torch.nn.Sequential(torch.nn.Linear(30, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))

    fit = ModelFit(model=network, classes=4, settings={"epochs": 2})
    together, alone = (
        train_shadows(fit, members, others, count=4, seed=5, batch=batch) for batch in (4, 1)
    )
    np.testing.assert_array_equal(together.included, alone.included)
    np.testing.assert_allclose(together.probabilities, alone.probabilities, atol=1e-4)


def test_a_pipeline_is_its_own_shadow():
    _, (members, others, _) = overfit()
    seeds = []

    def fit(X, y, seed):
        seeds.append(seed)
        return DecisionTreeClassifier(random_state=seed % 1000).fit(X, y).predict_proba

    shadows = train_shadows(fit, members, others, count=6)
    assert len(set(seeds)) == 6
    right = shadows.probabilities.argmax(axis=2) == shadows.labels
    assert right[shadows.included].all()
    observed, included, rest = shadows.pick_target(2)
    assert len(rest) == 5
    np.testing.assert_array_equal(observed.argmax(axis=1)[included], shadows.labels[included])


def test_images_are_shifted():
    image = np.zeros((50, 5, 5))
    image[:, 2, 2] = 1.0
    shifted = shift_images(image, np.random.default_rng(0))
    assert (shifted.sum(axis=(1, 2)) == 1).all()
    assert len({tuple(np.argwhere(each)[0]) for each in shifted}) == 9
    with pytest.raises(InvalidInput, match="images are"):
        shift_images(np.zeros((3, 4)), np.random.default_rng(0))


def test_the_distance_is_that_to_the_boundary():
    """A line between two classes: the distance along lines to known points bounds the true one."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(60, 2))
    labels = (X[:, 0] > 0).astype(np.int64)

    class Half:
        def predict(self, rows):
            return (rows[:, 0] > 0).astype(np.int64)

    seen = []

    def spy(members, others, **_):
        seen.extend([members, others])
        return finding(members, others, attack="", target="", knowledge="", source="")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pate.audits.membership.finding", spy)
        boundary_attack(
            Half(),
            (X[:30], labels[:30]),
            (X[30:], labels[30:]),
            population=rng.uniform(-1, 1, size=(2000, 2)),
        )
    distances, true = np.concatenate(seen), np.abs(X[:, 0])
    assert (distances >= true - 1e-3).all()
    assert np.median(distances / true) < 1.1


def test_a_model_without_confidences_gets_one_clear_line():
    model, (members, others, population) = overfit()
    labels_only = Perceptron().fit(*members)
    del model

    class Bare:
        predict = labels_only.predict

    with pytest.raises(InvalidInput, match=r"Bare has no predict_proba.*robustness_attack"):
        threshold_attack(Bare(), members, others)
    assert robustness_attack(Bare(), members, others, count=2).values["advantage"] > 0
    assert boundary_attack(Bare(), members, others, population=population[0], steps=2)
    assert confidences(labels_only, members[0]).sum(axis=1) == pytest.approx(1)  # by softmax


def test_columns_are_named_by_the_classes_a_model_has_seen():
    X, y = np.eye(3), np.array([0, 2, 5])
    found = confidences(DecisionTreeClassifier(random_state=0).fit(X, y), X, y)
    assert found.shape == (3, 6)
    assert found.argmax(axis=1).tolist() == [0, 2, 5]
    (predict,) = ModelFit(model=DecisionTreeClassifier, classes=9).fit_many([(X, y)], [0])
    assert predict(X).shape == (3, 9)


@pytest.mark.parametrize(
    ("model", "labels", "words"),
    [
        (lambda X: np.zeros(len(X)), [0, 0], r"must be \(records, classes\)"),
        (lambda X: np.full((len(X), 2), 3.0), [0, 0], "not logits"),
        (lambda X: np.full((len(X), 2), 0.5), [0, 2], "not a class of the model"),
        (lambda X: np.full((len(X), 2), 0.5), [0.0, 1.0], "one whole number"),
    ],
)
def test_bad_models_and_labels(model, labels, words):
    with pytest.raises(InvalidInput, match=words):
        threshold_attack(model, ([[0.0], [1.0]], labels), ([[0.0], [1.0]], [0, 1]))


def test_shadows_of_other_records_are_refused():
    model, (members, others, population) = overfit()
    shadows = train_shadows(ModelFit(model="ridge", classes=4), members, others, count=4)
    with pytest.raises(InvalidInput, match="made for other records"):
        lira_attack(model, others, members, shadows=shadows)
    with pytest.raises(InvalidInput, match="needs a population"):
        rmia_attack(model, members, others, population=population, shadows=shadows)
    with pytest.raises(InvalidInput, match="offline shadows"):
        train_shadows(ModelFit(model="ridge", classes=4), members, others, online=False)
