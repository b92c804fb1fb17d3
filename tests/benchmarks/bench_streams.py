"""Samples per second of zindex and its peers, with the quality of their shuffles.

``python -m tests.benchmarks.peers litdata streaming energon`` makes the peers' environments, once.
Then ``python -m tests.benchmarks.bench_streams --samples 24000 --workers 0 4 --latency 0.05``

The same samples of some 2 kB are written in each library's own format, in six files (or shards).
Each contender reads them through torch's DataLoader or its own, shuffled, three epochs in one go in
a process of its own; the first one warms up. Contenders take turns. The entropy of the samples'
files in windows of 256 samples is at most 2.58 bits. A peer that is not there is left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.bench_remote import serve
from tests.benchmarks.peers.__main__ import DEFAULT_FOLDER, python_of
from tests.benchmarks.peers.streams import BATCH, BUFFER, READERS
from tests.benchmarks.record import ROOT, Record, Table, show

OURS = "zindex"
#: Contender -> its environment; None: this one.
ENVIRONMENTS = {
    OURS: None,
    "webdataset": None,
    "MosaicML Streaming": "streaming",
    "LitData": "litdata",
    "Energon": "energon",
}
#: Contenders that read archives over HTTP; the others speak S3 or clouds' own protocols only.
REMOTE = (OURS, "webdataset")

REMOTE_NOTES = [
    "over HTTP zindex copies archives of at most 256 MiB together to the node before the first "
    "batch, unless an earlier run has, and reads them as local ones",
    "the other peers speak S3 or clouds' own protocols only",
]

NOTES = [
    "zindex: MergedDataset of MetaDistributedWebDataset, its defaults: a permutation of all "
    "samples, and a state on each, for exact resuming",
    f"webdataset: WebDataset(shardshuffle=True).repeat().shuffle({BUFFER:,}); no state",
    "MosaicML Streaming: StreamingDataset(shuffle=True), its defaults (py1e), MDS of bytes",
    "LitData: StreamingDataset(shuffle=True), its defaults: chunks in random order, and the items "
    "of a chunk in blocks of 256, so each worker reads file by file; samples that were shuffled "
    "before they were written would be mixed, at this speed",
    f"Energon: shuffle_buffer_size={BUFFER:,}, max_samples_per_sequence=100, a cooker that keeps "
    "the sample; its decoder and collation are left out",
    f"batches of {BATCH} as lists; nothing is decoded",
]


class Turns:
    """Runs of contenders in their environments."""

    def __init__(self, folder: Path) -> None:
        self.pythons = {
            name: Path(sys.executable) if environment is None else python_of(folder, environment)
            for name, environment in ENVIRONMENTS.items()
        }
        self.pythons = {name: python for name, python in self.pythons.items() if python.exists()}
        self.versions: dict[str, str] = {}

    def run(self, what: str, name: str, *arguments: object) -> dict[str, float]:
        """Return the figures of a new process."""
        module = "tests.benchmarks.peers.streams"
        options = [what, name, *map(str, arguments)]
        command = [str(self.pythons[name]), "-W", "ignore", "-m", module, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name} failed to {what}:\n{done.stderr[-4000:]}")
        answer = json.loads(done.stdout.splitlines()[-1])
        versions = answer.get("versions", {})
        self.versions |= {key: text for key, text in versions.items() if key != "python"}
        figures: dict[str, float] = answer.get("figures", {})
        return figures

    def make_table(
        self, key: str, title: str, places: dict[str, str], sizes: tuple[int, int, int]
    ) -> Table:
        """Let the contenders that have a place take turns: samples, workers, and runs of each."""
        num_samples, num_workers, num_runs = sizes
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in places}
        for _ in range(num_runs):
            for name, place in places.items():
                runs[name].append(self.run("read", name, place, num_samples, num_workers))
        missing = [f"{name} is not there" for name in ENVIRONMENTS if name not in self.pythons]
        rival = {name: OURS for name in places if name != OURS}
        return Table.of_runs(
            key, title, runs, rival=rival, ratio_of="samples_per_second", notes=[*NOTES, *missing]
        )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=float, default=24_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 4])
    parser.add_argument("--latency", type=float, default=0.05, help="seconds; 0: none over HTTP")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where to work; a temporary folder by default")
    parser.add_argument("--peers-folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--json", help="file for the record")
    arguments = parser.parse_args()
    num_samples, num_runs = int(arguments.samples), arguments.runs
    turns, tables = Turns(arguments.peers_folder), []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        places = {}
        for name in turns.pythons:
            form = READERS[name][0]
            places[name] = f"{folder}/{form}"
            if not Path(places[name]).exists():
                turns.run("write", name, places[name], num_samples, 0)
        what = f"{num_samples:,} samples of 2 kB in six files, shuffled"
        for num_workers in arguments.workers:
            title = f"{what}, {num_workers} workers, in the page cache"
            sizes = num_samples, num_workers, num_runs
            tables.append(turns.make_table(f"warm-{num_workers}", title, places, sizes))
            show(tables[-1])
        if arguments.latency:
            with serve(Path(folder), arguments.latency) as url:
                remote = {name: f"{url}/tar" for name in REMOTE}
                for num_workers in arguments.workers:
                    title = f"{what}, {num_workers} workers, HTTP {arguments.latency * 1000:g} ms"
                    sizes = num_samples, num_workers, num_runs
                    table = turns.make_table(f"remote-{num_workers}", title, remote, sizes)
                    tables.append(replace(table, notes=[*table.notes[:2], *REMOTE_NOTES]))
                    show(tables[-1])
    record = Record.of(Path(__file__).stem, tables, arguments.folder)
    replace(record, versions=record.versions | turns.versions).write(arguments.json)


if __name__ == "__main__":
    main()
