"""JSON texts within records, and keys of messages that have several forms."""

import json
from collections.abc import Mapping
from typing import Any

from zindex.errors import SourceError

# Names of a message's thoughts; templates read either of the first two.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
# Keys of messages that have one form.
_PLAIN = frozenset(("role", "from", "content", "value"))
# Fields with lists of messages.
_MESSAGES = ("messages", "conversations", "prompt", "chosen", "rejected", "completion")
# Fields that may be JSON texts, or have some within them.
_JSON_FIELDS = frozenset(("tools", "chat_template_kwargs", *_MESSAGES))


def read_keys(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message in the form that templates expect.

    A null is a missing key, thoughts have the names of both kinds of templates, and the arguments
    of calls of tools are objects, which OpenAI writes as JSON texts.

    Raises
    ------
    SourceError
        If a JSON text is not of that type.

    Notes
    -----
    Source: ``apply_chat_template`` of transformers, for the nulls and the thoughts.
    """
    if message.keys() <= _PLAIN and None not in message.values():
        return dict(message)
    rest = {name: value for name, value in message.items() if value is not None}
    thoughts = next((rest[name] for name in _THOUGHTS if name in rest), None)
    if thoughts is not None:
        rest = {"thinking": thoughts, **rest, "reasoning_content": thoughts}
    if rest.get("tool_calls"):
        rest["tool_calls"] = _read_calls(rest["tool_calls"])
    return rest


def _read_calls(calls: Any) -> list[Any]:
    """Return calls of tools with arguments as objects."""
    found = []
    for call in parse_json(calls, "tool_calls", list):
        own = parse_json(call, "a call of a tool", dict)
        function = own.get("function", own)
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            arguments = parse_json(function["arguments"] or "{}", "arguments of a call", dict)
            known = {**function, "arguments": arguments}
            own = {**own, "function": known} if "function" in own else known
        found.append(own)
    return found


def parse_json(value: Any, what: str, kind: type) -> Any:
    """Return a value of a type, decoded if it is a JSON text; null is itself.

    Raises
    ------
    SourceError
        If it is of another type.
    """
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except ValueError as error:
            raise SourceError(
                f"{what} must be {noun_of(kind)}, or a JSON text of it, got {value[:60]!r}: {error}"
            ) from error
    if not isinstance(found, kind) and value is not None:
        raise SourceError(f"{what} must be {noun_of(kind)}, got {str(value)[:60]!r}")
    return found


def find_json_texts(record: Mapping[str, Any]) -> list[str]:
    """Return which parts of a record are JSON texts that the parser decodes."""
    if record.keys().isdisjoint(_JSON_FIELDS):
        return []
    tools = record.get("tools")
    listed = tools if isinstance(tools, list) else [tools]
    found = ["tools"] if any(isinstance(tool, str) and tool for tool in listed) else []
    if isinstance(record.get("chat_template_kwargs"), str):
        found.append("chat_template_kwargs")
    for field in _MESSAGES:
        value = record.get(field)
        messages = value if isinstance(value, list) else ()
        for message in [x for x in messages if isinstance(x, dict) and "tool_calls" in x]:
            calls = message["tool_calls"]
            for call in calls if isinstance(calls, list) else ():
                function = call.get("function", call) if isinstance(call, dict) else None
                if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                    return [*found, "arguments"]
    return found


def noun_of(kinds: Any) -> str:
    """Return the name of a type, or of several, in JSON's terms."""
    nouns = {str: "a text", list: "a list", dict: "an object"}
    return " or ".join(nouns[kind] for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
