"""Import names: what is found, what is refused in one sentence, and that sys.path is left alone."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys

import pytest

from pate import plugins
from pate.errors import InvalidInput
from pate.plugins import entry_points, resolve


@pytest.fixture
def write(tmp_path):
    def write_(text, name="plugin_under_test.py", folder="one"):
        place = tmp_path / folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    yield write_
    for name in [m for m in sys.modules if m.startswith("plugin_under_test")]:
        del sys.modules[name]
        plugins._plugins.pop(name, None)


def test_installed_modules_and_nested_attributes():
    assert resolve("math:sqrt") is math.sqrt
    assert resolve("collections:OrderedDict.fromkeys")("ab") == {"a": None, "b": None}


@pytest.mark.parametrize("as_file", [True, False])
def test_a_plugin_from_a_folder_or_a_file(write, as_file):
    write("VALUE = 7\n", name="plugin_under_test_sibling.py")
    file = write("from plugin_under_test_sibling import VALUE\n")
    before = list(sys.path)
    assert resolve("plugin_under_test:VALUE", path=file if as_file else file.parent) == 7
    assert sys.path == before


def test_a_plugin_is_imported_once(write):
    file = write("class A: pass\n")
    assert resolve("plugin_under_test:A", path=file) is resolve("plugin_under_test:A", path=file)


def test_the_same_name_in_another_folder_is_another_plugin(write):
    for folder, value in (("one", 1), ("two", 2)):
        write(f"VALUE = {value}\n", name="plugin_under_test_sibling.py", folder=folder)
        write("from plugin_under_test_sibling import VALUE\n", folder=folder)
    one, two = (write("", name="empty.py", folder=f).parent for f in ("one", "two"))
    assert resolve("plugin_under_test:VALUE", path=one) == 1
    assert resolve("plugin_under_test:VALUE", path=two) == 2
    assert resolve("plugin_under_test:VALUE", path=one) == 1


def test_a_plugin_may_not_hide_a_loaded_module(write):
    file = write("loads = 1\n", name="json.py")
    with pytest.raises(InvalidInput, match="already loaded; rename"):
        resolve("json:loads", path=file)
    assert resolve("json:loads")("1") == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("no_such_module_here:Model", "no module 'no_such_module_here'.*--plugin-path"),
        ("math.nothing:Model", "no module 'math.nothing'"),
        ("math:sqroot", "module 'math' has no 'sqroot'; did you mean 'sqrt'"),
        ("math:", "write it as 'module:attr'"),
        (":sqrt", "write it as 'module:attr'"),
        ("math:a b", "write it as 'module:attr'"),
        ("a:b:c", "write it as 'module:attr'"),
        ("math.sqrt", "did you mean 'math:sqrt'"),
        ("tree", "'tree' is not known"),
        ("x" * 5000, "an import name has 5000 characters; it takes 500"),
    ],
)
def test_what_is_not_there_is_named(entry, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        resolve(entry)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import not_installed_library", "ModuleNotFoundError: No module named 'not_installed"),
        ("def f(:\n", "SyntaxError: .*plugin_under_test.py, line 1"),
        (
            "raise RuntimeError('first line\\nsecond')",
            r"RuntimeError in .*/plugin_under_test.py line 1$",
        ),
        ("import sys; sys.exit(3)", r"SystemExit in .*/plugin_under_test.py line 1$"),
        ("from math import nothing", "ImportError: cannot import name 'nothing'"),
        ("raise KeyError", r"KeyError in .*/plugin_under_test.py line 1$"),
    ],
)
def test_the_reason_an_import_fails_is_not_hidden(write, text, message):
    file = write(text)
    with pytest.raises(InvalidInput, match=f"'plugin_under_test' cannot be imported: {message}"):
        resolve("plugin_under_test:A", path=file)
    assert str(file.parent) not in sys.path


def test_plugin_paths_that_are_not(tmp_path):
    with pytest.raises(InvalidInput, match="there is no plug-in path"):
        resolve("a:b", path=tmp_path / "missing")
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(InvalidInput, match=r"not a \.py file"):
        resolve("a:b", path=tmp_path / "a.txt")
    with pytest.raises(InvalidInput, match=f"no module 'nothing_here' in {tmp_path}"):
        resolve("nothing_here:b", path=tmp_path)


def test_entry_points_of_installed_packages(tmp_path, monkeypatch):
    info = tmp_path / "offering-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pate.tests]\nroot = math:sqrt\nlog = math : log\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    entry_points.cache_clear()
    assert entry_points("pate.tests") == ("log", "root")
    assert resolve("root", group="pate.tests") is math.sqrt
    assert resolve("log", group="pate.tests") is math.log
    with pytest.raises(InvalidInput, match="did you mean 'root'"):
        resolve("rot", group="pate.tests")
    entry_points.cache_clear()


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.campaign
def test_a_plugin_may_import_torchvision_beside_any_torch(tmp_path, lazily):
    """In a process of its own: the import is mended once for the whole process."""
    importing = "from torchvision.transforms import CenterCrop\n"
    text = f"def crop(size):\n    {importing}    return CenterCrop(size)\n"
    if not lazily:
        text = f"{importing}def crop(size):\n    return CenterCrop(size)\n"
    (tmp_path / "eyes.py").write_text(text)
    code = (
        "import sys; from pathlib import Path; from pate.plugins import resolve\n"
        "crop = resolve('eyes:crop', path=Path(sys.argv[1]))\n"
        "print(type(crop(4)).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "CenterCrop"
