"""zindex compared with MosaicML Streaming, Grain and LitData: shuffle, mixture and epoch plan.

``python -m tests.benchmarks.peers`` makes the peers' environments, once. Then
``python -m tests.benchmarks.bench_peers [--samples 1e8] [--datasets 10 100 1000] [--runs 3]``

Contenders take turns, each in a process of its own, in its library's own environment, warmed up by
a small run of the same work. Everything is in memory and on one thread. A peer that is not there
is left out, and the tables say so.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.peers import measuring
from tests.benchmarks.peers.__main__ import DEFAULT_FOLDER, PEERS, python_of
from tests.benchmarks.peers.measuring import Work, write_command
from tests.benchmarks.record import ROOT, Record, Table, show

#: Kind of work -> contender -> the file that runs it.
CONTENDERS = {
    "shuffle": {
        "numpy, RandomState.shuffle": "numpy",
        "numpy, Generator.permutation": "numpy",
        "zindex, legacy": "zindex",
        "zindex, keyed": "zindex",
        "zindex, uniform": "zindex",
        "Streaming, py1e": "streaming",
        "Streaming, py1s": "streaming",
        "Grain, index_shuffle": "grain",
    },
    "access": {
        "numpy, Generator.permutation, then take": "numpy",
        "zindex, keyed, one call": "zindex",
        "zindex, keyed, calls of 8": "zindex",
        "zindex, keyed, calls of 1": "zindex",
        "Grain, index_shuffle": "grain",
        "Grain, MapDataset.shuffle": "grain",
        "Grain, IndexSampler": "grain",
    },
    "mixture": {
        "numpy, Generator.choice": "numpy",
        "zindex, greedy": "zindex",
        "zindex, scalable": "zindex",
        "zindex, scalable, uniform": "zindex",
        "zindex, scalable, calls of 8": "zindex",
        "zindex, scalable, calls of 1": "zindex",
        "Streaming, generate_work": "streaming",
        "Grain, MapDataset.mix": "grain",
        "Grain, selection map": "grain",
        "LitData, CombinedStreamingDataset": "litdata",
    },
    "prefixes": {
        "numpy, Generator.choice": "numpy",
        "zindex, greedy": "zindex",
        "zindex, scalable": "zindex",
        "Streaming, generate_work": "streaming",
        "Grain, selection map": "grain",
        "LitData, CombinedStreamingDataset": "litdata",
    },
    "epoch": {
        "torch, DistributedSampler": "numpy",
        "zindex, ElasticSampler": "zindex",
        "Streaming, get_partitions, py1e": "streaming",
        "Grain, MapDataset.shuffle": "grain",
        "LitData, FullShuffle": "litdata",
    },
}

NAMES = {"grain": "Grain", "litdata": "LitData", "streaming": "MosaicML Streaming"}
DISTRIBUTIONS = {"grain": "grain", "litdata": "litdata", "streaming": "mosaicml-streaming"}

_STREAMING_DEFAULTS = (
    "Streaming: defaults of StreamingDataset (shuffle_algo py1e, partition_algo relaxed, "
    f"num_canonical_nodes {measuring.NUM_NODES} for {measuring.NUM_NODES} nodes, 64 times that "
    "for py1s, shuffle_block_size max(4,000,000 // num_canonical_nodes, 2**18))"
)

NOTES = {
    "shuffle": [
        "Work: the order of all samples in memory, int64 (zindex uniform: uint32 below 2**32).",
        f"{_STREAMING_DEFAULTS}; shards of {measuring.SHARD_LENGTH:,} samples.",
        "Streaming keeps neighbours in few shards on purpose, so that a node downloads a shard "
        "once: same shard percent says how many neighbours share one. The others shuffle all.",
        "Grain: index_shuffle of its MapDataset.shuffle (4 rounds, at most 2**32 samples), one "
        "call per index and for the first indices only; it never makes a whole order.",
        "zindex: legacy is RandomState.shuffle bit for bit; keyed is a bijection whose orders are "
        "not all equally likely; uniform is exactly uniform.",
    ],
    "access": [
        "Work: the shuffled values of random positions. numpy must make the whole order first, "
        "and so must Streaming's shuffles.",
        "Grain's are Python calls for one index each; zindex takes any number in one call, and "
        "calls of 1 are the same use as Grain's.",
        "Grain: IndexSampler, of its DataLoader, also makes a random generator for each record.",
    ],
    "mixture": [
        "Work: which sample of which dataset stands at each position, in memory; each dataset "
        "holds a quarter more than is drawn of it.",
        "numpy: independent draws. LitData's iterator of CombinedStreamingDataset draws the same "
        "way, one sample at a time (random.choices; iterate_over_all=False, which weights need).",
        "Streaming: generate_work with batching_method random, which draws samples of each stream "
        "(sampling_method balanced, sampling_granularity 1), divides the epoch among 64 ranks and "
        "shuffles it by py1e; the others do not shuffle within datasets. build seconds: opening "
        "the streams' index files.",
        "Grain and LitData are asked for the first positions only: the cost of one does not "
        "depend on how many there are. Grain reads a dataset that gives its own index.",
        "Any position by itself: Grain and zindex scalable (calls of 1; calls of 8 are "
        "micro-batches, neighbours in the order). The others only from the beginning.",
    ],
    "prefixes": [
        "How exact each mixture is: the largest |drawn - weight x n| of any dataset, in samples, "
        "over all prefixes of n samples, and at the end.",
        "zindex scalable, Streaming: shuffled, so prefixes deviate as random draws without "
        "replacement do, and the end is exact (Streaming: but for what it adds to fill up).",
        "Grain rounds proportions down to whole numbers of a hundredth of the smallest "
        "(_float_to_int_proportions), so its deviation from the weights given grows with n; from "
        "the rounded ones it is a few samples.",
        "LitData, numpy: independent draws; the deviation grows with the square root of n.",
    ],
    "epoch": [
        f"Work: the shuffled positions of rank 0 of {measuring.NUM_RANKS} in one epoch, in batches "
        f"of {measuring.MICRO_BATCH_SIZE}: its first batch, and all of them. One loader worker.",
        "torch: randperm of the whole epoch in every rank.",
        f"{_STREAMING_DEFAULTS}: get_partitions and get_shuffle for all ranks, by the first process"
        " of each node, which shares it with the node's others. A rank's positions are there then.",
        "LitData: FullShuffle.get_chunks_and_intervals_per_workers divides shuffled chunks of "
        f"{measuring.SHARD_LENGTH:,} samples among ranks; a rank shuffles the items of a chunk in "
        "blocks of 256 when it gets there (item_shuffle_window; drop_last as it is set among "
        "ranks). So it plans chunks, not samples, and what a rank reads at a time is one chunk.",
        "Grain: MapDataset.shuffle, every 64th element, batch; nothing is planned.",
        "zindex: ElasticSampler(shuffle=True); nothing is planned; each batch is one range of the "
        "bijection. Like Grain's, its order is one of the whole epoch.",
    ],
}

TITLES = {
    "shuffle": "order of {num_samples:,} samples",
    "access": "{num_wanted:,} random positions of a shuffled order of {num_samples:,} samples",
    "mixture": "mixture of {num_datasets:,} datasets, {num_samples:,} samples",
    "prefixes": "exactness of a mixture of {num_datasets:,} datasets, {num_samples:,} samples",
    "epoch": "one rank's positions of an epoch of {num_samples:,} samples",
}

RIVALS = {
    "shuffle": "numpy, RandomState.shuffle",
    "access": "Grain, index_shuffle",
    "mixture": "numpy, Generator.choice",
    "epoch": "torch, DistributedSampler",
}

# Evaluations of a dataset's weight by peers that look at every dataset for every sample.
_PEER_STEPS = 5_000_000
_MOST_WANTED = 20_000
# Prefixes are the same in every run; all contenders draw every sample.
_PREFIX_DATASETS = 10
_PREFIX_SAMPLES = 100_000
# Only numpy's part depends on it: the others compute what is asked for.
_ACCESS_SAMPLES = 10_000_000


Task = tuple[Work, str]


class Turns:
    """Runs of contenders in their environments.

    Parameters
    ----------
    folder
        Where the peers' environments are.
    kernels
        Where our processes keep what they compile.
    """

    def __init__(self, folder: Path, kernels: str) -> None:
        self.pythons = {"numpy": Path(sys.executable), "zindex": Path(sys.executable)}
        for name in PEERS:
            if python_of(folder, name).exists():
                self.pythons[name] = python_of(folder, name)
        self.missing = [name for name in PEERS if name not in self.pythons]
        self.environment = {"NUMBA_CACHE_DIR": kernels} | os.environ
        #: Versions of each environment that ran.
        self.versions: dict[str, dict[str, str]] = {}
        self._done: dict[Task, dict[str, float]] = {}

    def list_contenders(self, work: Work) -> dict[str, str]:
        """Return those that are there, and their files."""
        return {name: file for name, file in CONTENDERS[work.kind].items() if file in self.pythons}

    def run(self, file: str, tasks: list[Task]) -> list[dict[str, float]]:
        """Return the figures of each run of a new process."""
        module = f"tests.benchmarks.peers.run_{file}"
        done = subprocess.run(
            [str(self.pythons[file]), "-W", "ignore", "-m", module, write_command(tasks)],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{module} failed in {tasks}:\n{done.stderr}")
        answer = json.loads(done.stdout.splitlines()[-1])
        self.versions[file] = answer["versions"]
        return answer["figures"]

    def run_together(self, works: list[Work]) -> None:
        """Run all contenders of one library in one process, for tables that show that all runs."""
        tasks: dict[str, list[Task]] = {}
        for work in works:
            for name, file in self.list_contenders(work).items():
                tasks.setdefault(file, []).append((work, name))
        for file, each in tasks.items():
            self._done |= zip(each, self.run(file, each), strict=True)

    def make_table(self, work: Work, num_runs: int) -> Table:
        """Let all contenders that are there take turns."""
        contenders = self.list_contenders(work)
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for _ in range(num_runs):
            for name, file in contenders.items():
                done = self._done.get((work, name))
                runs[name].append(done or self.run(file, [(work, name)])[0])
        size = work.num_datasets if work.kind in ("mixture", "prefixes") else work.num_samples
        return Table.of_runs(
            f"{work.kind}_{size}",
            TITLES[work.kind].format(**dataclasses.asdict(work)),
            runs,
            rival=RIVALS.get(work.kind),
            ratio_of="seconds" if work.kind == "epoch" else "sample_ns",
            notes=[*NOTES[work.kind], *self._describe_versions(work)],
        )

    def _describe_versions(self, work: Work) -> list[str]:
        """Say what ran in which environment, and what did not run."""
        notes = []
        files = set(CONTENDERS[work.kind].values())
        for name in PEERS:
            if name not in files:
                continue
            if name in self.missing:
                notes.append(f"{NAMES[name]} is not there: python -m tests.benchmarks.peers {name}")
            else:
                found = ", ".join(f"{key} {text}" for key, text in self.versions[name].items())
                notes.append(f"{NAMES[name]} ran with {found}.")
        return notes


def list_works(arguments: argparse.Namespace) -> list[tuple[Work, int]]:
    """Return what is done, and how often."""
    sizes = [int(size) for size in arguments.samples]
    wanted = min(_MOST_WANTED, max(sizes))
    mixed = int(arguments.mixed_samples)
    works = [(Work("shuffle", size, min(wanted, size)), arguments.runs) for size in sizes]
    works.append((Work("access", min(_ACCESS_SAMPLES, max(sizes)), wanted), arguments.runs))
    for count in arguments.datasets:
        steps = min(mixed, max(1000, _PEER_STEPS // count))
        works.append((Work("mixture", mixed, min(wanted, steps), count), arguments.runs))
    prefix = min(_PREFIX_SAMPLES, mixed)
    works.append((Work("prefixes", prefix, prefix, _PREFIX_DATASETS), 1))
    works.append((Work("epoch", int(arguments.epoch_samples)), arguments.runs))
    return [(work, runs) for work, runs in works if work.kind in arguments.tables]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", nargs="+", type=float, default=[1e8])
    parser.add_argument("--datasets", nargs="+", type=int, default=[10, 100, 1000])
    parser.add_argument("--mixed-samples", type=float, default=1e6)
    parser.add_argument("--epoch-samples", type=float, default=1e7)
    parser.add_argument("--tables", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peers-folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument(
        "--together",
        action="store_true",
        help="run the contenders of one library in one process, once: quicker, less exact",
    )
    arguments = parser.parse_args()
    works = list_works(arguments)
    with tempfile.TemporaryDirectory() as kernels:
        turns = Turns(arguments.peers_folder, kernels)
        for name in turns.missing:
            print(f"{NAMES[name]} is not there: python -m tests.benchmarks.peers {name}")
        if arguments.together:
            turns.run_together([work for work, _ in works])
        tables = []
        for work, num_runs in works:
            tables.append(turns.make_table(work, 1 if arguments.together else num_runs))
            show(tables[-1])
    record = Record.of(Path(__file__).stem, tables)
    found = {
        DISTRIBUTIONS[name]: turns.versions[name][DISTRIBUTIONS[name]]
        for name in PEERS
        if name in turns.versions
    }
    dataclasses.replace(record, versions=record.versions | found).write(arguments.json)


if __name__ == "__main__":
    main()
