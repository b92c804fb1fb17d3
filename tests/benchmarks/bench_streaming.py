"""Samples per second of tar archives and jsonl files, against webdataset, tarfile and json.

``python -m tests.benchmarks.bench_streaming --samples 4e4 --runs 5``

All contenders read the same files, from the page cache, in one process and on one thread, and give
every sample once as a dict of bytes (tar) or of what its line holds (jsonl). Contenders take turns,
each in a process of its own, which reads all once before the clock starts: what was made then must
be the same for all, as a sum over samples that does not depend on their order. Under the clock all
is read again and again, each time from opening on, until two seconds have passed.
"""

import json
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.record import Record, Table, show
from tests.benchmarks.turns import MADE, TOGETHER, make_parser, take_turns
from zindex.io.system_calls import peak_nbytes

NUM_FILES, LEAST_SECONDS = 8, 2.0
IMAGE_NBYTES, CAPTION_WORDS = 3000, 12
Sample = dict[str, Any]


def write_files(folder: Path, num_samples: int, letters: list[int]) -> None:
    """Write tar archives of images with captions, and jsonl files of texts of some lengths."""
    rng = np.random.default_rng(1)
    words = ["".join(map(chr, rng.integers(97, 123, size))) for size in rng.integers(2, 10, 5000)]
    counts = np.diff(np.linspace(0, num_samples, NUM_FILES + 1).astype(int))
    for number, count in enumerate(counts):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for sample in range(count):
                caption = " ".join(words[word] for word in rng.integers(0, 5000, CAPTION_WORDS))
                for field, content in (
                    ("jpg", rng.bytes(int(rng.integers(1, 2 * IMAGE_NBYTES)))),
                    ("txt", caption.encode()),
                ):
                    info = tarfile.TarInfo(f"{sample:08d}.{field}")
                    info.size = len(content)
                    archive.addfile(info, BytesIO(content))
        for mean in letters:
            (folder / str(mean)).mkdir(exist_ok=True)
            with open(folder / str(mean) / f"{number}.jsonl", "w") as stream:
                for sample in range(count):
                    size = max(1, int(rng.exponential(mean / 7)))
                    text = " ".join(words[word] for word in rng.integers(0, 5000, size))
                    line = {"id": f"{number}/{sample}", "text": text, "score": rng.random()}
                    stream.write(json.dumps(line) + "\n")


def loop_tarfile(folder: Path) -> Iterator[Sample]:
    """Group the members of archives into samples."""
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            sample: Sample = {}
            for member in archive:
                if not member.isfile():
                    continue
                key, _, field = member.name.partition(".")
                if sample and key != sample["__key__"]:
                    yield sample
                    sample = {}
                if not sample:
                    sample = {"__key__": key, "__url__": str(path)}
                content = archive.extractfile(member)
                assert content is not None
                sample[field] = content.read()
            if sample:
                yield sample


def read_webdataset(folder: Path, *, buffer: int = 0) -> Iterable[Sample]:
    """Read archives with webdataset, without decoding."""
    from webdataset import WebDataset

    urls = sorted(map(str, folder.glob("*.tar")))
    samples: Iterable[Sample] = WebDataset(urls, shardshuffle=False)
    return samples.shuffle(buffer) if buffer else samples  # type: ignore[attr-defined]


def read_parts(files: Any) -> Iterator[Sample]:
    """Read all parts of a source."""
    for part in range(files.num_parts):
        yield from files.read_part(part)


def read_tar_files(folder: Path) -> Iterator[Sample]:
    """Read archives without torch."""
    from zindex.sources.tar_files import TarFiles

    return read_parts(TarFiles(folder))


def merge(dataset: Any, *, shuffle: bool) -> Iterable[Sample]:
    """Return one epoch of one dataset, as a user reads it."""
    from zindex.streaming.merged_dataset import MergedDataset

    dataset.name, dataset.percent = "only", 1.0
    return MergedDataset([dataset], cyclic=False, shuffle_streaming_subsets=shuffle)


def merge_tar(folder: Path, *, shuffle: bool) -> Iterable[Sample]:
    """Read archives with all that exact resuming needs."""
    from zindex.streaming.file_formats import MetaDistributedWebDataset

    return merge(MetaDistributedWebDataset(folder), shuffle=shuffle)


def loop_json(folder: Path) -> Iterator[Sample]:
    """Parse lines one by one."""
    for path in sorted(folder.glob("*.jsonl")):
        with open(path) as stream:
            for line in stream:
                yield json.loads(line)


def loop_orjson(folder: Path) -> Iterator[Sample]:
    """Parse lines one by one with the parser that zindex uses."""
    from orjson import loads

    for path in sorted(folder.glob("*.jsonl")):
        with open(path, "rb") as stream:
            for line in stream:
                yield loads(line)


def read_jsonl_files(folder: Path) -> Iterator[Sample]:
    """Read lines without torch."""
    from zindex.sources.jsonl_files import JsonlFiles

    return read_parts(JsonlFiles(folder))


def merge_jsonl(folder: Path, *, shuffle: bool) -> Iterable[Sample]:
    """Read lines with all that exact resuming needs."""
    from zindex.streaming.file_formats import JsonlIterableDataset

    return merge(JsonlIterableDataset(folder), shuffle=shuffle)


Read = Callable[[Path], Iterable[Sample]]
WEBDATASET, WEBDATASET_SHUFFLED = "webdataset", "webdataset, shuffle(1000)"
TARFILE = "tarfile, plain loop"
JSON, ORJSON = "json, plain loop", "orjson, plain loop"
MERGED, MERGED_IN_ORDER = "zindex, MergedDataset", "zindex, MergedDataset, files' order"
TAR: dict[str, Read] = {
    WEBDATASET: read_webdataset,
    WEBDATASET_SHUFFLED: lambda folder: read_webdataset(folder, buffer=1000),
    TARFILE: loop_tarfile,
    "zindex, TarFiles": read_tar_files,
    MERGED: lambda folder: merge_tar(folder, shuffle=True),
    MERGED_IN_ORDER: lambda folder: merge_tar(folder, shuffle=False),
}
JSONL: dict[str, Read] = {
    JSON: loop_json,
    ORJSON: loop_orjson,
    "zindex, JsonlFiles": read_jsonl_files,
    MERGED: lambda folder: merge_jsonl(folder, shuffle=True),
    MERGED_IN_ORDER: lambda folder: merge_jsonl(folder, shuffle=False),
}


def digest_samples(samples: Iterable[Sample]) -> str:
    """Return what the same samples in any order have in common."""
    total = count = 0
    for sample in samples:
        # Where a sample is from is said by some contenders only, but for the key in a tar.
        fields = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in sample.items()
            if not name.startswith("__")
        }
        if "jpg" in fields:
            fields["key"] = [Path(sample["__url__"]).name, sample["__key__"]]
        text = json.dumps(fields, sort_keys=True)
        total += int.from_bytes(blake2b(text.encode(), digest_size=16).digest())
        count += 1
    return f"{count} {total % (1 << 128):032x}"


def run_worker(kind: str, name: str, folder: str) -> None:
    """Read all in this process and print the figures as JSON."""
    read = (TAR if kind == "tar" else JSONL)[name]
    made = digest_samples(read(Path(folder)))
    seconds, num_samples = 0.0, 0
    while seconds < LEAST_SECONDS:
        start = time.perf_counter()
        for _ in read(Path(folder)):
            num_samples += 1
        seconds += time.perf_counter() - start
        if os.environ.get(TOGETHER):
            break
    figures: dict[str, Any] = {
        "samples_per_second": num_samples / seconds,
        "peak_nbytes": peak_nbytes(),
        MADE: {"samples": made},
    }
    print(json.dumps(figures))


def measure(kind: str, folder: Path, num_samples: int, num_runs: int) -> Table:
    """Return the table of all contenders that read one kind of files."""
    contenders = TAR if kind == "tar" else JSONL
    # The worker's name precedes the arguments that all share.
    runs = take_turns(__spec__.name, [*contenders], num_runs, kind, folder)
    nbytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / num_samples
    why = ""
    if kind == "tar":
        key = kind
        title = f"{num_samples:,} samples of image and caption in {NUM_FILES} tar archives"
        rival: dict[str, str] = {MERGED: WEBDATASET, MERGED_IN_ORDER: TARFILE}
        rival |= {WEBDATASET_SHUFFLED: WEBDATASET, "zindex, TarFiles": TARFILE}
        note = "webdataset: WebDataset(urls, shardshuffle=False), no decoding, else its defaults"
    else:
        key = f"jsonl-{folder.name}"
        title = f"{num_samples:,} lines in {NUM_FILES} jsonl files"
        rival = dict.fromkeys(contenders, ORJSON)
        note = "json: json.loads of each line of an open text file; zindex parses with orjson"
        why = (
            "the eight fields of a sample's place and state, and finding null, take 0.6 us of "
            "Python in a line of any length; a line of 200 bytes is read and parsed in 0.6 us"
        )
    table = Table.of_runs(
        key,
        f"{title}, {nbytes:,.0f} bytes each",
        runs,
        rival=rival,
        ratio_of="samples_per_second",
        notes=[
            note,
            "MergedDataset: one dataset, its defaults: a permutation of all samples, and a state "
            "on each",
        ],
    )
    return table.with_bar(MERGED, 1.0, why).with_bar(MERGED_IN_ORDER, 1.0, why)


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--samples", type=float, default=4e4)
    parser.add_argument(
        "--letters",
        type=int,
        nargs="+",
        default=[200, 2000, 8000],
        help="mean letters of a line's text",
    )
    arguments = parser.parse_args()
    if arguments.worker:
        name, kind, folder = arguments.worker
        run_worker(kind, name, folder)
        return
    num_samples = int(arguments.samples)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        write_files(Path(folder), num_samples, arguments.letters)
        tables = [measure("tar", Path(folder), num_samples, arguments.runs)]
        for mean in arguments.letters:
            place = Path(folder) / str(mean)
            tables += [measure("jsonl", place, num_samples, arguments.runs)]
    for table in tables:
        show(table)
    Record.of("bench_streaming", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
