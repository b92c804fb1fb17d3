"""Text, ids and masks of stock templates are those of transformers.

The README of `zindex.text` explains every difference.
"""

import datetime
import re
from functools import cache
from itertools import groupby
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from tests.text.stock_templates import SPECIAL, find_templates, make_dialogues, train_tokenizer
from zindex.errors import SourceError
from zindex.text.chat_template import ChatTemplate
from zindex.text.conversations import ConversationParser, Dialogue
from zindex.text.loss_masks import DialogueCutter, MaskedText
from zindex.text.text_encoder import TextEncoder

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|endoftext|>"}
DATE = "2026-01-31"
#: Templates of images alone: they want lists of parts.
IMAGES = ("llava_next", "llava_next_training")
NAMES = [name for name in find_templates() if name not in IMAGES]
TWINS = [name for name in NAMES if f"{name}_training" in NAMES]
# Templates that leave out earlier thoughts, without blocks: all of ChatML.
STRIPPING = [name for name in NAMES if re.fullmatch(r"qwen3|qwen3_(5|6|8).*|nemotron.*", name)]
COUNTS = [2, pytest.param(200, marks=pytest.mark.slow)]
needs_trl = pytest.mark.skipif(len(NAMES) < 20, reason="needs the templates of trl")


class January(datetime.datetime):
    """Always the same day."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "January":
        return cls.strptime(DATE, "%Y-%m-%d")


@pytest.fixture(autouse=True)
def _stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", January)


@cache
def open_encoder() -> TextEncoder:
    return TextEncoder(train_tokenizer())


@cache
def open_tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(), **TOKENS)


@cache
def open_cutter(name: str) -> DialogueCutter:
    template = ChatTemplate(find_templates()[name], special_tokens=TOKENS, date=DATE)
    return DialogueCutter(template, ends=SPECIAL)


def ask_transformers(name: str, record: dict[str, Any], **options: Any) -> Any:
    """What transformers makes of a record; None if it refuses it."""
    options |= {"chat_template": find_templates()[name], "tools": record.get("tools")}
    try:
        return open_tokenizer().apply_chat_template(record["messages"], **options)
    except Exception:  # of the template, whatever it does
        return None


def cut(cutter: DialogueCutter, dialogue: Dialogue) -> MaskedText | None:
    """The text and its mask; None if the template refuses the dialogue."""
    try:
        return cutter.cut(dialogue)
    except SourceError as error:
        if "the chat template refuses this conversation" in str(error):
            return None
        raise


def compare(name: str, record: dict[str, Any]) -> str:
    """Return what differs for a record: nothing, or one of the known differences."""
    cutter, encoder = open_cutter(name), open_encoder()
    text = ask_transformers(name, record, tokenize=False)
    try:
        own = cut(cutter, ConversationParser().read_dialogue(record))
    except SourceError:
        assert text is None or "get_weather" not in text.split("</tools>")[-1]
        return "calls"
    if text is None and any(item["content"] is None for item in record["messages"]):
        return "null" if own is not None else ""
    if own is None or text is None or own.text != text:
        return "" if own is None and text is None else "text"
    [(ids, mask)] = encoder.encode_spans([own.text], [False], [own.spans])
    options: Any = {"tokenize": True, "return_dict": True}
    has_blocks = cutter.template.has_generation
    found = ask_transformers(name, record, **options, return_assistant_tokens_mask=has_blocks)
    assert ids.tolist() == found["input_ids"]
    if has_blocks:
        assert mask.astype(int).tolist() == found["assistant_masks"]
    return ""


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", NAMES)
def test_text_ids_and_masks_are_those_of_transformers(name: str, count: int) -> None:
    known = {"", "calls", "null"}
    assert {compare(name, record) for record in make_dialogues(count)} <= known


@needs_trl
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", TWINS)
def test_masks_are_those_of_the_blocks_that_trl_adds(name: str, count: int) -> None:
    """Except for what asks for an answer, and blanks and tokens after its end.

    One template does not ask after a tool's result, and then writes the header all the same; and it
    marks where the result of a call should be that never comes.
    """
    own, twin = open_cutter(name), open_cutter(f"{name}_training")
    for record in make_dialogues(count):
        dialogue = ConversationParser().read_dialogue(record)
        try:
            one, other = cut(own, dialogue), cut(twin, dialogue)
        except SourceError:
            continue
        if one is None or other is None or one.text != other.text:
            continue
        first = [item for item in dialogue.messages if item["role"] == "user"][:1]
        asked = own.template.render(first, add_generation_prompt=True)
        for kind, part in differing_parts(one, other):
            if kind == "blocks":
                assert not part.strip() or part in asked, (name, part)
            elif name != "diffusion_gemma" or part not in ("<|turn>model\n", "<|tool_response>"):
                assert part.strip() in ("", TOKENS["eos_token"]), (name, part)


def differing_parts(one: MaskedText, other: MaskedText) -> list[tuple[str, str]]:
    """What only one of two masks trains."""
    places = [{x for span in masked.spans for x in range(*span)} for masked in (one, other)]
    text = one.text
    kinds = [
        "" if (i in places[0]) == (i in places[1]) else "own" if i in places[0] else "blocks"
        for i in range(len(text))
    ]
    parts, place = [], 0
    for kind, same in groupby(kinds):
        length = len(list(same))
        if kind:
            parts.append((kind, text[place : place + length]))
        place += length
    return parts


@needs_trl
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", STRIPPING)
def test_masks_cover_what_is_left_of_earlier_answers(name: str, count: int) -> None:
    cutter = open_cutter(name)
    for record in make_dialogues(count):
        own = cut(cutter, ConversationParser().read_dialogue(record))
        if own is None or cutter.template.has_generation:
            continue
        written = re.findall(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", own.text, re.DOTALL)
        assert len(written) == len(own.trained)
        for whole, trained in zip(written, own.trained, strict=True):
            opening = whole.removesuffix(trained)
            assert opening + trained == whole
            # Some templates write the start of the thoughts themselves.
            assert opening in ("", "<think>\n", "<think>", "<think>\n\n</think>\n\n")
