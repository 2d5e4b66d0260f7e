"""Releases that somebody made to break in: opening one runs, imports, downloads and reads nothing.

Each attack of the first group worked against the first format, which named classes to import.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pate.releases.files import SUMS, digests, render_sums
from pate.releases.verify import verify

ROOT = Path(__file__).parents[2]
OLD = ROOT / "tests" / "unit" / "releases" / "format-1"
PROGRAM = """
import resource, sys
import pate
from pathlib import Path
from pate.releases.verify import verify as verify_release
folder = Path(sys.argv[1])
said = []
try:
    said.append(f"loaded: {pate.load_student(folder)}")
except pate.PateError as error:
    said.append(f"refused: {error}")
checked = verify_release(folder)
said += [f"problem: {each}" for each in checked.problems]
said += [f"note: {each}" for each in checked.notes]
own = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
peak = max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print("\\n".join(said), flush=True)
print("peak MiB", peak // 1024)
"""


def opened(folder: Path, *, seconds: int = 300, **environment: str) -> tuple[list[str], int]:
    """What load_student and verify say in a process of their own, and the memory they took."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    *said, last = done.stdout.splitlines()
    return said, int(last.rpartition(" ")[2])


def sealed(folder: Path) -> None:
    """Lists and checksums that fit what the files hold now."""
    file = folder / "release.json"
    listed = {name: each for name, each in digests(folder).items() if name != "release.json"}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"files": listed}))
    (folder / SUMS).write_text(render_sums(digests(folder)))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "given"))


def student(folder: Path, archive: bytes, name: str, **params: object) -> None:
    (folder / "student" / "model.skops").write_bytes(archive)
    header = json.loads((folder / "student.json").read_text())
    header["model"].update(model=name, params=params)
    (folder / "student.json").write_text(json.dumps(header))
    sealed(folder)


def refused(said: list[str]) -> None:
    """Not loaded, and verify either found a problem or did not try the student."""
    assert said[0].startswith("refused: "), said
    assert any(each.startswith(("problem: ", "note: ")) for each in said[1:]), said


def test_no_weights_are_downloaded_and_unpickled(old: Path, tmp_path: Path) -> None:
    """A network of torchvision asks for weights; here they lie where torch.hub would put them."""
    import torch

    class Runs:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    cache = tmp_path / "hub" / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.save(Runs(), cache / "squeezenet1_1-b8a52dc0.pth")
    header = json.loads((old / "student.json").read_text())
    header["model"].update(
        model="torchvision.models:squeezenet1_1", params={"weights": "IMAGENET1K_V1"}
    )
    (old / "student.json").write_text(json.dumps(header))
    sealed(old)
    said, _ = opened(old, TORCH_HOME=str(tmp_path / "hub"))
    assert not (tmp_path / "ran").exists()
    refused(said)


def test_no_file_of_the_machine_is_read(old: Path, tmp_path: Path) -> None:
    """A nest of estimators: the label of the first is a file's name, and the last reads it."""
    from sklearn.compose import ColumnTransformer
    from sklearn.dummy import DummyClassifier
    from sklearn.ensemble import StackingClassifier, VotingClassifier
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import LabelEncoder

    from pate.teachers.persist import skops_archive

    names = [str(tmp_path / f"{each}.txt") for each in "abc"]
    for each, file in zip(("some", "more", "secret"), names, strict=True):
        Path(file).write_text(each)
    table = np.array([[name] for name in names])
    columns = ColumnTransformer([("words", CountVectorizer(input="filename"), 0)])
    reads = make_pipeline(columns, LogisticRegression()).fit(table, [0, 1, 2])
    says = DummyClassifier(strategy="constant", constant=names[2]).fit(np.zeros((3, 4)), names)
    label = LabelEncoder().fit([0, 1, 2])
    stack = StackingClassifier([("says", says)], reads, cv="prefit")
    stack.__dict__.update(estimators_=[says], final_estimator_=reads, stack_method_=["predict"],
                          _label_encoder=label, classes_=np.arange(3))  # fmt: skip
    nest = VotingClassifier([("stack", stack)])
    nest.__dict__.update(estimators_=[stack], le_=label, classes_=np.arange(3))
    student(old, skops_archive(nest, home="sklearn.ensemble"), "sklearn.ensemble:VotingClassifier",
            estimators=[])  # fmt: skip
    Path(names[2]).unlink()
    os.mkfifo(names[2])  # whoever opens it waits for ever
    said, _ = opened(old, seconds=300)
    refused(said)


def test_a_tree_that_leads_nowhere_crashes_nothing(old: Path) -> None:
    from sklearn.tree import DecisionTreeClassifier

    from pate.teachers.persist import skops_archive

    X = np.random.default_rng(0).normal(size=(50, 4))
    tree = DecisionTreeClassifier().fit(X, np.arange(50) % 3)
    state = tree.tree_.__getstate__()
    state["nodes"]["left_child"][0] = state["nodes"]["right_child"][0] = 2**40
    tree.tree_.__setstate__(state)
    student(old, skops_archive(tree, home="sklearn.tree"), "sklearn.tree:DecisionTreeClassifier")
    said, _ = opened(old)
    refused(said)


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.onnx", "model.safetensors"])
@pytest.mark.parametrize("kind", ["format-1", "format-3", "format-3-dpsgd"])
@pytest.mark.sample(4)
def test_no_second_card_or_model_lies_beside_the_checked_one(
    kind: str, name: str, tmp_path: Path
) -> None:
    """Names of the folder for hubs: outside it, nothing would compare what they claim."""
    folder = Path(shutil.copytree(OLD.parent / kind, tmp_path / "given"))
    (folder / name).write_text("ε = 0.01")
    sealed(folder)
    assert any(each.startswith(f"{name} ") for each in verify(folder).problems)


@pytest.mark.parametrize(
    "name",
    [
        "encoder/step-0.safetensors",
        "encoder/step-7.onnx",
        "encoder/step-3/own.json",
        "encoder/encoder.json",
        "encoder/weights-0.safetensors",
        "student/arrays.npz",
        "student/own/votes.npy",
        "labels/noised.npy",
    ],
)
@pytest.mark.parametrize("kind", ["format-1", "format-2", "format-3", "format-3-dpsgd"])
def test_no_file_that_the_release_does_not_use_lies_in_it(
    kind: str, name: str, tmp_path: Path
) -> None:
    """Of a kind that may leave, but read by nothing: whatever it holds was not paid for."""
    folder = Path(shutil.copytree(OLD.parent / kind, tmp_path / "given"))
    assert not verify(folder).problems
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("private")
    sealed(folder)
    assert verify(folder).problems


@pytest.mark.campaign
def test_a_small_archive_takes_no_large_memory(old: Path) -> None:
    """A few MB, well packed, are a GB of weights."""
    from sklearn.linear_model import LogisticRegression

    from pate.teachers.persist import skops_archive

    X = np.random.default_rng(0).normal(size=(50, 4))
    packed = skops_archive(
        LogisticRegression().fit(X, np.arange(50) % 3), home="sklearn.linear_model"
    )
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(packed)) as archive,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as inflated,
    ):
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith(".npy") and np.load(io.BytesIO(content)).ndim == 2:
                zeros = io.BytesIO()
                np.save(zeros, np.zeros((3, 40_000_000)))
                content = zeros.getvalue()
            inflated.writestr(name, content)
    student(old, out.getvalue(), "sklearn.linear_model:LogisticRegression")
    assert (old / "student" / "model.skops").stat().st_size < 10_000_000
    said, peak = opened(old)
    refused(said)
    assert peak < 600, peak
