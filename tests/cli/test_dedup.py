"""The command ``zindex dedup``: what it does, what it prints, and how it fails."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import fail, succeed
from tests.sources.archives import write_jsonl

WORDS = [f"w{number}" for number in range(60)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    texts = [WORDS, WORDS, [*WORDS[:-1], "x"], WORDS[:5], WORDS[40:43]]
    return write_jsonl(tmp_path / "in/a.jsonl", [{"body": " ".join(text)} for text in texts])


def test_dedup_and_its_summary(source: Path, tmp_path: Path) -> None:
    last = succeed("dedup", source, tmp_path / "out", "--field", "body").splitlines()[-1]
    nbytes = (tmp_path / "out/part-000000.jsonl").stat().st_size
    assert (
        last == f"{tmp_path}/out: 4 of 5 records kept, {nbytes:,} bytes; dropped: 1 exact duplicate"
    )
    facts = json.loads(succeed("dedup", source, tmp_path / "out", "--field", "body", "--json"))
    assert facts.pop("seconds") >= 0
    assert (facts["num_kept"], facts["num_exact"], facts["benchmarks"]) == (4, 1, [])


def test_every_option_arrives(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("rensa")
    bench = tmp_path / "bench.txt"
    bench.write_text("W40 w41, w42!")
    more = write_jsonl(tmp_path / "in/b.jsonl", [{"text": "no body"}, {"body": "b"}])
    given = ("--field", "body", "--near", "0.9", "--decontaminate", bench, "--ngram", "3")
    work = ("--part-nbytes", "500", "--on-damage", "skip", "--list", "--processes", "1")
    lines = succeed("dedup", source, more, tmp_path / "out", *given, *work).splitlines()
    assert lines[-2].endswith(
        "2 of 6 records would be kept, 41 bytes; dropped: 4 contaminated; 1 damaged record or "
        "file was skipped"
    )
    assert lines[-1] == f"  {bench}: 4 records of 1 n-gram in 1 text"
    assert not list((tmp_path / "out").glob("*.jsonl"))
    succeed("dedup", source, tmp_path / "near", *given[:4])
    [path] = (tmp_path / "near/dropped").iterdir()
    facts = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(fact["line"], fact["reason"]) for fact in facts] == [(2, "exact"), (3, "near")]


def test_wrong_input(source: Path, tmp_path: Path) -> None:
    assert "this one has ['body']; name the field to compare with --field" in fail(
        "dedup", source, tmp_path / "out"
    )
    assert "name another field" in fail("dedup", source, tmp_path / "out", "--field", "bdy")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]  # nothing is left to be resumed
    assert "--near must be a similarity above 0" in fail(
        "dedup", source, tmp_path / "out", "--near", "2"
    )
    missing = fail("dedup", source, tmp_path / "out", "--decontaminate", tmp_path / "none.jsonl")
    assert "none.jsonl" in missing
    (tmp_path / "full").mkdir()
    (tmp_path / "full/a").touch()
    assert "full must be new" in fail("dedup", source, tmp_path / "full", "--field", "body")
