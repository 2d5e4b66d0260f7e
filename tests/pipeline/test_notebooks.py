"""The tutorials: every cell runs, and the values that they claim are what comes out.

They are executed as for the site, which then has their outputs.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import dedent

import nbclient
import pytest

DOCS = Path(__file__).parents[2] / "docs"
_spec = spec_from_file_location("hooks", DOCS / "hooks.py")
hooks = module_from_spec(_spec)
_spec.loader.exec_module(hooks)

pytestmark = pytest.mark.xdist_group("site")  # before the site is built

# What the text of a tutorial claims, as a cell that runs after it. The noise is fresh each time:
# a limit on an accuracy lies well outside what was seen in many runs.
CLAIMS = {
    "first_student": """
        assert clf.guarantee_.epsilon == 1.0 and clf.guarantee_.publishable
        assert clf.guarantee_.delta == 0
        assert 0.75 < accuracy < 0.97
        assert scores[0] < scores[-1] < direct
        assert abs(total.epsilon - 1.5) < 1e-9
        assert "may be published" in total._repr_html_()
    """,
    "own_teachers": """
        assert 1.9 < guarantee.epsilon < 2.0 and guarantee.publishable
        assert accuracy > 0.7
        assert clf.plan_.queries == 20 and clf.guarantee_.epsilon <= 2.0
        assert agreement.mean() > 34
    """,
    "choosing_epsilon": """
        assert cost(80, 1000) < cost(40, 1000) and cost(40, 300) > cost(40, 100)
        assert 3.5 < (cost(20, 100) / cost(40, 100)) ** 2 < 5
        assert planned.proposal.best.teachers == 250
        assert trials[0].mean() < trials[3].mean() and trials[-1].mean() - trials[3].mean() < 0.08
        assert clf.epsilon == 0.7 and 0.7 < accuracy < 0.97
        assert abs(spent.epsilon - 0.5) < 1e-9 and published.epsilon == 1.0
    """,
    "compare_dpsgd": """
        assert list(best.columns) == ["DP-SGD", "PATE (record votes)"]
        assert (best.loc[2.0] > 0.85).all() and not found.seeded
        assert rows.dropna(subset=["target"]).eval("epsilon <= target + 1e-9").all()
        assert "without privacy" not in found._repr_html_().split("Not shown")[0]
        assert 2 < found.cost.together.epsilon < 30
    """,
    "audit": """
        assert leaky_advantage > 0.12 and private_advantage < 0.12
        assert not audit.contradictions and not private.contradictions
        assert max(audit.realised) <= run.guarantee.epsilon + 1e-9
        assert audit.findings[0].epsilon > 0.95
    """,
    "from_opacus": """
        assert 3.9 < epsilon <= 4.0 and accuracy > 0.85
        assert guarantee.epsilon <= 4.0 and trainer_accuracy > 0.85
        assert guarantee.neighbours.value == "add-remove"
        assert engine.guarantee(delta=1e-4).neighbours.value == "zero-out"
    """,
}


def test_every_tutorial_has_claims():
    assert {path.stem for path in hooks.TUTORIALS} == set(CLAIMS)


@pytest.mark.parametrize(
    "name",
    [
        name if name == "first_student" else pytest.param(name, marks=pytest.mark.campaign)
        for name in CLAIMS
    ],
)
def test_tutorials_run_and_hold_what_they_claim(name):
    source = DOCS / "tutorials" / f"{name}.py"
    notebook = hooks.execute(source, claims=dedent(CLAIMS[name]))  # raises where a cell fails
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    texts = [output.text for output in outputs if output.output_type == "stream"]
    assert not any("Warning" in text or "\r" in text for text in texts)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("text/html" in output.get("data", {}) for output in outputs)
    assert not any("assert" in cell.source for cell in notebook.cells[-1:])


PROGRESS = """
import sys, time
from pate.engines import terminal_progress
with terminal_progress("teach", 200, quiet=quiet, json_logs=False, slots=2) as bar:
    for _ in range(200):
        time.sleep(0.002)
        bar.advance()
"""


@pytest.mark.campaign
def test_progress_is_one_line_of_a_notebook_that_changes_in_place(tmp_path):
    from nbformat.v4 import new_code_cell, new_notebook

    cells = [new_code_cell(f"quiet = {quiet}{PROGRESS}") for quiet in (False, True)]
    notebook = new_notebook(cells=cells)
    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    (shown,), silent = (cell.outputs for cell in notebook.cells)
    assert shown.output_type == "display_data"
    assert silent == []
    assert shown.data["text/plain"] == "teach 200/200"  # and no time, which a reader would keep
    assert '<progress value="200" max="200">' in shown.data["text/html"]
