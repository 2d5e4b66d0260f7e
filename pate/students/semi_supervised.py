"""FixMatch, MixMatch and GAN: labelled and unlabelled inputs in the same step.

FixMatch (Sohn et al. 2020): where the student is sure of a weakly changed input, that class is the
target for the same input changed strongly. Distribution alignment (Berthelot et al. 2020) keeps it
from predicting one class too often. The returned student has the moving average of its weights.

MixMatch (Berthelot et al. 2019): the guess for an input is the student's mean over several changes
of it, sharpened. Labelled and unlabelled inputs are then mixed in pairs, inputs and targets alike
(mixup, Zhang et al. 2018), which makes the student linear between them and tolerant of wrong
labels.

GAN (Salimans et al. 2016), the student of PATE-G: the student is the discriminator. Its K logits
give the class of an input, and their log-sum-exp whether the input is real. The generator learns to
match the average features of real inputs; it is dropped at the end (Papernot et al. 2017).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Generator, Tensor, nn

from pate.errors import InvalidInput
from pate.students.augment import Augment, affine, make_augment, shift
from pate.students.spec import StudentSpec, derived_seed
from pate.students.train import StudentData, Tools, sure_places
from pate.students.training import (
    Epoch,
    accuracy,
    batches,
    initialise,
    run_epochs,
    soft_cross_entropy,
)
from pate.teachers.placement import device_of, seeded_torch
from pate.teachers.protocol import Teacher
from pate.teachers.torch_teacher import TorchTeacher


class Learner(nn.Module):
    """A student with the state of its method between steps.

    The method adds buffers or modules of its own, so that checkpoints hold them too.
    """

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.student = student

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.student(inputs)
        return logits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """An untrained torch student, public inputs, and released labels to learn from and to stop by.

    Every public input counts as unlabelled too, also one with a label, which may be wrong. All
    tensors are in host memory; :meth:`seen` and :meth:`targets` copy a batch to the device.
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
        """The number of steps in an epoch, which uses every public input once."""
        return math.ceil(len(self.inputs) / self.spec.batch_size)

    def pairs(self, epoch: Epoch, *, labelled: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows of ``batch_size`` inputs and positions of ``labelled`` labels for every step.

        All labels occur equally often, except in the last round. No batch has length one, of which
        BatchNorm would have no variance.
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
        """Return public inputs on the student's device."""
        return self.inputs[rows].to(device_of(self.student.module))

    def targets(self, places: Tensor) -> Tensor:
        """Return labels as a table of probabilities on the student's device."""
        table = nn.functional.one_hot(self.labels[places], self.tools.classes).float()
        return table.to(device_of(self.student.module))

    def logits(self, inputs: Tensor) -> Tensor:
        return self.student._checked(self.student.module(inputs), len(inputs))

    def change(self, name: str, image: Augment, *, noise: float) -> Augment:
        """Return the augmentation of that name; ``auto`` is ``image`` for images, noise for others.

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
        """Train with checkpoints, progress and early stopping; return the student."""
        spec = self.spec
        with self.tools.progress(spec.epochs, 0) as bar:
            run_epochs(
                learner,
                losses,
                epochs=spec.epochs,
                steps=self.steps * losses_per_step,
                training=self.student.training,
                seed=spec.seed,
                average=spec.average,
                score=accuracy(self.inputs[self.stop_rows], self.stop_labels),
                patience=spec.patience,
                checkpoint=self.tools.checkpoint("epochs"),
                name=spec.method,
                advance=bar.advance,
            )
        return self.student


def prepare(spec: StudentSpec, data: StudentData, tools: Tools) -> Task:
    """Return the task of a method; refuse a model that is not a torch module."""
    student = tools.fresh()
    if not isinstance(student, TorchTeacher):
        raise InvalidInput(
            f"{spec.method} trains torch modules, and {spec.model} is none; choose a network such "
            'as "small-cnn" or "mlp", or method = "self-training"'
        )
    places, held_out = tools.held_out(data)
    learn, stop = torch.from_numpy(sure_places(data, places)), torch.from_numpy(held_out)
    rows, labels = torch.from_numpy(data.rows), torch.from_numpy(data.labels)
    return Task(
        spec=spec,
        tools=tools,
        student=initialise(student, data.inputs),
        inputs=torch.from_numpy(np.array(data.inputs, dtype=np.float32)),
        rows=rows[learn],
        labels=labels[learn],
        stop_rows=rows[stop],
        stop_labels=labels[stop],
    )


def unchanged(inputs: Tensor, generator: Generator) -> Tensor:
    """Return the inputs: no augmentation."""
    return inputs


def jitter(deviations: Tensor) -> Augment:
    """Return an augmentation by Gaussian noise, with a standard deviation for each number.

    >>> jitter(torch.tensor([0.0, 1.0]))(torch.zeros(1, 2), torch.Generator())[0, 0]
    tensor(0.)
    """

    def noisy(inputs: Tensor, generator: Generator) -> Tensor:
        drawn = torch.randn(inputs.shape, generator=generator) * deviations
        return inputs + drawn.to(inputs.device)

    return noisy


def strong_change(images: Tensor, generator: Generator) -> Tensor:
    """Rotate, scale, shear and move images strongly, and blank out a square of each.

    It works on the whole batch at once, and so is much faster than an image-wise RandAugment.

    >>> strong_change(torch.ones(4, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 8, 8])
    """
    bent = affine(images, generator, degrees=25.0, scale=0.25, shear=0.25, move=0.12)
    return cutout(bent, generator)


def cutout(images: Tensor, generator: Generator, *, most: float = 0.4) -> Tensor:
    """Blank out a random square, its side up to ``most`` of the image's (Cutout)."""
    share = torch.rand(len(images), 1, generator=generator) * most

    def near(size: int) -> Tensor:
        middle = torch.rand(len(images), 1, generator=generator) * size
        return (torch.arange(size) + 0.5 - middle).abs() < share * size / 2

    height, width = images.shape[1:3]
    square = (near(height)[:, :, None] & near(width)[:, None, :]).to(images.device)
    return images.masked_fill(square if images.dim() == 3 else square[..., None], 0.0)


MEMORY = 0.98  # decay of the average prediction, from step to step
LEAST = 1e-4  # lower bound on shares in denominators


def fixmatch(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    """Train a torch student by FixMatch; settings in ``[student.fixmatch]``.

    ``augment`` is the weak change: ``auto`` moves images by a few pixels and does not change other
    records. ``strong`` is the strong one: ``auto`` distorts images and blanks out a part of them,
    and adds noise to other records.
    """
    settings = spec.fixmatch
    task = prepare(spec, data, tools)
    weak = task.change(spec.augment, shift, noise=0.0)
    strong = task.change(settings.strong, strong_change, noise=settings.noise)
    goal = expected_shares(task, trust=settings.trust)
    learner = Learner(task.student.module)
    learner.register_buffer("said", goal.clone())  # its name in checkpoints

    def losses(epoch: Epoch) -> Iterator[Tensor]:
        for rows, places in task.pairs(epoch, labelled=settings.labelled):
            seen = task.seen(rows)
            with torch.no_grad():
                guess = task.logits(weak(seen, epoch.generator)).softmax(dim=1)
                average = learner.get_buffer("said")
                average.lerp_(guess.mean(dim=0), 1 - MEMORY)
                if settings.align:
                    guess = align_distribution(guess, average=average, goal=goal.to(average.device))
            known = weak(task.seen(task.rows[places]), epoch.generator)
            both = task.logits(torch.cat([known, strong(seen, epoch.generator)]))
            supervised = soft_cross_entropy(
                both[: len(places)], task.targets(places), smoothing=spec.smoothing
            ).mean()
            sure, classes = guess.max(dim=1)
            each = torch.nn.functional.cross_entropy(both[len(places) :], classes, reduction="none")
            yield supervised + settings.weight * (each * (sure >= settings.confidence)).mean()

    return task.learn(learner, losses)


def align_distribution(guess: Tensor, *, average: Tensor, goal: Tensor) -> Tensor:
    """Return probabilities, lowered for classes predicted too often and raised for the others.

    >>> guess = torch.tensor([[0.6, 0.4]])
    >>> align_distribution(guess, average=torch.tensor([0.75, 0.25]), goal=torch.tensor([0.5, 0.5]))
    tensor([[0.3333, 0.6667]])
    """
    moved = guess * (goal / average.clamp_min(LEAST))
    return moved / moved.sum(dim=1, keepdim=True).clamp_min(LEAST)


def expected_shares(task: Task, *, trust: float) -> Tensor:
    """Return the expected shares of classes: those of released labels, shrunk towards equal.

    Shares among a few labels are uncertain, so ``trust`` imagined labels are added, equally many of
    every class; a class that was never released stays at zero.
    """
    counts = torch.bincount(task.labels, minlength=task.tools.classes).float()
    there = (counts > 0).float()
    return (counts + trust * there / there.sum()) / (counts.sum() + trust)


def mixmatch(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    """Train a torch student by MixMatch; settings in ``[student.mixmatch]``.

    ``augment = "auto"`` rotates and moves images, and adds noise to other records.
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
                guess = sharpen(guess, temperature=settings.temperature)
            targets = torch.cat([task.targets(places), guess.repeat(settings.guesses, 1)])
            inputs, targets = mixup(
                torch.cat([known, changed]),
                targets,
                alpha=settings.alpha,
                generator=epoch.generator,
            )
            logits, count = task.logits(inputs), len(places)
            supervised = soft_cross_entropy(
                logits[:count], targets[:count], smoothing=spec.smoothing
            ).mean()
            apart = (logits[count:].softmax(dim=1) - targets[count:]).square().mean()
            ramp = min(1.0, done / settings.ramp) if settings.ramp else 1.0
            yield supervised + settings.weight * ramp * apart

    return task.learn(learner, losses)


def sharpen(table: Tensor, *, temperature: float) -> Tensor:
    """Return probabilities to the power 1 / temperature, normalised.

    >>> sharpen(torch.tensor([[0.6, 0.3, 0.1]]), temperature=0.5)
    tensor([[0.7826, 0.1957, 0.0217]])
    """
    powers = (table / table.max(dim=1, keepdim=True).values) ** (1 / temperature)
    return powers / powers.sum(dim=1, keepdim=True)


def mixup(
    inputs: Tensor, targets: Tensor, *, alpha: float, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Mix every record with a random other one; its own share is at least a half.

    The shares are Beta(α, α) distributed, one for each pair.
    """
    # torch's Beta does not take a generator.
    seed = int(torch.randint(2**31, (1,), generator=generator))
    drawn = np.random.default_rng(seed).beta(alpha, alpha, size=len(inputs))
    own = torch.from_numpy(np.maximum(drawn, 1 - drawn)).float().to(inputs.device)
    other = torch.randperm(len(inputs), generator=generator).to(inputs.device)
    share = own.view(-1, *[1] * (inputs.dim() - 1))
    return (
        share * inputs + (1 - share) * inputs[other],
        own[:, None] * targets + (1 - own[:, None]) * targets[other],
    )


def gan(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    """Train a torch student by a feature-matching GAN; settings in ``[student.gan]``.

    Features are those of the model's method ``features``, or otherwise the input of its last
    linear layer. ``augment = "auto"`` changes nothing: the generator would learn the changes too.
    """
    settings = spec.gan
    task = prepare(spec, data, tools)
    change = task.change(spec.augment, unchanged, noise=0.0)
    features = feature_function(task.student.module, classes=data.classes, name=spec.model)
    learner = Learner(task.student.module)
    with seeded_torch(derived_seed(spec.seed, "generator")):
        made = InputGenerator(task.inputs, latent=settings.latent, hidden=settings.hidden)
    learner.add_module("generator", made)

    def losses(epoch: Epoch) -> Iterator[Tensor]:
        for rows, places in task.pairs(epoch, labelled=settings.labelled):
            known = change(task.seen(task.rows[places]), epoch.generator)
            real = change(task.seen(rows), epoch.generator)
            with torch.no_grad():
                fake = made.draw(len(rows), epoch.generator)
            # One pass: BatchNorm then treats real and generated inputs in the same way.
            logits = task.logits(torch.cat([known, real, fake]))
            predicted, of_real, of_fake = torch.tensor_split(
                logits, [len(known), len(known) + len(real)]
            )
            supervised = soft_cross_entropy(
                predicted, task.targets(places), smoothing=spec.smoothing
            ).mean()
            yield supervised + settings.weight * real_or_fake_loss(of_real, of_fake)

            with frozen(task.student.module):
                with torch.no_grad():
                    wanted = features(real).flatten(1).mean(dim=0)
                found = features(made.draw(len(rows), epoch.generator)).flatten(1).mean(dim=0)
            yield (found - wanted).square().mean()

    return task.learn(learner, losses, losses_per_step=2)


def real_or_fake_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Return the loss of separating real from generated inputs; Z / (Z + 1) is P(real).

    Z is the sum of the exponentials of K logits: a class K + 1 with its logit fixed at zero.

    >>> real_or_fake_loss(torch.tensor([[9.0, -9.0]]), torch.tensor([[-9.0, -9.0]])) < 0.001
    tensor(True)
    """
    at_real, at_fake = real.logsumexp(dim=1), fake.logsumexp(dim=1)
    return 0.5 * (nn.functional.softplus(-at_real).mean() + nn.functional.softplus(at_fake).mean())


def feature_function(module: nn.Module, *, classes: int, name: str) -> Callable[[Tensor], Tensor]:
    """Return the features to match: the method ``features``, or the last layer's input."""
    own: Any = getattr(module, "features", None)
    if callable(own):
        return own  # type: ignore[no-any-return]
    linear = [each for each in module.modules() if isinstance(each, nn.Linear)]
    if not linear or linear[-1].out_features != classes or linear[-1] is module:
        raise InvalidInput(
            f"gan matches features, and {name} has no method features(x) and ends in no linear "
            'layer after others; add one, or choose "small-cnn" or "mlp"'
        )
    last = linear[-1]

    def seen_by_last(inputs: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = last.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            module(inputs)
        finally:
            hook.remove()
        return seen[-1]

    return seen_by_last


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Put the module in evaluation mode without gradients; restore it afterwards.

    BatchNorm would otherwise shift generated inputs to the mean of the batch, which is to be
    matched.
    """
    open_ = [parameter for parameter in module.parameters() if parameter.requires_grad]
    module.eval()
    for parameter in open_:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in open_:
            parameter.requires_grad_(True)
        module.train()


@final
class InputGenerator(nn.Module):
    """Linear layers from noise to inputs; every feature stays within the range of real inputs."""

    least: Tensor
    width: Tensor

    def __init__(self, inputs: Tensor, *, latent: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.latent, self.shape = latent, tuple(inputs.shape[1:])
        layers: list[nn.Module] = []
        before = latent
        for width in hidden:
            layers += [nn.Linear(before, width, bias=False), nn.BatchNorm1d(width), nn.Softplus()]
            before = width
        self.layers = nn.Sequential(*layers, nn.Linear(before, inputs[0].numel()), nn.Sigmoid())
        least, most = inputs.amin(dim=0), inputs.amax(dim=0)
        self.register_buffer("least", least)
        self.register_buffer("width", most - least)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return ``count`` generated inputs."""
        noise = torch.rand(count, self.latent, generator=generator).to(self.least.device)
        made: Tensor = self.layers(noise)
        return self.least + self.width * made.view(count, *self.shape)
