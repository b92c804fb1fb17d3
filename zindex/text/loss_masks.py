"""Find the characters of a conversation's text that are trained."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal, NamedTuple, get_args

from zindex.errors import ConfigError, SourceError, check_choice
from zindex.text.chat_template import ChatTemplate, unused_characters
from zindex.text.conversations import Dialogue, Message
from zindex.text.token_spans import Span

Turns = Literal["all", "last"]

_ASSISTANT = "assistant"


class MaskedText(NamedTuple):
    """A text, some characters of which are targets of the loss."""

    text: str
    #: Start and end of each trained part, in order.
    spans: tuple[Span, ...] = ()

    @classmethod
    def whole(cls, text: str) -> "MaskedText":
        """Return a text that is trained from start to end."""
        return cls(text, ((0, len(text)),))

    @property
    def trained(self) -> list[str]:
        """The trained parts."""
        return [self.text[start:stop] for start, stop in self.spans]

    def after(self, start: int) -> "MaskedText":
        """Return the rest from a character on."""
        rest = ((max(0, first - start), stop - start) for first, stop in self.spans if stop > start)
        return MaskedText(self.text[start:], tuple(rest))


class DialogueCutter:
    """Finds the trained parts of conversations.

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
    what it adds to its prompt: the text of all earlier messages and the start of an answer. Some
    templates write earlier messages differently once others follow, such as without their thoughts:
    such a message is trained on what the loop of the template writes for it in the whole text,
    without the start of an answer.
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
        return self.template.render(
            dialogue.messages[:num_messages],
            tools=dialogue.tools,
            variables=dialogue.variables,
            **asked,
        )

    def cut(self, dialogue: Dialogue) -> MaskedText:
        """Return the text of a conversation, as of ``text``, with its trained parts.

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
        if self._has_blocks:
            text, spans = self._find_blocks(dialogue, trained)
        else:
            text, spans = self._find_added(dialogue, trained)
        place = 0
        for start, stop in spans:
            if start < place:
                raise SourceError(
                    "what is trained must be in the order of the messages, got characters up to "
                    f"{place} before those from {start} on; the chat template writes messages in "
                    "another order"
                )
            place = stop
        return MaskedText(text, tuple(span for span in spans if span[0] < span[1]))

    def cut_answer(self, dialogue: Dialogue, prompt: str | None = None) -> tuple[str, MaskedText]:
        """Return the prompt's text, and the answer up to its last word.

        Parameters
        ----------
        dialogue
            The conversation.
        prompt
            The text of its prompt, if it is known.

        Raises
        ------
        SourceError
            As ``cut``; also if the text of the conversation does not start with that of its prompt.
        """
        prompt = self.prompt(dialogue) if prompt is None else prompt
        whole = self.cut(dialogue)
        if not whole.text.startswith(prompt):
            raise SourceError(
                "the text of a dialogue must begin with that of its prompt, with this chat "
                "template it does not; use another one"
            )
        answer = whole.after(len(prompt))
        stop = max((stop for _, stop in answer.spans), default=0)
        if not answer.text[stop:].strip():
            answer = MaskedText(answer.text[:stop], answer.spans)
        return prompt, answer

    @property
    def _has_blocks(self) -> bool:
        """Whether the template says what is trained."""
        return self.template.has_generation and self.trained_roles == (_ASSISTANT,)

    def trains_blocks(self, dialogue: Dialogue) -> bool:
        """Return whether the trained parts are all the template's generation blocks."""
        return self._has_blocks and _find_answers(dialogue) == self._find_trained(dialogue)

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
        text, spans = self.template.render_spans(
            dialogue.messages, tools=dialogue.tools, variables=dialogue.variables
        )
        answers = _find_answers(dialogue)
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
        text = self.text(dialogue)
        written: dict[int, list[Span]] | None = None
        spans = list[Span]()
        for number in trained:
            span = self._find_one(dialogue, number, text)
            if span is not None:
                spans.append(span)
                continue
            written = self._render_messages(dialogue)[1] if written is None else written
            spans += self._align(dialogue, number, text, written)
        return text, spans

    def _find_one(self, dialogue: Dialogue, number: int, text: str) -> Span | None:
        """Return what a message adds to its prompt; None if the whole text has it otherwise."""
        asks = dialogue.messages[number]["role"] == _ASSISTANT
        before = self._begin(dialogue, number, add_generation_prompt=asks) if number else ""
        if not text.startswith(before):
            return None
        is_last = number + 1 == len(dialogue.messages)
        stop = self._find_stop(text if is_last else self._begin(dialogue, number + 1), text)
        return (len(before), stop) if stop >= len(before) else None

    def _align(
        self, dialogue: Dialogue, number: int, text: str, written: Mapping[int, Sequence[Span]]
    ) -> list[Span]:
        """Return what the template's loop writes for a message, without what asks for it."""
        if number not in written:
            raise SourceError(
                f"a chat template must write message {number + 1} of a dialogue after what asks "
                "for it, or in a loop over the messages, with this one the message cannot be found "
                "in the text; use one with {% generation %} blocks"
            )
        spans = [*written[number]]
        if not spans:
            return []
        start, stop = spans[0][0], spans[-1][1]
        if dialogue.messages[number]["role"] == _ASSISTANT:
            start += self._measure_header(dialogue, number, text[:start], text[start:stop])
        if number + 1 == len(dialogue.messages):
            stop = len(text)
        spans[-1] = spans[-1][0], self._without_blank(text[:stop])
        return [(max(start, first), last) for first, last in spans if last > start]

    def _measure_header(self, dialogue: Dialogue, number: int, before: str, own: str) -> int:
        """Return the characters of a message's text that ask for it."""
        messages = dialogue.messages
        asked, written = self._render_messages(
            replace(dialogue, messages=messages[:number]), add_generation_prompt=True
        )
        ends = (stop for spans in written.values() for _, stop in spans)
        opening = asked[max(ends, default=0) :]
        if own.startswith(opening):
            return len(opening)
        if before.endswith(opening):
            return 0
        # The start of an answer may go on with that of its thoughts, which this message lacks.
        mark = unused_characters(before + own)[0]
        changed = [*messages[:number], {**messages[number], "content": mark}]
        text, written = self._render_messages(
            replace(dialogue, messages=[*changed, *messages[number + 1 :]])
        )
        first = next(iter(written.get(number, ())), (0, 0))
        header = text[slice(*first)].partition(mark)[0]
        shared = zip(opening, header, own, strict=False)
        return sum(1 for _ in takewhile(lambda both: len(set(both)) == 1, shared))

    def _render_messages(
        self, dialogue: Dialogue, **asked: bool
    ) -> tuple[str, dict[int, list[Span]]]:
        """Return the text of a conversation, and what the template's loop writes per message."""
        return self.template.render_messages(
            dialogue.messages, tools=dialogue.tools, variables=dialogue.variables, **asked
        )

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
        return self._without_blank(until)

    def _without_blank(self, text: str) -> int:
        """Return the length of a text without white space after a token that ends it."""
        stripped = text.rstrip()
        return len(stripped) if stripped.endswith(self.ends) else len(text)


def _find_answers(dialogue: Dialogue) -> list[int]:
    """Return the numbers of the assistant's messages."""
    return [i for i, message in enumerate(dialogue.messages) if message["role"] == _ASSISTANT]


def _weight_of(message: Message) -> Any:
    """Return the weight of a message, which says whether it is trained; SourceError for others."""
    weight = message.get("weight")
    if weight not in (None, 0, 1):
        raise SourceError(
            f"the weight of a message must be 0 or 1, got {weight!r}; store weights of tokens as "
            "floats under loss_mask, and convert such records"
        )
    return weight
