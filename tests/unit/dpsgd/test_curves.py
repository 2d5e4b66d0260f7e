"""Curves: a table that reads back, and a picture that is one."""

from __future__ import annotations

import csv
import subprocess
import sys

import pytest

from dpsgd.curves import Row, write_curve
from pate.artifacts import StoreError
from pate.errors import InvalidInput


def rows(count, accuracy=True):
    return [
        Row(
            epoch=epoch, step=100 * epoch, epsilon=0.5 * epoch**0.5,
            accuracy=0.9 - 0.4 / epoch if accuracy else None,
            learning_rate=0.1, clip_bound=1.0, seconds=2.5,
        )
        for epoch in range(1, count + 1)
    ]  # fmt: skip


@pytest.mark.parametrize("accuracy", [True, False])
@pytest.mark.parametrize("count", [1, 12, 90])
def test_the_table_reads_back_and_the_picture_is_one(tmp_path, count, accuracy):
    history = rows(count, accuracy)
    table, picture = write_curve(history, tmp_path / "new" / "folder")
    with table.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["epsilon"]) for row in read] == [row.epsilon for row in history]
    assert [row["accuracy"] for row in read] == [
        "" if row.accuracy is None else str(row.accuracy) for row in history
    ]
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert len(content) > 5000
    assert sorted(each.name for each in table.parent.iterdir()) == ["curve.csv", "curve.png"]


def test_a_curve_is_replaced_whole(tmp_path):
    write_curve(rows(3), tmp_path)
    write_curve(rows(5), tmp_path)
    assert len((tmp_path / "curve.csv").read_text().splitlines()) == 6


def test_nothing_to_draw_and_nowhere_to_write(tmp_path):
    with pytest.raises(InvalidInput, match="train first"):
        write_curve([], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write the curve"):
        write_curve(rows(2), tmp_path / "file")


def test_the_user_s_own_pictures_are_left_alone(tmp_path):
    code = (
        "import sys\nfrom dpsgd.curves import Row, write_curve\n"
        "assert 'matplotlib' not in sys.modules and 'torch' not in sys.modules\n"
        "row = Row(epoch=1, step=1, epsilon=1.0, accuracy=0.5, learning_rate=0.1, clip_bound=1.0,"
        " seconds=1.0)\n"
        f"write_curve([row], {str(tmp_path)!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
