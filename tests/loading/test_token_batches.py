"""Batches of a token budget: whole passes, equal steps, exact replays, any ranks."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.loading.datasets import Numbers
from zindex.errors import ConfigError, PlanError, StateMismatchError
from zindex.loading.loader import loader
from zindex.loading.sampler import ElasticSampler
from zindex.loading.token_batches import TokenBatchSampler, sizes_of
from zindex.plan.token_batches import Layout, SampleSizes, TokenBudget


class Sized(Numbers):
    """Sample i is i, and has i % 7 + 1 tokens."""

    def sample_sizes(self) -> SampleSizes:
        return SampleSizes.of_lengths(np.arange(self.size) % 7 + 1)


def make(
    lengths: Any, budget: TokenBudget, num_ranks: int, state: Any = None, **options: Any
) -> list[TokenBatchSampler]:
    samplers = [
        TokenBatchSampler(lengths, budget, rank=rank, num_ranks=num_ranks, **options)
        for rank in range(num_ranks)
    ]
    for sampler in samplers:
        if state is not None:
            sampler.load_state_dict(state)
    return samplers


def join(batches: Iterable[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def cost(lengths: Any, batch: Any, layout: Layout) -> int:
    own = [max(1, int(lengths[sample])) for sample in batch]
    return sum(own) if layout == "packed" else len(own) * max(own, default=0)


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=80),
    max_tokens=st.integers(30, 90),
    layout=st.sampled_from(["packed", "padded"]),
    window=st.integers(1, 40),
    num_epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    ranks=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    data=st.data(),
)
def test_a_run_over_changing_ranks_has_every_sample_in_every_pass(
    lengths: list[int],
    max_tokens: int,
    layout: Layout,
    window: int,
    num_epochs: int,
    shuffle: bool,
    ranks: list[int],
    data: st.DataObject,
) -> None:
    budget = TokenBudget(max_tokens, layout, window=window)
    options: dict[str, Any] = {"num_epochs": num_epochs, "shuffle": shuffle, "tail": "exact"}
    [one] = make(np.array(lengths), budget, 1, **options)
    whole = list(one)
    assert len(whole) == len(one)
    assert all(cost(lengths, batch, layout) <= max_tokens for batch in whole)
    assert Counter(join(whole)) == dict.fromkeys(range(len(lengths)), num_epochs)
    for epoch in range(num_epochs):
        own = join(whole)[epoch * len(lengths) : (epoch + 1) * len(lengths)]
        assert sorted(own) == list(range(len(lengths)))
    # Jobs of other numbers of ranks, each stopped after some steps and resumed by the next.
    state, done = None, list[list[int]]()
    for num_ranks in [*ranks, ranks[0]]:
        samplers = make(np.array(lengths), budget, num_ranks, state, **options)
        steps = list(zip(*samplers, strict=True))
        assert steps == list(
            zip(*make(np.array(lengths), budget, num_ranks, state, **options), strict=True)
        )
        stop = data.draw(st.integers(0, len(steps)))
        samplers = make(np.array(lengths), budget, num_ranks, state, **options)
        for step, *_ in zip(zip(*samplers, strict=True), range(stop), strict=False):
            done += [batch for batch in step if batch]
            states = {json.dumps(sampler.state_dict()) for sampler in samplers}
            assert len(states) == 1
            state = json.loads(states.pop())
        assert done == whole[: len(done)]
    [rest] = make(np.array(lengths), budget, 1, state, **options)
    assert done + list(rest) == whole


@pytest.mark.parametrize("tail", ["drop_last", "exact", "pad"])
def test_ranks_have_equal_steps(tail: str) -> None:
    lengths = np.random.default_rng(1).integers(1, 60, 500)
    for num_ranks in (1, 3, 7):
        samplers = make(lengths, TokenBudget(200, window=90), num_ranks, num_epochs=2, tail=tail)
        ranks = [list(sampler) for sampler in samplers]
        assert {len(batches) for batches in ranks} == {len(samplers[0])}
        sums = np.array([[cost(lengths, b, "packed") for b in x[:-1]] for x in ranks])
        # Batches of the last windows of a pass are the smallest.
        assert np.median(sums.min(0) / sums.max(0)) > 0.97
        last = [batches[-1] for batches in ranks]
        assert all(last) == (tail != "exact" or num_ranks == 1)
        assert ([None] in last) == (tail == "pad" and num_ranks > 1)


def test_passes_differ_and_shuffles_stay_in_their_windows() -> None:
    lengths = np.random.default_rng(2).integers(1, 60, 1000)
    budget = TokenBudget(300, "padded", window=100)
    [sampler] = make(lengths, budget, 1, num_epochs=None)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sorted(join(first)) == sorted(join(second)) == list(range(1000))
    order = [batch[0] for batch in ElasticSampler(1000, 1, shuffle=True, seed=42)]
    [plain] = make(lengths, budget, 1, fingerprint="")
    place = {sample: number for number, sample in enumerate(order)}
    for number, sample in enumerate(join(plain)):
        assert place[sample] // 100 == number // 100
    firsts = [batch[0] for batch in make(lengths, budget, 1, shuffle=False)[0]]
    assert firsts == sorted(firsts)
    # Long and short batches do not come in the order of their lengths.
    means = [lengths[batch].mean() for batch in first]
    ranks = np.argsort(np.argsort(means))
    assert abs(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) < 4 / np.sqrt(len(ranks))


def test_counts_of_long_runs() -> None:
    """Whole windows are counted once, parts of them exactly."""
    lengths = np.random.default_rng(3).integers(1, 60, 700)
    [sampler] = make(lengths, TokenBudget(150, window=64), 1, num_epochs=4)
    batches = list(sampler)
    plan = sampler.plan
    position = 0
    for number, batch in enumerate(batches):
        assert plan.count_steps(position, 2800) == len(batches) - number
        position += len(batch)


def test_delivered_batches_count_with_workers() -> None:
    dataset = Sized(60)

    def train(state: Any, num_steps: int) -> tuple[list[list[int]], Any]:
        [sampler] = make(dataset, TokenBudget(20), 1, state, num_epochs=2)
        batches = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
        seen: list[list[int]] = []
        for batch in batches:
            seen.append(batch["sample"].tolist())
            sampler.count_delivered()
            if len(seen) == num_steps:
                break
        return seen, sampler.state_dict()

    whole, end = train(None, 1000)
    assert (end["epoch"], end["consumed_samples"]) == (2, 120)
    seen, state = train(None, 5)
    assert state["consumed_samples"] == sum(map(len, whole[:5]))
    assert seen + train(state, 1000)[0] == whole
    [sampler] = make(dataset, TokenBudget(20), 1)
    with pytest.raises(ConfigError, match="that were taken, 0 are left, got 1; count each batch"):
        sampler.count_delivered()
    # An interrupted pass is finished by the next iteration.
    [sampler] = make(dataset, TokenBudget(20), 1, num_epochs=None)
    iterator = iter(sampler)
    first = [next(iterator) for _ in range(4)]
    sampler.count_delivered(2)
    assert sorted(join(first[:2]) + join(sampler)) == list(range(60))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_of_a_budget(num_workers: int) -> None:
    dataset, budget = Sized(100), TokenBudget(30, "padded")
    options: dict[str, Any] = {"shuffle": True, "num_epochs": 2, "num_workers": num_workers}
    with loader(dataset, micro_batch_size=budget, **options) as batches:
        whole = [batch["sample"].tolist() for batch in batches]
        assert len(whole) == len(batches)
    with loader(dataset, micro_batch_size=budget, **options) as batches:
        iterator = iter(batches)
        seen = [next(iterator)["sample"].tolist() for _ in range(7)]
        state = batches.state_dict()
        assert batches.num_batches_left == len(whole) - 7
    with loader(dataset, micro_batch_size=budget, state=state, **options) as rest:
        assert seen + [batch["sample"].tolist() for batch in rest] == whole


def test_mistakes() -> None:
    lengths = np.array([5, 9, 4, 4])
    [sampler] = make(lengths, TokenBudget(9), 1)
    state = sampler.state_dict()
    [other] = make(np.array([5, 4, 4, 5]), TokenBudget(9), 1, shuffle=False)
    inside = other.state_dict() | {"consumed_samples": 3}
    with pytest.raises(StateMismatchError, match="must be the end of a batch, 3 is within one"):
        other.load_state_dict(inside)
    for budget in (TokenBudget(10), TokenBudget(9, "padded"), TokenBudget(9, window=2)):
        with pytest.raises(StateMismatchError, match="must belong to these samples"):
            make(lengths, budget, 1, state)
    with pytest.raises(StateMismatchError, match="must belong to these samples"):
        make(lengths[::-1], TokenBudget(9), 1, state)
    with pytest.raises(PlanError, match="got 1 that are longer, up to 9 tokens; raise max_tokens"):
        make(lengths, TokenBudget(8), 1)
    with pytest.raises(PlanError, match="needs a batch for each of 4 ranks, got 3 of at most 9"):
        make(lengths, TokenBudget(9), 4)
    with pytest.raises(PlanError, match="got an empty one"):
        make(np.zeros(0, np.int64), TokenBudget(9), 1)
    with pytest.raises(ConfigError, match=r"sample_sizes, or the lengths .* got Numbers; give one"):
        sizes_of(Numbers(3))
    with pytest.raises(ConfigError, match="num_samples must be left out with a budget"):
        loader(Sized(9), micro_batch_size=TokenBudget(9), num_samples=5)
    with pytest.raises(ConfigError, match="rank must be less than num_ranks, got 3 of 2"):
        TokenBatchSampler(lengths, TokenBudget(9), rank=3, num_ranks=2)
