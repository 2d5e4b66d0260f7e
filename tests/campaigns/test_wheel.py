"""The built wheel and sdist: complete, and the wheel works in an empty environment elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Beside the notebook snippet of the README: the pipeline from Python, and its page.
SNIPPET = """
import pate

assert "site-packages" in pate.__file__, pate.__file__
run = pate.run("digits-teachers", set={"teachers.count": 20}, out="runs/d", data_root="data")
assert run.evaluation is not None
assert run.report().is_file()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, the wheel that is built from it, and the wheel that is built from the tree."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    for words in ((folder, ROOT), (folder / "tree", "--wheel", ROOT)):
        subprocess.run([*build, *map(str, words)], check=True, capture_output=True)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    (direct,) = (folder / "tree").glob("*.whl")
    return sdist, wheel, direct


@pytest.mark.campaign
def test_the_sdist_is_complete(built):
    sdist, wheel, direct = built
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(direct) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
        assert {"pate/py.typed", "dpsgd/py.typed", "pate/pipelines/digits.toml"} <= set(
            one.namelist()
        )
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    hidden = {name for name in tracked if name.startswith(".")}
    assert set(tracked) - hidden <= names
    assert "CITATION.cff" in names
    assert not any(name.startswith(("runs/", ".venv/", "site/")) for name in names)


@pytest.mark.campaign
def test_the_wheel_works_outside_the_repository(built, tmp_path):
    wheel = built[1]
    venv.create(tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", str(wheel)], check=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # Dependencies are those of this environment: installing them again takes minutes.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    work = tmp_path / "work"
    work.mkdir()
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    outside["PATE_DATA"] = "data"

    def run(*words: str | Path) -> str:
        command = [python.parent / words[0], *words[1:]]
        done = subprocess.run(command, cwd=work, env=outside, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    assert run("pate", "--version").startswith("pate ")
    assert run("dpsgd", "--version").startswith("dpsgd ")
    assert "digits " in run("pate", "recipes")
    assert "digits-dpsgd" in run("dpsgd", "recipes")
    assert f"in {site / 'pate'}" in run("pate", "doctor")
    assert "Publish: ε = 1 at δ = 0" in run("pate", "run", "digits")
    run("pate", "new", "mine", "--from", "tabular")
    run("python", "-c", SNIPPET)
    run("python", "-m", "doctest", ROOT / "README.md")


def test_one_set_of_pins_satisfies_every_extra(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    probe = [*pip, "download", "--no-deps", "--dest", str(tmp_path), "packaging"]
    if subprocess.run(probe, capture_output=True, timeout=60).returncode:
        pytest.skip("no package index answers")
    words = ("--dry-run", "--ignore-installed", "--no-build-isolation")
    done = subprocess.run(
        [*pip, "install", *words, "--constraint", "constraints.txt", ".[all,docs]"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def interpreter(version):
    """A Python of this version on the PATH, or one of pyenv; None if there is none."""
    homes = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    places = [shutil.which(f"python{version}"), *homes]
    probe = ["-c", f"import sys; assert '%d.%d' % sys.version_info[:2] == '{version}'"]
    works = (p for p in places if p and not subprocess.run([p, *probe], check=False).returncode)
    return next(works, None)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_sources_compile_and_import_under_every_declared_python(version, tmp_path):
    """Without dependencies: what is imported at the top of the package needs none."""
    declared = f"Programming Language :: Python :: {version}"
    assert declared in (ROOT / "pyproject.toml").read_text()
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    own = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONPATH": str(ROOT)}
    trees = ("pate", "dpsgd", "examples", "benchmarks", "docs/tutorials")
    for words in (
        ("-m", "compileall", "-q", *trees),
        ("-c", "import pate, dpsgd; pate.PateError, dir(pate), dir(dpsgd)"),
    ):
        command = [python, "-W", "error", *words]
        done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
