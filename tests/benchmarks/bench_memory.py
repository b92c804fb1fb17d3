"""Peak memory of builds at several corpus sizes: it must not grow with the corpus.

``python -m tests.benchmarks.bench_memory --documents 1e7 1e8 1e9``

Each build is a process of its own, with what it imports and compiles; ours runs its tasks in
threads of the process. The documents are in a hundred datasets, or in one. ``anonymous`` leaves out
pages of files, which the system takes back when it needs them. Megatron Core's rank 0 builds one
dataset after the other; its peak is that of the largest one alone, without what it keeps of the
others.
"""

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_build import SEQUENCE_LENGTH, build_megatron
from tests.benchmarks.bench_trillions import MEAN_LENGTH, list_prefixes, make_corpora
from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import make_parser, take_turns
from zindex.io.system_calls import peak_nbytes

RIVAL = "megatron-core, one dataset"
#: Contender -> datasets, and settings of a run; None for the rival.
CONTENDERS: dict[str, tuple[int, dict[str, Any] | None]] = {
    "zindex, scalable, 100 datasets": (100, {"order": "scalable"}),
    "zindex, scalable, minimal, 100 datasets": (100, {"order": "scalable", "store": "minimal"}),
    "zindex, scalable, one dataset": (1, {"order": "scalable"}),
    "zindex, megatron order, 100 datasets": (100, {"order": "megatron"}),
    "zindex, megatron order, one dataset": (1, {"order": "megatron"}),
    RIVAL: (1, None),
}
#: Larger corpora are measured where memory must not grow: the legacy shuffle holds all documents.
_MOST_OF_OTHERS = 10**8
_PAUSE = 0.02


@contextmanager
def watch_anonymous() -> Iterator[list[int]]:
    """Give a list that holds the most anonymous memory of this process once the block has ended."""
    most, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(_PAUSE):
            status = Path("/proc/self/status").read_text()
            most[0] = max(most[0], 1024 * int(status.split("RssAnon:")[1].split()[0]))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def run_worker(name: str, folder: str) -> None:
    """Build once in this process and print its figures as JSON."""
    num_datasets, settings = CONTENDERS[name]
    prefixes = list_prefixes(f"{folder}/datasets-{num_datasets}")
    with tempfile.TemporaryDirectory(dir=folder) as target, watch_anonymous() as most:
        if settings is None:
            build_megatron(prefixes[0], target)
        else:
            import zindex

            run = {
                "datasets": [{"path": prefix, "epochs": 1} for prefix in prefixes],
                "sequence_length": SEQUENCE_LENGTH,
                "split": "100,0,0",
                "index": target,
            }
            zindex.build(run | settings)
    print(json.dumps({"peak_nbytes": peak_nbytes(), "anonymous_nbytes": most[0]}))


def measure(folder: Path, num_documents: int, num_runs: int) -> Table:
    """Return the table of one size."""
    place = folder / f"documents-{name_size(num_documents)}"
    names = [
        name
        for name in CONTENDERS
        if num_documents <= _MOST_OF_OTHERS or name.startswith("zindex, scalable")
    ]
    for num_datasets in (1, 100):
        corpora = place / f"datasets-{num_datasets}"
        make_corpora(corpora, num_documents * MEAN_LENGTH, num_datasets)
    runs = take_turns(__spec__.name, names, num_runs, place, keep_kernels=False)
    shutil.rmtree(place)
    return Table.of_runs(
        f"documents-{name_size(num_documents)}",
        f"peak memory of the build of {num_documents:,} documents",
        runs,
        rival=RIVAL if RIVAL in names else None,
        ratio_of="peak_nbytes",
    )


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=2)
    parser.add_argument("--documents", nargs="+", type=float, default=[1e7, 1e8, 3e8])
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    tables = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for num_documents in sorted(map(int, arguments.documents)):
            tables.append(measure(Path(folder), num_documents, arguments.runs))
            show(tables[-1])
    Record.of("bench_memory", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
