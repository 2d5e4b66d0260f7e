"""The Ray engine: tasks on a Ray started on this machine, or on a cluster, from one recipe.

The driver sends each task with the content of the files it reads, a bounded number at a time, and
writes what comes back, verified by digest. :mod:`pate.engines.ray_worker` is the part that runs on
a node, :mod:`pate.engines.ray_session` the connection.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, final

from pate import __version__
from pate._files import error_reason
from pate.engines.files import CODE, MAKES, ROWS, Reference, path_of, sweep, with_files
from pate.engines.ray_session import answers, connect, is_local, restore_exit_status
from pate.engines.ray_worker import (
    Input,
    RemoteResult,
    RemoteTask,
    Transfer,
    TransferError,
    pack,
    pack_modules,
    pack_rows,
    place_of,
    run_task,
    unpack,
)
from pate.engines.task import Outcome, Pending, Report, RetryPolicy, Task, TaskQueue, outcomes
from pate.errors import InvalidInput, PateError

_MIN_IN_FLIGHT, _MAX_IN_FLIGHT = 4, 256  # tasks
_MEMORY_SHARE = 0.3  # of the cluster's object stores, for files in transit
_SHARED_BYTES = 1 << 20  # files at least this large are put into Ray's object store once
_SHARED_FILES = 4  # how many of them are kept for the next task
_POLL_SECONDS = 2.0
_GONE_SECONDS = 15.0  # without an answer; Ray itself ends the process after 60
_GRACE_SECONDS = 120.0  # for a growing cluster to offer what a task needs
_CANCEL_SECONDS = 5.0  # for cancelled tasks to end, and again for their folders to be removed


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RayEngine:
    """Run tasks on Ray, on this machine or on a cluster.

    A task whose worker or node is lost is submitted again by this engine: Ray itself retries
    nothing, since it would not count workers that it ended for lack of memory.

    Guarantees:
        * On a node, copies of files are in the task's own folder only, which is removed.
        * Closing the iterator cancels all tasks and removes their folders.
        * The output of tasks is discarded: it may be private.
        * Nothing is encrypted: the machines of a cluster and their disks are trusted with the
          shards they work on, and Ray may spill what does not fit into memory to a disk.
    """

    address: str | None = None  # HOST:PORT, "auto", or None to start a Ray on this machine

    name: ClassVar[str] = "ray"

    @property
    def slots(self) -> int:
        """The number of tasks of one core that the cluster can run at once."""
        return _Cluster(connect(self.address)).slots(1.0, 0.0)

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of this machine, for work such as training the student."""
        import torch

        return ("cuda:0",) if torch.cuda.is_available() else ("cpu",)

    def run(
        self,
        tasks: Iterable[Task],
        *,
        retries: int = 0,
        rescues: int = 0,
        timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Yield outcomes in the order they finish; see :class:`pate.engines.task.Engine`."""
        policy = RetryPolicy(retries=retries, rescues=rescues, timeout=timeout)
        return self._outcomes(tasks, policy)

    def _outcomes(self, tasks: Iterable[Task], policy: RetryPolicy) -> Iterator[Outcome]:
        queue = TaskQueue(tasks)
        if not len(queue):
            return
        flight = _InFlight(_Cluster(connect(self.address)), policy)
        try:
            yield from outcomes(queue, flight, policy)
        except _ClusterGone:
            raise
        except BaseException as error:
            flight.cancel()
            restore_exit_status(error)
            raise


class _ClusterGone(PateError):
    """The cluster does not answer any more."""


class _Cluster:
    """The resources of the cluster, read again every few seconds, since clusters change."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self._nodes: list[dict[str, float]] = []
        self._read = float("-inf")
        self._answered = time.monotonic()

    def nodes(self) -> list[dict[str, float]]:
        """Return the total resources of every node that is alive."""
        if time.monotonic() - self._read > _POLL_SECONDS:
            if self.answers():
                self._nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            self._read = time.monotonic()
        return self._nodes

    def answers(self) -> bool:
        """Return whether the cluster answers; stop the run if it has not for a while."""
        if answers(self.ray):
            self._answered = time.monotonic()
            return True
        if time.monotonic() - self._answered > _GONE_SECONDS:
            raise _ClusterGone(
                "the Ray cluster does not answer any more; finished work is kept: run again when "
                "it is back, or on another engine"
            )
        return False

    def slots(self, cpus: float, gpus: float) -> int:
        """Return how many tasks of this kind can run at once, up to the limit of submission."""
        shares = [(name, share) for name, share in (("CPU", cpus), ("GPU", gpus)) if share > 0]
        places = [
            int(
                min((node.get(name, 0.0) / share for name, share in shares), default=_MAX_IN_FLIGHT)
            )
            for node in self.nodes()
        ]
        return min(_MAX_IN_FLIGHT, sum(places))

    def shares(self, task: Task) -> tuple[float, float]:
        """Return the cpus and gpus that a task takes: of a Ray of our own, at most all there are.

        So a recipe that was written for a cluster runs here too, one task after another.
        """
        if not is_local():
            return task.cpus, task.gpus
        return min(task.cpus, self.largest("CPU")), min(task.gpus, self.largest("GPU"))

    def largest(self, resource: str) -> float:
        """Return the most that one node has."""
        return max((node.get(resource, 0.0) for node in self.nodes()), default=0.0)

    def memory(self) -> float:
        """Return the bytes of all object stores."""
        return sum(node.get("object_store_memory", 0.0) for node in self.nodes())


class _InFlight:
    """The submitted tasks of one run: few enough that the driver's memory stays flat."""

    def __init__(self, cluster: _Cluster, policy: RetryPolicy) -> None:
        self._cluster, self._ray, self._policy = cluster, cluster.ray, policy
        self._path = tuple(entry for entry in sys.path if isinstance(entry, str) and entry)
        self._submitted: dict[Any, tuple[Pending, int]] = {}  # and bytes that travel for it alone
        self._remote = self._ray.remote(run_task)
        ray = self._ray
        self._share = functools.lru_cache(_SHARED_FILES)(lambda path, *_: ray.put(pack(path)))
        self._stuck_since: float | None = None

    @property
    def busy(self) -> int:
        """The number of submitted tasks."""
        return len(self._submitted)

    def assign(self, queue: TaskQueue) -> None:
        """Submit tasks until enough are in flight."""
        while len(queue) and self._has_room():
            self._submit(queue.take())

    def _has_room(self) -> bool:
        if not self._submitted:
            return True
        pending, _ = next(iter(self._submitted.values()))
        slots = self._cluster.slots(*self._cluster.shares(pending.task))
        limit = min(_MAX_IN_FLIGHT, max(_MIN_IN_FLIGHT, 2 * slots))
        travelling = sum(size for _, size in self._submitted.values())
        return len(self._submitted) < limit and travelling < _MEMORY_SHARE * self._cluster.memory()

    def _submit(self, pending: Pending) -> None:
        cpus, gpus = self._cluster.shares(pending.task)
        pending.attempts += 1
        inputs, shared = self._inputs(pending.task)
        task = RemoteTask(
            version=__version__,
            task=pending.task,
            inputs=inputs,
            path=self._path,
            gpus=gpus,
            timeout=self._policy.timeout,
        )
        remote = self._remote.options(
            name="pate",  # nothing of the task: names are in Ray's logs
            num_cpus=cpus,
            num_gpus=gpus,
            max_retries=0,
        )
        size = sum(content.size for content in inputs if isinstance(content, Transfer))
        self._submitted[remote.remote(task, *shared)] = pending, size

    def _inputs(self, task: Task) -> tuple[tuple[Input, ...], list[Any]]:
        """Read what a task reads, as it is now; large files are put into Ray's store once a run.

        Folders travel with their task, however large: few tasks read the same ones.
        """
        inputs: list[Input] = []
        shared: list[Any] = []
        for reference in _references(task):
            path = path_of(reference)
            if MAKES in reference:
                inputs.append(None)
            elif CODE in reference:
                inputs.append(pack_modules(path))
            elif ROWS in reference:
                inputs.append(pack_rows(path, reference["start"], reference["stop"]))
            elif not path.is_file() or path.stat().st_size < _SHARED_BYTES:
                inputs.append(pack(path))
            else:
                inputs.append(len(shared))
                about = path.stat()
                shared.append(self._share(path, about.st_ino, about.st_size, about.st_mtime_ns))
        return tuple(inputs), shared

    def collect(self) -> list[tuple[Pending, Report]]:
        """Wait a while for a task to end; its files are in their places then."""
        ready, _ = self._ray.wait(list(self._submitted), num_returns=1, timeout=_POLL_SECONDS)
        if not ready:
            self._check_stuck()
            return []
        self._stuck_since = None
        pending, _ = self._submitted.pop(ready[0])
        return [(pending, self._report(ready[0], pending))]

    def _report(self, reference: Any, pending: Pending) -> Report:
        errors = self._ray.exceptions
        try:
            returned: RemoteResult = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise PateError(_broken_node(error)) from None
        except errors.RayError as error:
            while not self._cluster.answers():  # then all are lost, and no task is to blame
                time.sleep(_POLL_SECONDS / 4)
            # The task runs in a process below the Ray worker, so it cannot have ended the latter.
            full = isinstance(error, errors.OutOfMemoryError)
            why = "was ended because its node ran out of memory" if full else "or its node was lost"
            return Report(error=f"NodeLost: the Ray worker {why}", lost=True)
        try:
            _write_files(pending.task, returned)
        except TransferError as error:
            raise PateError(f"task {pending.task.key!r} stopped: {error}; run it again") from None
        report = Report.decode(returned.report)
        if returned.stop and not (report.lost and pending.rescued < self._policy.rescues):
            _, _, sentence = str(report.error).partition(": ")
            raise PateError(f"task {pending.task.key!r} stopped: {sentence}")
        return report

    def _check_stuck(self) -> None:
        """Stop the run if no node can take any task, after some time for the cluster to grow.

        The message does not name the task: their order follows from the sizes of private shards.
        """
        cluster, now = self._cluster, time.monotonic()
        tasks = [pending.task for pending, _ in self._submitted.values()]
        if any(cluster.slots(*cluster.shares(task)) for task in tasks):
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > _GRACE_SECONDS:
            raise InvalidInput(
                f"a task asks for {tasks[0].cpus:g} cpus and {tasks[0].gpus:g} gpus at once, and "
                f"no node of the Ray cluster has them: the largest have {cluster.largest('CPU'):g} "
                f"cpus and {cluster.largest('GPU'):g} gpus; lower cpus or gpus in [teachers]"
            )

    def cancel(self) -> None:
        """End all submitted tasks, and remove their folders on every node that is alive."""
        if not self._ray.is_initialized() or not answers(self._ray):
            return
        references = list(self._submitted)
        self._submitted.clear()
        with contextlib.suppress(Exception):
            for reference in references:
                self._ray.cancel(reference, force=True)
            if references:
                self._ray.wait(references, num_returns=len(references), timeout=_CANCEL_SECONDS)
            self._sweep_nodes()

    def _sweep_nodes(self) -> None:
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        remote = self._ray.remote(sweep)
        deadline = time.monotonic() + _CANCEL_SECONDS
        while time.monotonic() < deadline:
            strategies = [
                affinity(node["NodeID"], soft=False) for node in self._ray.nodes() if node["Alive"]
            ]
            sweeps = [
                remote.options(name="pate", num_cpus=0, scheduling_strategy=strategy).remote()
                for strategy in strategies
            ]
            if not any(self._ray.get(sweeps, timeout=max(0.1, deadline - time.monotonic()))):
                return
            time.sleep(0.1)


def _references(task: Task) -> list[Reference]:
    """Return the references of a task, in the order in which both sides count them."""
    found: list[Reference] = []

    def note(reference: Reference) -> Reference:
        found.append(reference)
        return reference

    with_files(task.payload, note)
    return found


def _write_files(task: Task, returned: RemoteResult) -> None:
    references = _references(task)
    for number, name, content in returned.made:
        place = place_of(references[number], name)
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            unpack(content, place)
        except OSError as error:
            raise PateError(
                f"cannot write to {path_of(references[number])}: {error_reason(error)}; "
                "what was there before is unchanged"
            ) from None


def _broken_node(error: Exception) -> str:
    """Return why a node cannot run our code; the text of such errors is not shown."""
    if "No module named 'pate" in str(error):
        return "pate is not installed on a node of the Ray cluster; install the same version on all"
    cause = type(getattr(error, "cause", None) or error).__name__
    return f"a node of the Ray cluster cannot run pate ({cause}); install the same version on all"
