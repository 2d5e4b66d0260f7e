"""The connection to Ray: started on this machine, attached to a cluster, or already there.

One connection serves all runs of this process: starting Ray takes seconds. What was started here is
shut down when the process ends; what the caller had started is left alone.
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
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pate.engines.on_ray.folder import locked, remove, sweep
from pate.engines.threads import usable_cores
from pate.errors import InvalidInput, PateError

CONNECT_SECONDS = 20.0
ANSWER_SECONDS = 2.0
LEAVE_SECONDS = 10.0
LONGEST_TEMPORARY = 40  # characters: Ray's sockets lie below it, and their names have a limit
MEMORY_FOLDER = Path("/dev/shm")
LEAST_STORE = 75 << 20  # bytes: Ray takes no less
TOLD_TO_END = 128 + signal.SIGTERM  # the status of a process that was
SMALL_BYTES = 4096  # arguments of so many must go from memory to memory

_MADE = "pate-ray-"  # how the name of a folder of ours begins
_NAME = rf"{_MADE}[a-z0-9_]{{8}}"  # and what it is, as tempfile makes them

_connected = 0  # the process that connected, if we did: what the caller had is left alone
_address: str | None = None  # where to
_folder: Path | None = None  # of the Ray we started; None if we attached to one
_lock = -1  # on it
_before: Any = None  # what the process did when it was told to end, if we changed that
_told_to_end = False


def import_ray() -> ModuleType:
    """Ray, or what to do to have it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as newer versions do
    try:
        import ray
    except ImportError:
        raise InvalidInput(
            "the engine 'ray' needs Ray, which is not installed: pip install 'pate[ray]'"
        ) from None
    return ray


def connect(address: str | None) -> ModuleType:
    """Ray, connected; where the caller has connected already, that is used.

    >>> connect("nowhere")
    Traceback (most recent call last):
    pate.errors.InvalidInput: 'nowhere' is not a cluster's address; write HOST:PORT, or auto
    """
    host = _checked(address)
    if address is None:
        _agree_on_a_word()
    ray = import_ray()
    if ray.is_initialized():
        there = (_address or "this machine") if _connected else _joined(ray)
        if address != _address if _connected else host and not _is_same(host, there):
            raise InvalidInput(
                f"this process works on the Ray at {there} already, and Ray knows one at a time; "
                f"use a process of its own for {address or 'this machine'}"
            )
        _check_that_keys_stay_in_memory(ray)
        return ray
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _quiet():
            if address is None:
                _start(ray)
            else:
                _attach(ray, address, host)
    finally:
        _end_in_order(handler)
    _check_that_keys_stay_in_memory(ray)
    return ray


def disconnect() -> None:
    """Shuts down what :func:`connect` started, or leaves what it attached to.

    Guarantees:
        The one folder that is removed is that which :func:`_temporary_folder` made, by the process
        that made it.
    """
    global _connected, _address, _folder, _lock
    if _connected != os.getpid():  # not connected by us, or by the parent of this fork
        return
    import ray

    with _quiet():
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        try:
            leaving.start()  # beside us: from a cluster that is gone it may not come back
            leaving.join(LEAVE_SECONDS)
        except RuntimeError:  # some Pythons start none when they end
            ray.shutdown()
    _hear(ray, True)
    _end_as_before()
    folder, _folder, _address, _connected = _folder, None, None, 0
    if folder is not None:
        remove(folder, _NAME)
        os.close(_lock)
        _lock = -1


def _joined(ray: ModuleType) -> str:
    """Where the cluster is that the caller has joined."""
    return str(ray.get_runtime_context().gcs_address)


def _is_same(host: tuple[str, int], there: str) -> bool:
    """Whether an address is that of a cluster; it may be called by another name of its machine."""
    name, _, port = there.rpartition(":")
    if int(port) != host[1]:
        return False
    asked, known = _addresses(host[0]), _addresses(name.strip("[]"))
    return bool(asked & known) or (_are_here(asked) and _are_here(known))


def _addresses(host: str) -> set[str]:
    with contextlib.suppress(OSError):
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    return set()


def _are_here(addresses: set[str]) -> bool:
    """Whether one of them is this machine's: at no other can one listen."""
    for address in addresses:
        with contextlib.suppress(OSError):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.socket(family, socket.SOCK_DGRAM) as trial:
                trial.bind((address, 0))
            return True
    return False


def answers(ray: Any) -> bool:
    """Whether the cluster is there, and this machine's part of it: without asking Ray.

    Ray itself would wait for a minute, and then end this process.
    """
    with contextlib.suppress(OSError, ValueError):
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
        node = getattr(ray._private.worker, "_global_node", None)
        if node is not None and hasattr(socket, "AF_UNIX"):
            with socket.socket(socket.AF_UNIX) as raylet:
                raylet.settimeout(ANSWER_SECONDS)
                raylet.connect(node.raylet_socket_name)
        return True
    return False


def is_local() -> bool:
    """Whether the Ray in use was started here, and has no more machines to hope for."""
    return _folder is not None


def _check_that_keys_stay_in_memory(ray: ModuleType) -> None:
    """Refuses a cluster that puts even small arguments where they may be written to a disk.

    The key of what travels is one: see :mod:`pate.engines.on_ray.sealing`.
    """
    try:
        told = ray._private.state.state.get_system_config()
    except Exception:
        raise PateError(
            "Ray does not say how its cluster is set up, so whether private data would stay in "
            "memory there is not known; use another version of Ray"
        ) from None
    for name in ("max_direct_call_object_size", "task_rpc_inlined_bytes_limit"):
        limit = told.get(name, os.environ.get(f"RAY_{name}", SMALL_BYTES))
        if not str(limit).isdecimal() or int(limit) < SMALL_BYTES:
            raise InvalidInput(
                f"the Ray cluster has {name} at {limit}, so that keys of private data may reach a "
                "disk; start it without that setting"
            )


def _checked(address: str | None) -> tuple[str, int] | None:
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


def _agree_on_a_word() -> None:
    """Makes up what this process and its workers know; it must be there when Ray is loaded.

    Without it Ray makes one up itself, and keeps it in the user's home.
    """
    if "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _start(ray: ModuleType) -> None:
    """A Ray of our own on this machine, for this process.

    Guarantees:
        It listens on this machine only, to whoever knows a word made for it. Objects stay in
        memory where there is enough that processes can share; what is sent is sealed anyhow.
    """
    global _folder, _lock
    folder, _lock = _temporary_folder()
    _folder = folder
    _note_connected(None)
    in_memory: dict[str, Any] = {}
    if MEMORY_FOLDER.is_dir():
        in_memory["object_spilling_directory"] = str(MEMORY_FOLDER)
    try:
        with _loopback():
            ray.init(
                address="local",
                num_cpus=usable_cores(),
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=_store_bytes(),
                _temp_dir=str(folder / "ray"),  # to which Ray lets everybody in
                _node_ip_address="127.0.0.1",
                _system_config={"automatic_object_spilling_enabled": False},
                **in_memory,
            )
    except Exception as error:
        disconnect()
        raise PateError(
            f"Ray cannot be started on this machine ({type(error).__name__}); "
            "use the engine 'processes', or look for what 'ray start --head' says"
        ) from None


def _attach(ray: ModuleType, address: str, host: tuple[str, int] | None) -> None:
    asked = address
    if address == "auto":
        address = _of_this_machine(ray)
        host = _checked(address)
    if host is not None:
        try:
            socket.create_connection(host, timeout=CONNECT_SECONDS).close()
        except OSError as error:
            why = error.strerror or f"no answer in {CONNECT_SECONDS:g} seconds"
            raise PateError(
                f"cannot reach the Ray cluster at {address}: {why}; check the address"
            ) from None
    _note_connected(asked)
    try:
        with _loopback() if host and _is_loopback(host[0]) else contextlib.nullcontext():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:
        disconnect()
        raise PateError(_why_not(address, error)) from None


def _note_connected(address: str | None) -> None:
    global _connected, _address
    _connected, _address = os.getpid(), address
    _hear(import_ray(), False)
    atexit.unregister(disconnect)
    atexit.register(disconnect)


def _of_this_machine(ray: ModuleType) -> str:
    """Where the cluster is that ``auto`` means: in RAY_ADDRESS, or that of this machine."""
    try:
        found = ray._private.services.get_ray_address_from_environment("auto", None)
    except ConnectionError:
        found = None
    if not found:
        raise PateError(
            "no Ray cluster runs on this machine; start one with 'ray start --head', or use 'ray'"
        )
    return str(found)


def _end_in_order(before: Any) -> None:
    """When told to end, the process does so as at its own end, with the status that is usual.

    Ray's own handler ends it with another. A handler of the caller's, which Ray has put aside, is
    put back.
    """
    global _before
    if threading.current_thread() is not threading.main_thread() or before is None:
        return
    _before = before if _connected else None
    ours = _connected and before == signal.SIG_DFL
    signal.signal(signal.SIGTERM, _end if ours else before)


def _end_as_before() -> None:
    global _before
    if _before is not None and threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGTERM) is _end:  # the caller may have changed it since
            signal.signal(signal.SIGTERM, _before)
        _before = None


def _end(*_: object) -> None:
    global _told_to_end
    _told_to_end = True
    sys.exit(TOLD_TO_END)


def was_told_to_end() -> bool:
    """Whether the process is on its way out because it was told so; Ray changes its status."""
    return _told_to_end


_print: Any = None  # Ray's own


def _hear(ray: ModuleType, again: bool) -> None:
    """Whether Ray prints what nodes say, between lines of ours; no option of its own does all."""
    global _print
    worker = ray._private.worker
    if not hasattr(worker, "print_to_stdstream"):
        return
    _print = _print or worker.print_to_stdstream
    worker.print_to_stdstream = _print if again else _print_nothing


def _print_nothing(*_: object, **__: object) -> None:
    """Says nothing."""


def _is_loopback(host: str) -> bool:
    """Whether a cluster there listens to this machine only; else Ray puts the other address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _why_not(address: str, error: Exception) -> str:
    said = str(error)
    if "ersion mismatch" in said:
        return (
            f"the Ray cluster at {address} has another version of Ray or Python than this "
            "machine; install the same on all"
        )
    if isinstance(error, ConnectionError) or "token" in said.lower():
        return (
            f"the Ray cluster at {address} does not let this process in; set RAY_AUTH_MODE=token "
            "and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to what it was started with, and check "
            "that this is the address of a Ray cluster"
        )
    return (
        f"cannot join the Ray cluster at {address} ({type(error).__name__}); this machine must be "
        f"part of it: 'ray start --address={address}'"
    )


def sweep_leftovers() -> None:
    """Removes the folders of Ray and of its tasks whose processes were killed, here."""
    sweep(_temporary(), _NAME)
    sweep()


def _temporary() -> Path:
    usual = Path(tempfile.gettempdir()).absolute()
    return usual if len(str(usual)) <= LONGEST_TEMPORARY else Path("/tmp")


def _temporary_folder() -> tuple[Path, int]:
    """A new folder, and what holds its lock; those of this user whose driver was killed go."""
    sweep(_temporary(), _NAME)
    return locked(lambda: Path(tempfile.mkdtemp(prefix=_MADE, dir=_temporary())), _NAME)


def _store_bytes() -> int:
    """A tenth of the memory that is free, within reason: shards and models pass through it.

    Where less can be shared between processes, as in many containers, Ray would put its store on a
    disk; so it gets what fits, if that is not less than it can do with.
    """
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not everywhere
        free = 4 << 30
    wanted = min(max(free // 10, 100 << 20), 4 << 30)
    with contextlib.suppress(OSError):
        about = os.statvfs(MEMORY_FOLDER)
        wanted = min(wanted, about.f_bavail * about.f_frsize * 8 // 10)
    return max(wanted, LEAST_STORE)


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Inside, Ray takes the loopback address for its own, as it does on a Mac."""
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    if before is None:  # a Ray that knows no such thing is guarded by its token alone
        yield
        return
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inside and after, Ray says nothing that is not an error; inside, nothing."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(max(before, logging.CRITICAL))
