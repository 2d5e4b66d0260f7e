"""Noisy least squares on the features of a comparison: accuracy at each ε, and CPU time.

    python benchmarks/least_squares.py [RECIPE …] [--epsilons 0.1,0.3,1] [--draws 3] \
        [--dimensions 60,200,500]

RECIPE is the file of a comparison, `pipelines/compare-mnist.toml` and `compare-fashion.toml` by
default. Its data and the features of its DP-SGD are used, with PCA of so many dimensions; they are
fitted on the public images. Noise is secure, δ = 1e-5; accuracy is that on the test images.
"""

from __future__ import annotations

import argparse
import time
import tomllib
from pathlib import Path

import numpy as np

from dpsgd.convex import NoisyLeastSquares
from pate.datasets.catalogue import data_root
from pate.datasets.loading import load
from pate.datasets.spec import DataSpec
from pate.encoders.chain import fit_encoder
from pate.encoders.spec import EncoderSpec

PIPELINES = Path(__file__).parents[1] / "pipelines"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = [PIPELINES / f"compare-{name}.toml" for name in ("mnist", "fashion")]
    parser.add_argument("recipes", nargs="*", type=Path, default=default)
    parser.add_argument("--epsilons", default="0.1,0.3,1")
    parser.add_argument("--dimensions", default="60,200,500")
    parser.add_argument("--draws", type=int, default=3)
    asked = parser.parse_args()
    for path in asked.recipes:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
        splits = load(DataSpec.model_validate(recipe["data"]), root=data_root(None, None))
        assert splits.private.labels is not None
        assert splits.test.labels is not None
        for dimension in map(int, asked.dimensions.split(",")):
            steps = [
                step | ({"dimension": dimension} if step["name"] == "pca" else {})
                for step in recipe["dpsgd"]["features"]["steps"]
            ]
            chain = fit_encoder(EncoderSpec(steps=steps), splits.public.features)
            private, test = (
                chain.transform(part.features).astype(np.float64)
                for part in (splits.private, splits.test)
            )
            for epsilon in map(float, asked.epsilons.split(",")):
                start, right = time.process_time(), []
                for _ in range(asked.draws):
                    model = NoisyLeastSquares(
                        epsilon=epsilon, classes=range(splits.classes), clip_rows=True
                    )
                    model.fit(private, splits.private.labels)
                    right.append(100 * model.score(test, splits.test.labels))
                took = (time.process_time() - start) / asked.draws
                print(
                    f"{path.stem:16} {dimension:4} dimensions, ε = {epsilon:g}: "
                    f"{np.mean(right):.1f} ± {np.std(right, ddof=1):.1f} %, {took:.1f} s of CPU"
                )


if __name__ == "__main__":
    main()
