"""Small units that are parsed together: the same samples, states and errors as one by one."""

import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.sources.archives import write_jsonl
from tests.streaming.simulated_ranks import acting_as
from zindex.errors import SourceError
from zindex.streaming import MergedDataset, merge_states, source_streams, to_state
from zindex.streaming.file_formats import JsonlIterableDataset
from zindex.streaming.files_dataset import FilesDataset

Sample = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four files, whose 4,000 lines are units of one or two."""
    rng = random.Random(2)
    for name, count in (("a", 700), ("b", 1), ("c", 2298), ("d", 1001)):
        rows = [{"id": f"{name}{i}", "x": rng.choice([None, 0.5, [], "é"])} for i in range(count)]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    return tmp_path


def mix(folder: Path, rank: int, num_ranks: int, **options: Any) -> MergedDataset:
    shuffle = options.pop("shuffle", True)
    dataset = JsonlIterableDataset(folder, **options)
    dataset.name, dataset.percent = "only", 1.0
    mixed = MergedDataset([dataset], cyclic=False, shuffle_streaming_subsets=shuffle)
    mixed.set_data_parallel(num_ranks, rank)
    return mixed


def read(mixed: MergedDataset, worker: int = 0, num_workers: int = 0) -> list[Sample]:
    with acting_as(worker, num_workers, mixed):
        return [*mixed]


def count_joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of units that are parsed together, as they are read from now on."""
    counts, read_runs = list[int](), FilesDataset.read_runs

    def note(self: FilesDataset, *args: Any) -> Any:
        for samples, ends in read_runs(self, *args):
            counts.append(len(ends) + 1)
            yield samples, ends

    monkeypatch.setattr(FilesDataset, "read_runs", note)
    return counts


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("num_ranks", "num_workers"), [(1, 0), (1, 3), (5, 0), (7, 2)])
def test_samples_and_states_are_those_of_units_one_by_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_ranks: int, num_workers: int, shuffle: bool
) -> None:
    rank, worker = num_ranks - 1, max(0, num_workers - 1)
    counts = count_joined(monkeypatch)
    joined = read(mix(folder, rank, num_ranks, shuffle=shuffle), worker, num_workers)
    assert sum(counts) > 2 * len(counts) > 0
    states = [to_state(sample) for sample in joined]
    monkeypatch.setattr(source_streams, "NUM_PARSED", 0)
    counts.clear()
    single = read(mix(folder, rank, num_ranks, shuffle=shuffle), worker, num_workers)
    assert not counts
    assert [to_state(sample) for sample in single] == states
    for sample in (*joined, *single):
        del sample["__state__"]
    assert joined == single


@pytest.mark.parametrize("seed", range(6))
def test_resuming_amid_joined_units(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    before, after = rng.choice([(1, 1), (1, 3), (4, 2), (3, 3)])
    states, seen = [], list[str]()
    for rank in range(before):
        samples = iter(mix(folder, rank, before, shuffle=seed % 2 == 0))
        found = [*islice(samples, rng.randint(1, 4000 // before - 1))]
        states.append(to_state(found))
        seen += (sample["id"] for sample in found)
    state = merge_states(states)
    for rank in range(after):
        mixed = mix(folder, rank, after, shuffle=seed % 2 == 0)
        mixed.load_state_dict(state)
        seen += (sample["id"] for sample in read(mixed))
    assert len(seen) == len(set(seen)) == 4000


def test_a_state_of_the_dataset_amid_joined_units(folder: Path) -> None:
    mixed = mix(folder, 0, 1)
    delivered: dict[str, Any] = {}
    for sample in islice(mixed, 300):
        delivered.update(to_state(sample))
        state = mixed.state_dict()
        del state["own"]
        assert merge_states([state]) == merge_states([delivered])


def test_a_bad_line_amid_joined_units(folder: Path) -> None:
    path = folder / "c.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[1234] = b'{"id": "c1234", '
    path.write_bytes(b"\n".join(lines))
    found = list[str]()
    with pytest.raises(SourceError, match=r"c\.jsonl.*\(line 1,235\)"):
        found.extend(sample["id"] for sample in mix(folder, 0, 1))
    whole = {
        f"{n}{i}" for n, c in (("a", 700), ("b", 1), ("c", 2298), ("d", 1001)) for i in range(c)
    }
    skipped = [sample["id"] for sample in mix(folder, 0, 1, on_damage="skip")]
    assert len(skipped) == 3999
    assert {*skipped} == whole - {"c1234"}


def test_a_single_sample_after_units_without_any() -> None:
    block = source_streams.Block(["x"], iter(["x"]), "leaf a", (4, 1, 0), [0, 0])
    assert [*block.pairs()] == [("x", (None, "leaf a", (6, 1, 0)))]
    assert block.now() == (6, 1, 0)
