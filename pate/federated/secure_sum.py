"""Sums of whole numbers by Flower's SecAgg+: its parameters, its masks, and what a party checks.

Guarantees:
    * **Exact.** SecAgg+ is made for weighted means of floats: it multiplies by a weight, clips to
      ±C, rounds (v + C)·R/(2C) at random to whole numbers, and adds them modulo M. Here every
      weight is the largest one, R = 2C, C and M are powers of two, and values are whole numbers
      within ±C: each of these steps is then the identity in doubles, and as n·2C < M no sum of n
      parties wraps (:func:`sum_parameters`; tests/unit/federated/test_secure_sum.py).
    * **Masks.** Flower expands a mask from 32 bits of its key by a Mersenne Twister, which can be
      searched: with three parties, two pairwise masks meet in the middle at 2³² steps. Both ends
      expand the whole key by ChaCha20 (Bernstein 2008) instead (:func:`mask`).
    * **One sum.** A party's noised votes are drawn for one key exchange, which opens one sum
      (:func:`guard`), so that no two sums, of different parties, hold the same noise.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate._files import create_once
from pate.errors import InvalidInput
from pate.federated.recipes import FederationTerms

MODULUS = 1 << 32
_MOD = "flwr.client.mod.secure_aggregation.secaggplus_mod"
_WORKFLOW = "flwr.server.workflow.secure_aggregation.secaggplus_workflow"


@dataclass(frozen=True, slots=True)
class SumParameters:
    """The numbers of SecAgg+: values within ±clip are summed exactly."""

    clip: int
    modulus: int = MODULUS

    @property
    def levels(self) -> int:
        return 2 * self.clip


def sum_parameters(parties: int) -> SumParameters:
    """Return the widest range of values whose sums do not wrap.

    >>> found = sum_parameters(5)
    >>> found.clip == 2**28, 5 * found.levels < found.modulus
    (True, True)
    """
    return SumParameters(MODULUS >> (1 + parties.bit_length()))


def mask(
    seed: bytes, num_range: int, dimensions_list: list[tuple[int, ...]]
) -> list[NDArray[np.int64]]:
    """Return uniform whole numbers below a power of two: ChaCha20 under the hash of a key."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    if num_range & (num_range - 1) or not 1 < num_range <= MODULUS:
        raise InvalidInput(f"the modulus is {num_range}; it must be a power of two, 2³² at most")
    key = hashlib.sha256(b"pate mask " + seed).digest()
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    masks = []
    for shape in dimensions_list:
        words = np.frombuffer(stream.update(bytes(4 * math.prod(shape))), dtype="<u4")
        masks.append((words.astype(np.int64) & (num_range - 1)).reshape(shape))
    return masks


def use_own_masks() -> None:
    """Put :func:`mask` in the place of Flower's own, at both ends of the protocol."""
    for name in (_MOD, _WORKFLOW):
        module: Any = importlib.import_module(name)
        if not callable(getattr(module, "pseudo_rand_gen", None)):
            raise InvalidInput("this version of flwr draws masks elsewhere; install flwr 1.41")
        module.pseudo_rand_gen = mask


# --- the party ------------------------------------------------------------------------------------


def guard(
    terms: FederationTerms, *, claims: Path
) -> Callable[[Any, Any, Callable[[Any, Any], Any]], Any]:
    """Return a mod that refuses what the terms of a party do not cover.

    ``claims`` is a folder of the party: what a key exchange was used for is noted there, whatever
    becomes of Flower's own state.

    Guarantees:
        * Votes leave under the masks of a secure sum, and by no other message.
        * A party's array is masked towards everybody in its key exchange. A sum that it helps to
          open has ``terms.threshold`` parties in it or more, and everybody is either in it or out.
        * A key exchange masks the votes of one run, and the party helps to open one set of parties.
          Two sets need 2·threshold answers less those of colluding parties, which may answer twice:
          more than there are (Bonawitz et al. 2017, Section 6.2), by :class:`FederationTerms`.
    """
    from flwr.app.message_type import MessageType
    from flwr.common.secure_aggregation.secaggplus_constants import (
        RECORD_KEY_CONFIGS,
        RECORD_KEY_STATE,
        Key,
        Stage,
    )

    wanted = sum_parameters(terms.parties)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        kind = message.metadata.message_type
        if kind == MessageType.QUERY:
            return call_next(message, context)
        if kind != MessageType.TRAIN:  # "train.default" passes SecAgg+, and would not be masked
            raise InvalidInput("the coordinator sends a message that is no step of a secure sum")
        use_own_masks()
        asked = message.content.config_records[RECORD_KEY_CONFIGS]
        stage = asked[Key.STAGE]
        if stage == Stage.SETUP:
            settings = {
                Key.SHARE_NUMBER: asked[Key.SAMPLE_NUMBER],
                Key.THRESHOLD: terms.threshold,
                Key.CLIPPING_RANGE: float(wanted.clip),
                Key.TARGET_RANGE: wanted.levels,
                Key.MOD_RANGE: wanted.modulus,
                Key.MAX_WEIGHT: 1.0,
            }
            sampled = asked[Key.SAMPLE_NUMBER]
            if not terms.threshold <= sampled <= terms.parties or any(
                asked[key] != value for key, value in settings.items()
            ):
                raise InvalidInput("the coordinator asks for another sum than was agreed on")
            return call_next(message, context)
        state = context.state.config_records[RECORD_KEY_STATE]
        if stage == Stage.SHARE_KEYS:
            if len(asked) - 1 != state["sample_num"]:  # all but the stage are keys
                raise InvalidInput("the coordinator withholds keys of a party")
            return call_next(message, context)
        everybody, own = sorted(state["public_keys_dict:K"]), state["nid"]
        if stage == Stage.COLLECT_MASKED_VECTORS:
            if sorted([own, *asked[Key.SOURCE_LIST]]) != everybody:
                raise InvalidInput("the coordinator withholds key shares of a party")
            _claim(claims / f"{session_of(context)}.votes", str(context.run_id))
        else:
            active, gone = sorted(asked[Key.ACTIVE_NODE_ID_LIST]), asked[Key.DEAD_NODE_ID_LIST]
            if (
                len(active) < terms.threshold
                or own not in active
                or sorted([*active, *gone]) != everybody
            ):
                raise InvalidInput(
                    "the coordinator asks to open a sum of too few parties, or of others"
                )
            _claim(claims / f"{session_of(context)}.opened", repr(active))
        return call_next(message, context)

    return mod


def session_of(context: Any) -> str:
    """Return the name of a party's key exchange: a digest of the key that it drew for it."""
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE

    own = context.state.config_records[RECORD_KEY_STATE]["pk1"]
    return hashlib.sha256(own).hexdigest()[:24]


def _claim(file: Path, use: str) -> None:
    """Note what a key exchange is used for; refuse another use than the first one."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    create_once(file, use.encode())
    if file.read_text() != use:
        raise InvalidInput("the coordinator asks for a second sum of one key exchange")


# --- the coordinator ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SecureSum:
    """A sum of the parties' arrays, and the nodes that are in it."""

    total: NDArray[np.int64]
    nodes: frozenset[int]


class SumFailed(InvalidInput):
    """No sum was opened.

    ``asked`` if parties were asked for their votes by then; ``alive`` are those that answered last.
    """

    def __init__(self, text: str, *, asked: bool, alive: frozenset[int]) -> None:
        super().__init__(text)
        self.asked = asked
        self.alive = alive


def secure_sum(
    grid: Any,
    context: Any,
    nodes: Iterable[int],
    *,
    terms: FederationTerms,
    shape: tuple[int, ...],
    config: dict[str, Any],
    number: int,
    timeout: float,
) -> SecureSum:
    """Return the sum of one array of whole numbers of each party; nobody sees another's.

    Raises
    ------
    SumFailed
        If fewer than ``terms.threshold`` parties take part to the end.
    """
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.common import FitIns, Parameters, parameters_to_ndarrays
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
    from flwr.server.workflow.constant import Key as WorkflowKey

    use_own_masks()
    chosen = sorted(nodes)
    numbers = sum_parameters(terms.parties)
    found: list[SecureSum] = []
    alive: list[frozenset[int]] = [frozenset()]  # after each step
    asked: list[bool] = []

    class Workflow(SecAggPlusWorkflow):
        """SecAgg+ that stops before votes are asked for if they could not be opened."""

        def setup_stage(self, grid: Any, context: Any, state: Any) -> bool:
            done = super().setup_stage(grid, context, state)
            return self._all_here(state) and done

        def share_keys_stage(self, grid: Any, context: Any, state: Any) -> bool:
            done = super().share_keys_stage(grid, context, state)
            return self._all_here(state) and done

        def _all_here(self, state: Any) -> bool:
            # Whoever is lost before it has shared its keys cannot be taken out of the sum later.
            alive.append(frozenset(state.active_node_ids))
            return bool(state.active_node_ids == state.sampled_node_ids)

        def collect_masked_vectors_stage(self, grid: Any, context: Any, state: Any) -> bool:
            asked.append(True)
            return super().collect_masked_vectors_stage(grid, context, state)

    def aggregate_fit(
        _round: int, results: list[Any], _failures: Any
    ) -> tuple[None, dict[Any, Any]]:
        (mean,) = parameters_to_ndarrays(results[0][1].parameters)
        total = np.rint(mean * len(results)).astype(np.int64)
        found.append(SecureSum(total, frozenset(proxy.node_id for proxy, _ in results)))
        return None, {}

    nothing = FitIns(parameters=Parameters([], ""), config=config)
    strategy = SimpleNamespace(
        configure_fit=lambda *_: [(SimpleNamespace(node_id=node), nothing) for node in chosen],
        aggregate_fit=aggregate_fit,
    )
    legacy = LegacyContext(
        context,
        strategy=strategy,  # type: ignore[arg-type]
    )
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord(
        {WorkflowKey.CURRENT_ROUND: number, WorkflowKey.START_TIME: 0.0}
    )
    legacy.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
    workflow = Workflow(
        num_shares=1.0,
        reconstruction_threshold=terms.threshold / len(chosen),
        max_weight=1.0,
        clipping_range=float(numbers.clip),
        quantization_range=numbers.levels,
        modulus_range=numbers.modulus,
        timeout=timeout,
    )
    workflow(_CheckedGrid(grid, shape), legacy)  # type: ignore[arg-type]
    if not found:
        raise SumFailed(
            f"fewer than {terms.threshold} parties took part to the end, so that nobody can open "
            "their sum; see the parties' logs, and run it again",
            asked=bool(asked),
            alive=alive[-1],
        )
    return found[0]


class _CheckedGrid:
    """Flower's grid without replies whose masked votes are not of the shape that was asked for."""

    def __init__(self, grid: Any, shape: tuple[int, ...]) -> None:
        self._grid, self._shapes = grid, [(1,), shape]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        replies = self._grid.send_and_receive(messages, timeout=timeout)
        return [reply for reply in replies if reply.has_error() or self._fits(reply)]

    def _fits(self, reply: Any) -> bool:
        from flwr.common import bytes_to_ndarray
        from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

        try:
            sent = reply.content.config_records[RECORD_KEY_CONFIGS].get(Key.MASKED_PARAMETERS)
            if sent is None:
                return True
            arrays = [bytes_to_ndarray(each) for each in sent]
        except Exception:  # bytes of a party: whatever is wrong with them, they are not counted
            return False
        return [each.shape for each in arrays] == self._shapes and all(
            each.dtype == np.int64 and ((each >= 0) & (each < MODULUS)).all() for each in arrays
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)
