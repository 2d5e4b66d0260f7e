"""The [encoder] section: what it accepts, and what it says of the rest."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from pate.encoders.spec import EncoderSpec, StepSpec
from pate.recipes.explain import explain

TORCH = {"name": "torch", "model": "torchvision.models:resnet18", "weights": "w.safetensors"}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"name": "scatering"}, "did you mean scattering"),
        (
            {"name": "kernel"},
            "known are scattering, root, standardise, normalise, groupnorm, pca, diffusion, impute",
        ),
        ({"name": "os; rm:x"}, "neither a step nor 'module:attr'"),
        ({"J": 2}, "steps.0.name is missing"),
        ({"name": "scattering", "j": 2}, "unknown key steps.0.j"),
        ({"name": "pca", "dimensions": 3}, "did you mean dimension"),
        ({"name": "pca"}, "needs dimension; its keys are dimension, whiten"),
        ({"name": "pca", "dimension": 3, "L": 8}, "takes no L; its keys are dimension, whiten"),
        ({"name": "normalise", "floor": 0.1}, "takes no floor; it has no keys"),
        ({"name": "scattering", "params": {}}, "takes no params; its keys are J, L, order"),
        ({"name": "a:b", "dimension": 3}, "takes no dimension; its keys are params"),
        ({"name": "pca", "dimension": 0}, "greater than or equal to 1"),
        ({"name": "pca", "dimension": 2.0}, "valid integer"),
        ({"name": "pca", "dimension": True}, "valid integer"),
        ({"name": "pca", "dimension": 2, "whiten": 1.5}, "less than or equal to 1"),
        ({"name": "scattering", "J": 0}, "greater than or equal to 1"),
        ({"name": "scattering", "J": 2.0}, "valid integer"),
        ({"name": "scattering", "J": True}, "valid integer"),
        ({"name": "scattering", "L": 0}, "greater than or equal to 1"),
        ({"name": "scattering", "order": 3}, "less than or equal to 2"),
        ({"name": "groupnorm", "groups": 0}, "greater than or equal to 1"),
        ({"name": "groupnorm", "groups": 2.0}, "valid integer"),
        ({"name": "groupnorm", "groups": True}, "valid integer"),
        ({"name": "standardise", "floor": -0.1}, "greater than or equal to 0"),
        ({"name": "standardise", "floor": float("nan")}, "finite"),
        ({"name": "torch", "model": "a:b"}, "needs weights"),
        ({**TORCH, "model": "resnet18"}, "write it as 'module:attr'"),
        ({**TORCH, "weights": "w.pkl"}, "give a .safetensors file"),
        ({**TORCH, "mean": [0.5]}, "mean and std go together"),
        ({**TORCH, "mean": [0.5], "std": [0.5, 0.5]}, "one number each for every channel"),
        ({**TORCH, "mean": [0.5], "std": [0.0]}, "greater than 0"),
    ],
)
def test_what_is_refused_and_how_a_recipe_says_so(step, message):
    section = {"steps": [step]}
    with pytest.raises(ValidationError) as caught:
        EncoderSpec.model_validate(section)
    assert message in explain(caught.value, EncoderSpec, section)[1]


def test_a_resolved_section_reads_back_with_its_defaults():
    steps = ["scattering", {"name": "pca", "dimension": 3}, TORCH, {"name": "a:b", "params": {}}]
    spec = EncoderSpec.model_validate({"steps": steps})
    assert spec.model_dump()["steps"][0]["J"] == 2
    assert spec.steps[1].settings() == {"dimension": 3, "whiten": 0.0}
    assert EncoderSpec.model_validate(spec.model_dump()) == spec
    assert EncoderSpec.model_validate_json(spec.model_dump_json()) == spec
    assert EncoderSpec() == EncoderSpec(steps=[])
    assert StepSpec(name="scattering") == StepSpec(name="scattering", J=2, L=8, order=2)


def test_specs_are_light():
    code = (
        "import pate.encoders.spec, sys\n"
        "print([m for m in ('torch', 'sklearn', 'numpy', 'scipy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
