"""How every contender is measured, in its own environment: standard library and numpy only.

A process runs what its argument asks for, usually one contender once, after a small run of the same
that warms it up, and prints one line of JSON. Ours and the peers' go through the same functions.
"""

import gc
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

SEED = 1234
NUM_NODES = 8
RANKS_PER_NODE = 8
NUM_RANKS = NUM_NODES * RANKS_PER_NODE
# Samples of 1 KiB (512 tokens of two bytes) in shards of 64 MiB, the default of those that shard.
SAMPLE_NBYTES = 1024
SHARD_LENGTH = 2**16
MICRO_BATCH_SIZE = 8
# What a dataset of a mixture holds, over what the mixture draws of it.
SURPLUS = 1.25

_WARM_SAMPLES = 2**17
_WARM_WANTED = 1000

Figures = dict[str, float]


@dataclass(frozen=True)
class Work:
    """What every contender of a table does."""

    #: ``shuffle``, ``access``, ``mixture``, ``prefixes`` or ``epoch``.
    kind: str
    #: Samples of the order, the mixture or the epoch.
    num_samples: int
    #: Of these, how many are asked for where each is computed by itself.
    num_wanted: int = 0
    #: Datasets of a mixture.
    num_datasets: int = 0

    @property
    def weights(self) -> np.ndarray:
        """Weights of the datasets, of sum 1; the largest is eleven times the smallest at most."""
        weights = np.random.default_rng(self.num_datasets).random(self.num_datasets) + 0.1
        return weights / weights.sum()

    @property
    def dataset_sizes(self) -> list[int]:
        """Samples of each dataset of a mixture: less than one epoch of each is drawn."""
        return (self.weights * self.num_samples * SURPLUS + 1).astype(int).tolist()

    @property
    def shards(self) -> list[int]:
        """Samples of each shard."""
        return split_shards(self.num_samples)

    @property
    def positions(self) -> np.ndarray:
        """Positions in the order, at random."""
        return np.random.default_rng(SEED).integers(0, self.num_samples, self.num_wanted)

    @property
    def warm(self) -> "Work":
        """The same, small."""
        return replace(
            self,
            num_samples=min(self.num_samples, _WARM_SAMPLES),
            num_wanted=min(self.num_wanted, _WARM_WANTED),
        )


Contender = Callable[[Work], tuple[Figures, Any]]
Contenders = Mapping[str, Mapping[str, Contender]]


def split_shards(num_samples: int) -> list[int]:
    """Return the samples of each shard."""
    return [min(SHARD_LENGTH, num_samples - start) for start in range(0, num_samples, SHARD_LENGTH)]


def measure(function: Callable[[], Any]) -> tuple[Figures, Any]:
    """Return the seconds and the memory of one call, and what it returned.

    ``peak_nbytes`` is what the process held at most meanwhile, its imports too; ``extra_nbytes``
    what that is above what it held before.
    """
    gc.collect()
    # Forgets the peak of the warm run; where this is not allowed, that one is smaller anyway.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = _read_status("VmRSS")
    start = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - start
    peak = _read_status("VmHWM")
    return {"seconds": seconds, "peak_nbytes": peak, "extra_nbytes": max(0, peak - before)}, result


def measure_epoch(
    first: Callable[[], Sequence[int]], everything: Callable[[], Sequence[int]]
) -> tuple[Figures, Any]:
    """Measure the first batch of a rank by itself, then all positions of that rank.

    Both begin with nothing but settings.
    """
    start, batch = measure(first)
    assert len(batch) == MICRO_BATCH_SIZE, len(batch)
    figures, positions = measure(everything)
    return figures | {"first_batch_seconds": start["seconds"]}, positions


def finish(work: Work, figures: Figures, result: Any) -> Figures:
    """Return the figures with those that all contenders of such work have."""
    figures = figures | {"num_samples": len(result)}
    figures["sample_ns"] = 1e9 * figures["seconds"] / len(result)
    if work.kind == "shuffle":
        figures["same_shard_percent"] = count_same_shard(np.asarray(result))
    elif work.kind == "prefixes":
        deviations = find_deviations(np.asarray(result), work.weights)
        figures = {"num_samples": len(result), "largest_samples": deviations.max()}
        figures["end_samples"] = deviations[-1]
    return figures


def count_same_shard(order: np.ndarray) -> float:
    """Return how many per cent of neighbours in an order lie in one shard."""
    shards = order // SHARD_LENGTH
    return 100 * float(np.mean(shards[1:] == shards[:-1]))


def find_deviations(datasets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the deviation of each prefix of a mixture from its weights.

    Parameters
    ----------
    datasets
        Shape (samples,), integers: the dataset of each sample, in order.
    weights
        Shape (datasets,), float64, of sum 1.

    Returns
    -------
    deviations
        Shape (samples,), float64: for the first 1, 2, ... samples n, the largest
        ``|drawn - weight * n|`` of any dataset.
    """
    largest = np.zeros(len(datasets))
    lengths = np.arange(1, len(datasets) + 1)
    for dataset, weight in enumerate(weights):
        drawn = np.cumsum(datasets == dataset)
        np.maximum(largest, np.abs(drawn - weight * lengths), out=largest)
    return largest


def main(contenders: Contenders, packages: Sequence[str]) -> None:
    """Run what the first argument asks for, and print figures and versions."""
    figures = [run(contenders, settings) for settings in json.loads(sys.argv[1])]
    print(json.dumps({"figures": figures, "versions": list_versions(packages)}))


def run(contenders: Contenders, settings: dict[str, Any]) -> Figures:
    """Run one contender, small and then in full size, and return its figures."""
    name = settings.pop("contender")
    work = Work(**settings)
    contender = contenders[work.kind][name]
    contender(work.warm)
    figures, result = contender(work)
    return {key: float(value) for key, value in finish(work, figures, result).items()}


def list_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of packages, as far as they are installed."""
    versions = {"python": platform.python_version()}
    for name in packages:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def write_command(tasks: Sequence[tuple[Work, str]]) -> str:
    """Return the argument that asks for runs, each of a contender."""
    return json.dumps([asdict(work) | {"contender": contender} for work, contender in tasks])


def _read_status(field: str) -> int:
    """Return a field of this process's status, in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) * 1024
