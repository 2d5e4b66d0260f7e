"""The making of a release: put together in a draft, verified as a stranger would, then renamed.

The list of files that may leave is short, and each is made from what is RELEASED or PUBLIC. Below
it is a net: paths of the machine, the secret key, and names that follow from private records are
searched for in every byte.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pate._files import draft_folder, remove_abandoned, sync
from pate._format import in_units
from pate.artifacts import digest_of
from pate.dpsgd_runs import is_dpsgd_run
from pate.errors import InvalidInput, PateError
from pate.pipeline.ledger import naming_key
from pate.releases.conventions import as_text, require_exportable, written_files
from pate.releases.documents import render_release_page
from pate.releases.export import copy_labels, export_student
from pate.releases.files import (
    FORMAT,
    HEADER,
    HUB,
    PAGE,
    RELEASE,
    STATEMENT,
    SUMS,
    digests,
    may_leave,
    render_sums,
    sizes,
    unpublishable,
)
from pate.releases.run import (
    Content,
    answers_record,
    evaluation_record,
    open_finished_run,
    read_charges,
    recipe_record,
    student_header,
)
from pate.releases.training import training_content
from pate.releases.verify import verify
from pate.report.disclosure import OwnerAnswers
from pate.report.facts import package_versions, without_paths

_DRAFT = ".pate-release-"  # the beginning of a draft's name, beside the place of the release
_ARRAYS = (".npy", ".npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release that was written.

    Attributes
    ----------
    folder
        Its folder.
    statement
        Its ``guarantee.json``.
    header
        Its ``student.json``.
    settings
        The settings of the run, in a few words.
    protects
        The difference between two data sets that the guarantee hides, in words of the recipe.
    digest
        The SHA-256 of its list of checksums, which the owner shares out of band.
    """

    folder: Path
    statement: dict[str, Any]
    header: dict[str, Any]
    settings: str
    protects: str
    digest: str

    @property
    def epsilon(self) -> float:
        """The ε of the guarantee."""
        return float(self.statement["guarantee"]["epsilon"])

    @property
    def delta(self) -> float:
        """The δ of the guarantee."""
        return float(self.statement["guarantee"]["delta"])


def write_release(
    run: str | Path,
    out: str | Path,
    *,
    labels: bool = False,
    chosen_beforehand: bool = False,
    with_confusion: bool = False,
    column_names: bool = False,
    also: Collection[str] = (),
    owner: Mapping[str, Any] | str | Path | None = None,
    data_root: Path | None = None,
    plugin_path: Path | None = None,
) -> Release:
    """Write what may leave of a finished run: the student, its guarantee, card, page and checksums.

    ``out`` is written whole or not at all: :func:`pate.release` explains the arguments.

    Guarantees:
        * Nothing is read but RELEASED and PUBLIC artifacts, the ledger, and the names of the run's
          own charges. Files of the listed kinds leave, and no others.
        * Before it appears the release is searched for paths, keys and fingerprints, and verified
          as :func:`~pate.releases.verify.verify` does it for anybody.
        * Making a release costs nothing: all in it was paid for. The same run gives the same files,
          but for the date.
    """
    folder, out = Path(run), Path(out)
    _require_place(out, folder)
    for form in also:
        if form != HUB:
            raise InvalidInput(f"also holds {str(form)[:40]!r}; a release is also written as {HUB}")
    answers = None if owner is None else OwnerAnswers.read(owner)
    content = (training_content if is_dpsgd_run(folder) else pipeline_content)(
        folder,
        labels=labels,
        chosen_beforehand=chosen_beforehand,
        with_confusion=with_confusion,
        column_names=column_names,
        data_root=data_root,
        plugin_path=plugin_path,
    )
    statement, record = content.statement, _release_record(content, answers)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(out.parent, drafts=f"{_DRAFT}*")
        with draft_folder(out.parent, prefix=_DRAFT) as draft:
            header = content.export(draft)
            if also:
                require_exportable(header)
            _write_text(draft / HEADER, as_text(header))
            _write_text(draft / STATEMENT, as_text(statement))
            # As they will be read: what is rendered again must be the same to the last byte.
            read = [json.loads(as_text(each)) for each in (statement, header, record)]
            _write_text(draft / PAGE, render_release_page(*read))
            for name, made in written_files(draft, *read, hub=HUB in also).items():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                (draft / name).write_bytes(made.read_bytes() if isinstance(made, Path) else made)
            _write_text(draft / RELEASE, as_text(record | {"files": digests(draft)}))
            _write_text(draft / SUMS, render_sums(digests(draft)))
            for name in sizes(draft):
                if not may_leave(name):
                    raise InvalidInput(
                        f"{name} is not on the list of what may leave; nothing was released"
                    )
            require_clean(draft, content)
            _require_verified(draft, content)
            _make_readable(draft, record["date"])
            draft.rename(out)
    except OSError as error:
        if out.is_dir() and any(out.iterdir()):
            raise InvalidInput(f"{out} is no longer empty; choose another") from error
        raise InvalidInput(f"cannot write {out}: {error.strerror}") from error
    return Release(
        folder=out,
        statement=statement,
        header=header,
        settings=content.settings,
        protects=in_units(statement["protects"], content.unit),
        digest=digest_of(out / SUMS),
    )


def _require_place(out: Path, run: Path) -> None:
    if out.resolve().is_relative_to(run.resolve()):
        raise InvalidInput(f"{out} lies in the run {run}, beside what is private; choose another")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InvalidInput(f"{out} exists and is not a directory; choose another")
    if out.is_dir() and any(out.iterdir()):
        raise InvalidInput(f"{out} is not empty; a release is never overwritten: choose another")


def pipeline_content(
    folder: Path,
    *,
    labels: bool = False,
    chosen_beforehand: bool = False,
    with_confusion: bool = False,
    column_names: bool = False,
    data_root: Path | None = None,
    plugin_path: Path | None = None,
) -> Content:
    """Return what may leave of a finished run of ``pate run``."""
    run = open_finished_run(folder, data_root=data_root, plugin_path=plugin_path)
    statement, notes = read_charges(run, chosen_beforehand=chosen_beforehand)
    shared = student_header(run, column_names=column_names)

    def export(draft: Path) -> dict[str, Any]:
        header = export_student(run, draft, shared)
        if labels:
            copy_labels(run, draft)
        return header

    key = naming_key(run.recipe, run.run.options.data_root)
    names = [
        (each.encode(), "a fingerprint of private records") for each in run.run.store.fingerprints()
    ]
    return Content(
        folder=folder,
        data_root=run.run.options.data_root,
        plugin_path=run.run.options.plugin_path,
        recipe_folder=run.recipe.data.folder,
        settings=run.recipe.asked,
        unit=run.recipe.unit,
        statement=statement,
        record={
            "what": "a student of private data, by PATE",
            "recipe": recipe_record(run.recipe),
            "public_inputs": len(run.artifacts["data-public"].array("features.npy")),
            "labels": labels,
            "notes": notes,
            "why_not": without_paths(run.costs.why_not),
            "evaluation": evaluation_record(
                run.evaluation,
                run.artifacts["evaluate"],
                confusion=with_confusion or not run.recipe.data.own,
            ),
            "answers": answers_record(run),
        },
        export=export,
        secrets=(
            (key.encode(), "the key of the data set"),
            (bytes.fromhex(key), "the key of the data set"),
            *names,
        ),
    )


def _release_record(content: Content, owner: OwnerAnswers | None) -> dict[str, Any]:
    """Return ``release.json``, but for the list of files."""
    stated = None if owner is None else owner.model_dump(mode="json", exclude_defaults=True)
    return content.record | {
        "owner": stated,
        "format": FORMAT,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": package_versions()
        | {name: importlib.metadata.version(name) for name in ("matplotlib", "onnxruntime")},
    }


def _write_text(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


def _require_verified(draft: Path, content: Content) -> None:
    """Verify the draft; code that the recipe names is trusted: its owner ran it."""
    checked = verify(draft, plugin_path=content.plugin_path, trust=True)
    for found in (*checked.problems, *checked.notes):
        raise PateError(f"the release does not verify: {found}; nothing was released")


def _make_readable(draft: Path, date: str) -> None:
    """Make all files readable by everybody, with the day, not the second, as their time."""
    day = datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()
    for path in [*draft.rglob("*"), draft]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (day, day))
        sync(path)


# --- the search for leaks -------------------------------------------------------------------------


def require_clean(draft: Path, content: Content) -> None:
    """Raise if a file contains a forbidden text; the message names the file."""
    forbidden = dict(_forbidden(content))
    for file in sorted(draft.rglob("*")):
        if not file.is_file():
            continue
        name = file.relative_to(draft).as_posix()
        for layer in _layers(file.read_bytes()):
            for mark, what in forbidden.items():
                if mark in layer:
                    raise InvalidInput(f"{name} would carry {what}; nothing was released")
        if file.suffix in _ARRAYS:
            _require_plain(file, name)
        if file.suffix == ".json":
            for problem in unpublishable(json.loads(file.read_text(encoding="utf-8"))):
                raise InvalidInput(f"{name} holds {problem}; nothing was released")


def _forbidden(content: Content) -> Iterator[tuple[bytes, str]]:
    for path, what in (
        (content.folder, "the path of the run"),
        (content.data_root, "the path of the data"),
        (content.plugin_path, "the path of the plug-ins"),
    ):
        for form in () if path is None else {path.absolute(), path.resolve()}:
            if len(form.parts) > 1:
                yield os.fsencode(form), what
    home = os.path.expanduser("~")  # "~" itself where there is no home
    recipe = content.recipe_folder or Path()
    places = [Path.cwd(), recipe, Path(sys.prefix), Path(__file__).parents[2]]
    for place in (home, *(each for each in places if len(each.parts) > 2)):
        if str(place) not in ("~", "/"):
            yield os.fsencode(str(place)) + b"/", "a path of this machine"
    yield from content.secrets


def _layers(content: bytes) -> Iterator[bytes]:
    """Yield the bytes of a file, and of the files in it if it is an archive."""
    yield content
    if content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield from _layers(archive.read(member))


def _require_plain(file: Path, name: str) -> None:
    """Raise unless an array holds numbers and text: objects would be pickles."""
    try:
        with file.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            if file.suffix == ".npz":
                for member in loaded.files:
                    loaded[member]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInput(
            f"{name} is not a plain array of numbers ({type(error).__name__}); nothing was released"
        ) from None
