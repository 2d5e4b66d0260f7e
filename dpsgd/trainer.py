"""The trainer: any torch model and optimiser, trained by DP-SGD and accounted for."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dpsgd import checkpoint as files
from dpsgd.checkpoint import Mark, ResumeGuard
from dpsgd.clipping import Clipping, choose_clipping, choose_multiplier
from dpsgd.curves import Row
from dpsgd.data import as_records, first_inputs, optional_count
from dpsgd.gradients import ClippedGradients, mode
from dpsgd.losses import Loss, per_example_loss
from dpsgd.noise import choose_noise, seeded_dropout
from dpsgd.plan import BARE, FitPlan, FitPlans, Spending, make_plan, requested
from dpsgd.sampling import choose_lots, largest_batch
from dpsgd.schedules import Schedule, as_schedule
from dpsgd.step import PrivateStep, check_first_examples, float_type, require_fitting
from dpsgd.users import as_users, require_user_level
from dpsgd.validation import validate
from pate._format import format_epsilon
from pate.accounting import Event, Guarantee, Ledger, compose, event_to_json
from pate.accounting.events import as_zero_out
from pate.accounting.ledger.terms import moment_for
from pate.errors import BudgetExceeded, InvalidInput, ReleaseConflict
from pate.randomness import Randomness

Evaluate = Callable[[nn.Module], float]
Report = Callable[[Row], None]


@final
class Trainer:
    """Train a model by DP-SGD, and account for it.

    Each step draws a lot, clips each example's gradient, adds Gaussian noise to the sum of the
    clipped gradients, and gives the result, divided by ``lot_size``, to the optimiser.

    Parameters
    ----------
    model : torch.nn.Module
        The model to train, in place. It must treat each example on its own: see
        :func:`dpsgd.problems` and :func:`dpsgd.fix`.
    optimizer : torch.optim.Optimizer
        Any optimiser of the model's parameters that takes one gradient for each step.
    dataset : pair of arrays or tensors, or torch.utils.data.Dataset
        The private examples: (inputs, targets), or a map-style data set of such pairs.
    lot_size : float
        The expected number of examples in a lot (of users, with ``groups``). Each example is drawn
        with probability ``lot_size`` / ``records``.
    records : int, optional
        An agreed, public number of examples, such as a rounded one. Sampling rate and steps follow
        from it, and nothing that is shown depends on the true number: guarantees are for one
        example added or removed. Without it the true number of examples is used and counts as
        public: guarantees are for one example's contribution removed (zero-out).
    groups : sequence, optional
        The user of each example, as a name or a number. Lots are then drawn of users: each is in a
        lot with probability ``lot_size`` / number of users, the gradients of all of their examples
        are added up, and the sum is clipped. Guarantees are for all examples of one user.
    per_user : int, optional
        With ``groups``, the most examples of a user; of those who have more, the others are never
        used. By default all are. 1 takes as long as without groups.
    users : int, optional
        With ``groups``, the agreed, public number of users, in place of ``records``.
    grouped_by : str, default="groups"
        The name of the column of ``groups``, for the ledger: totals over users of different columns
        are stated for single records.
    noise_multiplier : float, Schedule or None
        The standard deviation of the noise over the clipping norm; None if ``clipping`` fixes it.
    delta : float
        δ of the guarantees; well below one over the number of examples.
    loss : str or callable, default="cross_entropy"
        ``"cross_entropy"``, ``"binary_cross_entropy"``, ``"squared_error"``, or a function of
        (outputs, targets) that returns one number for each example.
    max_grad_norm : float or Schedule, optional
        The norm to which the gradient of each example is clipped. Give it or ``clipping``.
    clipping : Flat, PerLayer, Automatic or AdaptiveQuantile, optional
        Another clipping rule.
    learning_rate : float or Schedule, optional
        The learning rate of each step; by default the optimiser's own.
    batch_size : int, optional
        The largest number of examples processed at once, to bound memory. It changes nothing
        else. By default the whole lot.
    device : str or torch.device, default="cpu"
        The device to train on; the model is moved to it.
    sampling : {"poisson", "shuffle"}, default="poisson"
        Poisson sampling, to which the guarantees apply, or shuffled lots for comparison only.
    noise : {"secure", "fast"}, default="secure"
        Cryptographic noise, or torch's faster generator, which is not private.
    insecure_seed : int, optional
        Seed everything, for tests. The run is not private.
    accountant : {"moments", "pld", "abadi"}, default="moments"
        The accountant: a fine grid of moments, privacy loss distributions (tightest), or the
        moments λ ≤ 32 of Abadi et al. 2016.
    max_epsilon : float, optional
        A filter: no step is taken that would exceed it.
    prior_events : iterable of Event, optional
        Costs paid beside the steps, such as those of :class:`dpsgd.PrivatePCA`.
    ledger : pate.accounting.Ledger, optional
        The ledger that every fit is charged to before its first step.
    study : str, optional
        The study that the charges belong to.
    settings : iterable of str, optional
        Digests of what is trained: where the ledger has paid for another run with one of them,
        this run is refused unless ``again``.
    again : bool, default=False
        Pay again for settings that the ledger has paid for.
    checkpoint : path, optional
        The file to resume from. To resume a killed run, make the same trainer again and call
        ``fit`` as before.
    checkpoint_every : int, optional
        The number of steps between checkpoints; by default an epoch.

    Attributes
    ----------
    steps : int
        The number of steps taken.
    steps_per_epoch : int
        ⌈records / lot_size⌉, or of users.
    history : list of Row
        One row for each epoch.
    stopped_because : str or None
        The reason why the last ``fit`` took fewer steps than requested.
    spending : Spending
        The cost of each step.

    Guarantees:
        * Abadi et al. 2016, Algorithm 1: each step is a Poisson-sampled Gaussian mechanism
          (Mironov, Talwar & Zhang 2019). With ``records`` that holds for one example added or
          removed. Without, one more example would change the sampling rate of all others, so it
          holds where one example's contribution is removed and their number stays (zero-out:
          Kairouz et al. 2021, Definition 1.1). Every guarantee names its relation.
        * With ``groups`` both are about users: one user, with all of their examples, is in a lot or
          not, and adds a vector of bounded length (McMahan, Ramage, Talwar & Zhang 2018). Nothing
          is claimed for *some* examples of a user, whose absence can turn the clipped sum round.
        * Noise hides one draw: a plan is written down, charged under a random name of its own, and
          carried out. Whatever a fit shows (``history``, what ``evaluate`` returns and sees) is
          shown after the checkpoint that contains it is on disk. A killed run therefore never
          shows two draws of one step for one charge. With a ledger, a checkpoint that is not the
          last of its run is refused, and of several copies of the last only one can be resumed
          (:mod:`dpsgd.checkpoint`); without one, do not resume copies.
        * A step counts from the moment its lot is drawn, even if it is interrupted.
        * Nothing is measured on the training data: no loss, no accuracy.
        * What the trainer refuses depends on the data, and is not covered: a label beyond the
          model's outputs, a model that fails on inputs of the first few records (it is tried in
          batches as large as a large lot), a step whose passes change a buffer or a parameter. Nor
          is how long anything takes. Nothing else of the records is shown.
        * What invalidates the guarantee (another sampler, noise that can be guessed) is listed in
          ``caveats`` of every guarantee.

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
        groups: Sequence[Any] | NDArray[Any] | None = None,
        per_user: int | None = None,
        users: int | None = None,
        grouped_by: str = "groups",
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
        records = optional_count("records", records)
        owners = as_users(groups, records=len(data), per_user=per_user, users=users)
        prior_events = tuple(prior_events)
        if owners is not None:
            require_user_level(records, prior_events)
        units, agreed = (len(data), records) if owners is None else (len(owners), users)
        batch_size = optional_count("batch_size", batch_size)
        checkpoint_every = optional_count("checkpoint_every", checkpoint_every)
        each = 1 if owners is None else owners.records / max(1, len(owners))
        largest = largest_batch(lot_size * each, batch_size)
        validate(model, example_inputs=first_inputs(data, size=largest))
        require_fitting(model, optimizer)
        self.model = model.to(device)
        self.optimizer = optimizer
        self.ledger = ledger
        self.study = study
        self._group = None if owners is None else grouped_by
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
            records=units,
            public_records=agreed,
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
            users=owners,
        )
        self._step.rehearse()
        self.steps_per_epoch = math.ceil((agreed or units) / lot_size)
        caveats = (lots.caveat, self._step.noise.caveat)
        goal = Guarantee(epsilon=1.0 if max_epsilon is None else max_epsilon, delta=delta)
        self.spending = Spending(
            sample_rate=lots.sample_rate,
            noise_multiplier=choose_multiplier(noise_multiplier, rule),
            delta=delta,
            accountant=accountant,
            prior=prior_events if agreed else tuple(map(as_zero_out, prior_events)),
            caveats=tuple(each for each in caveats if each),
            moment=moment_for(goal),
            public_rate=agreed is not None,
            per_user=owners is not None,
        )
        check_first_examples(
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
        if owners is None:
            self._settings |= {"data set": len(data)} if records is None else {"records": records}
        else:
            self._settings |= {"per_user": per_user}
            self._settings |= {"groups": len(owners)} if users is None else {"users": users}
        self._plans = FitPlans()
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._checkpoint_every = checkpoint_every or self.steps_per_epoch
        self._revision: str | None = None  # of the checkpoint on disk
        self._saved = self._progress()  # its content
        self._guard = None if ledger is None or checkpoint is None else ResumeGuard(ledger.path)
        self._locks = contextlib.ExitStack()  # while fit or step runs
        self._mark: Mark | None = None  # the locked record of the plan that is carried out
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
        """Train for more epochs or steps, or for as many steps as stay within an ε.

        The number of steps is computed before the first. After a resume, a fit that is called as
        before continues to its planned end; one that was finished takes no step.

        Parameters
        ----------
        epochs, steps : int, optional
            How long to train. Give exactly one of the three.
        until_epsilon : float, optional
            Take as many steps as stay within this ε, all earlier ones included.
        evaluate : callable, optional
            Called with the model at the end of every epoch, in evaluation mode and without
            gradients; the number it returns goes into ``history``. Use public test data. With
            a ledger, and no ``prior_events``, it is tried once before a charge.
        report : callable, optional
            Called with each new row of ``history``.

        Returns
        -------
        Trainer
            The trainer itself; ``stopped_because`` gives the reason if it took fewer steps than
            requested.

        Raises
        ------
        BudgetExceeded
            If the ledger's budget does not cover the plan; no step is taken.
        """
        request = requested(epochs=epochs, steps=steps, until_epsilon=until_epsilon)
        if evaluate is not None and not callable(evaluate):
            raise InvalidInput(
                f"evaluate is a {type(evaluate).__name__}; give a function of the model that "
                "returns a number"
            )
        self._require_unchanged()
        with self._alone():
            plan = self._plans.known(request, steps=self.steps)
            if plan is None:
                # What comes before the steps, such as a PCA of the inputs, is not paid for yet.
                if evaluate is not None and self.ledger is not None and not self.spending.prior:
                    with torch.random.fork_rng(devices=[]):
                        self._evaluated(evaluate)  # what it refuses, it refuses before the charge
                plan = self._plan(request)
            if plan is self._plans.last:
                self._hold(plan)
                self._pay()
                self._carry_out(plan, evaluate, report)
        self.stopped_because = plan.why
        return self

    def step(self) -> None:
        """Take one step, after paying for it.

        With a checkpoint every such step is written to disk, since the caller sees the model
        between steps.

        Raises
        ------
        BudgetExceeded
            If the step would exceed ``max_epsilon`` or the ledger's budget; it is not taken.
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

    def _plan(self, request: tuple[str, float]) -> FitPlan:
        plan = make_plan(
            request,
            first=self.steps,
            steps_per_epoch=self.steps_per_epoch,
            spending=self.spending,
            max_epsilon=self.max_epsilon,
        )
        last = self._plans.last
        if last is not None and last.first == self.steps < last.end and not self._paid(last):
            self._plans.drop_last()  # killed, or refused, before any step
        if plan.end > plan.first:
            self._plans.add(plan)
        return plan

    def _plan_one(self) -> FitPlan:
        if self.max_epsilon is not None:
            needed = self.spending.guarantee(self.steps + 1).epsilon
            if needed > self.max_epsilon:
                raise BudgetExceeded(
                    needed=needed,
                    spent=self.epsilon().epsilon,
                    budget=self.max_epsilon,
                    why=f"one more step would bring ε to {format_epsilon(needed)}, past "
                    f"max_epsilon {self.max_epsilon:.6g}; the step was not taken",
                )
        return self._plans.one_more_step(self.steps, join=self.ledger is None)

    def _paid(self, plan: FitPlan) -> bool:
        return self.ledger is not None and plan.release in self.ledger.releases()

    def _pay(self) -> None:
        """Write the plan down, then charge it; drop it again if it is refused before any step.

        A plan of which steps were taken stays: no later one is carried out until it is paid for.
        """
        if self._mark is not None and self._mark.last is None:
            self._save()  # a charge needs the record of how far it was drawn
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
                group=self._group,
            )
        except (BudgetExceeded, ReleaseConflict):
            last = self._plans.last
            if last is not None and last.first == self.steps and not self._paid(last):
                self._plans.drop_last()
                self._save_if_needed()
            raise

    def _require_unchanged(self) -> None:
        """Refuse a model whose layers changed since it was checked."""
        validate(self.model)
        require_fitting(self.model, self.optimizer)
        if not self._step.gradients.fits(self.model):
            raise InvalidInput(
                "the layers or the trained parameters of the model changed since the trainer was "
                "made; make a new trainer"
            )

    def _carry_out(self, plan: FitPlan, evaluate: Evaluate | None, report: Report | None) -> None:
        started = time.perf_counter()
        with mode(self.model, training=True), self._saving():
            while True:
                ended = self.steps == plan.end or self.steps % self.steps_per_epoch == 0
                if self.steps and ended and not self._reported():
                    self._save_if_needed()  # before anything of it is shown
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
        step, self.steps = self.steps, self.steps + 1  # it counts even if interrupted
        with seeded_dropout(self._seed, step):
            self._step.take(step, noise_multiplier=self.spending.multiplier(step))

    def _reported(self) -> bool:
        return bool(self.history) and self.history[-1].step == self.steps

    def _evaluated(self, evaluate: Evaluate) -> float:
        with mode(self.model, training=False), torch.no_grad():
            result: Any = evaluate(self.model)
        try:
            return float(result)
        except (TypeError, ValueError, RuntimeError):
            raise InvalidInput(
                f"evaluate returned a {type(result).__name__}; it must return a number"
            ) from None

    def _row(self, evaluate: Evaluate | None, seconds: float) -> Row:
        return Row(
            epoch=math.ceil(self.steps / self.steps_per_epoch),
            step=self.steps,
            epsilon=self.epsilon().epsilon,
            accuracy=None if evaluate is None else self._evaluated(evaluate),
            learning_rate=float(self.optimizer.param_groups[0]["lr"]),
            clip_bound=math.hypot(*self._step.clipper.bounds(self.steps - 1)),
            seconds=seconds,
        )

    # --- cost ---------------------------------------------------------------------------------

    def epsilon(self) -> Guarantee:
        """Return (ε, δ) of the steps taken so far; publishable if their number was fixed before."""
        return self.spending.guarantee(self.steps)

    def planned(self) -> Guarantee:
        """Return (ε, δ) of everything planned, and charged: publish it if results decided the end.

        Guarantees:
            * After one ``fit`` it is the ε of its plan, which was fixed before the first step.
            * After several, or after single steps, results may have decided that more were taken,
              and the λ that is best for all of them would depend on results. It is then
              ``max_epsilon``, a filter that was fixed when the trainer was made; without one it is
              the odometer's ε, at a λ that was fixed with the first plan (Feldman & Zrnic 2021;
              Whitehouse, Ramdas, Rogers & Wu 2023).
        """
        events = self._plans.events(self.spending)
        if self._plans.fixed_in_advance:
            return self.spending.guarantee_of(events)
        if self.max_epsilon is None:
            return self.spending.odometer_of(events, moment=self._moment())
        given = self.spending.guarantee_of(events)
        return replace(given, epsilon=self.max_epsilon, moment=None, conversion=None)

    def odometer(self) -> Guarantee:
        """Return (ε, δ) of the steps so far, valid also if results decide when to stop."""
        return self.spending.odometer(self.steps, moment=self._moment())

    def _moment(self) -> float | None:
        """Return the λ of the odometer: the best one for the first plan, which precedes results."""
        first = self._plans.first
        if first is None or first.request == BARE:
            return None
        events = (*self.spending.prior, *self.spending.events(first.end, first=first.first))
        return compose(events).guarantee(delta=self.spending.delta).moment

    # --- checkpoints --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other trainers from resuming this checkpoint, or a copy, inside the block."""
        if self._checkpoint is None:
            yield
            return
        with files.held(self._checkpoint), contextlib.ExitStack() as self._locks:
            if files.revision(self._checkpoint) != self._revision:
                raise InvalidInput(
                    f"the checkpoint {self._checkpoint} is no longer the one this trainer wrote or "
                    "read; make the trainer again to resume from the file"
                )
            last = self._plans.last
            if last is not None and self.steps < last.end:
                self._hold(last)
            try:
                yield
            finally:
                self._mark = None

    def _hold(self, plan: FitPlan) -> None:
        """Lock the record of a plan until fit or step ends; an unfinished plan must be ours."""
        if self._guard is None or (self._mark is not None and self._mark.path.name == plan.name):
            return
        mark = self._locks.enter_context(self._guard.held(plan.name))
        begun = any(each["name"] == plan.name for each in self._saved[-1])
        if begun and self.steps < plan.end:
            mark.require(self._revision, paid=lambda: self._paid(plan))
        self._mark = mark

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Write to disk, however the block ends, what the caller can see afterwards."""
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
        """Undo what could not be written down: a resume would draw those steps again."""
        tensors, record = files.read(path)
        if self._mark is not None:
            self._mark.settle(record["revision"])
        self._restore(tensors, record)

    def _restore(self, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
        self._step.unpack(tensors, record["state"])
        self.history = [Row(**row) for row in record["history"]]
        self.steps, self._revision = record["steps"], record["revision"]
        self._saved = self._progress()

    def _progress(self) -> tuple[Any, ...]:
        """Return everything whose change requires a new checkpoint."""
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
            raise InvalidInput(
                f"the run in {path} was charged to a ledger; give that ledger to resume it"
            )
        plans = FitPlans.from_json(record["plans"])
        last = plans.last
        if self._guard is not None and last is not None and record["steps"] < last.end:
            self._guard.admit(
                last.name,
                revision=record["revision"],
                before=record["before"],
                paid=lambda: self._paid(last),
            )
        self._plans = plans
        self._restore(tensors, record)
