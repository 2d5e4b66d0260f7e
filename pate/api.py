"""The pipeline as functions: what the command line does, from Python.

Each command of ``pate`` is a thin layer over one function of this module. All are exported from
:mod:`pate` itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, final

from pate.accounting import Conversion, Guarantee, Neighbours
from pate.artifacts.results import Costs, Evaluation, Labels
from pate.errors import InvalidInput
from pate.recipes.read import as_settings

if TYPE_CHECKING:
    from pate.engines import Progress
    from pate.pipeline.runner import PipelineRun
    from pate.pipeline.stage import Options
    from pate.releases.write import Release
    from pate.studies.compare import Comparison
    from pate.studies.sweep import Sweep
    from pate.teachers.protocol import Teacher

Settings = Mapping[str, Any] | Sequence[str] | None
PathLike = str | os.PathLike[str]


# --- options --------------------------------------------------------------------------------------


class RunOptions(TypedDict, total=False):
    """Options of a run: the keywords that :func:`run`, :func:`sweep` and :func:`compare` share.

    Parameters
    ----------
    data_root : str or path, optional
        Where data sets and ledgers are. By default ``PATE_DATA``, the recipe's ``data_root``, or
        the user's data folder.
    engine : str, default="processes"
        ``"serial"``, ``"processes[:N]"``, ``"gpus[:0,1][@N]"`` or ``"ray[:auto or :ADDRESS]"``.
    plugin_path : str or path, optional
        A folder with modules of your own.
    insecure_seed : int, optional
        Seeds the noise, for tests: NOT PRIVATE.
    spend : bool, default=False
        Pay again: for other noise on the same votes, or for an answer that was lost.
    verbose : bool, default=False
        Print stages and show progress.
    """

    data_root: PathLike | None
    engine: str
    plugin_path: PathLike | None
    insecure_seed: int | None
    spend: bool
    verbose: bool


def make_options(
    *,
    data_root: PathLike | None = None,
    engine: str = "processes",
    plugin_path: PathLike | None = None,
    insecure_seed: int | None = None,
    spend: bool = False,
    verbose: bool = False,
    json_logs: bool = False,
    report: Callable[[str], None] | None = None,
) -> Options:
    """Return the options of a run as the stages take them.

    The arguments are those of :class:`RunOptions`; with ``json_logs`` progress is JSON lines on
    stderr, and ``report`` (by default ``print`` if ``verbose``) receives a line for each stage.
    """
    from pate.datasets.catalogue import data_root as default_root
    from pate.engines import make_engine, terminal_progress
    from pate.engines.files import sweep_leftovers
    from pate.pipeline.stage import Options

    plugins = None if plugin_path is None else Path(plugin_path)
    if plugins is not None and not plugins.exists():
        raise InvalidInput(f"there is nothing at --plugin-path {plugins}")

    def progress(
        title: str, total: int, done: int, slots: int | None = None, /
    ) -> AbstractContextManager[Progress]:
        return terminal_progress(
            title, total, quiet=not verbose, json_logs=json_logs, done=done, slots=slots
        )

    sweep_leftovers()
    return Options(
        data_root=default_root(None if data_root is None else Path(data_root)),
        root_given=data_root is not None or bool(os.environ.get("PATE_DATA")),
        engine=make_engine(engine),
        plugin_path=None if plugins is None else plugins.absolute(),
        insecure_seed=insecure_seed,
        spend=spend,
        report=report or (print if verbose else lambda text: None),
        progress=progress,
    )


# --- runs -----------------------------------------------------------------------------------------


@final
class Run:
    """A run in its folder: what it released, and what that costs.

    Returned by :func:`run` and :func:`open_run`. Everything on it is RELEASED.
    """

    def __init__(self, pipeline: PipelineRun) -> None:
        self.pipeline = pipeline  # for the layers of this package

    def __repr__(self) -> str:
        seeded = self.pipeline.options.insecure_seed is not None
        private = ", NOT PRIVATE" if seeded else ""
        return f"<Run of {self.pipeline.recipe.asked} in {self.folder}{private}>"

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.pipeline.folder

    @property
    def recipe(self) -> Any:
        """The recipe, with every default spelt out."""
        return self.pipeline.recipe

    @property
    def guarantee(self) -> Guarantee:
        """The cost of the labels, data-independently, and between whom it holds.

        Its notes state what this ε does not cover: other releases of the data set, a study.
        """
        from pate.pipeline.ledger import open_ledger
        from pate.stages.caveats import tuning_caveats

        with open_ledger(self.pipeline.recipe, self.pipeline.options) as ledger:
            notes = tuple(tuning_caveats(self.pipeline, ledger))
        costs = Costs.load(self.pipeline.artifact("account"))
        stated = costs.guarantee
        seeded = "the noise was drawn from a seed: this run is not private"
        return Guarantee(
            epsilon=stated.epsilon,
            delta=stated.delta,
            moment=stated.moment,
            neighbours=Neighbours(stated.neighbours),
            conversion=None if stated.conversion is None else Conversion(stated.conversion),
            caveats=(*stated.caveats, *([seeded] if costs.seeded else [])),
            notes=notes,
        )

    @property
    def labels(self) -> Labels:
        """The released labels: ``labels`` of the public inputs ``answered``, of those ``asked``."""
        return Labels.load(self.pipeline.artifact("aggregate"))

    @property
    def evaluation(self) -> Evaluation:
        """The accuracy of the ``student`` and of the ``labels``, with 95 % intervals."""
        return Evaluation.load(self.pipeline.artifact("evaluate"))

    @property
    def student(self) -> Teacher:
        """The trained student: ``predict`` returns class numbers."""
        from pate.teachers.persist import load

        made, recipe = self.pipeline.artifact("distill"), self.pipeline.recipe
        return load(
            made.path,
            recipe.student.as_model(),
            classes=int(made.facts["classes"]),
            seed=recipe.student.seed,
            plugin_path=self.pipeline.options.plugin_path,
        )

    def report(self, file: PathLike | None = None, *, private: bool = False) -> Path:
        """Write the run as one HTML page and return its path.

        Parameters
        ----------
        file : str or path, optional
            By default ``report.html`` in the run's folder.
        private : bool
            Add raw votes and the data-dependent ε: a page that may NOT be published.
        """
        from pate.report.page import write_report

        return write_report(self.pipeline, None if file is None else Path(file), private=private)


def prepare_run(
    recipe: str, *, set: Settings = None, out: PathLike | None = None, options: Options
) -> PipelineRun:
    """Return a run that has not been executed; what its folder holds must be in the ledger."""
    from pate.pipeline.recipe import Recipe
    from pate.pipeline.runner import PipelineRun
    from pate.recipes.read import read_recipe
    from pate.stages.catalogue import STAGES
    from pate.stages.exactly_once import require_paid

    name, checked = read_recipe(recipe, as_settings(set), Recipe)
    made = PipelineRun(
        folder=Path("runs") / name if out is None else Path(out),
        recipe=checked,
        stages=STAGES,
        options=options.at_root(checked.data_root),
    )
    if made.recipe.selection is not None:
        from pate.stages.selection import require_made

        require_made(made.recipe, made.store)
    require_paid(made)
    return made


def planned_charge(run: PipelineRun) -> str:
    """Return what the labels of a run would cost, in a sentence; nothing is written.

    Raises
    ------
    BudgetExceeded
        If the run would be refused for it.
    """
    import shutil
    import tempfile
    from dataclasses import replace

    from pate.accounting.ledger.data_ledger import charge_line, require_no_earlier
    from pate.accounting.ledger.data_set import sibling_ledger
    from pate.datasets.loading import load
    from pate.pipeline.ledger import ledger_of, open_ledger

    recipe, options = run.recipe, run.options
    path = ledger_of(recipe, options)
    require_no_earlier(path)
    if path.exists() and any(each.stage == "aggregate" and each.done for each in run.states()):
        return f"nothing to charge: the labels in {run.folder} are paid for"
    data = load(recipe.data, root=options.data_root, plugin_path=options.plugin_path)
    plan = recipe.plan(inputs=len(data.public.features))
    with tempfile.TemporaryDirectory() as folder:
        if not path.exists():  # it is made there, with what the data set's other ledger has
            options = replace(options, data_root=Path(folder))
            made, other = ledger_of(recipe, options), sibling_ledger(path)
            made.parent.mkdir()
            if other.exists():
                shutil.copy(other, made.parent)
        with open_ledger(recipe, options, moment=plan.guarantee.moment) as ledger:
            relation = recipe.partition.neighbours
            ledger.require_room(plan.events, records=relation)
            return charge_line(ledger, plan.events, records=relation, path=path.absolute())


def run(
    recipe: PathLike,
    *,
    set: Settings = None,
    out: PathLike | None = None,
    until: str | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Run a recipe from data to student; stages that are done are skipped.

    Parameters
    ----------
    recipe : str or path
        The name of a shipped recipe, or the path of a ``.toml`` file.
    set : mapping or sequence of str, optional
        Overrides, ``{"teachers.count": 50}`` or ``["teachers.count=50"]``.
    out : str or path, optional
        The run's folder. By default ``runs/NAME``. A run that was interrupted resumes there.
    until : str, optional
        The last stage to run. By default all.
    **options
        See :class:`RunOptions`.

    Returns
    -------
    Run
        What was released, its guarantee and the student.

    Raises
    ------
    InvalidInput
        If the recipe or a setting breaks a rule.
    BudgetExceeded
        If the data set's budget does not cover the plan. Nothing is charged then.
    SpendNeeded
        If going on would pay again, and ``spend`` is False.

    Examples
    --------
    >>> import pate, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> run = pate.run(
    ...     "digits", set={"teachers.count": 20, "privacy.sanitise": False}, engine="serial",
    ...     data_root=folder.name, out=folder.name + "/d", insecure_seed=0,
    ... )
    >>> run.guarantee.publishable  # the noise is seeded here, so that the example repeats
    False
    >>> len(run.labels.answered) <= len(run.labels.asked)
    True
    >>> folder.cleanup()
    """
    given = make_options(**options)
    made = prepare_run(str(recipe), set=set, out=out, options=given)
    if until is not None and until not in {stage.name for stage in made.stages}:
        names = ", ".join(stage.name for stage in made.stages)
        raise InvalidInput(f"until is {until!r}; the stages are {names}")
    made.execute(until=until)
    return Run(made)


def open_run(
    folder: PathLike,
    *,
    data_root: PathLike | None = None,
    plugin_path: PathLike | None = None,
    insecure_seed: int | None = None,
) -> Run:
    """Open a run by its folder; no stage is run.

    Parameters
    ----------
    folder : str or path
        The folder of a run.
    data_root, plugin_path, insecure_seed
        As the run was made with; the data root is found where it was.

    Returns
    -------
    Run
        The run.
    """
    from pate.stages.catalogue import open_run as opened

    return Run(
        opened(
            Path(folder),
            data_root=None if data_root is None else Path(data_root),
            plugin_path=None if plugin_path is None else Path(plugin_path),
            insecure_seed=insecure_seed,
        )
    )


# --- studies --------------------------------------------------------------------------------------


def sweep(
    recipe: PathLike,
    *,
    over: Mapping[str, Sequence[Any]] | Sequence[str],
    set: Settings = None,
    out: PathLike | None = None,
    **options: Unpack[RunOptions],
) -> Sweep:
    """Run every combination of some settings in one folder; teachers are trained once.

    Parameters
    ----------
    recipe : str or path
        The name of a shipped recipe, or the path of a ``.toml`` file.
    over : mapping or sequence of str
        What to vary: ``{"aggregate.scale": [10, 20]}``.
    set : mapping or sequence of str, optional
        Overrides for all points.
    out : str or path, optional
        The folder. By default ``runs/NAME-sweep``.
    **options
        See :class:`RunOptions`.

    Returns
    -------
    Sweep
        ``rows``, one for each point, and ``cost``: choosing among them by their accuracies costs
        all of them together.

    Examples
    --------
    >>> import pate, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> swept = pate.sweep(
    ...     "digits", over={"aggregate.scale": [10.0, 20.0]},
    ...     set={"teachers.count": 10, "student.params": {"n_estimators": 5}},
    ...     out=folder.name + "/s", engine="serial", data_root=folder.name, insecure_seed=0,
    ... )
    >>> len(swept.rows)
    2
    >>> folder.cleanup()
    """
    from pate.studies.sweep import sweep as run_sweep

    made = make_options(**options)
    return run_sweep(
        str(recipe), over=over, set=set, out=None if out is None else Path(out), options=made
    )


def compare(
    recipe: PathLike,
    *,
    epsilons: Sequence[float] | None = None,
    seeds: int | None = None,
    set: Settings = None,
    out: PathLike | None = None,
    **options: Unpack[RunOptions],
) -> Comparison:
    """Compare PATE with DP-SGD on the same data at the same (ε, δ).

    Parameters
    ----------
    recipe : str or path
        A recipe of a comparison, such as ``"compare-digits"``.
    epsilons : sequence of float, optional
        The ε to compare at. By default the recipe's.
    seeds : int, optional
        Repetitions of either method. By default the recipe's.
    set : mapping or sequence of str, optional
        Overrides.
    out : str or path, optional
        The folder. By default ``runs/NAME``.
    **options
        See :class:`RunOptions`.

    Returns
    -------
    Comparison
        ``rows``, ``notes`` and the ``cost`` of all of them together.
    """
    from pate.studies.compare import compare as run_comparison

    made = make_options(**options)
    return run_comparison(
        str(recipe),
        epsilons=epsilons,
        seeds=seeds,
        set=set,
        out=None if out is None else Path(out),
        options=made,
    )


# --- releases -------------------------------------------------------------------------------------


def release(
    run: Run | PathLike,
    out: PathLike,
    *,
    labels: bool = False,
    chosen_beforehand: bool = False,
    data_root: PathLike | None = None,
    plugin_path: PathLike | None = None,
) -> Release:
    """Export what may leave: the student, its guarantee, a model card, and checksums.

    Parameters
    ----------
    run : Run, str or path
        A finished run, or its folder.
    out : str or path
        The folder to write; new, or empty.
    labels : bool
        Include the released labels.
    chosen_beforehand : bool
        State on the card that a run of a sweep or comparison was chosen before any of its results
        was seen. Such a run is refused otherwise: whoever chose it by results has spent the cost
        of the whole study.
    data_root, plugin_path : str or path, optional
        As the run was made with. Those of a :class:`Run` are taken from it.

    Returns
    -------
    Release
        ``folder``, ``epsilon``, ``delta`` and the ``digest`` to share out of band.

    Raises
    ------
    InvalidInput
        If the run is not finished, or its noise was seeded.
    LedgerError
        If the ledger does not cover what would be released.
    """
    from pate.releases.write import write_release

    folder: PathLike
    if isinstance(run, Run):
        own = run.pipeline.options
        folder = run.folder
        data_root = own.data_root if data_root is None else data_root
        plugin_path = own.plugin_path if plugin_path is None else plugin_path
    else:
        folder = run
    return write_release(
        Path(folder),
        Path(out),
        labels=labels,
        chosen_beforehand=chosen_beforehand,
        data_root=None if data_root is None else Path(data_root),
        plugin_path=None if plugin_path is None else Path(plugin_path),
    )
