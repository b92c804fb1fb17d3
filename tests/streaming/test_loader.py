"""The loader of streams: epochs, states of delivered batches, any collate function."""

import json
import multiprocessing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import default_collate

import zindex
from tests.streaming.test_iterations import ids, make
from tests.streaming.tiny_sources import Items
from zindex.errors import ConfigError, SourceError, StateMismatchError
from zindex.streaming import (
    JsonlIterableDataset,
    MergedDataset,
    StreamLoader,
    to_state,
)


def batches_of(loader: StreamLoader, num_batches: int | None = None) -> list[Any]:
    found = []
    for batch in loader:
        found.append(ids(batch))
        if num_batches is not None and len(found) == num_batches:
            break
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_states_are_of_delivered_batches(tmp_path: Path, num_workers: int) -> None:
    loader = zindex.stream_loader(make(tmp_path), 8, num_workers=num_workers)
    first, second = batches_of(loader), batches_of(loader)
    assert first != second
    again = zindex.stream_loader(make(tmp_path), 8, num_workers=num_workers)
    assert batches_of(again, 5) == first[:5]
    state = json.loads(json.dumps(again.state_dict()))
    resumed = zindex.stream_loader(make(tmp_path), 8, num_workers=num_workers, state=state)
    assert batches_of(resumed) == first[5:]
    assert batches_of(resumed) == second
    resumed.set_epoch(0)
    assert batches_of(resumed) == first


def test_states_of_all_ranks_serve_any_number(tmp_path: Path) -> None:
    def make_rank(rank: int, num_ranks: int, state: Any = None) -> StreamLoader:
        dataset = make(tmp_path)
        dataset.set_data_parallel(num_ranks, rank)
        return zindex.stream_loader(dataset, 4, state=state)

    before = [make_rank(rank, 2) for rank in range(2)]
    seen = [name for loader in before for batch in batches_of(loader, 6) for name in batch]
    states = json.loads(json.dumps([loader.state_dict() for loader in before]))
    rest = [make_rank(rank, 3, states) for rank in range(3)]
    seen += [name for loader in rest for batch in batches_of(loader) for name in batch]
    assert sorted(seen) == sorted(ids(make(tmp_path)))


def test_any_collate_function_serves() -> None:
    numbers: Any = [{"number": torch.tensor(number)} for number in range(10)]

    class Numbers(torch.utils.data.Dataset[Any]):
        name, percent = "numbers", 1

        def __len__(self) -> int:
            return len(numbers)

        def __getitem__(self, index: int) -> Any:
            return numbers[index]

    dataset = MergedDataset([Numbers()], cyclic=False)
    loader = zindex.stream_loader(dataset, 4, collate=default_collate, drop_last=True)
    found = list(loader)
    assert [batch["number"].shape for batch in found] == [(4,), (4,)]
    assert len(loader) == 2
    assert loader.state_dict()["leaf numbers @0/1"][1][0] == 8


def test_a_mixture_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"id": "{n}"}}\n' for n in range(9)))
    (tmp_path / "mixture.yaml").write_text(
        "target: MergedDataset\nparams:\n  cyclic: false\n  datasets:\n"
        "    - target: JsonlIterableDataset\n"
        "      params: {path: '${variables:folder}/texts.jsonl'}\n"
        "      name: texts\n      percent: 1\n"
    )
    loader = zindex.stream_loader(tmp_path / "mixture.yaml", 4, variables={"folder": str(tmp_path)})
    assert sorted(name for batch in loader for name in ids(batch)) == list("012345678")
    assert len(loader) == 3


def test_lengths_are_those_of_a_rank(tmp_path: Path) -> None:
    source = make(tmp_path).datasets[0]
    dataset = MergedDataset([source], cyclic=False)
    assert len(dataset) == 80
    dataset.set_data_parallel(3, 1)
    assert len(list(dataset)) <= len(dataset) <= 28
    with pytest.raises(TypeError, match="infinite stream"):
        len(MergedDataset([source]))


@pytest.mark.parametrize("tail", ["exact", "pad", "drop_last"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_length_is_the_number_of_batches(tmp_path: Path, num_workers: int, tail: Any) -> None:
    lines = [f'{{"id": "{number}"}}\n' for number in range(4321)]
    (tmp_path / "texts.jsonl").write_text("".join(lines))
    source: Any = JsonlIterableDataset(tmp_path / "texts.jsonl")
    source.name, source.percent = "texts", 1
    dataset = MergedDataset([source, Items("items", 77)], cyclic=False, tail=tail)
    for rank in (0, 4):
        dataset.set_data_parallel(7, rank)
        loader = zindex.stream_loader(dataset, 16, num_workers=num_workers)
        for _ in range(2):
            expected, most = len(loader), len(dataset)
            sizes = [len(batch) for batch in loader]
            assert len(sizes) == expected
            assert abs(sum(sizes) - most) <= 0.02 * most


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size must be a whole number of at least 1, got 0"):
        zindex.stream_loader(make(tmp_path), 0)
    with pytest.raises(StateMismatchError, match="a state must be a dict, or the list of those"):
        zindex.stream_loader(make(tmp_path), 1, state=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("cyclic", [True, False])
def test_batches_of_one_source(tmp_path: Path, num_workers: int, *, cyclic: bool) -> None:
    def load(state: Any = None) -> StreamLoader:
        nested = MergedDataset([Items("c", 30, 1), Items("d", 17, 2)], cyclic)
        nested.percent = 2
        dataset = MergedDataset([Items("a", 50, 3), nested], cyclic)
        return zindex.stream_loader(
            dataset, 4, num_workers=num_workers, batch_from="source", state=state
        )

    whole = list(islice(load(), 60))
    names = [{sample["__datasetname__"] for sample in batch} for batch in whole]
    assert {len(name) for name in names} == {1}
    if cyclic:
        assert {len(batch) for batch in whole} == {4}
        assert [{"a"} == name for name in names].count(True) == 36
    else:
        assert len({name for batch in whole for name in ids(batch)}) == 97
    for cut in range(1, len(whole), 29 if num_workers else 7):
        first = load()
        assert batches_of(first, cut) == list(map(ids, whole[:cut]))
        state = json.loads(json.dumps(first.state_dict()))
        rest = islice(load(state), len(whole) - cut)
        assert list(map(ids, rest)) == list(map(ids, whole[cut:]))


def test_every_cut_resumes_within_the_samples_of_a_pick() -> None:
    def new() -> MergedDataset:
        sources = [Items("a", 20, 3), Items("b", 11, 2), Items("c", 3, 1)]
        return MergedDataset(sources, False, samples_per_pick=4)

    samples = list(new())
    assert len(samples) == 34
    for cut in range(1, 34):
        state = json.loads(json.dumps(to_state(samples[:cut])))
        assert ids(new().__iter_from__(state)) == ids(samples[cut:])


def test_functions_and_batches_of_one_source_are_refused() -> None:
    dataset = MergedDataset([Items("a", 50)], customized_yield_fn=iter)
    with pytest.raises(ConfigError, match="batch_from='source' needs samples of sources"):
        zindex.stream_loader(dataset, 4, batch_from="source")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_percents_are_set_while_workers_prefetch(tmp_path: Path, num_workers: int) -> None:
    def cyclic() -> MergedDataset:
        sources = make(tmp_path).datasets
        return MergedDataset(sources)

    def names(batches: Any) -> list[str]:
        return [sample["__datasetname__"] for batch in batches for sample in batch]

    loader = zindex.stream_loader(cyclic(), 4, num_workers=num_workers)
    batches = iter(loader)
    list(islice(batches, 3))
    loader.set_percents({"files": 0})
    state = json.loads(json.dumps(loader.state_dict()))
    [[_, sample, percents]] = state["percents"]
    assert percents == {"files": 0}
    left = sample // 4 - 3
    rest = list(islice(batches, left + 5))
    assert "files" in names(rest[:left])
    assert "files" not in names(rest[left:])
    resumed = zindex.stream_loader(cyclic(), 4, num_workers=num_workers, state=state)
    found = list(islice(resumed, left + 5))
    assert [[s["id"] for s in batch] for batch in found] == [
        [s["id"] for s in batch] for batch in rest
    ]


def test_percents_may_be_set_before_the_first_batch(tmp_path: Path) -> None:
    loader = zindex.stream_loader(make(tmp_path), 4)
    loader.set_percents({"files": 0.001})
    assert loader.state_dict() == {}
    next(iter(loader))
    assert loader.state_dict()["percents"] == [[0, 0, {"files": 0.001}]]


def texts_of(folder: Path, names: str) -> MergedDataset:
    files: Any = JsonlIterableDataset([folder / f"{name}.jsonl" for name in names])
    files.name, files.percent = "texts", 1
    return MergedDataset([files], cyclic=False)


def resume_as(rank: int, folder: Path, listed: str) -> None:
    """Be one of two ranks, and write down what two epochs have."""
    dist.init_process_group("gloo", f"file://{folder / 'ranks'}", rank=rank, world_size=2)
    state = json.loads((folder / "state.json").read_text())
    try:
        loader = zindex.stream_loader(texts_of(folder, listed), 1, state=state)
        found = [[batch[0]["id"] for batch in loader] for _ in range(2)]
    except SourceError as error:
        found = [[str(error)], []]
    (folder / f"{rank}.out").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.mark.parametrize("listed", ["abc", "b"])
def test_ranks_agree_on_the_files_of_the_first_one(tmp_path: Path, listed: str) -> None:
    for name in "abc":
        rows = (json.dumps({"id": f"{name}{number}"}) for number in range(30))
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{row}\n" for row in rows))
    loader = zindex.stream_loader(texts_of(tmp_path, "b"), 1)
    first = [batch[0]["id"] for batch in islice(loader, 10)]
    (tmp_path / "state.json").write_text(json.dumps(loader.gather_state()))
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=resume_as, args=(rank, tmp_path, names))
        for rank, names in enumerate(["bc", listed])
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
    left, following = zip(
        *(json.loads((tmp_path / f"{rank}.out").read_text()) for rank in range(2)), strict=True
    )
    if listed == "b":
        assert left[0] == left[1]
        assert "of rank 0, but on rank 1 of 'texts', c.jsonl is missing; wait until" in left[0][0]
    else:
        assert sorted(first + left[0] + left[1]) == sorted(f"b{number}" for number in range(30))
        both = sorted(f"{name}{number}" for name in "bc" for number in range(30))
        assert sorted(following[0] + following[1]) == both


def test_a_file_of_one_dataset_is_no_stream(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    path = tmp_path / "one.yaml"
    path.write_text(f"target: JsonlIterableDataset\nparams: {{path: {tmp_path}/a.jsonl}}\n")
    with pytest.raises(ConfigError, match=r"one\.yaml describes a JsonlIterableDataset; make it"):
        zindex.stream_loader(path, 4)


def test_datasets_and_lists_are_no_stream(tmp_path: Path) -> None:
    for given in (Items("a", 4), [Items("a", 4)]):
        kind = type(given).__name__
        with pytest.raises(ConfigError, match=f"YAML file of one, got a {kind}; make it the only"):
            zindex.stream_loader(given, 4)


def test_objects_of_a_file_are_given_to_the_loader(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(
        "target: MergedDataset\nparams:\n  cyclic: false\n"
        "  datasets: ['${dynamic_objs:items}', {target: my.Items, params: {name: b, size: 2}}]\n"
    )
    loader = zindex.stream_loader(
        path, 8, dynamic_objs={"items": Items("a", 3)}, targets={"my.Items": Items}
    )
    assert [len(batch) for batch in loader] == [5]
