"""Values that a sound keyed store must not have, found by verify."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli import commands
from tests.ingest.records.sources import ListFiles
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import save_tokenizer
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.ingest.keyed.tokenize import tokenize
from zindex.ingest.records.import_records import import_records
from zindex.store import verify_values
from zindex.store.layout import ChunkGrid
from zindex.store.tokenizer_note import NOTE_KEY, TokenizerNote, write_note
from zindex.store.verify import verify_store


@pytest.mark.parametrize(
    ("key", "dtype", "values", "shown"),
    [
        ("sequence", "int32", [1, -5], "token ids of 'sequence' must be from 0 to .*, got -5"),
        ("responses", "uint64", [2**63 + 5], f"ids of 'responses' must .*, got {2**63 + 5}"),
        ("old_logprobs", "float32", [-1e-3, float("inf")], "numbers of 'old_logprobs' must be"),
    ],
)
def test_invalid_values_are_found(
    key: str, dtype: str, values: list[float], shown: str, tmp_path: Path
) -> None:
    rows = [{"sequence": [0, 0], "responses": [0], "old_logprobs": [0.5]} for _ in range(3)]
    dtypes = {"sequence": "int32", "responses": "int32", "old_logprobs": "float32"}
    dtypes[key] = dtype
    # An earlier version, or another program, may have written them.
    lines: list[dict[str, Any]] = [row | {"__key__": str(i)} for i, row in enumerate(rows)]
    lines[1][key] = np.array(values, dtype)
    files = ListFiles({"a.jsonl": [lines]})
    store = import_records(files, tmp_path / "s", dtypes=dtypes, num_processes=1)
    report = verify_store(store.root)
    assert not report.is_sound
    assert not report.damages
    [found] = report.invalid
    assert found.key == f"{key}_value"
    assert re.search(f"{shown}.* in record 1 of", found.problem)
    printed = commands.invoke("verify", store.root)
    assert printed.exit_code == 1
    assert "1 with invalid values; fix the source and make them again" in printed.output


def test_ids_are_checked_against_the_vocabulary(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "abc"}])
    store = tokenize(source, tmp_path / "s", "seq", tokenizer=tmp_path / "tokenizer")
    assert verify_store(store.root).is_sound
    (tmp_path / "s" / NOTE_KEY).unlink()
    write_note(store.root, TokenizerNote("another", 200), {})
    [found] = verify_store(store.root).invalid
    assert "must be from 0 to 199, got 258 in record 0 of" in found.problem


def test_values_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks that are verified are the ones whose values are checked."""
    rows: list[dict[str, Any]] = [
        {"__key__": str(i), "sequence": np.arange(i % 7, dtype=np.int32)} for i in range(999)
    ]
    settings: Any = {
        "dtypes": {"sequence": "int32"},
        "grid": ChunkGrid(chunk_length=256, shard_length=1024),
        "num_processes": 1,
    }
    sound = import_records(ListFiles({"a.jsonl": [rows]}), tmp_path / "sound", **settings)
    rows[700]["sequence"] = np.array([3, -1, -2], np.int32)
    rows[900]["sequence"] = np.array([-3], np.int32)
    wrong = import_records(ListFiles({"a.jsonl": [rows]}), tmp_path / "wrong", **settings)
    [found] = verify_store(wrong.root).invalid
    assert "got -1 in record 700 of" in found.problem

    def refuse(*arguments: object, **settings: object) -> None:
        raise AssertionError("a sound store was opened again")

    monkeypatch.setattr(verify_values, "open_store", refuse)
    assert verify_store(sound.root).is_sound


def test_keys_of_own_kinds_are_checked(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    schema = RecordSchema("own", [Field("query", axes="query"), Field("score", values="floats")])
    source = write_jsonl(tmp_path / "in.jsonl", [{"query": "abc", "score": 1}])
    store = tokenize(source, tmp_path / "s", schema, tokenizer=tmp_path / "tokenizer")
    assert verify_store(store.root).is_sound
    (tmp_path / "s" / NOTE_KEY).unlink()
    write_note(store.root, TokenizerNote("another", 200), {})
    [found] = verify_store(store.root).invalid
    assert "token ids of 'query' must be from 0 to 199, got 258 in record 0 of" in found.problem


def test_other_records_may_hold_any_numbers(tmp_path: Path) -> None:
    rows = [{"__key__": "0", "depth": np.array([np.nan, -5], np.float32)}]
    files = ListFiles({"a.jsonl": [rows]})
    store = import_records(files, tmp_path / "s", dtypes={"depth": "float32"}, num_processes=1)
    assert verify_store(store.root).is_sound
