"""The public names of ``dpsgd``: listed once, loaded lazily, documented argument by argument."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys

import pytest

import dpsgd
import dpsgd.compat
import dpsgd.convex
import dpsgd.public
from dpsgd.convex.estimator import PrivateLinearClassifier

PUBLIC = {
    "dpsgd": [
        "AdaptiveQuantile", "Automatic", "Constant", "Exponential", "Flat", "Linear", "PerLayer",
        "Piecewise", "PrivatePCA", "Row", "TemperedSigmoid", "Trainer", "fix", "make_private",
        "problems", "validate", "write_curve",
    ],
    "dpsgd.compat": ["PrivacyEngine"],
    "dpsgd.convex": [
        "Hinge", "Huber", "Logistic", "MarginLoss", "NoisyGradientDescent",
        "NoisyLeastSquares", "ObjectivePerturbation", "OutputPerturbation",
    ],
    "dpsgd.public": ["Frozen", "encode", "freeze", "pretrain"],
}  # fmt: skip
EVERY = [(module, name) for module, names in PUBLIC.items() for name in names]


@pytest.mark.parametrize("module", PUBLIC)
def test_the_export_list(module):
    assert sorted(importlib.import_module(module).__all__) == PUBLIC[module]


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_every_argument_is_documented_and_there_is_an_example(module, name):
    found = getattr(importlib.import_module(module), name)
    text = inspect.getdoc(found)
    assert text
    if name == "MarginLoss":  # a protocol: it is implemented, not called
        return
    assert ">>> " in text
    section = text.partition("Parameters\n----------\n")[2]
    documented = {
        each.strip(" *")
        for line in section.splitlines()
        if re.match(r"\S.* :( |$)|\*\*", line)
        for each in line.partition(" :")[0].split(",")
    }
    missing = set(inspect.signature(found).parameters) - documented
    assert not missing


def test_shared_parameters_of_the_convex_learners_are_documented_by_their_base():
    base = inspect.getdoc(PrivateLinearClassifier)
    for name in PUBLIC["dpsgd.convex"][4:]:
        learner = getattr(dpsgd.convex, name)
        shared = re.search(r"^(epsilon, .*) :\n", inspect.getdoc(learner), re.MULTILINE)[1]
        for parameter in shared.split(", "):
            assert f"\n{parameter} : " in base
            assert parameter in inspect.signature(learner).parameters


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'Trainee'"):
        _ = dpsgd.Trainee


def test_importing_dpsgd_loads_no_torch():
    code = "import dpsgd, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
