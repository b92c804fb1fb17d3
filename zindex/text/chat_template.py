"""Render conversations by the Jinja templates of tokenizers.

Templates run in Jinja's immutable sandbox: they read no files, include no others and reach no
private attributes. `zindex.text.template_limits` bounds their time and memory.
"""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from zindex.errors import ConfigError, SourceError
from zindex.io.files import read_text
from zindex.lazy import need
from zindex.text.token_spans import Span
from zindex.text.tokenizer_settings import DEFAULT, TokenizerSettings

T = TypeVar("T")
Message = Mapping[str, Any]

#: Built in: every message between ``<|im_start|>`` and ``<|im_end|>``.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
#: Built in: the concatenated contents.
PLAIN = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '' }}{% endif %}"  # content other than text is an error
    "{% endfor %}"
)
_BUILT_IN = {"chatml": CHATML, "plain": PLAIN}
# Unassigned code points: noncharacters, then private use.
_MARKERS = [range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE)]
_MAX_TEXT_LENGTH = 1 << 20
# Errors of the Python expressions in templates.
_TEMPLATE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)


class ChatTemplate:
    """Renders conversations. It pickles as its text and settings.

    Parameters
    ----------
    text
        The Jinja template. Its variables are ``messages``, ``tools``, ``add_generation_prompt``,
        the special tokens and ``variables``; ``raise_exception`` rejects a conversation.
    special_tokens
        Text of each special token, by a name such as ``eos_token``.
    variables
        Additional variables.
    date
        The date of ``strftime_now``, as YYYY-MM-DD. None: the template has no such function, so
        that rendering is deterministic.

    Raises
    ------
    ConfigError
        If the text is not a template, ``date`` is invalid, or Jinja is not installed.
    """

    def __init__(
        self,
        text: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
        date: str | None = None,
    ) -> None:
        self.text = text
        self.special_tokens = dict(special_tokens or {})
        self.variables = dict(variables or {})
        self.date = date
        self._template = _compile(text, date)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.identity()), ()

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the text of a conversation, as JSON values."""
        names = ("text", "special_tokens", "variables", "date")
        return {name: getattr(self, name) for name in names}

    @property
    def has_generation(self) -> bool:
        """Whether the template marks what the assistant generates."""
        return bool(self._template.environment.zindex_has_generation)

    @property
    def is_plain(self) -> bool:
        """Whether it only concatenates messages, so that their ends are not marked."""
        return self.text == PLAIN

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation.

        Parameters
        ----------
        messages
            Each with ``role`` and ``content``, and further keys that the template uses.
        tools
            Tools that the assistant may call.
        add_generation_prompt
            Whether to end with the start of an answer.
        variables
            Variables of this conversation, which take precedence over the template's own.

        Raises
        ------
        SourceError
            If the template rejects the conversation.
        ConfigError
            If the template violates the sandbox, or needs today's date.
        """
        return self._render(self._template, messages, tools, add_generation_prompt, variables)

    def render_spans(
        self,
        messages: Sequence[Message],
        *,
        tools: Any = None,
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[str, list[Span]]:
        """Return the text of a conversation, and the spans of its ``{% generation %}`` blocks.

        Parameters
        ----------
        messages, tools, variables
            As for ``render``.

        Returns
        -------
        text
            The text, as returned by ``render``.
        spans
            First character of each block, and its end.

        Raises
        ------
        SourceError, ConfigError
            As ``render``; also if the template modifies rendered blocks.
        """
        from zindex.text.generation_tag import MARKS, Mark, find_blocks

        if self._writes_directly:
            start, stop = Mark(), Mark()
            values = self._values(
                messages, tools, False, variables, dict(zip(MARKS, (start, stop), strict=True))
            )
            text, written = self._run(self._list_pieces, values)
            found = find_blocks(written, start, stop)
            if found is not None:
                _check_calls(text, messages)
                return text, found
        text = self.render(messages, tools=tools, variables=variables)
        first, last = unused_characters(text)
        marks = dict(zip(MARKS, (first, last), strict=True))
        marked = self._render(self._template, messages, tools, False, variables, marks)
        pieces, spans, place = [], list[tuple[int, int]](), 0
        for number, piece in enumerate(marked.split(first)):
            inside, _, outside = piece.partition(last) if number else ("", "", piece)
            if number:
                spans.append((place, place + len(inside)))
            pieces += [inside, outside]
            place += len(inside) + len(outside)
        if "".join(pieces) != text:
            raise ConfigError(
                "a chat template must write its {% generation %} blocks out as they are, but this "
                "one trims, counts or repeats them; move the block around what is written last"
            )
        return text, spans

    def render_messages(
        self,
        messages: Sequence[Message],
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[str, dict[int, list[Span]]]:
        """Return the text of a conversation, and the spans that the template writes per message.

        Parameters
        ----------
        messages, tools, add_generation_prompt, variables
            As for ``render``.

        Returns
        -------
        text
            The text, as returned by ``render``.
        spans
            First characters and ends of what a loop over messages writes for each of them, by its
            number; several if it writes others in between. A message is missing if no loop writes
            it, or several do.

        Raises
        ------
        SourceError, ConfigError
            As ``render``; also if the template modifies what its loops write.
        """
        from zindex.text.message_spans import Marks

        given = tools, add_generation_prompt, variables
        own = [dict(message) for message in messages]  # the same object may occur twice
        text = self._render(self._template, own, *given)
        marks = Marks(own, *unused_characters(text))
        found, spans = marks.read(self._render(self._marked, own, *given, marks.variables))
        if found != text:
            raise ConfigError(
                "a chat template must write what its loops over messages write as it is, this one "
                "trims or counts it; use one with {% generation %} blocks"
            )
        return text, spans

    @cached_property
    def _writes_directly(self) -> bool:
        """Whether one rendering shows where the generation blocks are."""
        from zindex.text.generation_tag import writes_directly

        return writes_directly(self._template.environment.parse(self.text))

    @cached_property
    def _marked(self) -> Any:
        """The template with marks in its loops."""
        from zindex.text.message_spans import LoopMarker

        environment = self._template.environment
        return environment.from_string(LoopMarker().visit(environment.parse(self.text)))

    def _render(
        self,
        template: Any,
        messages: Sequence[Message],
        tools: Any,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None = None,
        marks: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the rendered text of a conversation."""
        given = messages, tools, add_generation_prompt, variables, marks
        text = str(self._run(template.render, self._values(*given)))
        _check_calls(text, messages)
        return text

    def _values(
        self,
        messages: Sequence[Message],
        tools: Any,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None,
        marks: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Return all variables of the template."""
        return {
            **{"tools": tools, "documents": None, **self.special_tokens, **self.variables},
            **(variables or {}),
            **{"messages": messages, "add_generation_prompt": add_generation_prompt},
            **(marks or {}),
        }

    def _list_pieces(self, values: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Return the text of a conversation, and the pieces that the template writes."""
        pieces = list(self._template.generate(values))
        return self._template.environment.concat(pieces), pieces

    def _run(self, render: Callable[[Mapping[str, Any]], T], values: Mapping[str, Any]) -> T:
        """Return what a function makes of the variables of a conversation; errors of `render`."""
        import jinja2

        from zindex.text.template_limits import within_limits

        try:
            return within_limits(render, values)
        except ConfigError:
            raise
        except jinja2.exceptions.SecurityError as error:
            raise ConfigError(
                f"a chat template must keep to Jinja's sandbox, this one does not: {error}; use "
                "another template"
            ) from error
        except (jinja2.TemplateError, *_TEMPLATE_ERRORS) as error:
            if isinstance(error, jinja2.UndefinedError) and "strftime_now" in str(error):
                raise ConfigError(
                    "this chat template writes today's date; say which date it shall be with "
                    "date='YYYY-MM-DD' (--date YYYY-MM-DD), so that the same texts give the same "
                    "tokens"
                ) from error
            raise SourceError(_explain(error, values["messages"])) from error


def unused_characters(text: str) -> tuple[str, str]:
    """Return two characters that a text does not have."""
    unused = (mark for mark in map(chr, chain(*_MARKERS)) if mark not in text)
    return next(unused), next(unused)


def _check_calls(text: str, messages: Sequence[Message]) -> None:
    """Raise if a text lacks the tool calls, which the model would then never learn."""
    for number, message in enumerate(messages, 1):
        if "tool_calls" not in message:
            continue
        calls = message["tool_calls"]
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function", call) if isinstance(call, dict) else None
            name = function.get("name") if isinstance(function, dict) else None
            if isinstance(name, str) and name not in text:
                raise SourceError(
                    f"a chat template must write the calls of tools, this one leaves out that of "
                    f"{name!r} in message {number}; take the template of a model that calls tools"
                )


def _explain(error: Exception, messages: Sequence[Message]) -> str:
    """Return the error message for a rejected conversation."""
    text = f"the chat template refuses this conversation: {str(error) or type(error).__name__}"
    for number, message in enumerate(messages, 1):
        content = message.get("content")
        if not isinstance(content, str):
            kind = "null" if content is None else f"of type {type(content).__name__}"
            return (
                f"{text}; the content of message {number}, of {message.get('role')!r}, is {kind}: "
                "write a text there, or take a chat template that knows such contents"
            )
    return text


def open_template(
    given: str | Path | None,
    settings: TokenizerSettings,
    *,
    variables: Mapping[str, Any] | None = None,
    date: str | None = None,
) -> ChatTemplate | None:
    """Return a chat template by name, text or file.

    Parameters
    ----------
    given
        None uses the tokenizer's default, if any. Otherwise the built-in ``"chatml"`` or
        ``"plain"``, the name of one of the tokenizer's templates, the text of a template, or a
        file's path.
    settings
        The tokenizer's settings.
    variables, date
        See `ChatTemplate`.

    Raises
    ------
    ConfigError
        If there is no such template.
    """
    own = settings.chat_templates
    if given is None:
        if not own:
            return None
        if DEFAULT not in own:
            raise ConfigError(
                f"chat_template (--chat-template) must name one of {sorted(own)}, for the "
                "tokenizer has several and none of them is its default"
            )
        text = own[DEFAULT]
    elif str(given) in {**_BUILT_IN, **own}:
        text = {**_BUILT_IN, **own}[str(given)]
    elif "{{" in str(given) or "{%" in str(given):
        text = str(given)
    else:
        path = Path(given)
        if not path.is_file():
            known = ", ".join(map(repr, [*_BUILT_IN, *own]))
            raise ConfigError(
                f"chat_template (--chat-template) must be one of {known}, the text of a Jinja "
                f"template, or a file of one, there is none at {given}; check the path"
            )
        text = read_text(path)
    return ChatTemplate(
        text, special_tokens=settings.special_tokens, variables=variables, date=date
    )


def _compile(text: str, date: str | None) -> Any:
    """Return the compiled template."""
    jinja2 = need("jinja2", "a chat template", "zindex[keyed]")
    from zindex.text.generation_tag import GenerationTag
    from zindex.text.template_limits import BoundedSandbox, bounded, within_limits

    def raise_exception(message: Any) -> None:
        raise jinja2.TemplateError(str(message))

    # The settings of transformers, so that templates render the same text.
    environment = BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = bounded("tojson", _to_json)
    environment.globals["raise_exception"] = raise_exception
    if date is not None:
        environment.globals["strftime_now"] = _parse_date(date).strftime
    try:
        if len(text) > _MAX_TEXT_LENGTH:
            raise jinja2.TemplateError(f"it has more than {_MAX_TEXT_LENGTH:,} characters")
        template = within_limits(environment.from_string, text)
    except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
        line = getattr(error, "lineno", None)
        where = "" if line is None else f" in line {line}"
        raise ConfigError(
            f"a chat template must be one of Jinja, this one is not: {error}{where}; fix it"
        ) from error
    template.globals = dict(template.globals)  # each rendering copies them
    return template


def _parse_date(date: str) -> datetime.datetime:
    """Return a day at midnight."""
    try:
        return datetime.datetime.strptime(date, "%Y-%m-%d")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"date (--date) must be YYYY-MM-DD, got {date!r}") from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, **options: Any) -> str:
    """Return JSON as text; Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
