"""Caches that we write are caches that Megatron Core finds: nothing is built, nothing rewritten."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.oracle.conftest import OracleTokenizer, assert_same_array, assert_same_item
from zindex.datasets.indexed_dataset import IndexedDatasetBuilder
from zindex.execution.executor import SerialExecutor
from zindex.plan.split import SPLIT_NAMES, split_range

SERIAL = SerialExecutor()
ARRAYS = ("document_index", "sample_index", "shuffle_index")
TOKENIZER = OracleTokenizer(vocab_size=100, eod=0, pad=-1)
SEQUENCE_LENGTH = 16
SEED = 4321
SPLIT = "70,20,10"


def write_corpus(prefix: Path) -> str:
    """Write 120 documents of 0 to 30 tokens."""
    rng = np.random.default_rng(5)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", np.uint16)
    for length in rng.integers(0, 31, 120):
        builder.add_item(rng.integers(0, 100, length))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


def run_config(dataset: str, tmp_path: Path, **settings: Any) -> dict[str, Any]:
    return {
        "datasets": [dataset],
        "sequence_length": SEQUENCE_LENGTH,
        "seed": SEED,
        "split": SPLIT,
        "index": str(tmp_path / "index"),
        "grid": {"chunk_length": 8, "shard_length": 32},
    } | settings


def configure(megatron: Any, prefix: str, folder: Any, **settings: Any) -> Any:
    """Return Megatron's configuration of the run."""
    return megatron.gpt.GPTDatasetConfig(
        blend=([prefix], None),
        random_seed=SEED,
        sequence_length=SEQUENCE_LENGTH,
        split=SPLIT,
        tokenizer=TOKENIZER,
        path_to_cache=None if folder is None else str(folder),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        **settings,
    )


def open_megatron(
    megatron: Any, prefix: str, split: str, num_samples: int | None, folder: Any, **settings: Any
) -> Any:
    """Open Megatron's dataset of a split, as its builder does."""
    config = configure(megatron, prefix, folder, **settings)
    low_level = megatron.gpt.GPTDataset.build_low_level_dataset(prefix, config)
    number = SPLIT_NAMES.index(split)
    start, stop = split_range(len(low_level), config.split_matrix[number])
    indices = np.arange(start, stop, dtype=np.int32)
    arguments = (low_level, prefix, indices, num_samples, megatron.utils.Split(number), config)
    return megatron.gpt.GPTDataset(*arguments)


@pytest.fixture
def no_build(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make every way to build an index in Megatron an error, once it is called."""

    def forbid() -> None:
        from megatron.core.datasets import helpers

        def fail(*arguments: Any) -> None:
            raise AssertionError("Megatron builds an index that it should have found")

        for owner, name in (
            (megatron.gpt, "_build_document_index"),
            (megatron.gpt, "_build_shuffle_index"),
            (helpers, "build_sample_idx"),
            (np, "save"),
        ):
            monkeypatch.setattr(owner, name, fail)

    return forbid


def read_files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("samples", "settings"),
    [
        pytest.param({}, {}, id="one-epoch"),
        pytest.param({"train": 50, "valid": 3, "test": 1}, {}, id="part-of-an-epoch"),
        pytest.param({"train": 90, "valid": 30, "test": 40}, {}, id="separate-final-epoch"),
        pytest.param({"train": 400, "valid": 110, "test": 60}, {}, id="several-epochs"),
        pytest.param(
            {}, {"drop_last_partial_validation_sequence": False}, id="partial-last-validation"
        ),
        pytest.param(
            {"valid": 100},
            {"drop_last_partial_validation_sequence": False, "add_extra_token_to_sequence": False},
            id="partial-last-validation-no-extra-token-epochs",
        ),
    ],
)
@pytest.mark.parametrize("form", ["prefix", "store", "linked"])
def test_megatron_finds_what_we_wrote(
    megatron: Any,
    no_build: Any,
    tmp_path: Path,
    form: str,
    samples: dict[str, int],
    settings: dict[str, bool],
) -> None:
    prefix = write_corpus(tmp_path / "corpus")
    dataset = prefix
    if form != "prefix":
        dataset = f"{prefix}.zarr"
        zindex.convert(prefix, dataset, client=SERIAL, link=form == "linked")
    config = run_config(dataset, tmp_path, samples=samples, **settings)
    zindex.build(config, client=SERIAL)
    folder = tmp_path / "cache"
    descriptions = zindex.export_cache(config, folder, tokenizer=TOKENIZER.unique_identifiers)

    own = tmp_path / "own"
    expected = {
        split: open_megatron(megatron, prefix, split, samples.get(split), own, **settings)
        for split in SPLIT_NAMES
    }
    before = read_files(folder)
    # Names, hash and description are Megatron's own, and so is every byte.
    assert {name: content for name, (content, _) in before.items()} == {
        name: content for name, (content, _) in read_files(own).items()
    }
    assert len(before) == 4 * len(descriptions) == 12

    no_build()
    for path, (split, theirs) in zip(descriptions, expected.items(), strict=True):
        found = open_megatron(megatron, prefix, split, samples.get(split), folder, **settings)
        assert path.name == f"{found.unique_description_hash}-GPTDataset-{split}-description.txt"
        assert path.read_text() == found.unique_description
        for name in ARRAYS:
            # A mapping of our file, not something computed.
            mapped = getattr(found, name)
            assert isinstance(mapped, np.memmap)
            assert Path(str(mapped.filename)).parent == folder
            assert_same_array(mapped, getattr(theirs, name), name)
            plain = np.load(str(mapped.filename), allow_pickle=False)
            assert_same_array(plain, getattr(theirs, name), name)
        assert len(found) == len(theirs)
        for position in range(len(theirs)):
            for opened in (found, theirs):
                opened.masks_and_position_ids_are_cached = False
            assert_same_item(found[position], theirs[position], f"{split} {position}")
    assert read_files(folder) == before


def test_every_hit_needs_every_file(megatron: Any, no_build: Any, tmp_path: Path) -> None:
    """The proof of the hit is not vacuous: without one file Megatron would build."""
    prefix = write_corpus(tmp_path / "corpus")
    config = run_config(prefix, tmp_path)
    zindex.build(config, client=SERIAL)
    zindex.export_cache(config, tmp_path / "cache", tokenizer=TOKENIZER.unique_identifiers)
    no_build()
    assert len(open_megatron(megatron, prefix, "train", None, tmp_path / "cache")) > 0
    (shuffle,) = (tmp_path / "cache").glob("*-train-shuffle_index.npy")
    os.unlink(shuffle)
    with pytest.raises(AssertionError, match="should have found"):
        open_megatron(megatron, prefix, "train", None, tmp_path / "cache")


def test_default_folder_is_megatrons(megatron: Any, no_build: Any, tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path / "corpus")
    zindex.convert(prefix, f"{prefix}.zarr", client=SERIAL)
    config = run_config(f"{prefix}.zarr", tmp_path)
    zindex.build(config, client=SERIAL)
    written = zindex.export_cache(config, tokenizer=TOKENIZER.unique_identifiers)
    folder = Path(prefix) / "cache" / "GPTDataset_indices"
    assert {path.parent for path in written} == {folder}
    before = read_files(folder)
    no_build()
    for split in SPLIT_NAMES:
        found = open_megatron(megatron, prefix, split, None, None)
        assert Path(str(found.shuffle_index.filename)).parent == folder
    assert read_files(folder) == before


def test_megatron_may_be_given_another_path(megatron: Any, no_build: Any, tmp_path: Path) -> None:
    """The training job sees the same data at another place."""
    prefix = write_corpus(tmp_path / "corpus")
    store = str(tmp_path / "elsewhere.zarr")
    zindex.convert(prefix, store, client=SERIAL)
    config = run_config(store, tmp_path, samples={"train": 100, "valid": 0, "test": 0})
    zindex.build(config, client=SERIAL)
    (written,) = zindex.export_cache(
        config,
        tmp_path / "cache",
        tokenizer=TOKENIZER.unique_identifiers,
        dataset_paths={store: prefix},
    )
    no_build()
    found = open_megatron(megatron, prefix, "train", 100, tmp_path / "cache")
    assert written.read_text() == found.unique_description


def test_builder_of_a_whole_run_finds_every_cache(
    megatron: Any, no_build: Any, tmp_path: Path
) -> None:
    """Megatron's own builder, from a blend of one prefix and sizes per split."""
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )

    prefix = write_corpus(tmp_path / "corpus")
    config = run_config(prefix, tmp_path, samples={"train": 200, "valid": 20, "test": 20})
    zindex.build(config, client=SERIAL)
    folder = tmp_path / "cache"
    zindex.export_cache(config, folder, tokenizer=TOKENIZER.unique_identifiers)
    before = read_files(folder)
    no_build()
    builder = BlendedMegatronDatasetBuilder(
        megatron.gpt.GPTDataset,
        [200, 20, 20],
        lambda: True,
        configure(megatron, prefix, folder),
    )
    for opened in builder.build():
        assert isinstance(opened.sample_index, np.memmap)
    assert read_files(folder) == before
