"""The store: whole or not at all, and closed to those who may not look."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from pate.artifacts import Level, Store, StoreError, fingerprint

fork = multiprocessing.get_context("fork")
FROM = fingerprint("something")


@pytest.fixture
def store(tmp_path):
    return Store(root=tmp_path / "run")


def make(store, stage="vote", *, level=Level.PRIVATE, made_from=FROM, value=1, **options):
    with store.draft(stage, made_from, level=level, **options) as draft:
        draft.save_array("counts.npy", np.full(10, value))
        draft.save_json("report.json", {"value": value})
        draft.facts["value"] = value
    if level is Level.PRIVATE:
        return store.folder(stage, level, made_from)
    (origin,) = store.root.glob(f"private/origins/{stage}/{made_from[:20]}.json")
    return store.root / level.folder / stage / json.loads(origin.read_text())["folder"]


def everything(root):
    """Every path and byte under a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def mode(path):
    return path.stat().st_mode & 0o777


# --- writing whole or not at all --------------------------------------------------------------


def test_what_was_written_is_read(store):
    folder = make(store, value=7)
    artifact = store.open("vote", FROM)
    assert artifact.path == folder
    assert artifact.array("counts.npy").tolist() == [7] * 10
    assert artifact.json("report.json") == {"value": 7}
    assert artifact.facts == {"value": 7}
    assert artifact.level is Level.PRIVATE
    assert store.all("vote")[0].digest == artifact.digest


def test_the_digest_is_of_the_content_alone(tmp_path):
    one, other = Store(root=tmp_path / "a"), Store(root=tmp_path / "b")
    make(one, inputs={"x": "1"})
    make(other, made_from=fingerprint("else"), inputs={"x": "2"})
    digests = {each.all("vote")[0].digest for each in (one, other)}
    assert len(digests) == 1
    make(other, made_from=fingerprint("third"), value=2)
    assert len({artifact.digest for artifact in other.all("vote")}) == 2


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1)])
def test_an_exception_in_a_draft_leaves_nothing(store, error):
    make(store, stage="teach")
    before = everything(store.root)

    def fail():
        with store.draft("teach", fingerprint("other"), level=Level.PRIVATE) as draft:
            draft.save_array("counts.npy", np.zeros(5))
            raise error

    with pytest.raises(type(error)):
        fail()
    assert everything(store.root) == before


def test_facts_that_json_cannot_hold_leave_nothing(store):
    make(store)
    before = everything(store.root)
    with (
        pytest.raises(ValueError, match="JSON"),
        store.draft("vote", fingerprint("nan"), level=Level.PRIVATE) as draft,
    ):
        draft.facts["share"] = float("nan")
    assert everything(store.root) == before


def test_an_error_about_a_file_elsewhere_stays_what_it_is(store, tmp_path):
    with pytest.raises(FileNotFoundError), store.draft("vote", FROM, level=Level.PRIVATE):
        (tmp_path / "elsewhere").read_text()


def test_who_came_first_stays(store):
    make(store, value=1)
    make(store, value=2)
    assert store.open("vote", FROM).facts == {"value": 1}
    assert not list(store.root.rglob(".draft-*"))


def write_often(root, start, results, value):
    store = Store(root=root)
    start.wait()
    try:
        for number in range(30):
            make(store, made_from=fingerprint(number), value=value)
            store.open("vote", fingerprint(number))
            if number % 5 == 0:
                store.sweep()
        results.put("well")
    except BaseException as error:
        results.put(repr(error))


def test_two_writers_at_once_both_succeed_and_one_wins(store):
    """They also sweep while the other is writing."""
    begin, results = fork.Event(), fork.Queue()
    writers = [
        fork.Process(target=write_often, args=(store.root, begin, results, value))
        for value in (1, 2)
    ]
    for writer in writers:
        writer.start()
    begin.set()
    assert [results.get(timeout=300) for _ in writers] == ["well", "well"]
    for writer in writers:
        writer.join()
    for number in range(30):
        artifact = store.open("vote", fingerprint(number))
        assert set(artifact.array("counts.npy").tolist()) == {artifact.facts["value"]}
    assert not list(store.root.rglob(".draft-*"))


def hang_in_a_draft(root, ready):
    with Store(root=root).draft("vote", FROM, level=Level.PRIVATE) as draft:
        draft.save_json("report.json", {})
        ready.set()
        time.sleep(60)


def test_sweeping_takes_the_drafts_of_the_dead_only(store):
    ready = fork.Event()
    writer = fork.Process(target=hang_in_a_draft, args=(store.root, ready))
    writer.start()
    assert ready.wait(20)
    (draft,) = store.root.glob("private/vote/.draft-*")
    store.sweep()
    assert (draft / "report.json").exists(), "it is being filled"
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert draft.exists()
    assert store.find("vote", FROM) is None
    assert store.all("vote") == []
    store.sweep()
    assert not draft.exists()
    make(store)
    store.open("vote", FROM)


def test_a_draft_with_a_manifest_is_not_an_artifact(store):
    folder = make(store)
    folder.rename(folder.parent / ".draft-killed-before-its-rename")
    assert store.find("vote", FROM) is None
    assert store.all("vote") == []


# --- damage -----------------------------------------------------------------------------------


def damage(store, folder, how):
    file, manifest = folder / "counts.npy", folder / "manifest.json"
    if how == "bit":
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif how == "gone":
        file.unlink()
    elif how == "extra":
        (folder / "more.npy").write_bytes(b"x")
    elif how == "fact":
        manifest.write_text(manifest.read_text().replace('"value": 1', '"value": 2'))
    elif how == "level":
        manifest.write_text(manifest.read_text().replace("PRIVATE", "RELEASED"))
    elif how == "cut manifest":
        manifest.write_text(manifest.read_text()[:-20])
    elif how == "no seal":
        content = json.loads(manifest.read_text())
        del content["seal"]
        manifest.write_text(json.dumps(content))
    else:
        manifest.write_text({"a list": "[]", "nan": '{"seal": 1, "facts": NaN}'}[how])


@pytest.mark.parametrize(
    ("how", "name", "why"),
    [
        ("bit", "counts.npy", "damaged or changed"),
        ("cut", "counts.npy", "damaged or changed"),
        ("gone", "counts.npy", "missing"),
        ("extra", "more.npy", "by hand"),
        ("fact", "vote/", "changed by hand"),
        ("level", "vote/", "changed by hand"),
        ("cut manifest", "vote/", "cannot be read"),
        ("no seal", "vote/", "cannot be read"),
        ("a list", "vote/", "cannot be read"),
        ("nan", "vote/", "cannot be read"),
    ],
)
def test_damage_is_found_and_named(store, how, name, why):
    folder = make(store)
    damage(store, folder, how)
    with pytest.raises(StoreError) as caught:
        store.open("vote", FROM)
    message = str(caught.value)
    assert name in message
    assert str(folder) in message
    assert why in message
    assert "remove" in message
    assert "\n" not in message


def test_hidden_files_of_the_system_are_no_damage(store):
    folder = make(store)
    (folder / ".DS_Store").write_bytes(b"x")
    store.open("vote", FROM)


def test_a_folder_without_manifest_is_named(store):
    folder = make(store)
    (folder / "manifest.json").unlink()
    assert store.find("vote", FROM) is None
    with pytest.raises(StoreError, match="has no manifest; remove it") as caught:
        make(store)
    assert str(folder) in str(caught.value)
    shutil.rmtree(folder)
    make(store)
    store.open("vote", FROM)


def test_a_folder_under_another_fingerprint_is_refused(store):
    folder = make(store)
    other = fingerprint("other")
    shutil.copytree(folder, store.folder("vote", Level.PRIVATE, other))
    with pytest.raises(StoreError, match="made from something else"):
        store.open("vote", other)


# --- who may look -----------------------------------------------------------------------------


def test_clearance(store):
    for level in Level:
        make(store, stage=f"of-{level.folder}", level=level)
    distill = store.cleared("distill", Level.RELEASED)
    distill.open("of-public", FROM)
    distill.open("of-released", FROM)
    for look in (distill.open, distill.find, lambda stage, _: distill.all(stage)):
        with pytest.raises(StoreError, match="distill may not open of-private: it is PRIVATE"):
            look("of-private", FROM)


def test_clearance_never_rises_and_no_stage_passes_for_another(store):
    make(store)
    make(store, stage="data-test", level=Level.PUBLIC, only_for=("evaluate",))
    distill = store.cleared("distill", Level.RELEASED)
    with pytest.raises(StoreError, match="beyond RELEASED"):
        distill.cleared("distill", Level.PRIVATE).open("vote", FROM)
    with pytest.raises(StoreError, match="distill may not open the store as evaluate"):
        distill.cleared("evaluate", Level.PRIVATE)


@pytest.mark.parametrize("reader", ["run", "teach", "vote", "aggregate", "account", "distill"])
def test_what_is_for_evaluate_is_for_evaluate(store, reader):
    make(store, stage="data-test", level=Level.PUBLIC, only_for=("evaluate",))
    stage = store.cleared(reader, Level.PRIVATE)
    for look in (stage.open, stage.find, lambda name, _: stage.all(name)):
        with pytest.raises(StoreError, match=f"{reader} may not open data-test: it is for evaluat"):
            look("data-test", FROM)
    store.cleared("evaluate", Level.PRIVATE).open("data-test", FROM)


def test_moving_a_private_folder_does_not_release_it(store):
    folder = make(store)
    released = store.folder("vote", Level.RELEASED, FROM)
    released.parent.mkdir(parents=True)
    folder.rename(released)
    with pytest.raises(StoreError, match="moved there by hand: it is a PRIVATE artifact of vote"):
        store.cleared("distill", Level.RELEASED).open("vote", FROM)
    other = make(store, stage="aggregate", level=Level.RELEASED)
    shutil.rmtree(other)
    make(store, stage="account", level=Level.RELEASED).rename(other)
    with pytest.raises(StoreError, match="it is a RELEASED artifact of account"):
        store.open("aggregate", FROM)


def test_private_folders_are_their_owners(store):
    before = os.umask(0)
    try:
        folder = make(store)
        released = make(store, level=Level.RELEASED, stage="aggregate")
    finally:
        os.umask(before)
    assert mode(store.root / "private") == 0o700
    assert mode(folder) == 0o700
    assert mode(released) == 0o755


def test_a_private_folder_that_was_opened_up_is_closed_again(store):
    """Whether by hand or by a kill, the next artifact finds it 0700."""
    (store.root / "private").mkdir(parents=True, mode=0o755)
    make(store)
    assert mode(store.root / "private") == 0o700
    (store.root / "private").chmod(0o755)
    make(store, made_from=fingerprint("next"))
    assert mode(store.root / "private") == 0o700


# --- disks that fail --------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of one megabyte; yields its folder and how to make it read-only."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting needs root")
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def too_much(draft):
    draft.save_array("big.npy", np.zeros(300_000))


def too_many(draft):
    for number in range(300):
        draft.save_json(f"{number}.json", "x" * 5000)


def too_large_a_map(draft):
    draft.new_array("big.npy", dtype=np.int32, shape=(1000, 1000))[:] = 1


@pytest.mark.parametrize("fill", [too_much, too_many, too_large_a_map])
def test_a_full_disk_leaves_the_previous_state_and_says_so(small_disk, fill):
    """A map whose space is not taken at once would end the process by SIGBUS."""
    store = Store(root=small_disk / "run")
    make(store)
    before = everything(store.root)

    def write():
        with store.draft("vote", fingerprint("big"), level=Level.PRIVATE) as draft:
            fill(draft)

    with pytest.raises(StoreError) as caught:
        write()
    message = str(caught.value)
    assert message.startswith(f"cannot write to {store.root}: ")
    assert "no space left on device" in message or "the disk may be full" in message
    assert message.endswith("what was there before is unchanged")
    assert everything(store.root) == before
    make(store, made_from=fingerprint("small"))
    store.open("vote", fingerprint("small"))


def test_a_read_only_disk_is_read_and_not_written(small_disk):
    store = Store(root=small_disk / "run")
    make(store)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    before = everything(store.root)
    store.sweep()
    for stage in ("vote", "a-new-one"):
        with pytest.raises(StoreError, match="read-only file system; what was there before is un"):
            make(store, stage=stage, made_from=fingerprint("other"))
    assert everything(store.root) == before
    assert store.open("vote", FROM).facts == {"value": 1}


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(StoreError, match="cannot write to"):
        make(Store(root=tmp_path / "run"))


def test_a_mapped_array_is_an_ordinary_one(store):
    with store.draft("vote", FROM, level=Level.PRIVATE) as draft:
        draft.new_array("counts.npy", dtype=np.int32, shape=(3, 4))[:] = 5
    assert store.open("vote", FROM).array("counts.npy").tolist() == [[5] * 4] * 3


def test_a_draft_that_is_swept_before_it_is_locked_is_made_again(store, monkeypatch):
    made = tempfile.mkdtemp
    taken = []

    def swept_once(**where):
        folder = made(**where)
        if not taken:
            Path(folder).rmdir()
        taken.append(folder)
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", swept_once)
    make(store)
    assert len(taken) == 2
