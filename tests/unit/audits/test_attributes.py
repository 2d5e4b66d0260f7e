"""Attribute inference: a model that remembers its records, one that does not, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from pate.audits.attributes import attribute_attack, worst_attribute
from pate.audits.roc import most_advantage
from pate.errors import InvalidInput


def people(records, seed):
    """Columns of noise and one of three values, which is more often 0; labels are noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(records, 4))
    X[:, 2] = rng.choice(3, size=records, p=[0.5, 0.3, 0.2])
    return X, rng.integers(0, 8, size=records)


def test_a_model_that_remembers_gives_the_attribute_away():
    """A tree splits at the attribute where it must to be right about each of its records."""
    members, others = people(600, 0), people(600, 1)
    scaled = members[0] * [0.01, 0.01, 1, 0.01]
    tree = DecisionTreeClassifier(random_state=0).fit(scaled, members[1])
    found = attribute_attack(
        lambda X: tree.predict_proba(X * [0.01, 0.01, 1, 0.01]), members, others, column=2, name="x"
    )
    values = found.values
    assert found.attack == "attribute inference (x)"
    assert values["advantage, low"] > 0.1
    assert values["advantage over the prior"] > 0.1
    assert values["advantage"] == pytest.approx(
        values["accuracy with members"] - values["accuracy with others"]
    )
    assert {"advantage at 0", "advantage at 1", "advantage at 2"} <= set(values)
    assert values["advantage, low"] > most_advantage(epsilon=0.2, delta=1e-5)  # ε ≥ 0.2


def test_a_fact_about_the_population_is_no_advantage():
    """The label follows from the attribute in everybody: all guess well, none better."""
    parts = []
    for seed in (2, 3):
        X, _ = people(800, seed)
        parts.append((X, (X[:, 2] == 0).astype(np.int64)))
    members, others = parts
    model = LogisticRegression().fit(*members)
    values = attribute_attack(model, members, others, column=2, confidence=0.999999).values
    assert values["accuracy with others"] > values["accuracy by the prior"] + 0.1
    assert values["advantage, low"] < 0 < values["advantage, high"]


def test_the_prior_decides_where_the_model_knows_nothing():
    members, others = people(300, 4), people(300, 5)

    def ignorant(X):
        return np.full((len(X), 8), 1 / 8)

    for prior, guess in ((None, 0), ([0.1, 0.1, 0.8], 2)):
        values = attribute_attack(ignorant, members, others, column=2, prior=prior).values
        share = (members[0][:, 2] == guess).mean()
        assert values["accuracy with members"] == pytest.approx(share)
        assert values["advantage over the prior"] == 0


def test_of_a_measurement_the_half_is_guessed():
    """The model knows the measurement of members alone, exactly at their records."""
    members, others = people(400, 8), people(400, 9)
    rows, high = members[0], members[0][:, 0] > np.median(others[0][:, 0])

    def remembers(X):
        own = np.full(len(X), 0.5)
        for row, side in zip(rows, high, strict=True):
            mine = (X[:, 1:] == row[1:]).all(axis=1)
            own[mine] = np.where((X[mine, 0] > 0) == side, 0.9, 0.1)
        return np.column_stack([own, *[(1 - own) / 7] * 7])

    members = (members[0], np.zeros(400, dtype=np.int64))
    others = (others[0], np.zeros(400, dtype=np.int64))
    values = attribute_attack(remembers, members, others, column=0).values
    assert values["accuracy with members"] == 1
    assert 0.4 < values["accuracy with others"] < 0.6
    assert len([name for name in values if name.startswith(("advantage below", "advantage above"))])


def test_the_worst_column_is_reported_with_an_interval_for_all():
    members, others = people(600, 0), people(600, 1)
    tree = DecisionTreeClassifier(random_state=0).fit(*members)
    for X in (members[0], others[0]):
        X[:, 3] = 1.0  # nothing to guess
    names = {0: "a", 1: "b", 2: "c", 3: "one"}
    found = worst_attribute(tree, members, others, columns=names)
    alone = [attribute_attack(tree, members, others, column=c, name=names[c]) for c in (0, 1, 2)]
    best = max(alone, key=lambda each: each.values["advantage"])
    assert found.attack == best.attack
    assert found.values["columns"] == 3
    assert found.values["advantage, low"] < best.values["advantage, low"]
    assert worst_attribute(tree, members, others, columns={3: "one"}) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"column": 4}, "place of one of its columns"),
        ({"column": 2, "prior": [0.5, 0.5]}, "for each of 3 values"),
        ({"column": 2, "confidence": 95}, "confidence is 95"),
    ],
)
def test_bad_input(settings, words):
    members, others = people(100, 6), people(100, 7)
    with pytest.raises(InvalidInput, match=words):
        attribute_attack(lambda X: np.full((len(X), 8), 1 / 8), members, others, **settings)
