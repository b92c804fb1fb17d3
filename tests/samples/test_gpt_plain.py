"""Batches that one kernel call per dataset makes: equal to the items, or left to the other way."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zindex
from tests.conftest import FakeTokenizer
from tests.damage import flip
from tests.datasets.test_gpt_dataset import open_dataset
from tests.io.test_leased_maps import can_map
from tests.samples.plain_items import make_item
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.errors import VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_writer import PairWriter
from zindex.samples import gpt
from zindex.store import reader as store_reader
from zindex.store.layout import ChunkGrid, Codec
from zindex.store.open_files import table
from zindex.store.reader import forget_all_files

DTYPES = (np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64)
#: Samples whose rows are written one value at a time, and eight at a time.
LENGTHS = (13, 16)
LENGTH = LENGTHS[0]


@pytest.fixture(autouse=True)
def _worth_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", 0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch was made in one call."""
    found: list[bool] = []

    original = gpt.read_plain

    def read_plain(*arguments: Any, **options: Any) -> Any:
        tensors = original(*arguments, **options)
        found.append(tensors is not None)
        return tensors

    monkeypatch.setattr(gpt, "read_plain", read_plain)
    return found


def write_store(
    folder: Path, dtype: Any, seed: int, *, link: bool = False, codec: Codec = "none"
) -> str:
    """Write a store of documents of 0 to 40 tokens below 12, four per inner chunk or so."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 41, 60)
    prefix = str(folder / f"corpus-{seed}")
    writer = PairWriter(f"{prefix}.bin", dtype)
    for length in lengths:
        writer.append(generator.integers(0, 12, length), [length])
        writer.end_document()
    writer.finalize(f"{prefix}.idx")
    grid = ChunkGrid(64, 256, codec=codec)
    zindex.convert(prefix, f"{prefix}.zarr", client=SerialExecutor(), link=link, grid=grid)
    return f"{prefix}.zarr"


def settings(generator: Any, folder: Path) -> dict[str, Any]:
    orders = ({}, {"order": "scalable"}, {"order": "scalable", "store": "minimal"})
    return {
        "sequence_length": int(generator.choice(LENGTHS)),
        "path_to_cache": str(folder / "cache"),
        "tokenizer": FakeTokenizer(eod=4, pad=(None, 3)[generator.integers(2)]),
        "add_extra_token_to_sequence": bool(generator.integers(2)),
        "create_attention_mask": bool(generator.integers(2)),
        **orders[generator.integers(3)],
    }


def check_equal(dataset: Any, positions: list[int | None]) -> None:
    """Check a batch against the items of its positions."""
    batch = dataset.__getitems__(positions)
    for item, position in zip(batch, positions, strict=True):
        wanted = make_item(dataset, position)
        assert list(item) == list(wanted)
        for name, value in wanted.items():
            assert torch.equal(torch.as_tensor(item[name]), torch.as_tensor(value)), name


@pytest.fixture
def _many_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the samples of a batch be shared by three threads."""
    monkeypatch.setattr(store_reader, "_TOKENS_PER_THREAD", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["pair", "store", "zstd"])
def test_files_of_many_samples_are_mapped(
    tmp_path: Path, made: list[bool], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = write_store(tmp_path, np.uint16, 0, codec="zstd" if kind == "zstd" else "none")
    path = path.removesuffix(".zarr") if kind == "pair" else path
    if not can_map(Path(path).with_suffix(".bin")):
        pytest.skip("the file system of temporary files has no leases")
    forget_all_files()
    monkeypatch.setattr("zindex.store.open_files.SPANS_BEFORE_MAPS", 50)
    dataset = open_dataset(path, 150, sequence_length=LENGTH, tokenizer=FakeTokenizer(eod=4))
    assert not table.maps
    for number in range(8):
        check_equal(dataset, np.random.default_rng(number).integers(0, 60, 8).tolist())
    assert made[-1]
    assert table.maps
    if kind == "pair":  # waits until the map is dropped
        os.truncate(f"{path}.bin", 10)
        with pytest.raises(VerificationError, match=r"\.bin must hold .*, it ends after"):
            dataset.__getitems__(list(range(60)))
    forget_all_files()


@pytest.mark.usefixtures("_many_threads")
def test_threads_share_a_batch(tmp_path: Path, made: list[bool]) -> None:
    generator = np.random.default_rng(11)
    path = write_store(tmp_path, np.uint16, 0)
    for _ in range(4):
        dataset = open_dataset(path, 150, **settings(generator, tmp_path))
        for _ in range(20):
            check_equal(dataset, generator.integers(0, len(dataset), 20).tolist())
    assert made.count(True) > len(made) // 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["store", "linked", "pair"])
def test_batches_equal_their_items(dtype: Any, kind: str, tmp_path: Path, made: list[bool]) -> None:
    generator = np.random.default_rng(DTYPES.index(dtype))
    path = write_store(tmp_path, dtype, 0, link=kind == "linked")
    path = path.removesuffix(".zarr") if kind == "pair" else path
    for _ in range(4):
        dataset = open_dataset(path, 150, **settings(generator, tmp_path))
        for _ in range(8):
            positions: list[int | None] = generator.integers(
                -len(dataset), len(dataset), 20
            ).tolist()
            positions[3] = None
            check_equal(dataset, positions)
    assert made.count(True) > len(made) // 2  # all, once every chunk is verified


@pytest.mark.parametrize("other", [np.uint16, np.int32])
def test_a_loader_worker_reads_text_by_the_kernel(
    other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_store(tmp_path, dtype, i) for i, dtype in enumerate((np.uint16, other))]
    chosen = settings(np.random.default_rng(5), tmp_path)
    members = [open_dataset(path, 200, **chosen) for path in paths]
    blend = BlendedDataset(members, [0.3, 0.7], 180, members[0].config)
    everything: list[int | None] = [*range(180)]
    check_equal(blend, everything)  # every chunk is verified
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: object())
    found, original = [], gpt.read_plain_text
    monkeypatch.setattr(gpt, "read_plain_text", lambda wanted: found.append(original(wanted)))
    check_equal(blend, everything)
    monkeypatch.setattr(gpt, "read_plain_text", original)
    check_equal(blend, everything)
    assert [text is not None for text in found] == [other is np.uint16]


def test_a_blend_makes_one_call_per_dataset(tmp_path: Path, made: list[bool]) -> None:
    paths = [write_store(tmp_path, dtype, i) for i, dtype in enumerate((np.uint16, np.int32))]
    generator = np.random.default_rng(5)
    for _ in range(4):
        chosen = settings(generator, tmp_path)
        members = [open_dataset(path, 200, **chosen) for path in paths]
        blend = BlendedDataset(members, [0.3, 0.7], 180, members[0].config)
        for _ in range(6):
            check_equal(blend, generator.integers(-180, 180, 24).tolist())
    assert any(made)


@pytest.mark.parametrize(
    "setting",
    [
        {"reset_position_ids": True},
        {"eod_mask_loss": True},
        {"reset_attention_mask": True},
        {"inter_document_masking": True},
        {"with_provenance": True},
    ],
)
def test_no_kernel_for_tensors_that_depend_on_tokens(
    setting: dict[str, Any], tmp_path: Path, made: list[bool]
) -> None:
    path = write_store(tmp_path, np.uint16, 0)
    dataset = open_dataset(
        path,
        sequence_length=LENGTH,
        path_to_cache=str(tmp_path),
        tokenizer=FakeTokenizer(eod=4),
        **setting,
    )
    for _ in range(2):
        check_equal(dataset, list(range(20)))
    assert not any(made)


def test_damage_is_found_with_the_index_in_memory(tmp_path: Path, made: list[bool]) -> None:
    path = Path(write_store(tmp_path, np.uint16, 0))
    dataset = open_dataset(str(path), sequence_length=LENGTH, path_to_cache=str(tmp_path))
    everything = list(range(len(dataset)))
    for _ in range(2):
        dataset.__getitems__(everything)
    assert made == [False, True]
    shard = path / "tokens" / "c" / "1"
    flip(shard, 100)
    forget_all_files()
    with pytest.raises(VerificationError, match="chunk 0 of shard tokens/c/1 fails its checksum"):
        dataset.__getitems__(everything)
    os.truncate(shard, 50)
    forget_all_files()
    with pytest.raises(VerificationError, match="tokens/c/1"):
        dataset.__getitems__(everything)
