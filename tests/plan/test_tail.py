"""The law of tails, held by every sampler, loader and stream that has a tail."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import zindex
from tests.conftest import WriteCorpus
from tests.keyed.upstream_files import write_bin
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.keyed import DatasetFactory, ResumableDistributedSampler, keyed_loader
from zindex.loading.loader import loader
from zindex.loading.megatron_samplers import (
    MegatronFullValidationSampler,
    MegatronPretrainingSampler,
)
from zindex.loading.sampler import ElasticSampler
from zindex.plan.tail import Tail, count_windows, divide_evenly, parse_tail
from zindex.processing.text_packing import TextPacking
from zindex.processing.zarr_text import ZarrText

#: Of each rank the items of each step; None is padding.
Steps = list[list[list[int | None]]]
#: Makes the steps of one rank: of (num_items, micro_batch_size, rank, num_ranks, tail).
Deal = Callable[[int, int, int, int, str], list[list[int | None]]]


class Items(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Item i is i, with a loss mask."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"item": torch.tensor(index), "loss_mask": torch.ones(2)}

    def collate(self, items: Sequence[Any]) -> Any:
        return torch.utils.data.default_collate(list(items))


def list_items(batches: Any) -> list[list[int | None]]:
    """Return the items of batches; those without weight are padding."""
    return [
        [
            item if mask else None
            for item, mask in zip(batch["item"].tolist(), batch["loss_mask"][:, 0], strict=True)
        ]
        for batch in batches
    ]


def deal_elastic(num_items: int, size: int, rank: int, num_ranks: int, tail: Any) -> Any:
    return list(
        ElasticSampler(
            num_items, size, data_parallel_rank=rank, data_parallel_size=num_ranks, tail=tail
        )
    )


def deal_loader(num_items: int, size: int, rank: int, num_ranks: int, tail: Any) -> Any:
    return list_items(
        loader(
            Items(num_items),
            micro_batch_size=size,
            data_parallel_rank=rank,
            data_parallel_size=num_ranks,
            tail=tail,
            prefetch=0,
        )
    )


def deal_keyed_loader(num_items: int, size: int, rank: int, num_ranks: int, tail: Any) -> Any:
    return list_items(
        keyed_loader(
            Items(num_items), size, rank=rank, num_ranks=num_ranks, tail=tail, shuffle=False
        )
    )


def deal_indices(num_items: int, size: int, rank: int, num_ranks: int, tail: Any) -> Any:
    sampler = ResumableDistributedSampler(
        range(num_items), rank=rank, num_ranks=num_ranks, tail=tail, shuffle=False
    )
    return [[index] for index in sampler]


def deal_indices_as_astrai(
    num_items: int, size: int, rank: int, num_ranks: int, tail: Any
) -> list[Any]:
    """Deal with the old argument, which says drop_last or wraps."""
    sampler = ResumableDistributedSampler(
        range(num_items),
        rank=rank,
        num_ranks=num_ranks,
        drop_last=tail == "drop_last",
        shuffle=False,
    )
    return [[index] for index in sampler]


def deal_megatron(num_items: int, size: int, rank: int, num_ranks: int, tail: Any) -> Any:
    drop_last = tail == "drop_last"
    return list(MegatronPretrainingSampler(num_items, 0, size, rank, num_ranks, drop_last))


def deal_validation(num_items: int, size: int, rank: int, num_ranks: int, tail: Any) -> Any:
    return list(MegatronFullValidationSampler(num_items, rank, num_ranks))


def check_law(steps: Steps, num_items: int, size: int, tail: Tail, *, is_even: bool = True) -> None:
    """Check the law of `Tail` for the steps of all ranks over ``range(num_items)``."""
    unit, order = size * len(steps), list(range(num_items))
    num_full, rest = divmod(num_items, unit)
    for step in range(num_full):
        assert all(len(of_rank[step]) == size for of_rank in steps)
        joined = [item for of_rank in steps for item in of_rank[step]]
        assert joined == order[step * unit : (step + 1) * unit]
    # A rank without a sample may have an empty batch, or none.
    last = [item for of_rank in steps for item in of_rank[num_full:]]
    items = [item for batch in last for item in batch if item is not None]
    counts = [sum(item is not None for item in batch) for batch in last]
    if tail is Tail.DROP_LAST or not rest:
        assert not items
    elif tail is Tail.WRAP:
        assert items == (order * (unit + 1))[num_full * unit :][:unit]
    else:
        assert items == order[num_full * unit :]
        if is_even:
            assert counts == sorted(counts, reverse=True)
            assert max(counts) - min(counts) <= 1
    if tail is Tail.PAD:
        assert all(len(batch) == size for batch in last)
        assert len(last) == len(steps) * (rest > 0)
    elif tail is not Tail.WRAP:
        assert all(item is not None for batch in last for item in batch)
    num_units = tail.count_units(num_items, unit)
    assert all(len(of_rank) <= num_units for of_rank in steps)


@pytest.mark.parametrize(
    ("deal", "tail", "meaning"),
    [
        *((deal_elastic, tail, tail) for tail in ("drop_last", "drop", "exact", "short", "pad")),
        *((deal_loader, tail, tail) for tail in ("drop_last", "exact", "pad")),
        *((deal_keyed_loader, tail, tail) for tail in ("drop_last", "exact", "pad")),
        *((deal_indices, tail, tail) for tail in ("drop_last", "exact", "short", "wrap")),
        (deal_indices, "pad", "wrap"),  # AstrAI's word
        (deal_indices_as_astrai, "drop_last", "drop_last"),
        (deal_indices_as_astrai, "wrap", "wrap"),
        (deal_megatron, "drop_last", "drop_last"),
        (deal_megatron, "exact", "exact"),
        (deal_validation, "exact", "exact"),
    ],
)
@given(num_items=st.integers(1, 40), size=st.integers(1, 4), num_ranks=st.integers(1, 7))
def test_every_sampler_and_loader_has_one_law(
    deal: Deal, tail: str, meaning: str, num_items: int, size: int, num_ranks: int
) -> None:
    if deal in (deal_indices, deal_indices_as_astrai, deal_validation):
        size = 1
    if Tail(meaning) is Tail.DROP_LAST and num_items < size * num_ranks:
        num_items = size * num_ranks  # fewer are refused
    steps = [deal(num_items, size, rank, num_ranks, tail) for rank in range(num_ranks)]
    # Megatron gives the first ranks full micro-batches.
    check_law(steps, num_items, size, Tail(meaning), is_even=deal is not deal_megatron)


LENGTHS = range(1, 24)
TOKENS = [token for length in LENGTHS for token in range(length)]


def open_keyed(folder: Path, write_corpus: WriteCorpus, window_size: int, tail: Any) -> Any:
    """Return windows of a keyed store, one stream for each document."""
    tokens = [np.arange(length, dtype="int32") for length in LENGTHS]
    write_bin(folder / "keyed", {"sequence": tokens}, record_keys=["sequence"])
    dataset = DatasetFactory.load(
        "seq", folder / "keyed", window_size, documents="respect", tail=tail
    )
    return [dataset[number]["target_ids"].tolist() for number in range(len(dataset))]


def open_zarr(folder: Path, write_corpus: WriteCorpus, window_size: int, tail: Any) -> Any:
    """Return windows of a token store, one stream for each document."""
    path = str(folder / "corpus.zarr")
    zindex.convert(write_corpus(LENGTHS, tokens=TOKENS), path, client=SerialExecutor())
    dataset = ZarrText(path, window_size, documents="apart", tail=tail, pad_id=-100)
    return [dataset[number]["labels"].tolist() for number in range(len(dataset))]


def open_texts(folder: Path, write_corpus: WriteCorpus, window_size: int, tail: Any) -> Any:
    """Return packed texts, one stream for each text."""
    windows = []
    for length in LENGTHS:
        packing = TextPacking(
            window_size, lambda text: list(range(int(text))), overlap=1, tail=tail, pad_id=-100
        )
        windows += [sample["labels"].tolist() for sample in packing([{"text": str(length)}])]
    return windows


@pytest.mark.parametrize("window_size", [1, 2, 5, 22, 40])
@pytest.mark.parametrize(
    ("open_windows", "tail"),
    [
        *((open_keyed, tail) for tail in ("drop_last", "drop", "pad", "exact", "short")),
        *((open_zarr, tail) for tail in ("drop_last", "drop", "pad")),
        *((open_texts, tail) for tail in ("drop_last", "drop", "pad")),
    ],
)
def test_every_stream_has_the_same_law(
    tmp_path: Path, write_corpus: WriteCorpus, open_windows: Any, tail: str, window_size: int
) -> None:
    """The items of a stream are its targets: all values but the first."""
    windows = iter(open_windows(tmp_path, write_corpus, window_size, tail))
    for length in LENGTHS:
        num_windows = Tail(tail).count_units(length - 1, window_size)
        [count] = count_windows(np.array([length]), window_size, window_size, Tail(tail))
        assert count == num_windows
        items = [
            [None if target == -100 else target - 1 for target in next(windows)]
            for _ in range(num_windows)
        ]
        check_law([items], length - 1, window_size, Tail(tail))
    assert next(windows, None) is None


def test_names_and_aliases() -> None:
    assert [Tail(name) for name in ("drop", "short")] == [Tail.DROP_LAST, Tail.EXACT]
    assert Tail("pad") == "pad"
    assert parse_tail(Tail.PAD, (Tail.PAD,)) is Tail.PAD
    assert [tail.fingerprint_name for tail in Tail] == ["drop", "short", "pad", "wrap"]
    for wrong in ("wrap", "cut", None, 3):
        with pytest.raises(ConfigError, match=f"tail must be one of pad, exact, got {wrong!r};"):
            parse_tail(wrong, (Tail.PAD, Tail.EXACT))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'cut' is not a valid Tail"):
        Tail("cut")


@given(st.integers(0, 50), st.integers(1, 9))
def test_an_even_division_tiles_the_items(num_items: int, num_ranks: int) -> None:
    parts = [divide_evenly(num_items, rank, num_ranks) for rank in range(num_ranks)]
    assert [i for start, count in parts for i in range(start, start + count)] == list(
        range(num_items)
    )
    assert parts[0][1] - parts[-1][1] in (0, 1)
