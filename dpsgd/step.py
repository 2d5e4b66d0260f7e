"""One private step: a lot, its clipped gradients, noise once, and the optimiser."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dpsgd import checkpoint
from dpsgd.clipping import Clipper
from dpsgd.data import Examples
from dpsgd.gradients import COMPARED, ClippedGradients, mode
from dpsgd.layers import UnsuitableModel
from dpsgd.losses import Loss, cross_entropy
from dpsgd.noise import Noise
from dpsgd.sampling import IntArray, Lots, generator_state, restore_generator
from dpsgd.schedules import Schedule
from dpsgd.users import Users
from dpsgd.validation.probe import same_values
from pate.errors import InvalidInput, PateError
from pate.randomness import Randomness

_LAID_OUT = 1 << 26  # numbers in the gradients of the records in a batch of users: 256 MiB


@final
@dataclass(kw_only=True, eq=False)
class PrivateStep:
    """The steps of Abadi et al. 2016, Algorithm 1.

    Guarantees:
        * The noise goes in first and once, whatever the number of batches that the lot is cut into;
          nothing but the noised sum reaches the optimiser.
        * The sum is divided by the *expected* lot size, which is public, never by the lot's own.
        * An empty lot is a step like any other: pure noise.
        * A forward pass that changes a buffer or a parameter ends the step before the optimiser's:
          what examples leave there bypasses clipping and noise.
    """

    model: nn.Module
    optimizer: Optimizer
    gradients: ClippedGradients
    clipper: Clipper
    records: Examples
    lots: Lots
    noise: Noise
    randomness: Randomness  # of the lots
    lot_size: float
    learning_rate: Schedule | None
    batch_size: int | None
    device: torch.device
    users: Users | None = None  # of whom lots are drawn; None: lots of records

    def __post_init__(self) -> None:
        self._parameters = [each for group in self.gradients.groups for each in group]
        self._sums = [
            torch.zeros_like(each, memory_format=torch.contiguous_format)
            for each in self._parameters
        ]
        trained = {id(each) for each in self._parameters}
        self._others = [each for each in self.model.parameters() if id(each) not in trained]

    def take(self, step: int, *, noise_multiplier: float) -> None:
        """Draw a lot, sum its clipped gradients onto the noise, and let the optimiser step."""
        lot = self.lots.lot()
        self.fill_with_noise(step, noise_multiplier=noise_multiplier)
        before = self.copies()
        if self.users is None:
            self._add_records(lot, step)
        elif self.users.per_user == 1:  # by the short cuts of layers
            self._add_records(self.users.records_of(lot)[0], step)
        else:
            self._add_users(lot, step)
        self.require_unchanged(before)
        self.clipper.end_lot(step, lot_size=self.lot_size, normal=self.noise.normal)
        if self.learning_rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.learning_rate(step)
        remedy = "begin a new run with a smaller one, which costs again"
        _apply(self.optimizer, f"fails at step {step}", remedy)

    def _add_records(self, lot: IntArray, step: int) -> None:
        size = self.batch_size or max(1, len(lot))
        for start in range(0, len(lot), size):
            inputs, targets = self.records.take(lot[start : start + size])
            self.gradients.add(
                inputs.to(self.device),
                targets.to(self.device),
                clipper=self.clipper,
                step=step,
                scale=1 / self.lot_size,
            )

    def _add_users(self, lot: IntArray, step: int) -> None:
        assert self.users is not None
        records, places = self.users.records_of(lot)
        numbers = sum(each.numel() for each in self._parameters)
        size = self.batch_size or max(1, _LAID_OUT // numbers)

        def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            start = 0
            while start < len(records):
                stop = min(start + size, len(records))
                if stop < len(records):  # not in the midst of a user, if that can be
                    first = int(np.searchsorted(places, places[stop]))
                    stop = first if first > start else stop
                inputs, targets = self.records.take(records[start:stop])
                owners = torch.from_numpy(places[start:stop])
                yield inputs.to(self.device), targets.to(self.device), owners
                start = stop

        self.gradients.add_by_user(
            batches(), clipper=self.clipper, step=step, scale=1 / self.lot_size
        )

    def fill_with_noise(self, step: int, *, noise_multiplier: float) -> None:
        """Replace every gradient by the noise of a step, to which clipped gradients are added."""
        stds = self.clipper.noise_stds(step, noise_multiplier)
        self.noise.fill(self._sums, [std / self.lot_size for std in self._spread(stds)])
        for parameter, noised in zip(self._parameters, self._sums, strict=True):
            parameter.grad = noised
        for parameter in self._others:
            parameter.grad = None  # frozen: a gradient left by an earlier training must not move it

    def copies(self) -> dict[str, Tensor]:
        """Return copies of all parameters and buffers."""
        return {name: each.detach().clone() for name, each in self._tensors().items()}

    def rehearse(self) -> None:
        """Refuse a learning rate at which the optimiser fails, before anything is paid.

        The first and the last rate are tried, on a copy of the optimiser with one number to train.
        """
        rates: list[Any] = [group["lr"] for group in self.optimizer.param_groups]
        if self.learning_rate is not None:
            rates = [self.learning_rate(0), getattr(self.learning_rate, "end", rates[0])]
        for rate in rates:
            one = {id(each): nn.Parameter(each.new_zeros(1)) for each in self._parameters}
            try:
                tried = copy.deepcopy(self.optimizer, dict(one))
                tried.state.clear()
            except Exception:  # an optimiser that cannot be copied is tried by its first step
                return
            for group in tried.param_groups:
                group["lr"] = rate
            for each in one.values():
                each.grad = torch.ones_like(each)
            _apply(tried, "fails", "choose a smaller one")

    def require_unchanged(self, before: Mapping[str, Tensor]) -> None:
        """Refuse a model whose buffers or parameters a pass changed, and undo the change.

        A tensor of the model that is neither is not checked.
        """
        now = self._tensors()
        names = [*before, *(name for name in now if name not in before)]
        changed = [
            name
            for name in names
            if name not in now or name not in before or not same_values(before[name], now[name])
        ]
        if not changed:
            return
        for name in changed:
            owner, _, own = name.rpartition(".")
            module = self.model.get_submodule(owner)
            if name in before and own in module._parameters:
                now[name].data = before[name]
            elif name in before:
                module._buffers[own] = before[name]
            else:
                module._buffers.pop(own, None)
        raise UnsuitableModel(
            f"the model changes its {changed[0]} in a training pass, past clipping and noise; the "
            "step was dropped and the change undone: keep buffers and parameters as they are in "
            "training mode, and begin a new run, which costs again"
        )

    def forget_lot(self) -> None:
        """Drop what an interrupted lot left behind."""
        self.clipper.restore(self.clipper.state())

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything that the next step depends on, as tensors and plain values.

        The state of a secure generator is not included: a resumed run opens a new one.
        """
        memory, optimizer = checkpoint.pack_optimizer(self.optimizer)
        weights = {f"model.{name}": value for name, value in self._tensors().items()}
        record: dict[str, Any] = {"optimizer": optimizer, "clipper": self.clipper.state()}
        if not self.randomness.secure:
            record["generator"] = generator_state(self.randomness.generator)
            record["lots"] = self.lots.state()
            record["noise"] = self.noise.state()
        return {**weights, **memory}, record

    def unpack(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Restore what :meth:`pack` returned."""
        with torch.no_grad():
            for name, value in self._tensors().items():
                value.copy_(tensors[f"model.{name}"])
        checkpoint.unpack_optimizer(self.optimizer, tensors, record["optimizer"])
        self.clipper.restore(record["clipper"])
        if not self.randomness.secure:
            restore_generator(self.randomness.generator, record["generator"])
            self.lots.restore(record["lots"])
            self.noise.restore(record["noise"])

    def describe(self) -> dict[str, Any]:
        """Return the settings that must be the same for a checkpoint to fit."""
        settings = checkpoint.pack_optimizer(self.optimizer)[1]["param_groups"]
        return {
            "model": {k: f"{v.dtype} {list(v.shape)}" for k, v in self._tensors().items()},
            "trained parameters": [list(names) for names in self.gradients.names],
            "optimizer": [type(self.optimizer).__name__, settings],
            "lot_size": self.lot_size,
            "learning_rate": repr(self.learning_rate),
        }

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def _spread(self, stds: tuple[float, ...]) -> list[float]:
        """Return the noise of each group, once for each of its parameters."""
        per_group = stds if self.clipper.per_layer else stds * len(self.gradients.groups)
        groups = zip(per_group, self.gradients.groups, strict=True)
        return [std for std, group in groups for _ in group]


def _apply(optimizer: Optimizer, failure: str, remedy: str) -> None:
    """Let an optimiser step; turn its failure into a one-line error."""
    try:
        optimizer.step()
    except (ArithmeticError, RuntimeError, ValueError) as error:
        rate = float(optimizer.param_groups[0]["lr"])
        raise InvalidInput(
            f"the optimiser {failure} with the learning rate {rate:g} ({type(error).__name__}); "
            f"{remedy}"
        ) from error


def require_fitting(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimiser that trains something else, or needs more than a noised gradient."""
    name = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidInput(
            f"{name} looks at the loss several times in a step, which would cost several times; "
            "use SGD, Adam or another that takes one gradient"
        )
    sparse = any(getattr(module, "sparse", False) for module in model.modules())
    if sparse or isinstance(optimizer, torch.optim.SparseAdam):
        raise InvalidInput("noise fills every entry of a gradient; train without sparse gradients")
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    named = dict(model.named_parameters())
    missing = [key for key, each in named.items() if each.requires_grad and id(each) not in held]
    if missing:
        raise InvalidInput(
            f"the optimiser does not hold {', '.join(missing[:3])}"
            f"{' and others' if len(missing) > 3 else ''} of the model; make it with "
            "model.parameters(), after every change of the model"
        )
    if held - {id(each) for each in named.values()}:
        raise InvalidInput(
            "the optimiser holds parameters that the model does not have; make it with "
            "model.parameters(), after every change of the model (dpsgd.fix returns a new model)"
        )


def check_first_examples(
    model: nn.Module,
    gradients: ClippedGradients,
    records: Examples,
    *,
    loss: Loss,
    clipper: Clipper,
    noise_multiplier: float,
    device: torch.device,
) -> None:
    """Refuse, before anything is charged, what would stop the first step.

    The text of torch's own errors can hold a label or a value, so it is not passed on.
    """
    clipper.noise_stds(0, noise_multiplier)
    if not len(records):  # allowed where their number is private
        return
    try:
        inputs, targets = records.take(np.arange(min(COMPARED, len(records))))
        inputs, targets = inputs.to(device), targets.to(device)
        if loss is cross_entropy and not targets.is_floating_point():
            _require_classes(model, records, inputs)
        gradients.check(inputs, targets)
    except PateError:
        raise
    except Exception as error:  # model, loss and data set are arbitrary code
        raise InvalidInput(
            f"the model or the loss fails on the first examples ({type(error).__name__}); try "
            "loss(model(inputs), targets) on a few of them: classes are whole numbers from 0 on, "
            "and a loss returns one number for each example"
        ) from None


def _require_classes(model: nn.Module, records: Examples, inputs: Tensor) -> None:
    labels = getattr(records, "targets", None)  # set if all are in memory
    if labels is None:
        return
    with mode(model, training=False, dropout=False), torch.no_grad():
        classes = model(inputs).shape[1]
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InvalidInput(
            f"the model has {classes} outputs, and not all labels are among 0 … {classes - 1}"
        )


def float_type(model: nn.Module) -> torch.dtype:
    """Return the precision of a model's parameters."""
    floats: list[Tensor] = [each for each in model.parameters() if each.is_floating_point()]
    return floats[0].dtype if floats else torch.float32
