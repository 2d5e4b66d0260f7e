"""Flower's processes: the SuperNode of a party, and the SuperLink and the run of a coordinator."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pate.errors import InvalidInput
from pate.federated.coordinator import FAILURE, RESULT
from pate.federated.flower import APP, SETTINGS
from pate.recipes.read import to_toml

_LED = (b"pate.federated.flower\0superlink", b"flower-superexec", b"flwr-serverapp")
_STARTING = 60.0  # seconds until a SuperLink must answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """The TLS files of a SuperLink."""

    authority: Path
    certificate: Path
    key: Path


def program(name: str) -> str:
    """Return the path of one of Flower's programs, beside this Python."""
    try:
        version("flwr")
    except PackageNotFoundError:
        raise InvalidInput(
            "a federation needs Flower; install it with pip install 'pate-privacy[federated]'"
        ) from None
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InvalidInput(f"{name} is not beside {sys.executable}; install flwr there again")
    return found


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: their own home, and nobody else is called."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.environ | {
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FORWARDED_ALLOW_IPS": "127.0.0.1",  # whose word on where a request comes from is taken
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


def party_environment(recipe: Path, folder: Path, *, engine: str = "serial") -> dict[str, str]:
    """Return the environment of a party's processes, with the settings that its ClientApp reads."""
    settings = {
        "recipe": str(recipe.absolute()),
        "folder": str(folder.absolute()),
        "engine": engine,
    }
    return environment(folder / "flower") | {SETTINGS: json.dumps(settings)}


def _restricted(name: str) -> list[str]:
    """Return a command of :mod:`pate.federated.flower`; the folder it is in holds no modules."""
    program(f"flower-{name}")
    return [sys.executable, "-P", "-m", "pate.federated.flower", name]


def supernode_command(
    *, superlink: str, authority: Path | None, key: Path | None = None, port: int = 9094
) -> list[str]:
    """Return the command of a party's SuperNode; without ``authority`` nothing is encrypted."""
    words = [*_restricted("supernode"), "--superlink", superlink]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    words += ["--insecure"] if authority is None else ["--root-certificates", str(authority)]
    words += [] if key is None else ["--auth-supernode-private-key", str(key)]
    return words


def run_federation(
    recipe: Path,
    folder: Path,
    *,
    host: str,
    port: int,
    certificates: Certificates | None,
    party_keys: Path | None = None,
    wait: float,
    timeout: float,
) -> dict[str, Any]:
    """Start a SuperLink, run the federation to its end, and return its results.

    With ``party_keys``, a folder of public keys (``*.pub``), nobody else is admitted.
    """
    keys = [] if party_keys is None else sorted(party_keys.glob("*.pub"))
    if party_keys is not None and not keys:
        raise InvalidInput(f"there is no public key (*.pub) in {party_keys}")
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "flower"
    for leftover in (folder / FAILURE, folder / RESULT):
        leftover.unlink(missing_ok=True)
    with _superlink(home, host, port, certificates, authenticate=bool(keys)):
        app = home / "app"
        app.mkdir(exist_ok=True)
        (app / "pyproject.toml").write_text(APP)
        connection: dict[str, Any] = {"address": f"{host}:{port}"}
        if certificates is None:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str(certificates.authority.absolute())
        _write_connection(home, connection)
        for key in keys:
            _register(home, key)
        settings = {
            "recipe": str(recipe.absolute()),
            "folder": str(folder.absolute()),
            "wait": wait,
            "timeout": timeout,
        }
        chosen = " ".join(f"{key}={to_toml(value)}" for key, value in settings.items())
        command = [program("flwr"), "run", str(app), "here", "--stream", "--run-config", chosen]
        with (home / "run.log").open("a") as log:
            subprocess.run(
                command, env=environment(home), stdout=log, stderr=subprocess.STDOUT, check=False
            )
        return _results(folder, home, until=time.monotonic() + 10)


def _results(folder: Path, home: Path, *, until: float) -> dict[str, Any]:
    while True:
        with suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((folder / RESULT).read_bytes())
            return found
        with suppress(FileNotFoundError):
            raise InvalidInput(json.loads((folder / FAILURE).read_bytes())["error"])
        if time.monotonic() > until:
            raise InvalidInput(f"the federation did not finish; Flower's logs are in {home}")
        time.sleep(0.2)


def _register(home: Path, key: Path) -> None:
    """Admit the SuperNode of a public key; one that was admitted before stays so."""
    command = [program("flwr"), "supernode", "register", str(key), "here"]
    done = subprocess.run(
        command, env=environment(home), capture_output=True, text=True, check=False
    )
    with (home / "run.log").open("a") as log:
        log.write(done.stdout + done.stderr)
    if done.returncode and "already" not in (done.stdout + done.stderr).lower():
        raise InvalidInput(f"Flower does not take the public key {key}; see {home / 'run.log'}")


def _write_connection(home: Path, connection: Mapping[str, Any]) -> None:
    lines = [f"{key} = {to_toml(value)}" for key, value in connection.items()]
    text = "\n".join(['[superlink]\ndefault = "here"\n\n[superlink.here]', *lines, ""])
    (home / "config.toml").write_text(text)


@contextmanager
def _superlink(
    home: Path, host: str, port: int, certificates: Certificates | None, *, authenticate: bool
) -> Iterator[None]:
    words = [*_restricted("superlink"), "--host", host, "--port", str(port)]
    words += ["--database", str(home / "state.db")]
    if certificates is None:
        words += ["--insecure"]
    else:
        words += ["--ssl-ca-certfile", str(certificates.authority)]
        words += ["--ssl-certfile", str(certificates.certificate)]
        words += ["--ssl-keyfile", str(certificates.key)]
    words += ["--enable-supernode-auth"] if authenticate else []
    variables, note = environment(home), home / "superlink.pid"
    _stop_leftover(note)
    if _answers(host, port):
        raise InvalidInput(f"another program answers at {host}:{port}; choose another --address")
    with (home / "superlink.log").open("a") as log:
        process = subprocess.Popen(
            words, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    note.write_text(str(process.pid))
    try:
        until = time.monotonic() + _STARTING
        while not _answers(host, port):
            if process.poll() is not None or time.monotonic() > until:
                raise InvalidInput(
                    f"Flower's SuperLink did not start at {host}:{port}; its log is "
                    f"{home / 'superlink.log'}"
                )
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
        _stop_group(process.pid)
        process.wait()
        note.unlink(missing_ok=True)


def _stop_leftover(note: Path) -> None:
    """Stop the SuperLink of a coordinator that was killed in this folder, and all it started.

    The SuperLink leads a group of processes; what it started may be left without it.
    """
    with suppress(ValueError, OSError):
        number = int(note.read_text())
        if any(any(each in words for each in _LED) for words in _commands_of(number)):
            _stop_group(number)
            time.sleep(1)


def _commands_of(group: int) -> Iterator[bytes]:
    """Yield the commands of a group of processes; none where there is no ``/proc``."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(process.name)) == group:
                yield (process / "cmdline").read_bytes()


def _stop_group(number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
