"""Damaged shards of a sentence mapping are rebuilt, byte for byte."""

from pathlib import Path
from typing import Any

import pytest

from tests.indexing.test_sentence_mapping import PLANS, build, make_plan, source
from tests.trees import all_files
from zindex.errors import ConfigError, FingerprintMismatchError
from zindex.formats.idx_writer import write_index
from zindex.indexing.mapping_tasks import SentenceSource
from zindex.maintenance.repairs.repair import repair
from zindex.store.verify import verify_store

__all__ = ["source"]  # a fixture


def damage(root: Path, *names: str) -> None:
    for name in names:
        path = next(path for path in sorted((root / name / "c").rglob("*")) if path.is_file())
        path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize("name", ["drawn", "keyed", "repeated"])
@pytest.mark.parametrize(
    "arrays",
    [("scan_offset",), ("sentence_index", "shuffle_index"), ("scan_offset", "sentence_index")],
)
def test_damaged_shards_are_rebuilt(
    tmp_path: Path, source: SentenceSource, name: str, arrays: Any
) -> None:
    store = build(make_plan(source, **PLANS[name]), source, tmp_path / "index").store
    before = all_files(tmp_path / "index")
    damage(store.root, *arrays)
    assert not verify_store(store.root).is_sound
    repair(store.root, source=source.sentences.path)
    assert all_files(tmp_path / "index") == before


def test_the_same_lengths_in_other_documents_are_another_source(
    tmp_path: Path, source: SentenceSource
) -> None:
    store = build(make_plan(source), source, tmp_path / "index").store
    damage(store.root, "sentence_index")
    lengths = source.sentences.lengths(0, source.sentences.facts.num_sequences)
    write_index(tmp_path / "b.idx", "uint16", lengths, range(len(lengths) + 1), None)
    with pytest.raises(FingerprintMismatchError, match=r"b must have the documents of digest"):
        repair(store.root, source=str(tmp_path / "b"))


def test_blocks_are_rebuilt_without_their_titles(tmp_path: Path, source: SentenceSource) -> None:
    store = build(make_plan(source, **PLANS["blocks"]), source, tmp_path / "index").store
    before = all_files(tmp_path / "index")
    damage(store.root, "shuffle_index")
    repair(store.root)
    assert all_files(tmp_path / "index") == before
    damage(store.root, "sentence_index")
    with pytest.raises(ConfigError, match=r"blocks of .* a dataset and its titles"):
        repair(store.root, source=source.sentences.path)
