"""The command ``zindex import``: what it does, what it prints, and how it fails."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import fail, succeed
from tests.sources.archives import write_jsonl, write_tar
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    rows = [{"text": f"t{i}", "ids": list(range(i))} for i in range(5)]
    return write_jsonl(tmp_path / "in/a.jsonl", rows)


def test_import_and_its_summary(jsonl: Path, tmp_path: Path) -> None:
    last = succeed("import", jsonl, tmp_path / "s").splitlines()[-1]
    assert last == f"{tmp_path}/s: 5 records of 1 file, 224 bytes, fields text, ids"
    facts = json.loads(succeed("import", jsonl, tmp_path / "s", "--json"))
    assert facts.pop("seconds") >= 0
    assert len(facts.pop("fingerprint")) == 64
    assert facts == {
        "store": f"{tmp_path}/s",
        "num_records": 5,
        "num_files": 1,
        "num_skipped": 0,
        "nbytes": 224,
        "fields": ["text", "ids"],
    }


def test_every_option_arrives(jsonl: Path, tmp_path: Path) -> None:
    second = write_jsonl(tmp_path / "in/b.txt", [{"text": "é", "ids": [7]}])
    with second.open("a") as stream:
        stream.write("{\n")
    options = ("--kind", "jsonl", "--field", "ids", "--dtype", "ids=int16", "--part-nbytes", "40")
    cut = ("--codec", "zstd", "--chunk-nbytes", "16", "--shard-nbytes", "64")
    command = ("import", jsonl, second, tmp_path / "s", *options, *cut, "--on-damage", "skip")
    facts = json.loads(succeed(*command, "--json"))
    assert (facts["num_records"], facts["num_files"], facts["num_skipped"]) == (6, 2, 1)
    assert facts["fields"] == ["ids"]
    store = open_store(tmp_path / "s")
    layout = store.layouts["ids_value"]
    assert (layout.dtype, layout.chunk_length, layout.codec) == ("int16", 8, "zstd")
    assert RecordReader(store).read(5)["ids"].tolist() == [7]
    last = succeed(*command).splitlines()[-1]
    assert last.endswith("; 1 damaged record or file was skipped")


def test_tar_files_with_metadata(tmp_path: Path) -> None:
    write_tar(tmp_path / "in/a.tar", [("k.id", b""), ("k.txt", b"hi")])
    write_jsonl(tmp_path / "in/a.meta.jsonl", [{"key": "k", "caption": "c", "score": 1}])
    for i, named in enumerate([(tmp_path / "in",), ("", "--include-dirs", tmp_path / "in")]):
        facts = json.loads(
            succeed("import", named[0], tmp_path / str(i), *named[1:], "--meta=caption", "--json")
        )
        assert facts["fields"] == ["id", "caption", "txt"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{in}", "{out}", "--dtype", "ids"], "--dtype must be like input_ids=int32, got 'ids'"),
        (["{in}", "{out}", "--dtype", "ids=text"], "the numbers of field 'ids' must have a dtype"),
        (
            ["{in}", "{out}", "--meta", "x"],
            "--meta and --include-dirs must",
        ),
        (["{in}", "{out}", "--chunk-nbytes", "7"], "--shard-nbytes must be a multiple of --chunk-"),
        (["{in}.gone.jsonl", "{out}"], "no file"),
        (["{out}", "{out}"], "a source must name tar or jsonl files, or a folder of them, got"),
        (["s4://x/a.jsonl", "{out}"], "got 's4://' in 's4://x/a.jsonl'"),
    ],
)
def test_mistakes_are_one_line(
    jsonl: Path, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    filled = [text.format(**{"in": jsonl, "out": tmp_path / "out"}) for text in arguments]
    assert problem in fail("import", *filled)
    assert not (tmp_path / "out").exists()


def test_a_failed_import_gives_way_to_the_right_one(jsonl: Path, tmp_path: Path) -> None:
    whole = jsonl.read_bytes()
    jsonl.write_bytes(whole + b"{\n")
    line = fail("import", jsonl, tmp_path / "s")
    assert "(line 6) there is no JSON: Expecting property name" in line
    assert "with --on-damage skip" in line
    jsonl.write_bytes(whole)
    succeed("import", jsonl, tmp_path / "s")


def test_fields_and_metadata_that_are_not_there(jsonl: Path, tmp_path: Path) -> None:
    line = fail("import", jsonl, tmp_path / "s", "--field", "txet")
    assert "got 'txet', which no record has; there are ['ids', 'text']" in line
    line = fail("import", jsonl, tmp_path / "s")
    assert "what differs: --field; choose another place or" in line
    assert "remove that one with --restart" in line
    write_tar(tmp_path / "tars/a.tar", [("k.txt", b"hi")])
    write_jsonl(tmp_path / "tars/a.meta.jsonl", [{"key": "k", "caption": "c"}])
    line = fail("import", tmp_path / "tars", tmp_path / "t", "--meta", "Caption")
    assert "no record has 'caption': only samples with a member .id get" in line
    write_tar(tmp_path / "tars/a.tar", [("k.id", b""), ("k.txt", b"hi")])
    write_jsonl(tmp_path / "tars/a.meta.jsonl", [{"key": "k", "Caption": "c"}])
    succeed("import", tmp_path / "tars", tmp_path / "t", "--meta", "Caption", "--restart")


def test_help_names_what_there_is() -> None:
    assert "SOURCE... TARGET" in succeed("import", "--help")
    assert "import" in succeed("--help")
