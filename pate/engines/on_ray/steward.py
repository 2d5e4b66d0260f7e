"""What runs inside a Ray worker: brings a task's files, has it carried out, sends back its files.

The work itself is done by a process of ours below the Ray worker, as on the other engines: so what
a teacher prints reaches no log of Ray's, a crash is a report, and a timeout ends that process only.
It is kept for the next task.

Guarantees:
    * Files of a task are on this machine's disk in the task's own directory only, while it runs
      (:mod:`pate.engines.on_ray.folder`).
    * Nothing raised here carries a word of a record: what Ray logs is the type and line.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from pate import __version__
from pate.devices import Device
from pate.engines.files import CODE, MAKES, ROWS, Reference, path_of, with_files
from pate.engines.on_ray.folder import TaskFolderError, Warden, cannot_use, sweep, task_folder
from pate.engines.on_ray.parcels import Parcel, pack, unpack
from pate.engines.on_ray.sealing import seal, unseal
from pate.engines.task import Report
from pate.engines.worker import READY
from pate.engines.worker_pool import WorkerProcess
from pate.errors import PateError
from pate.untrusted import forbid_core_dumps, shown

SWEEP_SECONDS = 30.0  # how often a steward looks for what others left
START_SECONDS = 120.0  # for a worker to come up, on a busy machine
_NOTICE_SECONDS = 1.0


@final
@dataclass(frozen=True, slots=True)
class Shared:
    """Stands for a parcel that many tasks read: it comes as an argument of its own."""

    number: int
    key: bytes = field(repr=False)


@final
@dataclass(frozen=True, slots=True)
class Shipped:
    """Stands for modules in Ray's runtime environment: a folder there, or a file in it."""

    folder: str
    file: str | None


Cargo = tuple["Parcel | Shared | Shipped | None", ...]  # one for each reference, in their order


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One attempt at one task, as the driver sends it."""

    version: str
    order: bytes
    cargo: Cargo
    path: tuple[str, ...]  # where the driver looks for modules
    gpus: float
    timeout: float | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """What comes back: the report, and the files that were made."""

    report: bytes
    made: tuple[tuple[int, str, Parcel], ...] = ()  # number of the reference, name below it
    lost: bool = False  # the worker died: another may do better
    stop: bool = False  # no task's fault: nothing more can be done here


def run_errand(key: bytes, sealed: Any, *shared: Any) -> Any:
    """Carries out one attempt; always returns, unless this process is killed.

    Given are an :class:`Errand` and parcels, and returned is a :class:`Return`, all under seal.
    """
    try:
        errand: Errand = unseal(sealed, key)
        if errand.version != __version__:
            raise PateError(
                f"a node of the cluster has pate {__version__} and the driver has "
                f"{errand.version}; install the same version on all"
            )
        returned = _steward().run(errand, shared)
    except TaskFolderError as error:
        returned = Return(report=Report(error=shown(error)).encode(), lost=True, stop=True)
    except PateError as error:
        returned = Return(report=Report(error=shown(error)).encode(), stop=True)
    except Exception as error:
        words = f"PateError: a Ray worker could not prepare its task ({shown(error)})"
        returned = Return(report=Report(error=words).encode(), lost=True, stop=True)
    return seal(returned, key)


def sweep_node() -> int:
    """Removes what killed tasks left on this node; how many are still in use."""
    return sweep()


_only: _Steward | None = None


def _steward() -> _Steward:
    global _only
    if _only is None:
        _only = _Steward()
    return _only


class _Steward:
    """The one worker of this Ray worker, and what it was started with."""

    def __init__(self) -> None:
        forbid_core_dumps()  # the files of a task pass through here
        self._warden = Warden()
        self._worker: WorkerProcess | None = None
        self._settings: tuple[Any, ...] = ()
        self._swept = float("-inf")

    def run(self, errand: Errand, shared: tuple[Any, ...]) -> Return:
        if time.monotonic() - self._swept > SWEEP_SECONDS:
            sweep()
            self._swept = time.monotonic()
        with task_folder() as folder:
            self._warden.watch_folder(folder)
            try:
                return self._run_in(folder, errand, shared)
            finally:
                self._warden.watch_folder(None)

    def _run_in(self, folder: Path, errand: Errand, shared: tuple[Any, ...]) -> Return:
        bench = _Bench(folder=folder)
        order = json.loads(errand.order)
        try:
            order["payload"] = bench.lay_out(order["payload"], errand.cargo, shared)
        except OSError as error:
            raise cannot_use(error) from None
        report, lost = self._work(json.dumps(order).encode(), errand)
        made = bench.made()
        return Return(report=bench.as_the_driver_says(report), made=made, lost=lost)

    def _work(self, order: bytes, errand: Errand) -> tuple[bytes, bool]:
        """The report of the worker, or of its death, and whether it died."""
        worker = self._ready_worker(errand)
        start = time.monotonic()
        worker.send(order)
        while True:
            passed = time.monotonic() - start
            left = _NOTICE_SECONDS if errand.timeout is None else errand.timeout - passed
            if select.select([worker], [], [], max(0.0, min(left, _NOTICE_SECONDS)))[0]:
                line = worker.receive()
                if line is not None:
                    return line.rstrip(b"\n"), False
                return self._died(start)
            if errand.timeout is not None and left <= 0:
                self._dismiss()
                error = f"TimedOut: no result within {errand.timeout:g} seconds"
                return Report(error=error, seconds=time.monotonic() - start).encode(), False
            if worker.exited() and not select.select([worker], [], [], 0)[0]:
                return self._died(start)  # though what it started holds the line open

    def _died(self, start: float) -> tuple[bytes, bool]:
        error = f"WorkerDied: the worker process was ended {self._dismiss()}"
        return Report(error=error, seconds=time.monotonic() - start).encode(), True

    def _ready_worker(self, errand: Errand) -> WorkerProcess:
        """The worker that is there, or a new one if it was started for something else."""
        device = Device("cuda", 0) if errand.gpus and _has_gpu() else Device("cpu")
        sharers = max(1, int(1 / errand.gpus)) if 0 < errand.gpus < 1 else 1
        beyond = [entry for entry in errand.path if entry not in sys.path and Path(entry).exists()]
        sys.path += beyond  # after our own: what is installed here goes first
        settings = (device, sharers, os.environ.get("CUDA_VISIBLE_DEVICES"), tuple(sys.path))
        if self._worker is not None and (self._settings != settings or self._worker.exited()):
            self._dismiss()
        if self._worker is None:
            self._worker, self._settings = WorkerProcess(device, sharers=sharers), settings
            self._warden.watch_worker(self._worker._process.pid)
            ready = select.select([self._worker], [], [], START_SECONDS)[0]
            if not ready or self._worker.receive() != READY:
                how = self._dismiss()
                raise PateError(f"a worker process on a node ended {how} before it could start")
        return self._worker

    def _dismiss(self) -> str:
        """Ends the worker, and says how it ended."""
        assert self._worker is not None
        how = self._worker.terminate()
        self._worker = None
        self._warden.watch_worker(0)
        return how


def _has_gpu() -> bool:
    """Whether the GPU that Ray promises is there: clusters are told of GPUs they do not have."""
    drivers = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    return bool(os.environ.get("CUDA_VISIBLE_DEVICES")) and any(map(os.path.exists, drivers))


class _Bench:
    """A task's directory, and which file in it stands for which of the driver's."""

    def __init__(self, *, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, str] = {}  # here → as the driver says
        self._makes: dict[int, Reference] = {}

    def lay_out(self, payload: Any, cargo: Cargo, shared: tuple[Any, ...]) -> Any:
        """Unpacks the inputs; the payload as it must be for here."""
        numbered = iter(enumerate(cargo))

        def replace_one(reference: Reference) -> Reference:
            number, load = next(numbered)
            (self._folder / str(number)).mkdir(mode=0o700)
            original = path_of(reference)
            place = self._folder / str(number) / (original.name or "all")
            if isinstance(load, Shared):
                load = unseal(shared[load.number], load.key)
            if isinstance(load, Parcel):
                unpack(load, place)
            if isinstance(load, Shipped):
                place = _shipped(load)
            (kind,) = (kind for kind in (*_OTHERS, MAKES) if kind in reference)
            if kind == MAKES:
                if reference["names"]:
                    place.mkdir(mode=0o700)
                self._makes[number] = {**reference, MAKES: str(place)}
            self._names[str(place)] = str(original)
            here = {**reference, kind: str(place)}
            if kind == ROWS:
                here |= {"start": 0, "stop": reference["stop"] - reference["start"]}
            return here

        return with_files(payload, replace_one)

    def made(self) -> tuple[tuple[int, str, Parcel], ...]:
        """All that is whole, also of a task that failed."""
        found = [
            (number, name, pack(path_of(reference) / name))
            for number, reference in self._makes.items()
            for name in reference["names"] or [""]
        ]
        return tuple(each for each in found if each[2].kind != "missing")

    def as_the_driver_says(self, report: bytes) -> bytes:
        """The report with the driver's names of files: those here are gone when it is read."""
        for here, there in sorted(self._names.items(), key=lambda names: -len(names[0])):
            report = report.replace(_quoted(here), _quoted(there))
        return report


_OTHERS = ("$reads", ROWS, CODE)


def _quoted(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode()


def _shipped(load: Shipped) -> Path:
    for entry in sys.path:
        folder = Path(entry) / load.folder
        if folder.is_dir():
            return folder if load.file is None else folder / load.file
    raise PateError("the plug-ins did not arrive on a node of the cluster; run it again")
