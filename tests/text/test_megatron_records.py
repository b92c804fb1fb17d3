"""Records as Megatron-LM's varlen datasets read them."""

from typing import Any

import pytest

from zindex.errors import SourceError
from zindex.text.megatron_records import find_layout, read_as_megatron

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "q"}


def say(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


@pytest.mark.parametrize(
    ("layout", "record", "expected"),
    [
        (
            "alpaca",
            {"instruction": "Sum.", "input": "Long", "output": "Short"},
            [("system", ""), ("user", "Sum.\n\nLong"), ("assistant", "Short")],
        ),
        (
            "alpaca",
            {"question": "Q", "prompt": "", "context": None, "answer": "A"},
            [("system", ""), ("user", "Q"), ("assistant", "A")],
        ),
        ("alpaca", {"prompt": "Q"}, [("system", ""), ("user", "Q"), ("assistant", "")]),
        *(
            ("sharegpt", {"conversations": [{"from": name, "value": "x"}]}, [("system", ""), turn])
            for name, turn in (
                ("human", ("user", "x")),
                ("GPT", ("assistant", "x")),
                ("observation", ("tool", "x")),
                ("alien", ("user", "x")),
            )
        ),
        (
            "sharegpt",
            {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": None}]},
            [("system", "s"), ("user", "")],
        ),
        (
            "openai-messages",
            {"messages": [SYSTEM | {"name": "n"}, {"content": None}]},
            [("system", "s"), ("user", "")],
        ),
        ("openai-messages", {"messages": [USER]}, [("system", ""), ("user", "q")]),
        ("openai-messages", {"messages": None}, []),
    ],
)  # fmt: skip
def test_megatrons_reading(layout: str, record: Any, expected: Any) -> None:
    assert read_as_megatron(record, layout) == say(*expected)


def test_megatrons_texts() -> None:
    assert read_as_megatron({"text": "a"}, "pretrain-text") == "a"
    assert read_as_megatron({}, "pretrain-text") == ""


@pytest.mark.parametrize(
    ("layout", "record", "message"),
    [
        ("openai-messages", {"messages": [{"role": "user", "content": [1]}]}, "role .user. of a"),
        ("openai-messages", {"messages": "x"}, "messages of a record must be a list of objects"),
        ("sharegpt", {"conversations": [1]}, "conversations of a record must be a list"),
        ("sharegpt", {"conversations": [{"from": "gpt", "value": {}}]}, "must be a string"),
        ("alpaca", {"prompt": ["a"]}, "prompt of a record must be a string, got list"),
        ("pretrain-text", {"text": 3}, "text of a record must be a string, got int"),
    ],
)
def test_contents_that_megatron_cannot_read(layout: str, record: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_as_megatron(record, layout)


@pytest.mark.parametrize(
    ("fields", "layout"),
    [
        (["text", "messages", "instruction", "output"], "openai-messages"),
        (["conversations", "id"], "sharegpt"),
        (["prompt", "response", "text"], "alpaca"),
        (["text", "instruction"], "pretrain-text"),
    ],
)
def test_fields_decide_the_layout(fields: list[str], layout: str) -> None:
    assert find_layout(fields) == layout


def test_unknown_layouts_are_refused() -> None:
    with pytest.raises(SourceError, match=r"cannot infer schema from \['answer', 'id'\]"):
        find_layout(["id", "answer"])
