"""Damage of any kind to any file that is read: every way to read finds it, with our errors."""

import contextlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs

from tests.store.stores import ONE, TWO, Values, build_arrays, count_up
from tests.trees import all_files
from zindex.errors import StoreError, VerificationError
from zindex.store.check_place import MANIFEST_KEY
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.reader import forget_all_files
from zindex.store.receipts import read_manifest
from zindex.store.rows import RowReader, Spans, read_many
from zindex.store.zarr_array import open_array

Damage = Callable[[Path, random.Random], None]


def flip_bit(path: Path, rng: random.Random) -> None:
    """Change one bit in place."""
    content = bytearray(path.read_bytes())
    place = rng.randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    with open(path, "r+b") as stream:
        stream.write(content)


def change_bytes(path: Path, rng: random.Random) -> None:
    """Change a few neighbouring bytes in place."""
    content = bytearray(path.read_bytes())
    first = rng.randrange(len(content))
    for place in range(first, min(len(content), first + rng.randint(1, 8))):
        content[place] ^= rng.randint(1, 255)
    with open(path, "r+b") as stream:
        stream.write(content)


def clear_bytes(path: Path, rng: random.Random) -> None:
    """Put zeros in the place of a block, as a lost write does."""
    content = path.read_bytes()
    first = rng.randrange(len(content))
    cleared = bytearray(content)
    cleared[first : first + 64] = bytes(len(cleared[first : first + 64]))
    if cleared == content:
        flip_bit(path, rng)
    else:
        with open(path, "r+b") as stream:
            stream.write(cleared)


def truncate(path: Path, rng: random.Random) -> None:
    """Cut the file in place."""
    os.truncate(path, rng.randrange(path.stat().st_size))


def delete(path: Path, rng: random.Random) -> None:
    """Remove the file."""
    path.unlink()


DAMAGES: list[Damage] = [flip_bit, flip_bit, change_bytes, clear_bytes, truncate, delete]


# Read when an array is first opened.
_READ_ONCE = ("zarr.json", MANIFEST_KEY)


def forget() -> None:
    """Forget what has been read, as in a new process."""
    forget_all_files()
    read_manifest.cache_clear()


class Victim:
    """A small store that is damaged and put right again."""

    def __init__(self, root: Path, grid: ChunkGrid) -> None:
        self.root = root
        arrays = {ONE: count_up(40, dtype="uint16"), TWO: count_up(23, num_columns=2)}
        build_arrays(root, arrays, grid)
        self.values = {spec.name: values for spec, values in arrays.items()}
        self.files = all_files(root)
        # The other files are for plain Zarr, for builders and for `zindex verify`.
        self.read_files = [key for key in self.files if "/c/" in key or key in _READ_ONCE]

    def mend(self) -> None:
        """Put every file right."""
        for key, content in self.files.items():
            path = self.root / key
            if not path.exists() or path.read_bytes() != content:
                path.unlink(missing_ok=True)
                path.write_bytes(content)


def read_all(reader: RowReader, values: Values, rng: random.Random) -> None:
    """Read every row in one of the ways that there are, and compare."""
    length = len(values)
    way = rng.randrange(5)
    if way == 0:
        np.testing.assert_array_equal(reader.read(0, length), values)
        return
    if way == 1:
        for row in rng.sample(range(length), length):
            np.testing.assert_array_equal(reader.read(row, row + 1), values[row : row + 1])
        return
    cuts = sorted({0, length, *(rng.randrange(length) for _ in range(6))})
    starts, stops = np.array(cuts[:-1], np.int64), np.array(cuts[1:], np.int64)
    if way == 2:
        np.testing.assert_array_equal(reader.read_spans(starts, stops), values)
    elif way == 3 and values.ndim == 1:
        out = np.zeros(length, np.int64)
        (got,) = read_many([Spans(reader, starts, stops, out, starts)])
        np.testing.assert_array_equal(got, values)
    else:
        rows = np.arange(length)
        first, second = read_many([Spans(reader, starts, stops), Spans(reader, rows, rows + 1)])
        np.testing.assert_array_equal(first, values)
        np.testing.assert_array_equal(second, values)


def find_damage(victim: Victim, readers: dict[str, RowReader] | None, rng: random.Random) -> str:
    """Read all of a store; return the message of the error, or "" if every value was right."""
    message = ""
    try:
        store = open_store(victim.root) if readers is None else readers
    except (StoreError, VerificationError) as error:
        return str(error)
    for name, values in victim.values.items():
        try:
            read_all(store[name], values, rng)
        except VerificationError as error:
            message += str(error)
    return message


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> list[Victim]:
    """Stores with chunks of several sizes, compressed and not."""
    grids = [
        ChunkGrid(3, 6),
        ChunkGrid(3, 6, "zstd"),
        ChunkGrid(64, 64),
        ChunkGrid(5, 20),
        ChunkGrid(5, 20, "zstd"),
    ]
    folder = tmp_path_factory.mktemp("victims")
    return [Victim(folder / str(number), grid) for number, grid in enumerate(grids)]


@pytest.fixture(autouse=True)
def _kernel_from_the_first_span(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", 0)
    yield
    forget()


def run_trials(victims: list[Victim], seed: int, count: int) -> None:
    """Damage one file at a time, before its reader is opened or while it is open."""
    rng = random.Random(seed)
    for trial in range(count):
        victim = rng.choice(victims)
        key = rng.choice(victim.read_files)
        damage = rng.choice(DAMAGES)
        readers = None
        forget()
        if rng.random() < 0.5 and key not in _READ_ONCE:
            store = open_store(victim.root)
            readers = {name: store[name] for name in victim.values}
            for name, values in victim.values.items():
                read_all(readers[name], values, rng)
        damage(victim.root / key, rng)
        where = f"trial {trial} of seed {seed}: {damage.__name__} in {key} of {victim.root}"
        if readers is not None:
            # Chunks that are verified stay so for this process, and a file may be cut under it.
            if damage in (truncate, delete):
                find_damage(victim, readers, rng)
            forget()
        message = find_damage(victim, readers, rng)
        assert key in message or (key == "zarr.json" and "is not built yet" in message), where
        victim.mend()
        forget()
        if trial % 10 == 0:
            assert find_damage(victim, readers, rng) == "", where


@pytest.mark.parametrize("seed", range(5))
def test_all_damage_is_found(victims: list[Victim], seed: int) -> None:
    run_trials(victims, seed, 100)


@pytest.mark.slow
def test_all_damage_is_found_in_ten_thousand_trials(victims: list[Victim]) -> None:
    run_trials(victims, 5, 10_000)


def test_damage_to_files_that_no_reader_needs(victims: list[Victim]) -> None:
    rng = random.Random(11)
    for victim in victims:
        for key in sorted(set(victim.files) - set(victim.read_files)):
            for damage in DAMAGES:
                damage(victim.root / key, rng)
                forget()
                assert find_damage(victim, None, rng) == ""
                victim.mend()


def test_values_that_change_under_a_reader_are_found_by_always(victims: list[Victim]) -> None:
    rng = random.Random(12)
    for victim in victims:
        array = open_store(victim.root, verify="always")["one"]
        read_all(array, victim.values["one"], rng)
        path = victim.root / "one" / "c" / "0"
        with open(path, "r+b") as stream:
            stream.write(bytes([victim.files["one/c/0"][0] ^ 1]))
        with pytest.raises(VerificationError, match="chunk 0 of shard one/c/0"):
            array.read(0, 1)
        victim.mend()


# --- arrays that others wrote ---------------------------------------------------------------


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Arrays with checksums that zarr-python wrote."""
    folder = tmp_path_factory.mktemp("foreign")
    checked = [zarr.codecs.Crc32cCodec()]
    options: list[dict[str, Any]] = [
        {"chunks": (4,), "compressors": checked},
        {"chunks": (4,), "shards": (8,), "compressors": [zarr.codecs.ZstdCodec(), *checked]},
        {"chunks": (4,), "shards": {"shape": (12,), "index_location": "start"}},
        {"chunks": (40,), "compressors": [zarr.codecs.BloscCodec()]},
        {"chunks": (8,), "compressors": [zarr.codecs.GzipCodec(), *checked]},
    ]
    paths = [folder / str(number) for number in range(len(options))]
    for path, option in zip(paths, options, strict=True):
        array = zarr.create_array(path, shape=(40,), dtype="uint16", fill_value=9, **option)
        array[:] = np.arange(100, 140)
    return paths


@pytest.mark.parametrize("seed", range(2))
def test_damaged_metadata_of_others_give_errors_of_ours(
    foreign: list[Path], tmp_path: Path, seed: int
) -> None:
    """There is no checksum on them: what they say may change, but nothing breaks."""
    rng = random.Random(seed)
    for trial in range(60):
        path = tmp_path / str(trial)
        shutil.copytree(rng.choice(foreign), path)
        if rng.random() < 0.5:
            rng.choice([flip_bit, change_bytes, truncate])(path / "zarr.json", rng)
        else:
            mutate(path / "zarr.json", rng)
        message = ""
        try:
            array = open_array(path)
            array.read(0, min(3, len(array)))
            array.read(max(0, len(array) - 2), len(array))
        except (StoreError, VerificationError) as error:
            message = str(error)
        assert not message or str(path) in message
        shutil.rmtree(path)


def mutate(path: Path, rng: random.Random) -> None:
    """Put a hostile value at a random place of a JSON file."""
    fields = json.loads(path.read_text())
    here: Any = fields
    while True:
        key = rng.choice(list(here) if isinstance(here, dict) else range(len(here)))
        if isinstance(here[key], dict | list) and here[key] and rng.random() < 0.7:
            here = here[key]
            continue
        values: list[Any] = [None, 0, -1, 3, 2**31, 2**62, 2**70, 1.5, "", "x", [], {}, [[]], True]
        here[key] = rng.choice(values)
        break
    path.write_text(json.dumps(fields))


@pytest.mark.parametrize("seed", range(2))
def test_damaged_chunks_of_others_are_found_where_they_have_checksums(
    foreign: list[Path], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    for trial in range(60):
        number = rng.randrange(len(foreign))
        path = tmp_path / str(trial)
        shutil.copytree(foreign[number], path)
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        damage = rng.choice(DAMAGES)
        damage(rng.choice([file for file in files if file.name != "zarr.json"]), rng)
        checked = number in (0, 1, 4) or damage in (truncate, delete)
        if checked:
            with pytest.raises(VerificationError, match=re.escape(str(path))):
                np.asarray(open_array(path))
        else:
            with contextlib.suppress(VerificationError):
                assert np.asarray(open_array(path)).shape == (40,)
        shutil.rmtree(path)
