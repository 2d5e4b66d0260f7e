"""The connection to Ray: one started on this machine for this process, or a cluster's.

One connection serves all runs of this process: starting Ray takes seconds. A Ray that was started
here is shut down when the process ends; a connection that the caller made is left alone.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn

from pate._files import draft_folder, error_reason
from pate.engines.files import (
    FOLDER_VARIABLE,
    SESSION_PREFIX,
    TASK_PREFIX,
    session_home,
    sweep_leftovers,
    task_home,
)
from pate.engines.worker import usable_cores
from pate.errors import InvalidInput, PateError

_CONNECT_SECONDS, _ANSWER_SECONDS, _SHUTDOWN_SECONDS = 20.0, 2.0, 10.0
_MIN_STORE, _MAX_STORE = 75 << 20, 4 << 30  # bytes; Ray takes no less
_TERMINATED = 128 + signal.SIGTERM  # the exit status of a process that SIGTERM ended


@dataclass(slots=True)
class _Session:
    """The connection that this process made, and the folders of a Ray that it started."""

    address: str | None  # None: started here
    pid: int = field(default_factory=os.getpid)
    folders: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    terminated: bool = False  # whether SIGTERM has come


_session: _Session | None = None


def is_local() -> bool:
    """Return whether the Ray in use was started here."""
    return _session is not None and _session.address is None


def restore_exit_status(error: BaseException) -> None:
    """Raise the exit of a SIGTERM again, whose status Ray has changed."""
    if isinstance(error, SystemExit) and _session is not None and _session.terminated:
        raise SystemExit(_TERMINATED) from None


def connect(address: str | None) -> ModuleType:
    """Return Ray, connected; a connection that the caller made to the same cluster is used.

    >>> connect("nowhere")
    Traceback (most recent call last):
    pate.errors.InvalidInput: 'nowhere' is not a cluster's address; write HOST:PORT, or auto
    """
    host = _parse_address(address)
    if address is None:
        set_token()
    ray = _import_ray()
    if ray.is_initialized():
        _check_same_cluster(ray, address, host)
        return ray
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _quiet():
            if address is None:
                _start(ray)
            else:
                _attach(ray, address, host)
    finally:
        # Ray has replaced the handler with one that exits with another status.
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, _terminate if handler == signal.SIG_DFL else handler)
    return ray


def disconnect() -> None:
    """Shut down the Ray that :func:`connect` started, or leave the cluster that it joined."""
    global _session
    session = _session
    if session is None or session.pid != os.getpid():  # of the caller, or of a forked parent
        return
    import ray

    with _quiet():
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        try:
            leaving.start()  # in a thread: with a cluster that is gone it may never return
            leaving.join(_SHUTDOWN_SECONDS)
        except RuntimeError:  # some Pythons start no threads at exit
            ray.shutdown()
    session.folders.close()
    _session = None


def set_token() -> None:
    """Make a secret that this process and its nodes share; it must be set when Ray is imported.

    Without it Ray makes one itself, and keeps it in the user's home.
    """
    if "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _import_ray() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as newer versions do
    try:
        import ray
    except ImportError:
        raise InvalidInput(
            "the engine 'ray' needs Ray, which is not installed: pip install 'pate-privacy[ray]'"
        ) from None
    return ray


def _parse_address(address: str | None) -> tuple[str, int] | None:
    if address is None or address == "auto":
        return None
    if address.startswith("ray://"):
        raise InvalidInput(
            f"{address!r} is an address for Ray's client; run pate on a machine of the cluster "
            "('ray start --address=HOST:PORT' makes it one) and write 'ray:HOST:PORT'"
        )
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) < 65536):
        raise InvalidInput(f"{address!r} is not a cluster's address; write HOST:PORT, or auto")
    return host.strip("[]"), int(port)


def _check_same_cluster(ray: ModuleType, address: str | None, host: tuple[str, int] | None) -> None:
    """Reject another cluster than the one in use: private data goes where it was meant to go."""
    if _session is not None:
        same, there = address == _session.address, _session.address or "this machine"
    else:
        there = str(ray.get_runtime_context().gcs_address)
        same = host is None or bool(_endpoints(host) & _endpoints(_parse_address(there)))
    if not same:
        raise InvalidInput(
            f"this process is connected to the Ray cluster at {there} already, and Ray allows one "
            f"connection; use a separate process for {address or 'this machine'}, or that cluster"
        )


def _endpoints(host: tuple[str, int] | None) -> set[tuple[str, int]]:
    """Return the addresses behind a name, with the port."""
    with contextlib.suppress(OSError):
        if host is not None:
            return {(str(found[4][0]), host[1]) for found in socket.getaddrinfo(host[0], None)}
    return set()


def _start(ray: ModuleType) -> None:
    """Start a Ray of our own on this machine, for this process.

    Guarantees:
        It listens on this machine only, to processes that have its token. Objects that do not fit
        into memory are spilled to a folder below ``PATE_TASK_FOLDER`` (by default the temporary
        folder), which its owner alone can read and which is removed.
    """
    sweep_leftovers()
    folders = _open_session(ray, None).folders
    try:
        folder = folders.enter_context(draft_folder(session_home(), prefix=SESSION_PREFIX))
        spilling = folders.enter_context(draft_folder(task_home(), prefix=TASK_PREFIX))
    except OSError as error:
        disconnect()
        raise PateError(
            f"Ray's folders cannot be made: {error_reason(error)}; set {FOLDER_VARIABLE} or TMPDIR "
            "to a folder that can be written"
        ) from None
    try:
        with _loopback():
            ray.init(
                address="local",
                num_cpus=usable_cores(),
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=_store_bytes(),
                object_spilling_directory=str(spilling),
                _temp_dir=str(folder / "ray"),  # Ray opens this one to all users
                _node_ip_address="127.0.0.1",
            )
    except Exception as error:
        disconnect()
        raise PateError(
            f"Ray cannot be started on this machine ({type(error).__name__}); "
            "use the engine 'processes', or see what 'ray start --head' prints"
        ) from None


def _attach(ray: ModuleType, address: str, host: tuple[str, int] | None) -> None:
    asked = address
    if address == "auto" and os.environ.get("RAY_ADDRESS"):
        address = os.environ["RAY_ADDRESS"]
        host = _parse_address(address)
    if host is not None:
        try:
            socket.create_connection(host, timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            why = error.strerror or f"no answer in {_CONNECT_SECONDS:g} seconds"
            raise PateError(
                f"cannot reach the Ray cluster at {address}: {why}; check the address"
            ) from None
    _open_session(ray, asked)
    here = host is not None and (host[0] in ("localhost", "::1") or host[0].startswith("127."))
    try:
        with _loopback() if here else contextlib.nullcontext():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:
        disconnect()
        raise PateError(_refusal(address, error)) from None


def _refusal(address: str, error: Exception) -> str:
    text = str(error)
    if "ersion mismatch" in text:
        return (
            f"the Ray cluster at {address} has another version of Ray or Python than this "
            "machine; install the same on all"
        )
    if address == "auto" and isinstance(error, ConnectionError) and "token" not in text.lower():
        return (
            "no Ray cluster runs on this machine; start one with 'ray start --head', or use 'ray'"
        )
    if isinstance(error, ConnectionError) or "token" in text.lower():
        return (
            f"the Ray cluster at {address} does not let this process in; set RAY_AUTH_MODE=token "
            "and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to what it was started with, and check "
            "that this is the address of a Ray cluster"
        )
    return (
        f"cannot join the Ray cluster at {address} ({type(error).__name__}); this machine must be "
        f"part of it: 'ray start --address={address}'"
    )


def _open_session(ray: Any, address: str | None) -> _Session:
    global _session
    _session = _Session(address)
    # Ray prints messages of its nodes between our lines, and no option turns all of them off.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    atexit.unregister(disconnect)
    atexit.register(disconnect)
    return _session


def answers(ray: Any) -> bool:
    """Return whether the cluster accepts connections; Ray itself would wait, then exit."""
    with contextlib.suppress(OSError, ValueError):
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
        return True
    return False


def _terminate(*_: object) -> NoReturn:
    """Exit in order on SIGTERM, with the usual status."""
    if _session is not None:
        _session.terminated = True
    sys.exit(_TERMINATED)


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Make Ray use the loopback address, as it does on a Mac; it has no option for that."""
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _store_bytes() -> int:
    """Return a size for Ray's object store that fits into shared memory, if Ray accepts so little.

    Where processes can share less, as in many containers, Ray would put its store on a disk.
    """
    size = _MAX_STORE
    with contextlib.suppress(OSError):
        about = os.statvfs("/dev/shm")
        size = min(size, about.f_bavail * about.f_frsize * 8 // 10)
    return max(size, _MIN_STORE)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Ray's logger inside the block; afterwards it logs critical errors only."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(max(before, logging.CRITICAL))
