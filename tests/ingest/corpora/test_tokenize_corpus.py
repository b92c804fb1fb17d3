"""Texts to corpora: the same bytes as a plain loop, independent of workers and interruptions."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.forked import run_python
from tests.ingest.corpora.plain_loop import read_pair, write_in_a_loop
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import make_tokenizer, save_tokenizer
from tests.trees import all_files
from zindex.errors import ConfigError, FingerprintMismatchError, SourceError, StoreError
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_idx import read_index
from zindex.ingest.convert import convert
from zindex.ingest.corpora import tokenize_corpus as module
from zindex.ingest.corpora.tokenize_corpus import TEXTS, tokenize_corpus
from zindex.ingest.merge import export
from zindex.ingest.records import partitions, read_partitions
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.verify import verify_store
from zindex.text import encoded_files
from zindex.text.sentences import SentenceSplitter

SERIAL = SerialExecutor()
SMALL = ChunkGrid(chunk_length=16, shard_length=64)
EOD, BOD = 258, 259
TEXTS_OF = [f"n\u00e9e {i}. And {i}? Yes. " * (i % 4) for i in range(40)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer, and the same texts as lines and as Parquet."""
    save_tokenizer(tmp_path / "tokenizer")
    write_jsonl(tmp_path / "in/a.jsonl", [{"text": text} for text in TEXTS_OF[:25]])
    write_jsonl(tmp_path / "in/b.jsonl", [{"text": text} for text in TEXTS_OF[25:]])
    return tmp_path


def encode(text: str) -> list[int]:
    ids: list[int] = make_tokenizer().encode(text).ids
    return ids


@pytest.mark.parametrize("sentences", [False, True])
def test_pairs_equal_a_plain_loop(sentences: bool, folder: Path) -> None:
    split = SentenceSplitter("en").split if sentences else None
    end = None if sentences else EOD
    golden = write_in_a_loop(
        folder / "loop", TEXTS_OF, encode, dtype=np.uint16, end=end, split=split
    )
    made = tokenize_corpus(
        folder / "in",
        folder / "out/pair",
        tokenizer=folder / "tokenizer",
        to="bin",
        split_sentences=sentences,
        client=SERIAL,
    )
    assert read_pair(folder / "out/pair") == golden
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["pair.bin", "pair.idx"]
    assert (made.num_documents, made.token_dtype) == (40, "uint16")
    assert made.num_tokens * 2 == len(golden["bin"])
    assert made.num_sequences == (180 if sentences else 40)


def test_stores_are_what_convert_makes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL}
    tokenize_corpus(folder / "in", folder / "pair", to="bin", **settings)
    convert(folder / "pair", folder / "converted", grid=SMALL, **settings)
    monkeypatch.setattr(read_partitions, "BUFFER_NBYTES", 300)
    monkeypatch.setattr(encoded_files, "_MAX_BATCH", 3)
    monkeypatch.setattr(partitions, "PARTITION_NBYTES", 500)
    made = tokenize_corpus(folder / "in", folder / "store", grid=SMALL, part_nbytes=400, **settings)
    store, converted = open_store(folder / "store"), open_store(folder / "converted")
    assert made.place == str(folder / "store")
    assert store.fingerprint == converted.fingerprint
    assert store.attributes[TEXTS]["num_skipped"] == 0
    ours, theirs = all_files(folder / "store"), all_files(folder / "converted")
    assert ours.pop("zarr.json") != theirs.pop("zarr.json")  # which says of which texts
    assert ours == theirs
    assert verify_store(folder / "store").is_sound
    export(folder / "store", folder / "again", client=SERIAL)
    assert read_pair(folder / "again") == read_pair(folder / "pair")
    # Another call finds it finished.
    assert tokenize_corpus(folder / "in", folder / "store", **settings) == made
    with pytest.raises(FingerprintMismatchError, match="holds a corpus of other texts, or made wi"):
        tokenize_corpus(folder / "in/a.jsonl", folder / "store", **settings)
    with pytest.raises(FingerprintMismatchError, match="holds a corpus of other texts, or made wi"):
        tokenize_corpus(folder / "in", folder / "converted", **settings)


@pytest.mark.parametrize("to", ["bin", "zarr"])
def test_workers_change_nothing(to: Any, folder: Path, client: Any) -> None:
    tokenize_corpus(
        folder / "in", folder / "one", tokenizer=folder / "tokenizer", to=to, client=SERIAL
    )
    settings: Any = {"tokenizer": folder / "tokenizer", "to": to, "part_nbytes": 200}
    tokenize_corpus(folder / "in", folder / "two", num_processes=2, **settings)
    tokenize_corpus(folder / "in", folder / "dask", client=client, **settings)
    if to == "bin":
        assert read_pair(folder / "one") == read_pair(folder / "two") == read_pair(folder / "dask")
    else:
        assert all_files(folder / "one") == all_files(folder / "two") == all_files(folder / "dask")


def test_killed_work_goes_on(folder: Path) -> None:
    done = run_python("-m", "tests.ingest.corpora.kill_loop", str(folder), check=True)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert {report["to"] for report in reports} == {"bin", "zarr"}
    assert all(report["killed"] and report["same"] for report in reports), reports
    # What a note said to be done was never encoded again.
    assert all(report["encoded"] == report["left"] for report in reports), reports
    assert any(0 < report["left"] < report["partitions"] for report in reports)


def test_documents_without_text(folder: Path) -> None:
    rows = [{"text": "a"}, {"body": "b"}, {"text": 5}, {"text": None}, {"text": "\ud800"}]
    write_jsonl(folder / "rows.jsonl", rows)
    settings: Any = {"tokenizer": folder / "tokenizer", "to": "bin", "client": SERIAL}
    with pytest.raises(
        SourceError,
        match=r"in the field 'text' \(--column\), it is missing; the fields are body, in "
        r"line 2 of .*rows.jsonl; fix it, or leave out such records",
    ):
        tokenize_corpus(folder / "rows.jsonl", folder / "x", **settings)
    made = tokenize_corpus(folder / "rows.jsonl", folder / "y", on_damage="skip", **settings)
    assert (made.num_documents, made.num_sequences, made.num_skipped) == (2, 2, 3)
    one = tokenize_corpus(
        folder / "rows.jsonl", folder / "z", column="body", on_damage="skip", **settings
    )
    assert (one.num_documents, one.num_skipped) == (1, 4)
    rows[1] = {"text": ""}
    write_jsonl(folder / "rows.jsonl", rows)
    with pytest.raises(SourceError, match="it is of type int; the fields are text, in line 3"):
        tokenize_corpus(folder / "rows.jsonl", folder / "w", **settings)


def test_ends_and_tokens_around(folder: Path) -> None:
    write_jsonl(folder / "rows.jsonl", [{"text": "a"}, {"text": ""}, {"text": "b"}])

    def tokens(**given: Any) -> list[int]:
        settings: Any = {"tokenizer": folder / "tokenizer", "to": "bin", "client": SERIAL}
        settings |= {"overwrite": True} | given
        made = tokenize_corpus(folder / "rows.jsonl", folder / "p", **settings)
        content = (folder / "p.bin").read_bytes()
        return np.frombuffer(content, made.token_dtype).tolist()

    _, a, b = encode("ab")
    plain: Any = {"prepend_bod": False}
    assert tokens() == [BOD, a, EOD, BOD, EOD, BOD, b, EOD]
    assert tokens(append_eod=False) == [BOD, a, BOD, BOD, b]
    assert tokens(append_eod="<bod>", token_dtype="int32") == [BOD, a, BOD, BOD, BOD, BOD, b, BOD]
    assert tokens(split_sentences=True) == [BOD, a, BOD, b]
    assert tokens(**plain) == [a, EOD, b, EOD]
    assert tokens(append_eod=False, **plain) == [a, b]
    assert tokens(split_sentences=True, **plain) == [a, b]
    assert tokens(append_eod=False, special_tokens=False) == [a, b]
    # Given begin tokens are those that the template would add, once per document.
    assert tokens(prepend_bod=True) == tokens()
    assert tokens(prepend_bod=0) == [0, a, EOD, 0, EOD, 0, b, EOD]
    with pytest.raises(ConfigError, match="uint8 holds those from 0 to 255, got "):
        tokens(token_dtype="uint8")
    with pytest.raises(ConfigError, match=r"token_dtype .* must be one of auto, .* got 'float32'"):
        tokens(token_dtype="float32")
    with pytest.raises(ConfigError, match=r"append_eod \(--append-eod\) needs the token '<end>'"):
        tokens(append_eod="<end>")
    with pytest.raises(ConfigError, match=r"prepend_bod \(--prepend-bod\) needs the token '<b>'"):
        tokens(prepend_bod="<b>")
    with pytest.raises(
        ConfigError, match=r"special_tokens must be left out .* prepend_bod='<bod>'"
    ):
        tokens(prepend_bod="<bod>", special_tokens=True)


def test_given_sentences(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lists of sentences are what Megatron's tool reads after it has split the texts."""
    rows = [{"text": ["a", "", "b"]}, {"text": []}, {"text": "Is it? Yes."}]
    write_jsonl(folder / "rows.jsonl", rows)
    settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL, "to": "bin"}
    _, a, b = encode("ab")
    first, second = map(len, SentenceSplitter("en").split("Is it? Yes."))
    for name, given, lengths in (
        ("whole", {"append_eod": False, "prepend_bod": True}, [2, 1, 12]),
        ("split", {"split_sentences": True, "prepend_bod": True}, [2, 1, first + 1, second]),
        ("each", {"split_sentences": True}, [2, 1, 2, first + 1, second + 1]),
    ):
        made = tokenize_corpus(folder / "rows.jsonl", folder / name, **settings, **given)
        assert made.num_documents == 3
        index = read_index(folder / name)
        assert index.sequence_lengths(0, index.num_sequences).tolist() == lengths
    assert np.fromfile(folder / "whole.bin", np.uint16)[:3].tolist() == [BOD, a, b]
    assert "adds the ids [259] before and [] after each sentence" in caplog.text


def test_what_was_added_is_recorded(folder: Path) -> None:
    settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL}
    for name, given, added in (
        ("template", {}, {"before_text": [BOD], "after_document": [EOD]}),
        ("begin", {"prepend_bod": True}, {"before_document": [BOD], "after_document": [EOD]}),
        ("none", {"prepend_bod": False, "append_eod": False}, {}),
    ):
        made = tokenize_corpus(folder / "in", folder / name, **settings, **given)
        assert made.added == added
        assert open_store(folder / name).attributes[TEXTS]["added"] == added
        # Also if it is found finished.
        assert tokenize_corpus(folder / "in", folder / name, **settings, **given) == made


def test_identities_of_earlier_stores_stay(folder: Path) -> None:
    make: Any = module.text_documents.TextDocuments
    texts = make(
        *module.open_texts(folder / "in", None, None, "error"),
        settings=module.text_documents.TextSettings("text", "uint16"),
        encoder=module.TextEncoder(folder / "tokenizer"),
        skip_damaged=False,
    )
    names = ("tokenizer", "vocab_size", "column", "token_dtype", "end_id", "special_tokens")
    assert sorted(texts.identity()) == sorted((*names, "sentences"))


def test_finished_pairs_stay(folder: Path) -> None:
    settings: Any = {"tokenizer": folder / "tokenizer", "to": "bin", "client": SERIAL}
    tokenize_corpus(folder / "in", folder / "p", **settings)
    before = read_pair(folder / "p")
    with pytest.raises(StoreError, match=r"p\.bin exists; choose another prefix, or replace it"):
        tokenize_corpus(folder / "in/a.jsonl", folder / "p", **settings)
    assert read_pair(folder / "p") == before
    tokenize_corpus(folder / "in/a.jsonl", folder / "p", overwrite=True, **settings)
    assert read_pair(folder / "p") != before


def test_unfinished_work_of_something_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL}

    async def fail(*args: Any, **kwargs: Any) -> None:
        raise SourceError("the disk is gone")

    pairs = module.write_pair
    for to, owner, broken in (("bin", pairs, "write_pair"), ("zarr", module, "convert_corpus")):
        monkeypatch.setattr(owner, broken, fail)
        with pytest.raises(SourceError, match="the disk is gone"):
            tokenize_corpus(folder / "in", folder / to, to=to, **settings)
        monkeypatch.undo()
        with pytest.raises(FingerprintMismatchError, match="what differs: the files, or their siz"):
            tokenize_corpus(folder / "in/a.jsonl", folder / to, to=to, **settings)
        made = tokenize_corpus(folder / "in/a.jsonl", folder / to, to=to, restart=True, **settings)
        assert made.num_documents == 25


def test_settings_that_do_not_fit(folder: Path) -> None:
    settings: Any = {"tokenizer": folder / "tokenizer"}
    with pytest.raises(ConfigError, match=r"to \(--to\) must be one of bin, zarr, got 'npy'"):
        tokenize_corpus(folder / "in", folder / "x", to="npy", **settings)
    with pytest.raises(ConfigError, match="both say where the work is done; give one of them"):
        tokenize_corpus(folder / "in", folder / "x", client=SERIAL, num_processes=1, **settings)


def test_tokenizers_must_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    texts = module.text_documents.TextDocuments(
        *module.open_texts(folder / "in", None, None, "error"),
        settings=module.text_documents.TextSettings("text", "uint16"),
        encoder=module.TextEncoder(folder / "tokenizer"),
        skip_damaged=False,
    )
    content = pickle.dumps(texts)
    assert pickle.loads(content).identity() == texts.identity()
    file = folder / "tokenizer/tokenizer.json"
    file.write_text(file.read_text() + " ")
    with pytest.raises(FingerprintMismatchError, match="must be the same tokenizer on all machine"):
        pickle.loads(content)


def test_an_empty_source(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "none.jsonl").write_text("")
    for to in ("bin", "zarr"):
        settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL, "to": to}
        made = tokenize_corpus(folder / "none.jsonl", folder / to, **settings)
        assert (made.num_documents, made.num_tokens) == (0, 0)
    assert "has no tokens: its texts are empty" in caplog.text
    assert (folder / "bin.bin").read_bytes() == b""


def test_a_concurrent_call_may_be_faster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL}
    read_partition, made = partitions.read_partition, []

    def encode_late(*args: Any) -> Any:
        """Encode the first partition; then a concurrent call does all the work."""
        found = read_partition(*args)
        if not made:
            monkeypatch.undo()
            made.append(tokenize_corpus(folder / "in", target, **settings))
        return found

    for to in ("bin", "zarr"):
        made.clear()
        target = folder / to
        settings["to"] = to
        monkeypatch.setattr(partitions, "read_partition", encode_late)
        if to == "bin":
            with pytest.raises(StoreError, match="another call has finished it; use it"):
                tokenize_corpus(folder / "in", target, **settings)
        else:
            assert tokenize_corpus(folder / "in", target, **settings) == made[0]
