"""All benchmarks, in a short form that tests run and in the long one that the page shows.

``python -m tests.benchmarks [--all] [--stale] [--short] [--only NAME ...] [--json-folder DIR]``

One after another, each as its own command with its own record, those first that the README cites.
Two idle cores need some 40 minutes, and an hour more for those that only ``--all`` or ``--only``
runs. One that fails does not stop the others; the last line names all that failed. After an
interrupt, ``--stale`` continues with those that were not measured with the code as it is.
``TMPDIR`` says where they work: nothing else should run on the machine, and the long forms need
some 60 GB of disk there.
"""

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.record import ROOT, Record, code_version
from tests.benchmarks.turns import TOGETHER

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Benchmark:
    """One command, with its arguments in both forms."""

    #: Of its record: that of its module, and after a hyphen that of a form.
    name: str
    #: Minutes at most: sizes at which the fixed costs are small, several runs.
    long: str
    #: Seconds, most of them for imports: little data, one run, all contenders in one process.
    #: None where another form of the module has one.
    short: str | None = None
    #: Whether it runs only where all are asked for.
    extra: bool = False

    @property
    def module(self) -> str:
        """The name of its module."""
        return f"tests.benchmarks.{self.name.partition('-')[0]}"

    @property
    def exists(self) -> bool:
        """Whether there is such a module."""
        return importlib.util.find_spec(self.module) is not None

    def arguments(self, *, short: bool) -> list[str]:
        """Return the arguments of one form."""
        return shlex.split(self.short or "" if short else self.long)

    def command(self, *, short: bool) -> list[str]:
        """Return the command of one form."""
        return [sys.executable, "-W", "ignore", "-m", self.module, *self.arguments(short=short)]

    def is_stale(self, folder: Path) -> bool:
        """Return whether a folder has no record of it with the code as it is."""
        place, code = folder / f"{self.name}.json", code_version()
        return code.endswith("+") or not place.exists() or Record.read(place).code != code


_KERNELS = (
    "'numpy, RandomState.shuffle' 'zindex, legacy shuffle' 'zindex, keyed bijection' "
    "'megatron-core, _build_document_index' 'zindex, legacy' "
    "'megatron-core, build_sample_idx' 'zindex, gather, sum and fill'"
)
_BLENDS = "'megatron-core helper' 'zindex, megatron order' 'zindex, scalable order, uniform'"
_LOADERS = (
    "'megatron-core, its defaults' 'megatron-core, no attention mask' 'zindex, attention mask' "
    "'zindex, no attention mask' 'zindex, scalable, minimal, no attention mask'"
)
_FEW_LOADERS = "'megatron-core, no attention mask' 'zindex, no attention mask'"

BENCHMARKS = (
    Benchmark(
        "bench_fixed",
        short="--documents 500 --datasets 2 --samples 100 --tokens 1e5 --length 64 --seconds 0.05 "
        "--workers 0 --commands build --runs 1",
        long="--documents 1e3 1e5 2e6 2e7 --datasets 1 10 100 1000 --tokens 0 --runs 2",
    ),
    Benchmark(
        "bench_fixed-loaders",
        long="--documents --datasets --samples 0 --commands none --tokens 1e8 --workers 0 2 8 "
        "--seconds 1 --runs 2",
    ),
    Benchmark(
        "bench_trillions",
        short="--tokens 1e8 --datasets 20 --runs 1",
        long="--tokens 1e12 --runs 1",
    ),
    Benchmark(
        "bench_build",
        short="--documents 2e4 --runs 1",
        long="--documents 1e7 1e8 --runs 2",
    ),
    Benchmark(
        "bench_blend",
        short=f"--datasets 9 --samples 1e4 --runs 1 --contenders {_BLENDS}",
        long="--datasets 100 1000 --more-datasets 10 10000 --samples 1e8 --runs 2",
    ),
    Benchmark(
        "bench_load",
        short="--tokens 1e5 --length 64 --batch 4 --seconds 0.05 --runs 1 --dtypes uint16 "
        f"--contenders {_FEW_LOADERS}",
        long=f"--tokens 1e8 --seconds 2 --runs 2 --datasets 1000 --contenders {_LOADERS}",
    ),
    Benchmark(
        "bench_read",
        short="--tokens 2e5 --members 3 --reads 1 --runs 1",
        long="--tokens 1e8 --members 1000 --runs 2",
    ),
    Benchmark(
        "bench_kernels",
        short=f"--size 1e5 --runs 1 --contenders {_KERNELS}",
        long="--size 1e8 --runs 2",
    ),
    Benchmark(
        "bench_open",
        short="--datasets 3 --cached 3 --runs 1",
        long="--datasets 1 1000 --cached 1000 10000 --runs 2",
    ),
    Benchmark(
        "bench_memory",
        short="--documents 2e4 --runs 1",
        long="--documents 1e7 1e8 --runs 1",
    ),
    Benchmark(
        "bench_isolation",
        short="--steps 20 --documents 1e3 --samples 1e4 --runs 1",
        long="--steps 400 --documents 1e6 --samples 1e8 --runs 3",
    ),
    Benchmark(
        "bench_workers",
        short="--workers 3 --tasks 20 --datasets 20 --documents 1e3 --runs 1",
        long="--workers 10 100 1000 --tasks 2000 --datasets 1000 --documents 5e5 --runs 1",
    ),
    Benchmark("bench_trillions-long", long="--tokens 5e11 5e12 --runs 1", extra=True),
    Benchmark(
        "bench_fixed-long",
        long="--documents 1e8 --datasets 3000 10000 --samples 0 --tokens 0 --commands none "
        "--runs 1",
        extra=True,
    ),
    Benchmark(
        "bench_blend-long",
        long="--datasets --more-datasets 1000 --samples 2e9 --runs 1",
        extra=True,
    ),
    Benchmark("bench_memory-long", long="--documents 3e8 --runs 1", extra=True),
    Benchmark(
        "bench_remote",
        short="--tokens 2e5 --length 64 --seconds 0.2 --latency 0.001 --runs 1",
        long="--tokens 1e8 --latency 0.03 --seconds 8 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_growing",
        short="--generations 4 --records 2 --writers 1 --batches 2 --rounds 1 --runs 1",
        long="--generations 400 --records 32 --writers 1 4 --latency 0.02 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_commit",
        short="--size 2e5 --runs 1",
        long="--size 1e8 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_convert",
        short="--tokens 2e5 --runs 1",
        long="--tokens 5e8 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_keyed",
        short="--samples 256 --drawn 1e3 --runs 1",
        long="--samples 16384 --batches 32 128 --drawn 1e3 1e7 1e9 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_records",
        short="--records 200 --runs 1",
        long="--records 1e5 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_streaming",
        short="--samples 200 --letters 100 --runs 1",
        long="--samples 4e4 --letters 200 2000 8000 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_masked",
        short="--documents 60 --samples 32 --seconds 0.02 --runs 1",
        long="--documents 1e4 --seconds 1 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_mapping",
        short="--documents 2000 --kinds 'short ones' --runs 1",
        long="--documents 2e6 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_tokenize",
        short="--megabytes 0.2 --runs 1 --contenders 'plain batch loop' "
        "'zindex, 1 process, .bin/.idx' 'plain batch loop, records' 'zindex, 1 process, records'",
        long="--megabytes 25 --runs 3",
        extra=True,
    ),
    Benchmark("bench_schedules", short="--batches 3 --runs 1", long="--batches 400", extra=True),
    Benchmark(
        "bench_packing",
        short="--documents 2e4 --python 2000 --kinds lognormal --runs 1",
        long="--documents 2e7 --python 1e6 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_ahead",
        short="--datasets 3 --documents 1000 --samples 1000 --runs 1",
        long="--datasets 200 --documents 1e6 --samples 1e8 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_answers",
        short="--samples 2e4 --runs 1 --contenders 'zindex, megatron order' "
        "'zindex, megatron order, with inverses' 'zindex, packed'",
        long="--samples 1e9 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_follow",
        short="--datasets 2 --documents 500 --samples 2e4 --runs 1",
        long="--datasets 4 --documents 1e5 --samples 1e8 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_peers",
        short="--samples 2e4 --datasets 5 --mixed-samples 2e4 --epoch-samples 2e4 --together",
        long="--samples 3e7 --datasets 10 100 1000 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_streams",
        short="--samples 600 --workers 0 --latency 0.001 --runs 1 --peers-folder none",
        long="--samples 24000 --workers 0 4 --latency 0.05 --runs 3",
        extra=True,
    ),
    Benchmark(
        "bench_scaling",
        short="--documents 4e3 --most-datasets 20 --workers 1 --tasks 50 --nodes 1 4 "
        "--tokens 1e11 --datasets 20 --seconds 0.1 --runs 1",
        long="--documents 4e6 2e7 --runs 3",
        extra=True,
    ),
)
NAMES = tuple(benchmark.name for benchmark in BENCHMARKS)


def run_suite(benchmarks: Sequence[Benchmark], *, short: bool, folder: Path | None) -> list[str]:
    """Run benchmarks one after another; return the names of those that failed.

    Parameters
    ----------
    benchmarks
        What is run, in this order. One whose module is missing is left out, and said to be.
    short
        Which form.
    folder
        Where ``<benchmark>.json`` is written; None: nowhere.
    """
    failed, begin = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kernels-") as kernels:
        environment = dict(os.environ)
        if short:
            # What one benchmark compiled, the others need not compile again.
            environment = {"NUMBA_CACHE_DIR": kernels, TOGETHER: "1"} | environment
        for number, benchmark in enumerate(benchmarks, 1):
            place = f"[{number}/{len(benchmarks)}]"
            if not benchmark.exists:
                print(f"{place} {benchmark.name} is missing: left out", flush=True)
                continue
            command = benchmark.command(short=short)
            print(f"{place} {shlex.join(['python', *command[3:]])}", flush=True)
            if folder is not None:
                command += ["--json", str(folder / f"{benchmark.name}.json")]
            start = time.monotonic()
            if subprocess.run(command, cwd=ROOT, env=environment).returncode:
                failed.append(benchmark.name)
            verdict = "failed" if benchmark.name in failed else "done"
            seconds = time.monotonic() - start
            print(f"\n{place} {benchmark.name} {verdict} in {seconds:,.0f} s\n", flush=True)
    total = time.monotonic() - begin
    print(f"{len(benchmarks)} benchmarks in {total:,.0f} s", end="", flush=True)
    print(f"; failed: {', '.join(failed)}" if failed else "", flush=True)
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite as the command line says; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__.splitlines()[0]
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true", help="little data, once: do they work?")
    form.add_argument("--long", action="store_true", help="what the page shows; the default")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    extras = ", ".join(each.name for each in BENCHMARKS if each.extra)
    parser.add_argument("--all", action="store_true", help=f"in the long form also {extras}")
    parser.add_argument(
        "--stale", action="store_true", help="only what has no record of the code as it is"
    )
    parser.add_argument(
        "--json-folder",
        type=Path,
        help="where the records go; in the long form tests/benchmarks/results by default",
    )
    options = parser.parse_args(arguments)
    folder = options.json_folder or (None if options.short else RESULTS)
    if folder is not None:
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
    every = options.all or options.short
    chosen = [
        each
        for each in BENCHMARKS
        if (each.name in options.only if options.only else every or not each.extra)
        and not (options.short and each.short is None)
        and (not options.stale or each.is_stale(folder or RESULTS))
    ]
    return 1 if run_suite(chosen, short=options.short, folder=folder) else 0
