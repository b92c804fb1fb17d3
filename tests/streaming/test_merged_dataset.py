"""What a MergedDataset takes and refuses."""

import math
import pickle
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from tests.streaming.tiny_sources import Items, Parts
from zindex.errors import ConfigError, SourceError, StateMismatchError
from zindex.streaming import MergedDataset, to_state

Sample = dict[str, Any]


def named(dataset: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


class Endless(IterableDataset[Sample]):
    """A stream that workers cannot share."""

    name, percent = "endless", 1.0

    def __iter__(self) -> Iterator[Sample]:
        return iter(())


@pytest.mark.parametrize("percent", [-1, None, "1", True, math.nan, math.inf])
def test_percents_are_numbers_from_0(percent: Any) -> None:
    with pytest.raises(ConfigError, match=r"dataset 0 \(Items\) must have a percent >= 0, got"):
        MergedDataset([named(Items("a", 3), percent=percent)])


@pytest.mark.parametrize(
    ("percents", "settings"), [((0, 0.0), {}), ((1, 0), {"mixing": "cogdata_mix"})]
)
def test_a_mixture_needs_a_percent_above_0(
    percents: tuple[float, float], settings: dict[str, Any]
) -> None:
    children = [Items("a", 3, percents[0]), Items("b", 3, percents[1])]
    with pytest.raises(ConfigError, match=r"must have a percent > 0, .* got \[\d, 0"):
        MergedDataset(children, **settings)


@pytest.mark.parametrize("cyclic", [True, False])
def test_a_dataset_of_percent_0_is_not_read(cyclic: bool) -> None:
    merged = MergedDataset([Items("a", 3, 0), Parts("b", [2, 3]), Items("c", 7, 3)], cyclic)
    names = [sample["__datasetname__"] for sample in islice(merged, 20)]
    assert len(names) == (20 if cyclic else 12)
    assert set(names) == {"b", "c"}


def test_a_rare_dataset_ends_soon_after_the_others() -> None:
    merged = MergedDataset([Items("a", 300, 1e-9), Items("b", 40, 1e9)], cyclic=False)
    samples = list(merged)
    assert len(samples) == 340
    for stop in (39, 40, 41, 200):
        rest = merged.__iter_from__(to_state(samples[:stop]))
        assert [sample["id"] for sample in rest] == [sample["id"] for sample in samples[stop:]]


@pytest.mark.parametrize("name", [None, "", 3, "a@b"])
def test_names_are_texts(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"dataset 0 \(Items\) must have a name without '@', got"):
        MergedDataset([named(Items("a", 3), name=name)])


def test_names_differ_also_in_nested_datasets() -> None:
    inner = named(MergedDataset([Items("a", 3), Items("b", 3)]), percent=0.5)
    with pytest.raises(ConfigError, match="'a' came 2 times; states are kept by name"):
        MergedDataset([Items("a", 4), inner])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mixing": "random"}, "mixing must be one of exact, cogdata_mix, got 'random'"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0, got 1.5"),
        ({"yield_segment": 0}, "yield_segment must be a whole number of at least 1, got 0"),
        (
            {"shuffle_unstreaming_subsets": "cogdata_urlbuffer"},
            "shuffle_unstreaming_subsets must be one of True, False, cogdata_block2m, got",
        ),
        (
            {"shuffle_streaming_subsets": "yes"},
            "shuffle_streaming_subsets must be one of True, False, cogdata_urlbuffer, got 'yes'",
        ),
    ],
)
def test_settings_are_checked(settings: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MergedDataset([Items("a", 3)], **settings)


@pytest.mark.parametrize("given", [None, "a", {"a": 1}, MergedDataset([Items("a", 3)])])
def test_datasets_are_a_list(given: Any) -> None:
    message = f"must be a list, got {type(given).__name__}; put them in one"
    with pytest.raises(ConfigError, match=message):
        MergedDataset(given)


def test_stopping_needs_a_dataset_that_ends() -> None:
    endless: Any = Items("a", 3)
    with pytest.raises(ConfigError, match="stop_on_first needs a dataset that ends, with cyclic="):
        MergedDataset([endless], stop_on_first=True)
    endless.max_epochs = 2
    assert len(list(MergedDataset([endless, Items("b", 3)], stop_on_first=True))) == 12
    del endless.max_epochs
    nested: Any = MergedDataset([Items("b", 3)], cyclic=False)
    nested.percent = 1
    assert len(list(MergedDataset([endless, nested], stop_on_first=True))) in (6, 7)


def test_there_must_be_datasets() -> None:
    with pytest.raises(ConfigError, match="must have datasets, got none"):
        MergedDataset([])


def test_a_stream_without_parts_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'endless' \(Endless\) must be map-style or partitioned .* it lacks num_parts",
    ):
        MergedDataset([Endless()])
    with pytest.raises(ConfigError, match="must have urls and read_url"):
        MergedDataset([Endless()], shuffle_streaming_subsets="cogdata_urlbuffer")
    with pytest.raises(ConfigError, match=r"'thing' \(SimpleNamespace\) must have a length"):
        MergedDataset([SimpleNamespace(name="thing", percent=1)])


def test_an_empty_dataset_must_not_be_repeated() -> None:
    for empty in (Items("a", 0), Parts("a", [])):
        with pytest.raises(ConfigError, match="'a' must have samples, it is empty"):
            MergedDataset([empty, Items("b", 2)])
        merged = MergedDataset([empty, Items("b", 2)], cyclic=False)
        assert sorted(sample["id"] for sample in merged) == ["b:0", "b:1"]


def test_samples_must_say_where_they_are_from() -> None:
    def forget(samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            yield {"id": sample["id"]}

    merged = MergedDataset([Parts("a", [3], process_fn=forget)])
    with pytest.raises(
        SourceError, match=r"samples of 'a' must have __url__ and __key__, got \['id'\]"
    ):
        next(iter(merged))


def test_a_nested_dataset_needs_a_percent_too() -> None:
    with pytest.raises(ConfigError, match=r"\(MergedDataset\) must have a percent >= 0, got None"):
        MergedDataset([Items("a", 3), MergedDataset([Items("b", 3)])])


def test_errors_of_sources_name_the_part_or_items() -> None:
    def fail(samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            yield sample | {"text": sample["txet"]}

    class Failing(Items):
        def __getitem__(self, index: int) -> Any:
            raise OSError("lost")

    with pytest.raises(KeyError, match="txet") as caught:
        next(iter(MergedDataset([Parts("a", [3], process_fn=fail)])))
    assert caught.value.__notes__ == ["This came up in part 0 of the dataset 'a'."]
    with pytest.raises(OSError, match="lost") as caught_too:
        next(iter(MergedDataset([Failing("b", 1)])))
    assert caught_too.value.__notes__ == ["This came up at the items [0] of 'b'."]


@pytest.mark.parametrize(
    ("size", "rank", "message"),
    [
        (2, 2, "dp_rank must be less than dp_size, got 2 of 2"),
        (2, -1, "dp_rank must be a whole number of at least 0, got -1"),
        (0, 0, "dp_size must be a whole number of at least 1, got 0"),
    ],
)
def test_ranks_are_checked(size: int, rank: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MergedDataset([Items("a", 3)]).set_data_parallel(size, rank)


def test_ranks_may_be_set_again() -> None:
    merged = MergedDataset([Items("a", 8)], cyclic=False)
    merged.set_data_parallel(4, 1)
    merged.set_data_parallel(2, 1)
    assert len(list(merged)) == 4


def test_ranks_are_found_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    found = list(MergedDataset([Items("a", 8)], cyclic=False))
    assert len(found) == 2
    assert {sample["__dprank__"] for sample in found} == {1}


def test_the_rank_travels_with_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = MergedDataset([Items("a", 8)], cyclic=False)
    alone = pickle.dumps(merged)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    ranked = pickle.dumps(merged)
    assert len(list(pickle.loads(alone))) == 2
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert len(list(pickle.loads(ranked))) == 2
    assert len(list(pickle.loads(alone))) == 8
    merged.set_data_parallel(1, 0)
    whole = pickle.dumps(merged)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert len(list(pickle.loads(whole))) == 8


def test_items_of_a_dataset_are_not_written_to() -> None:
    items: list[Any] = [{"id": "x"}, {"id": "y"}, 7]
    found = list(MergedDataset([Items("a", 3, items=items)], cyclic=False))
    assert items == [{"id": "x"}, {"id": "y"}, 7]
    assert [sample["data"] for sample in found if "data" in sample] == [7]


def test_items_are_read_many_at_a_time_where_they_can_be() -> None:
    class Batched(Items):
        calls = 0

        def __getitems__(self, indices: list[int]) -> list[Any]:
            Batched.calls += 1
            return [self[index] for index in indices]

    found = [sample["id"] for sample in MergedDataset([Batched("a", 40)], cyclic=False)]
    assert found == [sample["id"] for sample in MergedDataset([Items("a", 40)], cyclic=False)]
    assert Batched.calls == 3


def test_required_samples_are_shared_by_percent() -> None:
    long = named(Items("long", 100), percent=3, length_multiplier=10, length_divisor=4)
    parts = named(Parts("parts", [2, 2]), percent=1)
    inner = named(MergedDataset([named(Items("in", 5), length=50)]), percent=4)
    merged = MergedDataset([long, parts, inner])
    assert merged.check_length(800) == [("long", 250, 300), ("parts", None, 100), [("in", 50, 400)]]


def test_a_dataset_travels_to_workers_with_its_state() -> None:
    merged = MergedDataset([Items("a", 9), Parts("b", [4, 4])], cyclic=False)
    first = list(islice(merged, 5))
    merged.set_dataloader_states(to_state(first))
    again = pickle.loads(pickle.dumps(merged))
    assert [s["id"] for s in again] == [s["id"] for s in merged]


def test_states_of_other_datasets_are_refused() -> None:
    state = to_state(next(iter(MergedDataset([Items("a", 9)]))))
    with pytest.raises(StateMismatchError, match=r"of the datasets \['b'\], got one of \['a'\]"):
        MergedDataset([Items("b", 9)]).set_dataloader_states(state)
    with pytest.raises(
        StateMismatchError, match="state of 'a' must be of the same files, seed and order"
    ):
        MergedDataset([Items("a", 9)], seed=1).set_dataloader_states(state)
    with pytest.raises(
        StateMismatchError, match=r"it is of \[keyed, .* of 9 items\], these are .* of 8 items"
    ):
        MergedDataset([Items("a", 8)]).set_dataloader_states(state)


def test_an_empty_state_starts_from_the_beginning() -> None:
    merged = MergedDataset([Items("a", 9)])
    merged.set_dataloader_states(to_state(list(islice(merged, 5))))
    merged.set_dataloader_states({})
    assert next(iter(merged))["id"] == next(iter(MergedDataset([Items("a", 9)])))["id"]


def test_damage_is_counted_in_the_state() -> None:
    class Damaged(Parts):
        num_skipped = 0

        def read_part(self, part: int) -> Iterator[Sample]:
            for number, sample in enumerate(super().read_part(part)):
                if number % 3 == 1:
                    self.num_skipped += 1
                else:
                    yield sample

    def make() -> MergedDataset:
        return MergedDataset([Damaged("a", [6, 9], shuffle_buffer=1)], cyclic=False)

    samples, state = list(make()), {}
    for cut, sample in enumerate(samples):
        state.update(to_state(sample))
        rest = dict(state)
        for later in make().__iter_from__(state):
            rest.update(to_state(later))
        assert rest["leaf a @0/1"][1][2] == 5, cut
