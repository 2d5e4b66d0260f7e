"""The ClientApp of a party and the ServerApp of the coordinator, as Flower loads them.

The settings of a party are in the environment of its own processes (:data:`SETTINGS`): they come
neither from the coordinator nor from a context that Flower hands over.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.compat.common import recorddict_compat
from flwr.serverapp import Grid, ServerApp

from pate._files import write_atomically
from pate.errors import PateError
from pate.federated.flower import SETTINGS
from pate.federated.party import Party, count_votes, keep_inputs, noised_votes, require_agreed
from pate.federated.recipes import Question
from pate.federated.secure_sum import guard, session_of


def _party() -> Party:
    settings = json.loads(os.environ[SETTINGS])
    return Party.open(
        settings["recipe"],
        Path(settings["folder"]),
        engine=settings["engine"],
        report=lambda line: print(line, flush=True),
    )


def _checked(message: Message, context: Context, call_next: Any) -> Message:
    """Apply the party's own terms to every step of a secure sum; its errors quote nothing."""
    try:
        party = _party()
        check = guard(party.recipe.federation, claims=party.folder / "claims")
        reply: Message = check(message, context, call_next)
        return reply
    except PateError as error:
        print(f"refused: {error}", flush=True)
    except Exception as error:  # its text may quote a record: it is not sent to the coordinator
        print(f"failed: {type(error).__name__}", flush=True)
    raise RuntimeError("this party does not take part") from None


client = ClientApp(mods=[_checked, secaggplus_mod])


@client.query()
def prepare(message: Message, context: Context) -> Message:
    """Train and count votes; reply with the number of teachers, or with a refusal."""
    party = _party()
    (inputs,) = message.content.array_records["inputs"].to_numpy_ndarrays()
    question = Question.from_json(str(message.content.config_records["question"]["text"]))
    keep_inputs(party, inputs)
    require_agreed(party, question)
    count_votes(party, question)
    ready = ConfigRecord({"teachers": party.recipe.teacher_count})
    return Message(RecordDict({"ready": ready}), reply_to=message)


@client.train()
def answer(message: Message, context: Context) -> Message:
    """Return noised votes to the mod that masks them; they are charged by then."""
    asked = recorddict_compat.recorddict_to_fitins(message.content, keep_input=True)
    question = Question.from_json(str(asked.config["question"]))
    votes = noised_votes(_party(), question, run=context.run_id, session=session_of(context))
    result = FitRes(
        status=Status(Code.OK, ""),
        parameters=ndarrays_to_parameters([votes.astype(np.float64)]),
        num_examples=1,
        metrics={},
    )
    return Message(recorddict_compat.fitres_to_recorddict(result, False), reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run a federation; what goes wrong is written into its folder, for ``pate federate``."""
    from pate.federated.coordinator import FAILURE, Coordinator, coordinate

    settings = context.run_config
    folder = Path(str(settings["folder"]))
    try:
        coordinate(
            Coordinator.open(str(settings["recipe"]), folder),
            grid,
            context,
            wait=float(settings["wait"]),
            timeout=float(settings["timeout"]),
            report=lambda line: print(line, flush=True),
        )
    except PateError as error:
        write_atomically(folder / FAILURE, json.dumps({"error": str(error)}).encode())
        raise
