"""Batches against their items one by one, and what only batches have against plain loops."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zindex
from tests.conftest import FakeTokenizer
from tests.datasets.test_gpt_dataset import make_config, open_dataset
from tests.samples.plain_items import make_item
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.gpt_dataset import GPTDataset, MockGPTDataset, MockGPTLowLevelDataset
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.utils import Split
from zindex.errors import ConfigError, VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.samples import texts
from zindex.samples.batch import SampleBatch, find_spans
from zindex.store import reader
from zindex.store.layout import ChunkGrid
from zindex.store.rows import read_many

NUM_CASES = 60
ORDERS: tuple[dict[str, Any], ...] = (
    {},
    {"order": "scalable"},
    {"order": "scalable", "store": "minimal"},
)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Four corpora of tokens below 10 and documents of 0 to 20, two of them in each dtype."""
    from zindex.formats.bin_writer import PairWriter

    folder = tmp_path_factory.mktemp("corpora")
    paths = []
    for number in range(4):
        generator = np.random.default_rng(number)
        lengths = generator.integers(0, 21, 30)
        lengths[generator.random(30) < 0.2] = 0
        prefix = str(folder / f"c{number}")
        writer = PairWriter(f"{prefix}.bin", (np.int32, np.uint16)[number % 2])
        for length in lengths:
            writer.append(generator.integers(0, 10, length), [length])
            writer.end_document()
        writer.finalize(f"{prefix}.idx")
        if number:
            grid = ChunkGrid(7, 21)
            zindex.convert(
                prefix, f"{prefix}.zarr", client=SerialExecutor(), link=number == 2, grid=grid
            )
            prefix += ".zarr"
        paths.append(prefix)
    return paths


def draw_settings(generator: Any) -> dict[str, Any]:
    """Draw everything that an item depends on."""
    order = ORDERS[generator.integers(3)]
    pad = [None, -1, 3, 5][generator.integers(4)]
    flags = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
    more = ("create_attention_mask", "add_extra_token_to_sequence", "with_provenance")
    return order | {
        "random_seed": int(generator.integers(1000)),
        "sequence_length": int(generator.integers(1, 30)),
        "tokenizer": FakeTokenizer(eod=4, pad=pad),
        "drop_last_partial_validation_sequence": False,
        "inter_document_masking": bool(generator.integers(4) == 0),
        **{name: bool(generator.integers(2)) for name in (*flags, *more)},
    }


def draw_positions(generator: Any, size: int) -> list[int | None]:
    """Draw positions: some in runs, some negative, some twice, one or two only to fill up."""
    run = int(generator.integers(size))
    positions = generator.integers(-size, size, 5).tolist()
    return [*range(run, min(size, run + 4)), *positions, None, size - 1, -size, positions[0], None]


def assert_equal_items(batch: Any, items: list[dict[str, Any]]) -> None:
    """Compare a batch with items: names in order, types, dtypes, shapes and values."""
    assert len(batch) == len(items)
    if isinstance(batch, SampleBatch):
        stacked = torch.utils.data.default_collate(items)
        assert list(batch.tensors) == list(stacked)
        for name, tensor in stacked.items():
            assert batch.tensors[name].dtype == tensor.dtype, name
            assert torch.equal(batch.tensors[name], tensor), name
    for item, expected in zip(batch, items, strict=True):
        assert list(item) == list(expected)
        for name, value in expected.items():
            assert type(item[name]) is type(value), name
            assert item[name].dtype == value.dtype, name
            assert (torch.as_tensor(item[name]) == torch.as_tensor(value)).all(), name


@pytest.mark.parametrize("number", range(NUM_CASES))
def test_a_batch_equals_its_items(
    corpora: list[str], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if number % 3:  # larger arrays are read span by span
        monkeypatch.setattr(texts, "MAX_NBYTES", 0)
    generator = np.random.default_rng([number, 1])
    settings = draw_settings(generator)
    size = [None, 5, 200][generator.integers(3)]
    split = Split(int(generator.integers(3)))
    cache = str(tmp_path)
    datasets = [
        open_dataset(path, size, split, path_to_cache=cache, **settings) for path in corpora
    ]
    for dataset in datasets:
        positions = draw_positions(generator, len(dataset))
        expected = [make_item(dataset, i) for i in positions]
        assert_equal_items(dataset.__getitems__(positions), expected)
        for position, item in zip(positions, expected, strict=True):
            assert_equal_items([dataset[position]], [item])
    for dataset in datasets:
        dataset.config = datasets[0].config
    lengths = [len(dataset) for dataset in datasets]
    blend = BlendedDataset(
        datasets, lengths, None, make_config(**settings, path_to_cache=[None, cache][number % 2])
    )
    positions = draw_positions(generator, len(blend))
    expected = [make_item(blend, i) for i in positions]
    assert_equal_items(blend.__getitems__(positions), expected)
    arrived = pickle.loads(pickle.dumps(blend))
    assert_equal_items(arrived.__getitems__(positions), expected)


@pytest.mark.parametrize("extra", [False, True])
def test_made_up_data(extra: bool) -> None:
    config = make_config(
        blend=None,
        split=None,
        sequence_length=300,
        tokenizer=FakeTokenizer(vocab_size=50),
        add_extra_token_to_sequence=extra,
        reset_position_ids=True,
        eod_mask_loss=True,
    )
    low_level = MockGPTLowLevelDataset(config.tokenizer)
    dataset = MockGPTDataset(low_level, None, range(40), 1000, Split.train, config)
    positions = [5, 6, 7, -1, 0, None, 5]
    assert_equal_items(dataset.__getitems__(positions), [make_item(dataset, i) for i in positions])


def describe_parts(dataset: GPTDataset, position: int) -> tuple[list[tuple[int, int]], int]:
    """Return document and tokens of each part of a sample, and the sample's number."""
    sample = int(dataset.shuffle_index[position])
    (first, begin), (last, end) = np.asarray(dataset.sample_index)[sample : sample + 2].tolist()
    end += int(dataset.config.add_extra_token_to_sequence)
    parts = []
    for row in range(first, last + 1):
        document = int(dataset.document_index[row])
        stop = end if row == last else len(dataset.dataset.get(document))
        parts.append((document, stop - (begin if row == first else 0)))
    return parts, sample


@pytest.mark.parametrize("number", range(20))
def test_boundaries_of_documents(corpora: list[str], number: int, tmp_path: Path) -> None:
    generator = np.random.default_rng([number, 2])
    settings = draw_settings(generator) | {"inter_document_masking": True, "with_provenance": True}
    split = Split(int(generator.integers(3)))
    dataset = open_dataset(corpora[number % 4], 60, split, path_to_cache=str(tmp_path), **settings)
    size, extra = settings["sequence_length"], int(settings["add_extra_token_to_sequence"])
    epoch = dataset._epochs.tokens_per_epoch
    tensors = dataset.__getitems__(range(len(dataset))).tensors
    assert "attention_mask" not in tensors
    for position in range(len(dataset)):
        parts, sample = describe_parts(dataset, position)
        of_tokens = [document for document, length in parts for _ in range(length)][:size]
        of_tokens += [-1] * (size - len(of_tokens))
        lengths = [length for _, length in parts]
        # The token that only serves as a label is no input; padding is the last document's.
        while lengths and extra and lengths[-1] == 0:
            lengths.pop()
        lengths[-1] -= extra
        while lengths and lengths[-1] == 0:
            lengths.pop()
        lengths[-1] += size - sum(lengths)
        bounds = np.cumsum([0, *lengths])
        if len(bounds) > size + 1:
            bounds = np.unique(bounds)
        row = {name: tensor[position] for name, tensor in tensors.items()}
        assert row["cu_seqlens"].tolist() == [*bounds, *[size] * (size + 1 - len(bounds))]
        assert int(row["max_seqlen"]) == max(lengths)
        positions = [i for length in lengths for i in range(length)]
        assert row["position_ids"].tolist() == positions
        assert row["document_ids"].tolist() == of_tokens
        assert (int(row["sample_id"]), int(row["epoch"])) == (sample, sample * size // epoch)
        assert int(row["dataset_id"]) == 0
    assert tensors["cu_seqlens"].dtype == tensors["max_seqlen"].dtype == torch.int32


def test_rounds_do_not_grow_with_datasets(
    corpora: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MAX_NBYTES", 0)
    config = make_config(path_to_cache=str(tmp_path))
    datasets = [open_dataset(path, path_to_cache=str(tmp_path)) for path in corpora]
    for dataset in datasets:
        dataset.config = config
    blend = BlendedDataset(datasets, [1, 1, 1, 1], 16, config)
    rounds = []
    for name in ("zindex.datasets.blended_dataset.read_many", "zindex.samples.texts.read_many"):
        monkeypatch.setattr(name, lambda wanted: rounds.append(len(wanted)) or read_many(wanted))
    blend.__getitems__(range(16))
    # The bounds of the .bin/.idx pair's documents are in memory; local rows of the blend that are
    # consecutive are read directly.
    assert rounds == [4, 4, 4, 3, 4]


def set_bounds(dataset: GPTDataset, bounds: np.ndarray) -> None:
    """Give a dataset another sample index, whose samples come in their order."""
    order = np.arange(len(dataset))
    arrays = dataset._open_arrays()._replace(sample_index=bounds, shuffle_index=order)
    dataset._arrays, dataset._text = arrays, None


class OwnItems(GPTDataset):
    def __getitem__(self, idx: int | None) -> dict[str, torch.Tensor]:
        return {"tokens": super().__getitem__(idx)["tokens"] + 1}


class OwnText(GPTDataset):
    def _query_document_sample_shuffle_indices(self, idx: int) -> Any:
        text, documents = super()._query_document_sample_shuffle_indices(idx)
        return text + 1, documents


class OwnPair(IndexedDataset):
    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Any:
        return super().get(idx, offset, length) + 1


@pytest.mark.parametrize("kind", [OwnItems, OwnText, OwnPair])
def test_methods_of_subclasses_are_called(corpora: list[str], kind: Any) -> None:
    plain = open_dataset(corpora[0])
    config = make_config()
    low_level = (OwnPair if kind is OwnPair else IndexedDataset)(corpora[0])
    made = (GPTDataset if kind is OwnPair else kind)(
        low_level, corpora[0], range(30), None, Split.train, config
    )
    expected = plain.__getitems__([3, 4]).tensors["tokens"] + 1
    batch = made.__getitems__([3, 4])
    assert torch.equal(batch.tensors["tokens"], expected)
    assert torch.equal(batch[1]["tokens"], expected[1])
    blend = BlendedDataset([made], [1], 5, config)
    assert torch.equal(blend.__getitems__([0, 1]).tensors["tokens"][0], made[0]["tokens"])
    made.config, made._text = make_config(with_provenance=True), None
    if kind is OwnText:
        with pytest.raises(ConfigError, match="items of GPTDataset itself, got those of OwnText"):
            made[0]
    else:
        assert torch.equal(made[3]["tokens"], expected[0])


def test_a_blend_with_its_own_items(corpora: list[str]) -> None:
    class OwnBlend(BlendedDataset):
        def __getitem__(self, idx: int | None) -> dict[str, Any]:
            return {"tokens": super().__getitem__(idx)["tokens"] + 1}

    members: Any = [open_dataset(corpora[0])]
    batch = OwnBlend(members, [1], 5, make_config()).__getitems__([0, 2])
    assert torch.equal(batch[0]["tokens"], members[0][0]["tokens"] + 1)


@pytest.mark.parametrize("size", [1, 3])
def test_writes_to_a_batch_do_not_change_others(
    corpora: list[str], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(corpora[1])
    items = [dataset[i] for i in range(size)]
    expected = {name: torch.stack([item[name] for item in items]) for name in items[0]}
    for num_spans in [0] * 30 + [reader.SPANS_BEFORE_KERNEL] * 3:  # in every way of reading
        monkeypatch.setattr("zindex.store.reader._num_spans", num_spans)
        tensors = dataset.__getitems__(range(size)).tensors
        for name, tensor in tensors.items():
            assert torch.equal(tensor, expected[name])
            if name in ("position_ids", "attention_mask") and size > 1:
                with pytest.raises(RuntimeError, match="single memory location"):
                    tensor.logical_not_()
            else:
                tensor.zero_()


def test_invalid_positions_and_empty_batches(corpora: list[str]) -> None:
    dataset = open_dataset(corpora[0])
    size = len(dataset)
    where = f"the {size} samples of train of {corpora[0]}"
    with pytest.raises(IndexError, match=re.escape(f"index {size} is out of range for {where}")):
        dataset.__getitems__([0, size])
    blend = BlendedDataset([dataset], [1], 5, make_config())
    with pytest.raises(IndexError, match="index -6 is out of range for the 5 samples of the train"):
        blend.__getitems__([-6])
    for some in (dataset, blend):
        empty, full = some.__getitems__([]).tensors, some.__getitems__([0]).tensors
        assert list(empty) == list(full)
        for name, tensor in empty.items():
            assert (len(tensor), tensor.shape[1:]) == (0, full[name].shape[1:])
            assert tensor.dtype == full[name].dtype


@pytest.mark.parametrize(
    ("boundary", "message"),
    [
        ([0, 999], "gives [0, 1000) of the "),
        ([0, -5], "gives [0, -4) of the "),
        ([-1, 0], "gives rows [[0, 0], [-1, 0]] that fall"),
        ([29, 0], " tokens and one if an extra token is drawn"),
    ],
)
def test_an_index_that_does_not_match_the_corpus(
    corpora: list[str], boundary: Any, message: str
) -> None:
    dataset = open_dataset(corpora[3])
    bounds = np.asarray(dataset.sample_index)
    bounds[1] = boundary
    set_bounds(dataset, bounds)
    with pytest.raises(VerificationError, match=re.escape(message)) as caught:
        dataset.__getitems__([2, 0])
    assert f"sample 0 of train of {corpora[3]}" in str(caught.value)


def test_only_the_last_sample_may_be_short(corpora: list[str]) -> None:
    """An index that yields too few tokens elsewhere is damaged: padding would hide it."""
    settings = {"sequence_length": 5, "drop_last_partial_validation_sequence": False}
    dataset = open_dataset(corpora[3], None, Split.valid, **settings)
    last = len(dataset) - 1
    assert not dataset._drop_last
    bounds = np.asarray(dataset.sample_index)
    set_bounds(dataset, bounds)
    assert 0 < float(dataset.__getitems__([last])[0]["loss_mask"].sum()) < 5
    assert 0 < float(dataset[last]["loss_mask"].sum()) < 5
    for sample in (0, last - 1):
        harmed = bounds.copy()
        harmed[sample + 1] = harmed[sample]
        set_bounds(dataset, harmed)
        message = (
            rf"sample {sample} of valid of .* gives [01] tokens, though tokens follow; restore"
        )
        with pytest.raises(VerificationError, match=message):
            dataset.__getitems__([sample])
        with pytest.raises(VerificationError, match=message):
            dataset[sample]
    train = open_dataset(corpora[3])
    bounds = np.asarray(train.sample_index)
    bounds[-1] = bounds[-2]
    set_bounds(train, bounds)
    for read in (train.__getitem__, lambda i: train.__getitems__([i])):
        with pytest.raises(VerificationError, match=r"gives [01] tokens, though tokens follow"):
            read(len(train) - 1)


def test_a_single_sample_of_too_many_tokens_is_refused(corpora: list[str]) -> None:
    dataset = open_dataset(corpora[3])
    bounds = np.asarray(dataset.sample_index)
    bounds[0] = bounds[1]
    bounds[1] = bounds[9]
    set_bounds(dataset, bounds)
    with pytest.raises(
        VerificationError, match=r"sample 0 of .* index gives .* of document \d+; restore"
    ):
        dataset[0]


@pytest.mark.parametrize(
    ("numbers", "spans"),
    [
        ([0], [(0, 1)]),
        ([3, 4, 5], [(3, 6)]),
        ([3, 3], [(3, 4), (3, 4)]),
        ([2, 1], [(2, 3), (1, 2)]),
    ],
)
def test_spans_of_consecutive_numbers(numbers: list[int], spans: list[tuple[int, int]]) -> None:
    starts, stops = find_spans(np.array(numbers))
    assert list(zip(starts.tolist(), stops.tolist(), strict=True)) == spans


def test_fingerprints(corpora: list[str], tmp_path: Path) -> None:
    settings = {"path_to_cache": str(tmp_path)}
    first, again = (open_dataset(corpora[1], 5, **settings) for _ in range(2))
    assert re.fullmatch("[0-9a-f]{64}", first.fingerprint)
    assert first.fingerprint == again.fingerprint
    # A pair and its store are the same data.
    pair = open_dataset(corpora[1].removesuffix(".zarr"), 5, **settings)
    assert first.fingerprint == pair.fingerprint
    others = [open_dataset(corpora[1], 5, random_seed=5), open_dataset(corpora[0], 5)]
    assert len({dataset.fingerprint for dataset in (first, *others)}) == 3
    deferred = open_dataset(corpora[1], 5, defer_npy_index_mmap=True, **settings)
    assert deferred.fingerprint == first.fingerprint
    assert deferred._arrays is None
    blends = [BlendedDataset([first], [1], size, make_config()) for size in (3, 3, 4)]
    assert blends[0].fingerprint == blends[1].fingerprint != blends[2].fingerprint
    assert isinstance(blends[0].__getitems__([0]), SampleBatch)
