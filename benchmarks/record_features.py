"""Features for record votes: the share of private images that are nearest to one of their class.

    python benchmarks/record_features.py [mnist fashion-mnist] [--public 3000] [--private 5000]

Both parts are training images: no test image is seen. Every kind of features ends in the steps of
the recipe `mnist`: PCA with whitening, fitted on the public images, and rows of length one.

* scattering: as in the recipe.
* averaged: the mean of the scattering coefficients of an image and of copies moved by a pixel.
* HOG: histograms of oriented gradients (Dalal and Triggs 2005), 9 directions in cells of 4 × 4.
* both: scattering and HOG side by side, each with rows of length one.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

import pate
from pate.datasets.catalogue import data_root
from pate.datasets.loading import load
from pate.encoders.chain import fit_encoder
from pate.encoders.spec import EncoderSpec
from pate.pipeline.recipe import Recipe
from pate.recipes.read import read_recipe

Array = NDArray[np.float32]

SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
SIDE, DIRECTIONS = 4, 9


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


def finished(features: Array, public: int, *, groups: bool) -> Array:
    steps: list[object] = [{"name": "standardise", "groups": 81}] if groups else []
    steps += [{"name": "pca", "dimension": 200, "whiten": 0.5}, {"name": "normalise"}]
    return chained(steps, features, features[:public])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=["mnist", "fashion-mnist"])
    parser.add_argument("--public", type=int, default=3000)
    parser.add_argument("--private", type=int, default=5000)
    given = parser.parse_args()
    print("| data | scattering | averaged | HOG | both |\n|---|---|---|---|---|")
    for name in given.recipes:
        _, recipe = read_recipe(name, [], Recipe)
        part = load(recipe.data, root=data_root(None, None)).private
        assert part.labels is not None
        rows = np.random.default_rng(0).permutation(len(part.labels))
        rows = rows[: given.public + given.private]
        images, labels = np.asarray(part.features[rows], dtype=np.float32), part.labels[rows]
        scattering = finished(scattered(images), given.public, groups=True)
        gradients = finished(oriented_gradients(images), given.public, groups=False)
        kinds = (
            scattering,
            finished(averaged(images), given.public, groups=True),
            gradients,
            np.hstack([scattering, gradients]),
        )
        shares = []
        for each in kinds:
            cells = pate.make_cells(each[: given.public])
            nearest = cells.nearest(each[given.public :])[:, 0]
            shares.append((labels[nearest] == labels[given.public :]).mean())
        print(f"| {name} | " + " | ".join(f"{100 * each:.1f} %" for each in shares) + " |")


if __name__ == "__main__":
    main()
