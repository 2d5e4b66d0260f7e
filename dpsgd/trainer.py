"""The trainer: any torch model and optimiser, trained with noise, and an account of it."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import nn
from torch.optim import Optimizer

from dpsgd import checkpoint as files
from dpsgd.choices import (
    check_count,
    choose_clipping,
    choose_lots,
    choose_multiplier,
    choose_noise,
    same_chance,
)
from dpsgd.clipping import Clipping
from dpsgd.curves import Row
from dpsgd.first_look import look_first
from dpsgd.gradients import ClippedGradients
from dpsgd.losses import Loss, per_example_loss
from dpsgd.marks import Marks
from dpsgd.plan import BARE, Plan, Plans, make_plan, requested
from dpsgd.records import as_records, first_inputs
from dpsgd.schedules import Schedule, as_schedule
from dpsgd.spending import Spending
from dpsgd.step import PrivateStep, float_type, mode, require_fitting
from dpsgd.validation import validate
from pate.accounting import Event, Guarantee, Ledger, event_to_json
from pate.accounting.terms import moment_for
from pate.artifacts import StoreError
from pate.errors import BudgetExceeded, InvalidInput
from pate.randomness import Randomness

Evaluate = Callable[[nn.Module], float]
Report = Callable[[Row], None]


@final
class Trainer:
    """Trains a model by DP-SGD, and says what that cost.

    ``dataset`` is a pair of arrays or tensors (inputs, targets) or a map-style torch data set of
    such pairs. Each step draws a lot (every example with probability ``lot_size`` / examples),
    shortens each example's gradient to ``max_grad_norm`` (or by another rule, ``clipping``), adds
    Gaussian noise of ``noise_multiplier`` times that norm to their sum, and gives the result to the
    optimiser. ``batch_size`` bounds how many examples are worked on at once; it changes nothing
    else. An epoch is ⌈examples / lot_size⌉ steps.

    ``max_epsilon`` is a filter: no step is taken that would pass it. ``prior_events`` are costs
    paid beside the steps. With a ``ledger`` every fit is charged before its first step, and marked
    with the ``study`` it belongs to, if any. With a ``checkpoint`` a killed run goes on: make the
    same trainer again and call ``fit`` as before.

    Guarantees:
        * Abadi et al. 2016, Algorithm 1: each step is a Poisson-sampled Gaussian mechanism
          (Mironov, Talwar & Zhang 2019) for data sets that differ by one example more or less.
        * What the noise hides it hides once: a plan is written down, charged under a random name of
          its own, and carried out. Whatever a fit shows (``history``, what ``evaluate`` returns and
          sees) is shown after the checkpoint that contains it is on disk. A killed run therefore
          never shows two drawings of one step for one charge. With a ledger, a copy of a
          checkpoint, or an old one brought back, is refused; without one, do not resume copies.
        * A step counts from the moment its lot is drawn, also if it is interrupted.
        * Nothing is measured on the training data: no loss, no accuracy.
        * What stands against the guarantee (another sampler, noise that can be guessed) is in
          ``caveats`` of every figure.

    >>> import numpy as np
    >>> model = nn.Linear(2, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = Trainer(model, optimizer, dataset=(np.eye(2).repeat(50, 0), np.arange(100) // 50),
    ...                   lot_size=10, max_grad_norm=1.0, noise_multiplier=2.0, delta=1e-3)
    >>> trainer.fit(epochs=3).steps
    30
    >>> round(trainer.epsilon().epsilon, 2), trainer.epsilon().neighbours.value
    (0.95, 'add-remove')
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        dataset: Any,
        lot_size: float,
        noise_multiplier: float | Schedule | None,
        delta: float,
        loss: str | Loss = "cross_entropy",
        max_grad_norm: float | Schedule | None = None,
        clipping: Clipping | None = None,
        learning_rate: float | Schedule | None = None,
        batch_size: int | None = None,
        device: str | torch.device = "cpu",
        sampling: str = "poisson",
        noise: str = "secure",
        insecure_seed: int | None = None,
        accountant: str = "moments",
        max_epsilon: float | None = None,
        prior_events: Iterable[Event] = (),
        ledger: Ledger | None = None,
        study: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
    ) -> None:
        records = as_records(dataset, dtype=float_type(model))
        validate(model, example_inputs=first_inputs(records))
        require_fitting(model, optimizer)
        check_count("batch_size", batch_size)
        check_count("checkpoint_every", checkpoint_every)
        self.model = model.to(device)
        self.optimizer = optimizer
        self.ledger = ledger
        self.study = study
        self.max_epsilon = max_epsilon
        self.history: list[Row] = []
        self.stopped_because: str | None = None
        self.steps = 0
        self._seed = insecure_seed
        rule = choose_clipping(max_grad_norm, clipping)
        randomness = Randomness.open(insecure_seed=insecure_seed)
        lots = choose_lots(
            sampling, records=len(records), lot_size=lot_size, generator=randomness.generator
        )
        measured = per_example_loss(loss)
        gradients = ClippedGradients(self.model, measured)
        self._step = PrivateStep(
            model=self.model,
            optimizer=optimizer,
            gradients=gradients,
            clipper=rule.start(len(gradients.groups)),
            records=records,
            lots=lots,
            noise=choose_noise(noise, seed=insecure_seed, device=torch.device(device)),
            randomness=randomness,
            lot_size=lot_size,
            learning_rate=None if learning_rate is None else as_schedule(learning_rate),
            batch_size=batch_size,
            device=torch.device(device),
        )
        self.steps_per_epoch = math.ceil(len(records) / lot_size)
        caveats = (lots.caveat, self._step.noise.caveat)
        goal = Guarantee(epsilon=1.0 if max_epsilon is None else max_epsilon, delta=delta)
        self.spending = Spending(
            sample_rate=lots.sample_rate,
            noise_multiplier=choose_multiplier(noise_multiplier, rule),
            delta=delta,
            accountant=accountant,
            prior=tuple(prior_events),
            caveats=tuple(each for each in caveats if each),
            moment=moment_for(goal),
        )
        look_first(
            self.model,
            gradients,
            records,
            loss=measured,
            clipper=self._step.clipper,
            noise_multiplier=self.spending.multiplier(0),
            device=torch.device(device),
        )
        self._settings = self._step.describe() | {
            "noise_multiplier": repr(self.spending.noise_multiplier),
            "delta": delta,
            "loss": loss if isinstance(loss, str) else getattr(loss, "__qualname__", "own"),
            "clipping": repr(rule),
            "sampling": sampling,
            "noise": noise,
            "insecure_seed": insecure_seed,
            "accountant": accountant,
            "max_epsilon": max_epsilon,
            "prior_events": [event_to_json(event) for event in self.spending.prior],
        }
        self._plans = Plans()
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._checkpoint_every = checkpoint_every or self.steps_per_epoch
        self._revision: str | None = None  # of the checkpoint on disk
        self._before: str | None = None  # of the one it took the place of
        self._marks = None if ledger is None or checkpoint is None else Marks(ledger.path)
        self._saved = 0  # the steps it holds
        if self._checkpoint is not None and self._checkpoint.exists():
            self._resume(self._checkpoint)

    # --- training -----------------------------------------------------------------------------

    def fit(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        until_epsilon: float | None = None,
        evaluate: Evaluate | None = None,
        report: Report | None = None,
    ) -> Self:
        """Trains for so many more epochs or steps, or for as many steps as stay within an ε.

        ``evaluate`` is called with the model at the end of every epoch, in evaluation mode and
        without gradients; what it returns goes into ``history``, and each row of that to
        ``report``. How many steps are taken is worked out before the first, and ``stopped_because``
        says why where it is fewer than asked for. After a resume, a fit that is called as before
        goes on to the end it was planned to have; one that was finished takes no step.
        """
        request = requested(epochs=epochs, steps=steps, until_epsilon=until_epsilon)
        self._require_unchanged()
        with self._alone():
            plan = self._plans.known(request, steps=self.steps)
            if plan is None:
                plan = self._plan(request)
            if plan is self._plans.last:
                self._pay()
                self._carry_out(plan, evaluate, report)
        self.stopped_because = plan.why
        return self

    def step(self) -> None:
        """Takes one step, and pays for it first; raises ``BudgetExceeded`` beyond ``max_epsilon``.

        With a checkpoint every such step is written to disk: whoever calls sees the model between
        steps.
        """
        self._require_unchanged()
        with self._alone():
            last = self._plans.last
            if last is None or not last.first <= self.steps < last.end:
                self._plan_one()
            self._pay()
            with mode(self.model, training=True), self._saving():
                self._take()

    def _plan(self, request: tuple[str, float]) -> Plan:
        plan = make_plan(
            request,
            first=self.steps,
            steps_per_epoch=self.steps_per_epoch,
            spending=self.spending,
            max_epsilon=self.max_epsilon,
        )
        last = self._plans.last
        if last is not None and last.first == self.steps < last.end and not self._paid(last):
            self._plans.drop_last()  # killed, or refused, before anything came of it
        if plan.end > plan.first:
            self._plans.add(plan)
        return plan

    def _plan_one(self) -> None:
        if self.max_epsilon is not None:
            needed = self.spending.guarantee(self.steps + 1).epsilon
            if needed > self.max_epsilon:
                raise BudgetExceeded(
                    needed=needed,
                    spent=self.epsilon().epsilon,
                    budget=self.max_epsilon,
                    why=f"one more step would bring ε to {needed:.6g}, past max_epsilon "
                    f"{self.max_epsilon:.6g}; the step was not taken",
                )
        last = self._plans.last
        if last is not None and last.request == BARE and self.ledger is None:
            self._plans.lengthen_last()
        else:
            name = secrets.token_hex(12)
            end = self.steps + 1
            self._plans.add(Plan(request=BARE, value=1, first=self.steps, end=end, name=name))

    def _paid(self, plan: Plan) -> bool:
        if self.ledger is None:
            return False
        return any(charge.release == plan.release for charge in self.ledger.charges())

    def _pay(self) -> None:
        """Writes the plan down, then charges it; one that is refused untouched is forgotten again.

        A plan of which steps were taken stays: no later one is carried out until it is paid for.
        """
        self._save()
        if self.ledger is None:
            return
        try:
            self._plans.charge(self.ledger, self.spending, study=self.study)
        except BudgetExceeded:
            last = self._plans.last
            if last is not None and last.first == self.steps:
                self._plans.drop_last()
                self._save()
            raise

    def _require_unchanged(self) -> None:
        """A model that was changed since could train what nobody checked."""
        validate(self.model)
        require_fitting(self.model, self.optimizer)
        if not self._step.gradients.fits(self.model):
            raise InvalidInput(
                "the layers or the trained parameters of the model changed since the trainer was "
                "made; make a new trainer"
            )

    def _carry_out(self, plan: Plan, evaluate: Evaluate | None, report: Report | None) -> None:
        started = time.perf_counter()
        with mode(self.model, training=True), self._saving():
            while True:
                ended = self.steps == plan.end or self.steps % self.steps_per_epoch == 0
                if self.steps and ended and not self._reported():
                    self._save_if_needed()  # before anybody sees what it led to
                    seconds, started = time.perf_counter() - started, time.perf_counter()
                    self.history.append(self._row(evaluate, seconds))
                    if report is not None:
                        report(self.history[-1])
                if self.steps >= plan.end:
                    break
                self._take()
                if self.steps % self._checkpoint_every == 0:
                    self._save_if_needed()
        self._save()  # with the last row

    def _take(self) -> None:
        step, self.steps = self.steps, self.steps + 1  # it counts, whatever comes between
        with same_chance(self._seed, step):
            self._step.take(step, noise_multiplier=self.spending.multiplier(step))

    def _reported(self) -> bool:
        return bool(self.history) and self.history[-1].step == self.steps

    def _row(self, evaluate: Evaluate | None, seconds: float) -> Row:
        accuracy = None
        if evaluate is not None:
            with mode(self.model, training=False), torch.no_grad():
                said: Any = evaluate(self.model)
            try:
                accuracy = float(said)
            except (TypeError, ValueError, RuntimeError):
                raise InvalidInput(
                    f"evaluate returned a {type(said).__name__}; it must return a number"
                ) from None
        return Row(
            epoch=math.ceil(self.steps / self.steps_per_epoch),
            step=self.steps,
            epsilon=self.epsilon().epsilon,
            accuracy=accuracy,
            learning_rate=float(self.optimizer.param_groups[0]["lr"]),
            clip_bound=math.hypot(*self._step.clipper.bounds(self.steps - 1)),
            seconds=seconds,
        )

    # --- what it cost -------------------------------------------------------------------------

    def epsilon(self) -> Guarantee:
        """(ε, δ) of the steps taken so far; to publish where their number was fixed in advance."""
        return self.spending.guarantee(self.steps)

    def planned(self) -> Guarantee:
        """(ε, δ) of everything planned, and charged: to publish where results decided the end."""
        return self.spending.guarantee_of(self._plans.events(self.spending))

    def odometer(self) -> Guarantee:
        """A reading of the steps so far that is valid at all times at once."""
        return self.spending.odometer(self.steps)

    # --- inside -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Inside, this trainer is the only one that goes on from its checkpoint."""
        if self._checkpoint is None:
            yield
            return
        with files.held(self._checkpoint):
            if files.revision(self._checkpoint) != self._revision:
                raise InvalidInput(
                    f"the checkpoint {self._checkpoint} is no longer the one this trainer wrote or "
                    "read; make the trainer again to go on from what is there"
                )
            self._require_last()
            yield

    def _require_last(self) -> None:
        """Of the plan that is under way, only the last checkpoint may be gone on from."""
        last = self._plans.last
        if self._marks is not None and last is not None and self.steps < last.end:
            self._marks.require(
                last.name, revision=self._revision, before=self._before, paid=self._paid(last)
            )

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """However the block ends, what the caller can see afterwards is on disk."""
        try:
            yield
        finally:
            self._step.forget_lot()
            try:
                self._save_if_needed()
            except StoreError:
                self._go_back()
                raise

    def _go_back(self) -> None:
        """Undoes what could not be written down: a resume would draw those steps anew."""
        assert self._checkpoint is not None
        tensors, record = files.read(self._checkpoint)
        self._step.unpack(tensors, record["state"])
        self.history = [Row(**row) for row in record["history"]]
        self.steps = record["steps"]

    def _save_if_needed(self) -> None:
        if self._saved != self.steps:
            self._save()

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        tensors, state = self._step.pack()
        revision = secrets.token_hex(12)
        record = {
            "revision": revision,
            "before": self._revision,
            "settings": self._settings,
            "steps": self.steps,
            "plans": self._plans.as_json(),
            "charged": self.ledger is not None,
            "history": [asdict(row) for row in self.history],
            "state": state,
        }
        files.write(self._checkpoint, tensors, record)
        self._before, self._revision, self._saved = self._revision, revision, self.steps
        last = self._plans.last
        if self._marks is not None and last is not None:
            self._marks.write(last.name, revision)

    def _resume(self, path: Path) -> None:
        tensors, record = files.read(path)
        files.require_same(path, record["settings"], self._settings)
        if record["charged"] and self.ledger is None:
            raise InvalidInput(f"the run in {path} was charged to a ledger; give it to go on")
        self._step.unpack(tensors, record["state"])
        self.history = [Row(**row) for row in record["history"]]
        self._plans = Plans.from_json(record["plans"])
        self.steps = self._saved = record["steps"]
        self._revision, self._before = record["revision"], record["before"]
