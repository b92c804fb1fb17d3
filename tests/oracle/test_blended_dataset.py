"""Every split that a builder makes equals Megatron Core's, over seeded random configurations."""

import dataclasses
import traceback
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import numbers
from tests.oracle.conftest import OracleTokenizer, assert_same_array, assert_same_item
from zindex.datasets import blended_dataset as our_blend
from zindex.datasets import blended_megatron_dataset_builder as our_builder
from zindex.datasets import gpt_dataset as our_gpt
from zindex.datasets import utils as our_utils
from zindex.datasets.blended_megatron_dataset_config import (
    BlendedMegatronDatasetConfig,
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from zindex.datasets.indexed_dataset import IndexedDatasetBuilder
from zindex.errors import ConfigError, PlanError, ZindexError
from zindex.plan.split import split_range
from zindex.store.layout import ChunkGrid

NUM_CASES = 500
SPLITS = ("100,0,0", "70,20,10", "70,20,10", "70,20,10", "1,1,1", "50,50", "99,1,0", "10,0,90")


@pytest.fixture(scope="module")
def theirs_modules(megatron: Any) -> SimpleNamespace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import blended_dataset, blended_megatron_dataset_builder
    return SimpleNamespace(
        gpt=megatron.gpt, blend=blended_dataset, builder=blended_megatron_dataset_builder
    )


@dataclasses.dataclass(frozen=True)
class Corpus:
    prefix: str
    lengths: np.ndarray[Any, np.dtype[np.int64]]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Corpus]:
    """Corpora of 9 to 60 documents; only the last two have empty ones."""
    folder = tmp_path_factory.mktemp("corpora")
    made = []
    for number in range(8):
        generator = np.random.default_rng([number, 5])
        lengths = generator.integers(1, 25, (9, 20, 25, 30, 45, 60, 24, 33)[number])
        if number >= 6:
            lengths[generator.random(len(lengths)) < 0.3] = 0
        prefix = str(folder / f"corpus-{number}")
        builder = IndexedDatasetBuilder(f"{prefix}.bin", np.int32)
        for length in lengths:
            builder.add_item(generator.integers(0, 10, length))
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
        made.append(Corpus(prefix, lengths))
    return made


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One place for the indices of all cases, many of which are found again."""
    return str(tmp_path_factory.mktemp("cache"))


@dataclasses.dataclass(frozen=True)
class Case:
    """A configuration of a builder."""

    settings: dict[str, Any]
    sizes: list[int | None]
    #: Whether some split of some dataset holds no tokens, which Megatron never comes back from.
    has_empty_split: bool


class Draw:
    """Random choices from a seed."""

    def __init__(self, number: int, corpora: list[Corpus]) -> None:
        self.generator = np.random.default_rng([number, 7])
        self.drop_last = bool(self.integer(3))
        # Megatron refuses a last partial sample whose last document is empty.
        self.corpora = corpora if self.drop_last else corpora[:6]

    def integer(self, stop: int) -> int:
        return int(self.generator.integers(stop))

    def pick(self, options: Any) -> Any:
        return options[self.integer(len(options))]

    def size(self) -> int | None:
        return self.pick([None, 0, 1, 7, 40, self.integer(400), self.integer(400)])

    def weights(self, count: int) -> list[float]:
        kind = self.integer(4)
        if kind == 0:
            return [1.0] * count
        if kind == 1:
            return [float(weight) for weight in self.generator.integers(1, 8, count)]
        values: list[float] = (self.generator.pareto(1, count) + 0.01).tolist()
        return values

    def blend(self, least: int = 1) -> Any:
        count = least + self.integer(7 - least)
        prefixes = [self.pick(self.corpora).prefix for _ in range(count)]
        return prefixes, self.weights(count) if self.integer(2) else None

    def case(self) -> Case:
        extra = bool(self.integer(3))
        settings: dict[str, Any] = {
            # Megatron's caches do not tell apart what the last two digits stand for.
            "random_seed": self.pick([0, 1200]) + 10 * extra + self.drop_last,
            "sequence_length": self.pick([3, 8, 16]),
            "add_extra_token_to_sequence": extra,
            "drop_last_partial_validation_sequence": self.drop_last,
            "mid_level_dataset_surplus": self.pick([0.005, 0.005, 0.0, 0.5]),
            "num_dataset_builder_threads": self.pick([1, 1, 3]),
            "reset_position_ids": bool(self.integer(2)),
            "reset_attention_mask": False,
            "eod_mask_loss": bool(self.integer(2)),
            "create_attention_mask": False,
            "multiple_validation_sets": self.pick([None, False, True]),
            "full_validation": self.pick([None, False, False, True]),
        }
        sizes = [self.size() for _ in range(3)]
        if self.integer(3):
            blend = self.blend(self.pick([1, 2, 3]))
            if blend[1] is not None and self.integer(8):
                sizes = [self.integer(100) if size is None else size for size in sizes]
            settings |= {"blend": blend, "split": self.pick(SPLITS)}
            matrix = convert_split_vector_to_split_matrix(
                parse_and_normalize_split(settings["split"])
            )
            used = [(prefix, part) for prefix in blend[0] for part in matrix if part]
        else:
            blends: list[Any] = [self.blend() if self.integer(4) else None for _ in range(3)]
            blends[self.integer(3)] = self.blend()
            settings["blend_per_split"] = blends
            for i, blend in enumerate(blends):
                if blend and blend[1] is not None and sizes[i] is None and self.integer(8):
                    sizes[i] = self.integer(100)
            used = [(prefix, (0.0, 1.0)) for blend in blends if blend for prefix in blend[0]]
        lengths = {corpus.prefix: corpus.lengths for corpus in self.corpora}
        tokens = [
            lengths[prefix][slice(*split_range(len(lengths[prefix]), part))].sum()
            for prefix, part in used
        ]
        return Case(settings, sizes, not all(tokens))


OURS = SimpleNamespace(gpt=our_gpt, blend=our_blend, builder=our_builder)


def build(modules: Any, case: Case, *, is_mock: bool = False, **own: Any) -> list[Any]:
    """Return what a builder makes of a case."""
    with warnings.catch_warnings():
        if modules is not OURS:
            warnings.simplefilter("ignore")
            # Its threads read caches that others of them are still writing.
            own["num_dataset_builder_threads"] = 1
        tokenizer = OracleTokenizer(vocab_size=10, eod=0, pad=-1)
        config = modules.gpt.GPTDatasetConfig(tokenizer=tokenizer, **(case.settings | own))
        cls = modules.gpt.MockGPTDataset if is_mock else modules.gpt.GPTDataset
        builder = modules.builder.BlendedMegatronDatasetBuilder
        datasets: list[Any] = builder(cls, case.sizes, lambda: True, config).build()
        return datasets


def assert_same_dataset(ours: Any, theirs: Any, generator: Any, name: str) -> None:
    if theirs is None:
        assert ours is None, name
        return
    if isinstance(theirs, list):
        assert len(ours) == len(theirs), name
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same_dataset(one, other, generator, f"{name} {i}")
        return
    assert type(ours).__name__ == type(theirs).__name__, name
    assert len(ours) == len(theirs), name
    assert ours.unique_description == theirs.unique_description, name
    assert ours.unique_description_hash == theirs.unique_description_hash, name
    members = [theirs]
    if hasattr(theirs, "datasets"):
        assert ours.size == theirs.size, name
        assert ours.weights == theirs.weights, name
        assert ours.split.name == theirs.split.name, name
        assert_same_array(ours.dataset_index, theirs.dataset_index, name)
        samples = np.asarray(ours.dataset_sample_index)
        np.testing.assert_array_equal(samples, theirs.dataset_sample_index)
        members = theirs.datasets
        for i, (one, other) in enumerate(zip(ours.datasets, members, strict=True)):
            assert (len(one), one.dataset_path) == (len(other), other.dataset_path), (name, i)
            assert one.unique_description_hash == other.unique_description_hash, (name, i)
            assert_same_array(one.shuffle_index, other.shuffle_index, f"{name} {i}")
    size = len(theirs)
    if not size:
        return
    positions = [0, size - 1, -1, *generator.integers(-size, size, 2).tolist()]
    batch = ours.__getitems__(positions)
    for i, position in enumerate(positions):
        for member in members:  # without zeros that an earlier item left in its shared mask
            member.masks_and_position_ids_are_cached = False
        expected = theirs[position]
        wanted = expected.pop("dataset_id", None)
        for item in (ours[position], batch[i]):
            if wanted is not None:
                number = item.pop("dataset_id")
                assert (number, number.dtype, type(number)) == (wanted, wanted.dtype, type(wanted))
            assert_same_item(item, expected, f"{name} {position}")


@pytest.mark.parametrize("number", numbers(NUM_CASES // 2, NUM_CASES))
def test_equal(theirs_modules: Any, corpora: list[Corpus], cache: str, number: int) -> None:
    """The bar is 500 drawn cases (slow); the first half is compared by default."""
    draw = Draw(number, corpora)
    case = draw.case()
    own: dict[str, Any] = {"path_to_cache": draw.pick([None, cache, cache])}
    if number % 5 == 0:
        own["grid"] = ChunkGrid(2, 16)
    if case.has_empty_split:
        with pytest.raises(ZindexError, match=r"hold documents|hold tokens|must be given"):
            build(OURS, case, **own)
        return
    generator = np.random.default_rng([number, 8])
    try:
        theirs = build(theirs_modules, case)
    except (AssertionError, IndexError) as error:
        if "_ > 0" in str(traceback.extract_tb(error.__traceback__)[-1].line):
            compare_without_empty_members(theirs_modules, case, own)
            return
        with pytest.raises((ConfigError, PlanError)):
            build(OURS, case, **own)
        return
    ours = build(OURS, case, **own)
    for split, one, other in zip(our_utils.Split, ours, theirs, strict=True):
        assert_same_dataset(one, other, generator, split.name)


def compare_without_empty_members(modules: Any, case: Case, own: dict[str, Any]) -> None:
    """Compare blends with Megatron's over their members that have samples."""
    try:
        ours = build(OURS, case, **own)
    except PlanError as error:
        if "blend must have samples, got none from all of its" in str(error):
            return
        raise
    dropped = 0
    for blend in ours:
        if not isinstance(blend, our_blend.BlendedDataset):
            continue
        weights = [len(member) for member in blend.datasets]
        given = case.settings.get("blend") or case.settings["blend_per_split"][blend.split.value]
        if given[1] is not None:
            continue
        dropped += len(given[0]) - len(weights)
        config = SimpleNamespace(defer_npy_index_mmap=False, path_to_cache=None)
        theirs = modules.blend.BlendedDataset(blend.datasets, weights, blend.size, config)
        assert_same_array(blend.dataset_index, theirs.dataset_index, "dataset_index")
        assert blend.unique_description_hash == theirs.unique_description_hash
    assert dropped


@pytest.mark.parametrize("sizes", [[1000, 0, None], [None, None, None], [80_000, 5, 7]])
def test_mock(theirs_modules: Any, sizes: list[int | None]) -> None:
    settings = {
        "random_seed": 3,
        "sequence_length": 4096,
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
    }
    case = Case(settings, sizes, has_empty_split=False)
    ours, theirs = (build(modules, case, is_mock=True) for modules in (OURS, theirs_modules))
    generator = np.random.default_rng(1)
    for split, one, other in zip(our_utils.Split, ours, theirs, strict=True):
        assert_same_dataset(one, other, generator, split.name)


WEIGHTS = ([1, 4], [3, 1, 3], [0.5, 0.25, 0.25], [0.6, 0.3, 0.1], [1.0] * 7, [1e-9, 1.0])


@pytest.mark.parametrize("size", [0, 1, 9, 12, 1000, None])
@pytest.mark.parametrize("weights", [*WEIGHTS, *range(20)])
def test_blend_of_any_datasets(theirs_modules: Any, weights: Any, size: int | None) -> None:
    if isinstance(weights, int):
        generator = np.random.default_rng([weights, 9])
        weights = (generator.pareto(1, generator.integers(1, 300)) + 1e-3).tolist()
    if size is None:
        weights = [int(weight) + 1 for weight in weights]
    datasets = [Numbers(number) for number in range(len(weights))]
    config = SimpleNamespace(defer_npy_index_mmap=False, path_to_cache=None)
    theirs = theirs_modules.blend.BlendedDataset(datasets, weights, size, config)
    ours = our_blend.BlendedDataset(
        datasets, weights, size, BlendedMegatronDatasetConfig(random_seed=1, sequence_length=1)
    )
    assert (len(ours), ours.weights, ours.size) == (len(theirs), theirs.weights, theirs.size)
    assert ours.unique_description == theirs.unique_description
    assert_same_array(ours.dataset_index, theirs.dataset_index, "dataset_index")
    samples = np.asarray(ours.dataset_sample_index)
    np.testing.assert_array_equal(samples, theirs.dataset_sample_index)
    counts = np.bincount(theirs.dataset_index, minlength=len(weights))
    np.testing.assert_array_equal(ours.dataset_count, counts)
    for position in {0, len(ours) - 1, len(ours) // 2, -1} if len(ours) else ():
        assert ours[position] == theirs[position]


class Numbers:
    """A dataset of as many samples as anybody asks for."""

    index_split = our_utils.Split.train

    def __init__(self, number: int) -> None:
        self.dataset_path = f"d{number}"
        self.unique_identifiers = {"class": "Numbers", "dataset_path": self.dataset_path}

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return {"text": (self.dataset_path, idx)}
