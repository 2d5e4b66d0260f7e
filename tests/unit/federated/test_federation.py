"""A federation in memory: what is charged where, through drop-outs, refusals and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import unittest.mock
import zipfile
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from federation import GONE, MARKER, Federation, MemoryGrid
from harness import RECIPE, open_project

from pate import forget
from pate.accounting import Neighbours, event_from_json
from pate.accounting.plan_guarantee import guarantee_of_plan
from pate.errors import InvalidInput, PateError, ReleaseConflict
from pate.federated import flower
from pate.federated.coordinator import Coordinator, Opened, coordinate, finish
from pate.federated.party import Party, count_votes, keep_inputs, noised_votes, require_agreed
from pate.federated.processes import (
    _stop_leftover,
    environment,
    party_environment,
    supernode_command,
)
from pate.federated.recipes import FederationRecipe, Question
from pate.federated.secure_sum import SumFailed
from pate.recipes.read import read_recipe


def run(federation: Federation, grid: MemoryGrid, out: str = "out"):
    coordinator = Coordinator.open(str(federation.recipe(-1)), federation.place(-1) / out)
    return coordinator, coordinate(
        coordinator, grid, grid.context(), wait=1, timeout=5, report=lambda line: None
    )


def opened(federation: Federation, out: str = "out") -> np.ndarray:
    return np.load(federation.place(-1) / out / "sum.npz")["votes"]


def answers(federation: Federation, number: int) -> list[np.ndarray]:
    """The noised votes that a party has drawn, which stay with it."""
    place = federation.place(number) / "data" / "ledgers" / f"party{number}.ledger.answers"
    found = sorted(place.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    return [np.array(json.loads(file.read_text())["counts"]) for file in found]


def gone_at(stage):
    return lambda at, reply: GONE if at == f"before {stage}" else reply


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("user")
    with unittest.mock.patch.dict(os.environ, XDG_DATA_HOME=str(place)):
        yield from _finished(tmp_path_factory)


def _finished(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("federation") / "f")
    grid = MemoryGrid.of(federation)
    coordinator, results = run(federation, grid)
    yield federation, grid, coordinator, results


def test_the_coordinator_sees_the_sum_of_what_the_parties_drew_and_paid_for(finished):
    federation, _, coordinator, results = finished
    drawn = [answers(federation, number) for number in range(3)]
    assert [len(each) for each in drawn] == [1, 1, 1]
    np.testing.assert_array_equal(opened(federation), sum(each[0] for each in drawn))
    for number in range(3):
        (charge,) = federation.charges(number)
        assert charge.records is Neighbours.ADD_REMOVE
        (charged,) = charge.events
        event = charged.event.event
        assert event == coordinator.question.events[0]
        assert event.rho >= 12 / 2.0**2  # Q/σ² at one share of the two that must be there
    assert results["parties"] == 3
    assert results["teachers"] == 12
    assert results["guarantee"]["epsilon"] == coordinator.guarantee.epsilon


def test_a_party_votes_as_the_same_teachers_do_in_one_process(finished, tmp_path):
    federation, _, _coordinator, _ = finished
    project = open_project(tmp_path)
    for name in ("public", "test"):
        (project.folder / f"{name}.npz").write_bytes(
            (federation.place(-1) / f"{name}.npz").read_bytes()
        )
    (project.folder / "own.npz").write_bytes((federation.place(1) / "own.npz").read_bytes())
    data = dict.fromkeys(RECIPE["data"]) | {
        "name": "alone",
        "private_path": "own.npz",
        "public_path": "public.npz",
        "test_path": "test.npz",
        "classes": ["0", "1", "2"],
        "id": "ids",
    }
    with np.load(project.folder / "own.npz") as own:
        for name, rows in (("public", 30), ("test", 30)):
            with np.load(project.folder / f"{name}.npz") as other:
                named = dict(other) | {"ids": np.array([f"{name}{row}" for row in range(rows)])}
            np.savez(project.folder / f"{name}.npz", **named)
        assert len(own["y"]) == 60
    project.write(data=data, teachers={"count": 4})
    project.call_run(stage="vote")
    (votes,) = (federation.place(1) / "runs" / "run").glob("private/vote/*/counts.npy")
    np.testing.assert_array_equal(np.load(votes), project.array("vote", "counts.npy"))


def test_a_student_is_that_of_the_same_teachers_in_one_process(tmp_path):
    """With little noise the labels are those of the plain sum of the parties' votes."""
    aggregate = {"mechanism": "gnmax", "sigma": 0.5, "queries": 12}
    federation = Federation(tmp_path / "f", aggregate=aggregate)
    coordinator, results = run(federation, MemoryGrid.of(federation))
    counts = sum(
        np.load(next((federation.place(number) / "runs" / "run").glob("private/vote/*/counts.npy")))
        for number in range(3)
    )[np.array(coordinator.question.rows)]
    assert (np.abs(opened(federation) - counts) < 8).all()
    plain = finish(
        replace(coordinator, folder=tmp_path), Opened(votes=counts, parties=3, teachers=12)
    )
    assert results == plain
    students = [
        {file.name: file.read_bytes() for file in (folder / "student").iterdir()}
        for folder in (coordinator.folder, tmp_path)
    ]
    assert students[0] == students[1] != {}


def test_nothing_private_reaches_the_coordinator(finished):
    federation, grid, coordinator, _ = finished
    own = np.load(federation.place(0) / "own.npz")
    (votes,) = (federation.place(0) / "runs" / "run").glob("private/vote/*/counts.npy")
    asked = np.load(votes)[np.array(coordinator.question.rows)]
    planted = [MARKER.encode(), *(row.astype("<f8").tobytes() for row in own["X"])]
    planted += [asked[:4].astype(kind).tobytes() for kind in ("<i4", "<i8", "<f8")]
    planted += [answers(federation, 0)[0][:4].astype(kind).tobytes() for kind in ("<i8", "<f8")]
    files = [each for each in federation.place(-1).rglob("*") if each.is_file()]
    assert len(files) > 4
    assert len(grid.sent) == 15
    for content in [*grid.sent, *(each.read_bytes() for each in files)]:
        assert not any(each in content for each in planted)


def test_a_coordinator_that_is_started_again_asks_nobody(finished):
    federation, _, _, results = finished
    grid = MemoryGrid.of(federation)
    _, again = run(federation, grid)
    assert grid.stages == []
    assert again == results
    assert [len(federation.charges(number)) for number in range(3)] == [1, 1, 1]


def test_another_question_does_not_overwrite_a_sum(finished):
    federation, grid, coordinator, _ = finished
    other = Federation(federation.folder / "other", aggregate={"mechanism": "lnmax", "scale": 3.0,
                                                              "queries": 12})  # fmt: skip
    folder = coordinator.folder
    changed = Coordinator.open(str(other.recipe(-1)), folder)
    with pytest.raises(InvalidInput, match="answers another question"):
        coordinate(changed, grid, grid.context(), wait=1, timeout=5, report=print)


def test_a_run_is_drawn_and_charged_once_and_another_one_anew(finished):
    federation, _, coordinator, _ = finished
    party = Party.open(str(federation.recipe(2)), federation.place(2) / "runs")
    keep_inputs(party, coordinator.inputs)
    before = len(federation.charges(2))
    first = noised_votes(party, coordinator.question, run=1, session="a")
    again = noised_votes(party, coordinator.question, run=1, session="a")
    other = noised_votes(party, coordinator.question, run=2, session="b")
    assert (first == again).all()
    assert (first != other).any()
    assert len(federation.charges(2)) == before + 2
    # It would read its source again for the next question, with the records.
    with pytest.raises(InvalidInput, match="party to a federation"):
        forget(party.folder / "run", ["1"], data_root=party.options.data_root)
    fewer = replace(coordinator.question, rows=coordinator.question.rows[:-1])
    for question, session in ((coordinator.question, "b"), (fewer, "a")):
        with pytest.raises(ReleaseConflict):
            noised_votes(party, question, run=1, session=session)
    assert len(federation.charges(2)) == before + 2


def test_a_party_that_joined_twice_is_in_a_sum_once(tmp_path):
    """Its teachers would vote twice: one record would move two votes, at the price of one."""
    federation = Federation(tmp_path / "f")
    grid = MemoryGrid.of(federation)
    first, second = grid.nodes[1:]
    grid.settings[second] = grid.settings[first] | {"folder": str(federation.place(1) / "other")}
    _, results = run(federation, grid)
    assert results["parties"] == 2
    assert [len(federation.charges(number)) for number in range(3)] == [1, 1, 0]
    drawn = answers(federation, 0)[0] + answers(federation, 1)[0]
    np.testing.assert_array_equal(opened(federation), drawn)


@pytest.mark.parametrize("mechanism", ["lnmax"])
def test_laplace_noise_and_a_party_that_is_lost_before_it_answers(tmp_path, mechanism):
    aggregate = {"mechanism": mechanism, "scale": 2.0, "queries": 6}
    federation = Federation(tmp_path / "f", aggregate=aggregate)
    grid = MemoryGrid.of(federation)
    grid.faults[grid.nodes[1]] = gone_at("collect_masked_vectors")
    _, results = run(federation, grid)
    assert (results["parties"], results["teachers"]) == (2, 8)  # of those in the sum alone
    assert [len(federation.charges(number)) for number in range(3)] == [1, 0, 1]
    drawn = answers(federation, 0)[0] + answers(federation, 2)[0]
    np.testing.assert_array_equal(opened(federation), drawn)
    (charge,) = federation.charges(0)
    assert math.isclose(charge.events[0].event.event.epsilon, 1 / 2)
    assert charge.events[0].count == 12  # two counts of each of six queries


def test_a_round_that_fails_after_votes_left_is_paid_and_the_next_one_has_other_noise(tmp_path):
    federation = Federation(tmp_path / "f")
    grid = MemoryGrid.of(federation)
    grid.faults |= {node: gone_at("unmask") for node in grid.nodes[:2]}
    with pytest.raises(SumFailed, match="fewer than 2") as failure:
        run(federation, grid)
    assert failure.value.asked
    assert [len(federation.charges(number)) for number in range(3)] == [1, 1, 1]
    grid.faults.clear()
    run(federation, grid)
    for number in range(3):
        first, second = answers(federation, number)
        assert (first != second).any()
        assert len(federation.charges(number)) == 2


def test_a_round_that_fails_before_votes_are_asked_for_costs_nothing(tmp_path):
    federation = Federation(tmp_path / "f")
    grid = MemoryGrid.of(federation)
    grid.faults[grid.nodes[1]] = gone_at("share_keys")
    _, results = run(federation, grid)
    assert results["parties"] == 2
    assert grid.stages.count("setup") == 5
    assert [len(federation.charges(number)) for number in range(3)] == [1, 0, 1]


def test_a_budget_refuses_and_the_round_goes_on(tmp_path):
    federation = Federation(tmp_path / "f")
    federation.write_party(2, budget=0.5)
    grid = MemoryGrid.of(federation)
    _, results = run(federation, grid)
    assert results["parties"] == 2
    assert results["teachers"] == 8
    assert federation.charges(2) == []
    assert answers(federation, 2) == []


def test_a_second_ledger_is_refused_with_a_remedy_that_a_party_has(tmp_path):
    federation = Federation(tmp_path / "f")
    coordinator, _ = run(federation, MemoryGrid.of(federation))
    federation.write_party(0, sections={"data": {"name": "again"}})
    party = Party.open(str(federation.recipe(0)), federation.place(0) / "again")
    keep_inputs(party, coordinator.inputs)
    with pytest.raises(InvalidInput, match="the same records have a ledger at") as refused:
        require_agreed(party, coordinator.question)
    assert "set data_root and data.name in the recipe" in str(refused.value)
    assert "--" not in str(refused.value)


def no_test(federation):
    (federation.place(-1) / "test.npz").unlink()


def other_classes(federation):
    file = federation.place(-1) / "test.npz"
    with np.load(file) as test:
        np.savez(file, X=test["X"], y=test["y"] + 5)


def other_width(federation):
    file = federation.place(-1) / "test.npz"
    with np.load(file) as test:
        np.savez(file, X=test["X"][:, :-1], y=test["y"])


def no_such_student(federation):
    recipe = federation.recipe(-1)
    recipe.write_text(recipe.read_text().replace("centroids:Centroids", "centroids:Nope"))


def student_that_cannot_learn(federation):
    file = federation.place(-1) / "plugins" / "centroids.py"
    head = "def fit(self, X, y):"
    file.write_text(file.read_text().replace(head, f"{head}\n        1 / 0"))


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (no_test, "test.npz"),
        (other_classes, "classes"),
        (other_width, "make them agree"),
        (no_such_student, "so nobody is asked: .*Nope"),
        (student_that_cannot_learn, "so nobody is asked"),
    ],
)
def test_what_a_student_needs_is_checked_before_anybody_is_asked(tmp_path, mistake, text):
    federation = Federation(tmp_path / "f")
    mistake(federation)
    grid = MemoryGrid.of(federation)
    with pytest.raises(PateError, match=text):
        run(federation, grid)
    assert grid.stages == []
    assert [federation.charges(number) for number in range(3)] == [[], [], []]


@pytest.mark.parametrize("damage", [lambda held: held[:100], lambda held: b"", lambda held: b"{}"])
def test_a_torn_sum_is_reported_in_a_line_and_asked_for_by_nobody(finished, tmp_path, damage):
    _, grid, coordinator, _ = finished
    own = replace(coordinator, folder=tmp_path)
    whole = (coordinator.folder / "sum.npz").read_bytes()
    (tmp_path / "sum.npz").write_bytes(damage(whole))
    asked = len(grid.stages)
    with pytest.raises(InvalidInput, match="cannot be read; restore it from a backup"):
        coordinate(own, grid, grid.context(), wait=1, timeout=5, report=print)
    assert len(grid.stages) == asked


def test_with_too_few_parties_nobody_is_asked_for_votes(tmp_path):
    federation = Federation(tmp_path / "f")
    federation.write_party(0, budget=0.5)
    federation.write_party(1, colluding=1, parties=4)
    grid = MemoryGrid.of(federation)
    with pytest.raises(InvalidInput, match="1 parties are ready, and a sum needs 2"):
        run(federation, grid)
    assert set(grid.stages) == {"prepare"}
    assert [len(federation.charges(number)) for number in range(3)] == [0, 0, 0]


def test_values_that_no_votes_add_up_to_are_refused(tmp_path, monkeypatch):
    federation = Federation(tmp_path / "f")
    grid = MemoryGrid.of(federation)
    from pate.federated import app

    honest = app.noised_votes
    monkeypatch.setattr(app, "noised_votes", lambda party, *a, **k: honest(party, *a, **k) + 10**6)
    with pytest.raises(InvalidInput, match="outside what votes and noise can add up to"):
        run(federation, grid)
    assert not (federation.place(-1) / "out" / "sum.npz").exists()


def test_strangers_are_not_admitted(finished):
    federation, _, _, _ = finished
    grid = MemoryGrid.of(federation)
    grid.nodes.append(999)
    with pytest.raises(InvalidInput, match="4 parties have joined, and 3 were agreed on"):
        run(federation, grid, "strangers")


def test_errors_of_a_party_tell_the_coordinator_nothing(tmp_path):
    federation = Federation(tmp_path / "f")
    bad = federation.place(0) / "own.npz"
    with np.load(bad) as own:
        np.savez(bad, X=own["X"], y=np.full(len(own["y"]), 7), ids=own["ids"])
    grid, heard = MemoryGrid.of(federation), []

    def fault(at, reply):
        if reply is not None and reply.has_error():
            heard.append(reply.error.reason)
        return reply

    grid.faults[grid.nodes[0]] = fault
    _, results = run(federation, grid)
    assert results["parties"] == 2
    assert heard == ["this party does not take part"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"rows": [0]}', "7"],
)
def test_a_question_that_is_none_is_refused(text, finished):
    with pytest.raises(InvalidInput, match="cannot be read"):
        Question.from_json(text)
    _, _, coordinator, _ = finished
    asked = json.loads(coordinator.question.to_json())
    assert Question.from_json(json.dumps(asked)) == coordinator.question
    for change in (
        {"rows": [0, 0]},
        {"rows": [-1]},
        {"rows": []},
        {"noise": 0.0},
        {"mechanism": "none"},
        {"colluding": 9},
        {"unknown": 1},
        {"by": "nobody"},
        {"reach": 0},
        {"reach": 1.5},
    ):
        with pytest.raises(InvalidInput):
            Question.from_json(json.dumps(asked | change))


def test_rows_that_were_not_sent_are_refused(finished):
    federation, _, coordinator, _ = finished
    party = Party.open(str(federation.recipe(0)), federation.place(0) / "runs")
    asked = json.loads(coordinator.question.to_json())
    for change, text in (({"rows": [30]}, "did not send"), ({"inputs": "0" * 64}, "did not send"),
                         ({"inputs": "../own"}, "names no inputs")):  # fmt: skip
        with pytest.raises(InvalidInput, match=text):
            noised_votes(party, Question.from_json(json.dumps(asked | change)), run=9, session="x")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mechanism": "confident", "threshold": 5, "sigma1": 2, "sigma2": 2}, "sums noised votes"),
        ({"queries": None}, "sums noised votes"),
    ],
)
def test_recipes_that_cannot_be_summed(tmp_path, change, text):
    aggregate = {"mechanism": "gnmax", "sigma": 2.0, "queries": 12} | change
    if "sigma1" in change:
        del aggregate["sigma"]
    federation = Federation(
        tmp_path / "f", aggregate={k: v for k, v in aggregate.items() if v is not None}
    )
    with pytest.raises(InvalidInput, match=text):
        read_recipe(str(federation.recipe(-1)), None, FederationRecipe)


@pytest.mark.parametrize(
    ("keys", "relation", "group"),
    [
        ({"data": {"group": "people"}}, Neighbours.USER_ADD_REMOVE, "people"),
        ({"partition": {"method": "shuffle"}}, Neighbours.REPLACE_ONE, None),
    ],
)
def test_a_charge_states_what_the_party_s_partition_protects(
    tmp_path, finished, keys, relation, group
):
    _, _, coordinator, _ = finished
    federation = Federation(tmp_path / "f")
    own = federation.place(0) / "own.npz"
    with np.load(own) as records:
        np.savez(own, **dict(records), people=np.arange(60) // 2)
    federation.write_party(0, sections=keys)
    party = Party.open(str(federation.recipe(0)), federation.place(0) / "runs")
    keep_inputs(party, coordinator.inputs)
    noised_votes(party, coordinator.question, run=1, session="a")
    (charge,) = federation.charges(0)
    assert (charge.records, charge.group) == (relation, group)
    assert charge.events[0].event.neighbours is relation


@pytest.mark.parametrize(
    ("aggregate", "reach"),
    [
        ({"mechanism": "laplace-counts", "scale": 0.5}, 2),
        ({"mechanism": "gaussian-counts", "sigma": 1.0}, 1),
    ],
)
def test_a_table_of_record_votes_is_summed_once(tmp_path, aggregate, reach):
    encoder = {"steps": ["standardise"]}
    shared = {"votes": {"by": "records", "reach": reach}, "encoder": encoder}
    federation = Federation(tmp_path / "f", aggregate=aggregate, shared=shared)
    grid = MemoryGrid.of(federation)
    coordinator, results = run(federation, grid)
    drawn = [answers(federation, number)[0] for number in range(3)]
    np.testing.assert_array_equal(opened(federation), sum(drawn))
    assert opened(federation).shape == (30, 3)
    assert results["teachers"] == 0
    assert results["accuracy"]["accuracy"] > 0.6  # of three classes
    counts = [
        np.load(next((federation.place(number) / "runs" / "run").glob("private/vote/*/counts.npy")))
        for number in range(3)
    ]
    assert [int(each.sum()) for each in counts] == [60 * reach] * 3
    assert (sum(counts) != opened(federation)).any()
    for number in range(3):
        (charge,) = federation.charges(number)
        assert charge.records is Neighbours.ADD_REMOVE
    if reach == 2:  # ε = 1/b at δ = 0, whatever the reach
        (event,) = coordinator.question.events
        assert (event.event.epsilon, event.count) == (1.0, 2)
        assert guarantee_of_plan([event], delta=0).epsilon == 2
    else:  # as GaussianCounts charges a table: 1/(2σ²)
        assert 1 / 2 <= coordinator.question.events[0].rho <= 1 / 2 * (1 + 1e-5)


def test_record_votes_need_one_encoder_and_one_reach(tmp_path):
    shared = {"votes": {"by": "records", "reach": 2}, "encoder": {"steps": ["standardise"]}}
    aggregate = {"mechanism": "laplace-counts", "scale": 2.0}
    federation = Federation(tmp_path / "f", aggregate=aggregate, shared=shared)
    federation.write_party(0, sections={"encoder": {"steps": ["normalise"]}})
    federation.write_party(1, sections={"votes": {"reach": 3}})
    with pytest.raises(InvalidInput, match="1 parties are ready"):
        run(federation, MemoryGrid.of(federation))


def test_charged_events_are_stored_as_events(finished):
    federation, _, coordinator, _ = finished
    place = federation.place(0) / "data" / "ledgers" / "party0.ledger.answers"
    (file,) = place.glob("*.json")
    (text,) = json.loads(file.read_text())["events"]
    assert event_from_json(text).event == coordinator.question.events[0]


def test_a_coordinator_learns_one_bit_from_questions_made_to_fail(tmp_path):
    """Whether a party fails depends on its records, here on the labels that it has."""
    federation = Federation(tmp_path / "f")
    coordinator = Coordinator.open(str(federation.recipe(-1)), tmp_path / "out")
    asked = coordinator.question
    fewer = replace(asked, classes=("0", "1"))
    party = Party.open(str(federation.recipe(0)), federation.place(0) / "runs")
    keep_inputs(party, coordinator.inputs)
    with pytest.raises(InvalidInput, match="not among the 2 classes"):
        count_votes(party, fewer)
    for question in (fewer, asked):
        with pytest.raises(InvalidInput, match="join again"):
            count_votes(party, question)
        with pytest.raises(InvalidInput, match="join again"):
            noised_votes(party, question, run=1, session="a")
    assert federation.charges(0) == []


def archive(**files: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as written:
        for name, text in files.items():
            written.writestr(name.replace("__", "."), text)
    return made.getvalue()


def test_a_party_takes_no_code_from_the_coordinator():
    own = {"pyproject__toml": flower.APP}
    assert flower.is_own_app(archive(**own))
    assert flower.is_own_app(archive(**own, **{".info/CONTENT": "digests"}))
    other = flower.APP.replace("pate.federated.app:client", "evil:client")
    for name in ("evil__py", "pate/x__py", ".info/x__py", ".info/../evil__py"):
        assert not flower.is_own_app(archive(**own, **{name: ""}))
    for files in ({"pyproject__toml": other}, {}):
        assert not flower.is_own_app(archive(**files))
    assert not flower.is_own_app(b"no archive")


def test_a_context_does_not_choose_the_recipe_of_a_party(tmp_path):
    """Somebody who could store one would otherwise choose what code runs, by plugins.path."""
    federation = Federation(tmp_path / "f")
    there = tmp_path / "was-here"
    plugin = federation.place(2) / "plugins" / "centroids.py"
    touch = f"import pathlib\npathlib.Path({str(there)!r}).touch()\n"
    plugin.write_text(touch + plugin.read_text())
    grid = MemoryGrid.of(federation)
    for node in grid.nodes[:2]:
        grid.contexts[node].node_config = {
            "recipe": str(federation.recipe(2)),
            "folder": str(federation.place(2) / "runs"),
        }
    grid.faults[grid.nodes[2]] = gone_at("prepare")
    _, results = run(federation, grid)
    assert results["parties"] == 2
    assert not there.exists()
    assert [len(federation.charges(number)) for number in range(3)] == [1, 1, 0]


def test_a_supernode_gives_its_tasks_to_its_own_executor_only(tmp_path):
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.auth import create_superexec_auth_metadata, derive_auth_secret

    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    words = supernode_command(superlink="127.0.0.1:9", authority=None, port=port)
    settings = party_environment(tmp_path / "party.toml", tmp_path / "runs")
    settings["PYTHONPATH"] = str(Path(flower.__file__).parents[2])
    asked = AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen(words, env=settings, stdout=log, stderr=log, start_new_session=True)
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                assert node.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.1)
            secret = tmp_path / "runs" / "flower" / "executor.secret"
            assert secret.stat().st_mode & 0o777 == 0o600
            method = "/flwr.proto.Runtime/AcquireTask"
            for known, status in ((None, 401), (bytes(32), 401), (secret.read_bytes(), 200)):
                headers = {"Content-Type": "application/protobuf"}
                if known is not None:
                    headers |= create_superexec_auth_metadata(
                        auth_secret=derive_auth_secret(known), method=method, request=asked
                    )
                with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=9)) as connection:
                    connection.request(
                        "POST", "/v1/runtime/acquire-task", asked.SerializeToString(), headers
                    )
                    assert connection.getresponse().status == status
        finally:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()


def test_what_a_killed_superlink_left_is_stopped(tmp_path):
    """The one that led the group is gone, and its number is free; the group is not."""
    sleeper = "import time; time.sleep(600)"
    starting = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', "
        f"{sleeper!r}, sys.argv[1]], stdout=subprocess.DEVNULL).pid)"
    )
    note = tmp_path / "superlink.pid"
    for program, stopped in (("flwr-serverapp", True), ("another", False)):
        leader = subprocess.Popen(
            [sys.executable, "-c", starting, program],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        left = int(leader.communicate()[0])
        note.write_text(str(leader.pid))
        _stop_leftover(note)
        with contextlib.suppress(FileNotFoundError):
            state = Path(f"/proc/{left}/stat").read_text().rpartition(")")[2].split()[0]
            assert (state == "Z") == stopped
            os.killpg(leader.pid, signal.SIGKILL)


def test_a_token_is_in_no_command_line(tmp_path):
    printing = (
        "import sys; from pathlib import Path; print(Path(sys.argv[2]).read_text(), sys.argv)"
    )
    words = [sys.executable, "-c", printing, "--token", "5ec3e7", "--insecure"]
    started = flower.start_with_token_file(words, stdout=subprocess.PIPE)
    token, _, others = started.communicate()[0].decode().partition(" ")
    assert token == "5ec3e7"
    assert "--token-file" in others
    assert "--insecure" in others
    assert token not in others


@pytest.mark.parametrize(
    ("path", "client", "admitted"),
    [
        ("/v1/fleet/pull-messages", "192.0.2.7", True),
        ("/v1/control/start-run", "192.0.2.1", True),  # from this machine
        ("/v1/control/start-run", "192.0.2.7", False),
        ("/v1/control/register-node", "127.0.0.1", False),
        ("/v1/runtime/pull-task-input", "192.0.2.7", False),
        ("/v1/fleet/../control/start-run", "192.0.2.7", True),  # which is no route of Flower's
    ],
)
def test_a_superlink_is_controlled_from_its_own_machine(path, client, admitted):
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope["path"])

    async def send(message):
        sent.append(message.get("status"))

    scope = {"type": "http", "path": path, "client": (client, 5), "server": ("192.0.2.1", 9092)}
    asyncio.run(flower.ControlledLocally(app)(scope, None, send))
    assert (reached, sent[:1]) == (([path], []) if admitted else ([], [403]))


def test_flower_s_programs_call_nobody(tmp_path):
    found = environment(tmp_path / "home")
    assert {found[name] for name in ("FLWR_DISABLE_UPDATE_CHECK",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION")} == {"1"}  # fmt: skip
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
