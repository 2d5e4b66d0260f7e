"""The stages and charges of a run, before anything is trained, drawn or written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pate.accounting import Event, Ledger
from pate.accounting.ledger.data_ledger import PlannedCharge, Preview, trial_ledger
from pate.artifacts.results import LABELS, charge_name
from pate.datasets.loading import load
from pate.datasets.roles import equal_rows_notes, require_accepted, require_apart
from pate.datasets.spec import DataSpec
from pate.datasets.table import Splits
from pate.errors import BudgetExceeded, SpendNeeded
from pate.mechanisms import Plan
from pate.pipeline.ledger import key_path, ledger_of, open_ledger
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun, State
from pate.pipeline.stage import Options
from pate.stages.account import order_of, sanitised_price
from pate.stages.aggregate import events_to_pay
from pate.stages.data import require_own_ledger
from pate.stages.distill import require_student
from pate.stages.encode import require_no_codes
from pate.stages.exactly_once import settings_of
from pate.stages.preflight import require_models

_PAID_BEFORE = (
    "this run has paid for labels of other teachers or records; new ones cost again: undo the "
    "change (`pate status` names it), or add --spend to pay for them"
)
SAME_SETTINGS = (
    "labels with these settings were charged before; if records and plug-ins are the same, too, "
    "--spend will be needed"
)


@dataclass(frozen=True, kw_only=True)
class RunPreview(Preview):
    """The stages that are done and that would run, and the charges they would make."""

    stages: tuple[State, ...]

    def __str__(self) -> str:
        lines = [f"{state.stage}: {state.why}" for state in self.stages]
        return "\n".join([*lines, super().__str__()])

    def as_json(self) -> dict[str, Any]:
        stages = [
            {"stage": state.stage, "done": state.done, "why": state.why} for state in self.stages
        ]
        return {"stages": stages, **super().as_json()}


def preview(run: PipelineRun, *, until: str | None = None) -> RunPreview:
    """Return what a run up to a stage would do, and charge for labels and for a sanitised ε.

    Data files are read, private ones too, and refused as a run would refuse them: a record with two
    roles is found before its charge. Nothing is trained on private records, drawn or written, and
    no teacher or vote is opened.

    Raises
    ------
    BudgetExceeded
        If the run would be refused for it.
    """
    recipe, options = run.recipe, run.options
    path = ledger_of(recipe, options)
    key = key_path(recipe, options.data_root)  # without one nothing was made, and one is drawn
    known = path.exists() and key.exists()
    states = {each.stage: each for each in run.states()} if known else {}
    done = {name for name, state in states.items() if state.done}
    names = run.names_until(until)
    stages = tuple(states.get(name) or _missing(name) for name in names)
    if {"aggregate", "account"} <= done:
        if "distill" in names and "distill" not in done:
            classes = int(run.artifact("data-public").facts["classes"])
            require_student(recipe, options, classes=classes)
        return RunPreview(stages=stages, charges=(), notes=(_nothing(run),))
    data, notes = read_data(recipe.data, options)
    if "encoder" in names:
        _require_encodable(recipe, data)
    if {"teach", "vote"} & set(names):
        require_models(recipe, data, options)
    if "aggregate" not in names:
        notes.append("nothing to charge: labels are released later, by `pate aggregate`")
        return RunPreview(stages=stages, charges=(), notes=tuple(notes))
    plan = recipe.plan(inputs=len(data.public.features))

    def open_at(place: Any) -> Ledger:
        return open_ledger(recipe, options, moment=plan.moment, path=place)

    notes += other_ledgers(recipe, options)
    events = plan.events
    with trial_ledger(path, open_at) as ledger:
        if "aggregate" in done:
            events = ()
        elif known:
            ready = states["aggregate"].made_from is not None
            try:
                events = _labels(run, ledger, plan, ready=ready)
            except SpendNeeded as error:
                notes.append(str(error))
            else:
                if not ready and charged_elsewhere(run, ledger):
                    notes.append(SAME_SETTINGS)
        sanitised = "account" in names
        charges = list(
            _charges(run, ledger, events, classes=data.classes, notes=notes, sanitised=sanitised)
        )
    if not charges:
        notes.append(_nothing(run))
    return RunPreview(stages=stages, charges=tuple(charges), notes=tuple(notes))


def _missing(stage: str) -> State:
    return State(stage=stage, done=False, why="missing", made_from=None)


def read_data(spec: DataSpec, options: Options) -> tuple[Splits, list[str]]:
    """Return the data of a run, or of a study, refused as it would refuse them, and remarks."""
    require_accepted(spec)
    data = load(spec, root=options.data_root, plugin_path=options.plugin_path)
    return data, equal_rows_notes(require_apart(spec, data))


def _require_encodable(recipe: Recipe, data: Splits) -> None:
    """Refuse steps that do not fit the columns; built-in ones are tried on public rows."""
    from pate.encoders.chain import fit_encoder

    spec, public = recipe.encoder, data.public.features
    spec.require_categories(data.categories)
    if spec.steps and public.ndim == 2 and not spec.runs_user_code:
        fit_encoder(spec, public, categories=data.categories)
    require_no_codes(recipe, categories=bool(data.categories))


def other_ledgers(recipe: Recipe, options: Options) -> list[str]:
    """Return remarks on other ledgers of the same records; nothing is remembered."""
    notes = list[str]()
    try:
        require_own_ledger(recipe, options, report=notes.append, remember=False)
    except SpendNeeded as error:
        notes.append(str(error))
    return notes


def _nothing(run: PipelineRun) -> str:
    return f"nothing to charge: the labels in {run.folder} are paid for"


def _labels(run: PipelineRun, ledger: Ledger, plan: Plan, *, ready: bool) -> tuple[Event, ...]:
    """Return the events of the labels, as far as votes are there to decide what is paid for."""
    if ready:
        return events_to_pay(run.context("aggregate"), ledger, plan)
    paid = ledger.releases()
    for earlier in (*run.store.all(f"pending-{LABELS}"), *run.store.all(f"begun-{LABELS}")):
        name = charge_name(LABELS, earlier.manifest["made_from"])
        if not run.options.spend and any(each.startswith(name) for each in paid):
            raise SpendNeeded(_PAID_BEFORE)
    return plan.events


def charged_elsewhere(run: PipelineRun, ledger: Ledger) -> bool:
    """Return whether a release with the settings of a run was charged, and --spend is not given."""
    digest = settings_of(run.recipe, run.options.data_root)
    return not run.options.spend and any(digest in each.settings for each in ledger.charges())


def _charges(
    run: PipelineRun,
    ledger: Ledger,
    events: tuple[Event, ...],
    *,
    classes: int,
    notes: list[str],
    sanitised: bool,
) -> Iterator[PlannedCharge]:
    """Yield the charge of the labels, then that of a sanitised ε if one will be published."""
    relation = run.recipe.neighbours
    path = ledger_of(run.recipe, run.options).absolute()
    price = (
        sanitised_price(run.recipe, classes=classes, order=order_of(ledger)) if sanitised else ()
    )
    if events:
        ledger.require_room(events, records=relation)
        charge = PlannedCharge.make(ledger, events, records=relation, path=path)
        yield replace(charge, of="the labels") if price else charge
    if not price:
        return
    try:
        ledger.require_room([*events, *price], records=relation)
    except BudgetExceeded:
        notes.append("a sanitised ε does not fit into the budget, and will be left out")
        return
    yield PlannedCharge.make(
        ledger, price, records=relation, path=path, after=events, of="a sanitised ε"
    )
