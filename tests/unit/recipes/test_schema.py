"""The reference of recipes: nothing is undocumented, and the committed page is current."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from harness import Project

from pate.recipes.explain import models_in
from pate.recipes.read import shipped_recipes
from pate.recipes.schema import json_schema, recipe_models, reference_page, sections

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "command", ["pate run", "dpsgd train", "pate compare", "pate federate", "pate party"]
)
def test_every_key_and_every_section_is_described(command):
    top = recipe_models()[command]
    for name, model in [("", top), *sections(top)]:
        assert model.__doc__, f"[{name}] has no docstring"
        for key, field in model.model_fields.items():
            if not models_in(field.annotation):
                assert field.description, f"{name}.{key} has no description"


def test_the_committed_page_is_current():
    page = (ROOT / "docs" / "reference" / "recipes.md").read_text(encoding="utf-8")
    assert page == reference_page(), "run python -m pate.recipes.schema > docs/reference/recipes.md"


def test_the_module_prints_the_page():
    command = [sys.executable, "-m", "pate.recipes.schema"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "## `pate run`" in done.stdout


@pytest.mark.parametrize("kind", ["pate", "dpsgd", "compare", "federation", "party"])
def test_pate_schema_describes_every_key_and_accepts_every_shipped_recipe(kind, tmp_path):
    project = Project(tmp_path)
    schema = json.loads(project.call("schema", kind).stdout)
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    parts = {"recipe": schema, **schema["$defs"]}
    assert len(parts) > 8
    for name, part in parts.items():
        assert part.get("description") or "properties" not in part, name
        for key, value in part.get("properties", {}).items():
            assert value.get("description"), f"{name}.{key}"
    for path in shipped_recipes(kind).values():
        checker.validate(tomllib.loads(path.read_text()))
    told = project.call("schema", "page", code=2).stderr
    kinds = "pate, dpsgd, compare, federation, party"
    assert told == f"pate: 'page' is no kind of recipe; the kinds are {kinds}\n"


@pytest.mark.parametrize("section", ["aggregate", "student", "data"])
def test_pate_schema_refuses_a_misspelt_key(section):
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator(json_schema("pate"))
    recipe = tomllib.loads(shipped_recipes("pate")["mnist-teachers"].read_text())
    assert checker.is_valid(recipe)
    recipe[section]["sigmaa"] = 4.0
    assert not checker.is_valid(recipe)
