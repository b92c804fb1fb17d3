"""Megatron Core's caches are read if they are those of a plan, and refused otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import FakeTokenizer, WriteCorpus
from tests.datasets.configs import plain_config
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.utils import Split
from zindex.errors import VerificationError
from zindex.formats.megatron_cache import cache_paths
from zindex.indexing import store_computed
from zindex.indexing.index_arrays import IndexArrays
from zindex.maintenance.megatron_caches import check_cache, open_cache

LENGTHS = np.random.default_rng(3).integers(0, 30, 400).tolist()


class Tokenizer(FakeTokenizer):
    unique_identifiers = {"class": "Tokenizer"}  # noqa: RUF012


@pytest.fixture
def path(write_corpus: WriteCorpus) -> str:
    return write_corpus(LENGTHS, name="c")


def open_dataset(
    path: str,
    folder: Path,
    num_samples: int | None = 3000,
    span: range = range(10, 400),
    **settings: Any,
) -> Any:
    config = plain_config(
        **{"blend": ([path], None), "split": "0,90,10", "tokenizer": Tokenizer()} | settings,
        path_to_cache=str(folder),
    )
    low_level = GPTDataset.build_low_level_dataset(path, config)
    return GPTDataset(low_level, path, span, num_samples, Split.valid, config)


def write_cache(dataset: Any, folder: Path, **changed: Any) -> dict[str, Path]:
    """Write the arrays of a dataset as Megatron Core does; some of them others."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = cache_paths(folder, f"{dataset.unique_description_hash}-GPTDataset-valid")
    for name in IndexArrays._fields:
        array = changed.get(name, getattr(dataset, name))
        np.save(paths[name], np.asarray(array[:]), allow_pickle=True)
    paths["description"].write_text(dataset.unique_description)
    return paths


@pytest.fixture(autouse=True)
def all_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_computed, "MIN_STORED_ROWS", 0)


@pytest.mark.parametrize("num_samples", [None, 500, 3000, 5000])
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_caches_of_plans_pass(
    path: str, tmp_path: Path, num_samples: int | None, extra: bool, drop_last: bool
) -> None:
    settings = {
        "add_extra_token_to_sequence": extra,
        "drop_last_partial_validation_sequence": drop_last,
    }
    dataset = open_dataset(path, tmp_path / "own", num_samples, **settings)
    paths = write_cache(dataset, tmp_path / "theirs")
    name = paths["description"].name.removesuffix("-description.txt")
    arrays = open_cache(tmp_path / "theirs", name, dataset.unique_description)
    assert arrays is not None
    lengths = np.array(LENGTHS, np.int32)[10:]
    check_cache(dataset._plan(), arrays, lengths)
    others = {"add_extra_token_to_sequence": not extra}
    with pytest.raises(VerificationError, match="Megatron's cache must have"):
        check_cache(
            open_dataset(path, tmp_path / "own", num_samples, **settings | others)._plan(),
            arrays,
            lengths,
        )


def damages(dataset: Any) -> dict[str, Any]:
    """Return arrays of a cache that is not the dataset's."""
    documents, samples, shuffled = (
        np.array(getattr(dataset, name)[:]) for name in IndexArrays._fields
    )
    swapped, foreign, moved, other_last = (
        documents.copy(),
        documents.copy(),
        samples.copy(),
        samples.copy(),
    )
    end = len(documents) - 390  # of the epochs that are shuffled together
    swapped[[end - 5, end - 4]] = swapped[[end - 4, end - 5]]
    foreign[3] = 5
    moved[7, 1] += 1
    other_last[-1] -= 1
    twice = shuffled.copy()
    twice[0] = twice[1]
    return {
        "document_index of int32": {"document_index": documents[:-1]},
        "sample_index of int32": {"sample_index": samples.astype(np.int64)},
        "shuffle_index of uint32": {"shuffle_index": shuffled.astype(np.int32)},
        "in row": {"document_index": swapped},
        "documents of the split": {"document_index": foreign},
        "8 tokens in each of the samples": {"sample_index": moved},
        "tokens after its last full sample": {"sample_index": other_last},
        "different samples at positions": {"shuffle_index": twice},
    }


def test_other_caches_are_refused(path: str, tmp_path: Path) -> None:
    dataset = open_dataset(path, tmp_path / "own")
    lengths = np.array(LENGTHS, np.int32)[10:]
    for number, (message, changed) in enumerate(damages(dataset).items()):
        folder = tmp_path / str(number)
        paths = write_cache(dataset, folder, **changed)
        arrays = open_cache(folder, paths["description"].name.removesuffix("-description.txt"))
        assert arrays is not None
        with pytest.raises(VerificationError, match=message):
            check_cache(dataset._plan(), arrays, lengths)
    # Data of as many tokens, with other documents.
    with pytest.raises(VerificationError, match="Megatron's cache must have 8 tokens"):
        check_cache(
            dataset._plan(),
            IndexArrays(*(getattr(dataset, name) for name in IndexArrays._fields)),
            lengths[::-1].copy(),
        )


def test_missing_and_damaged_files(path: str, tmp_path: Path) -> None:
    dataset = open_dataset(path, tmp_path / "own")
    paths = write_cache(dataset, tmp_path / "c")
    name = paths["description"].name.removesuffix("-description.txt")
    assert open_cache(tmp_path / "c", name, "another description") is None
    assert open_cache("s3://bucket/c", name) is None
    paths["shuffle_index"].write_bytes(paths["shuffle_index"].read_bytes()[:200])
    with pytest.raises(
        VerificationError, match=r"shuffle_index.npy must be an array of Megatron's"
    ):
        open_cache(tmp_path / "c", name)
    paths["shuffle_index"].unlink()
    assert open_cache(tmp_path / "c", name) is None
