"""Between which data sets DP-SGD's ε holds: what it claims, what holds, and what is shown of n."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import nn

from dpsgd import Trainer, make_private
from dpsgd import checkpoint as checkpoints
from dpsgd.cli import main
from dpsgd.pca import PrivatePCA
from dpsgd.recipe import DpsgdRecipe
from dpsgd.runs import TrainingOutcome, name_of_run
from pate.accounting import (
    Guarantee,
    Ledger,
    Mode,
    Neighbours,
    Repeated,
    SampledGaussian,
    event_from_json,
    event_to_json,
)
from pate.errors import InvalidInput

ADD, ZERO = Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT
DELTA = 1e-5
OLD = '{"event": "SampledGaussian", "noise_multiplier": 1.0, "sample_rate": 0.01}'


def trainer_on(count, *, lot_size, seed=None, noise=1.5, **more):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(count, 3)).astype(np.float32)
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"max_grad_norm": 1.0, "delta": DELTA, "noise_multiplier": noise}
    dataset = inputs, (inputs[:, 0] > 0).astype(int)
    return Trainer(
        model,
        optimizer,
        dataset=dataset,
        lot_size=lot_size,
        insecure_seed=seed,
        **(settings | more),
    )


# --- what holds, by a method of its own -----------------------------------------------------------


def step_law(cells, *, others, rate, noise, own):
    """Pr of each cell of one step's noised sum, in one dimension and at clipping norm one.

    The gradients of all ``others`` are +1, that of the record in question is ``own`` (0: it is
    not there, or contributes nothing).
    """
    counts = np.arange(others + 1)
    chances = binom.pmf(counts, others, rate)
    counts, chances = counts[chances > 1e-18], chances[chances > 1e-18]
    law = np.zeros(len(cells) + 1)
    for shift, weight in ((0, 1 - rate), (own, rate)):
        below = norm.cdf((cells[:, None] - counts - shift) / noise) @ chances
        law += weight * np.diff(below, prepend=0.0, append=1.0)
    return law


def least_epsilon(p, q, *, steps):
    """A lower bound on ε at δ of so many steps, whose outcomes have the law ``p`` or ``q``.

    Cells, rounding and adding up are post-processing: the law of the sum of rounded losses is
    exact (two Fourier transforms), and ε ≥ log((P(S) − δ) / Q(S)) for any set S of sums.
    """
    loss = np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(q, 1e-300))
    mean = p @ loss
    spread = math.sqrt(p @ (loss - mean) ** 2)
    scores = np.rint(32 * np.clip((loss - mean) / spread, -8, 8)).astype(int) + 256
    size = 1 << math.ceil(math.log2(512 * steps + 1))
    sums = [np.fft.rfft(np.bincount(scores, law, 513), size) ** steps for law in (p, q)]
    above = [np.cumsum(np.fft.irfft(law, size)[::-1]) for law in sums]
    sure = (above[0] > DELTA) & (above[1] > 1e-9)  # far above what floats get wrong
    return float(np.log((above[0][sure] - DELTA) / above[1][sure]).max())


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize(
    ("count", "lot", "noise", "steps", "claimed", "at_least"),
    [
        (100, 1, 4.0, 2000, 0.436, 0.783),
        (100, 10, 4.0, 500, 2.549, 3.831),
        (1000, 8, 3.0, 1000, 0.329, 0.428),
    ],
)
@pytest.mark.sample(2)
def test_what_is_claimed_holds_and_more_would_not(
    count, lot, noise, steps, claimed, at_least, public
):
    """All gradients are +1, one is −1. With it gone, a rate of lot / n makes up for it twice."""
    given = {"lot_size": lot, "noise": noise} | ({"records": count} if public else {})
    whole, less = (trainer_on(n, **given).spending for n in (count, count - 1))
    promised = whole.guarantee(steps)
    assert promised.epsilon == pytest.approx(claimed, abs=5e-4)
    cells = np.linspace(-8 * noise - 3, lot + 8 * math.sqrt(lot) + 8 * noise, 600)

    def law(spending, own):
        rate = spending.sample_rate
        return step_law(cells, others=count - 1, rate=rate, noise=noise, own=own)

    full, zeroed, removed = law(whole, -1), law(whole, 0), law(less, 0)
    for one, other in ((full, zeroed), (zeroed, full)):
        assert least_epsilon(one, other, steps=steps) <= promised.epsilon
    gone = max(least_epsilon(full, removed, steps=steps), least_epsilon(removed, full, steps=steps))
    if public:
        assert promised.neighbours is ADD
        assert gone <= promised.epsilon
    else:
        assert gone >= at_least > promised.epsilon
        assert promised.neighbours is ZERO


def test_users_are_covered_and_one_of_several_records_of_a_user_is_not():
    """Without one of its records, the clipped sum of a user may be turned round.

    This is why costs for users and for records add up for users of one record only.
    """
    count, lot, noise, steps = 100, 10, 4.0, 500
    groups = np.arange(3 * count) % count
    promised = trainer_on(3 * count, lot_size=lot, noise=noise, groups=groups).spending.guarantee(
        steps
    )
    assert promised.neighbours is Neighbours.USER_ZERO_OUT
    cells = np.linspace(-8 * noise - 3, lot + 8 * math.sqrt(lot) + 8 * noise, 600)
    forth, back, gone = (
        step_law(cells, others=count - 1, rate=lot / count, noise=noise, own=own)
        for own in (1, -1, 0)
    )
    for user in (forth, back):
        assert least_epsilon(user, gone, steps=steps) <= promised.epsilon
        assert least_epsilon(gone, user, steps=steps) <= promised.epsilon
    assert least_epsilon(forth, back, steps=steps) > 1.4 * promised.epsilon


# --- what is shown of the number of records -------------------------------------------------------


def seen(folder, count, **given):
    """Everything that a fit shows, but for what follows from the weights and from the clock."""
    file = folder / f"{count}.safetensors"
    trainer = trainer_on(count, checkpoint=file, **given).fit(epochs=2)
    record = checkpoints.read(file)[1]
    for plan in record["plans"]:
        plan.pop("name")
    for row in record["history"]:
        row.pop("seconds")
    keys = ("settings", "plans", "history", "steps")
    return [
        {key: record[key] for key in keys},
        trainer.spending,
        trainer.steps_per_epoch,
        trainer.epsilon(),
        trainer.planned(),
        trainer.odometer(),
    ]


def test_with_a_public_number_of_records_the_true_one_shows_nowhere(tmp_path):
    """1201, 1200, 1199, more and none: only the weights know."""
    given = {"lot_size": 100, "records": 1200}
    first, *others = (seen(tmp_path, count, **given) for count in (1200, 1199, 1201, 2000, 50, 0))
    assert first[3].neighbours is ADD
    assert first[0]["steps"] == 24
    assert first[0]["settings"]["records"] == 1200
    for each in others:
        assert each == first


def test_without_one_the_number_counts_and_the_relation_says_so(tmp_path):
    one, other = (seen(tmp_path, count, lot_size=100) for count in (1200, 1199))
    assert one != other
    assert one[0]["settings"]["data set"] == 1200
    for shown in (one, other):
        assert {figure.neighbours for figure in shown[3:]} == {ZERO}


def test_refusals_are_about_the_public_number():
    trainer_on(50, lot_size=100, records=1000)  # a lot may be larger than the data set
    with pytest.raises(InvalidInput, match="larger than the number of records"):
        trainer_on(5000, lot_size=1001, records=1000)
    for wrong in (0, 2.5, True):
        with pytest.raises(InvalidInput, match="records is"):
            trainer_on(50, lot_size=10, records=wrong)


@pytest.mark.parametrize("records", [None, 400])
@pytest.mark.sample(1)
def test_make_private_works_from_the_public_number(records):
    def made(count):
        model = nn.Linear(2, 2)
        return make_private(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            dataset=(np.ones((count, 2)), np.zeros(count, dtype=int)),
            target_epsilon=2.0,
            target_delta=1e-3,
            epochs=2,
            max_grad_norm=1.0,
            records=records,
        )

    one, other = (made(count).spending for count in (400, 350))
    assert (one == other) == (records is not None)
    assert one.sample_rate == 20 / 400
    assert one.guarantee(40).neighbours is (ZERO if records is None else ADD)
    assert one.guarantee(40).epsilon <= 2.0


def test_a_checkpoint_is_resumed_under_its_own_relation_only(tmp_path):
    """What was charged for zero-out is not claimed for add/remove afterwards."""
    file = tmp_path / "run"
    trainer_on(200, lot_size=20, checkpoint=file).fit(steps=2)
    with pytest.raises(InvalidInput, match="data set, records differ"):
        trainer_on(200, lot_size=20, checkpoint=file, records=200)
    assert trainer_on(200, lot_size=20, checkpoint=file).steps == 2


def test_a_private_pca_goes_with_either_relation():
    pca = PrivatePCA(2, noise_multiplier=8.0)
    both = [trainer_on(200, lot_size=20, prior_events=pca.events, records=r) for r in (None, 200)]
    zero, add = (trainer.spending.guarantee(10) for trainer in both)
    assert (zero.neighbours, add.neighbours) == (ZERO, ADD)
    assert zero.epsilon == add.epsilon


# --- what was recorded before ---------------------------------------------------------------------


def test_an_old_step_is_read_as_zero_out_and_written_as_ever():
    old = event_from_json(OLD)
    assert old.neighbours is ZERO
    assert event_to_json(old) == OLD
    public = SampledGaussian(sample_rate=0.01, noise_multiplier=1.0, public_rate=True)
    assert event_from_json(event_to_json(public)) == public != old
    assert public.neighbours is ADD
    for wrong in ('"yes"', "1", "null"):
        with pytest.raises(InvalidInput, match="public_rate"):
            event_from_json(OLD.replace("}", f', "public_rate": {wrong}}}'))


@pytest.mark.parametrize("mode", list(Mode))
def test_an_old_ledger_takes_charges_of_both_relations(tmp_path, mode):
    """Its terms say add/remove, and its charges were for rates that followed from n."""
    budget = Guarantee(epsilon=9.0, delta=DELTA, neighbours=ADD)
    old = event_from_json(OLD)
    public = SampledGaussian(sample_rate=0.01, noise_multiplier=1.0, public_rate=True)
    with Ledger.open(tmp_path / "a.ledger", budget=budget, mode=mode) as ledger:
        ledger.charge([Repeated(public, 10)], release="new")
        assert (ledger.spent().neighbours, ledger.guarantee().neighbours) == (ADD, ADD)
        assert ledger.guarantee(more=[old]).neighbours is ZERO
        ledger.charge([Repeated(old, 10)], release="old")
    with Ledger.open(tmp_path / "a.ledger") as again:
        assert again.terms.budget.neighbours is ADD
        assert (again.spent().neighbours, again.guarantee().neighbours) == (ZERO, ZERO)
        assert again.charge([Repeated(old, 10)], release="old").number == 2  # no third charge


def test_an_old_run_claims_no_more_than_its_events_allow():
    stored = {"guarantee": {"neighbours": "add-remove"}, "events": [OLD]}
    artifact = SimpleNamespace(json=lambda name: stored)
    assert TrainingOutcome(artifact=artifact, new=False, ledger=None).report["guarantee"] == {
        "neighbours": "zero-out"
    }


def test_an_old_recipe_names_its_run_as_before():
    settings = {
        "kind": "dpsgd",
        "data": {"name": "digits"},
        "training": {"epochs": 3, "learning_rate": 0.1},
        "privacy": {"epsilon": 4.0},
    }
    before = "ffe7997ad350bdfe7670dc678bca097876631c95efecb37a4fba47179a4e4387"
    assert name_of_run(DpsgdRecipe.model_validate(settings), None) == before
    settings["training"]["records"] = 1000
    assert name_of_run(DpsgdRecipe.model_validate(settings), None) != before


# --- the command line -----------------------------------------------------------------------------

RECIPE = """\
kind = "dpsgd"

[data]
name = "mine"
source = "mine.npz"
public = 20
test = 60
accept_unprotected = true

[features]
pca = { dimension = 3, noise_multiplier = 8.0 }

[model]
hidden = [4]

[training]
epochs = 2
learning_rate = 0.5
records = 900

[privacy]
epsilon = 6.0
delta = 1e-3
"""


def run(folder, *words):
    out, before = io.StringIO(), sys.argv
    try:
        sys.argv = ["dpsgd", *words]
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            pytest.raises(SystemExit) as stop,
        ):
            main()
    finally:
        sys.argv = before
    assert not stop.value.code, out.getvalue()
    return out.getvalue()


def trained(folder, count):
    """A run on so many private records, the first of a fixed row; what it printed, and wrote."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    labels = np.arange(2000) % 3
    features = rng.normal(size=(2000, 4)) + 4 * np.eye(4)[labels]
    kept = count + 80
    np.savez(folder / "mine.npz", X=features[:kept], y=labels[:kept])
    (folder / "data").mkdir()
    (folder / "mine.toml").write_text(RECIPE)
    output = run(folder, "train", "mine.toml")
    released = {file.name: file for file in folder.glob("runs/mine/released/training/*/*")}
    return output, released


def numbers_in(value):
    if isinstance(value, dict):
        return {number for each in (*value, *value.values()) for number in numbers_in(each)}
    if isinstance(value, list):
        return {number for each in value for number in numbers_in(each)}
    if isinstance(value, str):
        return {float(text) for text in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", value)}
    return {value} if isinstance(value, (int, float)) else set()


def test_nothing_that_train_prints_or_releases_tells_the_true_number(tmp_path, monkeypatch):
    count = 877
    runs = [trained(tmp_path / f, n) for f, n in (("all", count), ("less", count - 1))]
    forbidden = {n + more for n in (count, count - 1) for more in (0, 80)}
    forbidden |= {30 / n for n in (count, count - 1)}  # the sampling rate that n would give
    reports = []
    for output, released in runs:
        assert "one record added or removed" in output
        assert not numbers_in(output) & forbidden
        for name, file in released.items():
            if file.suffix in (".json", ".csv"):
                assert not numbers_in(file.read_text()) & forbidden, name
        with np.load(released["pca.npz"]) as pca:
            assert not {size for each in pca.values() for size in each.shape} & forbidden
        report = json.loads(released["guarantee.json"].read_text())
        assert report["guarantee"]["neighbours"] == "add-remove"
        assert report["sample_rate"] == 30 / 900
        for row in (report, *report["epochs"]):
            row.pop("accuracy")
        reports.append((report, released["recipe.json"].read_text(), set(released)))
        (file,) = file.parents[3].glob("private/*/checkpoint.safetensors")
        settings = checkpoints.read(file)[1]["settings"]
        assert not numbers_in(settings) & forbidden
    assert reports[0] == reports[1]
    masked = [re.sub(r" *\d+\.\d+ %|/\S*|\b[0-9a-f]{8,}\b", "…", output) for output, _ in runs]
    assert masked[0] == masked[1]
