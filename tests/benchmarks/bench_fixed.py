"""Fixed costs of ordinary sizes with default settings, against Megatron Core.

``python -m tests.benchmarks.bench_fixed --runs 3``; ``--documents 1e8 --datasets 10000`` takes long

Contenders take turns, each run in a fresh process without a variable of the environment and with an
empty home folder: the first process of ours finds no compiled kernel, the second finds those of the
first, and the third finds the index that the second built, as Megatron Core's second finds its own
caches. Each times the same work after its imports, which are a table of their own. Python's
compiled modules exist. Ours may compute lazily, so a construction, the construction and the first
sample, and the construction and one pass over all rows of all indices are three figures, and ratios
are of the last. Where all is built, a forked loader worker reads its first sample, too. Whether an
index is stored depends on its size: the rows "stored" and "computed" do one of both at every size.
"""

import argparse
import ctypes
import json
import os
import resource
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tests.benchmarks import bench_load
from tests.benchmarks.bench_build import make_corpus
from tests.benchmarks.bench_open import write_pairs
from tests.benchmarks.contenders import (
    ARRAYS,
    build_blend,
    import_all,
    import_module,
    make_config,
    make_dataset,
)
from tests.benchmarks.record import Record, Table, name_size, show
from tests.benchmarks.turns import (
    MADE,
    TOGETHER,
    Figures,
    digest,
    folder_nbytes,
    make_parser,
    take_turns,
)
from zindex.io.system_calls import peak_nbytes

MODULE = "tests.benchmarks.bench_fixed"
MEGATRON, MEGATRON_BUILT = "megatron-core", "megatron-core, all built"
FIRST, SECOND = "zindex, first process", "zindex, second process"
BUILT, ZINDEX = "zindex, all built", "zindex"
STORED, STORED_BUILT = "zindex, stored", "zindex, stored, all built"
COMPUTED = "zindex, computed"
#: Contender -> its package, the folder of its indices in the home folder of a round, and settings.
CONTENDERS: dict[str, tuple[str, str, dict[str, int]]] = {
    MEGATRON: ("megatron", "megatron", {}),
    MEGATRON_BUILT: ("megatron", "megatron", {}),
    FIRST: ("zindex", "first", {}),
    SECOND: ("zindex", "second", {}),
    BUILT: ("zindex", "second", {}),
    STORED: ("zindex", "stored", {"max_computed_rows": 0}),
    STORED_BUILT: ("zindex", "stored", {"max_computed_rows": 0}),
    COMPUTED: ("zindex", "computed", {"max_computed_rows": 1 << 62}),
}
#: Those that find all built, or need nothing: a loader worker of theirs is measured.
ALL_BUILT = (MEGATRON_BUILT, BUILT, STORED_BUILT, COMPUTED)
#: Documents -> how many times as fast as Megatron Core the construction must be.
DOCUMENT_GOALS = {1000: 1, 100_000: 1, 2_000_000: 2, 20_000_000: 3, 100_000_000: 3}
#: Steps of a dataset's first use; each figure is counted from the start of the first.
STEPS = ("seconds", "first_sample_seconds", "pass_seconds")
#: Rows of an index that are read at once.
_ROWS = 1 << 20
_LENGTH, _BLEND_LENGTH = 4096, 64
#: Files of a dataset that Megatron Core maps at the same time, and keeps open.
_MEGATRON_FILES = 6
LOADERS = {
    "zindex, no attention mask": {0: 6, 2: 5},
    "zindex, zstd store, no attention mask": {0: 1, 2: 1},
    "zindex, .bin/.idx pair, no attention mask": {0: 1, 2: 1},
}
COLD_LOADERS = {
    "zindex, no attention mask": 2.5,
    "zindex, zstd store, no attention mask": 1,
    "zindex, .bin/.idx pair, no attention mask": 1.5,
}


def measure_steps(
    construct: Callable[[], Any], list_parts: Callable[[Any], Any], *, in_worker: bool
) -> dict[str, Any]:
    """Return the figures of a dataset that is constructed and then read.

    Parameters
    ----------
    construct
        Makes the dataset.
    list_parts
        Returns the arrays of its indices.
    in_worker
        Whether a loader worker reads a sample first, whose time no other figure holds.
    """
    before, start = cpu_seconds(), time.perf_counter()
    dataset = construct()
    seconds, after = [time.perf_counter() - start], cpu_seconds()
    worker: Figures = {}
    if in_worker:
        from torch.utils.data import DataLoader  # no part of the imports that are measured

        begin = time.perf_counter()
        batches = iter(DataLoader(dataset, num_workers=1, multiprocessing_context="fork"))
        next(batches)
        worker["loader_worker_seconds"] = time.perf_counter() - begin
        del batches
        start += time.perf_counter() - begin
    dataset[0]
    seconds.append(time.perf_counter() - start)
    for array in list_parts(dataset):
        for first in range(0, len(array), _ROWS):
            np.asarray(array[first : first + _ROWS]).max()
    seconds.append(time.perf_counter() - start)
    return {
        **dict(zip(STEPS, seconds, strict=True)),
        **worker,
        "cpu_seconds": after - before,
        "peak_nbytes": peak_nbytes(),
        MADE: {"index": digest(*(np.asarray(part[:], np.int64) for part in list_parts(dataset)))},
    }


def cpu_seconds() -> float:
    """Return the processor's seconds of this process and of all that it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def list_indices(*datasets: Any) -> list[Any]:
    """Return the three index arrays of each dataset."""
    return [getattr(dataset, name) for dataset in datasets for name in ARRAYS]


def list_blend_indices(blend: Any) -> list[Any]:
    """Return the arrays of a blend and of its members."""
    return [blend.dataset_index, blend.dataset_sample_index, *list_indices(*blend.datasets)]


def measure_files(folder: str) -> Figures:
    """Return how much is stored in a folder, once what is kept in the background is there."""
    for thread in threading.enumerate():
        if thread.name == "zindex-keep":
            thread.join()
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {"written_nbytes": folder_nbytes(folder), "num_files": len(files)}


def measure_documents(
    package: str, cache: str, prefix: str, *, in_worker: bool, **settings: int
) -> dict[str, Any]:
    """Construct a ``GPTDataset``."""
    import_module(package, "gpt_dataset")
    figures = measure_steps(
        lambda: make_dataset(package, prefix, cache, _LENGTH, **settings),
        list_indices,
        in_worker=in_worker,
    )
    return figures | measure_files(cache)


def measure_builder(
    package: str, cache: str, run: str, *, in_worker: bool, **settings: int
) -> dict[str, Any]:
    """Let the builder make a blend and all its members."""
    import_all(package)
    paths, weights, num_samples = read_run(run)
    figures = measure_steps(
        lambda: build_blend(package, paths, weights, num_samples, cache, _BLEND_LENGTH, **settings),
        list_blend_indices,
        in_worker=in_worker,
    )
    return figures | measure_files(cache)


def measure_blend(
    package: str, cache: str, run: str, *, in_worker: bool, **settings: int
) -> dict[str, Any]:
    """Construct a ``BlendedDataset`` of members that are constructed before."""
    import_all(package)
    paths, weights, num_samples = read_run(run)
    kind = import_module(package, "blended_dataset").BlendedDataset
    start = time.perf_counter()
    members = [make_dataset(package, path, cache, _BLEND_LENGTH, **settings) for path in paths]
    before = time.perf_counter() - start
    config = make_config(package, (paths, weights), cache, _BLEND_LENGTH, **settings)
    figures = measure_steps(
        lambda: kind(members, weights, num_samples, config),
        lambda blend: [blend.dataset_index, blend.dataset_sample_index],
        in_worker=in_worker,
    )
    return figures | {"members_seconds": before}


def measure_imports(package: str, cache: str) -> Figures:
    """Import what a ``GPTDataset`` needs."""
    del cache
    before, start = time.process_time(), time.perf_counter()
    import_module(package, "gpt_dataset")
    import_module(package, "utils")
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - before,
        "peak_nbytes": peak_nbytes(),
        "num_modules": len(sys.modules),
    }


def measure_command(package: str, cache: str, run: str) -> Figures:
    """Build a run from the command line; Megatron Core, which has none, by a script."""
    if package == "zindex":
        described = json.loads(Path(run).read_text()) | {"index": cache}
        place = Path(f"{cache}.json")
        place.write_text(json.dumps(described))
        figures = measure_process("zindex", "build", str(place))
    else:
        figures = measure_process(MODULE, "--worker", MEGATRON, "builder", run)
    return figures | measure_files(cache)


def measure_quickstart(package: str, cache: str) -> Figures:
    """Run the README's quickstart."""
    return measure_process(package, "quickstart", "--folder", cache)


def measure_process(module: str, *arguments: str) -> Figures:
    """Return the seconds of ``python -m``, and the processor's seconds of all that it starts."""
    set_child_subreaper, before, start = 36, cpu_seconds(), time.perf_counter()
    ctypes.CDLL(None).prctl(set_child_subreaper, 1)  # processes left behind are waited for here
    if not os.environ.get(TOGETHER):
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
    else:
        _run_forked(module, *arguments)
    seconds = time.perf_counter() - start
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    return {"seconds": seconds, "cpu_seconds": cpu_seconds() - before}


def _run_forked(module: str, *arguments: str) -> NoReturn:
    """Run a module as ``python -m`` does, without its output, and end this process."""
    sys.argv, code = [module, *arguments], 1
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = int(bool(end.code))
    finally:
        os._exit(code)


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "documents": measure_documents,
    "builder": measure_builder,
    "blend": measure_blend,
    "imports": measure_imports,
    "command": measure_command,
    "quickstart": measure_quickstart,
}
#: Parts that construct a dataset and read it.
STEPPED = ("documents", "builder", "blend")


def read_run(path: str) -> tuple[list[str], list[float], int]:
    """Return the prefixes, the weights and the samples of a run file."""
    run = json.loads(Path(path).read_text())
    datasets = run["datasets"]
    paths, weights = ([each[key] for each in datasets] for key in ("path", "weight"))
    return paths, weights, run["samples"]["train"]


def run_worker(name: str, part: str, *arguments: str) -> None:
    """Measure one part of one contender in this process and print its figures as JSON."""
    package, folder, settings = CONTENDERS.get(name, (name, name, {}))
    cache = str(Path.home() / part / folder)
    Path(cache).parent.mkdir(exist_ok=True)
    steps = {"in_worker": name in ALL_BUILT} | settings if part in STEPPED else {}
    print(json.dumps(MEASURES[part](package, cache, *arguments, **steps)))


def compare_indices(
    key: str,
    title: str,
    part: str,
    num_runs: int,
    *arguments: object,
    contenders: Sequence[str] = tuple(CONTENDERS),
    **settings: Any,
) -> list[Table]:
    """Return the tables of one part: where nothing is built, and where all is."""
    runs = take_turns(MODULE, tuple(contenders), num_runs, part, *arguments, bare=True)
    return [
        Table.of_runs(
            f"{key}{suffix}",
            f"{title}: {state}",
            {name: runs[name] for name in names if name in runs},
            rival=names[0],
            ratio_of="pass_seconds",
            **settings,
        )
        for suffix, state, names in (
            ("", "nothing is built", (MEGATRON, FIRST, SECOND, STORED)),
            ("-built", "all is built", ALL_BUILT),
        )
    ]


def with_bars(table: Table, goal: float) -> Table:
    """Return the table with a bar of each step for each contender of ours that sets nothing."""
    for name in (FIRST, SECOND, BUILT):
        for figure in STEPS:
            table = table.with_bar(name, goal, figure=figure)
    return table


def with_limits(table: Table, limits: dict[str, float], *contenders: str) -> Table:
    """Return the table with a bar for the most that each figure of some contenders may be."""
    for name in contenders:
        for figure, limit in limits.items():
            table = table.with_limit(name, figure, limit)
    return table


def with_crossovers(tables: Sequence[Table]) -> Table:
    """Return the last of some sizes' tables with notes on the sizes at which one row beats another.

    What is compared is the time to a full pass.
    """
    notes = []
    for ours, other in (
        (FIRST, MEGATRON),
        (SECOND, MEGATRON),
        (BUILT, MEGATRON_BUILT),
        (STORED_BUILT, COMPUTED),
    ):
        pairs = [(table, table.row(ours), table.row(other)) for table in tables]
        ratios = [
            (table.compare(row, rival), table.key.removesuffix("-built").partition("-")[2])
            for table, row, rival in pairs
            if row and rival
        ]
        if ratios:
            fast = ", ".join(size for ratio, size in ratios if (ratio or 0) >= 1) or "no size"
            notes.append(f"crossover: {ours} is at least as fast as {other} at {fast}")
    return replace(tables[-1], notes=[*tables[-1].notes, *notes])


def compare_documents(folder: Path, num_documents: int, num_runs: int) -> list[Table]:
    """Return the tables of the construction of one dataset."""
    prefix = folder / f"documents-{num_documents}"
    make_corpus(prefix, num_documents)
    new, built = compare_indices(
        f"documents-{name_size(num_documents)}",
        f"GPTDataset of {num_documents:,} documents",
        "documents",
        num_runs,
        prefix,
    )
    for suffix in (".bin", ".idx"):
        Path(f"{prefix}{suffix}").unlink()
    return [with_bars(new, DOCUMENT_GOALS.get(num_documents, 1)), with_bars(built, 1)]


def write_run(
    folder: Path, num_datasets: int, *, num_documents: int = 200, num_samples: int | None = None
) -> Path:
    """Write pairs of documents of about 100 tokens and a run that blends them; return it."""
    folder.mkdir()
    run = write_pairs(folder, num_datasets, num_documents)
    if num_samples is not None:
        run["samples"] = {"train": num_samples}
    place = folder / "run.json"
    place.write_text(json.dumps(run))
    return place


def compare_builders(folder: Path, num_datasets: int, num_runs: int) -> list[Table]:
    """Return the tables of the builder over datasets of 200 documents."""
    place = write_run(folder / f"builder-{num_datasets}", num_datasets)
    contenders, notes = [*CONTENDERS], ["pass: over both arrays of the blend and the three of each"]
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if _MEGATRON_FILES * num_datasets > most_files:
        contenders = [name for name in contenders if CONTENDERS[name][0] != "megatron"]
        notes.append(
            f"megatron-core keeps {_MEGATRON_FILES} files open for each dataset: it cannot run "
            f"where a process may open {most_files:,}"
        )
    new, built = compare_indices(
        f"datasets-{num_datasets}",
        f"BlendedMegatronDatasetBuilder over {num_datasets:,} datasets of 200 documents",
        "builder",
        num_runs,
        place,
        contenders=contenders,
        notes=notes,
    )
    shutil.rmtree(place.parent)
    large = num_datasets >= 1000
    most = {"num_files": 20.0}
    if megatron := new.row(MEGATRON):
        most["written_nbytes"] = megatron.median("written_nbytes") or 0.0
    opening = dict.fromkeys(("first_sample_seconds", "loader_worker_seconds"), num_datasets * 3e-4)
    built = with_bars(built, 3 if large else 1)
    return [
        with_limits(with_bars(new, 2 if large else 1), most, SECOND, STORED),
        with_limits(built, opening, BUILT, STORED_BUILT) if large else built,
    ]


def compare_blends(folder: Path, num_samples: int, num_runs: int) -> list[Table]:
    """Return the tables of a blend of 10 datasets."""
    place = write_run(folder / "blend", 10, num_samples=num_samples, num_documents=2000)
    tables = compare_indices(
        f"blend-10-{name_size(num_samples)}",
        f"BlendedDataset of 10 datasets, {num_samples:,} samples",
        "blend",
        num_runs,
        place,
        notes=["members: the construction of its datasets before, which no other figure counts"],
    )
    return [with_bars(table, 1) for table in tables]


def compare_imports(num_runs: int) -> Table:
    """Return the table of imports."""
    runs = take_turns(MODULE, (MEGATRON, ZINDEX), num_runs, "imports", bare=True)
    title = "imports of what a GPTDataset needs, torch's with them"
    return Table.of_runs("imports", title, runs, rival=MEGATRON).with_bar(ZINDEX, 1)


def compare_commands(folder: Path, num_runs: int, *, quickstart: bool) -> Iterator[Table]:
    """Yield the tables of the command line."""
    names = (MEGATRON, FIRST, SECOND, BUILT)
    place = write_run(folder / "command", 1)
    table = Table.of_runs(
        "command",
        "zindex build of a run of 200 documents, from the command line",
        take_turns(MODULE, names, num_runs, "command", place, bare=True),
        rival=MEGATRON,
        ratio_of="cpu_seconds",
        notes=["whole processes with all that they start; megatron-core: a script and its builder"],
    )
    for name in names[1:]:
        table = table.with_limit(name, "cpu_seconds", 1)
    yield table
    if quickstart:
        runs = take_turns(MODULE, (FIRST, SECOND), 1, "quickstart", bare=True)
        table = Table.of_runs("quickstart", "zindex quickstart, after its installation", runs)
        yield table.with_limit(FIRST, "seconds", 25).with_limit(SECOND, "seconds", 25)


def compare_loaders(
    folder: Path, work: bench_load.Work, num_runs: int, num_workers: Sequence[int]
) -> Iterator[Table]:
    """Yield the tables of loaders, with the page cache and without."""
    names = [bench_load.MEGATRON_PLAIN, *LOADERS]
    kinds = [bench_load.CONTENDERS[name][2] for name in names]
    small = min(work.num_tokens, 20 * work.size * work.length)
    paths = {}
    for place, size in (("loaders", work.num_tokens), ("tiny", small)):
        (folder / place).mkdir()
        paths[place] = bench_load.write_data(folder / place, work.dtype, size, kinds)
    for cold in (False, True):
        for count in num_workers:
            # A batch from a disk may take a second.
            seconds = work.seconds * (4 if cold else 1)
            each = replace(work, num_workers=count, cold=cold, seconds=seconds)
            table = bench_load.compare_loaders(
                folder, paths["loaders"], names, num_runs, each, tiny=paths["tiny"], bare=True
            )
            for name, goals in LOADERS.items():
                goal = COLD_LOADERS[name] if cold else goals.get(count, 1)
                table = table.with_bar(name, goal)
            yield table


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments="+")
    parser.add_argument(
        "--documents", nargs="*", type=float, default=[1e3, 1e5, 2e6, 2e7], help="of one dataset"
    )
    parser.add_argument(
        "--datasets", nargs="*", type=int, default=[1, 10, 100, 1000], help="of a builder"
    )
    parser.add_argument("--samples", type=float, default=1e4, help="of a blend; 0 leaves it out")
    parser.add_argument("--tokens", type=float, default=1e8, help="0 leaves the loaders out")
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2, 8], help="of the loaders")
    parser.add_argument("--length", type=int, default=8192, help="of the loaders' samples")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run of a loader")
    parser.add_argument("--commands", choices=("none", "build", "all"), default="all")
    options = parser.parse_args()
    if options.worker:
        run_worker(*options.worker)
        return
    # Python compiles modules before anything is timed.
    take_turns(MODULE, (MEGATRON, ZINDEX), 1, "imports", bare=True)
    tables: list[Table] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for table in compare_all(Path(folder), options):
            tables.append(table)
            show(table)
    show_bars(tables)
    Record.of("bench_fixed", tables, options.folder).write(options.json)


def compare_all(folder: Path, options: argparse.Namespace) -> Iterator[Table]:
    """Yield the tables that the command line asks for."""
    if options.commands != "none":
        yield compare_imports(options.runs)
        yield from compare_commands(folder, options.runs, quickstart=options.commands == "all")
    for compare, sizes in (
        (compare_documents, options.documents),
        (compare_builders, options.datasets),
    ):
        seen: list[list[Table]] = []
        for size in map(int, sizes):
            seen.append(compare(folder, size, options.runs))
            last = len(seen) == len(sizes)
            yield from map(with_crossovers, zip(*seen, strict=True)) if last else seen[-1]
    if options.samples:
        yield from compare_blends(folder, int(options.samples), options.runs)
    if options.tokens:
        size = int(options.tokens)
        work = bench_load.Work(size, "uint16", 8, options.length, options.seconds)
        yield from compare_loaders(folder, work, options.runs, options.workers)


def show_bars(tables: Sequence[Table]) -> None:
    """Print the bars of all tables."""
    for table in tables:
        print(f"\n{table.title}")
        for note in table.notes:
            if note.startswith("bar: "):
                asked, found = note.removeprefix("bar: ").split("; ", 1)
                print(f"  {asked:75} {found}")


if __name__ == "__main__":
    main()
