"""Packs of sub-samples, against a plain loop and by their laws."""

import hashlib
import json
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.arrays import Int64Array
from zindex.errors import PlanError
from zindex.kernels._jit import interpret
from zindex.kernels.balance import spread
from zindex.kernels.balanced_packs import pack_evenly
from zindex.kernels.packing import fit_parts
from zindex.samples.schedules.packs import PackRules, Packs, plan_evenly, plan_in_order

# Of all packs of 300 draws.
DIGEST = "f581e9873b2823a03f9827f4077925da1df95a8ad40ed03974f860920219fca4"
KINDS = ("lognormal", "uniform", "short", "heavy", "half")


def draw(number: int) -> tuple[Int64Array, PackRules, int]:
    """Return lengths of one kind, rules, and the linear work of a token."""
    generator = np.random.default_rng(number)
    num_ranks, num_together = (int(generator.choice(sizes)) for sizes in ([1, 2, 4, 8], [1, 2]))
    limit = int(generator.choice([64, 2048, 8192]))
    size = num_ranks * num_together * int(generator.integers(2, 30))
    kind = KINDS[number % len(KINDS)]
    if kind == "lognormal":
        lengths = np.exp(generator.normal(np.log(limit / 16), 1.2, size))
    elif kind == "uniform":
        lengths = generator.integers(1, limit + 1, size)
    elif kind == "short":
        lengths = generator.integers(1, limit // 32 + 1, size)
    elif kind == "heavy":
        is_long = generator.random(size) < 0.05
        lengths = np.where(is_long, limit - 1, generator.integers(1, limit // 32 + 1, size))
    else:
        lengths = generator.integers(limit // 4, limit + 1, size)
    rules = PackRules(limit, num_ranks, num_together)
    return np.clip(lengths, 1, limit).astype(np.int64), rules, int(generator.choice([0, limit]))


def pack_plainly(lengths: list[int], rules: PackRules) -> Packs | None:
    """Return packs in order, as Megatron's scheduler makes them; None where it gives up."""
    packs: Packs = []
    room = 0
    for number, length in enumerate(lengths):
        if not packs or length > room:
            packs.append([])
            room = rules.limit
        packs[-1].append(number)
        room -= length
    last = len(packs) - 1
    while len(packs) % rules.multiple:
        if last < 0:
            return None
        if len(packs[last]) > 1:
            packs.append([packs[last].pop()])
        else:
            last -= 1
    return packs


def work_of_ranks(packs: Packs, lengths: Int64Array, num_ranks: int, linear: int) -> Int64Array:
    work = [int((lengths[pack] * (lengths[pack] + linear)).sum()) for pack in packs]
    return np.array(work).reshape(-1, num_ranks).sum(axis=0)


@pytest.mark.parametrize("number", range(100))
def test_packs(number: int) -> None:
    lengths, rules, linear = draw(number)
    in_order = pack_plainly(lengths.tolist(), rules)
    if in_order is None:
        with pytest.raises(PlanError, match="there must be a sub-sample for each"):
            plan_in_order(lengths, rules)
    else:
        assert plan_in_order(lengths, rules) == in_order
    try:
        packs = plan_evenly(lengths, rules, linear)
    except PlanError:
        assert in_order is None
        return
    assert sorted(chain.from_iterable(packs)) == list(range(len(lengths)))
    assert len(packs) % rules.multiple == 0
    assert all(0 < lengths[pack].sum() <= rules.limit for pack in packs)
    assert packs == plan_evenly(lengths, rules, linear)
    if in_order is not None:
        ours, theirs = (
            work_of_ranks(found, lengths, rules.num_ranks, linear) for found in (packs, in_order)
        )
        assert ours.max() <= theirs.max()
        assert len(packs) <= len(in_order)


def test_ranks_have_equal_work() -> None:
    lengths = np.exp(np.random.default_rng(0).normal(5, 1, 512)).astype(np.int64) % 2000 + 1
    rules = PackRules(1 << 14, 8)
    ours, theirs = (
        work_of_ranks(plan(lengths, rules), lengths, 8, 0)
        for plan in (lambda *a: plan_evenly(*a, 0), plan_in_order)
    )
    assert ours.max() / ours.mean() < 1.001
    assert theirs.max() / theirs.mean() > 1.2


def test_kernels_are_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [plan_evenly(*draw(number)) for number in range(0, 15)]
    from zindex.samples.schedules import packs

    source: Any = interpret(pack_evenly)
    source.__globals__["_fit"].__globals__["fit_parts"] = fit_parts  # its intrinsics need numba
    monkeypatch.setattr(packs, "pack_evenly", source)
    assert [plan_evenly(*draw(number)) for number in range(0, 15)] == found


def test_packs_are_those_of_earlier_versions() -> None:
    """A job that resumes has the packs that it would have had."""
    digest = hashlib.sha256()
    for number in range(300):
        lengths, rules, linear = draw(number)
        for choice in (linear, None):
            with suppress(PlanError):
                digest.update(json.dumps(plan_evenly(lengths, rules, choice)).encode())
    assert digest.hexdigest() == DIGEST


@given(
    st.lists(st.integers(1, 9), max_size=12).map(lambda found: sorted(found, reverse=True)),
    st.integers(1, 5),
    st.integers(9, 20),
)
def test_the_pack_with_the_least_work_and_room_is_next(
    lengths: list[int], num_packs: int, limit: int
) -> None:
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    work = [length**2 for length in lengths]
    is_complete = True
    for i, length in enumerate(lengths):
        free = [k for k in range(num_packs) if sum(lengths[j] for j in packs[k]) + length <= limit]
        is_complete = is_complete and bool(free)
        if is_complete:
            packs[min(free, key=lambda k: (sum(work[j] for j in packs[k]), k))].append(i)
    for kernel in (spread, interpret(spread)):
        pack_of = np.empty(len(lengths), np.int64)
        tokens, load = np.zeros((2, num_packs), np.int64)
        found = kernel(np.array(lengths), np.array(work), limit, pack_of, tokens, load)
        assert found == is_complete
        if found:
            assert [np.flatnonzero(pack_of == k).tolist() for k in range(num_packs)] == packs
            assert load.tolist() == [sum(work[j] for j in pack) for pack in packs]


@pytest.mark.parametrize("plan", [plan_evenly, plan_in_order])
def test_too_few(plan: object) -> None:
    rules = PackRules(8, 2, 3)
    message = "for each of 2 ranks in each of a multiple of 3 micro-batches of at most 8 tokens"
    with pytest.raises(PlanError, match=f"{message}, got 5"):
        plan(np.full(5, 2), rules)  # type: ignore[operator]
    with pytest.raises(PlanError, match=f"{message}, got 7"):
        plan(np.full(7, 8), rules)  # type: ignore[operator]


def test_a_long_sub_sample() -> None:
    lengths = np.array([3, 9, 1])
    assert plan_in_order(lengths, PackRules(8, 1)) == [[0], [1], [2]]
    message = r"fit into a packed sample of 8 tokens, sub-sample 1 has 9; raise max_seqlen"
    with pytest.raises(PlanError, match=message):
        plan_evenly(lengths, PackRules(8, 1))


def test_packs_that_best_fit_alone_finds() -> None:
    """Spreading by work fails; two of the eight packs that are needed would remain empty."""
    lengths = np.array([10, 10, 10, 7, 7, 3, 3, 3, 3, 4], np.int64)
    packs = plan_evenly(lengths, PackRules(10, 4), 0)
    assert all(0 < lengths[pack].sum() <= 10 for pack in packs)
    assert len(packs) == 8
