"""``pate compare``: PATE and DP-SGD on one split, at the same (ε, δ)."""

from __future__ import annotations

import json as encoder
import shlex
from pathlib import Path
from typing import Annotated

import typer

from pate.cli import running

Epsilons = Annotated[
    str | None,
    typer.Option("--epsilon", help="The ε to compare at, such as 0.5,1,2; default: the recipe's.",
                 show_default=False),
]  # fmt: skip
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", help="Repetitions of either method; default: the recipe's.",
                 show_default=False),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="The result as JSON for machines.")]


def compare(
    recipe: running.RecipeName,
    epsilon: Epsilons = None,
    seeds: Seeds = None,
    settings: running.Settings = None,
    out: running.Out = None,
    data_root: running.DataRoot = None,
    engine: running.EngineName = "processes",
    plugin_path: running.PluginPath = None,
    insecure_seed: running.InsecureSeed = None,
    spend: running.Spend = False,
    quiet: running.Quiet = False,
    json: Json = False,
) -> None:
    """Compares PATE with DP-SGD on the same data at the same ε; what is done is skipped.

    Every run is charged to the data's ledgers, and marked as part of the comparison. The table
    says what all of them cost together.
    """
    from pate.compare.notes import make_notes
    from pate.compare.recipe import CompareRecipe
    from pate.recipes.read import read_recipe, remarks

    changes = [*(settings or []), *_changes(epsilon, seeds)]
    name, checked = read_recipe(recipe, changes, CompareRecipe)
    options = running.make_options(
        data_root, engine, plugin_path, insecure_seed, spend, quiet or json
    )
    folder, seeded = out or Path("runs") / name, insecure_seed is not None

    from pate.compare.rows import make_rows
    from pate.compare.running import Comparison
    from pate.compare.writing import write_comparison
    from pate.stages.catalogue import STAGES
    from pate.studies.files import require_own

    require_own(folder, "compare", seeded=seeded)
    ran, cost = Comparison.of(checked, folder, STAGES, options).run()
    rows = make_rows(ran, seeded=seeded)
    notes = make_notes(checked, rows, cost, tuning=remarks(checked.notes), seeded=seeded)
    content = write_comparison(folder, name, checked, rows, cost, notes, seeded=seeded)
    if json:
        typer.echo(encoder.dumps(content, ensure_ascii=False, allow_nan=False))
        return
    from pate.cli.compare_table import show_comparison

    show_comparison(content, folder, _found_again(folder, plugin_path, insecure_seed))


def _changes(epsilon: str | None, seeds: int | None) -> list[str]:
    """What the options change in the recipe, checked here so that a mistake names the option."""
    from pate.compare.recipe import MOST_SEEDS, checked_epsilons
    from pate.errors import InvalidInput

    changes = []
    if epsilon is not None:
        try:
            values = [float(part) for part in epsilon.split(",")]
        except ValueError:
            raise InvalidInput(
                f"--epsilon “{epsilon}” is no list of numbers; write it as 0.5,1,2"
            ) from None
        try:
            changes.append(f"compare.epsilons={checked_epsilons(values)}")
        except InvalidInput as error:
            raise InvalidInput(f"--epsilon {epsilon}: {error}") from None
    if seeds is not None:
        if not 1 <= seeds <= MOST_SEEDS:
            raise InvalidInput(f"--seeds {seeds}: give a whole number from 1 to {MOST_SEEDS}")
        changes.append(f"compare.seeds={seeds}")
    return changes


def _found_again(folder: Path, plugin_path: Path | None, insecure_seed: int | None) -> str:
    """The folder, and the options without which fingerprints would differ."""
    words = [str(folder)]
    if plugin_path is not None:
        words += ["--plugin-path", str(plugin_path)]
    if insecure_seed is not None:
        words += ["--insecure-seed", str(insecure_seed)]
    return shlex.join(words)
