"""What is compared of documents, conversations, pairs and groups."""

from typing import Any

import pytest

from zindex.errors import SourceError
from zindex.ingest.dedup.compared_text import read_compared


def chat(*turns: str, system: str = "", **rest: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return {"messages": messages, **rest}


SHAREGPT = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"text": "a  b"}, {"text": "a b\n", "id": 7}),
        (chat("q", "a"), {"prompt": "q", "completion": "a"}),
        (chat("q", "a"), {"conversations": SHAREGPT}),
        ({"text": "e\u0301"}, {"text": "\u00e9"}),
    ],
)
def test_equal_records(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = read_compared(one), read_compared(other)
    assert (first.canonical, first.words()) == (second.canonical, second.words())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"text": "a"}, {"text": "A"}),
        ({"text": "q a"}, chat("q", "a")),
        (chat("q", "a"), chat("q", "a", system="s")),
        (chat("q", "a"), chat("q", "a", tools=[{"name": "f"}])),
        (chat("q", "a"), chat("a", "q")),
        (
            {"prompt": "q", "chosen": "a", "rejected": "b"},
            {"prompt": "q", "chosen": "b", "rejected": "a"},
        ),
        (
            {"prompt": "q", "responses": ["a", "b"], "rewards": [0, 1]},
            {"prompt": "q", "responses": ["a", "b"], "rewards": [1, 0]},
        ),
    ],
)
def test_different_records(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert read_compared(one).canonical != read_compared(other).canonical


def test_words_leave_out_what_many_conversations_share() -> None:
    record = chat("Which?", "This one.", system="You are kind.", tools=[{"name": "search"}])
    assert read_compared(record).words() == ["which", "this", "one"]
    called = {"role": "assistant", "content": "", "tool_calls": [{"name": "search"}]}
    assert read_compared({"messages": [called]}).words() == ["tool_calls", "name", "search"]


def test_words_of_rejected_answers_are_words_of_their_own() -> None:
    pair = {"prompt": "q", "chosen": "a b", "rejected": "b"}
    assert read_compared(pair).words() == ["q", "a", "b", "-b"]


def test_words_of_a_group_are_those_of_all_answers() -> None:
    group = {"prompt": "q", "responses": ["a", "b"], "rewards": [0, 1]}
    assert read_compared(group).words() == ["q", "a", "b"]


def test_a_field() -> None:
    record = {"text": "a", "body": "b", "talk": chat("q", "a")["messages"], "n": 3}
    assert read_compared(record, "body") == read_compared({"text": "b"})
    assert read_compared(record, "talk") == read_compared(chat("q", "a"))
    for field, kind in (("n", "int"), ("none", "NoneType")):
        with pytest.raises(SourceError, match=rf"field '{field}' must hold a text .*holds {kind}"):
            read_compared(record, field)


def test_a_record_without_a_text() -> None:
    with pytest.raises(SourceError, match=r"this one has \['code', 'id'\]; name the field"):
        read_compared({"id": 1, "code": "x", "__url__": "f"})
