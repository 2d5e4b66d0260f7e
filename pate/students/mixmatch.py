"""MixMatch (Berthelot et al. 2019): guessed labels, sharpened, and all of it mixed.

The guess for an input is the student's mean over several changes of it. Labelled and unlabelled
inputs are then mixed in pairs, inputs and targets alike (mixup, Zhang et al. 2018), which asks the
student to be linear between them and to forgive a wrong label.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Generator, Tensor

from pate.students.augment import affine
from pate.students.data import StudentData
from pate.students.semi_supervised import Learner, prepare
from pate.students.spec import StudentSpec
from pate.students.tools import Tools
from pate.students.training import Epoch, soft_cross_entropy
from pate.teachers.protocol import Teacher


def mixmatch(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    """A torch student by MixMatch; settings in ``[student.mixmatch]``.

    ``augment = "auto"`` turns and moves images, and adds noise to other records.
    """
    settings = spec.mixmatch
    task = prepare(spec, data, tools)
    change = task.change(spec.augment, affine, noise=settings.noise)
    learner = Learner(task.student.module)

    def losses(epoch: Epoch) -> Iterator[Tensor]:
        for step, (rows, places) in enumerate(task.pairs(epoch, labelled=settings.labelled)):
            done = (epoch.number + step / task.steps) / epoch.epochs
            known = change(task.seen(task.rows[places]), epoch.generator)
            seen = task.seen(rows).repeat(settings.guesses, *[1] * (task.inputs.dim() - 1))
            changed = change(seen, epoch.generator)
            with torch.no_grad():
                tables = task.logits(changed).softmax(dim=1)
                guess = tables.view(settings.guesses, len(rows), -1).mean(dim=0)
                guess = sharpened(guess, temperature=settings.temperature)
            targets = torch.cat([task.targets(places), guess.repeat(settings.guesses, 1)])
            inputs, targets = mixed(
                torch.cat([known, changed]),
                targets,
                alpha=settings.alpha,
                generator=epoch.generator,
            )
            logits, count = task.logits(inputs), len(places)
            supervised = soft_cross_entropy(
                logits[:count], targets[:count], smoothing=spec.smoothing
            )
            apart = (logits[count:].softmax(dim=1) - targets[count:]).square().mean()
            ramp = min(1.0, done / settings.ramp) if settings.ramp else 1.0
            yield supervised + settings.weight * ramp * apart

    return task.learn(learner, losses)


def sharpened(table: Tensor, *, temperature: float) -> Tensor:
    """Probabilities to the power 1 / temperature, adding up to one again.

    >>> sharpened(torch.tensor([[0.6, 0.3, 0.1]]), temperature=0.5)
    tensor([[0.7826, 0.1957, 0.0217]])
    """
    powers = (table / table.max(dim=1, keepdim=True).values) ** (1 / temperature)
    return powers / powers.sum(dim=1, keepdim=True)


def mixed(
    inputs: Tensor, targets: Tensor, *, alpha: float, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Every record with a part of another, drawn at random; its own part is at least a half.

    The parts are Beta(α, α) distributed, one for each pair.
    """
    # torch has no Beta that follows a generator of its own.
    seed = int(torch.randint(2**31, (1,), generator=generator))
    drawn = np.random.default_rng(seed).beta(alpha, alpha, size=len(inputs))
    own = torch.from_numpy(np.maximum(drawn, 1 - drawn)).float().to(inputs.device)
    other = torch.randperm(len(inputs), generator=generator).to(inputs.device)
    share = own.view(-1, *[1] * (inputs.dim() - 1))
    return (
        share * inputs + (1 - share) * inputs[other],
        own[:, None] * targets + (1 - own[:, None]) * targets[other],
    )
