"""Charts: labels keep their distance, shapes stay inside."""

import re
from itertools import pairwise

from zindex.reporting.charts import Band, bars, columns, dots, plot, stack

TICKS = [(0.0, "0"), (1.0, "9")]


def test_labels_do_not_overlap() -> None:
    names = [(0.5, f"name {number}", number) for number in range(8)]
    found = plot(label="a chart", x_ticks=TICKS, names=names, height=200)
    places = [float(text) for text in re.findall(r'class="n t\d"[^>]*bottom:([\d.]+)%', found)]
    gaps = [b - a for a, b in pairwise(places)]
    assert len(places) == 8
    assert min(gaps) >= 7.4  # 15 of 200 pixels
    assert 0 < min(places) < max(places) < 100


def test_bands_fill_the_chart() -> None:
    bands = [Band("a", 0, (0.25, 1.0), (0.5, 0.5)), Band("b", 3, (0.75, 0.0), (0.5, 0.5))]
    found = stack(bands, label="mix", titles=["first", "second"], x_ticks=TICKS)
    assert 'd="M0 0H50V0H100V100H50V25H0Z" class="f0"' in found
    assert 'd="M0 25H50V100H100V100H50V100H0Z" class="f3"' in found
    assert 'd="M0 50H50V50H100" class="target"' in found
    assert "<title>second</title>" in found


def test_columns_bars_and_dots() -> None:
    found = columns([1.0, 4.0], label="x", titles=["one", "four"], x_ticks=TICKS, marker=0.5)
    assert 'y="75" height="25"' in found
    assert 'y="0" height="100"' in found
    assert 'x1="50" x2="50"' in found
    assert columns([], label="x", titles=[], x_ticks=[]).startswith("<figure>")
    assert 'style="width:50.00%"' in bars([("a", 1.0, "1"), ("b", 2.0, "2")])
    assert 'style="left:40.00%"' in bars([("a", 5.0, "5")], marker=2.0)
    assert "width:0.00%" in bars([("a", 0.0, "0")])
    path = dots([(0.0, 0.0), (1.0, 0.5)], label="x", x_ticks=TICKS, x_title="", y_title="")
    assert 'd="M0 100h0M100 50h0"' in path
