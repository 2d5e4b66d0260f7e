"""One DP-SGD step as a multiple of one plain SGD step, beside Opacus, in the same run.

    pip install -c constraints.txt -e '.[bench]'
    OMP_NUM_THREADS=1 python benchmarks/dpsgd_step.py [--rounds 30] [--only cnn]

One thread. Methods take turns within a round, and the least time of each counts. A step is:
forward, backward, clipping, noise and the optimiser (SGD), on a batch in memory. Memory is the
peak of the process beyond its size with the model loaded, each method in its own process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dpsgd.clipping import Flat
from dpsgd.gradients import ClippedGradients
from dpsgd.losses import cross_entropy
from dpsgd.noise import FastNoise, Noise, SecureNoise

NOISE, NORM = 1.1, 1.0
OPACUS_MODES = ("hooks", "ew", "functorch", "ghost")
Step = Callable[[], None]


class Attention(nn.Module):
    """Self-attention out of linear layers, so that every method runs the same model."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        examples, positions, width = x.shape
        query, key, value = (
            layer(x).view(examples, positions, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        weights = (query @ key.transpose(2, 3) / (width // self.heads) ** 0.5).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).reshape(examples, positions, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.wide(self.second(x))


class Transformer(nn.Module):
    def __init__(self, words: int = 1000, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(Block(width, heads), Block(width, heads))
        self.read = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.blocks(self.embed(x)).mean(1))


def mlp(inputs: int) -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(inputs, 1000), nn.ReLU(), nn.Linear(1000, 10)), torch.randn(
        600, inputs
    )


def cnn() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip
    return model, torch.randn(600, 1, 28, 28)


def resnet() -> tuple[nn.Module, Tensor]:
    from pate.vision import torchvision

    vision = torchvision()

    class Residual(vision.models.resnet.BasicBlock):  # type: ignore[name-defined, misc]
        """The same block without working in place, which Opacus cannot take."""

        def forward(self, x: Tensor) -> Tensor:
            out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(out + (x if self.downsample is None else self.downsample(x)))

    model = vision.models.ResNet(
        Residual,
        [2, 2, 2, 2],
        num_classes=10,
        norm_layer=lambda channels: nn.GroupNorm(32, channels),
    )
    model.relu = nn.ReLU()
    return model, torch.randn(16, 3, 32, 32)


def transformer() -> tuple[nn.Module, Tensor]:
    return Transformer(), torch.randint(0, 1000, (32, 64))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp-60": lambda: mlp(60),
    "mlp-784": lambda: mlp(784),
    "cnn": cnn,
    "resnet18": resnet,
    "transformer": transformer,
}
WARM: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "tiny": lambda: (nn.Linear(2, 10), torch.randn(3, 2)),
    "tiny convolution": lambda: (
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 10)),
        torch.randn(3, 1, 3, 3),
    ),
}


def plain_step(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def our_step(model: nn.Module, inputs: Tensor, targets: Tensor, noise: Noise) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gradients = ClippedGradients(model, cross_entropy)
    clipper = Flat(NORM).start(len(gradients.groups))
    parameters = [each for group in gradients.groups for each in group]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    lot = len(targets)

    def step() -> None:
        (std,) = clipper.noise_stds(0, NOISE)
        grads = [each.grad for each in parameters if each.grad is not None]
        noise.fill(grads, [std / lot] * len(grads))
        gradients.add(inputs, targets, clipper=clipper, step=0, scale=1 / lot)
        optimizer.step()

    return step


def opacus_step(model: nn.Module, inputs: Tensor, targets: Tensor, mode: str) -> Step:
    from opacus import PrivacyEngine

    loader = DataLoader(TensorDataset(inputs, targets), batch_size=len(targets))
    criterion = nn.CrossEntropyLoss()
    parts = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        data_loader=loader,
        noise_multiplier=NOISE,
        max_grad_norm=NORM,
        poisson_sampling=False,
        grad_sample_mode=mode,
        **({"criterion": criterion} if mode == "ghost" else {}),
    )
    private, optimizer = parts[:2]
    if mode == "ghost":
        criterion = parts[2]

    def step() -> None:
        optimizer.zero_grad()
        criterion(private(inputs), targets).backward()
        optimizer.step()

    return step


def make_step(name: str, method: str) -> Step:
    torch.manual_seed(0)
    model, inputs = (MODELS | WARM)[name]()
    targets = torch.randint(0, 10, (len(inputs),))
    if method == "plain":
        return plain_step(model, inputs, targets)
    if method == "ours, fast noise":
        return our_step(model, inputs, targets, FastNoise())
    if method == "ours, secure noise":
        return our_step(model, inputs, targets, SecureNoise())
    return opacus_step(model, inputs, targets, method.removeprefix("opacus "))


def methods() -> list[str]:
    ours = ["plain", "ours, fast noise", "ours, secure noise"]
    try:
        import opacus  # noqa: F401
    except ImportError:
        print("Opacus is not installed: pip install -c constraints.txt -e '.[bench]'")
        return ours
    return ours + [f"opacus {mode}" for mode in OPACUS_MODES]


def least_times(name: str, rounds: int) -> dict[str, float]:
    steps = {}
    for method in methods():
        try:
            step = make_step(name, method)
            step()
        except Exception as error:  # a peer that cannot run a model is reported, not timed
            print(f"  {method}: cannot run this model ({type(error).__name__})")
            continue
        steps[method] = step
    least = dict.fromkeys(steps, float("inf"))
    for number in range(rounds):
        for method, step in steps.items():
            if number >= 3 and least[method] > 8 * least["plain"]:
                continue  # a few rounds are enough to see that it is slow
            start = time.perf_counter()
            step()
            least[method] = min(least[method], time.perf_counter() - start)
    return least


def peak_memory(name: str, method: str) -> float | None:
    """MiB beyond the process with the model in it."""
    command = [sys.executable, __file__, "--peak-of", name, method]
    run = subprocess.run(command, capture_output=True, text=True)
    return float(json.loads(run.stdout)) if run.returncode == 0 else None


def print_own_peak(name: str, method: str) -> None:
    for warm in ("tiny", "tiny convolution"):  # loads all code, and none of the sizes in question
        with contextlib.suppress(Exception):
            make_step(warm, method)()
    model, _ = MODELS[name]()
    before = peak()
    del model
    step = make_step(name, method)
    for _ in range(3):
        step()
    print(peak() - before)


def peak() -> float:
    """MiB at most so far, of this process alone (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--peak-of", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    if chosen.peak_of:
        print_own_peak(*chosen.peak_of)
        return
    for name in [chosen.only] if chosen.only else MODELS:
        print(f"{name}:", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            least = least_times(name, chosen.rounds)
        base = peak_memory(name, "plain")
        for method, seconds in least.items():
            peak = peak_memory(name, method)
            memory = f"{peak / base:5.2f} x memory" if peak and base else "memory not measured"
            ratio = seconds / least["plain"]
            print(f"  {method:20} {seconds * 1e3:9.2f} ms {ratio:7.2f} x  {memory}", flush=True)


if __name__ == "__main__":
    main()
