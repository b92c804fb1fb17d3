"""Lines of jsonl files as samples, for any parts, compression and damage."""

import gzip
import json
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.archives import plain, read_all, write_jsonl
from zindex.errors import SourceError, StoreNotFoundError
from zindex.formats.json_lines import decode_with_json
from zindex.sources import jsonl_files
from zindex.sources.jsonl_files import JsonlFiles

OBJECTS = [{"text": "a" * (number % 7) + "\n", "number": number} for number in range(40)]


def keyed(objects: list[Any]) -> list[dict[str, Any]]:
    return [{**value, "__key__": str(number)} for number, value in enumerate(objects)]


@pytest.mark.parametrize("part_nbytes", [1, 7, 64, 100, 8 << 20])
def test_parts_give_each_line_once(tmp_path: Path, part_nbytes: int) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", OBJECTS)
    files = JsonlFiles(path, part_nbytes=part_nbytes)
    assert files.num_parts == -(-path.stat().st_size // part_nbytes)
    assert plain(read_all(files)) == keyed(OBJECTS)
    # The number of a line is the same whichever parts were read before.
    again = JsonlFiles(path, part_nbytes=part_nbytes)
    backwards = [list(again.read_part(part)) for part in reversed(range(again.num_parts))]
    assert [sample for part in reversed(backwards) for sample in part] == read_all(files)
    assert sum(files.part_nbytes(part) or 0 for part in range(files.num_parts)) == (
        path.stat().st_size
    )


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 30), max_size=12),
    part_nbytes=st.integers(1, 120),
    ends=st.booleans(),
)
def test_lines_of_any_length(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], part_nbytes: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    objects = [{"a": "x" * size} for size in sizes]
    text = "\n".join(map(json.dumps, objects))
    path.write_text(text + "\n" if ends and text else text)
    assert plain(read_all(JsonlFiles(path, part_nbytes=part_nbytes))) == keyed(objects)


def test_long_lines_and_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zindex.io.file_chunks.LOCAL_NBYTES", 16)
    monkeypatch.setattr(jsonl_files, "LOCAL_NBYTES", 16)
    objects = [{"a": "x" * size} for size in (5, 300, 1, 0, 77)]
    path = write_jsonl(tmp_path / "a.jsonl", objects)
    for part_nbytes in (3, 50, 1000):
        assert plain(read_all(JsonlFiles(path, part_nbytes=part_nbytes))) == keyed(objects)


def test_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"a": null, "b": [null], "c": "null"}\r\n{"__key__": "x", "__url__": 1}'
    )
    assert read_all(JsonlFiles(path)) == [
        {"a": "", "b": [None], "c": "null", "__url__": str(path), "__key__": "0"},
        {"__url__": str(path), "__key__": "1"},
    ]


def test_lines_that_only_the_standard_library_parses(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 1e999, "b": null}\n{"a": 3}\n')
    assert plain(read_all(JsonlFiles(path))) == [
        {"a": 1, "__key__": "0"},
        {"a": math.inf, "b": "", "__key__": "1"},
        {"a": 3, "__key__": "2"},
    ]


def test_files_follow_each_other(tmp_path: Path) -> None:
    for name in "bca":
        write_jsonl(tmp_path / f"{name}.jsonl", [{"name": name, "i": i} for i in range(3)])
    files = JsonlFiles(tmp_path, part_nbytes=24)
    assert [sample["name"] for sample in read_all(files)] == list("aaabbbccc")
    assert files.urls == [str(tmp_path / f"{name}.jsonl") for name in "abc"]
    assert [files.part_url(part) for number in range(3) for part in files.url_parts(number)] == [
        url for number, url in enumerate(files.urls) for _ in files.url_parts(number)
    ]
    assert len(files.fingerprint()) == 64
    assert files.fingerprint() == JsonlFiles(tmp_path, part_nbytes=24).fingerprint()
    assert files.fingerprint() != JsonlFiles(tmp_path).fingerprint()


def test_an_empty_file_has_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.touch()
    files = JsonlFiles(path)
    assert (files.num_parts, read_all(files)) == (1, [])


BAD = [
    (b"", "there is a blank line"),
    (b'{"a": 1', "there is no JSON"),
    (b"[1]", "there must be a JSON object, it is of type list"),
    (b"7", "there must be a JSON object, it is of type int"),
    (b"{}{}", "there is no JSON"),
    (b'{"a": "\xff"}', "there is no JSON"),
    (b"[" * 5000, "there is JSON that is nested too deeply"),
]


@pytest.mark.parametrize(("line", "message"), BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("part_nbytes", [10, 8 << 20])
@pytest.mark.parametrize("parser", ["orjson", "json"])
def test_a_bad_line(
    tmp_path: Path,
    line: bytes,
    message: str,
    part_nbytes: int,
    parser: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if parser == "json":
        monkeypatch.setattr(jsonl_files, "loads", decode_with_json)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"i": 0}\n{"i": 1}\n' + line + b'\n{"i": 3}\n' + line + b"\n")
    with pytest.raises(SourceError, match=rf"at byte 18 \(line 3\) {message}") as caught:
        read_all(JsonlFiles(path, part_nbytes=part_nbytes))
    assert str(caught.value).startswith(f"{path} must be lines of JSON objects, but")
    files = JsonlFiles(path, part_nbytes=part_nbytes, on_damage="skip")
    assert [(sample["i"], sample["__key__"]) for sample in read_all(files)] == [
        (0, "0"),
        (1, "1"),
        (3, "3"),
    ]
    # A blank line at the end is none.
    assert files.num_skipped == (2 if line else 1)


@pytest.mark.parametrize("part_nbytes", [1, 10, 8 << 20])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_blank_lines_at_the_end_are_none(tmp_path: Path, name: str, part_nbytes: int) -> None:
    path = tmp_path / name
    pack = gzip.compress if name.endswith("gz") else bytes
    text = b'{"i": 0}\n{"i": 1}' + b"\n \r\n\n" * 20
    path.write_bytes(pack(text))
    files = JsonlFiles(path, part_nbytes=part_nbytes)
    assert plain(read_all(files)) == [{"i": 0, "__key__": "0"}, {"i": 1, "__key__": "1"}]
    path.write_bytes(pack(text + b'{"i": 61}\n'))
    files = JsonlFiles(path, part_nbytes=part_nbytes, on_damage="skip")
    assert plain(read_all(files))[2:] == [{"i": 61, "__key__": "61"}]
    assert files.num_skipped == 59
    with pytest.raises(SourceError, match=r"at byte 18 \(line 3\) there is a blank line"):
        read_all(JsonlFiles(path, part_nbytes=part_nbytes))


def test_a_cut_last_line_is_damage(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", OBJECTS[:3])
    whole = path.read_bytes()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        text = whole[:size].split(b"\n")
        num_whole = len(text) - (not text[-1] or not text[-1].endswith(b"}"))
        files = JsonlFiles(path, on_damage="skip")
        assert plain(read_all(files)) == keyed(OBJECTS)[:num_whole]
        assert files.num_skipped == (text[-1] != b"" and not text[-1].endswith(b"}"))


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zindex.formats.json_lines.MAX_LINE_NBYTES", 1000)
    monkeypatch.setattr("zindex.io.file_chunks.LOCAL_NBYTES", 64)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" * 30 + b" " * 5000)
    with pytest.raises(SourceError, match="at byte 90 a line begins that has more than 1,000 byte"):
        read_all(JsonlFiles(path))
    files = JsonlFiles(path, on_damage="skip")
    assert len(read_all(files)) == 30
    assert files.num_skipped == 1


def test_a_line_without_end_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zindex.sources.jsonl_files.MAX_LINE_NBYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' + " " * 101 + '{"a": 2}\n{"a": 3}\n')
    with pytest.raises(SourceError, match="at byte 9 a line begins that has more than"):
        JsonlFiles(path).find_samples()
    files = JsonlFiles(path, on_damage="skip")
    found = files.find_samples()
    assert found is not None
    assert (found.num_samples, files.num_skipped) == (1, 1)


def test_long_blank_lines_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zindex.sources.jsonl_files._SEARCHED_NBYTES", 4)
    path, sizes = tmp_path / "a.jsonl", list[int]()
    read = jsonl_files.read_at

    def note(file: Any, start: int, stop: int, report: Any) -> bytes:
        sizes.append(stop - start)
        return read(file, start, stop, report)

    monkeypatch.setattr(jsonl_files, "read_at", note)
    path.write_text('{"a": 1}\n{"a": "' + 100 * "b" + '"}\n' + 50 * " " + "\n\n")
    found = JsonlFiles(path).find_samples()
    assert found is not None
    assert found.num_samples == 2
    # Of the last line, only what shows that it is not blank is read.
    assert sum(sizes) == 1 + 51 + 4


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", OBJECTS)
    files = JsonlFiles(path, on_damage="skip", part_nbytes=100)
    with open(path, "a") as stream:
        stream.write("{}\n")
    for part in range(2):
        with pytest.raises(SourceError, match=r"must have [\d,]+ bytes, as when it was listed, it"):
            list(files.read_part(part))
    path.unlink()
    with pytest.raises(StoreNotFoundError, match=r"no file \S+ any more; restore it"):
        list(files.read_part(0))


def test_threads_may_share_a_reader(tmp_path: Path) -> None:
    objects = OBJECTS * 20
    files = JsonlFiles(write_jsonl(tmp_path / "a.jsonl", objects), part_nbytes=300)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda part: list(files.read_part(part)), range(files.num_parts)))
    assert plain([sample for part in parts for sample in part]) == keyed(objects)


def test_a_reader_travels_to_workers(tmp_path: Path) -> None:
    files = JsonlFiles(write_jsonl(tmp_path / "a.jsonl", OBJECTS), part_nbytes=100)
    expected = read_all(files)
    assert read_all(pickle.loads(pickle.dumps(files))) == expected
    # Reading that stops early leaves nothing open: warnings are errors here.
    samples = files.read_part(0)
    next(samples)
    del samples


@pytest.mark.parametrize("part_nbytes", [1, 7, 20, 1_000])
def test_lines_of_parts_are_those_of_the_file(tmp_path: Path, part_nbytes: int) -> None:
    content = b'\xef\xbb\xbf{"a": 1}\r\n\n{"b":\t2}\nno json\n{"c": 3}\n\n \n'
    (tmp_path / "a.jsonl").write_bytes(content)
    files = JsonlFiles(tmp_path / "a.jsonl", part_nbytes=part_nbytes)
    found = [line for part in range(files.num_parts) for line in files.read_part_lines(part)]
    assert found == list(enumerate(content[3:].rstrip().split(b"\n")))
