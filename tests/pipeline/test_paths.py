"""Paths in recipes, and runs that are looked at from anywhere, without the private file."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest
from harness import Project

pytestmark = pytest.mark.usefixtures("plain_plots")


@pytest.fixture
def elsewhere(tmp_path_factory: Any) -> Project:
    """A current folder that has nothing to do with the project."""
    return Project(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture
def made(project: Any) -> Any:
    """A finished run whose recipe names its plug-ins."""
    project.write(plugins={"path": "plugins"}, privacy={"sanitise": False})
    project.call("run", "tiny.toml", "--engine", "serial", "--quiet")
    return project


def states(text: str) -> dict[str, str]:
    rows = [line.split("│") for line in text.splitlines() if line.startswith("│")]
    return {row[1].strip(): row[2].strip() for row in rows if row[1].strip()}


def one_line(done: Any) -> str:
    assert done.stderr.count("\n") == 1, done.stderr
    return str(done.stderr)


def test_a_recipe_runs_from_any_folder(project: Any, elsewhere: Any) -> None:
    recipe = project.write(plugins={"path": "plugins"}, privacy={"sanitise": False})
    words = ("run", recipe, "--engine", "serial", "--out", project.run_folder, "--data-root")
    elsewhere.call(*words, project.folder / "data")
    assert "nothing to do" in project.call("run", "tiny.toml", "--engine", "serial").stdout
    assert len(project.charges()) == 1


def test_a_finished_run_is_shown_from_anywhere_without_its_data(made: Any, elsewhere: Any) -> None:
    (made.folder / "tiny.npz").unlink()
    shown = elsewhere.call("status", made.run_folder).stdout
    assert "done earlier (there is no file at" in shown
    assert set(states(shown).values()) - {"done"} == {states(shown)["data"]}
    elsewhere.call("report", made.run_folder)
    elsewhere.call("release", made.run_folder, "out")
    words = ("--plugin-path", made.folder / "plugins", "--trust")
    assert elsewhere.call("verify", "out", *words).stdout.startswith("verified")
    for file in (elsewhere.folder / "out").rglob("*"):
        assert not file.is_file() or bytes(made.folder) not in file.read_bytes()


def test_a_run_that_needs_a_missing_file_names_it_in_a_line(made: Any, elsewhere: Any) -> None:
    file = made.folder / "tiny.npz"
    content = file.read_bytes()
    file.unlink()
    again = ("run", made.folder / "tiny.toml", "--engine", "serial", "--data-root")
    words = (*again, made.folder / "data", "--out", made.run_folder)
    assert "nothing to do" in elsewhere.call(*words).stdout
    told = one_line(elsewhere.call(*words, "--set", "student.seed=3", code=2))
    assert told == f"pate: there is no file at {file}\n"
    assert str(file) in one_line(elsewhere.call(*words, "--out", "new", code=2))
    assert len(made.charges()) == 1
    file.write_bytes(content)
    assert "nothing to do" in made.call("run", "tiny.toml", "--engine", "serial").stdout


def test_the_records_used_last_stand_in_for_a_missing_file(made: Any) -> None:
    """Two results differ in the records alone; the one that was run last is shown."""
    before = made.artifacts("data")
    file = made.folder / "tiny.npz"
    first = file.read_bytes()
    made.data(records=160)
    words = ("run", "tiny.toml", "--engine", "serial", "--quiet")
    made.call(*words, "--spend")
    (newer,) = made.artifacts("data") - before
    file.write_bytes(first)
    made.call(*words)
    file.unlink()
    from pate.stages.catalogue import open_run

    state = next(open_run(made.run_folder).states())
    assert state.made_from is not None
    assert {state.made_from[:20]} == before != {newer}


def test_a_moved_project_pays_nothing(made: Any, elsewhere: Any) -> None:
    moved = Project(made.folder.rename(elsewhere.folder / "moved"))
    assert set(states(elsewhere.call("status", moved.run_folder).stdout).values()) == {"done"}
    elsewhere.call("report", moved.run_folder)
    assert "nothing to do" in moved.call("run", "tiny.toml", "--engine", "serial").stdout
    assert len(moved.charges()) == 1
    home = json.loads((moved.run_folder / "home.json").read_text())
    assert home["recipe"] == str(moved.folder / "tiny.toml")
    assert home["plugin_path"] == str(moved.folder / "plugins")


def test_a_copied_project_uses_its_own_files(made: Any, elsewhere: Any) -> None:
    copy = Project(shutil.copytree(made.folder, elsewhere.folder / "copy"))
    copy.data(records=160)
    assert states(copy.call("status", "runs/tiny").stdout)["data"] == "stale: content changed"
    shown = elsewhere.call("status", copy.run_folder).stdout
    assert states(shown)["data"] == "stale: content changed"
    assert set(states(elsewhere.call("status", made.run_folder).stdout).values()) == {"done"}
    alone = shutil.copytree(made.run_folder, elsewhere.folder / "runs" / "alone")
    assert set(states(elsewhere.call("status", alone).stdout).values()) == {"done"}


def test_a_run_of_an_earlier_version_is_found_as_before(project: Any) -> None:
    """Its home.json holds neither folder nor plug-ins, and its data are in the current folder."""
    project.write()
    project.call_run("--quiet")
    file = project.run_folder / "home.json"
    home = json.loads(file.read_text())
    file.write_text(json.dumps({key: home[key] for key in ("data_root", "key")}))
    words = ("status", "runs/tiny", "--plugin-path", "plugins")
    assert set(states(project.call(*words).stdout).values()) == {"done"}
    assert "nothing to do" in project.call_run().stdout
    assert json.loads(file.read_text()) == home


def test_data_in_the_data_root_or_the_current_folder_are_still_found(
    project: Any, elsewhere: Any
) -> None:
    recipe = project.write()
    root = elsewhere.folder / "data"
    root.mkdir()
    words = ("partition", recipe, "--engine", "serial", "--out")
    shutil.move(project.folder / "tiny.npz", root)
    elsewhere.call(*words, "below-root")
    shutil.move(root / "tiny.npz", elsewhere.folder)
    assert "partition: done before" in elsewhere.call(*words, "below-root").stdout
    (root / "tiny.npz").symlink_to(elsewhere.folder / "tiny.npz")  # the same file
    elsewhere.call(*words, "below-root")


@pytest.mark.parametrize("other", ["tiny.npz", "data/tiny.npz"])
def test_two_files_of_one_name_are_refused(project: Any, elsewhere: Any, other: str) -> None:
    second = elsewhere.folder / other
    second.parent.mkdir(exist_ok=True)
    shutil.copy(project.folder / "tiny.npz", second)
    elsewhere.call("partition", project.write(), "--engine", "serial")  # a copy is no other file
    np.savez(second, X=np.zeros((3, 2)), y=np.zeros(3))
    told = one_line(elsewhere.call("partition", project.write(), "--engine", "serial", code=2))
    assert str(project.folder / "tiny.npz") in told
    assert str(second) in told
    assert "relative to the recipe" in told


def test_three_files_are_beside_the_recipe(project: Any, elsewhere: Any) -> None:
    with np.load(project.folder / "tiny.npz") as stored:
        whole = dict(stored)
    (project.folder / "records").mkdir()
    paths = {}
    for role, rows in (
        ("private", slice(60, None)),
        ("public", slice(30)),
        ("test", slice(30, 60)),
    ):
        np.savez(project.folder / f"records/{role}.npz", X=whole["X"][rows], y=whole["y"][rows])
        paths[f"{role}_path"] = f"records/{role}.npz"
    recipe = project.write(data={"source": None, "public": None, "test": None, **paths})
    elsewhere.call("partition", recipe, "--engine", "serial")
    (project.folder / "records" / "private.npz").rename(project.folder / "gone.npz")
    assert "records/private.npz" in one_line(elsewhere.call("teach", recipe, "--out", "b", code=2))


def test_the_option_wins_over_the_recipes_plugins(project: Any, elsewhere: Any) -> None:
    recipe = project.write(plugins={"path": "nowhere"})
    told = one_line(elsewhere.call("partition", recipe, "--engine", "serial", code=2))
    assert told == f"pate: there is nothing at plugins.path {project.folder / 'nowhere'}\n"
    words = ("--plugin-path", project.folder / "plugins", "--engine", "serial")
    elsewhere.call("teach", recipe, *words)
    home = json.loads((elsewhere.folder / "runs" / "tiny" / "home.json").read_text())
    assert home["plugin_path"] == str(project.folder / "plugins")


@pytest.mark.campaign
def test_plugins_of_the_recipe_in_sweeps_and_plans(
    project: Any, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pate.studies.sweep.plot_sweep", lambda _: None)
    recipe = project.write(plugins={"path": "plugins"}, privacy={"sanitise": False})
    words = ("sweep", recipe, "--over", "student.seed=1,2", "--engine", "serial", "--out", "swept")
    elsewhere.call(*words, "--quiet")
    (project.folder / "tiny.npz").rename(project.folder / "kept")
    elsewhere.call(*words, "--quiet")  # all of it is done
    (project.folder / "kept").rename(project.folder / "tiny.npz")
    elsewhere.call("report", "swept")
    elsewhere.call("status", "swept")
    one = ("--epsilon", "30", "--accuracy", "0.9", "--teachers", "6", "--records", "90")
    elsewhere.call("plan", recipe, *one, "--public", "30", "--classes", "3", "--out", "plan.toml")
    planned = (elsewhere.folder / "plan.toml").read_text()
    assert 'source = "../' in planned
    assert '[plugins]\npath = "../' in planned
    elsewhere.call("teach", "plan.toml", "--engine", "serial")


NET = "from torch import nn\n\ndef net(shape, classes):\n    return nn.Linear(shape[0], classes)\n"
OWN = """
[data]
name = "tiny"
source = "tiny.npz"
accept_unprotected = true
public = 30
test = 30

[plugins]
path = "plugins"
"""
TRAINING = "steps = 2\nlot_size = 20\nlearning_rate = 0.5\n"


def test_plugins_of_the_recipe_in_dpsgd(project: Any, elsewhere: Any) -> None:
    project.plugin("nets", NET)
    recipe = project.folder / "dp.toml"
    recipe.write_text(
        f'kind = "dpsgd"\n{OWN}[model]\nentry = "nets:net"\n[training]\n{TRAINING}'
        "[privacy]\nnoise_multiplier = 2.0\ndelta = 1e-3\n"
    )
    dpsgd = type("Dpsgd", (Project,), {"program": "dpsgd"})(elsewhere.folder)
    dpsgd.call("train", recipe, "--quiet", "--out", "dp")
    (home,) = (elsewhere.folder / "dp").glob("private/*/home.json")
    assert json.loads(home.read_text())["plugin_path"] == str(project.folder / "plugins")
    (project.folder / "tiny.npz").rename(project.folder / "kept")
    assert "nothing to do" in dpsgd.call("train", recipe, "--out", "dp").stdout
    assert "there is no file at" in one_line(dpsgd.call("train", recipe, "--out", "two", code=2))


@pytest.mark.campaign
def test_plugins_of_the_recipe_in_a_comparison(project: Any, elsewhere: Any) -> None:
    project.plugin("nets", NET)
    recipe = project.folder / "both.toml"
    recipe.write_text(
        f'kind = "compare"\n{OWN}[compare]\nepsilons = [4.0]\nseeds = 1\ndelta = 1e-3\n'
        '[pate.teachers]\ncount = 6\nmodel = "centroids:Centroids"\n'
        '[pate.aggregate]\nmechanism = "gnmax"\nqueries = 12\n'
        '[pate.student]\nmodel = "centroids:Centroids"\n'
        f'[dpsgd.model]\nentry = "nets:net"\n[dpsgd.training]\n{TRAINING}'
    )
    words = ("compare", recipe, "--engine", "serial", "--quiet", "--out", "both")
    elsewhere.call(*words)
    (project.folder / "tiny.npz").unlink()
    elsewhere.call(*words)  # all of it is done
    elsewhere.call("report", "both")


def test_own_code_that_misses_its_file(project: Any, elsewhere: Any) -> None:
    project.plugin("mine", f"import numpy as np\n\ndef data():\n"
                   f"    found = np.load({str(project.folder / 'tiny.npz')!r})\n"
                   "    return found['X'], found['y']\n")  # fmt: skip
    project.write(data={"source": "mine:data"}, plugins={"path": "plugins"})
    project.call("teach", "tiny.toml", "--engine", "serial")
    (project.folder / "tiny.npz").unlink()
    assert states(elsewhere.call("status", project.run_folder).stdout)["teach"] == "done"
    told = one_line(project.call("vote", "tiny.toml", "--engine", "serial", code=2))
    assert "mine:data did not find a file that it reads" in told


def test_places_enter_no_fingerprint(project: Any) -> None:
    """The keys of a finished run, and all that is stored of its recipe, are as before."""
    from pate.pipeline.recipe import Recipe
    from pate.recipes.read import read_recipe

    plain = read_recipe(str(project.write()), None, Recipe)[1].model_dump(mode="json")
    told = project.write(plugins={"path": "plugins"}, data={"accept_unprotected": True})
    assert read_recipe(str(told), None, Recipe)[1].model_dump(mode="json") == plain
    assert "plugins" not in plain
    assert "accept_unprotected" not in plain["data"]
