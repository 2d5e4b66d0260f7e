"""What 250 teachers' answers cost, on a vote file made on the spot.

Writes votes to a temporary folder, then runs the commands a person would type.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

TEACHERS, CLASSES, QUERIES = 250, 10, 1000


def make_votes(seed: int = 0) -> np.ndarray:
    """Teachers that mostly agree: the share of right ones varies from query to query."""
    rng = np.random.default_rng(seed)
    right = rng.binomial(TEACHERS, 1 - 0.5 * rng.beta(0.8, 4, size=QUERIES))
    wrong = rng.multinomial(TEACHERS - right, np.full(CLASSES - 1, 1 / (CLASSES - 1)))
    return rng.permuted(np.column_stack([right, wrong]), axis=1)


def show(title: str, command: str, folder: Path) -> None:
    print(f"\n{title}\n$ {command}\n", flush=True)
    subprocess.run([sys.executable, "-m", *shlex.split(command)], cwd=folder, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "votes.npy", make_votes())
        print(f"votes.npy: {QUERIES} queries, {CLASSES} classes, {TEACHERS} teachers (made up)")
        show(
            "100 labels by Laplace noisy-max:",
            "pate epsilon lnmax --votes votes.npy --scale 20 --queries 100 --delta 1e-5",
            folder,
        )
        show(
            "Only where the teachers agree (Confident-GNMax), 500 queries:",
            "pate epsilon confident --votes votes.npy --threshold 200 --sigma1 150 --sigma2 40 "
            "--queries 500 --delta 1e-5",
            folder,
        )
        show(
            "DP-SGD, for comparison: the noise for the same kind of ε",
            "pate epsilon dpsgd --sample-rate 0.01 --steps 10000 --target-epsilon 2 --delta 1e-5 "
            "--accountant pld",
            folder,
        )
    print("\nNext: pate epsilon --help, then your own votes.")


if __name__ == "__main__":
    main()
