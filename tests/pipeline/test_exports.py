"""Releases in the forms that others read: a folder for hubs, Croissant, and a registry's record."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import yaml

import pate
from pate.errors import InvalidInput
from pate.releases.files import SUMS, digests, render_sums

pytestmark = pytest.mark.xdist_group("exports")  # the runs it releases are made once
OWNER = {
    "license": "cc-by-4.0",
    "publisher": "A hospital",
    "publisher_type": "Nonprofit",
    "intended_use": "Triage",
    "region": "EU",
    "sector": "Healthcare",
    "authors": ["Its office"],
    "answers": {"parameters": "The board agreed to <b>this</b> ε.", "trust": "Two people."},
}
# The record of the registry (opendp/deployments-registry-data, layout of 057e5d8) as far as it is
# known here, as JSON schema: its sections, their keys and types, the values that a key may have
# (those of schemas/deployments-schema.yaml at c1d3d30), and what a record must have. The registry
# adds values as records need them; no other key is allowed in any section.
TEXT = {"type": "string", "minLength": 1}
NUMBER = {"type": "number", "exclusiveMinimum": 0}


def one_of(*values: Any) -> dict[str, Any]:
    return {"enum": list(values)}


def section(*required: str, **keys: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": keys,
    }


def listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


REGISTRY = section(
    "url_slug",
    "deployment",
    url_slug={"type": "string", "pattern": "^[a-z0-9_-]+$"},
    deployment=section(
        "basic",
        "administrative",
        basic=section(
            "name",
            "data_curators",
            "description",
            "intended_use",
            "data_product_type",
            "data_product_region",
            "publication_date",
            name=TEXT,
            data_curators=listed(
                section(
                    "data_curator_name",
                    "data_curator_type",
                    data_curator_name=TEXT,
                    data_curator_type=TEXT,
                )
            ),
            description=TEXT,
            intended_use=TEXT,
            data_product_type=one_of(
                "Summary statistics",
                "Machine learning model",
                "Dataset",
                "Synthetic data",
                "Interactive API",
                "SQL queries",
            ),
            data_product_region=TEXT,
            data_product_sector=one_of(
                "Technology", "Healthcare", "Education", "Government", "Energy", "Finance"
            ),
            publication_date={"type": "string", "format": "date"},
        ),
        dp_variant=section(
            variant_name=one_of(
                "Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"
            ),
            data_domain=TEXT,
            unprotected_quantities=TEXT,
        ),
        privacy_loss=section(
            privacy_unit=TEXT,
            privacy_unit_details=TEXT,
            privacy_parameters=section(
                epsilon=NUMBER, delta={"type": ["number", "string"]}, rho=NUMBER
            ),
            privacy_parameters_details=TEXT,
            number_of_privacy_units={},
        ),
        deployment_model=section(
            model_name=one_of("Local", "Central", "Shuffle", "Federated", "Varies"),
            model_name_details=TEXT,
            trust_assumptions=TEXT,
            actors=TEXT,
            release_type=one_of("One release", "Many releases"),
            release_type_details=TEXT,
            data_source_type=one_of("Static", "Dynamic"),
            data_source_type_details=TEXT,
            access_type=one_of("Interactive", "Non-interactive"),
            access_type_details=TEXT,
        ),
        implementation=section(
            preprocessing_and_hyperparameter_tuning=TEXT,
            mechanisms=TEXT,
            composition=TEXT,
            post_processing=TEXT,
            justification=TEXT,
            utility=TEXT,
            additional_information=TEXT,
        ),
        administrative=section(
            "status",
            "registry_authors",
            "tier",
            status=one_of(
                "Converted",
                "Draft",
                "Pending",
                "Changes Required",
                "Approved",
                "Approved (Update Requested)",
                "Approved (Pending)",
            ),
            registry_authors=listed(TEXT),
            tier=one_of(1, 2, 3),
            sources=TEXT,
        ),
    ),
)
OURS = {  # what no release of ours is otherwise
    "basic": {"data_product_type": {"Machine learning model"}},
    "dp_variant": {"variant_name": {"Pure DP", "Approximate DP"}},
    "deployment_model": {
        "model_name": {"Central"},
        "release_type": {"One release"},
        "data_source_type": {"Static"},
        "access_type": {"Non-interactive"},
    },
    "administrative": {"status": {"Draft"}},
}


def registry_problems(text: str) -> list[str]:
    """What is wrong with a record: of the registry's kind, and of what ours are."""
    jsonschema = pytest.importorskip("jsonschema")
    record = yaml.safe_load(text)
    checker = jsonschema.Draft202012Validator(
        REGISTRY, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    found = []
    for error in checker.iter_errors(record):
        place = ".".join(map(str, error.absolute_path)).removeprefix("deployment.")
        if error.validator == "required":
            key = next(key for key in error.validator_value if repr(key) in error.message)
            found.append(f"{place}.{key} is missing")
        else:
            found.append(f"{place}: {error.message}")
    for name, keys in OURS.items():
        for key, values in keys.items():
            value = record["deployment"].get(name, {}).get(key)
            if value not in values:
                found.append(f"{name}.{key} is {value!r}")
    if "number_of_privacy_units" in record["deployment"]["privacy_loss"]:
        found.append("number_of_privacy_units is private")
    return found


def test_what_is_no_record_of_the_registry_is_found(given: Path) -> None:
    text = (given / "deployment.yaml").read_text()
    for old, new, problem in (
        ('status: "Draft"', 'status: "Done"', "administrative.status: 'Done' is not one of"),
        ("  dp_variant:", "  dp_flavor:", "'dp_flavor' was unexpected"),
        ('_date: "', '_date: "1/', "is not a 'date'"),
        ("tier: 3", "tier: 4", "4 is not one of"),
        ('region: "EU"', "region: ''", "basic.data_product_region: '' should be non-empty"),
    ):
        assert old in text
        assert any(problem in each for each in registry_problems(text.replace(old, new)))


@pytest.fixture(scope="module")
def project(tmp_path_factory: Any, project_in: Any) -> Any:
    """A finished run, and two students: trees as a graph, and a matrix behind an encoder."""
    made = project_in(tmp_path_factory.mktemp("exports"))
    made.write(student={"model": "sklearn.tree:DecisionTreeClassifier"})
    made.call_run()
    made.write(
        name="matrix",
        student={"model": "ridge", "inputs": "features"},
        encoder={"steps": ["standardise"]},
        data={"unit": "patient"},
    )
    made.call_run("--spend", recipe="matrix")
    return made


def released(project: Any, name: str, out: Path, **more: Any) -> Path:
    root, plugins = project.folder / "data", project.folder / "plugins"
    run = project.folder / "runs" / name
    pate.release(run, out, data_root=root, plugin_path=plugins, **more)
    return out


@pytest.fixture(scope="module")
def given(project: Any, tmp_path_factory: Any) -> Path:
    out = tmp_path_factory.mktemp("given") / "out"
    return released(project, "tiny", out, labels=True, also=["hf"], owner=OWNER)


@pytest.fixture(scope="module")
def matrix(project: Any, tmp_path_factory: Any) -> Path:
    return released(project, "matrix", tmp_path_factory.mktemp("matrix") / "out", also=("hf",))


@pytest.mark.parametrize(
    ("name", "weights"), [("given", "model.onnx"), ("matrix", "model.safetensors")]
)
@pytest.mark.sample(1)
def test_a_folder_for_hubs_is_a_release_of_its_own(
    name: str, weights: str, request: Any, tmp_path: Path, project: Any
) -> None:
    out = request.getfixturevalue(name)
    downloaded = tmp_path / "downloaded"
    shutil.copytree(out / "hf", downloaded)
    (downloaded / ".gitattributes").write_text("*.safetensors filter=lfs\n")  # as the hub adds it
    (downloaded / ".cache" / "huggingface").mkdir(parents=True)
    assert (downloaded / weights).is_file()
    records = np.random.default_rng(0).normal(scale=4, size=(200, 4))
    here, there = pate.load_student(out), pate.load_student(downloaded)
    assert len(np.unique(here.predict(records))) > 1
    np.testing.assert_array_equal(here.predict(records), there.predict(records))
    assert (downloaded / "encoder" / "step-0.safetensors").exists() is (name == "matrix")
    checked = pate.verify(downloaded)
    assert checked.problems == ()
    stated = json.loads((out / "guarantee.json").read_text())["guarantee"]
    assert checked.epsilon == stated["epsilon"]
    # The metadata as the hub's own library reads them.
    card = huggingface_hub.ModelCard.load(downloaded / "README.md")
    assert card.data.library_name == "pate-privacy"
    assert card.data.pipeline_tag == "tabular-classification"
    assert card.data.license == (OWNER["license"] if name == "given" else None)
    privacy = card.data.to_dict()["privacy"]
    assert privacy == json.loads((downloaded / "config.json").read_text())["privacy"]
    assert stated["epsilon"] <= privacy["epsilon"] < stated["epsilon"] * 1.01
    assert (privacy["delta"], privacy["neighbours"]) == (stated["delta"], "add-remove")
    assert privacy["unit"] == ("record" if name == "given" else "patient")
    assert f"ε = {privacy['epsilon']:g}" in card.text
    assert 'snapshot_download("OWNER/NAME")' in card.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what reads RDF
def test_labels_have_croissant_metadata_that_mlcroissant_reads(given: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    data = mlcroissant.Dataset(jsonld=given / "labels" / "croissant.json")
    assert not data.metadata.ctx.issues.errors
    rows = list(data.records("labels"))
    for key, name in (("labels/row", "answered"), ("labels/label", "labels")):
        assert [each[key] for each in rows] == np.load(given / "labels" / f"{name}.npy").tolist()
    assert {each["labels/class"] for each in rows} <= {b"0", b"1", b"2"}
    assert "ε = " in data.metadata.description


def test_a_record_for_the_registry_fits_its_template(given: Path, matrix: Path) -> None:
    text = (given / "deployment.yaml").read_text()
    assert registry_problems(text) == []
    stated = json.loads((given / "guarantee.json").read_text())["guarantee"]
    loss = yaml.safe_load(text)["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"]["epsilon"] >= stated["epsilon"]
    assert loss["privacy_parameters"]["delta"] == stated["delta"]
    assert loss["privacy_unit"] == "record-level"
    trust = yaml.safe_load(text)["deployment"]["deployment_model"]["trust_assumptions"]
    assert trust.endswith(". The owner states: Two people.")  # which nothing checks
    # Without the owner, only what the owner alone can state is missing, and is named.
    text = (matrix / "deployment.yaml").read_text()
    missing = [
        "basic.data_curators",
        "basic.intended_use",
        "basic.data_product_region",
        "administrative.registry_authors",
    ]
    assert sorted(registry_problems(text)) == sorted(f"{key} is missing" for key in missing)
    for key in (*missing, "privacy_loss.number_of_privacy_units"):
        assert f"# Only the owner can state {key}\n" in text
    assert '"patient (record-level)"' in text


def test_card_and_page_answer_nist_and_name_what_the_owner_owes(given: Path, matrix: Path) -> None:
    for name in ("MODEL_CARD.md", "report.html"):
        stated, owed = ((out / name).read_text() for out in (given, matrix))
        assert "Evaluation by NIST SP 800-226" in stated
        assert "Only the owner can state" in stated
        assert "The owner states:" in stated
        assert "<b>this</b>" not in stated  # the owner's words are text
        assert "The owner states:" not in owed
        assert "why this ε is acceptable" in owed
        assert "why this ε is acceptable" not in stated


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("MODEL_CARD.md", r"\*\*\(ε, δ\) differential privacy with ε = ([\d.]+)"),
        ("deployment.yaml", r"epsilon: ([\d.]+)"),
        ("labels/croissant.json", r"ε = ([\d.]+)"),
        ("labels/labels.csv", r"\n(\d+),"),
        ("hf/README.md", r"epsilon: ([\d.]+)"),
        ("hf/config.json", r'"epsilon": ([\d.]+)'),
        ("hf/guarantee.json", r'"epsilon": ([\d.]+)'),
        ("hf/SHA256SUMS", r"([0-9a-f]{8})"),
    ],
)
def test_an_edited_epsilon_is_found_with_fitting_checksums(
    given: Path, tmp_path: Path, name: str, old: str
) -> None:
    out = tmp_path / "out"
    shutil.copytree(given, out)
    text = (out / name).read_text()
    found = re.search(old, text)
    assert found is not None
    (out / name).write_text(text[: found.start(1)] + "0.01" + text[found.end(1) :])
    sums_again(out)
    assert any(each.startswith(f"{name} does not match") for each in pate.verify(out).problems)
    if name == "hf/README.md":  # also by somebody who has that folder alone
        sums_again(out / "hf")
        found_there = pate.verify(out / "hf").problems
        assert any(each.startswith("README.md does not match") for each in found_there)


@pytest.mark.parametrize("name", ["hf/notes.json", "hf/encoder/step-0.onnx", "labels/labels.csv"])
def test_a_file_that_follows_from_nothing_is_found(matrix: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    shutil.copytree(matrix, out)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("row,label,class\n")
    sums_again(out)
    assert pate.verify(out).problems


def sums_again(out: Path) -> None:
    """Make lists and checksums fit what the files hold now."""
    release = json.loads((out / "release.json").read_text())
    release["files"] = {n: d for n, d in digests(out).items() if n != "release.json"}
    (out / "release.json").write_text(json.dumps(release))
    (out / SUMS).write_text(render_sums(digests(out)))


def test_what_cannot_be_exported_is_refused_with_the_reason(project: Any, tmp_path: Path) -> None:
    project.write(name="code")  # a student of its own class
    project.call_run("--spend", recipe="code")
    with pytest.raises(InvalidInput, match="is not data alone, because a Centroids is a class of"):
        released(project, "code", tmp_path / "out", also=["hf"])
    assert not (tmp_path / "out").exists()
    project.plugin(
        "halves",
        "class Halves:\n    def fit(self, X): pass\n    def transform(self, X): return X / 2\n",
    )
    student = {"model": "ridge", "inputs": "features"}
    project.write(name="step", student=student, encoder={"steps": ["halves:Halves"]})
    project.call_run("--spend", recipe="step")
    with pytest.raises(InvalidInput, match="the encoder's step halves:Halves is code of its own"):
        released(project, "step", tmp_path / "out", also=["hf"])
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidInput, match="also holds 'gguf'; a release is also written as hf"):
        released(project, "tiny", tmp_path / "out", also=["gguf"])
    for owner, rule in (
        ({"licence": "mit"}, "owner: licence is wrong: .* it takes license, publisher,"),
        ({"answers": {"trust": "a\nb"}}, "answers.trust is wrong: .* a line of printable text"),
        (tmp_path / "none.toml", "none.toml cannot be read: No such file"),
    ):
        with pytest.raises(InvalidInput, match=rule):
            released(project, "tiny", tmp_path / "out", owner=owner)
