"""Noise and thresholds at the ends of what a number can be: nothing is charged and then stuck."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VALUES = (1e-300, 1e-9, 1e-3, 1e9, 1e300)
PLAIN = {"threshold": 3.0, "sigma1": 1.0, "sigma2": 1.0}
SETTINGS = [("lnmax", {"scale": value}) for value in VALUES]
SETTINGS += [("gnmax", {"sigma": value}) for value in VALUES]
SETTINGS += [
    (mechanism, PLAIN | {key: value})
    for mechanism in ("confident", "interactive")
    for key in PLAIN
    for value in VALUES
]


@pytest.fixture(scope="module")
def voted(
    tmp_path_factory: pytest.TempPathFactory, project_in: Callable[[Path], Any]
) -> Callable[[Path], Any]:
    """Copies of a project whose teachers have voted and that has paid for nothing."""
    made = project_in(tmp_path_factory.mktemp("voted"))
    made.call_run(stage="vote")

    def copy(folder: Path) -> Any:
        shutil.copytree(made.folder, folder, dirs_exist_ok=True)
        return project_in(folder)

    return copy


@pytest.mark.parametrize(
    ("mechanism", "noise"), SETTINGS, ids=lambda each: str(each).replace("'", "")
)
@pytest.mark.sample(12)
def test_it_works_or_is_refused_before_the_charge(
    voted: Callable[[Path], Any], tmp_path: Path, mechanism: str, noise: dict[str, float]
) -> None:
    project = voted(tmp_path)
    project.write(aggregate={"mechanism": mechanism, "scale": None, "queries": 12} | noise)
    fine = 1e-9 <= min(noise.values()) <= max(noise.values()) <= 1e9
    fine &= noise.get("threshold") != 1e9  # six teachers never come there
    fine |= noise.get("threshold") == 1e-300
    done = project.call_run(stage="account", code=0 if fine else 2)
    assert bool(project.charges()) is fine
    if not fine:
        assert done.stderr.startswith("pate: ")
        assert len(done.stderr.splitlines()) == 1
        return
    assert project.call_run(stage="account").stdout.count("done before") == 8


def test_what_cannot_be_computed_is_found_before_the_charge(
    voted: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the figure: it is worked out on made-up votes first."""
    from pate.mechanisms import noisy_max
    from pate.stages import account

    project = voted(tmp_path)

    def overflow(*_: Any, **__: Any) -> None:
        raise OverflowError("math range error")

    steps = ((noisy_max, "laplace_total"), (noisy_max, "lnmax_cost"), (account, "advanced"))
    for module, name in steps:
        with monkeypatch.context() as broken:
            broken.setattr(module, name, overflow)
            refused = project.call_run(stage="account", code=2)
        assert "cannot be computed (OverflowError); nothing was charged" in refused.stderr
        assert project.charges() == []
    project.call_run(stage="account")
    assert len(project.charges()) == 2
