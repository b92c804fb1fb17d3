"""Records of tar and jsonl files by number: from an imported store and from the files themselves.

``python -m tests.benchmarks.bench_records --records 1e5 --runs 3``

Without a store a record is found by reading up to it, as streams do when they go on, or by a table
of offsets, which somebody must have made and must keep: the fastest there can be. All contenders
parse what they read, and all read the same records, from the page cache. Values of imported stores
are checked at their first touch; a table of offsets checks nothing.
"""

import io
import json
import os
import statistics
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, clock, digest, folder_nbytes, make_parser, take_turns
from zindex.io.system_calls import peak_nbytes

KINDS = ("jsonl", "tar")
STREAM, OPENED, HELD = "read up to it", "offset table, open and read", "offset table, file held"
SINGLE, BATCH = "zindex, one by one", "zindex, batches of 64"
COPY, IMPORT = "file copy, fsync", "zindex, import"
READERS = (STREAM, OPENED, HELD, SINGLE, BATCH)
_BATCH, _NUM_DRAWS = 64, 64 * 64
# Reading up to a record takes as long as all others together.
_NUM_STREAMED = 5
_JPG_NBYTES, _TEXT_LENGTH = 40_000, 1000

ReadRecord = dict[str, Any]
Read = Callable[[list[int]], list[ReadRecord]]


def source_of(folder: Path, kind: str) -> Path:
    """Return the file of one kind."""
    return folder / f"records.{kind}"


def write_files(folder: Path, num_records: int) -> None:
    """Write a jsonl file of texts and a tar of images with captions, and their tables of offsets.

    The tar has a twentieth of the records, which are larger.
    """
    rng = np.random.default_rng(0)
    letters = rng.integers(97, 123, 1 << 20, np.uint8).tobytes()
    offsets = [0]
    with source_of(folder, "jsonl").open("wb") as stream:
        for number in range(num_records):
            start, length = int(rng.integers(0, 1 << 19)), int(rng.integers(1, 2 * _TEXT_LENGTH))
            row = {"text": letters[start : start + length].decode(), "score": number / 7}
            offsets.append(offsets[-1] + stream.write(json.dumps(row).encode() + b"\n"))
    np.save(folder / "jsonl.npy", np.array([offsets[:-1], offsets[1:]]).T)
    with tarfile.open(source_of(folder, "tar"), "w") as archive:
        for number in range(max(_BATCH, num_records // 20)):
            jpg, text = (int(rng.integers(1, 2 * mean)) for mean in (_JPG_NBYTES, 200))
            for suffix, size in (("jpg", jpg), ("txt", text)):
                member = tarfile.TarInfo(f"{number:08}.{suffix}")
                member.size = size
                archive.addfile(member, io.BytesIO(letters[:size]))
    with tarfile.open(source_of(folder, "tar")) as archive:
        spans = [(item.offset_data, item.offset_data + item.size) for item in archive]
    np.save(folder / "tar.npy", np.array(spans).reshape(-1, 4))


def open_table(kind: str, folder: Path, *, keep_open: bool) -> Read:
    """Return what reads records by a table of offsets."""
    path, table = source_of(folder, kind), np.load(folder / f"{kind}.npy").tolist()

    def parse(number: int, parts: list[bytes]) -> ReadRecord:
        if kind == "jsonl":
            return json.loads(parts[0]) | {"__key__": str(number)}
        return {"jpg": parts[0], "txt": parts[1], "__key__": f"{number:08}"}

    def read_held(descriptor: int, number: int) -> ReadRecord:
        spans = table[number]
        pairs = zip(spans[::2], spans[1::2], strict=True)
        return parse(number, [os.pread(descriptor, stop - start, start) for start, stop in pairs])

    def read_opened(number: int) -> ReadRecord:
        parts, spans = [], table[number]
        with open(path, "rb") as stream:
            for start, stop in zip(spans[::2], spans[1::2], strict=True):
                stream.seek(start)
                parts.append(stream.read(stop - start))
        return parse(number, parts)

    if keep_open:
        descriptor = os.open(path, os.O_RDONLY)
        return lambda numbers: [read_held(descriptor, number) for number in numbers]
    return lambda numbers: [read_opened(number) for number in numbers]


def open_stream(kind: str, folder: Path) -> Read:
    """Return what reads records by reading up to each of them."""
    from zindex.sources.jsonl_files import JsonlFiles
    from zindex.sources.tar_files import TarFiles

    path, one_part = source_of(folder, kind), 1 << 60
    files = (JsonlFiles if kind == "jsonl" else TarFiles)(path, part_nbytes=one_part)
    return lambda numbers: [next(islice(files.read_part(0), number, None)) for number in numbers]


def open_records(name: str, kind: str, folder: Path) -> Read:
    """Return what reads records as one contender does."""
    from zindex.datasets.record_dataset import RecordDataset

    if name == STREAM:
        return open_stream(kind, folder)
    if name in (OPENED, HELD):
        return open_table(kind, folder, keep_open=name == HELD)
    dataset = RecordDataset(folder / f"{kind}.zarr")
    if name == SINGLE:
        return lambda numbers: [dataset[number] for number in numbers]
    return dataset.__getitems__


def measure_reads(name: str, kind: str, folder: Path) -> dict[str, Any]:
    """Return the microseconds of a record, and what all contenders must have read."""
    read = open_records(name, kind, folder)
    rng = np.random.default_rng(1)
    draws = rng.integers(0, len(np.load(folder / f"{kind}.npy")), (_NUM_DRAWS // _BATCH, _BATCH))
    first = read(draws[0, :3].tolist())
    made = json.dumps(
        [
            {key: str(value) for key, value in record.items() if key != "__url__"}
            for record in first
        ],
        sort_keys=True,
    )
    figures: dict[str, Any] = {MADE: {kind: digest(np.frombuffer(made.encode(), np.uint8))}}
    if name == STREAM:
        few = draws.reshape(-1)[:_NUM_STREAMED].tolist()
        figures["record_us"] = 1e6 * clock(lambda: read(few)) / _NUM_STREAMED
        return figures
    batches = draws.tolist()
    for batch in batches:  # chunks are checked at their first touch
        read(batch)
    seconds = statistics.median(clock(partial(read, batch)) for batch in batches)
    figures["record_us"] = 1e6 * seconds / _BATCH
    return figures


def measure_import(name: str, kind: str, folder: Path) -> dict[str, Any]:
    """Return the figures of an import, or of a copy of the file."""
    import zindex
    from tests.benchmarks.bench_convert import copy_file, fill_page_cache

    source = source_of(folder, kind)
    fill_page_cache(str(source))
    if name == IMPORT:  # what is imported and loaded first is no part of the work
        with tempfile.TemporaryDirectory(dir=folder) as made:
            (Path(made) / "few.jsonl").write_text('{"text": ""}\n')
            zindex.import_records(Path(made) / "few.jsonl", Path(made) / "store")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        os.sync()
        if name == IMPORT:
            seconds = clock(lambda: zindex.import_records(source, Path(made) / "store"))
        else:
            (folder / "copied.bin").unlink(missing_ok=True)
            (folder / "copied.bin").symlink_to(source)
            seconds = clock(lambda: copy_file(folder / "copied", Path(made) / "copy", sync=True))
        return {
            "seconds": seconds,
            "nbytes_per_second": source.stat().st_size / seconds,
            "peak_nbytes": peak_nbytes(),
            "written_nbytes": folder_nbytes(made),
        }


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--records", type=float, default=1e5)
    arguments = parser.parse_args()
    if arguments.worker:
        name, kind, folder = arguments.worker
        measure = measure_import if name in (COPY, IMPORT) else measure_reads
        print(json.dumps(measure(name, kind, Path(folder))))
        return
    num_records = int(arguments.records)
    tables = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        import zindex

        write_files(Path(folder), num_records)
        for kind in KINDS:
            zindex.import_records(source_of(Path(folder), kind), Path(folder) / f"{kind}.zarr")
            imports = take_turns(__spec__.name, (COPY, IMPORT), arguments.runs, kind, folder)
            reads = take_turns(__spec__.name, READERS, arguments.runs, kind, folder)
            count = len(np.load(Path(folder) / f"{kind}.npy"))
            nbytes = source_of(Path(folder), kind).stat().st_size
            what = (
                f"a {kind} file of {count:,} records and {nbytes / 1e6:,.0f} MB in the page cache"
            )
            tables += [
                Table.of_runs(
                    f"read-{kind}-{name_size(num_records)}",
                    f"a random record of {what}",
                    reads,
                    rival=OPENED,
                    ratio_of="record_us",
                ),
                Table.of_runs(
                    f"import-{kind}-{name_size(num_records)}",
                    f"the import of {what}",
                    imports,
                    rival=COPY,
                    ratio_of="nbytes_per_second",
                    notes=["an import reads once and writes twice, each time synced"],
                ),
            ]
    for table in tables:
        show(table)
    Record.of("bench_records", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
