"""The report of lengths: its text, its JSON and its pictures."""

import json
import sys
from pathlib import Path

import pytest

from tests.streaming.tiny_sources import Items, Parts
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.inspection.tables.length_report import report_lengths
from zindex.streaming import MergedDataset
from zindex.streaming.lengths.statistics import Lengths

SERIAL = SerialExecutor()


def make_mix() -> MergedDataset:
    small = Items("small", 0, 0.3, items=[{"tokens": [0] * n} for n in range(1, 11)])
    large = Items("large", 0, 0.7, items=[{"tokens": [0] * 90}] * 1000)
    return MergedDataset([small, large])


def test_text_has_tables_and_advice() -> None:
    report = report_lengths(
        make_mix(), num_samples=1000, client=SERIAL, sequence_lengths=[64, 128], num_ranks=11
    )
    assert report.to_text().splitlines() == [
        "  samples  length  unit    mean  median  90%  99%  longest  read  source",
        "       10      55  tokens   5.5       5    9   10       10  100%  small",
        "    1,000  90,000  tokens  90.0      90   90   90       90  100%  large",
        "",
        "a run of 1,000 samples:",
        "  share  drawn  length  epochs  equal epochs  few repeats  source",
        "    30%    300   1,650   30.00         0.99%           4%  small",
        "    70%    700  63,000    0.70           99%          96%  large",
        "",
        "  sequence length  padding  cut off  padding if packed  split if packed",
        "               64    27.4%    28.2%              3.79%              70%",
        "              128    49.5%       0%              27.8%               0%",
        "",
        "- 'small' comes 30.00 times, 300 samples drawn of 10: more than 4 epochs, so lower its "
        "share from 0.3 or find more of it.",
        "- 'large' is never finished: 700 of its 1,000 samples (70.0%) are drawn, and 300 are not.",
        "- With the shares small 0.04, large 0.96 nothing repeats more than 4 times.",
        "- Shares in proportion to what there is, small 0.0099, large 0.99, draw 0.99 epochs of "
        "every source.",
        "- A sequence length of 128 cuts off 0.00% of the tokens and leaves 49.5% of the places as "
        "padding with one sample a sequence; packed it cuts off nothing, leaves 27.8% as padding, "
        "and splits 0.00% of the samples.",
        "- 'small' has 10 items for 11 readers (11 ranks of 1 loader worker), so 2 of its epochs "
        "are read at the same time: add more.",
    ]


def test_estimates_are_marked() -> None:
    parts = Parts("a", [10] * 8, tokens_per_sample=9)
    text = report_lengths(parts, read_samples=40, client=SERIAL).to_text()
    assert text.splitlines()[1].split()[:2] == ["~80", "~398"]
    assert "~: estimated from the parts or items that were read" in text


def test_sources_without_lengths_have_dashes(tmp_path: Path) -> None:
    report = report_lengths(
        MergedDataset([Items("raw", 40), Items("a", 0, items=[{"text": "x" * 8}])]),
        num_samples=10,
        client=SERIAL,
    )
    lines = [line.split() for line in report.to_text().splitlines()]
    assert lines[1] == ["40", *"-------", "100%", "raw"]
    assert lines[2][:3] == ["1", "8", "characters"]
    [drawn] = [line for line in lines if line[-1:] == ["raw"] and line[0] == "50%"]
    assert drawn[1:3] == ["5", "-"]
    report.draw(tmp_path / "lengths.svg")


def test_of_many_sources_the_largest_are_shown() -> None:
    mix = MergedDataset([Items(f"s{n}", 0, items=[{"tokens": [0] * 9}]) for n in range(30)])
    report = report_lengths(mix, num_samples=1, client=SERIAL)
    assert "  and 10 smaller ones; --json lists all" in report.to_text().splitlines()
    assert "a run of 1 sample:" in report.to_text().splitlines()
    mix = MergedDataset(mix.datasets[:21])
    assert "  and 1 smaller one; --json lists all" in report_lengths(mix, client=SERIAL).to_text()


def test_report_as_json() -> None:
    report = report_lengths(make_mix(), num_tokens=5000, client=SERIAL)
    fields = json.loads(json.dumps(report.to_json()))
    assert Lengths.from_json(fields["lengths"]) == report.lengths
    assert fields["advice"]["limited"] == report.advice.limited


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_pictures_are_drawn(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lengths.{suffix}"
    report_lengths(make_mix(), num_samples=100, client=SERIAL).draw(path)
    content = path.read_bytes()
    assert content.startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix])
    assert len(content) > 5000


def test_pictures_of_little(tmp_path: Path) -> None:
    # Without a run, without sequence lengths, empty, and of more sources than colors.
    many = [Items(f"s{n}", 0, items=[{"tokens": [0] * n}]) for n in range(12)]
    for number, dataset in enumerate([Parts("a", [0]), MergedDataset(many)]):
        path = tmp_path / f"{number}.svg"
        report_lengths(dataset, client=SERIAL).draw(path)
        assert path.stat().st_size > 5000


def test_why_there_is_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_lengths(make_mix(), client=SERIAL)
    for name in ("lengths.exe", "none/lengths.svg"):
        with pytest.raises(ConfigError, match=r"a file to write with a suffix such as \.svg or"):
            report.draw(tmp_path / name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"matplotlib, .*; install zindex\[quickstart\], or"):
        report.draw(tmp_path / "lengths.svg")
