"""AstrAI's sampler: the behaviour that is kept, compared with a model, and none of its faults.

test_sampler proves D4, global batches and resuming on any ranks, and that faults 11, 12, 16, 18 and
23 are not here: too few samples, none at all, finished passes, other ranks and samples of padding.
"""

import re
import tracemalloc
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.keyed.upstream_sampler import UpstreamSampler
from tests.loading.datasets import Numbers
from zindex.errors import StateMismatchError
from zindex.keyed.loader import keyed_loader
from zindex.keyed.sampler import ResumableDistributedSampler

GOLDEN = {
    42: [2, 6, 1, 8, 4, 5, 0, 9, 3, 7],
    43: [8, 4, 9, 0, 5, 1, 6, 7, 2, 3],
    3407: [9, 1, 5, 7, 3, 2, 8, 6, 4, 0],
}


def ours(size: int, *numbers: int, **settings: Any) -> ResumableDistributedSampler:
    """Return our sampler in upstream's order, of one rank unless told otherwise."""
    places = {"rank": 0, "num_ranks": 1, "order": "astrai_randperm"}
    return ResumableDistributedSampler(range(size), *numbers, **(places | settings))


def ranks(kind: Any, size: int, num_ranks: int, **settings: Any) -> list[list[int]]:
    """Return what each rank has of a pass."""
    return [list(kind(size, rank=i, num_ranks=num_ranks, **settings)) for i in range(num_ranks)]


def samples_of(batches: Iterable[Any]) -> list[int]:
    """Return the samples of some batches."""
    return [index for batch in batches for index in batch["sample"].tolist()]


def test_d1_upstreams_order() -> None:
    for seed, order in GOLDEN.items():
        assert list(ours(10, seed=seed)) == list(UpstreamSampler(10, seed=seed)) == order
    assert list(ours(10, 1, seed=42)) == GOLDEN[43]
    sampler = ours(10)
    assert [list(sampler) for _ in range(2)] == [GOLDEN[42], GOLDEN[43]]
    assert [list(ours(1000, 3)), list(ours(1000, 3, 17))] == [
        list(UpstreamSampler(1000, 3)),
        list(UpstreamSampler(1000, 3, 17)),
    ]


def test_d2_ranks_take_turns() -> None:
    for kind in (ours, UpstreamSampler):
        assert ranks(kind, 10, 4, shuffle=False) == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
        dropped = ranks(kind, 10, 4, shuffle=False, drop_last=True)
        assert dropped == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_d3_every_start_yields_the_rest(num_ranks: int, drop_last: bool) -> None:
    for rank in range(num_ranks):
        settings: dict[str, Any] = {"rank": rank, "num_ranks": num_ranks, "drop_last": drop_last}
        whole, following = (list(ours(10, epoch, **settings)) for epoch in (2, 3))
        for start in range(len(whole)):
            assert list(ours(10, 2, start, **settings)) == whole[start:]
            assert list(UpstreamSampler(10, 2, start, **settings)) == whole[start:]
        # All samples of a pass stand for the next one; upstream repeats the pass.
        assert list(ours(10, 2, len(whole), **settings)) == following
        assert list(ours(10, 1, len(whole) + 2, **settings)) == whole[2:]


def test_fault_13_a_pass_that_is_stopped_and_begun_again() -> None:
    sampler = ours(10)
    assert [*islice(sampler, 4)] == GOLDEN[42][:4]
    assert list(sampler) == GOLDEN[42]
    assert sampler.state_dict()["consumed_samples"] == 10
    assert list(sampler) == GOLDEN[43]


def test_fault_14_workers_run_ahead_of_the_trainer() -> None:
    sampler = ours(100)
    batches = DataLoader(
        Numbers(100), batch_size=4, sampler=sampler, num_workers=2, multiprocessing_context="fork"
    )
    iterator = iter(batches)
    for _ in range(5):
        sampler.count_delivered(len(next(iterator)["sample"]))
    del iterator
    assert sampler.state_dict()["consumed_samples"] == 20
    rest = ours(100)
    rest.load_state_dict(sampler.state_dict())
    assert list(rest) == list(ours(100))[20:]


def test_fault_15_ragged_last_batches() -> None:
    # Upstream's trainers count batches, as if all were full.
    sampler = ours(20, num_ranks=2)
    batches = DataLoader(Numbers(20), batch_size=4, sampler=sampler)
    places = []
    for _ in range(3):
        for batch in batches:
            sampler.count_delivered(len(batch["sample"]))
            places.append(sampler.state_dict()["consumed_samples"])
    assert places == [8, 16, 20, 28, 36, 40, 48, 56, 60]


def test_fault_17_a_state_says_what_it_is_of() -> None:
    sampler = ours(10)
    list(islice(sampler, 3))
    state = sampler.state_dict()
    assert {name: state[name] for name in ("version", "consumed_samples", "epoch")} == {
        "version": 1,
        "consumed_samples": 3,
        "epoch": 0,
    }


def test_fault_19_no_list_of_all_samples() -> None:
    def measure(sampler: Iterable[int]) -> int:
        tracemalloc.start()
        list(islice(sampler, 100))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    size = 200_000
    measure(ours(size, order="keyed"))  # compiles
    # Upstream's order is an array here, which torch itself holds.
    assert measure(ours(size)) < 200_000
    assert measure(ours(size, order="keyed")) < 200_000


# torchdata calls what torch no longer wants called.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdatas_loader_keeps_the_state_of_each_batch(num_workers: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def open_loader(rank: int, num_ranks: int) -> Any:
        sampler = ours(21, rank=rank, num_ranks=num_ranks)
        return StatefulDataLoader(
            Numbers(21), batch_size=4, sampler=sampler, num_workers=num_workers
        )

    whole = [[*ours(21, epoch, num_ranks=2)] for epoch in range(2)]
    for step in range(4):
        before = open_loader(0, 2)
        iterator = iter(before)
        seen = samples_of(next(iterator) for _ in range(step))
        assert seen == whole[0][: 4 * step]
        after = open_loader(0, 2)
        after.load_state_dict(before.state_dict())
        assert samples_of(after) == (whole[0][4 * step :] if step < 3 else whole[1])
        if step < 3:
            assert samples_of(after) == whole[1]
        del before, iterator, after


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_states_of_upstream_continue_exactly(
    drop_last: bool, num_ranks: int, shuffle: bool
) -> None:
    settings: dict[str, Any] = {"drop_last": drop_last, "shuffle": shuffle, "num_ranks": num_ranks}
    passes = 3
    for rank in range(num_ranks):
        source = UpstreamSampler(11, rank=rank, **settings)
        whole = [index for _ in range(passes) for index in source]
        source = UpstreamSampler(11, rank=rank, **settings)
        found: list[int] = []
        while len(found) < len(whole):
            for index in source:
                found.append(index)
                state = {"epoch": source.epoch, "iter": source.iter}
                sampler = ours(11, rank=rank, **settings)
                is_ended = len(found) % source.per_replica == 0
                if is_ended and source.epoch > 0:  # the pass is over, which epoch does not say yet
                    with pytest.raises(StateMismatchError, match="before or after pass"):
                        sampler.load_state_dict(state)
                    continue
                sampler.load_state_dict(state)
                rest = [*sampler, *sampler, *sampler][: len(whole) - len(found)]
                assert [*found, *rest] == whole
        assert found == whole


def test_epoch_and_iter_are_read_and_assigned() -> None:
    sampler = ours(10, num_ranks=2)
    order = [*ours(10, num_ranks=2)]
    walk = iter(sampler)
    assert [next(walk), next(walk)] == order[:2]
    assert (sampler.epoch, sampler.iter) == (0, 2)
    sampler.iter = 3
    assert [*sampler] == order[3:]
    assert (sampler.epoch, sampler.iter) == (1, 0)
    sampler.epoch, sampler.iter = 0, 1
    assert [*sampler] == order[1:]
    # The state for any number of ranks names the same place.
    other = ours(10, num_ranks=2)
    other.load_state_dict({"epoch": 0, "iter": 4})
    assert other.state_dict() == other.plan.state_at(8).to_dict()


@pytest.mark.parametrize(
    ("state", "settings", "message"),
    [
        ({"epoch": 0, "iter": 3}, {"order": "keyed"}, "create the sampler with order='astrai_rand"),
        ({"epoch": 0, "iter": 11}, {}, "must be at most 10 in pass 0 of 10 samples per rank, got"),
        ({"epoch": 2, "iter": 10}, {}, "before or after pass 2; give iter 0 and epoch 2 or 3"),
        ({"epoch": -1, "iter": 0}, {}, "must be whole numbers from 0 on, got {'epoch': -1"),
        ({"epoch": 0, "iter": 1.5}, {}, "must be whole numbers from 0 on, got {'epoch': 0, 'ite"),
    ],
)
def test_states_of_upstream_that_do_not_fit(
    state: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    sampler = ours(10, **settings)
    with pytest.raises(StateMismatchError, match=re.escape(message)):
        sampler.load_state_dict(state)
    if settings:
        with pytest.raises(StateMismatchError, match="create the sampler with order"):
            sampler.iter = 3


def test_loaders_say_what_reads_a_state_of_upstream() -> None:
    batches = keyed_loader(Numbers(10), 2, rank=0, num_ranks=1, collate=list)
    with pytest.raises(
        StateMismatchError, match=r"ResumableDistributedSampler\(dataset, order='as"
    ):
        batches.load_state_dict({"epoch": 0, "iter": 4})
