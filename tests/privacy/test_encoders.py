"""Encoders and privacy: fitted on public inputs alone, applied to each shard by itself."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from harness import Project, printed

from pate.artifacts import Level, Store, StoreError
from pate.stages.encode import ENCODER

TEACHERS, PRIVATE, OPEN = 5, 90, 40
MARK = 1234.5678  # a pixel of some private records
MODELS = {
    "ridge": 'model = "ridge"',
    "logistic": 'model = "logistic"',
    "torch": 'model = "pate.students.networks:Mlp"\nparams = { hidden = [8] }\nepochs = 2',
}
RECIPE = """
[data]
name = "mine"
private_path = "private.npz"
public_path = "public.npz"
test_path = "test.npz"
[encoder]
steps = ["scattering", "standardise", {{ name = "pca", dimension = 6 }}]
[teachers]
count = {count}
{model}
[aggregate]
mechanism = "lnmax"  # in so much noise that labels are of both classes
scale = 10.0
queries = 20
[privacy]
delta = 1e-3
[student]
model = "ridge"
inputs = "features"
[evaluate]
reference = true
"""


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def images(count, *, seed):
    """8 × 8 pixels: a bright left or right half, in noise."""
    labels = np.arange(count) % 2
    pixels = np.random.default_rng(seed).normal(size=(count, 8, 8)).astype(np.float32)
    pixels[:, :, :4] += 3.0 * labels[:, None, None]
    return pixels, labels


def private_images():
    pixels, labels = images(PRIVATE, seed=1)
    pixels[:7, 2, 3] = MARK
    return pixels, labels


class ImageProject(Project):
    """Images of its own, and a recipe with an encoder."""

    def __init__(self, folder, *, model="ridge", private=None):
        super().__init__(folder, name="my")
        (folder / "data").mkdir(parents=True)
        self.save("private", *(private or private_images()))
        for seed, name in enumerate(("public", "test"), start=2):
            self.save(name, *images(OPEN, seed=seed))
        (folder / "my.toml").write_text(RECIPE.format(count=TEACHERS, model=MODELS[model]))

    def save(self, name, pixels, labels):
        np.savez(self.folder / f"{name}.npz", X=pixels, y=labels)

    @property
    def store(self):
        return Store(root=self.run_folder, reader="evaluate")

    def shards(self):
        """The encoded records of each shard, as bytes."""
        offsets = self.artifact("partition").array("offsets.npy")
        encoded = np.split(self.artifact("encode").array("features.npy"), offsets[1:-1])
        return [part.tobytes() for part in encoded]

    def teachers(self):
        """The files of each teacher, in their order."""
        names = self.artifact("teach").json("teachers.json")
        return [contents(self.store.open("teacher", name)) for name in names]


def contents(artifact):
    files = artifact.path.rglob("*")
    return {
        str(file.relative_to(artifact.path)): file.read_bytes()
        for file in files
        if file.is_file() and file.name != "manifest.json"
    }


def different(before, after):
    return [n for n, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    project = ImageProject(tmp_path_factory.mktemp("finished") / "project")
    project.output = printed(project.call_run())
    return project


@pytest.mark.parametrize("model", MODELS)
def test_a_dropped_record_changes_one_encoded_shard_one_teacher_and_its_votes(tmp_path, model):
    """Two projects, so that every teacher is trained anew: the others agree to the last bit."""
    pixels, labels = private_images()
    whole = ImageProject(tmp_path / "whole", model=model)
    less = ImageProject(
        tmp_path / "less", model=model, private=(np.delete(pixels, 3, 0), np.delete(labels, 3))
    )
    for project in (whole, less):
        project.call_run(stage="vote")
    changed = different(whole.shards(), less.shards())
    assert len(changed) == 1
    assert different(whole.teachers(), less.teachers()) == changed
    votes = [project.artifact("vote").array("predictions.npy") for project in (whole, less)]
    assert set(different(*votes_by_teacher(votes))) <= set(changed)


def votes_by_teacher(votes):
    return [[row.tobytes() for row in each] for each in votes]


def test_the_encoder_can_open_the_public_inputs_and_nothing_else(finished):
    """Nor labels of public inputs and of the test, which are PUBLIC, but for evaluate alone."""
    store = Store(root=finished.run_folder).cleared(ENCODER.name, ENCODER.clearance)
    opened, refused = set(), set()
    private = finished.run_folder.glob("private/*/*/manifest.json")
    origins = finished.run_folder.glob("private/origins/*/*.json")
    for path in sorted([*private, *origins]):
        manifest = json.loads(path.read_text())
        stage, made_from = manifest["stage"], manifest["made_from"]
        if stage in ("data-public", "encoder"):
            store.open(stage, made_from)
            opened.add(stage)
        else:
            with pytest.raises(StoreError, match="encoder may not open"):
                store.open(stage, made_from)
            refused.add(stage)
    assert opened == {"data-public", "encoder"}
    assert refused >= {"data", "partition", "encode", "teach", "vote", "aggregate", "data-answers"}
    assert ENCODER.needs == ("data-public",)
    assert (finished.run_folder / "public" / "encoder").is_dir()


def test_other_private_records_leave_the_encoder_as_it_is(finished, tmp_path):
    other = ImageProject(tmp_path / "other", private=images(60, seed=9))
    other.call_run(stage="encode")
    expected = contents(finished.artifact("encoder"))
    assert len(expected) > 3
    assert contents(other.artifact("encoder")) == expected
    other.save("private", *private_images())
    output = printed(other.call_run(stage="encode"))
    assert "encoder: done before" in output
    assert "encode: running" in output
    assert len(other.store.all("encoder")) == 1


def test_features_of_private_records_are_private(finished):
    encoded = finished.artifact("encode")
    assert encoded.level is Level.PRIVATE
    assert encoded.path.is_relative_to(finished.run_folder / "private")
    for folder in (encoded.path, finished.run_folder / "private"):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert encoded.array("features.npy").shape == (PRIVATE, 6)
    assert finished.artifact("encoder").array("features.npy").shape == (OPEN, 6)


def test_marks_of_private_records_and_their_features_are_nowhere_in_the_open(finished):
    """A pixel, whole records, two numbers of features in a row, a digest of a private file."""
    marks = {np.array(MARK, dtype=kind).tobytes() for kind in ("<f4", ">f4", "<f8", ">f8")}
    marks |= {record.tobytes() for record in private_images()[0]}
    features = finished.artifact("encode").array("features.npy")
    marks |= {row[at : at + 2].tobytes() for row in features for at in range(5)}
    for stage in ("partition", "encode", "vote"):
        files = finished.artifact(stage).manifest["files"].values()
        marks |= {file["sha256"].encode() for file in files}
    private, public = {}, {"output": finished.output.encode()}
    for file in finished.run_folder.rglob("*"):
        if file.is_file():
            inside = file.is_relative_to(finished.run_folder / "private")
            (private if inside else public)[str(file)] = file.read_bytes()
    assert len(public) > 20
    found = {mark for mark in marks for content in public.values() if mark in content}
    assert found == set()
    found = {mark for mark in marks for content in private.values() if mark in content}
    assert len(found) > PRIVATE  # the search finds what is there
