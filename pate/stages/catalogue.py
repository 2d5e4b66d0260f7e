"""All stages in their order, and the run that a folder holds."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from pate.artifacts import Store
from pate.datasets.catalogue import data_root as default_root
from pate.engines import make_engine
from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun, find_data_root, find_plugins, read_resolved
from pate.pipeline.stage import Options, Stage
from pate.recipes.paths import PluginsSpec
from pate.stages.account import ACCOUNT
from pate.stages.aggregate import AGGREGATE, AGGREGATE_RECORDS
from pate.stages.data import DATA, PARTITION
from pate.stages.distill import DISTILL
from pate.stages.encode import ENCODE, ENCODE_RECORDS, ENCODER
from pate.stages.evaluate import EVALUATE
from pate.stages.exactly_once import require_paid_in
from pate.stages.record_vote import CELLS, VOTE_RECORDS
from pate.stages.teach import TEACH
from pate.stages.vote import VOTE

STAGES: tuple[Stage, ...] = (  # of teachers' votes
    DATA,
    PARTITION,
    ENCODER,
    ENCODE,
    TEACH,
    VOTE,
    AGGREGATE,
    ACCOUNT,
    DISTILL,
    EVALUATE,
)


RECORD_STAGES: tuple[Stage, ...] = (
    DATA,
    PARTITION,
    ENCODER,
    ENCODE_RECORDS,
    CELLS,
    VOTE_RECORDS,
    AGGREGATE_RECORDS,
    ACCOUNT,
    DISTILL,
    EVALUATE,
)


def stages_of(recipe: Recipe) -> tuple[Stage, ...]:
    """Return the stages of a recipe: where records vote there are cells in place of teachers."""
    return RECORD_STAGES if recipe.by_records else STAGES


def open_run(
    folder: Path,
    *,
    data_root: Path | None = None,
    plugin_path: Path | None = None,
    insecure_seed: int | None = None,
) -> PipelineRun:
    """Return the run in ``folder``, with the recipe it was run with; no stage is run.

    Its data, plug-ins and ledger are found where they were, unless others are given. A run is
    refused whose ledger lacks the charge of something that is released in the folder.
    """
    recipe = read_resolved(folder)
    plugins = PluginsSpec().chosen(plugin_path) or find_plugins(folder)
    root = default_root(data_root)
    if data_root is None:
        root = find_data_root(folder, recipe, root)
    Store(root=folder).sweep()
    run = PipelineRun(
        folder=folder,
        recipe=recipe,
        stages=stages_of(recipe),
        options=Options(
            data_root=root,
            engine=make_engine("serial"),
            plugin_path=plugins,
            insecure_seed=insecure_seed,
            report=lambda text: None,
            progress=lambda *_: nullcontext(),  # type: ignore[arg-type]
        ),
    )
    if data_root is not None and not run.is_at_home():
        raise InvalidInput(
            f"{folder} was not run with the data root {root}: the data set's key is not in it; "
            "give the run's own --data-root"
        )
    require_paid_in(run.store, recipe, root)
    return run
