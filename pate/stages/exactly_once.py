"""Exactly-once release: prepare in private → charge → publish.

Every draw of noise has a name of its own, chosen at random, and is charged under that name with the
events recorded beside it. So a charge belongs to one draw: two drafts of one release,
in two folders or after a crash, cannot share a payment.

A release in rounds is paid for by one charge before the first round (``pay_first``), because
answers of one round are used before the next is drawn: by a student, or to choose what to ask.
The charge pays for one drawing of each round. So a round is stored in private, then marked as drawn
beside the ledger, and only then used (:func:`draw_once`); a round that is marked and not here
is never drawn again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate._files import create_once
from pate.accounting import Event, Guarantee, Ledger, event_from_json, event_to_json
from pate.accounting.ledger.data_ledger import PlannedCharge
from pate.accounting.ledger.data_set import Coverage
from pate.artifacts import Artifact, Draft, Level, Store, StoreError, fingerprint
from pate.artifacts.results import (
    LABELS,
    SANITISED,
    ChargeNote,
    Costs,
    charge_name,
    drawn_for,
    is_seeded,
)
from pate.errors import BudgetExceeded, LedgerError, ReleaseConflict, SpendNeeded
from pate.mechanisms import Release
from pate.pipeline.ledger import ledger_path, naming_key
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import Context

_ROUND = "round"


def release_once(
    context: Context,
    *,
    kind: str,
    source: str,
    ledger: Ledger,
    events: tuple[Event, ...],
    prepare: Callable[[Draft, str], None],
    publish: Callable[[Artifact, Draft], None],
    pay_first: bool = False,
    extends: str | None = None,
    sources: Collection[str] = (),
    settings: Collection[str] | None = None,
    builds_on: Collection[str] = (),
) -> None:
    """Draw an answer from the input ``source``, pay for it, and only then publish it.

    ``prepare`` draws into a private draft, under the draw's own name; ``publish`` copies what may
    leave of the stored answer into a RELEASED draft.

    With ``pay_first`` the charge comes before anything is drawn, for answers that are used on
    the way. Its name is then recorded before the charge, and a run that was killed resumes under
    it; what was drawn by then ``prepare`` keeps itself (:func:`draw_once`).

    ``extends`` is the charge of an earlier answer that is given out again as it was: ``events`` are
    then what comes on top. ``sources`` are the fingerprints of what the answer is drawn from, where
    that is more than one input; one in common with an earlier answer is enough to need consent.
    ``settings`` are the digests of all that could have been drawn, where that is more than the
    recipe (:func:`settings_of`); ``builds_on`` the charges of answers this one is worked out from.

    Guarantees:
        * What is charged was recorded with the draw, and is charged under the draw's own random
          name. Nothing is published without its charge in the ledger.
        * A crash before the charge costs nothing; a crash after it is finished on the next run,
          with the stored answer. A charge that is refused drops the answer.
        * A second draw of what was paid for before, here or from another folder, is refused without
          ``--spend``. A study asked for all its settings at once, so there only what was paid for
          and is lost, or was drawn with the same settings from other records or by another
          plug-in, needs that option.
        * A charge carries the tags of its studies from the moment it is made: of the study that the
          draw was made for, which is recorded with it, and of those whose answers it extends or
          builds on. Nothing is published before all of them are there.
    """
    if settings is None:
        settings = [settings_of(context.recipe, context.options.data_root)]
    drawn_from = sorted(sources) or [context.provenance[source]]
    study = context.options.study
    behind = sorted({*builds_on, *([] if extends is None else [extends])})
    answer = _stored(context, f"pending-{kind}")
    if answer is None:
        if pay_first:
            name, study = _begin(context, kind, source, ledger)
            tags = _tags(ledger, study, behind)
            _charge(context, kind, ledger, events, name=name, studies=tags, family=settings)
        else:
            if extends is None:
                require_consent(context, kind, source, ledger, sources=drawn_from)
            name = secrets.token_hex(12)
        note = ChargeNote(
            kind=kind,
            made_from=context.made_from,
            name=name,
            study=study,
            events=events,
            extends=extends,
            sources=tuple(drawn_from),
            settings=tuple(sorted(settings)),
            builds_on=tuple(behind),
            recipe=_recipe_digest(context),
        )
        with _private_draft(context, f"pending-{kind}") as draft:
            prepare(draft, name)
            note.save(draft)
            draft.facts["charges"] = _charges_of(context, note)
        answer = context.store.open(f"pending-{kind}", context.made_from)
    elif extends is None and ChargeNote.load(answer).release not in ledger.releases():
        require_consent(context, kind, source, ledger, sources=drawn_from)
    _pay(context, answer, ledger)
    with context.draft(Level.RELEASED) as draft:
        publish(answer, draft)
        draft.facts.pop("charges", None)  # a name is chance: the same labels have the same digest
        draft.facts["drawn"] = context.made_from


def paid_answers(context: Context, kind: str, ledger: Ledger) -> dict[str, Artifact]:
    """Return the answers in this run by their charge, where it is in the ledger; files checked."""
    paid = ledger.releases()
    pending = f"pending-{kind}"
    found = {}
    for each in context.store.all(pending):
        answer = context.store.open(pending, each.manifest["made_from"])
        release = ChargeNote.load(answer).release
        if release in paid:
            found[release] = answer
    return found


def is_drawn_and_paid(context: Context, kind: str, ledger: Ledger) -> bool:
    """Return whether an answer of this run was charged that is not published yet."""
    found = [_stored(context, f"{how}-{kind}") for how in ("pending", "begun")]
    paid = ledger.releases()
    return any(each is not None and ChargeNote.load(each).release in paid for each in found)


def charges_behind(store: Store, kind: str, drawn: str) -> list[str]:
    """Return the names of the charges for an answer in this store: its own, then those before it.

    ``drawn`` is the fingerprint that it was drawn for. No file of the answer is read. Where its
    draw is not here, or was made before names were noted in its manifest, there are none.
    """
    answer = store.find(f"pending-{kind}", drawn)
    return [] if answer is None else list(answer.facts.get("charges", ()))


def settings_of(recipe: Recipe, data_root: Path) -> str:
    """Return a digest of what is asked of whom, under the data set's key.

    It is the same for all draws with these settings, whatever the seeds, the plug-ins, the records,
    δ and how many are asked: by it a draw is recognised that was chosen by the results of another.
    """
    how_to_run = {"seed", "timeout", "cpus", "gpus", "batched", "retries", "on_error"}
    asked = {
        "partition": recipe.partition.model_dump(mode="json", include={"method", "by"}),
        **(
            {"votes": recipe.votes.model_dump(mode="json")}
            if recipe.by_records
            else {"teachers": recipe.teachers.model_dump(mode="json", exclude=how_to_run)}
        ),
        "aggregate": recipe.aggregate.model_dump(
            mode="json", exclude={"choose_seed", "queries", "answers"}
        ),
    }
    return fingerprint(naming_key(recipe, data_root), asked)[:40]


def _recipe_digest(context: Context) -> str:
    """Return a digest of all settings that decide labels, without records and plug-ins."""
    recipe, options = context.recipe, context.options
    how_to_run = {"timeout", "cpus", "gpus", "batched", "retries", "on_error"}
    sections = {"data", "encoder", "partition", "votes", "teachers", "aggregate", "privacy"}
    asked = recipe.model_dump(
        mode="json",
        include=sections | ({"student"} if recipe.aggregate.kind.uses_student else set()),
        exclude={"teachers": how_to_run, "privacy": {"budget", "sanitise", "doubt"}},
    )
    return fingerprint(naming_key(recipe, options.data_root), asked, options.insecure_seed)[:40]


def _charges_of(context: Context, note: ChargeNote) -> list[str]:
    """Return as :func:`charges_behind`, for an answer that is being drawn."""
    if note.extends is None:
        return [note.release]
    drawn = [each.facts.get("charges", ()) for each in context.store.all(f"pending-{note.kind}")]
    behind = next((names for names in drawn if names and names[0] == note.extends), [note.extends])
    return [note.release, *behind]


def _private_draft(
    context: Context, name: str, made_from: str | None = None
) -> AbstractContextManager[Draft]:
    made_from = made_from or context.made_from
    return context.store.draft(name, made_from, level=Level.PRIVATE, inputs=context.provenance)


def _stored(context: Context, pending: str) -> Artifact | None:
    if context.store.find(pending, context.made_from) is None:
        return None
    return context.store.open(pending, context.made_from)  # checked against its manifest


def _begin(context: Context, kind: str, source: str, ledger: Ledger) -> tuple[str, str | None]:
    """Return the name of a draw that is paid for first, and its study: as begun before, or new."""
    begun = f"begun-{kind}"
    earlier = _stored(context, begun)
    if earlier is not None:
        note = ChargeNote.load(earlier)
        if note.release in ledger.releases():
            return note.name, note.study or context.options.study
    require_consent(context, kind, source, ledger)
    if earlier is None:
        fresh = ChargeNote(
            kind=kind,
            made_from=context.made_from,
            name=secrets.token_hex(12),
            study=context.options.study,
            recipe=_recipe_digest(context),
        )
        with _private_draft(context, begun) as draft:
            fresh.save(draft, begun=True)
        earlier = context.store.open(begun, context.made_from)  # of two at once, the first
    note = ChargeNote.load(earlier)
    return note.name, note.study or context.options.study  # for none: that of who resumes it


def _pay(context: Context, answer: Artifact, ledger: Ledger) -> None:
    """Charge a draw for what was recorded with it; the same draw is never charged twice."""
    note = ChargeNote.load(answer)
    paid = ledger.releases()
    if note.extends is not None and note.extends not in paid:
        raise LedgerError(
            f"the ledger at {ledger.path} lacks the charge that this answer builds on; restore "
            "the ledger from a backup"
        )
    if not note.events:
        return
    prefix = charge_name(note.kind, context.made_from)
    elsewhere = note.release not in paid and any(each.startswith(prefix) for each in paid)
    if elsewhere and not context.options.spend:
        raise SpendNeeded(_paid_elsewhere(ledger, prefix))  # also by an earlier version
    # What was paid for before is charged once more, which is the same charge: a crash may have left
    # it without some of its tags.
    own = note.study
    if note.release not in paid:
        own = own or context.options.study
    try:
        _charge(
            context,
            note.kind,
            ledger,
            note.events,
            name=note.name,
            studies=_tags(ledger, own, note.builds_on),
            family=note.settings,
        )
    except BudgetExceeded:
        context.store.discard(answer)
        raise


def _charge(
    context: Context,
    kind: str,
    ledger: Ledger,
    events: Iterable[Event],
    *,
    name: str,
    studies: Sequence[str],
    family: Iterable[str],
) -> None:
    """Charge a draw; another one for the same data and settings only with ``--spend``.

    What it will cost is reported first, with the ledger's place.
    """
    release = charge_name(kind, context.made_from, name)
    relation = context.recipe.neighbours
    events = tuple(events)
    if release not in ledger.releases():
        ledger.require_room(events, records=relation)
        context.options.report(str(PlannedCharge.make(ledger, events, records=relation)))
    try:
        for study in studies or (None,):  # charging it again adds the next tag, and costs nothing
            ledger.charge(
                events,
                release=release,
                study=study,
                settings=[fingerprint("drawn", kind, context.made_from)[:40]],
                again=context.options.spend,
                family=family,
                records=relation,
                group=context.recipe.protected_group,
            )
    except ReleaseConflict as error:
        prefix = charge_name(kind, context.made_from)
        raise SpendNeeded(_paid_elsewhere(ledger, prefix)) from error


def _tags(ledger: Ledger, own: str | None, builds_on: Collection[str]) -> list[str]:
    """Return the studies of a charge: its own, and those of the charges that it builds on."""
    inherited = [
        study
        for each in (ledger.charges() if builds_on else [])
        if each.release.startswith(tuple(builds_on))
        for study in each.studies
    ]
    return list(dict.fromkeys([*([] if own is None else [own]), *inherited]))


def covers_unit(recipe: Recipe, ledger: Ledger) -> bool:
    """Return whether the total of a ledger protects what a run of this recipe does.

    A total over releases that protect single records is not one for all records of one user.
    """
    return recipe.protected_group is None or ledger.coverage() is Coverage.USER


def guarantee_of_all(recipe: Recipe, ledger: Ledger) -> Guarantee:
    """Return the ledger's guarantee as that of a run; refuse one that protects less."""
    if not covers_unit(recipe, ledger):
        raise LedgerError(
            f"the ledger at {ledger.path} holds releases that protect single records only, so its "
            "total is no guarantee for all records of one user; draw the labels anew, with --spend"
        )
    return ledger.guarantee()


# --- consent, and what is paid for --------------------------------------------------------------


def require_consent(
    context: Context, kind: str, source: str, ledger: Ledger, *, sources: Collection[str] = ()
) -> None:
    """Refuse a second draw from one source, and second labels in one run, without consent.

    Whether the votes are the same does not matter: an answer to that would be about private data.
    """
    if context.options.spend:
        return
    paid = ledger.releases()
    own = charge_name(kind, context.made_from)
    if any(each.startswith(own) for each in paid):
        raise SpendNeeded(_paid_elsewhere(ledger, own))
    for earlier in [
        *context.store.all(f"pending-{kind}"),
        *context.store.all(f"begun-{kind}"),
    ]:
        note = ChargeNote.load(earlier)
        known = set(note.sources) or {earlier.manifest["inputs"].get(source)}
        same = not known.isdisjoint(sources or [context.provenance[source]])
        prefix = charge_name(kind, earlier.manifest["made_from"])
        if not any(each.startswith(prefix) for each in paid):
            continue
        if context.options.study is not None:
            if note.recipe == _recipe_digest(context):
                raise SpendNeeded(
                    "this study has paid for labels with the same settings, of other records or by "
                    "another plug-in; new ones cost again: undo the change, choose an --out of "
                    "another name, or add --spend to pay for them"
                )
            continue
        if same:
            raise SpendNeeded(
                f"{kind} of the same {source} were released before, with other settings; releasing "
                "them again costs again: add --spend to pay for it"
            )
        if kind == LABELS:
            raise SpendNeeded(
                "this run has paid for labels of other teachers or records; new ones cost again: "
                "undo the change (`pate status` names it), or add --spend to pay for them"
            )


def _paid_elsewhere(ledger: Ledger, prefix: str) -> str:
    charge = next(each for each in ledger.charges() if each.release.startswith(prefix))
    study = f" for the study “{charge.studies[0]}”" if charge.studies else ""
    return (
        f"the ledger at {ledger.path} has already paid for this release{study}, and its answer is "
        "not in this run; resume in the folder where it is, or, to draw a new one and pay again, "
        "add --spend"
    )


def require_charged(store: Store, kind: str, drawn: str, *, ledger: Path) -> None:
    """Refuse to use an answer that is released and that the ledger knows nothing of.

    ``drawn`` is the fingerprint that it was drawn for. A ledger that was lost, or restored from an
    older copy, would count less than was spent.
    """
    paid = releases_in_ledger(ledger)
    names, begin = charges_behind(store, kind, drawn), charge_name(kind, drawn)
    known = paid.issuperset(names) if names else any(each.startswith(begin) for each in paid)
    if not known:
        raise LedgerError(
            f"the ledger at {ledger} lacks the charge of {kind} that are released in {store.root}, "
            "so what was spent is not known: restore the ledger from a backup that was made after "
            "that release"
        )


def releases_in_ledger(ledger: Path) -> set[str]:
    """Return the names of all charges in a ledger's file; none where there is no file."""
    if not ledger.exists():
        return set()
    with Ledger.open(ledger) as opened:
        return opened.releases()


def require_paid(run: PipelineRun) -> None:
    """Refuse a run whose ledger lacks a charge of something that is released in its folder.

    Such a ledger was lost, or is older than the release: whatever it reports of the data set is too
    little. Also releases of settings that are not asked for now count, and seeded ones, by their
    own ledger. :meth:`PipelineRun.execute` refuses a folder that belongs to another ledger.
    """
    if run.is_at_home():
        require_paid_in(run.store, run.recipe, run.options.data_root)


def require_paid_in(store: Store, recipe: Recipe, data_root: Path) -> None:
    """Refuse as :func:`require_paid`, whatever folder the run's ledger was in."""
    for kind, drawn, seeded in _released(store):
        require_charged(store, kind, drawn, ledger=ledger_path(recipe, data_root, seeded=seeded))


def _released(store: Store) -> Iterator[tuple[str, str, bool]]:
    """Yield what was released and paid for: its kind, what it was drawn for, whether seeded."""
    for each in store.all("aggregate"):
        drawn = drawn_for(each)
        if drawn is not None:
            yield LABELS, drawn, is_seeded(each)
    for each in store.all("account"):
        drawn = drawn_for(each)
        if drawn is not None:
            costs = Costs.load(store.open("account", str(each.manifest["made_from"])))
            if costs.sanitised is not None and costs.sanitised.price:
                yield SANITISED, drawn, costs.seeded


# --- rounds ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """Inputs to ask about, in this order, and their answers."""

    rows: NDArray[np.int64]  # of the public inputs; distinct, also from those of other rounds
    release: Release  # counts its queries from 0, the first of the rows
    shown: NDArray[Any] | None = None  # a student's probabilities of the rows

    @property
    def asked(self) -> NDArray[np.int64]:
        return self.rows[: self.release.asked]

    @property
    def answered(self) -> NDArray[np.int64]:
        return self.rows[self.release.answered]

    @property
    def kept(self) -> NDArray[np.int64]:
        return self.rows[self.release.kept]


def draw_once(
    context: Context, ledger: Ledger, *, course: str, number: int, draw: Callable[[], Round]
) -> Round:
    """Return a round of the course that was paid for under this name: as it was drawn, or now.

    Guarantees:
        * What is returned is on disk and marked beside the ledger, under a token of its own. The
          mark is made in one step and only once; so of two drawings of one round (in a copy of the
          run folder, or by two processes) at most one is ever returned, to anybody.
        * A crash before the round is on disk shows nothing of it, so drawing it anew is the first
          drawing; after a later crash the run resumes with what is there.
    """
    made_from = fingerprint(context.made_from, course, number)
    mark = ledger.path.with_name(f"{ledger.path.name}.rounds") / f"{course}-{number}"
    if context.store.find(_ROUND, made_from) is None:
        if mark.exists():
            raise _drawn_elsewhere(context, number)
        drawn = draw()
        with _private_draft(context, _ROUND, made_from) as draft:
            _save_round(draft, drawn)
            draft.facts["token"] = secrets.token_hex(12)
    kept = context.store.open(_ROUND, made_from)  # of two processes at once, the first one's
    if not _claim(mark, str(kept.facts["token"])):
        raise _drawn_elsewhere(context, number)
    return _load_round(kept)


def _drawn_elsewhere(context: Context, number: int) -> LedgerError:
    begun = context.store.folder(f"begun-{LABELS}", Level.PRIVATE, context.made_from)
    return LedgerError(
        f"round {number + 1} of this release was drawn before, and what is here is not it (the run "
        "is a copy, or was restored from one); resume in the folder where it was drawn, or remove "
        f"{begun} and add --spend to start again and pay again"
    )


def _claim(mark: Path, token: str) -> bool:
    """Return whether the mark holds this token; it is written whole, and by the first."""
    try:
        mark.parent.mkdir(mode=0o700, exist_ok=True)
        create_once(mark, token.encode())
        return mark.read_text() == token
    except OSError as error:
        raise StoreError(
            f"cannot mark a round as drawn in {mark.parent}: {error.strerror}"
        ) from error


def _save_round(draft: Draft, drawn: Round) -> None:
    release = drawn.release
    arrays = {
        "rows": drawn.rows,
        "labels": release.labels,
        "answered": release.answered,
        "kept": release.kept,
        "kept_labels": release.kept_labels,
        "shown": drawn.shown,
    }
    for name, values in arrays.items():
        if values is not None:
            draft.save_array(f"{name}.npy", values)
    draft.save_json("events.json", [event_to_json(event) for event in release.events])
    draft.facts["asked"] = release.asked


def _load_round(kept: Artifact) -> Round:
    def array(name: str) -> NDArray[Any]:
        return np.array(kept.array(f"{name}.npy"))

    return Round(
        rows=array("rows"),
        release=Release(
            labels=array("labels"),
            answered=array("answered"),
            events=tuple(event_from_json(text) for text in kept.json("events.json")),
            asked=int(kept.facts["asked"]),
            kept=array("kept"),
            kept_labels=array("kept_labels"),
        ),
        shown=array("shown") if (kept.path / "shown.npy").is_file() else None,
    )
