"""The text by which records are compared: of documents, conversations, pairs and groups."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zindex.errors import SourceError
from zindex.text.conversations import ConversationParser, Dialogue
from zindex.text.ngrams import normalise, split_words

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode
_PARSER = ConversationParser()
# Prefix of the words of rejected answers, so that a swapped pair is another pair.
_REJECTED = "-"
# Fields of a message whose names are not compared.
_PLAIN = ("role", "content")


@dataclass(frozen=True, slots=True)
class ComparedText:
    """What is compared of one record."""

    #: Equal for exact duplicates: canonical JSON of normalised texts.
    canonical: str
    #: Texts whose words are compared, and the prefix of these words.
    parts: tuple[tuple[str, str], ...]

    def words(self) -> list[str]:
        """Return the words of all texts."""
        found: list[str] = []
        for text, prefix in self.parts:
            words = split_words(text)
            found += [prefix + word for word in words] if prefix else words
        return found


def read_compared(record: Mapping[str, Any], field: str | None = None) -> ComparedText:
    """Return what is compared of a record.

    Parameters
    ----------
    record
        The record.
    field
        The only field to compare: a text or a list of messages. None compares preference pairs,
        groups of answers, conversations and documents as `zindex.tokenize` reads them.

    Raises
    ------
    SourceError
        If the record has no such text. The caller adds the location of the record.

    Notes
    -----
    Words of system messages and tools are not compared: many records share them, which would make
    different conversations similar. Exact duplicates have equal ones.
    """
    if field is not None:
        value = record.get(field)
        if isinstance(value, str):
            return _of_text(value)
        if isinstance(value, list):
            return _of_dialogue(_PARSER.read_dialogue({"messages": value}))
        raise SourceError(
            f"field {field!r} must hold a text or a list of messages, it holds "
            f"{type(value).__name__}; name another field with field (--field)"
        )
    if _has(record, "chosen", "rejected"):
        chosen, rejected = _PARSER.read_pair(record)
        own = chosen.messages[chosen.num_prompt :]
        other = rejected.messages[rejected.num_prompt :]
        prompt = chosen.messages[: chosen.num_prompt]
        parts = (_join([*prompt, *own]), ""), (_join(other), _REJECTED)
        return ComparedText(_canonical([prompt, own, other, chosen.tools]), parts)
    if _has(record, "responses"):
        group = _PARSER.read_group(record)
        answers = [answer.messages[answer.num_prompt :] for answer in group.answers]
        first = group.answers[0]
        prompt = first.messages[: first.num_prompt]
        text = _join([*prompt, *(message for answer in answers for message in answer)])
        return ComparedText(
            _canonical([prompt, answers, group.rewards, first.tools]), ((text, ""),)
        )
    if _PARSER.holds_dialogue(record):
        return _of_dialogue(_PARSER.read_dialogue(record))
    document = _PARSER.read_text(record)
    if document is None:
        names = sorted(name for name in record if not name.startswith("__"))[:8]
        raise SourceError(
            "a record must have a text, messages, a prompt with an answer, chosen and rejected, or "
            f"responses, this one has {names}; name the field to compare with field (--field)"
        )
    return _of_text(document)


def _has(record: Mapping[str, Any], *names: str) -> bool:
    """Return whether a record has values in all these fields."""
    return all(record.get(name) not in (None, "") for name in names)


def _of_text(text: str) -> ComparedText:
    return ComparedText(_canonical(text), ((text, ""),))


def _of_dialogue(dialogue: Dialogue) -> ComparedText:
    canonical = _canonical([dialogue.messages, dialogue.tools])
    return ComparedText(canonical, ((_join(dialogue.messages), ""),))


def _join(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the texts of messages other than those of the system, with their tool calls."""
    texts = []
    for message in messages:
        if message["role"] != "system":
            rest = {name: value for name, value in message.items() if name not in _PLAIN}
            texts += [str(message["content"]), *([_to_json(rest)] if rest else ())]
    return "\n".join(texts)


def _canonical(value: Any) -> str:
    """Return the JSON of a value with normalised texts and sorted names."""
    return _to_json(_normalise(value))


def _normalise(value: Any) -> Any:
    """Return a JSON value with normalised texts."""
    if isinstance(value, str):
        return normalise(value)
    if isinstance(value, dict):
        return {name: _normalise(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normalise(item) for item in value]
    return value
