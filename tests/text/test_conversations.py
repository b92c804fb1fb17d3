"""Records of all layouts of instruction data, by zindex's rules and by Megatron's."""

import json
import re
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from zindex.errors import ConfigError, SourceError
from zindex.text.conversations import (
    ANSWERS,
    CONTEXTS,
    QUESTIONS,
    ROLES,
    ConversationParser,
    Dialogue,
)
from zindex.text.megatron_records import find_layout, read_as_megatron

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "q"}
ASKED = {"role": "user", "content": "q\n\nc"}
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
        ({"query": "q", "answer": "a"}, [USER, ANSWER], 1),
        ({"instruction": "q", "context": "c", "answer": "a"}, [ASKED, ANSWER], 1),
        ({"prompt": "q", "output": "a", "context": "c"}, [ASKED, ANSWER], 1),
        ({"input": "q", "context": "c", "output": "a"}, [ASKED, ANSWER], 1),
        ({"conversations": [{"from": "bot", "value": "a"}]}, [ANSWER], 0),
        ({"conversations": [{"from": "Bard", "value": "a"}]}, [ANSWER], 0),
        ({"question": "q", "answer": "a"}, [USER, ANSWER], 1),
        ({"instruction": "q", "input": "", "output": "a"}, [USER, ANSWER], 1),
        ({"instruction": "q", "output": "a"}, [USER, ANSWER], 1),
        ({"instruction": "q", "context": "c", "response": "a"}, [ASKED, ANSWER], 1),
    ],
)
def test_dialogues(row: dict[str, Any], messages: list[Any], num_prompt: int) -> None:
    assert ConversationParser().read_dialogue(row | KEYS) == Dialogue(messages, num_prompt)


def test_further_keys_of_messages_are_kept() -> None:
    call = {"role": "assistant", "tool_calls": [{"name": "f"}]}
    weighed = {"role": "assistant", "content": "a", "weight": 0}
    row = {"messages": [call, weighed], "tools": [{"name": "f"}]}
    found = ConversationParser().read_dialogue(row)
    assert found == Dialogue([{**call, "content": ""}, weighed], 0, [{"name": "f"}])


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = ConversationParser().read_dialogue({"messages": [{"role": "user", "content": parts}]})
    assert found.messages == [{"role": "user", "content": "ab"}]
    with pytest.raises(
        SourceError, match=r"or parts of the type 'text', got parts of \['text', 'im"
    ):
        ConversationParser().read_dialogue(
            {"messages": [{"role": "user", "content": [parts[0], {"type": "image"}]}]}
        )


def test_columns_and_roles_can_be_renamed() -> None:
    reader = ConversationParser({"prompt": "question", "completion": "a"}, {"assistant": "model"})
    found = reader.read_dialogue({"question": "q", "a": ANSWER, "prompt": "x", "completion": "y"})
    assert found.messages == [USER, {"role": "model", "content": "a"}]
    assert ConversationParser({"text": "content"}).read_text({"content": "x", "text": "y"}) == "x"
    assert ConversationParser(roles={"gpt": "x"}).read_dialogue(
        {"messages": [{"from": "gpt", "value": "a"}]}
    ).messages == [{"role": "x", "content": "a"}]
    assert reader.identity() == {
        "columns": {"prompt": "question", "completion": "a"},
        "roles": {"assistant": "model"},
    }
    with pytest.raises(ConfigError, match=r"a part in columns \(--column\) must be one of tex"):
        ConversationParser({"promt": "x"})


def test_detection_of_dialogues() -> None:
    reader = ConversationParser()
    alpaca = {"instruction": "q", "input": "", "output": "a", "text": "q a"}
    assert reader.holds_dialogue(alpaca)
    assert reader.holds_dialogue({"question": "q", "answer": "a"})
    assert reader.holds_dialogue({"messages": [USER]})
    assert not reader.holds_dialogue({"text": "x", "messages": "", "prompt": "q"})
    assert not ConversationParser({"messages": "talk"}).holds_dialogue({"messages": [USER]})


def test_texts() -> None:
    assert ConversationParser().read_text({"text": ""}) == ""
    assert ConversationParser().read_text({"messages": []}) is None


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, [USER]),
        ({"prompt": "q", "context": "c", "chosen": "a", "rejected": "b"}, [ASKED]),
        ({"instruction": "q", "chosen": "a", "rejected": "b"}, [USER]),
        ({"input": "q", "chosen": [ANSWER], "rejected": OTHER}, [USER]),
        ({"prompt": "q", "system": "s", "chosen": "a", "rejected": "b"}, [SYSTEM, USER]),
        ({"prompt": [SYSTEM, USER], "system": "t", "chosen": "a", "rejected": "b"}, [SYSTEM, USER]),
        ({"chosen": [SYSTEM, USER, ANSWER], "rejected": [SYSTEM, USER, OTHER]}, [SYSTEM, USER]),
        ({"prompt": "q", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]}, [USER]),
    ],
)
def test_pairs(row: dict[str, Any], messages: list[Any]) -> None:
    chosen, rejected = ConversationParser().read_pair(row | KEYS)
    assert chosen == Dialogue([*messages, ANSWER], len(messages))
    assert rejected == Dialogue([*messages, OTHER], len(messages))


def test_equal_answers_are_a_pair() -> None:
    chosen, rejected = ConversationParser().read_pair(
        {"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]}
    )
    assert chosen == rejected == Dialogue([USER, ANSWER], 1)


def test_groups() -> None:
    row = {"prompt": "q", "system": "s", "responses": ["a", [OTHER], ""], "rewards": [1, -0.5, 0]}
    group = ConversationParser().read_group(row)
    assert group.rewards == [1.0, -0.5, 0.0]
    empty = {"role": "assistant", "content": ""}
    assert [one.messages for one in group.answers] == [
        [SYSTEM, USER, answer] for answer in (ANSWER, OTHER, empty)
    ]
    assert {one.num_prompt for one in group.answers} == {2}


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        (
            "dialogue",
            {"prompt": "q", "question": "r", "answer": "a"},
            "must have one field for its prompt, this one has 'prompt' and 'question'; say which",
        ),
        (
            "dialogue",
            {"prompt": "q", "answer": "a", "response": "b"},
            "one field for its completion, this one has 'response' and 'answer'; say which one",
        ),
        (
            "dialogue",
            {"prompt": "q", "input": "a", "context": "b", "output": "c"},
            "one field for its input, this one has 'input' and 'context'; say which one counts",
        ),
        (
            "dialogue",
            {"prompt": [USER], "context": "c", "output": "a"},
            "'context' must follow a prompt that is a text, this object has ['context', 'ou",
        ),
        (
            "pair",
            {"chosen": [USER, ANSWER], "rejected": [USER, OTHER], "context": "c"},
            "'context' must follow a prompt that is a text, this object has ['chosen', 'con",
        ),
        ("dialogue", {"completion": "a"}, "must have a prompt in 'instruction' or 'prompt' or 'q"),
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
        ("pair", {"prompt": "q", "chosen": "a"}, "must have a rejected answer in 'rejected', and"),
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
            "an object must have a prompt in 'instruction' or 'prompt' or",
        ),
        ("group", {"prompt": "q", "rewards": [1]}, "must have responses in 'responses', and no em"),
        ("group", {"prompt": "q", "responses": ["a"]}, "must have rewards in 'rewards', and no em"),
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
        getattr(ConversationParser(), f"read_{kind}")(row | KEYS)


def read_both(record: dict[str, Any]) -> list[str]:
    """Return what zindex and Megatron read in a record, as the README writes it."""
    found = []
    for read in (
        lambda: ConversationParser().read_dialogue(record).messages,
        lambda: read_as_megatron(record, find_layout(record)),
    ):
        try:
            messages: Any = read()
        except SourceError:
            found.append("refused")
        else:
            shown = [dict(one) for one in messages if one != {"role": "system", "content": ""}]
            found.append(
                json.dumps([{one.pop("role"): one.pop("content"), **one} for one in shown])
            )
    return found


def read_table() -> dict[str, list[str]]:
    """Return the rows of the README's table of differences, by their record."""
    readme = Path(__file__).parents[2] / "zindex/text/README.md"
    lines = [line for line in readme.read_text().splitlines() if "| `{" in line]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return {record: cells for record, *cells in rows}


def test_the_table_of_differences_holds() -> None:
    table = read_table()
    assert len(table) > 8
    for record, cells in table.items():
        assert read_both(json.loads(record)) == cells
        assert cells[0] != cells[1]


def turns(name: str, key: str = "conversations") -> dict[str, Any]:
    names = ("from", "value") if key == "conversations" else ("role", "content")
    return {key: [dict(zip(names, (name, "a"), strict=True))]}


def test_no_difference_is_missing_from_the_table() -> None:
    speakers = [*ROLES, "alien", "Human"]
    records = [turns(name) for name in speakers] + [
        {question: "q", answer: "a"} | rest
        for question, answer in product(QUESTIONS, ANSWERS)
        for rest in ({}, *({context: "c"} for context in CONTEXTS))
    ]
    table = read_table()
    for record in records:
        if len(set(read_both(record))) > 1:
            assert json.dumps(record) in table
    for name in speakers:
        assert read_both(turns(name, "messages"))[1] == json.dumps([{name: "a"}])
    for several in (QUESTIONS, ANSWERS, CONTEXTS):
        for fields in combinations(several, 2):
            record = {"prompt": "q", "output": "a"} | dict.fromkeys(fields, "b")
            assert read_both(record)[0] == "refused"
