"""Corpora to one: the bytes of a builder that adds one after the other."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus, numbers
from tests.forked import run_python
from tests.indexing.runs import GRID
from zindex.errors import ConfigError, FingerprintMismatchError, SourceError, StoreError
from zindex.execution.executor import SerialExecutor, embedded_client
from zindex.formats.bin_writer import PairWriter
from zindex.ingest.convert import convert
from zindex.ingest.corpora import write_pair
from zindex.ingest.merge import export, merge
from zindex.store.verify import verify_store

SERIAL = SerialExecutor()
LENGTHS = [[5, 0, 7], [3, 12], [], [0, 1, 1, 1, 30]]


@pytest.fixture(autouse=True)
def _small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_pair, "SPAN_TOKENS", 16)
    monkeypatch.setattr(write_pair, "_BLOCK", 2)


@pytest.fixture
def make_pairs(write_corpus: WriteCorpus) -> Callable[..., list[str]]:
    def make(lengths: list[list[int]] = LENGTHS, **options: Any) -> list[str]:
        return [
            write_corpus(
                part,
                name=f"part{number}",
                tokens=np.arange(sum(part)) + 1000 * number,
                modes=range(len(part)) if options.get("has_modes") else None,
                sequences_per_document=1 + number % 3,
                dtype=options.get("dtype", np.int32),
            )
            for number, part in enumerate(lengths)
        ]

    return make


def add_all(folder: Path, sources: list[str], dtype: Any = np.int32, **options: Any) -> Path:
    """Write what a builder makes that adds one pair after the other."""
    writer = PairWriter(folder / "right.bin", dtype, **options)
    for source in sources:
        writer.append_pair(source)
    writer.finalize(folder / "right.idx")
    return folder / "right"


def check_same(made: str | Path, right: str | Path) -> None:
    for suffix in ("bin", "idx"):
        assert Path(f"{made}.{suffix}").read_bytes() == Path(f"{right}.{suffix}").read_bytes()


@pytest.mark.parametrize("has_modes", [False, True])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_pairs_are_joined_as_a_builder_joins_them(
    make_pairs: Callable[..., list[str]], tmp_path: Path, has_modes: bool, dtype: Any
) -> None:
    sources = make_pairs(has_modes=has_modes, dtype=dtype)
    merged = merge(sources, tmp_path / "new" / "all", client=SERIAL)
    assert merged.path == str(tmp_path / "new" / "all")
    assert (merged.num_sources, merged.num_documents) == (4, 3 + 1 + 0 + 5)
    assert (merged.num_sequences, merged.num_tokens) == (10, 60)
    right = add_all(tmp_path, sources, dtype, has_modes=has_modes)
    check_same(merged.path, right)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"all.bin", "all.idx"}
    # The order is that of the sources, and modes may be left out.
    merge(sources[::-1], tmp_path / "back", client=SERIAL, multimodal=False)
    check_same(tmp_path / "back", add_all(tmp_path, sources[::-1], dtype))


@pytest.mark.parametrize("seed", numbers(10, 300))
def test_drawn_corpora(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(seed)
    monkeypatch.setattr(write_pair, "SPAN_TOKENS", int(draw.integers(1, 40)))
    has_modes, dtype = bool(draw.integers(2)), [np.uint8, np.uint16, np.int64][draw.integers(3)]
    sources = []
    for part in range(int(draw.integers(1, 6))):
        writer = PairWriter(tmp_path / f"{part}.bin", dtype, has_modes=has_modes)
        for _ in range(int(draw.integers(6))):
            lengths = draw.integers(0, 9, draw.integers(4))
            modes = draw.integers(-128, 128, len(lengths)) if has_modes else None
            writer.append(draw.integers(0, 256, lengths.sum()), lengths, modes)
            writer.end_document()
        writer.finalize(tmp_path / f"{part}.idx")
        sources.append(str(tmp_path / f"{part}"))
    right = add_all(tmp_path, sources, dtype, has_modes=has_modes)
    merge(sources, tmp_path / "made", client=SERIAL, multimodal=has_modes)
    check_same(tmp_path / "made", right)


def test_on_a_cluster(make_pairs: Callable[..., list[str]], tmp_path: Path) -> None:
    sources = make_pairs()
    with embedded_client(2) as client:
        merge(sources, tmp_path / "made", client=client)
        store = merge(sources, tmp_path / "made.zarr", to="zarr", client=client)
    check_same(tmp_path / "made", add_all(tmp_path, sources))
    assert verify_store(store.path).is_sound


def test_stores_are_joined_to_a_store(make_pairs: Callable[..., list[str]], tmp_path: Path) -> None:
    sources = make_pairs(has_modes=True)
    convert(sources, tmp_path / "stores", client=SERIAL, grid=GRID)
    stores = [tmp_path / "stores" / f"part{number}.zarr" for number in range(4)]
    merged = merge(stores, tmp_path / "all.zarr", grid=GRID, client=SERIAL)
    assert verify_store(merged.path).is_sound
    right = add_all(tmp_path, sources, has_modes=True)
    export(merged.path, tmp_path / "back", client=SERIAL)
    check_same(tmp_path / "back", right)
    # The same store as that of the joined pair, which is kept by another merge.
    [same] = convert(right, tmp_path / "same.zarr", grid=GRID, client=SERIAL)
    again = merge(tmp_path / "stores", tmp_path / "all.zarr", grid=GRID, client=SERIAL)
    assert again == merged
    assert same.fingerprint == convert(right, merged.path, grid=GRID, client=SERIAL)[0].fingerprint
    # Both kinds, to either.
    mixed = [sources[0], stores[1], sources[2], stores[3]]
    merge(mixed, tmp_path / "mixed", to="bin", client=SERIAL)
    check_same(tmp_path / "mixed", right)
    with pytest.raises(ConfigError, match=r"must all be pairs or all be stores .* pass to='bin'"):
        merge(mixed, tmp_path / "unclear", client=SERIAL)
    merge(f"file://{sources[3]}", f"file://{tmp_path}/by_url", client=SERIAL)
    check_same(tmp_path / "by_url", sources[3])
    linked = convert(sources[3], tmp_path / "link.zarr", link=True, client=SERIAL)[0]
    merge(linked.root, tmp_path / "one", to="bin", client=SERIAL)
    check_same(tmp_path / "one", sources[3])


def test_sources_that_cannot_be_merged(
    make_pairs: Callable[..., list[str]], write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    sources = make_pairs()
    other = write_corpus([4], name="other", dtype=np.uint16)
    with pytest.raises(SourceError, match=r"but \S+part0 has int32 and \S+other has uint16; leave"):
        merge([*sources, other], tmp_path / "all", client=SERIAL)
    modal = write_corpus([4], name="modal", modes=[1])
    with pytest.raises(SourceError, match=r"a mode for each sequence, or none, but \S+part0 has "):
        merge([modal, *sources], tmp_path / "all", client=SERIAL)
    with pytest.raises(SourceError, match=r"and so no modes; open it without multimodal"):
        merge(sources, tmp_path / "all", client=SERIAL, multimodal=True)
    Path(f"{sources[1]}.bin").write_bytes(b"cut")
    with pytest.raises(SourceError, match=r"part1\.bin must have 60 bytes, .* but has 3; it is"):
        merge(sources, tmp_path / "all", client=SERIAL)
    assert not list(tmp_path.glob("all*"))


def test_a_pair_that_is_there(make_pairs: Callable[..., list[str]], tmp_path: Path) -> None:
    sources = make_pairs()
    merge(sources[:2], tmp_path / "all", client=SERIAL)
    with pytest.raises(StoreError, match=r"all\.bin exists; choose another prefix, or replace it"):
        merge(sources, tmp_path / "all", client=SERIAL)
    merge(sources, tmp_path / "all", client=SERIAL, overwrite=True)
    check_same(tmp_path / "all", add_all(tmp_path, sources))


def test_an_unfinished_merge_of_other_sources(
    make_pairs: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = make_pairs()

    def fail(*arguments: Any) -> None:
        raise SourceError("the disk is gone")

    monkeypatch.setattr(write_pair, "write_idx", fail)
    with pytest.raises(SourceError, match="the disk is gone"):
        merge(sources, tmp_path / "all", client=SERIAL)
    monkeypatch.undo()
    shutil.copy(f"{sources[0]}.bin", tmp_path / "copy")
    shutil.copy(tmp_path / "copy", f"{sources[0]}.bin")  # as another writer would
    with pytest.raises(FingerprintMismatchError, match=r"what differs: the files, or their sizes"):
        merge(sources, tmp_path / "all", client=SERIAL)
    merge(sources, tmp_path / "all", client=SERIAL, restart=True)
    check_same(tmp_path / "all", add_all(tmp_path, sources))


def test_a_merge_that_dies_anywhere_goes_on(
    make_pairs: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Every merge but the last is killed, each at a later system call than the one before."""
    sources = make_pairs(has_modes=True)
    done = run_python("-m", "tests.ingest.merge_process", str(tmp_path / "all"), *sources)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert reports, done.stderr
    assert [code for code, _ in reports[:-1]] == [-9] * (len(reports) - 1)
    # One that dies after all is done leaves nothing to do, but the rest of what it removes.
    late = "all.bin exists" in done.stderr and reports[-2][1] == "60"
    assert reports[-1][0] == 0 or late, done.stderr
    assert {seen for _, seen in reports} <= {"nothing", "60"}
    assert len(reports) > 5
    check_same(tmp_path / "all", add_all(tmp_path, sources, has_modes=True))
    assert not (tmp_path / "all.work").exists()
