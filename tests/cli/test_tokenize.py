"""The command ``zindex tokenize``: what it does, what it prints, and how it fails."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli import commands
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import read_ids, save_tokenizer
from zindex.cli.tokenize import _KINDS
from zindex.formats.keyed.schema_presets import PRESETS
from zindex.ingest.keyed.tokenize import describe_tokens
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader


def succeed(*arguments: object) -> str:
    return commands.succeed("tokenize", *arguments, "--processes", 1)


def fail(*arguments: object) -> str:
    return commands.fail("tokenize", *arguments, "--processes", 1)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return save_tokenizer(tmp_path / "tokenizer")


def test_tokens_and_their_summary(tokenizer: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "ab"}, {"text": "c"}])
    arguments = (source, tmp_path / "s", "--for", "seq", "--tokenizer", tokenizer)
    last = succeed(*arguments).splitlines()[-1]
    assert last == f"{tmp_path}/s: 2 records for seq, values: 5 in sequence"
    facts = json.loads(succeed(*arguments, "--json"))
    assert facts.pop("seconds") >= 0
    assert len(facts.pop("fingerprint")) == 64
    assert facts == {
        "store": f"{tmp_path}/s",
        "train_type": "seq",
        "num_records": 2,
        "num_files": 1,
        "num_skipped": 0,
        "num_untrained": 0,
        "num_unread": {},
        "num_decoded": {},
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
    printed = succeed(source, second, tmp_path / "s", *arguments)
    assert "; 2 damaged records or files were skipped" in printed
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


def test_a_dry_run_shows_what_limits_cost(tokenizer: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": "q" * length, "chosen": "yes" * length, "rejected": "no"} for length in (2, 9)
    ]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    arguments = (
        *(source, tmp_path / "s", "--for", "dpo", "--tokenizer", tokenizer),
        *("--chat-template", "plain", "--append-eod", "none", "--max-prompt", "4"),
        *("--max-answer", "20", "--max-length", "30", "--on-long", "drop"),
    )
    printed = succeed(*arguments, "--dry-run")
    assert printed.splitlines()[0] == "2 records for dpo; nothing was written"
    assert "max_prompt 4: 1 of 2 records are longer, by 5 tokens" in printed
    assert "1 records would be left out, 1 are kept whole" in printed
    facts = json.loads(succeed(*arguments, "--dry-run", "--json"))
    assert facts["limits"]["max_answer"] == {"limit": 20, "num_records": 1, "num_lost": 7}
    assert not (tmp_path / "s").exists()
    assert succeed(*arguments).splitlines()[-1] == (
        f"{tmp_path}/s: 1 record for dpo, values: 8 in chosen, 4 in rejected, 8 in chosen_mask, "
        "4 in rejected_mask; 1 longer record was left out"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--max-prompt", "5"],
            "max_prompt must come with a kind that has a prompt, such as dpo or grpo, got",
        ),
        (["--column", "prompt"], "--column must be like prompt=question, got 'prompt'"),
        (["--role", "=x"], "--role must be like gpt=assistant, got '=x'"),
        (["--variable", "x=y"], "for a text, got 'x=y': Expecting value"),
        (["--append-eod", "<no>"], "--append-eod needs the token '<no>', /"),
        (["--chat-template", "none"], "--chat-template must be one of 'chatml', "),
    ],
)
def test_refused_options(options: list[str], message: str, tokenizer: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "ab"}])
    arguments = (source, tmp_path / "s", "--for", "seq", "--tokenizer", tokenizer)
    assert message in fail(*arguments, *options)


def test_corpora_and_their_summary(tokenizer: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"body": "ab"}, {"body": "c"}, {"body": 5}])
    arguments = (source, tmp_path / "c", "--for", "pretrain", "--tokenizer", tokenizer)
    settings = ("--column", "body", "--on-damage", "skip")
    assert succeed(*arguments, *settings).splitlines()[-1] == (
        f"{tmp_path}/c: 7 tokens (uint16) in 2 documents and 2 sequences; 1 damaged record or "
        "file was skipped"
    )
    commands.succeed("verify", tmp_path / "c")
    pair = (source, tmp_path / "p", *arguments[2:], *settings, "--to", "bin")
    others = ("--split-sentences", "--append-eod", "<bod>", "--token-dtype", "int32")
    others = (*others, "--prepend-bod", "none")
    facts = json.loads(succeed(*pair, *others, "--json"))
    assert facts.pop("seconds") >= 0
    assert facts == {
        "place": f"{tmp_path}/p",
        "num_documents": 2,
        "num_sequences": 2,
        "num_tokens": 5,
        "token_dtype": "int32",
        "num_skipped": 1,
        "added": {"after_document": [259]},
    }
    content = np.fromfile(tmp_path / "p.bin", np.int32)
    assert read_ids(content) == "ab<bod>c<bod>"
    assert "exists; choose another prefix, or replace it with" in fail(*pair)
    succeed(*pair, "--overwrite")
    assert read_ids(np.fromfile(tmp_path / "p.bin", np.uint16)) == "<bod>ab<eod><bod>c<eod>"
    succeed(*pair, "--overwrite", "--prepend-bod", "auto")
    assert read_ids(np.fromfile(tmp_path / "p.bin", np.uint16)) == "<bod>ab<eod><bod>c<eod>"
    succeed(source, tmp_path / "z", *arguments[2:], *settings, "--codec", "zstd")
    assert open_store(tmp_path / "z").layouts["tokens"].codec == "zstd"


def test_tokenizers_by_type(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "3 4"}])
    arguments = (source, tmp_path / "p", "--for", "pretrain", "--to", "bin")
    null = ("--tokenizer-type", "null", "--tokenizer-option", "vocab_size=70000")
    succeed(*arguments, *null)
    assert np.fromfile(tmp_path / "p.bin", np.int32).tolist() == [3, 4, 70000]


def test_kinds_are_the_presets() -> None:
    assert tuple(PRESETS) == _KINDS


def test_options_of_the_other_kind_are_refused(tokenizer: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "ab"}])
    arguments = (source, tmp_path / "s", "--tokenizer", tokenizer, "--for")
    for option, said in (
        (("pretrain", "--max-length", "5"), "--max-length must be left out with --for pretrain"),
        (("pretrain", "--overwrite"), "--overwrite must be left out with --for pretrain --to zarr"),
        (("pretrain", "--to", "bin", "--codec", "zstd"), "--codec must be left out with --for"),
        (("seq", "--split-sentences"), "--split-sentences must be left out with --for seq, which"),
        (("pretrain", "--column", "prompt=a"), "name the one field with the text for --for pretr"),
        (("seq", "--tokenizer-option", "x"), "--tokenizer-option must be like lower_case=false"),
    ):
        assert said in fail(*arguments, *option)
    line = fail(source, tmp_path / "s", "--for", "seq")
    assert "--tokenizer must be given, got none; give its path" in line


def test_a_comparison_writes_nothing(tokenizer: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "q", "completion": "a"}, {"prompt": "q", "completion": "b"}]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    arguments = (source, tmp_path / "s", "--for", "sft", "--tokenizer", tokenizer, "--check")
    last = succeed(*arguments, "--chat-template", "chatml").splitlines()[-1]
    assert last == (
        "2 conversations compared with transformers: text and ids of 2 are equal, with 2 masks; "
        "both refuse 0; 0 differ"
    )
    assert not (tmp_path / "s").exists()
    write_jsonl(source, [*rows, {"prompt": "q"}])
    done = commands.invoke("tokenize", *arguments, "--chat-template", "chatml", "--json")
    assert done.exit_code == 1
    facts = json.loads(done.stdout)
    assert [item["what"] for item in facts["differences"]] == ["refused"]
    assert "--check must be left out" in fail(*arguments[:2], "--for", "pretrain", *arguments[4:])
