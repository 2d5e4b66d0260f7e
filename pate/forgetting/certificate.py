"""The certificate of deletion: one JSON file and one page of the same content. PRIVATE.

It shows which shards were trained again, which reveals whether an id was among the records: so it
lies in the run's private folder, and its owner decides who reads it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pate import __version__
from pate._files import write_atomically
from pate._format import format_cost, plural
from pate.accounting.ledger.data_ledger import total_line
from pate.artifacts import Level, fingerprint
from pate.artifacts.results import Costs
from pate.errors import InvalidInput
from pate.pipeline.exclusions import Begun
from pate.pipeline.ledger import key_path, ledger_of, naming_key, open_ledger
from pate.pipeline.runner import PipelineRun
from pate.report.page import STAMP, page_frame
from pate.report.templates import template

FOLDER = "certificates"  # in the private folder of a run

REMOVED = (
    "Removed from the run: the records, their features, every teacher (or count of votes) that "
    "they reached, its votes, and all other private results that may follow from them.",
    "Not touched: the owner's source files, copies and backups of them or of the run, other runs "
    "of the data set, and the free space of the disk. The run leaves the records out if its source "
    "still holds them.",
)
KEPT = (
    "Not recalled: labels, students and figures that were released before. Nobody can take them "
    "back. They were drawn with noise, and the (ε, δ) below, which was paid, bounds what anybody "
    "can learn of one {unit} from them, forgotten or not."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A teacher, or a shard of records that vote, before and after; by keyed digests."""

    number: int
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The outcome of one forgetting; no id is in it."""

    run: str
    data: str
    unit: str
    requested: int  # ids
    found: int  # of them, in the private records of this run
    parts: tuple[Part, ...]
    part_name: str  # "teacher" or "shard"
    removed: int  # folders and files
    released: str | None  # the guarantee of the labels in words; None if none were released
    total: str | None  # what all releases of the data set have spent
    signed_by: str | None
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @classmethod
    def of(
        cls,
        run: PipelineRun,
        begun: Begun,
        *,
        after: Sequence[str],
        removed: int,
        signed_by: str | None,
    ) -> Self:
        """Return the certificate of a forgetting that is carried out."""
        recipe, released, total = run.recipe, None, None
        states = {each.stage: each.done for each in run.states()}
        if states["account"]:
            costs = Costs.load(run.artifact("account"))
            seeded = " (the noise was seeded: NOT PRIVATE)" if costs.seeded else ""
            cost = format_cost(costs.guarantee.epsilon, costs.guarantee.delta)
            released = f"{cost}, for {costs.protects}{seeded}"
        if ledger_of(recipe, run.options).exists():
            with open_ledger(recipe, run.options) as ledger:
                total = total_line(ledger, recipe.record_unit, user=recipe.unit)
        pairs = enumerate(zip(begun.parts, after, strict=True))
        return cls(
            run=run.folder.absolute().name,
            data=recipe.data.name,
            unit=recipe.unit,
            requested=len(begun.digests),
            found=begun.found,
            parts=tuple(Part(number=n, before=old, after=new) for n, (old, new) in pairs),
            part_name="shard" if recipe.by_records else "teacher",
            removed=removed,
            released=released,
            total=total,
            signed_by=signed_by,
        )

    @property
    def changed(self) -> tuple[Part, ...]:
        """The parts that were made again."""
        return tuple(each for each in self.parts if each.before != each.after)

    @property
    def statements(self) -> tuple[str, ...]:
        """What forgetting did, and what it cannot do, in words."""
        return (*REMOVED, KEPT.format(unit=self.unit))

    def as_json(self, *, key: str) -> dict[str, Any]:
        """Return the certificate as plain values, sealed under the data set's key."""
        content = {
            "format": 1,
            "version": __version__,
            **asdict(self),
            "changed": [each.number for each in self.changed],
            "statements": list(self.statements),
        }
        content = json.loads(json.dumps(content))
        return {**content, "seal": fingerprint(key, content)}


def check_certificates(run: PipelineRun) -> tuple[Path, ...]:
    """Return the certificates of a run; refuse any that are not as they were written.

    Guarantees:
        A seal is keyed: whoever has not the data set's key cannot change a certificate and seal it
        again. The pages beside the JSON files are not checked.
    """
    files = sorted((run.folder / Level.PRIVATE.folder / FOLDER).glob("*.json"))
    if not key_path(run.recipe, run.options.data_root).is_file():
        raise InvalidInput("the data set's key is not there; give the --data-root of the run")
    key = naming_key(run.recipe, run.options.data_root)
    altered = [file.name for file in files if not _is_sealed(file, key=key)]
    if altered:
        raise InvalidInput(
            f"not as they were written, or under another key: {', '.join(altered)}; restore them "
            "from a backup"
        )
    return tuple(files)


def _is_sealed(file: Path, *, key: str) -> bool:
    try:
        content = json.loads(file.read_bytes())
        seal = str(content.pop("seal"))
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return hmac.compare_digest(seal, fingerprint(key, content))


def write_certificate(
    certificate: Certificate, folder: Path, name: str, *, key: str
) -> tuple[Path, Path]:
    """Write the certificate into a run's private folder; return its JSON file and its page."""
    home = folder / Level.PRIVATE.folder / FOLDER
    sealed = certificate.as_json(key=key)
    page = template("pate.forgetting", "certificate.html.j2").render(
        certificate=certificate,
        seal=sealed["seal"],
        ids=plural("id") if certificate.requested != 1 else "id",
        stamp=STAMP,
        version=__version__,
        **page_frame("page.css", "private.css"),
    )
    contents = {
        home / f"{name}.json": json.dumps(sealed, indent=1, ensure_ascii=False) + "\n",
        home / f"{name}.html": f"<!DOCTYPE html>\n{page}\n",
    }
    for file, content in contents.items():
        write_atomically(file, content.encode(), make_parents=True)
    first, second = contents
    return first, second
