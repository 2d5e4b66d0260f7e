"""The engine on Ray: a laptop or a cluster, with the same recipe."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from pate import __version__
from pate.engines.files import MAKES, path_of
from pate.engines.on_ray.freight import Freight, Load
from pate.engines.on_ray.parcels import ParcelError, below, unpack
from pate.engines.on_ray.sealing import new_key, seal, unseal
from pate.engines.on_ray.session import TOLD_TO_END, answers, connect, is_local, was_told_to_end
from pate.engines.task import Outcome, Pending, Report, RetryPolicy, Task, TaskQueue
from pate.errors import InvalidInput, PateError

FEWEST, MOST = 4, 256  # tasks in flight
LOOK_SECONDS = 2.0  # how often to look at what the cluster has
GONE_SECONDS = 15.0  # without an answer; Ray itself ends the process after 60
GRACE_SECONDS = 120.0  # for a cluster that grows to get what a task needs
END_SECONDS = 5.0  # for cancelled tasks to end, and again for what they left to be removed
SHARE_OF_MEMORY = 0.3  # of the cluster's object store, for files on their way


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RayEngine:
    """Runs tasks on Ray, here or on the cluster at ``address`` (``"auto"``: the one on this host).

    Files of a task travel with it through Ray's memory, and what it makes comes back checked.
    A task whose worker or node is lost is given to another, up to ``rescues`` times; Ray itself
    repeats nothing, since it would count no worker that it ended for want of memory.

    Guarantees:
        * On a node, files are in the task's own directory only, which is removed.
        * Closing the iterator cancels what is in flight and removes what it left.
        * What travels is under seal: so no disk that Ray's store lies on, or spills to, has
          anything to tell.
        * Workers show nothing: what a task prints may be private.
    """

    address: str | None = None

    name: ClassVar[str] = "ray"

    @property
    def slots(self) -> int:
        """How many tasks of one core the cluster can run at once."""
        return _Cluster(connect(self.address)).slots(cpus=1.0, gpus=0.0)

    @property
    def devices(self) -> tuple[str, ...]:
        """Where work on this machine runs, such as training the student."""
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
        """Outcomes in the order they finish; see :class:`pate.engines.task.Engine`."""
        patience = RetryPolicy(retries=retries, rescues=rescues, timeout=timeout)
        return self._outcomes(tasks, patience)

    def _outcomes(self, tasks: Iterable[Task], patience: RetryPolicy) -> Iterator[Outcome]:
        queue = TaskQueue(tasks)
        if not len(queue):
            return
        flight = _Flight(_Cluster(connect(self.address)), patience)
        try:
            finished: list[Outcome] = []
            while len(queue) or flight.busy:
                flight.depart(queue)
                yield from finished
                finished = []
                for pending, report in flight.arrive():
                    if patience.tries_again(pending, report):
                        queue.put_back(pending)
                    else:
                        finished.append(pending.outcome(report))
            yield from finished
        except ClusterGone:
            raise
        except BaseException as error:
            flight.cancel()
            if isinstance(error, SystemExit) and was_told_to_end():
                raise SystemExit(TOLD_TO_END) from None
            raise
        finally:
            flight.close()


class ClusterGone(PateError):
    """There is nobody to work with any more."""


class _Cluster:
    """What there is to work with; asked again every now and then, since clusters change."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self._nodes: list[dict[str, float]] = []
        self._looked = float("-inf")
        self._answered = time.monotonic()

    def nodes(self) -> list[dict[str, float]]:
        """What each node that is alive has in all."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            if self.is_there():
                self._nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            self._looked = time.monotonic()
        return self._nodes

    def is_there(self) -> bool:
        """Whether the cluster answers; stops the run if it has not for a while."""
        if answers(self.ray):
            self._answered = time.monotonic()
            return True
        if time.monotonic() - self._answered > GONE_SECONDS:
            raise ClusterGone(
                "the Ray cluster, or this machine's part of it, does not answer any more; what is "
                "finished is kept: run again when it is back, or on another engine"
            )
        return False

    def slots(self, *, cpus: float, gpus: float) -> int:
        """How many tasks of this kind can run at once, up to :data:`MOST`."""
        return min(MOST, sum(_places(node, cpus=cpus, gpus=gpus) for node in self.nodes()))

    def shares(self, task: Task) -> dict[str, float]:
        """The cpus and gpus that a task takes: on this machine, at most all there are.

        So a recipe that was written for a cluster runs here too, one task after another.
        """
        if not is_local():
            return {"cpus": task.cpus, "gpus": task.gpus}
        (node,) = self.nodes() or [{}]
        return {
            "cpus": min(task.cpus, node.get("CPU", 0.0)),
            "gpus": min(task.gpus, node.get("GPU", 0.0)),
        }

    def memory(self) -> float:
        """The bytes of all object stores."""
        return sum(node.get("object_store_memory", 0.0) for node in self.nodes())

    def refusal(self, task: Task) -> str:
        """Why no node will ever take a task.

        Which one is not said: the order of tasks follows from the sizes of private shards.
        """
        most = max(node.get("CPU", 0.0) for node in self.nodes() or [{}])
        gpus = max(node.get("GPU", 0.0) for node in self.nodes() or [{}])
        return (
            f"a task asks for {task.cpus:g} cpus and {task.gpus:g} gpus at once, and no node of "
            f"the Ray cluster has them: the largest have {most:g} cpus and {gpus:g} gpus; lower "
            "cpus or gpus in [teachers]"
        )


def _places(node: dict[str, float], *, cpus: float, gpus: float) -> int:
    shares = [(node.get(name, 0.0), share) for name, share in (("CPU", cpus), ("GPU", gpus))]
    return int(min((has / share for has, share in shares if share > 0), default=MOST))


@dataclass(frozen=True, slots=True)
class _Sent:
    pending: Pending
    load: Load
    key: bytes = field(repr=False)


class _Flight:
    """The tasks of one run that are with Ray."""

    def __init__(self, cluster: _Cluster, patience: RetryPolicy) -> None:
        from pate.engines.on_ray import steward

        self._cluster, self._ray, self._patience = cluster, cluster.ray, patience
        self._steward = steward
        self._remote = self._ray.remote(steward.run_errand)
        self._freight = Freight(self._ray)
        self._sent: dict[Any, _Sent] = {}
        self._bytes = 0
        self._stuck_since: float | None = None

    @property
    def busy(self) -> int:
        """How many tasks are with Ray."""
        return len(self._sent)

    def depart(self, queue: TaskQueue) -> None:
        """Sends tasks until enough are on their way."""
        while len(queue) and self._has_room():
            pending = queue.take()
            self._send(pending)

    def _has_room(self) -> bool:
        if not self._sent:
            return True
        task = next(iter(self._sent.values())).pending.task
        slots = self._cluster.slots(**self._cluster.shares(task))
        room = self._bytes < SHARE_OF_MEMORY * self._cluster.memory()
        return room and len(self._sent) < min(MOST, max(FEWEST, 2 * slots))

    def _send(self, pending: Pending) -> None:
        task = pending.task
        shares = self._cluster.shares(task)
        pending.attempts += 1
        load = self._freight.load(task)
        errand = self._steward.Errand(
            version=__version__,
            order=task.encode(),
            cargo=load.cargo,
            path=self._freight.path,
            gpus=shares["gpus"],
            timeout=self._patience.timeout,
        )
        key = new_key()
        reference = self._remote.options(
            name="pate",  # nothing of the task: names are in Ray's logs
            num_cpus=shares["cpus"],
            num_gpus=shares["gpus"],
            max_retries=0,
            runtime_env=load.runtime_env,
        ).remote(key, seal(errand, key), *load.shared)
        self._bytes += load.size
        self._sent[reference] = _Sent(pending, load, key)

    def arrive(self) -> list[tuple[Pending, Report]]:
        """Waits for a task to end, for a while; its files are in their places."""
        ready, _ = self._ray.wait(list(self._sent), num_returns=1, timeout=LOOK_SECONDS)
        if not ready:
            self._look_for_stuck()
            return []
        self._stuck_since = None
        sent = self._sent.pop(ready[0])
        self._bytes -= sent.load.size
        return [(sent.pending, self._report(ready[0], sent))]

    def _report(self, reference: Any, sent: _Sent) -> Report:
        errors, pending = self._ray.exceptions, sent.pending
        try:
            returned = unseal(self._ray.get(reference), sent.key)
        except ParcelError as error:
            raise PateError(f"task {pending.task.key!r} stopped: {error}; run it again") from None
        except errors.RayTaskError as error:
            raise PateError(_broken(error)) from None
        except errors.RuntimeEnvSetupError:
            raise PateError(
                "the plug-ins cannot be brought to a node of the Ray cluster; see Ray's logs there"
            ) from None
        except errors.RayError as error:
            while not self._cluster.is_there():  # then all are lost, and none is to blame
                time.sleep(LOOK_SECONDS / 4)
            return Report(error=_lost(error), lost=True)
        try:
            self._place(pending.task, returned)
        except ParcelError as error:
            raise PateError(f"task {pending.task.key!r} stopped: {error}; run it again") from None
        report = Report.decode(returned.report)
        if returned.stop and not (returned.lost and pending.rescued < self._patience.rescues):
            _, _, sentence = str(report.error).partition(": ")
            raise PateError(f"task {pending.task.key!r} stopped: {sentence}")
        return Report(
            result=report.result,
            error=report.error,
            where=report.where,
            seconds=report.seconds,
            lost=returned.lost,
        )

    def _place(self, task: Task, returned: Any) -> None:
        references = self._freight.references(task)
        for number, name, parcel in returned.made:
            reference = references[number]
            if MAKES not in reference:
                raise PateError("a worker sent something that nobody asked for")
            place = below(path_of(reference), name, names=reference["names"])
            try:
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                unpack(parcel, place)
            except OSError as error:
                why = os.strerror(error.errno).lower() if error.errno else "not all was written"
                raise PateError(
                    f"cannot write to {path_of(reference)}: {why}; "
                    "what was there before is unchanged"
                ) from None

    def _look_for_stuck(self) -> None:
        """A cluster may grow, or may never have what a task needs."""
        tasks = [sent.pending.task for sent in self._sent.values()]
        slots, shares = self._cluster.slots, self._cluster.shares
        stuck = [task for task in tasks if not slots(**shares(task))]
        now = time.monotonic()
        if len(stuck) < len(tasks):
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > GRACE_SECONDS:
            raise InvalidInput(self._cluster.refusal(stuck[0]))

    def cancel(self) -> None:
        """Ends what is in flight, and removes what it left on every node that is alive."""
        if not self._ray.is_initialized() or not answers(self._ray):
            return
        with contextlib.suppress(Exception):
            for reference in self._sent:
                self._ray.cancel(reference, force=True)
            if self._sent:
                self._ray.wait(list(self._sent), num_returns=len(self._sent), timeout=END_SECONDS)
        self._sent.clear()
        with contextlib.suppress(Exception):
            self._sweep()

    def _sweep(self) -> None:
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        remote = self._ray.remote(self._steward.sweep_node)
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
            sweeps = [
                remote.options(
                    name="pate", num_cpus=0, scheduling_strategy=affinity(node, soft=False)
                ).remote()
                for node in nodes
            ]
            left = self._ray.get(sweeps, timeout=max(0.1, deadline - time.monotonic()))
            if not any(left):
                return
            time.sleep(0.1)

    def close(self) -> None:
        """Forgets what was kept for this run."""
        self._sent.clear()
        self._freight.close()


def _lost(error: Exception) -> str:
    """What Ray says of a loss: nothing that the task did, as the death of its own worker may be."""
    kind = type(error).__name__
    if kind == "OutOfMemoryError":
        return "NodeLost: the Ray worker was ended because its node ran out of memory"
    return "NodeLost: the Ray worker or its node was lost"


def _broken(error: Exception) -> str:
    """Why the steward itself could not be run; the words of such errors stay behind."""
    if "No module named 'pate" in str(error):
        return "pate is not installed on a node of the Ray cluster; install the same version on all"
    cause = type(getattr(error, "cause", None) or error).__name__
    return f"a node of the Ray cluster cannot run pate ({cause}); install the same version on all"
