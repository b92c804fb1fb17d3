"""Layouts of conversations, by the names of Megatron's functions."""

import json
from typing import Any

import pytest

from zindex.datasets.conversations.record_layouts import (
    convert_instruction,
    convert_messages,
    convert_sharegpt,
    convert_text,
    select_layout,
)
from zindex.errors import SourceError


def say(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            {"instruction": "Sum.", "input": "Long", "output": "Short"},
            [("system", ""), ("user", "Sum.\n\nLong"), ("assistant", "Short")],
        ),
        (
            {"question": "Q", "prompt": "", "context": None, "answer": "A"},
            [("system", ""), ("user", "Q"), ("assistant", "A")],
        ),
        ({"prompt": "Q"}, [("system", ""), ("user", "Q"), ("assistant", "")]),
    ],
)
def test_instructions(record: Any, expected: Any) -> None:
    assert convert_instruction(record) == say(*expected)


@pytest.mark.parametrize(
    ("speaker", "role"),
    [("human", "user"), ("GPT", "assistant"), ("observation", "tool"), ("alien", "user")],
)
def test_sharegpt_roles(speaker: str, role: str) -> None:
    record = {"conversations": [{"from": speaker, "value": "x"}]}
    assert convert_sharegpt(record) == say(("system", ""), (role, "x"))


def test_a_system_that_is_there_stays_the_only_one() -> None:
    turns = [{"from": "system", "value": "be"}, {"from": "human", "value": None}]
    expected = say(("system", "be"), ("user", ""))
    assert convert_sharegpt({"conversations": turns}) == expected
    messages = [{**message, "name": "n"} for message in expected]
    assert convert_messages({"messages": messages}) == expected
    assert convert_messages({"messages": messages[1:]}) == say(("system", ""), ("user", ""))
    assert convert_messages({"messages": None}) == []


def test_texts() -> None:
    assert convert_text({"text": "a"}) == "a"
    assert convert_text({}) == ""


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (["text", "messages", "instruction", "output"], "openai-messages"),
        (["conversations", "id"], "sharegpt"),
        (["prompt", "response", "text"], "alpaca"),
        (["text", "instruction"], "pretrain-text"),
    ],
)
def test_layouts_are_told_by_fields(columns: list[str], name: str) -> None:
    assert select_layout(columns)[1] == name


def test_unknown_layouts_are_refused() -> None:
    with pytest.raises(SourceError, match=r"cannot infer schema from \['answer', 'id'\]"):
        select_layout(["id", "answer"])


@pytest.mark.parametrize(
    ("convert", "record", "message"),
    [
        (convert_messages, {"messages": [{"role": "user", "content": [1]}]}, "role .user. of a"),
        (convert_messages, {"messages": "x"}, "messages of a record must be a list of objects"),
        (convert_sharegpt, {"conversations": [1]}, "conversations of a record must be a list"),
        (convert_sharegpt, {"conversations": [{"from": "gpt", "value": {}}]}, "must be a string"),
        (convert_instruction, {"prompt": ["a"]}, "prompt of a record must be a string, got list"),
        (convert_text, {"text": 3}, "text of a record must be a string, got int"),
    ],
)  # fmt: skip
def test_other_contents_are_refused(convert: Any, record: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        convert(json.loads(json.dumps(record)))
