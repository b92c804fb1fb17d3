"""Split the text of a conversation into trained and untrained parts.

Parts are tokenised separately, so that no token is partly trained, and a prompt has the same tokens
as in inference.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from zindex.errors import ConfigError, SourceError, check_choice
from zindex.text.chat_template import ChatTemplate
from zindex.text.conversations import Dialogue, Message

Turns = Literal["all", "last"]
Span = tuple[int, int]

_ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class MaskedText:
    """A part of a text that is tokenised separately."""

    text: str
    #: Whether its tokens are targets of the loss.
    trained: bool


class DialogueCutter:
    """Splits conversations into trained and untrained parts.

    Parameters
    ----------
    template
        Renders the text.
    trained_roles
        Roles whose messages are trained.
    turns
        ``"last"`` trains only the last of these messages.
    ends
        Texts of special tokens. White space after a token that ends a message is not trained,
        because generation stops there.

    Raises
    ------
    ConfigError
        If there are no roles, or ``turns`` is neither ``"all"`` nor ``"last"``.

    Notes
    -----
    A message with a false ``train`` or a ``weight`` of 0 is not trained. If the template has ``{%
    generation %}`` blocks, the assistant is trained on these. Otherwise a message is trained on
    what it adds to its prompt: the text of all earlier messages and the start of an answer.
    """

    def __init__(
        self,
        template: ChatTemplate,
        *,
        trained_roles: Sequence[str] = (_ASSISTANT,),
        turns: Turns = "all",
        ends: Collection[str] = (),
    ) -> None:
        if isinstance(trained_roles, str) or not trained_roles:
            raise ConfigError(
                f"train_on (--train-on) must name one role at least, got {trained_roles!r}"
            )
        check_choice("turns (--turns)", turns, get_args(Turns))
        self.template = template
        self.trained_roles = tuple(trained_roles)
        self.turns = turns
        self.ends = tuple(sorted(ends))

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine what is trained, as JSON values."""
        return {"train_on": list(self.trained_roles), "turns": self.turns}

    def text(self, dialogue: Dialogue) -> str:
        """Return the whole text of a conversation."""
        return self._begin(dialogue, len(dialogue.messages))

    def prompt(self, dialogue: Dialogue) -> str:
        """Return the text of the prompt of a conversation, up to the start of the answer."""
        return self._begin(dialogue, dialogue.num_prompt, add_generation_prompt=True)

    def _begin(self, dialogue: Dialogue, num_messages: int, **asked: bool) -> str:
        """Return the text of the first messages of a conversation."""
        return self.template.render(dialogue.messages[:num_messages], tools=dialogue.tools, **asked)

    def cut(self, dialogue: Dialogue) -> list[MaskedText]:
        """Return the text of a conversation in parts, which join to ``text``.

        Raises
        ------
        SourceError
            If nothing of it is trained, or the start of a message cannot be found in its text.
        """
        trained = self._find_trained(dialogue)
        if not trained:
            raise SourceError(
                f"a dialogue must have a message to train on, of {' or '.join(self.trained_roles)}"
                f", this one has {[message['role'] for message in dialogue.messages]}"
            )
        if self.template.has_generation and self.trained_roles == (_ASSISTANT,):
            text, spans = self._find_blocks(dialogue, trained)
        else:
            text, spans = self._find_added(dialogue, trained)
        return _split(text, spans)

    def cut_answer(self, dialogue: Dialogue) -> tuple[str, list[MaskedText]]:
        """Return the prompt's text, and the parts of the answer up to its last word.

        Raises
        ------
        SourceError
            As ``cut``; also if the text of the conversation does not start with that of its prompt.
        """
        prompt, parts = self.prompt(dialogue), self.cut(dialogue)
        rest: list[MaskedText] = []
        left = len(prompt)
        if not "".join(part.text for part in parts).startswith(prompt):
            raise SourceError(self._no_prefix("its prompt"))
        for part in parts:
            if left < len(part.text):
                rest.append(MaskedText(part.text[left:], part.trained))
            left = max(0, left - len(part.text))
        if rest and not rest[-1].trained and not rest[-1].text.strip():
            rest.pop()
        return prompt, rest

    def trains_end(self, dialogue: Dialogue) -> bool:
        """Return whether the last message, and the end after it, is trained; it may be empty."""
        return len(dialogue.messages) - 1 in self._find_trained(dialogue)

    def _find_trained(self, dialogue: Dialogue) -> list[int]:
        """Return the numbers of the messages that are trained."""
        trained = [
            number
            for number, message in enumerate(dialogue.messages)
            if number >= dialogue.num_prompt
            and message["role"] in self.trained_roles
            and message.get("train") is not False
            and _weight_of(message) != 0
        ]
        return trained[-1:] if self.turns == "last" else trained

    def _find_blocks(self, dialogue: Dialogue, trained: Sequence[int]) -> tuple[str, list[Span]]:
        """Return the text of a conversation, and the spans of the template's generation blocks."""
        text, spans = self.template.render_spans(dialogue.messages, tools=dialogue.tools)
        answers = [i for i, item in enumerate(dialogue.messages) if item["role"] == _ASSISTANT]
        if answers == trained:
            return text, spans
        if len(answers) != len(spans):
            raise SourceError(
                "a chat template must have one {% generation %} block for each message of the "
                f"assistant where not all of them are trained, got {len(spans)} blocks for "
                f"{len(answers)} messages"
            )
        numbered = zip(answers, spans, strict=True)
        return text, [span for number, span in numbered if number in trained]

    def _find_added(self, dialogue: Dialogue, trained: Sequence[int]) -> tuple[str, list[Span]]:
        """Return the text of a conversation, and the span that each trained message adds to it."""
        messages = dialogue.messages
        text = self.text(dialogue)
        spans = []
        for number in trained:
            asks = messages[number]["role"] == _ASSISTANT
            before = self._begin(dialogue, number, add_generation_prompt=asks) if number else ""
            is_last = number + 1 == len(messages)
            until = text if is_last else self._begin(dialogue, number + 1)
            if not text.startswith(before):
                raise SourceError(self._no_prefix(f"what asks for message {number + 1}"))
            stop = self._find_stop(until, text)
            if stop < len(before):
                raise SourceError(self._no_prefix(f"its first {number + 1} messages"))
            spans.append((len(before), stop))
        return text, spans

    def _find_stop(self, until: str, text: str) -> int:
        """Return the end of the last message of ``until`` in the whole text; -1 if not found.

        A message ends at its end token, if it has one. Some templates then add tokens that end the
        whole text, which are missing if more messages follow.
        """
        while not text.startswith(until):
            shorter = until.rstrip()
            ends = [end for end in self.ends if shorter.endswith(end)]
            if not ends:
                return -1
            until = shorter[: -max(map(len, ends))]
        stripped = until.rstrip()
        return len(stripped) if stripped.endswith(self.ends) else len(until)

    def _no_prefix(self, what: str) -> str:
        """Return the error message for a text that cannot be split."""
        other = ", or train on the last message alone with turns='last' (--turns last)"
        text = (
            f"the text of a dialogue must begin with that of {what}, with this chat template it "
            "does not; use one with {% generation %} blocks"
        )
        return text if self.turns == "last" else text + other


def _weight_of(message: Message) -> Any:
    """Return the weight of a message, which says whether it is trained; SourceError for others."""
    weight = message.get("weight")
    if weight not in (None, 0, 1):
        raise SourceError(
            f"the weight of a message must be 0 or 1, got {weight!r}; store weights of tokens as "
            "floats under loss_mask, and convert such records"
        )
    return weight


def _split(text: str, spans: Sequence[Span]) -> list[MaskedText]:
    """Split a text at spans, which are trained."""
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    parts = []
    for number, (start, stop) in enumerate(pairwise(edges)):
        if start > stop:
            raise SourceError(
                f"what is trained must be in the order of the messages, got characters up to "
                f"{start} before those from {stop} on; the chat template writes messages in "
                "another order"
            )
        if start < stop:
            parts.append(MaskedText(text[start:stop], number % 2 == 1))
    return parts
