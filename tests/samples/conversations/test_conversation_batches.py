"""Conversations by the chat template of a tokenizer of zindex's."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FakeTokenizer
from tests.samples.conversations.speakers import make_config
from tests.text.small_tokenizer import save_tokenizer
from zindex.datasets.sft_dataset import IGNORE_INDEX, SFTDataset
from zindex.datasets.text_tokenizers import MegatronTokenizerText
from zindex.datasets.utils import Split
from zindex.datasets.varlen_dataset import VarlenDataset
from zindex.errors import ConfigError, SourceError
from zindex.samples.conversations.conversation_batches import ChatTokens

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TALK = [
    {"role": "system", "content": "be"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "a dog"},
]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    return MegatronTokenizerText(str(save_tokenizer(tmp_path)), {"chat_template": TEMPLATE})


def test_answers_are_learned(tokenizer: Any) -> None:
    tokens, targets = ChatTokens(tokenizer).encode(TALK)
    eos = tokenizer._tokenizer.special_tokens_map.get("eos_token", "")
    learned = tokenizer.tokenize(f"a dog{eos}")
    count = len(learned)
    assert tokens[-count:].tolist() == targets[-count:].tolist() == learned
    assert set(targets[:-count].tolist()) == {IGNORE_INDEX}
    before = f"<system>be{eos}<user>hello{eos}<assistant>"
    assert tokens[:-count].tolist() == tokenizer.tokenize(before)


def test_datasets_use_it_for_tokenizers_without_conversations(tokenizer: Any) -> None:
    dataset = SFTDataset(
        [TALK * 2], "p", range(1), 1, Split.train, make_config(tokenizer, sequence_length=200)
    )
    tokens, targets = ChatTokens(tokenizer).encode(TALK)
    item = dataset[0]
    again = pickle.loads(pickle.dumps(dataset))[0]
    count = len(tokens)
    assert item["tokens"][: 2 * count].tolist() == tokens.tolist() * 2
    assert item["labels"][: count - 1].tolist() == targets[1:].tolist()
    assert item["cu_seqlens"][:3].tolist() == [0, count, 200]
    assert again["tokens"].tolist() == item["tokens"].tolist()


def test_parts_of_text_are_one(tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [TALK[0], {"role": "human", "content": parts}, TALK[2]]
    assert ChatTokens(tokenizer).encode(messages)[0].tolist() == (
        ChatTokens(tokenizer).encode(TALK)[0].tolist()
    )


@pytest.mark.parametrize("cls", [SFTDataset, VarlenDataset])
def test_errors_name_the_record(tokenizer: Any, cls: Any) -> None:
    dataset = cls([TALK, TALK[:2]], "p", range(2), 2, Split.train, make_config(tokenizer))
    with pytest.raises(SourceError, match="record 1 of p: a dialogue must have a message to"):
        dataset.__getitems__([0, 1])


def test_errors(tokenizer: Any) -> None:
    with pytest.raises(SourceError, match="a dialogue must have a message to train on"):
        ChatTokens(tokenizer).encode(TALK[:2])
    message = (
        "conversations need a tokenizer with tokenize_conversation, .* got FakeTokenizer; give"
    )
    with pytest.raises(ConfigError, match=message):
        ChatTokens(FakeTokenizer())
    for content, wrong in ((None, "role and content"), ([{"type": "image"}], "parts of the type")):
        with pytest.raises(SourceError, match=wrong):
            ChatTokens(tokenizer).encode([{"role": "user", "content": content}, *TALK[2:]])
    with pytest.raises(SourceError, match="must be Unicode without lone surrogates"):
        ChatTokens(tokenizer).encode([{"role": "user", "content": "a\ud800"}, *TALK[2:]])
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="got MegatronTokenizerText; give it one"):
        ChatTokens(tokenizer)
