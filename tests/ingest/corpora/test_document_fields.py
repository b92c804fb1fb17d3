"""Fields of documents: equal to those of the source, by document and by id."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import save_tokenizer
from zindex.errors import ConfigError, SourceError, VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.convert import convert
from zindex.ingest.corpora import document_fields
from zindex.ingest.corpora import tokenize_corpus as module
from zindex.ingest.corpora.document_fields import find_documents, open_fields
from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus
from zindex.ingest.merge import export, merge
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader
from zindex.store.verify import verify_store

SERIAL = SerialExecutor()
#: Documents without text, without fields, with a number as id, and with ids that repeat.
ROWS: list[dict[str, Any]] = [
    {"text": f"One {i}. Two." * (i % 3), "id": i if i % 7 == 0 else f"d{i % 20}"}
    | ({"url": f"https://a.org/{i}\u00e9"} if i % 4 else {"url": None})
    | ({"meta": {"n": i, "tags": ["x"]}} if i == 9 else {})
    for i in range(40)
]


def kept(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name) is not None}


def make_corpus(folder: Path, name: str = "a", rows: Any = ROWS, **settings: Any) -> Path:
    save_tokenizer(folder / "tokenizer")
    write_jsonl(folder / f"{name}.jsonl", rows)
    settings = {"tokenizer": folder / "tokenizer", "client": SERIAL} | settings
    tokenize_corpus(folder / f"{name}.jsonl", folder / f"{name}.zarr", **settings)
    return folder / f"{name}.zarr"


def source_of(root: Path, document: int) -> int:
    """Return the source document of a document, by a plain search."""
    return int(np.searchsorted(open_store(root)["document_offset"][:], document, "right")) - 1


@pytest.mark.parametrize("sentences", [False, True])
def test_documents_have_the_fields_of_their_source(sentences: bool, tmp_path: Path) -> None:
    root = make_corpus(tmp_path, split_sentences=sentences)
    store, fields = open_store(root), open_fields(str(root))
    assert fields is not None
    assert fields.names == ("id", "url")
    documents = np.random.default_rng(0).integers(0, store.spec["num_sequences"], 200)
    found = fields.read(documents)
    assert found == [kept(ROWS[source_of(root, each)], "id", "url") for each in documents.tolist()]
    assert fields.read([]) == []
    assert RecordReader(store).read_many(range(40)) == [kept(row, "id", "url") for row in ROWS]
    assert verify_store(root).is_sound


def test_the_fields_do_not_touch_the_tokens(tmp_path: Path) -> None:
    own = make_corpus(tmp_path)
    bare = make_corpus(tmp_path, "b", [{"text": row["text"]} for row in ROWS])
    assert open_fields(str(bare)) is None
    assert "fields" not in open_store(bare).spec
    export(own, tmp_path / "own", client=SERIAL)
    export(bare, tmp_path / "bare", client=SERIAL)
    for suffix in ("bin", "idx"):
        name = f".{suffix}"
        assert (tmp_path / f"own{name}").read_bytes() == (tmp_path / f"bare{name}").read_bytes()
    assert open_fields(str(tmp_path / "own")) is None
    convert(tmp_path / "own", tmp_path / "converted", client=SERIAL)
    expected = open_store(bare).fingerprint
    assert open_store(tmp_path / "converted").fingerprint == expected != open_store(own).fingerprint


def test_which_fields_are_kept(tmp_path: Path) -> None:
    names = open_fields(str(make_corpus(tmp_path, metadata=["url", "meta"])))
    assert names is not None
    assert names.names == ("url", "meta")
    assert RecordReader(open_store(tmp_path / "a.zarr")).read(9)["meta"] == ROWS[9]["meta"]
    assert open_fields(str(make_corpus(tmp_path, "b", metadata=[]))) is None
    # A field named like an array of a corpus, or like one of the scratch files, is only a field.
    rows = [{"text": "a", "tokens": "x", "offset": 1, "": "e"}]
    odd = make_corpus(tmp_path, "c", rows, metadata=["tokens", "offset", ""])
    assert RecordReader(open_store(odd)).read(0) == {"tokens": "x", "offset": 1, "": "e"}
    assert not (odd / "_zindex/scratch").exists()
    with pytest.raises(SourceError, match="got 'idd', which none of the first 40 has; there are"):
        make_corpus(tmp_path, "d", metadata=["idd"])
    assert not (tmp_path / "d.zarr").exists()
    with pytest.raises(ConfigError, match=r"left out for a .bin/.idx pair, .* got id"):
        make_corpus(tmp_path, "e", to="bin", metadata="id")


def test_fields_of_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from datetime import date

    from pyarrow import parquet

    save_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "in").mkdir()
    table = pyarrow.table({"id": ["a", "b"], "text": ["x", "y"], "day": [date(2026, 1, 2)] * 2})
    parquet.write_table(table, tmp_path / "in/a.parquet")
    parquet.write_table(table.select(["text"]), tmp_path / "in/b.parquet")
    settings: Any = {"tokenizer": tmp_path / "tokenizer", "client": SERIAL}
    tokenize_corpus(tmp_path / "in", tmp_path / "s", metadata=("id", "day"), **settings)
    day = "2026-01-02"
    expected = [{"id": "a", "day": day}, {"id": "b", "day": day}, {}, {}]
    assert RecordReader(open_store(tmp_path / "s")).read_many(range(4)) == expected


def test_merged_corpora_keep_the_fields_of_all(tmp_path: Path) -> None:
    texts = make_corpus(tmp_path, "texts", ROWS[1:5], metadata=["id"])
    numbers = make_corpus(
        tmp_path, "numbers", [{"text": "a", "id": 3, "lang": "en"}] * 2, metadata=["lang", "id"]
    )
    bare = make_corpus(tmp_path, "bare", ROWS[:3], metadata=[])
    merge([texts, bare, numbers, texts], tmp_path / "all", client=SERIAL)
    store = open_store(tmp_path / "all")
    first = [{"id": row["id"]} for row in ROWS[1:5]]
    expected = [*first, {}, {}, {}, *[{"id": 3, "lang": "en"}] * 2, *first]
    assert RecordReader(store).read_many(range(len(expected))) == expected
    reader = RecordReader(store, ["lang"])
    assert [reader.read(row) for row in range(len(expected))] == [
        kept(row, "lang") for row in expected
    ]
    assert verify_store(tmp_path / "all").is_sound
    # Of one form everywhere, no array of forms is stored.
    merge([texts, texts], tmp_path / "same", client=SERIAL)
    assert "document_id_form" not in open_store(tmp_path / "same")


def test_documents_are_found_by_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_corpus(tmp_path, split_sentences=True)
    monkeypatch.setattr(document_fields, "_TASK_LENGTH", 7)
    count = open_store(root).spec["num_sequences"]
    names = {"id": [*{row["id"] for row in ROWS}, "d", "nope"], "url": ["https://a.org/3\u00e9"]}
    for field, ids in names.items():
        wanted = {
            str(each): [n for n in range(count) if ROWS[source_of(root, n)].get(field) == each]
            for each in ids
        }
        assert find_documents(root, ids, field=field, client=SERIAL) == wanted
    assert find_documents(root, ["d1", "d1", ""], client=SERIAL)[""] == []
    with pytest.raises(ConfigError, match=r"a field of the documents of .* 'text'"):
        find_documents(root, ["x"], field="text", client=SERIAL)
    bare = make_corpus(tmp_path, "bare", metadata=[])
    with pytest.raises(ConfigError, match=r"must keep the ids of its documents .*--metadata id"):
        find_documents(bare, ["x"], client=SERIAL)
    with pytest.raises(SourceError, match=r"nothing"):
        find_documents(tmp_path / "nothing", ["x"], client=SERIAL)


def test_an_interrupted_tokenization_keeps_its_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_corpus(tmp_path, "whole")

    async def die(*args: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "convert_corpus", die)
        with pytest.raises(KeyboardInterrupt):
            make_corpus(tmp_path, "again")
    again = make_corpus(tmp_path, "again")
    assert open_store(again).fingerprint == open_store(whole).fingerprint


def test_damaged_fields_are_an_error(tmp_path: Path) -> None:
    root = make_corpus(tmp_path)
    path = root / "document_id_value/c/0"
    content = bytearray(path.read_bytes())
    content[9] ^= 1
    path.write_bytes(content)
    fields = open_fields(str(root))
    assert fields is not None
    with pytest.raises(VerificationError):
        fields.read([0])
    with pytest.raises(VerificationError):
        find_documents(root, ["d1"], client=SERIAL)
    assert json.dumps([each.key for each in verify_store(root).damages]).count("document_id") == 1
