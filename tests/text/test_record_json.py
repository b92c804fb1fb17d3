"""JSON texts in records are decoded, and messages have the keys that templates read."""

import json
import re
from typing import Any

import pytest

from zindex.errors import SourceError
from zindex.formats.keyed.schema_presets import DPO, SFT
from zindex.text.chat_template import ChatTemplate
from zindex.text.conversations import ConversationParser
from zindex.text.record_json import find_json_texts, read_keys
from zindex.text.record_recipe import recipe_of

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALLS = (
    "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}{{ mood }}"
)


def record(arguments: Any, **more: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    return {"messages": messages, **more}


def render(row: dict[str, Any]) -> str:
    dialogue = ConversationParser().read_dialogue(row)
    template = ChatTemplate(CALLS, variables={"mood": "none"})
    return template.render(dialogue.messages, tools=dialogue.tools, variables=dialogue.variables)


def test_arguments_are_not_encoded_twice() -> None:
    for arguments in ({"x": 1}, '{"x": 1}', ' {"x":1}\n'):
        assert render(record(arguments)) == 'qf{"x": 1}none'
    assert render(record("")) == "qf{}none"
    # Without the level of the function, and as one text.
    calls: list[Any] = [{"name": "f", "arguments": '{"x": 1}'}]
    assert read_keys({"tool_calls": calls}) == read_keys({"tool_calls": json.dumps(calls)})
    assert read_keys({"tool_calls": calls})["tool_calls"][0]["arguments"] == {"x": 1}
    assert calls == [{"name": "f", "arguments": '{"x": 1}'}]  # the caller's own is as it was


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL]), [json.dumps(TOOL)]])
def test_tools_may_be_a_text(tools: Any) -> None:
    assert render(record({}, tools=tools)) == "qf{}f;none"


def test_variables_of_a_record_take_precedence() -> None:
    for given in ({"mood": "good"}, '{"mood": "good"}'):
        assert render(record({}, chat_template_kwargs=given)) == "qf{}good"
    row = {"prompt": "q", "chat_template_kwargs": {"mood": "good"}}
    parser = ConversationParser()
    for dialogue in (
        *parser.read_pair(row | {"chosen": "a", "rejected": "b"}),
        *parser.read_group(row | {"responses": ["a"], "rewards": [1]}).answers,
        parser.read_dialogue(row | {"completion": "a"}),
    ):
        assert dialogue.variables == {"mood": "good"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            record("{x"),
            "arguments of a call must be an object, or a JSON text of it, got '{x': Exp",
        ),
        (record('"{}"'), "arguments of a call must be an object, got '\"{}\"'"),
        (record({}, tools="[1"), "tools must be a list, or a JSON text of it, got '[1'"),
        (record({}, tools='{"a": 1}'), "tools must be a list, got '{\"a\": 1}'"),
        (record({}, tools=[1]), "a tool must be an object, got '1'"),
        (record({}, chat_template_kwargs="[]"), "chat_template_kwargs must be an object, got '[]'"),
        (record({}, chat_template_kwargs={"tools": []}), "got 'tools', which zindex sets; leave"),
        (
            {"messages": [{"role": "a", "content": "", "tool_calls": 5}]},
            "tool_calls must be a list",
        ),
    ],
)
def test_refused_records(row: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=re.escape(message)):
        ConversationParser().read_dialogue(row)


def test_keys_of_messages_as_transformers_has_them() -> None:
    assert read_keys({"role": "user", "name": None}) == {"role": "user"}
    for name in ("reasoning_content", "thinking", "reasoning"):
        found = read_keys({name: "hm"})
        assert found["thinking"] == found["reasoning_content"] == "hm"


def test_what_is_decoded_is_named() -> None:
    assert find_json_texts(record({}, tools=[TOOL])) == []
    row = record("{}", tools="[]", chat_template_kwargs="{}")
    assert find_json_texts(row) == ["tools", "chat_template_kwargs", "arguments"]
    assert find_json_texts(record({}, tools=["{}"])) == ["tools"]


def test_fields_that_nothing_reads() -> None:
    row = {"messages": [], "score": 1, "empty": "", "chosen": "a", "__key__": "0"}
    sft, dpo = (recipe_of(schema).parts for schema in (SFT, DPO))
    assert ConversationParser().find_unread(row, sft) == ["score", "chosen"]
    assert ConversationParser().find_unread(row, dpo) == ["score"]
    named = ConversationParser({"text": "score"})
    assert named.find_unread(row, sft) == ["chosen"]
