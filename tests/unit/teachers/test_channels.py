"""Torch modules on images: channels first by a key, and one line where shapes do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pate.errors import TeacherError
from pate.students.spec import StudentSpec
from pate.students.training import initialise
from pate.teachers.adapters import build
from pate.teachers.channels import ChannelsFirst, shape_problem
from pate.teachers.persist import restore, save
from pate.teachers.protocol import train, train_many
from pate.teachers.spec import ModelSpec, TeachersSpec, Training
from pate.testing import check_teacher, stored_as


def convolutions(classes, channels=3):
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes))


COLOUR = np.random.default_rng(0).normal(size=(30, 6, 7, 3)).astype(np.float32)
Y = np.arange(30) % 3


ADD = 'add channels = "first"'


@pytest.mark.parametrize(
    ("module", "shape", "problem"),
    [
        (nn.Conv2d(3, 8, 3), (28, 28, 3), f"(n, 28, 28, 3), FIRST 3 channels first: {ADD}"),
        (nn.Conv2d(1, 8, 3), (28, 28), f"(n, 28, 28), FIRST 1 channel first: {ADD}"),
        (nn.Conv2d(1, 8, 3), (9, 9, 3), f"FIRST 1 channel first: make it take 3 and {ADD}"),
        (
            ChannelsFirst(nn.Conv2d(1, 8, 3)),
            (8, 9, 3),
            "(n, 8, 9, 3), as (n, 3, 8, 9), FIRST 1 channel first: make it take 3",
        ),
        (ChannelsFirst(nn.Linear(8, 2)), (8,), "is for images: drop it, or the steps of [encoder]"),
        (nn.Conv2d(3, 8, 3), (90,), "(n, 90), FIRST images of 3 channels: drop the steps"),
        (nn.Linear(784, 2), (28, 28), "(n, 28, 28), FIRST 784 features: add nn.Flatten() before"),
        (nn.Linear(10, 2), (8,), "(n, 8), FIRST 10 features: make it take 8"),
        (nn.Conv2d(3, 8, 3), (3, 28, 28), None),
        (ChannelsFirst(nn.Conv2d(3, 8, 3)), (28, 28, 3), None),
        (nn.Conv1d(3, 8, 3), (28, 3), None),
        (nn.LazyLinear(8), (28, 3), None),
        (nn.Linear(8, 2), (8,), None),
    ],
)
def test_shapes_that_do_not_fit_are_named_with_the_remedy(module, shape, problem):
    found = shape_problem(module, shape)
    assert (
        (found is None)
        if problem is None
        else (problem in found.replace("the first layer wants", "FIRST"))
    )


def test_a_teacher_takes_images_with_channels_first():
    teacher = build(convolutions, Training(channels="first", epochs=1), classes=3, seed=0)
    teacher.fit(COLOUR, Y)
    with torch.no_grad():
        logits = teacher.module.module(torch.from_numpy(COLOUR).permute(0, 3, 1, 2))
    np.testing.assert_array_equal(teacher.predict(COLOUR), logits.argmax(dim=1).numpy())
    grey = build(
        convolutions, Training(channels="first", params={"channels": 1}), classes=3, seed=0
    )
    assert grey.fit(COLOUR[..., 0], Y).predict(COLOUR[..., 0]).shape == (30,)


def test_many_are_trained_as_one_program_and_kept(tmp_path):
    def fresh():
        return build(convolutions, Training(channels="first", epochs=2), classes=3, seed=0)

    teachers = [fresh(), fresh(), fresh()]
    assert type(teachers[0]).fit_many(teachers, [(COLOUR, Y)] * 3) == [None] * 3
    save(teachers[1], tmp_path)
    again = restore(fresh(), tmp_path)
    np.testing.assert_array_equal(again.predict(COLOUR), teachers[1].predict(COLOUR))


def test_the_line_is_all_that_is_shown_of_a_failure():
    line = rf"^the model got \(n, 6, 7, 3\), the first layer wants 3 channels first: {ADD}$"
    teachers = [build(convolutions, Training(), classes=3, seed=0) for _ in range(2)]
    with pytest.raises(TeacherError, match=line):
        train(teachers[0], COLOUR, Y)
    for error in train_many(teachers, [(COLOUR, Y)] * 2):
        assert isinstance(error, TeacherError)
        assert "add channels" in str(error)
    with pytest.raises(TeacherError, match="add channels"):
        initialise(teachers[0], COLOUR)


def test_the_contract_holds_with_channels_first():
    settings = {"channels": "first", "epochs": 1}
    check_teacher(convolutions, inputs=COLOUR, settings=settings)
    assert stored_as(convolutions, inputs=COLOUR, settings=settings) == "safetensors"
    with pytest.raises(AssertionError, match='add channels = "first"'):
        check_teacher(convolutions, inputs=COLOUR)


def test_recipes_without_the_key_have_the_fingerprints_they_had():
    for spec in (
        ModelSpec(model="ridge"),
        TeachersSpec(model="ridge", count=2),
        StudentSpec(model="mlp"),
    ):
        assert "channels" not in spec.model_dump(mode="json")
        assert "channels" not in spec.model_dump_json()
    given = ModelSpec(model="ridge", channels="first")
    assert ModelSpec.model_validate(given.model_dump(mode="json")) == given
