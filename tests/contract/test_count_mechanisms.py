"""The contract of mechanisms that release a table of record votes, run over all of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from pate.accounting import (
    Accountant,
    Conversion,
    ForAddRemove,
    Guarantee,
    Ledger,
    Neighbours,
    PureDP,
    ZeroConcentrated,
    compose,
    event_from_json,
    event_to_json,
    guarantee_of_plan,
)
from pate.accounting.ledger.data_set import Coverage
from pate.errors import BudgetExceeded, InvalidInput, ReleaseConflict
from pate.mechanisms import (
    COUNT_MECHANISMS,
    AggregateSpec,
    GaussianCounts,
    LaplaceCounts,
    insecure_generator,
    make_mechanism,
    plan_table,
)
from pate.record_votes import RecordVotes

ALL = pytest.mark.parametrize("name", COUNT_MECHANISMS)


def made(name, noise=2.0):
    kind = COUNT_MECHANISMS[name]
    return kind.from_keys({kind.calibrated: noise})


def table(reach=1, per_user=None, cells=6):
    counts = np.random.default_rng(0).integers(20, size=(cells, 3))
    return RecordVotes(counts=counts, reach=reach, per_user=per_user)


@ALL
@pytest.mark.parametrize("reach", [1, 3])
@pytest.mark.parametrize("per_user", [None, 2])
def test_a_release_states_its_cost_and_whom_it_is_for(name, reach, per_user):
    mechanism, votes = made(name), table(reach, per_user)
    before = votes.counts.copy()
    found = mechanism.release(votes, rng=insecure_generator(3))
    assert found.table.counts.shape == votes.counts.shape
    assert found.table.counts.dtype == np.int64
    assert found.table.units == reach
    assert (votes.counts == before).all()
    assert found.events == mechanism.events(reach=reach, per_user=per_user)
    (event,) = found.events
    assert event.neighbours is votes.neighbours
    assert event_from_json(event_to_json(event)) == event
    assert "counts" not in repr(votes)
    assert "table" not in repr(found)
    # The size of the table is nowhere in its cost.
    assert mechanism.release(table(reach, per_user, 60), rng=insecure_generator(3)).events == (
        found.events
    )


@ALL
def test_a_recipe_names_it(name):
    kind = COUNT_MECHANISMS[name]
    spec = AggregateSpec(mechanism=name, **{kind.calibrated: 2})
    assert make_mechanism(spec) == made(name)
    assert made(name).formula()
    assert made(name).settings()
    with pytest.raises(ValidationError, match=f"needs {kind.calibrated}"):
        AggregateSpec(mechanism=name)
    with pytest.raises(ValidationError, match="takes no queries"):
        AggregateSpec(mechanism=name, queries=5, **{kind.calibrated: 2.0})


@ALL
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 1 / 3, 2.0, 7.7])
@pytest.mark.parametrize(("reach", "per_user"), [(1, None), (3, None), (4, 2), (1, 5)])
def test_the_noise_that_is_found_is_the_least(name, epsilon, reach, per_user):
    kind = COUNT_MECHANISMS[name]
    delta = 0.0 if kind.pure else 1e-5
    noise = kind.least_noise(epsilon=epsilon, delta=delta, reach=reach, per_user=per_user)

    def cost(value):
        mechanism = kind.from_keys({kind.calibrated: value})
        return plan_table(
            mechanism, epsilon=None, delta=delta, inputs=9, reach=reach, per_user=per_user
        ).guarantee.epsilon

    assert cost(noise) <= epsilon
    assert cost(noise * 0.999) > epsilon
    mechanism = kind.from_keys({kind.calibrated: noise / 2})
    with pytest.raises(BudgetExceeded, match="the table costs"):
        plan_table(
            mechanism, epsilon=epsilon, delta=delta, inputs=9, reach=reach, per_user=per_user
        )


# --- the claims against the exact chances ---------------------------------------------------------


def laplace_log_chances(scale, support):
    log = -np.abs(support) / scale
    return log - np.logaddexp.reduce(log)


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("reach", [1, 3])
@pytest.mark.parametrize("records", [1, 2])
def test_laplace_counts_lose_no_more_than_they_charge(scale, reach, records):
    """The largest loss over all outcomes of the counts that ``records`` records move."""
    event = LaplaceCounts(scale=scale).cost(reach=reach, records=records)
    assert isinstance(event, PureDP)
    support = np.arange(-2000, 2001)
    log = laplace_log_chances(float(LaplaceCounts(scale=scale)._units(reach)), support)
    by_units = {n: np.abs(log[n:] - log[:-n]).max() for n in range(1, records + 1)}
    # All in the same cells, or each in cells of its own: the worst of both.
    worst = max(reach * by_units[records], records * reach * by_units[1])
    assert worst <= event.epsilon * (1 + 1e-9)
    assert worst == pytest.approx(event.epsilon, rel=1e-6)
    assert event.epsilon == pytest.approx(records / scale, rel=1e-5)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("reach", [1, 4])
@pytest.mark.parametrize("records", [1, 3])
def test_gaussian_counts_stay_within_their_zcdp(sigma, reach, records):
    event = GaussianCounts(sigma=sigma).cost(reach=reach, records=records)
    assert isinstance(event, ZeroConcentrated)
    variance = float(GaussianCounts(sigma=sigma)._units(reach))
    support = np.arange(-4000, 4001)
    log = -(support.astype(float) ** 2) / (2 * variance)
    log -= np.logaddexp.reduce(log)
    for order in (1.5, 2.0, 5.0, 20.0):
        p, q = log[: -records or None], log[records:]  # one count, moved by all records at once
        divergence = np.logaddexp.reduce(order * p + (1 - order) * q) / (order - 1)
        assert reach * divergence <= event.rho * order * (1 + 1e-9)
    assert event.rho == pytest.approx(records**2 / (2 * sigma**2 * reach), rel=1e-3)


def test_the_claim_holds_empirically():
    """An audit: the best guesser of which of two tables was noised is right as often as ε allows.

    The likelihood ratio of one count separates them best; at half the noise the bound is broken.
    """
    with_record = RecordVotes(counts=np.array([[1, 0], [0, 0]]))
    without = RecordVotes(counts=np.array([[0, 0], [0, 0]]))
    tries = 20_000

    def hits(scale):
        mechanism, rng = LaplaceCounts(scale=scale), insecure_generator(9)
        noise = mechanism.noise((2, tries), reach=1, rng=rng)
        alarm = (with_record.counts[0, 0] + noise[0] >= 1).mean()
        false = (without.counts[0, 0] + noise[1] >= 1).mean()
        return alarm, false

    alarm, false = hits(1.0)
    spread = 5 * math.sqrt(1 / tries)
    assert alarm <= math.e * false + spread
    assert alarm == pytest.approx(math.e * false, abs=spread)  # and the bound is reached
    alarm, false = hits(0.5)
    assert alarm > math.e * false + spread


# --- the ledger -----------------------------------------------------------------------------------


@ALL
def test_a_table_is_drawn_and_charged_once(name, tmp_path):
    votes = table(per_user=2)
    with Ledger.open(tmp_path / "l.ledger", budget=Guarantee(epsilon=9, delta=1e-5)) as ledger:
        first = ledger.release(made(name), votes, name="table")
        again = ledger.release(made(name), votes, name="table")
        assert (first.table.counts == again.table.counts).all()
        assert first.table.variance == again.table.variance
        (charge,) = ledger.charges()
        assert charge.records is Neighbours.USER_ADD_REMOVE
        assert ledger.guarantee().neighbours is Neighbours.USER_ADD_REMOVE
        with pytest.raises(ReleaseConflict):
            ledger.release(made(name), table(per_user=2, cells=7), name="table")
        with pytest.raises(InvalidInput, match="most_answers"):
            ledger.release(made(name), votes, name="other", most_answers=3)


@pytest.mark.parametrize("named", [True, False])
def test_tables_by_two_columns_are_not_of_the_same_users(named, tmp_path):
    """Without a ward go many patients: ε of a table by patients is not for a ward."""
    budget = Guarantee(epsilon=30, delta=1e-5, neighbours=Neighbours.REPLACE_ONE)
    with Ledger.open(tmp_path / "l.ledger", budget=budget) as ledger:
        for column in ("patient", "ward"):
            votes = replace(table(per_user=1), group=column if named else None)
            ledger.release(LaplaceCounts(scale=1.0), votes, name=f"by {column}")
        for total in (ledger.data_set_total(), ledger.guarantee()):
            assert total.neighbours is Neighbours.LONE_RECORD
        assert ledger.coverage() is Coverage.MIXED
    with Ledger.open(tmp_path / "m.ledger", budget=budget) as ledger:
        for name in ("a", "b"):
            votes = replace(table(per_user=1), group="patient")
            ledger.release(LaplaceCounts(scale=1.0), votes, name=name)
        assert ledger.data_set_total().neighbours is Neighbours.USER_ADD_REMOVE


def test_a_table_past_the_budget_is_refused_before_it_is_drawn(tmp_path):
    with Ledger.open(tmp_path / "l.ledger", budget=Guarantee(epsilon=1, delta=1e-5)) as ledger:
        with pytest.raises(BudgetExceeded):
            ledger.release(LaplaceCounts(scale=0.5), table(), name="table")
        assert not ledger.releases()
        assert not (tmp_path / "l.ledger.answers").exists()


def test_pure_costs_add_up_at_delta_zero():
    events = [*LaplaceCounts(scale=2.0).events(), *LaplaceCounts(scale=4.0).events()]
    assert guarantee_of_plan(events, delta=0.0) == Guarantee(
        epsilon=0.75, delta=0.0, neighbours=Neighbours.ADD_REMOVE, accountant=Accountant.PURE
    )
    with pytest.raises(InvalidInput, match="delta is 0"):
        guarantee_of_plan(GaussianCounts(sigma=2.0).events(), delta=0.0)
    moments = compose(events).guarantee(delta=1e-5, conversion=Conversion.IMPROVED)
    assert moments.epsilon == pytest.approx(0.75, rel=1e-3)
    assert ForAddRemove(PureDP(epsilon=0.5)) in {*events}
