"""Small indices, which each process computes: the same samples as of stored ones, and no files."""

import multiprocessing
import pickle
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zindex
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.datasets.configs import build_datasets, plain_config
from zindex.datasets import blended_dataset, gpt_dataset, sample_dataset
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.errors import ConfigError, PlanError
from zindex.indexing import blend_arrays, store_computed
from zindex.indexing.blend_arrays import compute_blend_arrays
from zindex.indexing.ensure import MAX_COMPUTED_ROWS
from zindex.plan.blend_plan import BlendPlan
from zindex.store.verify import verify_store

#: Zero lengths at every kind of place; 20 documents.
LENGTHS = [0, 3, 5, 0, 0, 2, 7, 40, 1, 9, 4, 4, 4, 4, 0, 8, 16, 1, 1, 0]
GPT_ARRAYS = ("document_index", "sample_index", "shuffle_index")
BLEND_ARRAYS = ("dataset_index", "dataset_sample_index", "dataset_count")


def make_config(folder: Path, **choices: Any) -> GPTDatasetConfig:
    defaults = {"random_seed": 7, "split": "80,20,0", "path_to_cache": str(folder)}
    return plain_config(**(defaults | choices))


def build(sizes: list[int], folder: Path, **choices: Any) -> list[Any]:
    config = make_config(folder, **choices)
    return build_datasets(GPTDataset, sizes, config)


def assert_equal_arrays(one: Any, other: Any, names: tuple[str, ...]) -> None:
    for name in names:
        got, expected = (np.asarray(getattr(dataset, name)[:]) for dataset in (one, other))
        assert got.dtype == expected.dtype, name
        np.testing.assert_array_equal(got, expected, name)


@pytest.fixture
def paths(write_corpus: WriteCorpus) -> list[str]:
    return [write_corpus(LENGTHS * n, name=f"c{n}") for n in (1, 2, 3)]


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 30),
    num_samples=st.none() | st.integers(1, 400),
    extra=st.booleans(),
    drop_last=st.booleans(),
    split=st.sampled_from(["100,0,0", "60,40,0", "0,100,0"]),
    order=st.sampled_from(["megatron", "scalable"]),
)
def test_every_index_equals_the_stored_one(
    paths: list[str],
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    length: int,
    num_samples: int | None,
    extra: bool,
    drop_last: bool,
    split: str,
    order: str,
) -> None:
    folder = tmp_path_factory.mktemp("index")
    choices: dict[str, Any] = {
        "blend": ([paths[1]], None),
        "random_seed": seed,
        "sequence_length": length,
        "add_extra_token_to_sequence": extra,
        "drop_last_partial_validation_sequence": drop_last,
        "split": split,
        "order": order,
    }
    sizes: Any = [num_samples, num_samples, 0]
    computed = build(sizes, folder / "computed", **choices)
    stored = build(sizes, folder / "stored", max_computed_rows=0, **choices)
    assert not (folder / "computed").exists()
    for one, other in zip(computed, stored, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_equal_arrays(one, other, GPT_ARRAYS)
            assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize(
    ("is_loaded", "is_compiled", "num_samples", "uses_kernel"),
    [
        (True, True, 1, True),
        (False, True, 3, False),  # 3 * (2 datasets + 32) errors
        (False, True, 4, True),
        (False, False, 6, False),
        (False, False, 7, True),
    ],
)
def test_numpy_draws_while_a_kernel_would_be_loaded_or_compiled(
    monkeypatch: pytest.MonkeyPatch,
    is_loaded: bool,
    is_compiled: bool,
    num_samples: int,
    uses_kernel: bool,
) -> None:
    used: list[Any] = []
    monkeypatch.setattr(blend_arrays, "_LOADING_ERRORS", 102)
    monkeypatch.setattr(blend_arrays, "_COMPILING_ERRORS", 204)
    monkeypatch.setattr(blend_arrays, "is_loaded", lambda kernel: is_loaded)
    monkeypatch.setattr(blend_arrays, "is_compiled", lambda kernel: is_compiled)
    monkeypatch.setattr(blend_arrays, "blend_range", lambda *arguments: used.append(arguments))
    compute_blend_arrays(BlendPlan.weighted([1, 2], num_samples, split="train", seed=1))
    assert bool(used) == uses_kernel


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_a_run_of_small_datasets_writes_nothing(
    paths: list[str], tmp_path: Path, order: str
) -> None:
    choices: dict[str, Any] = {"blend": (paths, [0.5, 0.2, 0.3]), "order": order}
    computed = build([150, 20, 0], tmp_path / "computed", **choices)
    stored = build([150, 20, 0], tmp_path / "stored", max_computed_rows=0, **choices)
    assert not (tmp_path / "computed").exists()
    for one, other in zip(computed[:2], stored[:2], strict=True):
        assert_equal_arrays(one, other, BLEND_ARRAYS)
        arrived = pickle.loads(pickle.dumps(one))
        for position in (0, len(one) - 1):
            assert arrived[position]["tokens"].equal(other[position]["tokens"])


def test_only_the_largest_of_too_many_small_indices_are_stored(
    write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    paths = [write_corpus(LENGTHS * n, name=f"c{n}") for n in range(1, 9)]
    choices: dict[str, Any] = {"blend": (paths, [1.0] * 8), "split": "100,0,0"}
    computed = build([80, 0, 0], tmp_path / "none", **choices)[0]
    rows = [member.document_index.size + len(member) for member in computed.datasets]
    limit = max(rows)
    assert len(computed) <= limit < (sum(rows) + len(computed)) / 4
    num_stored, rest = 0, sorted([*rows, len(computed)])
    while sum(rest) > 4 * limit:
        num_stored += 1
        rest.pop()
    stored = build([80, 0, 0], tmp_path / "some", max_computed_rows=limit, **choices)[0]
    assert len(list((tmp_path / "some").iterdir())) == num_stored
    assert not (tmp_path / "none").exists()
    assert_equal_arrays(stored, computed, BLEND_ARRAYS)
    assert stored[79]["tokens"].equal(computed[79]["tokens"])


def test_small_indices_are_computed_next_to_large_stored_ones(
    paths: list[str], write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    large = write_corpus([8] * 2000, name="large")
    blend = ([paths[0], large], [0.5, 0.5])
    train = build([40, 0, 0], tmp_path / "index", blend=blend, max_computed_rows=1000)[0]
    assert [path.name.split("-")[0] for path in (tmp_path / "index").iterdir()] == ["gpt"]
    other = build([40, 0, 0], tmp_path / "other", blend=blend)[0]
    for position in range(40):
        assert train[position]["tokens"].equal(other[position]["tokens"])


def test_a_dataset_too_short_for_its_blend_is_an_immediate_error(
    paths: list[str], tmp_path: Path
) -> None:
    config = make_config(tmp_path, blend=(paths, None), split="100,0,0")
    members = [build([None, 0, 0], tmp_path, blend=([path], None), split="1")[0] for path in paths]
    lengths = [len(member) for member in members]
    size = 2 * lengths[0]
    blend = BlendedDataset(members, [0.5, 0.25, 0.25], size, config)
    assert int(blend.dataset_count[0]) == lengths[0]
    with pytest.raises(PlanError, match=f"needs {lengths[0] + 1} samples of .*c1, which has"):
        BlendedDataset(members, [0.5, 0.25, 0.25], size + 2, config)


def test_a_built_run_and_a_computed_one_agree(paths: list[str], tmp_path: Path) -> None:
    run = {
        "datasets": [{"path": path, "weight": 1.0} for path in paths],
        "sequence_length": 8,
        "split": "100,0,0",
        "samples": {"train": 60},
        "seed": 7,
        "index": str(tmp_path / "index"),
    }
    zindex.build(run)
    stored = zindex.open_run(run, FakeTokenizer(), max_computed_rows=0)["train"]
    computed = zindex.open_run(run | {"index": str(tmp_path / "none")}, FakeTokenizer())["train"]
    assert not (tmp_path / "none").exists()
    assert_equal_arrays(computed, stored, BLEND_ARRAYS)


def test_the_limit_is_checked(tmp_path: Path) -> None:
    assert make_config(tmp_path, blend=(["a"], None)).max_computed_rows == MAX_COMPUTED_ROWS
    with pytest.raises(
        ConfigError, match="max_computed_rows must be a whole number of at least 0, got -1"
    ):
        make_config(tmp_path, blend=(["a"], None), max_computed_rows=-1)


def wait_for_stores() -> None:
    """Wait until the computed indices of this process are stored."""
    for thread in threading.enumerate():
        if thread.name == "zindex-keep":
            thread.join()


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_an_index_that_opens_faster_than_it_is_computed_is_stored(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(store_computed, "MIN_STORED_ROWS", 10)
    monkeypatch.setattr(store_computed, "MIN_STORED_ERRORS", 100)
    choices: dict[str, Any] = {"blend": (paths, [0.1, 0.2, 0.7]), "order": order}
    first, small, _ = build([300, 20, 0], tmp_path / "index", **choices)
    sample, _, _ = first[7]["tokens"], first[299], small[0]
    for member in first.datasets:
        assert len(member.shuffle_index)
    wait_for_stores()
    build([300, 20, 0], tmp_path / "stored", max_computed_rows=0, **choices)
    kept = sorted((tmp_path / "index").iterdir())
    assert {root.name.split("-")[0] for root in kept} == {"gpt", "blend"}
    for root in kept:
        assert verify_store(root).is_sound
        built = tmp_path / "stored" / root.name / "zarr.json"
        assert (root / "zarr.json").read_bytes() == built.read_bytes()
    with monkeypatch.context() as context:
        context.setattr(gpt_dataset.index_arrays, "compute_index_arrays", None)
        context.setattr(blended_dataset.blend_arrays, "compute_blend_arrays", None)
        later = build([300, 20, 0], tmp_path / "index", **choices)[0]
        assert later[7]["tokens"].equal(sample)
    assert_equal_arrays(later, first, BLEND_ARRAYS)


def test_an_index_that_cannot_be_kept_is_computed_all_the_same(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(store_computed, "MIN_STORED_ROWS", 10)
    caplog.set_level("INFO", "zindex")
    (tmp_path / "index").write_text("a file")
    train = build([300, 0, 0], tmp_path / "index", blend=([paths[2]], None))[0]
    assert train[299]["tokens"] is not None
    wait_for_stores()
    assert "so each process computes it" in caplog.text


def test_other_ranks_and_workers_keep_nothing(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_computed, "MIN_STORED_ROWS", 10)
    worker = SimpleNamespace(daemon=True)
    for home, attribute, value in (
        (multiprocessing, "current_process", worker),
        (sample_dataset, "current_rank", 1),
    ):
        with monkeypatch.context() as context:
            context.setattr(home, attribute, lambda value=value: value)
            build([300, 0, 0], tmp_path / "index", blend=([paths[2]], None))[0][0]
    assert not (tmp_path / "index").exists()
