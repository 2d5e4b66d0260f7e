"""Named sets: embedded ones for real, the others from tiny files in their true formats."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct

import numpy as np
import pytest
import scipy.io

from pate.datasets.loading import ADULT_FEATURES, load, read_adult
from pate.datasets.spec import DataSpec
from pate.datasets.table import record_ids
from pate.errors import InvalidInput
from pate.vision import torchvision

RNG = np.random.Generator(np.random.PCG64(5))


@pytest.mark.parametrize(
    ("name", "sizes", "shape"),
    [("digits", (997, 500, 300), (8, 8)), ("breast-cancer", (319, 150, 100), (30,))],
)
def test_embedded_sets(name, sizes, shape, tmp_path):
    splits = load(DataSpec(name=name), root=tmp_path)
    tables = (splits.private, splits.public, splits.test)
    assert tuple(part.records for part in tables) == sizes
    assert all(part.features.shape[1:] == shape for part in tables)
    names = [name for part in tables for name in record_ids(part)]
    assert len(set(names)) == sum(sizes)
    assert set(np.unique(splits.private.labels)) == set(range(splits.classes))
    if name == "digits":
        assert splits.private.features.dtype == np.float32
        assert splits.private.features.min() == 0
        assert splits.private.features.max() == 1


def test_sizes_and_seed_of_an_embedded_set(tmp_path):
    spec = DataSpec(name="digits", public=0.5, test=97, private=200, seed=9)
    splits = load(spec, root=tmp_path)
    assert (splits.private.records, splits.test.records) == (200, 97)
    assert 750 < splits.public.records < 950  # half of the 1700 that are not for testing
    with pytest.raises(InvalidInput, match="public asks for 1700 records and digits has 1497"):
        load(DataSpec(name="digits", public=1700), root=tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "svhn", "adult"])
def test_a_missing_set_says_what_to_run(name, tmp_path):
    with pytest.raises(InvalidInput, match=f"run `pate data fetch {name}`"):
        load(DataSpec(name=name), root=tmp_path)


def write_idx(folder, *, train=40, test=30):
    folder.mkdir(parents=True)
    written = {}
    for part, count in (("train", train), ("t10k", test)):
        images = RNG.integers(0, 256, size=(count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        head = struct.pack(">IIII", 2051, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">II", 2049, count)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
        written[part] = images, labels
    return written


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")]
)
def test_idx_sets(name, folder, tmp_path):
    written = write_idx(tmp_path / folder / "raw")
    splits = load(DataSpec(name=name, public=20, test=10), root=tmp_path)
    images, labels = written["train"]
    assert splits.private.features.dtype == np.float32
    assert np.array_equal(splits.private.features, images / np.float32(255))
    assert np.array_equal(splits.private.labels, labels)
    pixels = np.concatenate([splits.public.features, splits.test.features]) * 255
    rest = {image.tobytes() for image in written["t10k"][0]}
    assert {image.tobytes() for image in np.rint(pixels).astype(np.uint8)} == rest
    assert (splits.public.records, splits.test.records, splits.classes) == (20, 10, 10)
    with pytest.raises(InvalidInput, match=f"the official test part of {name} has 29 left"):
        load(DataSpec(name=name, public=9000, test=1), root=tmp_path)


def test_the_papers_protocol_takes_the_ends_of_the_test_part(tmp_path):
    images, labels = write_idx(tmp_path / "MNIST" / "raw")["t10k"]
    spec = DataSpec(name="mnist", public=20, test=5, order="file")
    splits = load(spec, root=tmp_path)
    assert np.array_equal(splits.public.features, images[:20] / np.float32(255))
    assert np.array_equal(splits.public.labels, labels[:20])
    assert np.array_equal(splits.test.features, images[25:] / np.float32(255))
    with pytest.raises(InvalidInput, match="has 30 records, and 11 for test and 20 for public"):
        load(DataSpec(name="mnist", public=20, test=11, order="file"), root=tmp_path)


def test_public_inputs_may_come_from_the_training_part(tmp_path):
    written = write_idx(tmp_path / "MNIST" / "raw")
    spec = DataSpec(name="mnist", public=7, public_from="training")
    splits = load(spec, root=tmp_path)
    train, test = written["train"][0], written["t10k"][0]
    assert splits.public.records == 7
    assert splits.private.records == len(train) - 7
    assert np.array_equal(splits.test.features, test / np.float32(255))
    both = np.concatenate([splits.public.features, splits.private.features])
    rows = {row.tobytes() for row in both}
    assert rows == {row.tobytes() for row in train / np.float32(255)}
    # Who is public does not depend on which other records are private.
    fewer = load(spec.model_copy(update={"private": 0.5}), root=tmp_path)
    assert np.array_equal(fewer.public.features, splits.public.features)


def test_a_cut_file_is_called_damaged(tmp_path):
    write_idx(tmp_path / "MNIST" / "raw")
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InvalidInput, match="damaged; run `pate data fetch mnist` again"):
        load(DataSpec(name="mnist", public=20, test=10), root=tmp_path)


def md5(path):
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Python batches as the authors wrote them, and torchvision told their MD5s."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels, targets, digests = [], [], {}
    for name in [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]:
        rows = RNG.integers(0, 256, size=(20, 3072), dtype=np.uint8)
        batch = {"data": rows, "labels": [n % 10 for n in range(20)], "batch_label": name}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        digests[name] = md5(folder / name)
        pixels.append(rows)
        targets += batch["labels"]
    meta = {"label_names": ["airplane", "automobile", *"cdefghij"], "num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    kind = torchvision().datasets.CIFAR10
    monkeypatch.setattr(kind, "train_list", [[n, digests[n]] for n in list(digests)[:5]])
    monkeypatch.setattr(kind, "test_list", [["test_batch", digests["test_batch"]]])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5(folder / "batches.meta")})
    return tmp_path, np.concatenate(pixels), targets


def test_cifar10(cifar):
    root, pixels, targets = cifar
    splits = load(DataSpec(name="cifar10", public=12, test=8), root=root)
    images = pixels[:100].reshape(100, 3, 32, 32).transpose(0, 2, 3, 1)
    assert np.array_equal(splits.private.features, images / np.float32(255))
    assert np.array_equal(splits.private.labels, targets[:100])
    assert splits.public.features.shape == (12, 32, 32, 3)
    assert splits.class_names[0] == "airplane"


def test_cifar10_with_another_digest_is_not_unpickled(cifar):
    root, _, _ = cifar

    class Trap:
        def __reduce__(self):
            return (open, (str(root / "sprung"), "w"))

    (root / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InvalidInput, match="damaged"):
        load(DataSpec(name="cifar10", public=12, test=8), root=root)
    assert not (root / "sprung").exists()


def test_svhn(tmp_path, monkeypatch):
    folder = tmp_path / "SVHN"
    folder.mkdir()
    kind = torchvision().datasets.SVHN
    files = dict(kind.split_list)
    images = RNG.integers(0, 256, size=(32, 32, 3, 40), dtype=np.uint8)
    digits = (np.arange(40) % 10 + 1).astype(np.uint8)[:, None]  # the set writes 0 as 10
    for part in ("train", "test"):
        file = folder / f"{part}_32x32.mat"
        scipy.io.savemat(file, {"X": images, "y": digits})
        files[part] = [files[part][0], file.name, md5(file)]
    monkeypatch.setattr(kind, "split_list", files)
    splits = load(DataSpec(name="svhn", public=20, test=20), root=tmp_path)
    assert np.array_equal(splits.private.features, images.transpose(3, 0, 1, 2) / np.float32(255))
    assert np.array_equal(splits.private.labels, digits[:, 0] % 10)


ADULT = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, \
2174, 0, 40, United-States, <=50K
54, ?, 180211, Some-college, 10, Married-civ-spouse, ?, Husband, Asian-Pac-Islander, Male, \
0, 0, 60, South, >50K

"""


def write_adult(root, copies=15):
    folder = root / "adult"
    folder.mkdir()
    rows = ADULT.strip().splitlines()
    lines = [row.replace("39,", f"{20 + n},", 1) for n in range(copies) for row in rows]
    (folder / "adult.data").write_text("\n".join(lines) + "\n\n")
    tests = [f"{line}." for line in lines]
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + "\n".join(tests) + "\n\n")
    return folder


def test_adult(tmp_path):
    folder = write_adult(tmp_path)
    splits = load(DataSpec(name="adult", public=20, test=10), root=tmp_path)
    assert splits.private.features.shape == (30, 108)
    assert splits.class_names == ("<=50K", ">50K")
    assert splits.private.labels[:4].tolist() == [0, 1, 0, 1]
    first, second = splits.private.features[:2]
    named = dict(zip(ADULT_FEATURES, first.tolist(), strict=True))
    assert named["age"] == pytest.approx(0.2)
    assert named["education-num"] == pytest.approx(13 / 16)
    assert named["capital-gain"] == pytest.approx(np.log(2175) / np.log(100_000))
    assert named["workclass=State-gov"] == 1
    missing = dict(zip(ADULT_FEATURES, second.tolist(), strict=True))
    assert missing["workclass=?"] == missing["occupation=?"] == 1
    categories = [value for name, value in missing.items() if "=" in name]
    assert sum(categories) == 8  # one for each categorical column
    assert splits.private.features.min() >= 0
    assert splits.private.features.max() <= 1
    # No statistic of the others: a record alone is encoded the same.
    (folder / "alone").write_text((folder / "adult.data").read_text().splitlines()[0])
    assert np.array_equal(read_adult(folder / "alone").features[0], first)


@pytest.mark.parametrize("bad", ["Male,", "1, 2, 3", "39, Private, secret, Bachelors", ""])
def test_a_damaged_adult_file(bad, tmp_path):
    folder = write_adult(tmp_path)
    (folder / "adult.data").write_text(bad + "\n")
    with pytest.raises(InvalidInput, match="not the UCI Adult file") as caught:
        load(DataSpec(name="adult", public=20, test=10), root=tmp_path)
    assert "secret" not in str(caught.value)


def test_an_unknown_category_is_not_shown(tmp_path):
    folder = write_adult(tmp_path)
    text = (folder / "adult.data").read_text()
    for old, new in (("State-gov", "Marker-77"), ("77516", "Marker-77")):
        (folder / "adult.data").write_text(text.replace(old, new))
        with pytest.raises(InvalidInput, match=r"\(line 1\)") as caught:
            load(DataSpec(name="adult", public=20, test=10), root=tmp_path)
        assert "Marker" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_gz_beside_plain_files_is_no_matter(tmp_path):
    write_idx(tmp_path / "MNIST" / "raw")
    with gzip.open(tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(b"anything")
    assert load(DataSpec(name="mnist", public=20, test=10), root=tmp_path).classes == 10
