"""Functions that the engines' tests name in their tasks: payload in, dict out."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pate.errors import InvalidInput

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
    raise InvalidInput("the label SECRET is odd")


def end_generator(payload):
    raise GeneratorExit("the label SECRET is odd")


def strict_numpy(payload):
    import numpy as np

    np.seterr(all="raise")
    return numpy_state(payload)


def numpy_state(payload):
    import numpy as np

    return {"over": np.geterr()["over"]}


def leave(payload):
    sys.exit(3)


def not_a_dict(payload):
    return [1, 2]


def not_json(payload):
    return {"path": Path("x")}


def count_tries(payload):
    """Notes each try in a file, and works from the try ``works_at`` on.

    How it fails until then is one word for all tries, or a list of one for each.
    """
    with open(payload["file"], "a") as file:
        file.write("try\n")
    tries = len(Path(payload["file"]).read_text().splitlines())
    if tries < payload["works_at"]:
        how = payload.get("how", "raise")
        how = how[tries - 1] if isinstance(how, list) else how
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(7)
        if how == "hang":
            time.sleep(60)
        if how == "segfault":
            ctypes.string_at(0)
        raise RuntimeError
    return {"tries": tries}


def threads(payload):
    import numpy  # noqa: F401  (its BLAS is what is counted)
    import torch
    from threadpoolctl import threadpool_info

    pools = threadpool_info()
    found = {
        "torch": torch.get_num_threads(),
        "blas": [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"],
        "openmp": [pool["num_threads"] for pool in pools if pool["user_api"] == "openmp"],
        "joblib": os.environ.get("LOKY_MAX_CPU_COUNT"),
    }
    torch.set_num_threads(3)  # must not reach the next task
    return found


def environment(payload):
    return {
        "numpy": "numpy" in sys.modules,
        **{name: os.environ[name] for name in payload["names"]},
    }


def modules(payload):
    return {"threadpoolctl": "threadpoolctl" in sys.modules}


def device(payload):
    """What a worker knows of its device."""
    from pate.devices import current_device

    names = (
        "PATE_DEVICE",
        "PATE_DEVICE_SHARERS",
        "CUDA_VISIBLE_DEVICES",
        "CUBLAS_WORKSPACE_CONFIG",
    )
    told = {name: os.environ.get(name) for name in names}
    return {"pid": os.getpid(), "device": str(current_device()), **told}


def device_at_last(payload):
    """The device of the try that works."""
    return {**count_tries(payload), **device(payload)}


def meet(payload):
    """Notes who is here, and works on when as many workers as ``count`` are."""
    folder = Path(payload["folder"])
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < payload["count"]:
        time.sleep(0.01)
    return device(payload)


def touch(payload):
    Path(payload["file"]).touch()
    return {}


def wait_for(payload):
    while not Path(payload["file"]).exists():
        time.sleep(0.01)
    return {}


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
