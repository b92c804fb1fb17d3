"""What MosaicML Streaming does, in its own environment.

Shard and batch sizes are those of `measuring`; all else is the default of ``StreamingDataset``.
"""

import json
import sys
import tempfile
import warnings
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.peers.measuring import (
    MICRO_BATCH_SIZE,
    NUM_NODES,
    RANKS_PER_NODE,
    SEED,
    Contender,
    Figures,
    Work,
    main,
    measure,
    measure_epoch,
    split_shards,
)


def _stand_in_for_torchvision() -> None:
    """Let ``import streaming`` succeed where torchvision does not fit torch.

    Only Streaming's image datasets use it, which take no part here; a torch without CUDA beside a
    torchvision with it is enough to make it fail.
    """
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        names = ["torchvision", "torchvision.datasets"]
        names += ["torchvision.transforms", "torchvision.transforms.functional"]
        modules = {name: module_from_spec(ModuleSpec(name, None)) for name in names}
        modules["torchvision.datasets"].VisionDataset = object
        modules["torchvision.transforms.functional"].to_tensor = None
        sys.modules.update(modules)


_stand_in_for_torchvision()
warnings.filterwarnings("ignore")  # of its imports

from streaming import Stream, StreamingDataset  # noqa: E402
from streaming.base.batching import generate_work  # noqa: E402
from streaming.base.partition import get_partitions  # noqa: E402
from streaming.base.shuffle import get_shuffle  # noqa: E402
from streaming.base.world import World  # noqa: E402

_EPOCH = 0
_LOADER_WORKERS_PER_RANK = 1
_PARTITION = "relaxed"
_SHUFFLE = "py1e"


def _count_canonical_nodes(algorithm: str) -> int:
    """Return what ``StreamingDataset._resume`` sets where ``num_canonical_nodes`` is not given."""
    return 64 * NUM_NODES if algorithm in ("py1s", "py2s") else NUM_NODES


def _find_block_size(canonical_nodes: int) -> int:
    """Return what ``StreamingDataset._set_shuffle_block_size`` sets."""
    return max(4_000_000 // canonical_nodes, 1 << 18)


def _shuffle(work: Work, algorithm: str) -> np.ndarray:
    """Return the shuffled order of an epoch."""
    nodes = _count_canonical_nodes(algorithm)
    return get_shuffle(
        algorithm, np.array(work.shards), nodes, SEED, _EPOCH, _find_block_size(nodes)
    )


def shuffle(algorithm: str) -> Contender:
    """Return a contender that shuffles an epoch in one of Streaming's ways."""

    def run(work: Work) -> tuple[Figures, Any]:
        return measure(lambda: _shuffle(work, algorithm))

    return run


def divide_ranks(work: Work) -> tuple[Figures, Any]:
    """Plan an epoch for all ranks, as ``generate_work_random_batching`` does for one stream.

    The first process of each node does it and shares the result with the others.
    """

    def plan() -> np.ndarray:
        places = get_partitions(
            _PARTITION,
            work.num_samples,
            _count_canonical_nodes(_SHUFFLE),
            NUM_NODES,
            RANKS_PER_NODE,
            _LOADER_WORKERS_PER_RANK,
            MICRO_BATCH_SIZE,
        )
        return np.where(places != -1, _shuffle(work, _SHUFFLE)[places], -1)

    return measure_epoch(lambda: plan()[0, 0, 0, 0], lambda: plan()[0, 0, 0].flatten())


def _open_dataset(work: Work, folder: Path) -> Any:
    """Return a dataset of streams whose index files are there; no sample is ever read."""
    streams = []
    for number, size in enumerate(work.dataset_sizes):
        place = folder / str(number)
        place.mkdir()
        shards = [_describe_shard(k, length) for k, length in enumerate(split_shards(size))]
        (place / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
        streams.append(Stream(local=str(place), proportion=float(work.weights[number])))
    dataset = StreamingDataset(
        streams=streams,
        epoch_size=work.num_samples,
        batch_size=MICRO_BATCH_SIZE,
        shuffle=True,
        shuffle_seed=SEED,
    )
    # Iterating would set these two, for as many nodes as there are.
    dataset.num_canonical_nodes = _count_canonical_nodes(_SHUFFLE)
    dataset.shuffle_block_size = _find_block_size(dataset.num_canonical_nodes)
    return dataset


def _describe_shard(number: int, num_samples: int) -> dict[str, Any]:
    """Return what an index file says of a shard."""
    return {
        "column_encodings": ["int"],
        "column_names": ["tokens"],
        "column_sizes": [8],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "raw_data": {"basename": f"shard.{number:05}.mds", "bytes": 2**26, "hashes": {}},
        "samples": num_samples,
        "size_limit": 2**26,
        "version": 2,
        "zip_data": None,
    }


def _mix(work: Work) -> tuple[Figures, Any, Any]:
    """Plan an epoch of a mixture; return also the dataset."""
    world = World(NUM_NODES, RANKS_PER_NODE, _LOADER_WORKERS_PER_RANK, 0)
    with tempfile.TemporaryDirectory() as folder:
        build, dataset = measure(lambda: _open_dataset(work, Path(folder)))
        figures, ids = measure(
            lambda: generate_work(dataset.batching_method, dataset, world, _EPOCH, 0)
        )
    # As they are trained on: (batch, worker, node, rank, place in the batch).
    in_order = ids.transpose(3, 2, 0, 1, 4).flatten()
    figures["build_seconds"] = build["seconds"]
    return figures, in_order[in_order >= 0], dataset


def mix(work: Work) -> tuple[Figures, Any]:
    """Draw, divide and shuffle an epoch of several streams by their proportions."""
    figures, ids, _ = _mix(work)
    return figures, ids


def mix_names(work: Work) -> tuple[Figures, Any]:
    """Do the same, and return the stream of each sample."""
    figures, ids, dataset = _mix(work)
    return figures, np.searchsorted(dataset.sample_offset_per_stream, ids, side="right") - 1


CONTENDERS = {
    "shuffle": {"Streaming, py1e": shuffle("py1e"), "Streaming, py1s": shuffle("py1s")},
    "mixture": {"Streaming, generate_work": mix},
    "prefixes": {"Streaming, generate_work": mix_names},
    "epoch": {"Streaming, get_partitions, py1e": divide_ranks},
}

if __name__ == "__main__":
    main(CONTENDERS, ["mosaicml-streaming", "numpy", "torch"])
