"""What runs inside a worker process: read an order, carry it out, report, until told to stop.

Orders and reports are lines of JSON on one socket. The first line a worker
writes says that it is ready.

Guarantees:
    * A worker does not outlive its driver. When the socket closes it stops reading; when the
      driver dies in the middle of a task, a watching thread notices that the worker has a new
      parent and kills the worker with everything the task started.
    * A worker that crashes leaves no core dump: records would be in it.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

from pate.engines.attempt import attempt
from pate.untrusted import forbid_core_dumps

READY = b"ready\n"
THREADS = 1  # of a worker, as its environment says from the start: as many workers as cores
WATCH_SECONDS = 0.2


def main(descriptor: int) -> None:
    """Serves the driver at the other end of the socket ``descriptor``."""
    forbid_core_dumps()
    os.set_inheritable(descriptor, False)  # what a task starts must not keep the line open
    driver = os.getppid()
    threading.Thread(target=_die_with, args=(driver,), daemon=True).start()
    with socket.socket(fileno=descriptor) as line, line.makefile("rb") as orders:
        try:
            line.sendall(READY)
            for order in orders:
                line.sendall(attempt(order, born_with=THREADS) + b"\n")
        except OSError:  # the driver is gone, and so is anyone to tell
            return


def _die_with(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(WATCH_SECONDS)
    if os.getpgrp() == os.getpid():  # as the driver arranged; never kill a stranger's group
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
