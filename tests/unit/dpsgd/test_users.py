"""Training by users: lots of users, one clipped vector for each, a guarantee for one of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpsgd import AdaptiveQuantile, Trainer, make_private
from dpsgd.clipping import Flat
from dpsgd.compat import PrivacyEngine
from dpsgd.gradients import ClippedGradients
from dpsgd.losses import cross_entropy
from dpsgd.step import PrivateStep
from dpsgd.users import Users
from pate.accounting import Guarantee, Ledger, Neighbours
from pate.errors import InvalidInput

USER_ADD, USER_ZERO = Neighbours.USER_ADD_REMOVE, Neighbours.USER_ZERO_OUT
RECORDS = 60
GROUPS = [f"patient {number % 11 if number < 40 else 3}" for number in range(RECORDS)]
NORM = 0.3


def data(count=RECORDS):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 5, generator=generator)
    return inputs, torch.randint(0, 3, (count,), generator=generator)


def trainer(groups=GROUPS, *, count=RECORDS, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
    usual = {"lot_size": 4, "noise_multiplier": 1.0, "max_grad_norm": NORM, "delta": 1e-3}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    return Trainer(model, optimizer, dataset=data(count), groups=groups, **(usual | more))


def weights(trained):
    return torch.cat([each.detach().flatten() for each in trained.model.parameters()])


# --- whose records --------------------------------------------------------------------------------


def test_users_are_numbered_as_they_appear_and_keep_the_order_of_their_records():
    users = Users(np.array(["b", "a", "b", "c", "b"]), records=5)
    records, places = users.records_of(np.array([2, 0]))
    assert (records.tolist(), places.tolist()) == ([3, 0, 2, 4], [0, 1, 1, 1])
    assert [each.tolist() for each in users.records_of(np.array([], dtype=int))] == [[], []]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 5))
def test_no_user_changes_which_records_of_another_are_used(owners, most, gone):
    def kept(names):
        users = Users([name for name, _ in names], records=len(names), per_user=most)
        rows = users.records_of(np.arange(len(users)))[0]
        found = {}
        for row in rows:
            found.setdefault(names[row][0], []).append(names[row][1])
        return found

    named = list(zip(owners, range(len(owners)), strict=True))
    whole = kept(named)
    assert all(len(rows) == min(most, owners.count(name)) for name, rows in whole.items())
    others = [each for each in named if each[0] != gone]
    if others:
        assert kept(others) == {name: rows for name, rows in whole.items() if name != gone}


# --- what one user adds ---------------------------------------------------------------------------


def clipped_sum(model, inputs, targets, users, *, batch=3, loss=cross_entropy):
    """The sum that noise is added to, as one vector; batches cut users in two."""
    gradients = ClippedGradients(model, loss)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    order = torch.argsort(users, stable=True)
    parts = [each[order].split(batch) for each in (inputs, targets, users)]
    gradients.add_by_user(zip(*parts, strict=True), clipper=Flat(NORM).start(1), step=0, scale=1.0)
    return torch.cat([each.grad.flatten() for each in model.parameters()])


def largest_change(model, inputs, targets, users, summed):
    """The most that the absence of one user changes a sum."""
    whole = summed(model, inputs, targets, users)
    changes = []
    for user in users.unique():
        rest = users != user
        less = summed(model, inputs[rest], targets[rest], users[rest]) if rest.any() else 0.0
        changes.append(float((whole - less).norm()))
    return max(changes)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=14), st.floats(0.01, 100), st.integers())
def test_one_user_changes_the_sum_by_the_clipping_norm_at_most(owners, size, seed):
    torch.manual_seed(seed % 2**32)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    inputs = size * torch.randn(len(owners), 5)
    targets = torch.randint(0, 3, (len(owners),))
    change = largest_change(model, inputs, targets, torch.tensor(owners), clipped_sum)
    assert change <= NORM * (1 + 1e-5)


def test_clipping_each_record_of_a_user_is_caught():
    """The planted mistake: with four records each, one user changes the sum by four norms."""

    def by_record(model, inputs, targets, users):
        return clipped_sum(model, inputs, targets, torch.arange(len(users)))

    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)  # others may be sure of the class already, without a gradient
    inputs, targets = 100 * torch.ones(8, 2), torch.zeros(8, dtype=torch.long)
    users = torch.arange(8) // 4
    assert largest_change(model, inputs, targets, users, by_record) > 3.9 * NORM
    assert largest_change(model, inputs, targets, users, clipped_sum) <= NORM * (1 + 1e-5)


def test_a_step_is_that_of_users_one_by_one_through_autograd():
    """The whole of a step: lot, cap, batches, clipping, division; the noise is too small to see."""
    for batch_size, most in ((None, None), (4, None), (7, 3)):
        trained = trainer(noise_multiplier=1e-9, insecure_seed=4, per_user=most,
                          batch_size=batch_size)  # fmt: skip
        inputs, targets = data()
        users = Users(GROUPS, records=RECORDS, per_user=most)
        sampler, lots = trained._step.lots, []
        sampler.lot = lambda draw=sampler.lot, lots=lots: lots.append(draw()) or lots[-1]
        model, sums = trained.model, None
        before = [each.detach().clone() for each in model.parameters()]
        trained.step()
        after = [each.detach().clone() for each in model.parameters()]
        for parameter, was in zip(model.parameters(), before, strict=True):
            parameter.data = was
        for user in lots[0]:
            own, _ = users.records_of(np.array([user]))
            assert len(own) == min(GROUPS.count(GROUPS[own[0]]), most or RECORDS)
            value = cross_entropy(model(inputs[own]), targets[own]).sum()
            found = torch.autograd.grad(value, list(model.parameters()))
            length = math.sqrt(sum(float(each.square().sum()) for each in found))
            scaled = [each * min(1.0, NORM / length) for each in found]
            sums = scaled if sums is None else [a + b for a, b in zip(sums, scaled, strict=True)]
        assert len(lots[0]) >= 2
        for was, now, each in zip(before, after, sums, strict=True):
            assert torch.allclose(now, was - 0.5 * each / 4, atol=1e-6)


WIDE = {
    "two layers": (lambda: nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 20)), (40,)),
    "positions": (
        lambda: nn.Sequential(nn.Linear(40, 30), nn.Flatten(), nn.Linear(90, 20)),
        (3, 40),
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 20)),
        (4, 10),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WIDE)
@pytest.mark.parametrize("counts", [(4, 4, 4, 4), (1, 5, 2, 3), (1, 1, 1, 40)])
@pytest.mark.sample(3)
def test_short_cuts_add_what_laid_out_sums_of_users_add(kind, counts):
    """In one batch users are short cuts of layers; batches of one record lay every sum out."""
    torch.manual_seed(3)
    make, shape = WIDE[kind]
    model = make()
    users = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    inputs, targets = torch.randn(len(users), *shape), torch.randint(0, 20, (len(users),))
    short = clipped_sum(model, inputs, targets, users, batch=100)
    laid = clipped_sum(model, inputs, targets, users, batch=1)
    assert torch.allclose(short, laid, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("apart", [1e-1, 1e-3, 1e-5])
def test_a_user_whose_records_nearly_cancel_adds_the_clipping_norm_at_most(apart):
    """Lengths of single records are ten million times that of their sum, or more."""

    def signed(outputs, signs):
        return (outputs * signs.unsqueeze(1)).sum(1)

    torch.manual_seed(5)
    first = 1e4 * torch.randn(1, 64)
    inputs = torch.cat([first, first + apart * torch.randn(1, 64)])
    signs, one = torch.tensor([1.0, -1.0]), torch.zeros(2, dtype=torch.long)
    model = nn.Linear(64, 64, bias=False)
    added = clipped_sum(model, inputs, signs, one, batch=2, loss=signed)
    assert float(added.norm()) <= NORM * (1 + 1e-5)
    true = float((inputs[0] - inputs[1]).double().norm()) * 8  # 64 equal rows
    assert float(added.norm()) >= min(NORM, true) * (1 - 1e-2)


def test_a_user_without_a_finite_gradient_adds_nothing_and_changes_nothing_else():
    model = nn.Linear(5, 3)
    inputs, targets = data(9)
    users = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 3])
    rest = users != 1
    less = clipped_sum(model, inputs[rest], targets[rest], users[rest])
    for batch in (2, 100):
        inputs[3] = math.inf  # one of three records of user 1
        bad = clipped_sum(model, inputs, targets, users, batch=batch)
        assert torch.allclose(bad, less, rtol=0, atol=1e-7)
        inputs[2:5] = math.nan
        assert torch.equal(clipped_sum(model, inputs, targets, users, batch=batch), bad)


def test_an_adaptive_norm_counts_users():
    model = nn.Linear(5, 3)
    inputs, targets = data(9)
    gradients, clipper = ClippedGradients(model, cross_entropy), AdaptiveQuantile(1e9).start(1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    users = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
    batches = zip(*(each.split(2) for each in (inputs, targets, users)), strict=True)
    gradients.add_by_user(batches, clipper=clipper, step=0, scale=1.0)
    assert float(clipper._excess) == 3 * 0.5


# --- sampling and cost ----------------------------------------------------------------------------


def test_users_are_sampled_alike_however_many_records_they_have():
    trained = trainer(insecure_seed=8)
    seen, rounds = np.zeros(11), 4000
    for _ in range(rounds):
        seen[trained._step.lots.lot()] += 1
    rate = 4 / 11
    assert trained.spending.sample_rate == rate
    assert abs(seen / rounds - rate).max() < 5 * math.sqrt(rate * (1 - rate) / rounds)
    assert trained.steps_per_epoch == math.ceil(11 / 4)


@pytest.mark.parametrize("accountant", ["moments", "abadi"])
def test_a_user_costs_what_a_record_costs_at_the_same_rate_and_noise(accountant):
    same = {"lot_size": 4, "noise_multiplier": 2.0, "accountant": accountant}
    by_user = trainer(**same).spending.guarantee(50)
    by_record = trainer(None, count=11, **same).spending.guarantee(50)
    assert (by_user.epsilon, by_user.delta) == (by_record.epsilon, by_record.delta)
    assert (by_user.neighbours, by_record.neighbours) == (USER_ZERO, Neighbours.ZERO_OUT)


def test_with_an_agreed_number_of_users_nothing_follows_from_the_true_one():
    stated = trainer(users=20)
    assert stated.spending.sample_rate == 4 / 20
    assert stated.steps_per_epoch == 5
    assert stated.spending.guarantee(5).neighbours is USER_ADD
    fewer = trainer([name if name != "patient 2" else "patient 1" for name in GROUPS], users=20)
    assert fewer._settings == stated._settings
    assert fewer.spending == stated.spending


def test_a_target_is_met_by_lots_of_users():
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    made = make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=data(),
        groups=GROUPS, target_epsilon=2.0, target_delta=1e-3, epochs=3, max_grad_norm=1.0,
    )  # fmt: skip
    assert made._step.lot_size == round(math.sqrt(11))
    spent = made.fit(epochs=3).epsilon()
    assert 1.99 < spent.epsilon <= 2.0
    assert spent.neighbours is USER_ZERO
    assert made.fit(epochs=1).stopped_because == "one more step would pass ε = 2"


# --- one record for each user ---------------------------------------------------------------------


def test_with_one_record_for_each_user_training_is_that_of_records():
    by_record = weights(trainer(None, insecure_seed=3).fit(epochs=2))
    alone = list(range(RECORDS))
    to_the_bit = trainer(alone, insecure_seed=3, per_user=1).fit(epochs=2)
    assert torch.equal(weights(to_the_bit), by_record)
    rounded = trainer(alone, insecure_seed=3).fit(epochs=2)  # norms are measured in another way
    assert torch.allclose(weights(rounded), by_record, rtol=0, atol=1e-6)


def test_batches_change_nothing_but_rounding():
    whole = weights(trainer(insecure_seed=3).fit(epochs=2))
    parts = weights(trainer(insecure_seed=3, batch_size=3).fit(epochs=2))
    assert torch.allclose(parts, whole, rtol=0, atol=1e-6)


# --- runs -----------------------------------------------------------------------------------------


def test_a_killed_run_resumes_and_other_users_do_not(tmp_path):
    file = tmp_path / "run.safetensors"
    whole = weights(trainer(insecure_seed=3).fit(epochs=4))
    trainer(insecure_seed=3, checkpoint=file).fit(epochs=2)
    resumed = trainer(insecure_seed=3, checkpoint=file)
    assert resumed.steps == 6
    resumed.fit(epochs=2)
    resumed.fit(epochs=2)
    assert torch.equal(weights(resumed), whole)
    for other, word in (
        ({"groups": None}, "groups"),
        ({"groups": [f"{name}!" for name in range(RECORDS)]}, "groups"),
        ({"per_user": 2}, "per_user"),
        ({"users": 11}, "users"),
    ):
        with pytest.raises(InvalidInput, match=f"another run.*{word}"):
            trainer(**{"insecure_seed": 3, "checkpoint": file} | other)


REFUSED = {
    "a number of records": ({"records": 60}, "give users="),
    "users without groups": ({"groups": None, "users": 5}, "users is for users; give groups="),
    "a cap without groups": ({"groups": None, "per_user": 5}, "per_user is for users"),
    "a cap of nothing": ({"per_user": 0}, "per_user is 0"),
    "too few groups": ({"groups": GROUPS[1:]}, "differ in length"),
    "a record of nobody": ({"groups": [None, *GROUPS[1:]]}, "a record has no group"),
    "a record of no number": ({"groups": [math.nan] * 60}, "a record has no group"),
    "lists": ({"groups": [["ann"]] * 60}, "not one name or number"),
    "a table": ({"groups": np.zeros((60, 2))}, "not one name or number"),
    "more in a lot than there are": ({"lot_size": 12}, "of users where these are sampled"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_with_users_is_refused_in_a_line(case):
    other, words = REFUSED[case]
    with pytest.raises(InvalidInput) as mistake:
        trainer(**{"groups": GROUPS} | other)
    assert words in str(mistake.value)
    assert "\n" not in str(mistake.value)
    assert "patient" not in str(mistake.value)


def test_costs_for_records_and_own_loops_are_refused():
    from dpsgd import PrivatePCA

    events = PrivatePCA(2, noise_multiplier=5.0).events
    with pytest.raises(InvalidInput, match="prior_events are for one record"):
        trainer(prior_events=events)
    model = nn.Linear(5, 3)
    with pytest.raises(InvalidInput, match=r"dpsgd\.Trainer\(groups=…\)") as mistake:
        PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(*data()), batch_size=5),
            noise_multiplier=1.0, max_grad_norm=1.0, groups=GROUPS,
        )  # fmt: skip
    assert "patient" not in str(mistake.value)


# --- ledgers --------------------------------------------------------------------------------------


def test_a_ledger_states_for_whom_its_total_holds(tmp_path):
    terms = Guarantee(epsilon=50.0, delta=1e-3, neighbours=USER_ADD)
    with Ledger.open(tmp_path / "own.dpsgd.ledger", budget=terms) as ledger:
        trainer(ledger=ledger, users=15).fit(steps=2)
        assert ledger.spent().neighbours is USER_ADD
        trainer(ledger=ledger).fit(steps=2)
        assert ledger.spent().neighbours is USER_ZERO
        assert "all contributions of one user" in str(ledger.data_set_total())
        trainer(None, ledger=ledger).fit(steps=2)
        assert ledger.spent().neighbours is Neighbours.LONE_RECORD
        assert "where its user has no other" in str(ledger.data_set_total())
    with Ledger.open(tmp_path / "own.dpsgd.ledger") as ledger:  # the unit is in each charge
        relations = [each.events[0].event.neighbours for each in ledger.charges()]
        assert [each.group for each in ledger.charges()] == ["groups", "groups", None]
    assert relations == [USER_ADD, USER_ZERO, Neighbours.ZERO_OUT]


def test_users_of_two_columns_have_no_total(tmp_path):
    terms = Guarantee(epsilon=50.0, delta=1e-3, neighbours=USER_ADD)
    with Ledger.open(tmp_path / "own.dpsgd.ledger", budget=terms) as ledger:
        trainer(ledger=ledger, grouped_by="patient").fit(steps=1)
        assert ledger.data_set_total().neighbours is USER_ZERO
        trainer(ledger=ledger, grouped_by="ward").fit(steps=1)
        assert ledger.data_set_total().neighbours is Neighbours.LONE_RECORD
        assert ledger.spent().neighbours is Neighbours.LONE_RECORD


def test_a_step_of_records_is_planted_and_an_account_of_users_is_contradicted(monkeypatch):
    """Clipping by record, as a step: the movement of one user is as many norms as records."""

    def moved():
        torch.manual_seed(0)
        model = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(model.weight)
        inputs, labels = 100 * torch.ones(6, 2), torch.zeros(6, dtype=torch.long)
        made = Trainer(
            model, torch.optim.SGD(model.parameters(), lr=1.0), dataset=(inputs, labels),
            groups=["ann"] * 6, lot_size=1, noise_multiplier=1e-9, max_grad_norm=NORM, delta=1e-3,
        )  # fmt: skip
        made.step()
        return float(model.weight.detach().norm())

    assert moved() == pytest.approx(NORM, rel=1e-5)
    monkeypatch.setattr(
        PrivateStep,
        "_add_users",
        lambda self, lot, step: self._add_records(self.users.records_of(lot)[0], step),
    )
    assert moved() == pytest.approx(6 * NORM, rel=1e-5)
