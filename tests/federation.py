"""A tiny federation: recipes and data of a coordinator and its parties, and a grid in memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from harness import CENTROIDS, tiny_records, toml

MARKER = "PATIENT-7f3a91"  # in the id of every private record

COORDINATOR: dict[str, dict[str, Any]] = {
    "data": {
        "name": "tiny",
        "public_path": "public.npz",
        "test_path": "test.npz",
        "classes": ["0", "1", "2"],
    },
    "federation": {"parties": 3},
    "aggregate": {"mechanism": "gnmax", "sigma": 2.0, "queries": 12},
    "student": {"model": "centroids:Centroids"},
    "plugins": {"path": "plugins"},
}


def write_recipe(path: Path, kind: str, sections: dict[str, dict[str, Any]], top: str = "") -> Path:
    lines = [f'kind = "{kind}"', top]
    for section, keys in sections.items():
        lines += [f"[{section}]", *(f"{key} = {toml(value)}" for key, value in keys.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


@dataclass
class Federation:
    """The folder of a coordinator, and one of each party."""

    folder: Path
    parties: int = 3
    dropouts: int = 1
    colluding: int = 0
    budget: float = 1000.0
    aggregate: dict[str, Any] = field(default_factory=lambda: dict(COORDINATOR["aggregate"]))
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)  # sections of all recipes

    def __post_init__(self) -> None:
        features, labels = tiny_records(60 * self.parties + 60)
        self.place(-1).mkdir(parents=True)
        np.savez(self.place(-1) / "public.npz", X=features[:30])
        np.savez(self.place(-1) / "test.npz", X=features[30:60], y=labels[30:60])
        write_recipe(
            self.place(-1) / "study.toml",
            "federation",
            COORDINATOR | self.shared | {"federation": self.terms, "aggregate": self.aggregate},
        )
        for number in range(self.parties):
            rows = slice(60 + 60 * number, 120 + 60 * number)
            self.place(number).mkdir()
            ids = np.array([f"{MARKER}-{row}" for row in range(rows.start, rows.stop)])
            np.savez(self.place(number) / "own.npz", X=features[rows], y=labels[rows], ids=ids)
            self.write_party(number)
        for number in range(-1, self.parties):
            plugins = self.place(number) / "plugins"
            plugins.mkdir()
            (plugins / "centroids.py").write_text(CENTROIDS)

    @property
    def terms(self) -> dict[str, int]:
        return {
            "parties": self.parties,
            "dropouts": self.dropouts,
            "colluding": self.colluding,
        }

    def place(self, number: int) -> Path:
        return self.folder / ("coordinator" if number < 0 else f"party-{number}")

    def recipe(self, number: int) -> Path:
        return self.place(number) / ("study.toml" if number < 0 else "party.toml")

    def write_party(
        self,
        number: int,
        *,
        budget: float | None = None,
        sections: dict[str, dict[str, Any]] | None = None,
        **terms: int,
    ) -> None:
        own: dict[str, dict[str, Any]] = {
            "data": {"name": f"party{number}", "private_path": "own.npz", "id": "ids"},
            "federation": self.terms | terms,
            "teachers": {"count": 4, "model": "centroids:Centroids"},
            "privacy": {"budget": self.budget if budget is None else budget},
            "plugins": {"path": "plugins"},
        }
        if self.shared.get("votes", {}).get("by") == "records":
            del own["teachers"]
        own |= self.shared
        for name, keys in (sections or {}).items():
            own[name] = own.get(name, {}) | keys
        write_recipe(self.recipe(number), "party", own, top='data_root = "data"')

    def charges(self, number: int) -> list[Any]:
        from pate.accounting import Ledger

        ledger = self.place(number) / "data" / "ledgers" / f"party{number}.ledger"
        if not ledger.exists():
            return []
        with Ledger.open(ledger) as opened:
            return opened.charges()


GONE = object()
Fault = Callable[[str, Any], Any]  # from the stage and the reply of a party to another reply


class MemoryGrid:
    """Flower's grid with the parties in this process; ``faults`` replace what a party replies."""

    def __init__(self, client: Any, settings: list[dict[str, Any]]) -> None:
        from flwr.app import Context, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.client = client
        self.runs = time.time_ns()
        self.nodes = [100 + number for number in range(len(settings))]
        self.faults: dict[int, Fault] = {}
        self.settings: dict[int, dict[str, str]] = {}  # in the environment of a node
        self.sent: list[bytes] = []  # all that parties sent to the coordinator
        self.stages: list[str] = []
        self.contexts = {
            node: Context(
                run_id=1, node_id=node, node_config=own, state=RecordDict(), run_config={}
            )
            for node, own in zip(self.nodes, settings, strict=True)
        }

    @classmethod
    def of(cls, federation: Federation) -> MemoryGrid:
        from pate.federated.app import client

        made = cls(client, [{} for _ in range(federation.parties)])
        for number, node in enumerate(made.nodes):
            made.settings[node] = {
                "recipe": str(federation.recipe(number)),
                "folder": str(federation.place(number) / "runs"),
                "engine": "serial",
            }
        return made

    def context(self) -> Any:
        """The coordinator's context of a new run, which the parties are in, too."""
        from flwr.app import Context, RecordDict

        self.runs += 1
        for context in self.contexts.values():
            context.run_id = self.runs
        return Context(
            run_id=self.runs, node_id=0, node_config={}, state=RecordDict(), run_config={}
        )

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        replies = [self._ask(message) for message in messages]
        return [reply for reply in replies if reply is not None]

    def _ask(self, message: Any) -> Any:
        from flwr.app import Error, Message
        from flwr.common.serde import recorddict_to_proto

        node = message.metadata.dst_node_id
        asked = message.content.config_records.get("secaggplus_configs", {})
        stage = str(asked.get("stage", "prepare"))
        self.stages.append(stage)
        fault = self.faults.get(node)
        if fault is not None and fault(f"before {stage}", None) is GONE:
            return None
        kind = message.metadata.message_type
        own = Message(_copy(message.content), dst_node_id=node, message_type=kind)
        settings = {"PATE_PARTY": json.dumps(self.settings.get(node))}
        try:
            with mock.patch.dict(os.environ, settings):
                reply = self.client(own, self.contexts[node])
        except Exception as error:
            reply = Message(Error(code=0, reason=str(error)), reply_to=message)
        else:
            reply = Message(reply.content, reply_to=message)
            self.sent.append(recorddict_to_proto(reply.content).SerializeToString())
        return reply if fault is None else fault(stage, reply)


def _copy(content: Any) -> Any:
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

    return recorddict_from_proto(recorddict_to_proto(content))
