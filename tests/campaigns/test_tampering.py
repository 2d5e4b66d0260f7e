"""Every file of a run and of its release is changed in every plain way: each change is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import call

from pate.artifacts import Level
from pate.artifacts.manifest import read_manifest, verify
from pate.errors import StoreError

TREE = {"model": "sklearn.tree:DecisionTreeClassifier", "params": {"max_depth": 3}}
pytestmark = pytest.mark.xdist_group("tampering")  # one run for all of them


@pytest.fixture(scope="module")
def finished(tmp_path_factory: Any, project_in: Any) -> Any:
    """A finished run and its release, both good."""
    project = project_in(tmp_path_factory.mktemp("tampering"))
    project.write(student=TREE)
    project.run("--quiet")
    project.pate("release", "runs/tiny", "out", "--plugin-path", "plugins")
    project.pate("verify", "out")
    return project


def pate(project: Any, *words: Any) -> Any:
    return call("pate", *map(str, words), folder=project.folder, environment=project.environment())


def same(file: Path, one: bytes, other: bytes) -> bool:
    """Whether two contents of a file say the same: in a manifest, blanks do not count."""
    try:
        return one == other or (
            file.name == "manifest.json" and json.loads(one) == json.loads(other)
        )
    except ValueError:
        return False


def tamperings(file: Path, rng: Any) -> dict[str, Any]:
    """Ways to change a file that leave something else behind than there was."""
    content = file.read_bytes()
    spot = rng.randrange(max(1, len(content)))
    bit = bytes([content[spot] ^ (1 << rng.randrange(8))]) if content else b"x"
    changed = {
        "a bit": content[:spot] + bit + content[spot + 1 :],
        "cut": content[:-1],
        "grown": content + b"\n",
        "emptied": b"",
        "doubled": content * 2,
    }
    ways = {way: (lambda new=new: file.write_bytes(new)) for way, new in changed.items()
            if not same(file, content, new)}  # fmt: skip
    return ways | {"removed": file.unlink}


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_changed_release_is_not_verified(finished: Any, tmp_path: Path, rng: Any) -> None:
    tried = 0
    missed = []
    for good in files_in(finished.folder / "out"):
        for way in tamperings(good, rng):
            copy = tmp_path / "out"
            shutil.copytree(finished.folder / "out", copy)
            file = copy / good.relative_to(finished.folder / "out")
            tamperings(file, rng)[way]()
            done = pate(finished, "verify", copy)
            if done.returncode in (0, 4) or "Traceback" in done.stderr or not done.stderr:
                missed.append((good.name, way, done.returncode, done.stderr[-200:]))
            shutil.rmtree(copy)
            tried += 1
    assert tried >= 40
    assert not missed


def test_what_is_put_beside_a_release_is_noticed(finished: Any, tmp_path: Path) -> None:
    for name in ("more.txt", ".hidden", "labels.csv.bak", "folder/inside"):
        copy = tmp_path / "out"
        shutil.copytree(finished.folder / "out", copy)
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("ε = 0.01")
        assert pate(finished, "verify", copy).returncode not in (0, 4), name
        shutil.rmtree(copy)


def test_a_run_with_changed_released_files_is_not_released(
    finished: Any, tmp_path: Path, rng: Any
) -> None:
    """Whatever ``pate release`` would hand out, or rests on."""
    missed = []
    for good in files_in(finished.run_folder / "released"):
        way = rng.choice(sorted(tamperings(good, rng)))
        copy = tmp_path / "project"
        shutil.copytree(finished.folder, copy, ignore=shutil.ignore_patterns("out"))
        file = copy / good.relative_to(finished.folder)
        tamperings(file, rng)[way]()
        words = ("release", copy / "runs" / "tiny", copy / "out", "--plugin-path", copy / "plugins")
        done = pate(finished, *words, "--data-root", copy / "data")
        if not done.returncode or (copy / "out").exists() or "Traceback" in done.stderr:
            missed.append((str(good.relative_to(finished.run_folder)), way, done.stderr[-200:]))
        shutil.rmtree(copy)
    assert not missed


def test_a_changed_artifact_is_not_opened(finished: Any, tmp_path: Path, rng: Any) -> None:
    """Every file of every artifact, private ones too, in every way."""
    tried = 0
    for manifest in sorted(finished.run_folder.glob("*/*/*/manifest.json")):
        stage, level = manifest.parents[1].name, Level[manifest.parents[2].name.upper()]
        for good in files_in(manifest.parent):
            for way in tamperings(good, rng):
                copy = tmp_path / "artifact"
                shutil.copytree(manifest.parent, copy)
                tamperings(copy / good.relative_to(manifest.parent), rng)[way]()
                with pytest.raises(StoreError):
                    verify(copy, read_manifest(copy, stage=stage, level=level))
                shutil.rmtree(copy)
                tried += 1
    assert tried > 200
