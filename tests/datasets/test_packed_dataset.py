"""Packed datasets: items against plain Python, blends, runs, workers."""

import multiprocessing
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import zindex
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.datasets.configs import build_datasets, plain_config
from tests.indexing.runs import make_config as make_run
from zindex.config import DatasetConfig
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import MockGPTLowLevelDataset
from zindex.datasets.packed_dataset import PackedGPTDataset
from zindex.datasets.run_datasets import open_run
from zindex.datasets.utils import Split
from zindex.errors import ConfigError, PlanError, VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.indexing.packing import PackingBuild
from zindex.plan.packing import PackingRules

LENGTHS = [3, 5, 2, 7, 0, 4, 6, 1, 9, 0, 8, 13, 1, 25, 3, 1, 2]
ITEM = ["tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen"]


def make_config(**choices: Any) -> GPTDatasetConfig:
    defaults: dict[str, Any] = {
        "random_seed": 1234,
        "blend": (["h"], None),
        "split": "100,0,0",
        "tokenizer": FakeTokenizer(eod=99),
        "packing": PackingRules(4),
    }
    return plain_config(**(defaults | choices))


def open_packed(
    path: str, num_samples: int | None = None, indices: Any = None, **choices: Any
) -> PackedGPTDataset:
    config = make_config(**choices)
    low_level = PackedGPTDataset.build_low_level_dataset(path, config)
    if indices is None:
        indices = range(PackedGPTDataset.numel_low_level_dataset(low_level))
    return PackedGPTDataset(low_level, path, indices, num_samples, Split.train, config)


def naive_item(dataset: PackedGPTDataset, position: int) -> dict[str, Any]:
    """An item, from the index and the documents, one token at a time."""
    config, rules = dataset.config, dataset.rules
    length, extra = config.sequence_length, int(config.add_extra_token_to_sequence)
    sample = int(dataset.shuffle_index[position])
    first, stop = (int(bound) for bound in dataset.sample_offset[sample : sample + 2])
    text: list[int] = []
    document_of: list[int] = []
    bounds = [0]
    for document, offset in dataset.part_index[first:stop].tolist():
        tokens = dataset.dataset[document][offset : offset + length + extra].tolist()
        text += tokens
        document_of += [document] * len(tokens)
        bounds.append(len(text))
    inputs = [text[i] if i < len(text) else 0 for i in range(length)]
    labels = [
        text[i + 1] if i + 1 < len(text) and i + 1 < length + extra else 0 for i in range(length)
    ]
    starts = [
        max(b for b in [*bounds[:-1], min(len(text), length)] if b <= i) for i in range(length)
    ]
    has_label = [i + 1 < len(text) and i + 1 not in bounds for i in range(length)]
    if config.eod_mask_loss:
        has_label = [has and token != 99 for has, token in zip(has_label, inputs, strict=True)]
    edges = [min(bound, length) for bound in bounds]
    edges += [length] * (rules.max_documents + 2 - len(edges))
    return {
        "tokens": inputs,
        "labels": labels,
        "attention_mask": [
            [
                [column > row or column < starts[row] for column in range(length)]
                for row in range(length)
            ]
        ],
        "loss_mask": [float(has) for has in has_label],
        "position_ids": [i - starts[i] for i in range(length)],
        "cu_seqlens": edges,
        "max_seqlen": max(b - a for a, b in pairwise(edges)),
        "document_ids": [document_of[i] if i < len(text) else -1 for i in range(length)],
        "sample_id": sample,
    }


def assert_item(item: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in item.items():
        if name in expected:
            assert np.asarray(value).tolist() == expected[name], name


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=25).filter(any),
    sequence_length=st.integers(1, 12),
    extra=st.booleans(),
    rules=st.builds(PackingRules, st.integers(1, 5), st.sampled_from(["split", "truncate"])),
    eod_mask_loss=st.booleans(),
    num_samples=st.none() | st.integers(1, 30),
)
def test_items_equal_plain_python(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    extra: bool,
    rules: PackingRules,
    num_samples: int | None,
    **choices: Any,
) -> None:
    from zindex.formats.idx_writer import write_index

    folder = tmp_path_factory.mktemp("law")
    write_index(folder / "a.idx", np.uint16, lengths, range(len(lengths) + 1), None)
    (np.arange(sum(lengths), dtype=np.uint16) % 101).tofile(folder / "a.bin")
    dataset = open_packed(
        str(folder / "a"),
        num_samples,
        packing=rules,
        add_extra_token_to_sequence=extra,
        create_attention_mask=True,
        with_provenance=True,
        **choices,
    )
    assert len(dataset) >= (num_samples or 1)
    batch = dataset.__getitems__(range(len(dataset)))
    per_epoch = len(dataset) // dataset._store.attributes["num_epochs"]  # type: ignore[union-attr]
    for position, item in enumerate(batch):
        assert_item(item, naive_item(dataset, position))
        assert int(item["epoch"]) == position // per_epoch
        assert int(item["dataset_id"]) == 0
        assert set(item) == {*ITEM, "attention_mask"} | {
            "dataset_id", "document_ids", "epoch", "sample_id"
        }  # fmt: skip
    assert sorted(batch.tensors["sample_id"].tolist()) == list(range(len(dataset)))


@pytest.fixture
def prefix(write_corpus: WriteCorpus) -> str:
    return write_corpus(LENGTHS)


@pytest.fixture(params=["prefix", "store"])
def path(request: pytest.FixtureRequest, prefix: str) -> str:
    if request.param == "prefix":
        return prefix
    zindex.convert(prefix, f"{prefix}.zarr", client=SerialExecutor())
    return f"{prefix}.zarr"


def test_every_prediction_of_every_document_counts_once(path: str) -> None:
    """With the extra token, whatever the cuts: a token that is no first one is a label once."""
    dataset = open_packed(path, packing=PackingRules(3))
    tensors = dataset.__getitems__(range(len(dataset))).tensors
    seen = tensors["labels"][tensors["loss_mask"] > 0].tolist()
    ends = np.cumsum(LENGTHS)
    expected = [
        token
        for start, stop in zip(ends - LENGTHS, ends, strict=True)
        for token in range(start + 1, stop)
    ]
    assert sorted(seen) == expected
    assert dataset.padding_share == pytest.approx(
        1 - dataset._store.attributes["num_tokens"] / (9 * len(dataset))  # type: ignore[union-attr]
    )


def test_dtypes_and_shapes(path: str) -> None:
    item = open_packed(path)[0]
    assert list(item) == ITEM
    assert {name: (value.dtype, tuple(value.shape)) for name, value in item.items()} == {
        "tokens": (torch.int64, (8,)),
        "labels": (torch.int64, (8,)),
        "loss_mask": (torch.float32, (8,)),
        "position_ids": (torch.int64, (8,)),
        "cu_seqlens": (torch.int32, (6,)),
        "max_seqlen": (torch.int32, ()),
    }
    masked = open_packed(path, create_attention_mask=True)
    assert masked[0]["attention_mask"].shape == (1, 8, 8)
    isolated = open_packed(path, create_attention_mask=True, inter_document_masking=True)
    assert "attention_mask" not in isolated[0]


def test_positions(path: str) -> None:
    dataset = open_packed(path)
    assert_item(dataset[-1], naive_item(dataset, len(dataset) - 1))
    filler = dataset[None]
    assert filler["loss_mask"].sum() == 0
    assert_item(filler, naive_item(dataset, 0) | {"loss_mask": [0.0] * 8})
    for position in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError, match=f"index {position} is out of range for the"):
            dataset[position]
    empty = dataset.__getitems__([]).tensors
    assert {name: tensor.shape[1:] for name, tensor in empty.items()} == {
        name: tensor.shape for name, tensor in dataset[0].items()
    }
    assert {len(tensor) for tensor in empty.values()} == {0}


class OwnItems(PackedGPTDataset):
    def __getitem__(self, idx: int | None) -> dict[str, torch.Tensor]:
        return {"tokens": super().__getitem__(idx)["tokens"] + 1}


def test_methods_of_subclasses_are_called(prefix: str) -> None:
    plain = open_packed(prefix)
    own = OwnItems(plain.dataset, prefix, plain.indices, None, Split.train, plain.config)
    expected = plain.__getitems__([3, 4]).tensors["tokens"] + 1
    assert torch.equal(own.__getitems__([3, 4]).tensors["tokens"], expected)


@pytest.mark.parametrize("store", ["all", "minimal"])
def test_indices_built_ahead_are_found(path: str, tmp_path: Path, store: Any) -> None:
    config = make_run(
        tmp_path,
        path,
        sequence_length=8,
        seed=1234,
        split="100,0,0",
        samples={"train": 30},
        packing=PackingRules(4),
        store=store,
        order="scalable",
    )
    zindex.build(config, SerialExecutor())
    before = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert [name.split("-")[0] for name in before] == ["names", "packed", "zarr.json"]
    choices = {"path_to_cache": str(tmp_path / "index"), "store": store, "order": "scalable"}
    dataset = open_packed(path, 30, **choices)
    assert len(dataset) >= 30
    for position in (0, 29):
        assert_item(dataset[position], naive_item(dataset, position))
    assert before == sorted(path.name for path in (tmp_path / "index").iterdir())


def test_minimal_gives_the_same_samples(path: str, tmp_path: Path) -> None:
    stored = open_packed(path, 40, store="all", order="scalable")
    computed = open_packed(path, 40, store="minimal", order="scalable")
    batches = [dataset.__getitems__(range(len(dataset))).tensors for dataset in (stored, computed)]
    for name, values in batches[0].items():
        assert torch.equal(values, batches[1][name])
    assert stored.fingerprint == computed.fingerprint


def test_the_index_is_next_to_the_data_and_reused(path: str) -> None:
    first = open_packed(path)
    beside = Path(path.removesuffix(".zarr")) / "cache" / "PackedGPTDataset_indices"
    [store] = beside.iterdir()
    assert store.name.startswith("packed-train-")
    again = open_packed(path)
    assert again.fingerprint == first.fingerprint
    assert open_packed(path, packing=PackingRules(3)).fingerprint != first.fingerprint
    assert first.unique_identifiers["packing"] == {"max_documents": 4, "long_documents": "split"}


def test_deferred_index(prefix: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    dataset = open_packed(prefix, defer_npy_index_mmap=True, path_to_cache=str(folder))
    assert not folder.exists()
    assert len(dataset) > 0
    assert folder.exists()


def read_all(dataset: PackedGPTDataset) -> Any:
    return dataset.__getitems__(range(len(dataset))).tensors["tokens"].numpy()


def test_pickle_and_loader_workers(prefix: str) -> None:
    dataset = open_packed(prefix)
    expected = read_all(dataset)
    assert len(pickle.dumps(dataset)) < 10_000
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(read_all, (dataset,)), expected)
    loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    tokens = np.concatenate([batch["tokens"].numpy() for batch in loader])
    np.testing.assert_array_equal(tokens, expected)


def test_made_up_documents_are_refused(tokenizer: FakeTokenizer) -> None:
    low_level = MockGPTLowLevelDataset(tokenizer)
    with pytest.raises(ConfigError, match=r"train of None must be text .* MockGPTLowLevelDataset"):
        PackedGPTDataset(low_level, None, range(10), 5, Split.train, make_config())


def test_packing_cannot_be_followed(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be followed while its index .*follow=3\.0"):
        open_packed(prefix, follow=3.0)


def test_no_tokens_are_refused(write_corpus: WriteCorpus) -> None:
    with pytest.raises(PlanError, match=r"must hold tokens to be packed, its documents \[0, 2\)"):
        open_packed(write_corpus([0, 0, 3]), indices=range(2))


def test_an_index_of_other_data_is_an_error(write_corpus: WriteCorpus) -> None:
    dataset = open_packed(write_corpus(LENGTHS))
    shorter = PackedGPTDataset.build_low_level_dataset(
        write_corpus([1] * len(LENGTHS), name="other"), dataset.config
    )
    dataset._dataset = shorter
    with pytest.raises(VerificationError, match=r"must hold 1 to 4 parts .* build it again"):
        dataset.__getitems__(range(len(dataset)))


def test_a_small_blend_waits_for_its_packings(
    write_corpus: WriteCorpus,
    tmp_path: Path,
    tokenizer: FakeTokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The blend is computed, and its check needs the packings: each is built once, for both."""
    built: list[Any] = []
    build = PackingBuild.build

    async def build_and_record(self: PackingBuild) -> Any:
        built.append(self.root)
        return await build(self)

    monkeypatch.setattr(PackingBuild, "build", build_and_record)
    paths = [write_corpus(LENGTHS * n, name=f"corpus-{n}") for n in (1, 2)]
    config = make_run(
        tmp_path,
        *(DatasetConfig(path, weight=1.0) for path in paths),
        split="100,0,0",
        sequence_length=8,
        samples={"train": 60},
        packing=PackingRules(4),
    )
    blend = open_run(config, tokenizer)["train"]
    assert len(blend) == 60
    assert len(built) == len(set(built)) == 2


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_runs_open_their_packed_blends(
    write_corpus: WriteCorpus, tmp_path: Path, tokenizer: FakeTokenizer, order: Any
) -> None:
    paths = [write_corpus(LENGTHS * n, name=f"corpus-{n}") for n in (1, 2)]
    weights = (3.0, 1.0)
    config = make_run(
        tmp_path,
        *(DatasetConfig(path, weight=weight) for path, weight in zip(paths, weights, strict=True)),
        split="60,40,0",
        sequence_length=8,
        samples={"train": 60, "valid": 10},
        packing=PackingRules(4),
        order=order,
    )
    datasets = open_run(config, tokenizer, with_provenance=True, max_computed_rows=0)
    results = zindex.build(config, SerialExecutor())
    assert {result.num_written for result in results.values()} == {0}
    assert list(datasets) == ["train", "valid"]
    for dataset in datasets.values():
        assert isinstance(dataset, BlendedDataset)
        batch = dataset.__getitems__(range(len(dataset)))
        assert batch.tensors["cu_seqlens"].shape == (len(dataset), 6)
        assert "attention_mask" not in batch.tensors
        for position, item in enumerate(batch):
            number = int(dataset.dataset_index[position])
            member = dataset.datasets[number]
            assert isinstance(member, PackedGPTDataset)
            own = int(dataset.dataset_sample_index[position])
            assert_item(item, naive_item(member, own))
            assert item["dataset_id"] == number
        single = dataset[3]
        for name, value in batch[3].items():
            assert np.array_equal(value, single[name])
    assert len(datasets["train"].fingerprint) == 64


@pytest.mark.parametrize("weights", [[1.0, 3.0], None])
def test_megatrons_builder_takes_packed_datasets(
    write_corpus: WriteCorpus, tmp_path: Path, weights: Any
) -> None:
    paths = [write_corpus(LENGTHS * n, name=f"corpus-{n}") for n in (1, 2)]
    config = make_config(
        blend=(paths, weights), split="70,30,0", path_to_cache=str(tmp_path / "cache")
    )
    sizes = [40, 10, 0] if weights else [None, None, None]
    train, _, test = build_datasets(PackedGPTDataset, sizes, config)
    assert isinstance(train, BlendedDataset)
    assert test is None
    lengths = [len(member) for member in train.datasets]
    assert len(train) >= 40 if weights else len(train) == sum(lengths)
    for position, item in enumerate(train.__getitems__(range(len(train)))):
        member = train.datasets[train.dataset_index[position]]
        assert isinstance(member, PackedGPTDataset)
        assert_item(item, naive_item(member, int(train.dataset_sample_index[position])))


def test_runs_open_their_packed_datasets(
    write_corpus: WriteCorpus, tmp_path: Path, tokenizer: FakeTokenizer
) -> None:
    path = write_corpus(LENGTHS)
    config = make_run(tmp_path, path, split="60,40,0", packing=PackingRules(), sequence_length=8)
    datasets = open_run(config, tokenizer)
    assert [type(item) for item in datasets["train"]] == [PackedGPTDataset]
    assert datasets["valid"][0][0]["cu_seqlens"].shape == (258,)
