"""What methods share that learn from labelled and unlabelled inputs in the same step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor, nn

from pate.errors import InvalidInput
from pate.students.augment import Augment, affine, make_augment
from pate.students.data import StudentData
from pate.students.spec import StudentSpec
from pate.students.tools import Tools
from pate.students.training import Epoch, batches, run_epochs, settle
from pate.teachers.placing import device_of
from pate.teachers.torch_teacher import TorchTeacher


class Learner(nn.Module):
    """A student with what its method remembers from step to step.

    The method adds buffers or modules of its own, so that checkpoints hold them too.
    """

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.student = student


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """An untrained torch student, public inputs, and released labels to learn from and to stop by.

    Every public input counts as unlabelled too, also one with a label: it may be wrong. All of it
    is in host memory; :meth:`seen` and :meth:`targets` bring a batch to where the student works.
    """

    spec: StudentSpec
    tools: Tools
    student: TorchTeacher
    inputs: Tensor  # (n, …) every public input
    rows: Tensor  # (m,) of the inputs with a label to learn from
    labels: Tensor  # (m,)
    stop_rows: Tensor  # (k,) with a label held out
    stop_labels: Tensor

    @property
    def steps(self) -> int:
        """In an epoch, which sees every public input once."""
        return math.ceil(len(self.inputs) / self.spec.batch_size)

    def pairs(self, epoch: Epoch, *, labelled: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For every step, rows of ``batch_size`` inputs, and places of ``labelled`` labels.

        All labels come equally often, but for the last time round. Nothing is of length one, of
        which BatchNorm would have no variance.
        """
        order = torch.randperm(len(self.inputs), generator=epoch.generator)
        size = max(2, min(labelled, len(self.rows)))
        rounds = math.ceil(self.steps * size / len(self.rows))
        known = torch.cat(
            [torch.randperm(len(self.rows), generator=epoch.generator) for _ in range(rounds)]
        )
        for step, rows in enumerate(batches(order, self.spec.batch_size)):
            yield (
                rows.repeat(2) if len(rows) == 1 else rows,
                known[step * size : (step + 1) * size],
            )

    def seen(self, rows: Tensor) -> Tensor:
        """Public inputs, where the student works."""
        return self.inputs[rows].to(device_of(self.student.module))

    def targets(self, places: Tensor) -> Tensor:
        """Labels as a table of probabilities, where the student works."""
        table = nn.functional.one_hot(self.labels[places], self.tools.classes).float()
        return table.to(device_of(self.student.module))

    def logits(self, inputs: Tensor) -> Tensor:
        return self.student._checked(self.student.module(inputs), len(inputs))

    def change(self, name: str, image: Augment, *, noise: float) -> Augment:
        """The augmentation of that name; ``auto`` is ``image`` for images, and noise for others.

        The noise is Gaussian, with ``noise`` times the deviation of each number among the inputs.
        """
        shape = tuple(self.inputs.shape[1:])
        if name == "auto" and len(shape) in (2, 3):
            return image
        if name == "auto":
            return jitter(noise * self.inputs.std(dim=0, correction=0))
        found = make_augment(name, shape=shape, plugin_path=self.tools.plugin_path)
        return found if found is not None else unchanged

    def learn(
        self,
        learner: Learner,
        losses: Callable[[Epoch], Iterable[Tensor]],
        *,
        losses_per_step: int = 1,
    ) -> TorchTeacher:
        """Trains with checkpoints, progress and early stopping; the student, ready to be asked."""
        spec = self.spec

        def score(module: nn.Module) -> float:
            with torch.no_grad():
                said = self.student.module(self.seen(self.stop_rows)).argmax(dim=1).cpu()
                return float((said == self.stop_labels).float().mean())

        with self.tools.progress(spec.epochs, 0) as bar:
            run_epochs(
                learner,
                losses,
                epochs=spec.epochs,
                steps=self.steps * losses_per_step,
                training=self.student.training,
                seed=spec.seed,
                average=spec.average,
                score=score if len(self.stop_rows) else None,
                patience=spec.patience,
                checkpoint=self.tools.checkpoint("epochs"),
                name=spec.method,
                advance=bar.advance,
            )
        return self.student


def prepare(spec: StudentSpec, data: StudentData, tools: Tools) -> Task:
    """A task for a method; a model that is no torch module is refused."""
    student = tools.fresh()
    if not isinstance(student, TorchTeacher):
        raise InvalidInput(
            f"{spec.method} trains torch modules, and {spec.model} is none; choose a network such "
            'as "small-cnn" or "mlp", or method = "self-training"'
        )
    learn, stop = (torch.from_numpy(places) for places in tools.held_out(data))
    rows, labels = torch.from_numpy(data.rows), torch.from_numpy(data.labels)
    return Task(
        spec=spec,
        tools=tools,
        student=settle(student, data.inputs),
        inputs=torch.from_numpy(np.array(data.inputs, dtype=np.float32)),
        rows=rows[learn],
        labels=labels[learn],
        stop_rows=rows[stop],
        stop_labels=labels[stop],
    )


def unchanged(inputs: Tensor, generator: Generator) -> Tensor:
    """No augmentation."""
    return inputs


def jitter(deviations: Tensor) -> Augment:
    """Gaussian noise on every number, with a standard deviation for each.

    >>> jitter(torch.tensor([0.0, 1.0]))(torch.zeros(1, 2), torch.Generator())[0, 0]
    tensor(0.)
    """

    def noisy(inputs: Tensor, generator: Generator) -> Tensor:
        drawn = torch.randn(inputs.shape, generator=generator) * deviations
        return inputs + drawn.to(inputs.device)

    return noisy


def bend_and_cut(images: Tensor, generator: Generator) -> Tensor:
    """A strong change: turned, scaled, sheared and moved by more, and a square of it blotted out.

    The whole batch at once, so it takes a small part of the time of an image-wise RandAugment.

    >>> bend_and_cut(torch.ones(4, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 8, 8])
    """
    bent = affine(images, generator, degrees=25.0, scale=0.25, shear=0.25, move=0.12)
    return cut(bent, generator)


def cut(images: Tensor, generator: Generator, *, most: float = 0.4) -> Tensor:
    """Zeros in a square at a random place, its side up to ``most`` of the image's (Cutout)."""
    share = torch.rand(len(images), 1, generator=generator) * most

    def near(size: int) -> Tensor:
        middle = torch.rand(len(images), 1, generator=generator) * size
        return (torch.arange(size) + 0.5 - middle).abs() < share * size / 2

    height, width = images.shape[1:3]
    square = (near(height)[:, :, None] & near(width)[:, None, :]).to(images.device)
    return images.masked_fill(square if images.dim() == 3 else square[..., None], 0.0)
