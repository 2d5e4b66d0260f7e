"""Flower's programs, restricted: ``python -m pate.federated.flower NAME OPTIONS``.

Guarantees:
    * **A party runs its own code.** Flower's SuperNode runs the app that the SuperLink sends, with
      all rights of its user. Here it takes :data:`APP` alone, a file of settings that names
      ``pate.federated.app`` as it is installed at the party, and installs nothing.
    * **Other users of a party's machine get no messages.** Flower's SuperNode hands messages and
      the keys of a secure sum to whoever asks at its local port, and passes tokens on command
      lines, which everybody on the machine reads. Here its executor has a secret, which lies in a
      file of the party's user; it starts once the SuperNode holds the port; and tokens are in no
      command line.
    * **Nobody else starts runs.** Flower's SuperLink answers parties and whoever controls it at one
      address, and does not ask the latter who they are: they could start code of their own there,
      or register a party's key. Here only the machine that it runs on reaches that part.
"""

from __future__ import annotations

import importlib
import io
import os
import secrets
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pate._files import write_atomically
from pate.errors import InvalidInput

SETTINGS = "PATE_PARTY"  # in the environment of a party's processes
APP = """\
[project]
name = "pate-federation"
version = "1.0.0"
description = "Sums the noised votes of several organisations."
dependencies = []

[tool.flwr.app]
publisher = "pate"

[tool.flwr.app.components]
serverapp = "pate.federated.app:server"
clientapp = "pate.federated.app:client"

[tool.flwr.app.config]
recipe = ""
folder = ""
wait = 600.0
timeout = 120.0
"""
_FILE, _DIGESTS = "pyproject.toml", ".info/CONTENT"  # of an app as Flower packs it
_Scope = MutableMapping[str, Any]
_App = Callable[[_Scope, Any, Any], Awaitable[None]]


def is_own_app(archive: bytes) -> bool:
    """Return whether a Flower app is :data:`APP`, and no code."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            own = sorted(files.namelist()) in ([_FILE], [_DIGESTS, _FILE])
            return own and files.read(_FILE) == APP.encode()
    except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError, NotImplementedError):
        return False


class ControlledLocally:
    """Middleware that lets other machines reach what parties need, and nothing else."""

    def __init__(self, app: _App) -> None:
        self._app = app

    async def __call__(self, scope: _Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan" and not scope["path"].startswith("/v1/fleet/"):
            client, server = scope.get("client"), scope.get("server")
            if not client or not server or client[0] != server[0]:
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b"only from this machine\n"})
                return
        await self._app(scope, receive, send)


def superlink() -> None:
    """Run Flower's SuperLink, controlled from this machine only."""
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    _require(extensions, "get_middleware")
    extensions.get_middleware = lambda: (Middleware(ControlledLocally),)
    module: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    _require(module, "get_popen_detach_kwargs")
    module.get_popen_detach_kwargs = dict  # what it starts stays in its group, and ends with it
    flower_superlink()


def supernode() -> None:
    """Run Flower's SuperNode; messages of another app than :data:`APP` are ignored."""
    module: Any = importlib.import_module("flwr.supernode.start_client_internal")
    program: Any = importlib.import_module("flwr.supernode.cli.flower_supernode")
    _require(module, "get_fused_config_from_fab", "RunNotRunningException")
    _require(program, "start_client_internal", "flower_supernode")
    settings_of = module.get_fused_config_from_fab

    def checked(archive: bytes, run: Any) -> Any:
        """Return the settings of an app, which is stored and run only after that."""
        if not is_own_app(archive):
            print("refused: the coordinator sends an app that is not pate's", flush=True)
            raise module.RunNotRunningException
        return settings_of(archive, run)

    module.get_fused_config_from_fab = checked
    secret = Path(os.environ["FLWR_HOME"]) / "executor.secret"
    write_atomically(secret, secrets.token_bytes(32))
    authenticated = ["--superexec-auth-secret-file", str(secret)]
    start = program.start_client_internal

    def started(**settings: Any) -> None:
        """Start the executor, now that nobody else can answer at the port, and the SuperNode."""
        own = [sys.executable, "-P", "-m", "pate.federated.flower", "superexec", "--insecure"]
        own += ["--runtime-api-address", settings["runtime_api_address"], *authenticated]
        subprocess.Popen([*own, "--parent-pid", str(os.getpid())])
        start(**settings)

    program.start_client_internal = started
    sys.argv += ["--isolation", "process", *authenticated]
    program.flower_supernode()


def superexec() -> None:
    """Run Flower's SuperExec; the tokens of what it starts are in no command line."""
    executor: Any = importlib.import_module("flwr.supercore.superexec.executor.subprocess_executor")
    program: Any = importlib.import_module("flwr.supercore.cli.flower_superexec")
    _require(executor.subprocess, "Popen")
    executor.subprocess = SimpleNamespace(
        Popen=start_with_token_file, DEVNULL=executor.subprocess.DEVNULL
    )
    program.flower_superexec()


def start_with_token_file(words: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
    """Start a command of Flower's with its ``--token`` in a file that has no name."""
    at = words.index("--token")
    with tempfile.TemporaryFile() as file:
        file.write(words[at + 1].encode())
        file.seek(0)
        words = [*words[:at], "--token-file", f"/dev/fd/{file.fileno()}", *words[at + 2 :]]
        return subprocess.Popen(words, pass_fds=[file.fileno()], **more)


def _require(module: Any, *names: str) -> None:
    if not all(callable(getattr(module, name, None)) for name in names):
        raise InvalidInput("this version of flwr is built otherwise; install flwr 1.41")


if __name__ == "__main__":
    {"superlink": superlink, "supernode": supernode, "superexec": superexec}[sys.argv.pop(1)]()
