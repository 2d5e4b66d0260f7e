"""The trainer: any torch model and optimiser, trained with noise, and an account of it."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
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
from dpsgd.plan import BARE, Plan, Plans, make_plan, requested
from dpsgd.records import as_records, first_inputs
from dpsgd.resume_guard import Mark, ResumeGuard
from dpsgd.sampling import largest_batch
from dpsgd.schedules import Schedule, as_schedule
from dpsgd.spending import Spending
from dpsgd.step import PrivateStep, float_type, mode, require_fitting
from dpsgd.validation import validate
from pate.accounting import Event, Guarantee, Ledger, compose, event_to_json
from pate.accounting.events import as_zero_out
from pate.accounting.ledger.terms import moment_for
from pate.errors import BudgetExceeded, InvalidInput, ReleaseConflict
from pate.randomness import Randomness

Evaluate = Callable[[nn.Module], float]
Report = Callable[[Row], None]


@final
class Trainer:
    """Trains a model by DP-SGD, and says what that cost.

    ``dataset`` is a pair of arrays or tensors (inputs, targets) or a map-style torch data set of
    such pairs. Each step draws a lot (every example with probability ``lot_size`` / ``records``),
    shortens each example's gradient to ``max_grad_norm`` (or by another rule, ``clipping``), adds
    Gaussian noise of ``noise_multiplier`` times that norm to their sum, and gives the result to the
    optimiser. ``batch_size`` bounds how many examples are worked on at once; it changes nothing
    else. An epoch is ⌈records / lot_size⌉ steps.

    ``records`` is an agreed, public number of examples, such as a rounded one: sampling rate and
    steps follow from it, and nothing that is shown from the true number. Without it the true number
    of examples is used, and counts as public.

    ``max_epsilon`` is a filter: no step is taken that would pass it. ``prior_events`` are costs
    paid beside the steps. With a ``ledger`` every fit is charged before its first step, and marked
    with the ``study`` it belongs to, if any. ``settings`` are digests of what is trained: where the
    ledger has paid for another run with one of them, this one is refused unless ``again``. With a
    ``checkpoint`` a killed run goes on: make the same trainer again and call ``fit`` as before.

    Guarantees:
        * Abadi et al. 2016, Algorithm 1: each step is a Poisson-sampled Gaussian mechanism
          (Mironov, Talwar & Zhang 2019). With ``records`` that holds for one example added or
          removed. Without, one example more would change the sampling rate of all others, so it
          holds where one example's contribution is removed and their number stays (zero-out:
          Kairouz et al. 2021, Definition 1.1). Every figure names its relation.
        * What the trainer refuses before the first step (a label beyond the model's outputs, a
          model that fails on the first examples) depends on the data, and is not covered; nor is
          how long anything takes.
        * What the noise hides it hides once: a plan is written down, charged under a random name of
          its own, and carried out. Whatever a fit shows (``history``, what ``evaluate`` returns and
          sees) is shown after the checkpoint that contains it is on disk. A killed run therefore
          never shows two drawings of one step for one charge. With a ledger, a checkpoint that is
          not the last of its run is refused, and of several copies of the last one alone goes on
          (:mod:`dpsgd.resume_guard`); without one, do not resume copies.
        * A step counts from the moment its lot is drawn, also if it is interrupted.
        * Nothing is measured on the training data: no loss, no accuracy.
        * That a model is refused may follow from records: it is tried on inputs of the first few
          when the trainer is made, in batches as large as a large lot, and a step ends the run if
          its passes change a buffer or a parameter. Of the records nothing else is shown.
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
    (0.95, 'zero-out')
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        dataset: Any,
        lot_size: float,
        records: int | None = None,
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
        settings: Iterable[str] = (),
        again: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
    ) -> None:
        data = as_records(dataset, dtype=float_type(model))
        check_count("records", records)
        check_count("batch_size", batch_size)
        largest = largest_batch(lot_size, batch_size)
        validate(model, example_inputs=first_inputs(data, size=largest))
        require_fitting(model, optimizer)
        check_count("checkpoint_every", checkpoint_every)
        self.model = model.to(device)
        self.optimizer = optimizer
        self.ledger = ledger
        self.study = study
        self._digests, self._again = tuple(settings), again
        self.max_epsilon = max_epsilon
        self.history: list[Row] = []
        self.stopped_because: str | None = None
        self.steps = 0
        self._seed = insecure_seed
        rule = choose_clipping(max_grad_norm, clipping)
        randomness = Randomness.open(insecure_seed=insecure_seed)
        lots = choose_lots(
            sampling,
            records=len(data),
            public_records=records,
            lot_size=lot_size,
            generator=randomness.generator,
        )
        measured = per_example_loss(loss)
        gradients = ClippedGradients(self.model, measured)
        self._step = PrivateStep(
            model=self.model,
            optimizer=optimizer,
            gradients=gradients,
            clipper=rule.start(len(gradients.groups)),
            records=data,
            lots=lots,
            noise=choose_noise(noise, seed=insecure_seed, device=torch.device(device)),
            randomness=randomness,
            lot_size=lot_size,
            learning_rate=None if learning_rate is None else as_schedule(learning_rate),
            batch_size=batch_size,
            device=torch.device(device),
        )
        self._step.rehearse()
        self.steps_per_epoch = math.ceil((records or len(data)) / lot_size)
        caveats = (lots.caveat, self._step.noise.caveat)
        goal = Guarantee(epsilon=1.0 if max_epsilon is None else max_epsilon, delta=delta)
        self.spending = Spending(
            sample_rate=lots.sample_rate,
            noise_multiplier=choose_multiplier(noise_multiplier, rule),
            delta=delta,
            accountant=accountant,
            prior=tuple(prior_events) if records else tuple(map(as_zero_out, prior_events)),
            caveats=tuple(each for each in caveats if each),
            moment=moment_for(goal),
            public_rate=records is not None,
        )
        look_first(
            self.model,
            gradients,
            data,
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
        self._settings |= {"data set": len(data)} if records is None else {"records": records}
        self._plans = Plans()
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._checkpoint_every = checkpoint_every or self.steps_per_epoch
        self._revision: str | None = None  # of the checkpoint on disk
        self._saved = self._progress()  # what it holds
        self._guard = None if ledger is None or checkpoint is None else ResumeGuard(ledger.path)
        self._locks = contextlib.ExitStack()  # while fit or step is under way
        self._mark: Mark | None = None  # of the plan that is carried out, locked
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
                self._hold(plan)
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
                last = self._plan_one()
            self._hold(last)
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

    def _plan_one(self) -> Plan:
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
        assert self._plans.last is not None
        return self._plans.last

    def _paid(self, plan: Plan) -> bool:
        if self.ledger is None:
            return False
        return any(charge.release == plan.release for charge in self.ledger.charges())

    def _pay(self) -> None:
        """Writes the plan down, then charges it; one that is refused untouched is forgotten again.

        A plan of which steps were taken stays: no later one is carried out until it is paid for.
        """
        if self._mark is not None and self._mark.last is None:
            self._save()  # a charge rests on the record of how far it was drawn
        self._save_if_needed()
        if self.ledger is None:
            return
        try:
            self._plans.charge(
                self.ledger,
                self.spending,
                study=self.study,
                settings=self._digests,
                again=self._again,
            )
        except (BudgetExceeded, ReleaseConflict):
            last = self._plans.last
            if last is not None and last.first == self.steps and not self._paid(last):
                self._plans.drop_last()
                self._save_if_needed()
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
        """(ε, δ) of everything planned, and charged: to publish where results decided the end.

        Guarantees:
            * After one ``fit`` it is the figure of its plan, which was fixed before the first step.
            * After several, or after bare steps, results may have decided that more were asked for,
              and the λ that is best for all of them would depend on results. It is then
              ``max_epsilon``, a filter that was fixed when the trainer was made; without one it is
              the odometer's figure, at a λ that was fixed with the first plan (Feldman & Zrnic
              2021; Whitehouse, Ramdas, Rogers & Wu 2023).
        """
        events = self._plans.events(self.spending)
        if self._plans.fixed_in_advance:
            return self.spending.guarantee_of(events)
        if self.max_epsilon is None:
            return self.spending.odometer_of(events, moment=self._moment())
        given = self.spending.guarantee_of(events)
        return replace(given, epsilon=self.max_epsilon, moment=None, conversion=None)

    def odometer(self) -> Guarantee:
        """(ε, δ) of the steps so far, valid whenever one stops, also because of what was seen."""
        return self.spending.odometer(self.steps, moment=self._moment())

    def _moment(self) -> float | None:
        """The λ of the odometer: the best one for the first plan, which no result has decided."""
        first = self._plans.first
        if first is None or first.request == BARE:
            return None
        events = (*self.spending.prior, *self.spending.events(first.end, first=first.first))
        return compose(events).guarantee(delta=self.spending.delta).moment

    # --- inside -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Inside, this trainer is the only one that resumes from its checkpoint, or a copy."""
        if self._checkpoint is None:
            yield
            return
        with files.held(self._checkpoint), contextlib.ExitStack() as self._locks:
            if files.revision(self._checkpoint) != self._revision:
                raise InvalidInput(
                    f"the checkpoint {self._checkpoint} is no longer the one this trainer wrote or "
                    "read; make the trainer again to go on from what is there"
                )
            last = self._plans.last
            if last is not None and self.steps < last.end:
                self._hold(last)
            try:
                yield
            finally:
                self._mark = None

    def _hold(self, plan: Plan) -> None:
        """Locks the record of a plan until fit or step ends; of one under way, it must be ours."""
        if self._guard is None or (self._mark is not None and self._mark.path.name == plan.name):
            return
        mark = self._locks.enter_context(self._guard.held(plan.name))
        begun = any(each["name"] == plan.name for each in self._saved[-1])
        if begun and self.steps < plan.end:
            mark.require(self._revision, paid=lambda: self._paid(plan))
        self._mark = mark

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """However the block ends, what the caller can see afterwards is on disk."""
        try:
            yield
        finally:
            self._step.forget_lot()
            try:
                self._save_if_needed()
            except BaseException:  # a second Ctrl-C, too
                if self._checkpoint is not None:
                    self._go_back(self._checkpoint)
                raise

    def _go_back(self, path: Path) -> None:
        """Undoes what could not be written down: a resume would draw those steps anew."""
        tensors, record = files.read(path)
        if self._mark is not None:
            self._mark.settle(record["revision"])
        self._step.unpack(tensors, record["state"])
        self.history = [Row(**row) for row in record["history"]]
        self.steps, self._revision = record["steps"], record["revision"]
        self._saved = self._progress()

    def _progress(self) -> tuple[Any, ...]:
        """Whatever makes a new checkpoint needed when it changes."""
        return self.steps, len(self.history), self._plans.as_json()

    def _save_if_needed(self) -> None:
        if self._saved != self._progress():
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
        if self._mark is not None:
            self._mark.prepare(revision)
        files.write(self._checkpoint, tensors, record)
        if self._mark is not None:
            self._mark.commit()
        self._revision, self._saved = revision, self._progress()

    def _resume(self, path: Path) -> None:
        tensors, record = files.read(path)
        files.require_same(path, record["settings"], self._settings)
        if record["charged"] and self.ledger is None:
            raise InvalidInput(f"the run in {path} was charged to a ledger; give it to go on")
        plans = Plans.from_json(record["plans"])
        last = plans.last
        if self._guard is not None and last is not None and record["steps"] < last.end:
            self._guard.admit(
                last.name,
                revision=record["revision"],
                before=record["before"],
                paid=lambda: self._paid(last),
            )
        self._step.unpack(tensors, record["state"])
        self.history = [Row(**row) for row in record["history"]]
        self._plans = plans
        self.steps, self._revision = record["steps"], record["revision"]
        self._saved = self._progress()
