"""How one batch is read, and many of them ahead."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.forked import run_fresh
from tests.loading.datasets import Numbers
from zindex.errors import ConfigError
from zindex.loading.collate import collate
from zindex.loading.reading import BatchReader, read_ahead
from zindex.loading.sampler import Positions
from zindex.samples.batch import SampleBatch


class Stacked(Numbers):
    """Numbers that are read many at a time."""

    def __getitems__(self, positions: list[int]) -> SampleBatch:
        samples = torch.tensor(positions)
        return SampleBatch({"sample": samples, "loss_mask": torch.ones(len(positions), 2)})


class Nested(Numbers):
    """Numbers in every kind of nest."""

    def __getitem__(self, index: int) -> Any:
        return {"pair": (torch.tensor(index), [torch.zeros(3)]), "name": str(index)}


@pytest.mark.parametrize("dataset", [Numbers(9), Stacked(9)])
def test_padding_is_a_sample_without_weight(dataset: Numbers) -> None:
    batch = BatchReader(dataset, collate).__getitems__([3, None, 4, None])
    assert batch["sample"].tolist() == [3, 3, 4, 3]
    assert batch["loss_mask"].tolist() == [[1, 1], [0, 0], [1, 1], [0, 0]]
    # One of the batch where there is any: all have one length then.
    batch = BatchReader(dataset, collate).__getitems__([None, None])
    assert batch["sample"].tolist() == [8, 8]
    assert not batch["loss_mask"].any()


@pytest.mark.parametrize("dataset", [Numbers(9), Stacked(9)])
def test_no_positions_give_a_batch_of_no_samples(dataset: Numbers) -> None:
    batch = BatchReader(dataset, collate).__getitems__([])
    assert batch["sample"].shape == (0,)
    assert batch["loss_mask"].shape == (0, 2)
    nested = BatchReader(Nested(9), collate).__getitems__([])
    assert nested["pair"][0].shape == (0,)
    assert nested["pair"][1][0].shape == (0, 3)
    assert nested["name"] == []


def test_padding_needs_a_loss_mask() -> None:
    for dataset, kind in ((Nested(9), "dict"), ([5, 6], "Tensor")):
        with pytest.raises(
            ConfigError, match=f"with one of loss_mask, .* got {kind}; choose tail="
        ):
            BatchReader(dataset, collate).check_padding()


@pytest.mark.parametrize("prefetch", [0, 1, 3, 50])
def test_batches_come_in_order(prefetch: int) -> None:
    batches: list[Positions] = [[i, i + 1] for i in range(20)]
    found = read_ahead(BatchReader(Numbers(30), collate), batches, prefetch)
    assert [batch["sample"].tolist() for batch in found] == batches
    assert not [t for t in threading.enumerate() if t.name.startswith("zindex-batch")]
    assert list(read_ahead(BatchReader(Numbers(30), collate), [], prefetch)) == []


def test_prefetch_is_limited() -> None:
    asked: list[int] = []

    def batches() -> Iterator[Positions]:
        for i in range(20):
            asked.append(i)
            yield [i]

    found = read_ahead(BatchReader(Numbers(30), collate), batches(), 3)
    for taken in range(1, 6):
        next(found)
        assert len(asked) == taken + 3
    found.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("zindex-batch")]


def test_the_first_batch_is_read_alone() -> None:
    batches = read_ahead(BatchReader(Numbers(30), collate), [[i] for i in range(9)], 2)
    threads = [batch["thread"].item() for batch in batches]
    assert threads[0] == threading.get_ident()
    assert threading.get_ident() not in threads[1:]


def test_batches_are_read_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=200)

    class Meeting(Numbers):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index:
                together.wait()
            return super().__getitem__(index)

    batches = read_ahead(BatchReader(Meeting(30), collate), [[i] for i in range(7)], 3)
    assert [batch["sample"].item() for batch in batches] == list(range(7))


def test_closing_does_not_wait_for_stuck_reads() -> None:
    """A read of an unreachable store takes minutes."""
    gone, is_read = threading.Event(), threading.Semaphore(0)

    class Stuck(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index:
                is_read.release()
                assert gone.wait(60)
            return super().__getitem__(index)

    batches = read_ahead(
        BatchReader(Stuck(9), collate), [[0], [1], [2], [3]], 2, close_timeout=0.01
    )
    next(batches)
    for _ in range(2):
        assert is_read.acquire(timeout=60)
    batches.close()
    assert not gone.is_set()
    gone.set()
    for thread in threading.enumerate():
        if thread.name.startswith("zindex-batch"):
            thread.join()
    assert not is_read.acquire(blocking=False)  # queued reads are cancelled


def test_an_error_is_raised_in_place_of_its_batch() -> None:
    reader = BatchReader(Numbers(3), collate)
    for prefetch in (0, 2):
        batches = read_ahead(reader, [[0], [1], [7], [2]], prefetch)
        assert [next(batches)["sample"].item() for _ in range(2)] == [0, 1]
        with pytest.raises(IndexError, match="7"):
            next(batches)


def test_a_script_may_end_within_a_pass() -> None:
    # Python clears builtins last, so the generator ends after the modules that it uses.
    script = (
        "import builtins\n"
        "from tests.loading.datasets import Numbers\n"
        "from zindex.loading.collate import collate\n"
        "from zindex.loading.reading import BatchReader, read_ahead\n"
        "batches = read_ahead(BatchReader(Numbers(30), collate), [[i] for i in range(9)], 2)\n"
        "builtins.kept = batches\n"
        "print(next(batches)['sample'].tolist())\n"
    )
    done = run_fresh("-c", script, check=True)
    assert (done.stdout, done.stderr) == ("[0]\n", "")
