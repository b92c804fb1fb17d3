"""Parse JSON records as Megatron-LM's varlen datasets do."""

from collections.abc import Iterable, Mapping
from typing import Any

from zindex.errors import SourceError
from zindex.text.conversations import ANSWERS, CONTEXTS, LAYOUTS, QUESTIONS, ROLES, Message, Record

#: Speakers that Megatron does not know; it treats every unknown speaker as a user.
UNKNOWN_TO_MEGATRON = ("bot",)
#: Roles of the speakers that it knows.
MEGATRON_ROLES = {
    speaker: role for speaker, role in ROLES.items() if speaker not in UNKNOWN_TO_MEGATRON
}


def find_layout(fields: Iterable[str]) -> str:
    """Return Megatron's name of the layout of a record.

    Parameters
    ----------
    fields
        Names of its fields.

    Raises
    ------
    SourceError
        If no layout has them.
    """
    names = set(fields)
    for layout, parts in LAYOUTS.items():
        if all(names.intersection(part) for part in parts):
            return layout
    raise SourceError(
        f"records must have the fields of a known layout: zindex cannot infer schema from "
        f"{sorted(names)}; name them messages, conversations, text, or "
        f"{' or '.join(QUESTIONS)} with {' or '.join(ANSWERS)}"
    )


def read_as_megatron(record: Record, layout: str) -> list[Message] | str:
    """Return the messages or the text of a record as Megatron-LM's varlen datasets read it.

    Parameters
    ----------
    record
        The record.
    layout
        Its layout, see `find_layout`.

    Raises
    ------
    SourceError
        If a content is not text, or a list of messages is not a list.

    Notes
    -----
    Messages always begin with a system message, which may be empty. Source: Megatron-LM,
    ``megatron.training.datasets.varlen_dataset``.
    """
    if layout == "pretrain-text":
        return text_of(record.get("text"), "text")
    if layout == "alpaca":
        question, context, answer = (
            first_text(record, fields) or "" for fields in (QUESTIONS, CONTEXTS, ANSWERS)
        )
        asked = f"{question}\n\n{context}" if context else question
        messages = [("user", asked), ("assistant", answer)]
    elif layout == "sharegpt":
        messages = [
            (_megatron_role(turn), text_of(turn.get("value"), f"value from {turn.get('from')!r}"))
            for turn in _list_of_objects(record, "conversations")
        ]
    else:
        messages = [
            (
                turn.get("role") or "user",
                text_of(turn.get("content"), f"content of role {turn.get('role')!r}"),
            )
            for turn in _list_of_objects(record, "messages")
        ]
        if not messages:
            return []
    found: list[Message] = [{"role": role, "content": content} for role, content in messages]
    begins = found and found[0]["role"] == "system"
    return found if begins else [{"role": "system", "content": ""}, *found]


def _megatron_role(turn: Record) -> str:
    """Return the role of a ShareGPT turn; an unknown speaker is a user."""
    speaker = str(turn.get("from") or "").lower()
    return MEGATRON_ROLES.get(speaker, "user")


def _list_of_objects(record: Record, name: str) -> list[Record]:
    """Return a field of objects, empty if it is null or missing."""
    values = record.get(name)
    if values is None:
        return []
    if isinstance(values, list) and all(isinstance(value, Mapping) for value in values):
        return values
    raise SourceError(
        f"{name} of a record must be a list of objects, got {str(values)[:60]!r}; fix the record"
    )


def first_text(sample: Record, fields: Iterable[str]) -> str | None:
    """Return the first non-empty field of a record; None if there is none."""
    filled = (name for name in fields if sample.get(name) not in (None, ""))
    return next((text_of(sample[name], name) for name in filled), None)


def text_of(content: Any, where: str) -> str:
    """Return a text; null is an empty one."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    raise SourceError(
        f"{where} of a record must be a string, got {type(content).__name__}; images and other "
        "parts cannot be tokenized: leave them out of the record"
    )
