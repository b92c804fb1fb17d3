"""Percents that change while a stream is read."""

import json
import multiprocessing
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import zindex
from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import Items, ids_of, pairs
from zindex.errors import ConfigError, StateMismatchError
from zindex.streaming import MergedDataset
from zindex.streaming.state import list_changes

SIZES = [(1, 0), (2, 2), (3, 1)]


def make(function: Any = None, cyclic: bool = True, **settings: Any) -> MergedDataset:
    sources = [Items("a", 200, 0.5), Items("b", 300, 0.5), Items("c", 100, 0.1)]
    return MergedDataset(sources, cyclic, customized_yield_fn=function, yield_segment=7, **settings)


def names(samples: Sequence[dict[str, Any]]) -> list[str]:
    return [sample["__datasetname__"] for sample in samples]


def test_a_piece_begins_at_one_pick_of_all_worker_slots() -> None:
    def scheduled() -> MergedDataset:
        return MergedDataset([Items("a", 10, 1), Items("b", 10, {0: 0, 60: 1, 100: 0})])  # type: ignore[arg-type]

    for num_ranks, num_workers in SIZES:
        lanes = num_ranks * max(1, num_workers)
        run = Run(scheduled, num_ranks, num_workers)
        run.advance(240)
        for rank in run.ranks:
            for worker in range(max(1, num_workers)):
                own = names([s for s in rank.delivered if s["__workerid__"] == worker])
                first, last = -(-60 // lanes), -(-100 // lanes)
                assert "b" not in own[:first] + own[last:]
                assert abs(own[first:last].count("b") - (last - first) / 2) <= 1


def test_sources_of_later_pieces_are_waited_for() -> None:
    late = MergedDataset([Items("a", 30), Items("b", 9, {0: 0, 500: 1})], cyclic=False)  # type: ignore[arg-type]
    assert names(list(late)) == ["a"] * 30 + ["b"] * 9


# Changes while training


@pytest.mark.parametrize("function", [None, pairs])
@pytest.mark.parametrize("size", SIZES)
def test_changes_are_repeated_exactly(function: Any, size: tuple[int, int]) -> None:
    run = Run(lambda: make(function), *size)
    run.advance(100)
    run.set_percents({"a": 0.05})
    run.advance(30)
    run.set_percents({"b": 0.2, "c": 0.9})
    run.advance(40)
    state, before = run.merged_states(), [len(rank.delivered) for rank in run.ranks]
    rest = Run(lambda: make(function), *size, state)
    for one in (run, rest):
        one.advance(150)
    for rank, start, other in zip(run.ranks, before, rest.ranks, strict=True):
        expected = [ids_of(sample) for sample in rank.delivered[start:]]
        found = [ids_of(sample) for sample in other.delivered]
        assert min(len(expected), len(found)) > 20
        assert all(a == b for a, b in zip(expected, found, strict=False))


@pytest.mark.parametrize("function", [None, pairs])
@pytest.mark.parametrize("size", SIZES)
def test_an_epoch_with_changes_is_whole(function: Any, size: tuple[int, int]) -> None:
    def epoch() -> MergedDataset:
        return make(function, cyclic=False)

    run = Run(epoch, 2, 1)
    run.advance(100)
    run.set_percents({"a": 0.05})
    run.advance(30)
    again = Run(epoch, *size, run.merged_states())
    again.advance(40)
    again.set_percents({"c": 3})
    again.advance(9)
    ids = run.ids() + again.ids() + Run(epoch, 2, 2, again.merged_states()).drain().ids()
    assert len(ids) == 600
    assert set(ids.values()) == {1}


def test_a_change_is_after_all_that_was_read() -> None:
    dataset = make()
    samples = iter(dataset)
    first = names(list(islice(samples, 10)))
    [change] = dataset.set_percents({"a": 0, "b": 0})["percents"]
    assert change == [0, 64, {"a": 0, "b": 0}]
    rest = names(list(islice(samples, 100)))
    assert {*(first + rest)[64:]} == {"c"}
    assert (first + rest)[:64] == names(list(islice(make(), 64)))
    dataset.set_percents({"b": 1}, at=300)
    both = (first + rest + names(list(islice(samples, 300))))[290:310]
    assert both[:10] == ["c"] * 10
    assert "b" in both[10:12]


def test_changes_last_over_iterations() -> None:
    dataset = make(cyclic=False)
    list(dataset)
    dataset.set_percents({"a": 0, "c": 0})
    assert {*names(list(dataset))} == {"b"}
    dataset.set_epoch(7)
    assert {*names(list(islice(dataset, 50)))} == {"b"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (({"z": 1},), r"must be of the sources of the outermost mixture, a, b, c, got 'z'"),
        (({"a": -1},), "must be a mapping from sources to numbers >= 0, got {'a': -1}"),
        (({"a": {0: 1}},), "numbers >= 0, got {'a': {0: 1}}"),
        (({},), "numbers >= 0, got {}; give at least one"),
        (({"a": 1}, -3), "at must be a number of samples >= 0, or None, got -3"),
        (({"a": 1}, 63), "no rank has read yet, from 64 on, got 63; leave `at` out"),
        (({"a": 0, "b": 0, "c": 0},), "must have a percent > 0, got none from sample 64 on"),
    ],
)
def test_bad_changes_are_refused(arguments: Any, text: str) -> None:
    dataset = make()
    next(iter(dataset))
    with pytest.raises(ConfigError, match=text):
        dataset.set_percents(*arguments)
    assert dataset.set_percents({"a": 2})["percents"] == [[0, 64, {"a": 2}]]


def test_changes_need_the_exact_mixing() -> None:
    with pytest.raises(ConfigError, match="must be mixed exactly, got mixing='cogdata_mix'"):
        make(mixing="cogdata_mix").set_percents({"a": 1})
    with pytest.raises(ConfigError, match="over samples must be mixed exactly"):
        MergedDataset([Items("a", 3, {0: 1, 5: 2})], mixing="cogdata_mix")  # type: ignore[arg-type]


def test_a_state_without_its_changes_is_refused() -> None:
    run = Run(make, 1, 0)
    run.advance(10)
    run.set_percents({"a": 0.01})
    run.advance(100)
    state = run.merged_states()
    del state["percents"]
    with pytest.raises(StateMismatchError, match="that from pick 64 of a worker slot on is miss"):
        Run(make, 1, 0, state)


def test_old_changes_are_forgotten() -> None:
    dataset = make()
    samples = iter(dataset)
    for number in range(60):
        changes = dataset.set_percents({"a": 1 + number})["percents"]
        next(islice(samples, 999, 1000))
    assert 8 <= len(changes) <= 10
    assert changes[-1][2] == {"a": 60}


@pytest.mark.parametrize("function", [None, pairs])
def test_a_state_needs_few_of_many_changes(function: Any) -> None:
    def open_loader() -> Any:
        sources = [Items(f"source-{number}", 50) for number in range(40)]
        mixture = MergedDataset(sources, customized_yield_fn=function, yield_segment=10)
        return zindex.stream_loader(mixture, 6)

    loader, rng = open_loader(), random.Random(1)
    states, batches = [], []
    for batch in islice(loader, 300):
        batches.append(batch)
        loader.set_percents({f"source-{number}": rng.random() for number in range(40)})
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert max(len(state["percents"]) for state in states) <= 12
    for number in range(0, 290, 41):
        resumed = open_loader()
        resumed.load_state_dict(states[number])
        [again] = islice(resumed, 1)
        assert [*map(ids_of, again)] == [*map(ids_of, batches[number + 1])]


# Processes


def test_ranks_without_a_process_group_need_a_sample() -> None:
    dataset = make()
    dataset.set_data_parallel(2, 0)
    with pytest.raises(ConfigError, match=r"2 ranks without torch\.distributed must be told when"):
        dataset.set_percents({"a": 1})
    assert dataset.set_percents({"a": 1}, at=70)["percents"] == [[0, 70, {"a": 1}]]


def set_as(rank: int, folder: Path) -> None:
    """Be one of two ranks, of which one has read more."""
    dist.init_process_group("gloo", f"file://{folder / 'ranks'}", rank=rank, world_size=2)
    dataset = make()
    samples = iter(dataset)
    next(islice(samples, 100 * rank, None))
    with pytest.raises(ConfigError, match="all ranks must set the same percents at the same step"):
        dataset.set_percents({"a": 1 + rank})
    changes = dataset.set_percents({"a": 3})["percents"]
    (folder / f"{rank}.txt").write_text(repr(changes))
    dist.destroy_process_group()


def gather_as(rank: int, folder: Path) -> None:
    """Be one of two ranks, whose states are gathered after changes."""
    dist.init_process_group("gloo", f"file://{folder / 'ranks'}", rank=rank, world_size=2)
    loader = zindex.stream_loader(make(), 8)
    for step, _ in enumerate(loader):
        if step in (3, 20):
            loader.set_percents({"a": 3 + step})
        if step == 30:
            (folder / f"{rank}.txt").write_text(json.dumps(loader.gather_state()))
            break
    dist.destroy_process_group()


def run_ranks(target: Any, folder: Path) -> list[str]:
    """Return what two ranks have written."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=target, args=(rank, folder)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
    return [(folder / f"{rank}.txt").read_text() for rank in (0, 1)]


def test_states_that_are_gathered_have_the_changes(tmp_path: Path) -> None:
    first, second = run_ranks(gather_as, tmp_path)
    assert first == second
    state = json.loads(first)
    assert [percents for *_, percents in state["percents"]] == [{"a": 6}, {"a": 23}]
    for size in SIZES:
        assert Run(make, *size, state).advance(30) == 30


def test_ranks_of_a_process_group_change_at_one_sample(tmp_path: Path) -> None:
    # The second rank has computed 128 picks.
    assert {*run_ranks(set_as, tmp_path)} == {"[[0, 256, {'a': 3}]]"}


def test_the_first_samples_of_a_rank_do_not_hide_later_changes() -> None:
    old, new = [0, 5, {"a": 1.0}], [0, 9, {"a": 2.0}]
    state = {"percents": [old, new], "begun percents": [old]}
    assert list_changes(state) == [(0, 5, {"a": 1.0}), (0, 9, {"a": 2.0})]
    assert list_changes({"begun percents": [old]}) == [(0, 5, {"a": 1.0})]
