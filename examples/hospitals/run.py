"""A federation of three hospitals on this machine: python examples/hospitals/run.py [FOLDER]."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

HOSPITALS = 3

TERMS = f"""
[federation]
parties = {HOSPITALS}
dropouts = 1
"""
COORDINATOR = f"""\
kind = "federation"

[data]
name = "digits of three hospitals"
public_path = "public.npz"
test_path = "test.npz"
classes = {[str(digit) for digit in range(10)]}
{TERMS}
[aggregate]
mechanism = "gnmax"
sigma = 10
queries = 100

[student]
model = "logistic"
"""
HOSPITAL = """\
kind = "party"
data_root = "ledger"

[data]
name = "hospital-{number}"
private_path = "records.npz"
unit = "patient"
{terms}
[teachers]
count = 30
model = "logistic"

[privacy]
budget = 10
"""


def prepare(folder: Path) -> None:
    """Write everybody's records and recipes."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    X, y = digits.data[order] / 16, digits.target[order]
    coordinator = folder / "coordinator"
    coordinator.mkdir(parents=True)
    (coordinator / "study.toml").write_text(COORDINATOR)
    np.savez(coordinator / "public.npz", X=X[:500])
    np.savez(coordinator / "test.npz", X=X[500:800], y=y[500:800])
    for number, rows in enumerate(np.array_split(np.arange(800, len(X)), HOSPITALS)):
        own = folder / f"hospital-{number}"
        own.mkdir()
        (own / "hospital.toml").write_text(HOSPITAL.format(number=number, terms=TERMS))
        np.savez(own / "records.npz", X=X[rows], y=y[rows])


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nothing uses."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def main() -> None:
    """Start the hospitals, run the coordinator, and stop the hospitals."""
    first, *ports = free_ports(1 + HOSPITALS)
    address = f"127.0.0.1:{first}"
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals").absolute()
    if not folder.exists():
        prepare(folder)
    pate = [sys.executable, "-m", "pate"]
    hospitals = []
    for number, port in enumerate(ports):
        own = folder / f"hospital-{number}"
        join = ["party", "join", "hospital.toml", "--out", "run", "--insecure"]
        join += ["--superlink", address, "--port", str(port)]
        with (own / "log").open("w") as log:
            hospitals.append(
                subprocess.Popen(
                    [*pate, *join],
                    cwd=own,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    try:
        federate = ["federate", "study.toml", "--out", "run", "--address", address, "--insecure"]
        done = subprocess.run([*pate, *federate], cwd=folder / "coordinator", check=False)
    finally:
        for hospital in hospitals:  # with what Flower started for it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(hospital.pid, signal.SIGKILL)
            hospital.wait()
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
