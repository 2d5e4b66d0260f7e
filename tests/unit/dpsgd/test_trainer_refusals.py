"""What a trainer refuses before it is paid, and what it does not forget once it was."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from dpsgd import AdaptiveQuantile, Linear, Piecewise, Trainer, checkpoint
from dpsgd.layers import UnsuitableModel
from pate.accounting import Guarantee, Ledger, Neighbours
from pate.artifacts import StoreError
from pate.errors import BudgetExceeded, InvalidInput, LedgerError

torch.set_num_threads(1)
rng = np.random.default_rng(2)
X = rng.normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def make(model=None, **more):
    torch.manual_seed(1)
    model = model or nn.Linear(5, 2)
    settings = {
        "dataset": (X, Y), "lot_size": 20, "noise_multiplier": 1.0, "delta": 1e-4, **more,
    }  # fmt: skip
    if "clipping" not in settings:
        settings["max_grad_norm"] = 1.0
    return Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), **settings)


def ledger(folder, epsilon):
    terms = Guarantee(epsilon=epsilon, delta=1e-4, neighbours=Neighbours.ADD_REMOVE)
    return Ledger.open(folder / f"{epsilon}.ledger", budget=terms)


MISTAKES = {
    "a mean for a loss": ({"loss": nn.CrossEntropyLoss()}, "one number for each example"),
    "a label too many": ({"dataset": (X, Y + 1)}, "2 outputs, and not all labels"),
    "a label below zero": ({"dataset": (X, Y - 1)}, "not all labels|fails on the first"),
    "labels that are no classes": ({"dataset": (X, X[:, 0])}, "fails on the first examples"),
    "labels of another shape": ({"dataset": (X, Y[:, None])}, "fails on the first|one number"),
    "inputs of another size": ({"dataset": (X[:, :3], Y)}, "does not run"),
    "a count without noise": (
        {"clipping": AdaptiveQuantile(count_noise=0.3)}, "more than half",
    ),
    "a lot in words": ({"lot_size": "20"}, "lot_size is '20'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found_before_anything_is_charged(name, tmp_path):
    settings, reason = MISTAKES[name]
    with (
        ledger(tmp_path, 50.0) as book,
        pytest.raises((InvalidInput, UnsuitableModel), match=reason) as caught,
    ):
        make(**settings, ledger=book).fit(epochs=1)
    assert caught.value.__cause__ is None or not isinstance(caught.value.__cause__, IndexError)
    with Ledger.open(tmp_path / "50.0.ledger") as book:
        assert not book.charges()


def test_a_label_out_of_range_is_not_told():
    with pytest.raises(InvalidInput) as caught:
        make(dataset=(X, np.where(np.arange(60) == 50, 7777, Y)))
    assert "7777" not in str(caught.value)


@pytest.mark.parametrize(
    ("evaluate", "reason"),
    [
        (0.5, "evaluate is a float"),
        (lambda model: None, "evaluate returned a NoneType"),
        (lambda model: model(torch.from_numpy(X)), "evaluate returned a Tensor"),
    ],
)
def test_an_evaluation_that_would_fail_is_refused_before_the_charge(tmp_path, evaluate, reason):
    with ledger(tmp_path, 80.0) as book:
        trainer = make(ledger=book)
        with pytest.raises(InvalidInput, match=reason):
            trainer.fit(epochs=1, evaluate=evaluate)
        with pytest.raises(ZeroDivisionError):
            trainer.fit(epochs=1, evaluate=lambda model: 1 / 0)
        assert (trainer.steps, trainer.history, book.charges()) == (0, [], [])
        assert trainer.fit(epochs=1, evaluate=lambda model: 0.5).steps == 3


@pytest.mark.parametrize("another", [False, True])
def test_steps_that_were_taken_are_not_forgotten_when_a_ledger_refuses(tmp_path, another):
    """Given a ledger only after some steps, or a poorer one, a run stays unpaid and stops."""
    path = tmp_path / "run.safetensors"
    rich = ledger(tmp_path, 80.0) if another else None
    first = make(checkpoint=path, checkpoint_every=1, ledger=rich)
    with pytest.raises(KeyboardInterrupt):
        first.fit(epochs=3, evaluate=after_trial(_interrupt) if another else _interrupt)
    taken = first.steps
    assert 0 < taken < 9
    with ledger(tmp_path, 0.5) as poor:
        again = make(checkpoint=path, checkpoint_every=1, ledger=poor)
        assert again.steps == taken
        for _ in range(2):
            with pytest.raises(BudgetExceeded):
                again.fit(epochs=3)
        with pytest.raises(BudgetExceeded):
            again.fit(steps=1)
        assert again.steps == taken
        assert again.planned().epsilon >= again.epsilon().epsilon > 0
        assert not poor.charges()
    if rich is not None:
        rich.close()


def after_trial(evaluate):
    """With a ledger, a function is tried once before the charge; this one then works."""
    calls = []

    def tried(model):
        calls.append(model)
        return 0.5 if len(calls) == 1 else evaluate(model)

    return tried


def _interrupt(model):
    raise KeyboardInterrupt


def test_a_refused_plan_of_which_nothing_was_done_is_forgotten(tmp_path):
    with ledger(tmp_path, 6.0) as book:
        trainer = make(ledger=book, checkpoint=tmp_path / "run.safetensors")
        with pytest.raises(BudgetExceeded):
            trainer.fit(epochs=400)
        trainer.fit(steps=1)
        assert trainer.steps == 1
        assert len(book.charges()) == 1


def test_what_cannot_be_written_down_is_undone(tmp_path, monkeypatch):
    """Otherwise a resume would show another drawing of the steps that one charge paid for."""
    trainer = make(checkpoint=tmp_path / "run.safetensors", checkpoint_every=1000)
    trainer.fit(steps=2)
    before = [each.detach().clone() for each in trainer.model.parameters()]

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = os.fsync
    calls = []

    def once_more(handle):
        calls.append(handle)
        return real(handle) if len(calls) <= 2 else full(handle)  # the plan is still written

    monkeypatch.setattr(os, "fsync", once_more)
    with pytest.raises(StoreError, match="no space left"):
        trainer.fit(steps=5)
    assert trainer.steps == 2
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_a_model_that_changed_is_refused():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    trainer = make(model)
    trainer.fit(steps=1)
    model[0].weight.requires_grad_(False)
    with pytest.raises(InvalidInput, match="changed since the trainer was made"):
        trainer.fit(steps=1)
    model[0].weight.requires_grad_(True)
    trainer.step()
    model.append(nn.BatchNorm1d(2, affine=False))
    with pytest.raises((InvalidInput, UnsuitableModel)):
        trainer.fit(steps=1)


class Mixing(nn.Module):
    """Takes the batch's mean off, in training mode only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        x = self.layer(x)
        return x - x.mean(0) if self.training else x


@pytest.mark.parametrize("data", ["different", "alike", "few"])
def test_examples_that_meet_in_training_mode_are_found_whatever_the_first_records(data):
    records = {"different": (X, Y), "alike": (np.ones_like(X), Y), "few": (X[:2], Y[:2])}[data]
    with pytest.raises(UnsuitableModel):
        make(Mixing(), dataset=records, lot_size=2)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("schedule", [1e90, Linear(0.1, 1e90, steps=9)])
def test_a_rate_at_which_the_optimiser_fails_is_refused_before_the_charge(tmp_path, kind, schedule):
    model = nn.Linear(5, 2)
    with ledger(tmp_path, 80.0) as book:
        with pytest.raises(InvalidInput, match=r"fails with the learning rate 1e\+90"):
            Trainer(
                model, kind(model.parameters(), lr=0.1), dataset=(X, Y), lot_size=20, ledger=book,
                noise_multiplier=1.0, delta=1e-4, max_grad_norm=1.0, learning_rate=schedule,
            )  # fmt: skip
        assert not book.charges()


def test_a_rate_at_which_it_fails_later_ends_the_run_in_one_line(tmp_path):
    rising = Piecewise(((0, 0.1), (2, 1e90)))
    with ledger(tmp_path, 80.0) as book:
        for steps in (3, 4):  # resuming raises the same
            trainer = make(ledger=book, learning_rate=rising, checkpoint=tmp_path / "run")
            with pytest.raises(InvalidInput, match="begin a new run with a smaller one") as caught:
                trainer.fit(epochs=2)
            assert "\n" not in str(caught.value)
            assert trainer.steps == steps
        assert len(book.charges()) == 1


class LateBuffer(nn.Module):
    """Writes the batch's mean into a buffer, or a parameter, once it has run for a while."""

    def __init__(self, late=40, how="in place"):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.register_buffer("seen", torch.zeros(5))
        self.register_buffer("missing", torch.tensor(float("nan")))
        self.late, self.how, self.passes = late, how, 0

    def forward(self, x):
        self.passes += 1
        if self.passes > self.late and self.training:
            mean = x.detach().mean(0)
            if self.how == "in place":
                self.seen += mean
            elif self.how == "data":
                self.seen.data.copy_(mean)
            elif self.how == "assigned":
                self.seen = mean
            elif self.how == "registered":
                self.register_buffer("later", mean)
            else:
                self.layer.weight.data.add_(mean)
        return self.layer(x)


@pytest.mark.parametrize("how", ["in place", "data", "assigned", "registered", "parameter"])
@pytest.mark.parametrize("single", [False, True])
def test_state_that_changes_late_in_training_is_refused_and_not_kept(tmp_path, how, single):
    """After the charge, for only then does it show; what the examples left there is undone."""
    with ledger(tmp_path, 80.0) as book:
        model = LateBuffer(how=how)
        trainer = make(model, ledger=book, checkpoint=tmp_path / "run.safetensors")
        trainer.step()
        trainer.step()
        model.late, before, shown = model.passes, model.layer.weight.detach().clone(), []
        carry_on = trainer.step if single else lambda: trainer.fit(epochs=2, report=shown.append)
        with pytest.raises(UnsuitableModel, match="in a training pass, past clipping and noise"):
            carry_on()
        assert (trainer.steps, shown, len(book.charges())) == (3, [], 3)
        state = model.state_dict()
        assert set(state) == {"layer.weight", "layer.bias", "seen", "missing"}
        assert not state["seen"].any()
        assert torch.equal(state["layer.weight"], before)
        model.late = 10**6
        trainer.fit(epochs=2)  # a model that keeps still from now on is trained


class MixingAbove(nn.Module):
    """Takes the batch's mean off where there are more than so many examples."""

    def __init__(self, above):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.above = above

    def forward(self, x):
        x = self.layer(x)
        return x - x.mean(0) if len(x) > self.above else x


def test_examples_that_meet_in_large_batches_only_are_found(tmp_path):
    for above in (5, 19, 30):  # lots of 20 on average
        with pytest.raises(UnsuitableModel, match="mixes the examples of a batch when it holds 38"):
            make(MixingAbove(above))
        alike = (np.ones_like(X), Y)
        with pytest.raises(UnsuitableModel, match="mixes the examples"):
            make(MixingAbove(above), dataset=alike)
    with pytest.raises(UnsuitableModel, match="when it holds 10"):
        make(MixingAbove(5), batch_size=10)
    make(MixingAbove(10), batch_size=10).fit(steps=2)  # never more than ten at once


class Halved(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x / 2, y


class Picked(Subset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 1, y

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def test_data_sets_of_the_users_own_hand_out_what_they_say():
    from dpsgd.data import as_records

    whole = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    halved = as_records(Halved(*whole.tensors)).take(np.array([3]))[0]
    assert torch.equal(halved[0], whole[3][0] / 2)
    picked = as_records(Picked(whole, [7, 8, 9])).take(np.array([1]))[0]
    assert torch.equal(picked[0], whole[8][0] + 1)


def test_weights_in_any_order_of_memory_are_trained():
    torch.manual_seed(4)
    images = torch.randn(40, 3, 6, 6)
    labels = torch.randint(0, 2, (40,))
    trained = []
    for order in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2))
        model = model.to(memory_format=order)
        trainer = make(model, dataset=(images, labels), insecure_seed=3)
        trainer.fit(steps=3)
        trained.append([each.detach().clone() for each in model.parameters()])
    for one, two in zip(*trained, strict=True):
        assert torch.allclose(one, two, atol=1e-5)


# --- one charge, one drawing ----------------------------------------------------------------------


def _stop_after(epochs):
    seen = []

    def evaluate(model):
        seen.append(model)
        if len(seen) == epochs:
            raise KeyboardInterrupt
        return 0.5

    return evaluate


def test_an_old_checkpoint_that_is_brought_back_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    with ledger(tmp_path, 80.0) as book:
        with pytest.raises(KeyboardInterrupt):
            make(checkpoint=path, ledger=book).fit(epochs=5, evaluate=after_trial(_stop_after(1)))
        old = path.read_bytes()
        with pytest.raises(KeyboardInterrupt):
            make(checkpoint=path, ledger=book).fit(epochs=5, evaluate=_stop_after(2))
        last = path.read_bytes()
        assert old != last
        path.write_bytes(old)
        with pytest.raises(LedgerError, match="not the last of its run"):
            make(checkpoint=path, ledger=book).fit(epochs=5)
        path.write_bytes(last)
        assert make(checkpoint=path, ledger=book).fit(epochs=5).steps == 15
        assert len(book.charges()) == 1


def test_of_two_copies_of_a_run_one_goes_on(tmp_path):
    path, copy = tmp_path / "run.safetensors", tmp_path / "copy.safetensors"
    with ledger(tmp_path, 80.0) as book:
        with pytest.raises(KeyboardInterrupt):
            make(checkpoint=path, ledger=book).fit(epochs=5, evaluate=after_trial(_stop_after(1)))
        copy.write_bytes(path.read_bytes())
        make(checkpoint=path, ledger=book).fit(epochs=5)
        with pytest.raises(LedgerError, match="not the last of its run"):
            make(checkpoint=copy, ledger=book).fit(epochs=5)
        for record in (tmp_path / "80.0.ledger.runs").iterdir():
            record.unlink()
        with pytest.raises(LedgerError, match="lacks the record"):
            make(checkpoint=copy, ledger=book).fit(epochs=5)


def _crash_at_commit(monkeypatch, number):
    """From here on, the so-many-th checkpoint is written and its line beside the ledger is not."""
    from dpsgd.checkpoint import Mark

    real, written = Mark.commit, []

    def commit(self):
        written.append(self)
        if len(written) >= number:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(Mark, "commit", commit)


def test_a_crash_between_checkpoint_and_mark_is_resumed(tmp_path, monkeypatch):
    path = tmp_path / "run.safetensors"
    with ledger(tmp_path, 80.0) as book:
        with monkeypatch.context() as patch:
            _crash_at_commit(patch, 3)
            with pytest.raises(KeyboardInterrupt):
                make(checkpoint=path, ledger=book).fit(epochs=5)
        assert make(checkpoint=path, ledger=book).fit(epochs=5).steps == 15
        assert len(book.charges()) == 1


def test_an_interruption_around_the_mark_is_no_other_process(tmp_path, monkeypatch):
    from dpsgd.checkpoint import Mark

    real = Mark.commit
    with ledger(tmp_path, 80.0) as book:
        trainer = make(checkpoint=tmp_path / "run.safetensors", ledger=book)
        written = []

        def commit(self):
            last = self.last
            real(self)
            written.append(self.last)
            if len(written) == 3:
                self.last = last  # Ctrl-C came before this line
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Mark, "commit", commit)
            with pytest.raises(KeyboardInterrupt):
                trainer.fit(epochs=5)
        assert trainer.fit(epochs=5).steps == 15
        assert len(book.charges()) == 1


def test_of_a_checkpoint_that_nobody_saw_and_its_predecessor_one_is_loaded(tmp_path, monkeypatch):
    """Both hold the steps in between, drawn differently: whoever loads one decides."""
    path, copy = tmp_path / "run.safetensors", tmp_path / "copy.safetensors"
    with ledger(tmp_path, 80.0) as book:
        trainer = make(checkpoint=path, ledger=book)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(epochs=5, evaluate=after_trial(_stop_after(1)))
        copy.write_bytes(path.read_bytes())
        with monkeypatch.context() as patch:
            _crash_at_commit(patch, 1)
            with pytest.raises(KeyboardInterrupt):
                make(checkpoint=path, ledger=book).fit(epochs=5)
        assert make(checkpoint=path, ledger=book).steps > 3
        with pytest.raises(LedgerError, match="not the last of its run"):
            make(checkpoint=copy, ledger=book)
        assert make(checkpoint=path, ledger=book).fit(epochs=5).steps == 15


@pytest.mark.parametrize("when", ["before the checkpoint", "after it", "after its mark"])
def test_a_second_interruption_shows_no_step_that_a_resume_draws_again(tmp_path, monkeypatch, when):
    """Ctrl-C in a step, and again while what was drawn is written down."""
    from dpsgd.checkpoint import Mark

    path, old = tmp_path / "run.safetensors", tmp_path / "old.safetensors"
    with ledger(tmp_path, 80.0) as book:
        trainer = make(checkpoint=path, ledger=book, checkpoint_every=1000)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(epochs=5, evaluate=after_trial(_stop_after(1)))
        old.write_bytes(path.read_bytes())
        place, name = {
            "before the checkpoint": (checkpoint, "write"),
            "after it": (Mark, "commit"),
            "after its mark": (Mark, "commit"),
        }[when]
        real, interrupted = getattr(place, name), []

        def interrupt(*given):
            if interrupted:
                return real(*given)
            interrupted.append(name)
            if when == "after its mark":
                real(*given)
            raise KeyboardInterrupt

        def stop(step, noise_multiplier):
            take(step, noise_multiplier=noise_multiplier)
            if step == 4:
                monkeypatch.setattr(place, name, interrupt)
                raise KeyboardInterrupt

        take = trainer._step.take
        monkeypatch.setattr(trainer._step, "take", stop)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(epochs=5)
        assert interrupted
        # What the caller sees is the one state that can be resumed.
        assert trainer.steps == (3 if when == "before the checkpoint" else 5)
        if trainer.steps > 3:
            with pytest.raises(LedgerError, match="not the last of its run"):
                make(checkpoint=old, ledger=book)
        resumed = make(checkpoint=path, ledger=book)
        assert resumed.steps == trainer.steps
        pairs = zip(resumed.model.parameters(), trainer.model.parameters(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


def test_a_link_to_the_ledger_leads_to_the_same_record(tmp_path):
    from dpsgd.checkpoint import ResumeGuard

    (tmp_path / "b.ledger").symlink_to(tmp_path / "a.ledger")
    one, two = (ResumeGuard(tmp_path / name) for name in ("a.ledger", "b.ledger"))
    with one.held("plan"), pytest.raises(LedgerError, match="another process is training"):
        two.held("plan").__enter__()


def test_a_run_that_another_took_over_shows_nothing_more(tmp_path):
    """The record changes under a run that holds its lock, as on a file system without locks."""
    path = tmp_path / "run.safetensors"
    with ledger(tmp_path, 80.0) as book:
        trainer = make(checkpoint=path, ledger=book)
        shown, before = [], []

        def take_over(model):
            (record,) = (tmp_path / "80.0.ledger.runs").iterdir()
            with record.open("a") as file:
                file.write("another\n")
            before.extend(each.detach().clone() for each in model.parameters())
            return 0.5

        with pytest.raises(LedgerError, match="another process has trained this run"):
            trainer.fit(epochs=5, evaluate=after_trial(take_over), report=shown.append)
        assert [row.step for row in shown] == [3]
        assert (trainer.steps, [row.step for row in trainer.history]) == (3, [])
        assert all(map(torch.equal, before, trainer.model.parameters()))
        with pytest.raises(LedgerError, match="not the last of its run"):
            trainer.fit(epochs=5)
        with pytest.raises(LedgerError, match="not the last of its run"):
            make(checkpoint=path, ledger=book)


def test_while_a_run_is_under_way_its_copies_wait_and_other_runs_do_not(tmp_path):
    path, copy = tmp_path / "run.safetensors", tmp_path / "copy.safetensors"
    refused, others = [], []
    with ledger(tmp_path, 80.0) as book:

        @torch.enable_grad()
        def meanwhile(model):
            copy.write_bytes(path.read_bytes())
            with pytest.raises(LedgerError, match="another process is training this run"):
                make(checkpoint=copy, ledger=book).fit(epochs=2)
            refused.append(copy)
            others.append(make(checkpoint=tmp_path / f"{len(others)}", ledger=book))
            others[-1].fit(steps=2)
            others[-1].step()
            return 0.5

        run = make(checkpoint=path, ledger=book)
        assert run.fit(epochs=2, evaluate=after_trial(meanwhile)).steps == 6
        assert (len(refused), [each.steps for each in others]) == (2, [3, 3])
        assert len(book.charges()) == 1 + 2 * 2


def test_copies_of_a_finished_run_are_all_loaded(tmp_path):
    """Nothing of them is drawn any more, and further steps are charged by each for itself."""
    path, copy = tmp_path / "run.safetensors", tmp_path / "copy.safetensors"
    with ledger(tmp_path, 80.0) as book:
        trainer = make(checkpoint=path, ledger=book).fit(epochs=2)
        copy.write_bytes(path.read_bytes())
        assert make(checkpoint=copy, ledger=book).fit(epochs=2).steps == 6
        assert make(checkpoint=path, ledger=book).fit(epochs=2).steps == 6
        assert len(book.charges()) == 1
        trainer.step()
        again = make(checkpoint=copy, ledger=book)
        again.step()
        assert (trainer.steps, again.steps, len(book.charges())) == (7, 7, 3)


class Pair(nn.Module):
    """Returns more than one thing."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(x), {"inputs": x}


def test_a_loss_that_mixes_what_a_tuple_holds_is_refused():
    def weighted(outputs, targets):
        counts = torch.bincount(targets, minlength=2)[targets]
        return nn.functional.cross_entropy(outputs[0], targets, reduction="none") / counts

    def plain(outputs, targets):
        return nn.functional.cross_entropy(outputs[0], targets, reduction="none")

    alike = np.argsort(Y, kind="stable")  # the first examples share a label
    data = (X[alike], Y[alike])
    with pytest.raises(InvalidInput, match="changes with the others"):
        make(Pair(), loss=weighted, dataset=data).fit(epochs=2)
    make(Pair(), loss=plain, dataset=data).fit(epochs=1)


class SecondUse(nn.Module):
    """Uses a layer without a rule a second time, on a table, in training mode only."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5))

        def forward(self, x, table):
            return x * self.scale + (table * self.scale).sum(0)

    def __init__(self):
        super().__init__()
        self.scaled = self.Scale()
        self.layer = nn.Linear(5, 2)
        self.register_buffer("table", torch.randn(6, 5))

    def forward(self, x):
        hidden = self.scaled(x, self.table)
        if self.training:
            hidden = self.scaled(hidden, self.table)
        return self.layer(hidden)


def test_a_use_in_training_mode_only_is_learned_too():
    from dpsgd.clipping import Flat
    from dpsgd.gradients import ClippedGradients
    from dpsgd.losses import cross_entropy

    torch.manual_seed(3)
    model = SecondUse().train()
    gradients = ClippedGradients(model, cross_entropy)
    for examples in (5, 6, 7):  # the table has six rows
        inputs, targets = torch.randn(examples, 5), torch.randint(0, 2, (examples,))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        gradients.add(inputs, targets, clipper=Flat(1e9).start(2), step=0, scale=1.0)
        expected = torch.autograd.grad(
            cross_entropy(model(inputs), targets).sum(), model.scaled.scale
        )[0]
        assert torch.allclose(model.scaled.scale.grad, expected, rtol=1e-4)
