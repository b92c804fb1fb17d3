"""Limits of records: what is kept, and what they cost."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError
from zindex.text.length_limits import LengthLimits, LengthReport


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from([None, 1, 7, 30]),
    st.sampled_from(["start", "end"]),
)
def test_one_answer_is_cut_as_a_sequence(
    prompt: int, answer: int, max_length: int | None, keep: Any
) -> None:
    limits = LengthLimits(max_length, keep=keep)
    whole, pair = (
        limits.cut_sequence(prompt + answer),
        limits.cut_answers([prompt, answer], joined=True),
    )
    [(start, stop)] = whole.spans
    kept = [*range(*pair.spans[0]), *(prompt + at for at in range(*pair.spans[1]))]
    assert kept == list(range(start, stop))
    assert whole.lost == pair.lost


def test_a_group_is_cut_part_by_part() -> None:
    cut = LengthLimits(5, max_answer=6).cut_answers([9, 4, 8], joined=False)
    assert cut.spans == [(4, 9), (0, 4), (0, 5)]
    assert cut.lost == {"max_answer": 2, "max_length": 5}


def test_a_report_counts_records_and_tokens() -> None:
    limits = LengthLimits(max_prompt=3, max_answer=2, on_long="drop")
    report = LengthReport(limits)
    for prompt, answer in ((2, 2), (5, 1), (4, 4)):
        cut = limits.cut_answers([prompt, answer], joined=True)
        report.add({"prompt": [prompt], "answer": [answer]}, cut)
    found = report.to_json()
    assert (found["num_records"], found["num_long"], found["on_long"]) == (3, 2, "drop")
    assert found["limits"] == {
        "max_prompt": {"limit": 3, "num_records": 2, "num_lost": 3},
        "max_answer": {"limit": 2, "num_records": 1, "num_lost": 2},
    }
    assert found["lengths"]["answer"][0] == {
        "most": 1,
        "count": 1,
        "num_longer": 2,
        "num_lost": 4,
    }
    lines = report.to_lines()
    assert lines[-1] == "2 records would be left out, 1 are kept whole"
    assert "max_prompt 3: 2 of 3 records are longer, by 3 tokens" in lines


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_prompt": 0}, r"max_prompt \(--max-prompt\) must be a whole number from 1 on, got 0"),
        ({"on_long": "cut"}, r"on_long \(--on-long\) must be one of truncate, drop, error, got"),
    ],
)
def test_refused_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LengthLimits(**settings)
