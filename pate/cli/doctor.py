"""``pate doctor``: what an installation, a machine and a data root offer, and what is broken."""

from __future__ import annotations

import math
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from pate.cli import options
from pate.console import print_json

app = options.new_app()

_DISTRIBUTION = "pate-privacy"
_EXTRAS = {  # what each offers that is not needed for the rest, and its extra
    "flwr": ("pate federate", "federated"),
    "lightgbm": ("boosted trees as teachers", "boosting"),
    "mlflow-skinny": ("tracking in MLflow", "mlflow"),
    "pyarrow": ("Parquet files", "parquet"),
    "ray": ("--engine ray", "ray"),
    "xgboost-cpu": ("boosted trees as teachers", "boosting"),
}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "absent", "broken"]  # absent: nothing needs it
    text: str


@app.command()
def doctor(data_root: options.DataRoot = None, json: options.Json = False) -> None:
    """Check versions, machine, data root and ledgers; the exit code is 1 if something is broken.

    Nothing is changed: of a ledger a copy is opened, its content checked and its budget printed.
    """
    found = [*_software(), *_machine(), *_data(data_root)]
    broken = sum(check.state == "broken" for check in found)
    if json:
        print_json({"broken": broken, "checks": [asdict(check) for check in found]})
    else:
        width = max(len(check.name) for check in found)
        for check in found:
            mark = {"ok": "ok", "absent": "–", "broken": "BROKEN"}[check.state]
            typer.echo(f"{mark:7}{check.name:{width}}  {check.text}")
    if broken:
        raise typer.Exit(1)


def _software() -> Iterator[Check]:
    from pate import __version__
    from pate._namesake import namesake_warning

    place = Path(__file__).parents[1]
    yield Check("pate", "ok", f"{__version__}, in {place}")
    if (sentence := namesake_warning()) is not None:
        yield Check("import name", "broken", sentence)
    yield Check("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield from _required()
    yield from _torch()
    for name, (use, extra) in _EXTRAS.items():
        if (version := _version(name)) is not None:
            yield Check(name, "ok", f"{version}, for {use}")
        else:
            yield Check(name, "absent", f"for {use}: pip install '{_DISTRIBUTION}[{extra}]'")
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is not None:
        yield Check("Chromium", "ok", f"{browser}, for tests of pages")
    else:
        yield Check("Chromium", "absent", "only tests of pages need it")


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _required() -> Iterator[Check]:
    """Yield the dependencies that are missing or too old, or else that none is."""
    from importlib import metadata

    from packaging.requirements import Requirement

    wanted = []
    if _version(_DISTRIBUTION) is not None:
        wanted = [Requirement(text) for text in metadata.requires(_DISTRIBUTION) or ()]
    needed = [each for each in wanted if each.marker is None or each.marker.evaluate()]
    unfit = False
    for each in needed:
        version = _version(each.name)
        if version is None or not each.specifier.contains(version, prereleases=True):
            unfit = True
            text = f"{version or 'not installed'}; {each} is needed: pip install '{each}'"
            yield Check(each.name, "broken", text)
    if not needed:
        yield Check("dependencies", "absent", f"unknown: {_DISTRIBUTION} is not installed by pip")
    elif not unfit:
        shown = ", ".join(f"{name} {_version(name)}" for name in ("numpy", "scipy", "scikit-learn"))
        yield Check("dependencies", "ok", f"{len(needed)} as needed; {shown}")


def _torch() -> Iterator[Check]:
    """Yield whether torch and torchvision can be loaded, and the GPUs that torch sees."""
    from pate.vision import torchvision

    try:
        import torch

        yield Check("torch", "ok", f"{torch.__version__}, torchvision {torchvision().__version__}")
    except Exception as error:
        yield Check("torch", "broken", f"cannot be imported ({type(error).__name__}: {error})")
        return
    gpus = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    gpus += ["Apple (mps)"] if torch.backends.mps.is_available() else []
    if gpus:
        yield Check("GPUs", "ok", f"{', '.join(gpus)}: --engine gpus")
    else:
        yield Check("GPUs", "absent", "none that torch can use")


def _machine() -> Iterator[Check]:
    from pate.engines.worker import usable_cores

    yield Check("cores", "ok", f"{usable_cores()} of {os.cpu_count()}, {platform.platform()}")
    page = os.sysconf("SC_PAGE_SIZE") / 2**30
    total = page * os.sysconf("SC_PHYS_PAGES")
    yield Check("memory", "ok", f"{total:.1f} GiB")


def _data(option: Path | None) -> Iterator[Check]:
    from pate.accounting.ledger.data_set import NOT_PRIVATE
    from pate.datasets.catalogue import data_root

    root = data_root(option).absolute()
    there = next(place for place in (root, *root.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Check("data root", "broken", f"{root}: {there} is not a folder one may write to")
    else:
        free = shutil.disk_usage(there).free / 2**30
        new = "" if there == root else "; it is made when it is needed"
        yield Check("data root", "ok", f"{root}, {free:.0f} GiB free{new}")
    ledgers = root / "ledgers"
    files = sorted({*ledgers.glob("*.ledger"), *ledgers.glob(f"*.{NOT_PRIVATE}")})
    if not files:
        yield Check("ledgers", "absent", f"none in {ledgers}")
    with tempfile.TemporaryDirectory() as folder:
        # All of them first: the two of one data set share a budget.
        copied = [_copied(file, Path(folder)) for file in files]
        for file, problem in zip(files, copied, strict=True):
            yield problem or _ledger(file, Path(folder) / file.name)


def _copied(file: Path, folder: Path) -> Check | None:
    """Copy a ledger, and return what is wrong with the file if it cannot be."""
    from pate.accounting.ledger.schema import copy_charges
    from pate.errors import LedgerError

    try:
        copy_charges(file, folder / file.name)
    except LedgerError as error:
        return Check(file.name, "broken", str(error))
    return None


def _ledger(file: Path, copy: Path) -> Check:
    """Return the state of a ledger, from a copy."""
    from pate._format import format_cost, format_remaining
    from pate.accounting import Ledger
    from pate.accounting.ledger.data_set import NOT_PRIVATE
    from pate.errors import LedgerError

    try:
        with Ledger.open(copy) as ledger:
            charges = len(ledger.charges())
            total, budget = ledger.data_set_total(), ledger.data_set_budget
    except LedgerError as error:
        return Check(file.name, "broken", str(error).replace(str(copy), str(file)))
    if not os.access(file, os.W_OK):
        return Check(file.name, "broken", f"{file} is read-only; charges could not be recorded")
    text = f"{charges} charge{'s' * (charges != 1)}; "
    if file.name.endswith(NOT_PRIVATE):
        return Check(file.name, "ok", f"{text}of seeded noise: NOT PRIVATE")
    text += f"the data set so far {format_cost(total.epsilon, total.delta)}"
    left = "no budget was set"
    if not math.isinf(budget):
        left = f"left {format_remaining(budget - total.epsilon)} of {budget:g}"
    return Check(file.name, "ok", f"{text}; {left}")
