"""JSON objects of every shape that instruction data come in mean what they say."""

import re
from typing import Any

import pytest

from zindex.errors import ConfigError, SourceError
from zindex.text.conversations import Dialogue, RowReader

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
OTHER = {"role": "assistant", "content": "b"}
KEYS = {"__key__": "0", "__url__": "x"}


@pytest.mark.parametrize(
    ("row", "messages", "num_prompt"),
    [
        ({"messages": [SYSTEM, USER, ANSWER]}, [SYSTEM, USER, ANSWER], 0),
        ({"messages": [USER, ANSWER], "system": "s"}, [SYSTEM, USER, ANSWER], 0),
        ({"messages": [SYSTEM, USER, ANSWER], "system": "no"}, [SYSTEM, USER, ANSWER], 0),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            [USER, ANSWER],
            0,
        ),
        ({"prompt": "q", "completion": "a"}, [USER, ANSWER], 1),
        ({"prompt": "q", "response": "a", "system": "s"}, [SYSTEM, USER, ANSWER], 2),
        ({"prompt": [SYSTEM, USER], "completion": [ANSWER]}, [SYSTEM, USER, ANSWER], 2),
        ({"input": "q", "output": "a"}, [USER, ANSWER], 1),
        ({"question": "q", "answer": "a"}, [USER, ANSWER], 1),
        ({"instruction": "q", "input": "", "output": "a"}, [USER, ANSWER], 1),
        ({"instruction": "q", "output": "a"}, [USER, ANSWER], 1),
        (
            {"instruction": "q", "context": "c", "response": "a"},
            [{"role": "user", "content": "q\n\nc"}, ANSWER],
            1,
        ),
    ],
)
def test_dialogues(row: dict[str, Any], messages: list[Any], num_prompt: int) -> None:
    assert RowReader().read_dialogue(row | KEYS) == Dialogue(messages, num_prompt)


def test_what_messages_hold_besides_is_kept() -> None:
    call = {"role": "assistant", "tool_calls": [{"name": "f"}]}
    weighed = {"role": "assistant", "content": "a", "weight": 0}
    row = {"messages": [call, weighed], "tools": [{"name": "f"}]}
    found = RowReader().read_dialogue(row)
    assert found == Dialogue([{**call, "content": ""}, weighed], 0, [{"name": "f"}])


def test_parts_of_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = RowReader().read_dialogue({"messages": [{"role": "user", "content": parts}]})
    assert found.messages == [{"role": "user", "content": "ab"}]
    with pytest.raises(
        SourceError, match=r"or parts of the type 'text', got parts of \['text', 'im"
    ):
        RowReader().read_dialogue(
            {"messages": [{"role": "user", "content": [parts[0], {"type": "image"}]}]}
        )


def test_columns_and_roles_may_be_called_otherwise() -> None:
    reader = RowReader({"prompt": "question", "completion": "a"}, {"assistant": "model"})
    found = reader.read_dialogue({"question": "q", "a": ANSWER, "prompt": "x", "completion": "y"})
    assert found.messages == [USER, {"role": "model", "content": "a"}]
    assert RowReader({"text": "content"}).read_text({"content": "x", "text": "y"}) == "x"
    assert RowReader(roles={"gpt": "x"}).read_dialogue(
        {"messages": [{"from": "gpt", "value": "a"}]}
    ).messages == [{"role": "x", "content": "a"}]
    assert reader.identity() == {
        "columns": {"prompt": "question", "completion": "a"},
        "roles": {"assistant": "model"},
    }
    with pytest.raises(
        ConfigError, match=r"columns \(--column\) must name the field of one of tex"
    ):
        RowReader({"promt": "x"})


def test_objects_that_hold_a_dialogue() -> None:
    reader = RowReader()
    alpaca = {"instruction": "q", "input": "", "output": "a", "text": "q a"}
    assert reader.holds_dialogue(alpaca)
    assert reader.holds_dialogue({"question": "q", "answer": "a"})
    assert reader.holds_dialogue({"messages": [USER]})
    assert not reader.holds_dialogue({"text": "x", "messages": "", "prompt": "q"})
    assert not RowReader({"messages": "talk"}).holds_dialogue({"messages": [USER]})


def test_texts() -> None:
    assert RowReader().read_text({"text": ""}) == ""
    assert RowReader().read_text({"messages": []}) is None


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, [USER]),
        ({"input": "q", "chosen": [ANSWER], "rejected": OTHER}, [USER]),
        ({"prompt": "q", "system": "s", "chosen": "a", "rejected": "b"}, [SYSTEM, USER]),
        ({"prompt": [SYSTEM, USER], "system": "t", "chosen": "a", "rejected": "b"}, [SYSTEM, USER]),
        ({"chosen": [SYSTEM, USER, ANSWER], "rejected": [SYSTEM, USER, OTHER]}, [SYSTEM, USER]),
        ({"prompt": "q", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]}, [USER]),
    ],
)
def test_pairs(row: dict[str, Any], messages: list[Any]) -> None:
    chosen, rejected = RowReader().read_pair(row | KEYS)
    assert chosen == Dialogue([*messages, ANSWER], len(messages))
    assert rejected == Dialogue([*messages, OTHER], len(messages))


def test_equal_answers_are_a_pair() -> None:
    chosen, rejected = RowReader().read_pair({"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]})
    assert chosen == rejected == Dialogue([USER, ANSWER], 1)


def test_groups() -> None:
    row = {"prompt": "q", "system": "s", "responses": ["a", [OTHER], ""], "rewards": [1, -0.5, 0]}
    group = RowReader().read_group(row)
    assert group.rewards == [1.0, -0.5, 0.0]
    empty = {"role": "assistant", "content": ""}
    assert [one.messages for one in group.answers] == [
        [SYSTEM, USER, answer] for answer in (ANSWER, OTHER, empty)
    ]
    assert {one.num_prompt for one in group.answers} == {2}


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        ("dialogue", {"a": 1}, "an instruction and an output, or a text, this one has ['a']; say"),
        (
            "dialogue",
            {"prompt": "q", "completion": ""},
            "this one has ['completion' (empty or null), 'prompt']",
        ),
        (
            "dialogue",
            {"messages": "x"},
            "field 'messages' must hold a list as messages, it holds s",
        ),
        ("dialogue", {"messages": ["x"]}, "must be an object with role and content, got str"),
        ("dialogue", {"messages": [{"role": "user"}]}, "role and content, got ['role']"),
        ("dialogue", {"messages": [{"content": "x", "role": 5}]}, "got ['content', 'role']"),
        (
            "dialogue",
            {"instruction": "q"},
            "an object must have an answer in 'output' or 'response'",
        ),
        (
            "dialogue",
            {"prompt": "q", "completion": []},
            "an answer must have a message, there is an",
        ),
        ("dialogue", {"prompt": {}, "completion": "a"}, "must hold a text or a list as prompt, it"),
        (
            "text",
            {"text": 5},
            "field 'text' must hold a text as text, it holds int; say what the fi",
        ),
        (
            "pair",
            {"prompt": "q", "chosen": "a"},
            "must have a rejected answer in 'rejected', and",
        ),
        (
            "pair",
            {"chosen": "a", "rejected": "b"},
            "a pair must have a prompt, or be two lists of m",
        ),
        (
            "pair",
            {"chosen": [ANSWER], "rejected": [OTHER]},
            "that begin with the same, this object",
        ),
        (
            "group",
            {"responses": ["a"], "rewards": [1]},
            "an object must have a prompt in 'prompt' or",
        ),
        (
            "group",
            {"prompt": "q", "rewards": [1]},
            "must have responses in 'responses', and no em",
        ),
        (
            "group",
            {"prompt": "q", "responses": ["a"]},
            "must have rewards in 'rewards', and no em",
        ),
        ("group", {"prompt": "q", "responses": [], "rewards": []}, "has 0 responses and 0 rewards"),
        (
            "group",
            {"prompt": "q", "responses": ["a"], "rewards": [1, 2]},
            "1 responses and 2 rewards",
        ),
        ("group", {"prompt": "q", "responses": ["a"], "rewards": [True]}, "fits float32, got True"),
        ("group", {"prompt": "q", "responses": [5], "rewards": [1]}, "or a list of them, got int"),
        ("group", {"prompt": "q", "responses": ["a"], "rewards": [1e39]}, "float32, got 1e+39"),
        ("group", {"prompt": "q", "responses": ["a"], "rewards": [float("nan")]}, "32, got nan"),
    ],
)
def test_damage(kind: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=re.escape(message)):
        getattr(RowReader(), f"read_{kind}")(row | KEYS)
