"""One process that builds, edits, repairs, reopens and trains for long: it must not grow.

``python -m tests.harnesses.soak --seconds 900``

Each cycle replaces the corpora by other generations, builds and edits a run, damages a store and
repairs it, opens the samples and reads all of them by a loader with two workers. Each command first
runs in a fork that is killed at a random moment, and a worker of the loader is killed in every
other cycle. What is read is compared with what clean commands make. Memory, descriptors, threads,
child processes and files are counted after each cycle: those of the last third of all cycles must
be those of the second third.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.harnesses import generations
from tests.harnesses.embedded_clusters import measure
from tests.killing import run_in_child
from zindex.execution.executor import embedded_client
from zindex.indexing.run import build
from zindex.loading.loader import loader
from zindex.maintenance.garbage import find_garbage
from zindex.maintenance.repairs.repair import repair
from zindex.store.reader import forget_all_files, forget_open_shards

RUN = "both"
#: Generations of the corpora, and the edit; few, so that what is remembered of stores is bounded.
VERSIONS = (((0, 1), 0), ((2, 0), 1), ((1, 3), 2), ((3, 2), 1))
#: Most growth of the memory, from one third of the cycles to the next, in MB.
MAX_GROWTH = 2.0
_LONGEST = 0.3


@dataclass(frozen=True)
class Usage:
    """What the process holds after a cycle."""

    megabytes: float
    descriptors: int
    threads: int
    children: int
    files: int


class Soak:
    """The cycles.

    Parameters
    ----------
    seed
        Of the moments of kills, and of damage.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.num_cycles = self.num_kills = self.num_deaths = self.num_lost_workers = 0
        generations.write_runs()

    def cycle(self) -> None:
        """Run one cycle."""
        self.num_cycles += 1
        names, kind = VERSIONS[self.num_cycles % len(VERSIONS)]
        expected = generations.expect_run(RUN, names, (kind,))
        for corpus, generation in zip(generations.RUNS[RUN], names, strict=True):
            generations.write_pair(corpus, generation)
            self.run(partial(generations.convert_pair, corpus, "none"))
        if self.num_cycles % 4 == 0:
            with embedded_client(2) as client:
                build(f"{RUN}.yaml", client)
        else:
            self.run(lambda: build(f"{RUN}.yaml"))
        self.run(partial(self.edit, kind))
        self.damage(expected.stores)
        self.run(lambda: repair(f"{RUN}.yaml"))
        for garbage in find_garbage(".", hours=0):
            assert garbage.remove()
        found = generations.read_stores("index")
        assert found == expected.stores
        assert self.train() == expected.samples[: len(expected.samples) // 2 * 2]
        for folder in ("corpora", "index", "pairs"):
            shutil.rmtree(folder)

    def run(self, work: Callable[[], Any]) -> None:
        """Run a command in a fork that is killed, and complete it in this process."""
        _, code = run_in_child(work, self.rng.uniform(0, _LONGEST))
        assert code in (0, -9), code
        self.num_kills += 1
        self.num_deaths += code != 0
        work()

    def edit(self, kind: int) -> None:
        """Edit the run, unless it is edited already."""
        if not list(Path("index").glob("journal-*/*.json")):
            generations.edit_run(RUN, 0, kind)

    def damage(self, stores: dict[str, generations.Files]) -> None:
        """Cut a shard of an index of the run."""
        built = [root for root in stores if self.is_planned(root)]
        root = self.rng.choice(built)
        key = self.rng.choice([key for key in stores[root] if "/c/" in key])
        os.truncate(Path(root, key), self.rng.randrange(len(stores[root][key])))
        forget_open_shards(root)

    def is_planned(self, root: str) -> bool:
        """Return whether the run's file, not an edit, names a store."""
        return any(root in item.stores for item in self.plain())

    def plain(self) -> Iterator[generations.Expected]:
        """Yield what the run has without edits, for each version."""
        for names, _ in VERSIONS:
            yield generations.expect_run(RUN, names, ())

    def train(self) -> list[list[int]]:
        """Read all batches of the run; a worker may die, and reading resumes as from a checkpoint.

        torch reports a dead worker from a signal handler: the error may be raised anywhere, also
        after a batch was counted and before it is used.
        """
        dataset = generations.open_samples(RUN)
        seen: list[list[int]] = []
        kills = self.num_cycles % 2 == 0
        with loader(dataset, micro_batch_size=2, num_workers=2) as batches:
            checkpoint = batches.state_dict(), seen
            while len(seen) < len(dataset) // 2 * 2:
                try:
                    for batch in batches:
                        seen = [*seen, *batch["tokens"].tolist()]
                        checkpoint = batches.state_dict(), seen
                        if kills:
                            kills = False
                            self.rng.choice(multiprocessing.active_children()).kill()
                except RuntimeError as error:
                    if "DataLoader worker" not in str(error):
                        raise
                    self.num_lost_workers += 1
                    state, seen = checkpoint
                    batches.load_state_dict(state)
        return seen

    def usage(self) -> Usage:
        """Return what the process holds, without shards, which readers keep open up to a limit."""
        forget_all_files()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        files = sum(len(names) for _, _, names in os.walk("."))
        return Usage(*measure(), len(children), files)


@contextmanager
def private_folder() -> Iterator[None]:
    """Work in a new folder, which holds the temporary files too."""
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="zindex-soak-") as folder:
        (Path(folder) / "tmp").mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = f"{folder}/tmp"
        try:
            with chdir(folder):
                yield
        finally:
            tempfile.tempdir = before[0]
            os.environ.pop("TMPDIR")
            if before[1] is not None:
                os.environ["TMPDIR"] = before[1]


def compare(found: list[Usage]) -> tuple[Usage, Usage]:
    """Return the medians of the second and of the last third."""
    third = len(found) // 3
    columns = [list(zip(*map(astuple, found[i * third :][:third]), strict=True)) for i in (1, 2)]
    second, last = (Usage(*map(median, column)) for column in columns)
    return second, last


def is_flat(second: Usage, last: Usage, growth: float = MAX_GROWTH) -> bool:
    """Return whether nothing has grown."""
    counts = [astuple(item)[1:] for item in (second, last)]
    return counts[0] == counts[1] and last.megabytes - second.megabytes <= growth


def main() -> int:
    """Run cycles for some time; print what the process holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    given, start, shown = parser.parse_args(), time.perf_counter(), 0.0
    with private_folder():
        soak, found = Soak(given.seed), list[Usage]()
        while (seconds := time.perf_counter() - start) < given.seconds:
            soak.cycle()
            found.append(soak.usage())
            if seconds >= shown:
                shown += given.seconds / 15
                print(f"{seconds:.0f} s, cycle {soak.num_cycles}: {found[-1]}", flush=True)
        second, last = compare(found)
    print(f"second third: {second}\nlast third: {last}")
    print(
        f"{soak.num_cycles} cycles, {soak.num_kills} kills of commands, {soak.num_deaths} before "
        f"their end, {soak.num_lost_workers} workers of loaders lost"
    )
    return int(not is_flat(second, last))


if __name__ == "__main__":
    raise SystemExit(main())
