"""The reference of recipes: nothing is undocumented, and the committed page is current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pate.recipes.explain import models_in
from pate.recipes.schema import recipe_models, reference_page, sections

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("command", ["pate run", "dpsgd train", "pate compare"])
def test_every_key_and_every_section_is_described(command):
    top = recipe_models()[command]
    for name, model in [("", top), *sections(top)]:
        assert model.__doc__, f"[{name}] has no docstring"
        for key, field in model.model_fields.items():
            if not models_in(field.annotation):
                assert field.description, f"{name}.{key} has no description"


def test_the_committed_page_is_current():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert page == reference_page(), "run python -m pate.recipes.schema > docs/recipes.md"


def test_the_module_prints_the_page_and_the_schema():
    for options, text in ([], "## `pate run`"), (["--json"], '"dpsgd train"'):
        command = [sys.executable, "-m", "pate.recipes.schema", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        assert text in done.stdout
