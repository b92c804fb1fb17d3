"""Kernels on one core: shuffles, document index and sample index against numpy and Megatron Core.

``python -m tests.benchmarks.bench_kernels --size 1e8 --runs 3``

Nanoseconds per element of arrays in memory: nothing is read or written. Each contender is a process
of its own that has run the same on few elements before. Where ours must be the rival's values, they
are compared in every run.
"""

import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, clock, digest, make_parser, take_turns
from zindex.io.system_calls import peak_nbytes
from zindex.kernels import numpy_budget
from zindex.kernels.bijection import KEY_DTYPE, NUM_ROUNDS, permute_range
from zindex.kernels.legacy_shuffle import BLOCK, draw_targets, legacy_shuffle
from zindex.kernels.mersenne import KEY_LENGTH, seed_state
from zindex.kernels.samples import fill_boundaries, gather_lengths
from zindex.store.layout import SHARD_LENGTH

SEQUENCE_LENGTH = 2048
SEED, NUM_EPOCHS = 1234, 4
_WARM_SIZE = 2**16

#: Seconds of the timed part, and what it made; an array that nothing is compared with is None.
Result = tuple[float, np.ndarray | None]


def shuffle_numpy(size: int) -> Result:
    """Time ``RandomState.shuffle``."""
    values, generator = np.arange(size, dtype=np.int32), np.random.RandomState(SEED)
    return clock(lambda: generator.shuffle(values)), values


def shuffle_generator(size: int) -> Result:
    """Time the shuffle of numpy's newer generator, which gives another order."""
    values, generator = np.arange(size, dtype=np.int32), np.random.default_rng(SEED)
    return clock(lambda: generator.shuffle(values)), None


def shuffle_legacy(size: int) -> Result:
    """Time the bit-equal shuffle."""
    values, state = np.arange(size, dtype=np.int32), seed_state(SEED)
    return clock(lambda: legacy_shuffle(values, state)), values


def draw_legacy(size: int) -> Result:
    """Time the draws of a shuffle alone."""
    state, targets = seed_state(SEED), np.empty(BLOCK, np.uint64)
    words = np.empty(KEY_LENGTH, np.uint32)

    def draw() -> None:
        for position in range(size - 1, 0, -BLOCK):
            draw_targets(state, words, position, targets[:position])

    return clock(draw), None


def permute_keyed(size: int) -> Result:
    """Time the keyed bijection."""
    out = np.zeros(size, np.int32)
    return clock(lambda: permute_range(0, size, make_keys(0), 0, out)), None


def make_keys(epoch: int) -> np.ndarray:
    """Return the keys of a permutation."""
    return np.random.SeedSequence(SEED + epoch).generate_state(NUM_ROUNDS, KEY_DTYPE)


def documents_megatron(size: int) -> Result:
    """Time Megatron Core's document index of some epochs."""
    from megatron.core.datasets.gpt_dataset import _build_document_index

    documents = np.arange(size // NUM_EPOCHS, dtype=np.int32)
    generator = np.random.RandomState(SEED)
    start = time.perf_counter()
    index = _build_document_index(documents, NUM_EPOCHS, generator, False)
    return time.perf_counter() - start, index


def documents_legacy(size: int) -> Result:
    """Time the same index as a build makes it."""
    start = time.perf_counter()
    state, num_documents = seed_state(SEED), size // NUM_EPOCHS
    index = np.empty(num_documents * NUM_EPOCHS, np.int32)
    index.reshape(NUM_EPOCHS, num_documents)[:] = np.arange(num_documents, dtype=np.int32)
    legacy_shuffle(index, state)
    return time.perf_counter() - start, index


def documents_keyed(size: int) -> Result:
    """Time the scalable order's document index, of which any part can be computed alone."""
    start = time.perf_counter()
    num_documents = size // NUM_EPOCHS
    index = np.empty((NUM_EPOCHS, num_documents), np.int32)
    for epoch in range(NUM_EPOCHS):
        permute_range(0, num_documents, make_keys(epoch), 0, index[epoch])
    return time.perf_counter() - start, None


def make_documents(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths of 1 to 1,000 tokens and a shuffled order of that many documents."""
    generator = np.random.default_rng(7)
    lengths = generator.integers(1, 1000, size, np.int32)
    documents = np.arange(size, dtype=np.int32)
    generator.shuffle(documents)
    return lengths, documents


def samples_megatron(size: int) -> Result:
    """Time Megatron Core's ``build_sample_idx``."""
    from megatron.core.datasets import helpers

    lengths, documents = make_documents(size)
    tokens = int(lengths.sum())
    start = time.perf_counter()
    index = helpers.build_sample_idx(lengths, documents, SEQUENCE_LENGTH, 1, tokens, True, 1)
    return time.perf_counter() - start, index


def fill_all(lengths: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Build the whole sample index as tasks do: lengths are put in order, summed, kept, and cut."""
    starts = range(0, documents.size, SHARD_LENGTH)
    kept, num_tokens = [], []
    for start in starts:
        rows = documents[start : start + SHARD_LENGTH]
        kept.append(np.empty(rows.size, np.int32))
        gather_lengths(lengths, rows, 0, kept[-1])
        num_tokens.append(int(kept[-1].sum(dtype=np.int64)))
    boundaries = np.empty(((sum(num_tokens) - 1) // SEQUENCE_LENGTH + 1, 2), np.int32)
    boundary, token = 0, 0
    for start, part, count in zip(starts, kept, num_tokens, strict=True):
        boundary = fill_boundaries(part, start, token, SEQUENCE_LENGTH, 1, boundaries, 0, boundary)
        token += count
    return boundaries


def samples_zindex(size: int) -> Result:
    """Time the lengths in order, their sums and the rows together."""
    lengths, documents = make_documents(size)
    start = time.perf_counter()
    index = fill_all(lengths, documents)
    return time.perf_counter() - start, index


@dataclass(frozen=True)
class Work:
    """One table: contenders, the first of them the rival."""

    title: str
    cases: dict[str, Callable[[int], Result]]
    #: Contender -> how many times as fast as the rival it must be.
    bars: dict[str, float]
    notes: list[str]


WORKS = {
    "shuffle": Work(
        "shuffle of {size:,} int32 in memory, one core",
        {
            "numpy, RandomState.shuffle": shuffle_numpy,
            "numpy, default_rng().shuffle": shuffle_generator,
            "zindex, legacy shuffle": shuffle_legacy,
            "zindex, legacy draws alone": draw_legacy,
            "zindex, keyed bijection": permute_keyed,
        },
        {"zindex, legacy shuffle": 2, "zindex, keyed bijection": 6},
        ["RandomState.shuffle is what Megatron Core calls; the legacy shuffle gives its values"],
    ),
    "document-index": Work(
        "document index of {size:,} rows in 4 epochs in memory, one core",
        {
            "megatron-core, _build_document_index": documents_megatron,
            "zindex, legacy": documents_legacy,
            "zindex, keyed": documents_keyed,
        },
        {},
        ["legacy: the rival's values; keyed: each epoch by itself, any row can be computed alone"],
    ),
    "sample-index": Work(
        "sample index of {size:,} documents in memory, one core",
        {
            "megatron-core, build_sample_idx": samples_megatron,
            "zindex, gather, sum and fill": samples_zindex,
        },
        {},
        ["samples of 2,048 tokens; documents of 500 tokens on average in shuffled order"],
    ),
}


def run_worker(name: str, key: str, size: str) -> None:
    """Time one case in this process and print its figures as JSON."""
    case = WORKS[key].cases[name]
    numpy_budget.exhaust()
    case(_WARM_SIZE)
    gc.collect()
    seconds, made = case(int(size))
    figures: dict[str, Any] = {
        "element_ns": 1e9 * seconds / int(size),
        "peak_nbytes": peak_nbytes(),
    }
    if made is not None:
        figures[MADE] = {key: digest(made)}
    print(json.dumps(figures))


def measure(key: str, size: int, num_runs: int, contenders: list[str]) -> Table:
    """Return the table of one work."""
    work = WORKS[key]
    names = [name for name in work.cases if name in contenders]
    table = Table.of_runs(
        f"{key}-{name_size(size)}",
        work.title.format(size=size),
        take_turns(__spec__.name, names, num_runs, key, size),
        rival=next(iter(work.cases)),
        ratio_of="element_ns",
        notes=work.notes,
    )
    if size >= 10**8:
        for name, at_least in work.bars.items():
            table = table.with_bar(name, at_least)
        table = table.with_limit("zindex, keyed bijection", "element_ns", 3)
    return table


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    names = [name for work in WORKS.values() for name in work.cases]
    parser.add_argument("--size", type=float, default=1e8, help="elements")
    parser.add_argument("--contenders", nargs="+", choices=names, default=names, metavar="NAME")
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    tables = []
    for key in WORKS:
        numbers = (int(arguments.size), arguments.runs)
        tables.append(measure(key, *numbers, arguments.contenders))
        show(tables[-1])
    Record.of("bench_kernels", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
