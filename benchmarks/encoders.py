"""Images encoded in a second, and how many times faster than the direct sums, in the same run.

    python benchmarks/encoders.py [--images 2000] [--threads 1] [--rounds 5] [--side 28]

Scattering (J = 2, L = 8) of random images of one channel. The direct sums are those of the tests,
``tests/unit/encoders/direct.py``, with their filters made beforehand; they take one image, the
least time of three. Rounds take turns, and the least time of each counts; on a machine that has
other work, look at the images for a second of processor time. One thread if not told otherwise. The
other rows are steps on the features of the same images.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIRECT = Path(__file__).parents[1] / "tests" / "unit" / "encoders" / "direct.py"


def least_seconds(
    work: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, tuple[float, float]]:
    """The least time of each by the clock and by the processor, in rounds by turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, call in work.items():
            start, busy = time.perf_counter(), time.process_time()
            call()
            times[name].append((time.perf_counter() - start, time.process_time() - busy))
    return {
        name: (min(t[0] for t in took), min(t[1] for t in took)) for name, took in times.items()
    }


def direct_sums() -> Any:
    spec = importlib.util.spec_from_file_location("direct", DIRECT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", type=int, default=28)
    options = parser.parse_args()
    for library in ("OMP", "MKL", "OPENBLAS"):  # read when numpy and torch are loaded
        os.environ[f"{library}_NUM_THREADS"] = str(options.threads)

    import numpy as np
    import torch

    from pate.encoders.reduction import PCA
    from pate.encoders.scaling import Normalise, Standardise
    from pate.encoders.scattering import Scattering

    torch.set_num_threads(options.threads)
    side = options.side
    images = np.random.default_rng(0).random((options.images, side, side), dtype=np.float32)
    encoder, direct = Scattering(), direct_sums()
    whole = (-(-side // 4) + 2) * 4
    filters = direct.made_filters(whole, whole, J=2, L=8)

    features = encoder.transform(images)
    expected = direct.scattering(images[0], filters=filters)
    worst = float(np.abs(features[0].reshape(expected.shape) - expected).max())
    few = min(200, *features.shape)
    steps = {
        "standardise": Standardise(),
        "normalise": Normalise(),
        f"pca {few}": PCA(dimension=few),
    }
    for step in steps.values():
        step.fit(features[:400])

    slow = least_seconds({"direct": lambda: direct.scattering(images[0], filters=filters)}, 3)
    fast = least_seconds(
        {
            "scattering": lambda: encoder.transform(images),
            **{name: lambda s=step: s.transform(features) for name, step in steps.items()},
        },
        options.rounds,
    )
    print(f"{options.images} images of {side} x {side}, {features.shape[1]} features, "
          f"{options.threads} thread(s), torch {torch.__version__}")  # fmt: skip
    print(f"largest difference to the direct sums: {worst:.1e}")
    print(f"{'':<14}{'images/s':>12}{'/ CPU s':>12}")
    print(f"{'direct sums':<14}" + "".join(f"{1 / took:>12.2f}" for took in slow["direct"]))
    for name, took in fast.items():
        print(f"{name:<14}" + "".join(f"{options.images / seconds:>12.0f}" for seconds in took))
    ratio = slow["direct"][1] * options.images / fast["scattering"][1]
    print(f"scattering takes 1/{ratio:.0f} of the direct sums' processor time")


if __name__ == "__main__":
    sys.exit(main())
