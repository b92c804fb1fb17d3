"""Parse JSON records into documents, conversations, preference pairs and groups of answers.

`QUESTIONS`, `ANSWERS`, `CONTEXTS`, `LAYOUTS` and `ROLES` are the only tables of field and role
names. `ConversationParser` reads them by zindex's rules, `zindex.text.megatron_records` by
Megatron's; the README of this folder lists every difference.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from zindex.errors import SourceError, check_choice
from zindex.text.record_json import noun_of, parse_json, read_keys

Record = Mapping[str, Any]
Message = dict[str, Any]
T = TypeVar("T")

#: Fields that hold a question. Megatron uses the first non-empty one.
QUESTIONS = ("instruction", "prompt", "query", "question")
#: Fields that hold the answer.
ANSWERS = ("output", "response", "completion", "answer")
#: Fields that hold the context of a question.
CONTEXTS = ("input", "context")
#: Layouts by Megatron's names, in order of precedence: a record has one field of each tuple.
LAYOUTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "openai-messages": (("messages",),),
    "sharegpt": (("conversations",),),
    "alpaca": (QUESTIONS, ANSWERS),
    "pretrain-text": (("text",),),
}
#: Fields of each part of a record; users rename them with ``columns``.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "messages": ("messages", "conversations"),
    "prompt": QUESTIONS,
    "completion": ANSWERS,
    "instruction": QUESTIONS,
    "input": CONTEXTS,
    "output": ANSWERS,
    **{name: (name,) for name in ("system", "tools", "chosen", "rejected", "responses", "rewards")},
    "chat_template_kwargs": ("chat_template_kwargs",),
    "images": ("images",),
    "label": ("label", "desirable"),
    "margin": ("margin",),
    "steps": ("steps", "completions"),
    "step_labels": ("step_labels", "labels"),
    "ground_truth": ("ground_truth", "answer", "solution"),
    "topk_ids": ("topk_ids",),
    "topk_logprobs": ("topk_logprobs", "logprobs"),
    "prompt_ids": ("prompt_ids",),
    "completion_ids": ("completion_ids",),
}
# Of these fields, an object may have one alone.
_EXCLUSIVE = [names for part, names in COLUMNS.items() if len(names) > 1 and part != "messages"]
# Two names of one part, of which users may rename either.
_SYNONYMS = {"prompt": ("instruction", "prompt"), "completion": ("completion", "output")}
#: Chat template roles of speaker names in datasets.
ROLES: Mapping[str, str] = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard", "bot"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
    "system": "system",
}
#: Types of content parts that are images.
IMAGE_TYPES = ("image", "image_url")
# Variables of templates that records cannot set.
_RESERVED = ("messages", "tools", "add_generation_prompt", "chat_template", "tokenize")
# The largest float32. NaN fails the comparison too.
_MAX_REWARD = 3.4028234663852886e38


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages, some of which are trained."""

    messages: Sequence[Message]
    #: Leading messages that are never trained.
    num_prompt: int = 0
    #: Tools that the assistant may call, as the record has them.
    tools: Any = None
    #: Variables of the template for this conversation.
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers to one prompt with their rewards."""

    #: Each is a whole conversation: the shared prompt and one answer.
    answers: Sequence[Dialogue]
    #: One per answer; none if the group has no scores.
    rewards: Sequence[float]


class ConversationParser:
    """Parses JSON records by zindex's rules.

    Parameters
    ----------
    columns
        Field names by part (see `COLUMNS`), for records with other field names.
    roles
        Role names by the names in the data; they take precedence over `ROLES`.
    keeps_images
        Whether contents may have parts of the types ``image`` and ``image_url``. Such a content
        stays a list.
    parts
        Further parts of records, in fields of the same names.

    Raises
    ------
    ConfigError
        If ``columns`` names a part that neither `COLUMNS` nor ``parts`` has.

    Notes
    -----
    Law: a non-empty question, context or answer is kept, or the record is an error that names the
    field.
    """

    def __init__(
        self,
        columns: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        *,
        keeps_images: bool = False,
        parts: Collection[str] = (),
    ) -> None:
        names = list(dict.fromkeys([*COLUMNS, *sorted(parts)]))
        for name in columns or ():
            check_choice("a part in columns (--column)", name, names)
        self.columns = dict(columns or {})
        self.roles = dict(roles or {})
        self._known = {name: self._choose_fields(name) for name in names}
        self.keeps_images = keeps_images
        # The fields of sets of parts that were asked for.
        self._read_fields: dict[frozenset[str], set[str]] = {}

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the meaning of a record, as JSON values."""
        return {"columns": self.columns, "roles": self.roles}

    def read_text(self, record: Record) -> str | None:
        """Return the text of a document; None if the record has none."""
        text: str | None = self._find(record, "text", str)
        return text

    def holds_dialogue(self, record: Record) -> bool:
        """Return whether a record looks like a conversation; many also contain it as text."""
        answered = self._question_fields(record) and self._filled(record, "completion")
        return bool(self._filled(record, "messages") or answered)

    def read_dialogue(self, record: Record) -> Dialogue:
        """Return the conversation of a record.

        Raises
        ------
        SourceError
            If it has none, or a damaged one. The caller adds the location of the record.
        """
        options = self._read_options(record)
        messages = self._find(record, "messages", list)
        if messages is not None:
            system = [] if _begins_with_system(messages) else self._read_system(record)
            return Dialogue([*system, *self._check(messages)], **options)
        prompt = self._read_question(record)
        completion = self._find(record, "completion", (str, list, dict))
        if not prompt and completion is None:
            raise SourceError(
                "an object must have messages, or a prompt and a completion or response, or an "
                f"instruction and an output, or a text, this one has {_names(record)}; say what "
                "its fields are with columns (--column)"
            )
        self._need(record, "prompt", prompt or None, "a prompt")
        answer = self._answer(self._need(record, "completion", completion, "an answer"))
        prompt = self._read_system(record) + prompt
        return Dialogue([*prompt, *answer], len(prompt), **options)

    def read_pair(self, record: Record) -> tuple[Dialogue, Dialogue]:
        """Return the chosen and the rejected conversation, which start with the same prompt.

        Raises
        ------
        SourceError
            As ``read_dialogue``.
        """
        chosen, rejected = self.read_answers(record, ("chosen", "rejected"))
        return chosen, rejected

    def read_answers(self, record: Record, names: Sequence[str]) -> list[Dialogue]:
        """Return a conversation for each answer; all start with the same prompt.

        Parameters
        ----------
        record
            The record. Without a prompt, several answers are lists of messages, and what they all
            begin with is their prompt.
        names
            Parts that are answers.

        Raises
        ------
        SourceError
            As ``read_dialogue``.
        """
        found = []
        for name in names:
            value = self._find(record, name, (str, list, dict))
            found.append(self._answer(self._need(record, name, value, f"a {name} answer")))
        prompt = self._read_question(record)
        if not prompt and len(found) > 1:
            shortest = min(map(len, found)) - 1
            same = (i for i in range(shortest) if any(one[i] != found[0][i] for one in found))
            number = next(same, shortest)
            if number < 1:
                raise SourceError(
                    "a pair must have a prompt, or be two lists of messages that begin with the "
                    f"same, this object has {_names(record)}; say where the prompt is with columns "
                    "(--column prompt=NAME)"
                )
            prompt, found = found[0][:number], [one[number:] for one in found]
        elif all(len(one) > len(prompt) and one[: len(prompt)] == prompt for one in found):
            found = [one[len(prompt) :] for one in found]
        prompt = self.read_prompt(record, prompt)
        options = self._read_options(record)
        return [Dialogue([*prompt, *one], len(prompt), **options) for one in found]

    def read_prompt(self, record: Record, prompt: list[Message] | None = None) -> list[Message]:
        """Return the messages of a prompt, which must not be empty, after the system message."""
        prompt = self._read_question(record) if prompt is None else prompt
        prompt = self._need(record, "prompt", prompt or None, "a prompt")
        return prompt if _begins_with_system(prompt) else self._read_system(record) + prompt

    def read_asked(self, record: Record) -> Dialogue:
        """Return a prompt without an answer; errors as ``read_dialogue``."""
        prompt = self.read_prompt(record)
        return Dialogue(prompt, len(prompt), **self._read_options(record))

    def read_steps(self, record: Record, name: str) -> list[str]:
        """Return the texts of the steps of an answer, which a part has as a list.

        Raises
        ------
        SourceError
            If it is not such a list, or a text is empty.
        """
        found: list[str] | None = self._find(record, name, list)
        steps = self._need(record, name, found, f"a list of {name}")
        for step in steps:
            if not isinstance(step, str) or not step:
                raise SourceError(f"{name} must be texts that are not empty, got {step!r}")
        return steps

    def read_value(self, record: Record, name: str) -> Any:
        """Return the value of a part, of any type; None if all its fields are empty."""
        return self._find(record, name, object)

    def need_value(self, record: Record, name: str) -> None:
        """Raise a SourceError if all fields of a part are empty."""
        self._need(record, name, self.read_value(record, name), name)

    def read_group(
        self, record: Record, name: str = "responses", score: str | None = "rewards"
    ) -> Group:
        """Return the answers to a prompt and their rewards.

        Parameters
        ----------
        record
            The record.
        name, score
            The parts of the answers, and of one number for each of them, if there is one.

        Raises
        ------
        SourceError
            As ``read_dialogue``.
        """
        prompt = self.read_prompt(record)
        responses, rewards = (
            self._need(record, part, self._find(record, part, list), part) if part else []
            for part in (name, score)
        )
        if not responses or (score and len(responses) != len(rewards)):
            raise SourceError(
                "a group must have one reward for each response, and at least one, this one has "
                f"{len(responses)} {name} and {len(rewards)} {score or 'rewards'}"
            )
        for reward in rewards:
            if type(reward) not in (int, float) or not abs(reward) <= _MAX_REWARD:
                raise SourceError(
                    f"a reward must be a finite number that fits float32, got {reward!r}"
                )
        options = self._read_options(record)
        answers = [
            Dialogue([*prompt, *self._answer(one)], len(prompt), **options) for one in responses
        ]
        return Group(answers, [float(reward) for reward in rewards])

    def find_unread(self, record: Record, parts: frozenset[str]) -> list[str]:
        """Return the non-empty fields of a record that no part of some has."""
        read = self._read_fields.get(parts)
        if read is None:
            known = [x for x in parts if x != "images" or self.keeps_images]
            read = {"__key__", "__url__", *(x for name in known for x in self._fields(name))}
            self._read_fields[parts] = read
        items = () if record.keys() <= read else record.items()
        return [
            name
            for name, value in items
            if name not in read and not name.startswith("__") and value not in (None, "", [], {})
        ]

    def _read_options(self, record: Record) -> dict[str, Any]:
        """Return the tools of a conversation, and its variables of the template."""
        tools = self._find(record, "tools", (list, str))
        tools = parse_json(tools, "tools", list)
        if tools is not None:
            tools = [parse_json(tool, "a tool", dict) for tool in tools]
        variables = self._find(record, "chat_template_kwargs", (dict, str))
        variables = parse_json(variables, "chat_template_kwargs", dict) or {}
        for name in _RESERVED:
            if name in variables:
                raise SourceError(
                    f"chat_template_kwargs must hold variables of the chat template, got {name!r}, "
                    "which zindex sets; leave it out"
                )
        return {"tools": tools, "variables": variables}

    def _fields(self, name: str) -> tuple[str, ...]:
        """Return the fields of a part: the user's own, those of `COLUMNS`, or its name."""
        return self._known.get(name) or (name,)

    def _choose_fields(self, name: str) -> tuple[str, ...]:
        """Return the fields of a part by the user's names."""
        renamed = [self.columns[n] for n in _SYNONYMS.get(name, (name,)) if n in self.columns]
        return tuple(renamed) or COLUMNS.get(name, (name,))

    def _filled(self, record: Record, name: str) -> list[str]:
        """Return the non-empty fields of a part in a record."""
        return [field for field in self._fields(name) if record.get(field) not in (None, "")]

    def _find(self, record: Record, name: str, kinds: Any) -> Any:
        """Return the value of a part; None if all its fields are empty."""
        if name == "text":  # an empty document is valid
            filled = [field for field in self._fields(name) if record.get(field) is not None]
        else:
            filled = self._filled(record, name)
        return self._take(record, name, filled, kinds)

    def _take(self, record: Record, name: str, filled: Sequence[str], kinds: Any) -> Any:
        """Return the value of the only non-empty field of a part; None if there is none."""
        if not filled:
            return None
        if len(filled) > 1 and self._fields(name) in _EXCLUSIVE:
            raise SourceError(
                f"an object must have one field for its {name}, this one has "
                f"{' and '.join(map(repr, filled))}; say which one counts with columns "
                f"(--column {name}=NAME)"
            )
        value = record[filled[0]]
        if not isinstance(value, kinds):
            raise SourceError(
                f"field {filled[0]!r} must hold {noun_of(kinds)} as {name}, it holds "
                f"{type(value).__name__}; say what the fields are with columns (--column)"
            )
        return value

    def _need(self, record: Record, name: str, value: T | None, noun: str) -> T:
        """Return a required value."""
        if value is None:
            raise SourceError(
                f"an object must have {noun} in {' or '.join(map(repr, self._fields(name)))}, and "
                f"no empty text, this one has {_names(record)}; say where it is with columns "
                f"(--column {name}=NAME)"
            )
        return value

    def _question_fields(self, record: Record) -> list[str]:
        """Return the non-empty question fields; ``input`` counts if there is no other."""
        filled = self._filled(record, "prompt")
        is_renamed = not self.columns.keys().isdisjoint(("prompt", "instruction", "input"))
        if filled or is_renamed or record.get("input") in (None, ""):
            return filled
        return ["input"]

    def _read_question(self, record: Record) -> list[Message]:
        """Return the prompt and its context as messages; empty if the record has neither."""
        asked = self._question_fields(record)
        prompt = self._take(record, "prompt", asked, (str, list))
        contexts = [field for field in self._filled(record, "input") if field not in asked]
        context = self._take(record, "input", contexts, str)
        if context is not None:
            if not isinstance(prompt, str):
                raise SourceError(
                    f"{contexts[0]!r} must follow a prompt that is a text, this object has "
                    f"{_names(record)}; write it into the messages, or say where the prompt is "
                    "with columns (--column prompt=NAME)"
                )
            prompt = f"{prompt}\n\n{context}"
        if isinstance(prompt, str):
            return [{"role": "user", "content": prompt}]
        return self._check(prompt or [])

    def _read_system(self, record: Record) -> list[Message]:
        """Return the system message of the field ``system``, if not empty."""
        text = self._find(record, "system", str)
        return [] if text is None else [{"role": "system", "content": text}]

    def _answer(self, value: Any) -> list[Message]:
        """Return an answer as messages, at least one."""
        if isinstance(value, str):
            return [{"role": "assistant", "content": value}]
        messages = self._check([value] if isinstance(value, dict) else value)
        if not messages:
            raise SourceError("an answer must have a message, there is an empty list")
        return messages

    def _check(self, messages: Any) -> list[Message]:
        """Return messages in the form that templates expect: with role and content."""
        if not isinstance(messages, list):
            raise SourceError(
                f"an answer must be a text, a message or a list of them, got "
                f"{type(messages).__name__}"
            )
        return [self._check_message(message) for message in messages]

    def _check_message(self, message: Any) -> Message:
        """Return one message with role and content."""
        if not isinstance(message, dict):
            raise SourceError(
                f"a message must be an object with role and content, got {type(message).__name__}"
            )
        rest = read_keys(message)
        role, speaker = rest.pop("role", None), rest.pop("from", None)
        content = rest.pop("content", rest.pop("value", None))
        name = role or speaker
        if not isinstance(name, str) or (content is None and "tool_calls" not in rest):
            raise SourceError(
                f"a message must be an object with role and content, got {sorted(message)}"
            )
        found = ROLES.get(name.lower(), name)
        # A ``role`` already is a template's role, and some templates use other names for tool
        # calls.
        known = name if role and found == "tool" else found
        # Many templates would print a null, which would then be trained.
        content = _join_parts(content or "", IMAGE_TYPES if self.keeps_images else ())
        return {"role": self.roles.get(name, known), "content": content, **rest}


def _join_parts(content: Any, kept: Collection[str]) -> Any:
    """Return the content of a message, with a list of text parts joined, if no other is kept."""
    if not isinstance(content, list):
        return content
    kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    if all(kind == "text" for kind in kinds) and all(isinstance(text, str) for text in texts):
        return "".join(map(str, texts))
    is_text = (kind == "text" and isinstance(x, str) for kind, x in zip(kinds, texts, strict=True))
    if kept and all(known or kind in kept for known, kind in zip(is_text, kinds, strict=True)):
        return content
    hint = "" if kept else "; images need media (--media) and sft"
    raise SourceError(
        f"the content of a message must be text, or parts of the type 'text', got parts of "
        f"{kinds}{hint}"
    )


def _begins_with_system(messages: Sequence[Any]) -> bool:
    """Return whether the first message is a system message."""
    first = messages[0] if messages else None
    return isinstance(first, dict) and "system" in (first.get("role"), first.get("from"))


def _names(record: Record) -> str:
    """Return the fields of a record, for messages."""
    names = sorted(name for name in record if not name.startswith("__"))[:8]
    empty = {name: " (empty or null)" for name in names if record[name] in (None, "")}
    return f"[{', '.join(repr(name) + empty.get(name, '') for name in names)}]"
