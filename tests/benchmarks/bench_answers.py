"""Answers on runs of any length: what a step consumed, and where a document is.

``python -m tests.benchmarks.bench_answers --samples 1e9 --runs 3``

Four datasets of log-normal documents, 256 tokens on average, of which the ``.bin`` files are
sparse, are blended to samples of 64 tokens over about three epochs. Each run is a process of its
own that opens the order of the run once, then traces steps of 1,024 samples that it has not read
before, and finds documents. An unmeasured run before all others has put the pages that are read
into the page cache; files are opened by the first steps, which are measured apart. The command is
a whole ``zindex trace`` of one step, with Python's start.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import MADE, Figures, digest, make_parser, run_once, take_turns
from zindex.io.system_calls import peak_nbytes

SEQUENCE_LENGTH, MEAN_LENGTH = 64, 256
BATCH = 1024
NUM_DATASETS, NUM_EPOCHS = 4, 3.1
#: Steps that are traced before others are measured, and those.
_NUM_FIRST, _NUM_STEPS = 8, 16
_NUM_DOCUMENTS = 5

MEGATRON, INVERTED = "zindex, megatron order", "zindex, megatron order, with inverses"
SCALABLE, EDITED = "zindex, scalable, minimal", "zindex, scalable, edited"
PACKED = "zindex, packed"
#: The stores of a contender: settings of the run, and the folder of its index.
SETTINGS: dict[str, dict[str, Any]] = {
    MEGATRON: {"order": "megatron"},
    INVERTED: {"order": "megatron"},
    SCALABLE: {"order": "scalable", "store": "minimal"},
    EDITED: {"order": "scalable", "store": "minimal"},
    PACKED: {"order": "scalable", "store": "minimal", "packing": {}},
}


def write_datasets(folder: Path, num_samples: int) -> None:
    """Write token stores with enough documents for the samples."""
    from zindex.execution.executor import SerialExecutor
    from zindex.formats.idx_writer import write_index
    from zindex.ingest.convert import convert

    num_tokens = num_samples * SEQUENCE_LENGTH / NUM_EPOCHS
    num_documents = max(10, int(num_tokens / MEAN_LENGTH / NUM_DATASETS))
    prefixes = []
    for number in range(NUM_DATASETS):
        prefix = folder / f"d{number}"
        rng = np.random.default_rng(number)
        lengths = rng.lognormal(np.log(MEAN_LENGTH) - 0.5, 1.0, num_documents)
        lengths = np.clip(lengths, 1, 100_000).astype(np.int32)
        write_index(f"{prefix}.idx", np.uint16, lengths, np.arange(num_documents + 1), None)
        with open(f"{prefix}.bin", "wb") as stream:
            stream.truncate(2 * int(lengths.sum(dtype=np.int64)))
        prefixes.append(str(prefix))
    convert(prefixes, folder, link=True, client=SerialExecutor())


def prepare(name: str, folder: Path, num_samples: int) -> float:
    """Build what a contender reads, unless it is there; return the seconds."""
    import zindex

    place = folder / f"{name}.json"
    paths = sorted(map(str, folder.glob("*.zarr")))
    run = SETTINGS[name] | {
        "datasets": [{"path": path, "weight": 1 + n} for n, path in enumerate(paths)],
        "sequence_length": SEQUENCE_LENGTH,
        "split": "100,0,0",
        "samples": {"train": num_samples},
        "index": str(folder / "index"),
    }
    place.write_text(json.dumps(run))
    start = time.perf_counter()
    zindex.build(run, inverse=name == INVERTED)
    if name == EDITED:
        zindex.edit(run, num_samples // 10, reweight={paths[0]: 5.0})
    return time.perf_counter() - start


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Return the figures of one process."""
    from zindex.inspection.answers.find import find
    from zindex.inspection.answers.run_order import RunOrder
    from zindex.inspection.answers.trace import trace

    place = folder / f"{name}.json"
    start = time.perf_counter()
    order = RunOrder(json.loads(place.read_text()))
    opened = time.perf_counter() - start
    rng = np.random.default_rng(0)
    batch = min(BATCH, len(order))
    steps = rng.integers(0, len(order) // batch, _NUM_FIRST + _NUM_STEPS).tolist()
    steps[0] = 0
    traces, traced = _time_each(lambda step: trace(order, step, global_batch_size=batch), steps)
    later = traces[_NUM_FIRST:]
    num_documents = order.sources[0].source.facts.num_sequences
    documents = rng.integers(0, num_documents, _NUM_DOCUMENTS + 1).tolist()
    finds, found = _time_each(lambda document: find(order, 1, document), documents)
    finds = finds[1:]
    command = (sys.executable, "-m", "zindex", "trace", str(place), "--json")
    start = time.perf_counter()
    subprocess.run(
        (*command, "--step", "1", "--global-batch-size", str(batch)),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    positions = [sample.position for each in found for sample in each.documents[0].samples]
    samples = [[sample.dataset_id, sample.sample] for sample in traced[0].samples]
    made = f"{SETTINGS[name]} {name == EDITED}"
    return {
        "opening_ms": 1e3 * opened,
        "first_trace_ms": 1e3 * traces[0].seconds,
        "trace_ms": 1e3 * statistics.median(each.seconds for each in later),
        "trace_processor_ms": 1e3 * statistics.median(each.processor for each in later),
        "find_ms": 1e3 * statistics.median(each.seconds for each in finds),
        "find_processor_ms": 1e3 * statistics.median(each.processor for each in finds),
        "command_seconds": time.perf_counter() - start,
        "peak_nbytes": peak_nbytes(),
        MADE: {made: digest(np.array(samples), np.array(positions, np.int64))},
    }


class Timed(NamedTuple):
    """Seconds of one call, as they pass and of the processor."""

    seconds: float
    processor: float


def _time_each(
    function: Callable[[int], Any], arguments: list[int]
) -> tuple[list[Timed], list[Any]]:
    """Return the times of each call, and the results."""
    times, results = [], []
    for argument in arguments:
        start = time.perf_counter(), time.process_time()
        results.append(function(argument))
        times.append(Timed(time.perf_counter() - start[0], time.process_time() - start[1]))
    return times, results


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=2)
    parser.add_argument("--samples", type=float, default=1e9)
    parser.add_argument("--contenders", nargs="+", default=list(SETTINGS))
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(arguments.worker[0], Path(arguments.worker[1]))))
        return
    num_samples = int(arguments.samples)
    runs: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        write_datasets(Path(folder), num_samples)
        for number, name in enumerate(arguments.contenders):
            seconds = prepare(name, Path(folder), num_samples)
            run_once(__spec__.name, name, folder)  # reads the pages
            runs |= take_turns(__spec__.name, [name], arguments.runs, folder)
            for figures in runs[name]:
                figures["building_seconds"] = seconds
            after = arguments.contenders[number + 1 : number + 2]
            if [SETTINGS[each] for each in after] != [SETTINGS[name]]:
                shutil.rmtree(os.path.join(folder, "index"))
    table = Table.of_runs(
        "steps",
        f"steps of {BATCH:,} samples traced, and documents found, in {name_size(num_samples)} "
        "samples",
        runs,
        notes=[
            "first trace: opens the files of the index and loads compiled kernels; trace: median "
            f"of {_NUM_STEPS} later steps, each read for the first time by the process; find: "
            f"median of {_NUM_DOCUMENTS} documents",
            "building: of what the contender adds to the one before it, if both share an index",
        ],
    )
    show(table)
    Record.of("bench_answers", [table], arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
