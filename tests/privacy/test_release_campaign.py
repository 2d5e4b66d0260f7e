"""A campaign against whoever opens a release: every region of every file, and hostile values.

Each case runs in a process whose every call to the system is written down, and so are those of the
processes it starts. Nothing outside the folder is opened, nothing is imported, run or unpickled
because a release says so, memory stays bounded, and each case ends in one line.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate.releases.files import SUMS, digests, render_sums

ROOT = Path(__file__).parents[2]
REGIONS = 24  # of a file, each with one byte flipped
# Trying a network takes seconds: what is alike in all releases is searched in the other two.
FEW_REGIONS = 6
RECIPE = """
[data]
name = "mine"
source = "tiny.npz"
public = 30
test = 30
accept_unprotected = true
[encoder]
steps = ["standardise", {{ name = "pca", dimension = 3 }}]
[teachers]
count = 6
model = "ridge"
[aggregate]
mechanism = "lnmax"
scale = 2.0
queries = 12
[privacy]
delta = 1e-3
[student]
model = "{model}"
inputs = "features"
epochs = 1
"""
# Runs at the start of every process: writes down what a release must never bring about.
WATCH = """
import os, sys
log, allowed = os.environ["WATCH_LOG"], tuple(os.environ["WATCH_ALLOWED"].split(os.pathsep))
forbidden = ("socket.connect", "socket.getaddrinfo", "urllib.Request", "os.system", "os.exec",
             "os.posix_spawn", "pickle.find_class", "os.symlink", "os.rename")
busy = []

def watch(event, arguments):
    if busy:
        return
    busy.append(1)
    try:
        wrong = event in forbidden
        named = event == "open" or (event == "os.remove" and arguments[1] == -1)
        if named and isinstance(arguments[0], (str, bytes)):
            place = os.path.abspath(os.fsdecode(arguments[0]))
            wrong = not place.startswith(allowed)
        if event == "subprocess.Popen":
            wrong = arguments[0] != sys.executable
        if wrong:
            with open(log, "a") as stream:
                stream.write(f"{event} {arguments!r}"[:300] + chr(10))
    finally:
        busy.clear()

sys.addaudithook(watch)
"""
# Verifies a folder for every line it reads, and says what it found.
DRIVER = """
import json, sys
from pathlib import Path
import pate
from pate.releases.verify import verify as verify_release
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024
for line in sys.stdin:
    folder = Path(line.strip())
    checked = verify_release(folder)
    answer = {"problems": checked.problems, "notes": checked.notes, "peak": peak()}
    print(json.dumps(answer), flush=True)
"""

pytestmark = pytest.mark.campaign


class Opener:
    """A watched process that verifies releases one after another."""

    def __init__(self, folder: Path) -> None:
        for name in ("watch", "tmp"):
            (folder / name).mkdir()
        (folder / "watch" / "sitecustomize.py").write_text(WATCH)
        self.log = folder / "watch.log"
        self.log.touch()
        home = Path.home() / ".cache"
        allowed = [
            folder / "given", folder / "tmp", ROOT / "pate", ROOT / "dpsgd", sys.prefix,
            sys.base_prefix, os.path.realpath(sys.prefix),
            Path(np.__file__).parents[1], home / "matplotlib", "/proc/", "/sys/", "/dev/null",
            "/usr/lib", "/usr/share/zoneinfo", "/etc/os-release", "/etc/ld.so",
        ]  # fmt: skip
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder / "watch"), str(ROOT)]),
            "WATCH_LOG": str(self.log),
            "WATCH_ALLOWED": os.pathsep.join(map(str, allowed)),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(folder / "tmp"),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER], env=environment, cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.cases = 0

    def verify(self, folder: Path) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1][-3000:]
        self.cases += 1
        answer: dict[str, Any] = json.loads(line)
        assert all("\n" not in each and "Traceback" not in each for each in answer["problems"])
        assert answer["peak"] < 1024, answer
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


STUDENTS = ("sklearn.tree:DecisionTreeClassifier", "mlp", "ridge")


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=pytest.mark.xdist_group(each)) for each in STUDENTS],
)
def given(request: Any, tmp_path_factory: Any) -> Path:
    """A release of a student of each kind, with an encoder and labels."""
    folder: Path = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(7)
    labels = np.arange(150) % 3
    features = rng.normal(size=(150, 4))
    features[np.arange(150), labels] += 6.0
    np.savez(folder / "tiny.npz", X=features, y=labels)
    (folder / "my.toml").write_text(RECIPE.format(model=request.param))
    (folder / "data").mkdir()
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_DATA_HOME": str(folder / "user")}
    for words in (
        ("run", "my.toml", "--engine", "serial"),
        ("release", "runs/my", "out", "--labels"),
    ):
        subprocess.run(
            [sys.executable, "-m", "pate", *words], cwd=folder, check=True, capture_output=True,
            env=os.environ | own,
        )  # fmt: skip
    return folder / "out"


@pytest.fixture
def of_network(request: Any) -> bool:
    """Whether the student of the release is a network."""
    return bool(request.node.callspec.params["given"] == "mlp")


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    made = Opener(tmp_path)
    yield made
    made.close()
    assert made.cases > 0
    assert made.log.read_text() == ""


@pytest.fixture
def folder(given: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(given, tmp_path / "given"))


def sealed(folder: Path) -> None:
    """Lists and checksums that fit what the files hold now, as far as they can be written."""
    file = folder / "release.json"
    try:
        listed = {name: each for name, each in digests(folder).items() if name != "release.json"}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"files": listed}))
    except (ValueError, TypeError):
        pass
    (folder / SUMS).write_text(render_sums(digests(folder)))


def test_an_untouched_release_opens_nothing_else(folder: Path, opener: Opener) -> None:
    assert opener.verify(folder)["problems"] == []


def test_a_flipped_byte_under_new_checksums(
    given: Path, folder: Path, opener: Opener, of_network: bool
) -> None:
    (folder / "report.html").unlink()  # its own test follows; drawing it again takes long
    sealed(folder)
    assert opener.verify(folder)["problems"] == []
    rng = np.random.default_rng(0)
    silent = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        whole = file.read_bytes()
        regions = REGIONS
        if of_network:  # which another process runs, for seconds
            regions = REGIONS // 2 if name.startswith("student/") else FEW_REGIONS
        for start in np.unique(np.linspace(0, len(whole) - 1, regions).astype(int)):
            at = int(rng.integers(start, min(start + max(1, len(whole) // regions), len(whole))))
            changed = bytearray(whole)
            changed[at] ^= 1 << int(rng.integers(8))
            file.write_bytes(changed)
            if name != SUMS:
                sealed(folder)
            answer = opener.verify(folder)
            if not answer["problems"] and not answer["notes"]:
                silent.append(name)
                assert figures(folder) == pytest.approx(figures(given), rel=1e-9)
            file.write_bytes(whole)
        shutil.copytree(given, folder, dirs_exist_ok=True)
        (folder / "report.html").unlink()
        sealed(folder)
    # Another weight is another student, and a setting that only the page shows, or the last digit
    # of a number, is no figure: the digest of the list shows that, which the owner shares.
    assert not {"MODEL_CARD.md", SUMS} & set(silent)


def figures(folder: Path) -> list[float]:
    """What a reader takes away from a release."""
    statement = json.loads((folder / "guarantee.json").read_text())
    student = json.loads((folder / "release.json").read_text())["evaluation"]["student"]
    stated = [statement["guarantee"], statement["data_set"]["guarantee"]]
    return [*(each[key] for each in stated for key in ("epsilon", "delta")), *student.values()]


def test_a_flipped_byte_of_the_page(folder: Path, opener: Opener) -> None:
    file = folder / "report.html"
    whole = file.read_bytes()
    for at in np.linspace(0, len(whole) - 1, 12).astype(int):
        changed = bytearray(whole)
        changed[at] ^= 2
        file.write_bytes(changed)
        sealed(folder)
        assert opener.verify(folder)["problems"]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = {list: enumerate, dict: dict.items}.get(type(value), lambda _: ())
    for key, each in items(value):
        yield (*path, key)
        yield from leaves(each, (*path, key))


VALUES = (None, -1, 0, 1e308, 10**30, True, "x", "../../etc/passwd", "os:system", "", [], {},
          ["os:system"], "<script>alert(1)</script>", "\x1b[2J", 2**53, -1e-300)  # fmt: skip


def test_any_other_value_in_the_json(folder: Path, opener: Opener, of_network: bool) -> None:
    rng = np.random.default_rng(1)
    (folder / "report.html").unlink()
    sealed(folder)
    alike = () if of_network else ("guarantee.json", "release.json")
    for name in (*alike, "student.json"):
        whole = json.loads((folder / name).read_text())
        for path in leaves(whole):
            if path[0] == "files":
                continue
            for value in rng.permutation(len(VALUES))[:2]:
                changed = copy.deepcopy(whole)
                place = changed
                for key in path[:-1]:
                    place = place[key]
                if place[path[-1]] == VALUES[value]:
                    continue
                place[path[-1]] = VALUES[value]
                (folder / name).write_text(json.dumps(changed))
                sealed(folder)
                answer = opener.verify(folder)
                unseen = path[0] in ("versions", "why_not", "what") or path[-1] in (
                    "dtype", "seed", "budget", "on_error")  # fmt: skip
                settings = path[:1] == ("recipe",)  # on the page, which is not here
                assert answer["problems"] or answer["notes"] or unseen or settings, (path, value)
        (folder / name).write_text(json.dumps(whole))
        sealed(folder)


TEXTS = {
    "deep": "[" * 500_000,
    "deep names": '{"a":' * 100_000,
    "huge number": '{"format": 1e999}',
    "long number": '{"format": ' + "9" * 100_000 + "}",
    "not a number": '{"format": NaN}',
    "twice": '{"format": 2, "format": 1}',
    "no text": "\udcff",
    "large": '"' + "a" * 15_000_000 + '"',
    "larger": '"' + "a" * 17_000_000 + '"',
    "empty": "",
    "list": "[]",
    "null": "null",
}


def test_json_that_is_none(folder: Path, opener: Opener) -> None:
    for name in ("guarantee.json", "release.json", "student.json"):
        whole = (folder / name).read_bytes()
        for text in TEXTS.values():
            (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
            try:
                sealed(folder)
            except Exception:
                (folder / SUMS).write_text("0" * 64 + f"  {name}\n")
            assert opener.verify(folder)["problems"]
        (folder / name).write_bytes(whole)


def test_what_is_no_plain_file(folder: Path, opener: Opener, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}")
    for name in sorted(digests(folder)):
        file = folder / name
        whole = file.read_bytes()
        for kind in ("link", "device", "pipe", "huge", "folder", "hard"):
            file.unlink()
            if kind == "link":
                file.symlink_to(secret)
            elif kind == "device":
                file.symlink_to("/dev/zero")
            elif kind == "pipe":
                os.mkfifo(file)
            elif kind == "folder":
                file.mkdir()
            elif kind == "hard":
                os.link(secret, file)
            else:
                with file.open("wb") as stream:
                    stream.truncate(2**43)
            assert opener.verify(folder)["problems"]
            file.rmdir() if kind == "folder" else file.unlink()
            file.write_bytes(whole)
    shutil.move(folder / "student", tmp_path / "student")
    (folder / "student").symlink_to(tmp_path / "student")
    assert opener.verify(folder)["problems"]


@pytest.mark.parametrize("line", ["../secret", "/etc/passwd", "student/../../secret", "a\\..\\b",
                                  "~/secret", "con", "student//model.onnx"])  # fmt: skip
def test_names_that_lead_out(folder: Path, opener: Opener, line: str) -> None:
    (folder / SUMS).write_text((folder / SUMS).read_text() + f"{'0' * 64}  {line}\n")
    assert opener.verify(folder)["problems"]


def test_more_files_and_folders_than_any_release(folder: Path, opener: Opener) -> None:
    deep = folder
    for _ in range(60):
        deep = deep / "d"
    deep.mkdir(parents=True)
    assert opener.verify(folder)["problems"]
    shutil.rmtree(folder / "d")
    for number in range(1500):
        (folder / f"{number}.json").write_text("{}")
    assert opener.verify(folder)["problems"]
