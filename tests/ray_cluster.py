"""A cluster of two Ray nodes on this machine, in a process of its own, for several test files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from pate.engines.ray_session import set_token

# What the first node has, each node more has; spilling is on, as Ray has it.
CLUSTER = """
import json, sys
from ray.cluster_utils import Cluster

place = dict(node_ip_address="127.0.0.1", num_cpus=1, object_store_memory=80_000_000)
quick = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500,
         "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
cluster = Cluster(
    initialize_head=True,
    head_node_args=place | dict(include_dashboard=False, temp_dir=sys.argv[1],
                                _system_config=quick),
)
node = None
for line in sys.stdin:
    if node is not None:
        cluster.remove_node(node, allow_graceful=False)
    node = cluster.add_node(**place, num_gpus=1)
    cluster.wait_for_nodes()
    pids = [p.process.pid for each in (cluster.head_node, node)
            for p in each.all_processes["raylet"]]
    (gcs,) = cluster.head_node.all_processes["gcs_server"]
    print(json.dumps([cluster.address, *pids, gcs.process.pid]), flush=True)
cluster.shutdown()
"""


class Cluster:
    """Two Ray nodes, one processor each; the second, with a GPU that is none, can be killed.

    ``folder`` is Ray's own, ``tasks`` that of the folders of tasks.
    """

    def __init__(self, folder):
        self.folder = folder  # Ray's own
        self.tasks = folder / "tasks"  # where tasks have their directories
        told = {
            "PATE_TASK_FOLDER": str(self.tasks),
            "RAY_TMPDIR": str(folder),  # where it notes its address: not where a user's Ray does
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER, str(folder / "ray")],
            env=os.environ | told,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.add_second()

    def add_second(self):
        self.process.stdin.write("add\n")
        self.process.stdin.flush()
        self.address, self.first, self.second, self.gcs = json.loads(self.process.stdout.readline())

    def complete(self):
        """There are two nodes: the second is new if it was lost."""
        if not alive(self.second):
            self.add_second()

    def kill_second(self):
        """The node is gone, with all that runs on it."""
        kill([self.second, *descendants(self.second)])

    def kill_all(self):
        """All nodes are gone at once."""
        kill([*descendants(self.process.pid)])

    def close(self):
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self.process.communicate(timeout=30)
        kill([*descendants(self.process.pid), self.process.pid])
        self.process.wait()


def alive(pid):
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid):
    """All processes that this one started, and those that they did."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


@contextlib.contextmanager
def new_cluster():
    """Start a cluster; what it left is removed at the end."""
    set_token()  # the nodes and this process
    # In /tmp: names of sockets have a limit.
    folder = Path(tempfile.mkdtemp(prefix="ray-test-", dir="/tmp"))
    try:
        (folder / "tasks").mkdir()
        with contextlib.closing(Cluster(folder)) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)
