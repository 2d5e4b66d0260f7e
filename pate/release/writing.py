"""Puts a release together beside its place, checks it as a stranger would, and lets it out."""

from __future__ import annotations

import importlib.metadata
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pate._files import draft_folder, remove_abandoned, sync
from pate.accounting import Ledger
from pate.errors import InvalidInput, PateError
from pate.release.card import CARD, write_card
from pate.release.checking import verify_release
from pate.release.contents import (
    answers_told,
    copy_labels,
    evaluation_told,
    may_leave,
    recipe_told,
    student_header,
)
from pate.release.covering import require_own_choice, statement_of
from pate.release.export import export_student
from pate.release.finished import Finished
from pate.release.leaks import require_clean
from pate.release.page import PAGE, write_page
from pate.release.schema import FORMAT, HEADER
from pate.release.sums import SUMS, digests, rendered
from pate.report.facts import versions, without_paths
from pate.report.tuning import tuning_told

_DRAFT = ".pate-release-"  # the beginning of a draft's name, beside the place of the release


def write_release(
    finished: Finished,
    out: Path,
    *,
    labels: bool = False,
    chosen_beforehand: bool = False,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Writes ``out``, whole or not at all; returns ``guarantee.json`` and ``student.json``.

    A run of a study (a sweep, a comparison) is refused, because whoever chose it by results has
    spent what all of the study costs; ``chosen_beforehand`` is the owner's word that nobody did,
    and the card says so.

    Guarantees:
        * Nothing is read but RELEASED and PUBLIC artifacts, the ledger, and the names of the run's
          own charges. Files of the listed kinds leave, and no others.
        * Before it appears the release is searched for paths, keys and fingerprints, and verified
          as :func:`~pate.release.checking.verify_release` does it for anybody.
        * Making a release costs nothing: all in it was paid for. The same run gives the same files,
          but for the date.
    """
    _require_place(out, finished.run.folder)
    told = require_own_choice(finished, chosen_beforehand=chosen_beforehand)
    statement = statement_of(finished)
    with Ledger.open(finished.ledger) as ledger:
        notes = [*tuning_told(finished.run, ledger), *told]
    shared = student_header(finished)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(out.parent, drafts=f"{_DRAFT}*")  # of releases that were killed
        with draft_folder(out.parent, prefix=_DRAFT) as draft:
            header = export_student(finished, draft, shared)
            if labels:
                copy_labels(finished, draft)
            _write_json(draft / HEADER, header)
            _write_json(draft / "guarantee.json", statement)
            release = _release(finished, notes, labels=labels)
            # As they will be read: what is written again must be the same to the last byte.
            read = [json.loads(_as_text(each)) for each in (statement, header, release)]
            for name, write in ((CARD, write_card), (PAGE, write_page)):
                text = write(*read)
                (draft / name).write_text(text, encoding="utf-8")
            _write_json(draft / "release.json", release | {"files": digests(draft)})
            (draft / SUMS).write_text(rendered(digests(draft)), encoding="utf-8")
            _require_listed(draft)
            require_clean(draft, finished)
            _require_verified(draft, finished)
            _open_to_all(draft, release["date"])
            _publish(draft, out)
    except OSError as error:
        raise InvalidInput(f"cannot write {out}: {error.strerror}") from error
    return statement, header


def _require_place(out: Path, run: Path) -> None:
    if out.resolve().is_relative_to(run.resolve()):
        raise InvalidInput(f"{out} lies in the run {run}, beside what is private; choose another")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InvalidInput(f"{out} is there already, and is no folder; choose another")
    if out.is_dir() and any(out.iterdir()):
        raise InvalidInput(f"{out} is not empty; a release is never overwritten: choose another")


def _release(finished: Finished, notes: list[str], *, labels: bool) -> dict[str, Any]:
    """``release.json``, but for the list of files."""
    return {
        "format": FORMAT,
        "what": "a student of private data, by PATE",
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions()
        | {name: importlib.metadata.version(name) for name in ("matplotlib", "onnxruntime")},
        "recipe": recipe_told(finished),
        "public_inputs": len(finished.artifacts["data-public"].array("features.npy")),
        "labels": labels,
        "notes": notes,
        "why_not": without_paths(finished.json("account", "guarantees.json").get("why_not")),
        "evaluation": evaluation_told(finished),
        "answers": answers_told(finished),
    }


def _as_text(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _write_json(file: Path, value: Any) -> None:
    file.write_text(f"{_as_text(value)}\n", encoding="utf-8")


def _require_listed(draft: Path) -> None:
    for name in [*digests(draft), SUMS]:
        if not may_leave(name):
            raise InvalidInput(f"{name} is not on the list of what may leave; nothing was released")


def _require_verified(draft: Path, finished: Finished) -> None:
    """What the recipe names is trusted here: its person ran it."""
    checked = verify_release(draft, plugin_path=finished.run.options.plugin_path, trust=True)
    for found in (*checked.problems, *checked.notes):
        raise PateError(f"the release does not hold: {found}; nothing was released")


def _open_to_all(draft: Path, date: str) -> None:
    """Readable by all; and when exactly it was written is nobody's business."""
    day = datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()
    for path in [*draft.rglob("*"), draft]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (day, day))
        sync(path)


def _publish(draft: Path, out: Path) -> None:
    try:
        draft.rename(out)
    except OSError as error:
        if out.is_dir() and any(out.iterdir()):
            raise InvalidInput(f"{out} is not empty any more; choose another") from error
        raise
