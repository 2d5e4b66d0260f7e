"""The audit of a comparison: all its methods at the largest ε, under the same attacks. PRIVATE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pate.audits.options import AuditOptions
from pate.audits.results import Audit
from pate.audits.retraining import Retraining
from pate.audits.run import audit_pate, draw_pool, open_retraining
from pate.audits.training import audit_training
from pate.dpsgd_runs import open_training
from pate.errors import InvalidInput
from pate.pipeline.runner import PipelineRun
from pate.studies.tables import METHODS


def audit_comparison(runs: Mapping[str, PipelineRun | Path], options: AuditOptions) -> Audit:
    """Attack every method of a comparison, with the same records. PRIVATE.

    Parameters
    ----------
    runs : mapping of str to PipelineRun or path
        By method, a run of PATE or the folder of a model: see
        :func:`pate.studies.compare.open_comparison`.
    options : AuditOptions
        The extent of the audit.

    Returns
    -------
    Audit
        The findings of all methods; each target is named after its method, and has its own claim.
    """
    ours: dict[str, Retraining] = {}
    skipped: list[str] = []
    for method, run in runs.items():
        if isinstance(run, PipelineRun):
            try:
                ours[method] = open_retraining(run)
            except InvalidInput as error:  # such as one whose labels were too few for a student
                skipped.append(f"{METHODS[method]}: {error}")
    if not ours:
        raise InvalidInput(skipped[0])
    # Of record votes where there are any: they may leave some records of a user out.
    pool = draw_pool(list(ours.values())[-1], seed=options.seed)
    first = next(iter(ours.values())).run
    audits = {}
    for method, run in runs.items():
        options.report(f"{METHODS[method]}:")
        if method in ours:
            audits[METHODS[method]] = audit_pate(ours[method].run, options, pool=pool)
        elif isinstance(run, Path):
            training = open_training(
                run, data_root=first.options.data_root, plugin_path=first.options.plugin_path
            )
            audits[METHODS[method]] = audit_training(training, options, pool=pool)
    together = audits.items()
    return Audit(
        subject=f"{first.recipe.data.name}: a comparison at ε = {first.recipe.privacy.epsilon:g}",
        claims={
            _named(name, target): claim
            for name, audit in together
            for target, claim in audit.claims.items()
        },
        findings=tuple(
            replace(each, target=_named(name, each.target))
            for name, audit in together
            for each in audit.findings
        ),
        skipped=(
            *skipped,
            *(f"{name}: {each}" for name, audit in together for each in audit.skipped),
        ),
        notes=tuple(f"{name}: {each}" for name, audit in together for each in audit.notes),
        faults=tuple(f"{name}: {each}" for name, audit in together for each in audit.faults),
        one_population=first.recipe.data.divided,
        seconds={
            f"{name}, {part}": seconds
            for name, audit in together
            for part, seconds in audit.seconds.items()
        },
        methods=audits,
    )


def _named(method: str, target: str) -> str:
    return f"{method}: {target.removeprefix(f'{method} ')}"
