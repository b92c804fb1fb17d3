"""Damaged .bin/.idx pairs: each is refused with one error, or still gives exactly its tokens."""

import shutil
import struct
import tempfile
import textwrap
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.damage import flipped
from tests.forked import run_fresh
from zindex.errors import SourceError
from zindex.formats.bin_idx import read_index
from zindex.formats.bin_reader import BinFile
from zindex.formats.idx_writer import write_index
from zindex.formats.token_dtypes import TOKEN_DTYPES

SEED = 20260801
NUM_MUTANTS = 20_000
DTYPE_CODE_AT = 17
# With 2**62 more sequences 12 * n wraps to the same 64-bit size, as does 8 * n with 2**61 more.
HUGE = [2**31 - 1, 2**31, 2**32, 2**53, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
EDGES = [-(2**63), -(2**31), -1, 0, 1, 2, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1]


@dataclass(frozen=True)
class Pair:
    """A valid pair with readable tokens (0 to 99: the same values in every dtype)."""

    prefix: str
    idx: bytes
    bin: bytes
    lengths: list[int]
    num_entries: int
    has_modes: bool
    dtype: np.dtype

    @property
    def pointers_start(self) -> int:
        return 34 + 4 * len(self.lengths)

    @property
    def entries_start(self) -> int:
        return self.pointers_start + 8 * len(self.lengths)

    def sequences(self) -> list[bytes]:
        stops = np.cumsum([0, *self.lengths]) * self.dtype.itemsize
        return [self.bin[a:b] for a, b in pairwise(stops)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: the test writes tens of thousands of files."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


def make_pairs(folder: Path) -> list[Pair]:
    """Return one pair per dtype with modes and one without, no two .bin of one size."""
    rng = np.random.default_rng(SEED)
    pairs: list[Pair] = []
    for number, (dtype, has_modes) in enumerate(
        (dtype, has_modes) for dtype in TOKEN_DTYPES.values() for has_modes in (False, True)
    ):
        lengths = rng.integers(0, 9, 8 + number)
        while any(len(pair.bin) == lengths.sum() * dtype.itemsize for pair in pairs):
            lengths[-1] += 1
        cuts = np.sort(rng.integers(0, lengths.size + 1, 5))
        entries = np.concatenate(([0], cuts, [lengths.size]))
        prefix = str(folder / f"pair{number}")
        modes = rng.integers(0, 2, lengths.size) if has_modes else None
        write_index(f"{prefix}.idx", dtype, lengths, entries, modes)
        tokens = rng.integers(0, 100, lengths.sum()).astype(dtype)
        Path(f"{prefix}.bin").write_bytes(tokens.tobytes())
        idx = Path(f"{prefix}.idx").read_bytes()
        pairs.append(
            Pair(prefix, idx, tokens.tobytes(), lengths.tolist(), entries.size, has_modes, dtype)
        )
    return pairs


Mutation = Callable[[bytearray, Pair, np.random.Generator], None]


def flip_bits(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    for _ in range(int(rng.choice([1, 1, 1, 2, 5]))):
        idx[int(rng.integers(len(idx)))] ^= 1 << int(rng.integers(8))


def flip_header_bit(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    idx[int(rng.integers(34))] ^= 1 << int(rng.integers(8))


def set_bytes(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    at = int(rng.integers(len(idx)))
    content = rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8).tobytes()
    idx[at : at + len(content)] = content[: len(idx) - at]


def set_code(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    idx[DTYPE_CODE_AT] = int(rng.integers(0, 12))


def truncate(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    del idx[int(rng.integers(len(idx))) :]


def extend(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    size = int(rng.choice([1, 4, 8, len(pair.lengths), 100]))
    idx += rng.integers(0, 256, size, dtype=np.uint8).tobytes()


def cut_out(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    at = int(rng.integers(len(idx)))
    del idx[at : at + int(rng.choice([1, 4, 8, 12]))]


def repeat_span(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    at, size = int(rng.integers(len(idx))), int(rng.choice([1, 4, 8, 12]))
    idx[at:at] = idx[at : at + size]


def set_count(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    counts = [len(pair.lengths), pair.num_entries]
    for which in rng.permutation(2)[: int(rng.integers(1, 3))]:
        near = counts[which] + int(rng.integers(-3, 4))
        choices = [*HUGE, counts[which] + 2**61, counts[which] + 2**62, max(near, 0), 0]
        value = choices[int(rng.integers(len(choices)))]
        idx[18 + 8 * which : 26 + 8 * which] = struct.pack("<Q", value)


def set_element(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    value = EDGES[int(rng.integers(len(EDGES)))] + int(rng.integers(-1, 2))
    which = int(rng.integers(3))
    if which == 0:
        at = 34 + 4 * int(rng.integers(len(pair.lengths)))
        idx[at : at + 4] = struct.pack("<q", max(min(value, 2**63 - 1), -(2**63)))[:4]
        return
    base, size = (
        (pair.pointers_start, len(pair.lengths))
        if which == 1
        else (pair.entries_start, pair.num_entries)
    )
    at = base + 8 * int(rng.integers(size))
    idx[at : at + 8] = struct.pack("<q", max(min(value, 2**63 - 1), -(2**63)))


def swap_elements(idx: bytearray, pair: Pair, rng: np.random.Generator) -> None:
    width, base, size = [
        (4, 34, len(pair.lengths)),
        (8, pair.pointers_start, len(pair.lengths)),
        (8, pair.entries_start, pair.num_entries),
    ][int(rng.integers(3))]
    a, b = (base + width * int(rng.integers(size)) for _ in range(2))
    idx[a : a + width], idx[b : b + width] = idx[b : b + width], idx[a : a + width]


IDX_MUTATIONS: list[Mutation] = [
    flip_bits,
    flip_header_bit,
    set_bytes,
    set_code,
    truncate,
    extend,
    cut_out,
    repeat_span,
    set_count,
    set_element,
    swap_elements,
]


def mutate_bin(pair: Pair, pairs: list[Pair], rng: np.random.Generator) -> bytes:
    """Return another dataset's .bin, or this one cut or grown."""
    which = int(rng.integers(3))
    if which == 0:
        others = [other for other in pairs if other is not pair]
        return others[int(rng.integers(len(others)))].bin
    if which == 1:
        return pair.bin[: int(rng.integers(len(pair.bin)))]
    return pair.bin + bytes(int(rng.integers(1, 20)))


def judge(pair: Pair, idx: bytes, multimodal: bool | None) -> str:
    """Read a pair from its files and return the outcome; fail on anything wrong."""
    try:
        index = read_index(pair.prefix, multimodal=multimodal)
    except SourceError as error:
        text = str(error)
        assert pair.prefix in text
        assert "; " in text
        return "refused"
    tokens = BinFile(f"{pair.prefix}.bin", index.bin_nbytes)
    lengths = index.sequence_lengths(0, index.num_sequences)
    offsets = index.sequence_offsets(0, index.num_sequences)
    sequences = [
        tokens.read(index.dtype, int(length), int(offset) * index.dtype.itemsize)
        for length, offset in zip(lengths, offsets, strict=True)
    ]
    assert lengths.tolist() == pair.lengths
    assert [sequence.tobytes() for sequence in sequences] == pair.sequences()
    entries = index.document_indices(0, index.num_documents + 1)
    assert entries[0] == 0
    assert entries[-1] == len(pair.lengths)
    assert (np.diff(entries) >= 0).all()
    true_tokens = np.frombuffer(pair.bin, pair.dtype)
    if np.array_equal(np.concatenate(sequences), true_tokens):
        return "right tokens"
    # The one byte that names the dtype has no second witness: with another code of the same item
    # size this is the valid file of a dataset with the same bytes (int32 read as float32).
    assert idx[DTYPE_CODE_AT] != pair.idx[DTYPE_CODE_AT]
    assert index.dtype.itemsize == pair.dtype.itemsize
    assert index.dtype.kind != pair.dtype.kind
    assert "f" in (index.dtype.kind, pair.dtype.kind)
    return "valid file of another dtype"


def test_no_mutant_is_read_wrongly(folder: Path) -> None:
    pairs = make_pairs(folder)
    rng = np.random.default_rng(SEED)
    outcomes: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for _ in range(NUM_MUTANTS):
        pair = pairs[int(rng.integers(len(pairs)))]
        idx, content = bytearray(pair.idx), pair.bin
        kind = int(rng.integers(len(IDX_MUTATIONS) + 1))
        if kind == len(IDX_MUTATIONS):
            content = mutate_bin(pair, pairs, rng)
        else:
            IDX_MUTATIONS[kind](idx, pair, rng)
        Path(f"{pair.prefix}.idx").write_bytes(idx)
        Path(f"{pair.prefix}.bin").write_bytes(content)
        multimodal = [None, False, True][int(rng.integers(3))]
        if multimodal and not pair.has_modes:
            multimodal = None
        outcome = judge(pair, bytes(idx), multimodal)
        outcomes[outcome] += 1
        if content is not pair.bin:
            assert outcome == "refused"
        elif outcome != "refused" and idx != pair.idx:
            accepted[IDX_MUTATIONS[kind].__name__] += 1
        Path(f"{pair.prefix}.bin").write_bytes(pair.bin)
    print(dict(outcomes), "changed but right:", dict(accepted))
    assert sum(outcomes.values()) == NUM_MUTANTS
    assert outcomes["refused"] > 0.7 * NUM_MUTANTS
    assert outcomes["valid file of another dtype"] < 0.02 * NUM_MUTANTS


def test_every_byte_of_the_structure_is_watched(folder: Path) -> None:
    """Each bit of a file flipped alone: only bits that a valid file may have go unseen."""
    pair = next(pair for pair in make_pairs(folder) if pair.has_modes and pair.dtype == "u2")
    interior_entries = range(pair.entries_start + 8, pair.entries_start + 8 * pair.num_entries - 8)
    modes_start = pair.entries_start + 8 * pair.num_entries
    for at in range(len(pair.idx)):
        for bit in range(8):
            idx = flipped(pair.idx, at, 1 << bit)
            Path(f"{pair.prefix}.idx").write_bytes(idx)
            outcome = judge(pair, idx, multimodal=None)
            if outcome != "refused":
                assert at >= modes_start or at in interior_entries


def test_every_wrong_partner_is_refused(folder: Path) -> None:
    pairs = make_pairs(folder)
    for pair in pairs:
        for other in pairs:
            Path(f"{pair.prefix}.bin").write_bytes(other.bin)
            outcome = judge(pair, pair.idx, multimodal=None)
            assert (outcome == "refused") == (other is not pair)


def test_no_mutant_takes_memory(folder: Path) -> None:
    pairs = make_pairs(folder)
    rng = np.random.default_rng(SEED + 1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1_000):
            pair = pairs[int(rng.integers(len(pairs)))]
            idx = bytearray(pair.idx)
            set_count(idx, pair, rng)
            Path(f"{pair.prefix}.idx").write_bytes(idx)
            judge(pair, bytes(idx), multimodal=None)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20


CHILD = """
    import resource, struct, sys
    from zindex.errors import SourceError
    from zindex.formats.bin_idx import read_index

    prefix, at, *counts = sys.argv[1:]
    at = int(at)
    with open(prefix + ".idx", "rb") as stream:
        idx = bytearray(stream.read())
    read_index(prefix)
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + 16 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for count in counts:
        idx[at : at + 8] = struct.pack("<Q", int(count))
        with open(prefix + ".idx", "wb") as stream:
            stream.write(idx)
        try:
            read_index(prefix)
        except SourceError as error:
            assert count in str(error), error
            print("refused", count)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
@pytest.mark.parametrize("field", [0, 1])
def test_huge_counts_are_refused_with_16_mb_to_spare(folder: Path, field: int) -> None:
    pair = make_pairs(folder)[0]
    own = (len(pair.lengths), pair.num_entries)[field]
    counts = [str(count) for count in [*HUGE, own + 2**61, own + 2**62, own + 3 * 2**62]]
    child = run_fresh("-c", textwrap.dedent(CHILD), pair.prefix, str(18 + 8 * field), *counts)
    assert child.stderr == ""
    assert child.stdout.splitlines() == [f"refused {count}" for count in counts]


def test_a_long_file_is_checked_in_little_memory(folder: Path) -> None:
    """4 million sequences of no tokens, in holes of a sparse file."""
    num_sequences = 1 << 22
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, num_sequences, 2)
    with open(folder / "a.idx", "wb") as stream:
        stream.write(header)
        stream.truncate(34 + 12 * num_sequences + 8)
        stream.seek(0, 2)
        stream.write(struct.pack("<q", num_sequences))
    (folder / "a.bin").touch()
    tracemalloc.start()
    try:
        assert read_index(folder / "a").num_sequences == num_sequences
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
