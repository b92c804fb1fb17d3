"""Packed sequences continue across files and resume within texts, for any number of workers."""

import gzip
import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.streaming.simulated_ranks import Run
from zindex.errors import ConfigError, SourceError, StateMismatchError
from zindex.streaming import (
    JsonlIterableDataset,
    MergedDataset,
    TextPacking,
    count_lengths,
    progress,
    to_state,
)

Sample = dict[str, Any]


def read_numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def write_files(folder: Path, num_files: int, sizes: list[int]) -> int:
    """Write files of texts whose tokens are 1, 2, 3, ... through all of them."""
    first = 1
    for number in range(num_files):
        lines = []
        for size in sizes:
            text = " ".join(map(str, range(first, first + size)))
            lines.append(json.dumps({"text": text}))
            first += size
        (folder / f"{number:03}.jsonl").write_text("\n".join(lines) + "\n")
    return first - 1


def make(
    folder: Path, length: int, *, cyclic: bool = False, whole: bool = False, **settings: Any
) -> MergedDataset:
    """Return a stream of packed texts; `whole` lets each worker pack all of them."""
    packing = TextPacking(
        length, read_numbers, pad_id=0, whole_nbytes=1 << 20 if whole else 0, **settings
    )
    source: Any = JsonlIterableDataset(folder, packing)
    source.name, source.percent = "texts", 1
    return MergedDataset([source], cyclic=cyclic)


def values(samples: Any) -> list[list[int]]:
    return [[*sample["tokens"].tolist(), int(sample["labels"][-1])] for sample in samples]


@pytest.mark.parametrize("overlap", [0, 1])
def test_small_files_fill_sequences(tmp_path: Path, overlap: Any) -> None:
    num_tokens = write_files(tmp_path, 200, [3, 0, 5, 1])
    packed = values(make(tmp_path, 64, overlap=overlap))
    assert len(packed) == -(-(num_tokens - overlap) // (65 - overlap))
    found = Counter(token for one in packed for token in one[overlap:] if token)
    assert set(found.values()) == {1}
    assert len(found) == num_tokens - overlap


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("setting", [{}, {"cyclic": True}, {"whole": True}])
def test_every_cut_resumes(tmp_path: Path, overlap: Any, setting: Any) -> None:
    write_files(tmp_path, 3, [7, 1, 0, 23, 4])

    def new() -> MergedDataset:
        return make(tmp_path, 5, overlap=overlap, **setting)

    samples = list(islice(new(), 60))
    keys = [(sample["__url__"], sample["__key__"]) for sample in samples]
    state: dict[str, Any] = {}
    for cut, sample in enumerate(samples, 1):
        state.update(to_state(sample))
        rest = list(islice(new().__iter_from__(json.loads(json.dumps(state))), 60 - cut))
        assert values(rest) == values(samples[cut:])
        assert [(one["__url__"], one["__key__"]) for one in rest] == keys[cut:]


@pytest.mark.parametrize("sizes", [((1, 0), (3, 2)), ((3, 1), (1, 0)), ((2, 2), (5, 0))])
@pytest.mark.parametrize("whole", [False, True])
def test_other_workers_continue_texts(tmp_path: Path, sizes: Any, *, whole: bool) -> None:
    num_tokens = write_files(tmp_path, 9, [30, 2, 11])
    before, after = sizes

    def new() -> MergedDataset:
        return make(tmp_path, 8, tail="pad", whole=whole)

    for cut in range(1, 30, 4):
        first = Run(new, *before, ahead=0)
        first.advance(cut)
        second = Run(new, *after, first.merged_states(), ahead=0).drain()
        made = values([*first.samples(), *second.samples()])
        found = Counter(token for one in made for token in one if token)
        assert set(found.values()) == {1}
        # Each worker may leave one token, which has no label.
        lanes = after[0] * max(1, after[1])
        assert num_tokens - lanes <= len(found) <= num_tokens


def test_texts_without_tokens_are_an_error(tmp_path: Path) -> None:
    write_files(tmp_path, 2, [0, 0])
    with pytest.raises(SourceError, match="'texts' must give sequences in every loader worker"):
        next(iter(make(tmp_path, 8, cyclic=True)))


def test_whole_documents_of_small_files_fill_sequences(tmp_path: Path) -> None:
    sizes = np.random.default_rng(1).integers(0, 1200, (200, 5)).tolist()
    for number, lengths in enumerate(sizes):
        lines = [json.dumps({"text": "a" * length}) for length in lengths]
        (tmp_path / f"{number:03}.jsonl").write_text("\n".join(lines) + "\n")
    packing = TextPacking(2048, lambda text: list(text.encode()), documents="pack")
    source: Any = JsonlIterableDataset(tmp_path, packing)
    source.name, source.percent = "texts", 1
    made = list(MergedDataset([source], cyclic=False))
    assert sum(int((sample["tokens"] > 0).sum()) for sample in made) > 0.99 * np.sum(sizes)
    filled = sum(int((sample["document_ids"] >= 0).sum()) for sample in made)
    assert filled / (2048 * len(made)) > 0.99


PACK: dict[str, Any] = {"documents": "pack", "window": 6}


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("setting", [{}, {"cyclic": True}, {"whole": True}])
def test_every_cut_resumes_whole_documents(tmp_path: Path, overlap: Any, setting: Any) -> None:
    write_files(tmp_path, 3, [7, 1, 0, 23, 4, 2, 2])

    def new() -> MergedDataset:
        return make(tmp_path, 8, overlap=overlap, **setting, **PACK)

    samples = list(islice(new(), 50))
    facts = [(one["__url__"], one["__key__"], one["__epoch__"]) for one in samples]
    state: dict[str, Any] = {}
    for cut, sample in enumerate(samples, 1):
        state.update(to_state(sample))
        rest = list(islice(new().__iter_from__(json.loads(json.dumps(state))), 50 - cut))
        assert values(rest) == values(samples[cut:])
        assert [(one["__url__"], one["__key__"], one["__epoch__"]) for one in rest] == facts[cut:]


@pytest.mark.parametrize("sizes", [((1, 0), (3, 2)), ((3, 1), (1, 0)), ((2, 2), (5, 0))])
@pytest.mark.parametrize("whole", [False, True])
def test_other_workers_continue_whole_documents(tmp_path: Path, sizes: Any, *, whole: bool) -> None:
    num_tokens = write_files(tmp_path, 9, [30, 2, 11, 1])
    before, after = sizes

    def new() -> MergedDataset:
        return make(tmp_path, 8, **PACK, whole=whole)

    for cut in range(1, 50, 9):
        first = Run(new, *before, ahead=0)
        first.advance(cut)
        second = Run(new, *after, first.merged_states(), ahead=0)
        second.advance(cut % 4)
        third = Run(new, *before, second.merged_states(), ahead=0).drain()
        made = values([*first.samples(), *second.samples(), *third.samples()])
        found = Counter(token for one in made for token in one if token)
        assert found == dict.fromkeys(range(1, num_tokens + 1), 1)


def test_files_that_are_read_in_order_resume_whole_documents(tmp_path: Path) -> None:
    write_files(tmp_path, 2, [7, 1, 23, 4, 2, 2])
    for path in [*tmp_path.iterdir()]:
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    samples = list(make(tmp_path, 8, **PACK))
    state = to_state(samples[:4])
    assert values(make(tmp_path, 8, **PACK).__iter_from__(state)) == values(samples[4:])


def test_documents_in_the_window_are_read_again_for_another_length(tmp_path: Path) -> None:
    num_tokens = write_files(tmp_path, 4, [7, 1, 23, 4, 2, 2])
    first = list(islice(make(tmp_path, 8, **PACK), 7))
    dataset = make(tmp_path, 16, **PACK)
    dataset.set_dataloader_states(to_state(first), reload_from_url_level=True)
    made = values([*first, *dataset])
    assert {token for one in made for token in one if token} == {*range(1, num_tokens + 1)}
    other = make(tmp_path, 16)
    other.set_dataloader_states(to_state(first), reload_from_url_level=True)
    with pytest.raises(ConfigError, match="a state with held documents needs documents='pack'"):
        next(iter(other))


@pytest.mark.parametrize("documents", ["ignore", "pack"])
@pytest.mark.parametrize("tail", ["pad", "drop_last"])
def test_one_sequence_of_all_workers_is_not_full(tmp_path: Path, documents: Any, tail: Any) -> None:
    num_tokens = write_files(tmp_path, 30, [3, 0, 5, 1, 2])

    def new() -> MergedDataset:
        return make(tmp_path, 15, documents=documents, tail=tail, whole=True)

    single = values(new())
    for sizes in ((4, 2), (5, 0)):
        run = Run(new, *sizes).drain()
        counts = [len(rank.delivered) for rank in run.ranks]
        assert sorted(values(run.samples())) == sorted(single)
        assert max(counts) - min(counts) <= max(1, sizes[1])
    filled = [sum(token > 0 for token in one) for one in single]
    assert sum(one < 16 for one in filled) <= (tail == "pad")
    assert sum(filled) == num_tokens if tail == "pad" else num_tokens - 16 < sum(filled)


def test_a_length_changes_before_a_whole_source_begins_anew(tmp_path: Path) -> None:
    num_tokens = write_files(tmp_path, 4, [7, 1, 23, 4, 2, 2])
    for before, after in ((True, True), (True, False), (False, True)):
        first = list(islice(make(tmp_path, 8, **PACK, whole=before), 7))
        dataset = make(tmp_path, 16, **PACK, whole=after)
        with pytest.raises(StateMismatchError, match="must be of the same files"):
            dataset.set_dataloader_states(to_state(first))
        dataset.set_dataloader_states(to_state(first), reload_from_url_level=True)
        made = values(dataset)
        assert {token for one in made for token in one if token} == {*range(1, num_tokens + 1)}


def test_the_progress_of_a_whole_source_is_in_sequences(tmp_path: Path) -> None:
    write_files(tmp_path, 9, [30, 2, 11])
    dataset = make(tmp_path, 8, whole=True)
    num_sequences = len(list(dataset))
    run = Run(lambda: make(tmp_path, 8, whole=True), 2, 2, ahead=0)
    run.advance(10)
    [found] = progress(dataset, run.merged_states())
    assert (found.kind, found.num_items, found.num_finished) == ("sequences", num_sequences, 10)


def test_files_are_added_to_a_whole_source(tmp_path: Path) -> None:
    num_tokens = write_files(tmp_path, 9, [30, 2, 11])

    def new() -> MergedDataset:
        return make(tmp_path, 8, whole=True, **PACK)

    first = Run(new, 2, 2, ahead=0)
    first.advance(10)
    (tmp_path / "new.jsonl").write_text('{"text": "5000 5001 5002"}\n')
    second = Run(new, 3, 0, first.merged_states(), ahead=0)
    made = values([*first.samples(), *second.drain().samples()])
    found = Counter(token for one in made for token in one if token)
    assert found == dict.fromkeys(range(1, num_tokens + 1), 1)
    with_new = {token for one in values(new()) for token in one}
    assert with_new >= {5000, 5001, 5002}


@pytest.mark.parametrize("documents", ["ignore", "pack"])
def test_a_source_below_one_sequence_is_warned_of(
    tmp_path: Path, documents: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(tmp_path, 2, [3, 4])
    for whole in (False, True):
        assert not list(make(tmp_path, 64, documents=documents, tail="drop", whole=whole))
        [record] = caplog.records
        assert "worker 0 of rank 0 no sequence: its texts have no tokens" in record.getMessage()
        caplog.clear()
        assert len(list(make(tmp_path, 64, documents=documents, whole=whole))) == 1
        assert not caplog.records
    for whole, what in ((False, "4 units"), (True, "1 sequences")):
        dataset = make(tmp_path, 64, documents=documents, whole=whole)
        dataset.set_data_parallel(5, 4)
        assert not list(dataset)
        assert f"worker 0 of rank 4 no sequence: its texts have {what}, for 5" in caplog.text


def test_the_last_sequence_of_documents_is_dropped_unless_it_is_full(tmp_path: Path) -> None:
    write_files(tmp_path, 1, [9, 5, 4, 6])
    settings = PACK | {"tail": "drop_last", "append_eod": False}
    assert [one.count(0) for one in values(make(tmp_path, 8, **settings))] == [0, 0]
    write_files(tmp_path, 1, [9, 5, 4, 6, 3])
    assert [one.count(0) for one in values(make(tmp_path, 8, **settings))] == [0, 0, 0]


def test_a_dataset_without_a_mixture_packs_across_files(tmp_path: Path) -> None:
    num_tokens = write_files(tmp_path, 200, [3, 0, 5, 1])
    dataset = make(tmp_path, 64)
    expected = -(-num_tokens // 65)
    assert len(list(dataset.datasets[0])) == expected
    for whole in (False, True):
        [found] = count_lengths(make(tmp_path, 64, whole=whole), num_processes=1)
        assert expected <= found.num_samples <= expected + 4 * (not whole)
