"""A release of a model trained by DP-SGD: its charges, and its form as data.

The model is exported with everything that records go through before it. What the network itself
does not express (scaling, encoder steps) are steps in ``encoder/``, fitted on public inputs or not
at all; principal components, which come from private records and are part of ε, are in its graph.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pate.accounting import Ledger
from pate.accounting.calibrate import Method
from pate.accounting.events import relation_of, tally
from pate.accounting.ledger.data_set import of_one_column
from pate.dpsgd_runs import FinishedTraining, TrainedModel, open_training
from pate.errors import InvalidInput, LedgerError, PateError
from pate.releases.export import encoder_steps, module_graph, require_same, sampled_records
from pate.releases.files import ENCODER, GRAPH, HEADER_FORMAT, STUDENT, Header, Input
from pate.releases.guarantee import (
    difference,
    guarantee_of_ledger,
    guarantee_record,
    statement_problems,
    trained_guarantee,
    write_events,
)
from pate.releases.records import RecordForm, form_record
from pate.releases.run import (
    Content,
    data_set_record,
    evaluation_record,
    recipe_record,
    require_portable,
    stated_beforehand,
    study_refusal,
)
from pate.releases.student import Model, ReleasedStudent, open_student
from pate.stages.caveats import studies_behind, training_caveats

WHAT = "a model of private data, by DP-SGD"


def training_content(
    folder: Path,
    *,
    labels: bool,
    chosen_beforehand: bool,
    with_confusion: bool,
    column_names: bool = False,
    data_root: Path | None,
    plugin_path: Path | None,
) -> Content:
    """Return what may leave of a finished run of ``dpsgd train``.

    Refuses a run that is not private, and charges that are not in the ledger.
    """
    if labels:
        raise InvalidInput(f"{folder} is a run of dpsgd, which releases no labels; omit --labels")
    run = open_training(folder, data_root=data_root, plugin_path=plugin_path)
    if not run.is_private:
        raise InvalidInput(
            f"{run.artifact.path} is NOT PRIVATE ({run.why_not_private}); train it with secure "
            "noise and Poisson lots, without --insecure-seed, to release it"
        )
    statement, notes = _charged(run, chosen_beforehand=chosen_beforehand)
    header = _header(run, column_names=column_names)
    return Content(
        folder=folder,
        data_root=run.ledger_path.parent.parent,
        plugin_path=run.plugin_path,
        recipe_folder=run.recipe.data.folder,
        settings=run.asked,
        unit=run.recipe.unit,
        statement=statement,
        record={
            "what": WHAT,
            "recipe": recipe_record(run.recipe),
            "training": {
                "records": run.records,
                "noise_multiplier": run.plan.noise_multiplier,
                "epochs": [
                    {key: row[key] for key in ("epoch", "step", "accuracy")}
                    for row in run.stated["epochs"]
                ],
            },
            "notes": notes,
            "evaluation": evaluation_record(
                run.evaluation,
                run.artifact,
                confusion=with_confusion or not run.recipe.data.own,
            ),
        },
        export=lambda draft: _export(run, draft, header),
        secrets=(),
    )


def _charged(run: FinishedTraining, *, chosen_beforehand: bool) -> tuple[dict[str, Any], list[str]]:
    """Return ``guarantee.json``, and notes on it.

    Guarantees:
        Every event comes from the ledger. What the run states must come to the same, or is
        refused: a file that was changed by hand cannot make ε smaller.
    """
    with Ledger.open(run.ledger_path) as ledger:
        charges = ledger.charges()
        own = [each for each in charges if each.release in run.charges]
        if len(own) != len(run.charges):  # opening the run has compared them once
            raise LedgerError(f"{ledger.path} holds no charge that pays for {run.artifact.path}")
        notes = training_caveats(ledger, run.charges, data=run.recipe.data, nouns=run.recipe.nouns)
        studies = studies_behind(ledger, run.charges)
        terms = ledger.terms
    if studies:
        if not chosen_beforehand:
            raise study_refusal(studies, run.recipe.nouns)
        notes.append(stated_beforehand())
    events = [event for each in own for event in each.events]
    if tally(events) != tally(run.plan.events):
        raise _mismatch(run, "the ledger was charged for other events")
    accountant = run.recipe.privacy.accountant
    delta = run.recipe.privacy.delta
    stated = run.stated["guarantee"] | {"delta": delta}
    total, margin = trained_guarantee(stated, events, method=Method(accountant))
    problem = difference(run.stated["guarantee"], total, margin=margin)
    if problem is not None:
        raise _mismatch(run, problem)
    everything = [event for each in charges for event in each.events]
    whole = guarantee_of_ledger(everything, terms)
    if not math.isfinite(total.epsilon) or not math.isfinite(whole.epsilon):
        raise InvalidInput(f"{run.artifact.path}: ε is infinite, which guarantees nothing")
    statement = {
        "format": 1,
        "method": "dpsgd",
        "protects": run.protects,
        "accountant": accountant,
        "events": write_events(events),
        "charges": sorted(run.charges),
        "guarantee": guarantee_record(total, relation_of(events).value),
        "data_set": data_set_record(
            run.recipe.data.name,
            terms,
            charges,
            whole,
            neighbours=of_one_column(whole.neighbours, {each.group for each in charges}),
        ),
    }
    for problem in statement_problems(statement):
        raise _mismatch(run, problem)
    return statement, notes


def _mismatch(run: FinishedTraining, how: str) -> InvalidInput:
    return InvalidInput(
        f"{run.artifact.path / 'guarantee.json'} does not agree with the charges in the ledger "
        f"({how}); it was not released"
    )


def _header(run: FinishedTraining, *, column_names: bool) -> dict[str, Any]:
    for name in ("features", "model"):
        require_portable(name, getattr(run.recipe, name).model_dump(mode="json"))
    return {
        "format": HEADER_FORMAT,
        "class_names": [each.name for each in run.evaluation.classes],
        "input": _form(run, column_names=column_names),
    }


def _form(run: FinishedTraining, *, column_names: bool) -> dict[str, Any]:
    missing = run.takes_missing
    return form_record(run.examples, run.columns, missing=missing, names=column_names)


# --- the model ------------------------------------------------------------------------------------


def _export(run: FinishedTraining, draft: Path, header: dict[str, Any]) -> dict[str, Any]:
    """Write the model into a draft; return ``student.json``.

    Guarantees:
        As :func:`pate.releases.export.export_student`. A model that cannot be expressed as data is
        refused: there is no other form in which it could be loaded.
    """
    trained = run.student
    try:
        steps = _steps(trained, header["input"]["shape"], draft / ENCODER)
        (draft / STUDENT).mkdir(parents=True, exist_ok=True)
        classes = list(range(len(trained.class_names)))
        shape = trained.encoded(run.examples[:1]).shape[1:]
        graph = module_graph(_network(trained), tuple(shape), output="logits")
        (draft / STUDENT / GRAPH).write_bytes(graph)
        written = header | {"encoder": steps, "model": {"kind": "onnx", "classes": classes}}
        exported = open_student(draft, Header.model_validate(written))
        original = _student(trained, exported.form)
        require_same(original, exported, sampled_records(run.examples, exported.form))
    except PateError as error:
        raise InvalidInput(
            f"the model cannot be released as data ({error}); use a network and encoder steps "
            "that torch exports to ONNX, and train it again"
        ) from None
    return written


def own_model(run: FinishedTraining) -> ReleasedStudent:
    """Return the model of a run in the hands of its owner, with the names of its columns."""
    return _student(run.student, Input.model_validate(_form(run, column_names=True)).form)


def _student(trained: TrainedModel, form: RecordForm) -> ReleasedStudent:
    return ReleasedStudent(
        model=Model(trained.predict, trained.predict_proba),
        encoder=lambda X: X,
        class_names=tuple(trained.class_names),
        form=form,
    )


def _steps(trained: TrainedModel, shape: list[int], folder: Path) -> list[dict[str, Any]]:
    """Write what is done to each record on its own, before any principal components."""
    import torch

    features = trained.recipe.features
    first: list[tuple[Any, tuple[int, ...]]] = []
    if features.scale != 1:

        class Scale(torch.nn.Module):
            def forward(self, records: Any) -> Any:
                return records * features.scale

        first.append((Scale(), tuple(shape)))
    if features.encoder is not None:
        if not isinstance(trained.encoder, torch.nn.Module):
            raise InvalidInput(
                f"features.encoder {features.encoder} is not a torch module, and so has no form "
                "as data"
            )
        first.append((trained.encoder, tuple(shape)))
    for at, (module, wanted) in enumerate(first):
        folder.mkdir(parents=True, exist_ok=True)
        graph = module_graph(module, wanted, output="features")
        (folder / f"step-{at}.onnx").write_bytes(graph)
    steps: list[dict[str, Any]] = [{"name": "onnx"} for _ in first]
    if trained.chain is not None:
        steps += encoder_steps(trained.chain, folder, first=len(first))
    return steps


def _network(trained: TrainedModel) -> Any:
    """Return the network with torch's order of images and the projection before it, as a module."""
    import torch

    images = trained.recipe.model.kind == "cnn" and trained.pca is None
    projection = None
    if trained.pca is not None:
        projection = torch.from_numpy(trained.pca.components_ * trained.pca.scales_)

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = trained.network
            self.register_buffer("projection", projection)

        def forward(self, records: Any) -> Any:
            if images:
                flat = records.dim() == 3
                records = records.unsqueeze(1) if flat else records.movedim(-1, 1)
            if projection is not None:
                records = records.flatten(1) @ self.projection
            return self.network(records)

    return Whole()
