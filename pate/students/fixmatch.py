"""FixMatch (Sohn et al. 2020): a strong change of an input shall get the class of a weak one.

Where the student is sure of an input that is hardly changed, that class is the target for the same
input changed strongly. Distribution alignment (Berthelot et al. 2020) keeps it from being sure of
one class too often. The student that is returned has the average of its weights over the steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pate.students.augment import shift
from pate.students.data import StudentData
from pate.students.semi_supervised import Learner, Task, bend_and_cut, prepare
from pate.students.spec import StudentSpec
from pate.students.tools import Tools
from pate.students.training import Epoch, soft_cross_entropy
from pate.teachers.protocol import Teacher

MEMORY = 0.98  # of the average of what the student says, from step to step
LEAST = 1e-4  # a share nobody divides by less than


def fixmatch(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    """A torch student by FixMatch; settings in ``[student.fixmatch]``.

    ``augment`` is the weak change: ``auto`` moves images by a few pixels and leaves other records
    as they are. ``strong`` is the strong one: ``auto`` bends images and blots a part of them out,
    and adds noise to other records.
    """
    settings = spec.fixmatch
    task = prepare(spec, data, tools)
    weak = task.change(spec.augment, shift, noise=0.0)
    strong = task.change(settings.strong, bend_and_cut, noise=settings.noise)
    goal = expected_shares(task, trust=settings.trust)
    learner = Learner(task.student.module)
    learner.register_buffer("said", goal.clone())

    def losses(epoch: Epoch) -> Iterator[Tensor]:
        for rows, places in task.pairs(epoch, labelled=settings.labelled):
            seen = task.seen(rows)
            with torch.no_grad():
                guess = task.logits(weak(seen, epoch.generator)).softmax(dim=1)
                said = learner.get_buffer("said")
                said.lerp_(guess.mean(dim=0), 1 - MEMORY)
                if settings.align:
                    guess = aligned(guess, said=said, goal=goal.to(said.device))
            known = weak(task.seen(task.rows[places]), epoch.generator)
            both = task.logits(torch.cat([known, strong(seen, epoch.generator)]))
            supervised = soft_cross_entropy(
                both[: len(places)], task.targets(places), smoothing=spec.smoothing
            )
            sure, classes = guess.max(dim=1)
            each = torch.nn.functional.cross_entropy(both[len(places) :], classes, reduction="none")
            yield supervised + settings.weight * (each * (sure >= settings.confidence)).mean()

    return task.learn(learner, losses)


def aligned(guess: Tensor, *, said: Tensor, goal: Tensor) -> Tensor:
    """Probabilities, with what is said too often made less probable, and the other way round.

    >>> guess = torch.tensor([[0.6, 0.4]])
    >>> aligned(guess, said=torch.tensor([0.75, 0.25]), goal=torch.tensor([0.5, 0.5]))
    tensor([[0.3333, 0.6667]])
    """
    moved = guess * (goal / said.clamp_min(LEAST))
    return moved / moved.sum(dim=1, keepdim=True).clamp_min(LEAST)


def expected_shares(task: Task, *, trust: float) -> Tensor:
    """How common each class is thought to be: as among the released labels, drawn towards equal.

    A few labels say little about shares, so ``trust`` labels are imagined, the same number of
    every class; a class that was never released stays at zero.
    """
    counts = torch.bincount(task.labels, minlength=task.tools.classes).float()
    there = (counts > 0).float()
    return (counts + trust * there / there.sum()) / (counts.sum() + trust)
