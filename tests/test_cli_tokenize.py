"""The command ``zindex tokenize``: what it does, what it prints, and how it fails."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.building.records.sources import write_jsonl
from tests.text.small_tokenizer import read_ids, save_tokenizer
from zindex.building.keyed.tokenize import describe_tokens
from zindex.cli import main
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["tokenize", *map(str, arguments), "--processes", "1"])


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return save_tokenizer(tmp_path / "tokenizer")


def test_tokens_and_their_summary(tokenizer: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "ab"}, {"text": "c"}])
    arguments = (source, tmp_path / "s", "--for", "seq", "--tokenizer", tokenizer)
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    last = result.output.splitlines()[-1]
    assert last == f"{tmp_path}/s: 2 records for seq, values: 5 in sequence"
    facts = json.loads(invoke(*arguments, "--json").stdout)
    assert facts.pop("seconds") >= 0
    assert len(facts.pop("fingerprint")) == 64
    assert facts == {
        "store": f"{tmp_path}/s",
        "train_type": "seq",
        "num_records": 2,
        "num_files": 1,
        "num_skipped": 0,
        "num_untrained": 0,
        "num_values": {"sequence": 5},
    }


def test_every_option_arrives(tokenizer: Path, tmp_path: Path) -> None:
    answer = [{"role": "bot", "content": "two"}]
    rows = [{"q": "one", "a": answer}, {"broken": 1}, {"q": "<eod>", "a": answer}]
    source = write_jsonl(tmp_path / "in/a.jsonl", rows)
    second = write_jsonl(tmp_path / "in/b.lines", rows[:1])
    (tmp_path / "x.jinja").write_text(
        "{{ greeting }}{{ strftime_now('%Y') }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}"
    )
    arguments = (
        *("--for", "sft", "--tokenizer", tokenizer / "tokenizer.json", "--kind", "jsonl"),
        *("--column", "prompt=q", "--column", "completion=a", "--role", "bot=answer"),
        *("--chat-template", tmp_path / "x.jinja", "--variable", 'greeting="Hi"'),
        *("--date", "2026-11-22", "--train-on", "answer", "--turns", "last"),
        *("--max-length", "20", "--keep", "end", "--append-eod", "258", "--prepend-bod", "auto"),
        *("--position-ids", "none", "--token-dtype", "uint16", "--part-nbytes", "40"),
        *("--special-in-text", "refuse"),
        *("--on-damage", "skip", "--codec", "zstd", "--chunk-nbytes", "16"),
        *("--shard-nbytes", "64", "--restart"),
    )
    result = invoke(source, second, tmp_path / "s", *arguments)
    assert result.exit_code == 0, result.output
    assert "; 2 damaged records or files were left out" in result.output
    store = open_store(tmp_path / "s")
    record = RecordReader(store).read(1)
    assert read_ids(record["sequence"]) == "Hi2026<user>one<answer>two"[-20:]
    assert record["sequence"].dtype == np.uint16
    # Of a role other than the assistant the whole message is trained.
    assert read_ids(record["sequence"][record["loss_mask"]]) == "<answer>two"
    assert "position_ids" not in record
    layout = store.layouts["sequence_value"]
    assert (layout.chunk_length, layout.codec) == (8, "zstd")
    facts = describe_tokens(store)
    assert (facts["begin_id"], facts["end_id"], facts["turns"]) == (259, 258, "last")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--column", "prompt"], "--column must be like prompt=question, got 'prompt'"),
        (["--role", "=x"], "--role must be like gpt=assistant, got '=x'"),
        (["--variable", "x=y"], "--variable x must have a value in JSON, got 'y': Expecting value"),
        (
            ["--append-eod", "<no>"],
            "append_eod (--append-eod) needs the token '<no>', which Tokeni",
        ),
        (["--chat-template", "none"], "chat_template (--chat-template) must be one of 'chatml', "),
    ],
)
def test_refused_options(options: list[str], message: str, tokenizer: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "ab"}])
    arguments = (source, tmp_path / "s", "--for", "seq", "--tokenizer", tokenizer)
    result = invoke(*arguments, *options)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
