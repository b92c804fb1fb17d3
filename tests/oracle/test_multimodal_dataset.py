"""Mock samples with images, and users' datasets of pairs with modes, against Megatron Core's."""

import random
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import numbers
from tests.oracle.conftest import OracleTokenizer, assert_same_item, fit
from zindex.datasets import (
    blended_megatron_dataset_builder,
    gpt_dataset,
    indexed_dataset,
    megatron_dataset,
    multimodal_dataset,
)

OURS = SimpleNamespace(
    builder=blended_megatron_dataset_builder,
    gpt=gpt_dataset,
    indexed=indexed_dataset,
    base=megatron_dataset,
    multimodal=multimodal_dataset,
)
SPLITS = ("100,0,0", "80,15,5", "1,1,1", "50,50")


@pytest.fixture(scope="module")
def theirs() -> SimpleNamespace:
    pytest.importorskip("megatron.core")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import (
            blended_megatron_dataset_builder,
            gpt_dataset,
            indexed_dataset,
            megatron_dataset,
            multimodal_dataset,
        )
    return SimpleNamespace(
        builder=blended_megatron_dataset_builder,
        gpt=gpt_dataset,
        indexed=indexed_dataset,
        base=megatron_dataset,
        multimodal=multimodal_dataset,
    )


def draw_settings(draw: random.Random) -> dict[str, Any]:
    """Return settings of a multimodal configuration."""
    flags = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    return {name: draw.random() < 0.5 for name in flags} | {
        "random_seed": draw.choice([0, 1234, 2**32 - 1]),
        "sequence_length": draw.randrange(1, 80),
        "add_extra_token_to_sequence": draw.random() < 0.7,
        "drop_last_partial_validation_sequence": draw.random() < 0.7,
        "allow_ambiguous_pad_tokens": draw.random() < 0.5,
        "image_h": draw.randrange(1, 6),
        "image_w": draw.randrange(1, 6),
    }


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": sample["image"] + 1, "twice": 2 * sample["labels"]} | sample


def build(modules: Any, cls: Any, sizes: Any, settings: dict[str, Any]) -> list[Any]:
    """Return the splits that a builder makes of settings."""
    config = modules.multimodal.MultimodalDatasetConfig
    fitting = fit(config, settings)[modules is not OURS]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pad token.*")
        warnings.filterwarnings("ignore", "Could not determine rank")
        made = modules.builder.BlendedMegatronDatasetBuilder(
            cls, sizes, lambda: True, config(**fitting)
        ).build()
    splits: list[Any] = made
    return splits


def read_batch(dataset: Any, positions: list[int]) -> Any:
    """Return samples as torch's loaders read them."""
    if positions and hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(positions)
    return [dataset[position] for position in positions]


def assert_same_splits(
    ours: list[Any], theirs: list[Any], draw: random.Random, name: str, *, num_items: int = 6
) -> None:
    """Compare lengths, identities and random items, alone and in batches."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        where = f"{name} split {number}"
        assert (one is None) == (other is None), where
        if other is None:
            continue
        assert len(one) == len(other), where
        assert one.unique_description == other.unique_description, where
        size = len(other)
        positions = [draw.randrange(-size, size) for _ in range(num_items if size else 0)]
        batch = read_batch(one, positions)
        for position, row in zip(positions, batch, strict=True):
            # Without zeros that an earlier item left in a shared mask.
            for member in getattr(other, "datasets", [other]):
                member.masks_and_position_ids_are_cached = False
            expected = other[position]
            for item in (one[position], row):
                assert item.pop("dataset_id", None) == expected.get("dataset_id"), where
                rest = {key: expected[key] for key in expected if key != "dataset_id"}
                assert_same_item(item, rest, f"{where} item {position}")


@pytest.mark.parametrize("number", numbers(12, 400))
def test_mock_images(theirs: Any, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(number)
    for modules in (OURS, theirs):  # smaller, and repeated for several epochs
        monkeypatch.setattr(modules.gpt.MockGPTLowLevelDataset, "size", 60)
    vocab_size = draw.choice([50, 5000, 5000])
    tokenizer = OracleTokenizer(
        vocab_size=vocab_size,
        eod=draw.choice([0, 3, 49]),
        pad=draw.choice([None, -1, 5, 3]),
        eos=draw.choice([None, 5]),
    )
    settings = draw_settings(draw) | {"tokenizer": tokenizer}
    if draw.random() < 0.4:
        settings["preprocess_func"] = double
    sizes = [draw.choice([0, 1, 700, draw.randrange(3000), None]) for _ in range(3)]
    ours, expected = (
        build(modules, modules.multimodal.MockMultimodalDataset, sizes, settings)
        for modules in (OURS, theirs)
    )
    assert_same_splits(ours, expected, draw, f"{number} vocabulary {vocab_size}")


def pictures(modules: Any) -> Any:
    """Return a dataset as users write one, in which each sequence of a sample has its mode."""

    class Pictures(modules.base.MegatronDataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return int(self.num_samples or len(self.indices))

        def __getitem__(self, idx: int) -> dict[str, Any]:
            documents = self.dataset.document_indices
            document = int(self.indices[idx % len(self.indices)])
            start, stop = int(documents[document]), int(documents[document + 1])
            parts = [self.dataset[number] for number in range(start, stop)]
            lengths = [len(tokens) for tokens, _ in parts]
            first = self.dataset.get(start, offset=lengths[0] // 2) if parts else ([], 0)
            tokens = np.concatenate([[], *(tokens for tokens, _ in parts), first[0]])
            return {
                "tokens": torch.from_numpy(tokens),
                "modes": torch.tensor([int(mode) for _, mode in [*parts, first]]),
                "lengths": torch.tensor(lengths),
            }

        @staticmethod
        def numel_low_level_dataset(low_level_dataset: Any) -> int:
            return len(low_level_dataset.document_indices) - 1

        @staticmethod
        def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
            return modules.indexed.IndexedDataset(
                dataset_path, multimodal=True, mmap=config.mmap_bin_files
            )

    return Pictures


def write_pair(modules: Any, prefix: Path, draw: random.Random) -> str:
    """Write documents of up to four sequences of texts and images."""
    dtype = draw.choice([np.int32, np.uint16, np.uint8])
    builder = modules.indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype, multimodal=True)
    for _ in range(draw.randrange(20, 60)):  # no split is empty
        lengths = [draw.randrange(1, 12) for _ in range(draw.randrange(5))]
        tokens = [draw.randrange(200) for _ in range(sum(lengths))]
        builder.add_document(tokens, lengths, [draw.randrange(-1, 2) for _ in lengths])
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


@pytest.mark.parametrize("number", numbers(8, 300))
def test_pairs_with_modes(theirs: Any, number: int, tmp_path: Path) -> None:
    """Users' datasets in splits and blends, of pairs that either side has written."""
    draw = random.Random(number)
    count = draw.choice([1, 1, 2, 4])
    paths = [
        write_pair(draw.choice([OURS, theirs]), tmp_path / f"c{i}", draw) for i in range(count)
    ]
    weights = [draw.choice([1.0, 0.3, 7.0]) for _ in paths] if draw.random() < 0.7 else None
    settings = draw_settings(draw) | {
        "tokenizer": OracleTokenizer(vocab_size=200, eod=0, pad=-1),
        "mmap_bin_files": draw.random() < 0.5,
        "mid_level_dataset_surplus": draw.choice([0.005, 0.5]),
    }
    if draw.random() < 0.7:
        settings |= {"blend": (paths, weights), "split": draw.choice(SPLITS)}
    else:
        settings["blend_per_split"] = [(paths, weights), None, (paths[:1], None)]
    sizes = [draw.randrange(1, 90) for _ in range(3)]
    ours, expected = (
        build(modules, pictures(modules), sizes, settings) for modules in (OURS, theirs)
    )
    assert_same_splits(ours, expected, draw, str(number))


@pytest.mark.parametrize("number", numbers(4, 100))
def test_texts_of_pairs_with_modes(theirs: Any, number: int, tmp_path: Path) -> None:
    """GPT samples are of all sequences, whose modes are not read."""
    draw = random.Random(number)
    path = write_pair(OURS, tmp_path / "c", draw)
    settings = draw_settings(draw) | {
        "tokenizer": OracleTokenizer(vocab_size=200, eod=0, pad=-1),
        "blend": ([path], None),
        "split": "100,0,0",
        "create_attention_mask": False,
        "path_to_cache": str(tmp_path / "cache"),
    }
    ours, expected = (
        build(modules, modules.gpt.GPTDataset, [60, 0, 0], settings) for modules in (OURS, theirs)
    )
    assert_same_splits(ours, expected, draw, str(number))
