"""The people behind the records: who is protected, who is not, and that nobody is on two sides."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pate
from pate.accounting import Ledger
from pate.accounting.ledger.data_set import Coverage
from tests.harness import tiny_records

pytestmark = pytest.mark.usefixtures("plain_plots")
USERS = "all records of one user"
REPLACED = "added or removed, or replaced under the same id"
UNPROTECTED = "The people in public and test records are not protected"
WHO = np.array([f"p{row // 3}" for row in range(150)])


def plain(project: Any, **sections: Any) -> None:
    """Writes the recipe without a sanitised ε, which is a charge of its own."""
    project.write(**{"privacy": {"sanitise": False}, **sections})


def report(project: Any, *words: str) -> str:
    project.call("report", "runs/tiny", "--plugin-path", "plugins", *words)
    folder = project.run_folder / "private" if "--private" in words else project.run_folder
    return str((folder / "report.html").read_text())


# --- groups -------------------------------------------------------------------------------------


def test_a_group_column_protects_users_by_itself(project: Any) -> None:
    project.data(who=WHO)
    plain(project, data={"group": "who"})
    told = project.call_run().stdout
    assert f"{USERS} {REPLACED}" in told
    (total,) = [line for line in told.splitlines() if line.startswith("Whole data set so far")]
    assert f"for {USERS} added or removed; " in total
    assert "for one user added or removed." in told.splitlines()[-1]
    assert (
        json.loads((project.run_folder / "recipe.json").read_text())["partition"]["by"] == "group"
    )
    with Ledger.open(project.ledger) as ledger:
        assert [charge.group for charge in ledger.charges()] == ["who"]
        assert ledger.coverage() is Coverage.USER


def test_one_word_for_whoever_is_protected(project: Any) -> None:
    """The unit of the recipe, on screen, page and card; nobody is a user there, or one record."""
    project.data(who=WHO)
    plain(project, data={"group": "who", "unit": "patient"})
    texts = {
        "run": project.call_run().stdout,
        "status": project.call("status", "runs/tiny", "--plugin-path", "plugins").stdout,
        "page": re.sub(r"<[^>]*>", " ", report(project)),
        "card": release(project, "out"),
    }
    for where, text in texts.items():
        assert "one patient" in text, where
        assert not re.search(r"\b(one|each|any|the) (user|person|record)\b|\busers\b", text), where


def test_to_protect_single_records_of_groups_takes_a_word(project: Any) -> None:
    project.data(who=WHO)
    plain(project, data={"group": "who"}, partition={"by": "record"})
    told = project.call_run().stdout
    assert "one record added or removed" in told
    assert "user" not in told


def test_a_finished_run_that_protects_records_is_not_paid_again(project: Any) -> None:
    """Its recipe was written when a group column alone protected records."""
    project.data(who=WHO)
    plain(project, data={"group": "who"}, partition={"by": "record"})
    project.call_run()
    paid = project.charges()
    assert "nothing to do" in project.call_run().stdout
    plain(project, data={"group": "who"})
    assert "stale" not in project.call("status", "runs/tiny", "--plugin-path", "plugins").stdout
    refused = project.call_run(code=3).stderr
    assert 'set by = "record" in [partition] to keep them' in refused
    assert "stale" not in project.call("status", "runs/tiny", "--plugin-path", "plugins").stdout
    assert project.charges() == paid


def test_a_total_over_users_and_records_covers_records(project: Any) -> None:
    project.data(who=WHO)
    plain(project, data={"group": "who"})
    project.call_run()
    project.write("apart", data={"group": "who"}, partition={"by": "record"})
    told = project.call_run(recipe="apart").stdout
    claim = "it covers single records: only some of these releases"
    assert claim in told
    assert claim in project.call("ledger", "show", "runs/tiny").stdout
    card = release(project, "both")
    assert claim in (project.folder / "both" / "report.html").read_text()
    assert f"for {USERS} {REPLACED}" in card  # this release by itself
    assert claim in card
    statement = json.loads((project.folder / "both" / "guarantee.json").read_text())
    assert statement["data_set"]["covers"] == "mixed"


def release(project: Any, out: str, *words: str) -> str:
    options = ["--plugin-path", "plugins"]
    project.call("release", "runs/tiny", out, *options, *words)
    return str((project.folder / out / "MODEL_CARD.md").read_text())


def test_what_an_earlier_version_said_of_users_is_restated(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release with its words still verifies; a new one of the same run has those of today."""
    earlier = "all records of one user added, removed or replaced"
    project.data(who=WHO)
    plain(project, data={"group": "who"})
    with monkeypatch.context() as before:
        before.setattr("pate.partition.PROTECTED_USERS", earlier)
        for module in ("artifacts.results", "releases.verify"):
            before.setattr(f"pate.{module}.restate_protected", str)
        project.call_run()
        assert f"for {earlier}" in release(project, "before")
    project.call("verify", "before", "--trust", "--plugin-path", "plugins")
    release(project, "after")
    for name in ("MODEL_CARD.md", "guarantee.json", "deployment.yaml", "report.html"):
        told = " ".join((project.folder / "after" / name).read_text().split())
        assert f"{USERS} {REPLACED}" in told, name
        assert earlier not in told
    assert earlier not in report(project)


def test_more_labels_of_users_do_not_rest_on_releases_of_records(project: Any) -> None:
    """Labels that extend others are counted by the ledger, whose total is then about records."""
    project.data(who=WHO)
    plain(project, data={"group": "who"})
    project.call_run()
    project.write("apart", data={"group": "who"}, partition={"by": "record"})
    project.call_run(recipe="apart")
    paid = project.charges()
    plain(project, data={"group": "who"}, aggregate={"queries": 15})
    assert "--spend" in project.call_run(code=3).stderr
    assert project.charges() == paid


def test_more_labels_of_users_rest_on_releases_of_users(project: Any) -> None:
    project.data(who=WHO)
    plain(project, data={"group": "who"})
    project.call_run()
    plain(project, data={"group": "who"}, aggregate={"queries": 15})
    assert f"{USERS} added" in project.call_run().stdout
    with Ledger.open(project.ledger) as ledger:
        assert [charge.events[0].count for charge in ledger.charges()] == [12, 3]


def test_groups_of_own_code_are_named_in_the_recipe(project: Any) -> None:
    code = "import numpy as np\nfrom tests.harness import tiny_records\nX, y = tiny_records()\n"
    code += "pool = {'X': X, 'y': y, 'groups': np.arange(150) // 3}\n"
    project.plugin("hospital", code)
    plain(project, data={"source": "hospital:pool"})
    refused = project.call_run(code=2).stderr
    assert 'group = "groups"' in refused
    assert 'by = "record"' in refused
    assert not project.ledger.exists()
    plain(project, data={"source": "hospital:pool", "group": "groups"})
    assert USERS in project.call_run().stdout


def test_groups_of_a_classifier_are_recorded_with_its_charge(tmp_path: Path) -> None:
    features, labels = tiny_records()
    place = tmp_path / "mine.ledger"
    for groups in (WHO, None):
        clf = pate.PATEClassifier(
            6, epsilon=9.0, delta=1e-3, student="supervised", classes=range(3)
        )
        clf.fit(features, labels, public=features[:20] + 0.5, groups=groups, ledger=place)
        assert (USERS in clf.protects_) is (groups is not None)
    with Ledger.open(place) as ledger:
        first, second = (charge.group for charge in ledger.charges())
        assert first is not None
        assert first.startswith("users of labels ")  # of its own: an array has no name
        assert second is None
        assert ledger.coverage() is Coverage.MIXED
        assert "nothing is claimed of users" in str(ledger.data_set_total())


# --- one file for all three roles -----------------------------------------------------------------


def test_one_file_for_all_roles_must_be_accepted(project: Any) -> None:
    """Nothing is read: the file need not even exist."""
    (project.folder / "tiny.npz").unlink()
    plain(project, data={"accept_unprotected": None})
    for words in ((), ("--dry-run",)):
        refused = project.call_run(*words, code=2).stderr
        assert refused.count("\n") == 1
        for remedy in ("private_path, public_path", "data.accept_unprotected = true"):
            assert remedy in refused
    assert not project.run_folder.exists()
    assert not project.ledger.parent.exists()
    with pytest.raises(pate.InvalidInput, match="accept_unprotected"):
        pate.run(project.folder / "tiny.toml", out=project.run_folder, data_root=project.folder)


def test_one_pool_of_own_code_must_be_accepted(project: Any) -> None:
    project.plugin("pool", "from tests.harness import tiny_records\npool = tiny_records()\n")
    plain(project, data={"source": "pool:pool", "accept_unprotected": None})
    assert "accept_unprotected" in project.call_run(code=2).stderr
    assert not project.ledger.exists()


def test_the_unprotected_are_named_and_their_errors_left_out(project: Any) -> None:
    """A finished run goes on working without the key, which is no part of any fingerprint."""
    plain(project)
    assert UNPROTECTED in project.call_run().stdout
    paid = project.charges()
    assert "accept_unprotected" not in (project.run_folder / "recipe.json").read_text()
    plain(project, data={"accept_unprotected": None})
    assert "nothing to do" in project.call_run().stdout
    assert "stale" not in project.call("status", "runs/tiny", "--plugin-path", "plugins").stdout
    assert UNPROTECTED in release(project, "out")
    record = json.loads((project.folder / "out" / "release.json").read_text())["evaluation"]
    assert record["confusion"] is None
    for shown in (report(project), (project.folder / "out" / "report.html").read_text()):
        assert UNPROTECTED in shown
        assert "one source" in shown
        assert 'class="confusion"' not in shown
        assert "Recall" not in shown
    assert project.charges() == paid


BLIND = """
import numpy as np


class Blind:
    \"\"\"Never predicts the last class.\"\"\"

    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.argmax(np.asarray(X)[:, :2], axis=1)
"""
UNFOUND = "The student finds no test record of at least one class: recall is zero."


def test_a_class_without_recall_is_flagged_and_not_named(project: Any) -> None:
    """To the owner: a release is made without what follows from test people, unless asked."""
    project.plugin("blind", BLIND)
    plain(project, student={"model": "blind:Blind"})
    assert f"Note: {UNFOUND}" in project.call_run().stdout
    page = html.unescape(report(project))
    assert UNFOUND in page
    assert "finds no test record of class" not in page
    release(project, "out")
    released = html.unescape((project.folder / "out" / "report.html").read_text())
    assert "finds no test record" not in released
    assert "finds no test record" not in (project.folder / "out" / "MODEL_CARD.md").read_text()
    assert "finds no test record of class 2" in report(project, "--with-confusion")


@pytest.mark.campaign
def test_errors_on_unprotected_people_are_released_where_asked(project: Any) -> None:
    plain(project)
    project.call_run()
    release(project, "asked", "--with-confusion")
    project.call("verify", "asked", "--trust", "--plugin-path", "plugins")
    record = json.loads((project.folder / "asked" / "release.json").read_text())["evaluation"]
    assert sum(map(sum, record["confusion"])) == 30
    assert 'class="confusion"' in (project.folder / "asked" / "report.html").read_text()
    for word in ("--private", "--with-confusion"):
        assert 'class="confusion"' in report(project, word)


# --- records with two roles -----------------------------------------------------------------------


def three_files(project: Any, *, ids: Any = None, groups: Any = None, **data: Any) -> None:
    """Writes private.csv, public.csv and test.csv, of which public.csv has 7 private rows."""
    features, labels = tiny_records()
    roles = {"private": range(90), "public": [*range(90, 120), *range(7)], "test": range(120, 150)}
    for role, rows in roles.items():
        with (project.folder / f"{role}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["a", "b", "c", "d", "y", "id", "who"])
            for place, row in enumerate(rows):
                name = f"{role}-{place}" if ids is None else ids(role, place, row)
                who = f"{role}-{place}" if groups is None else groups(role, place, row)
                out.writerow([*features[row].tolist(), labels[row], name, who])
    project.sections["data"] = {"name": "tiny", "label": "y", "features": [*"abcd"]} | {
        f"{role}_path": f"{role}.csv" for role in roles
    }
    plain(project, data=data)


@pytest.mark.parametrize(
    ("names", "data", "words"),
    [
        ({}, {}, ["7 records of public.csv are among the private records too", "data.id"]),
        (
            {"ids": lambda role, place, row: f"r{row}"},
            {"id": "id"},
            ["7 records of public.csv have ids of private records", "remove them there"],
        ),
        (
            {"groups": lambda role, place, row: f"p{row // 3}" if role != "test" else f"t{row}"},
            {"group": "who"},
            ["7 records of public.csv have groups of private records"],
        ),
        (
            {"ids": lambda role, place, row: f"{role == 'private'} {place}"},
            {"id": "id"},
            ["30 records of test.csv have ids of public records"],
        ),
    ],
    ids=["rows", "ids", "groups", "public-and-test"],
)
def test_a_record_with_two_roles_is_refused(
    project: Any, names: dict[str, Any], data: dict[str, Any], words: list[str]
) -> None:
    three_files(project, **names, **data)
    for option in ((), ("--dry-run",)):
        refused = project.call_run(*option, code=2).stderr
        assert refused.count("\n") == 1
        for word in words:
            assert word in refused
    assert not project.ledger.exists()
    with pytest.raises(pate.InvalidInput, match=words[0].replace("of ", "of .*", 1)):
        pate.run(
            project.folder / "tiny.toml",
            set={f"data.{role}_path": str(project.folder / f"{role}.csv")
                 for role in ("private", "public", "test")},
            out=project.folder / "again",
            data_root=project.folder / "data",
            plugin_path=project.folder / "plugins",
        )  # fmt: skip


@pytest.mark.parametrize("column", [{"id": "id"}, {"group": "who"}], ids=["id", "group"])
def test_equal_rows_of_different_people_are_counted_in_private(
    project: Any, column: dict[str, Any]
) -> None:
    """Its owner reads the number before and after the run, and nobody else does."""
    three_files(project, **column)
    note = "7 public records have the very features of a private record, under another id or group"
    assert project.call_run("--dry-run").stdout.count(note) == 1
    assert not project.ledger.exists()
    told = project.call_run().stdout
    assert told.count(note) == 1
    assert "test records have" not in told
    assert UNPROTECTED in told
    assert "one source" not in told
    release(project, "out")
    for file in [*(project.folder / "out").rglob("*"), *project.run_folder.glob("released/*/*/*")]:
        assert not file.is_file() or b"very features" not in file.read_bytes()
    assert note not in report(project)
    found = project.json("partition", "report.json")
    assert found["public_records_equal_to_private_ones"] == 7
    assert found["test_records_equal_to_private_ones"] == 0


@pytest.mark.parametrize("kind", ["parts", "splits"])
def test_parts_of_own_code_are_compared(project: Any, kind: str) -> None:
    """Three parts need no word of acceptance, and a float32 copy of a record is that record."""
    project.plugin(
        "hospital",
        "import numpy as np\n"
        "from pate.datasets.table import Splits, Table\n"
        "from tests.harness import tiny_records\n"
        "X, y = tiny_records()\n"
        "def parts(rows=range(90, 120)):\n"
        "    public = X[[*rows]].astype(np.float32)\n"
        "    return {'private': (X[:90], y[:90]), 'public': public, 'test': (X[120:], y[120:])}\n"
        "def splits(rows=range(90, 120)):\n"
        "    found = parts(rows)\n"
        "    (a, b), (c, d) = found['private'], found['test']\n"
        "    public = Table(features=found['public'], labels=None)\n"
        "    return Splits(private=Table(features=a, labels=b), test=Table(features=c, labels=d),\n"
        "        public=public, class_names=('a', 'b', 'c'))\n"
        "def parts_shared(): return parts(range(85, 115))\n"
        "def splits_shared(): return splits(range(85, 115))\n",
    )
    data = {"accept_unprotected": None, "public": None, "test": None}
    plain(project, data={**data, "source": f"hospital:{kind}_shared"})
    refused = project.call_run(code=2).stderr
    assert "5 records of the public part of tiny are among the private records too" in refused
    plain(project, data={**data, "source": f"hospital:{kind}"})
    project.call_run(stage="partition")


def test_pictures_are_compared_by_their_pixels(project: Any) -> None:
    """Their paths name nobody: equal ones are other pictures, and a copy has another one."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for role, count in (("private", 12), ("public", 4), ("test", 4)):
        for number in range(count):
            file = project.folder / role / "ab"[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, size=(6, 6), dtype=np.uint8)
            image.fromarray(pixels).save(file)
    project.sections["data"] = {"name": "tiny"} | {
        f"{role}_path": role for role in ("private", "public", "test")
    }
    plain(project)
    project.call_run(stage="partition")
    copied = (project.folder / "private" / "a" / "2.png").read_bytes()
    (project.folder / "public" / "b" / "another.png").write_bytes(copied)
    refused = project.call_run(code=2).stderr
    assert "1 record of public is among the private records too" in refused
