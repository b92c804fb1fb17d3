"""Opening existing indices: zindex against ``numpy.load`` and zarr-python.

``python -m tests.benchmarks.bench_open --datasets 1 1000 --runs 3``

A blend of small ``.bin/.idx`` pairs is built by ours and by Megatron Core, in the same order. Then
contenders take turns, each run in a process of its own with all files in the page cache: they open
each dataset's three index arrays and read the first row of each (ours from its stores, zarr-python
from the same stores, numpy from Megatron Core's ``.npy`` caches), and the whole run until its first
samples, as a training job would. At last both builders construct the blend until its first batch,
with and without the options that Megatron Core has for many cached datasets.
"""

import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.contenders import (
    ARRAYS,
    SEED,
    build_blend,
    import_all,
    import_module,
    make_config,
    make_tokenizer,
)
from tests.benchmarks.record import Record, Table, show
from tests.benchmarks.turns import MADE, Figures, digest, make_parser, run_once, take_turns
from zindex.io.system_calls import peak_nbytes

SEQUENCE_LENGTH = 64
#: A blend of one dataset is opened so often, for a median.
_NUM_TIMES = 200
_NUM_SAMPLES = 8
# Documents of each of many cached datasets.
_NUM_DOCUMENTS = 200

NUMPY, ZARR, ZINDEX = "numpy.load, Megatron's caches", "zarr-python", "zindex"
MEGATRON, RUN = "megatron-core, builder", "zindex, open_run"
#: Builder -> its package, and whether it gets the options for many cached datasets.
CACHED = {
    "megatron-core, no options": ("megatron", False),
    "megatron-core, fast options": ("megatron", True),
    "zindex, builder": ("zindex", False),
    "zindex, fast options": ("zindex", True),
}
#: Writes the caches of Megatron Core.
PREPARE = "prepare"
#: Files that Megatron Core keeps open for each cached dataset.
_MEGATRON_FILES = 4
#: Reads the Zarr stores made of the pairs; the others read the pairs.
ZARR_RUN = "zindex, open_run of Zarr stores"


def write_pairs(folder: Path, num_datasets: int, num_documents: int = 20) -> dict[str, Any]:
    """Write small pairs; return the run that blends them."""
    from zindex.formats.bin_writer import PairWriter

    datasets = []
    for number in range(num_datasets):
        prefix = str(folder / f"d{number}")
        writer = PairWriter(f"{prefix}.bin", np.uint16)
        # Of other lengths than all others: indices of equal lengths are one.
        lengths = np.random.default_rng(number).integers(50, 151, num_documents)
        writer.append((np.arange(lengths.sum()) + number) % 65_536, lengths)
        writer.end_document()
        writer.finalize(f"{prefix}.idx")
        datasets.append({"path": prefix, "weight": 1 + number % 7})
    return {
        "datasets": datasets,
        "sequence_length": SEQUENCE_LENGTH,
        "seed": SEED,
        "split": "100,0,0",
        "samples": {"train": 10 * num_datasets},
        "index": str(folder / "index"),
    }


def open_megatron(folder: Path, run: dict[str, Any]) -> Any:
    """Return Megatron Core's dataset of a run, whose caches it writes the first time."""
    paths, weights = ([each[key] for each in run["datasets"]] for key in ("path", "weight"))
    num_samples = run["samples"]["train"]
    cache = str(folder / "cache")
    return build_blend("megatron", paths, weights, num_samples, cache, SEQUENCE_LENGTH)


def open_zindex(folder: Path, run: dict[str, Any]) -> Any:
    """Return our dataset of a run."""
    from zindex.datasets.run_datasets import open_run

    return open_run(run, make_tokenizer(), create_attention_mask=False)["train"]


def measure_run(name: str, folder: Path) -> dict[str, Any]:
    """Return the figures of a whole run that is opened, imports left out."""
    import_all("megatron" if name == MEGATRON else "zindex")
    from zindex.datasets.run_datasets import open_run  # noqa: F401  untimed

    run = json.loads((folder / "run.json").read_text())
    if name == ZARR_RUN:
        for dataset in run["datasets"]:
            dataset["path"] += ".zarr"
    start = time.perf_counter()
    dataset = (open_megatron if name == MEGATRON else open_zindex)(folder, run)
    opened = time.perf_counter()
    samples = [dataset[number]["tokens"].numpy() for number in range(_NUM_SAMPLES)]
    done = time.perf_counter()
    return {
        "seconds": done - start,
        "opening_seconds": opened - start,
        "first_samples_seconds": done - opened,
        "peak_nbytes": peak_nbytes(),
        MADE: {"samples": digest(*samples)},
    }


def make_cached_config(package: str, folder: Path, *, is_fast: bool) -> tuple[Any, list[int]]:
    """Return the configuration of the builder of many cached datasets, and its sizes."""
    run = json.loads((folder / "run.json").read_text())
    paths, weights = ([each[key] for each in run["datasets"]] for key in ("path", "weight"))
    settings: dict[str, Any] = {"blend_per_split": [(paths, weights), None, None], "split": None}
    if is_fast:
        counts = json.loads((folder / "counts.json").read_text())
        settings |= {"fast_cache_load": True, "defer_npy_index_mmap": True}
        settings["sequences_per_dataset"] = counts
    settings["tokenizer"] = make_tokenizer()
    settings["tokenizer"].vocab_size = 65_000  # Megatron Core takes the dtype of tokens from it
    cache = str(folder / f"{package}-cache")
    config = make_config(package, None, cache, SEQUENCE_LENGTH, mmap_bin_files=False, **settings)
    return config, [run["samples"]["train"], 0, 0]


def measure_cached(name: str, folder: Path) -> dict[str, Any]:
    """Return the figures of a builder until its first batch, imports left out."""
    package, is_fast = CACHED[name]
    import_all(package)
    from torch.utils.data import default_collate

    allow_files()
    start = time.perf_counter()
    config, sizes = make_cached_config(package, folder, is_fast=is_fast)
    module = import_module(package, "blended_megatron_dataset_builder")
    kind = import_module(package, "gpt_dataset").GPTDataset
    dataset = module.BlendedMegatronDatasetBuilder(kind, sizes, lambda: True, config).build()[0]
    built = time.perf_counter()
    batch = default_collate([dataset[number] for number in range(_NUM_SAMPLES)])
    done = time.perf_counter()
    return {
        "seconds": done - start,
        "building_seconds": built - start,
        "first_batch_seconds": done - built,
        "peak_nbytes": peak_nbytes(),
        MADE: {"batch": digest(batch["tokens"].numpy(), batch["labels"].numpy())},
    }


def allow_files() -> int:
    """Let this process open as many files as it may, and return how many."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


class Stand:
    """A member of a blend, without its files."""

    def __init__(self, member: Any) -> None:
        self.unique_identifiers, self.index_split = member.unique_identifiers, member.index_split
        self.num_samples, self.length = member.num_samples, len(member)

    def __len__(self) -> int:
        return self.length


def prepare_megatron(name: str, folder: Path) -> dict[str, Any]:
    """Write the caches of Megatron Core, one dataset after the other, which need few open files."""
    from zindex.datasets.blend_requests import request_splits

    import_all("megatron")
    config, sizes = make_cached_config("megatron", folder, is_fast=False)
    [request, *_] = request_splits(sizes, make_cached_config("zindex", folder, is_fast=False)[0])
    assert request is not None
    kind = import_module("megatron", "gpt_dataset").GPTDataset
    train = import_module("megatron", "utils").Split.train
    members = []
    for path, num_samples in zip(request.paths, request.num_samples, strict=True):
        low_level = kind.build_low_level_dataset(path, config)
        documents = np.arange(len(low_level), dtype=np.int32)
        members.append(Stand(kind(low_level, path, documents, num_samples, train, config)))
    blend = import_module("megatron", "blended_dataset").BlendedDataset
    blend(members, request.weights, request.size, config)
    return {}


def open_caches(paths: list[str]) -> list[Any]:
    """Open the caches of one dataset, as Megatron Core does."""
    return [np.load(path, mmap_mode="r", allow_pickle=True) for path in paths]


def open_with_zarr(place: str) -> list[Any]:
    """Open the arrays of one index with zarr-python."""
    import zarr

    group = zarr.open_group(place, mode="r")
    return [group[name] for name in ARRAYS]


def open_with_zindex(place: str) -> list[Any]:
    """Open the arrays of one index."""
    from zindex.store.open import open_store

    store = open_store(place)
    return [store[name] for name in ARRAYS]


def open_zarr_array(place: str) -> list[Any]:
    """Open one array with zarr-python."""
    import zarr

    return [zarr.open(f"{place}/shuffle_index", mode="r")]


def open_zindex_array(place: str) -> list[Any]:
    """Open one array of anybody's."""
    from zindex.store.zarr_array import open_array

    return [open_array(f"{place}/shuffle_index")]


def list_caches(folder: Path) -> list[list[str]]:
    """Return the paths of each dataset's three caches."""
    documents = sorted(map(str, (folder / "cache").glob("*GPTDataset-train-document_index.npy")))
    return [[path.replace("document_index", name) for name in ARRAYS] for path in documents]


#: Contender -> how it opens an index, and how it opens one array.
OPENERS: dict[str, list[Callable[[Any], list[Any]]]] = {
    NUMPY: [open_caches, lambda paths: open_caches(paths[-1:])],
    ZARR: [open_with_zarr, open_zarr_array],
    ZINDEX: [open_with_zindex, open_zindex_array],
}


def measure_indices(name: str, folder: Path) -> dict[str, Any]:
    """Return the figures of indices and of single arrays that are opened, one after another."""
    stores = sorted(map(str, (folder / "index").glob("gpt-*")))
    places: list[Any] = list_caches(folder) if name == NUMPY else stores
    found: dict[str, Any] = {}
    for key, opener in zip(("index", "array"), OPENERS[name], strict=True):
        opener(places[0])  # imports
        opening, reading = [], []
        for place in repeat(places):
            start = time.perf_counter()
            arrays = opener(place)
            opened = time.perf_counter()
            rows = [np.asarray(array[0]) for array in arrays]
            reading.append(time.perf_counter() - opened)
            opening.append(opened - start)
        assert len(rows) == len(arrays)
        found[key] = {
            f"open_{key}_us": 1e6 * statistics.median(opening),
            "first_rows_us": 1e6 * statistics.median(reading),
        }
    return found


def repeat(places: list[Any]) -> Iterator[Any]:
    """Yield all places, few of them several times."""
    for _ in range(max(1, _NUM_TIMES // len(places))):
        yield from places


def run_worker(name: str, folder: str) -> None:
    """Measure in this process and print figures as JSON."""
    runs = dict.fromkeys((MEGATRON, RUN, ZARR_RUN), measure_run)
    runs |= dict.fromkeys(CACHED, measure_cached) | {PREPARE: prepare_megatron}
    print(json.dumps(runs.get(name, measure_indices)(name, Path(folder))))


def measure(num_datasets: int, num_runs: int, folder: Path) -> list[Table]:
    """Return the tables of one blend."""
    from zindex.execution.executor import SerialExecutor
    from zindex.indexing.run import build
    from zindex.ingest.convert import convert

    folder.mkdir()
    run = write_pairs(folder, num_datasets)
    (folder / "run.json").write_text(json.dumps(run))
    convert([dataset["path"] for dataset in run["datasets"]], folder, client=SerialExecutor())
    build(run, SerialExecutor())
    run_once(__spec__.name, MEGATRON, folder)  # writes its caches
    if (found := len(list_caches(folder))) != num_datasets:
        raise AssertionError(f"Megatron Core must cache {num_datasets} datasets, it cached {found}")
    opened = take_turns(__spec__.name, [*OPENERS], num_runs, folder)
    parts: dict[str, dict[str, list[Figures]]] = {
        key: {name: [each[key] for each in runs] for name, runs in opened.items()}
        for key in ("index", "array")
    }
    count = f"{num_datasets:,} dataset{'s' if num_datasets > 1 else ''}"
    notes = [
        "medians over all indices; first rows: of each array that was opened",
        "zindex checks the digests of a store's metadata when it opens it, and the crc32c of the "
        "chunks with the first rows, as zarr-python does; numpy checks nothing",
    ]
    return [
        Table.of_runs(
            f"index-{num_datasets}",
            f"the index of a dataset (three arrays) opened, of {count}",
            parts["index"],
            rival=ZARR,
            ratio_of="open_index_us",
            notes=notes,
        ),
        Table.of_runs(
            f"array-{num_datasets}",
            f"one array opened, of {count}",
            parts["array"],
            rival=ZARR,
            ratio_of="open_array_us",
            notes=notes,
        ),
        Table.of_runs(
            f"run-{num_datasets}",
            f"a blend of {count} that is built, opened until its first {_NUM_SAMPLES} samples",
            take_turns(__spec__.name, [MEGATRON, RUN, ZARR_RUN], num_runs, folder),
            rival=MEGATRON,
            notes=[
                "imports left out; megatron-core: its builder with its .npy caches of datasets and "
                "blend, on one rank; all give the same samples",
            ],
        ),
    ]


def measure_builders(num_datasets: int, num_runs: int, folder: Path) -> Table:
    """Return the table of both builders with and without the options for many cached datasets."""
    folder.mkdir(exist_ok=True)
    run = write_pairs(folder, num_datasets, _NUM_DOCUMENTS)
    (folder / "run.json").write_text(json.dumps(run))
    counts = {dataset["path"]: (_NUM_DOCUMENTS, 2) for dataset in run["datasets"]}
    (folder / "counts.json").write_text(json.dumps(counts))
    run_once(__spec__.name, PREPARE, folder)
    run_once(__spec__.name, "zindex, builder", folder)  # writes what is worth it
    names, notes = (
        [*CACHED],
        [
            f"datasets of {_NUM_DOCUMENTS} documents; imports left out; fast options: "
            "fast_cache_load, defer_npy_index_mmap and sequences_per_dataset; all give the same "
            f"{_NUM_SAMPLES} samples"
        ],
    )
    if _MEGATRON_FILES * num_datasets > allow_files():
        notes.append(
            f"without them megatron-core keeps {_MEGATRON_FILES} files open for each dataset, "
            f"more than a process may here ({allow_files():,})"
        )
        names.remove("megatron-core, no options")
    table = Table.of_runs(
        f"cached-{num_datasets}",
        f"the builder over {num_datasets:,} cached datasets, until the first batch",
        take_turns(__spec__.name, names, num_runs, folder),
        rival="megatron-core, fast options",
        notes=notes,
    )
    return table.with_bar("zindex, fast options", 1)


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=2)
    parser.add_argument("--datasets", nargs="*", type=int, default=[1, 1000])
    parser.add_argument("--cached", nargs="*", type=int, default=[1000, 10_000])
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    tables = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for number in arguments.datasets:
            tables += measure(number, arguments.runs, Path(folder) / str(number))
            for table in tables[-3:]:
                show(table)
        for number in arguments.cached:
            tables.append(
                measure_builders(number, arguments.runs, Path(folder) / f"cached-{number}")
            )
            show(tables[-1])
    Record.of("bench_open", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
