"""Loaders of runs and of other datasets: batches, where they stand, and how they stop."""

import logging
import multiprocessing
import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import zindex
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.indexing.runs import LENGTHS, make_config
from tests.loading.datasets import Deadly, Failing, Numbers
from zindex.config import DatasetConfig
from zindex.datasets.run_datasets import open_run
from zindex.errors import ConfigError, PlanError, StateMismatchError
from zindex.execution.executor import SerialExecutor
from zindex.loading import sampler
from zindex.loading.loader import Loader, loader

# torch warns of more workers than cores; nothing is timed here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def samples_of(batches: Any) -> list[list[int]]:
    return [batch["sample"].tolist() for batch in batches]


def take_all(batches: Any, found: list[Any]) -> None:
    for batch in batches:
        found.append(batch)  # noqa: PERF402 - what came before an error is kept


def make_run(tmp_path: Path, write_corpus: WriteCorpus, **settings: Any) -> Any:
    paths = [write_corpus(LENGTHS * n, name=f"corpus-{n}") for n in (1, 2)]
    members = [DatasetConfig(path, weight=w) for path, w in zip(paths, (3.0, 1.0), strict=True)]
    own = {"split": "60,40,0", "samples": {"train": 30, "valid": 3}}
    return make_config(tmp_path, *members, **(own | settings))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_is_loaded_by_its_ranks(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: FakeTokenizer, num_workers: int
) -> None:
    config = make_run(tmp_path, write_corpus)
    train = open_run(config, tokenizer)["train"]
    assert not isinstance(train, list)
    for rank in range(3):
        place = {"data_parallel_rank": rank, "data_parallel_size": 3}
        with loader(
            config, tokenizer, micro_batch_size=4, num_workers=num_workers, **place
        ) as batches:
            found = list(batches)
            assert len(found) == len(batches) == 2
            assert batches.consumed_samples == 24
        for step, batch in enumerate(found):
            assert "attention_mask" not in batch
            for row in range(4):
                item = train[step * 12 + rank * 4 + row]
                for name in ("tokens", "labels", "loss_mask", "position_ids"):
                    assert torch.equal(batch[name][row], item[name])


def test_threads_read_what_one_thread_reads(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: FakeTokenizer
) -> None:
    pairs = [write_corpus(LENGTHS * n, name=f"corpus-{n}") for n in (2, 3)]
    stores = zindex.convert(pairs, tmp_path, client=SerialExecutor())
    members = [DatasetConfig(str(store.root), weight=1) for store in stores]
    config = make_config(tmp_path, *members, split="1,0,0", samples={"train": 200})

    def read(prefetch: int) -> list[torch.Tensor]:
        # Opened again, so that threads read unread chunks.
        batches = loader(config, tokenizer, micro_batch_size=2, prefetch=prefetch)
        return [batch["tokens"] for batch in batches]

    expected = torch.stack(read(0))
    for _ in range(3):
        assert torch.equal(torch.stack(read(8)), expected)


def test_splits_and_settings_of_a_run(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: FakeTokenizer
) -> None:
    config = make_run(tmp_path, write_corpus)
    valid = loader(
        config,
        tokenizer,
        micro_batch_size=2,
        split="valid",
        tail="exact",
        num_epochs=None,
        create_attention_mask=True,
    )
    for _ in range(2):
        sizes = [batch["attention_mask"].shape[0] for batch in valid]
        assert sum(sizes) == len(valid.dataset)
    with pytest.raises(ConfigError, match=r"samples of, train, valid, got 'test'; give it a share"):
        loader(config, tokenizer, micro_batch_size=2, split="test")
    with pytest.raises(ConfigError, match="one of train, valid, test, got 'val'"):
        loader(config, tokenizer, micro_batch_size=2, split="val")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"a run must name its tokenizer, for .* keep none; g"):
        loader(config, micro_batch_size=2)


def test_a_run_without_a_blend_must_have_one_dataset(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: FakeTokenizer
) -> None:
    paths = [write_corpus(LENGTHS * n, name=f"corpus-{n}") for n in (1, 2)]
    one = make_config(tmp_path, paths[0], split="1,0,0", samples={"train": 12})
    assert len(loader(one, tokenizer, micro_batch_size=4)) >= 3
    two = make_config(tmp_path, *paths, split="1,0,0", samples={"train": 12})
    with pytest.raises(ConfigError, match="has 2 that are not blended; give them weights"):
        loader(two, tokenizer, micro_batch_size=4)


@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, 0), (0, 4), (2, None), (3, 12)])
def test_prefetched_batches_are_not_counted(num_workers: int, prefetch: int | None) -> None:
    with loader(
        Numbers(40), micro_batch_size=2, num_workers=num_workers, prefetch=prefetch
    ) as batches:
        assert batches.consumed_samples == 0
        for step, batch in enumerate(batches, start=1):
            assert batch["sample"].tolist() == [2 * step - 2, 2 * step - 1]
            assert batches.state_dict()["consumed_samples"] == 2 * step
            assert batches.num_batches_left == 20 - step
        assert step == 20
        assert batches.epoch == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_continues_at_the_trainers_position(
    num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    with loader(Numbers(12), micro_batch_size=2, num_workers=num_workers) as batches:
        seen: list[list[int]] = []
        for batch in batches:
            seen.append(batch["sample"].tolist())
            if len(seen) == 2:
                break
        # Another iterator shares the place, and so does the one that was made before.
        one, two = iter(batches), iter(batches)
        seen += samples_of([next(one), next(two), next(one)])
        seen += samples_of(batches)
        assert seen == [[i, i + 1] for i in range(0, 12, 2)]
        assert len(batches) == 6
        with caplog.at_level(logging.WARNING, "zindex"):
            assert list(batches) == []
        assert "this run has no batches left: 12 of its 12 samples are consumed" in caplog.text


@pytest.mark.parametrize("num_workers", [0, 2])
def test_validation_passes_over_all_samples_every_time(num_workers: int) -> None:
    with loader(
        Numbers(5), micro_batch_size=2, num_workers=num_workers, num_epochs=None, tail="exact"
    ) as batches:
        workers = []
        for _ in range(3):
            whole = list(batches)
            assert samples_of(whole) == [[0, 1], [2, 3], [4]]
            workers.append({int(process) for batch in whole for process in batch["process"]})
            next(iter(batches))
        # They stay alive from one pass to the next.
        assert workers[0] == workers[1] == workers[2]
        assert (os.getpid() in workers[0]) == (num_workers == 0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_is_loaded_before_and_during_an_iteration(num_workers: int) -> None:
    with loader(Numbers(12), micro_batch_size=2, num_workers=num_workers) as batches:
        found, state = list[list[int]](), None
        for batch in batches:
            found.append(batch["sample"].tolist())
            if len(found) == 2:
                state = batches.state_dict()
            if len(found) == 4:
                assert state is not None
                batches.load_state_dict(state)
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7], [4, 5], [6, 7], [8, 9], [10, 11]]
    with loader(Numbers(12), micro_batch_size=5, num_workers=num_workers, state=state) as batches:
        assert samples_of(batches) == [[4, 5, 6, 7, 8]]


def test_a_state_of_other_samples_is_refused() -> None:
    class Others(Numbers):
        fingerprint = "others"

    batches = loader(Numbers(12), micro_batch_size=2)
    next(iter(batches))
    with pytest.raises(StateMismatchError, match="which are numbers, got one of others; load it"):
        batches.load_state_dict(loader(Others(12), micro_batch_size=2).state_dict())
    assert batches.consumed_samples == 2
    with pytest.raises(StateMismatchError, match="got one of numbers"):
        loader(Others(12), micro_batch_size=2, state=batches.state_dict())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_failed_is_read_again(tmp_path: Path, num_workers: int) -> None:
    file = tmp_path / "there"
    dataset = Failing(12, wrong=5, file=str(file))
    with loader(dataset, micro_batch_size=2, num_workers=num_workers) as batches:
        found: list[Any] = []
        with pytest.raises(OSError, match="sample 5 cannot be read") as caught:
            take_all(batches, found)
        assert "while reading the batch after 4 samples" in caught.value.__notes__
        assert samples_of(found) == [[0, 1], [2, 3]]
        file.touch()
        assert samples_of(batches) == [[4, 5], [6, 7], [8, 9], [10, 11]]


def test_a_worker_that_was_killed_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "there"
    dataset = Deadly(12, wrong=5, file=str(file))
    with loader(dataset, micro_batch_size=2, num_workers=2, prefetch=2) as batches:
        found: list[Any] = []
        with pytest.raises(RuntimeError, match="worker"):
            take_all(batches, found)
        file.touch()
        # Also what another worker had read before is read again, if it was not handed over.
        assert samples_of([*found, *batches]) == [[i, i + 1] for i in range(0, 12, 2)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_batch_counts_if_and_only_if_it_is_delivered() -> None:
    """torch raises the death of a worker from a signal handler, at any moment."""
    places = Counter[str]()

    def fail(_: int, frame: Any) -> None:
        if frame.f_code.co_filename in (Loader.__iter__.__code__.co_filename, sampler.__file__):
            places[frame.f_code.co_name] += 1
            raise RuntimeError("DataLoader worker")
        signal.setitimer(signal.ITIMER_REAL, 1e-5)

    rng = random.Random(1)
    handler = signal.signal(signal.SIGALRM, fail)
    found: list[Any] = []
    try:
        with loader(Numbers(4_000), micro_batch_size=2, prefetch=0) as batches:
            while len(found) < 2_000:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-5, 5e-4))
                    for batch in batches:
                        found.append(batch)  # noqa: PERF402 (at once)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except RuntimeError:
                    pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert {"__iter__", "_take"} <= places.keys()
    assert samples_of(found) == [[i, i + 1] for i in range(0, 4_000, 2)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_closing_stops_threads_and_processes(num_workers: int) -> None:
    def helpers() -> list[Any]:
        threads = [t for t in threading.enumerate() if t.name.startswith("zindex-batch")]
        return [*threads, *multiprocessing.active_children()]

    assert helpers() == []
    batches = loader(Numbers(40), micro_batch_size=2, num_workers=num_workers, prefetch=6)
    assert helpers() == []
    next(iter(batches))
    assert helpers()
    batches.close()
    assert helpers() == []
    assert samples_of(batches) == [[i, i + 1] for i in range(2, 40, 2)]
    # A run that has ended needs none.
    assert helpers() == []
    with loader(Numbers(40), micro_batch_size=2, num_workers=num_workers) as batches:
        next(iter(batches))
        assert helpers() if num_workers else True
    assert helpers() == []


def test_reading_leaves_random_numbers_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    for num_workers in (0, 2):
        torch.manual_seed(1)
        with loader(Numbers(8), micro_batch_size=2, num_workers=num_workers) as batches:
            list(batches)
        assert torch.equal(torch.rand(3), expected)


def test_other_datasets_are_read_by_the_thread_that_asks() -> None:
    class Plain(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            return threading.get_ident()

    assert {int(t) for b in loader(Plain(), micro_batch_size=2) for t in b} == {
        threading.get_ident()
    }
    ahead = loader(Plain(), micro_batch_size=2, prefetch=2)
    assert len({int(thread) for batch in ahead for thread in batch}) > 1
    assert loader([1, 2, 3], micro_batch_size=1).prefetch == 0
    assert loader(Numbers(3), micro_batch_size=1).prefetch == 4
    assert loader(Numbers(3), micro_batch_size=1, num_workers=3).prefetch == 6


def test_a_collate_function_and_a_shuffle_of_ones_own() -> None:
    batches = loader(
        list(range(9)), micro_batch_size=3, collate=list, shuffle=True, seed=3, num_epochs=2
    )
    whole = [sample for batch in batches for sample in batch]
    assert sorted(whole[:9]) == sorted(whole[9:]) == list(range(9))
    assert whole[:9] != whole[9:]


def test_padding_is_checked_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"with one of loss_mask, target_ids, .* got Tensor"):
        loader([1, 2, 3], micro_batch_size=2, tail="pad")
    *_, last = loader(Numbers(5), micro_batch_size=2, tail="pad")
    assert last["loss_mask"].tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_workers": -1}, "num_workers must be a whole number of at least 0, got -1"),
        ({"prefetch": 1.5}, "prefetch must be a whole number of at least 0, got 1.5"),
        ({"multiprocessing_context": "spawn"}, "num_workers > 0, got 'spawn' and no workers"),
        ({"seq_length": 5}, r"must come with a run, got a dataset and \['seq_length'\]"),
        ({"tokenizer": 5}, "must come with a run, got a dataset and a tokenizer"),
        ({"data_parallel_rank": 1}, "must be given together, got 1 and None"),
        ({"run": 5}, "needs a run or a dataset with a length, got int; give the run's YAML file"),
        ({"micro_batch_size": 0}, "micro_batch_size must be .* got 0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        loader(**({"run": Numbers(9), "micro_batch_size": 2} | settings))


def test_pinning_needs_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="pin_memory=True needs CUDA"):
        loader(Numbers(9), micro_batch_size=2, pin_memory=True)
    assert loader(Numbers(9), micro_batch_size=2).pin_memory is False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert loader(Numbers(9), micro_batch_size=2).pin_memory is True


def test_a_dataset_must_have_samples() -> None:
    with pytest.raises(PlanError, match="got an empty one; leave it out"):
        loader(Numbers(0), micro_batch_size=2)


def test_a_loader_is_an_iterable_of_known_length() -> None:
    batches = loader(Numbers(9), micro_batch_size=2)
    assert isinstance(batches, Loader)
    assert not isinstance(batches, torch.utils.data.DataLoader)
    assert len(batches) == 4


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_forked_process_reads_for_itself(num_workers: int) -> None:
    with loader(Numbers(40), micro_batch_size=2, num_workers=num_workers) as batches:
        iterator = iter(batches)
        next(iterator)

        def read_on() -> None:
            found = [batch["sample"].tolist() for batch in (next(iterator), next(iterator))]
            batches.close()
            assert found == [[2, 3], [4, 5]]

        child = multiprocessing.get_context("fork").Process(target=read_on)
        child.start()
        child.join(60)
        assert child.exitcode == 0
        left = [batch["sample"].tolist() for batch in iterator]
    assert left == [[i, i + 1] for i in range(2, 40, 2)]
