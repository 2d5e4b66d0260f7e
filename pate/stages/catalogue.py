"""All stages in their order, and the run that a folder holds."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from pate.artifacts import Store
from pate.datasets.catalogue import data_root as default_root
from pate.engines import make_engine
from pate.errors import InvalidInput
from pate.pipeline.runner import PipelineRun, find_data_root, read_resolved
from pate.pipeline.stage import Options, Stage
from pate.stages.account import ACCOUNT
from pate.stages.aggregate import AGGREGATE
from pate.stages.data import DATA, PARTITION
from pate.stages.distill import DISTILL
from pate.stages.encode import ENCODE, ENCODER
from pate.stages.evaluate import EVALUATE
from pate.stages.exactly_once import require_paid_in
from pate.stages.teach import TEACH
from pate.stages.vote import VOTE

STAGES: tuple[Stage, ...] = (
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


def open_run(
    folder: Path,
    *,
    data_root: Path | None = None,
    plugin_path: Path | None = None,
    insecure_seed: int | None = None,
) -> PipelineRun:
    """Return the run in ``folder``, with the recipe it was run with; no stage is run.

    Its data and ledger are found where they were, unless ``data_root`` is given. A run is refused
    whose ledger lacks the charge of something that is released in the folder.
    """
    recipe = read_resolved(folder)
    if plugin_path is not None and not plugin_path.exists():
        raise InvalidInput(f"there is nothing at --plugin-path {plugin_path}")
    root = default_root(data_root)
    if data_root is None:
        root = find_data_root(folder, recipe, root)
    Store(root=folder).sweep()
    run = PipelineRun(
        folder=folder,
        recipe=recipe,
        stages=STAGES,
        options=Options(
            data_root=root,
            engine=make_engine("serial"),
            plugin_path=None if plugin_path is None else plugin_path.absolute(),
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
