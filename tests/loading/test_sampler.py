"""Our sampler: one order for every number of ranks, resumed at every step."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import WriteCorpus
from tests.datasets.test_gpt_dataset import open_dataset
from zindex.errors import ConfigError, PlanError, StateMismatchError
from zindex.loading.collate import collate
from zindex.loading.sampler import ElasticSampler, Positions
from zindex.plan.tail import Tail

WORLD_SIZES = (1, 2, 3, 4, 6, 8, 12)
TAILS = (Tail.DROP_LAST, Tail.PAD, Tail.EXACT)


def make_samplers(
    num_positions: int, micro_batch_size: int, world_size: int, **settings: Any
) -> list[ElasticSampler]:
    """Return the samplers of all ranks."""
    return [
        ElasticSampler(
            num_positions,
            micro_batch_size,
            data_parallel_rank=rank,
            data_parallel_size=world_size,
            **settings,
        )
        for rank in range(world_size)
    ]


def walk(samplers: list[ElasticSampler]) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Yield the samples of each step, ranks joined, and the state, which all ranks share."""
    for batches in zip(*samplers, strict=True):
        states = [sampler.state_dict() for sampler in samplers]
        assert all(state == states[0] for state in states)
        yield (
            [position for batch in batches for position in batch if position is not None],
            states[0],
        )


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("tail", TAILS)
def test_the_order_does_not_depend_on_ranks(tail: Tail, shuffle: bool) -> None:
    settings: dict[str, Any] = {"num_epochs": 2, "shuffle": shuffle, "seed": 7}
    whole = [batch[0] for batch in ElasticSampler(61, 1, **settings)]
    assert sorted(whole) == sorted([*range(61), *range(61)])
    for world_size in WORLD_SIZES:
        for micro_batch_size in (1, 2, 5):
            samplers = make_samplers(61, micro_batch_size, world_size, tail=tail, **settings)
            steps = [samples for samples, _ in walk(samplers)]
            joined = [sample for samples in steps for sample in samples]
            num_kept = 122
            if tail == "drop_last":
                num_kept -= 122 % (micro_batch_size * world_size)
            assert joined == whole[:num_kept]
            assert len(steps) == len(samplers[0])


@pytest.mark.parametrize("shuffle", [False, True])
def test_any_ranks_go_on_after_every_step_of_any_others(shuffle: bool) -> None:
    settings: dict[str, Any] = {"num_samples": 61, "shuffle": shuffle, "tail": "exact"}
    whole = [batch[0] for batch in ElasticSampler(50, 1, **settings)]
    for world_size in WORLD_SIZES:
        done: list[int] = []
        for samples, state in walk(make_samplers(50, 3, world_size, **settings)):
            done += samples
            for other_size in WORLD_SIZES:
                others = make_samplers(50, 2, other_size, **settings)
                for sampler in others:
                    sampler.load_state_dict(state)
                rest = [sample for samples, _ in walk(others) for sample in samples]
                assert done + rest == whole


@given(
    num_positions=st.integers(1, 40),
    num_samples=st.integers(1, 90),
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 13)), min_size=1, max_size=6),
    tail=st.sampled_from([Tail.PAD, Tail.EXACT]),
)
def test_ranks_change_at_every_step(
    num_positions: int, num_samples: int, sizes: list[tuple[int, int]], tail: Tail
) -> None:
    state, done = None, list[int]()
    settings: dict[str, Any] = {"num_samples": num_samples, "tail": tail}
    for turn in range(num_samples + 1):
        micro_batch_size, world_size = sizes[turn % len(sizes)]
        samplers = make_samplers(num_positions, micro_batch_size, world_size, **settings)
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        step = next(walk(samplers), None)
        if step is None:
            break
        samples, state = step
        done += samples
    assert done == [sample % num_positions for sample in range(num_samples)]


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (Tail.DROP_LAST, None),
        (Tail.EXACT, [[12], [13], [], []]),
        (Tail.PAD, [[12, None, None], [13, None, None], [None] * 3, [None] * 3]),
    ],
)
def test_few_samples_are_left_for_many_ranks(tail: Tail, expected: list[Positions] | None) -> None:
    batches = [list(sampler) for sampler in make_samplers(14, 3, 4, tail=tail)]
    assert [batch[0] for batch in batches] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert {len(batch) for batch in batches} == {1 if expected is None else 2}
    if expected is not None:
        assert [batch[1] for batch in batches] == expected


def test_samples_dropped_for_one_number_of_ranks_are_used_by_another() -> None:
    many = make_samplers(14, 3, 4)
    *_, (_, state) = walk(many)
    assert state["consumed_samples"] == 12
    one = ElasticSampler(14, 2)
    one.load_state_dict(state)
    assert list(one) == [[12, 13]]


def test_a_run_continues_in_each_iteration_and_ends_once() -> None:
    sampler = ElasticSampler(10, 2, num_samples=14)
    batches = iter(sampler)
    assert [next(batches), next(batches)] == [[0, 1], [2, 3]]
    assert list(sampler) == [[4, 5], [6, 7], [8, 9], [0, 1], [2, 3]]
    assert sampler.state_dict()["epoch"] == 1
    assert list(sampler) == []
    assert len(sampler) == 7


def test_without_an_end_each_iteration_is_a_pass() -> None:
    sampler = ElasticSampler(7, 2, num_epochs=None)
    one_pass = [[0, 1], [2, 3], [4, 5]]
    assert [list(sampler) for _ in range(3)] == [one_pass] * 3
    assert sampler.state_dict() | {"fingerprint": ""} == {
        "version": 1,
        "fingerprint": "",
        "consumed_samples": 20,
        "epoch": 2,
    }
    batches = iter(sampler)
    assert next(batches) == [0, 1]
    state = sampler.state_dict()
    # One that was left is not taken up again, but one that is restored is.
    assert list(sampler) == one_pass
    sampler.load_state_dict(state)
    assert list(sampler) == one_pass[1:]
    assert list(sampler) == one_pass
    assert len(sampler) == 3


def test_a_pass_that_was_finished_is_followed_by_the_next_one() -> None:
    for tail in TAILS:
        first = ElasticSampler(7, 2, num_epochs=None, tail=tail, shuffle=True)
        first_pass, state = list(first), first.state_dict()
        second = ElasticSampler(7, 2, num_epochs=None, tail=tail, shuffle=True)
        second.load_state_dict(state)
        second_pass = list(second)
        assert second_pass == list(first)
        assert second_pass != first_pass


def test_an_iterator_that_is_not_used_changes_nothing() -> None:
    sampler = ElasticSampler(4, 2, num_epochs=None)
    assert next(iter(sampler)) == [0, 1]
    iter(sampler)
    iter(sampler)
    assert sampler.state_dict()["consumed_samples"] == 2


def test_a_state_can_be_loaded_in_the_middle() -> None:
    for num_epochs in (1, None):
        sampler = ElasticSampler(10, 2, num_epochs=num_epochs)
        batches, seen = iter(sampler), list[Positions]()
        start = sampler.state_dict()
        for batch in batches:
            seen.append(batch)
            if len(seen) == 3:
                sampler.load_state_dict(start)
        assert seen == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_passes_are_shuffled_apart_and_by_seed() -> None:
    def passes(**settings: Any) -> list[list[int]]:
        batches = list(ElasticSampler(50, 50, num_epochs=2, shuffle=True, **settings))
        return [[p for p in batch if p is not None] for batch in batches]

    first, second = passes(seed=1)
    assert sorted(first) == sorted(second) == list(range(50))
    orders = [range(50), first, second, *passes(seed=2), *passes(seed=1, fingerprint="other")]
    assert len({tuple(order) for order in orders}) == 7
    assert passes(seed=1) == [first, second]


def test_another_shuffle_is_another_stream() -> None:
    state = ElasticSampler(10, 2, shuffle=True, seed=1, fingerprint="ab").state_dict()
    assert ElasticSampler(10, 2, fingerprint="ab").state_dict()["fingerprint"] == "ab"
    for settings in ({"seed": 2, "shuffle": True}, {"shuffle": False}):
        other = ElasticSampler(10, 2, fingerprint="ab", **settings)  # type: ignore[arg-type]
        with pytest.raises(StateMismatchError, match=f"got one of {state['fingerprint']}"):
            other.load_state_dict(state)


def test_numbers_of_numpy_become_plain() -> None:
    sampler = ElasticSampler(
        np.int64(10),  # type: ignore[arg-type]
        np.int32(2),  # type: ignore[arg-type]
        num_epochs=np.int64(1),  # type: ignore[arg-type]
    )
    next(iter(sampler))
    assert type(sampler.state_dict()["consumed_samples"]) is int


def test_long_streams_cost_nothing() -> None:
    sampler = ElasticSampler(10**15, 4, num_epochs=1000, shuffle=True)
    assert len(sampler) == 10**18 // 4
    state = sampler.state_dict() | {"consumed_samples": 10**18 - 8, "epoch": 999}
    sampler.load_state_dict(state)
    assert [len(batch) for batch in sampler] == [4, 4]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"micro_batch_size": 0}, "micro_batch_size must be a whole number of at least 1, got 0"),
        ({"micro_batch_size": 2.0}, "micro_batch_size must be .* got 2.0"),
        ({"micro_batch_size": True}, "micro_batch_size must be .* got True"),
        ({"data_parallel_rank": 2, "data_parallel_size": 2}, "got 2 of 2; ranks count from 0"),
        ({"data_parallel_rank": -1}, "data_parallel_rank must be .* got -1"),
        ({"data_parallel_size": 0}, "data_parallel_size must be .* got 0"),
        ({"num_epochs": 0}, "num_epochs must be a whole number of at least 1, got 0"),
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"tail": "wrap"}, "tail must be one of drop_last, pad, exact, got 'wrap'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    arguments = {"num_positions": 10, "micro_batch_size": 2} | settings
    with pytest.raises(ConfigError, match=said):
        ElasticSampler(**arguments)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(PlanError, match="a dataset of at least one sample, got an empty one"):
        ElasticSampler(0, 2)
    with pytest.raises(
        PlanError, match=r"full step of 12 samples \(3 for each of 4 ranks\), got 11"
    ):
        ElasticSampler(11, 3, data_parallel_size=4)
    with pytest.raises(PlanError, match="got 11; choose tail='exact' or 'pad'"):
        ElasticSampler(11, 3, data_parallel_size=4, num_epochs=None)
    assert len(ElasticSampler(11, 3, data_parallel_size=4, num_epochs=2)) == 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_loader_has_a_batch_for_ranks_without_samples(
    write_corpus: WriteCorpus, num_workers: int
) -> None:
    dataset = open_dataset(write_corpus([9] * 20))
    for rank, count in enumerate([1, 1, 0]):
        sampler = ElasticSampler(
            len(dataset),
            1,
            data_parallel_rank=rank,
            data_parallel_size=3,
            num_samples=2,
            tail="exact",
        )
        loader = torch.utils.data.DataLoader(
            dataset, batch_sampler=sampler, collate_fn=collate, num_workers=num_workers
        )
        [batch] = list(loader)
        assert {name: len(tensor) for name, tensor in batch.items()} == dict.fromkeys(batch, count)
        assert batch["tokens"].shape[1] == dataset.config.sequence_length
