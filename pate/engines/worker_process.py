"""The driver's end of one worker: start it, hand it an order, take its report, end it.

A worker is a fresh interpreter (nothing is forked, and the driver's ``__main__`` is not imported
again) in a process group of its own, so that whatever a task starts can be ended with it, and
so that Ctrl-C reaches the driver alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import final

from pate.devices import Device, pinned
from pate.engines.threads import environment
from pate.engines.worker import THREADS

# The worker searches for modules where the driver does, the user's own plug-ins included; until
# it knows where, -P keeps a json.py of the working folder out of its way.
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from pate.engines.worker import main; main(int(sys.argv[1]))"
)
GOODBYE_SECONDS = 2.0


@final
class WorkerProcess:
    """One running worker, on a device that it may share with others.

    It says nothing on the screen: its output goes nowhere.

    Guarantees:
        * What a task prints or warns may quote private data, so none of it is shown or kept.
    """

    def __init__(self, device: Device, *, sharers: int = 1) -> None:
        told = {**os.environ, **environment(THREADS), **pinned(device, sharers=sharers)}
        ours, theirs = socket.socketpair()
        path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _START, str(theirs.fileno()), path],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env=told,
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        self._line = ours
        self._reports = ours.makefile("rb")

    @property
    def pid(self) -> int:
        """The worker's process, which leads a group of the same number."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when there is a report, or when the worker is gone."""
        return self._line.fileno()

    def send(self, order: bytes) -> bool:
        """Hands over an order; False if nobody is there to take it."""
        try:
            self._line.sendall(order + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> bytes | None:
        """The line that is there, complete; None if the worker is gone."""
        try:
            line = self._reports.readline()
        except OSError:
            return None
        return line if line.endswith(b"\n") else None

    def exited(self) -> bool:
        """Whether the process has ended, even if something it started holds the socket open."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT  # seen, not reaped: see kill
        try:
            return os.waitid(os.P_PID, self.pid, flags) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """Ends the worker and all it started, now; :meth:`bury` must follow."""
        if self._process.returncode is None:  # not yet reaped, so the number is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def bury(self) -> str:
        """Ends what is left of the worker and says how it went: "by signal SIGKILL"."""
        self.kill()
        code = self._process.wait()
        self._reports.close()
        self._line.close()
        return f"with exit code {code}" if code >= 0 else f"by signal {_signal_name(-code)}"

    def hang_up(self) -> None:
        """Tells an idle worker to go home; :meth:`see_off` must follow."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def see_off(self, patience: float = GOODBYE_SECONDS) -> None:
        """Waits a little for the worker to leave on its own, then ends it."""
        deadline = time.monotonic() + patience
        while not self.exited() and time.monotonic() < deadline:
            time.sleep(0.005)
        self.bury()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
