"""Figures in files: the same bytes every time, whatever the user's settings."""

from __future__ import annotations

from pate._plots import image_of, new_axes, new_figure


def plotted(kind: str) -> bytes:
    with new_figure() as figure:
        new_axes(figure, title="$a", x="x", y="y").plot([1, 2], [3, 4], label="$a")
        return image_of(figure, kind)


def test_a_missing_glyph_is_a_box_and_no_warning() -> None:
    with new_figure() as figure:
        new_axes(figure, title="\u05d0\u4e00", x="", y="")  # pytest makes an error of any warning
        image_of(figure, "png")


def test_figures_are_the_same_every_time_and_undated() -> None:
    png, svg = plotted("png"), plotted("svg")
    assert (png, svg) == (plotted("png"), plotted("svg"))
    assert b"matplotlib.org" not in png
    assert b"date" not in svg
    assert png.startswith(b"\x89PNG")
    assert b"<svg" in svg


def test_no_setting_of_the_user_is_used_or_changed() -> None:
    import matplotlib

    before = plotted("png")
    with matplotlib.rc_context({"font.size": 30.0, "axes.facecolor": "red"}):
        assert plotted("png") == before
        assert matplotlib.rcParams["font.size"] == 30.0
