"""A permutation that starts before datasets are opened, against one that starts afterwards.

``python -m tests.benchmarks.bench_ahead --datasets 200 --documents 1e6 --samples 1e8``

Both build the same run: many ``.idx`` files to validate and digest, an index that they share, and
a scalable blend by epochs, of which only the size is known beforehand. They take turns, each in a
process of its own that has compiled everything.
"""

import json
import os
import shutil
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

from tests.benchmarks.bench_build import SEQUENCE_LENGTH, make_corpus
from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import make_parser, take_turns
from zindex.io.system_calls import peak_nbytes

AFTER, AHEAD = "permutation after opening", "permutation ahead"


def make_run(folder: Path, num_datasets: int, num_documents: int, num_samples: int) -> Path:
    """Write the corpora of a run and its YAML file."""
    folder.mkdir()
    make_corpus(folder / "corpus-0", num_documents)
    for number in range(1, num_datasets):
        shutil.copyfile(folder / "corpus-0.idx", folder / f"corpus-{number}.idx")
        # Sparse, and never read: a copy would fill the disk.
        os.link(folder / "corpus-0.bin", folder / f"corpus-{number}.bin")
    run = {
        "sequence_length": SEQUENCE_LENGTH,
        "split": "100,0,0",
        "order": "scalable",
        "samples": {"train": num_samples},
        "datasets": [
            {"path": f"corpus-{number}", "epochs": 1 + number % 3} for number in range(num_datasets)
        ],
    }
    path = folder / "run.yaml"
    path.write_text(json.dumps(run))
    return path


def run_worker(name: str, path: str, tiny: str) -> None:
    """Build a run in this process and print its figures as JSON."""
    import zindex
    from zindex.indexing import run as building_run
    from zindex.kernels import numpy_budget

    folder = Path(path).parent
    shutil.rmtree(Path(tiny).parent / "index", ignore_errors=True)
    nothing = mock.patch.object(building_run, "known_permutations", return_value=())
    with nothing if name == AFTER else nullcontext():
        numpy_budget.exhaust()
        zindex.build(tiny)
        start = time.perf_counter()
        zindex.build(path, timeline=folder / f"{name}.json")
        seconds = time.perf_counter() - start
    shutil.rmtree(folder / "index")
    events = json.loads((folder / f"{name}.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    opening = [span for span in spans if span["cat"] == "open"]
    begin = min(span["ts"] for span in opening)
    end = max(span["ts"] + span["dur"] for span in opening)
    permutation = [span for span in spans if span["cat"] == "permutation"]
    meanwhile = sum(max(0, min(end, span["ts"] + span["dur"]) - span["ts"]) for span in permutation)
    figures = {
        "seconds": seconds,
        "opening_seconds": (end - begin) / 1e6,
        "permutation_seconds": sum(span["dur"] for span in permutation) / 1e6,
        "meanwhile_seconds": meanwhile / 1e6,
        "peak_nbytes": peak_nbytes(),
    }
    print(json.dumps(figures))


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=3)
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--documents", type=float, default=1e6)
    parser.add_argument("--samples", type=float, default=1e8)
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        numbers = (arguments.datasets, int(arguments.documents), int(arguments.samples))
        path = make_run(Path(folder) / "run", *numbers)
        tiny = make_run(Path(folder) / "tiny", 2, 1000, 1000)
        runs = take_turns(__spec__.name, (AFTER, AHEAD), arguments.runs, path, tiny)
    table = Table.of_runs(
        f"datasets-{arguments.datasets}-samples-{name_size(numbers[2])}",
        f"scalable blend of {numbers[2]:,} samples by epochs over {arguments.datasets:,} datasets "
        f"of {numbers[1]:,} documents",
        runs,
        rival=AFTER,
        notes=[
            "opening: all datasets validated and digested; meanwhile: of the permutation's tasks, "
            "what ran before that ended, in seconds of threads"
        ],
    )
    show(table)
    Record.of("bench_ahead", [table], arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
