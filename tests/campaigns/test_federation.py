"""Federations of real processes on loopback: Flower's SuperLink, and a SuperNode for each party."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from federation import MARKER, Federation

from pate.federated import flower
from pate.federated.processes import environment, program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATIENCE = 900  # seconds: processes are many, and machines may be busy


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class Processes:
    """The coordinator and the parties of a federation, each a process group of its own."""

    def __init__(self, federation: Federation, *, tls: dict[str, list[str]] | None = None) -> None:
        self.federation = federation
        self.port, *self.own_ports = free_ports(1 + federation.parties)
        self.tls = tls or {"coordinator": ["--insecure"], "party": ["--insecure"]}
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def start_parties(self) -> None:
        for number in range(self.federation.parties):
            self.start(number)

    def __exit__(self, *_: object) -> None:
        for number in list(self.running):
            self.kill(number)
        left = self.federation.place(-1) / "out" / "flower" / "superlink.pid"
        if left.exists():
            os.killpg(int(left.read_text()), signal.SIGKILL)

    def log(self, number: int) -> str:
        return (self.federation.place(number) / "log").read_text(errors="replace")

    def start(self, number: int, *words: str) -> None:
        address = f"127.0.0.1:{self.port}"
        recipe = str(self.federation.recipe(number))
        if number < 0:
            words = ("federate", recipe, "--out", "out", "--address", address, "--json",
                     "--wait", str(PATIENCE / 3), *self.tls["coordinator"], *words)  # fmt: skip
        else:
            words = ("party", "join", recipe, "--out", "runs", "--superlink", address,
                     "--port", str(self.own_ports[number]), *self.tls["party"],
                     *self.tls.get(f"party {number}", []))  # fmt: skip
        environment = os.environ | {
            "PYTHONPATH": ROOT,
            "OMP_NUM_THREADS": "1",
            "XDG_DATA_HOME": str(self.federation.place(number) / "user"),
        }
        environment.pop("PATE_DATA", None)
        with (self.federation.place(number) / "log").open("ab") as log:
            self.running[number] = subprocess.Popen(
                [sys.executable, "-m", "pate", *words],
                cwd=self.federation.place(number),
                env=environment,
                stdout=subprocess.PIPE if number < 0 else log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, number: int) -> None:
        process = self.running.pop(number)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def wait_for(self, number: int, text: str) -> None:
        until = time.monotonic() + PATIENCE
        while text not in self.log(number):
            assert time.monotonic() < until, self.log(number)[-2000:]
            time.sleep(0.05)

    def results(self) -> dict[str, object]:
        process = self.running.pop(-1)
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, self.log(-1)[-2000:]
        found: dict[str, object] = json.loads(out)
        return found


def stored(federation: Federation) -> np.ndarray:
    return np.load(federation.place(-1) / "out" / "sum.npz")["votes"]


def drawn(federation: Federation, number: int) -> list[np.ndarray]:
    place = federation.place(number) / "data" / "ledgers"
    found = place.glob(f"party{number}.ledger.answers/*.json")
    return [np.array(json.loads(file.read_text())["counts"]) for file in found]


def below(leaders: set[int]) -> dict[int, bytes]:
    """The commands of some processes and of all that they started, by number.

    What is started may leave the group or the session, and outlive what started it.
    """
    parents, found = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            parent, group, session = (int(each) for each in fields[1:4])
            number = int(process.name)
            parents[number] = leaders & {number, parent, group, session}, parent
            found[number] = (process / "cmdline").read_bytes()
    inside = {number for number, (led, _) in parents.items() if led}
    while more := {n for n, (_, parent) in parents.items() if parent in inside} - inside:
        inside |= more
    return {number: found[number] for number in inside if number in found}


def memory_of(number: int) -> Iterator[bytes]:
    """Yield what a process holds in memory and may write to."""
    process = Path("/proc") / str(number)
    with contextlib.suppress(OSError), (process / "mem").open("rb", buffering=0) as memory:
        for line in (process / "maps").read_text().splitlines():
            span, rights = line.split()[:2]
            start, end = (int(each, 16) for each in span.split("-"))
            if rights.startswith("rw"):
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    memory.seek(start)
                    yield memory.read(end - start)


def votes_of(federation: Federation, number: int) -> list[bytes]:
    """The votes of a party with and without its noise, once it has counted or drawn them."""
    counted = (federation.place(number) / "runs" / "run").glob("private/vote/*/counts.npy")
    votes = [*drawn(federation, number), *map(np.load, counted)]
    return [each[:4].astype(kind).tobytes() for each in votes for kind in ("<i4", "<i8", "<f8")]


def leader_of(federation: Federation) -> int:
    return int((federation.place(-1) / "out" / "flower" / "superlink.pid").read_text())


def test_five_parties_and_nothing_private_at_the_coordinator(tmp_path):
    federation = Federation(tmp_path / "f", parties=5, dropouts=1, colluding=1)
    own = [np.load(federation.place(number) / "own.npz")["X"] for number in range(5)]
    planted = [MARKER.encode(), *(row.tobytes() for part in own for row in part[:2])]
    public = np.load(federation.place(-1) / "public.npz")["X"][0].tobytes()
    coordinating, asked = set(), set()  # in which programs public inputs were found
    leaders: set[int] = set()
    with Processes(federation) as processes:
        processes.start_parties()
        processes.start(-1)
        parties = {processes.running[number].pid for number in range(5)}
        coordinator = processes.running[-1]

        def watch() -> None:  # a party's ClientApp lives for seconds, and a search takes as long
            while coordinator.poll() is None:
                for command in below(parties).values():  # anybody on the machine reads those
                    asked.add((b"flwr-clientapp" in command, b"--token\0" in command))
                time.sleep(0.2)

        watching = threading.Thread(target=watch)
        watching.start()
        while coordinator.poll() is None:
            time.sleep(0.2)
            leaders.add(processes.running[-1].pid)
            with contextlib.suppress(OSError, ValueError):
                leaders.add(leader_of(federation))
            votes = [each for number in range(5) for each in votes_of(federation, number)]
            for number, command in below(leaders).items():
                for content in memory_of(number):
                    if public in content:  # it can find what is there
                        coordinating.add(command)
                    assert not any(each in content for each in (*planted, *votes))
        watching.join()
        results = processes.results()
        assert not any(below(leaders).values())  # nothing goes on; what has ended has no command
    assert any(b"flwr-serverapp" in command for command in coordinating)
    assert asked == {(False, False), (True, False)}
    assert results["parties"] == 5
    total = sum(drawn(federation, number)[0] for number in range(5))
    np.testing.assert_array_equal(stored(federation), total)
    assert [len(federation.charges(number)) for number in range(5)] == [1] * 5
    planted += [each for number in range(5) for each in votes_of(federation, number)]
    for file in federation.place(-1).rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not any(each in content for each in planted), file


def test_a_party_is_killed_in_a_round_and_the_others_finish_it(tmp_path):
    federation = Federation(tmp_path / "f", parties=3)
    with Processes(federation) as processes:
        processes.start_parties()
        processes.start(-1, "--timeout", "90")
        processes.wait_for(1, "ROUND 1")
        processes.kill(1)
        results = processes.results()
    assert results["parties"] == 2
    assert [len(federation.charges(number)) for number in range(3)] == [1, 0, 1]
    total = drawn(federation, 0)[0] + drawn(federation, 2)[0]
    np.testing.assert_array_equal(stored(federation), total)


def test_the_coordinator_is_killed_and_started_again(tmp_path):
    federation = Federation(tmp_path / "f", parties=3)
    with Processes(federation) as processes:
        processes.start_parties()
        processes.start(-1)
        processes.wait_for(0, "Start `flwr-clientapp` process")
        processes.kill(-1)
        left = {leader_of(federation)}
        assert any(b"flwr-serverapp" in command for command in below(left).values())
        os.kill(*left, signal.SIGKILL)  # and the SuperLink, but not what it started
        processes.start(-1)
        results = processes.results()
        assert below(left) == {}
        assert results["parties"] == 3
        charges = [len(federation.charges(number)) for number in range(3)]
        assert all(1 <= count <= 2 for count in charges)  # two if a sum was lost on the way
        processes.start(-1)  # once more: nobody is asked
        assert processes.results() == results
    assert [len(federation.charges(number)) for number in range(3)] == charges


def test_a_slow_party_is_left_out_of_one_round_and_takes_part_in_the_next(tmp_path):
    federation = Federation(tmp_path / "f", parties=3)
    with Processes(federation) as processes:
        processes.start_parties()
        processes.start(-1, "--timeout", "60")
        processes.wait_for(1, "ROUND 1")
        os.killpg(processes.running[1].pid, signal.SIGSTOP)
        assert processes.results()["parties"] == 2
        os.killpg(processes.running[1].pid, signal.SIGCONT)
        time.sleep(3)
        for number in range(3):  # they had joined the folder of the first round
            processes.kill(number)
            processes.start(number)
        first = stored(federation)
        np.testing.assert_array_equal(first, drawn(federation, 0)[0] + drawn(federation, 2)[0])
        before = {number: drawn(federation, number) for number in range(3)}
        processes.start(-1, "--out", "again")
        assert processes.results()["parties"] == 3
    total = np.zeros_like(first)
    for number in range(3):
        (new,) = [each for each in drawn(federation, number)
                  if not any((each == old).all() for old in before[number])]  # fmt: skip
        total += new
        assert len(federation.charges(number)) == len(before[number]) + 1
    second = np.load(federation.place(-1) / "again" / "sum.npz")["votes"]
    np.testing.assert_array_equal(second, total)


def test_the_example_of_three_hospitals_runs_in_one_command(tmp_path):
    """On a busy machine a hospital may be late, or even lost: then two are summed."""
    done = subprocess.run(
        [
            sys.executable,
            os.path.join(ROOT, "examples", "hospitals", "run.py"),
            str(tmp_path / "h"),
        ],
        env=os.environ | {"PYTHONPATH": ROOT, "XDG_DATA_HOME": str(tmp_path / "user")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    summary, accuracy, guarantee = done.stdout.splitlines()
    assert summary in ("run: 3 parties, 90 teachers", "run: 2 parties, 60 teachers")
    assert float(accuracy.split()[2]) > 45  # 68 ± 4 over 300 simulated draws of the noise
    assert accuracy.endswith("% of 300")
    found = json.loads((tmp_path / "h" / "coordinator" / "run" / "federation.json").read_bytes())
    assert guarantee.startswith(found["printed"])
    assert found["guarantee"]["epsilon"] < 10  # the budget of each hospital


EVIL = """
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
Path({there!r}).touch()
client = ClientApp()
server = ServerApp()


@server.main()
def main(grid, context):
    from flwr.app import Message, RecordDict
    nodes = list(grid.get_node_ids())
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    list(grid.send_and_receive(asked, timeout=25))
"""


def test_strangers_start_nothing_and_a_party_runs_no_code_of_a_coordinator(tmp_path):
    federation = Federation(tmp_path / "f", parties=3)
    federation.write_party(1, parties=4)  # so that the coordinator's own run waits, and fails
    with Processes(federation) as processes:
        processes.start(-1)
        home = federation.place(-1) / "out" / "flower"
        until = time.monotonic() + PATIENCE
        while not (home / "run.log").exists():  # the SuperLink answers by then
            assert time.monotonic() < until
            time.sleep(0.2)
        for path, source, refused in (("control/start-run", "127.0.0.2", True),
                                      ("runtime/pull-task-input", "127.0.0.2", True),
                                      ("control/start-run", "127.0.0.1", False),
                                      ("fleet/pull-messages", "127.0.0.2", False)):  # fmt: skip
            link = HTTPConnection("127.0.0.1", processes.port, source_address=(source, 0))
            link.request("POST", f"/v1/{path}", body=b"")
            assert (link.getresponse().status == 403) == refused, path
            link.close()
        processes.start(0)
        processes.wait_for(0, "SuperNode ID")
        app = tmp_path / "evil"
        app.mkdir()
        (app / "evil.py").write_text(EVIL.format(there=str(tmp_path / "ran")))
        (app / "pyproject.toml").write_text(flower.APP.replace("pate.federated.app", "evil"))
        command = [program("flwr"), "run", str(app), "here", "--stream"]
        subprocess.run(command, env=environment(home), stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, check=False, timeout=PATIENCE)  # fmt: skip
        processes.wait_for(0, "an app that is not pate's")
    assert "evil" not in processes.log(0)
    assert (tmp_path / "ran").exists()  # at the coordinator, who sent it
    assert not list(federation.place(0).rglob("evil*"))


def write_certificates(folder) -> None:
    """An authority, and a certificate of 127.0.0.1 that it has signed."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def name(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject, issuer, key, signer, extensions):
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name(issuer))
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - datetime.timedelta(hours=1))
        made = made.not_valid_after(now + datetime.timedelta(days=1))
        for extension in extensions:
            made = made.add_extension(extension, critical=isinstance(extension, x509.KeyUsage))
        return made.sign(signer, hashes.SHA256())

    folder.mkdir()
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    basic = x509.BasicConstraints(ca=True, path_length=None)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = {
        "ca.crt": certificate("authority", "authority", authority, authority, [basic]),
        "server.pem": certificate("coordinator", "authority", server, authority, [here]),
    }
    for file, made in signed.items():
        (folder / file).write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def write_key(folder, name: str) -> str:
    """A key pair of a party; the path of the private one."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = ec.generate_private_key(ec.SECP384R1())
    (folder / f"{name}.pub").write_bytes(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    )
    file = folder.parent / name
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return str(file)


def test_parties_and_coordinator_check_whom_they_talk_to(tmp_path):
    """Over TLS: of five parties one has an unknown key, and one trusts another authority."""
    write_certificates(tmp_path / "tls")
    write_certificates(tmp_path / "strange")
    (tmp_path / "keys").mkdir()
    (tmp_path / "others").mkdir()
    federation = Federation(tmp_path / "f", parties=5, dropouts=2)
    keys = [write_key(tmp_path / "keys", f"party-{number}") for number in (0, 1, 3, 4)]
    keys.insert(2, write_key(tmp_path / "others", "stranger"))
    tls = {f"party {number}": ["--key", key] for number, key in enumerate(keys)}
    tls["party"] = ["--certificate", str(tmp_path / "tls" / "ca.crt")]
    tls["party 3"] += ["--certificate", str(tmp_path / "strange" / "ca.crt")]
    tls["coordinator"] = ["--certificates", str(tmp_path / "tls")]
    tls["coordinator"] += ["--party-keys", str(tmp_path / "keys")]
    with Processes(federation, tls=tls) as processes:
        processes.start(-1, "--wait", "90")
        log = federation.place(-1) / "out" / "flower" / "run.log"
        until = time.monotonic() + PATIENCE
        while not log.exists() or log.read_text().count("registered successfully") < 4:
            assert processes.running[-1].poll() is None, processes.log(-1)[-2000:]
            assert time.monotonic() < until
            time.sleep(0.2)
        processes.start_parties()
        results = processes.results()
    assert results["parties"] == 3
    assert [len(federation.charges(number)) for number in range(5)] == [1, 1, 0, 0, 1]
