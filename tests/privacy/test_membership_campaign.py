"""LiRA against an overfit network and against private students, on the same records.

400 digits are judged. Every model is trained on a random half of them, and each of 24 models (12
private ones) is a target against the other models as shadows, so that 4 800 scores (2 400) stand on
either side and a false positive rate of 0.1 % can be measured. Private models learn from 900 more
digits, always the same, so that they are of use; 497 are public inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import dpsgd
from pate import PATEClassifier
from pate.audits.membership import lira_scores
from pate.audits.roc import Roc, roc
from pate.audits.shadow_models import ModelFit, Shadows, train_shadows

pytestmark = pytest.mark.campaign

EPSILON, JUDGED = 2.0, 400


Labelled = tuple[Any, Any]


def digits() -> tuple[Labelled, Labelled, Any]:
    """Return judged digits, more private ones, and public inputs."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.data))
    X, y = (data.data / 16).astype(np.float32)[order], data.target.astype(np.int64)[order]
    end = JUDGED + 900
    return (X[:JUDGED], y[:JUDGED]), (X[JUDGED:end], y[JUDGED:end]), X[end:]


def with_more(X: Any, y: Any) -> Labelled:
    _, more, _ = digits()
    return np.concatenate([X, more[0]]), np.concatenate([y, more[1]])


def lira_curve(fit: Any, *, count: int, targets: int, seed: int) -> Roc:
    (X, y), _, _ = digits()
    half = JUDGED // 2
    shadows: Shadows = train_shadows(
        fit, (X[:half], y[:half]), (X[half:], y[half:]), count=count, seed=seed
    )
    inside, outside = [], []
    for number in range(targets):
        observed, included, rest = shadows.pick_target(number)
        scores = lira_scores(observed, rest)
        inside.append(scores[included])
        outside.append(scores[~included])
    return roc(np.concatenate(inside), np.concatenate(outside))


def network() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def test_an_overfit_network_gives_its_members_away():
    """TPR at 0.1 % FPR, seen with seeds 1, 2, 3: 7.6 %, 7.6 %, 6.3 %."""
    fit = ModelFit(model=network, classes=10, settings={"epochs": 60, "lr": 3e-3})
    curve = lira_curve(fit, count=65, targets=24, seed=1)
    assert curve.others >= 4000
    assert curve.tpr_at(0.001).low >= 0.05
    assert curve.exceeds(epsilon=EPSILON, delta=1e-5)


def by_teachers(X: Any, y: Any, seed: int) -> Any:
    return pate(X, y, seed, teachers=100, queries=60)


def by_records(X: Any, y: Any, seed: int) -> Any:
    return pate(X, y, seed, votes="records")


def pate(X: Any, y: Any, seed: int, **settings: Any) -> Any:
    clf = PATEClassifier(
        epsilon=EPSILON,
        classes=np.arange(10),
        student=LogisticRegression(C=10.0, max_iter=500),
        random_state=seed % 2**31,
        **settings,
    )
    clf.fit(*with_more(X, y), public=digits()[2], accept_overlap=True)
    assert clf.guarantee_.epsilon <= EPSILON
    return clf.predict_proba


def by_dpsgd(X: Any, y: Any, seed: int) -> Any:
    import torch

    torch.manual_seed(seed)
    model = network()
    trainer = dpsgd.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=2.0),
        dataset=with_more(X, y),
        lot_size=110,
        records=1100,
        max_grad_norm=1.0,
        noise_multiplier=3.0,
        delta=1e-5,
    )
    assert trainer.fit(epochs=12).epsilon().epsilon <= EPSILON

    def predict_proba(rows: Any) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(rows)).softmax(dim=1).numpy()

    return predict_proba


@pytest.mark.parametrize("fit", [by_teachers, by_records, by_dpsgd], ids=lambda f: f.__name__)
def test_private_students_stay_below_what_epsilon_allows(fit):
    """Wrong by chance once in a million.

    TPR at 0.1 % FPR with 24 targets, seeds 1 and 2: teachers 0 and 0.06 %, records 0.34 % and
    0.19 %, DP-SGD 0.06 % and 0.21 %; allowed is 0.74 %.
    """
    curve = lira_curve(fit, count=16, targets=12, seed=1)
    assert not curve.exceeds(epsilon=EPSILON, delta=1e-5)
