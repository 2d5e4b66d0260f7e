"""Features for record votes: the share of private images that are nearest to one of their class.

    python benchmarks/record_features.py [mnist fashion-mnist] [--public 3000] [--private 5000]
                                         [--epochs 20]

Both parts are training images: no test image is seen. Every kind of features ends in the steps of
the recipe `mnist`: PCA with whitening, fitted on the public images, and rows of length one.

* scattering: as in the recipe.
* averaged: the mean of the scattering coefficients of an image and of copies moved by a pixel.
* HOG: histograms of oriented gradients (Dalal and Triggs 2005), 9 directions in cells of 4 × 4.
* both: scattering and HOG side by side, each with rows of length one.
* learned: a small convolutional network, trained on the public images without labels (VICReg,
  Bardes et al. 2022), on two random affine views of each.
* all: scattering and learned features side by side.
* pixels, plain, unscaled: no scattering; scattering without its root; without the standard scale.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

import pate
from pate.datasets.catalogue import data_root
from pate.datasets.loading import load
from pate.encoders.chain import fit_encoder
from pate.encoders.spec import EncoderSpec
from pate.pipeline.recipe import Recipe
from pate.recipes.read import read_recipe
from pate.students.augment import affine
from pate.students.networks import SmallCNN

Array = NDArray[np.float32]

SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
SIDE, DIRECTIONS = 4, 9
BATCH = 250


def chained(steps: list[object], images: Array, public: Array) -> Array:
    spec = EncoderSpec.model_validate({"steps": steps})
    return fit_encoder(spec, public).transform(images)


def scattered(images: Array) -> Array:
    return chained(["scattering", "root"], images, images[:10])  # which fits nothing


def averaged(images: Array) -> Array:
    moved = (np.roll(images, shift, axis=(1, 2)) for shift in SHIFTS)
    return np.mean([scattered(each) for each in moved], axis=0, dtype=np.float32)


def oriented_gradients(images: Array) -> Array:
    down, right = np.gradient(images, axis=(1, 2))
    place = (np.arctan2(down, right) % np.pi) / np.pi * DIRECTIONS
    first = np.floor(place).astype(np.int64)
    size, cells = np.hypot(down, right), images.shape[1] // SIDE
    found = np.zeros((len(images), cells, cells, DIRECTIONS), dtype=np.float32)
    for direction in range(DIRECTIONS):
        near = np.where(first % DIRECTIONS == direction, 1 - (place - first), 0)
        near += np.where((first + 1) % DIRECTIONS == direction, place - first, 0)
        parts = (size * near).reshape(len(images), cells, SIDE, cells, SIDE)
        found[..., direction] = parts.sum(axis=(2, 4))
    blocks = np.concatenate(  # of 2 × 2 cells
        [found[:, i : cells - 1 + i, j : cells - 1 + j] for i in (0, 1) for j in (0, 1)], axis=3
    )
    blocks /= np.sqrt((blocks**2).sum(axis=3, keepdims=True) + 1e-2)
    return blocks.reshape(len(images), -1)


def learned(images: Array, public: int, *, epochs: int) -> Array:
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    network = SmallCNN(classes=10)
    projector = nn.Sequential(
        nn.Linear(576, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256)
    )
    given = torch.as_tensor(images)
    network(given[:2])  # which gives the first layer its size
    weights = [*network.body.parameters(), *projector.parameters()]
    steps = epochs * (public // BATCH)
    descent = torch.optim.AdamW(weights, lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(descent, max_lr=2e-3, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(public, generator=rng)
        for rows in order[: public // BATCH * BATCH].split(BATCH):
            views = [projector(network.features(affine(given[rows], rng))) for _ in range(2)]
            loss = 25 * functional.mse_loss(*views)
            for view in views:
                apart = view - view.mean(dim=0)
                covariance = apart.T @ apart / (BATCH - 1)
                spread = (covariance.diagonal() + 1e-4).sqrt()
                loss += 12.5 * functional.relu(1 - spread).mean()
                loss += (covariance**2).fill_diagonal_(0).sum() / len(covariance)
            descent.zero_grad()
            loss.backward()
            descent.step()
            schedule.step()
    network.eval()
    with torch.no_grad():
        parts = [network.features(some) for some in given.split(1000)]
    return torch.cat(parts).numpy()


def finished(features: Array, public: int, *, groups: bool) -> Array:
    steps: list[object] = [{"name": "standardise", "groups": 81}] if groups else []
    steps += [{"name": "pca", "dimension": 200, "whiten": 0.5}, {"name": "normalise"}]
    return chained(steps, features, features[:public])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=["mnist", "fashion-mnist"])
    parser.add_argument("--public", type=int, default=3000)
    parser.add_argument("--private", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()
    for name in given.recipes:
        _, recipe = read_recipe(name, [], Recipe)
        part = load(recipe.data, root=data_root(None, None)).private
        assert part.labels is not None
        rows = np.random.default_rng(0).permutation(len(part.labels))
        rows = rows[: given.public + given.private]
        images, labels = np.asarray(part.features[rows], dtype=np.float32), part.labels[rows]
        plain = chained(["scattering"], images, images[:10])  # which fits nothing
        scattering = finished(scattered(images), given.public, groups=True)
        gradients = finished(oriented_gradients(images), given.public, groups=False)
        network = learned(images, given.public, epochs=given.epochs)
        network = finished(network, given.public, groups=False)
        kinds = {
            "scattering": scattering,
            "averaged": finished(averaged(images), given.public, groups=True),
            "HOG": gradients,
            "both": np.hstack([scattering, gradients]),
            "learned": network,
            "all": np.hstack([scattering, network]),
            "pixels": finished(images.reshape(len(images), -1), given.public, groups=False),
            "plain": finished(plain, given.public, groups=True),
            "unscaled": finished(scattered(images), given.public, groups=False),
        }
        print(f"\n| {name} | right |\n|---|---|")
        for kind, features in kinds.items():
            cells = pate.make_cells(features[: given.public])
            nearest = cells.nearest(features[given.public :])[:, 0]
            share = (labels[nearest] == labels[given.public :]).mean()
            print(f"| {kind} | {100 * share:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
