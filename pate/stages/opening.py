"""A run from its folder, with the recipe it was run with; no stage is run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from pate.artifacts import Store
from pate.datasets.catalogue import data_root as default_root
from pate.engines import make_engine
from pate.errors import InvalidInput
from pate.pipeline.runner import Run, find_data_root, read_resolved
from pate.pipeline.stage import Options
from pate.stages.catalogue import STAGES
from pate.stages.paid import require_paid_in


def open_run(
    folder: Path,
    *,
    data_root: Path | None = None,
    plugin_path: Path | None = None,
    insecure_seed: int | None = None,
) -> Run:
    """The run in ``folder``, whose data and ledger are found where they were, unless given.

    Refuses one whose ledger lacks the charge of something that is released in the folder.
    """
    recipe = read_resolved(folder)
    if plugin_path is not None and not plugin_path.exists():
        raise InvalidInput(f"there is nothing at --plugin-path {plugin_path}")
    root = default_root(data_root)
    if data_root is None:
        root = find_data_root(folder, recipe, root)
    Store(root=folder).sweep()
    run = Run(
        folder=folder,
        recipe=recipe,
        stages=STAGES,
        options=Options(
            data_root=root,
            engine=make_engine("serial"),
            plugin_path=None if plugin_path is None else plugin_path.absolute(),
            insecure_seed=insecure_seed,
            say=_silent,
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


def _silent(text: str) -> None:
    """Says nothing."""
