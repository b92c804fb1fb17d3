"""What is trained of a dialogue: exactly what a model is to generate, from its first character."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError, SourceError
from zindex.text.chat_template import CHATML, PLAIN, ChatTemplate
from zindex.text.conversations import Dialogue
from zindex.text.loss_masks import DialogueCutter, MaskedText

# ChatML as most tokenizers have it: nothing in it says what is generated.
WITHOUT_BLOCKS = re.sub(r"{% (end)?generation %}", "", CHATML)
ENDS = ("<|im_end|>", "<|im_start|>")
# As Llama 2 writes: the text that asks for an answer is that of the messages.
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
)
# As models that reason write: earlier thoughts are left out.
THOUGHTS = (
    "{% for m in messages %}<{{ m.role }}>{% if loop.last or m.role == 'user' %}{{ m.content }}"
    "{% else %}{{ m.content.split('|')[-1] }}{% endif %}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def talk(*contents: str, **last: Any) -> list[dict[str, Any]]:
    """Messages of user and assistant in turn."""
    roles = ("user", "assistant")
    messages: list[dict[str, Any]] = [
        {"role": roles[i % 2], "content": text} for i, text in enumerate(contents)
    ]
    messages[-1] |= last
    return messages


@pytest.mark.parametrize("text", [CHATML, WITHOUT_BLOCKS])
def test_answers_are_trained_to_the_token_that_ends_them(text: str) -> None:
    cutter = DialogueCutter(ChatTemplate(text), ends=ENDS)
    messages = [{"role": "system", "content": "s"}, *talk("q", "a", "r", "b\n")]
    parts = cutter.cut(Dialogue(messages))
    assert parts.trained == ["a<|im_end|>", "b\n<|im_end|>"]
    assert parts.text == cutter.text(Dialogue(messages))
    asked = cutter.template.render(messages[:2], add_generation_prompt=True)
    assert parts.spans[0][0] == len(asked)
    assert parts.text[parts.spans[-1][1] :] == "\n"


def test_without_end_tokens_all_that_a_message_adds_is_trained() -> None:
    cutter = DialogueCutter(ChatTemplate(WITHOUT_BLOCKS))
    assert cutter.cut(Dialogue(talk("q", "a"))).trained == ["a<|im_end|>\n"]
    cutter = DialogueCutter(ChatTemplate(BRACKETS), ends=["</s>"])
    parts = cutter.cut(Dialogue(talk("q", "a", "r", "b")))
    assert parts.text == "<s>[INST] q [/INST] a </s><s>[INST] r [/INST] b </s>"
    assert parts.trained == [" a </s>", " b </s>"]


def test_a_token_that_ends_the_whole_text() -> None:
    text = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% else %}<eos>{% endif %}"
    )
    ends = ["<|end|>", "<eos>", "<|assistant|>", "<|user|>"]
    dialogue = Dialogue(talk("q", "a", "r", "b"))
    cutter = DialogueCutter(ChatTemplate(text), ends=ends)
    assert cutter.cut(dialogue).trained == ["a<|end|>", "b<|end|><eos>"]
    assert cutter.cut(dialogue).text == cutter.text(dialogue)
    # Without the special tokens, a message ends where its loop does.
    assert DialogueCutter(ChatTemplate(text)).cut(dialogue) == cutter.cut(dialogue)


@pytest.mark.parametrize("text", [CHATML, WITHOUT_BLOCKS])
def test_untrained_messages(text: str) -> None:
    template = ChatTemplate(text)
    messages = talk("q", "a", "r", "b", "s", "c")
    last = DialogueCutter(template, ends=ENDS, turns="last")
    assert last.cut(Dialogue(messages)).trained == ["c<|im_end|>"]
    cutter = DialogueCutter(template, ends=ENDS)
    assert cutter.cut(Dialogue(messages, 4)).trained == ["c<|im_end|>"]
    messages[1] = messages[1] | {"weight": 0}
    messages[5] = messages[5] | {"train": False}
    assert cutter.cut(Dialogue(messages)).trained == ["b<|im_end|>"]
    assert last.cut(Dialogue(messages)).trained == ["b<|im_end|>"]


def test_other_roles_are_trained_with_their_headers() -> None:
    cutter = DialogueCutter(ChatTemplate(CHATML), trained_roles=["user", "assistant"], ends=ENDS)
    assert cutter.cut(Dialogue(talk("q", "a", "r"))).trained == [
        "<|im_start|>user\nq<|im_end|>",
        "a<|im_end|>",
        "<|im_start|>user\nr<|im_end|>",
    ]
    assert cutter.identity() == {"train_on": ["user", "assistant"], "turns": "all"}


@given(st.lists(st.text("ab<|>\n \ufdd0", max_size=4), min_size=2, max_size=7), st.booleans())
def test_the_two_ways_to_find_answers_agree(contents: list[str], ends: bool) -> None:
    dialogue = Dialogue(talk(*contents))
    known = ENDS if ends else ()
    by_blocks = DialogueCutter(ChatTemplate(CHATML), ends=known).cut(dialogue)
    by_prefix = DialogueCutter(ChatTemplate(WITHOUT_BLOCKS), ends=known).cut(dialogue)
    if ends:
        assert by_blocks == by_prefix
    assert by_blocks.trained == [text + "<|im_end|>" for text in contents[1::2]]
    whole = ChatTemplate(CHATML).render(dialogue.messages)
    assert by_prefix.text == whole


def test_answers_to_a_prompt() -> None:
    cutter = DialogueCutter(ChatTemplate(CHATML), ends=ENDS)
    dialogue = Dialogue(talk("q", "a", "r", "b"), 3)
    prompt, parts = cutter.cut_answer(dialogue)
    assert prompt == cutter.template.render(dialogue.messages[:3], add_generation_prompt=True)
    assert parts == MaskedText.whole("b<|im_end|>")
    plain = DialogueCutter(ChatTemplate(PLAIN))
    assert plain.cut_answer(Dialogue(talk("q", "a"), 1)) == ("q", MaskedText.whole("a"))
    # What the template puts between prompt and answer belongs to neither.
    text = "{% for m in messages %}{{ m.content }}{% if not loop.last %}:{% endif %}{% endfor %}"
    cutter = DialogueCutter(ChatTemplate(text + "{% if add_generation_prompt %}{% endif %}"))
    assert cutter.cut_answer(Dialogue(talk("q", "a"), 1)) == ("q", MaskedText.whole(":a"))


def test_several_messages_of_an_answer() -> None:
    cutter = DialogueCutter(ChatTemplate(CHATML), ends=ENDS)
    messages = [*talk("q", "call"), {"role": "tool", "content": "5"}, *talk("x", "five")[1:]]
    _, parts = cutter.cut_answer(Dialogue(messages, 1))
    between = "\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n"
    assert parts.text == f"call<|im_end|>{between}five<|im_end|>"
    assert parts.trained == ["call<|im_end|>", "five<|im_end|>"]


def test_thoughts_that_the_template_drops() -> None:
    messages = talk("q", "hm|a", "r", "hm|b")
    for turns in ("all", "last"):
        cutter = DialogueCutter(ChatTemplate(THOUGHTS), turns=turns)
        answers = ["a</>", "hm|b</>"] if turns == "all" else ["hm|b</>"]
        assert cutter.cut(Dialogue(messages)).trained == answers
    # A template that asks for thoughts, and then leaves them out of the last message too.
    asks = THOUGHTS.replace("loop.last or ", "").replace("<assistant>{%", "<assistant>hm{%")
    assert DialogueCutter(ChatTemplate(asks)).cut(Dialogue(messages)).trained == ["a</>", "b</>"]


@pytest.mark.parametrize(
    "loop",
    [
        "{% for m in messages %}{% if m.role == 'user' %}<{{ m.content }}>{% continue %}{% endif %}"
        "[{{ m.content.split('|')[-1] if not loop.last else m.content }}]{% endfor %}",
        "{% for m in messages[::-1] %}{% endfor %}{% set all = messages[:] %}"
        "{% for m in all %}{% set m = m.content %}"
        "{% if loop.index % 2 %}<{{ m }}>{% else %}["
        "{{ m.split('|')[-1] if not loop.last else m }}]{% endif %}{% endfor %}",
        "{% macro write(messages) %}{% for m in messages %}{% if m.role == 'user' %}"
        "<{{ m.content }}>{% else %}["
        "{{ m.content.split('|')[-1] if not loop.last else m.content }}]{% endif %}"
        "{% endfor %}{% endmacro %}{{ write(messages) }}",
    ],
    ids=["continue", "assigned", "macro"],
)
def test_loops_of_templates(loop: str) -> None:
    cutter = DialogueCutter(ChatTemplate(loop + "{% if add_generation_prompt %}[{% endif %}"))
    messages = talk("q", "hm|a", "r", "hm|b")
    assert cutter.cut(Dialogue(messages)).trained == ["a]", "hm|b]"]
    # The same object twice is two messages.
    again = Dialogue([messages[0], messages[1]] * 2)
    assert cutter.cut(again).trained == ["a]", "hm|a]"]


@pytest.mark.parametrize(
    ("text", "dialogue", "message"),
    [
        (CHATML, Dialogue(talk("q")), "must have a message to train on, of assistant, this one ha"),
        (CHATML, Dialogue(talk("q", "a", weight=0)), "this one has ['user', 'assistant']"),
        (
            CHATML,
            Dialogue(talk("q", "a", weight=0.1)),
            "weight of a message must be 0 or 1, got 0.1",
        ),
        (CHATML, Dialogue(talk("q", "a"), 2), "this one has ['user', 'assistant']"),
        ("{{ messages[-1].content }}", Dialogue(talk("q", "a")), "write message 2 of a dialogue "),
        (
            "{% generation %}{{ messages[-1].content }}{% endgeneration %}",
            Dialogue(talk("q", "a", "r", "b", train=False)),
            "one {% generation %} block for each message of the assistant where not all of them ar",
        ),
    ],
)
def test_refused_dialogues(text: str, dialogue: Dialogue, message: str) -> None:
    with pytest.raises(SourceError, match=re.escape(message)):
        DialogueCutter(ChatTemplate(text)).cut(dialogue)


def test_prompts_that_are_not_the_beginning() -> None:
    text = "{% generation %}a{% endgeneration %}{% if add_generation_prompt %}?{% endif %}"
    cutter = DialogueCutter(ChatTemplate(text))
    with pytest.raises(SourceError, match=r"must begin with that of its prompt, with this chat te"):
        cutter.cut_answer(Dialogue(talk("q", "a"), 1))


def test_messages_in_another_order() -> None:
    text = (
        "x{% if not add_generation_prompt %}{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% endif %}"
    )
    with pytest.raises(
        SourceError, match="must be in the order of the messages, got characters up to 3"
    ):
        DialogueCutter(ChatTemplate(text)).cut(Dialogue(talk("q", "a", "r", "b")))


def test_refused_settings() -> None:
    template = ChatTemplate(CHATML)
    for roles in ("assistant", ()):
        with pytest.raises(ConfigError, match=r"train_on \(--train-on\) must name one role at lea"):
            DialogueCutter(template, trained_roles=roles)
    turns: Any = "first"
    with pytest.raises(ConfigError, match=r"turns \(--turns\) must be one of all, last, got "):
        DialogueCutter(template, turns=turns)
