"""Workers that are killed, crash, hang or run out of disk: the run ends complete, or names the
teacher and goes on later where it was. On every engine that has workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ray_cluster import alive, descendants, new_cluster

from pate.artifacts import Store
from pate.teachers.spec import TeachersSpec, seed_for

ON_RAY = [pytest.mark.xdist_group("ray"), pytest.mark.campaign]  # in one worker: one cluster
ENGINES = [
    "processes:2",
    pytest.param("gpus:cpu,cpu", marks=pytest.mark.campaign),  # the same pool of workers
    pytest.param("ray", marks=ON_RAY),
]
COUNT, SICK = 16, 5  # groups of two; one teacher that things happen to
SEEDS = [seed_for(TeachersSpec(count=COUNT, model="patient:Patient"), n) for n in range(COUNT)]
TASKS = "PATE_TASK_FOLDER"
MARK = "PATE_TEST_MARK"  # in the environment of all that a run starts

# The illness is in a file, no part of the recipe: so a cure changes no fingerprint.
PATIENT = '''
import ctypes
import json
import os
import time
from pathlib import Path

import numpy as np


class Patient:
    """Nearest mean; notes in a journal what it does, and falls ill as a file says."""

    def __init__(self, classes, seed, place, ballast=0):
        self.classes, self.seed, self.place = classes, seed, place
        self.means, self.ballast = np.zeros((0, 0)), np.zeros(ballast)

    def note(self, event):
        with open(f"{self.place}/journal", "a") as file:
            file.write(f"{event} {self.seed} {os.getpid()}\\n")

    def fit(self, X, y):
        self.note("began")
        begun = Path(self.place, "journal").read_text().count(f"began {self.seed} ")
        illness = Path(self.place, "illness.json")
        ill = json.loads(illness.read_text()) if illness.exists() else {}
        if ill and self.seed in ill["seeds"] and begun <= ill["times"]:
            {"hang": hang, "segfault": segfault, "nap": nap}[ill["how"]]()
        self.means = np.full((self.classes, X.shape[1]), 1e6)
        for label in np.unique(y):
            self.means[label] = X[y == label].mean(axis=0)
        self.note("trained")

    def predict(self, X):
        return ((X[:, None] - self.means[None]) ** 2).sum(axis=2).argmin(axis=1)


def hang():
    time.sleep(600)


def nap():
    time.sleep(0.4)


def segfault():
    ctypes.string_at(0)
'''


@pytest.fixture(scope="module")
def cluster():
    with new_cluster() as made:
        yield made


@pytest.fixture(params=ENGINES)
def engine(request):
    """An engine of two workers."""
    if request.param == "ray":
        cluster = request.getfixturevalue("cluster")
        cluster.complete()
        return f"ray:{cluster.address}"
    return request.param


@pytest.fixture
def clinic(project):
    """A project of teachers who keep a journal."""
    project.plugin("patient", PATIENT)
    project.data(records=380)
    model = {"model": "patient:Patient", "params": {"place": str(project.folder)}}
    project.sections["teachers"] = {"count": COUNT, **model}
    project.write()
    return Clinic(project)


class Clinic:
    def __init__(self, project):
        self.project, self.folder = project, project.folder
        self.tasks = self.folder / "tasks"  # for a Ray that the command starts itself
        self.tasks.mkdir(exist_ok=True)

    def ill(self, how, *, times, who=(SICK,)):
        sick = {"how": how, "times": times, "seeds": [SEEDS[n] for n in who]}
        (self.folder / "illness.json").write_text(json.dumps(sick))

    def cure(self):
        (self.folder / "illness.json").unlink()

    def journal(self, event):
        """(teacher, process) of all such entries; a teacher tried with another seed is None."""
        file = self.folder / "journal"
        lines = file.read_text().splitlines() if file.exists() else []
        entries = [line.split() for line in lines]
        number = {seed: n for n, seed in enumerate(SEEDS)}
        return [(number.get(int(s)), int(pid)) for kind, s, pid in entries if kind == event]

    def times(self, event="trained"):
        return Counter(number for number, _ in self.journal(event))

    @contextlib.contextmanager
    def start(self, engine, *words, limit=None):
        """The command in the background, as a shell starts it: in a process group of its own."""

        def limited():
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        with subprocess.Popen(
            self.project.command(
                "teach", "tiny.toml", "--plugin-path", "plugins", "--engine", engine, *words
            ),
            cwd=self.folder,
            env=self.project.environment() | {MARK: str(self.folder), TASKS: str(self.tasks)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            preexec_fn=limited,
        ) as process:
            try:
                yield process
            finally:
                process.kill()  # a test that failed waits for nothing

    def teach(self, engine, *words, code=0, stage="teach"):
        self.project.engine = engine
        return self.project.run(*words, stage=stage, code=code)

    def teachers(self, run=None):
        """All files of all finished teachers, by their number."""
        run = run or self.project.run_folder
        (shards,) = Store(root=run, reader="teach").all("teach")
        return {
            number: None if name is None else contents(run / "private" / "teacher" / name[:20])
            for number, name in enumerate(shards.json("teachers.json"))
        }

    def undisturbed(self):
        """What the teachers are where nothing happens."""
        run = self.folder / "undisturbed"
        with self.no_journal():
            self.project.engine = "serial"
            self.project.call_run("--out", run, stage="teach")
        return self.teachers(run)

    @contextlib.contextmanager
    def no_journal(self):
        kept = [f for f in (self.folder / "journal", self.folder / "illness.json") if f.exists()]
        for file in kept:
            file.rename(f"{file}.kept")
        yield
        (self.folder / "journal").unlink(missing_ok=True)
        for file in kept:
            Path(f"{file}.kept").rename(file)

    def drafts(self):
        return list(self.project.run_folder.glob("*/*/.draft-*"))


def contents(folder):
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir())}


def marked(folder):
    """Processes that a run in this folder started, and that are still there."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            pid = int(file.parent.name)
            if f"{MARK}={folder}".encode() in file.read_bytes().split(b"\0") and alive(pid):
                found.append((pid, (file.parent / "cmdline").read_bytes()))
    return found


def wait_until(condition, *, process=None):
    deadline = time.monotonic() + 50
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def ended(process, code=0):
    """What the command said on its way out."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    assert "Traceback" not in out + err
    return out, err


# ------------------------------------------------------------------ workers that are lost


@pytest.mark.campaign
def test_a_worker_killed_in_the_middle_of_a_teacher(clinic, engine):
    """Its group is done again; the others have been trained once, and all are what they were."""
    clinic.ill("hang", times=1)
    with clinic.start(engine) as process:
        wait_until(lambda: SICK in clinic.times("began"), process=process)
        (worker,) = (pid for number, pid in clinic.journal("began") if number == SICK)
        os.kill(worker, signal.SIGKILL)
        ended(process)
    trained = clinic.times()
    assert all(trained[n] == 1 for n in range(COUNT) if n // 2 != SICK // 2)
    assert clinic.times("began")[SICK] == 2
    assert clinic.teachers() == clinic.undisturbed()


def test_a_teacher_that_crashes_once(clinic, engine):
    clinic.ill("segfault", times=1)
    clinic.teach(engine)
    assert clinic.times("began")[SICK] == 2
    assert clinic.teachers() == clinic.undisturbed()


@pytest.mark.campaign
def test_a_teacher_that_always_crashes_is_named_and_the_rest_is_kept(clinic, engine):
    clinic.ill("segfault", times=99)
    (said,) = clinic.teach(engine, code=2).stderr.splitlines()
    assert said.startswith(f"pate: teacher {SICK} failed: WorkerDied: ")
    kept = clinic.times()
    assert SICK not in kept
    clinic.cure()
    clinic.teach(engine)
    again = clinic.times() - kept
    finished = {n for n in kept if n not in again}
    assert len(finished) >= COUNT // 2  # the heaviest come first, and the sick one's is no more
    assert all(clinic.times()[n] == kept[n] for n in finished)
    assert sum(again.values()) == COUNT - len(finished)
    assert clinic.teachers() == clinic.undisturbed()
    assert not clinic.drafts()


@pytest.mark.campaign
def test_a_teacher_that_always_crashes_abstains_alone(clinic, engine):
    clinic.ill("segfault", times=99)
    clinic.teach(engine, "--set", "teachers.on_error=abstain", stage="vote")
    project = clinic.project
    assert list(project.json("teach-failures", "failed.json")) == [str(SICK)]
    found, expected = clinic.teachers(), clinic.undisturbed()
    assert found == expected | {SICK: None}
    said = project.array("vote", "predictions.npy")
    assert (said[SICK] == -1).all()
    assert (np.delete(said, SICK, axis=0) >= 0).all()


# ------------------------------------------------------------------ teachers that hang


def time_limit(engine):
    """Seconds that are enough for the others on a busy machine; the sick one hangs for 600.

    Ray starts all workers of a run at once.
    """
    return 30 if engine.startswith("ray") else 8


def test_a_teacher_that_hangs_is_named(clinic, engine):
    clinic.ill("hang", times=99)
    limit = time_limit(engine)
    (said,) = clinic.teach(engine, "--set", f"teachers.timeout={limit}", code=2).stderr.splitlines()
    assert said == f"pate: teacher {SICK} failed: TimedOut: no result within {limit} seconds"
    (worker,) = (pid for number, pid in clinic.journal("began") if number == SICK)
    wait_until(lambda: not alive(worker))
    kept = clinic.times()
    clinic.cure()
    clinic.teach(engine, "--set", "teachers.timeout=60")  # a limit is no part of a fingerprint
    assert set((clinic.times() - kept).values()) == {1}
    assert clinic.times()[SICK] == 1


@pytest.mark.campaign
def test_a_teacher_that_hangs_once_is_tried_again(clinic, engine):
    clinic.ill("hang", times=1)
    limit = time_limit(engine)
    clinic.teach(engine, "--set", f"teachers.timeout={limit}", "--set", "teachers.on_error=retry")
    assert clinic.times()[None] == 1  # the second attempt has another seed
    assert {n: clinic.times()[n] for n in range(COUNT) if n != SICK} == {
        n: 1 for n in range(COUNT) if n != SICK
    }
    assert None not in clinic.teachers().values()


# ------------------------------------------------------------------ no room


def test_no_room_for_a_teacher(clinic, engine):
    """Files may not grow beyond a limit, as on a full disk: one sentence, and a run goes on."""
    clinic.project.sections["teachers"]["params"]["ballast"] = 50_000  # 0.4 MB
    clinic.project.write()
    with clinic.start(engine, limit=200_000) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 2, out + err
    (said,) = err.splitlines()
    assert said.startswith("pate: cannot write to runs/tiny: ")
    assert said.endswith("what was there before is unchanged")
    clinic.teach(engine)
    assert clinic.teachers() == clinic.undisturbed()
    assert not clinic.drafts()


@pytest.mark.campaign
@pytest.mark.xdist_group("ray")
def test_no_room_for_a_task_on_a_node(clinic, cluster):
    """The directory of tasks is full: one sentence that names it, and later the run goes on."""
    cluster.complete()
    engine = f"ray:{cluster.address}"
    with full(cluster.tasks):
        (said,) = clinic.teach(engine, code=2).stderr.splitlines()
    assert f"a worker cannot write the files of its task to {cluster.tasks}: " in said
    assert TASKS in said
    assert not clinic.times("began")
    clinic.teach(engine)
    assert clinic.teachers() == clinic.undisturbed()
    assert not list(cluster.tasks.iterdir())


@contextlib.contextmanager
def full(folder):
    """A folder in which there is no room: a tiny file system, or one that may not be written."""
    if os.getuid():
        folder.chmod(0o500)
        yield
        folder.chmod(0o700)
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here, and root may write anywhere")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


# ------------------------------------------------------------------ Ctrl-C


def test_ctrl_c_leaves_nothing_running_and_nothing_behind(clinic, engine, request):
    clinic.ill("hang", times=1, who=(SICK, SICK + 2))
    with clinic.start(engine) as process:
        wait_until(lambda: clinic.times("began").keys() >= {SICK, SICK + 2}, process=process)
        workers = [pid for number, pid in clinic.journal("began") if number in (SICK, SICK + 2)]
        assert marked(clinic.folder)
        os.killpg(process.pid, signal.SIGINT)
        _, err = ended(process, code=130)
    assert err.strip() == "pate: interrupted; run the same command again to resume"
    wait_until(lambda: not any(map(alive, workers)))
    wait_until(lambda: not marked(clinic.folder))
    if engine.startswith("ray"):
        scratch = request.getfixturevalue("cluster").tasks
        wait_until(lambda: not list(scratch.iterdir()))
    clinic.teach(engine)
    assert clinic.teachers() == clinic.undisturbed()
    assert not clinic.drafts()


# ------------------------------------------------------------------ Ray


@pytest.mark.campaign
@pytest.mark.xdist_group("ray")
def test_a_node_that_is_lost(clinic, cluster):
    """Teachers that were on it are trained on the other node."""
    cluster.complete()
    clinic.ill("nap", times=1, who=range(COUNT))
    with clinic.start(f"ray:{cluster.address}") as process:
        wait_until(lambda: on_second(clinic, cluster), process=process)
        cluster.kill_second()
        ended(process)
    assert clinic.teachers() == clinic.undisturbed()
    assert not clinic.drafts()


def on_second(clinic, cluster):
    """Whether a teacher is being trained on the second node."""
    busy = {pid for _, pid in clinic.journal("began")}
    return busy & set(descendants(cluster.second))


@pytest.mark.campaign
@pytest.mark.xdist_group("ray")
def test_ray_on_this_machine_alone(clinic):
    """Started and ended by the run: a worker is killed, then Ctrl-C, and no process is left."""
    clinic.ill("hang", times=1, who=(SICK, SICK + 2))
    with clinic.start("ray") as process:
        wait_until(lambda: SICK in clinic.times("began"), process=process)
        (worker,) = (pid for number, pid in clinic.journal("began") if number == SICK)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: clinic.times("began")[SICK] == 2, process=process)
        os.killpg(process.pid, signal.SIGINT)
        _, err = ended(process, code=130)
    assert err.strip() == "pate: interrupted; run the same command again to resume"
    wait_until(lambda: not marked(clinic.folder))
    wait_until(lambda: not list(clinic.tasks.iterdir()))
