"""The charges that a run would make, before anything is trained, drawn or written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pate.accounting import Event, Ledger
from pate.accounting.ledger.data_ledger import PlannedCharge, Preview, trial_ledger
from pate.artifacts.results import LABELS, charge_name
from pate.datasets.loading import load
from pate.datasets.roles import require_accepted, require_apart
from pate.datasets.spec import DataSpec
from pate.datasets.table import Splits
from pate.errors import BudgetExceeded, SpendNeeded
from pate.mechanisms import Plan
from pate.pipeline.ledger import key_path, ledger_of, open_ledger
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import Options
from pate.stages.account import order_of, sanitised_price
from pate.stages.aggregate import events_to_pay
from pate.stages.data import require_own_ledger
from pate.stages.exactly_once import settings_of

_PAID_BEFORE = (
    "this run has paid for labels of other teachers or records; new ones cost again: undo the "
    "change (`pate status` names it), or add --spend to pay for them"
)
_SAME_SETTINGS = (
    "labels with these settings were charged before; if records and plug-ins are the same, too, "
    "--spend will be needed"
)


def preview(run: PipelineRun) -> Preview:
    """Return the charges that a run would make for its labels, and for a sanitised ε.

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
    if {"aggregate", "account"} <= done:
        return Preview(charges=(), notes=(_nothing(run),))
    data = read_data(recipe.data, options)
    plan = recipe.plan(inputs=len(data.public.features))

    def open_at(place: Any) -> Ledger:
        return open_ledger(recipe, options, moment=plan.moment, path=place)

    notes, events = other_ledgers(recipe, options), plan.events
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
                if not ready and _charged_elsewhere(run, ledger):
                    notes.append(_SAME_SETTINGS)
        charges = list(_charges(run, ledger, events, classes=data.classes, notes=notes))
    if not charges:
        notes.append(_nothing(run))
    return Preview(charges=tuple(charges), notes=tuple(notes))


def read_data(spec: DataSpec, options: Options) -> Splits:
    """Return the data of a run, or of a study, refused as it would refuse them."""
    require_accepted(spec)
    data = load(spec, root=options.data_root, plugin_path=options.plugin_path)
    require_apart(spec, data)
    return data


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


def _charged_elsewhere(run: PipelineRun, ledger: Ledger) -> bool:
    digest = settings_of(run.recipe, run.options.data_root)
    return not run.options.spend and any(digest in each.settings for each in ledger.charges())


def _charges(
    run: PipelineRun,
    ledger: Ledger,
    events: tuple[Event, ...],
    *,
    classes: int,
    notes: list[str],
) -> Iterator[PlannedCharge]:
    """Yield the charge of the labels, then that of a sanitised ε if one will be published."""
    relation = run.recipe.neighbours
    path = ledger_of(run.recipe, run.options).absolute()
    price = sanitised_price(run.recipe, classes=classes, order=order_of(ledger))
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
