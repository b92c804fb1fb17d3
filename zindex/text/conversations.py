"""What a JSON object means: a document, a dialogue, a pair of answers, or a group of them.

Which fields are looked for is in `COLUMNS`; a user may say that they are called otherwise. Nothing
here knows of tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from zindex.errors import ConfigError, SourceError

Row = Mapping[str, Any]
Message = dict[str, Any]
T = TypeVar("T")

#: Of each thing that an object may hold, the fields in which it is looked for, the first first.
COLUMNS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "messages": ("messages", "conversations"),
    "prompt": ("prompt", "input", "question"),
    "completion": ("completion", "response", "output", "answer"),
    "instruction": ("instruction",),
    "input": ("input", "context"),
    "output": ("output", "response"),
    "system": ("system",),
    "tools": ("tools",),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "responses": ("responses",),
    "rewards": ("rewards",),
}
# The largest float32: NaN is not below it either.
_MAX_REWARD = 3.4028234663852886e38
#: What other data sets call the roles.
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages of which some may be trained."""

    messages: Sequence[Message]
    #: Messages at the beginning that are never trained.
    num_prompt: int = 0
    #: Tools that the assistant may call, as the data has them.
    tools: Any = None


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers to one prompt, and what each of them is worth."""

    #: Each is the whole dialogue: the same prompt, and another answer.
    answers: Sequence[Dialogue]
    #: One for each answer.
    rewards: Sequence[float]


class RowReader:
    """Reads what JSON objects mean.

    Parameters
    ----------
    columns
        Field in which something of `COLUMNS` is, where that is called otherwise.
    roles
        What roles of the data are called in the template, beside `ROLES`.

    Raises
    ------
    ConfigError
        If ``columns`` names something else than `COLUMNS` has.
    """

    def __init__(
        self, columns: Mapping[str, str] | None = None, roles: Mapping[str, str] | None = None
    ) -> None:
        for name in columns or ():
            if name not in COLUMNS:
                raise ConfigError(
                    f"columns (--column) must name the field of one of {', '.join(COLUMNS)}, got "
                    f"{name!r}"
                )
        self.columns = dict(columns or {})
        self.roles = dict(roles or {})

    def identity(self) -> dict[str, Any]:
        """Return what decides the meaning of an object, as JSON values."""
        return {"columns": self.columns, "roles": self.roles}

    def read_text(self, row: Row) -> str | None:
        """Return the text of a document; None if the object holds none."""
        text: str | None = self._find(row, "text", str)
        return text

    def holds_dialogue(self, row: Row) -> bool:
        """Return whether an object seems to hold a dialogue; many hold it as a text besides."""
        pairs = (("messages",), ("instruction", "output"), ("prompt", "completion"))
        return any(all(self._is_there(row, name) for name in names) for names in pairs)

    def read_dialogue(self, row: Row) -> Dialogue:
        """Return the dialogue that an object holds.

        Raises
        ------
        SourceError
            If it holds none, or a damaged one; the caller knows the place.
        """
        tools = self._read_tools(row)
        messages = self._find(row, "messages", list)
        if messages is not None:
            system = [] if _has_role(messages, "system") else self._read_system(row)
            return Dialogue([*system, *self._check(messages)], tools=tools)
        instruction = self._find(row, "instruction", str)
        if instruction is not None:
            given = self._find(row, "input", str)
            question = f"{instruction}\n\n{given}" if given else instruction
            output = self._find(row, "output", str)
            answer = self._answer(self._need(row, "output", output, "an answer"))
            prompt = self._question(question)
        else:
            prompt = self._question(self._find(row, "prompt", (str, list)))
            completion = self._find(row, "completion", (str, list, dict))
            if not prompt or completion is None:
                raise SourceError(
                    "an object must have messages, or a prompt and a completion or response, or an "
                    f"instruction and an output, or a text, this one has {_names(row)}; say what "
                    "its fields are with columns (--column)"
                )
            answer = self._answer(completion)
        prompt = self._read_system(row) + prompt
        return Dialogue([*prompt, *answer], len(prompt), tools)

    def read_pair(self, row: Row) -> tuple[Dialogue, Dialogue]:
        """Return the chosen and the rejected dialogue, which begin with the same prompt.

        Raises
        ------
        SourceError
            As ``read_dialogue``.
        """
        found = []
        for name in ("chosen", "rejected"):
            value = self._find(row, name, (str, list, dict))
            found.append(self._answer(self._need(row, name, value, f"a {name} answer")))
        chosen, rejected = found
        prompt = self._question(self._find(row, "prompt", (str, list)))
        if not prompt:
            shortest = min(len(chosen), len(rejected)) - 1
            same = (i for i in range(shortest) if chosen[i] != rejected[i])
            number = next(same, shortest)
            if number < 1:
                raise SourceError(
                    "a pair must have a prompt, or be two lists of messages that begin with the "
                    f"same, this object has {_names(row)}; say where the prompt is with columns "
                    "(--column prompt=NAME)"
                )
            prompt, chosen, rejected = chosen[:number], chosen[number:], rejected[number:]
        elif all(len(one) > len(prompt) and one[: len(prompt)] == prompt for one in found):
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        if not _has_role(prompt, "system"):
            prompt = self._read_system(row) + prompt
        tools = self._read_tools(row)
        one, other = (Dialogue([*prompt, *x], len(prompt), tools) for x in (chosen, rejected))
        return one, other

    def read_group(self, row: Row) -> Group:
        """Return the answers to a prompt, and their rewards.

        Raises
        ------
        SourceError
            As ``read_dialogue``.
        """
        prompt = self._question(self._find(row, "prompt", (str, list)))
        prompt = self._need(row, "prompt", prompt or None, "a prompt")
        if not _has_role(prompt, "system"):
            prompt = self._read_system(row) + prompt
        responses = self._need(row, "responses", self._find(row, "responses", list), "responses")
        rewards = self._need(row, "rewards", self._find(row, "rewards", list), "rewards")
        if not responses or len(responses) != len(rewards):
            raise SourceError(
                "a group must have one reward for each response, and at least one, this one has "
                f"{len(responses)} responses and {len(rewards)} rewards"
            )
        for reward in rewards:
            if type(reward) not in (int, float) or not abs(reward) <= _MAX_REWARD:
                raise SourceError(
                    f"a reward must be a finite number that fits float32, got {reward!r}"
                )
        tools = self._read_tools(row)
        answers = [Dialogue([*prompt, *self._answer(one)], len(prompt), tools) for one in responses]
        return Group(answers, [float(reward) for reward in rewards])

    def _find(self, row: Row, name: str, kinds: Any) -> Any:
        """Return the value of a field that is there; an empty text beside text is no value."""
        own = self.columns.get(name)
        for field in COLUMNS[name] if own is None else (own,):
            value = row.get(field)
            # A null comes as an empty text, which only a text may be.
            if value is None or (value == "" and (kinds is not str or name != "text")):
                continue
            if not isinstance(value, kinds):
                raise SourceError(
                    f"field {field!r} must hold {_nouns(kinds)} as {name}, it holds "
                    f"{type(value).__name__}; say what the fields are with columns (--column)"
                )
            return value
        return None

    def _is_there(self, row: Row, name: str) -> bool:
        """Return whether one of the fields in which something is looked for has a value."""
        fields = [self.columns[name]] if name in self.columns else COLUMNS[name]
        return any(row.get(field) not in (None, "") for field in fields)

    def _need(self, row: Row, name: str, value: T | None, noun: str) -> T:
        """Return a value that must be there."""
        if value is None:
            fields = [self.columns[name]] if name in self.columns else COLUMNS[name]
            sought = " or ".join(map(repr, fields))
            raise SourceError(
                f"an object must have {noun} in {sought}, and no empty text, this one has "
                f"{_names(row)}; say where it is with columns (--column {name}=NAME)"
            )
        return value

    def _read_system(self, row: Row) -> list[Message]:
        """Return the message of the system, if there is one beside the dialogue."""
        text = self._find(row, "system", str)
        return [] if text is None else [{"role": "system", "content": text}]

    def _read_tools(self, row: Row) -> Any:
        """Return the tools of a dialogue; None: there are none."""
        return self._find(row, "tools", list)

    def _question(self, value: Any) -> list[Message]:
        """Return a prompt as messages."""
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
        return self._check(value or [])

    def _answer(self, value: Any) -> list[Message]:
        """Return an answer as messages, one at least."""
        if isinstance(value, str):
            return [{"role": "assistant", "content": value}]
        messages = self._check([value] if isinstance(value, dict) else value)
        if not messages:
            raise SourceError("an answer must have a message, there is an empty list")
        return messages

    def _check(self, messages: Any) -> list[Message]:
        """Return messages as templates know them: with role and content."""
        if not isinstance(messages, list):
            raise SourceError(
                f"an answer must be a text, a message or a list of them, got "
                f"{type(messages).__name__}"
            )
        return [self._check_message(message) for message in messages]

    def _check_message(self, message: Any) -> Message:
        """Return one message as templates know it."""
        if isinstance(message, dict):
            rest = dict(message)
            role = rest.pop("role", None) or rest.pop("from", None)
            content = rest.pop("content", rest.pop("value", None))
            if isinstance(role, str) and (content is not None or "tool_calls" in rest):
                role = self.roles.get(role, ROLES.get(role, role))
                # Many templates would write a null out, and it would be trained.
                return {"role": role, "content": _join_parts(content or ""), **rest}
        found = sorted(message) if isinstance(message, dict) else type(message).__name__
        raise SourceError(f"a message must be an object with role and content, got {found}")


def _join_parts(content: Any) -> Any:
    """Return the content of a message: a list of parts as the text that they are together."""
    if not isinstance(content, list):
        return content
    kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    if all(kind == "text" for kind in kinds) and all(isinstance(text, str) for text in texts):
        return "".join(map(str, texts))
    raise SourceError(
        f"the content of a message must be text, or parts of the type 'text', got parts of {kinds}"
    )


def _has_role(messages: Sequence[Any], role: str) -> bool:
    """Return whether the first message is of a role."""
    first = messages[0] if messages else None
    return isinstance(first, dict) and role in (first.get("role"), first.get("from"))


def _names(row: Row) -> str:
    """Return what an object has, for messages."""
    names = sorted(name for name in row if not name.startswith("__"))[:8]
    empty = {name: " (empty or null)" for name in names if row[name] in (None, "")}
    return f"[{', '.join(repr(name) + empty.get(name, '') for name in names)}]"


def _nouns(kinds: Any) -> str:
    """Return types in the words of JSON."""
    nouns = {str: "a text", list: "a list", dict: "an object"}
    return " or ".join(nouns[kind] for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
