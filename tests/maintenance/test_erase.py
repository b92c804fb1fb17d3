"""Erased documents: 0 for their tokens, everything else equal, and runs that go on."""

from pathlib import Path

import numpy as np
import pytest

import zindex
from tests.conftest import WriteCorpus
from tests.inspection.answers.brute_force import read_samples
from tests.maintenance.edits.walks import weighted_run, write_corpora
from tests.text.small_tokenizer import save_tokenizer
from zindex import schema
from zindex.errors import ConfigError, FingerprintMismatchError, VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.corpora.corpus import store_corpus
from zindex.ingest.corpora.pairs import open_corpus
from zindex.inspection.answers.forget import forget
from zindex.maintenance.erase import compare_documents, erase_documents
from zindex.store.open import open_store
from zindex.store.tokenizer_note import read_note


def test_a_run_goes_on_with_erased_corpora(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    paths = write_corpora(write_corpus, [[5, 9, 4] * 12, [7] * 20])
    store = tmp_path / "one.zarr"
    zindex.convert(paths[0], store, client=SerialExecutor())
    config = weighted_run(tmp_path, [str(store), paths[1]])
    ids = ["one:3", "one:7", "corpus-1:0"]
    found = forget(config, ids, 20, physically=tmp_path / "new", client=SerialExecutor())
    expected = read_samples(config, "train")
    assert [(item.num_documents, item.num_tokens) for item in found.erased] == [(2, 14), (1, 7)]
    assert all(len(line) <= 80 for line in found.to_lines())
    for item, documents in zip(found.erased, ([3, 7], [0]), strict=True):
        old, new = open_corpus(item.path), store_corpus(open_store(item.store))
        offsets = old.read(schema.SEQUENCE_OFFSET.name, 0, old.num_sequences + 1)
        tokens = old.read(schema.TOKENS.name, 0, old.num_tokens).copy()
        for document in documents:
            tokens[offsets[document] : offsets[document + 1]] = 0
        assert np.array_equal(new.read(schema.TOKENS.name, 0, old.num_tokens), tokens)
    moved = weighted_run(tmp_path, [item.store for item in found.erased])
    assert read_samples(moved, "train")[20:] == expected[20:]
    # What was forgotten before may be erased later; finished stores are kept.
    again = forget(config, ids, 20, physically=tmp_path / "new", client=SerialExecutor())
    assert again.entry is None
    assert again.erased == found.erased
    with pytest.raises(FingerprintMismatchError):
        forget(config, ["one:4"], 20, physically=tmp_path / "new", client=SerialExecutor())


def test_a_corpus_is_not_replaced(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    store = tmp_path / "one.zarr"
    zindex.convert(write_corpus([3] * 9), store, client=SerialExecutor())
    names = {str(store): "one"}
    with pytest.raises(ConfigError, match=r"got the folder of .*one\.zarr itself"):
        erase_documents({str(store): np.array([1])}, tmp_path, names, client=SerialExecutor())


def test_differences_are_found(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    old = open_corpus(write_corpus([3] * 9, name="old"))
    new = open_corpus(write_corpus([3] * 9, name="new", tokens=np.arange(27) + 1))
    none = np.empty(0, np.int64)
    assert len(compare_documents(old, old, none, 2, 4)) == 4 * 32
    with pytest.raises(VerificationError, match="the same tokens in document 2"):
        compare_documents(old, new, none, 2, 4)
    with pytest.raises(VerificationError, match="0 for document 5"):
        compare_documents(old, old, np.array([5]), 2, 4)
    longer = open_corpus(write_corpus([4] * 9, name="longer"))
    with pytest.raises(VerificationError, match="documents of the same lengths"):
        compare_documents(old, longer, none, 2, 4)


def test_the_tokenizer_is_kept(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    save_tokenizer(tmp_path / "models")
    store = tmp_path / "one.zarr"
    prefix = write_corpus([3] * 9)
    zindex.convert(prefix, store, tokenizer=tmp_path / "models", client=SerialExecutor())
    target = tmp_path / "new"
    names = {str(store): "one"}
    erase_documents({str(store): np.array([1])}, target, names, client=SerialExecutor())
    assert read_note(target / "one.zarr") == read_note(store)
