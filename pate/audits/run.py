"""The audit of a finished run: every attack that applies, on what it released. PRIVATE.

Attacks are functions over arrays in the other modules; this one gives them the records, models and
trainings of a run. Nothing is written but by :meth:`pate.audits.results.Audit.write`, below the
run's private folder, and no ledger is opened for writing: models that are trained for an audit are
thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate._format import describe_neighbours, in_nouns
from pate.accounting import Guarantee
from pate.artifacts import fingerprint
from pate.artifacts.results import Costs, Evaluation
from pate.audits.findings import LABELS, TABLE, Finding
from pate.audits.leave_one_out import (
    Exposure,
    component_exposure,
    record_exposure,
    teacher_exposure,
)
from pate.audits.options import AuditOptions, Results
from pate.audits.predictions import Labelled, Predict, check_labels, gives_confidences
from pate.audits.results import Audit, Claim, Exposed
from pate.audits.retraining import IntArray, Retraining
from pate.audits.targets import (
    REFERENCE,
    STUDENT,
    Pool,
    Target,
    attack_membership,
    attack_pool,
    attributes,
)
from pate.components import Components
from pate.engines.progress import Silence
from pate.errors import ConditionsFail, InvalidInput, StoreError
from pate.mechanisms import count_mechanism, voting_mechanism
from pate.partition import Shards, partition, record_shards
from pate.pipeline.runner import PipelineRun
from pate.releases.files import SUMS
from pate.stages.aggregate import round_edges
from pate.stages.encode import public_features
from pate.teachers.adapters import make
from pate.teachers.spec import model_for, seed_for

_ALL_ALIKE = (
    "Every record that votes changes the table by one vote, and the noise does not depend on the "
    "counts: the realised ε is the same for all of them."
)
_BY_LENGTH = (
    "Every record that votes changes the table by a vector of one vote at most, and the noise does "
    "not depend on the sums: the realised ε follows from its length."
)
_STOPPED = (
    "Answers are capped: the realised ε of records adds up the checks and answers that were made, "
    "and does not weigh when they end; the bound is of the first queries, which are always asked."
)
_ROUNDS = (
    "Answers decide what the next round asks: the realised ε of records adds up the queries that "
    "were asked, and does not weigh others; the bound is of the first round, which is fixed."
)
_SLICES = "teachers that learn slice by slice are not trained again here"
_BY_LABELS = (
    "Attacks by confidences on the {}: its model gives no probabilities; label attacks alone apply."
)
_LEAST_DELTA = 1e-9  # of bounds on a pure ε, which holds at every δ
_MOST_CANARIES = 10_000
_SHOWN = 12  # most exposed records on the page
_FOLDER = "audit"  # of what an interrupted audit resumes from


# --- opening ------------------------------------------------------------------------------------


def require_run(folder: Path) -> None:
    """Refuse what is no run's folder, in one line."""
    if (folder / SUMS).is_file():
        raise InvalidInput(
            f"{folder} is a release: an audit needs the private records of the run it was made "
            "from; give that run's folder"
        )


def audit_pate(run: PipelineRun, options: AuditOptions, *, pool: Pool | None = None) -> Audit:
    """Attack the labels and the student of a finished run of PATE. PRIVATE.

    Parameters
    ----------
    run : PipelineRun
        The run, with its private folder at hand.
    options : AuditOptions
        The extent of the audit.
    pool : Pool, optional
        The records of membership attacks; by default drawn from those of the run.
    """
    again = open_retraining(run)
    costs = Costs.load(run.artifact("account"))
    claim = Claim(
        epsilon=costs.guarantee.epsilon,
        delta=costs.guarantee.delta,
        protects=in_nouns(costs.protects, **run.recipe.nouns),
    )
    results, released = Results(options), TABLE if run.recipe.by_records else LABELS
    exposure, rows = None, np.empty(0, dtype=np.int64)
    if "leave-one-out" in options.attacks:
        with results.part("leave-one-out"):
            exposure, rows, note = _leave_one_out(again, claim, options)
            results.findings.append(exposure.finding(target=released, note=note))
    if "membership" in options.attacks:
        _pate_membership(again, results, pool or draw_pool(again, seed=options.seed))
    if "canaries" in options.attacks:
        with results.part("canaries"):
            results.findings.append(_canaries(again, claim, options))
    names = [each.name for each in Evaluation.load(run.artifact("evaluate")).classes]
    labels = np.array(run.artifact("data").array("labels.npy"))
    if costs.seeded:
        results.notes.append("The noise of this run was seeded: its ε is claimed for tests only.")
    return Audit(
        subject=f"{run.recipe.data.name}: {run.recipe.asked}",
        claims=dict.fromkeys((released, STUDENT), claim),
        findings=tuple(results.findings),
        realised=None if exposure is None else exposure.epsilons,
        exposed=() if exposure is None else _most_exposed(exposure, rows, labels, names),
        skipped=tuple(results.skipped),
        notes=tuple(results.notes),
        faults=again.faults(),
        one_population=run.recipe.data.divided,
        seconds=results.seconds,
    )


def open_retraining(run: PipelineRun) -> Retraining:
    """Return a finished run whose private records are here."""
    undone = next((each for each in run.states() if not each.done), None)
    if undone is not None and undone.stage == run.stages[0].name:
        raise InvalidInput(
            f"the private records of {run.folder} are not at hand: an audit looks at them; audit "
            "the run where it was made"
        )
    if undone is not None:
        raise InvalidInput(
            f"{run.folder} is not finished: {undone.stage} is {undone.why}; complete it by "
            "`pate run`, then audit it"
        )
    if run.options.exclusions is not None and run.options.exclusions.stands_for:
        raise InvalidInput(
            f"{run.folder} has forgotten records that its labels were drawn from, so its teachers "
            "are not those behind them; pay for new labels first: pate forget "
            f"{run.folder} --spend"
        )
    try:
        again = Retraining(run=run)
        again.private()
    except (StoreError, OSError) as error:
        raise InvalidInput(
            f"the private records of {run.folder} are not at hand: {error}"
        ) from None
    return again


def audit_model(
    model: Any,
    members: Labelled | None,
    others: Labelled | None,
    *,
    options: AuditOptions,
    population: Labelled | None = None,
    fit: Any = None,
    guarantee: Guarantee | None = None,
) -> Audit:
    """Attack any fitted model by membership inference. PRIVATE: see :func:`pate.audit`."""
    if members is None or others is None:
        raise InvalidInput(
            f"{type(model).__name__} is audited as a model: give members and others, records it "
            "was and was not trained on, each with labels"
        )
    parts = [_labelled("members", members), _labelled("others", others)]
    if population is not None:
        parts.append(_labelled("population", population))
    if len({np.shape(X)[1:] for X, _ in parts}) > 1:
        shapes = ", ".join(str(np.shape(X)) for X, _ in parts)
        raise InvalidInput(f"members and others have shapes {shapes}; give records of one form")
    name = "model" if callable(model) and not hasattr(model, "predict") else type(model).__name__
    shadows = 0 if fit is None else (options.shadows if options.shadows is not None else 16)
    target = Target(name=name, model=model, fit=fit, shadows=shadows)
    start = time.perf_counter()
    found = attack_membership(target, members, others, population=population, seed=options.seed)
    claims = {}
    if guarantee is not None:
        protects = describe_neighbours(guarantee.neighbours.value)
        claims[name] = Claim(epsilon=guarantee.epsilon, delta=guarantee.delta, protects=protects)
    skipped = () if gives_confidences(model) else (_BY_LABELS.format(name),)
    return Audit(
        subject=name,
        claims=claims,
        skipped=skipped,
        findings=tuple(found),
        one_population=True,
        seconds={"membership inference": time.perf_counter() - start},
    )


def _labelled(name: str, given: Any) -> Labelled:
    try:
        X, y = given
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{name} are no pair of records and labels; give them as (X, y)"
        ) from None
    check_labels(np.asarray(y), records=len(X))
    return X, y


# --- leave-one-out ------------------------------------------------------------------------------


def _leave_one_out(
    again: Retraining, claim: Claim, options: AuditOptions
) -> tuple[Exposure, IntArray, str]:
    """Return the exposure of records, the row of each among the private ones, and a note."""
    recipe, data = again.run.recipe, again.run.artifact("data")
    ids, groups = data.json("ids.json"), data.json("groups.json")
    owners = None if recipe.protected_group is None else groups
    if recipe.selection is not None:
        raise ConditionsFail("the settings were chosen privately among several runs")
    if recipe.by_records:
        shards, _ = record_shards(
            ids, spec=recipe.partition, groups=groups, per_user=recipe.per_user
        )
        note = _ALL_ALIKE if recipe.votes.components is None else _BY_LENGTH
        return *_of_records(again, claim, shards.order, owners), note
    if recipe.teachers.slices > 1:
        raise ConditionsFail(_SLICES)
    mechanism, plan = voting_mechanism(recipe.aggregate), again.labels.plan
    shards = partition(ids, teachers=recipe.teachers.count, spec=recipe.partition, groups=groups)
    always, notes = len(again.labels.asked), []
    if mechanism.checks and plan.answers < plan.queries:
        always, notes = min(always, plan.answers), [_STOPPED]
    if recipe.aggregate.in_rounds:
        first = int(round_edges(plan.queries, rounds=recipe.aggregate.rounds)[1])
        always, notes = min(always, first), [*notes, _ROUNDS]
    found = _of_teachers(again, claim, shards, owners, options, always_asked=always)
    return *found, " ".join(notes)


def _of_records(
    again: Retraining, claim: Claim, order: IntArray, owners: Sequence[str] | None
) -> tuple[Exposure, IntArray]:
    recipe = again.run.recipe
    _, seen, labels = again.private()
    users = None if owners is None else [owners[row] for row in order]
    known: dict[str, Any] = {
        "mechanism": count_mechanism(recipe.aggregate),
        "delta": claim.delta,
        "classes": again.classes,
        "groups": users,
    }
    if isinstance(again.cells, Components):
        exposure = component_exposure(again.cells.coordinates(seen), labels, **known)
    else:
        places = again.cells.nearest(seen, reach=recipe.votes.reach)
        exposure = record_exposure(places, labels, **known)
    return exposure, order if users is None else order[np.unique(users, return_index=True)[1]]


def _of_teachers(
    again: Retraining,
    claim: Claim,
    shards: Shards,
    owners: Sequence[str] | None,
    options: AuditOptions,
    *,
    always_asked: int,
) -> tuple[Exposure, IntArray]:
    run, recipe = again.run, again.run.recipe
    _, seen, labels = again.private()
    slices = [slice(*pair) for pair in pairwise(shards.offsets.tolist())]
    chosen = _sampled(labels, options.records, seed=options.seed)
    left_out = {
        number: _units(shards.order[part], owners, chosen[part])
        for number, part in enumerate(slices)
    }
    rows = [
        int(shards.order[slices[number].start + unit[0]])
        for number, units in left_out.items()
        for unit in units
    ]
    votes = run.artifact("vote").array("counts.npy")[np.array(again.labels.asked)]
    mechanism = voting_mechanism(recipe.aggregate)
    # Refused before hours of fitting, if at all.
    mechanism.neighbour_chances(votes[:1].astype(np.int64), np.array([0]), np.array([1]))
    origin = [run.artifact(name).key for name in ("teach", "aggregate")]
    name = fingerprint(*origin, options.records, options.seed)[:16]
    show = options.progress or _no_progress
    with show("leave-one-out", len(rows), 0) as progress:
        exposure = teacher_exposure(
            [(np.asarray(seen[part]), labels[part]) for part in slices],
            again.asked,
            make=again.teacher,
            votes=votes,
            mechanism=mechanism,
            delta=claim.delta,
            seeds=[seed_for(recipe.teachers, number) for number in range(shards.count)],
            left_out=left_out,
            always_asked=always_asked,
            folder=run.folder / "private" / _FOLDER / name,
            progress=progress,
        )
    return exposure, np.array(rows, dtype=np.int64)


@contextmanager
def _no_progress(title: str, total: int, done: int, slots: int | None = None, /) -> Iterator[Any]:
    yield Silence()


def _units(
    order: IntArray, owners: Sequence[str] | None, chosen: NDArray[np.bool_]
) -> list[IntArray]:
    """Return the places in a shard to leave out together: single records, or those of a user."""
    if owners is None:
        return [np.array([place]) for place in np.flatnonzero(chosen)]
    users: dict[str, list[int]] = {}
    for place, row in enumerate(order.tolist()):
        users.setdefault(owners[row], []).append(place)
    return [np.array(places) for places in users.values() if chosen[places].any()]


def _sampled(labels: IntArray, most: int | None, *, seed: int) -> NDArray[np.bool_]:
    """Return which records are taken: all, or as many of each class as its share."""
    chosen = np.ones(len(labels), dtype=bool)
    if most is None or most >= len(labels):
        return chosen
    order = np.random.default_rng(seed).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    chosen[:] = False
    chosen[by_class[np.linspace(0, len(labels) - 1, most).round().astype(int)]] = True
    return chosen


def _most_exposed(
    exposure: Exposure, rows: IntArray, labels: IntArray, names: Sequence[str]
) -> tuple[Exposed, ...]:
    first = [place for place in exposure.order[:_SHOWN] if exposure.epsilons[place] > 0]
    if len({float(exposure.epsilons[place]) for place in first}) == 1 and len(first) == _SHOWN:
        return ()  # all alike: there is nothing to show of single ones
    return tuple(
        Exposed(
            record=int(rows[place]),
            label=names[int(labels[rows[place]])],
            epsilon=float(exposure.epsilons[place]),
            changed=int(exposure.changed[place]),
        )
        for place in first
    )


# --- membership ---------------------------------------------------------------------------------


def draw_pool(again: Retraining, *, seed: int) -> Pool:
    """Return private and test records of a run, to attack models with."""
    raw, _, labels = again.private()
    return Pool.drawn((raw, labels), again.test(), seed=seed)


def _pate_membership(again: Retraining, results: Results, pool: Pool) -> None:
    """Attack the student, and the same model fitted to private labels."""
    from pate.releases.export import own_student

    seed = results.options.seed
    views = again.as_student_sees(pool.records)
    student = own_student(again.run)
    plain: dict[str, Any] = {
        "numeric": not again.context.inputs["data-public"].facts.get("categories"),
        "columns": attributes(again.columns, pool.records),
    }

    with results.part(f"membership inference on the {STUDENT}"):
        features = again.as_teachers_see(pool.records)

        def fit_student(some: Any, y: Any, own: int) -> Predict:
            ids = [f"row {row}" for row in some]
            model = again.student(features[some], np.asarray(y), ids=ids, seed=own)
            return lambda wanted: again.confidences(model)(views[wanted])

        if student.model.probabilities is None:
            results.skipped.append(_BY_LABELS.format(STUDENT))
            target = Target(name=STUDENT, model=_Labels(student.labels_of), **plain)
        else:
            shadows = results.affordable_shadows(STUDENT, partial(fit_student, *pool.rows(0), seed))
            target = Target(
                name=STUDENT,
                model=student.probabilities_of,
                fit=fit_student,
                by_rows=lambda rows: student.probabilities_of(pool.records[rows]),
                shadows=shadows,
                **plain,
            )
        results.findings += attack_pool(target, pool, seed=seed)

    with results.part(f"membership inference on a {REFERENCE}"):

        def fit_reference(some: Any, y: Any, own: int) -> Predict:
            model = again.reference(views[some], np.asarray(y), seed=own)
            return lambda wanted: again.confidences(model)(views[wanted])

        start = time.process_time()
        model = again.reference(views[pool.numbers[0]], pool.labels[pool.numbers[0]], seed=seed)
        shadows = results.affordable_shadows(REFERENCE, seconds=time.process_time() - start)
        ask = again.confidences(model)
        target = Target(
            name=REFERENCE,
            model=lambda X: ask(again.as_student_sees(X)),
            fit=fit_reference,
            by_rows=lambda rows: ask(views[rows]),
            shadows=shadows,
            **plain,
        )
        if hasattr(model, "predict_proba"):
            results.findings += attack_pool(target, pool, seed=seed)


# --- canaries -----------------------------------------------------------------------------------


def _canaries(again: Retraining, claim: Claim, options: AuditOptions) -> Finding:
    """Run the pipeline once more with canaries, in the view that teachers have; nothing is kept.

    Canaries are made of test records, which are public, with labels that are not their own.
    """
    from pate.audits.canaries import audit_pate as audit_canaries

    recipe, test = again.run.recipe, again.test()
    seen = again.as_teachers_see(test[0])
    _, private, labels = again.private()
    given: dict[str, Any] = {
        "classes": again.classes,
        "delta": claim.delta or _LEAST_DELTA,
        "pool": (seen, test[1]),
        "insecure_seed": again.run.options.insecure_seed,  # a secure run's noise is drawn as in it
    }
    if recipe.by_records:
        given["mechanism"] = count_mechanism(recipe.aggregate)
        given["public"] = np.array(public_features(again.context))
        given["reach"] = recipe.votes.reach
        if isinstance(again.cells, Components):
            given["components"] = again.cells
        most = len(test[1]) * (again.classes - 1)  # an input is one with each of its wrong labels
    else:
        if recipe.teachers.mix:
            raise ConditionsFail("teachers of several models are not trained again here")
        if recipe.teachers.slices > 1:
            raise ConditionsFail(_SLICES)
        if recipe.aggregate.in_rounds:
            raise ConditionsFail("earlier answers decide what is asked next")
        plan = again.labels.plan
        given["mechanism"] = voting_mechanism(recipe.aggregate)
        given["model"] = lambda classes, seed: make(
            model_for(recipe.teachers, 0),
            classes=classes,
            seed=seed,
            plugin_path=again.run.options.plugin_path,
        )
        given["teachers"] = recipe.teachers.count
        most = min(plan.queries, len(test[1]))
    count = options.canaries or min(most, _MOST_CANARIES)
    found = audit_canaries(np.asarray(private), labels, canaries=count, **given)
    claimed = found.values["claimed ε"]
    note = (
        f"{count} canaries, test records with wrong labels, each in or out of one throwaway "
        "training by a fair coin."
    )
    if recipe.by_records:  # the run's own release, so its claim holds too
        claimed = min(claimed, claim.epsilon)
    else:
        note += f" It answers {count} queries, for which ε = {claimed:.3g}."
    return replace(found, note=note, values={**found.values, "claimed ε": claimed})


@dataclass(frozen=True, slots=True)
class _Labels:
    """A model of which only labels are seen."""

    predict: Callable[[Any], Any]
