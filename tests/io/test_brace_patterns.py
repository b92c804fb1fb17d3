"""Brace patterns: what they expand to, and that none is a bomb."""

import pytest

from zindex.errors import ConfigError
from zindex.io.brace_patterns import expand_braces, split_at_commas


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("test0{00..02}.tar", ["test000.tar", "test001.tar", "test002.tar"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{0..10..5}{a,b}", ["0a", "0b", "5a", "5b", "10a", "10b"]),
        ("{10..0..-5}", ["10", "5", "0"]),
        ("x{a,b{1..2},}y", ["xay", "xb1y", "xb2y", "xy"]),
        ("s3://b/{c,d}/e.tar", ["s3://b/c/e.tar", "s3://b/d/e.tar"]),
        ("{one}/a", ["{one}/a"]),
        ("{}", ["{}"]),
    ],
)
def test_names(text: str, names: list[str]) -> None:
    assert expand_braces(text) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{1..999999999}.tar",
            "at most 1,000,000 files, '{1..999999999}.tar' expands to 999,999,9",
        ),
        ("{1..1000}" * 7, "expands to 1,000,000,000,000,000,000,000; name their folder"),
        ("{a,b}" * 21, "expands to 2,097,152"),
        ("{0..999999999999999999}", "expands to 1,000,000,000,000,000,000"),
        ("{" * 3000, "must be nested at most 8 deep"),
        ("{a,{b" * 50, "must be nested at most 8 deep"),
        ("a{b,c", r"must close the braces that it opens, got 'a\{b,c'"),
        ("a}b", "must close braces that it opened, got 'a}b'"),
        ("{a..z}", r"a range in a path must be of whole numbers, got '\{a..z\}'"),
        ("{1..9..0}", "must have a step, got 0"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand_braces(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a.jsonl", ["a.jsonl"]),
        ("a.jsonl, folder,b{1,2}.jsonl,", ["a.jsonl", "folder", "b{1,2}.jsonl"]),
        ("{a,{b,c}},d", ["{a,{b,c}}", "d"]),
        ("a},b", ["a}", "b"]),
        (" , ", []),
    ],
)
def test_commas(text: str, parts: list[str]) -> None:
    assert split_at_commas(text) == parts
