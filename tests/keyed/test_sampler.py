"""The sampler of single indices: resumed by any number of ranks, at any step, from any state."""

import json
import pickle
import tracemalloc
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.loading.datasets import Numbers
from zindex.errors import ConfigError, PlanError, StateMismatchError
from zindex.keyed.sampler import ResumableDistributedSampler
from zindex.loading.loader import loader
from zindex.loading.order import Order
from zindex.loading.sampler import ElasticSampler
from zindex.plan.tail import Tail

WORLD_SIZES = (1, 2, 3, 4, 6, 8)
TAILS = (Tail.WRAP, Tail.DROP_LAST, Tail.EXACT)


def make_samplers(size: int, num_ranks: int, **settings: Any) -> list[ResumableDistributedSampler]:
    """Return the samplers of all ranks."""
    return [
        ResumableDistributedSampler(range(size), rank=rank, num_ranks=num_ranks, **settings)
        for rank in range(num_ranks)
    ]


def join(parts: list[list[int]]) -> list[int]:
    """Return the samples of all ranks, one of each rank in turn."""
    longest = max(map(len, parts))
    return [part[step] for step in range(longest) for part in parts if step < len(part)]


def take(samplers: list[ResumableDistributedSampler], num_steps: int) -> list[int]:
    """Return the first samples of all ranks."""
    return join([list(islice(sampler, num_steps)) for sampler in samplers])


def find_order(size: int, epoch: int, **settings: Any) -> list[int]:
    """Return the order of a pass."""
    return list(ResumableDistributedSampler(range(size), epoch, rank=0, num_ranks=1, **settings))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("size", [1, 5, 24, 29])
def test_all_ranks_together_have_each_pass_in_its_order(size: int, tail: Tail) -> None:
    for num_ranks in WORLD_SIZES:
        if tail == "drop_last" and size < num_ranks:
            continue
        samplers = make_samplers(size, num_ranks, tail=tail)
        for epoch in range(3):
            order = find_order(size, epoch)
            lengths = list(map(len, samplers))
            parts = [list(sampler) for sampler in samplers]
            assert list(map(len, parts)) == lengths
            joined = join(parts)
            num_steps = -(-size // num_ranks)
            expected = (order * (num_ranks + 1))[: num_steps * num_ranks]
            if tail == "exact":
                expected = order
            elif tail == "drop_last":
                expected = order[: size // num_ranks * num_ranks]
            assert joined == expected
            states = [sampler.state_dict() for sampler in samplers]
            assert all(state == states[0] for state in states)
            assert states[0]["consumed_samples"] == (epoch + 1) * size


def check_resume(size: int, before: int, after: int, **settings: Any) -> None:
    """Resume on another number of ranks after every step of two passes."""
    tail = settings["tail"]
    num_steps = size // before if tail == "drop_last" else -(-size // before)
    for epoch in range(2):
        order, next_order = (find_order(size, epoch + i, **settings) for i in range(2))
        for step in range(num_steps + 1):
            samplers = make_samplers(size, before, start_epoch=epoch, **settings)
            iterators = [iter(sampler) for sampler in samplers]
            done = join([list(islice(iterator, step)) for iterator in iterators])
            num_done = min(step * before, size)
            assert done == (order * 9)[: num_done if tail == "exact" else step * before]
            states = [json.dumps(sampler.state_dict()) for sampler in samplers]
            if tail != "exact" or step < num_steps:  # some ranks have no sample in the last step
                assert len(set(states)) == 1
            rest = make_samplers(size, after, **settings)
            for sampler in rest:
                sampler.load_state_dict(json.loads(states[0]))
            # After its last step a pass is followed by the next one.
            is_finished = step == num_steps
            assert {sampler.epoch for sampler in rest} == {epoch + is_finished}
            start = 0 if is_finished else num_done
            num_left = size - start
            if tail == "drop_last":
                num_left -= num_left % after
            elif tail == "wrap":
                num_left += -num_left % after
            left = join([list(sampler) for sampler in rest])
            # A wrapped tail repeats the start of the pass.
            assert left == ((next_order if is_finished else order) * 9)[start : start + num_left]
            assert {sampler.epoch for sampler in rest} == {epoch + is_finished + 1}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("order", ["keyed", "astrai_randperm"])
@pytest.mark.parametrize("before", WORLD_SIZES)
def test_any_ranks_go_on_after_every_step_of_any_others(
    before: int, order: Order, tail: Tail
) -> None:
    for after in WORLD_SIZES:
        for size in (9, 24):
            check_resume(size, before, after, order=order, tail=tail)


@given(
    st.integers(1, 40),
    st.sampled_from(["keyed", "astrai_randperm"]),
    st.lists(st.tuples(st.sampled_from(WORLD_SIZES), st.integers(0, 8)), max_size=12),
)
def test_a_run_of_many_stops_gives_every_pass_once(
    size: int, order: Order, stops: list[tuple[int, int]]
) -> None:
    found: list[int] = []
    state = make_samplers(size, 1, order=order)[0].state_dict()
    for num_ranks, num_steps in stops:
        samplers = make_samplers(size, num_ranks, order=order, tail="exact")
        for sampler in samplers:
            sampler.load_state_dict(state)
        found += take(samplers, num_steps)
        state = samplers[0].state_dict()
        assert state["consumed_samples"] == len(found)
    num_passes = len(found) // size + 1
    whole = [index for epoch in range(num_passes) for index in find_order(size, epoch, order=order)]
    assert found == whole[: len(found)]


def test_blocks_of_indices_join() -> None:
    size = 5000
    samplers = make_samplers(size, 2, shuffle=False)
    assert join([list(sampler) for sampler in samplers]) == list(range(size))
    assert sorted(join([list(sampler) for sampler in make_samplers(size, 2)])) == list(range(size))


def test_states_are_those_of_a_loader() -> None:
    settings: dict[str, Any] = {"num_epochs": None, "shuffle": True, "seed": 5, "tail": "exact"}
    batches = loader(Numbers(30), micro_batch_size=4, **settings)
    iterator = iter(batches)
    seen = [next(iterator)["sample"].tolist() for _ in range(2)]
    sampler = ResumableDistributedSampler(Numbers(30), seed=5)
    assert seen == [list(islice(sampler, 4)), list(islice(sampler, 8))[4:]]
    assert sampler.state_dict() == batches.state_dict()
    sampler.load_state_dict(batches.state_dict())
    rest = [index for batch in iterator for index in batch["sample"].tolist()]
    assert list(sampler) == rest
    assert sampler.state_dict() == batches.state_dict()
    elastic = ElasticSampler(30, 3, fingerprint="numbers", shuffle=True, seed=5)
    elastic.load_state_dict(sampler.state_dict() | {"consumed_samples": 0, "epoch": 0})


def test_an_iteration_begins_the_pass_again_until_deliveries_are_counted() -> None:
    (sampler,) = make_samplers(10, 1)
    whole = list(sampler)
    iterator = iter(sampler)
    first = list(islice(iterator, 4))
    assert sampler.epoch == 1
    assert len(sampler) == 10
    assert list(islice(sampler, 4)) == first
    assert next(iterator) not in first  # continues, but is no longer counted
    assert sampler.state_dict()["consumed_samples"] == 14
    sampler.count_delivered(3)
    assert sampler.state_dict()["consumed_samples"] == 13
    second = list(sampler)
    assert sorted(first[:3] + second) == sorted(whole)
    sampler.count_delivered(2)
    assert len(sampler) == 7  # of the pass under way, until all is delivered
    assert list(sampler) == second[2:]  # workers were at its end, but the trainer stopped
    sampler.count_delivered(5)
    assert (sampler.epoch, len(sampler)) == (2, 10)
    assert sampler.state_dict()["consumed_samples"] == 20


@pytest.mark.parametrize("tail", TAILS)
def test_a_pass_that_is_stopped_at_its_last_sample_is_finished_if_delivered(tail: Tail) -> None:
    samplers = make_samplers(11, 2, tail=tail)
    for sampler in samplers:
        for _ in range(2):
            for step, _ in enumerate(sampler, 1):
                sampler.count_delivered(1)
                if step == len(sampler):
                    break
    assert [sampler.state_dict()["consumed_samples"] for sampler in samplers] == (
        # The other rank has one sample more.
        [22, 21] if tail == "exact" else [22, 22]
    )


def test_exact_ranks_end_a_pass_together_though_some_have_a_sample_less() -> None:
    samplers = make_samplers(6, 4, tail="exact")
    for sampler in samplers:
        for _ in sampler:
            sampler.count_delivered(1)
    assert [sampler.state_dict()["consumed_samples"] for sampler in samplers] == [6] * 4
    assert [sampler.epoch for sampler in samplers] == [1] * 4


def test_ranks_without_samples_have_empty_passes() -> None:
    samplers = make_samplers(3, 5, tail="exact")
    for epoch in range(3):
        assert {sampler.epoch for sampler in samplers} == {epoch}
        assert list(map(len, samplers)) == [1, 1, 1, 0, 0]
        for sampler in samplers:
            for _ in sampler:
                sampler.count_delivered(1)
            sampler.count_delivered(0)
    for sampler in samplers:
        sampler.set_epoch(7)
    assert {sampler.epoch for sampler in samplers} == {7}


def test_an_iterator_that_was_left_does_not_count_when_it_ends() -> None:
    (sampler,) = make_samplers(10, 1)
    left = iter(sampler)
    next(left)
    iterator = iter(sampler)
    next(iterator)
    assert len(list(left)) == 9
    assert (sampler.epoch, sampler.state_dict()["consumed_samples"]) == (0, 1)


def test_a_loaded_state_is_visible_immediately() -> None:
    (sampler,) = make_samplers(10, 1)
    list(islice(sampler, 4))
    state = sampler.state_dict()
    list(islice(sampler, 2))
    sampler.load_state_dict(state)
    assert sampler.state_dict() == state
    list(sampler)
    sampler.load_state_dict(state)
    assert sampler.state_dict() == state


def test_set_epoch_selects_a_pass_but_keeps_the_position_in_it() -> None:
    (sampler,) = make_samplers(10, 1)
    orders = [find_order(10, epoch) for epoch in range(5)]
    sampler.set_epoch(3)
    assert list(sampler) == orders[3]
    sampler.set_epoch(3)
    assert list(sampler) == orders[3]
    sampler.set_epoch(4)
    assert list(islice(sampler, 6)) == orders[4][:6]
    state = sampler.state_dict()
    sampler.set_epoch(1)
    assert list(sampler) == orders[1]
    sampler.load_state_dict(state)
    assert (sampler.epoch, len(sampler)) == (4, 4)
    sampler.set_epoch(state["epoch"])
    assert list(sampler) == orders[4][6:]
    with pytest.raises(ConfigError, match="epoch must be a whole number of at least 0, got -1"):
        sampler.set_epoch(-1)


def test_fewer_ranks_have_what_drop_last_left_to_more() -> None:
    samplers = make_samplers(10, 4, drop_last=True)
    state = json.loads(json.dumps(make_samplers(10, 1)[0].state_dict()))
    state["consumed_samples"] = 8
    order = find_order(10, 0)
    (alone,) = make_samplers(10, 1, drop_last=True)
    alone.load_state_dict(state)
    assert list(alone) == order[8:]
    # Nothing is left of the pass for four ranks: trainers that count passes see it end.
    samplers[0].load_state_dict(state)
    assert (samplers[0].epoch, list(samplers[0])) == (0, [])
    assert samplers[0].epoch == 1


def test_the_memory_does_not_depend_on_the_number_of_samples() -> None:
    def measure(size: int) -> int:
        tracemalloc.start()
        sampler = ResumableDistributedSampler(range(size), rank=0, num_ranks=1)
        count = 0
        for epoch in range(10):
            sampler.set_epoch(epoch)
            count += sum(1 for _ in islice(sampler, 1000))
        assert count == 10_000
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    small = [measure(1000) for _ in range(2)][1]  # the first compiles
    # Some kilobytes: small ints are there once, and the keys of the last passes are kept. The least
    # of three: threads that other tests have left may need memory, too.
    for size in (10**9, 10**15):
        assert min(measure(size) for _ in range(3)) < small + 32_000


def test_samplers_travel() -> None:
    (sampler,) = make_samplers(10, 1)
    whole = find_order(10, 0)
    assert list(islice(sampler, 4)) == whole[:4]
    other = pickle.loads(pickle.dumps(sampler))
    assert other.state_dict() == sampler.state_dict()
    assert list(other) == whole


def test_ranks_are_those_of_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"RANK": "1", "WORLD_SIZE": "3"}
    for name, value in sizes.items():
        monkeypatch.setenv(name, value)
    sampler = ResumableDistributedSampler(range(9))
    assert (sampler.rank, sampler.num_ranks) == (1, 3)
    group = object()
    monkeypatch.setattr(torch.distributed, "get_rank", {group: 2}.__getitem__)
    monkeypatch.setattr(torch.distributed, "get_world_size", {group: 4}.__getitem__)
    sampler = ResumableDistributedSampler(range(9), process_group=group)
    assert (sampler.rank, sampler.num_ranks) == (2, 4)
    sampler = ResumableDistributedSampler(range(9), process_group=group, rank=0, num_ranks=1)
    assert (sampler.rank, sampler.num_ranks) == (0, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "random"}, "order must be one of keyed, astrai_randperm, got 'random'"),
        ({"tail": "cut"}, "tail must be one of wrap, drop_last, exact, got 'cut'"),
        ({"tail": "pad", "drop_last": True}, "drop_last=True and tail='pad' must not be given"),
        ({"rank": 1}, "rank and num_ranks must be given together, got 1 and None"),
        ({"rank": 2, "num_ranks": 2}, "rank must be less than num_ranks, got 2 of 2; ranks count"),
        ({"rank": 0, "num_ranks": 0}, "num_ranks must be a whole number of at least 1, got 0"),
        ({"rank": -1, "num_ranks": 2}, "rank must be a whole number of at least 0, got -1"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0, got 1.5"),
        ({"start_epoch": True}, "start_epoch must be a whole number of at least 0, got True"),
        ({"start_iter": "1"}, "start_iter must be a whole number of at least 0, got '1'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ResumableDistributedSampler(range(10), **settings)


def test_numbers_of_numpy_are_numbers() -> None:
    sampler = ResumableDistributedSampler(range(10), np.int64(1), np.int32(3), np.uint64(7))
    assert type(sampler.state_dict()["consumed_samples"]) is int
    assert sampler.state_dict()["consumed_samples"] == 13


def test_a_pass_must_have_samples() -> None:
    with pytest.raises(PlanError, match="a dataset of at least one sample, got an empty one"):
        ResumableDistributedSampler([])
    with pytest.raises(PlanError, match=r"full step of 8 samples \(1 for each of 8 ranks\), got 3"):
        ResumableDistributedSampler(range(3), drop_last=True, rank=0, num_ranks=8)


def test_more_deliveries_than_samples_are_an_error() -> None:
    (sampler,) = make_samplers(10, 1)
    iterator = iter(sampler)
    list(islice(iterator, 4))
    sampler.count_delivered(3)
    with pytest.raises(ConfigError, match="1 are left of 4, got 2; count the samples of this rank"):
        sampler.count_delivered(2)
    with pytest.raises(ConfigError, match="num_samples must be a whole number of at least 0"):
        sampler.count_delivered(-1)


def test_states_of_others_are_refused() -> None:
    (sampler,) = make_samplers(10, 1)
    list(islice(sampler, 3))
    state = sampler.state_dict()
    others = [
        ResumableDistributedSampler(range(11)),
        ResumableDistributedSampler(range(10), seed=1),
        ResumableDistributedSampler(range(10), shuffle=False),
        ResumableDistributedSampler(range(10), order="astrai_randperm"),
        ResumableDistributedSampler(range(10), fingerprint="other"),
        ResumableDistributedSampler(Numbers(10)),
    ]
    for other in others:
        with pytest.raises(StateMismatchError, match="must belong to these samples"):
            other.load_state_dict(state)
        assert other.state_dict()["consumed_samples"] == 0
    assert all(one.state_dict() != two.state_dict() for one, two in pairwise(others))
