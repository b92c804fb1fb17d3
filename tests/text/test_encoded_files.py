"""Texts of a trial are encoded once."""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ingest.records.sources import ListFiles
from tests.sources.archives import write_jsonl
from zindex.errors import ConfigError
from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus
from zindex.ingest.keyed.tokenize import tokenize
from zindex.store.open import open_store
from zindex.text.encoded_files import fit_ids
from zindex.text.text_encoder import TextEncoder
from zindex.text.token_records import TokenRecords
from zindex.text.token_settings import TokenSettings

CALLS: Counter[str] = Counter()


class Letters:
    """A tokenizer whose ids are bytes, and which counts the texts that it gets."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        CALLS[text] += 1
        return list(text.encode())

    def __len__(self) -> int:
        return 256


@pytest.mark.parametrize("kind", ["seq", "pretrain"])
def test_the_first_record_is_encoded_once(kind: str, tmp_path: Path) -> None:
    texts = ["first", "second", "third"]
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    CALLS.clear()
    settings: Any = {"tokenizer": Letters(), "append_eod": False, "num_processes": 1}
    if kind == "seq":
        tokenize(source, tmp_path / "s", "seq", **settings)
        found = np.asarray(open_store(tmp_path / "s")["sequence_value"])
    else:
        tokenize_corpus(source, tmp_path / "s", **settings)
        found = np.asarray(open_store(tmp_path / "s")["tokens"])
    assert bytes(found.tolist()) == "".join(texts).encode()
    assert {text: CALLS[text] for text in texts} == dict.fromkeys(texts, 1)


def test_other_processes_do_not_get_what_was_tried() -> None:
    files = ListFiles({"a": [[{"text": "x"}]]})
    records = TokenRecords(
        files, "x", settings=TokenSettings("seq"), encoder=TextEncoder(Letters())
    )
    records.is_trial = True
    before = list(records.read_part(0))
    assert records._tried
    copied = pickle.loads(pickle.dumps(records))
    assert not copied._tried
    [record] = copied.read_part(0)
    assert record["sequence"].tolist() == before[0]["sequence"].tolist()


def test_ids_are_of_the_vocabulary() -> None:
    assert fit_ids(np.array([0, 9]), "int32", 10).tolist() == [0, 9]
    with pytest.raises(ConfigError, match="ids of its vocabulary, which has 9, got 9"):
        fit_ids(np.array([0, 9]), "int32", 9)

    class Small(Letters):
        def __len__(self) -> int:
            return 100

    files = ListFiles({"a": [[{"text": "aa"}, {"text": "z"}]]})
    encoder = TextEncoder(Small())
    records = TokenRecords(files, "x", settings=TokenSettings("seq"), encoder=encoder)
    with pytest.raises(ConfigError, match=r"has 100, got 122; .*, in record '0/1' of a"):
        list(records.read_part(0))
