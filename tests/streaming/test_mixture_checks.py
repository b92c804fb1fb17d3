"""Mixtures that change beside tails, adjacent samples of a source, held documents and copies."""

import gzip
import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import zindex
from tests.streaming.simulated_ranks import Run, acting_as
from tests.streaming.test_packed_stream import PACK, read_numbers, values, write_files
from tests.streaming.tiny_sources import Items
from zindex.errors import ConfigError, StateMismatchError
from zindex.streaming import JsonlIterableDataset, MergedDataset, TextPacking, progress


def mix(*sources: Any, cyclic: bool = False, **settings: Any) -> Any:
    return lambda: MergedDataset(list(sources), cyclic, **settings)


def nested(percent: Any = 1, **settings: Any) -> MergedDataset:
    dataset = MergedDataset([Items("nested", 9)], **settings)
    dataset.percent = percent
    return dataset


def items(name: str, size: int, percent: Any = 1) -> Any:
    return Items(name, size, percent)


@pytest.mark.parametrize(
    "source",
    [items("a", 9, {0: 1, 5: 0}), nested(cyclic=True), nested(cyclic=False, stop_on_first=True)],
)
def test_tails_need_mixtures_that_read_all_their_datasets_once(source: Any) -> None:
    with pytest.raises(ConfigError, match="tail='pad' needs a finite stream of a known number"):
        MergedDataset([source, Items("b", 5)], cyclic=False, tail="pad")
    with pytest.raises(TypeError, match="do not read all their datasets once"):
        len(MergedDataset([source, Items("b", 5)], cyclic=False))


@pytest.mark.parametrize("percent", [{0: 1, 5: 0, 7: 2}, {0: 0, 60: 1}, {0: 3, 20: 1}])
@pytest.mark.parametrize("tail", ["pad", "drop_last"])
def test_schedules_that_read_all_have_tails(percent: Any, tail: Any) -> None:
    make = mix(items("a", 41, percent), Items("b", 23), tail=tail)
    assert len(make()) == 64
    run = Run(make, 3, 1, ahead=0)
    run.advance(20)
    run.set_percents({"a": 5})
    rest = Run(make, 2, 2, run.merged_states(), ahead=0).drain()
    assert len({len(rank.delivered) for rank in rest.ranks}) == 1
    made = [one for one in [*run.samples(), *rest.samples()] if "__padding__" not in one]
    ids = Counter(one["id"] for one in made)
    assert max(ids.values()) == 1
    assert len(ids) == 64 if tail == "pad" else len(ids) > 55


def test_changes_of_percents_keep_the_datasets_that_a_tail_counts() -> None:
    dataset = mix(Items("a", 9), Items("b", 9, 0), tail="pad")()
    for percents in ({"a": 0}, {"b": 1}):
        with pytest.raises(ConfigError, match="must keep which datasets are read, got"):
            dataset.set_percents(percents, 5)
    free = Run(mix(Items("a", 9), Items("b", 9)), 1, 0)
    free.advance(3)
    free.set_percents({"a": 0})
    dataset = mix(Items("a", 9), Items("b", 9), tail="pad")()
    dataset.set_dataloader_states(free.merged_states())
    with pytest.raises(ConfigError, match=r"got 0.* for 'a', whose percent is 1"):
        next(iter(dataset))


def test_added_files_and_other_percents_have_tails(tmp_path: Path) -> None:
    def make(percent: float = 1) -> MergedDataset:
        source: Any = JsonlIterableDataset(tmp_path)
        source.name, source.percent = "texts", percent
        return MergedDataset([source, Items("b", 5)], cyclic=False, tail="pad")

    write_files(tmp_path, 2, [3] * 30)
    run = Run(make, 2, 1)
    run.advance(20)
    write_files(tmp_path, 3, [3] * 30)
    rest = Run(lambda: make(3), 3, 1, run.merged_states()).drain()
    assert len({len(rank.delivered) for rank in rest.ranks}) == 1
    made = [one for one in [*run.samples(), *rest.samples()] if "__padding__" not in one]
    assert len(made) == 65


@pytest.mark.parametrize("size", [(2, 1), (1, 0), (3, 2)])
def test_schedules_count_samples_of_picks(size: tuple[int, int]) -> None:
    make = mix(items("a", 10, {0: 1, 200: 0}), Items("b", 10), cyclic=True, samples_per_pick=4)
    first = Run(make, 2, 1)
    first.advance(70)  # within picks
    rest = Run(make, *size, first.merged_states())
    rest.advance(400)
    names = [[sample["__datasetname__"] for sample in run.samples()] for run in (first, rest)]
    assert abs((names[0] + names[1]).count("a") - 100) <= 16
    for rank in rest.ranks:
        assert rank.delivered[-1]["__datasetname__"] == "b"


def test_another_number_of_samples_per_pick_is_a_changed_mixture(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sources = items("a", 10, {0: 1, 200: 0}), Items("b", 10)
    first = Run(mix(*sources, cyclic=True, samples_per_pick=4), 2, 0)
    first.advance(70)
    rest = Run(mix(*sources, cyclic=True, samples_per_pick=1), 2, 0, first.merged_states())
    assert "changed samples_per_pick from 4 to 1" in caplog.text
    rest.advance(300)
    names = [sample["__datasetname__"] for sample in first.samples() + rest.samples()]
    assert abs(names.count("a") - 100) <= 8


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_one_source_change_their_percents(num_workers: int) -> None:
    def load(state: Any = None) -> Any:
        dataset = MergedDataset([Items("a", 50), Items("b", 30)])
        return zindex.stream_loader(
            dataset, 4, num_workers=num_workers, batch_from="source", state=state
        )

    def names(batches: Any) -> list[str]:
        found = [[sample["__datasetname__"] for sample in batch] for batch in batches]
        assert all(len(batch) == 4 and len(set(batch)) == 1 for batch in found)
        return [batch[0] for batch in found]

    loader = load()
    batches = iter(loader)
    first = names(islice(batches, 6))
    loader.set_percents({"a": 0})
    state = json.loads(json.dumps(loader.state_dict()))
    [[_, sample, _]] = state["percents"]
    left = sample // 4 - 6
    rest = names(islice(batches, left + 20))
    assert {*first, *rest[:left]} == {"a", "b"}
    assert {*rest[left:]} == {"b"}
    assert names(islice(load(state), left + 20)) == rest


@pytest.mark.parametrize("size", [(1, 0), (2, 2)])
@pytest.mark.parametrize("whole_nbytes", [0, 1 << 20])
def test_held_documents_outlive_changes_and_added_files(
    tmp_path: Path, size: tuple[int, int], whole_nbytes: int
) -> None:
    packing = TextPacking(8, read_numbers, pad_id=0, whole_nbytes=whole_nbytes, **PACK)

    def make(percent: float = 1, **attributes: Any) -> Any:
        source: Any = JsonlIterableDataset(tmp_path, packing)
        source.name, source.percent = "texts", percent
        vars(source).update(attributes)
        return MergedDataset([source, Items("b", 9)], cyclic=bool(attributes))

    def tokens(*runs: Run) -> Counter[int]:
        made = [one for run in runs for one in run.samples() if "tokens" in one]
        return Counter(token for one in values(made) for token in one if token)

    num_tokens = write_files(tmp_path, 4, [30, 2, 11, 1])
    first = Run(make, 2, 1, ahead=0)
    first.advance(7)
    states = first.merged_states()
    cursors = [value[1] for key, value in states.items() if key.startswith("leaf texts")]
    assert any(len(cursor) > 3 for cursor in cursors) is not bool(whole_nbytes)
    second = Run(lambda: make(4), *size, states, ahead=0)
    second.advance(3)
    write_files(tmp_path, 6, [30, 2, 11, 1])
    third = Run(make, *size, second.merged_states(), ahead=0).drain()
    assert tokens(first, second, third) == dict.fromkeys(range(1, num_tokens + 1), 1)
    assert progress(make(), third.merged_states())["texts"].num_begun == 0


def test_held_documents_of_epochs_beyond_a_lower_limit_are_delivered(tmp_path: Path) -> None:
    def make(most: int) -> Any:
        source: Any = JsonlIterableDataset(tmp_path, TextPacking(8, read_numbers, pad_id=0, **PACK))
        source.name, source.percent, source.max_epochs = "texts", 1, most
        return MergedDataset([source])

    write_files(tmp_path, 2, [7, 1, 23, 4, 2, 2])
    run = Run(lambda: make(3), 1, 0, ahead=0)
    while not run.ranks[0].delivered or run.ranks[0].delivered[-1]["__epoch__"] < 1:
        run.advance(1)
    rest = Run(lambda: make(1), 1, 0, run.merged_states(), ahead=0).drain()
    assert len(values(rest.samples())) < 10


@pytest.mark.parametrize("on_damage", ["error", "skip"])
def test_compressed_files_are_added(tmp_path: Path, on_damage: Any) -> None:
    def write(name: str, size: int) -> None:
        lines = "".join(json.dumps({"id": f"{name}:{n}"}) + "\n" for n in range(size))
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))

    def make() -> MergedDataset:
        source: Any = JsonlIterableDataset(tmp_path, on_damage=on_damage)
        source.name, source.percent, source.max_epochs = "texts", 1, 2
        return MergedDataset([source])

    write("a", 40)
    write("b", 30)
    first = Run(make, 2, 1)
    first.advance(33)
    write("c", 25)
    rest = Run(make, 1, 2, first.merged_states()).drain()
    both = first.ids() + rest.ids()
    assert {both[f"a:{n}"] for n in range(40)} == {2}
    assert {both[f"c:{n}"] for n in range(25)} == {1}


def test_states_of_single_workers_have_no_changes_of_percents() -> None:
    make = mix(Items("a", 50), Items("b", 30), cyclic=True)
    dataset = make()
    samples = iter(dataset)
    before = list(islice(samples, 5))
    earlier = dataset.state_dict()
    dataset.set_percents({"a": 0})
    rest = list(islice(samples, 100))
    state = dataset.state_dict()
    assert state["percents"]
    following = [sample["id"] for sample in islice(samples, 20)]
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert [sample["id"] for sample in islice(resumed, 20)] == following
    assert {sample["__datasetname__"] for sample in before + rest[:40]} == {"a", "b"}
    with acting_as(0, 1, resumed):
        with pytest.raises(ConfigError, match="states of single loader workers cannot have"):
            dataset.state_dict()
        with pytest.raises(StateMismatchError, match="got changed percents; leave the"):
            resumed.load_state_dict(state)
        other = MergedDataset([Items("a", 50)])
        with pytest.raises(StateMismatchError, match="got dropped 'b'"):
            other.load_state_dict(earlier)
        del state["percents"]
        with pytest.raises(StateMismatchError, match="must have all changes of percents"):
            other.load_state_dict(state)
