"""A semi-supervised GAN with feature matching (Salimans et al. 2016), the student of PATE-G.

The student is the discriminator: its K logits give the class of an input, and their log-sum-exp
whether the input is real. The generator learns to match the average features of real inputs; it is
dropped at the end (Papernot et al. 2017).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from pate.errors import InvalidInput
from pate.students.data import StudentData, Tools
from pate.students.semi_supervised import Learner, prepare, unchanged
from pate.students.spec import StudentSpec, derived_seed
from pate.students.training import Epoch, soft_cross_entropy
from pate.teachers.placement import seeded_torch
from pate.teachers.protocol import Teacher


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
            )
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
    return 0.5 * (softplus(-at_real).mean() + softplus(at_fake).mean())


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
