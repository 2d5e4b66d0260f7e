"""The trainer: exact steps, honest figures, filters that hold, and runs that go on."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import dpsgd
from dpsgd import AdaptiveQuantile, Automatic, Flat, Linear, PerLayer, Piecewise, Trainer
from dpsgd.validation import UnsuitableModel
from pate.accounting import (
    Gaussian,
    Guarantee,
    Ledger,
    Mode,
    Repeated,
    SampledGaussian,
    compose,
)
from pate.errors import BudgetExceeded, InvalidInput

torch.set_num_threads(1)
rng = np.random.default_rng(1)
X = rng.normal(size=(120, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)


def network(seed=3):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 2))


def make(model=None, *, optimizer=None, **more):
    model = model or network()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.2)
    settings = {
        "dataset": (X, Y), "lot_size": 20, "noise_multiplier": 1.5, "delta": 1e-4,
        "insecure_seed": 11, **more,
    }  # fmt: skip
    if "clipping" not in settings:
        settings.setdefault("max_grad_norm", 0.5)
    return Trainer(model, optimizer, **settings)


def weights(trainer):
    return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])


# --- the step ------------------------------------------------------------------------------------


def test_a_step_is_the_clipped_sum_of_its_lot_over_the_expected_size():
    """With next to no noise the step equals one made by hand, one example at a time."""
    trainer = make(noise_multiplier=1e-9)
    model = copy.deepcopy(trainer.model)
    drawn = []
    draw = trainer._step.lots.lot
    trainer._step.lots.lot = lambda: drawn.append(draw()) or drawn[-1]
    trainer.step()
    total = [torch.zeros_like(each) for each in model.parameters()]
    for index in drawn[0]:
        loss = nn.functional.cross_entropy(
            model(torch.from_numpy(X[index : index + 1])), torch.from_numpy(Y[index : index + 1])
        )
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        norm = math.sqrt(sum(float(each.square().sum()) for each in gradient))
        for into, each in zip(total, gradient, strict=True):
            into += each / max(1.0, norm / 0.5)
    assert len(drawn[0]) not in (0, 20)  # dividing by the lot's own size would be seen
    expected = [p - 0.2 * g / 20 for p, g in zip(model.parameters(), total, strict=True)]
    for now, then in zip(trainer.model.parameters(), expected, strict=True):
        assert torch.allclose(now, then, atol=1e-6)


@pytest.mark.parametrize(
    "clipping", [Flat(0.5), PerLayer(0.3), Automatic(), AdaptiveQuantile(0.4)], ids=repr
)
@pytest.mark.parametrize("batch_size", [1, 3, 7, 1000])
@pytest.mark.sample(2)
def test_batches_change_nothing(clipping, batch_size):
    whole = make(clipping=clipping).fit(steps=4)
    cut = make(clipping=clipping, batch_size=batch_size).fit(steps=4)
    assert torch.allclose(weights(cut), weights(whole), atol=1e-6)
    assert not torch.allclose(weights(cut), weights(make()), atol=1e-3)
    assert cut.epsilon() == whole.epsilon()


def test_an_empty_lot_is_a_step_of_pure_noise():
    trainer = make(lot_size=1e-9, noise_multiplier=1e-10)
    before = weights(trainer)
    trainer.step()
    moved = (weights(trainer) - before) / 0.2
    assert float(moved.std()) == pytest.approx(1e-10 * 0.5 / 1e-9, rel=0.5)  # σC / L
    assert trainer.steps == 1
    assert trainer.epsilon().epsilon > 0


def test_the_learning_rate_follows_its_schedule():
    trainer = make(learning_rate=Linear(0.4, 0.1, steps=10))
    trainer.fit(steps=5)
    assert trainer.optimizer.param_groups[0]["lr"] == Linear(0.4, 0.1, steps=10)(4)
    assert trainer.history[-1].learning_rate == Linear(0.4, 0.1, steps=10)(4)


def test_schedules_of_norm_and_noise_are_followed_and_paid_for():
    noise = Piecewise(((0, 4.0), (3, 1.0)))
    trainer = make(max_grad_norm=Linear(1.0, 0.5, steps=4), noise_multiplier=noise)
    trainer.fit(steps=6)
    assert trainer.history[-1].clip_bound == 0.5
    first, second = (SampledGaussian(sample_rate=20 / 120, noise_multiplier=z) for z in (4.0, 1.0))
    expected = compose([Repeated(first, 3), Repeated(second, 3)]).guarantee(delta=1e-4)
    assert trainer.epsilon().epsilon == expected.epsilon


@pytest.mark.parametrize(
    "data",
    [
        (X.astype(np.float64), Y.astype(np.int32)),
        (torch.from_numpy(X), torch.from_numpy(Y)),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        Subset(
            TensorDataset(torch.from_numpy(np.vstack([X, X])), torch.from_numpy(np.hstack([Y, Y]))),
            range(120),
        ),
    ],
    ids=["numpy", "tensors", "tensor data set", "subset"],
)
def test_every_kind_of_data_set_gives_the_same_run(data):
    class OneByOne(Dataset):
        def __len__(self):
            return 120

        def __getitem__(self, index):
            return torch.from_numpy(X[index]), int(Y[index])

    expected = weights(make(dataset=OneByOne()).fit(steps=4))
    assert torch.equal(weights(make(dataset=data).fit(steps=4)), expected)


def test_read_only_arrays_are_fine_and_stay_as_they_are():
    x, y = X.copy(), Y.copy()
    x.setflags(write=False)
    y.setflags(write=False)
    make(dataset=(x, y)).fit(steps=2)
    assert np.array_equal(x, X)


def test_it_learns():
    model = network()
    test = torch.from_numpy(X), torch.from_numpy(Y)

    def accuracy(module):
        assert not module.training
        assert not torch.is_grad_enabled()
        return float((module(test[0]).argmax(1) == test[1]).float().mean())

    trainer = make(model, noise_multiplier=0.5, insecure_seed=2)
    trainer.fit(epochs=30, evaluate=accuracy)
    assert trainer.history[-1].accuracy > 0.85 > trainer.history[0].accuracy
    assert model.training


def test_modes_are_as_before():
    model = network()
    model[0].eval()
    modes = [module.training for module in model.modules()]
    make(model).fit(steps=1, evaluate=lambda module: 0.0)
    assert [module.training for module in model.modules()] == modes


# --- figures -------------------------------------------------------------------------------------


def test_epochs_history_and_figures_agree():
    shown = []
    trainer = make().fit(epochs=3, evaluate=lambda model: 0.5, report=shown.append)
    assert trainer.steps_per_epoch == 6
    assert [row.step for row in trainer.history] == [6, 12, 18]
    assert [row.epoch for row in trainer.history] == [1, 2, 3]
    assert shown == trainer.history
    step = SampledGaussian(sample_rate=20 / 120, noise_multiplier=1.5)
    expected = compose([Repeated(step, 18)]).guarantee(delta=1e-4)
    given = trainer.epsilon()
    assert (given.epsilon, given.neighbours) == (expected.epsilon, "zero-out")
    assert trainer.history[-1].epsilon == expected.epsilon
    assert trainer.planned() == given
    assert trainer.odometer().epsilon >= given.epsilon
    assert trainer.stopped_because is None
    trainer.fit(steps=4)
    assert (trainer.history[-1].step, trainer.history[-1].epoch) == (22, 4)
    assert trainer.history[-1].accuracy is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"insecure_seed": None}, []),
        ({"insecure_seed": None, "noise": "fast"}, ["not cryptographic"]),
        ({"insecure_seed": None, "sampling": "shuffle"}, ["does not hold for shuffling"]),
        ({"sampling": "shuffle", "noise": "fast"}, ["does not hold", "seeded noise: not private"]),
        ({}, ["seeded noise: not private"]),
    ],
)
def test_what_stands_against_the_guarantee_is_said(settings, words):
    trainer = make(**settings).fit(steps=2)
    for figure in (trainer.epsilon(), trainer.planned(), trainer.odometer()):
        assert len(figure.caveats) == len(words)
        assert all(word in caveat for word, caveat in zip(words, figure.caveats, strict=True))
        assert figure.publishable == (not words)


def test_a_rule_with_its_own_noise_sets_the_cost():
    rule = PerLayer(0.5, noise_multipliers=(2.0, 3.0))
    trainer = make(clipping=rule, noise_multiplier=None).fit(steps=3)
    joint = SampledGaussian(sample_rate=20 / 120, noise_multiplier=rule.joint_noise_multiplier)
    assert trainer.epsilon().epsilon == compose([Repeated(joint, 3)]).guarantee(delta=1e-4).epsilon


# --- filters -------------------------------------------------------------------------------------


def test_the_filter_stops_before_the_step_that_would_pass():
    trainer = make(max_epsilon=2.0).fit(epochs=1000)
    assert trainer.epsilon().epsilon <= 2.0 < trainer.spending.guarantee(trainer.steps + 1).epsilon
    assert trainer.planned() == trainer.epsilon()
    assert "ε = 2" in trainer.stopped_because
    steps, before = trainer.steps, weights(trainer)
    with pytest.raises(BudgetExceeded, match="not taken"):
        trainer.step()
    trainer.fit(epochs=1)
    assert trainer.steps == steps
    assert torch.equal(weights(trainer), before)
    assert make(max_epsilon=2.0).fit(epochs=1).stopped_because is None


def test_until_epsilon_comes_as_near_as_steps_do():
    trainer = make(prior_events=[Gaussian(noise_multiplier=6.0)])
    trainer.fit(until_epsilon=1.5)
    assert trainer.epsilon().epsilon <= 1.5 < trainer.spending.guarantee(trainer.steps + 1).epsilon
    steps = trainer.steps
    assert trainer.fit(until_epsilon=1.5).steps == steps
    trainer.fit(until_epsilon=1.6)
    assert trainer.steps > steps
    nothing = make(noise_multiplier=0.5).fit(until_epsilon=0.01)
    assert nothing.steps == 0
    assert "one more step" in nothing.stopped_because


def test_bare_steps_are_planned_one_by_one():
    trainer = make()
    for _ in range(5):
        trainer.step()
    assert trainer.epsilon() == make().fit(steps=5).epsilon()
    assert trainer.planned() == trainer.odometer()  # nothing fixed that there would be five
    trainer.fit(steps=2)
    assert trainer.steps == 7
    assert trainer.planned() == trainer.odometer()
    assert trainer.planned().epsilon >= trainer.epsilon().epsilon


def test_fits_that_results_may_have_asked_for_are_not_covered_by_the_best_moment():
    """Their figure is at the λ that the first of them fixed, whatever came after."""
    step = SampledGaussian(sample_rate=20 / 120, noise_multiplier=1.5)
    trainer = make().fit(epochs=1)
    first = compose([Repeated(step, 6)]).guarantee(delta=1e-4)
    assert trainer.planned().epsilon == trainer.epsilon().epsilon == first.epsilon
    for _ in range(20):
        trainer.fit(epochs=1)
    assert trainer.steps == 126
    planned = trainer.planned()
    at_first = compose([Repeated(step, 126)], [first.moment]).guarantee(delta=1e-4)
    assert planned.moment == first.moment != trainer.epsilon().moment
    assert planned.epsilon >= at_first.epsilon > 1.2 * trainer.epsilon().epsilon
    assert planned == trainer.odometer()


def test_a_filter_that_was_set_in_advance_covers_any_number_of_fits():
    trainer = make(max_epsilon=6.0, accountant="abadi").fit(epochs=1)
    assert trainer.planned() == trainer.epsilon()
    trainer.fit(epochs=1)
    assert trainer.epsilon().epsilon < trainer.planned().epsilon == 6.0
    assert trainer.planned().caveats == trainer.epsilon().caveats


# --- the ledger ----------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "l.db", budget=Guarantee(epsilon=8.0, delta=1e-4)) as opened:
        yield opened


def charged(ledger):
    return [each.events for each in ledger.charges()]


def test_every_fit_is_one_charge_before_its_first_step(ledger):
    step = SampledGaussian(sample_rate=20 / 120, noise_multiplier=1.5)
    before = Gaussian(noise_multiplier=9.0)
    trainer = make(ledger=ledger, prior_events=[before])
    assert charged(ledger) == []
    seen = []
    trainer.fit(epochs=2, evaluate=lambda model: seen.append(len(ledger.charges())) or 0.0)
    assert seen == [1, 1]  # not tried before what came before is paid for
    trainer.fit(steps=3)
    trainer.step()
    assert charged(ledger) == [
        (Repeated(before, 1), Repeated(step, 12)),
        (Repeated(step, 3),),
        (Repeated(step, 1),),
    ]
    assert all(each.release.startswith("dpsgd ") for each in ledger.charges())
    everything = compose([before, Repeated(step, 16)]).guarantee(delta=1e-4)
    assert trainer.epsilon().epsilon == everything.epsilon <= trainer.planned().epsilon
    assert trainer.planned() == trainer.odometer()


def test_every_charge_of_a_study_is_marked(ledger, tmp_path):
    trainer = make(ledger=ledger, study="compare tiny", checkpoint=tmp_path / "run")
    trainer.fit(steps=2)
    trainer.step()
    make(ledger=ledger).fit(steps=1)
    assert [each.studies for each in ledger.charges()] == [("compare tiny",)] * 2 + [()]
    again = make(ledger=ledger, checkpoint=tmp_path / "run")  # a study is no setting of a run
    again.fit(steps=2)
    assert again.steps == 3
    assert [each.studies for each in ledger.charges()] == [("compare tiny",)] * 2 + [()]


def test_a_refused_charge_trains_nothing(ledger, tmp_path):
    for place in (None, tmp_path / "run"):
        trainer = make(ledger=ledger, noise_multiplier=0.6, checkpoint=place)
        before = weights(trainer)
        with pytest.raises(BudgetExceeded):
            trainer.fit(epochs=500)
        assert torch.equal(weights(trainer), before)
        assert (trainer.steps, ledger.charges(), trainer.planned().epsilon) == (0, [], 0.0)
    make(ledger=ledger, noise_multiplier=0.6, checkpoint=tmp_path / "run").fit(steps=1)
    assert len(ledger.charges()) == 1


def test_stopping_early_refunds_nothing_and_the_plan_is_what_to_publish(ledger):
    def impatient(model):
        if trainer.steps:
            raise KeyboardInterrupt
        return 0.0

    trainer = make(ledger=ledger)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(epochs=4, evaluate=impatient)
    assert trainer.steps == 6
    step = SampledGaussian(sample_rate=20 / 120, noise_multiplier=1.5)
    assert charged(ledger) == [(Repeated(step, 24),)]
    assert trainer.planned().epsilon == compose([Repeated(step, 24)]).guarantee(delta=1e-4).epsilon
    assert trainer.epsilon().epsilon < trainer.planned().epsilon
    trainer.fit(epochs=4)  # the same again: what was paid for is carried out
    assert trainer.steps == 24
    assert len(ledger.charges()) == 1


def test_a_step_that_is_interrupted_has_been_taken(tmp_path):
    trainer = make(checkpoint=tmp_path / "run")
    trainer.fit(steps=3)
    take = trainer.optimizer.step
    trainer.optimizer.step = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(steps=4)
    trainer.optimizer.step = take
    assert trainer.steps == 4
    assert make(checkpoint=tmp_path / "run").steps == 4


def test_odometer_ledgers_are_charged_too(tmp_path):
    budget = Guarantee(epsilon=math.inf, delta=1e-4)
    with Ledger.open(tmp_path / "o.db", budget=budget, mode=Mode.ODOMETER) as ledger:
        make(ledger=ledger, noise="fast", sampling="shuffle").fit(steps=2)
        assert len(ledger.charges()) == 1


# --- going on ------------------------------------------------------------------------------------


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.2),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True),
    "adamw groups": lambda p: torch.optim.AdamW([{"params": [each]} for each in p], lr=0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.02, centered=True),
}


class Killed(BaseException):
    pass


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "settings",
    [
        {"clipping": AdaptiveQuantile(0.4)},
        {"noise": "fast", "sampling": "shuffle", "learning_rate": Linear(0.2, 0.1, steps=9)},
    ],
    ids=["adaptive", "fast"],
)
@pytest.mark.sample(3)
def test_a_seeded_run_goes_on_bit_for_bit(tmp_path, name, settings):
    def once(path, kill_after=None):
        model = nn.Sequential(network(), nn.Dropout(0.3), nn.Linear(2, 2))
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model[2].reset_parameters()
        optimizer = OPTIMIZERS[name](model.parameters())
        trainer = make(model, optimizer=optimizer, checkpoint=path, checkpoint_every=4, **settings)
        if kill_after is not None:
            taken = []
            take = trainer._step.take

            def counted(*arguments, **more):
                if len(taken) == kill_after:
                    trainer._save_if_needed = lambda: None  # nothing is written any more
                    raise Killed
                taken.append(1)
                take(*arguments, **more)

            trainer._step.take = counted
        return trainer.fit(epochs=3)

    whole = once(None)
    for kill_after in (1, 5, 3, 6):
        with pytest.raises(Killed):
            once(tmp_path / "run", kill_after)
    resumed = once(tmp_path / "run")
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.epsilon() == whole.epsilon()
    assert resumed.steps == whole.steps == 18
    rows = [[(r.step, r.epsilon, r.clip_bound) for r in each.history] for each in (resumed, whole)]
    assert rows[0] == rows[1]


def test_a_program_that_is_started_again_ends_where_it_would_have(tmp_path, ledger):
    def program(stop_after):
        trainer = make(ledger=ledger, checkpoint=tmp_path / "run", insecure_seed=None)
        for index, epochs in enumerate([2, 2, 1]):
            if index == stop_after:
                return trainer
            trainer.fit(epochs=epochs, evaluate=lambda model: 0.5)
        return trainer

    for stop_after in (1, 2, 2, 3, 3):
        trainer = program(stop_after)
        assert trainer.steps == [0, 12, 24, 30][stop_after]
        assert len(ledger.charges()) == stop_after
    assert [row.step for row in trainer.history] == [6, 12, 18, 24, 30]
    assert trainer.planned() == trainer.odometer()  # as it would be without the interruptions


def test_a_new_request_after_a_resume_is_a_new_charge(tmp_path, ledger):
    make(ledger=ledger, checkpoint=tmp_path / "run").fit(epochs=1)
    resumed = make(ledger=ledger, checkpoint=tmp_path / "run")
    assert resumed.fit(epochs=1).steps == 6  # as before: it was finished
    assert resumed.fit(epochs=1).steps == 12
    assert make(ledger=ledger, checkpoint=tmp_path / "run").fit(steps=5).steps == 17
    assert len(ledger.charges()) == 3


def test_nothing_is_shown_before_it_is_on_disk(tmp_path):
    path = tmp_path / "run"
    trainer = make(checkpoint=path)
    seen = []

    def look(model):
        from dpsgd import checkpoint

        tensors, record = checkpoint.read(path)
        on_disk = all(
            torch.equal(tensors[f"model.{name}"], value) for name, value in model.named_parameters()
        )
        seen.append((record["steps"], on_disk))
        return 0.0

    trainer.fit(epochs=2, evaluate=look)
    trainer.fit(steps=1, evaluate=look)
    assert seen == [(6, True), (12, True), (13, True)]
    trainer.step()
    assert make(checkpoint=path).steps == 14
    assert [row.accuracy for row in make(checkpoint=path).history] == [0.0] * 3


def test_an_epoch_whose_evaluation_was_cut_short_is_evaluated_again(tmp_path):
    trainer = make(checkpoint=tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        trainer.fit(epochs=2, evaluate=lambda model: 1 / 0)
    resumed = make(checkpoint=tmp_path / "run").fit(epochs=2, evaluate=lambda model: 0.25)
    assert [(row.step, row.accuracy) for row in resumed.history] == [(6, 0.25), (12, 0.25)]


# --- refusals ------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lot_size": 121}, "larger than the number of records"),
        ({"lot_size": 0}, "above zero"),
        ({"dataset": (X[:0], Y[:0])}, "empty"),
        ({"dataset": (X, Y[:-1])}, "differ in number"),
        ({"dataset": Stream()}, "map-style"),
        ({"dataset": (X.astype(str), Y)}, "numbers"),
        ({"max_grad_norm": None}, "exactly one"),
        ({"max_grad_norm": 1.0, "clipping": Flat(1.0)}, "exactly one"),
        ({"noise_multiplier": None}, "give a noise_multiplier"),
        ({"clipping": PerLayer(1.0, noise_multipliers=(1.0, 1.0))}, "leave out"),
        ({"clipping": PerLayer((1.0, 1.0, 1.0))}, "2 layers"),
        ({"noise": "quick"}, "secure, fast"),
        ({"sampling": "random"}, "poisson, shuffle"),
        ({"insecure_seed": -1}, "seed"),
        ({"batch_size": 0}, "batch_size"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"delta": 1.0}, "delta"),
        ({"noise_multiplier": 0.0}, "above zero"),
        ({"loss": "cross_entropi"}, "cross_entropy"),
        ({"max_epsilon": -1.0}, "epsilon"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(settings, words):
    with pytest.raises(InvalidInput, match=words):
        make(**settings)


def test_unsuitable_models_and_optimisers_are_refused():
    with pytest.raises(UnsuitableModel, match="BatchNorm"):
        make(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    model = network()
    for optimizer, words in [
        (torch.optim.LBFGS(model.parameters()), "LBFGS looks at the loss several times"),
        (torch.optim.SparseAdam(model.parameters()), "sparse"),
        (torch.optim.SGD(model[0].parameters(), lr=0.1), "does not hold 2.weight, 2.bias"),
        (torch.optim.SGD(network().parameters(), lr=0.1), "does not hold"),
        (
            torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=0.1),
            "does not have",
        ),
    ]:
        with pytest.raises(InvalidInput, match=words):
            make(model, optimizer=optimizer)


def test_frozen_parameters_stay_as_they_are():
    model = network()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=0.1)
    make(model, optimizer=optimizer).fit(steps=3)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(
    "request_", [{}, {"epochs": 1, "steps": 1}, {"epochs": 0}, {"steps": 1.5}, {"steps": True}]
)
def test_a_fit_asks_for_one_thing(request_):
    with pytest.raises(InvalidInput, match=r"exactly one|whole number"):
        make().fit(**request_)
    with pytest.raises(InvalidInput, match="above zero"):
        make().fit(until_epsilon=0.0)
    with pytest.raises(InvalidInput, match="give the number of steps"):
        make(noise_multiplier=1e8).fit(until_epsilon=3.0)


def test_exports_are_there():
    for name in dpsgd.__all__:
        assert getattr(dpsgd, name) is not None
    assert set(dpsgd.__all__) <= set(dir(dpsgd))
    with pytest.raises(AttributeError):
        dpsgd.nonsense  # noqa: B018
