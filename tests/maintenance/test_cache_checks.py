"""Megatron Core's caches pass the check if they are those of a plan, and only then."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import FakeTokenizer, WriteCorpus
from tests.datasets.configs import plain_config
from tests.samples.masking.corpora import write_sentences
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.utils import Split
from zindex.errors import VerificationError
from zindex.formats.megatron_cache import GPT_ARRAYS, cache_paths
from zindex.indexing import store_computed
from zindex.indexing.blend_arrays import compute_blend_arrays
from zindex.indexing.index_arrays import IndexArrays
from zindex.indexing.mapping_tasks import SentenceSource
from zindex.indexing.sentence_mapping import compute_mapping, plan_mapping, stored_facts
from zindex.ingest.length_source import open_source
from zindex.maintenance import cache_checks
from zindex.maintenance.cache_checks import check_blend, check_index, check_mapping
from zindex.maintenance.megatron_caches import MegatronCache
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.sentence_mapping import MappingPlan

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


def open_cache(folder: Path, name: str) -> IndexArrays:
    return IndexArrays(*MegatronCache(folder, name, GPT_ARRAYS).open())


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
    arrays = open_cache(tmp_path / "theirs", name)
    lengths = np.array(LENGTHS, np.int32)[10:]
    check_index(dataset._plan(), arrays, lengths)
    others = {"add_extra_token_to_sequence": not extra}
    with pytest.raises(VerificationError, match="Megatron's cache must have"):
        check_index(
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
        with pytest.raises(VerificationError, match=message):
            check_index(dataset._plan(), arrays, lengths)
    # Data of as many tokens, with other documents.
    with pytest.raises(VerificationError, match="Megatron's cache must have 8 tokens"):
        check_index(
            dataset._plan(),
            IndexArrays(*(getattr(dataset, name) for name in IndexArrays._fields)),
            lengths[::-1].copy(),
        )


def draw_blend(plan: BlendPlan) -> list[Any]:
    """Return a blend's arrays with Megatron's dtypes."""
    arrays = compute_blend_arrays(plan)
    return [np.array(arrays[0], np.int16), np.array(arrays[1], np.int64)]


BLENDS = {
    "weights": BlendPlan.weighted([0.5, 0.2, 0.299, 0.001], 40_000, split="train"),
    "equal weights": BlendPlan.weighted([1.0] * 7, 5000, split="train"),
    "sizes": BlendPlan.exhaustive([3000, 1, 777, 20_000], split="valid"),
    "one": BlendPlan.weighted([1.0], 3, split="test"),
}


@pytest.mark.parametrize("name", list(BLENDS))
def test_blends(name: str) -> None:
    plan = BLENDS[name]
    arrays = draw_blend(plan)
    counts = np.bincount(arrays[0], minlength=plan.num_datasets)
    assert check_blend(plan, *arrays).tolist() == counts.tolist()


@pytest.mark.parametrize("place", [0, 700, -1])
def test_other_blends_are_refused(place: int) -> None:
    plan = BLENDS["weights"]
    datasets, samples = draw_blend(plan)
    wrong = {
        "dataset_index of int16": [datasets.astype(np.int32), samples],
        "dataset_sample_index of int64 and shape": [datasets, samples[:-1]],
        "datasets below 4": [np.where(np.arange(len(datasets)) == 20_000, 9, datasets), samples],
    }
    for message, arrays in wrong.items():
        with pytest.raises(VerificationError, match=message):
            check_blend(plan, *(np.asarray(array, array.dtype) for array in arrays))
    datasets[place] = (datasets[place] + 1) % 4
    with pytest.raises(VerificationError, match="must have datasets"):
        check_blend(plan, datasets, samples)
    datasets, samples = draw_blend(plan)
    samples[place] += 1
    with pytest.raises(VerificationError, match="must have samples"):
        check_blend(plan, datasets, samples)
    other = BlendPlan.weighted([0.5, 0.2, 0.299, 0.0011], 40_000, split="train")
    with pytest.raises(VerificationError, match="must have datasets"):
        check_blend(other, *draw_blend(plan))


def plan_sentences(folder: Path, **settings: Any) -> tuple[MappingPlan, SentenceSource, Any]:
    """Return the plan of a mapping, its sentences, and its samples."""
    write_sentences(str(folder / "s"), np.random.default_rng(settings.pop("corpus", 5)))
    source = SentenceSource(open_source(str(folder / "s")))
    num_documents = stored_facts(source).num_documents
    settings = {"max_sequence_length": 30, "num_requested": 2000, "seed": 5} | settings
    plan = plan_mapping(source, range(2, num_documents), split="train", **settings)
    bounds = source.bounds(plan.start, plan.stop)
    lengths = source.sentences.lengths(plan.first_sentence, plan.stop_sentence)
    return plan, source, compute_mapping(plan, bounds, lengths)


@pytest.mark.parametrize("few", [0, 1 << 16])
@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("short", [0, 0.3])
def test_mappings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, least: int, short: float
) -> None:
    """A few samples are all computed again, many are checked in part."""
    monkeypatch.setattr(cache_checks, "_FEW_SAMPLES", few)
    monkeypatch.setattr(cache_checks, "_NUM_DRAWS", 64)
    settings: dict[str, Any] = {
        "min_num_sentences": least,
        "short_sequence_probability": short,
        "num_requested": 400,
    }
    plan, source, rows = plan_sentences(tmp_path, **settings)
    check_mapping(plan, rows, source)
    wrong = [
        (replace(plan, num_requested=len(rows) + 1), rows),
        (replace(plan, seed=6), rows),
        (plan, rows.astype(np.int64)),
        (plan, np.delete(rows, 3, axis=0)),
        (plan, rows[::-1].copy()),
        (plan, np.concatenate([rows[:5] + np.array([0, 1, 0], np.uint32), rows[5:]])),
        (replace(plan, max_sequence_length=29), rows),
    ]
    if few:
        wrong.append((plan, np.roll(rows, 1, axis=0)))
    for other, changed in wrong:
        with pytest.raises(VerificationError, match="Megatron's cache must have"):
            check_mapping(other, changed, source)
