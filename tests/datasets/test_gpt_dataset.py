"""GPT datasets: laws of their samples, the place of the index, processes, and errors."""

import os
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zindex
from tests.conftest import FakeTokenizer
from tests.datasets.configs import plain_config
from tests.forked import run_fresh
from zindex.datasets import sample_dataset
from zindex.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from zindex.datasets.utils import Split
from zindex.errors import ConfigError, NotReadyError, PlanError, SourceError
from zindex.execution.executor import SerialExecutor
from zindex.formats import bin_idx
from zindex.formats.megatron_cache import cache_paths
from zindex.indexing import store_computed
from zindex.ingest import length_source as source

LENGTHS = [3, 5, 2, 7, 0, 4, 6, 1, 9, 0, 8, 13]
NUM_TOKENS = sum(LENGTHS)


def make_config(tokenizer: Any = None, **settings: Any) -> GPTDatasetConfig:
    defaults: dict[str, Any] = {
        "sequence_length": 4,
        "blend": (["h"], None),
        "split": "100,0,0",
        "create_attention_mask": True,
        "tokenizer": tokenizer or FakeTokenizer(eod=99),
        "max_computed_rows": 0,
    }
    return plain_config(**(defaults | settings))


def open_dataset(
    path: str,
    num_samples: int | None = None,
    split: Split = Split.train,
    indices: Any = None,
    **settings: Any,
) -> GPTDataset:
    config = make_config(**settings)
    low_level = GPTDataset.build_low_level_dataset(path, config)
    if indices is None:
        indices = range(GPTDataset.numel_low_level_dataset(low_level))
    return GPTDataset(low_level, path, indices, num_samples, split, config)


@pytest.fixture
def prefix(write_corpus: Any) -> str:
    corpus: str = write_corpus(LENGTHS)
    return corpus


@pytest.fixture(params=["prefix", "store"])
def path(request: pytest.FixtureRequest, prefix: str) -> str:
    if request.param == "prefix":
        return prefix
    zindex.convert(prefix, f"{prefix}.zarr", client=SerialExecutor())
    return f"{prefix}.zarr"


@pytest.mark.parametrize(
    "settings", [{}, {"order": "scalable"}, {"order": "scalable", "store": "minimal"}]
)
@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("num_samples", [None, 3, 30, 61])
def test_samples_tile_the_stream_of_documents(
    path: str, num_samples: int | None, extra: int, settings: dict[str, Any]
) -> None:
    dataset = open_dataset(path, num_samples, add_extra_token_to_sequence=bool(extra), **settings)
    low_level = dataset.dataset
    documents = np.asarray(dataset.document_index)
    assert (np.bincount(documents, minlength=12) == len(documents) // 12).all()
    stream = np.concatenate([low_level[int(document)] for document in documents])
    order = np.asarray(dataset.shuffle_index)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(dataset)))
    assert len(dataset) == (len(stream) - extra) // 4 >= (num_samples or 0)
    for position, sample in enumerate(order.tolist()):
        item = dataset[position]
        text = stream[4 * sample : 4 * sample + 4 + extra]
        np.testing.assert_array_equal(item["tokens"], text[:4])
        np.testing.assert_array_equal(item["labels"][:3], text[1:4])
        assert int(item["labels"][3]) == (text[4] if extra else 0)
        assert item["loss_mask"].tolist() == [1, 1, 1, extra]
        assert item["position_ids"].tolist() == [0, 1, 2, 3]


def test_items_own_their_memory(prefix: str) -> None:
    # The first item read has a pad, which must not blind the others.
    dataset = open_dataset(prefix, tokenizer=FakeTokenizer(pad=17))
    with_pad = next(i for i in range(len(dataset)) if (dataset[i]["loss_mask"] == 0).any())
    fresh = open_dataset(prefix, tokenizer=FakeTokenizer(pad=17))
    item = fresh[with_pad]
    assert item["loss_mask"].sum() == 3
    assert sum(int((fresh[i]["loss_mask"] == 0).sum()) for i in range(len(fresh))) == 1
    expected = {key: value.clone() for key, value in item.items()}
    for key in ("tokens", "labels", "loss_mask", "position_ids"):
        item[key].fill_(-5)
    again = fresh[with_pad]
    assert all(torch.equal(again[key], value) for key, value in expected.items())
    masks = [fresh[i]["attention_mask"] for i in range(2)]
    assert masks[0].data_ptr() == masks[1].data_ptr()


def test_positions(path: str) -> None:
    dataset = open_dataset(path)
    size = len(dataset)
    assert torch.equal(dataset[-1]["tokens"], dataset[size - 1]["tokens"])
    assert torch.equal(dataset[np.int64(2)]["tokens"], dataset[2]["tokens"])
    padding = dataset[None]
    assert torch.equal(padding["tokens"], dataset[0]["tokens"])
    assert not padding["loss_mask"].any()
    assert dataset[0]["loss_mask"].all()
    for beyond in (size, -size - 1):
        message = f"index {beyond} is out of range for the {size} samples of train of {path}"
        with pytest.raises(IndexError, match=re.escape(message)):
            dataset[beyond]
    with pytest.raises(TypeError):
        dataset["a"]  # type: ignore[index]
    assert len(list(dataset)) == size  # type: ignore[call-overload]


def test_no_attention_mask(prefix: str) -> None:
    dataset = open_dataset(prefix, create_attention_mask=False, reset_attention_mask=True)
    assert list(dataset[0]) == ["tokens", "labels", "loss_mask", "position_ids"]


def test_eod_is_read_only_if_it_matters(prefix: str) -> None:
    tokenizer = FakeTokenizer()
    del tokenizer.eod
    assert open_dataset(prefix, tokenizer=tokenizer)[0]["loss_mask"].all()


def test_the_index_is_next_to_the_data(path: str) -> None:
    dataset = open_dataset(path, 5)
    beside = Path(path.removesuffix(".zarr")) / "cache" / "GPTDataset_indices"
    (store,) = beside.iterdir()
    assert store.name.startswith("gpt-train-")
    modified = os.stat(store / "zarr.json").st_mtime_ns
    assert torch.equal(open_dataset(path, 5)[0]["tokens"], dataset[0]["tokens"])
    assert os.stat(store / "zarr.json").st_mtime_ns == modified


def test_subclasses_have_separate_folders(prefix: str) -> None:
    class OtherDataset(GPTDataset):
        pass

    config = make_config()
    OtherDataset(
        OtherDataset.build_low_level_dataset(prefix, config), "h", range(12), 3, Split.train, config
    )
    assert os.listdir(Path(prefix) / "cache") == ["OtherDataset_indices"]


@pytest.mark.parametrize("split", list(Split))
def test_partial_last_sample_only_in_validation(prefix: str, split: Split) -> None:
    dataset = open_dataset(prefix, split=split, drop_last_partial_validation_sequence=False)
    num_full = (NUM_TOKENS - 1) // 4
    assert len(dataset) == num_full + (split is Split.valid)


def test_deferred_index(prefix: str, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    settings: dict[str, Any] = {"path_to_cache": cache}
    deferred = open_dataset(prefix, 9, defer_npy_index_mmap=True, **settings)
    assert not os.path.exists(cache)
    assert len(deferred) >= 9
    arrived = pickle.loads(pickle.dumps(deferred))
    assert not os.path.exists(cache)
    item = arrived[3]
    assert torch.equal(item["tokens"], open_dataset(prefix, 9, **settings)[3]["tokens"])
    assert torch.equal(item["tokens"], deferred[3]["tokens"])


def test_validated_and_digested_once_for_all_splits(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for module, name in ((bin_idx, "_check_sequences"), (source, "digest_rows")):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, real=real, name=name: calls.append(name) or real(*args)
        )
    config = make_config(split="1,1,1")
    low_level = GPTDataset.build_low_level_dataset(prefix, config)
    for split in Split:
        start = 4 * split.value
        GPTDataset(low_level, prefix, range(start, start + 4), None, split, config)
    assert calls == ["_check_sequences", "digest_rows"]


def test_only_rank_0_builds(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_dataset, "current_rank", lambda: 1)
    with pytest.raises(NotReadyError, match="0 of 3 shards are finished"):
        open_dataset(prefix, 5, index_timeout=0.2)
    others: list[GPTDataset] = []
    rank_1 = threading.Thread(target=lambda: others.append(open_dataset(prefix, 5)))
    rank_1.start()
    monkeypatch.setattr(sample_dataset, "current_rank", lambda: 0)
    built = open_dataset(prefix, 5)
    rank_1.join(60)
    assert torch.equal(built[0]["tokens"], others[0][0]["tokens"])


def test_rank_1_takes_over(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_dataset, "current_rank", lambda: 1)
    taken = open_dataset(prefix, 5, index_takeover=0.1)
    monkeypatch.setattr(sample_dataset, "current_rank", lambda: 0)
    assert torch.equal(taken[0]["tokens"], open_dataset(prefix, 5)[0]["tokens"])


@pytest.mark.parametrize(
    ("method", "used"),
    [
        ("fork", False),
        ("fork", True),
        ("forkserver", True),
        pytest.param("spawn", True, marks=pytest.mark.slow),
        pytest.param("spawn", False, marks=pytest.mark.slow),
        pytest.param("forkserver", False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_loader_workers(path: str, method: str, used: bool) -> None:
    dataset = open_dataset(path, 20, reset_attention_mask=True)
    expected = [open_dataset(path, 20, reset_attention_mask=True)[i] for i in range(len(dataset))]
    if used:
        _ = dataset[0]
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=4, num_workers=2, multiprocessing_context=method, timeout=60
    )
    batches = list(loader)
    for key in expected[0]:
        got = torch.cat([batch[key] for batch in batches])
        assert torch.equal(got, torch.stack([item[key] for item in expected]))


def test_pickle_holds_no_arrays(write_corpus: Any) -> None:
    few, many = (
        open_dataset(write_corpus([4] * size, name=f"c{size}"), 2_000) for size in (10, 1_000)
    )
    _ = many[0]
    sizes = [len(pickle.dumps(dataset)) for dataset in (few, many)]
    assert max(sizes) < 12_000
    assert abs(sizes[0] - sizes[1]) < 100


def test_no_cluster_is_imported() -> None:
    code = (
        "import sys, zindex.datasets.gpt_dataset\n"
        "print([name for name in ('dask', 'distributed', 'zarr') if name in sys.modules])"
    )
    done = run_fresh("-c", code, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (
            np.array([0, 2, 3]),
            "train of h must hold consecutive documents in ascending order, got "
            "[0, 2] at place 0 of 3",
        ),
        (np.array([0, 1, 0]), "got [1, 0] at place 1 of 3"),
        (range(4, 0, -1), "got [4, 3] at place 0 of 4"),
        (range(0), "train of h must hold documents, got none"),
        (np.array([], np.int32), "train of h must hold documents, got none"),
        (
            range(4, 5),
            "train of h must hold tokens to give samples, its documents [4, 5) hold none",
        ),
    ],
)
def test_documents_must_be_consecutive(prefix: str, indices: Any, message: str) -> None:
    config = make_config()
    low_level = GPTDataset.build_low_level_dataset(prefix, config)
    with pytest.raises(PlanError, match=re.escape(message)):
        GPTDataset(low_level, "h", indices, 5, Split.train, config)


def test_low_level_errors(prefix: str) -> None:
    counts = {prefix: (12, 13)}
    assert open_dataset(prefix, sequences_per_dataset=counts)[0]
    message = f"sequences_per_dataset must count {prefix}, it counts ['other']"
    with pytest.raises(ConfigError, match=re.escape(message)):
        open_dataset(prefix, sequences_per_dataset={"other": (1, 2)})
    with pytest.raises(SourceError, match="must agree with the file"):
        open_dataset(prefix, sequences_per_dataset={prefix: (12, 14)})
    with pytest.raises(SourceError, match="nowhere"):
        open_dataset(f"{prefix}-nowhere")
    with pytest.raises(ConfigError, match="ftp"):
        open_dataset("ftp://host/corpus")


def write_megatron_cache(dataset: GPTDataset, folder: Path) -> list[Path]:
    """Write the index of a dataset as Megatron Core does."""
    name = f"{dataset.unique_description_hash}-GPTDataset-train"
    paths = cache_paths(folder, name)
    for kind in ("document_index", "sample_index", "shuffle_index"):
        np.save(paths[kind], np.asarray(getattr(dataset, kind)[:]))
    paths["description"].write_text(dataset.unique_description)
    return sorted(paths.values())


@pytest.mark.parametrize("defer", [False, True])
def test_caches_of_megatron_are_read(
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    defer: bool,
) -> None:
    """Nothing is built beside them; a cache that does not fit is logged, and not used."""
    monkeypatch.setattr(store_computed, "MIN_STORED_ROWS", 0)
    tokenizer = FakeTokenizer(eod=99)
    tokenizer.unique_identifiers = {"class": "t"}  # type: ignore[attr-defined]
    cache = tmp_path / "cache"
    cache.mkdir()
    settings: Any = {"tokenizer": tokenizer, "defer_npy_index_mmap": defer}
    plain = open_dataset(prefix, 20, tokenizer=tokenizer, path_to_cache=str(tmp_path / "own"))
    files = write_megatron_cache(plain, cache)
    dataset = open_dataset(prefix, 20, path_to_cache=str(cache), **settings)
    assert isinstance(dataset.shuffle_index, np.memmap)
    for copy in (dataset, pickle.loads(pickle.dumps(dataset))):
        items = [item["tokens"].tolist() for item in map(copy.__getitem__, range(20))]
        assert items == [item["tokens"].tolist() for item in map(plain.__getitem__, range(20))]
    assert sorted(cache.iterdir()) == files
    np.save(files[-1], np.asarray(plain.shuffle_index[:])[::-1][:-1])
    again = open_dataset(prefix, 20, path_to_cache=str(cache), **settings)
    assert again[3]["tokens"].tolist() == plain[3]["tokens"].tolist()
    assert "is not used: Megatron's cache must have shuffle_index of uint32" in caplog.text
    assert len(list(cache.iterdir())) == 5
