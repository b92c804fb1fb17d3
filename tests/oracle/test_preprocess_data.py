"""Pairs of ``tokenize_corpus`` against Megatron-LM's ``tools/preprocess_data.py``, byte by byte.

The tool is not part of a wheel: its loop is repeated here, over the wheel's tokenizers and builder.
"""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ingest.corpora.plain_loop import read_pair
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import save_tokenizer
from tests.text.tokenizers.vocabularies import save_rank_list, save_sentence_pieces
from zindex.execution.executor import SerialExecutor
from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus
from zindex.text.tokenizers.open_tokenizer import open_text_tokenizer

_LETTERS = [*"the quick brown fox,.'\n", " ", "\u00e9", "\u4e2d", "<eod>", " the", "12"]


@pytest.fixture(scope="module")
def megatron() -> Iterator[Any]:
    pytest.importorskip("megatron.core.tokenizers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from megatron.core import tokenizers
            from megatron.core.datasets import indexed_dataset
        yield tokenizers.MegatronTokenizer, indexed_dataset


def open_both(kind: str, megatron: Any, folder: Path) -> tuple[Any, Any]:
    """Return our tokenizer and theirs, of one kind and the same files."""
    from_pretrained = megatron[0].from_pretrained
    if kind.startswith("huggingface"):
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bod>"}
        path = save_tokenizer(folder, **config)
        settings = {"use_fast": True, "include_special_tokens": kind == "huggingface"}
        return path, from_pretrained(str(path), {"library": "huggingface"}, **settings)
    if kind == "sentencepiece":
        model = save_sentence_pieces(folder)
        return model, from_pretrained(str(model), {"library": kind})
    if kind == "tiktoken":
        file, count = save_rank_list(folder)
        settings = {"vocab_size": count + 1000}
        ours = open_text_tokenizer(file, "TikTokenizer", **settings)
        return ours, from_pretrained(str(file), {"library": kind}, **settings)
    settings = {"vocab_size": 1000}
    ours = open_text_tokenizer(None, "NullTokenizer", **settings)
    return ours, from_pretrained(metadata_path={"library": "null"}, **settings)


def preprocess(
    prefix: Path, lines: list[str], tokenizer: Any, indexed_dataset: Any, *, append_eod: bool
) -> dict[str, bytes]:
    """Do what ``Encoder.encode`` and ``Partition.process_json_file`` do."""
    dtype = indexed_dataset.DType.optimal_dtype(tokenizer.vocab_size)
    builder = indexed_dataset.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for line in lines:
        text = json.loads(line)["text"]
        ids: list[int] = []
        lengths: list[int] = []
        for sentence in text if isinstance(text, list) else [text]:
            found = tokenizer.tokenize(sentence)
            if len(found) > 0:
                ids.extend(found)
                lengths.append(len(found))
        if len(ids) > 0 and append_eod:
            ids.append(tokenizer.eod)
            lengths[-1] += 1
        builder.add_document(ids, lengths)
    builder.finalize(f"{prefix}.idx")
    return read_pair(prefix)


def random_texts(kind: str, generator: Any, *, sentences: bool) -> list[Any]:
    """Return texts, some of them empty, or lists of sentences."""

    def one() -> str:
        size = generator.integers(0, 30) * generator.integers(0, 2)
        if kind == "null":  # theirs fails on an empty text
            return " ".join(map(str, generator.integers(0, 999, size + 1)))
        return "".join(generator.choice(_LETTERS, size))

    if not sentences:
        return [one() for _ in range(60)]
    return [[one() for _ in range(generator.integers(0, 4))] for _ in range(40)]


@pytest.mark.parametrize("sentences", [False, True])
@pytest.mark.parametrize("append_eod", [False, True])
@pytest.mark.parametrize(
    "kind", ["huggingface", "huggingface without its template", "sentencepiece", "tiktoken", "null"]
)
def test_pairs_equal_those_of_megatrons_tool(
    kind: str, append_eod: bool, sentences: bool, megatron: Any, tmp_path: Path
) -> None:
    """Also with empty texts and sentences, over parts of any size."""
    (tmp_path / "tokenizer").mkdir()
    ours, theirs = open_both(kind, megatron, tmp_path / "tokenizer")
    generator = np.random.default_rng(len(kind) + 2 * append_eod + sentences)
    source = tmp_path / "in.jsonl"
    write_jsonl(
        source, [{"text": text} for text in random_texts(kind, generator, sentences=sentences)]
    )
    golden = preprocess(
        tmp_path / "golden",
        source.read_text().splitlines(),
        theirs,
        megatron[1],
        append_eod=append_eod,
    )
    for part_nbytes in (None, int(generator.integers(100, 900))):
        tokenize_corpus(
            source,
            tmp_path / f"ours-{part_nbytes}",
            tokenizer=ours,
            to="bin",
            append_eod=append_eod,
            prepend_bod=False if "without" in kind else None,
            split_sentences=sentences,
            part_nbytes=part_nbytes,
            client=SerialExecutor(),
        )
        assert read_pair(tmp_path / f"ours-{part_nbytes}") == golden
