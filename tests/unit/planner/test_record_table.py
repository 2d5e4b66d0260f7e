"""Record votes of a surrogate: scaled to the private data, and as right as predicted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits

import pate
from pate.mechanisms import AggregateSpec
from pate.planner.forecast import Budget, Forecast
from pate.planner.plan import TEACHERS
from pate.planner.profile import Facts, simulated
from pate.planner.record_table import TableForecast, forecast_table, table_wins, verdict
from pate.planner.search import Wish, propose
from pate.planner.surrogate import Surrogate
from pate.record_votes import VotesSpec

BUDGET = Budget(epsilon=1.0, delta=1e-5)
VOTES = VotesSpec(by="records")


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    features, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(5).permutation(len(labels))
    return features[order] / 16, labels[order]


@pytest.fixture(scope="module")
def surrogate(digits: tuple[np.ndarray, np.ndarray]) -> Surrogate:
    X, y = (each[:900] for each in digits)
    return Surrogate(
        name="digits", features=X[:650], labels=y[:650], inputs=X[650:850], truth=y[650:850],
        test=X[850:], test_truth=y[850:], classes=10, spec=TEACHERS,
    )  # fmt: skip


def predicted(surrogate: Surrogate, budget: Budget = BUDGET, **more: object) -> TableForecast:
    given: dict[str, object] = {
        "facts": Facts(records=650, queries=200, classes=10), "votes": VOTES,
        "mechanism": "laplace-counts",
    }  # fmt: skip
    return forecast_table(surrogate, budget=budget, **(given | more))  # type: ignore[arg-type]


def test_what_is_predicted_comes_true(
    surrogate: Surrogate, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    X, y = (each[900:] for each in digits)  # none of the surrogate's
    cells = pate.make_cells(X[650:850])
    votes = pate.count_record_votes(X[:650], y[:650], cells=cells, classes=10)
    found = predicted(surrogate)
    assert [*found.over_epsilon] == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert found.over_epsilon[0.25] < 0.5 < 0.85 < found.over_epsilon[4.0]
    for epsilon in (1.0, 4.0):
        reached = []
        for seed in range(5):
            mechanism = pate.LaplaceCounts(scale=1 / epsilon)
            noised = mechanism.release(votes, rng=np.random.default_rng(seed)).table
            soft = pate.smooth_counts(
                noised.counts, units=1, features=X[650:850], cells=cells.members,
                variance=noised.variance,
            )  # fmt: skip
            reached.append((soft.labels == y[650:850]).mean())
        assert found.over_epsilon[epsilon] == pytest.approx(np.mean(reached), abs=0.06)


def test_the_guarantee_is_that_of_the_noise(surrogate: Surrogate) -> None:
    found = predicted(surrogate)
    assert found.spec == AggregateSpec(mechanism="laplace-counts", scale=1.0)
    assert (found.plan.guarantee.epsilon, found.plan.guarantee.delta) == (1.0, 0.0)
    users = predicted(surrogate, per_user=3)
    assert users.spec.scale == 3.0
    assert users.plan.guarantee.neighbours == "user-add-remove"
    assert users.label_accuracy < found.label_accuracy
    gaussian = predicted(surrogate, mechanism="gaussian-counts")
    assert 0.99 < gaussian.plan.guarantee.epsilon <= 1.0
    assert gaussian.plan.guarantee.delta == 1e-5


@pytest.mark.campaign
def test_votes_are_scaled_to_the_private_data(surrogate: Surrogate) -> None:
    own = predicted(surrogate)
    assert (own.voted, own.rows, own.answered) == (650, 200, 200)
    fewer = predicted(surrogate, facts=Facts(records=130, queries=200, classes=10))
    assert (fewer.voted, fewer.rows) == (130, 200)
    assert fewer.label_accuracy < own.label_accuracy - 0.1
    larger = predicted(surrogate, facts=Facts(records=6500, queries=2000, classes=10))
    assert (larger.voted, larger.rows, larger.answered) == (650, 200, 2000)
    assert larger.label_accuracy == own.label_accuracy
    more = predicted(surrogate, facts=Facts(records=6500, queries=200, classes=10))
    assert more.voted == 6500  # each record ten times
    assert more.label_accuracy > own.label_accuracy
    clustered = predicted(
        surrogate,
        facts=Facts(records=1300, queries=400, classes=10),
        votes=VotesSpec(by="records", cells=100, reach=2),
    )
    assert (clustered.rows, clustered.voted) == (50, 650)


@pytest.mark.campaign
def test_automatic_cells_follow_the_noise_of_each_epsilon(surrogate: Surrogate) -> None:
    votes = VotesSpec(by="records", cells="auto", expected_records=650)
    some, all_inputs = (
        predicted(surrogate, Budget(epsilon=0.4, delta=1e-5), votes=each) for each in (votes, VOTES)
    )
    assert (some.rows, all_inputs.rows) == (46, 200)  # 650/(4·√2·2.5), less by whole numbers
    assert some.label_accuracy > all_inputs.label_accuracy
    assert some.over_epsilon[0.1] > all_inputs.over_epsilon[0.1] + 0.2
    assert some.over_epsilon[1.6] == all_inputs.over_epsilon[1.6]  # every input is a cell again
    assert some.as_json()["cells"] == "auto"


def test_a_rehearsal_teaches_the_teachers_model(surrogate: Surrogate) -> None:
    found = predicted(surrogate, rehearse=True)
    assert found.student_accuracy is not None
    assert 0.6 < found.student_accuracy <= 1
    hopeless = predicted(surrogate, Budget(epsilon=0.01, delta=1e-5), rehearse=True)
    assert hopeless.student_accuracy is None  # one class: nothing to learn


def test_the_better_labels_win(surrogate: Surrogate) -> None:
    table = predicted(surrogate)
    facts = Facts(records=650, queries=200, classes=10)
    profiles = [simulated(teachers=20, accuracy=0.8, classes=10, inputs=200)]
    teachers = propose(profiles, facts=facts, budget=BUDGET, mechanisms=["gnmax"]).best
    assert table_wins(table, teachers, Wish())
    assert not table_wins(replace(table, useful=0.0), teachers, Wish())
    # Students decide where both have one; a wish that is met comes first.
    rehearsed: Forecast = replace(teachers, student_accuracy=0.9)
    assert table_wins(table, rehearsed, Wish())
    assert not table_wins(replace(table, student_accuracy=0.8), rehearsed, Wish())
    unmet = replace(table, label_accuracy=0.5, student_accuracy=0.99)
    clean = replace(rehearsed, label_accuracy=0.9)
    assert not table_wins(unmet, clean, Wish(accuracy=0.8))

    said = verdict(table, teachers, wins=True)
    share, other = (f"{100 * each.label_accuracy:.1f} %" for each in (table, teachers))
    assert said.startswith(
        f"Record votes are predicted to label {share} of all 200 public inputs right at ε = 1; "
        f"20 teachers (gnmax) {other} of {teachers.answered:.0f}. Record votes are predicted to win"
    )
    said = verdict(replace(table, student_accuracy=0.8), rehearsed, wins=False)
    assert "Teachers are predicted to win by 10.0 points" in said
