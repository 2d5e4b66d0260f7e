"""The shape of the project: layers, light imports, honest exports, the door to torchvision."""

from __future__ import annotations

import ast
import enum
import functools
import importlib.metadata
import inspect
import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pate
import pate.accounting
from pate.accounting import Ledger
from pate.errors import IN_EXTRA

ROOT = Path(__file__).parents[2]

# Each name may import from its own layer's package and from layers below it.
LAYERS = [
    ["__main__"],
    ["cli"],
    ["api"],
    ["estimator"],
    ["audits"],
    ["aggregation"],
    ["forgetting", "releases"],
    ["report"],
    ["dpsgd_runs", "federated", "planner", "studies"],
    ["stages"],
    ["pipeline"],
    ["queries"],
    ["ensemble"],
    ["frames", "students", "testing"],
    ["partition", "teachers", "mechanisms", "encoders", "datasets", "plugin_source"],
    ["artifacts", "components", "console", "engines", "plugins", "recipes", "votes"],
    ["record_votes"],
    [
        "accounting",
        "archives",
        "devices",
        "metrics",
        "nearest_neighbours",
        "randomness",
        "untrusted",
        "vision",
    ],
    ["_files", "_namesake", "_plots", "_validate", "silence"],
    ["errors"],
    ["_format", "_html"],
]
HEIGHT = {name: -level for level, names in enumerate(LAYERS) for name in names}
OPEN_TO_DPSGD = {
    "_files", "_format", "_plots", "_validate", "accounting", "artifacts", "console", "datasets",
    "encoders", "errors", "plugins", "randomness", "recipes", "silence", "untrusted",
}  # fmt: skip

SHARED_COMMANDS = {"pate.cli.audit.audit"}  # thin commands that both programs have
MAY_IMPORT_DPSGD = ("audits", "studies/compare", "dpsgd_runs.py")


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def nodes(path):
    """All nodes of a file that import or call something."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def imported_modules(path):
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def part_of(module):
    """The part of ``pate`` a dotted name belongs to: 'pate.accounting.events' → 'accounting'."""
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("path", sources("pate"), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    inside = path.relative_to(ROOT / "pate")
    own = inside.parts[0].removesuffix(".py")
    for module in imported_modules(path):
        package = module.split(".")[0]
        if package == "dpsgd":
            allowed = any(inside.is_relative_to(place) for place in MAY_IMPORT_DPSGD)
            assert allowed, f"{inside} imports {module}"
        if package == "pate" and own != "__init__" and part_of(module) != own:
            part = part_of(module)
            if part == "__version__":
                continue
            assert HEIGHT[part] < HEIGHT[own], f"{inside} imports {module}, which is not below it"


@pytest.mark.parametrize("path", sources("dpsgd"), ids=lambda path: str(path.relative_to(ROOT)))
def test_dpsgd_leans_on_little(path):
    for module in imported_modules(path):
        if module.split(".")[0] == "pate" and module not in SHARED_COMMANDS:
            assert part_of(module) in OPEN_TO_DPSGD, f"{path.name} imports {module}"


@pytest.mark.parametrize("path", sources("pate/accounting"), ids=lambda path: path.name)
def test_accounting_needs_numpy_and_scipy_only(path):
    allowed = {"numpy", "scipy", "pate", "dp_accounting", *sys.stdlib_module_names}
    assert {module.split(".")[0] for module in imported_modules(path)} <= allowed


@pytest.mark.parametrize(
    "code",
    ["import pate", "import dpsgd", "import pate.accounting", "import pate.cli; pate.cli.app"],
)
def test_imports_are_light(code):
    heavy = ["torch", "torchvision", "sklearn", "ray", "dp_accounting", "matplotlib"]
    if "accounting" not in code:
        heavy += ["numpy", "scipy"]
    check = f"{code}; import sys; print([m for m in {heavy!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_help_loads_nothing_heavy_and_is_quick():
    code = (
        "import sys; sys.argv = ['pate', '--help']\n"
        "from pate.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert stop.code == 0, stop.code\n"
        "print([m for m in ('torch', 'sklearn', 'ray', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip().endswith("[]")
    assert "epsilon" in run.stdout

    def seconds(*command):
        """Of the processor: others may keep it busy."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    helps, bases = [], []
    for _ in range(3):  # interleaved; the least of each
        bases.append(seconds(sys.executable, "-c", "import typer, rich"))
        helps.append(seconds(sys.executable, "-m", "pate", "--help"))
    assert min(helps) < 3 * min(bases)


def test_a_distribution_of_the_same_import_name_is_reported(tmp_path):
    """The time-series metric PATE; not an install of ours from before it was pate-privacy."""

    script = tmp_path / "script.py"

    def imports(code="import pate; print(pate.Guarantee.__name__)"):
        script.write_text(code)
        run = subprocess.run(
            [sys.executable, "-W", "error", script],
            env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
            capture_output=True,
            text=True,
        )
        return run.stdout, run.stderr

    (tmp_path / "pate_privacy-0.1.0.dist-info").mkdir()
    own = tmp_path / "pate-0.1.0.dist-info"
    own.mkdir()
    (own / "entry_points.txt").write_text("[console_scripts]\npate = pate.cli:main\n")
    assert imports() == ("Guarantee\n", "")
    (tmp_path / "PATE-0.1.1.dist-info").mkdir()
    out, err = imports()
    assert out == "Guarantee\n"
    assert err.count("\n") == 1
    assert err.startswith("pate: ")
    assert "the time-series package PATE (PATE-0.1.1.dist-info) is installed, too" in err
    replaced = "import pate, sys; del pate.__version__; from dpsgd.cli import main; main()"
    out, err = imports(replaced)
    assert out == ""
    assert "dpsgd: pate/__init__.py is not that of pate-privacy" in err
    assert err.splitlines()[-1].endswith("then reinstall pate-privacy (pip install "
                                         "--force-reinstall)")  # fmt: skip


def test_exports_are_there():
    for module in (pate, pate.accounting):
        for name in module.__all__:
            assert getattr(module, name) is not None
        assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError):
        pate.nonsense  # noqa: B018


def test_every_argument_of_the_accounting_api_is_documented():
    for name in pate.accounting.__all__:
        exported = getattr(pate.accounting, name)
        text = inspect.getdoc(exported) or ""
        assert text, name
        if not (inspect.isclass(exported) and issubclass(exported, (enum.Enum, Ledger))):
            for argument in inspect.signature(exported).parameters:
                assert f"\n{argument}\n" in text, f"{name}: {argument}"


def test_versions_agree_and_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == pate.__version__
    assert f"## {pate.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    pins = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    for requirement in project["dependencies"] + extras:
        name = re.split(r"[\[>]", requirement)[0]
        assert name in pins | {"pate-privacy"}, requirement


# Used where somebody has them, and never asked for.
GUESTS = {
    "IPython": "progress in a notebook, which has it",
    "pandas": "tables with text, which reach us as DataFrames; refused with the remedy without it",
}


def third_party(path):
    """The packages that a file imports, at its top or within functions, also by their name."""
    for module in imported_modules(path):
        yield module.partition(".")[0]
    for node in nodes(path):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "find_spec") and isinstance(node.args[0].value, str):
                yield node.args[0].value.partition(".")[0]


def declared(*extras):
    """The distributions that an installation with these extras asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [each for extra in extras for each in project["optional-dependencies"][extra]]
    return [re.split(r"[\[<>=]", each)[0] for each in [*project["dependencies"], *optional]]


def provided(distributions):
    """The names that distributions are imported by, from their lists of files."""
    found = set()
    for each in distributions:
        files = importlib.metadata.distribution(each).files or []
        found |= {
            file.parts[0].partition(".")[0] for file in files if file.suffix in (".py", ".so")
        }
    return found


def test_every_import_belongs_to_a_declared_dependency():
    """What is there as a dependency of a dependency may go with the next version."""
    imported = {name for path in sources("pate") + sources("dpsgd") for name in third_party(path)}
    imported -= {"pate", "dpsgd", *sys.stdlib_module_names, *GUESTS}
    assert {"numpy", "PIL", "pyarrow", "ray", "torchvision"} <= imported
    core = provided(declared())
    extras = provided(declared("boosting", "federated", "parquet", "ray")) - core
    assert imported <= core | extras
    # What an extra brings is asked for with its name (MissingPackage), or is at home in Flower.
    assert imported & extras <= {*IN_EXTRA, "cryptography", "starlette"}


def test_every_extra_is_part_of_all_but_those_of_a_checkout():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    (everything,) = project["optional-dependencies"]["all"]
    part = set(everything.partition("[")[2].rstrip("]").split(","))
    assert part == extras - {"all", "bench", "dev", "docs"}


@pytest.mark.campaign
def test_torchvision_comes_through_one_door():
    """In a fresh process: works beside a CPU-only torch, and leaves a good install alone."""
    code = (
        "from pate.vision import torchvision, _declared\n"
        "import importlib\n"
        "try:\n    importlib.import_module('torchvision'); broken = False\n"
        "except RuntimeError: broken = True\n"
        "vision = torchvision()\n"
        "from torchvision import datasets, transforms, models\n"
        "assert vision is torchvision() and len(_declared) == broken\n"
        "import torch; model = models.resnet18(num_classes=3).eval()\n"
        "assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)\n"
        "print('works', broken)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.startswith("works"), run.stderr


def test_torchvision_that_imports_normally_is_left_alone(tmp_path):
    (tmp_path / "torchvision.py").write_text("healthy = True\n")
    code = (
        "import sys; from pate.vision import torchvision, _declared\n"
        "assert torchvision().healthy and not _declared and 'torch' not in sys.modules\n"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('something else')\n")
    code = "from pate.vision import torchvision\ntorchvision()"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert b"something else" in run.stderr


def test_only_the_door_imports_torchvision():
    for path in sources("pate") + sources("dpsgd"):
        if path.name != "vision.py":
            assert "torchvision" not in {m.split(".")[0] for m in imported_modules(path)}, path
