"""Whole files in the place of others: each is seen when it is read, or changes no value.

Each trial puts something else in the place of one file: another file of the same store, the same
file of an earlier or a foreign version, swapped inner chunks, a pipe, a folder, a link, a part of
the file, or nothing, before a reader is opened or under an open one. All values are then read.
Wrong are values that were not committed, and errors of other classes.

Pairs and bin folders have no checksums: a file of the same size is seen only under an open reader.
Before, it is a corpus of its own, which the outcome ``unbound`` counts.
"""

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import zindex
from tests.damage import swap_chunks
from tests.harnesses.running import main
from tests.store.stores import ONE, TWO, build_arrays
from tests.trees import all_files
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.errors import ZindexError
from zindex.execution.executor import SerialExecutor
from zindex.formats.idx_writer import write_index
from zindex.formats.megatron_readers import _FileBinReader
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.keyed.saving import save_bin
from zindex.keyed.stores import MmapStore, ZarrStore
from zindex.store import reader
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.reader import forget_all_files
from zindex.store.receipts import read_manifest
from zindex.store.rows import Spans, read_many
from zindex.store.verify import verify_store

_times = count(1 << 60)

#: Opens what is at a place and returns a call that reads all of it.
Opener = Callable[[Path, random.Random], Callable[[], Any]]

_SERIAL = SerialExecutor()
_CHUNK, _SHARD = 4, 16
_FAULTS = (
    *("swap", "stale", "foreign", "other", "inner", "pipe", "folder", "link", "loop", "cut"),
    *("empty", "missing", "stale folder"),
)


@dataclass(frozen=True)
class Victim:
    """Files at a place, other versions of them, and what they hold."""

    root: Path
    open: Opener
    files: dict[str, bytes]
    #: Files of an earlier version of the same shape, and of something else.
    stale: dict[str, bytes]
    foreign: dict[str, bytes]
    values: Any
    is_store: bool
    #: Chunks of each shard, by key.
    chunks: dict[str, int]


def _open_arrays(root: Path, rng: random.Random) -> Callable[[], Any]:
    store = open_store(root, verify=rng.choice(["first", "always"]))
    readers = {name: store[name] for name in store.layouts}
    way = rng.randrange(3)

    def read() -> Any:
        found = {}
        for name, array in readers.items():
            starts = np.arange(0, len(array), 3 if way else 1)
            spans = Spans(array, starts, np.minimum(starts + (3 if way else 1), len(array)))
            values = array.read(0, len(array)) if way == 2 else read_many([spans])[0]
            found[name] = values.tolist()
        return found

    return read


def _open_pair(root: Path, rng: random.Random) -> Callable[[], Any]:
    dataset = IndexedDataset(str(root / "corpus"))
    if isinstance(dataset.bin_reader, _FileBinReader):
        dataset.bin_reader.num_max_retries = 0  # or it waits for a minute
    rows = rng.random() < 0.5
    number = dataset.index.file.bin_nbytes // 4

    def read() -> Any:
        lengths = dataset.sequence_lengths.tolist(), dataset.document_indices.tolist()
        if rows:
            return lengths, dataset.tokens.read(0, number).tolist()
        return lengths, [token for row in range(len(dataset)) for token in dataset[row].tolist()]

    return read


def _open_keyed(kind: Any) -> Opener:
    def open_(root: Path, rng: random.Random) -> Callable[[], Any]:
        store = kind().load(root)
        keys = list(store.keys)
        return lambda: {key: store.fetch(0, len(store), key).tolist() for key in keys}

    return open_


@cache
def make_victims() -> tuple[Victim, ...]:
    """Build the victims once."""
    home = Path(tempfile.mkdtemp(prefix="zindex-cross-"))
    rng = np.random.default_rng(0)

    def pair(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tokens = rng.integers(0, 1 << 30, 50).astype(np.int32)
        tokens.tofile(folder / "corpus.bin")
        lengths = [20, 7, 10, 5, 8]
        write_index(str(folder / "corpus.idx"), np.int32, lengths, np.arange(6))

    def tokens(codec: Any) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            pair(folder / "source")
            grid = ChunkGrid(_CHUNK, _SHARD, codec)
            prefix = str(folder / "source" / "corpus")
            zindex.convert(prefix, folder / "store", client=_SERIAL, grid=grid)

        return make

    def index(codec: Any) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            arrays = {
                ONE: rng.integers(0, 1 << 15, 40).astype(np.int16),
                TWO: rng.integers(0, 1 << 62, (23, 2)),
            }
            seed = int(rng.integers(1 << 30))
            build_arrays(folder / "store", arrays, ChunkGrid(_CHUNK, _SHARD, codec), {"seed": seed})

        return make

    def folder_of_keys(folder: Path) -> None:
        records = [rng.integers(0, 1 << 30, size).astype(np.int32) for size in (9, 4, 12)]
        save_bin(folder / "store", {"sequence": records, "loss_mask": records})

    def keyed(folder: Path) -> None:
        folder_of_keys(folder / "source")
        convert_keyed(folder / "source" / "store", folder / "store", client=_SERIAL)

    def in_place(make: Callable[[Path], None]) -> Callable[[Path], None]:
        return lambda folder: make(folder / "store")

    makers: list[tuple[Callable[[Path], None], Opener, bool]] = [
        (tokens("none"), _open_arrays, True),
        (tokens("zstd"), _open_arrays, True),
        (index("none"), _open_arrays, True),
        (index("zstd"), _open_arrays, True),
        (keyed, _open_keyed(ZarrStore), True),
        (keyed, _open_arrays, True),
        (in_place(pair), _open_pair, False),
        (folder_of_keys, _open_keyed(MmapStore), False),
    ]
    built = []
    for number, (make, _, _) in enumerate(makers):
        make(home / f"{number}")
        make(home / f"{number}-stale")
        built.append((home / f"{number}" / "store", all_files(home / f"{number}-stale" / "store")))
    trees = [all_files(root) for root, _ in built]
    victims = []
    for i, ((root, stale), (_, open_, bound)) in enumerate(zip(built, makers, strict=True)):
        layouts = open_store(root).layouts.values() if bound else ()
        chunks = {
            layout.shard_key(shard): layout.chunks_per_shard
            for layout in layouts
            for shard in range(layout.num_shards)
        }
        values = open_(root, random.Random(0))()
        others = stale, trees[i - 1]
        victims.append(Victim(root, open_, trees[i], *others, values, bound, chunks))
    return tuple(victims)


def _put(path: Path, content: bytes) -> None:
    """Put a new file at a place, as a rename does."""
    remove(path)
    path.write_bytes(content)
    # Clocks of file systems tick slowly.
    os.utime(path, ns=(0, next(_times)))


def remove(path: Path) -> None:
    """Remove a file, link or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def harm(victim: Victim, key: str, rng: random.Random) -> str:
    """Put something else in the place of a file; return the fault."""
    path, content = victim.root / key, victim.files[key]
    fault = rng.choice(_FAULTS)
    if fault == "inner":
        tables = rng.random() < 0.5
        swapped = swap_chunks(content, victim.chunks.get(key, 0), table=tables)
        if swapped is None:
            fault = "swap"
        else:
            _put(path, swapped)
    if fault == "swap":
        other = rng.choice(list(victim.files))
        _put(path, victim.files[other])
        _put(victim.root / other, content)
    elif fault in ("stale", "link"):
        _put(path, victim.stale.get(key, b""))
        if fault == "link":
            path.rename(path.with_name("linked"))
            path.symlink_to("linked")
    elif fault == "stale folder":
        for each, old in victim.stale.items():
            if each.rpartition("/")[0] == key.rpartition("/")[0]:
                _put(victim.root / each, old)
    elif fault in ("foreign", "other"):
        files = victim.foreign if fault == "foreign" else victim.files
        _put(path, files.get(key) or rng.choice(list(files.values())))
    elif fault == "cut":
        os.truncate(path, rng.randrange(len(content)))
    elif fault == "empty":
        _put(path, b"")
    elif fault != "inner":
        remove(path)
        if fault == "pipe":
            os.mkfifo(path)
        elif fault == "folder":
            path.mkdir()
        elif fault == "loop":
            path.symlink_to(path.name)
    return fault


def mend(victim: Victim) -> None:
    """Put all files right."""
    for path in victim.root.rglob("*"):
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and str(path.relative_to(victim.root)) not in victim.files:
            remove(path)
    for key, content in victim.files.items():
        path = victim.root / key
        if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
            _put(path, content)


def is_harmed(victim: Victim) -> bool:
    """Return whether a file of a victim has other bytes."""
    paths = ((victim.root / key, content) for key, content in victim.files.items())
    return any(not path.is_file() or path.read_bytes() != content for path, content in paths)


def trial(rng: random.Random) -> str:
    """Harm one file, and read everything; return the outcome."""
    reader.SPANS_BEFORE_KERNEL = 0
    victim = rng.choice(make_victims())
    key = rng.choice(list(victim.files))
    read = None
    forget_all_files()
    read_manifest.cache_clear()
    when = rng.choice(["before", "opened", "read"])
    fault = "none"
    try:
        if when != "before":
            read = victim.open(victim.root, rng)
            if when == "read":
                assert read() == victim.values
        fault = harm(victim, key, rng)
        if when == "read" and rng.random() < 0.5:
            forget_all_files()  # as in a process that was spawned
        harmed = is_harmed(victim)
        try:
            values = (read or victim.open(victim.root, rng))()
            outcome = "harmless" if values == victim.values else "unbound"
        except (ZindexError, FileNotFoundError):
            outcome = "seen"
        assert outcome != "unbound" or not (victim.is_store or read), "other values"
        # A file that was written again is not compared.
        assert outcome != "seen" or harmed or not victim.is_store, "an error without damage"
        if victim.is_store and rng.random() < 0.1:
            try:
                is_sound = verify_store(victim.root).is_sound
            except ZindexError:
                is_sound = False
            assert is_sound != harmed, "verify"
    except BaseException:
        print(f"{fault} of {key} of {victim.root}, {when}", file=sys.stderr)
        raise
    finally:
        mend(victim)
    return outcome


if __name__ == "__main__":
    sys.exit(main(trial))
