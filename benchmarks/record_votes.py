"""Record votes, teachers, both together and teachers of regions: labels that are right at equal ε.

    python benchmarks/record_votes.py [RECIPE …] [--splits 5] [--draws 3] [--epsilons 1,2] [--quick]
    python benchmarks/record_votes.py --speed

RECIPE is one with record votes, `digits` by default; its data and encoder are used. All methods
label all public inputs, and all of their labels count:

* records: one table at pure ε, smoothed as in a run.
* teachers: answers (GNMax) about diverse inputs at (ε, δ), spread over the graph of public inputs.
* both: a table at a share of ε, and teachers' answers at the rest about the inputs of which it is
  least sure. An answer makes its class so many times as likely, or takes the label's place.
* regions: the hashed teachers of a region (k-means of public inputs) vote on the inputs in it, so a
  record reaches the inputs of one region; their table is noised (Gaussian, (ε, δ)) and smoothed.

Methods other than records have settings (teachers, answers, shares, regions). Those of each split
are the best on all other splits *by the true labels*, which nobody could choose privately; with one
split, those of each draw of noise are the best on the other draws; with one draw, on itself. What
they lose by, they lose at least. `--speed` takes the CPU time of the votes of 60 000 records of 100
random features at 9 000 cells instead. Noise is seeded and the data are taken as public: nothing
printed is private.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

import pate
from pate.datasets.catalogue import data_root
from pate.datasets.loading import load
from pate.encoders.chain import fit_encoder
from pate.mechanisms import GaussianCounts, GaussianNoisyMax, LaplaceCounts
from pate.pipeline.recipe import Recipe
from pate.planner.forecast import Budget
from pate.queries import Chooser
from pate.recipes.read import read_recipe
from pate.students.propagation import neighbour_graph, propagate

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

METHODS = ("records", "teachers", "both", "regions")
DELTA = 1e-5
NEAREST = "sklearn.neighbors:KNeighborsClassifier"
WEIGHTS = (3.0, 10.0, 1e9)  # of an answer against the table's probabilities; the last replaces them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """The encoded roles of a data set, and the votes that do not change with the noise."""

    records: Array
    labels: Ints
    inputs: Array
    truth: Ints
    classes: int

    @classmethod
    def of(cls, recipe: Recipe, seed: int) -> Split:
        data = recipe.data.model_copy(update={"seed": seed})
        splits = load(data, root=data_root(None, None))
        chain = fit_encoder(recipe.encoder, splits.public.features)
        labels, truth = splits.private.labels, splits.public.labels
        assert labels is not None
        assert truth is not None
        return cls(
            records=chain.transform(splits.private.features).astype(np.float64),
            labels=labels,
            inputs=chain.transform(splits.public.features).astype(np.float64),
            truth=truth,
            classes=splits.classes,
        )

    def right(self, probabilities: Array) -> float:
        return float((probabilities.argmax(axis=1) == self.truth).mean())

    def counted(self) -> tuple[pate.record_votes.Cells, pate.RecordVotes]:
        cells = pate.make_cells(self.inputs)
        return cells, pate.count_record_votes(
            self.records, self.labels, cells=cells, classes=self.classes
        )

    def teacher_votes(self, model: str, count: int, seed: int) -> pate.Votes:
        settings = {"params": {"n_neighbors": 1}} if model == NEAREST else {}
        ensemble = pate.train_teachers(
            model, self.records, self.labels, teachers=count, settings=settings,
            classes=range(self.classes), on_error="abstain", random_state=seed,
        )  # fmt: skip
        return pate.vote(ensemble, self.inputs)

    def region_votes(self, regions: int, teachers: int, seed: int) -> tuple[Ints, Ints]:
        """Return votes of 1-NN teachers on the inputs of their region, and how many these are."""
        cells = pate.make_cells(self.inputs, cells=regions)
        place = cells.nearest(self.records)[:, 0]
        # As a hash of the record would.
        shard = np.random.default_rng(seed).integers(teachers, size=len(place))
        counts = np.zeros((len(self.inputs), self.classes), dtype=np.int64)
        for region in range(regions):
            rows = np.flatnonzero(cells.members == region)
            for number in range(teachers):
                own = np.flatnonzero((place == region) & (shard == number))
                if len(own):
                    gaps = ((self.inputs[rows, None] - self.records[own]) ** 2).sum(axis=2)
                    counts[rows, self.labels[own[gaps.argmin(axis=1)]]] += 1
        return counts, np.bincount(cells.members, minlength=regions)[cells.members]


Scores = dict[tuple[str, float], dict[tuple[object, ...], dict[int, list[float]]]]


def measure(
    split: Split,
    scores: Scores,
    grid: Grid,
    *,
    epsilons: list[float],
    seed: int,
    draws: int,
    apart: bool,
) -> None:
    """Add what each method and setting reaches on one split; ``apart`` by the draw of noise."""
    cells, votes = split.counted()
    graph = neighbour_graph(split.inputs.astype(np.float32), neighbours=5)
    chooser = Chooser(how="diverse", inputs=len(split.inputs), features=lambda: split.inputs)
    order = chooser.first(max(grid.answers))
    ensembles = {
        (model, count): split.teacher_votes(model, count, seed)
        for model, count in product(grid.models, grid.teachers)
    }
    local = {
        key: split.region_votes(*key, seed) for key in product(grid.regions, grid.region_teachers)
    }

    def table(epsilon: float, rng: np.random.Generator) -> Array:
        noised = LaplaceCounts(scale=1 / epsilon).release(votes, rng=rng).table
        return smoothed(split, noised.counts, noised.variance, cells.members)

    for epsilon, draw in product(epsilons, range(draws)):
        rng = np.random.default_rng([seed, draw, int(10 * epsilon)])
        unit = draw if apart else seed
        scores["records", epsilon][()][unit].append(split.right(table(epsilon, rng)))
        for (key, ensemble), answers in product(ensembles.items(), grid.answers):
            asked = order[:answers]
            labels = answered(ensemble, asked, epsilon, rng)
            spread = propagate(
                split.inputs, asked, labels, classes=split.classes, graph=graph, alpha=0.95
            )
            scores["teachers", epsilon][key, answers][unit].append(split.right(spread))
        for share in grid.shares:
            soft = table(share * epsilon, rng)
            unsure = np.argsort(soft.max(axis=1), kind="stable")
            for (key, ensemble), answers in product(ensembles.items(), grid.answers):
                asked = unsure[:answers]
                labels = answered(ensemble, asked, (1 - share) * epsilon, rng)
                for weight in WEIGHTS:
                    both = soft + 1e-6
                    both[asked, labels] *= weight
                    setting = (key, answers, share, weight)
                    scores["both", epsilon][setting][unit].append(split.right(both))
        for key, (counts, sizes) in local.items():
            sigma = GaussianCounts.least_noise(epsilon=epsilon, delta=DELTA, reach=1, per_user=None)
            # A record changes one teacher's vote on each input of its region: two counts by one.
            noised = counts / np.sqrt(2 * sizes)[:, None] + sigma * rng.normal(size=counts.shape)
            whole = np.rint(1000 * noised).astype(np.int64)
            soft = smoothed(split, whole, (1000 * sigma) ** 2, np.arange(len(whole)))
            scores["regions", epsilon][key][unit].append(split.right(soft))


def smoothed(split: Split, counts: Ints, variance: float, members: Ints) -> Array:
    return pate.smooth_counts(
        counts, units=1, features=split.inputs, cells=members, variance=variance
    ).probabilities


def answered(votes: pate.Votes, rows: Ints, epsilon: float, rng: np.random.Generator) -> Ints:
    sigma = Budget(epsilon=epsilon, delta=DELTA).least_noise(GaussianNoisyMax, len(rows))
    asked = pate.Votes(counts=votes.counts[rows])
    return GaussianNoisyMax(sigma=sigma).release(asked, rng=rng).labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Settings that are tried, of which the best is shown."""

    models: tuple[str, ...]
    teachers: tuple[int, ...]
    answers: tuple[int, ...]
    shares: tuple[float, ...]  # of ε, for the table of both
    regions: tuple[int, ...]
    region_teachers: tuple[int, ...]

    @classmethod
    def of(cls, recipe: Recipe, *, quick: bool) -> Grid:
        if quick:
            return cls(models=("ridge",), teachers=(50,), answers=(20,), shares=(0.5,),
                       regions=(10,), region_teachers=(8,))  # fmt: skip
        if recipe.data.name == "digits":
            return cls(models=("ridge", NEAREST), teachers=(20, 50, 120), answers=(10, 30, 60, 150),
                       shares=(0.25, 0.5, 0.75, 0.9), regions=(10, 30, 100),
                       region_teachers=(4, 12, 40))  # fmt: skip
        return cls(models=("ridge",), teachers=(250, 1000), answers=(100, 300, 1000, 3000),
                   shares=(0.25, 0.5, 0.75, 0.9), regions=(300, 1500),
                   region_teachers=(10, 40))  # fmt: skip


def speed() -> None:
    rng = np.random.default_rng(0)
    inputs, records = (rng.normal(size=(count, 100)) for count in (9_000, 60_000))
    labels = rng.integers(10, size=len(records))
    start = time.process_time()
    cells = pate.make_cells(inputs)
    made = time.process_time()
    pate.count_record_votes(records, labels, cells=cells, classes=10)
    counted = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"cells: {made - start:.1f} s of CPU, votes: {counted - made:.1f} s of CPU, "
        f"peak memory of the process: {peak:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=["digits"])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--epsilons", default="0.5,1,2,4,8")
    parser.add_argument("--quick", action="store_true", help="few settings, to see that it runs")
    parser.add_argument("--speed", action="store_true", help="CPU time of a large table alone")
    given = parser.parse_args()
    if given.speed:
        speed()
        return
    epsilons = [float(each) for each in given.epsilons.split(",")]
    for name in given.recipes:
        _, recipe = read_recipe(name, [], Recipe)
        grid = Grid.of(recipe, quick=given.quick)
        scores: Scores = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        for seed in range(given.splits):
            measure(
                Split.of(recipe, seed),
                scores,
                grid,
                epsilons=epsilons,
                seed=seed,
                draws=given.draws,
                apart=given.splits == 1,
            )
            print(f"{name}: split {seed + 1} of {given.splits}", file=sys.stderr, flush=True)
        print(f"\n| {name}, ε | " + " | ".join(METHODS) + " |")
        print("|---" * (len(METHODS) + 1) + "|")
        for epsilon in epsilons:
            row = [f"{epsilon:g}"]
            for method in METHODS:
                reached, chosen = crossed(scores[method, epsilon])
                row.append(f"{100 * np.mean(reached):.1f} ± {100 * np.std(reached):.1f} %")
                print(f"  ε {epsilon:g}, {method}: {chosen}", file=sys.stderr, flush=True)
            print("| " + " | ".join(row) + " |", flush=True)


def crossed(found: dict[tuple[object, ...], dict[int, list[float]]]) -> tuple[list[float], str]:
    """Return the mean of each split, or draw, with the setting that is best on the others."""
    means = {key: {s: float(np.mean(e)) for s, e in each.items()} for key, each in found.items()}
    splits = list(next(iter(means.values())))
    reached, chosen = [], []
    for split in splits:
        others = [each for each in splits if each != split] or [split]
        best = max(means, key=lambda key: sum(means[key][each] for each in others))
        reached.append(means[best][split])
        chosen.append(best)
    return reached, " ".join(sorted({str(each) for each in chosen}))


if __name__ == "__main__":
    main()
