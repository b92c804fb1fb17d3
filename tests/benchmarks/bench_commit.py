"""Writing an array: a committed store against zarr-python and ``numpy.save``, same values.

``python -m tests.benchmarks.bench_commit --size 1e8 --runs 3``

An index array in memory is written as a Zarr array of the same chunks, shards and checksums by
zarr-python and by ours, and as one file by ``numpy.save``. What each of them promises is in the
notes. Contenders take turns, each in a process of its own that has written a small array before;
what waits to be written is synced before the clock starts. All read back the same values.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, clock, digest, folder_nbytes, make_parser, take_turns
from zindex.io.system_calls import peak_nbytes
from zindex.schema import SHUFFLE_INDEX
from zindex.store.layout import ArrayLayout, ChunkGrid

_WARM_SIZE, _NUM_COMPARED = 1 << 20, 1 << 20


def make_values(size: int) -> np.ndarray:
    """Return values like those of an index: no two alike, in no order that compresses."""
    values = np.arange(size, dtype=np.uint32)
    values *= np.uint32(2654435761)
    return values.view(np.int32)


def make_layout(size: int) -> ArrayLayout:
    """Return how our stores cut such an array by default."""
    return ArrayLayout.plan(SHUFFLE_INDEX, size, np.int32, ChunkGrid())


def save_numpy(folder: Path, values: np.ndarray) -> None:
    """Write one file."""
    np.save(folder / "values.npy", values)


def save_zarr(folder: Path, values: np.ndarray) -> None:
    """Write chunks, shards and checksums as ours, by zarr-python."""
    import zarr
    from zarr.codecs import Crc32cCodec

    layout = make_layout(len(values))
    group = zarr.create_group(folder / "store")
    array = group.create_array(
        layout.name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(layout.chunk_length,),
        shards=(layout.shard_length,),
        compressors=[Crc32cCodec()],
        fill_value=-1,
    )
    array[:] = values


def save_zindex(folder: Path, values: np.ndarray) -> None:
    """Begin, write and commit a store."""
    from zindex.store.commit import StorePlan, begin_store, commit_store
    from zindex.store.shard_files import store_all_shards

    layout = make_layout(len(values))
    plan = begin_store(StorePlan(folder / "store", "index", {"size": len(values)}, (layout,)))
    results = store_all_shards(plan.root, layout, values)
    commit_store(plan, [result.receipt for result in results])


def synced(save: Callable[[Path, np.ndarray], None]) -> Callable[[Path, np.ndarray], None]:
    """Return the same with an fsync of every file and directory at its end."""

    def save_and_sync(folder: Path, values: np.ndarray) -> None:
        save(folder, values)
        for path in [*folder.rglob("*"), folder]:
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    return save_and_sync


def read_numpy(folder: Path) -> Any:
    """Return the file's values."""
    return np.load(folder / "values.npy", mmap_mode="r")


def read_zarr(folder: Path) -> Any:
    """Return the store's values as zarr-python reads them."""
    import zarr

    return zarr.open_group(folder / "store", mode="r")[SHUFFLE_INDEX.name]


NUMPY, NUMPY_SYNCED = "numpy.save", "numpy.save, fsync"
ZARR, ZARR_SYNCED, ZINDEX = "zarr-python", "zarr-python, fsync", "zindex, commit"
CONTENDERS: dict[str, tuple[Callable[[Path, np.ndarray], None], Callable[[Path], Any]]] = {
    NUMPY: (save_numpy, read_numpy),
    NUMPY_SYNCED: (synced(save_numpy), read_numpy),
    ZARR: (save_zarr, read_zarr),
    ZARR_SYNCED: (synced(save_zarr), read_zarr),
    ZINDEX: (save_zindex, read_zarr),
}


def run_worker(name: str, folder: str, size: str) -> None:
    """Write once in this process and print the figures as JSON."""
    save, read = CONTENDERS[name]
    warm, target = (Path(tempfile.mkdtemp(dir=folder)) for _ in range(2))
    save(warm, make_values(min(_WARM_SIZE, int(size))))
    shutil.rmtree(warm)
    values = make_values(int(size))
    os.sync()
    seconds = clock(lambda: save(target, values))
    figures: dict[str, Any] = {
        "seconds": seconds,
        "nbytes_per_second": values.nbytes / seconds,
        "peak_nbytes": peak_nbytes(),
        "written_nbytes": folder_nbytes(target),
    }
    stored = read(target)
    few = min(_NUM_COMPARED, len(values))
    figures[MADE] = {"array": digest(np.asarray(stored[:few]), np.asarray(stored[-few:]))}
    shutil.rmtree(target)
    print(json.dumps(figures))


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--size", type=float, default=1e8, help="int32 values")
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    size = int(arguments.size)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        runs = take_turns(__spec__.name, [*CONTENDERS], arguments.runs, folder, size)
    table = Table.of_runs(
        f"int32-{name_size(size)}",
        f"{size:,} int32 values to disk: {make_layout(size).num_shards} shards",
        runs,
        rival={ZINDEX: ZARR_SYNCED},
        notes=[
            "numpy.save: one file without checksums; a crash may leave part of it under its name",
            "zarr-python: crc32c for each chunk; a crash may leave an array whose missing chunks "
            "read as the fill value, and a page cache that was never written",
            "fsync: every file and directory is synced at the end, which says nothing about which "
            "of them are whole",
            "zindex: crc32c for each chunk, each shard created whole or not at all and synced, a "
            "manifest of their checksums; zarr.json comes last, so that a reader sees all or "
            "nothing, and a build that died goes on from its finished shards",
            "peak memory: with the values themselves",
        ],
    )
    show(table)
    Record.of("bench_commit", [table], arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
