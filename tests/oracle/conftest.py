"""The oracle: Megatron Core itself, where it is installed."""

import dataclasses
import os
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.cluster.dask_processes import local_processes
from tests.megatron.megatron_suite import import_megatron_core
from tests.module_files import import_file

with suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import_megatron_core()

if helpers := os.environ.get("ZINDEX_TEST_HELPERS_CPP"):  # of a checkout that has none
    import_file("megatron.core.datasets.helpers_cpp", helpers)


@pytest.fixture(scope="session")
def megatron() -> SimpleNamespace:
    """Give the modules of Megatron Core that datasets come from."""
    pytest.importorskip("megatron.core")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import (
            blended_megatron_dataset_config,
            gpt_dataset,
            indexed_dataset,
            utils,
        )
    return SimpleNamespace(
        config=blended_megatron_dataset_config,
        gpt=gpt_dataset,
        indexed=indexed_dataset,
        utils=utils,
    )


@pytest.fixture(scope="module")
def masked_megatron() -> Iterator[SimpleNamespace]:
    """Give Megatron Core's modules; its masked datasets need a process group."""
    pytest.importorskip("megatron.core")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import bert_dataset, indexed_dataset, t5_dataset, utils
    pytest.importorskip("megatron.core.datasets.helpers_cpp")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield SimpleNamespace(
        bert=(
            bert_dataset.BERTMaskedWordPieceDataset,
            bert_dataset.BERTMaskedWordPieceDatasetConfig,
        ),
        t5=(t5_dataset.T5MaskedWordPieceDataset, t5_dataset.T5MaskedWordPieceDatasetConfig),
        indexed=indexed_dataset.IndexedDataset,
        utils=utils,
    )
    torch.distributed.destroy_process_group()


def megatron_version() -> tuple[int, int]:
    """Return the version of Megatron Core that is imported."""
    from megatron.core import package_info

    return package_info.MAJOR, package_info.MINOR


@pytest.fixture(scope="module", params=[1, 2])
def cluster_client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Give a client of a real cluster of worker processes."""
    with local_processes(request.param) as client:
        yield client


def fit(theirs: Any, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return settings for our configuration, and for a class of Megatron's that may lack some."""
    known = {field.name for field in dataclasses.fields(theirs)}
    own = dict(settings)
    if "allow_ambiguous_pad_tokens" not in known:  # early versions always allow them
        own["allow_ambiguous_pad_tokens"] = True
    return own, {name: value for name, value in settings.items() if name in known}


class OracleTokenizer:
    """A tokenizer as both sides see it; what is None is absent."""

    def __init__(
        self, *, vocab_size: int | None, eod: int, pad: int | None, eos: int | None = None
    ) -> None:
        self.vocab_size = vocab_size
        self.eod = eod
        if pad is not None:
            self.pad = pad
        if eos is not None:
            self.eos = eos
        self.unique_identifiers: OrderedDict[str, Any] = OrderedDict(
            {"class": "OracleTokenizer", "tokenizer_path": ["t"], "pad": str(pad)}
        )


def assert_same_array(ours: Any, theirs: Any, name: str) -> None:
    """Compare values, dtype and shape."""
    assert ours.dtype == theirs.dtype, name
    assert tuple(ours.shape) == tuple(theirs.shape), name
    np.testing.assert_array_equal(np.asarray(ours), theirs, err_msg=name)


def assert_same_item(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    """Compare two samples: keys in order, dtypes, shapes and values."""
    assert list(ours) == list(theirs), name
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype, (name, key)
        assert ours[key].shape == value.shape, (name, key)
        assert torch.equal(ours[key], value), (name, key, ours[key], value)
