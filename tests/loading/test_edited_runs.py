"""Loaders of runs that are edited while they train."""

import multiprocessing
import re
from ast import literal_eval
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.conftest import FakeTokenizer, WriteCorpus
from tests.maintenance.edits.walks import edit_here, weighted_run, write_corpora
from zindex.config import RunConfig
from zindex.errors import ConfigError, StateMismatchError
from zindex.loading.loader import Loader, loader


@pytest.fixture
def config(tmp_path: Path, write_corpus: WriteCorpus) -> RunConfig:
    paths = write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 40, [4, 10, 2] * 110])
    return weighted_run(tmp_path, paths, order="scalable")


def open_loader(config: RunConfig, **settings: Any) -> Loader:
    return loader(config, FakeTokenizer(), **{"micro_batch_size": 4} | settings)


def tokens_of(batches: Any) -> list[Any]:
    return [batch["tokens"].tolist() for batch in batches]


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"format": "hf"}])
def test_a_running_iteration_continues_with_the_edited_run(
    config: RunConfig, settings: dict[str, Any]
) -> None:
    name = "input_ids" if "format" in settings else "tokens"
    with open_loader(config, **settings) as batches:
        running = iter(batches)
        before = [batch[name].tolist() for batch in islice(running, 3)]
        assert not batches.refresh()
        batches.reweight({"corpus-1": 9.0})
        state = batches.state_dict()
        assert state["consumed_samples"] == 12
        rest = [batch[name].tolist() for batch in running]
    with open_loader(config, **settings) as again:
        assert [batch[name].tolist() for batch in again] == before + rest
    with open_loader(config, **settings) as again:
        again.load_state_dict(state)
        assert [batch[name].tolist() for batch in again] == rest
    rows = [row for batch in rest for row in batch]
    assert len({tuple(row) for batch in before for row in batch} | set(map(tuple, rows))) == 100
    share = sum(row[0] >= 200_000 for row in rows) / len(rows)
    assert abs(share - 0.9) < 0.02  # it was a half


def test_an_edit_of_another_process_is_picked_up_at_its_position(config: RunConfig) -> None:
    with open_loader(config) as batches:
        old = tokens_of(open_loader(config))
        running = iter(batches)
        seen = tokens_of(islice(running, 2))
        edit_here(config, 16, reweight={"corpus-0": 5.0})
        seen += tokens_of(islice(running, 1))
        assert batches.refresh()
        seen += tokens_of(running)
    assert seen[:4] == old[:4]
    assert seen == tokens_of(open_loader(config)) != old


def test_an_edit_at_a_position_that_is_passed_leaves_the_loader_as_it_was(
    config: RunConfig,
) -> None:
    old = tokens_of(open_loader(config))
    with open_loader(config) as batches:
        running = iter(batches)
        seen = tokens_of(islice(running, 5))
        edit_here(config, 12, reweight={"corpus-0": 5.0})
        with pytest.raises(StateMismatchError, match="at position 12, got 20 consumed samples"):
            batches.refresh()
        assert seen + tokens_of(running) == old


def test_bad_requests_are_refused(config: RunConfig) -> None:
    batches = open_loader(config)
    with pytest.raises(ConfigError, match="must be one of the run, got 'corpus'; it has corpus-0"):
        batches.reweight({"corpus": 1.0})
    with pytest.raises(ConfigError, match=r"2 ranks need torch\.distributed to edit their run"):
        open_loader(config, data_parallel_rank=0, data_parallel_size=2).reweight({"corpus-0": 1.0})
    with pytest.raises(ConfigError, match="must be of a run to be edited, got one of a dataset"):
        loader([1, 2, 3], micro_batch_size=1).refresh()


def reweight_as(rank: int, config: RunConfig, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    batches = open_loader(config, data_parallel_rank=rank, data_parallel_size=2)
    running = iter(batches)
    seen = tokens_of(islice(running, 3))
    with pytest.raises(ConfigError, match=re.escape("got 'nothing'")):
        batches.reweight({"nothing": 1.0})
    batches.reweight({"corpus-1": 9.0})
    seen += tokens_of(running)
    (folder / f"{rank}.txt").write_text(repr(seen))
    dist.destroy_process_group()


def test_ranks_of_a_process_group_edit_their_run_once(config: RunConfig, tmp_path: Path) -> None:
    open_loader(config)  # builds the indices
    forked = multiprocessing.get_context("fork")
    ranks = [forked.Process(target=reweight_as, args=(rank, config, tmp_path)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
    seen = [literal_eval((tmp_path / f"{rank}.txt").read_text()) for rank in range(2)]
    together = [batch for step in zip(*seen, strict=True) for batch in step]
    assert together == tokens_of(open_loader(config))[: len(together)]
