"""``pate run`` finds the noise for an ε and a number of queries."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pate.accounting import (
    GaussianNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Repeated,
    guarantee_of_plan,
)
from pate.pipeline.recipe import Recipe


def _open(project: Any, mechanism: str = "gnmax", **more: Any) -> None:
    project.write(
        aggregate={"mechanism": mechanism, "scale": None, "queries": 12} | more,
        privacy={"epsilon": 2.0, "sanitise": False},
    )


def _resolved(project: Any) -> dict[str, Any]:
    return json.loads((project.run_folder / "recipe.json").read_text())


@pytest.mark.parametrize(
    ("mechanism", "key", "event"),
    [("gnmax", "sigma", GaussianNoisyMaxAnswer), ("lnmax", "scale", LaplaceNoisyMaxAnswer)],
)
def test_the_least_noise_is_found(project: Any, mechanism: str, key: str, event: Any) -> None:
    _open(project, mechanism)
    printed = project.call_run().stdout
    noise = _resolved(project)["aggregate"][key]
    assert f"aggregate.{key} = {noise!r}, found for 12 queries at ε 2, δ 0.001" in printed

    def cost(value: float) -> float:
        answers = [Repeated(event(**{key: value}), 12)]
        return guarantee_of_plan(answers, delta=1e-3).epsilon

    assert cost(noise) <= 2.0 < cost(noise * (1 - 1e-5))
    stated = project.json("account", "guarantees.json")["guarantee"]["epsilon"]
    assert stated == pytest.approx(cost(noise))
    assert len(project.artifact("aggregate").array("answered.npy")) == 12
    # The same recipe with that noise written out is the same run.
    project.write(
        aggregate={"mechanism": mechanism, "scale": None, "queries": 12, key: noise},
        privacy={"epsilon": 2.0, "sanitise": False},
    )
    again = project.call_run().stdout
    assert "nothing to do" in again
    assert "found for" not in again
    assert len(project.charges()) == 1


def test_a_paid_run_keeps_its_noise(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _open(project)
    project.call_run()
    before = _resolved(project)["aggregate"]["sigma"]
    from pate.mechanisms import spec

    exact = spec.least_noise
    monkeypatch.setattr(spec, "least_noise", lambda *a, **k: exact(*a, **k) * 0.9)
    project.call_run("--set", "privacy.epsilon=3.0", "--spend")  # another run in between
    assert _resolved(project)["aggregate"]["sigma"] < before
    assert "nothing to do" in project.call_run().stdout
    assert _resolved(project)["aggregate"]["sigma"] == before
    assert len(project.charges()) == 2
    # In another folder the new accountant decides, and the plan stays within ε.
    other = Recipe.model_validate(
        json.loads((project.run_folder / "recipe.json").read_text())
        | {"aggregate": {"mechanism": "gnmax", "queries": 12}}
    )
    assert other.aggregate.sigma == pytest.approx(0.9 * before)
    assert other.plan(inputs=30).guarantee.epsilon <= 2.0


@pytest.mark.parametrize(
    ("keys", "privacy", "said"),
    [
        ({"queries": None}, {}, "sigma is found if epsilon in [privacy] and queries are given"),
        ({}, {"epsilon": None}, "sigma is found if epsilon in [privacy] and queries are given"),
        ({}, {"epsilon": -1.0}, "privacy.epsilon"),
        ({"queries": 31}, {}, "there are 30 public inputs; lower queries to 30, or give sigma"),
        ({"mechanism": "confident", "threshold": 3.0}, {}, "`pate plan` proposes them"),
    ],
)
def test_noise_that_cannot_be_found(
    project: Any, keys: dict[str, Any], privacy: dict[str, Any], said: str
) -> None:
    _open(project, **keys)
    text = project.folder / "tiny.toml"
    if "epsilon" in privacy:
        value = privacy["epsilon"]
        line = "" if value is None else f"epsilon = {value}"
        text.write_text(text.read_text().replace("epsilon = 2.0", line))
    refused = project.call_run(code=2)
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert project.charges() == []


def test_a_sweep_over_epsilon_finds_noise_for_each_point(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pate.studies.sweep.plot_sweep", lambda *_: None)
    _open(project)
    text = project.folder / "tiny.toml"
    text.write_text(text.read_text().replace("epsilon = 2.0", ""))
    words = ("--over", "privacy.epsilon=1.0,4.0", "--json", "--quiet")
    swept = json.loads(project.call_run(*words, stage="sweep").stdout)
    assert [row["epsilon"] <= target for row, target in zip(swept["rows"], (1, 4), strict=True)]
    noise = json.loads((project.folder / "runs" / "tiny-sweep" / "noise.json").read_text())
    found = np.array(list(noise.values()))
    assert len(found) == 2
    assert found.max() > 2 * found.min()
