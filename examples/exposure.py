"""Secrets in a character model: exposure without privacy and with DP-SGD, beside what ε allows.

Sentences "the pin of NAME is DDDD" are made up, each with a random number. Some are canaries:
after training, all 10 000 numbers are ranked by the model's loss for each of them (Carlini et al.
2019). A model that prefers the true number has memorised a sentence it saw.
"""

from __future__ import annotations

import argparse
import string

import numpy as np
import torch
from torch import Tensor, nn

import dpsgd
from pate.audits.exposure import exposure_attack, most_mean_exposure

ALPHABET = " " + string.ascii_lowercase + string.digits
SENTENCES, CANARIES, DIGITS, NAME, CONTEXT = 300, 40, 4, 5, 12


class CharacterModel(nn.Module):
    """The next character from the ``CONTEXT`` characters before it: an MLP at every place."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(CONTEXT * len(ALPHABET), 128)
        self.next = nn.Linear(128, len(ALPHABET))

    def forward(self, characters: Tensor) -> Tensor:  # one-hot, (n, length, alphabet)
        padded = nn.functional.pad(characters[:, :-1], (0, 0, CONTEXT, 0))
        windows = padded.unfold(1, CONTEXT, 1).flatten(2)
        return self.next(torch.tanh(self.hidden(windows))).transpose(1, 2)  # (n, alphabet, length)


def make_names(rng: np.random.Generator, count: int) -> list[str]:
    letters = rng.integers(0, 26, size=(4 * count, NAME))
    names = ["".join(string.ascii_lowercase[k] for k in row) for row in letters]
    return list(dict.fromkeys(names))[:count]


def encode(sentences: list[str]) -> Tensor:
    return torch.tensor([[ALPHABET.index(each) for each in text] for text in sentences])


def one_hot(codes: Tensor) -> Tensor:
    return nn.functional.one_hot(codes, len(ALPHABET)).float()


def candidate_losses(model: nn.Module, names: list[str]) -> np.ndarray:
    """Return the loss of the digits of every candidate, (names, 10 000).

    The loss is a sum over digits, and numbers that begin alike share its first terms.
    """
    digits = [ALPHABET.index(each) for each in string.digits]
    rows = []
    with torch.no_grad():
        for name in names:
            losses = torch.zeros(1)
            for known in range(DIGITS):
                begun = [f"{n:0{known}}" if known else "" for n in range(10**known)]
                codes = encode(
                    [f"the pin of {name} is {start}0"[-CONTEXT - 1 :] for start in begun]
                )
                logs = model(one_hot(codes))[:, :, -1].log_softmax(dim=1)[:, digits]
                losses = (losses[:, None] - logs).flatten()
            rows.append(losses.numpy())
    return np.array(rows)


def train_plainly(model: nn.Module, codes: Tensor, epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    inputs = one_hot(codes)
    for _ in range(epochs):
        for batch in torch.randperm(len(codes)).split(25):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), codes[batch]).backward()
            optimizer.step()


def train_privately(model: nn.Module, codes: Tensor, epochs: int, noise: float) -> float:
    """Train by DP-SGD, one sentence a record; return ε at δ = 1e-5."""
    trainer = dpsgd.Trainer(
        model,
        torch.optim.Adam(model.parameters(), lr=2e-3),
        dataset=(one_hot(codes), codes),
        lot_size=25,
        max_grad_norm=1.0,
        noise_multiplier=noise,
        delta=1e-5,
    )
    return trainer.fit(epochs=epochs).epsilon().epsilon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--noise", type=float, default=3.0, help="noise multiplier of DP-SGD")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    names = make_names(rng, SENTENCES)
    numbers = rng.integers(0, 10**DIGITS, size=len(names))
    codes = encode(
        [f"the pin of {name} is {n:0{DIGITS}}" for name, n in zip(names, numbers, strict=True)]
    )
    plain, private = CharacterModel(), CharacterModel()
    train_plainly(plain, codes, options.epochs)
    epsilon = train_privately(private, codes, options.epochs, options.noise)
    allowed = most_mean_exposure(epsilon=epsilon, delta=1e-5, candidates=10**DIGITS)
    print(f"{len(names)} sentences, {CANARIES} of them ranked among {10**DIGITS} numbers each\n")
    print("model              mean bits  largest bits  extracted  mean that ε allows")
    for title, model, most in [
        ("without privacy", plain, "no limit"),
        (f"DP-SGD, ε = {epsilon:.2f}", private, f"{allowed:.2f}"),
        ("never trained", CharacterModel(), "1.44"),
    ]:
        losses = candidate_losses(model, names[:CANARIES])
        found = exposure_attack(losses, numbers[:CANARIES], target=title).values
        print(
            f"{title:18} {found['mean exposure in bits']:9.2f}  "
            f"{found['largest exposure in bits']:12.2f}  {found['extracted']:9.0f}  {most:>18}"
        )


if __name__ == "__main__":
    main()
