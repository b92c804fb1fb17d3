"""``.bin/.idx`` to Zarr: ``zindex.convert`` against a zarr-python loop and a copy of the file.

``python -m tests.benchmarks.bench_convert --tokens 5e8 --runs 3``

zarr-python copies a memory map of the tokens, shard by shard, into an array of the same chunks,
shards, compression and checksums. Ours also validates the pair, digests it, and writes lengths and
offsets; every shard is synced, and a conversion resumes. The copy of the ``.bin`` is what
the disk allows. Contenders take turns, each in a process of its own that has converted a small pair
before; what waits to be written is synced before the clock starts. All read back the same tokens.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, clock, digest, folder_nbytes, make_parser, take_turns
from zindex.io.system_calls import peak_nbytes
from zindex.schema import TOKENS
from zindex.store.layout import ArrayLayout, ChunkGrid

MEAN_LENGTH, VOCAB = 800, 50_000
_WARM_TOKENS, _NUM_COMPARED, _PART = 100_000, 1 << 20, 1 << 24


def write_pair(prefix: Path, num_tokens: int) -> None:
    """Write a pair of documents whose tokens are as often as words are: by Zipf's law."""
    from zindex.formats.bin_writer import PairWriter

    rng = np.random.default_rng(1)
    writer = PairWriter(f"{prefix}.bin", np.uint16)
    for start in range(0, num_tokens, _PART):
        size = min(_PART, num_tokens - start)
        # Ranks by the inverse of the distribution: each decade of ranks is equally likely.
        tokens = (VOCAB ** rng.random(size, np.float32)).astype(np.uint16)
        lengths = np.full(size // MEAN_LENGTH + 1, MEAN_LENGTH)
        lengths[-1] = size - MEAN_LENGTH * (len(lengths) - 1)
        writer.append(tokens, lengths[lengths > 0])
    writer.end_document()
    writer.finalize(f"{prefix}.idx")


def copy_file(prefix: Path, target: Path, *, sync: bool) -> None:
    """Copy the bytes of the tokens."""
    shutil.copyfile(f"{prefix}.bin", target)
    if sync:
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def loop_zarr(prefix: Path, target: Path, *, codec: Any) -> None:
    """Copy the tokens shard by shard with zarr-python."""
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    tokens = np.memmap(f"{prefix}.bin", np.uint16, "r")
    layout = ArrayLayout.plan(TOKENS, len(tokens), np.uint16, ChunkGrid(codec=codec))
    zstd = [ZstdCodec(level=0, checksum=False)] if codec == "zstd" else []
    array = zarr.create_group(target).create_array(
        TOKENS.name,
        shape=tokens.shape,
        dtype=tokens.dtype,
        chunks=(layout.chunk_length,),
        shards=(layout.shard_length,),
        compressors=[*zstd, Crc32cCodec()],
        fill_value=65535,
    )
    for shard in range(layout.num_shards):
        start, stop = layout.shard_bounds(shard)
        array[start:stop] = tokens[start:stop]


def convert_zindex(prefix: Path, target: Path, *, codec: Any) -> None:
    """Convert as a user does."""
    import zindex

    zindex.convert(prefix, target, grid=ChunkGrid(codec=codec))


COPY, COPY_SYNCED = "file copy", "file copy, fsync"
CONTENDERS: dict[str, Callable[[Path, Path], None]] = {
    COPY: partial(copy_file, sync=False),
    COPY_SYNCED: partial(copy_file, sync=True),
    "zarr-python, raw": partial(loop_zarr, codec="none"),
    "zarr-python, zstd": partial(loop_zarr, codec="zstd"),
    "zindex, raw": partial(convert_zindex, codec="none"),
    "zindex, zstd": partial(convert_zindex, codec="zstd"),
}


def read_back(target: Path) -> Any:
    """Return the tokens that a contender wrote, as numpy or zarr-python read them."""
    if target.is_file():
        return np.memmap(target, np.uint16, "r")
    import zarr

    return zarr.open_group(target, mode="r")[TOKENS.name]


def fill_page_cache(path: str) -> None:
    """Read a file once."""
    with open(path, "rb", buffering=0) as stream:
        while stream.read(1 << 20):
            pass


def run_worker(name: str, prefix: str, tiny: str) -> None:
    """Convert once in this process and print the figures as JSON."""
    with tempfile.TemporaryDirectory(dir=Path(prefix).parent) as folder:
        CONTENDERS[name](Path(tiny), Path(folder) / "tokens")
    with tempfile.TemporaryDirectory(dir=Path(prefix).parent) as folder:
        target = Path(folder) / "tokens"
        fill_page_cache(f"{prefix}.bin")
        os.sync()
        seconds = clock(lambda: CONTENDERS[name](Path(prefix), target))
        figures: dict[str, Any] = {
            "seconds": seconds,
            "nbytes_per_second": os.path.getsize(f"{prefix}.bin") / seconds,
            "peak_nbytes": peak_nbytes(),
            "written_nbytes": folder_nbytes(folder),
        }
        tokens = read_back(target)
        few = min(_NUM_COMPARED, tokens.shape[0])
        figures[MADE] = {"tokens": digest(np.asarray(tokens[:few]), np.asarray(tokens[-few:]))}
    print(json.dumps(figures))


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--tokens", type=float, default=5e8)
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    num_tokens = int(arguments.tokens)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        prefix, tiny = Path(folder) / "corpus", Path(folder) / "tiny"
        write_pair(prefix, num_tokens)
        write_pair(tiny, min(_WARM_TOKENS, num_tokens))
        runs = take_turns(__spec__.name, [*CONTENDERS], arguments.runs, prefix, tiny)
    table = Table.of_runs(
        f"tokens-{name_size(num_tokens)}",
        f"a .bin/.idx pair of {num_tokens:,} uint16 tokens, in the page cache, to Zarr",
        runs,
        rival={f"zindex, {codec}": f"zarr-python, {codec}" for codec in ("raw", "zstd")},
        notes=[
            "file copy: of the .bin alone, what the disk allows; GB/s: of the .bin's bytes",
            "zarr-python with its defaults: the tokens alone, same chunks, shards, zstd level and "
            "crc32c, not synced",
            "zindex: the pair validated and digested, tokens, lengths and offsets, every shard "
            "created whole and synced, committed",
        ],
    )
    show(table)
    Record.of("bench_convert", [table], arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
