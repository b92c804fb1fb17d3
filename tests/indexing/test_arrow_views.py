"""Tables of corpora and of records hold what their readers give."""

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.text.small_tokenizer import make_tokenizer
from zindex.errors import ConfigError, SourceError
from zindex.execution.executor import SerialExecutor
from zindex.indexing import arrow_views
from zindex.indexing.arrow_views import (
    provenance_to_arrow,
    to_arrow,
    to_dataset,
    to_pandas,
    to_polars,
)
from zindex.ingest.corpora.document_fields import open_fields
from zindex.store.record_reader import RecordReader

arrow = pytest.importorskip("pyarrow")
TEXTS = ["one text", "another", "", "the last \u4e2d"]


def write_lines(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_documents_of_a_corpus(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([5, 0, 3, 7], dtype=np.uint16)
    [store] = zindex.convert(prefix, tmp_path / "web.zarr")
    table = to_arrow(store)
    assert table["document"].to_pylist() == [0, 1, 2, 3]
    bounds = [0, 5, 5, 8, 15]
    expected = [list(range(bounds[i], bounds[i + 1])) for i in range(4)]
    assert table["tokens"].to_pylist() == expected
    assert table["tokens"].type == arrow.large_list(arrow.uint16())
    part = to_arrow(tmp_path / "web.zarr", 2, 3)
    assert part.to_pylist() == [{"document": 2, "tokens": [5, 6, 7]}]
    assert to_arrow(store, 4).num_rows == 0
    frame = table.to_pandas()
    assert frame["tokens"][3].tolist() == expected[3]
    with pytest.raises(ConfigError, match=r"must be from 0 to 4, got \[3, 5\); name some of these"):
        to_arrow(store, 3, 5)
    with pytest.raises(ConfigError, match="keeps no tokenizer; give the tokenizer, or add it with"):
        to_arrow(store, text=True)


def test_texts_of_a_corpus(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS])
    place = tmp_path / "texts.zarr"
    added: Any = {"append_eod": False, "prepend_bod": False}
    zindex.tokenize_corpus(path, place, tokenizer=make_tokenizer(), **added)
    # A document without tokens has no sequence.
    assert to_arrow(place, text=True)["text"].to_pylist() == list(filter(None, TEXTS))


def test_fields_of_records(tmp_path: Path) -> None:
    records: list[dict[str, object]] = [
        {"text": "one \u4e2d", "ids": [1, 2], "some": "x", "mixed": "text"},
        {"text": "", "ids": [], "mixed": {"a": 1}},
        {"text": "three", "ids": [3], "some": "z", "mixed": [1]},
    ]
    path = write_lines(tmp_path / "records.jsonl", records)
    store = zindex.import_records(path, tmp_path / "records", dtypes={"ids": "int32"})
    table = to_arrow(store)
    read = [RecordReader(store).read(i) for i in range(3)]
    assert table["__key__"].to_pylist() == [record["__key__"] for record in read]
    assert table["text"].to_pylist() == [record["text"] for record in records]
    assert table["ids"].to_pylist() == [record["ids"] for record in records]
    assert table["ids"].type == arrow.large_list(arrow.int32())
    assert table["some"].to_pylist() == ["x", None, "z"]
    assert table["mixed"].to_pylist() == ["text", '{"a":1}', "[1]"]
    table.validate(full=True)
    last = to_arrow(store, 1, 3)
    assert last["some"].to_pylist() == [None, "z"]
    assert last["ids"].to_pylist() == [[], [3]]
    with pytest.raises(ConfigError, match="text must be left out for records"):
        to_arrow(store, text=True)


def test_lists_that_some_records_lack_are_null(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "records.jsonl", [{"ids": [1]}, {"x": 1}, {"ids": [2, 3]}])
    store = zindex.import_records(path, tmp_path / "records", dtypes={"ids": "int64"})
    assert to_arrow(store)["ids"].to_pylist() == [[1], None, [2, 3]]


@pytest.mark.parametrize("is_blend", [False, True])
def test_provenance_of_a_batch(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: FakeTokenizer, is_blend: bool
) -> None:
    members = [{"path": write_corpus([5, 7, 3, 9, 6] * 8)}]
    if is_blend:
        members.append({"path": write_corpus([4, 10, 2] * 9, name="other")})
    run = {
        "datasets": [member | {"weight": 1.0} for member in members] if is_blend else members,
        "sequence_length": 12,
        "split": "100,0,0",
        "samples": {"train": 9},
        "index": str(tmp_path / "index"),
    }
    batches = zindex.loader(run, tokenizer, micro_batch_size=4, with_provenance=True)
    batch = next(iter(batches))
    table = provenance_to_arrow(batch)
    found = np.full(batch["document_ids"].shape, -1)
    for row in table.to_pylist():
        sample = row["sample"]
        found[sample, row["start"] : row["stop"]] = row["document"]
        assert row["sample_id"] == batch["sample_id"][sample]
        assert row["epoch"] == batch["epoch"][sample]
        assert row.get("dataset_id", 0) == batch["dataset_id"][sample]
    assert np.array_equal(found, batch["document_ids"])
    assert table.num_rows == sum(len(list(groupby(row))) for row in found.tolist())
    del batch["document_ids"]
    with pytest.raises(ConfigError, match="must have document_ids, got dataset_id, tokens, labe"):
        provenance_to_arrow(batch)


def test_padding_has_no_provenance() -> None:
    documents = np.array([[3, 3, 4, -1, -1], [-1, -1, -1, -1, -1]])
    batch = {"document_ids": documents, "sample_id": np.array([7, 8])}
    assert provenance_to_arrow(batch).to_pylist() == [
        {"sample": 0, "sample_id": 7, "document": 3, "start": 0, "stop": 2},
        {"sample": 0, "sample_id": 7, "document": 4, "start": 2, "stop": 3},
    ]


def test_an_index_is_no_table(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    run = {"datasets": [write_corpus([50])], "sequence_length": 4, "index": str(tmp_path / "i")}
    zindex.build(run | {"split": "100,0,0"})
    [place] = (tmp_path / "i").glob("gpt-train-*")
    with pytest.raises(ConfigError, match="must hold a corpus or records to become a table, it ho"):
        to_arrow(place)


VIEWS = {"pandas": to_pandas, "polars": to_polars, "datasets": to_dataset}


def token_buffers(table: Any) -> list[int]:
    """Return the addresses of the buffers of the tokens of a table of any library."""
    if hasattr(table, "get_column"):
        chunks = [table.get_column("tokens").to_arrow()]
    elif hasattr(table, "iloc"):
        chunks = table["tokens"].array.__arrow_array__().chunks
    else:
        chunks = getattr(table, "data", table)["tokens"].chunks
    return [buffer.address for chunk in chunks for buffer in chunk.buffers() if buffer is not None]


@pytest.mark.parametrize("library", VIEWS)
def test_views_share_the_memory_of_the_table(
    library: str, tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    prefix = write_corpus([5, 0, 3, 7], dtype=np.uint16)
    table = to_arrow(prefix)
    with monkeypatch.context() as patch:
        patch.setattr(arrow_views, "to_arrow", lambda *source, **settings: table)
        view = VIEWS[library](prefix)
    assert token_buffers(view) == token_buffers(table)
    assert [list(tokens) for tokens in view["tokens"]] == table["tokens"].to_pylist()
    records = write_lines(tmp_path / "a.jsonl", [{"x": "a"}, {"y": 1}])
    store = zindex.import_records(records, tmp_path / "records", client=SerialExecutor())
    assert list(VIEWS[library](store, 1, 2)["y"]) == ["1"]
    batch = {"document_ids": np.array([[3, 3, 5]])}
    assert list(VIEWS[library](batch)["stop"]) == [2, 3]


@pytest.mark.parametrize("library", VIEWS)
def test_a_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"needs the library {library}, which is not installed"):
        VIEWS[library]("corpora/web.zarr")


def test_tokens_of_a_bin_are_mapped(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([50_000, 0, 30_000])
    [linked] = zindex.convert(prefix, tmp_path / "linked", link=True, client=SerialExecutor())
    expected = to_arrow(zindex.convert(prefix, tmp_path / "copied", client=SerialExecutor())[0])
    for source in (prefix, f"{prefix}.idx", linked, tmp_path / "linked"):
        before = arrow.total_allocated_bytes()
        table = to_arrow(source)
        assert arrow.total_allocated_bytes() - before < 1000
        assert table.equals(expected)
        assert to_arrow(source, 2, 3).equals(expected.slice(2, 1))
    assert to_arrow(prefix, 1, 2)["tokens"].to_pylist() == [[]]
    with pytest.raises(ConfigError, match=r"documents of .* must be from 0 to 3, got \[2, 9\)"):
        to_arrow(prefix, 2, 9)
    with pytest.raises(SourceError, match="nothing"):
        to_arrow(tmp_path / "nothing")


@pytest.mark.parametrize("sentences", [False, True])
def test_the_fields_of_documents(tmp_path: Path, sentences: bool) -> None:
    rows = [{"text": "One. Two." * (i % 3), "id": f"d{i}", "tokens": i} for i in range(10)]
    place = tmp_path / "texts.zarr"
    zindex.tokenize_corpus(
        write_lines(tmp_path / "texts.jsonl", rows),
        place,
        tokenizer=make_tokenizer(),
        append_eod="<eod>",
        split_sentences=sentences,
        metadata=["id", "tokens"],
        client=SerialExecutor(),
    )
    fields = open_fields(str(place))
    assert fields is not None
    count = zindex.open_store(place).spec["num_sequences"]
    expected = [(each["id"], str(each["tokens"])) for each in fields.read(range(count))]
    for start in (0, 3):
        table = to_arrow(place, start)
        found = zip(table["id"].to_pylist(), table["source.tokens"].to_pylist(), strict=True)
        assert list(found) == expected[start:]
    assert to_arrow(place, 2, 2).num_rows == 0
