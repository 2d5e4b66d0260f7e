"""Sums by SecAgg+, with Flower's own workflow and mod: exact, and opened only as agreed."""

from __future__ import annotations

import copy
import importlib
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from federation import GONE, MemoryGrid
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Status, ndarray_to_bytes, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.compat.common import recorddict_compat

from pate.errors import InvalidInput
from pate.federated.recipes import FederationTerms
from pate.federated.secure_sum import MODULUS, SumFailed, mask, secure_sum, sum_parameters
from pate.mechanisms.noise_shares import GaussianShare


def parties(terms: FederationTerms, arrays: list[np.ndarray]) -> MemoryGrid:
    from pate.federated.secure_sum import guard

    claims = Path(os.environ["XDG_DATA_HOME"]) / "claims"
    client = ClientApp(mods=[guard(terms, claims=claims), secaggplus_mod])

    @client.train()
    def answer(message, context):
        own = arrays[context.node_config["number"]]
        result = FitRes(
            Status(Code.OK, ""), ndarrays_to_parameters([own.astype(np.float64)]), 1, {}
        )
        return Message(recorddict_compat.fitres_to_recorddict(result, False), reply_to=message)

    return MemoryGrid(client, [{"number": number} for number in range(len(arrays))])


def summed(grid: MemoryGrid, terms: FederationTerms, shape: tuple[int, ...]):
    return secure_sum(
        grid, grid.context(), grid.nodes, terms=terms, shape=shape, config={}, number=1, timeout=5
    )


@pytest.mark.parametrize("count", [2, 3, 5, pytest.param(20, marks=pytest.mark.campaign)])
def test_whole_numbers_are_summed_exactly_up_to_the_ends_of_their_range(count):
    terms = FederationTerms(parties=count, dropouts=0)
    clip, rng = sum_parameters(count).clip, np.random.default_rng(count)
    arrays = [rng.integers(-clip, clip + 1, size=(4, 3)) for _ in range(count)]
    for array in arrays:
        array[0], array[1] = clip, -clip
    found = summed(parties(terms, arrays), terms, (4, 3))
    np.testing.assert_array_equal(found.total, np.sum(arrays, axis=0))
    assert len(found.nodes) == count


@pytest.mark.parametrize("count", [*range(2, 40), 999])
def test_no_sum_wraps(count):
    found = sum_parameters(count)
    assert count * found.levels < found.modulus
    assert found.levels < 1 << 31  # as Flower stores them


def test_masks_depend_on_the_whole_key_and_are_used_at_both_ends():
    one, other = bytes(range(32)), bytes([*range(4, 8), *range(4), *range(8, 32)])
    kept = [np.array(draw(each, MODULUS, [(5,)])[0]) for draw in (pseudo_rand_gen, mask)
            for each in (one, other)]  # fmt: skip
    assert (kept[0] == kept[1]).all()  # Flower folds the key into 32 bits
    assert not (kept[2] == kept[3]).any()
    terms = FederationTerms(parties=3)
    summed(parties(terms, [np.ones((1, 2))] * 3), terms, (1, 2))
    for name in ("client.mod.secure_aggregation.secaggplus_mod",
                 "server.workflow.secure_aggregation.secaggplus_workflow"):  # fmt: skip
        assert importlib.import_module(f"flwr.{name}").pseudo_rand_gen is mask


def test_masks_are_uniform_and_of_their_shape():
    first, second = mask(b"key!", 1 << 10, [(1,), (300, 200)])
    assert first.shape == (1,)
    assert second.dtype == np.int64
    counts = np.bincount(second.ravel(), minlength=1 << 10)
    assert len(counts) == 1 << 10
    assert abs(counts.mean() - counts.var()) < 12
    with pytest.raises(InvalidInput, match="power of two"):
        mask(b"key!", 1000, [(1,)])


def test_what_a_party_sends_is_not_its_array():
    terms, array = FederationTerms(parties=3), np.full((40, 3), 5)
    grid = parties(terms, [array] * 3)
    summed(grid, terms, (40, 3))
    clip = sum_parameters(3).clip
    for shown in (array, array + clip):
        for kind in (np.int64, np.int32, np.float64):
            row = shown[0].astype(kind).tobytes()
            assert not any(row in sent for sent in grid.sent)


@pytest.mark.parametrize("stage", ["collect_masked_vectors", "unmask"])
def test_a_party_that_is_lost_is_left_out_or_not_needed(stage):
    terms = FederationTerms(parties=4, dropouts=1)
    arrays = [np.full((2, 2), 10**number) for number in range(4)]
    grid = parties(terms, arrays)
    grid.faults[grid.nodes[1]] = lambda at, reply: GONE if at == f"before {stage}" else reply
    found = summed(grid, terms, (2, 2))
    lost = 10 if stage == "collect_masked_vectors" else 0
    assert (found.total == 1111 - lost).all()
    assert found.nodes == set(grid.nodes) - ({grid.nodes[1]} if lost else set())


@pytest.mark.parametrize("stage", ["setup", "share_keys", "collect_masked_vectors", "unmask"])
def test_nobody_opens_a_sum_of_too_few(stage):
    terms = FederationTerms(parties=4, dropouts=1)
    grid = parties(terms, [np.ones((2, 2))] * 4)
    for node in grid.nodes[:2]:
        grid.faults[node] = lambda at, reply: GONE if at == f"before {stage}" else reply
    with pytest.raises(SumFailed, match="fewer than 3 parties") as failure:
        summed(grid, terms, (2, 2))
    assert failure.value.asked == (stage in ("collect_masked_vectors", "unmask"))


def garbled(change):
    def fault(at, reply):
        if at != "collect_masked_vectors":
            return reply
        sent = reply.content.config_records["secaggplus_configs"]
        weight, votes = (np.frombuffer(each[-8:], "<i8") for each in sent["masked_params"])
        del votes
        sent["masked_params"] = [ndarray_to_bytes(weight), *change]
        return reply

    return fault


@pytest.mark.parametrize(
    "change",
    [
        pytest.param([ndarray_to_bytes(np.zeros((2, 3), dtype=np.int64))], id="another shape"),
        pytest.param([ndarray_to_bytes(np.full((2, 2), MODULUS))], id="beyond the modulus"),
        pytest.param([ndarray_to_bytes(np.full((2, 2), -1))], id="below zero"),
        pytest.param([ndarray_to_bytes(np.zeros((2, 2)))], id="floats"),
        pytest.param([b"garbage"], id="bytes"),
        pytest.param([], id="nothing"),
    ],
)
def test_garbage_is_left_out(change):
    terms = FederationTerms(parties=4, dropouts=1)
    grid = parties(terms, [np.ones((2, 2))] * 4)
    grid.faults[grid.nodes[2]] = garbled(change)
    found = summed(grid, terms, (2, 2))
    assert found.nodes == set(grid.nodes) - {grid.nodes[2]}
    assert (found.total == 3).all()


def test_a_party_refuses_another_sum_than_agreed_on():
    agreed, asked = FederationTerms(parties=4, dropouts=1), FederationTerms(parties=4, dropouts=0)
    with pytest.raises(SumFailed) as failure:
        summed(parties(agreed, [np.ones((2, 2))] * 4), asked, (2, 2))
    assert not failure.value.asked


def unmask(node: int, active: list[int], gone: list[int]) -> Message:
    record = {"stage": "unmask", "active_nids": active, "dead_nids": gone}
    content = RecordDict({"secaggplus_configs": ConfigRecord(record)})
    return Message(content, dst_node_id=node, message_type="train")


def test_a_party_refuses_to_open_a_sum_that_somebody_is_both_in_and_out_of():
    terms = FederationTerms(parties=3)
    grid = parties(terms, [np.ones((2, 2))] * 3)
    summed(grid, terms, (2, 2))
    node, *others = grid.nodes
    for active, gone in ((grid.nodes, [node]), ([node] * 3, []), (others, [node]),
                         ([node, others[0]], []), ([*grid.nodes, 999], [])):  # fmt: skip
        with pytest.raises(InvalidInput, match="too few"):
            grid.client(unmask(node, active, gone), grid.contexts[node])


def test_a_party_helps_to_open_one_sum_even_if_flower_has_lost_its_state():
    terms = FederationTerms(parties=3)
    grid = parties(terms, [np.ones((2, 2))] * 3)
    node, before = grid.nodes[0], []

    def fault(at, reply):
        if at == "before unmask":
            before.append(copy.deepcopy(grid.contexts[node]))
        return reply

    grid.faults[node] = fault
    summed(grid, terms, (2, 2))
    again = grid.client(unmask(node, grid.nodes[::-1], []), copy.deepcopy(before[0]))
    assert not again.has_error()  # a message that is delivered twice
    with pytest.raises(InvalidInput, match="second sum of one key exchange"):
        grid.client(unmask(node, grid.nodes[:2], grid.nodes[2:]), before[0])


@pytest.mark.parametrize(
    ("stage", "text"),
    [("share_keys", "withholds keys"), ("collect_masked_vectors", "withholds key shares")],
)
def test_a_party_is_masked_towards_everybody(stage, text):
    """Masked towards one party that is then declared gone, its array would be opened alone."""
    terms = FederationTerms(parties=3)
    grid = parties(terms, [np.ones((2, 2))] * 3)
    ask, node, refused = grid.client, grid.nodes[0], []

    def withholding(message, context):
        asked = message.content.config_records["secaggplus_configs"]
        if asked["stage"] == stage and message.metadata.dst_node_id == node:
            if stage == "share_keys":
                del asked[str(grid.nodes[2])]
            else:
                asked["srcs"], asked["ctxts"] = asked["srcs"][:1], asked["ctxts"][:1]
            with pytest.raises(InvalidInput, match=text):
                ask(message, context)
            refused.append(stage)
            raise InvalidInput(text)
        return ask(message, context)

    grid.client = withholding
    try:
        assert len(summed(grid, terms, (2, 2)).nodes) == 2
    except SumFailed:
        assert stage == "share_keys"
    assert refused == [stage]


@pytest.mark.parametrize("kind", ["train.default", "train.other", "evaluate", "evaluate.default"])
def test_no_message_but_a_step_of_a_sum_reaches_the_votes(kind):
    terms = FederationTerms(parties=3)
    grid = parties(terms, [np.ones((2, 2))] * 3)
    summed(grid, terms, (2, 2))
    content = RecordDict({"fitins.config": ConfigRecord({"question": "{}"})})
    message = Message(content, dst_node_id=grid.nodes[0], message_type=kind)
    with pytest.raises((InvalidInput, ValueError), match=r"no step of a secure sum|registered"):
        grid.client(message, grid.contexts[grid.nodes[0]])


@pytest.mark.parametrize(
    ("count", "dropouts", "colluding"), [(2, 0, 0), (3, 1, 0), (5, 1, 0), (5, 1, 1), (9, 2, 3)]
)
def test_the_noise_that_no_reader_knows_is_that_of_the_plan(count, dropouts, colluding):
    """A party subtracts its own share from what it reads, and colluding ones all of theirs."""
    terms = FederationTerms(parties=count, dropouts=dropouts, colluding=colluding)
    share = GaussianShare(sigma=7.0, shares=terms.shares)
    for known in {1, colluding}:
        assert (terms.threshold - known) * share.variance >= 7**2


@pytest.mark.parametrize(
    ("count", "dropouts", "colluding"), [(2, 1, 0), (4, 2, 0), (5, 1, 3), (3, 3, 0)]
)
def test_terms_under_which_two_sums_could_be_opened_are_refused(count, dropouts, colluding):
    with pytest.raises(ValueError, match="two different sums"):
        FederationTerms(parties=count, dropouts=dropouts, colluding=colluding)
