"""Which files a user names, and how an import reads lines."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ingest.records.sources import ListFiles
from tests.sources.archives import write_jsonl, write_tar
from tests.sources.test_parquet_files import write_parquet
from zindex.errors import ConfigError, SourceError
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.formats import json_lines
from zindex.formats.json_lines import decode_with_json, parse_object
from zindex.ingest.records import open_files as module
from zindex.ingest.records.open_files import (
    find_kind,
    find_text_kind,
    open_files,
    open_texts,
    share_nbytes,
)
from zindex.ingest.records.partitions import count_all_lines
from zindex.ingest.records.read_partitions import own_copy
from zindex.sources import jsonl_files
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.sample_files import SampleFiles
from zindex.sources.tar_files import TarFiles


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("a.jsonl", "jsonl"),
        ("s3://b/x.jsonl.zst", "jsonl"),
        ("x.ndjson.gz", "jsonl"),
        ("part-{00..10}.tar", "tar"),
        ("x.tgz", "tar"),
        (["x.tar.gz", "y"], "tar"),
        (Path("x.jsonl"), "jsonl"),
    ],
)
def test_names_tell_the_kind(source: Any, kind: str) -> None:
    assert find_kind(source) == kind


def test_folders_tell_the_kind(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "lines/a.jsonl", [{}])
    write_jsonl(tmp_path / "tars/a.meta.jsonl", [{"key": "k"}])
    write_tar(tmp_path / "tars/a.tar", [("k.txt", b"")])
    assert find_kind(tmp_path / "lines") == "jsonl"
    assert find_kind([str(tmp_path / "tars")]) == "tar"
    assert find_kind("", include_dirs="anything") == "tar"
    problem = (
        r"of one kind, got tar \(.*tars/a\.tar\) and jsonl \(.*lines/a\.jsonl\); import each kind"
    )
    for mixture in (tmp_path, [tmp_path / "tars", tmp_path / "lines"]):
        with pytest.raises(ConfigError, match=problem):
            find_kind(mixture)
    with pytest.raises(
        ConfigError, match=r"got tar \(b\.tar\) and jsonl \(a\.jsonl\); import each"
    ):
        find_kind("a.jsonl, b.tar")
    (tmp_path / "a.txt").touch()
    assert find_kind([tmp_path / "a.txt", tmp_path / "lines"]) == "jsonl"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="a source must name tar or jsonl files, or a folder of"):
        find_kind(tmp_path / "empty")


def test_settings_must_fit_the_kind(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{}])
    with pytest.raises(ConfigError, match="kind must be one of jsonl, tar, got 'csv'"):
        open_files(path, "csv")  # type: ignore[arg-type]
    for given_too in ({"meta_names": ["x"]}, {"include_dirs": "d"}):
        with pytest.raises(
            ConfigError,
            match=r"meta_names \(--meta\) and include_dirs \(--include-dirs\) must come with tar",
        ):
            open_files(path, "jsonl", **given_too)  # type: ignore[arg-type]


def test_kind_and_identity_do_not_depend_on_parts(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "a.jsonl", [{"x": i} for i in range(100)])
    tar = write_tar(tmp_path / "a.tar", [("k.txt", b"")])
    for path, cls in ((lines, JsonlFiles), (tar, TarFiles)):
        opened, identity = zip(
            *(open_files(path, None, part_nbytes=size) for size in (10, 100, None)), strict=True
        )
        assert identity[0] == identity[1] == identity[2]
        assert {type(files) for files in opened} == {cls}
    assert open_files(tar, None)[1] != open_files(tar, None, meta_names=["x"])[1]
    own = ListFiles({"a": [[{}]]})
    identity = {"source": own.fingerprint(), "kind": None, "meta_names": []}
    assert open_files(own, None) == (own, identity)


def exact(path: Path, part_nbytes: int, **settings: Any) -> SampleFiles:
    """The files of a path, with their lines counted."""
    files = JsonlFiles(path, part_nbytes=part_nbytes, **settings)
    return run_builds(count_all_lines(files, SerialExecutor(), "name"))


@given(
    st.lists(st.text("ab\n\u00e9", max_size=12), min_size=1, max_size=12),
    st.integers(1, 90),
    st.integers(1, 40),
)
def test_lines_are_numbered_in_every_part(
    tmp_path: Path, texts: list[str], part_nbytes: int, read_nbytes: int
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": text} for text in texts])
    before = jsonl_files.LOCAL_NBYTES
    jsonl_files.LOCAL_NBYTES = read_nbytes
    try:
        files = exact(path, part_nbytes)
    finally:
        jsonl_files.LOCAL_NBYTES = before
    found = [record for part in range(files.num_parts) for record in files.read_part(part)]
    url = str(path)
    assert found == [{"x": text, "__url__": url, "__key__": str(i)} for i, text in enumerate(texts)]


def test_numbers_keep_all_their_digits(tmp_path: Path) -> None:
    row = {"a": 2**64, "b": [-(10**40)], "c": 0.1, "e": None, "f": [None]}
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    [found] = exact(path, 1 << 20).read_part(0)
    assert found == row | {"e": "", "__url__": str(path), "__key__": "0"}
    assert type(found["a"]) is int


def parse(line: bytes) -> str:
    """What a line is read as, with types, or why it is damaged."""
    try:
        return repr(parse_object(line))
    except SourceError as error:
        return f"error: {error}"


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from(
        [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**18, -(10**18)]
    ),
    st.floats(),
    st.text(max_size=6),
)
_OBJECTS = st.dictionaries(
    st.text(max_size=3),
    st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
    max_size=4,
)
_LINES = (
    b'{"a": 1, "b": 2, "a": null}',
    b'{"a": -0, "b": -0.0, "c": 1e400, "d": 5e-400, "e": 1E5}',
    b'{"a": 1.7976931348623159e308, "b": 0.1000000000000000055511151231257827}',
    b'{"a": "\\ud800", "b": "\\ud83d\\ude00"}',
    b' {"a": [1, 2]}\t\r',
    b'\x0c{"a": 1}',
    b'{"a": "\xed\xa0\x80"}',
    b'{"a": "\x00"}',
    b'{"a": 01}',
    b'{"a": [1,]}',
    b'{"a": 1}{',
    b"null",
    b'{"a": ' + b"[" * 990 + b"]" * 990 + b"}",
    b'{"a": ' + b'{"b":' * 700 + b"1" + b"}" * 700 + b"}",
    b'{"a": ' + b"[" * 490 + b'"", ' + b"[{}]," * 20 + b"1" + b"]" * 490 + b"}",
    b'{"a": ' + b"[" * 501 + b"]" * 501 + b"}",
    b'{"a": "' + b"[{" * 300 + b'"}',
    b"[" * 501 + b"]" * 501,
    b"1",
    b'{"a": 123456789012345678901234567890.5}',
)


@pytest.mark.skipif(json_lines.loads is decode_with_json, reason="there is no other parser")
@settings(max_examples=200)
@given(st.sampled_from(_LINES) | _OBJECTS.map(lambda item: json.dumps(item).encode()), st.data())
def test_lines_are_the_same_whatever_parser_is_installed(
    monkeypatch: pytest.MonkeyPatch, line: bytes, data: st.DataObject
) -> None:
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(line)))
        line = line[:at] + data.draw(st.binary(max_size=2)) + line[at + 1 :]
    found = parse(line)
    with monkeypatch.context() as patch:
        patch.setattr(json_lines, "loads", decode_with_json)
        assert found == parse(line)


def test_large_files_are_cut_into_many_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [(1, 4), (1 << 30, 4), (3 << 30, 16), (16 << 30, 64), (1 << 45, 64)]
    for nbytes, expected in sizes:
        assert share_nbytes(nbytes, 1 << 26) == expected << 20
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": i} for i in range(1000)])
    monkeypatch.setattr(module, "_LEAST_NBYTES", 1)
    opened, identity = open_files(path, None)
    assert opened.num_parts > 100
    assert identity == open_files(path, None, part_nbytes=1 << 20)[1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "there is a blank line"),
        ("[1]", "there must be a JSON object, it is of type list"),
        ('{"x": ', "there is no JSON: Expecting value at column 7;"),
        ('{"x": ' + "1" * 5000 + "}", "there is no JSON: Exceeds the limit"),
        ('{"x": ' + "[" * 200_000, "there is JSON that is nested too deeply"),
    ],
    ids=["blank", "list", "cut", "digits", "deep"],
)
def test_damaged_lines_are_errors_or_left_out(
    tmp_path: Path, line: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n' + line + '\n{"x": 2}\n')
    problem = rf"a\.jsonl must be lines of JSON objects, but at byte 9 \(line 2\) {reason}"
    with pytest.raises(SourceError, match=problem):
        list(exact(path, 1 << 30).read_part(0))
    files = exact(path, 1 << 30, on_damage="skip")
    with caplog.at_level(logging.WARNING):
        found = list(files.read_part(0))
    assert [(record["__key__"], record["x"]) for record in found] == [("0", 1), ("2", 2)]
    assert files.num_skipped == 1


def test_a_byte_order_mark_is_passed_by(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"x": "y"}).encode())
    [record] = exact(path, 1 << 20).read_part(0)
    assert record["x"] == "y"


def test_a_copy_counts_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{\n{}\n")
    files = JsonlFiles(path, part_nbytes=1, on_damage="skip")
    own = own_copy(files)
    for part in range(own.num_parts):
        list(own.read_part(part))
    assert (own.num_skipped, files.num_skipped) == (1, 0)
    own = own_copy(TarFiles(write_tar(tmp_path / "a.tar", [("k.txt", b"")])))
    assert own.num_skipped == 0


def test_kinds_of_texts_by_names_and_folders(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "lines/a.jsonl", [{"text": "a"}])
    table = write_parquet(tmp_path / "tables/a.parquet", ["a"])
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("a")
    for kind, path in (("jsonl", lines), ("parquet", table), ("text", tmp_path / "texts/a.txt")):
        assert find_text_kind(path) == find_text_kind(path.parent) == kind
        files, fingerprint = open_texts(path, None, None, "error", ["text"])
        assert [row["text"] for row in files.read_part(0)] == ["a"]
        assert len(fingerprint) == 64
    with pytest.raises(ConfigError, match="must be one of jsonl, parquet, text, got 'tar'; choose"):
        open_texts(lines, "tar", None, "error")  # type: ignore[arg-type]
