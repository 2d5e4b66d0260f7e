"""Flower's SuperLink and SuperNode, restricted: ``python -m pate.federated.flower NAME OPTIONS``.

Guarantees:
    * **A party runs its own code.** Flower's SuperNode runs the app that the SuperLink sends, with
      all rights of its user. Here it takes :data:`APP` alone, a file of settings that names
      ``pate.federated.app`` as it is installed at the party, and installs nothing.
    * **Nobody else starts runs.** Flower's SuperLink answers parties and whoever controls it at one
      address, and does not ask the latter who they are: they could start code of their own there,
      or register a party's key. Here only the machine that it runs on reaches that part.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pate.errors import InvalidInput

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
    flower_superlink()


def supernode() -> None:
    """Run Flower's SuperNode; messages of another app than :data:`APP` are ignored."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    module: Any = start_client_internal
    _require(module, "get_fused_config_from_fab", "RunNotRunningException")
    settings_of = module.get_fused_config_from_fab

    def checked(archive: bytes, run: Any) -> Any:
        """Return the settings of an app, which is stored and run only after that."""
        if not is_own_app(archive):
            print("refused: the coordinator sends an app that is not pate's", flush=True)
            raise module.RunNotRunningException
        return settings_of(archive, run)

    module.get_fused_config_from_fab = checked
    flower_supernode()


def _require(module: Any, *names: str) -> None:
    if not all(callable(getattr(module, name, None)) for name in names):
        raise InvalidInput("this version of flwr is built otherwise; install flwr 1.41")


if __name__ == "__main__":
    {"superlink": superlink, "supernode": supernode}[sys.argv.pop(1)]()
