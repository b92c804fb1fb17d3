"""Lines of JSON objects: what is one, and where one ends."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import SourceError
from zindex.formats import json_lines
from zindex.formats.json_lines import (
    MAX_JOINED_NBYTES,
    cut_lines,
    decode_with_json,
    parse_lines,
    parse_object,
    parse_text,
)
from zindex.io.decompression import DamageError

NESTED = {"a": math.inf, "b": 'say "c": no', "d": {"a": ["\\", {"a": 1}]}}


@pytest.fixture(params=["orjson", "json"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parsers accept and refuse the same."""
    if request.param == "orjson":
        pytest.importorskip("orjson", reason="needs the extra 'streaming'")
    else:
        monkeypatch.setattr(json_lines, "loads", decode_with_json)


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"{}", {}),
        (b' {"a": [1, -2.5, true, null]} \r', {"a": [1, -2.5, True, None]}),
        ('{"ü": "日本"}'.encode(), {"ü": "日本"}),
        (b'{"a": 9223372036854775807}', {"a": 2**63 - 1}),
        (b'{"a": 18446744073709551616}', {"a": 2**64}),
        (b'{"a": 1e999, "b": "say \\"c\\": no", "d" : {"a": ["\\\\", {"a":1}]}}', NESTED),
        (b'{"a": "\\ud800"}', {"a": "\ud800"}),
    ],
)
def test_objects(line: bytes, value: dict[str, Any]) -> None:
    assert parse_object(line) == value


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "there is a blank line"),
        (b" \t\r", "there is a blank line"),
        (b'{"a": 1', "there is no JSON: Expecting ',' delimiter"),
        (b"{'a': 1}", "there is no JSON: Expecting property name"),
        (b'{"a": 1}{"b": 2}', "there is no JSON: Extra data"),
        (b'{"a": "\xff"}', "there is no JSON: 'utf-8' codec can't decode"),
        (b'{"a": "\xed\xa0\x80"}', "there is no JSON: 'utf-8' codec can't decode"),
        (b"\xef\xbb\xbf{}", "there is no JSON: Unexpected UTF-8 BOM"),
        (b'{"a": "\x01"}', "there is no JSON: Invalid control character"),
        (b"[" * 100_000, "there is JSON that is nested too deeply"),
        (b'{"text": NaN}', "there is no JSON: NaN is no number of JSON, write null"),
        (b'{"a": [-Infinity]}', "there is no JSON: -Infinity is no number of JSON"),
        (b'{"text": "a", "text": "b"}', "there is no JSON: an object repeats the name 'text'"),
        (b'{"a": [{"b": 1, "c": "\\":", "b": 1}]}', "an object repeats the name 'b'"),
        (b'{"\\u0061" : 1, "a" : 2}', "an object repeats the name 'a'"),
        (b"[1]", "there must be a JSON object, it is of type list"),
        (b"null", "there must be a JSON object, it is of type NoneType"),
        (b'"text"', "there must be a JSON object, it is of type str"),
    ],
)
def test_bad_lines(line: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse_object(line)


def in_chunks(content: bytes, size: int) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, len(content), size))


@given(st.binary(max_size=40).map(lambda text: text.replace(b"x", b"\n")), st.integers(1, 45))
def test_lines_and_offsets_do_not_depend_on_chunks(content: bytes, size: int) -> None:
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    found = []
    for offset, lines in cut_lines(in_chunks(content, size)):
        for line in lines:
            assert content[offset : offset + len(line)] == line
            found.append(line)
            offset += len(line) + 1
    assert found == expected


@given(st.text("ab\n", max_size=40).map(str.encode), st.integers(1, 45), st.integers(1, 45))
def test_a_line_belongs_to_where_it_begins(content: bytes, size: int, stop: int) -> None:
    whole = [line for _, lines in cut_lines([content]) for line in lines] if content else []
    starts = [0, *(at + 1 for at, letter in enumerate(content) if letter == 10)]
    own = [line for line, start in zip(whole, starts, strict=False) if start < stop]
    found = [line for _, lines in cut_lines(in_chunks(content, size), 0, stop) for line in lines]
    assert found == own


def test_a_line_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MAX_LINE_NBYTES", 100)
    with pytest.raises(DamageError, match="a line begins that has more than 100 bytes") as caught:
        list(cut_lines([b"{}\n", *[b" " * 30] * 9]))
    assert caught.value.offset == 3


@pytest.mark.usefixtures("parser")
def test_a_column_counts_from_one() -> None:
    with pytest.raises(SourceError, match=r"^there is no JSON: Expecting value at column 7$"):
        parse_object(b'{"a": x}')


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("length", [1, 2 * MAX_JOINED_NBYTES])
def test_lines_are_parsed_together(length: int) -> None:
    values: list[Any] = [{"a": "x" * length, "b": [1, {"c": None}]}, 7, [], "x" * length, None]
    lines = [json.dumps(value).encode() for value in values]
    ends = [b"", b"\n", b" \r\n", b"\n", b""]
    assert parse_lines([*map(bytes.__add__, lines, ends)]) == values
    assert parse_lines([*map(memoryview, lines)]) == values
    assert parse_text(b"\n".join(lines), len(lines)) == values
    assert parse_text(b"\n".join(lines) + b"\n", len(lines)) == values


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    "lines",
    [
        [b"1, 2"],
        [b"{}, {}", b"[1", b"2]"],
        [b'{"a": [1', b"2]}", b"3, 4"],
        [b'{"a": "', b'"}', b"{}, {}"],
        [b"{}", b""],
        [b"{}", b" "],
        [b"{}, ", b"{}"],
        [b"{}", b"{"],
        [b"{}]", b"[{}"],
        [b"{}", b"\xef\xbb\xbf{}"],
        [b'{"a": 1}{"b": 2}', b"{}"],
        [],
    ],
)
@pytest.mark.parametrize("length", [0, 4 * MAX_JOINED_NBYTES])
def test_lines_with_another_number_of_values_are_refused(lines: list[bytes], length: int) -> None:
    """Also those that are JSON only together, or with the borders between them."""
    if length and lines:
        lines = [*lines, b'"%b"' % (b"x" * length * len(lines))]
    assert parse_lines(lines) is None
    if lines:
        assert parse_text(b"\n".join(lines), len(lines)) is None
    some = [line + b", 281474976710656" for line in lines]
    assert parse_lines(some) is None
