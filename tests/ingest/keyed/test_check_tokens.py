"""Conversations become what transformers makes of them, or the difference is listed."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import make_tokenizer, save_tokenizer
from zindex.errors import ConfigError
from zindex.ingest.keyed.check_tokens import check_tokens
from zindex.text.chat_template import CHATML

TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "né"}]
CALL = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CALLS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"
)


def check(folder: Path, rows: list[dict[str, Any]], kind: Any = "sft", **settings: Any) -> Any:
    source = write_jsonl(folder / "in.jsonl", rows)
    settings = {"chat_template": CHATML, "tokenizer": make_tokenizer(), **settings}
    return check_tokens(source, kind, **settings)


def test_equal_conversations(tmp_path: Path) -> None:
    rows = [{"messages": TURNS}, {"prompt": "q", "completion": "a"}, {"text": "a document"}]
    for tokenizer in (
        make_tokenizer(),
        save_tokenizer(tmp_path / "tokenizer"),
        PreTrainedTokenizerFast(tokenizer_object=make_tokenizer()),
    ):
        found = check(tmp_path, rows, tokenizer=tokenizer)
        assert (found.num_dialogues, found.num_masks, found.num_documents) == (2, 2, 1)
        assert found.differences == []
    found = check(tmp_path, rows[:2], turns="last", max_length=3)
    assert (found.num_dialogues, found.num_masks) == (2, 2)
    found = check(tmp_path, rows[:2], chat_template=CALLS)
    assert (found.num_dialogues, found.num_masks, found.differences) == (2, 0, [])


def test_pairs_and_groups(tmp_path: Path) -> None:
    row = {"prompt": "q", "chosen": "a", "rejected": "b", "responses": ["c"], "rewards": [1]}
    for kind, count in (("dpo", 2), ("grpo", 1)):
        found = check(tmp_path, [row], kind)
        assert (found.num_dialogues, found.differences) == (count, [])


def test_other_kinds(tmp_path: Path) -> None:
    row: dict[str, Any] = {"prompt": "q", "completion": "a", "label": True}
    row |= {"chosen": "b", "rejected": "c"}
    for kind, count in (("kto", 1), ("reward", 2), ("prompts", 1)):
        found = check(tmp_path, [row], kind)
        assert (found.num_dialogues, found.differences) == (count, [])
    given = {"prompt": "q", "completion_ids": [1], "topk_ids": [[1]], "topk_logprobs": [[-1]]}
    assert check(tmp_path, [given], "distill").num_documents == 1
    with pytest.raises(ConfigError, match="needs whole answers, 'prm' encodes each step by itself"):
        check(tmp_path, [row], "prm")


@pytest.mark.parametrize(
    ("row", "settings", "what", "message"),
    [
        (
            {"messages": [TURNS[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}]},
            {"chat_template": CALLS},
            "record",
            "as the record writes the messages: at character 18: 'user:q;assistant:f{\"a\": 1};'",
        ),
        (
            {"messages": [TURNS[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}]},
            {},
            "refused",
            "only zindex refuses it: a chat template must write the calls of tools",
        ),
        (
            {"messages": [{"role": "user"}, *TURNS]},
            {},
            "refused",
            "a message must be an object with role and content, got ['role']",
        ),
        (
            {"messages": TURNS},
            {"chat_template": "{{ messages[0].content ~ messages[1:] | length }}"},
            "refused",
            "cannot be found in the text",
        ),
    ],
)
def test_differences(
    row: dict[str, Any], settings: dict[str, Any], what: str, message: str, tmp_path: Path
) -> None:
    [found] = check(tmp_path, [row], **settings).differences
    assert found.what == what
    assert message in found.message
    assert found.key == "0"
    assert found.url.endswith("in.jsonl")


def test_ids_that_differ(tmp_path: Path) -> None:
    other = make_tokenizer()
    other.add_special_tokens(["né"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer())
    found = check(tmp_path, [{"messages": TURNS}], tokenizer=_Both(tokenizer, other))
    [difference] = found.differences
    assert difference.what == "ids"
    assert difference.message.startswith("from token ")


class _Both:
    """Encodes with one tokenizer, and renders with another one."""

    def __init__(self, one: Any, other: Any) -> None:
        self.backend_tokenizer = one.backend_tokenizer
        self.apply_chat_template = PreTrainedTokenizerFast(
            tokenizer_object=other
        ).apply_chat_template


def test_both_refuse(tmp_path: Path) -> None:
    found = check(tmp_path, [{"messages": TURNS}], chat_template="{{ raise_exception('no') }}")
    assert (found.num_refused, found.differences) == (1, [])


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    def count(text: str) -> list[int]:
        return [len(text)]

    with pytest.raises(
        ConfigError, match=r"--check\) needs a tokenizer.json or a tokenizer of tra"
    ):
        check(tmp_path, [{"messages": TURNS}], tokenizer=count)
    with pytest.raises(
        ConfigError, match=r"--check\) needs a chat template, and the tokenizer has"
    ):
        check(tmp_path, [{"messages": TURNS}], chat_template=None)
