"""The cost of a secure sum for each party: bytes that it sends and receives, seconds of its CPU.

Simulated: Flower's workflow and mod run in one process, and messages are counted as Flower writes
them, without HTTP and TLS. Training of teachers is not in it.

    python benchmarks/federated.py
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def measure(parties: int, queries: int, classes: int) -> dict[str, Any]:
    """Return bytes and seconds per party, and seconds of the coordinator."""
    from federation import MemoryGrid
    from flwr.app import Message
    from flwr.client.mod import secaggplus_mod
    from flwr.clientapp import ClientApp
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.common.serde import recorddict_to_proto
    from flwr.compat.common import recorddict_compat

    from pate.federated.recipes import FederationTerms
    from pate.federated.secure_sum import guard, secure_sum
    from pate.mechanisms.noise_shares import GaussianShare
    from pate.randomness import secure_generator

    terms = FederationTerms(parties=parties, dropouts=1)
    share = GaussianShare(sigma=40.0, shares=terms.shares)
    claims = tempfile.TemporaryDirectory()
    client = ClientApp(mods=[guard(terms, claims=Path(claims.name)), secaggplus_mod])

    @client.train()
    def answer(message: Any, context: Any) -> Any:
        votes = share.noise((queries, classes), secure_generator()).astype(np.float64)
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([votes]), 1, {})
        return Message(recorddict_compat.fitres_to_recorddict(result, False), reply_to=message)

    class Counted(MemoryGrid):
        received = 0
        seconds = 0.0

        def _ask(self, message: Any) -> Any:
            self.received += recorddict_to_proto(message.content).ByteSize()
            started = time.process_time()
            reply = super()._ask(message)
            self.seconds += time.process_time() - started
            return reply

    grid = Counted(client, [{} for _ in range(parties)])
    started = time.process_time()
    config = {"question": "x" * (8 * queries)}  # as long as the rows that are asked about
    secure_sum(
        grid,
        grid.context(),
        grid.nodes,
        terms=terms,
        shape=(queries, classes),
        config=config,
        number=1,
        timeout=60,
    )
    return {
        "sent": sum(map(len, grid.sent)) / parties,
        "received": grid.received / parties,
        "party": grid.seconds / parties,
        "coordinator": time.process_time() - started - grid.seconds,
    }


def main() -> None:
    """Print a table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--queries", type=int, nargs="+", default=[200, 9000])
    arguments.add_argument("--parties", type=int, nargs="+", default=[5, 20])
    arguments.add_argument("--classes", type=int, default=10)
    chosen = arguments.parse_args()
    import flwr.common  # noqa: F401, sets its logger up

    logging.getLogger("flwr").setLevel(logging.WARNING)
    print("| parties | queries | sent | received | party | coordinator |")
    print("|---|---|---|---|---|---|")
    for parties in chosen.parties:
        for queries in chosen.queries:
            found = measure(parties, queries, chosen.classes)
            print(
                f"| {parties} | {queries} | {found['sent'] / 1e3:.1f} kB | "
                f"{found['received'] / 1e3:.1f} kB | {found['party']:.2f} s | "
                f"{found['coordinator']:.2f} s |"
            )


if __name__ == "__main__":
    main()
