"""Time to the first batch of a run, after the whole build or while the rest is being built.

``python -m tests.benchmarks.bench_follow --datasets 4 --samples 1e8 --runs 3``

Both open the same run, a greedy blend by weights over several datasets, and read a batch of 32
samples; then they wait for the end of the build, whose time must not suffer. First nothing is
built, then only the blend is missing. They take turns, each in a process of its own that has
imported and compiled everything.
"""

import json
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.benchmarks.bench_build import make_corpus
from tests.benchmarks.record import Record, Table, show
from tests.benchmarks.turns import make_parser, take_turns
from zindex.io.system_calls import peak_nbytes

WAIT, FOLLOW = "wait for the build", "follow the build"
MISSING = {"all": "nothing is built", "blend": "only the blend is missing"}
SEQUENCE_LENGTH = 64
BATCH = 32


def make_run(folder: Path, num_datasets: int, num_documents: int, num_samples: int) -> Path:
    """Write the corpora of a run and its YAML file."""
    folder.mkdir()
    for number in range(num_datasets):
        make_corpus(folder / f"corpus-{number}", num_documents + number)
    run = {
        "sequence_length": SEQUENCE_LENGTH,
        "split": "100,0,0",
        "samples": {"train": num_samples},
        "datasets": [
            {"path": f"corpus-{number}", "weight": 1 + number} for number in range(num_datasets)
        ],
    }
    path = folder / "run.yaml"
    path.write_text(json.dumps(run))
    return path


def open_and_read(path: str, follow: float | None) -> tuple[float, Any]:
    """Return the seconds to the first batch of a run, and its dataset."""
    from zindex.datasets.run_datasets import open_run

    tokenizer = SimpleNamespace(unique_identifiers={}, vocab_size=65536, eod=0, pad=-1)
    start = time.perf_counter()
    dataset: Any = open_run(path, tokenizer, follow=follow, create_attention_mask=False)["train"]
    batch = dataset.__getitems__(range(BATCH))
    assert batch.tensors["tokens"].shape == (BATCH, SEQUENCE_LENGTH)
    return time.perf_counter() - start, dataset


def run_worker(name: str, missing: str, path: str, tiny: str) -> None:
    """Open a run in this process and print its figures as JSON."""
    import distributed  # noqa: F401  as a training process that has begun to work

    from zindex.kernels import numpy_budget

    follow = 600.0 if name == FOLLOW else None
    shutil.rmtree(Path(tiny).parent / "index", ignore_errors=True)
    numpy_budget.exhaust()
    open_and_read(tiny, None)
    pattern = "blend-*" if missing == "blend" else "*"
    for store in (Path(path).parent / "index").glob(pattern):
        shutil.rmtree(store)
    start = time.perf_counter()
    first, dataset = open_and_read(path, follow)
    dataset.dataset_count  # noqa: B018  the last that is built
    figures = {
        "first_batch_seconds": first,
        "build_seconds": time.perf_counter() - start,
        "peak_nbytes": peak_nbytes(),
    }
    open_and_read(path, None)  # after the commit, before the folder is removed
    print(json.dumps(figures))


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=4)
    parser.add_argument("--datasets", type=int, default=4)
    parser.add_argument("--documents", type=float, default=1e5)
    parser.add_argument("--samples", type=float, default=1e8)
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        numbers = (arguments.datasets, int(arguments.documents), int(arguments.samples))
        path = make_run(Path(folder) / "run", *numbers)
        tiny = make_run(Path(folder) / "tiny", 2, 100, 1000)
        tables = []
        for missing, words in MISSING.items():
            work = (missing, path, tiny)
            runs = take_turns(__spec__.name, (WAIT, FOLLOW), arguments.runs, *work)
            table = Table.of_runs(
                f"missing-{missing}",
                f"first batch of {BATCH} samples of a blend of {numbers[2]:,} samples over "
                f"{arguments.datasets} datasets of {numbers[1]:,} documents: {words}",
                runs,
                rival=WAIT,
                ratio_of="first_batch_seconds",
                notes=["build: to the end of the whole build, the first batch included"],
            )
            show(table)
            tables.append(table)
    Record.of("bench_follow", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
