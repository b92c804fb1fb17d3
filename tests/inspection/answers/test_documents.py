"""Tokenizers that corpora keep answer questions without being named."""

from pathlib import Path

import pytest

from tests.cli.commands import fail, succeed
from tests.conftest import WriteCorpus
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import make_tokenizer, save_tokenizer
from zindex.config import RunConfig
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus
from zindex.inspection.answers.documents import Documents, as_decoder
from zindex.inspection.answers.find import find
from zindex.inspection.answers.info import info
from zindex.inspection.answers.show import show
from zindex.inspection.answers.trace import trace

TEXTS = [f"the {number}th text of all" for number in range(12)]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    path = str(tmp_path / "kept.zarr")
    tokenize_corpus(
        source, path, tokenizer=tokenizer, special_tokens=False, client=SerialExecutor()
    )
    return path


def test_the_kept_tokenizer_decodes_and_encodes(corpus: str, tmp_path: Path) -> None:
    shown = f"{TEXTS[3]}<eod>"
    assert show(corpus, document=3, tokenizer=True).fields[0].texts == (shown,)
    assert succeed("show", corpus, "--document", 3, "--decode").endswith(f"  {shown}\n")
    config = RunConfig.from_json(
        {
            "sequence_length": 16,
            "split": "100,0,0",
            "index": str(tmp_path / "index"),
            "samples": {"train": 10},
            "datasets": [{"path": corpus, "weight": 1}],
        }
    )
    for sample in trace(config, position=(0, 10), tokenizer=True).samples:
        for part in sample.parts:
            letters = [*TEXTS[part.document], "<eod>"]
            assert part.text == "".join(letters[part.start : part.stop])
    found = find(config, text="7th text", client=SerialExecutor()).documents
    assert [(each.document, each.start, each.stop) for each in found] == [(7, 3, 12)]
    facts = info(corpus).facts
    assert facts["tokenizer_files"] == ["tokenizer.json", "tokenizer_config.json"]
    assert facts["tokenizer_library"] == "huggingface"
    assert facts["vocab_size"] == 260


def test_special_tokens_are_shown(tmp_path: Path) -> None:
    """Decoded text has every token that the model sees."""
    folder = save_tokenizer(tmp_path / "tokenizer")
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "one"}])
    path = str(tmp_path / "kept.zarr")
    tokenize_corpus(source, path, tokenizer=folder, append_eod=True, client=SerialExecutor())
    for tokenizer in (True, folder, make_tokenizer()):
        assert show(path, document=0, tokenizer=tokenizer).fields[0].texts == ("<bod>one<eod>",)


def test_corpora_without_a_tokenizer(write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([3, 4])
    with pytest.raises(ConfigError, match=r"a run must name its tokenizer, for .* keep none"):
        as_decoder(True, [prefix])
    assert as_decoder(None, [prefix]) is None
    assert as_decoder(False, [prefix]) is None
    assert "must name its tokenizer" in fail("show", prefix, "--document", 1, "--decode")


def test_documents_are_opened_once(write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([3, 4])
    documents = Documents()
    assert documents.open(prefix) is documents.open(prefix)
    assert documents.length(prefix, 1) == 4
    assert documents.read(prefix, 1, 1, 3).tolist() == [4, 5]
