"""Every index and every item equals Megatron Core's, over seeded random cases."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.oracle.conftest import (
    OracleTokenizer,
    assert_same_array,
    assert_same_item,
    fit,
    megatron_version,
)
from zindex.datasets import blended_megatron_dataset_config as our_config
from zindex.datasets import gpt_dataset as our_gpt
from zindex.datasets import utils as our_utils
from zindex.datasets.indexed_dataset import IndexedDatasetBuilder
from zindex.execution.executor import SerialExecutor
from zindex.indexing.index_arrays import open_index_arrays
from zindex.plan.split import split_range
from zindex.store.layout import ChunkGrid

NUM_CASES = 300
NUM_CORPORA = 24
ARRAYS = ("document_index", "sample_index", "shuffle_index")
SPLITS = ("100,0,0", "0,100,0", "80,15,5", "1,1,1", "50,50", "969,30,1", "10,0,90")
CHUNK_LENGTHS = (1, 1, 2, 3, 7, 64, 1 << 16)


@dataclasses.dataclass(frozen=True)
class Corpus:
    prefix: str
    store: str
    lengths: np.ndarray[Any, np.dtype[np.int32]]


def write_corpus(folder: Path, number: int) -> Corpus:
    """Write documents of 0 to 40 tokens below 10, so that special tokens are frequent."""
    generator = np.random.default_rng(number)
    lengths = generator.integers(0, 41, generator.integers(5, 61)).astype(np.int32)
    lengths[generator.random(len(lengths)) < 0.15] = 0
    prefix = str(folder / f"corpus-{number}")
    builder = IndexedDatasetBuilder(f"{prefix}.bin", (np.int32, np.uint16, np.int64)[number % 3])
    for length in lengths:
        builder.add_item(generator.integers(0, 10, length))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    store = f"{prefix}.zarr"
    grid = ChunkGrid(*[(1, 4), (16, 32), (1 << 16, 1 << 16)][number % 3])
    zindex.convert(prefix, store, client=SerialExecutor(), link=number % 4 == 3, grid=grid)
    return Corpus(prefix, store, lengths)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Corpus]:
    folder = tmp_path_factory.mktemp("corpora")
    return [write_corpus(folder, number) for number in range(NUM_CORPORA)]


@dataclasses.dataclass(frozen=True)
class Case:
    """One draw of everything that an index or an item depends on."""

    split: str
    split_number: int
    start: int
    stop: int
    num_samples: int | None
    settings: dict[str, Any]
    tokenizer: OracleTokenizer
    grid: ChunkGrid


def draw_case(number: int, corpus: Corpus) -> Case:
    generator = np.random.default_rng([number, 1])

    def pick(options: Any) -> Any:
        return options[generator.integers(len(options))]

    num_tokens = 0
    while not num_tokens:
        split = pick(SPLITS)
        split_number = int(generator.integers(3))
        matrix = our_config.convert_split_vector_to_split_matrix(
            our_config.parse_and_normalize_split(split)
        )
        start, stop = split_range(len(corpus.lengths), matrix[split_number])
        num_tokens = int(corpus.lengths[start:stop].sum())
    sequence_length = int(generator.integers(1, 40))
    epochs = generator.uniform(0, 5)
    many = max(1, int(epochs * num_tokens / sequence_length))
    num_samples = pick([None, many, many, many, many, many, many, 0, 1])
    settings = {
        "random_seed": pick([0, 1234, 2**32 - 1, int(generator.integers(2**31))]),
        "sequence_length": sequence_length,
        "reset_position_ids": bool(generator.integers(2)),
        "reset_attention_mask": bool(generator.integers(2)),
        "eod_mask_loss": bool(generator.integers(2)),
        "create_attention_mask": bool(generator.integers(4)),
        "drop_last_partial_validation_sequence": bool(generator.integers(2)),
        "add_extra_token_to_sequence": bool(generator.integers(3)),
        "allow_ambiguous_pad_tokens": bool(generator.integers(2)),
        "mmap_bin_files": bool(generator.integers(2)),
    }
    if number % 3 == 0:  # the path on which Megatron keeps its masks between items
        settings |= {
            "reset_position_ids": False,
            "reset_attention_mask": False,
            "eod_mask_loss": False,
        }
    tokenizer = OracleTokenizer(
        vocab_size=pick([None, 10, 100_000]),
        eod=pick([0, 3]),
        pad=pick([None, -1, 5, 3]),
        eos=pick([None, 5]),
    )
    chunk_length = pick(CHUNK_LENGTHS)
    grid = ChunkGrid(chunk_length, chunk_length * int(generator.integers(2, 9)))
    return Case(split, split_number, start, stop, num_samples, settings, tokenizer, grid)


def open_both(
    megatron: Any, case: Case, prefix: str, path: str, folder: Path, **ours_only: Any
) -> tuple[our_gpt.GPTDataset, Any]:
    """Return our dataset over ``path`` and Megatron's over ``prefix``, None if it refuses."""
    opened = []
    settings = fit(megatron.gpt.GPTDatasetConfig, case.settings)
    indices = np.arange(case.start, case.stop, dtype=np.int32)
    for module, utils, place in (
        (our_gpt, our_utils, path),
        (megatron.gpt, megatron.utils, prefix),
    ):
        ours = module is our_gpt
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*pad token.*")
            config = module.GPTDatasetConfig(
                blend=([prefix], None),
                split=case.split,
                tokenizer=case.tokenizer,
                path_to_cache=str(folder / ("zindex" if ours else "megatron")),
                **settings[not ours],
                **(ours_only if ours else {}),
            )
            low_level = module.GPTDataset.build_low_level_dataset(place, config)
            split = utils.Split(case.split_number)
            arguments = (low_level, prefix, indices, case.num_samples, split, config)
            try:
                opened.append(module.GPTDataset(*arguments))
            except AssertionError:
                assert not ours
                opened.append(None)
    return opened[0], opened[1]


@pytest.mark.parametrize("number", range(NUM_CASES))
def test_equal(megatron: Any, corpora: list[Corpus], number: int, tmp_path: Path) -> None:
    corpus = corpora[number % NUM_CORPORA]
    case = draw_case(number, corpus)
    path = corpus.store if number // NUM_CORPORA % 2 else corpus.prefix
    ours, theirs = open_both(megatron, case, corpus.prefix, path, tmp_path, grid=case.grid)
    if theirs is None:
        assert_ends_with_an_empty_document(ours, corpus)
        return
    assert ours.unique_description == theirs.unique_description
    assert ours.unique_description_hash == theirs.unique_description_hash
    assert ours._pad_token_id == theirs._pad_token_id
    assert len(ours) == len(theirs)
    for name in ARRAYS:
        assert_same_array(getattr(ours, name), getattr(theirs, name), name)
    assert_same_array(ours.indices, theirs.indices, "indices")
    size = len(theirs)
    with pytest.raises(IndexError, match=f"index {size} is out of range"):
        ours[size]
    if not size:
        return
    generator = np.random.default_rng([number, 2])
    positions = [None, 0, size - 1, -1, *generator.integers(-size, size, 4).tolist()]
    batch = ours.__getitems__(positions)
    assert list(batch.tensors) == list(batch[0])
    for i, position in enumerate(positions):
        expected = expected_item(theirs, position)
        assert_same_item(ours[position], expected, f"item {position}")
        assert_same_item(batch[i], expected, f"item {position} of a batch")
        in_tensors = {name: tensor[i] for name, tensor in batch.tensors.items()}
        assert_same_item(in_tensors, expected, f"row {i} of a batch")
    text, documents = ours._query_document_sample_shuffle_indices(size - 1)
    found = theirs._query_document_sample_shuffle_indices(size - 1)
    expected_text, expected_documents = found[:2]  # later versions add lengths
    assert_same_array(text, expected_text, "text")
    assert_same_array(documents, expected_documents, "documents")


def assert_ends_with_an_empty_document(ours: our_gpt.GPTDataset, corpus: Corpus) -> None:
    """Check that it is the offset -1 of a last, partial sample that Megatron refuses, we do not."""
    last = np.asarray(ours.sample_index)[-1].tolist()
    assert last == [len(ours.document_index) - 1, -1]
    assert corpus.lengths[ours.document_index[-1]] == 0
    partial = int(np.flatnonzero(np.asarray(ours.shuffle_index) == len(ours) - 1)[0])
    text, _ = ours._query_document_sample_shuffle_indices(partial)
    num_tokens = ours._epochs.num_epochs * ours._epochs.tokens_per_epoch
    num_real = num_tokens - (len(ours) - 1) * ours.config.sequence_length
    assert (text[num_real:] == ours._pad_token_id).all()
    assert 0 < num_real < len(text)


def expected_item(theirs: Any, position: int | None) -> dict[str, Any]:
    """Return Megatron's item without the zeros that an earlier item left in its shared mask."""
    theirs.masks_and_position_ids_are_cached = False
    item: dict[str, Any] = theirs[position]
    return item


@pytest.mark.parametrize("number", range(4))
def test_equal_on_a_cluster(
    megatron: Any, corpora: list[Corpus], cluster_client: Any, number: int, tmp_path: Path
) -> None:
    corpus = corpora[number]
    case = draw_case(number, corpus)
    # A build leaves out a split of which no samples are asked.
    case = dataclasses.replace(case, num_samples=case.num_samples or None)
    split = our_utils.Split(case.split_number).name
    config = {
        "datasets": [{"path": (corpus.prefix, corpus.store)[number % 2]}],
        "sequence_length": case.settings["sequence_length"],
        "seed": case.settings["random_seed"],
        "split": case.split,
        "samples": {name: 0 for name in our_utils.Split.__members__} | {split: case.num_samples},
        "index": str(tmp_path / "zindex"),
        "add_extra_token_to_sequence": case.settings["add_extra_token_to_sequence"],
        "drop_last_partial_validation_sequence": case.settings[
            "drop_last_partial_validation_sequence"
        ],
        "grid": dataclasses.asdict(case.grid),
    }
    results = zindex.build(config, client=cluster_client)
    ((_, result),) = results.items()
    before = sorted((tmp_path / "zindex").rglob("*"))
    path = config["datasets"][0]["path"]
    ours, theirs = open_both(megatron, case, corpus.prefix, path, tmp_path, grid=case.grid)
    assert result.num_written == result.num_shards
    for name in ARRAYS:
        assert_same_array(
            getattr(open_index_arrays(result.store), name), getattr(theirs, name), name
        )
    assert len(ours) == len(theirs)
    # The dataset found the index that was built ahead of it.
    assert sorted((tmp_path / "zindex").rglob("*")) == before


@pytest.mark.parametrize("name", ["BlendedMegatronDatasetConfig", "GPTDatasetConfig"])
def test_config_has_every_field(megatron: Any, name: str) -> None:
    ours = {
        item.name: item
        for item in dataclasses.fields(
            getattr(our_gpt, name, None) or our_config.BlendedMegatronDatasetConfig
        )
    }
    theirs = getattr(megatron.gpt, name)
    own = [
        "order",
        "store",
        "grid",
        "shuffle",
        "renormalize_blend_weights",
        "max_computed_rows",
        "index_timeout",
        "index_takeover",
        "follow",
    ]
    if name == "GPTDatasetConfig":
        own += [
            "inter_document_masking",
            "dynamic_context_parallel",
            "sft_mock_dataset_config_json",
            "varlen_mock_dataset_config_json",
            "varlen_sbhd_validation",
            "sft_rules",
            "with_provenance",
            "check_ids",
            "packing",
        ]
    if megatron_version() == (0, 16):
        positional = [item.name for item in ours.values() if not item.kw_only]
        assert [item.name for item in ours.values() if item.kw_only] == own
        assert positional == [item.name for item in dataclasses.fields(theirs)]
    for item in dataclasses.fields(theirs):
        # Ours reads by position unless a map is asked for: a file that is cut is then an error.
        if item.name != "mmap_bin_files":
            assert ours[item.name].default == item.default, item.name
        assert ours[item.name].init == item.init, item.name


@pytest.mark.parametrize(
    "blend",
    [
        None,
        ["a"],
        ["a", "b"],
        ["30", "a", "70", " b "],
        ["a", "b", "c"],
        [3, "a", 0.5, "b"],
        ["a", "1", "b", "2"],
        ["1", "2"],
        ["nan", "a"],
        ["1e3", "a"],
        [" 3 ", "a"],
    ],
)
def test_blend_lists(megatron: Any, blend: list[str] | None) -> None:
    ours = our_utils.get_blend_from_list(blend)
    assert repr(ours) == repr(megatron.utils.get_blend_from_list(blend))


@pytest.mark.parametrize("split", list(our_utils.Split))
@pytest.mark.parametrize("num_samples", [None, 50_000])
def test_mock(megatron: Any, split: our_utils.Split, num_samples: int | None) -> None:
    tokenizer = OracleTokenizer(vocab_size=1000, eod=0, pad=-1)
    opened = []
    for module, utils in ((our_gpt, our_utils), (megatron.gpt, megatron.utils)):
        config = module.GPTDatasetConfig(
            random_seed=7,
            sequence_length=2048,
            tokenizer=tokenizer,
            reset_position_ids=True,
            reset_attention_mask=False,
            eod_mask_loss=True,
            create_attention_mask=False,
        )
        low_level = module.MockGPTDataset.build_low_level_dataset(None, config)
        size = module.MockGPTDataset.numel_low_level_dataset(low_level)
        start, stop = split_range(size, config.split_matrix[split.value])
        indices = np.arange(start, stop, dtype=np.int32)
        opened.append(
            module.MockGPTDataset(
                low_level, None, indices, num_samples, utils.Split(split.value), config
            )
        )
    ours, theirs = opened
    assert ours.unique_description == theirs.unique_description
    assert_same_array(ours.dataset.sequence_lengths, theirs.dataset.sequence_lengths, "lengths")
    for name in ARRAYS:
        assert_same_array(getattr(ours, name), getattr(theirs, name), name)
    for position in (0, 1, 17, len(theirs) - 1):
        assert_same_item(ours[position], theirs[position], f"item {position}")
    for arguments in ((3,), (3, 5), (3, 5, 7), (3, 0, 10**6), (4, 2000, 3), (-1, 1, 2), (5, 10**6)):
        expected = theirs.dataset.get(*arguments)
        assert_same_array(ours.dataset.get(*arguments), expected, str(arguments))
    assert_same_array(ours.dataset[9], theirs.dataset[9], "document")


@pytest.mark.parametrize("number", range(30))
def test_functions_that_draw_from_a_given_generator(megatron: Any, number: int) -> None:
    """The module's own functions, which other projects call, leave the generator where they do."""
    draw = np.random.default_rng(number)
    documents = np.arange(draw.integers(0, 5), draw.integers(5, 60))
    num_epochs, is_separate = int(draw.integers(1, 5)), bool(draw.integers(2))
    total = int(draw.integers(1, 90))
    first = int(draw.integers(1, total + 1))
    states = [np.random.RandomState(number) for _ in range(2)]
    for module, state in zip((our_gpt, megatron.gpt), states, strict=True):
        arrays = (
            module._build_document_index(documents, num_epochs, state, is_separate),
            module._build_shuffle_index(first, total, state),
        )
        if module is our_gpt:
            ours = arrays
    for name, mine, theirs in zip(("documents", "shuffle"), ours, arrays, strict=True):
        assert_same_array(mine, theirs, name)
    assert states[0].random() == states[1].random()
