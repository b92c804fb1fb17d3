"""Lines of keyed tokens: what the keys are, what becomes of lists of lists, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ingest.records.sources import ListFiles
from zindex.errors import ConfigError, SourceError
from zindex.ingest.keyed.token_lines import TokenLines, open_token_lines
from zindex.store.records import encode_numbers

SFT = {"id": "a", "sequence": [5, 6, 7], "loss_mask": [0, 1, 1], "n": 3}
GRPO = {
    "prompts": [1, 2],
    "responses": [[3], [4, 5]],
    "masks": [[1], [True, False]],
    "rewards": [0.5, 1],
}


def files_of(*records: dict[str, Any]) -> ListFiles:
    """One file, in parts of one line each."""
    lines = [record | {"__key__": str(i)} for i, record in enumerate(records)]
    return ListFiles({"/d/a.jsonl": [[line] for line in lines]})


def own(source: TokenLines) -> list[dict[str, Any]]:
    """The fields of all records, arrays as lists."""
    found = [record for part in range(source.num_parts) for record in source.read_part(part)]
    fields = [{key: record[key] for key in source.field_dtypes} for record in found]
    return [{key: np.array(x).tolist() for key, x in record.items()} for record in fields]


def stored(value: Any, dtype: str) -> bytes | str:
    """What becomes of a list of numbers, or why it is refused."""
    try:
        return encode_numbers(value, np.dtype(dtype))
    except SourceError as error:
        return str(error)


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.integers(-3, 300),
            st.integers(-(2**65), 2**65),
            st.booleans(),
            st.sampled_from([0.0, 1.5, None, "1", [1]]),
        ),
        max_size=6,
    )
    | st.lists(st.integers(0, 2), max_size=12).map(lambda items: [*items, *items, *items])
    | st.lists(st.booleans() | st.integers(0, 1), max_size=12),
    st.sampled_from(["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float32"]),
)
def test_packed_lists_are_stored_as_they_would_be_themselves(value: list[Any], dtype: str) -> None:
    source = TokenLines(files_of({"x": value}), "", {"x": dtype})
    [record] = source.read_part(0)
    assert stored(record["x"], dtype) == stored(value, dtype)


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint16", "int64"])
def test_lists_of_whole_numbers_become_arrays(dtype: str) -> None:
    [record] = TokenLines(files_of({"x": [0, 1, 1]}), "", {"x": dtype}).read_part(0)
    assert record["x"].dtype == dtype


def test_lists_are_keys() -> None:
    source = open_token_lines(files_of(SFT), "digest")
    assert source.field_dtypes == {"sequence": "int32", "loss_mask": "bool"}
    assert own(source) == [{"sequence": [5, 6, 7], "loss_mask": [False, True, True]}]
    assert source.fingerprint() == "digest"
    assert [record["__key__"] for record in source.read_part(0)] == ["0"]


def test_lists_of_lists_are_values_and_lengths() -> None:
    source = open_token_lines(files_of(GRPO), "")
    assert source.field_dtypes == {
        "prompts": "int32",
        "responses": "int32",
        "responses_length": "int64",
        "masks": "bool",
        "masks_length": "int64",
        "rewards": "float32",
    }
    assert own(source) == [
        {
            "prompts": [1, 2],
            "responses": [3, 4, 5],
            "responses_length": [1, 2],
            "masks": [True, True, False],
            "masks_length": [1, 2],
            "rewards": [0.5, 1],
        }
    ]
    assert source.identity()["token_lines"]["groups"] == ["responses", "masks"]


def test_empty_first_lines_do_not_hide_what_keys_are() -> None:
    empty = {"prompts": [], "responses": [], "masks": [], "rewards": [], "x": []}
    source = open_token_lines(files_of(empty, empty, GRPO | {"x": [1.5]}), "")
    assert source.groups == ("responses", "masks")
    assert source.field_dtypes["x"] == "float32"
    assert own(source)[0]["responses_length"] == []
    assert open_token_lines(files_of(empty), "").groups == ()


def test_named_dtypes_are_the_keys() -> None:
    source = open_token_lines(files_of(GRPO), "", {"responses": "uint16"})
    assert source.field_dtypes == {"responses": "uint16", "responses_length": "int64"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"responses": 3}, "'responses' must be a list, got 3, in line 2 of /d/a.jsonl; fix it"),
        ({"responses": [3]}, r"'responses' must be a list of lists, got \[3\], in line 2"),
        (
            {"masks": [[1], [1]]},
            r"the items of 'masks' must be as long as those of 'responses', their lengths are "
            r"\[1, 1\] and \[1, 2\], in line 2",
        ),
        (
            {"rewards": [1.0]},
            "'rewards' must have as many values as 'responses', got 1 and 2, in line 2",
        ),
    ],
)
def test_lines_whose_keys_do_not_match(change: dict[str, Any], problem: str) -> None:
    files = files_of(GRPO, GRPO | change, GRPO)
    with pytest.raises(SourceError, match=problem):
        own(open_token_lines(files, ""))
    skipping = open_token_lines(files, "", on_damage="skip")
    assert len(own(skipping)) == 2
    assert skipping.num_skipped == 1


@pytest.mark.parametrize("key", ["loss_mask", "position_ids", "sequence_mask"])
def test_companion_keys_have_matching_lengths(key: str) -> None:
    good, bad = ({"sequence": [1, 2, 3], key: [0] * count} for count in (3, 2))
    with pytest.raises(SourceError, match=f"'{key}' must have as many values as 'sequence', got"):
        own(open_token_lines(files_of(good, bad), ""))


def test_lines_without_lists_are_refused() -> None:
    with pytest.raises(SourceError, match=r"the first of /d/a\.jsonl has none; name other files"):
        open_token_lines(files_of({"text": "a"}), "")


def test_a_key_is_not_called_like_lengths() -> None:
    record = {"x": [[1]], "x_length": [1]}
    with pytest.raises(ConfigError, match="a key must not be called x_length next to x, for the"):
        open_token_lines(files_of(record), "")
    assert own(open_token_lines(files_of(record), "", {"x": "int8"})) == [
        {"x": [1], "x_length": [1]}
    ]


def test_a_look_has_an_end(tmp_path: Path) -> None:
    never = [{"a": [1], "b": []}] * 1500
    assert open_token_lines(files_of(*never), "").field_dtypes == {"a": "int32", "b": "int32"}


@pytest.mark.parametrize(
    ("key", "dtype", "values", "shown"),
    [
        ("sequence", "int32", [1, -5], r"token ids of 'sequence' must be from 0 .*, got -5"),
        ("chosen", "uint64", [2**63 + 5], rf"ids of 'chosen' must be from 0 .*, got {2**63 + 5}"),
        ("loss_mask", "float32", [0.1, float("inf")], "numbers of 'loss_mask' must be finite"),
        ("rewards", "float32", [float("nan")], "numbers of 'rewards' must be finite, got nan"),
    ],
)
def test_invalid_values(key: str, dtype: str, values: list[Any], shown: str) -> None:
    files = files_of({key: [0]}, {key: values})
    lines = TokenLines(files, "digest", {key: dtype})
    with pytest.raises(SourceError, match=f"{shown}.*, in line 2 of /d/a.jsonl"):
        own(lines)
    skipping = TokenLines(files, "digest", {key: dtype}, on_damage="skip")
    assert len(own(skipping)) == 1


def test_a_mask_of_fractions_is_of_floats() -> None:
    files = files_of({"sequence": [1, 2], "loss_mask": [1, 0.1], "masks": [[1]]})
    lines = open_token_lines(files, "digest")
    assert lines.dtypes == {"sequence": "int32", "loss_mask": "float32", "masks": "bool"}
    assert own(lines)[0]["loss_mask"] == [1, 0.1]
