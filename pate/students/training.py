"""The training loop of torch students: cosine rate, averaged weights, checkpoints, early stopping.

A method yields the losses of an epoch; the loop does the rest. All randomness of an epoch comes
from the seed and the epoch's number, so a run that is killed and resumes from its checkpoint ends
with the same weights, bit for bit (on one machine, with the same number of threads).

The module runs on the current device (:mod:`pate.devices`). Inputs and tables stay in host memory
and are copied in batches; checkpoints are host copies, from which any device resumes.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Generator, Tensor, nn

from pate._files import write_atomically
from pate.errors import TeacherError
from pate.students.augment import Augment
from pate.students.spec import derived_seed
from pate.teachers.placement import device_of, placed, repeatable, seeded_torch
from pate.teachers.protocol import guarded
from pate.teachers.spec import Training
from pate.teachers.torch_teacher import TorchTeacher, _optimizer

WARM = 0.05  # the share of all steps in which the rate rises


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One pass: its number from 0, the number of epochs, and its generator."""

    number: int
    epochs: int
    generator: Generator


Losses = Callable[[Epoch], Iterable[Tensor]]  # one loss for every step of an epoch
Score = Callable[[nn.Module], float]  # of a module in evaluation; larger is better


def run_epochs(
    module: nn.Module,
    losses: Losses,
    *,
    epochs: int,
    steps: int,
    training: Training,
    seed: int,
    average: float = 0.0,
    score: Score | None = None,
    patience: int = 3,
    checkpoint: Checkpoint | None = None,
    name: str = "",
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Train a module in place; ``steps`` is the number of losses of an epoch.

    Lazy layers must have their sizes (:func:`initialise`). With ``average`` the module ends with
    the moving average of its weights. With ``score`` it ends with the best epoch's weights, and
    stops after ``patience`` epochs without a better one. ``name`` distinguishes trainings that
    share a checkpoint.
    """
    with repeatable(), placed(module):
        optimizer = _optimizer(module, training)
        state = _State(module, optimizer, average=average)
        first = state.restore(checkpoint, name, total=epochs)
        advance(first)
        peak = training.lr
        for number in range(first, epochs):
            generator = torch.Generator().manual_seed(derived_seed(seed, "epoch", number))
            module.train()
            total, taken = 0.0, 0
            with seeded_torch(derived_seed(seed, "layers", number)):  # dropout
                for loss in losses(Epoch(number=number, epochs=epochs, generator=generator)):
                    rate = peak * _cosine((number * steps + taken) / max(1, epochs * steps))
                    for group in optimizer.param_groups:
                        group["lr"] = rate
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    state.follow(number * steps + taken)
                    total, taken = total + float(loss.detach()), taken + 1
            if not math.isfinite(total):
                raise TeacherError(f"the loss is not finite in epoch {number + 1}; lower 'lr'")
            stop = score is not None and state.judge(score, patience=patience)
            state.write(checkpoint, name, done=epochs if stop else number + 1, total=epochs)
            advance(epochs - number if stop else 1)
            if stop:
                break
        state.finish()
        module.eval()


def accuracy(inputs: Tensor, labels: Tensor) -> Score | None:
    """Return the score of a module by labels that were held out; None if there are none."""

    def score(module: nn.Module) -> float:
        with torch.no_grad():
            predicted = module(inputs.to(device_of(module))).argmax(dim=1).cpu()
            return float((predicted == labels).float().mean())

    return score if len(labels) else None


def initialise(teacher: TorchTeacher, inputs: ArrayLike) -> TorchTeacher:
    """Give lazy layers their sizes by a first forward pass, which also tests the module."""
    records = teacher._records(np.asarray(inputs)[:2]).to(device_of(teacher.module))

    def first_pass() -> None:
        fits = teacher._explained(tuple(records.shape[1:]))
        with fits, seeded_torch(teacher.seed), torch.no_grad():
            teacher._find_sizes(records)
            teacher.module.eval()
            teacher._checked(teacher.module(records), len(records))

    guarded("the module", first_pass, private=False)
    return teacher


def batches(order: Tensor, size: int) -> list[Tensor]:
    """Cut an order into batches of nearly equal size, none of a single record if possible.

    >>> [len(batch) for batch in batches(torch.arange(257), 128)]
    [86, 86, 85]
    """
    return list(torch.tensor_split(order, max(1, math.ceil(len(order) / size))))


def soft_cross_entropy(logits: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy of each row against a table of probabilities."""
    if smoothing:
        targets = targets * (1 - smoothing) + smoothing / targets.shape[1]
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1)


def _shuffled(epoch: Epoch, count: int, size: int) -> Iterator[Tensor]:
    """Yield the batches of an epoch; of a single record BatchNorm would have no variance."""
    for batch in batches(torch.randperm(count, generator=epoch.generator), size):
        yield batch.repeat(2) if len(batch) == 1 else batch


def fit_table(
    teacher: TorchTeacher,
    inputs: Tensor,
    targets: Tensor,
    *,
    augment: Augment | None = None,
    smoothing: float = 0.0,
    **settings: Any,
) -> None:
    """Train on inputs with a table of target probabilities; ``settings`` as of `run_epochs`."""
    module, size = teacher.module, teacher.training.batch_size

    def losses(epoch: Epoch) -> Iterator[Tensor]:
        place = device_of(module)
        for batch in _shuffled(epoch, len(inputs), size):
            seen, wanted = inputs[batch].to(place), targets[batch].to(place)
            if augment is not None:
                seen = augment(seen, epoch.generator)
            logits = teacher._checked(module(seen), len(batch))
            yield soft_cross_entropy(logits, wanted, smoothing=smoothing).mean()

    steps = len(batches(torch.arange(len(inputs)), size))
    run_epochs(module, losses, steps=steps, training=teacher.training, **settings)


def fit_agreeing(
    teacher: TorchTeacher,
    inputs: Tensor,
    targets: Tensor,
    given: Tensor,
    *,
    least: float,
    augment: Augment | None = None,
    smoothing: float = 0.0,
    average: float,
    **settings: Any,
) -> None:
    """Train on all inputs: those ``given`` a target on it, the others on the module's own guess.

    The guess is the class of the unchanged input under the average of the weights, and counts if
    its probability is at least ``least``; it is then the target for the changed input (FixMatch,
    Sohn et al. 2020, with a mean teacher, Tarvainen & Valpola 2017).
    """
    size = teacher.training.batch_size
    student, shadow = teacher.module, copy.deepcopy(teacher.module).requires_grad_(False)
    learner = nn.ModuleDict({"student": student, "shadow": shadow})  # a checkpoint holds both
    steps = len(batches(torch.arange(len(inputs)), size))

    def losses(epoch: Epoch) -> Iterator[Tensor]:
        shadow.eval()
        place = device_of(student)
        order = _shuffled(epoch, len(inputs), size)
        for step, batch in enumerate(order, start=epoch.number * steps):
            seen = inputs[batch].to(place)
            wanted, counts = targets[batch].clone().to(place), given[batch].clone().to(place)
            open_ = ~counts
            if open_.any():
                with torch.no_grad():
                    predicted = shadow(seen[open_]).softmax(dim=1)
                sure, label = predicted.max(dim=1)
                wanted[open_] = nn.functional.one_hot(label, predicted.shape[1]).to(wanted.dtype)
                counts[open_] = sure >= least
            changed = seen if augment is None else augment(seen, epoch.generator)
            logits = teacher._checked(student(changed), len(batch))
            each = soft_cross_entropy(logits, wanted, smoothing=smoothing)
            yield (each * counts).sum() / len(batch)
            _follow(shadow.state_dict(), student.state_dict(), decay=average, step=step)

    settings |= {"training": teacher.training, "average": average}
    run_epochs(learner, losses, steps=steps, **settings)


@torch.no_grad()
def _follow(average: dict[str, Tensor], now: dict[str, Tensor], *, decay: float, step: int) -> None:
    """Move an average of weights towards the weights, faster at first; copy counters."""
    keep = min(decay, (1 + step) / (10 + step))
    for name, value in average.items():
        if value.is_floating_point():
            value.lerp_(now[name], 1 - keep)
        else:
            value.copy_(now[name])


def _cosine(done: float) -> float:
    """Return the rate as a share of its peak: a short rise, then half a cosine down to zero."""
    if done < WARM:
        return 0.1 + 0.9 * done / WARM
    return 0.5 * (1 + math.cos(math.pi * (done - WARM) / (1 - WARM)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One file of tensors and a JSON record, replaced atomically.

    It only saves time: one of another ``identity`` (settings and data), or a damaged one, is
    ignored, and training starts from scratch.
    """

    path: Path
    identity: str

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the content last written under the same identity, or None."""
        try:
            with safe_open(self.path, framework="pt") as file:
                header = file.metadata() or {}
                if header.get("identity") != self.identity:
                    return None
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads(header["record"])
        except (OSError, SafetensorError, ValueError, KeyError):
            return None

    def write(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        # Copies: every tensor whole and in memory of its own, also tied weights.
        stored = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
        header = {"identity": self.identity, "record": json.dumps(record, sort_keys=True)}
        content = save(stored, metadata=header)
        write_atomically(self.path, content, name=f"the checkpoint {self.path}", make_parents=True)


class _State:
    """The state of a training between epochs."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, *, average: float):
        self.module, self.optimizer, self.decay = module, optimizer, average
        self.averaged = copy.deepcopy(module.state_dict()) if average else None
        self.best: dict[str, Tensor] | None = None
        self.best_score, self.waited = -math.inf, 0

    def follow(self, step: int) -> None:
        if self.averaged is not None:
            _follow(self.averaged, self.module.state_dict(), decay=self.decay, step=step)

    def judge(self, score: Score, *, patience: int) -> bool:
        """Score the epoch and return whether to stop; a later epoch wins among equals."""
        now = copy.deepcopy(self.module.state_dict())
        if self.averaged is not None:
            self.module.load_state_dict(self.averaged)
        self.module.eval()
        found = score(self.module)
        self.waited = 0 if found > self.best_score else self.waited + 1
        if found >= self.best_score:
            self.best_score, self.best = found, copy.deepcopy(self.module.state_dict())
        self.module.load_state_dict(now)
        return self.waited >= patience

    def finish(self) -> None:
        chosen = self.best if self.best is not None else self.averaged
        if chosen is not None:
            self.module.load_state_dict(chosen)

    def write(self, checkpoint: Checkpoint | None, name: str, *, done: int, total: int) -> None:
        if checkpoint is None:
            return
        tensors = _pack("module", self.module.state_dict()) | _pack_optimizer(self.optimizer)
        tensors |= _pack("averaged", self.averaged or {}) | _pack("best", self.best or {})
        score = self.best_score if self.best is not None else None
        record = {"name": name, "done": done, "of": total, "score": score, "waited": self.waited}
        checkpoint.write(tensors, record)

    def restore(self, checkpoint: Checkpoint | None, name: str, *, total: int) -> int:
        """Restore the state of the checkpoint; return the number of epochs that are done."""
        kept = None if checkpoint is None else checkpoint.read()
        if kept is None or (kept[1].get("name"), kept[1].get("of")) != (name, total):
            return 0
        tensors, record = kept
        self.module.load_state_dict(_unpack("module", tensors))
        _unpack_optimizer(self.optimizer, tensors)
        if self.averaged is not None:
            stored = _unpack("averaged", tensors)
            self.averaged = {k: v.to(self.averaged[k].device) for k, v in stored.items()}
        if record["score"] is not None:
            self.best, self.best_score = _unpack("best", tensors), record["score"]
        self.waited = record["waited"]
        return int(record["done"])


def _pack(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _unpack(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


def _pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of SGD, Adam or AdamW as tensors; the settings come from the recipe."""
    return {
        f"optimizer/{index}/{name}": value
        for index, memory in optimizer.state_dict()["state"].items()
        for name, value in memory.items()
        if isinstance(value, Tensor)
    }


def _unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in _unpack("optimizer", tensors).items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
