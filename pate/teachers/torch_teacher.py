"""A torch module as a teacher: a plain training loop that leaves torch's global state alone.

It runs on the current device (:mod:`pate.devices`). Records, weights and predictions stay in host
memory: the device holds one module and one batch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import PateError, TeacherError
from pate.teachers.placement import (
    device_of,
    largest_fitting,
    memory_key,
    placed,
    repeatable,
    seeded_torch,
)
from pate.teachers.spec import Training

if TYPE_CHECKING:
    import torch
    from torch import nn

CHUNK = 1024  # records in one forward pass of a prediction


@final
class TorchTeacher:
    """Trains any module from records (n, …) as float32 to logits (n, classes), by cross entropy.

    Lazy layers (``LazyLinear``), BatchNorm and dropout are supported. The same seed gives the same
    weights on one machine with one thread. ``sgd`` has momentum 0.9.

    Guarantees:
        A device that is out of memory raises :class:`~pate.errors.OutOfMemory`, which is no
        teacher's failure. Memory on the device is bounded by the recipe's batch, and never grows
        with the shard.
    """

    def __init__(self, module: nn.Module, *, training: Training, classes: int, seed: int) -> None:
        self.module = module
        self.training = training
        self.classes = classes
        self.seed = seed

    def fit(self, X: ArrayLike, y: ArrayLike) -> TorchTeacher:
        """Train from the weights that the module has."""
        records, labels = self._shard(X, y)
        with self._explained(tuple(records.shape[1:])), seeded_torch(self.seed):
            self._find_sizes(records)
            kind = memory_key(self.module, self.training, tuple(records.shape[1:]))
            # One network cannot be halved: a device too small for it stops the run.
            largest_fitting(lambda _: self._run(records, labels), lambda: 1, kind=("alone", kind))
        self.module.eval()
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the class of the largest logit; the first of equals."""
        return np.asarray(self._logits(X).argmax(dim=1).numpy(), dtype=np.int64)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the softmax of the logits."""
        return np.asarray(self._logits(X).double().softmax(dim=1).numpy(), dtype=np.float64)

    def family(self) -> Hashable:
        """Return a key that modules must share to be trained together."""
        from pate.teachers.torch_family import architecture_key

        return self.classes, self.training.model_dump_json(), architecture_key(self.module)

    @classmethod
    def fit_many(
        cls, teachers: Sequence[TorchTeacher | None], shards: Sequence[Any]
    ) -> list[PateError | None]:
        """Train modules of one architecture as one program; see :mod:`pate.teachers.protocol`."""
        from pate.teachers.torch_family import fit_family

        return fit_family(teachers, shards)

    def _run(self, records: torch.Tensor, labels: torch.Tensor) -> None:
        import torch

        spec = self.training
        order = torch.Generator().manual_seed(self.seed)
        doubles = any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in self._modules())
        with repeatable(), placed(self.module) as place:
            optimizer = _optimizer(self.module, spec)
            self.module.train()
            for epoch in range(spec.epochs):
                total = 0.0
                shuffled = torch.randperm(len(labels), generator=order)
                for cut in batch_slices(len(labels), spec.batch_size):
                    batch = shuffled[cut]
                    if doubles and len(batch) == 1:  # BatchNorm has no variance of one record
                        batch = batch.repeat(2)
                    optimizer.zero_grad()
                    logits = self._checked(self.module(records[batch].to(place)), len(batch))
                    loss = torch.nn.functional.cross_entropy(logits, labels[batch].to(place))
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    total += float(loss.detach())
                if not math.isfinite(total):
                    raise TeacherError(f"the loss is not finite in epoch {epoch + 1}; lower 'lr'")

    def _logits(self, X: ArrayLike) -> torch.Tensor:
        """Return logits in host memory, computed a chunk of records at a time."""
        import torch

        self.module.eval()
        records = np.asarray(X)

        def compute(size: int) -> list[torch.Tensor]:
            parts = []
            with torch.no_grad(), repeatable(), placed(self.module) as place:
                for start in range(0, len(records), size):
                    chunk = self._records(records[start : start + size]).to(place)
                    parts.append(self._checked(self.module(chunk), len(chunk)).cpu())
            return parts

        kind = memory_key(self.module, self.training, tuple(records.shape[1:]))
        with self._explained(tuple(records.shape[1:])):
            parts = largest_fitting(compute, lambda: CHUNK, kind=("ask", kind))
        return torch.cat(parts) if parts else torch.zeros(0, self.classes)

    @contextlib.contextmanager
    def _explained(self, shape: tuple[int, ...]) -> Iterator[None]:
        """Replace torch's error by one line, if records of this shape do not fit the module."""
        from pate.teachers.channels import shape_problem

        try:
            yield
            return
        except PateError:
            raise
        except (RuntimeError, ValueError, IndexError):
            problem = shape_problem(self.module, shape)
            if problem is None:
                raise
        raise TeacherError(problem)

    def _shard(self, X: ArrayLike, y: ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        labels = torch.from_numpy(np.array(y, dtype=np.int64))
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            raise TeacherError(f"a label does not exist; labels are 0 … {self.classes - 1}")
        return self._records(X), labels

    def _records(self, X: ArrayLike) -> torch.Tensor:
        """Return records as a float32 tensor in host memory."""
        import torch

        # A copy: torch has no read-only tensors, and shards are read-only maps of files.
        return torch.from_numpy(np.array(X, dtype=np.float32))

    def _find_sizes(self, records: torch.Tensor) -> None:
        """Give lazy layers their sizes by one forward pass, before an optimizer is made.

        One whose weights were loaded becomes an ordinary layer. On the module's own device: first
        weights do not depend on where it trains.
        """
        import torch

        lazy = torch.nn.modules.lazy.LazyModuleMixin
        if any(isinstance(module, lazy) for module in self._modules()):
            self.module.eval()
            with torch.no_grad():
                self.module(records[:1].to(device_of(self.module)))

    def _checked(self, logits: Any, records: int) -> torch.Tensor:
        shape = tuple(getattr(logits, "shape", ()))
        if shape != (records, self.classes):
            raise TeacherError(
                f"the module {type(self.module).__name__} returned {shape or type(logits).__name__}"
                f" for {records} records; it must return logits of shape (records, {self.classes})"
            )
        return logits  # type: ignore[no-any-return]

    def _modules(self) -> Iterator[nn.Module]:
        return self.module.modules()


def batch_slices(records: int, size: int) -> list[slice]:
    """Return the slices of batches; a single record left over joins the batch before.

    >>> [(cut.start, cut.stop) for cut in batch_slices(9, 4)]
    [(0, 4), (4, 9)]
    """
    stops = [*range(size, records, size), records]
    if size > 1 and len(stops) > 1 and stops[-1] - stops[-2] == 1:
        del stops[-2]
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def _optimizer(module: nn.Module, spec: Training) -> torch.optim.Optimizer:
    import torch

    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise TeacherError(f"the module {type(module).__name__} has no parameters to train")
    decay = spec.weight_decay
    match spec.optimizer:
        case "sgd":
            return torch.optim.SGD(parameters, lr=spec.lr, momentum=0.9, weight_decay=decay)
        case "adam":
            return torch.optim.Adam(parameters, lr=spec.lr, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=spec.lr, weight_decay=decay)
