"""Texts in object storage become tokens in object storage, and batches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.cloud.servers import Bucket
from tests.sources.archives import write_jsonl
from tests.sources.test_parquet_files import write_parquet
from tests.text.small_tokenizer import read_ids, save_tokenizer
from zindex.execution.executor import SerialExecutor
from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus
from zindex.ingest.keyed.tokenize import tokenize
from zindex.io import files
from zindex.io.objects import place_of
from zindex.keyed import DatasetFactory
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.verify import verify_store

SERIAL = SerialExecutor()
SMALL = ChunkGrid(chunk_length=64, shard_length=256)


def test_dialogues(bucket: Bucket, tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    rows = [{"prompt": f"{i}?", "completion": "é" * (i + 1)} for i in range(20)]
    path = write_jsonl(tmp_path / "in/a.jsonl", rows)
    files.write_once(place_of(f"{bucket.url}/in/a.jsonl"), [path.read_bytes()])
    stores = [
        tokenize(
            source,
            target,
            "sft",
            tokenizer=tokenizer,
            chat_template="plain",
            client=SERIAL,
            grid=SMALL,
        )
        for source, target in (
            (f"{bucket.url}/in", f"{bucket.url}/out"),
            (path.parent, tmp_path / "out"),
        )
    ]
    for name in stores[0].layouts:
        assert stores[0][name][:].tolist() == stores[1][name][:].tolist()
    assert verify_store(f"{bucket.url}/out").is_sound
    there, here = (
        DatasetFactory.load("sft", root, 16, documents="respect")
        for root in (f"{bucket.url}/out", tmp_path / "out")
    )
    assert len(there) == len(here) > 0
    for one, other in zip(there, here, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_files_of_text(bucket: Bucket, tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    for name in ("a", "b"):
        files.write_once(place_of(f"{bucket.url}/in/{name}.txt"), [b"in " + name.encode()])
    root = f"{bucket.url}/out"
    tokenize(f"{bucket.url}/in", root, "seq", tokenizer=tokenizer, client=SERIAL, grid=SMALL)
    [sample] = DatasetFactory.load("seq", root, 9)
    assert read_ids(sample["input_ids"]) == "in a<eod>in b"


def test_corpora(bucket: Bucket, tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    texts = [f"n\u00e9e {i} " * (i % 5) for i in range(20)]
    lines = write_jsonl(tmp_path / "lines/a.jsonl", [{"text": text} for text in texts])
    table = write_parquet(tmp_path / "tables/a.parquet", [*texts])
    settings: Any = {"tokenizer": tokenizer, "client": SERIAL, "grid": SMALL}
    settings["metadata"] = ()  # the table has ids, too
    here = tokenize_corpus(lines, tmp_path / "out", **settings)
    for path in (lines, table):
        kind = path.parent.name
        files.write_once(place_of(f"{bucket.url}/{kind}/{path.name}"), [path.read_bytes()])
        place = f"{bucket.url}/out-{kind}"
        there = tokenize_corpus(f"{bucket.url}/{kind}", place, **settings)
        assert replace(there, place=here.place) == here
        assert verify_store(place).is_sound
        assert open_store(place).fingerprint == open_store(tmp_path / "out").fingerprint
        assert not [key for key in files.list_keys(place_of(place)) if "scratch" in key]
        assert tokenize_corpus(f"{bucket.url}/{kind}", place, **settings) == there
