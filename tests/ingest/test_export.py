"""Back to ``.bin/.idx``: never over something, never a half pair."""

import os
from pathlib import Path

import pytest

import zindex
from tests.conftest import WriteCorpus
from tests.damage import flip
from tests.killing import Killed, death_before
from zindex.errors import SourceError, StoreError, StoreNotFoundError, VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_idx import read_index
from zindex.ingest.corpora import write_pair
from zindex.ingest.corpora.corpus import store_corpus
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store

SERIAL = SerialExecutor()
LENGTHS = [3, 0, 5, 2, 7, 0, 4]


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture
def store(write_corpus: WriteCorpus, tmp_path: Path) -> Store:
    prefix = write_corpus(LENGTHS, sequences_per_document=2)
    (store,) = zindex.convert(prefix, tmp_path / "corpus.zarr", client=SERIAL, grid=ChunkGrid(2, 4))
    return store


@pytest.fixture
def linked(write_corpus: WriteCorpus, tmp_path: Path) -> Store:
    (store,) = zindex.convert(
        write_corpus(LENGTHS), tmp_path / "linked.zarr", client=SERIAL, link=True
    )
    return store


def test_folders_are_made(store: Store, tmp_path: Path) -> None:
    zindex.export(store.root, tmp_path / "new" / "folder" / "back", client=SERIAL)
    assert read_files(tmp_path / "new" / "folder") == {
        f"back{suffix}": (tmp_path / f"corpus{suffix}").read_bytes() for suffix in (".bin", ".idx")
    }


def test_blocks_are_put_together(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write_corpus(LENGTHS, modes=[*range(7)], sequences_per_document=2)
    zindex.convert(prefix, tmp_path / "corpus.zarr", client=SERIAL, grid=ChunkGrid(3, 6))
    monkeypatch.setattr(write_pair, "_BLOCK", 2)
    monkeypatch.setattr(write_pair, "SPAN_TOKENS", 4)
    zindex.export(tmp_path / "corpus.zarr", tmp_path / "back", client=SERIAL)
    for suffix in (".bin", ".idx"):
        written = (tmp_path / f"back{suffix}").read_bytes()
        assert written == (tmp_path / f"corpus{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_existing_file_is_kept_unless_asked(store: Store, tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / f"back{suffix}").write_bytes(b"mine")
    with pytest.raises(StoreError, match=rf"out/back\{suffix} exists; choose another prefix"):
        zindex.export(store.root, folder / "back", client=SERIAL)
    assert read_files(folder) == {f"back{suffix}": b"mine"}
    zindex.export(store.root, folder / "back", client=SERIAL, overwrite=True)
    assert (folder / "back.bin").read_bytes() == (tmp_path / "corpus.bin").read_bytes()
    assert (folder / "back.idx").read_bytes() == (tmp_path / "corpus.idx").read_bytes()


@pytest.mark.parametrize("number", range(10))
def test_death_before_every_step_leaves_no_half_pair(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Copies, the .idx and the two names: until both are given, no pair can be opened."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "back.bin").write_bytes(b"old")
    (folder / "back.idx").write_bytes(b"old")
    monkeypatch.setattr(write_pair, "SPAN_TOKENS", 8)
    steps = ((write_pair, "write_span"), (write_pair, "write_idx"), (os, "replace"))
    try:
        with death_before(number, *steps):
            zindex.export(store.root, folder / "back", client=SERIAL, overwrite=True)
    except* Killed:
        # Three copies, one .idx (itself renamed once), the end of the old .idx, two names, and the
        # folder of work.
        assert number < 9
        named = read_files(folder)
        if number < 6:
            assert named == {"back.bin": b"old", "back.idx": b"old"}
        elif number < 8:
            assert named["back.idx"] == b""
            with pytest.raises(SourceError, match=r"back\.idx"):
                read_index(folder / "back")
    else:
        assert number == 9
    zindex.export(store.root, folder / "back", client=SERIAL, overwrite=True)
    assert (folder / "back.bin").read_bytes() == (tmp_path / "corpus.bin").read_bytes()
    assert {path.name for path in folder.iterdir()} == {"back.bin", "back.idx"}


def test_leftovers_of_another_process_are_ignored(store: Store, tmp_path: Path) -> None:
    """In containers every process has the same number."""
    (tmp_path / f"back.bin.{os.getpid()}.partial").write_bytes(b"left by a death")
    zindex.export(store.root, tmp_path / "back", client=SERIAL)
    assert (tmp_path / "back.bin").read_bytes() == (tmp_path / "corpus.bin").read_bytes()


def test_damaged_shard_is_never_exported(store: Store, tmp_path: Path) -> None:
    shard = store.root / "tokens" / "c" / "1"
    flip(shard, 0)
    with pytest.raises(VerificationError, match=r"chunk 0 of shard tokens/c/1 fails its checksum"):
        zindex.export(store.root, tmp_path / "back", client=SERIAL)
    assert not list(tmp_path.glob("back.[bi]*"))
    # Another store may replace what is left, if that is said.
    [other] = zindex.convert(tmp_path / "corpus", tmp_path / "other.zarr", client=SERIAL)
    zindex.export(other.root, tmp_path / "back", client=SERIAL, restart=True)
    assert (tmp_path / "back.bin").read_bytes() == (tmp_path / "corpus.bin").read_bytes()


@pytest.mark.parametrize(("size", "found"), [(80, "it has 80"), (88, "it has 88"), (None, "it is")])
def test_link_to_a_changed_file_is_refused(
    linked: Store, tmp_path: Path, size: int | None, found: str
) -> None:
    if size is None:
        os.unlink(tmp_path / "corpus.bin")
    else:
        os.truncate(tmp_path / "corpus.bin", size)
    with pytest.raises(SourceError, match=rf"corpus\.bin must have 84 bytes.* {found}"):
        zindex.export(linked.root, tmp_path / "back", client=SERIAL)
    assert not list(tmp_path.glob("back*"))


def test_store_without_tokens_is_refused(linked: Store, tmp_path: Path) -> None:
    del linked.attributes["bin"]
    with pytest.raises(StoreError, match=r"linked\.zarr must hold tokens or name their \.bin"):
        store_corpus(linked).read("tokens", 0, 1)


def test_linked_corpus_may_be_exported_onto_itself(linked: Store, tmp_path: Path) -> None:
    before = read_files(tmp_path)
    zindex.export(linked.root, tmp_path / "corpus", client=SERIAL, overwrite=True)
    assert read_files(tmp_path) == before


def test_other_places_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"no zindex store at .*nothing"):
        zindex.export(tmp_path / "nothing", tmp_path / "back", client=SERIAL)
    config = {
        "datasets": [str(tmp_path / "corpus")],
        "sequence_length": 4,
        "split": "1",
        "index": str(tmp_path / "index"),
    }
    ((_, result),) = zindex.build(config, client=SERIAL).items()
    with pytest.raises(StoreError, match="must hold tokens, it holds index"):
        zindex.export(result.store.root, tmp_path / "back", client=SERIAL)
