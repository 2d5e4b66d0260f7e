"""The pipeline as functions: what the command line does, from Python.

Each command of ``pate`` is a thin layer over one function of this module. All are exported from
:mod:`pate` itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, final

from pate._format import format_delta
from pate.accounting import Guarantee, Neighbours
from pate.artifacts.results import Costs, Evaluation, Labels
from pate.errors import InvalidInput
from pate.recipes.paths import PluginsSpec
from pate.recipes.read import as_settings

if TYPE_CHECKING:
    from pate.audits.results import Audit
    from pate.dpsgd_runs import FinishedTraining
    from pate.engines import Progress
    from pate.forgetting import Forgetting
    from pate.pipeline.callbacks import Callback
    from pate.pipeline.recipe import Recipe
    from pate.pipeline.runner import PipelineRun
    from pate.pipeline.stage import Options
    from pate.releases.student import ReleasedStudent
    from pate.releases.write import Release
    from pate.studies.compare import Comparison
    from pate.studies.sweep import Sweep

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
        plugin_path=PluginsSpec().chosen(None if plugin_path is None else Path(plugin_path)),
        insecure_seed=insecure_seed,
        spend=spend,
        report=report or (print if verbose else lambda text: None),
        progress=progress,
    )


# --- runs -----------------------------------------------------------------------------------------


class _InFolder:
    """The folder and the recipe of a run, whichever method made it."""

    def __init__(self, source: PipelineRun | FinishedTraining) -> None:
        self._source = source

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self._source.folder

    @property
    def recipe(self) -> Any:
        """The recipe, with every default spelt out."""
        return self._source.recipe


@final
class Run(_InFolder):
    """A run in its folder: what it released, and what that costs.

    Returned by :func:`run` and :func:`open_run`. Everything on it is RELEASED.
    """

    def __init__(self, pipeline: PipelineRun) -> None:
        super().__init__(pipeline)
        self.pipeline = pipeline  # for the layers of this package

    def __repr__(self) -> str:
        seeded = self.pipeline.options.insecure_seed is not None
        private = ", NOT PRIVATE" if seeded else ""
        return f"<Run of {self.pipeline.recipe.asked} in {self.folder}{private}>"

    def _repr_html_(self) -> str | None:
        if not all(state.done for state in self.pipeline.states()):
            return None  # it is not finished, and has nothing to show yet
        labels, student = self.labels, self.evaluation.student
        rows = [
            ("labels", f"{len(labels.answered)} of {len(labels.asked)} queries"),
            ("student", student.in_words()),
            ("folder", str(self.folder)),
        ]
        protects = Costs.load(self.pipeline.artifact("account")).protects
        title = f"Run: {self.pipeline.recipe.asked}"
        return self.guarantee.html(title, rows, protects=protects)

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
        caveats = (*stated.caveats, *([seeded] if costs.seeded else []))
        neighbours, recipe = stated.guarantee.neighbours, self.pipeline.recipe
        if recipe.protected_group is not None:  # whose records all go to one teacher
            neighbours = Neighbours.USER_ADD_REMOVE
        return replace(stated.guarantee, neighbours=neighbours, caveats=caveats, notes=notes)

    @property
    def labels(self) -> Labels:
        """The released labels: ``labels`` of the public inputs ``answered``, of those ``asked``."""
        return Labels.load(self.pipeline.artifact("aggregate"))

    @property
    def evaluation(self) -> Evaluation:
        """The accuracy of the ``student`` and of the ``labels``, with 95 % intervals."""
        return Evaluation.load(self.pipeline.artifact("evaluate"))

    @property
    def student(self) -> ReleasedStudent:
        """The trained student with its encoder, as :func:`load_student` returns it.

        It takes the records of the data set: ``predict`` returns classes by name,
        ``predict_labels`` their numbers. Of a table it knows the columns by name.
        """
        from pate.releases.export import own_student

        return own_student(self.pipeline)

    def as_json(self) -> dict[str, Any]:
        """Return the results of a finished run as plain values: those of ``pate run --json``."""
        from pate.accounting.ledger.data_ledger import ledger_report
        from pate.pipeline.ledger import open_ledger

        recipe, labels, guarantee = self.recipe, self.labels, self.guarantee
        costs = Costs.load(self.pipeline.artifact("account"))
        with open_ledger(recipe, self.pipeline.options) as ledger:
            ledgers = ledger_report(ledger)
        evaluation = self.evaluation
        return {
            "format": 1,
            "folder": str(self.folder),
            "data": recipe.data.name,
            "teachers": None if recipe.by_records else recipe.teachers.count,
            "aggregate": recipe.aggregate.model_dump(mode="json", exclude_none=True),
            "seeded": costs.seeded,
            "guarantee": guarantee.as_json() | {"notes": list(guarantee.notes)},
            "protects": costs.protects,
            "plan": {"queries": labels.plan.queries, "answers": labels.plan.answers},
            "asked": len(labels.asked),
            "answered": len(labels.answered),
            "kept": len(labels.kept),
            "labels_right": None if evaluation.labels is None else asdict(evaluation.labels),
            "student_right": asdict(evaluation.student),
            "sanitised": None if costs.sanitised is None else costs.sanitised.as_json(),
            "why_not_sanitised": costs.why_not,
            "student": str(self.pipeline.artifact("distill").path),
            "ledger": ledgers,
        }

    def report(
        self,
        file: PathLike | None = None,
        *,
        private: bool = False,
        with_confusion: bool = False,
    ) -> Path:
        """Write the run as one HTML page and return its path.

        Parameters
        ----------
        file : str or path, optional
            By default ``report.html`` in the run's folder.
        private : bool
            Add raw votes and the data-dependent ε: a page that may NOT be published.
        with_confusion : bool
            Show errors by class also on test records of your own, whose people are not protected.
        """
        from pate.report.page import write_report

        place = None if file is None else Path(file)
        return write_report(self.pipeline, place, private=private, with_confusion=with_confusion)


@final
class TrainedRun(_InFolder):
    """A finished run of ``dpsgd train`` in its folder: the model it released, and what that costs.

    Returned by :func:`open_run`. Everything on it is RELEASED.
    """

    def __init__(self, training: FinishedTraining) -> None:
        super().__init__(training)
        self.training = training  # for the layers of this package

    def __repr__(self) -> str:
        private = "" if self.training.is_private else ", NOT PRIVATE"
        return f"<TrainedRun of {self.training.asked} in {self.folder}{private}>"

    def _repr_html_(self) -> str:
        rows = [("model", self.evaluation.student.in_words()), ("folder", str(self.folder))]
        protects = self.training.protects
        return self.guarantee.html(f"Run: {self.training.asked}", rows, protects=protects)

    @property
    def guarantee(self) -> Guarantee:
        """The cost of everything the run released, and between whom it holds.

        Its notes state what this ε does not cover: other releases of the data set, a study.
        """
        return self.training.guarantee

    @property
    def evaluation(self) -> Evaluation:
        """The accuracy of the model (``student``) on test records, by class."""
        return self.training.evaluation

    @property
    def student(self) -> ReleasedStudent:
        """The trained model with all that records go through before it, as a :class:`Run` has it.

        ``predict`` returns classes by name, ``predict_labels`` their numbers.
        """
        from pate.releases.training import own_model

        return own_model(self.training)

    def report(
        self,
        file: PathLike | None = None,
        *,
        private: bool = False,
        with_confusion: bool = False,
    ) -> Path:
        """Write the run as one HTML page and return its path: see :meth:`Run.report`.

        There is no ``private`` page: all that is known of a model was paid for.
        """
        if private:
            raise InvalidInput(
                f"{self.folder} is a run of dpsgd, which has no votes to show: there is no private "
                "page of it; omit --private"
            )
        from pate.report.training import write_training_report

        place = None if file is None else Path(file)
        return write_training_report(self.training, place, with_confusion=with_confusion)


def _asked_of(recipe: Recipe) -> str:
    return "record votes" if recipe.by_records else f"{recipe.aggregate.queries} queries"


def prepare_run(
    recipe: str, *, set: Settings = None, out: PathLike | None = None, options: Options
) -> PipelineRun:
    """Return a run that has not been executed; what its folder holds must be in the ledger."""
    from pate.pipeline.recipe import Recipe
    from pate.pipeline.runner import PipelineRun, with_recorded_noise
    from pate.recipes.read import read_recipe
    from pate.stages.catalogue import stages_of
    from pate.stages.exactly_once import require_paid

    name, read = read_recipe(recipe, as_settings(set), Recipe)
    folder = Path("runs") / name if out is None else Path(out)
    checked = with_recorded_noise(read, folder)
    if (found := checked.found_noise) is not None:
        key, noise = found
        options.report(
            f"aggregate.{key} = {noise!r}, found for {_asked_of(checked)} at "
            f"ε {checked.privacy.epsilon:g}, δ {format_delta(checked.privacy.delta)}"
        )
    made = PipelineRun(
        folder=folder,
        recipe=checked,
        stages=stages_of(checked),
        options=options.with_recipe(data_root=checked.data_root, plugins=checked.plugins),
    )
    if made.recipe.selection is not None:
        from pate.stages.selection import require_made

        require_made(made.recipe, made.store)
    require_paid(made)
    return made


def run(
    recipe: PathLike,
    *,
    set: Settings = None,
    out: PathLike | None = None,
    until: str | None = None,
    callbacks: Sequence[Callback] = (),
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
    callbacks : sequence of Callback
        Trackers, which are given public and released values when the run is over. One that raises
        does not undo the run: :func:`open_run` opens it.
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
    ...     "digits-teachers", set={"teachers.count": 20}, engine="serial",
    ...     data_root=folder.name, out=folder.name + "/d", insecure_seed=0,
    ... )
    >>> run.guarantee.publishable  # the noise is seeded here, so that the example repeats
    False
    >>> len(run.labels.answered) <= len(run.labels.asked)
    True
    >>> folder.cleanup()
    """
    if callbacks:
        from pate.pipeline.callbacks import call_back, require_trackers

        require_trackers(callbacks)
    given = make_options(**options)
    made = prepare_run(str(recipe), set=set, out=out, options=given)
    if until is not None and until not in {stage.name for stage in made.stages}:
        names = ", ".join(stage.name for stage in made.stages)
        raise InvalidInput(f"until is {until!r}; the stages are {names}")
    made.execute(until=until)
    if callbacks:
        call_back(made, callbacks, until=until)
    return Run(made)


def open_run(
    folder: PathLike,
    *,
    data_root: PathLike | None = None,
    plugin_path: PathLike | None = None,
    insecure_seed: int | None = None,
) -> Run | TrainedRun:
    """Open a run of ``pate run`` or ``dpsgd train`` by its folder; nothing is run.

    Parameters
    ----------
    folder : str or path
        The folder of a run.
    data_root, plugin_path, insecure_seed
        As the run was made with; the data root is found where it was.

    Returns
    -------
    Run or TrainedRun
        The run; a :class:`TrainedRun` if it is one of ``dpsgd train``. Both have
        ``folder``, ``recipe``, ``guarantee``, ``evaluation``, ``student`` and ``report()``.
    """
    from pate.dpsgd_runs import is_dpsgd_run, open_training
    from pate.stages.catalogue import open_run as opened

    root = None if data_root is None else Path(data_root)
    plugins = None if plugin_path is None else Path(plugin_path)
    if is_dpsgd_run(Path(folder)):
        return TrainedRun(open_training(Path(folder), data_root=root, plugin_path=plugins))
    return Run(
        opened(Path(folder), data_root=root, plugin_path=plugins, insecure_seed=insecure_seed)
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
    ...     "digits-teachers", over={"aggregate.scale": [10.0, 20.0]},
    ...     set={"teachers.count": 10, "aggregate.queries": 20},
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
    """Compare PATE, by teachers or record votes, with DP-SGD on the same data at the same (ε, δ).

    Parameters
    ----------
    recipe : str or path
        A recipe of a comparison, such as ``"compare-digits"``.
    epsilons : sequence of float, optional
        The ε to compare at. By default the recipe's.
    seeds : int, optional
        Repetitions of each method. By default the recipe's.
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


# --- audits ---------------------------------------------------------------------------------------


def audit(
    target: Any,
    members: Any = None,
    others: Any = None,
    *,
    population: Any = None,
    fit: Any = None,
    guarantee: Guarantee | None = None,
    attacks: Sequence[str] | None = None,
    records: int | None = None,
    canaries: int | None = None,
    shadows: int | None = None,
    seed: int = 0,
    data_root: PathLike | None = None,
    plugin_path: PathLike | None = None,
    insecure_seed: int | None = None,
    verbose: bool = False,
) -> Audit:
    """Attack a run, or any fitted model, and return how far attacks get. PRIVATE.

    Nothing is charged: models that are trained for an audit are thrown away, and its results are
    for the owner of the data alone.

    Parameters
    ----------
    target : Run, TrainedRun, str, path, or model
        A finished run of ``pate run`` or ``dpsgd train``, or its folder, or that of a comparison,
        whose methods are attacked at its largest ε; or any fitted model: an object with
        ``predict_proba`` (or ``predict`` alone), or that function.
    members, others : pair of arrays, optional
        Of a model: records it was trained on, with labels 0, 1, …, and records of the same
        population that it was not trained on. A run has its own.
    population : pair of arrays, optional
        Of a model: further records it was not trained on, for RMIA.
    fit : callable or object with ``fit_many``, optional
        Of a model: its training, ``fit(X, y, seed)`` → ``predict_proba``, for shadow models.
    guarantee : Guarantee, optional
        Of a model: the guarantee that it claims.
    attacks : sequence of str, optional
        Of a run: which of ``"leave-one-out"``, ``"membership"`` and ``"canaries"``; default all.
    records : int, optional
        The most records to leave out, sampled by class; default all.
    canaries : int, optional
        The number of canaries; by default as many as suit the run.
    shadows : int, optional
        Shadow models for each target, 0 for none; by default 16, where they are affordable.
    seed : int
        Seeds samples and shadow models; coins and noise of canaries are secret.
    data_root, plugin_path, insecure_seed
        As the run was made with.
    verbose : bool
        Print parts as they begin, and show progress.

    Returns
    -------
    Audit
        ``findings``, ``verdict``, ``contradictions``, ``realised``; ``write(folder)`` writes the
        page. For a run nothing is written but what an interrupted audit resumes from.

    Raises
    ------
    InvalidInput
        If a run is not finished, or its private records are not at hand.

    Examples
    --------
    >>> import numpy as np, pate
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(400, 5)), rng.integers(0, 2, size=400)
    >>> tree = DecisionTreeClassifier(random_state=0).fit(X[:200], y[:200])
    >>> found = pate.audit(tree, members=(X[:200], y[:200]), others=(X[200:], y[200:]))
    >>> found.findings[0].attack, bool(found.findings[0].values["advantage"] > 0.4)
    ('threshold on the loss', True)
    """
    from pate.audits.options import ATTACKS, AuditOptions
    from pate.audits.run import audit_model, audit_pate, require_run
    from pate.engines import terminal_progress
    from pate.untrusted import seeing_records

    def progress(
        title: str, total: int, done: int, slots: int | None = None, /
    ) -> AbstractContextManager[Progress]:
        return terminal_progress(
            title, total, quiet=not verbose, json_logs=False, done=done, slots=slots
        )

    options = AuditOptions(
        attacks=ATTACKS if attacks is None else tuple(attacks),
        records=records,
        canaries=canaries,
        shadows=shadows,
        seed=seed,
        report=_to_stderr if verbose else lambda text: None,
        progress=progress,
    )
    if isinstance(target, (str, os.PathLike)):
        require_run(Path(target))
        target = open_run(
            target, data_root=data_root, plugin_path=plugin_path, insecure_seed=insecure_seed
        )
    with seeing_records():
        if isinstance(target, Run):
            from pate.audits.comparison import audit_comparison
            from pate.studies.compare import open_comparison

            compared = open_comparison(target.pipeline)
            if compared:
                return audit_comparison(compared, options)
            with target.pipeline.kept():
                return audit_pate(target.pipeline, options)
        if isinstance(target, TrainedRun):
            from pate.audits.training import audit_training

            return audit_training(target.training, options)
        return audit_model(
            target, members, others, population=population, fit=fit, guarantee=guarantee,
            options=options,
        )  # fmt: skip


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


# --- forgetting -----------------------------------------------------------------------------------


def forget(
    run: Run | TrainedRun | PathLike,
    ids: Iterable[str] = (),
    *,
    queue: bool = False,
    unqueue: bool = False,
    spend: bool = False,
    signed_by: str | None = None,
    data_root: PathLike | None = None,
    engine: str = "serial",
    plugin_path: PathLike | None = None,
    insecure_seed: int | None = None,
    verbose: bool = False,
) -> Forgetting:
    """Forget records: train the shards that held them again, and remove the rest of them.

    A forgetting that was interrupted resumes, also without ``ids``. Files of the user's own are
    never touched; if they still hold the records, the run leaves them out from now on. What was
    released stays as it is, and paid.

    Parameters
    ----------
    run : Run, str or path
        A run of ``pate run``, at least up to its votes, or its folder.
    ids : iterable of str
        Ids of records, or of groups where the run protects groups. Records without ids are named
        by their content, as in ``private/data/*/ids.json``; with one all its exact copies go.
    queue : bool
        Only note the ids, for the next call without ``queue``.
    unqueue : bool
        Only take the ids out of the queue again; without ``ids`` all of them.
    spend : bool
        Then draw new labels from the teachers as they are, charge them, and train a new student.
    signed_by : str, optional
        A name for the certificate.
    data_root, plugin_path, insecure_seed
        As the run was made with. Those of a :class:`Run` are taken from it.
    engine : str, default="serial"
        See :class:`RunOptions`.
    verbose : bool
        Print stages.

    Returns
    -------
    Forgetting
        ``requested``, ``queued``, ``released``, and the files ``certificate`` and ``page``, which
        are PRIVATE: they show how many ids were found.

    Raises
    ------
    InvalidInput
        If shards do not follow from ids alone (a shuffled partition), the ids are those of all
        private records, or the run is a study's or one of ``dpsgd train``.
    BudgetExceeded
        If the budget does not cover new labels. The records are forgotten by then.

    Examples
    --------
    >>> import pate, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> run = pate.run(
    ...     "digits-teachers", set={"teachers.count": 20}, engine="serial", until="vote",
    ...     data_root=folder.name, out=folder.name + "/d", insecure_seed=0,
    ... )
    >>> names = run.pipeline.artifact("data").json("ids.json")
    >>> pate.forget(run, names[:2]).requested
    2
    >>> pate.forget(run, names[:2]).certificate is None  # they were forgotten before
    True
    >>> folder.cleanup()
    """
    from pate._format import format_cost
    from pate.dpsgd_runs import is_dpsgd_run
    from pate.forgetting import forget_records
    from pate.stages.catalogue import open_run as opened

    if isinstance(run, Run):
        own = run.pipeline.options
        data_root = own.data_root if data_root is None else data_root
        plugin_path = own.plugin_path if plugin_path is None else plugin_path
        insecure_seed = own.insecure_seed if insecure_seed is None else insecure_seed
    folder = run.folder if isinstance(run, (Run, TrainedRun)) else Path(run)
    if is_dpsgd_run(folder):
        trained = run if isinstance(run, TrainedRun) else open_run(folder, data_root=data_root)
        guarantee = trained.guarantee
        raise InvalidInput(
            f"{folder} is a model of dpsgd train, and every record reached all its weights: only "
            "to train again without the records, with its own charge, is exact; what the model "
            f"reveals of one record is bounded by {format_cost(guarantee.epsilon, guarantee.delta)}"
        )
    found = opened(
        folder,
        data_root=None if data_root is None else Path(data_root),
        plugin_path=None if plugin_path is None else Path(plugin_path),
        insecure_seed=insecure_seed,
    )
    options = make_options(
        data_root=found.options.data_root,
        engine=engine,
        plugin_path=found.options.plugin_path,
        insecure_seed=insecure_seed,
        # No progress: how many teachers are trained again shows whether an id was a record.
        report=print if verbose else None,
    )
    return forget_records(
        replace(found, options=options),
        ids,
        queue=queue,
        unqueue=unqueue,
        spend=spend,
        signed_by=signed_by,
    )


# --- releases -------------------------------------------------------------------------------------


def release(
    run: Run | TrainedRun | PathLike,
    out: PathLike,
    *,
    labels: bool = False,
    chosen_beforehand: bool = False,
    with_confusion: bool = False,
    column_names: bool = False,
    also: Collection[str] = (),
    owner: Mapping[str, Any] | PathLike | None = None,
    data_root: PathLike | None = None,
    plugin_path: PathLike | None = None,
) -> Release:
    """Export what may leave: the student, its guarantee, a model card, and checksums.

    Parameters
    ----------
    run : Run, TrainedRun, str or path
        A finished run of ``pate run`` or ``dpsgd train``, or its folder.
    out : str or path
        The folder to write; new, or empty.
    labels : bool
        Include the released labels.
    chosen_beforehand : bool
        State on the card that a run of a sweep or comparison was chosen before any of its results
        was seen. Such a run is refused otherwise: whoever chose it by results has spent the cost
        of the whole study.
    with_confusion : bool
        Include errors by class on test records of your own, whose people are not protected. Those
        of named sets, which are public, are always included.
    column_names : bool
        Publish the names of a table's columns with the student, so that it takes DataFrames.
        Otherwise it takes arrays, with the columns in their order.
    also : collection of str
        Further forms: ``"hf"`` adds the folder ``hf``, ready for the Hugging Face hub. A student
        that is not data alone is refused there.
    owner : mapping, str or path, optional
        What only the owner can state, or a TOML file with it: ``license``, ``publisher``,
        ``publisher_type``, ``intended_use``, ``region``, ``sector``, ``authors``, and ``answers``
        to the questions of NIST SP 800-226 by topic. Card, page and metadata repeat it.
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
    elif isinstance(run, TrainedRun):
        folder = run.folder
        data_root = run.training.ledger_path.parent.parent if data_root is None else data_root
        plugin_path = run.training.plugin_path if plugin_path is None else plugin_path
    else:
        folder = run
    return write_release(
        Path(folder),
        Path(out),
        labels=labels,
        chosen_beforehand=chosen_beforehand,
        with_confusion=with_confusion,
        column_names=column_names,
        also=also,
        owner=owner if owner is None or isinstance(owner, Mapping) else Path(owner),
        data_root=None if data_root is None else Path(data_root),
        plugin_path=None if plugin_path is None else Path(plugin_path),
    )
