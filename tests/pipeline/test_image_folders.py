"""Torch modules with channels first, on a folder of images, through the command line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

import pate
from pate.errors import InvalidInput

NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(168, classes)
        )

    def forward(self, x):
        return self.layers(x)
"""


@pytest.fixture
def images(project: Any) -> Any:
    """Folders of small images, in three shades."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(("blue", "green", "red")):
        folder = project.folder / "images" / name
        folder.mkdir(parents=True)
        for number in range(40):
            pixels = rng.integers(0, 60, size=(8, 9, 3), dtype=np.uint8)
            pixels[..., label] += 150
            Image.fromarray(pixels).save(folder / f"{number}.png")
    project.plugin("net", NET)
    project.sections["data"] |= {"source": "images"}
    return project


def test_without_the_key_one_line_has_both_shapes_and_the_remedy(images: Any) -> None:
    images.write(teachers={"model": "net:Net", "epochs": 1})
    failed = images.call_run(code=2)
    line = (
        'the model got (n, 8, 9, 3), the first layer wants 3 channels first: add channels = "first"'
    )
    assert line in failed.stderr
    assert images.charges() == []


@pytest.mark.campaign
def test_with_the_key_teachers_and_the_student_learn_and_it_is_released(images: Any) -> None:
    model = {"model": "net:Net", "channels": "first", "epochs": 2}
    images.write(teachers=model, student=model)
    images.call_run()
    images.call("release", "runs/tiny", "out", "--plugin-path", "plugins")
    student = pate.load_student(images.folder / "out")
    pixels = np.stack([np.asarray(Image.open(f)) for f in sorted(images.folder.rglob("1*.png"))])
    found = student.predict(pixels)  # bytes, where 0 … 1 was learnt
    assert set(found) <= {"blue", "green", "red"}
    np.testing.assert_array_equal(found, student.predict(pixels / 255))
    np.testing.assert_allclose(
        student.predict_proba(pixels), student.predict_proba(pixels / 255), atol=1e-6
    )
    with pytest.raises(InvalidInput, match="the student learnt from 0 … 1"):
        student.predict(pixels.astype(float))
    with pytest.raises(InvalidInput, match="channels come last"):
        student.predict(pixels.transpose(0, 3, 1, 2))
    card = (images.folder / "out" / "MODEL_CARD.md").read_text()
    assert "Records are images, channels last; pixels are from 0 to 1" in card
