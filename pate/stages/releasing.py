"""Exactly-once release: prepare in private → charge → publish.

Every draw of noise has a name of its own, chosen at random, and is charged under that name with the
events that were written down beside it. So a charge belongs to one draw: two drafts of one release,
in two folders or after a crash, cannot share a payment.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from pate.accounting import Event, Ledger, event_from_json, event_to_json
from pate.artifacts import Artifact, Draft, Level, Store, fingerprint
from pate.errors import BudgetExceeded, LedgerError, ReleaseConflict, SpendNeeded
from pate.pipeline.recipe import Recipe
from pate.pipeline.secret import naming_key
from pate.pipeline.stage import Context

_CHARGE = "charge.json"


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
    """Draws an answer, pays for it, and only then lets it out.

    ``source`` names the input the answer is drawn from: another answer from the same source is
    another release. An answer drawn from several gives their fingerprints as ``sources``, and one
    of them in common is enough. ``prepare`` draws the answer into a draft; it is told the draw's
    own name. ``pay_first`` charges before anything is drawn, for answers that are shown to somebody
    (a student) on the way: the name is then written down before the charge, and a run that was
    killed goes on under it. What was drawn by then ``prepare`` keeps itself
    (:mod:`pate.stages.rounds`). ``extends`` is the charge of an earlier answer that is given out
    again as it was; ``events`` are then what comes on top. ``settings`` are the digests of all
    that could have been drawn, where that is more than the recipe (:func:`settings_of`).
    ``builds_on`` are the charges of answers that this one is worked out from.

    Guarantees:
        * What is charged was written down with the draw, and is charged under the draw's own random
          name. Nothing is published without its charge in the ledger.
        * A crash before the charge costs nothing; a crash after it is finished on the next run,
          with the stored answer. A charge that is refused drops the answer.
        * A second draw of what was paid for before, here or from another folder, is refused unless
          the user says ``--spend``. A study asked for all its settings at once, so there only what
          was paid for and is lost needs that word.
        * A charge carries the tags of its studies from the moment it is made: of the study that the
          draw was made for, which is recorded with it, and of those whose answers it extends or
          builds on. Nothing is published before all of them are there.
    """
    pending = f"pending-{kind}"
    if settings is None:
        settings = [settings_of(context.recipe, context.options.data_root)]
    drawn_from = sorted(sources) or [context.provenance[source]]
    study = context.options.study
    behind = sorted({*builds_on, *([] if extends is None else [extends])})
    answer = _stored(context, pending)
    if answer is None:
        if pay_first:
            name, study = _begin(context, kind, source, ledger)
            tags = _tags(ledger, study, behind)
            _charge(context, kind, ledger, events, name=name, studies=tags, family=settings)
        else:
            if extends is None:
                require_consent(context, kind, source, ledger, sources=drawn_from)
            name = secrets.token_hex(12)
        with context.store.draft(
            pending, context.made_from, level=Level.PRIVATE, inputs=context.provenance
        ) as draft:
            prepare(draft, name)
            note = {
                "name": name,
                "events": [event_to_json(event) for event in events],
                "extends": extends,
                "study": study,
                "sources": drawn_from,
                "settings": sorted(settings),
                "builds_on": behind,
            }
            draft.save_json(_CHARGE, note)
            draft.facts["charges"] = _named(context, kind, name, extends)
        answer = context.store.open(pending, context.made_from)
    _pay(context, kind, answer, ledger)
    with context.draft(Level.RELEASED) as draft:
        publish(answer, draft)
        draft.facts.pop("charges", None)  # a name is chance: the same labels have the same digest
        draft.facts["drawn"] = context.made_from


def paid_answers(context: Context, kind: str, ledger: Ledger) -> dict[str, Artifact]:
    """Answers in this run by their own charge, where it is in the ledger; their files checked."""
    paid = ledger.releases()
    pending = f"pending-{kind}"
    found = {}
    for each in context.store.all(pending):
        answer = context.store.open(pending, each.manifest["made_from"])
        name = answer.json(_CHARGE)["name"]
        release = _release_id(kind, answer.manifest["made_from"], name)
        if release in paid:
            found[release] = answer
    return found


def require_charged(store: Store, kind: str, drawn: Iterable[str], *, ledger: Path) -> None:
    """Refuses to go on with answers that are released and that the ledger knows nothing of.

    ``drawn`` are the fingerprints that they were drawn for. A ledger that was lost, or brought back
    from an older copy, would count less than was spent.
    """
    paid = releases_in_ledger(ledger)
    for each in drawn:
        names, begin = charges_behind(store, kind, each), _release_id(kind, each, "")
        known = paid.issuperset(names) if names else any(one.startswith(begin) for one in paid)
        if not known:
            raise LedgerError(
                f"the ledger at {ledger} lacks the charge of {kind} that are released in "
                f"{store.root}, so what was spent is not known: restore the ledger from a backup "
                "that was made after that release"
            )


def releases_in_ledger(ledger: Path) -> set[str]:
    """The names of all charges in a ledger's file; none where there is no file."""
    if not ledger.exists():
        return set()
    with Ledger.open(ledger) as opened:
        return opened.releases()


def settings_of(recipe: Recipe, data_root: Path) -> str:
    """A digest of what is asked of whom, under the data set's key.

    It is the same for all draws with these settings, whatever the seeds, the plug-ins, the records,
    δ and how many are asked: by it a draw is known again that was chosen by the results of another.
    """
    how_to_run = {"seed", "timeout", "cpus", "gpus", "batched", "retries", "on_error"}
    asked = {
        "partition": recipe.partition.model_dump(mode="json", include={"method", "by"}),
        "teachers": recipe.teachers.model_dump(mode="json", exclude=how_to_run),
        "aggregate": recipe.aggregate.model_dump(
            mode="json", exclude={"choose_seed", "queries", "answers"}
        ),
    }
    return fingerprint(naming_key(recipe, data_root), asked)[:40]


def charges_behind(store: Store, kind: str, drawn: str) -> list[str]:
    """The names of the charges for an answer in this store: its own, then those it builds on.

    ``drawn`` is the fingerprint that it was drawn for. No file of the answer is read. Where its
    draw is not here, or was made before names were noted in its manifest, there are none.
    """
    answer = store.find(f"pending-{kind}", drawn)
    return [] if answer is None else list(answer.facts.get("charges", ()))


def _named(context: Context, kind: str, name: str, extends: str | None) -> list[str]:
    """As :func:`charges_behind`, for an answer that is being drawn."""
    own = _release_id(kind, context.made_from, name)
    if extends is None:
        return [own]
    drawn = [each.facts.get("charges", ()) for each in context.store.all(f"pending-{kind}")]
    behind = next((names for names in drawn if names and names[0] == extends), [extends])
    return [own, *behind]


def _stored(context: Context, pending: str) -> Artifact | None:
    if context.store.find(pending, context.made_from) is None:
        return None
    return context.store.open(pending, context.made_from)  # checked against its manifest


def _begin(context: Context, kind: str, source: str, ledger: Ledger) -> tuple[str, str | None]:
    """The name of a draw that is paid for first, and its study: as begun before, or a new one."""
    begun = f"begun-{kind}"
    earlier = _stored(context, begun)
    if earlier is not None:
        name = str(earlier.json(_CHARGE)["name"])
        if _release_id(kind, context.made_from, name) in ledger.releases():
            return name, _study(context, earlier)
    require_consent(context, kind, source, ledger)
    if earlier is None:
        with context.store.draft(
            begun, context.made_from, level=Level.PRIVATE, inputs=context.provenance
        ) as draft:
            note = {"name": secrets.token_hex(12), "study": context.options.study}
            draft.save_json(_CHARGE, note)
        earlier = context.store.open(begun, context.made_from)  # of two at once, the first
    return str(earlier.json(_CHARGE)["name"]), _study(context, earlier)


def _study(context: Context, drawn: Artifact) -> str | None:
    """Return the study that a draw was made for; where it was for none, that of who resumes it."""
    written: str | None = drawn.json(_CHARGE).get("study")
    return written or context.options.study


def _pay(context: Context, kind: str, answer: Artifact, ledger: Ledger) -> None:
    """Charges a draw for what was written down with it; the same draw is never charged twice."""
    charge = answer.json(_CHARGE)
    events = [event_from_json(text) for text in charge["events"]]
    release = _release_id(kind, context.made_from, charge["name"])
    paid = ledger.releases()
    if charge["extends"] is not None and charge["extends"] not in paid:
        raise LedgerError(
            f"the ledger at {ledger.path} lacks the charge that this answer builds on; restore "
            "the ledger from a backup"
        )
    if not events:
        return
    prefix = _release_id(kind, context.made_from, "")
    elsewhere = release not in paid and any(each.startswith(prefix) for each in paid)
    if elsewhere and not context.options.spend:
        raise SpendNeeded(_paid_elsewhere(ledger, prefix))  # also by an earlier version
    # What was paid for before is charged once more, which is the same charge: a crash may have left
    # it without some of its tags.
    own = charge.get("study") if release in paid else _study(context, answer)
    try:
        _charge(
            context,
            kind,
            ledger,
            events,
            name=charge["name"],
            studies=_tags(ledger, own, charge.get("builds_on", ())),
            family=charge.get("settings", ()),
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
    """Charge a draw; another one for the same data and settings only with ``--spend``."""
    prefix = _release_id(kind, context.made_from, "")
    try:
        for study in studies or (None,):  # charging it again adds the next tag, and costs nothing
            ledger.charge(
                events,
                release=f"{prefix}{name}",
                study=study,
                settings=[fingerprint("drawn", kind, context.made_from)[:40]],
                again=context.options.spend,
                family=family,
                records=context.recipe.partition.neighbours,
            )
    except ReleaseConflict as error:
        raise SpendNeeded(_paid_elsewhere(ledger, prefix)) from error


def _tags(ledger: Ledger, own: str | None, builds_on: Collection[str]) -> list[str]:
    """Return the studies of a charge: its own, and those of the charges that it builds on."""
    inherited = [
        study
        for each in (ledger.charges() if builds_on else [])
        if each.release in builds_on
        for study in each.studies
    ]
    return list(dict.fromkeys([*([] if own is None else [own]), *inherited]))


def require_consent(
    context: Context, kind: str, source: str, ledger: Ledger, *, sources: Collection[str] = ()
) -> None:
    """Refuses a second draw from one source unless the user agrees to pay for it."""
    if context.options.spend:
        return
    paid = ledger.releases()
    own = _release_id(kind, context.made_from, "")
    if any(each.startswith(own) for each in paid):
        raise SpendNeeded(_paid_elsewhere(ledger, own))
    if context.options.study is not None:
        return
    for earlier in (
        each for s in ("pending", "begun") for each in context.store.all(f"{s}-{kind}")
    ):
        same = not _sources(earlier, source).isdisjoint(sources or [context.provenance[source]])
        prefix = _release_id(kind, earlier.manifest["made_from"], "")
        if same and any(each.startswith(prefix) for each in paid):
            raise SpendNeeded(
                f"{kind} of the same {source} were released before, with other settings; releasing "
                "them again costs again: add --spend to pay for it"
            )


def _sources(drawn: Artifact, source: str) -> set[str]:
    """The fingerprints of what an answer was drawn from."""
    return set(drawn.json(_CHARGE).get("sources", ())) or {drawn.manifest["inputs"].get(source)}


def _paid_elsewhere(ledger: Ledger, prefix: str) -> str:
    charge = next(each for each in ledger.charges() if each.release.startswith(prefix))
    study = f" for the study “{charge.studies[0]}”" if charge.studies else ""
    return (
        f"the ledger at {ledger.path} has already paid for this release{study}, and its answer is "
        "not in this run; go on in the folder where it is, or, to draw a new one and pay again, "
        "add --spend"
    )


def _release_id(kind: str, made_from: str, name: str) -> str:
    return f"{kind} {made_from[:40]} {name}"
