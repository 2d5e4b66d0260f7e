"""A release in the forms that others read: a registry of deployments, model hubs, data sets.

All of it follows from the JSON files and the arrays of the release, to the last byte: ``pate
release`` writes it, and ``pate verify`` writes it again and compares.

* ``deployment.yaml``: a record for the OpenDP deployments registry, by its schema and
  template (``opendp/deployments-registry-data``, commit 057e5d8, with ``dp_variant``). Keys that
  only the owner can fill in are left out unless given, and named in a comment.
* ``hf/``: a folder for the Hugging Face hub, and a release of its own: it loads and verifies.
* ``labels/croissant.json``: metadata of the released labels (Croissant 1.0, MLCommons).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pate.artifacts import digest_of
from pate.errors import InvalidInput
from pate.releases.documents import disclosure_of, owner_of, render_card
from pate.releases.files import (
    CARD,
    CONFIG,
    CROISSANT,
    DEPLOYMENT,
    ENCODER,
    HEADER,
    HUB,
    HUB_CARD,
    LABELS_CSV,
    RELEASE,
    STATEMENT,
    STUDENT,
    SUMS,
    is_hub,
    is_training,
    render_sums,
)
from pate.report.disclosure import TRUST, Disclosure, OwnerAnswers

_LIBRARY = "pate-privacy"
_CROISSANT_VERSION = "http://mlcommons.org/croissant/1.0"


class _Documents:
    """The JSON files of a release, and what is written from them."""

    def __init__(self, statement: Any, header: Any, release: Any) -> None:
        self.json = (statement, header, release)
        self.header, self.release = header, release
        self.disclosure: Disclosure = disclosure_of(statement, header, release)
        self.owner: OwnerAnswers = owner_of(release) or OwnerAnswers()
        self.data = str(statement["data_set"]["name"])


def as_text(value: Any) -> str:
    """Return a JSON file of a release as text."""
    shown = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return f"{shown}\n"


def written_files(
    folder: Path, statement: Any, header: Any, release: Any, *, hub: bool | None = None
) -> dict[str, bytes | Path]:
    """Return the files that follow from others of a release, by name; the page is not among them.

    A path stands for a copy of that file. ``hub`` adds the folder for hubs (None: if it is there).
    """
    if is_hub(folder):
        return _hub_texts(_Documents(statement, header, release))
    files: dict[str, bytes | Path] = {CARD: render_card(statement, header, release).encode()}
    if release["format"] < 4:
        return files
    made = _Documents(statement, header, release)
    files[DEPLOYMENT] = _deployment(made).encode()
    if release.get("labels") and not is_training(release):
        files |= _label_files(made, folder / "labels")
    if (folder / HUB).exists() if hub is None else hub:
        files |= {f"{HUB}/{name}": content for name, content in _hub_files(made, folder).items()}
    return files


# --- YAML -----------------------------------------------------------------------------------------


def to_yaml(value: Mapping[str, Any], *, indent: int = 0) -> Iterator[str]:
    """Yield the lines of a mapping as YAML: every text quoted, every number as it is in 1.1 too.

    >>> print("\\n".join(to_yaml({"a": {"b": 1e-05, "c": ["x: y", 2]}})))
    a:
      b: 1.0e-05
      c:
        - "x: y"
        - 2
    """
    space = "  " * indent
    for key, each in value.items():
        if isinstance(each, Mapping):
            yield f"{space}{key}:"
            yield from to_yaml(each, indent=indent + 1)
        elif isinstance(each, (list, tuple)):
            yield f"{space}{key}:"
            for one in each:
                if isinstance(one, Mapping):
                    first, *rest = to_yaml(one, indent=indent + 2)
                    yield f"{space}  - {first.strip()}"
                    yield from rest
                else:
                    yield f"{space}  - {_scalar(one)}"
        else:
            yield f"{space}{key}: {_scalar(each)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        value = "".join(each if each.isprintable() else " " for each in value)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, float) and "e" in text and "." not in text:
        return text.replace("e", ".0e")  # YAML 1.1 takes 1e-05 for a text
    return text


# --- the registry ---------------------------------------------------------------------------------


def _deployment(made: _Documents) -> str:
    """Return the record for the OpenDP deployments registry.

    The number of people is one of its keys. It is private, and is left to the owner.
    """
    own, known = made.owner, made.disclosure
    curators = [
        _given(data_curator_name=own.publisher, data_curator_type=own.publisher_type)
    ] * bool(own.publisher)
    answers, level = own.answers, "user-level" if known.of_users else "record-level"
    owed = {
        "basic.data_curators": own.publisher and own.publisher_type,
        "basic.intended_use": own.intended_use,
        "basic.data_product_region": own.region,
        "basic.data_product_sector": own.sector,
        "privacy_loss.number_of_privacy_units": None,
        "implementation.justification": answers.parameters,
        "administrative.registry_authors": own.authors,
    }
    record = {
        "url_slug": f"{made.data}-{made.release['date']}".lower(),
        "deployment": {
            "basic": _given(
                name=f"A {'model' if is_training(made.release) else 'student'} of {made.data}",
                data_curators=curators,
                description=f"A classifier of {len(made.header['class_names'])} classes, learnt "
                f"from private records by {known.method}.",
                intended_use=own.intended_use,
                data_product_type="Machine learning model",
                data_product_region=own.region,
                data_product_sector=own.sector,
                publication_date=made.release["date"],
            ),
            "dp_variant": {
                "variant_name": known.variant,
                "data_domain": "Sets of records of the form that student.json states, each of one "
                "class.",
                "unprotected_quantities": known.unprotected,
            },
            "privacy_loss": {
                "privacy_unit": level if known.unit in level else f"{known.unit} ({level})",
                "privacy_unit_details": f"Adjacent data sets differ in {known.protects} "
                f"({known.neighbours}).",
                "privacy_parameters": {"epsilon": known.epsilon, "delta": known.delta}
                if known.delta
                else {"epsilon": known.epsilon},
                "privacy_parameters_details": f"{known.target} {known.verdict} {known.whole}",
            },
            "deployment_model": {
                "model_name": "Central",
                "trust_assumptions": _joined(TRUST, _stated(answers.trust)),
                "actors": "The owner of the private records; whoever gets the release.",
                "release_type": "One release",
                "release_type_details": _joined(known.whole, _stated(answers.further_releases)),
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "implementation": _given(
                preprocessing_and_hyperparameter_tuning=_joined(
                    known.preparation, known.tuning, _stated(answers.tuning)
                ),
                mechanisms=_joined(
                    f"{known.mechanism}. Sampling: {known.sampling} {known.floating_point} "
                    f"Implementation: pate {made.release['versions']['pate']}.",
                    _stated(answers.side_channels),
                    _stated(answers.access_control),
                ),
                composition=f"{known.composition} ({known.accountant}).",
                post_processing=known.post_processing,
                justification=answers.parameters,
                utility=known.utility,
                additional_information=_joined(*made.release["notes"]),
            ),
            "administrative": _given(
                status="Draft",
                registry_authors=list(own.authors),
                tier=3 if answers.parameters else 2,
            ),
        },
    }
    head = [
        "# A record for the OpenDP deployments registry, by its template",
        "# (opendp/deployments-registry-data, 057e5d8). It follows from this release, and pate",
        "# verify compares it: edit a copy, or make the release again with --owner.",
        *(f"# Only the owner can state {key}" for key, given in owed.items() if not given),
    ]
    return "\n".join([*head, *to_yaml(record)]) + "\n"


def _given(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value not in (None, "", [], ())}


def _stated(text: str | None) -> str | None:
    """Return what nothing here checks, as such: beside it stands what follows from the release."""
    return text and f"The owner states: {text}"


def _joined(*texts: str | None) -> str:
    return " ".join(text for text in texts if text)


# --- labels ---------------------------------------------------------------------------------------


def _label_files(made: _Documents, folder: Path) -> dict[str, bytes | Path]:
    """Return the released labels as a table, and its metadata."""
    rows, labels = (
        np.load(folder / name, mmap_mode="r", allow_pickle=False).tolist()
        for name in ("answered.npy", "labels.npy")
    )
    table = _labels_csv(rows, labels, made.header["class_names"])
    return {
        f"labels/{LABELS_CSV}": table,
        f"labels/{CROISSANT}": as_text(_croissant(made, table)).encode(),
    }


def _labels_csv(rows: Sequence[int], labels: Sequence[int], names: Sequence[str]) -> bytes:
    stream = io.StringIO()
    table = csv.writer(stream, lineterminator="\n")
    table.writerow(("row", "label", "class"))
    for row, label in zip(rows, labels, strict=False):  # verify reports those that do not fit
        table.writerow((row, label, names[label] if 0 <= label < len(names) else ""))
    return stream.getvalue().encode()


def _croissant(made: _Documents, table: bytes) -> dict[str, Any]:
    """Return Croissant 1.0 metadata of the released labels; privacy by its vocabulary for RAI."""
    known = made.disclosure
    guarantee = (
        f"({known.variant}) ε = {known.epsilon:g}, δ = {known.delta:g}, for {known.protects}"
    )
    fields = (
        ("row", "sc:Integer", "The row of the public inputs, from 0."),
        ("label", "sc:Integer", "The released label, from 0."),
        ("class", "sc:Text", "The name of the class."),
    )
    return _given(
        **{
            "@context": _CONTEXT,
            "@type": "sc:Dataset",
            "name": f"{made.data}-labels",
            "description": "Labels of public inputs, released from private records by "
            f"{known.method}: differential privacy {guarantee}.",
            "conformsTo": [_CROISSANT_VERSION, "http://mlcommons.org/croissant/RAI/1.0"],
            "datePublished": made.release["date"],
            "version": "1.0.0",
            "license": made.owner.license,
            "creator": made.owner.publisher
            and {"@type": "sc:Organization", "name": made.owner.publisher},
            "rai:dataAnnotationProtocol": f"{known.mechanism}. Sampling: {known.sampling}",
            "rai:personalSensitiveInformation": "Private records decided the labels; the "
            f"guarantee is {guarantee}. {known.unprotected}",
            "distribution": [
                {
                    "@type": "cr:FileObject",
                    "@id": LABELS_CSV,
                    "name": LABELS_CSV,
                    "contentUrl": LABELS_CSV,
                    "encodingFormat": "text/csv",
                    "sha256": hashlib.sha256(table).hexdigest(),
                }
            ],
            "recordSet": [
                {
                    "@type": "cr:RecordSet",
                    "@id": "labels",
                    "name": "labels",
                    "field": [
                        {
                            "@type": "cr:Field",
                            "@id": f"labels/{name}",
                            "name": f"labels/{name}",
                            "description": text,
                            "dataType": kind,
                            "source": {
                                "fileObject": {"@id": LABELS_CSV},
                                "extract": {"column": name},
                            },
                        }
                        for name, kind, text in fields
                    ],
                }
            ],
        }
    )


_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


# --- hubs -----------------------------------------------------------------------------------------


def require_exportable(header: Mapping[str, Any]) -> None:
    """Raise where a student cannot be given to a hub: one that is not data alone."""
    if header["model"]["kind"] == "code":
        raise InvalidInput(
            "the student cannot be exported for a hub: it, or its encoder, is not data alone, "
            f"because {header['model']['why']}; omit --also hf, or use a model and encoder steps "
            "that are released as data"
        )


def _hub_files(made: _Documents, folder: Path) -> dict[str, bytes | Path]:
    """Return the folder for the Hugging Face hub: a release of its own, without labels and page."""
    require_exportable(made.header)
    files: dict[str, bytes | Path] = {name: folder / name for name in (STATEMENT, HEADER)}
    files |= {each.name: each for each in sorted((folder / STUDENT).glob("*"))}
    files |= {f"{ENCODER}/{each.name}": each for each in sorted((folder / ENCODER).glob("*"))}
    release = {key: value for key, value in made.release.items() if key != "files"}
    if "labels" in release:
        release["labels"] = False
    files |= _hub_texts(_Documents(*made.json[:2], release))
    listed = {name: digest_of_content(content) for name, content in files.items()}
    files[RELEASE] = as_text(release | {"files": listed}).encode()
    listed[RELEASE] = digest_of_content(files[RELEASE])
    return files | {SUMS: render_sums(listed).encode()}


def digest_of_content(content: bytes | Path) -> str:
    """Return the SHA-256 of bytes, or of the file that holds them."""
    return digest_of(content) if isinstance(content, Path) else hashlib.sha256(content).hexdigest()


def _hub_texts(made: _Documents) -> dict[str, bytes | Path]:
    """Return the card with its metadata, and the configuration."""
    names = made.header["class_names"]
    privacy = made.disclosure.summary()
    tabular = len(made.header["input"]["shape"]) == 1
    metadata = _given(
        license=made.owner.license,
        library_name=_LIBRARY,
        pipeline_tag="tabular-classification" if tabular else "image-classification",
        tags=["differential-privacy", made.disclosure.tag],
        privacy=privacy,
    )
    front = "\n".join(["---", *to_yaml(metadata), "---", "", ""])
    config = {
        "model_type": "pate",
        "library_name": _LIBRARY,
        "library_version": made.release["versions"]["pate"],
        "id2label": {str(at): name for at, name in enumerate(names)},
        "label2id": {name: at for at, name in enumerate(names)},
        "privacy": privacy,
    }
    return {
        HUB_CARD: (front + render_card(*made.json, hub=True)).encode(),
        CONFIG: as_text(config).encode(),
    }
