"""Layouts of conversations in records, and how each of them becomes messages or plain text."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zindex.errors import SourceError

Record = Mapping[str, Any]
Messages = list[dict[str, str]]
Convert = Callable[[Record], Messages | str]

# Fields that mean the same: the first one that is filled counts.
_INSTRUCTIONS = ("instruction", "prompt", "query", "question")
_ANSWERS = ("output", "response", "completion", "answer")
_CONTEXTS = ("input", "context")

# Speakers of ShareGPT by the roles of chat templates; others are taken for users.
_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
    "system": "system",
}
_NO_SYSTEM = {"role": "system", "content": ""}


def convert_messages(record: Record) -> Messages:
    """Return the ``messages`` of a record, role and content alone, with a system's in front."""
    messages = _list_of_objects(record, "messages")
    if messages and messages[0].get("role") != "system":
        messages = [_NO_SYSTEM, *messages]
    return [
        {
            "role": message.get("role") or "user",
            "content": _text_of(message.get("content"), f"content of role {message.get('role')!r}"),
        }
        for message in messages
    ]


def convert_sharegpt(record: Record) -> Messages:
    """Return the ``conversations`` of a record as messages, with a system's in front."""
    messages = [
        {
            "role": _ROLES.get(str(turn.get("from") or "").lower(), "user"),
            "content": _text_of(turn.get("value"), f"value from {turn.get('from')!r}"),
        }
        for turn in _list_of_objects(record, "conversations")
    ]
    begins = bool(messages) and messages[0]["role"] == "system"
    return messages if begins else [dict(_NO_SYSTEM), *messages]


def convert_instruction(record: Record) -> Messages:
    """Return an instruction, what it is about and its answer as messages."""
    question = _first_text(record, _INSTRUCTIONS)
    context = _first_text(record, _CONTEXTS)
    return [
        dict(_NO_SYSTEM),
        {"role": "user", "content": f"{question}\n\n{context}" if context else question},
        {"role": "assistant", "content": _first_text(record, _ANSWERS)},
    ]


def convert_text(record: Record) -> str:
    """Return the ``text`` of a record, all of which is to be learned."""
    return _text_of(record.get("text"), "text")


def select_layout(columns: Iterable[str]) -> tuple[Convert, str]:
    """Return how records of some fields are converted, and the name of their layout.

    Parameters
    ----------
    columns
        Names of fields. ``messages`` come before ``conversations``, these before an instruction
        with an answer, and that before ``text``.

    Raises
    ------
    SourceError
        If there is no such field.

    Notes
    -----
    Source: Megatron-LM, ``megatron.training.datasets.varlen_dataset``, with its names of layouts.
    """
    names = set(columns)
    if "messages" in names:
        return convert_messages, "openai-messages"
    if "conversations" in names:
        return convert_sharegpt, "sharegpt"
    if names.intersection(_INSTRUCTIONS) and names.intersection(_ANSWERS):
        return convert_instruction, "alpaca"
    if "text" in names:
        return convert_text, "pretrain-text"
    raise SourceError(
        f"records must tell their layout by their fields: zindex cannot infer schema from "
        f"{sorted(names)}; name them messages, conversations, text, or "
        f"{' or '.join(_INSTRUCTIONS)} with {' or '.join(_ANSWERS)}"
    )


def _list_of_objects(record: Record, name: str) -> list[Record]:
    """Return a field that holds objects; one that is empty or missing holds none."""
    values = record.get(name)
    if values is None:
        return []
    if isinstance(values, list) and all(isinstance(value, Mapping) for value in values):
        return values
    raise SourceError(
        f"{name} of a record must be a list of objects, got {str(values)[:60]!r}; mend the record"
    )


def _first_text(record: Record, names: Iterable[str]) -> str:
    """Return the first of some fields that is filled, or an empty text."""
    for name in names:
        value = record.get(name)
        if value not in (None, ""):
            return _text_of(value, name)
    return ""


def _text_of(value: Any, what: str) -> str:
    """Return a text; nothing is an empty one."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise SourceError(
        f"{what} of a record must be a string, got {type(value).__name__}; images and other parts "
        "cannot be tokenized: leave them out of the record"
    )
