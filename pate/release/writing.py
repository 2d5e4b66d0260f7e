"""Puts a release together beside its place, checks it as a stranger would, and lets it out."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pate import __version__
from pate.accounting import Ledger
from pate.artifacts.drafts import drafting, sweep
from pate.errors import InvalidInput, PateError
from pate.release.card import CARD, write_card
from pate.release.checking import verify_release
from pate.release.contents import (
    copy_encoder,
    copy_labels,
    copy_student,
    evaluation_told,
    may_leave,
    recipe_told,
    released_encoder,
    student_header,
)
from pate.release.covering import require_own_choice, statement_of
from pate.release.finished import Finished
from pate.release.importing import package_of
from pate.release.leaks import require_clean
from pate.release.student import HEADER, names_of
from pate.release.sums import SUMS, digests, rendered
from pate.report.facts import gather
from pate.report.page import build_page
from pate.report.tuning import tuning_told

_DRAFT = ".pate-release-"  # the beginning of a draft's name, beside the place of the release


def write_release(
    finished: Finished,
    out: Path,
    *,
    labels: bool = False,
    chosen_beforehand: bool = False,
) -> dict[str, Any]:
    """Writes ``out``, whole or not at all; returns what ``guarantee.json`` says.

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
    header = student_header(finished)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        sweep(out.parent, drafts=f"{_DRAFT}*")  # of releases that were killed
        with drafting(out.parent, prefix=_DRAFT) as draft:
            copy_student(finished, draft)
            copy_encoder(finished, draft)
            if labels:
                copy_labels(finished, draft)
            _write_json(draft / HEADER, header)
            _write_json(draft / "guarantee.json", statement)
            release = _release(finished, header, notes, labels=labels)
            card = write_card(statement, header, release)
            (draft / CARD).write_text(card, encoding="utf-8")
            _add_report(finished, draft)
            _write_json(draft / "release.json", release | {"files": digests(draft)})
            (draft / SUMS).write_text(rendered(digests(draft)), encoding="utf-8")
            _require_listed(draft)
            require_clean(draft, finished)
            _require_verified(draft, finished)
            _open_to_all(draft, release["date"])
            _publish(draft, out)
    except OSError as error:
        raise InvalidInput(f"cannot write {out}: {error.strerror}") from error
    return statement


def _require_place(out: Path, run: Path) -> None:
    if out.resolve().is_relative_to(run.resolve()):
        raise InvalidInput(f"{out} lies in the run {run}, beside what is private; choose another")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InvalidInput(f"{out} is there already, and is no folder; choose another")
    if out.is_dir() and any(out.iterdir()):
        raise InvalidInput(f"{out} is not empty; a release is never overwritten: choose another")


def _release(
    finished: Finished, header: dict[str, Any], notes: list[str], *, labels: bool
) -> dict[str, Any]:
    return {
        "format": 1,
        "what": "a student of private data, by PATE",
        "date": datetime.now(UTC).date().isoformat(),
        "versions": _versions(header),
        "recipe": recipe_told(finished),
        "public_inputs": len(finished.artifacts["data-public"].array("features.npy")),
        "labels": labels,
        "notes": notes,
        "evaluation": evaluation_told(finished),
    }


def _versions(header: dict[str, Any]) -> dict[str, str]:
    """Of what the student is loaded with."""
    package = header["model"]["model"].partition(":")[0].partition(".")[0]
    names = ["numpy", "scipy"]
    if package == "sklearn":
        names += ["scikit-learn", "skops"]
    elif package in ("pate", "torch", "torchvision"):
        names += ["torch", "safetensors"]
    versions = {"pate": __version__, "python": platform.python_version()}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _write_json(file: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


def _add_report(finished: Finished, draft: Path) -> None:
    """The public page. A comparison stays at home: no charge here covers what was compared."""
    page = build_page(replace(gather(finished.run), comparison=()))
    (draft / "report.html").write_text(page, encoding="utf-8")


def _require_listed(draft: Path) -> None:
    for name in [*digests(draft), SUMS]:
        if not may_leave(name):
            raise InvalidInput(f"{name} is not on the list of what may leave; nothing was released")


def _require_verified(draft: Path, finished: Finished) -> None:
    checked = verify_release(
        draft, plugin_path=finished.run.options.plugin_path, trust=_own_packages(finished)
    )
    if checked.problems:
        raise PateError(f"the release does not hold: {checked.problems[0]}; nothing was released")


def _own_packages(finished: Finished) -> list[str]:
    """What the recipe names is trusted here: its person ran it."""
    names = names_of(finished.recipe.student.as_model(), released_encoder(finished))
    return [package_of(name) for name in names]


def _open_to_all(draft: Path, date: str) -> None:
    """Readable by all; and when exactly it was written is nobody's business."""
    day = datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()
    for path in [*draft.rglob("*"), draft]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (day, day))
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _publish(draft: Path, out: Path) -> None:
    try:
        draft.rename(out)
    except OSError as error:
        if out.is_dir() and any(out.iterdir()):
            raise InvalidInput(f"{out} is not empty any more; choose another") from error
        raise
