"""The same dataset from zindex and from Megatron Core, by the same names."""

import importlib
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np

#: Where each package has Megatron Core's names.
PACKAGES = {"zindex": "zindex.datasets", "megatron": "megatron.core.datasets"}
SEED = 1234
ARRAYS = ("document_index", "sample_index", "shuffle_index")


def make_tokenizer() -> Any:
    """Return what datasets ask of a tokenizer."""
    return SimpleNamespace(
        unique_identifiers=OrderedDict(name="none"), vocab_size=200_000, eod=0, pad=-1
    )


def import_module(package: str, name: str) -> Any:
    """Import a module of one of the packages."""
    return importlib.import_module(f"{PACKAGES[package]}.{name}")


def make_config(package: str, blend: Any, cache: str, length: int, **settings: Any) -> Any:
    """Return a ``GPTDatasetConfig`` that puts all documents into the training split."""
    settings = {
        "random_seed": SEED,
        "create_attention_mask": False,
        "split": "100,0,0",
        "tokenizer": make_tokenizer(),
    } | settings
    return import_module(package, "gpt_dataset").GPTDatasetConfig(
        blend=blend,
        path_to_cache=cache,
        sequence_length=length,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        **settings,
    )


def make_dataset(package: str, path: str, cache: str, length: int, **settings: Any) -> Any:
    """Return a ``GPTDataset`` of one epoch over a corpus."""
    kind = import_module(package, "gpt_dataset").GPTDataset
    config = make_config(package, ([path], None), cache, length, **settings)
    low_level = kind.build_low_level_dataset(path, config)
    documents = np.arange(len(low_level), dtype=np.int32)
    train = import_module(package, "utils").Split.train
    return kind(low_level, path, documents, None, train, config)


def build_blend(
    package: str,
    paths: list[str],
    weights: list[float],
    num_samples: int,
    cache: str,
    length: int,
    **settings: Any,
) -> Any:
    """Return the training blend that a package's builder makes."""
    kind = import_module(package, "gpt_dataset").GPTDataset
    module = import_module(package, "blended_megatron_dataset_builder")
    config = make_config(package, (paths, weights), cache, length, **settings)
    sizes = [num_samples, 0, 0]
    return module.BlendedMegatronDatasetBuilder(kind, sizes, lambda: True, config).build()[0]


def import_all(package: str) -> None:
    """Import what a blend needs, and let this process be rank 0 of 1, as Megatron Core requires."""
    import_module(package, "blended_megatron_dataset_builder")
    import_module(package, "gpt_dataset")
    from torch import distributed

    if not distributed.is_initialized():
        store = distributed.HashStore()
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
