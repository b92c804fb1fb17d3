"""Keys, dtypes and offsets that files declare."""

import re

import pytest

from zindex.errors import SourceError
from zindex.formats.keyed.keyed_array import DTYPES, check_key, parse_dtype, parse_offsets


@pytest.mark.parametrize("key", ["sequence", "loss_mask", "a.b", ".a", "ключ", "a b", "x" * 200])
def test_keys(key: str) -> None:
    check_key(key, where="here")


@pytest.mark.parametrize(
    "key", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\0", "x" * 201, "\ud800"]
)
def test_keys_that_may_lead_elsewhere(key: str) -> None:
    message = rf"1 to 200 bytes of UTF-8 and without slashes, got '{re.escape(repr(key)[1:30])}"
    with pytest.raises(SourceError, match=message):
        check_key(key, where="here")


def test_dtypes() -> None:
    for name in DTYPES:
        assert parse_dtype(name, where="") == parse_dtype(f"torch.{name}", where="") == name


@pytest.mark.parametrize("name", ["object", "int128", "<i4", "torch.", "torch.torch.bool", 4, None])
def test_other_dtypes(name: object) -> None:
    message = rf"dtypes bool, float16, .*, got {re.escape(repr(name))} in here; convert the values"
    with pytest.raises(SourceError, match=message):
        parse_dtype(name, where="here")


def test_bfloat16_is_refused_by_name() -> None:
    with pytest.raises(SourceError, match=r"got 'torch.bfloat16' in x; numpy .* store them as"):
        parse_dtype("torch.bfloat16", where="x")


def test_offsets() -> None:
    assert parse_offsets([0, 3, 3, 8], stop=8, where="").tolist() == [0, 3, 3, 8]
    assert parse_offsets([0], stop=0, where="").tolist() == [0]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 5, 3, 8], r"ascend from 0 to 8, key has 3 after 5 at place 2;"),
        ([0, -1, 8], r"-1 after 0 at place 1;"),
        ([1, 8], r"offsets from 1 to 8;"),
        ([0, 7], r"offsets from 0 to 7;"),
        ([], r"key has none;"),
        ([0, 2**64], r"offsets from -1 to -1;"),
        ([0, 2.0, 8], r"whole numbers, key has float '2.0' among them;"),
        ([False, 8], r"bool 'False' among them"),
        ([[0], [8]], r"list '\[0\]' among them"),
        ("08", r"key has str '08';"),
        ({"0": 8}, r"key has dict"),
    ],
)
def test_offsets_that_are_none(offsets: object, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse_offsets(offsets, stop=8, where="key")
