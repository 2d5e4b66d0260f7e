"""Settings of recipes, chosen by accuracy on held-out training images of another data set.

    python benchmarks/choose_settings.py [TASK …] [--draws 3] [--rounds 2]

TASK is a table of `choose_settings.toml`, by default each of them. Recipes of MNIST are tried on
training images of Fashion-MNIST, those of Fashion-MNIST on training images of MNIST, and `digits`
on the latter too, averaged to 8 × 8 pixels and divided anew for each draw. No test image is used;
noise is seeded.

One key is looked at after the other, in so many rounds. Its best value is taken if it gains more
than one standard error on the present one (paired; of images and of draws of noise).
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pate
from dpsgd.features import prepare
from dpsgd.models import build_optimizer, model_of
from dpsgd.recipe import DpsgdRecipe
from dpsgd.runs import plan_run
from dpsgd.trainer import Trainer
from dpsgd.training import make_clipping
from pate.datasets.catalogue import data_root
from pate.datasets.loading import load
from pate.datasets.spec import DataSpec
from pate.datasets.table import Splits, Table
from pate.encoders.chain import fit_encoder
from pate.mechanisms import voting_mechanism
from pate.pipeline.recipe import Recipe
from pate.queries import Chooser
from pate.recipes.read import as_settings, read_recipe, read_value
from pate.students.spec import StudentSpec
from pate.students.train import StudentData, train_student
from pate.studies.compare.recipe import CompareRecipe, make_points

OTHER = {"mnist": "fashion-mnist", "fashion-mnist": "mnist", "digits": "mnist"}
Right = NDArray[np.bool_]  # for each held-out image
Settings = tuple[str, ...]  # as of `--set`
Task = dict[str, Any]  # a table of the file


def read_tasks() -> dict[str, Task]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    tasks = tomllib.loads(text)
    return {name: tasks[task.get("like", name)] for name, task in tasks.items()}


def grid_of(task: Task) -> list[list[Settings]]:
    """Return, for each row of a grid, what each of its values sets."""

    def settings(keys: str, value: Any) -> Settings:
        if isinstance(value, dict) and "." in keys:
            return tuple(as_settings({f"{keys}.{key}": each for key, each in value.items()}))
        return tuple(as_settings(dict.fromkeys(keys.split(), value)))

    return [[settings(keys, value) for value in row] for keys, row in task["grid"].items()]


@cache
def splits_for(name: str, sizes: tuple[int, ...], seed: int) -> Splits:
    """Return private, public and held-out images of the other set's training part."""
    part = load(DataSpec(name=OTHER[name]), root=data_root(None, None)).private
    assert part.labels is not None
    images = part.features
    if name == "digits":
        padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        images = padded.reshape(-1, 8, 4, 8, 4).mean(axis=(2, 4), dtype=np.float32)
    order = np.random.default_rng(seed).permutation(len(images))
    rows = np.split(order, np.cumsum(sizes))[:3]
    private, public, test = (Table(features=images[r], labels=part.labels[r]) for r in rows)
    names = tuple(map(str, range(10)))
    return Splits(private=private, public=public, test=test, class_names=names)


_kept: dict[str, Any] = {}  # features and votes, which candidates share


def kept(make: Callable[[], Any], *key: Any) -> Any:
    if repr(key) not in _kept:
        _kept[repr(key)] = make()
    return _kept[repr(key)]


def trained(recipe: DpsgdRecipe, splits: Splits, seed: int) -> Right:
    """Return which held-out images a model of DP-SGD gets right."""
    own = seed if recipe.features.pca is not None else None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pca.npz"
        made = lambda: prepare(recipe, splits, pca_file=file, insecure_seed=seed)  # noqa: E731
        data = kept(made, recipe.features, id(splits), own)
    plan = plan_run(recipe, records=splits.private.records)
    model = model_of(recipe, shape=data.shape, classes=splits.classes)
    trainer = Trainer(
        model, build_optimizer(recipe.training, model), dataset=(data.features, data.labels),
        lot_size=plan.lot_size, noise_multiplier=plan.noise_multiplier,
        delta=recipe.privacy.delta, clipping=make_clipping(recipe.clipping),
        learning_rate=plan.learning_rate, insecure_seed=seed,
        accountant=recipe.privacy.accountant, prior_events=plan.prior,
    )  # fmt: skip
    trainer.fit(steps=plan.steps)
    return np.asarray(data.predictions(model.eval()) == splits.test.labels)


def taught(recipe: Recipe, splits: Splits, seed: int) -> Right:
    """Return which held-out images a student of teachers gets right."""
    spec, student = recipe.teachers, recipe.student.model_copy(update={"seed": seed})
    parts, classes = (splits.private, splits.public, splits.test), splits.classes
    encoder = (recipe.encoder, id(splits))

    def encoded() -> Any:
        chain = fit_encoder(recipe.encoder, splits.public.features)
        return [chain.transform(part.features).reshape(part.records, -1) for part in parts]

    private, public, test = kept(encoded, encoder)

    def voted() -> pate.Votes:
        ensemble = pate.train_teachers(
            spec.model, private, splits.private.labels, teachers=spec.count,
            settings={"params": spec.params}, classes=range(classes), random_state=0,
        )  # fmt: skip
        return pate.vote(ensemble, public)

    votes, count = kept(voted, encoder, spec), recipe.aggregate.queries
    chooser = Chooser(how=recipe.aggregate.choose, inputs=len(public), features=lambda: public)
    asked = kept(lambda: chooser.first(count), encoder, count)
    release = voting_mechanism(recipe.aggregate).release(
        pate.Votes(counts=votes.counts[asked]), rng=np.random.default_rng(seed)
    )
    inputs, rows = public, asked[release.answered]
    if student.inputs == "raw":
        inputs, test = splits.public.features, splits.test.features
    data = StudentData(
        inputs=inputs, features=public, rows=rows, labels=release.labels, classes=classes
    )
    return np.asarray(train_student(student, data).predict(test) == splits.test.labels)


def recipes(name: str, task: Task, chosen: tuple[Settings, ...]) -> list[Any]:
    """Return the recipe of a candidate; of a comparison those of its method, one for each ε."""
    recipe, _, method = name.partition(" ")
    settings = [*as_settings(task.get("given")), *sum(chosen, ())]
    if "epsilons" not in task:
        whole = [each for each in settings if each.startswith("student=")]  # a whole section
        kind: Any = DpsgdRecipe if "dpsgd" in recipe else Recipe
        _, read = read_recipe(recipe, [each for each in settings if each not in whole], kind)
        students = [StudentSpec.model_validate(read_value(each[8:])) for each in whole]
        return [read.model_copy(update={"student": students[0]}) if students else read]
    settings += [f"compare.epsilons={task['epsilons']}", "compare.seeds=1"]
    _, compared = read_recipe(recipe, settings, CompareRecipe)
    points = make_points(compared, public=task["sizes"][1], private=task["sizes"][0])
    found = [each for point in points for each in (*point.labels, *point.models)]
    return [each.recipe for each in found if each.method == method]


def tried(task: Task, candidate: list[Any], *, draws: int) -> Right:
    """Return which images a candidate gets right, at each ε in turn; a row for each draw."""
    data, rows = candidate[0].data.name, []
    method: Any = trained if isinstance(candidate[0], DpsgdRecipe) else taught
    for draw in range(draws):
        splits = splits_for(data, tuple(task["sizes"]), draw if data == "digits" else 0)
        rows.append(np.concatenate([method(recipe, splits, draw) for recipe in candidate]))
    return np.array(rows)


def gain(new: Right, old: Right) -> tuple[float, float]:
    """Return by how many points a candidate is ahead of another, and the standard error."""
    apart = 100.0 * new - 100.0 * old
    draws, images = apart.mean(axis=1), apart.mean(axis=0)
    between = draws.var(ddof=1) / len(draws) if len(draws) > 1 else 0.0
    return float(draws.mean()), float(np.sqrt(images.var() / len(images) + between))


def choose(name: str, task: Task, *, draws: int, rounds: int) -> None:
    """Print a row for each candidate, key by key."""

    @cache
    def right(*chosen: Settings) -> Right:
        return tried(task, recipes(name, task, chosen), draws=draws)

    grid = grid_of(task)
    base = tuple(alternatives[0] for alternatives in grid)
    print(f"| {' '.join(sum(base, ()))} | {100 * right(*base).mean():.2f} % | |", flush=True)
    for _ in range(rounds):
        before = base
        for place, alternatives in enumerate(grid):
            best, most = base, 0.0
            for changed in (each for each in alternatives if each != base[place]):
                candidate = (*base[:place], changed, *base[place + 1 :])
                ahead, error = gain(right(*candidate), right(*base))
                words, share = " ".join(changed), 100 * right(*candidate).mean()
                print(f"| {words} | {share:.2f} % | {ahead:+.2f} ± {error:.2f} |", flush=True)
                if ahead > max(most, error):
                    best, most = candidate, ahead
            base = best
        if base == before:
            break
    print(f"\nchosen: {' '.join(sum(base, ()))}: {100 * right(*base).mean():.2f} %", flush=True)


def main() -> None:
    tasks = read_tasks()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(tasks), metavar="TASK")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    for name in given.tasks:
        print(f"\n| {name} | right, held out | gain, standard error |\n|---|---|---|", flush=True)
        choose(name, tasks[name], draws=given.draws, rounds=given.rounds)


if __name__ == "__main__":
    main()
