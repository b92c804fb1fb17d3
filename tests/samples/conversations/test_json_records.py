"""Records of JSON files by number."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from zindex.errors import SourceError, StoreNotFoundError
from zindex.samples.conversations import json_records
from zindex.samples.conversations.json_records import JsonRecords

RECORDS = [{"n": 0}, {"n": 1, "text": "ä\n"}, {"n": 2, "more": [1, {"a": "}"}]}, {"n": 3}]


WAYS = ("lines", "windows", "blank", "blank first", "mark", "no end", "array", "marked array")


@pytest.fixture(params=WAYS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    lines = [json.dumps(record, ensure_ascii=False).encode() for record in RECORDS]
    content = {
        "lines": b"\n".join([*lines, b""]),
        "windows": b"\r\n".join([*lines, b""]),
        "blank": b"\n \t\n" + b"\n\n \r\n".join(lines) + b"\n  \n   ",
        "blank first": b"\xef\xbb\xbf  \r\n \n  " + b"  \n  ".join(lines),
        "mark": b"\xef\xbb\xbf" + b"\n".join(lines),
        "no end": b"\n".join(lines),
        "array": b"[" + b",\n".join(lines) + b"]\n",
        "marked array": b"\xef\xbb\xbf [" + b",".join(lines) + b"]",
    }[request.param]
    file = tmp_path / "records.jsonl"
    file.write_bytes(content)
    return str(file)


def test_records_are_those_of_the_file(path: str) -> None:
    records = JsonRecords(path)
    assert len(records) == 4
    assert [records[i] for i in range(4)] == RECORDS
    assert records[-1] == RECORDS[3]
    assert records.read_many([2, 0, 0, 3]) == [RECORDS[i] for i in (2, 0, 0, 3)]
    assert records.read_many([]) == []
    again = pickle.loads(pickle.dumps(records))
    assert again[1] == RECORDS[1]
    with pytest.raises(IndexError, match=r"within \[-4, 4\), but 4 was asked"):
        records[4]


def test_blocks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_records, "_BLOCK_NBYTES", 7)
    file = tmp_path / "records.jsonl"
    for blank in ("", " \n", "\n\n", " " * 9 + "\n"):
        file.write_text("".join(json.dumps({"n": n}) + f"\n{blank}" for n in range(30)))
        records = JsonRecords(file)
        assert len(records) == 30
        assert [record["n"] for record in records.read_many(range(30))] == list(range(30))


def test_lines_are_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text('{"n": 0}\n')
    first = JsonRecords(file)
    searches: list[Any] = []
    search = json_records._search
    monkeypatch.setattr(json_records, "_search", lambda path: searches.append(path) or search(path))
    assert JsonRecords(file)[0] == first[0]
    assert not searches
    file.write_text('{"n": 0}\n{"n": 1}\n')
    assert len(JsonRecords(file)) == 2
    assert len(searches) == 1


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf", b"[]"])
def test_an_empty_file_has_no_records(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "records.jsonl"
    file.write_bytes(content)
    assert len(JsonRecords(file)) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"n": 0}\n{"n": \n', r"record 1 of .* at byte 9 there is no JSON: .*; fix or remove"),
        (b"{}\n[1, 2]\n", "record 1 of .* it is of type list; fix or remove the line"),
        (b"[{}, 3]", "record 1 of .* it is of type int; fix or remove it"),
        (b"[{}, {}", r"must be a JSON array of objects, as it begins with \[, but: "),
        (b"\x1f\x8b123", "must hold JSON objects, .* but begins with .*; decompress it"),
    ],
)
def test_damage_is_located(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "records.jsonl"
    file.write_bytes(content)
    with pytest.raises(SourceError, match=message):
        JsonRecords(file)[1]


def test_a_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="must be a file of JSON records, there is none"):
        JsonRecords(os.path.join(tmp_path, "none.jsonl"))
    with pytest.raises(StoreNotFoundError, match="must be a file of JSON records, there is none"):
        JsonRecords(tmp_path)
