"""What releases cost together, against exact brute force on small discrete mechanisms."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pate._format import describe_neighbours
from pate.accounting import (
    Conversion,
    ForAddRemove,
    ForReplacement,
    Gaussian,
    GaussianNoisyMaxAnswer,
    Guarantee,
    Ledger,
    Mode,
    Neighbours,
    PureDP,
    Repeated,
    SampledGaussian,
    compose,
)
from pate.accounting.composition import gaussian_epsilon
from pate.accounting.events import relation_of
from pate.accounting.ledger.data_set import sibling_ledger
from pate.accounting.ledger.study_costs import (
    combined_guarantee,
    compose_votes,
    earlier_releases_caveat,
    restate_for_replacement,
    study_cost,
    total_study_cost,
    total_study_costs,
)
from pate.errors import InvalidInput


def study_costs(ledger, **more):
    names = dict.fromkeys(study for charge in ledger.charges() for study in charge.studies)
    return tuple(study_cost(ledger, name, **more) for name in names)


ADD, REPLACE, ZERO = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT
ANSWER = GaussianNoisyMaxAnswer(sigma=100.0)
FINER = GaussianNoisyMaxAnswer(sigma=40.0)
STEP = SampledGaussian(sample_rate=0.01, noise_multiplier=1.0)


def hockey_stick(p, q, epsilon):
    """The exact δ at ε between two neighbours, in both directions."""
    one = np.maximum(p - math.exp(epsilon) * q, 0).sum()
    other = np.maximum(q - math.exp(epsilon) * p, 0).sum()
    return float(max(one, other))


def tight(epsilon, delta):
    """Kairouz et al. 2015: the worst (ε, δ)-DP mechanism, as its two output distributions."""
    stay = (1 - delta) / (1 + math.exp(epsilon))
    p = np.array([delta, math.exp(epsilon) * stay, stay, 0.0])
    return p, p[::-1]


@pytest.mark.parametrize("seed", range(20))
def test_all_of_covers_any_mechanisms(seed):
    """Random ones, each at its exact δ, together: the product of their distributions."""
    rng = np.random.default_rng(seed)
    parts, p, q = [], np.ones(1), np.ones(1)
    for _ in range(rng.integers(2, 5)):
        one, other = rng.dirichlet(np.ones(4) * rng.uniform(0.3, 3), size=2)
        epsilon = rng.uniform(0, 2)
        parts.append(Guarantee(epsilon=epsilon, delta=min(hockey_stick(one, other, epsilon), 0.99)))
        p, q = np.outer(p, one).ravel(), np.outer(q, other).ravel()
    if sum(part.delta for part in parts) >= 1:
        with pytest.raises(InvalidInput, match="guarantees nothing"):
            combined_guarantee(parts)
        return
    total = combined_guarantee(parts)
    assert hockey_stick(p, q, total.epsilon) <= total.delta + 1e-15


@pytest.mark.parametrize("pairs", [[(0.5, 0.01), (1.0, 0.02)], [(0.1, 0.001)] * 5])
def test_all_of_is_the_least_that_always_holds(pairs):
    """The worst mechanisms need it all: a smaller ε lacks, and δ is missed by products only."""
    total = combined_guarantee([Guarantee(epsilon=e, delta=d) for e, d in pairs])
    p, q = np.ones(1), np.ones(1)
    for pair in pairs:
        one, other = tight(*pair)
        assert hockey_stick(one, other, pair[0]) == pytest.approx(pair[1], rel=1e-12)
        p, q = np.outer(p, one).ravel(), np.outer(q, other).ravel()
    exact = hockey_stick(p, q, total.epsilon)
    assert exact <= total.delta
    assert exact == pytest.approx(1 - math.prod(1 - d for _, d in pairs), rel=1e-9)
    pure = [Guarantee(epsilon=e, delta=0.0) for e, _ in pairs]
    p, q = np.ones(1), np.ones(1)
    for part in pure:
        one, other = tight(part.epsilon, 0.0)
        p, q = np.outer(p, one[1:3]).ravel(), np.outer(q, other[1:3]).ravel()
    assert hockey_stick(p, q, combined_guarantee(pure).epsilon) <= 1e-15
    assert hockey_stick(p, q, 0.99 * combined_guarantee(pure).epsilon) > 1e-6


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_a_replaced_record_costs_two_and_no_less(epsilon, delta):
    """Pr[yes] grows as fast as (ε, δ) allows along d, d + one record, d′ + one record."""
    chances = [0.01]
    for _ in range(2):
        chances.append(math.exp(epsilon) * chances[-1] + delta)
    answers = [np.array([p, 1 - p]) for p in chances]
    for one, other in pairwise(answers):
        assert hockey_stick(one, other, epsilon) <= delta + 1e-15
    told = restate_for_replacement(
        Guarantee(epsilon=epsilon, delta=delta, neighbours=ADD, moment=3.0)
    )
    assert told.neighbours is REPLACE
    assert told.moment is None
    exact = hockey_stick(answers[0], answers[2], told.epsilon)
    assert exact <= told.delta + 1e-15
    assert exact == pytest.approx(told.delta, rel=1e-9, abs=1e-15)
    if epsilon:
        assert hockey_stick(answers[0], answers[2], 1.9 * epsilon) > told.delta


def test_others_are_not_restated():
    for neighbours in (REPLACE, Neighbours.AS_STATED):
        stated = Guarantee(epsilon=1.0, delta=1e-5, neighbours=neighbours)
        assert restate_for_replacement(stated) == stated
    with pytest.raises(InvalidInput, match="guarantees nothing"):
        restate_for_replacement(Guarantee(epsilon=15.0, delta=1e-5, neighbours=ADD))
    endless = restate_for_replacement(Guarantee(epsilon=math.inf, delta=1e-5, neighbours=ADD))
    assert endless.epsilon == math.inf
    assert endless.neighbours is REPLACE


def test_relations_mix_only_where_one_is_restated():
    votes = Guarantee(epsilon=2.0, delta=1e-5, neighbours=REPLACE, moment=4.0)
    steps = Guarantee(epsilon=1.0, delta=1e-5, neighbours=ADD)
    with pytest.raises(InvalidInput, match="do not add up"):
        combined_guarantee([votes, steps])
    both = combined_guarantee([votes, steps], replace_one=True)
    assert both.neighbours is REPLACE
    assert both.epsilon == 4.0
    assert both.delta == pytest.approx(1e-5 + (1 + math.e) * 1e-5, rel=1e-12)
    assert both.moment is None
    assert combined_guarantee([steps, steps]).neighbours is ADD
    assert combined_guarantee([votes]) == votes
    assert combined_guarantee([]) == Guarantee(epsilon=0.0, delta=0.0)


def test_zero_out_is_covered_by_add_remove_and_restated_like_it():
    votes = Guarantee(epsilon=2.0, delta=1e-5, neighbours=ADD)
    steps = Guarantee(epsilon=1.0, delta=1e-5, neighbours=ZERO)
    both = combined_guarantee([votes, steps])
    assert (both.epsilon, both.delta, both.neighbours) == (3.0, 2e-5, ZERO)
    assert restate_for_replacement(steps) == restate_for_replacement(replace(steps, neighbours=ADD))
    shuffled = replace(votes, neighbours=REPLACE)
    with pytest.raises(InvalidInput, match="do not add up"):
        combined_guarantee([shuffled, steps])
    assert combined_guarantee([shuffled, steps], replace_one=True).epsilon == 4.0


def test_what_is_not_publishable_stays_so():
    sound = Guarantee(epsilon=1.0, delta=1e-5)
    private = Guarantee(epsilon=1.0, delta=1e-5, data_dependent=True)
    doubtful = Guarantee(epsilon=1.0, delta=1e-5, caveats=("guessed", "shuffled"))
    assert combined_guarantee([sound, sound]).publishable
    assert combined_guarantee([sound, private]).data_dependent
    assert combined_guarantee([doubtful, sound, doubtful]).caveats == ("guessed", "shuffled")


def opened(path, **more):
    """An odometer."""
    terms = {"epsilon": math.inf, "delta": 1e-5, "moment": 3.0} | more
    return Ledger.open(path, budget=Guarantee(**terms), mode=Mode.ODOMETER)


def plan(ledger, study, *releases):
    relation = relation_of(event for each in releases for event in each)
    protects = describe_neighbours(relation if relation is ZERO else ADD)
    ledger.plan_study(study, releases, protects=protects)


@pytest.mark.parametrize("how", ["no plan", "beyond it", "before it", "another cost"])
def test_a_study_that_was_not_planned_costs_what_the_ledger_says(tmp_path, how):
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as ledger:
        ledger.charge([Repeated(ANSWER, 5)], release="alone")
        if how != "no plan":
            plan(ledger, "s", [Repeated(ANSWER, 10)])
        if how == "before it":
            ledger.charge([Repeated(ANSWER, 5)], release="alone", study="s")
        events = [FINER] if how == "another cost" else [Repeated(ANSWER, 5)]
        ledger.charge(events, release="a", study="s")
        if how == "beyond it":
            ledger.charge([Repeated(ANSWER, 6)], release="b", study="s")
        (cost,) = study_costs(ledger)
        assert not cost.in_advance
        assert cost.guarantee == ledger.guarantee()
        assert "the ledger's cost of all its releases" in cost.describe()


def test_a_study_is_told_before_it_is_charged(tmp_path):
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as ledger:
        plan(ledger, "s", [Repeated(ANSWER, 10)], [FINER])
        planned = study_cost(ledger, "s", more=[[Repeated(ANSWER, 10)], [FINER]])
        assert (planned.releases, planned.unpaid, planned.in_advance) == (0, 2, True)
        ledger.charge([Repeated(ANSWER, 10)], release="a", study="s")
        ledger.charge([FINER], release="b", study="s")
        assert study_cost(ledger, "s").guarantee == planned.guarantee
        more = study_cost(ledger, "s", more=[[ANSWER]])
        ledger.charge([ANSWER], release="c", study="s")
        after = study_cost(ledger, "s")
    assert (more.releases, more.unpaid, more.in_advance) == (2, 1, False)
    assert more.guarantee == after.guarantee
    assert after.guarantee.epsilon > planned.guarantee.epsilon


def test_what_one_method_did_unplanned_counts_for_both(tmp_path):
    """Results of one method may have led to releases of the other."""
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as votes, \
            opened(tmp_path / "mine.dpsgd.ledger", neighbours=ADD) as steps:  # fmt: skip
        plan(votes, "s", [Repeated(ANSWER, 10)])
        plan(steps, "s", [Repeated(STEP, 100)])
        votes.charge([Repeated(ANSWER, 10)], release="a", study="s")
        steps.charge([Repeated(STEP, 100)], release="a", study="s")
        (planned,) = total_study_costs(votes, one_teacher=ADD)
        votes.charge([Repeated(ANSWER, 10)], release="b", study="s")
        (later,) = total_study_costs(votes, one_teacher=ADD)
        figures = votes.guarantee().epsilon + steps.guarantee().epsilon
    assert planned.in_advance
    assert not later.in_advance
    assert (planned.releases, later.releases) == (2, 3)
    assert later.together.epsilon == pytest.approx(figures, rel=1e-12)
    assert planned.together.epsilon < later.together.epsilon


def test_a_study_costs_what_its_charges_do_at_the_best_moment(tmp_path):
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as ledger:
        assert study_costs(ledger) == ()
        ledger.charge([Repeated(ANSWER, 100)], release="before")
        assert study_costs(ledger) == ()
        plan(ledger, "sweep b", [Repeated(ANSWER, 300)], [Repeated(ANSWER, 200), FINER])
        plan(ledger, "sweep a", [Repeated(ANSWER, 50)])
        ledger.charge([Repeated(ANSWER, 300)], release="a", study="sweep b")
        (begun,) = study_costs(ledger)
        ledger.charge([Repeated(ANSWER, 50)], release="other", study="sweep a")
        ledger.charge([Repeated(ANSWER, 200), FINER], release="c", study="sweep b")
        first, second = study_costs(ledger)
        spent = ledger.spent().epsilon
    assert (begun.releases, begun.unpaid) == (1, 1)
    assert begun.guarantee == first.guarantee  # to stop may have been decided by results
    assert (first.name, first.releases, first.unpaid) == ("sweep b", 2, 0)
    assert (second.name, second.releases, second.unpaid) == ("sweep a", 1, 0)
    assert first.in_advance
    assert first.earlier == second.earlier == 1
    assert "1 other release of this data set came before" in earlier_releases_caveat(first)
    best = compose([Repeated(ANSWER, 500), FINER]).guarantee(delta=1e-5)
    assert first.guarantee == best
    assert first.guarantee.moment != 3.0
    assert second.guarantee.epsilon < first.guarantee.epsilon < spent


@pytest.mark.parametrize("count", [1, 4, 16])
def test_a_study_is_never_cheaper_than_it_is(tmp_path, count):
    """Gaussians together are one Gaussian, whose ε is known exactly."""
    with opened(tmp_path / "mine.ledger") as ledger:
        plan(ledger, "all", *([Gaussian(noise_multiplier=8.0)] for _ in range(count)))
        for number in range(count):
            ledger.charge([Gaussian(noise_multiplier=8.0)], release=str(number), study="all")
        (cost,) = study_costs(ledger)
    exact = gaussian_epsilon(8.0 / math.sqrt(count), delta=1e-5)
    assert exact <= cost.guarantee.epsilon <= 1.15 * exact
    alone = compose([Gaussian(noise_multiplier=8.0)]).guarantee(delta=1e-5)
    if count > 1:
        assert alone.epsilon < cost.guarantee.epsilon < combined_guarantee([alone] * count).epsilon


def test_a_study_is_converted_as_its_ledger_is(tmp_path):
    with opened(tmp_path / "mine.ledger", conversion=Conversion.CLASSIC, delta=1e-3) as ledger:
        plan(ledger, "s", [Repeated(ANSWER, 100)])
        ledger.charge([Repeated(ANSWER, 100)], release="a", study="s")
        (cost,) = study_costs(ledger)
    classic = compose([Repeated(ANSWER, 100)]).guarantee(delta=1e-3, conversion=Conversion.CLASSIC)
    assert cost.guarantee == classic


def test_the_relation_behind_teachers_is_told_of_votes_only(tmp_path):
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as votes, \
            opened(tmp_path / "mine.dpsgd.ledger", neighbours=ADD) as steps:  # fmt: skip
        votes.charge([Repeated(ANSWER, 10)], release="a", study="s")
        steps.charge([Repeated(STEP, 100)], release="a", study="s")
        (plain,) = study_costs(votes)
        assert plain.guarantee.neighbours is REPLACE
        (hashed,) = study_costs(votes, one_teacher=ADD)
        (other,) = study_costs(steps, one_teacher=REPLACE)
    assert hashed.guarantee.neighbours is ADD
    assert other.guarantee.neighbours is ZERO
    both = combined_guarantee([hashed.guarantee, other.guarantee])
    assert both.epsilon == hashed.guarantee.epsilon + other.guarantee.epsilon
    assert both.delta == 2e-5
    assert both.neighbours is ZERO


def test_the_figure_of_a_ledger_is_said_of_all_partitions_behind_it(tmp_path):
    """Votes of a shuffled partition say nothing of one record more or less, whoever asks."""
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as votes, \
            opened(tmp_path / "mine.dpsgd.ledger", neighbours=ADD) as steps:  # fmt: skip
        votes.charge([Repeated(ANSWER, 10)], release="shuffled", records=REPLACE)
        votes.charge([Repeated(ANSWER, 10)], release="hashed", study="s", records=ADD)
        (alone,) = total_study_costs(votes, one_teacher=ADD)
        whole = votes.data_set_total()
        steps.charge([Repeated(STEP, 100)], release="a", study="s")
        (both,) = total_study_costs(votes, one_teacher=ADD)
        total = votes.data_set_total()
        assert study_cost(votes, "s").guarantee == alone.here.guarantee  # whoever asks
    for study, figure in ((alone, whole), (both, total)):
        assert study.together.neighbours is REPLACE
        assert study.together.epsilon == pytest.approx(figure.epsilon, rel=1e-12)
        assert study.together.delta == pytest.approx(figure.delta, rel=1e-12)
    assert alone.here.guarantee.epsilon == alone.together.epsilon


@pytest.mark.parametrize("planned", [True, False])
def test_a_dpsgd_ledger_states_hashed_votes_for_one_record_more_or_less(tmp_path, planned):
    """A replaced record changes two teachers of a hashed partition: the cost is not about it."""
    answers, steps = [Repeated(ANSWER, 10)], [Repeated(STEP, 100)]
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as votes, \
            opened(tmp_path / "mine.dpsgd.ledger", neighbours=ADD) as trained:  # fmt: skip
        if planned:
            plan(votes, "s", answers)
            plan(trained, "s", steps)
        votes.charge(answers, release="a", study="s", records=ADD)
        trained.charge(steps, release="a", study="s")
        (asked,) = total_study_costs(trained)
        (stated,) = total_study_costs(trained, one_teacher=ADD)
    assert asked.in_advance is planned
    assert asked.other.guarantee.neighbours is ADD
    assert asked.together.neighbours is ZERO  # as STEP states
    assert asked.together == stated.together


def test_seeded_releases_are_not_private_together_either(tmp_path):
    with opened(tmp_path / "mine.not-private.ledger") as ledger:
        ledger.charge([Repeated(ANSWER, 10)], release="a", study="s")
        (cost,) = study_costs(ledger)
    assert not cost.guarantee.publishable


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mnist.ledger", "mnist.dpsgd.ledger"),
        ("mnist.not-private.ledger", "mnist.dpsgd.not-private.ledger"),
        ("a.b.ledger", "a.b.dpsgd.ledger"),
    ],
)
def test_the_other_ledger(tmp_path, one, other):
    assert sibling_ledger(tmp_path / one) == tmp_path / other
    assert sibling_ledger(tmp_path / other) == tmp_path / one


# --- votes of teachers and of records -------------------------------------------------------------

TABLE, TABLE_OF_USERS = (ForAddRemove(PureDP(epsilon=0.5), per_user=each) for each in (False, True))
USERS = Neighbours.USER_ADD_REMOVE


def planned_both(ledger, table=TABLE, *, records=ADD, group=None):
    """A study of answers of teachers and of one table, planned and paid for."""
    ledger.plan_study("s", [[Repeated(ANSWER, 10)], [table]], protects=describe_neighbours(ADD))
    if records is not None:
        ledger.charge([Repeated(ANSWER, 10)], release="a", study="s", records=records, group=group)
    ledger.charge([table], release="b", study="s", records=table.neighbours, group=group)


def test_answers_and_tables_of_one_plan_add_up_at_every_moment(tmp_path):
    """By hand, where one teacher changes and one vote comes or goes: both Rényi sums, converted."""
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as ledger:
        planned_both(ledger)
        cost = study_cost(ledger, "s", one_teacher=ADD)
    moments = np.concatenate([np.arange(1, 100) / 10, np.arange(20, 2000) / 2])
    votes = compose([Repeated(ANSWER, 10)], moments).values
    table = np.minimum(0.5 * moments, 0.125 * moments * (moments + 1))
    orders = moments + 1
    epsilons = (votes + table) / moments + np.log(moments / orders)
    epsilons -= (math.log(1e-5) + np.log(orders)) / moments
    assert cost.in_advance
    assert cost.guarantee.neighbours is ADD
    assert cost.guarantee.epsilon == pytest.approx(epsilons.min(), rel=1e-3)
    alone = compose([Repeated(ANSWER, 10)]).guarantee(delta=1e-5).epsilon
    assert cost.guarantee.epsilon > max(alone, 0.5)


@pytest.mark.parametrize(
    ("one_teacher", "records", "relation"),
    [
        (ADD, ADD, ADD),
        (ADD, None, ADD),  # nothing of the teachers is paid for yet
        (REPLACE, ADD, ADD),  # what the charges note comes first
        (ADD, REPLACE, REPLACE),
        (REPLACE, None, None),
        (None, ADD, ADD),
        (None, REPLACE, REPLACE),
        (None, None, None),
    ],
)
def test_a_plan_of_both_holds_where_one_record_changes_one_teacher(
    tmp_path, one_teacher, records, relation
):
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as ledger:
        planned_both(ledger, records=records)
        cost = study_cost(ledger, "s", one_teacher=one_teacher)
        total = ledger.data_set_total()
    if relation is ADD:
        assert (cost.in_advance, cost.guarantee.neighbours) == (True, ADD)
        return
    assert not cost.in_advance  # what the ledger says of all its charges
    if relation is REPLACE:
        assert cost.guarantee.neighbours is REPLACE
        assert cost.guarantee.epsilon == pytest.approx(total.epsilon)
        assert total.restated
    else:
        assert cost.guarantee.epsilon >= total.epsilon * (1 - 1e-12)


@pytest.mark.parametrize("table", [TABLE, TABLE_OF_USERS])
def test_answers_and_tables_protect_users_where_both_do(tmp_path, table):
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as ledger:
        planned_both(ledger, table, group="who")
        by_user = study_cost(ledger, "s", one_teacher=USERS).guarantee.neighbours
        by_record = study_cost(ledger, "s", one_teacher=ADD).guarantee.neighbours
    if table is TABLE:  # which protects single records
        assert (by_user, by_record) == (Neighbours.LONE_RECORD, ADD)
    else:
        assert (by_user, by_record) == (USERS, Neighbours.LONE_RECORD)


def test_teachers_of_single_records_are_not_taken_for_those_of_users(tmp_path):
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as ledger:
        plan(ledger, "s", [Repeated(ANSWER, 10)])
        ledger.charge([Repeated(ANSWER, 10)], release="a", study="s", records=ADD)
        assert study_cost(ledger, "s", one_teacher=USERS).guarantee.neighbours is ADD


def test_beside_tables_votes_of_an_unknown_partition_have_no_relation(tmp_path):
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as votes, \
            opened(tmp_path / "mine.dpsgd.ledger", neighbours=ADD) as steps:  # fmt: skip
        votes.charge([Repeated(ANSWER, 10)], release="unknown")
        votes.charge([TABLE], release="table", study="s", records=ADD)
        (alone,) = total_study_costs(votes, one_teacher=ADD)
        steps.charge([Repeated(STEP, 100)], release="a", study="s")
        (both,) = total_study_costs(votes, one_teacher=ADD)
        total = votes.data_set_total()
    assert alone.here.guarantee.neighbours is Neighbours.AS_STATED
    assert both.together.neighbours is total.neighbours is REPLACE
    assert both.together.epsilon == pytest.approx(total.epsilon)


def test_a_plan_of_pure_tables_costs_their_sum(tmp_path):
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as ledger:
        plan(ledger, "s", [TABLE], [TABLE])
        cost = study_cost(ledger, "s", more=[[TABLE], [TABLE]])
    assert (cost.guarantee.epsilon, cost.guarantee.delta) == (1.0, 0.0)
    assert cost.guarantee.neighbours is ADD
    many = compose_votes([Repeated(TABLE, 400)], one_teacher=None).guarantee(delta=1e-5)
    with opened(tmp_path / "many.ledger", neighbours=REPLACE) as ledger:
        plan(ledger, "s", [Repeated(TABLE, 400)])
        cost = study_cost(ledger, "s", more=[[Repeated(TABLE, 400)]])
    assert cost.guarantee.epsilon == many.epsilon < 200  # where some δ buys a smaller ε


def test_what_is_stated_for_one_record_replaced_is_not_taken_for_votes():
    apart = [ForReplacement(PureDP(epsilon=0.5)), TABLE]
    with pytest.raises(InvalidInput, match="do not add up"):
        compose_votes(apart, one_teacher=ADD)


@pytest.mark.parametrize("teachers", [False, True])
@pytest.mark.parametrize("paid", [False, True])
def test_a_planned_study_of_two_group_columns_is_not_about_users(tmp_path, teachers, paid):
    """A patient may lie on two wards, and a ward has many patients."""
    first = [Repeated(ANSWER, 10)] if teachers else [TABLE_OF_USERS]
    second, records = [Repeated(TABLE_OF_USERS, 2)], ADD if teachers else USERS
    steps = [Repeated(replace(STEP, per_user=True, public_rate=True), 10)]
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as pate, \
            opened(tmp_path / "mine.dpsgd.ledger", neighbours=USERS) as dpsgd:  # fmt: skip
        for ledger, planned in ((pate, [first, second]), (dpsgd, [steps, steps])):
            ledger.plan_study("s", planned, protects=describe_neighbours(USERS))
        pate.charge(first, release="a", study="s", records=records, group="patient")
        dpsgd.charge(steps, release="a", study="s", group="patient")

        def cost(column, **more):
            return total_study_cost(pate, dpsgd, "s", one_teacher=USERS, group=column, **more)

        same = cost("patient", more=[second], more_there=[steps])
        assert same.here.guarantee.neighbours is same.together.neighbours is USERS
        if paid:
            pate.charge(second, release="b", study="s", records=USERS, group="ward")
            half = cost(None)
            assert half.other.guarantee.neighbours is USERS  # of patients alone
            assert half.together.neighbours is Neighbours.LONE_RECORD
            dpsgd.charge(steps, release="b", study="s", group="ward")
            both = cost(None)
            assert pate.guarantee().neighbours is Neighbours.LONE_RECORD
        else:
            both = cost("ward", more=[second], more_there=[steps])
    assert both.in_advance
    for each in (both.here.guarantee, both.other.guarantee, both.together):
        assert each.neighbours is Neighbours.LONE_RECORD
    assert both.together.epsilon == same.together.epsilon


def test_shuffled_votes_beside_tables_are_not_stated_for_one_record_more_or_less(tmp_path):
    """Whoever asks: a model of DP-SGD knows no relation behind teachers."""
    with opened(tmp_path / "mine.ledger", neighbours=REPLACE) as votes, \
            opened(tmp_path / "mine.dpsgd.ledger", neighbours=ADD) as steps:  # fmt: skip
        votes.charge([TABLE], release="table", study="s", records=ADD)
        shuffled = [[Repeated(ANSWER, 10)]]
        before = study_cost(votes, "s", more=shuffled, one_teacher=REPLACE).guarantee
        votes.charge(shuffled[0], release="votes", study="s", records=REPLACE)
        alone = votes.data_set_total()
        steps.charge([Repeated(STEP, 100)], release="a", study="s")
        total = votes.data_set_total()
        asked = [
            total_study_cost(*ledgers, "s", one_teacher=relation)
            for ledgers in ((votes, steps), (steps, votes))
            for relation in (None, ADD, REPLACE)
        ]
        for relation in (None, ADD, REPLACE):
            here = study_cost(votes, "s", one_teacher=relation).guarantee
            assert (here.neighbours, here.epsilon) == (REPLACE, pytest.approx(alone.epsilon))
    assert (before.neighbours, before.epsilon) == (REPLACE, pytest.approx(alone.epsilon))
    for each in asked:
        assert each.together.neighbours is total.neighbours is REPLACE
        assert each.together.epsilon == pytest.approx(total.epsilon)
        assert each.together.delta == pytest.approx(total.delta)
