"""Export built indices as the ``.npy`` caches of Megatron Core."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zindex.config import RunConfig, as_config
from zindex.errors import ConfigError
from zindex.formats.megatron_cache import cache_paths, describe, write_npy
from zindex.indexing.index_arrays import open_index_arrays
from zindex.indexing.run_plan import plan_run
from zindex.indexing.store_build import open_index
from zindex.io.local import local_path, write_once


def export_cache(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    tokenizer: Mapping[str, Any],
    dataset_paths: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write built indices as the ``.npy`` caches that Megatron Core reads.

    Parameters
    ----------
    config
        The run whose indices are built, with ``order="megatron"``.
    folder
        Megatron's ``path_to_cache``; None for Megatron's default, next to each dataset.
    tokenizer
        The ``unique_identifiers`` of the training job's tokenizer, which are part of the hash.
    dataset_paths
        The path under which Megatron opens each dataset, by its path here. The default is the path
        here, without ``.zarr``. It is part of the hash, so it must match exactly.

    Returns
    -------
    descriptions
        The ``description.txt`` of each cache that was written.

    Raises
    ------
    ConfigError
        If the run's order is not Megatron's, or ``dataset_paths`` names an unknown dataset.
    NotReadyError, StoreNotFoundError
        If an index is not built.
    """
    config = as_config(config)
    if config.order != "megatron":
        raise ConfigError(
            f"Megatron's caches must hold Megatron's order, got order={config.order!r}; "
            "build with order: megatron"
        )
    if config.packing is not None:
        raise ConfigError(
            "Megatron's caches must hold samples that are cut out of a stream, got packing; "
            "leave it out and build again"
        )
    datasets = [dataset.path for dataset in config.datasets]
    unknown = sorted(set(dataset_paths or {}) - set(datasets))
    if unknown:
        raise ConfigError(
            "dataset_paths (--dataset-path) must name datasets of the run, got "
            f"{unknown[0]!r}; it has {', '.join(datasets)}"
        )
    indices = plan_run(config).indices
    opened = [(item, open_index(item.plan.store_plan(config.index))) for item in indices]
    written = []
    for item, store in opened:
        path = (dataset_paths or {}).get(item.dataset, item.dataset.removesuffix(".zarr"))
        default = os.path.join(path, "cache", "GPTDataset_indices")
        target = local_path(folder or default, "a Megatron cache")
        description, digest = describe(
            {
                "class": "GPTDataset",
                "dataset_path": path,
                "num_samples": item.num_requested,
                "index_split": item.plan.split,
                "random_seed": config.seed,
                "sequence_length": config.sequence_length,
                "split": config.split,
                "split_matrix": config.split_matrix,
                "tokenizer": dict(tokenizer),
            }
        )
        target.mkdir(parents=True, exist_ok=True)
        files = cache_paths(target, f"{digest}-GPTDataset-{item.plan.split}")
        for name, array in open_index_arrays(store)._asdict().items():
            write_npy(files[name], array)
        # Last, because it marks the arrays as complete.
        write_once(files["description"], [description.encode()], replace=True)
        written.append(files["description"])
    return written
