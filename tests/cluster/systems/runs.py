"""A small run: three corpora, a blend of them, and what must be true of it once it is built."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import zindex
from tests.trees import shard_stamps
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_writer import PairWriter

#: The ``train.py`` of the scripts and manifests.
TRAIN = str(Path(__file__).with_name("train.py"))

_WEIGHTS = {"web": 0.5, "code": 0.3, "books": 0.2}
_NUM_DOCUMENTS = 60
_SAMPLES = 300


@dataclass(frozen=True)
class Run:
    """A run of which nothing is built."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "run.yaml"

    @property
    def index(self) -> Path:
        return self.folder / "index"

    def train(self, *options: str) -> list[str]:
        """Return the ``train.py`` that trains on this run, with its arguments."""
        return [TRAIN, "--run", str(self.file), *options]

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Return inode and time of every shard that is finished."""
        return shard_stamps(self.index)

    def digests(self) -> dict[str, str]:
        """Return a digest of every shard of every committed index."""
        return {
            str(shard.relative_to(self.index)): hashlib.sha256(shard.read_bytes()).hexdigest()
            for root in self.index.iterdir()
            if (root / "zarr.json").exists()
            for shard in map(Path, self.stamps())
            if shard.is_relative_to(root)
        }

    def facts(self, rank: int) -> dict[str, Any]:
        """Return what a rank found."""
        found: dict[str, Any] = json.loads((self.folder / f"rank-{rank}.json").read_text())
        return found

    def check(self, golden: dict[str, str], num_ranks: int, launcher: str) -> None:
        """Fail unless the index is that of a build on one machine, and all ranks have read it."""
        assert self.digests() == golden
        facts = [self.facts(rank) for rank in range(num_ranks)]
        assert [item["job"][:3] for item in facts] == [
            [launcher, rank, num_ranks] for rank in range(num_ranks)
        ]
        assert len({str(item["fingerprints"]) for item in facts}) == 1
        assert len(set(facts[0]["fingerprints"])) == 1
        assert {item["samples"] for item in facts} == {_SAMPLES}
        # Each rank has samples of its own.
        assert len({item["batch"] for item in facts}) == num_ranks
        assert [item["has_client"] for item in facts] == [True] + [False] * (num_ranks - 1)
        assert not any(item["has_dask"] for item in facts[1:])
        assert not any(item["own_ports"] for item in facts)


def write_run(folder: Path) -> Run:
    """Write corpora and the YAML file of a run over them."""
    rng = np.random.default_rng(7)
    for name in _WEIGHTS:
        writer = PairWriter(f"{folder / name}.bin", np.uint16)
        for length in rng.integers(5, 60, _NUM_DOCUMENTS):
            writer.append(rng.integers(1, 1000, length), [length])
            writer.end_document()
        writer.finalize(f"{folder / name}.idx")
    datasets = "".join(
        f"  - {{path: {name}, weight: {weight}}}\n" for name, weight in _WEIGHTS.items()
    )
    run = Run(folder)
    run.file.write_text(
        f"sequence_length: 16\nseed: 3\nsplit: '100,0,0'\nsamples: {{train: {_SAMPLES}}}\n"
        f"grid: {{chunk_length: 16, shard_length: 32}}\ndatasets:\n{datasets}"
    )
    return run


def build_alone(run: Run) -> dict[str, str]:
    """Build a run in one process, and return what its indices hold."""
    zindex.build(run.file, client=SerialExecutor())
    return run.digests()
