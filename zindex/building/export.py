"""Back to Megatron's own files: ``.bin/.idx`` pairs, and ``.npy`` index caches."""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zindex import schema
from zindex.building.arrays import open_index_arrays
from zindex.building.executor import Executor, open_executor, run_builds
from zindex.building.index import index_store_plan
from zindex.building.planning import PlannedIndex, plan_run
from zindex.config import RunConfig, as_config
from zindex.errors import ConfigError, StoreError
from zindex.formats.file_access import partial_path
from zindex.formats.idx_writer import IdxStreamWriter
from zindex.formats.megatron_cache import cache_paths, describe, write_npy
from zindex.store.local import local_path
from zindex.store.objects import PlaceLike
from zindex.store.open import Store, open_store
from zindex.store.tokens import open_tokens

# Tokens that one task copies, and sequences that are written at once.
_TASK_TOKENS = 1 << 24
_BLOCK = 1 << 20


def export(
    store_url: PlaceLike,
    prefix: str | os.PathLike[str],
    *,
    client: Any = None,
    overwrite: bool = False,
) -> None:
    """Write a token store as the ``.bin/.idx`` pair that it was made from, byte for byte.

    Parameters
    ----------
    store_url
        Path or URL of the token store.
    prefix
        Path of the pair to write, without its suffix.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    overwrite
        Whether an existing pair may be replaced.

    Raises
    ------
    StoreError
        If a file is already there.
    SourceError
        If the store links to a ``.bin`` that is missing or of another size.
    """
    store = open_store(store_url, kind="tokens")
    open_tokens(store)  # a link that leads nowhere is seen before anything is written
    base = str(local_path(prefix, "a .bin/.idx pair"))  # workers may run in another directory
    for path in (f"{base}.bin", f"{base}.idx"):
        if os.path.exists(path) and not overwrite:
            raise StoreError(f"{path} exists; choose another prefix or pass overwrite")
    os.makedirs(os.path.dirname(base), exist_ok=True)
    tokens, index = partial_path(f"{base}.bin"), partial_path(f"{base}.idx")
    try:
        itemsize = np.dtype(store.spec["token_dtype"]).itemsize
        with open(tokens, "xb") as stream:
            stream.truncate(store.spec["num_tokens"] * itemsize)
        with open_executor(client) as executor:
            run_builds(_copy_all(store, tokens, executor))
        _write_idx(store, index)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{base}.idx")  # a new .bin never stands beside an old .idx
        os.replace(tokens, f"{base}.bin")
        os.replace(index, f"{base}.idx")
    finally:
        for path in (tokens, index):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


async def _copy_all(store: Store, path: str, executor: Executor) -> None:
    """Copy all tokens, each task a span of its own."""
    num_tokens = store.spec["num_tokens"]
    await asyncio.gather(
        *(
            executor.run(
                copy_tokens,
                store,
                path,
                start,
                min(start + _TASK_TOKENS, num_tokens),
                key=f"export-{store.root.name}-{start}",
            )
            for start in range(0, num_tokens, _TASK_TOKENS)
        )
    )


def copy_tokens(store: Store, path: str, start: int, stop: int) -> None:
    """Task: write tokens ``[start, stop)`` at their place in an existing file."""
    values = open_tokens(store).read(start, stop)
    with open(path, "r+b") as stream:
        stream.seek(start * values.dtype.itemsize)
        stream.write(values.data)
        stream.flush()
        os.fsync(stream.fileno())


def _write_idx(store: Store, path: str) -> None:
    """Write the ``.idx`` of a token store, in blocks."""
    num_sequences, num_documents = store.spec["num_sequences"], store.spec["num_documents"]
    lengths = store[schema.SEQUENCE_LENGTH.name]
    has_modes = schema.SEQUENCE_MODE.name in store
    modes = store[schema.SEQUENCE_MODE.name] if has_modes else None
    documents = store[schema.DOCUMENT_OFFSET.name]
    with IdxStreamWriter(
        path,
        store.spec["token_dtype"],
        num_sequences=num_sequences,
        num_documents=num_documents,
        has_modes=has_modes,
    ) as writer:
        for start in range(0, num_sequences, _BLOCK):
            stop = min(start + _BLOCK, num_sequences)
            block = None if modes is None else modes.read(start, stop)
            writer.write_sequences(lengths.read(start, stop), block)
        for start in range(0, num_documents + 1, _BLOCK):
            stop = min(start + _BLOCK, num_documents + 1)
            writer.write_document_indices(documents.read(start, stop))


def export_cache(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    tokenizer: Mapping[str, Any],
    dataset_paths: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write built indices as the ``.npy`` caches that Megatron Core looks for.

    Parameters
    ----------
    config
        The run whose indices are built, with ``order="megatron"``.
    folder
        Megatron's ``path_to_cache``; None takes Megatron's default beside each dataset.
    tokenizer
        The ``unique_identifiers`` of the training job's tokenizer: they are part of the hash.
    dataset_paths
        The path under which Megatron is given each dataset, by its path here. By default the
        path here, without ``.zarr``. Both are taken letter by letter: they are part of the hash.

    Returns
    -------
    descriptions
        The ``description.txt`` of every cache written.

    Raises
    ------
    ConfigError
        If the run's order is not Megatron's, or ``dataset_paths`` names a dataset that is not
        of the run.
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
            f"dataset_paths must name datasets of the run, got {unknown[0]!r}; it has {datasets}"
        )
    opened = [(item, _open_index(config, item)) for item in plan_run(config).indices]
    written = []
    for item, store in opened:
        path = (dataset_paths or {}).get(item.dataset, item.dataset.removesuffix(".zarr"))
        target = folder or os.path.join(path, "cache", "GPTDataset_indices")
        target = local_path(target, "a Megatron cache")
        written.append(_export_index(config, item, store, path, target, dict(tokenizer)))
    return written


def _open_index(config: RunConfig, item: PlannedIndex) -> Store:
    """Return the committed index of one dataset's split."""
    store_plan = index_store_plan(item.plan, config.index)
    return open_store(store_plan.root, kind="index", expected=store_plan.fingerprint)


def _export_index(
    config: RunConfig,
    item: PlannedIndex,
    store: Store,
    path: str,
    folder: str | os.PathLike[str],
    tokenizer: dict[str, Any],
) -> Path:
    """Write the cache of one dataset's split; the description goes last."""
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
            "tokenizer": tokenizer,
        }
    )
    os.makedirs(folder, exist_ok=True)
    files = cache_paths(folder, f"{digest}-GPTDataset-{item.plan.split}")
    for name, array in open_index_arrays(store)._asdict().items():
        write_npy(files[name], array)
    files["description"].write_text(description, encoding="utf-8")
    return files["description"]
