"""Templates of tokenizers make text of conversations, and say what the assistant generates."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from zindex.errors import ConfigError, SourceError
from zindex.text.chat_template import CHATML, PLAIN, ChatTemplate, open_template
from zindex.text.tokenizer_settings import TokenizerSettings

TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi <b>!"},
    {"role": "assistant", "content": "Hello."},
]
# As templates are written by hand: blocks and comments on lines of their own.
LINES = """
{#- a comment -#}
{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {% if message.role == 'user' %}
[{{ message.content }}]
    {% else %}
        {% generation %}
({{ message.content | trim }}){{ eos_token }}
        {% endgeneration %}
    {% endif %}
{%- endfor %}
"""


def test_chatml() -> None:
    template = ChatTemplate(CHATML)
    text = (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi <b>!<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
    )
    assert template.render(TALK) == text
    asked = template.render(TALK[:2], add_generation_prompt=True)
    assert text.startswith(asked)
    found, spans = template.render_spans(TALK)
    assert found == text
    assert [text[slice(*span)] for span in spans] == ["Hello.<|im_end|>"]
    assert template.has_generation


def test_plain() -> None:
    template = ChatTemplate(PLAIN)
    assert template.render(TALK[1:], add_generation_prompt=True) == "Hi <b>!Hello."
    assert template.is_plain
    assert template.has_generation
    assert not ChatTemplate(CHATML).is_plain
    with pytest.raises(SourceError, match=r"the chat template refuses this conversation: .*can"):
        template.render([{"role": "user", "content": ["not", "text"]}])


def test_block_lines_leave_no_blanks() -> None:
    template = ChatTemplate(LINES, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    text, spans = template.render_spans(TALK)
    assert text == template.render(TALK) == "<s>[Hi <b>!]\n(Hello.)</s>\n"
    assert [text[slice(*span)] for span in spans] == ["(Hello.)</s>\n"]
    assert not ChatTemplate("{{ messages }}").has_generation


def test_blocks_in_macros_and_loops() -> None:
    text = (
        "{% macro say(m) %}{% generation %}{% set x = m.content %}{{ x }}{% endgeneration %}"
        "{% endmacro %}{% for m in messages %}{{ say(m) }}|{{ x }}{% endfor %}"
    )
    found, spans = ChatTemplate(text).render_spans(TALK)
    assert found == "Be kind.|Hi <b>!|Hello.|"
    assert [found[slice(*span)] for span in spans] == ["Be kind.", "Hi <b>!", "Hello."]


_BLOCK = "{% generation %} {{ m.content }}\n{% endgeneration %}"
# A template, and whether one rendering shows its blocks.
DIRECT = [
    (CHATML, True),
    (PLAIN, True),
    (LINES, True),
    (f"{{% for m in messages %}}{{% with x = 1 %}}<{_BLOCK}>{{% endwith %}}{{% endfor %}}", True),
    (f"{{% for m in messages recursive %}}{_BLOCK}{{% endfor %}}", False),
    (f"{{% macro say(m) %}}{_BLOCK}{{% endmacro %}}{{{{ say(messages[0]) }}}}", False),
    (
        f"{{% for m in messages %}}{{% filter upper %}}{_BLOCK}{{% endfilter %}}{{% endfor %}}",
        False,
    ),
    (f"{{% set m = messages[0] %}}{{% set x %}}{_BLOCK}{{% endset %}}{{{{ x }}}}", False),
    ("{% for m in messages %}({% generation %}{% break %}{% endgeneration %}){% endfor %}", True),
    (
        f"{{% for m in messages %}}{{% generation %}}[{_BLOCK}]{{% endgeneration %}}{{% endfor %}}",
        True,
    ),
    (f"{{% for m in messages %}}{_BLOCK}{{{{ zindex_generation_start }}}}{{% endfor %}}", True),
]


@pytest.mark.parametrize(("text", "is_direct"), DIRECT)
def test_one_rendering_shows_blocks(text: str, is_direct: bool) -> None:
    """If it does not, as blocks are cut or one within another, a second one shows the same."""
    template, other = ChatTemplate(text), ChatTemplate(text)
    assert template._writes_directly == is_direct
    other._writes_directly = False
    for talk in (TALK, TALK[2:], [*TALK[1:], *TALK[1:]], [{"role": "assistant", "content": ""}]):
        assert render_spans(template, talk) == render_spans(other, talk)


def render_spans(template: ChatTemplate, messages: list[dict[str, str]]) -> Any:
    """The text and its spans; an error if a block is within another."""
    try:
        return template.render_spans(messages)
    except ConfigError as error:
        return str(error)


def test_a_usual_template_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ChatTemplate, "render")
    monkeypatch.delattr(ChatTemplate, "_render")
    text, [(start, stop)] = ChatTemplate(CHATML).render_spans(TALK)
    assert text[start:stop] == "Hello.<|im_end|>"


def test_markers_never_occur_in_the_text() -> None:
    content = "".join(map(chr, range(0xFDD0, 0xFDF0))) + "\U000f0000"
    found, [(start, stop)] = ChatTemplate(PLAIN).render_spans(
        [{"role": "assistant", "content": content}, {"role": "user", "content": content}]
    )
    assert found == 2 * content
    assert (start, stop) == (0, len(content))


def test_modified_blocks_are_refused() -> None:
    text = (
        "{% set x %}{% generation %} {{ messages[0].content }}{% endgeneration %}{% endset %}"
        "{{ x | length }}"
    )
    with pytest.raises(ConfigError, match=r"must write its {% generation %} blocks out as they a"):
        ChatTemplate(text).render_spans(TALK)


def test_variables_of_templates() -> None:
    text = (
        "{{ tools | tojson }} {{ a }} {{ documents }} {{ eos_token }} {{ add_generation_prompt }}"
    )
    template = ChatTemplate(text, special_tokens={"eos_token": "</s>"}, variables={"a": {"b": 1}})
    tools = [{"name": "é<", "n": 1}]
    assert template.render([], tools=tools) == '[{"name": "é<", "n": 1}] {\'b\': 1} None </s> False'


def test_the_date_is_a_setting() -> None:
    text = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}no{% endif %}"
    assert ChatTemplate(text).render([]) == "no"
    assert ChatTemplate(text, date="2026-01-31").render([]) == "31 Jan 2026"
    with pytest.raises(ConfigError, match=r"say which date it shall be with date='YYYY-MM-DD' \(-"):
        ChatTemplate("{{ strftime_now('%d') }}").render([])
    with pytest.raises(ConfigError, match=r"date \(--date\) must be YYYY-MM-DD, got '31.1.'"):
        ChatTemplate(text, date="31.1.")


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('no such role') }}",
        "{% for x in messages[7].content %}{% endfor %}",
        "{{ messages + 5 }}",
        "{{ 1 / 0 }}",
        "{{ (1).nothing() }}",
        "{% include 'other' %}",
        "{{ range(10 ** 9) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ '%d' % 'x' }}",
        "{{ 'x'.encode('ascii').decode('no such') }}",
    ],
)
def test_refused_conversations(text: str) -> None:
    with pytest.raises(SourceError, match=r"the chat template refuses this conversation: ."):
        ChatTemplate(text).render(TALK)


@pytest.mark.parametrize(
    "text",
    ["{{ messages.append(1) }}", "{{ messages.__class__.__mro__ }}", "{{ ''.upper.__self__.x }}"],
)
def test_templates_stay_in_the_sandbox(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"must keep to Jinja's sandbox, this one does not: .*uns"
    ):
        ChatTemplate(text).render(TALK)


def test_invalid_templates() -> None:
    with pytest.raises(
        ConfigError, match=r"must be one of Jinja, this one is not: .* in line 2; fix it"
    ):
        ChatTemplate("\n{% for %}")


def test_templates_pickle_as_their_text() -> None:
    template = ChatTemplate(
        CHATML, special_tokens={"a": "b"}, variables={"c": 1}, date="2026-01-02"
    )
    again = pickle.loads(pickle.dumps(template))
    assert again.render_spans(TALK) == template.render_spans(TALK)
    expected = {"special_tokens": {"a": "b"}, "variables": {"c": 1}, "date": "2026-01-02"}
    assert again.identity() == {"text": CHATML, **expected}


def test_templates_by_name_text_or_file(tmp_path: Path) -> None:
    settings = TokenizerSettings({"eos_token": "</s>"}, {"default": "own", "rag": "other"})
    (tmp_path / "x.jinja").write_text("of a file")

    def text_of(given: Any, settings: TokenizerSettings = settings) -> str | None:
        template = open_template(given, settings)
        return None if template is None else template.text

    assert text_of(None) == "own"
    assert text_of("rag") == "other"
    assert text_of("chatml") == CHATML
    assert text_of("plain") == PLAIN
    assert text_of("{{ messages }}") == "{{ messages }}"
    assert text_of(tmp_path / "x.jinja") == text_of(str(tmp_path / "x.jinja")) == "of a file"
    assert text_of(None, TokenizerSettings({}, {})) is None
    template = open_template("{{ eos_token }}{{ a }}", settings, variables={"a": 5})
    assert template is not None
    assert template.render([]) == "</s>5"
    with pytest.raises(ConfigError, match=r"must name one of \['a', 'b'\], for the tokenizer has"):
        open_template(None, TokenizerSettings({}, {"a": "x", "b": "y"}))
    with pytest.raises(ConfigError, match=r"must be one of 'chatml', 'plain', 'default', 'rag', t"):
        open_template("nowhere.jinja", settings)


def test_jinja_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError, match=r"needs the library jinja2, .*; install zindex\[keyed\]"):
        ChatTemplate(CHATML)


def test_contents_other_than_text_are_named() -> None:
    user = {"role": "user", "content": "q"}
    for content, kind in ((None, "null"), ([{"type": "text", "text": "a"}], "of type list")):
        messages = [user, {"role": "assistant", "content": content}]
        message = f"; the content of message 2, of 'assistant', is {kind}: write a text there, or t"
        with pytest.raises(SourceError, match=message):
            ChatTemplate(CHATML).render(messages)


def test_calls_of_tools_must_be_written() -> None:
    call = {"type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    with pytest.raises(
        SourceError, match="this one leaves out that of 'look_up' in message 1; take"
    ):
        ChatTemplate(CHATML).render(messages)
    writing = (
        "{% for m in messages %}{{ m.content }}{{ m.tool_calls[0].function.name }}{% endfor %}"
    )
    assert ChatTemplate(writing).render(messages) == "look_up"
