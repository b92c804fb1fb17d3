"""The 24 faults found in cogdata's streams: theirs by the model of it, and zindex without them."""

import json
import os
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest

from tests.streaming import upstream
from tests.streaming.tiny_sources import (
    late_pairs,
    tar_bytes,
)

Sample = dict[str, Any]


def raw_files(*sizes: int) -> dict[str, list[Sample]]:
    """Return files u0, u1, ... of samples that know their place."""
    return {
        f"u{number}": [{"__key__": str(key), "id": f"u{number}:{key}"} for key in range(size)]
        for number, size in enumerate(sizes)
    }


def their_items(size: int, name: str = "m", percent: float = 1.0) -> upstream.MapSet:
    return upstream.MapSet(name, [{"id": number} for number in range(size)], percent)


def their_run(merged: upstream.Merged, count: int) -> tuple[list[Any], upstream.States]:
    """Return the ids of the next samples, and the states after them."""
    ids, states = [], {}
    for sample in islice(merged.read(), count):
        ids.append(sample["id"])
        states.update(upstream.to_state(sample))
    return ids, states


def until_their_end(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Yield what comes before the error by which a run without cycles ends."""
    try:
        yield from samples
    except RuntimeError as error:
        if "StopIteration" not in str(error):
            raise


# 1: position 0


def test_01_theirs_never_reads_position_0() -> None:
    for num_lanes in (1, 2, 3):
        read = [
            sample["__index__"]
            for lane in range(num_lanes)
            for sample in upstream.read_map(their_items(10), lane, num_lanes)
        ]
        assert sorted(read) == list(range(1, 10))


# 2: the block that is cut short


def test_02_theirs_reads_past_the_end() -> None:
    samples = upstream.read_map(list(range(25)), 0, 1, block=10)
    with pytest.raises(IndexError, match="out of range"):
        list(samples)


# 3: the end of one child


def test_03_theirs_ends_with_an_error_at_the_first_end_of_a_child() -> None:
    merged = upstream.Merged([their_items(3, "a"), their_items(9, "b")], cyclic=False)
    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        list(merged.read())
    names = [sample["__datasetname__"] for sample in until_their_end(merged.read())]
    assert names == list("abab")


# 4: streams that are not shuffled


def test_04_theirs_has_no_state_of_an_ordered_stream() -> None:
    merged = upstream.Merged(
        [upstream.StreamSet("s", raw_files(3))], shuffle_streaming_subsets=False
    )
    with pytest.raises(KeyError, match="__seed__"):
        upstream.to_state(next(merged.read()))


def test_04_theirs_skips_all_for_a_missing_key() -> None:
    stream = upstream.StreamSet("s", raw_files(3, 3))
    assert not list(upstream.read_stream(stream, url="u0", key="gone", shuffle=False))


# 5: packed text


def their_texts() -> upstream.Merged:
    files = {
        f"u{url}": [
            {
                "__key__": str(key),
                "text": [f"{url}:{key}:{t}" for t in range(1 + (key * 5 + url) % 9)],
            }
            for key in range(28)
        ]
        for url in range(4)
    }
    stream = upstream.StreamSet("t", files, process_fn=upstream.pack_text(4))
    return upstream.Merged([stream], cyclic=False)


def their_blocks(states: upstream.States | None = None) -> list[list[str]] | None:
    """Return the blocks up to the end of the texts; None if the place is not found."""
    try:
        return [sample["block"] for sample in until_their_end(their_texts().read(states))]
    except RuntimeError as error:
        return None if "Error found in url skipping" in str(error) else ["another error"]


def test_05_theirs_goes_on_with_other_blocks_of_packed_text() -> None:
    whole = list(until_their_end(their_texts().read()))
    blocks = [sample["block"] for sample in whole]
    outcomes: Counter[str] = Counter()
    for cut in range(1, len(whole)):
        rest = their_blocks(upstream.to_state(whole[cut - 1]))
        if rest is None:
            outcomes["error"] += 1
        else:
            outcomes["same" if rest == blocks[cut:] else "silently different"] += 1
    assert outcomes == {"same": 27, "silently different": 63, "error": 19}


# 6: the number of the epoch


def test_06_theirs_repeats_an_epoch_after_a_restart() -> None:
    merged = upstream.Merged([upstream.MapSet("m", list(range(10)))])
    samples = list(islice(merged.read(), 40))
    seeds = [sample["__seed__"] for sample in samples]
    assert sorted(set(seeds)) == [0, 131, 262, 393, 524]
    cut = seeds.index(262) + 1
    resumed = list(islice(merged.read(upstream.to_state(samples[cut - 1])), 20))
    seeds = [sample["__seed__"] for sample in resumed]
    assert [seed for seed, _ in groupby(seeds)] == [262, 131, 262]


# 7: outputs that come after the next samples were read


def test_07_theirs_loses_what_was_read_ahead() -> None:
    def make() -> upstream.Merged:
        return upstream.Merged([their_items(100)], False, False, customized_yield_fn=late_pairs)

    states: upstream.States = {}
    delivered = []
    for output in islice(make().read(), 5):
        states.update(upstream.to_state(output))
        delivered += output["ids"]
    delivered += next(make().read(states))["ids"]
    assert delivered == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14]


# 8: the turn of a child that ends


def test_08_theirs_gives_short_children_less_than_their_share() -> None:
    merged = upstream.Merged([their_items(3, "a", 0.5), their_items(1000, "b", 0.5)])
    names = Counter(sample["__datasetname__"] for sample in islice(merged.read(), 400))
    assert names == {"a": 160, "b": 240}


# 9: children without a sample


class NeverAnything(upstream.MapSet):
    """An empty set that ends the test when it has been opened too often."""

    num_opened = 0

    def __len__(self) -> int:
        self.num_opened += 1
        if self.num_opened > 5000:
            raise TimeoutError("still no sample")
        return 0


def test_09_theirs_looks_for_a_sample_for_ever() -> None:
    merged = upstream.Merged([NeverAnything("a", []), NeverAnything("b", [])])
    with pytest.raises(TimeoutError, match="still no sample"):
        next(merged.read())


# 10: another number of ranks


def test_10_theirs_repeats_samples_on_more_ranks() -> None:
    def rank_of(size: int, rank: int, cyclic: bool) -> upstream.Merged:
        merged = upstream.Merged([their_items(240)], cyclic)
        merged.set_data_parallel(size, rank)
        return merged

    states: upstream.States = {}
    delivered: list[int] = []
    for rank in range(4):
        for sample in islice(rank_of(4, rank, cyclic=True).read(), 10):
            states.update(upstream.to_state(sample))
            delivered.append(sample["__index__"])
    for rank in range(6):
        rest = until_their_end(rank_of(6, rank, cyclic=False).read(states))
        delivered += [sample["__index__"] for sample in rest]
    counts = Counter(delivered)
    assert sum(count - 1 for count in counts.values()) == 13
    assert set(range(240)) - set(counts) == {0}


# 11: states for another size


def test_11_theirs_skips_files_of_slow_ranks() -> None:
    stream = upstream.StreamSet("s", raw_files(*[5] * 10))
    # Two ranks: the fast one is within u8, its fifth file; the slow one within u3, its second.
    states = {("s", 0, 0): (0, "u8", "2"), ("s", 1, 0): (64, "u3", "2")}
    made = upstream.reshard_states(states, [stream], 2, 1)
    assert made == {("s", 0, 0): (None, "u8", None), ("s", 1, 0): (None, "u9", None)}
    read: set[str] = set()
    for rank in range(2):
        merged = upstream.Merged([upstream.StreamSet("s", raw_files(*[5] * 10))], cyclic=False)
        merged.set_data_parallel(2, rank)
        read |= {sample["__url__"] for sample in until_their_end(merged.read(made))}
    assert read == {"u8", "u9"}  # u8 is read again; of u3 a part, and u5 and u7 never come


# 12: the turns of loader workers


def test_12_theirs_begins_with_worker_0_again() -> None:
    def batches(states: upstream.States) -> Iterator[list[int]]:
        merged = upstream.Merged([their_items(100)], True, False)
        workers = [merged.read(states, worker=worker, num_workers=2) for worker in range(2)]
        return ([s["__index__"] for s in batch] for batch in upstream.rotate(workers, 1))

    assert list(islice(batches({}), 6)) == [[2], [1], [4], [3], [6], [5]]
    states: upstream.States = {("m", 0, 0): (0, 4), ("m", 0, 1): (0, 1)}  # after three batches
    assert list(islice(batches(states), 3)) == [[6], [3], [8]]


# 13: a file that is listed twice


def test_13_theirs_takes_copies_of_a_file_for_one() -> None:
    stream = upstream.StreamSet("s", raw_files(7), urls=["u0", "u0"])
    whole = [sample["__key__"] for sample in upstream.read_stream(stream)]
    assert "".join(whole[:7]) != "6350124"  # the copies are mixed as one file
    resumed = upstream.read_stream(stream, url="u0", key=whole[12])
    assert len(list(resumed)) > 1  # one sample was left; the first copy is read again


# 14: what going on costs


def test_14_theirs_reads_the_file_again_up_to_the_place() -> None:
    num_read = 0

    def count(samples: Iterator[Sample]) -> Iterator[Sample]:
        nonlocal num_read
        for sample in samples:
            num_read += 1
            yield sample

    stream = upstream.StreamSet("s", raw_files(2000), process_fn=count)
    *_, last = islice(upstream.read_stream(stream), 900)
    num_read = 0
    next(upstream.read_stream(stream, url="u0", key=last["__key__"]))
    assert num_read == 1901  # the 900 delivered ones, the next one, and the buffer of 1000


# 15: how far samples are mixed


def test_15_theirs_keeps_the_order_of_files_in_all_epochs() -> None:
    merged = upstream.Merged([upstream.StreamSet("s", raw_files(2, 2, 2, 2))])
    urls = [sample["__url__"] for sample in islice(merged.read(), 24)]
    assert urls == ["u0", "u0", "u1", "u1", "u2", "u2", "u3", "u3"] * 3


def test_15_theirs_has_one_order_for_all_blocks() -> None:
    order = [s["data"] for s in upstream.read_map(list(range(30)), 0, 1, after=-1, block=10)]
    assert [n - 10 for n in order[10:20]] == order[:10] == [n - 20 for n in order[20:]]


# 16: damaged tars


def damaged_tar() -> bytes:
    """Return a tar of 40 samples that is cut short within the 24th."""
    data = tar_bytes((f"{n:04}.txt", b"text %d" % n) for n in range(40))
    return data[: 23 * 1024 + 512 + 3]


def test_16_theirs_drops_the_rest_of_a_damaged_tar(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(upstream.read_tar(damaged_tar()))) == 23  # 17 of 40 are gone
    assert capsys.readouterr().out == "unexpected end of data\n"


# 17: tars without a folder


def test_17_theirs_refuses_a_tar_without_a_folder() -> None:
    assert upstream.sidecar_of("some/a.b.tar") == "some/a.meta.jsonl"
    with pytest.raises(ValueError, match="substring not found"):
        upstream.sidecar_of("a.tar")


# 18: items of the dataset itself


def test_18_theirs_writes_into_the_items_of_the_dataset() -> None:
    dataset = their_items(4)
    list(upstream.read_map(dataset, 0, 1))
    written = [item for item in dataset.items if "__index__" in item and "__seed__" in item]
    assert len(written) == 3


# 19: YAML within YAML


@pytest.fixture
def _empty_table() -> Iterator[None]:
    upstream.RESOLVERS.clear()
    yield
    upstream.RESOLVERS.clear()


def make_within(text: str) -> Any:
    """Read a YAML text while another one is read."""
    return upstream.instantiate(text)


@pytest.mark.usefixtures("_empty_table")
def test_19_theirs_is_not_reentrant_and_forgets_the_users_resolvers() -> None:
    upstream.RESOLVERS.register("mine", str.upper)
    upstream.instantiate("a: 1")
    assert "mine" not in upstream.RESOLVERS.table
    nested = f"target: {__name__}.make_within\nparams: {{text: 'a: 1'}}"
    with pytest.raises(AssertionError, match="already registered"):
        upstream.instantiate(nested)


# 20: classes that are made anew


@pytest.mark.usefixtures("_empty_table")
def test_20_theirs_makes_two_classes_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_module_20.py").write_text("class Leaf:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    first, second = upstream.instantiate("[&a {target: users_module_20.Leaf, params: null}, *a]")
    assert type(first) is not type(second)
    assert not isinstance(first, type(second))
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(first)
    del sys.modules["users_module_20"]


# 21: names of anything


@pytest.mark.usefixtures("_empty_table")
def test_21_theirs_calls_whatever_a_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    upstream.instantiate("{target: posix.mkdir, params: {path: made, mode: 448}}")
    assert os.path.isdir("made")


# 22: checks


@pytest.mark.usefixtures("_empty_table")
def test_22_theirs_takes_an_unknown_variable_for_its_name() -> None:
    assert upstream.instantiate("size: ${variables:image_siez}") == {"size": "image_siez"}


def test_22_theirs_mixes_states_of_one_name() -> None:
    merged = upstream.Merged([their_items(10), their_items(100)])
    states = upstream.to_state(list(islice(merged.read(), 20)))
    assert len(states) == 1


# 23: how long it is, and how far


def test_23_theirs_has_no_length() -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(upstream.Merged([their_items(10)]))  # type: ignore[arg-type]


# 24: what states hold


def test_24_theirs_has_tuples_for_keys_and_no_fingerprint() -> None:
    merged = upstream.Merged([upstream.StreamSet("s", raw_files(3, 3))])
    states = upstream.to_state(next(merged.read()))
    with pytest.raises(TypeError, match="keys must be str"):
        json.dumps(states)
    changed = upstream.Merged([upstream.StreamSet("s", {"other": []})])
    with pytest.raises(ValueError, match="not in list"):
        next(changed.read(states))
