"""Functions that the engines' tests name in their tasks: payload in, dict out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pate.errors import BudgetExceeded, InvalidInput

NOT_A_FUNCTION = 3


def double(payload):
    return {"double": 2 * payload["n"]}


def echo(payload):
    return {"got": payload}


def noisy(payload):
    print("SECRET on stdout")
    print("SECRET on stderr", file=sys.stderr)
    os.write(1, b"SECRET on descriptor 1\n")
    os.write(2, b"SECRET on descriptor 2\n")
    return {"stdin": sys.stdin.read()}


def fail(payload):
    raise ValueError("could not convert the label SECRET")


def refuse(payload):
    raise InvalidInput("scale is -1;\n it must be positive")


def refuse_budget(payload):
    raise BudgetExceeded(needed=2.0, spent=1.0, budget=1.5)


def leave(payload):
    sys.exit(3)


def not_a_dict(payload):
    return [1, 2]


def not_json(payload):
    return {"path": Path("x")}


def count_tries(payload):
    """Notes each try in a file, and works from the try ``works_at`` on."""
    with open(payload["file"], "a") as file:
        file.write("try\n")
    tries = len(Path(payload["file"]).read_text().splitlines())
    if tries < payload["works_at"]:
        how = payload.get("how", "raise")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(7)
        if how == "hang":
            time.sleep(60)
        raise RuntimeError
    return {"tries": tries}


def threads(payload):
    import numpy  # noqa: F401  (its BLAS is what is counted)
    import torch
    from threadpoolctl import threadpool_info

    before = torch.get_num_threads()
    torch.set_num_threads(2)  # must not reach the next task
    pools = {pool["internal_api"]: pool["num_threads"] for pool in threadpool_info()}
    return {"torch": before, "blas": pools["openblas"], "pid": os.getpid()}


def environment(payload):
    return {
        "numpy": "numpy" in sys.modules,
        **{name: os.environ[name] for name in payload["names"]},
    }


def who(payload):
    time.sleep(payload.get("seconds", 0))
    return {"pid": os.getpid(), "group": os.getpgrp(), "ended": time.time()}


def announce(payload):
    """Writes down who works, then works for a long time, in one of several ways."""
    note = {"pid": os.getpid()}
    if payload.get("child"):
        note["child"] = subprocess.Popen(["sleep", "60"]).pid
    draft = Path(payload["file"] + ".draft")
    draft.write_text(json.dumps(note))
    draft.rename(payload["file"])
    if payload.get("spin"):
        while True:
            pass
    time.sleep(60)
    return {}


def die_leaving_a_fork(payload):
    """Ends without closing the socket: a forked child holds a copy of it."""
    if os.fork() == 0:
        Path(payload["file"]).write_text(str(os.getpid()))
        time.sleep(60)
        os._exit(0)
    while not Path(payload["file"]).exists():
        time.sleep(0.01)
    os._exit(5)
