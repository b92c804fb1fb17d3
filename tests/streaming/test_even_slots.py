"""With a tail, all worker slots of a finite stream give equally many samples."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import zindex
from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import Items, Parts
from zindex.errors import ConfigError
from zindex.streaming import JsonlIterableDataset, MergedDataset


def make(folder: Path, tail: Any, sizes: tuple[int, ...] = (41, 1, 300)) -> MergedDataset:
    for number, size in enumerate(sizes):
        lines = [json.dumps({"id": f"{number}:{line}"}) for line in range(size)]
        (folder / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    files: Any = JsonlIterableDataset(folder)
    files.name, files.percent = "files", 3
    return MergedDataset([files, Items("items", 23)], cyclic=False, tail=tail)


def count_pads(samples: list[Any]) -> int:
    return sum("__padding__" in sample for sample in samples)


@pytest.mark.parametrize("tail", ["pad", "drop_last"])
@pytest.mark.parametrize("slots", [(1, 0), (3, 2), (8, 1)])
def test_every_cut_gives_equal_shares(tmp_path: Path, tail: Any, slots: tuple[int, int]) -> None:
    def new() -> MergedDataset:
        return make(tmp_path, tail)

    whole = Run(new, *slots, ahead=0).drain()
    [count] = {len(rank.delivered) for rank in whole.ranks}
    total = sum(len(rank.delivered) for rank in whole.ranks)
    pads = count_pads(whole.samples())
    assert pads == (total - 365 if tail == "pad" else 0)
    assert abs(total - 365) < 2 * slots[0] * max(1, slots[1])
    for cut in (100, total - 1):
        first = Run(new, *slots, ahead=0)
        first.advance(cut)
        again = Run(new, *slots, first.own_states(), ahead=0).drain()
        found = [first.ranks[i].delivered + again.ranks[i].delivered for i in range(slots[0])]
        assert {len(one) for one in found} == {count}
        assert sum(map(count_pads, found)) == pads
        ids = Counter(s["id"] for one in found for s in one if "__padding__" not in s)
        assert set(ids.values()) == {1}
        assert len(ids) == total - pads
        other = Run(new, 2, 2, first.merged_states(), ahead=0).drain()
        assert len({len(rank.delivered) for rank in other.ranks}) == 1
        if tail == "pad":
            ids = Counter(
                s["id"] for s in [*first.samples(), *other.samples()] if "__padding__" not in s
            )
            assert set(ids.values()) == {1}
            assert len(ids) == 365


def test_units_of_unequal_lengths(tmp_path: Path) -> None:
    run = Run(lambda: make(tmp_path, "pad", (9001,)), 4, 2, batch_size=16, ahead=0).drain()
    assert len({len(rank.delivered) for rank in run.ranks}) == 1
    ids = Counter(sample["id"] for sample in run.samples() if "__padding__" not in sample)
    assert set(ids.values()) == {1}
    assert len(ids) == 9024


def test_sources_that_are_not_read_have_no_share() -> None:
    def new() -> MergedDataset:
        unread = MergedDataset([Items("c", 9)], cyclic=False)
        unread.percent = 0
        sources = [Items("a", 5), Items("b", 7, 0), unread]
        return MergedDataset(sources, cyclic=False, tail="pad")

    run = Run(new, 3, 0, ahead=0).drain()
    assert [len(rank.delivered) for rank in run.ranks] == [2, 2, 2]
    assert count_pads(run.samples()) == 1
    assert len(new()) == 5


def test_padding_has_no_weight() -> None:
    class Rows(torch.utils.data.Dataset[Any]):
        name, percent = "rows", 1

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return {"loss_mask": torch.ones(2)}

    dataset = MergedDataset([Rows()], cyclic=False, tail="pad")
    dataset.set_data_parallel(2, 1)
    [batch] = zindex.stream_loader(dataset, 4)
    assert [sample["loss_mask"].tolist() for sample in batch] == [[0, 0]]
    assert batch[0]["__padding__"] is True


def test_unknown_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tail='pad' needs a finite stream"):
        MergedDataset([Items("items", 3)], tail="pad")
    with pytest.raises(ConfigError, match="tail must be one of exact, pad, drop_last, got 'wrap'"):
        MergedDataset([Items("items", 3)], cyclic=False, tail="wrap")
    dataset = MergedDataset([Parts("parts", [3, 2])], cyclic=False, tail="drop")
    with pytest.raises(ConfigError, match="the number of samples of 'parts' is not known"):
        next(iter(dataset))
