"""Interactive-GNMax: who answers, who keeps, and whose number of teachers counts."""

from __future__ import annotations

import numpy as np
import pytest

from pate.accounting import ThresholdCheck, confident_total
from pate.accounting.events import tally
from pate.accounting.noisy_max import checked_statistic
from pate.errors import InvalidInput
from pate.mechanisms import (
    ConfidentGnmax,
    InteractiveGnmax,
    insecure_generator,
    student_baseline,
)
from pate.votes import Votes

QUIET = InteractiveGnmax(threshold=29.5, sigma1=1e-6, sigma2=1e-6, keep=0.7)
VOTES = Votes(
    counts=np.array(
        [
            [90, 5, 5],  # the student is elsewhere: the teachers answer
            [90, 5, 5],  # the student agrees and is sure: kept
            [90, 5, 5],  # agrees, is not sure: no label
            [40, 30, 30],  # torn teachers, sure student: kept, though it may be wrong
            [65, 30, 5],  # lead 29.9: its floor 29 is below the threshold; sure of 1: kept
            [5, 5, 90],  # the student is elsewhere: answered
        ]
    )
)
STUDENT = np.array(
    [
        [0.10, 0.80, 0.10],
        [0.88, 0.06, 0.06],
        [0.68, 0.16, 0.16],
        [0.15, 0.15, 0.70],
        [0.351, 0.649, 0.0],
        [0.80, 0.10, 0.10],
    ]
)


def ask(mechanism=QUIET, votes=VOTES, student=STUDENT, **options):
    return mechanism.release(votes, rng=insecure_generator(0), student=student, **options)


def test_teachers_answer_where_they_lead_and_a_sure_student_keeps_elsewhere():
    given = ask()
    assert given.answered.tolist() == [0, 5]
    assert given.labels.tolist() == [0, 2]
    assert given.kept.tolist() == [1]  # 0.70 is not above 0.7, 0.649 neither
    assert given.kept_labels.tolist() == [0]
    lower = InteractiveGnmax(threshold=29.5, sigma1=1e-6, sigma2=1e-6, keep=0.64)
    assert ask(lower).kept.tolist() == [1, 2, 3, 4]
    assert ask(lower).kept_labels.tolist() == [0, 0, 2, 1]
    never = InteractiveGnmax(threshold=29.5, sigma1=1e-6, sigma2=1e-6, keep=1.0)
    assert ask(never).kept.tolist() == []


def test_a_kept_label_costs_its_check_alone():
    given = ask(most_answers=2)
    counts = {type(event).__name__: count for event, count in tally(given.events).items()}
    assert counts == {"ThresholdCheck": 6, "GaussianNoisyMaxAnswer": 2}
    torn = ask(votes=Votes(counts=VOTES.counts[1:5]), student=STUDENT[1:5])
    assert tally(torn.events) == {ThresholdCheck(sigma=1e-6): 4}
    assert torn.kept.tolist() == [0]


def test_nothing_is_kept_that_was_not_checked():
    given = ask(most_answers=1)
    assert (given.asked, given.answered.tolist(), given.kept.tolist()) == (1, [0], [])


def test_the_statistic_is_the_accountants():
    """With a threshold between whole numbers and no noise the check *is* the statistic."""
    rng = np.random.default_rng(2)
    votes = Votes(counts=rng.multinomial(100, [0.6, 0.3, 0.1], size=500))
    student = rng.dirichlet([1, 1, 1], size=500).astype(np.float32)
    statistic = checked_statistic(
        votes.counts, baseline=student_baseline(student, teachers=votes.teachers)
    )
    expected = np.flatnonzero(statistic >= 29.5)
    assert 50 < len(expected) < 450
    assert np.array_equal(ask(votes=votes, student=student).answered, expected)
    lead = (votes.counts - 100 * student.astype(np.float64)).max(axis=1)
    assert not np.array_equal(np.flatnonzero(lead >= 29.5), expected)  # the floor is felt


def test_the_baseline_is_worked_out_in_doubles():
    """In single precision 0.7 × 10 comes out as 7; the floor of a lead would move by one."""
    tenths = np.full((1, 10), 0.7, dtype=np.float32)
    baseline = student_baseline(tenths, teachers=10)
    assert baseline.dtype == np.float64
    assert baseline[0, 0] == 10 * float(np.float32(0.7)) != 7


def test_the_accountant_takes_what_was_released():
    given = ask()
    mask = np.zeros(VOTES.queries, dtype=bool)
    mask[given.answered] = True
    total = confident_total(
        VOTES.counts,
        threshold=29.5,
        sigma1=20.0,
        sigma2=10.0,
        answered=mask,
        baseline=student_baseline(STUDENT, teachers=100),
    )
    assert total.data_dependent


def test_one_vote_moves_the_statistic_by_one_at_most():
    """One teacher votes for each class in turn, or abstains, beside the same other teachers."""
    rng = np.random.default_rng(9)
    for _ in range(200):
        cast = int(rng.integers(1, 13))
        row = rng.multinomial(cast, rng.dirichlet([1, 1, 1, 1]))
        baseline = student_baseline(rng.dirichlet([0.5] * 4), teachers=13)
        others = row.copy()
        others[rng.choice(np.flatnonzero(row))] -= 1
        neighbours = np.vstack([others, others + np.eye(4, dtype=np.int64)])
        values = checked_statistic(neighbours, baseline=np.tile(baseline, (5, 1)))
        assert np.ptp(values) <= 1


def test_without_a_student_it_is_confident():
    loud = InteractiveGnmax(threshold=60.0, sigma1=20.0, sigma2=10.0)
    confident = ConfidentGnmax(threshold=60.0, sigma1=20.0, sigma2=10.0)
    votes = Votes(counts=np.tile(VOTES.counts, (50, 1)))
    one = loud.release(votes, rng=insecure_generator(4))
    two = confident.release(votes, rng=insecure_generator(4))
    assert np.array_equal(one.answered, two.answered)
    assert np.array_equal(one.labels, two.labels)
    assert one.events == two.events
    assert len(one.kept) == 0


def test_abstentions_need_the_public_number_of_teachers():
    """Guessing it from the votes would let one record move every baseline."""
    votes = Votes(counts=VOTES.counts - np.array([1, 0, 0]) * (np.arange(6) == 0)[:, None])
    with pytest.raises(InvalidInput, match="give the number of teachers"):
        ask(votes=votes)
    assert ask(votes=votes, teachers=100).answered.tolist() == [0, 5]
    with pytest.raises(InvalidInput, match="more votes than the 99 teachers"):
        ask(votes=votes, teachers=99)
    with pytest.raises(InvalidInput, match="teachers is 0"):
        ask(teachers=0)


def test_the_given_number_of_teachers_is_the_one_used():
    """Twice as many teachers, half of them silent: the student's prediction weighs twice."""
    assert ask(teachers=200).answered.tolist() == [0, 5]
    assert ask(teachers=1000).answered.tolist() == []


@pytest.mark.parametrize(
    ("student", "rule"),
    [
        (STUDENT[:5], "the votes' shape"),
        (STUDENT[:, :2], "the votes' shape"),
        (STUDENT[0], "the votes' shape"),
        (VOTES.counts, "the votes' shape"),
        (STUDENT * 0.9, "sum to one"),
        (STUDENT - 0.2, "sum to one"),
        (np.where(STUDENT > 0.85, np.nan, STUDENT), "sum to one"),
        (np.where(STUDENT > 0.85, np.inf, STUDENT), "sum to one"),
        (np.tile([1.5, -0.5, 0.0], (6, 1)), "zero or more"),
    ],
)
def test_what_is_not_probabilities_is_refused(student, rule):
    with pytest.raises(InvalidInput, match=rule):
        ask(student=student)


@pytest.mark.parametrize("keep", [-0.1, 1.1, float("nan"), "0.9", True])
def test_keep_is_a_probability(keep):
    with pytest.raises(InvalidInput, match="keep"):
        InteractiveGnmax(threshold=1.0, sigma1=1.0, sigma2=1.0, keep=keep)


@pytest.mark.parametrize("threshold", [0, -5.0, float("nan"), float("inf"), True])
@pytest.mark.parametrize("kind", [ConfidentGnmax, InteractiveGnmax])
def test_a_threshold_is_a_number_of_votes(kind, threshold):
    with pytest.raises(InvalidInput, match="threshold"):
        kind(threshold=threshold, sigma1=1.0, sigma2=1.0)
