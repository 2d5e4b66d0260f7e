"""Options that several commands share, each declared once."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

if TYPE_CHECKING:
    from pate.pipeline.stage import Options

# Our help is plain; some versions escape its brackets for rich all the same.
typer.core.HAS_RICH = False


class ConversionName(StrEnum):
    classic = "classic"
    improved = "improved"


class PartitionName(StrEnum):
    hash = "hash"
    shuffle = "shuffle"


class AnalysisName(StrEnum):
    published = "published"
    tight = "tight"


STAGES = (
    "partition",
    "encode",
    "teach",
    "vote",
    "aggregate",
    "account",
    "distill",
    "evaluate",
)


def new_app(*, add_completion: bool = False, **settings: Any) -> typer.Typer:
    """Return an empty command line; its help is plain, without the time that loading rich takes."""
    return typer.Typer(add_completion=add_completion, rich_markup_mode=None, **settings)


def _recipes(context: typer.Context, incomplete: str) -> list[str]:
    """Return the shipped recipes that complete a word; a shell completes names of files itself."""
    from pate.recipes.read import shipped_recipes

    kind = "compare" if context.info_name == "compare" else "pate"
    return [name for name in shipped_recipes(kind) if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Return the folders in ``runs`` that complete a word."""
    return [
        name for name in map(str, sorted(Path("runs").glob("*/"))) if name.startswith(incomplete)
    ]


VotesFile = Annotated[
    Path | None,
    typer.Option(
        "--votes", help="Vote file (.npy): (queries, classes) counts.", show_default=False
    ),
]
Labels = Annotated[bool, typer.Option("--labels", help="The file is (teachers, queries) labels.")]
Counts = Annotated[bool, typer.Option("--counts", help="The file is (queries, classes) counts.")]
Abstentions = Annotated[bool, typer.Option("--abstentions", help="Teachers may abstain.")]
Classes = Annotated[
    int | None,
    typer.Option(
        "--classes",
        min=2,
        help="How many classes exist; needed with --labels where no teacher votes for the last "
        "ones.",
    ),
]
Queries = Annotated[
    int | None, typer.Option("--queries", min=1, help="Queries asked; of a vote file, the first N.")
]
Delta = Annotated[float, typer.Option("--delta", help="δ: well below one over the records.")]
MaxMoment = Annotated[
    int | None,
    typer.Option(
        "--max-moment",
        min=1,
        help="Whole λ up to M only, as in the papers. Otherwise a fine grid up to λ = 65536.",
    ),
]
Conversion = Annotated[
    ConversionName, typer.Option("--conversion", help="How log-moments become ε.")
]
Partition = Annotated[
    PartitionName,
    typer.Option(
        "--partition",
        help="How records reach teachers, as in a recipe: hash covers one record added or removed, "
        "shuffle one record replaced.",
    ),
]
Analysis = Annotated[
    AnalysisName,
    typer.Option(
        "--analysis",
        help="Bounds: published, as if the noised votes left; tight, of the label that leaves.",
    ),
]
TargetEpsilon = Annotated[
    float | None,
    typer.Option(
        "--target-epsilon",
        help="Find the noise for this ε; or, where the noise is given, how far it goes.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object for machines; progress goes to standard error."
    ),
]

# --- of commands that run a recipe ------------------------------------------------------------

RecipeName = Annotated[
    str,
    typer.Argument(help="A shipped recipe, or the path of a .toml file.", autocompletion=_recipes),
]
RunFolder = Annotated[Path, typer.Argument(help="A run's folder.", autocompletion=runs)]
FinishedRun = Annotated[Path, typer.Argument(help="A finished run's folder.", autocompletion=runs)]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key: section.key=value.")
]
Out = Annotated[Path | None, typer.Option("--out", help="The run's folder; default runs/NAME.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder of data sets and ledgers.")
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="serial, processes[:N], gpus[:0,1][@N] (cpu and mps are devices too), ray[:auto or "
        ":ADDRESS].",
    ),
]
PluginPath = Annotated[
    Path | None, typer.Option("--plugin-path", help="A folder with your own teachers.")
]
InsecureSeed = Annotated[
    int | None, typer.Option("--insecure-seed", help="Seeded noise, for tests: NOT PRIVATE.")
]
Spend = Annotated[
    bool,
    typer.Option("--spend", help="Pay again: for other noise on the same votes, or a lost answer."),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print what would run and be charged, and to which ledger; stop there. Reads your "
        "data files, private ones too, for the checks of a run; trains on no private record, "
        "writes nothing, charges nothing.",
    ),
]
WithConfusion = Annotated[
    bool,
    typer.Option(
        "--with-confusion",
        help="Show errors by class on test records of your own, whose people are not protected; "
        "those of named sets are always shown.",
    ),
]
Details = Annotated[
    bool, typer.Option("--details", help="Also print every other ε, and when it matters.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the result only.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", help="Also print why each stage runs and how long it took, in plain lines."
    ),
]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Progress as JSON lines on stderr.")]

_started = False  # decides what Ctrl-C prints


def resume_hint() -> str:
    """Return the text to add to "interrupted" where a run, a sweep or a comparison was started."""
    return "; run the same command again to resume" if _started else ""


def make_options(
    *, quiet: bool, insecure_seed: int | None, json: bool = False, **given: Any
) -> Options:
    """Return the options of a run, from those of the command line.

    With ``json`` the result alone goes to standard output.
    """
    global _started
    from pate import api

    if insecure_seed is not None:
        typer.echo("pate: --insecure-seed is set: this run is NOT PRIVATE", err=True)
    made = api.make_options(
        insecure_seed=insecure_seed,
        verbose=not quiet,
        report=None if quiet else partial(typer.echo, err=json),
        **given,
    )
    _started = True
    return made


def seed_words(options: Options) -> list[str]:
    """Return what a later command needs to be told of a run that remembers all else."""
    seed = options.insecure_seed
    return [] if seed is None else ["--insecure-seed", str(seed)]


def repeated(options: Options) -> list[str]:
    """Return the words with which ``pate run`` finds the same results again."""
    from pate.datasets.catalogue import data_root as default_root

    words = seed_words(options)
    if options.plugin_path is not None:
        words += ["--plugin-path", str(options.plugin_path)]
    if options.data_root != default_root(None):
        words += ["--data-root", str(options.data_root)]
    return words
