"""Positions of many documents at once, with stored inverses of their orders and without."""

from pathlib import Path

import numpy as np
import pytest

import zindex
from tests.conftest import WriteCorpus, numbers
from tests.maintenance.edits.walks import ORDERS, edit_here, weighted_run, write_corpora
from zindex.config import RunConfig
from zindex.execution.executor import SerialExecutor
from zindex.maintenance.edits.forgotten import OpenedRun
from zindex.maintenance.edits.journal import open_journal
from zindex.maintenance.edits.order_sources import StreamSource


def find_all(config: RunConfig, documents: list[int]) -> list[list[list[int]]]:
    """Return the positions in each source: of documents, of their first tokens, of each alone."""
    wanted = np.array(documents, np.int64)
    found = []
    for source in OpenedRun(open_journal(config), SerialExecutor()).sources:
        alone = [source.find(wanted[i : i + 1]) for i in range(len(wanted))]
        columns = source.find(wanted), source.find(wanted, 0, 1), np.concatenate([[], *alone])
        found.append([np.unique(column).tolist() for column in columns])
    return found


@pytest.mark.parametrize("seed", numbers(1, 20))
@pytest.mark.parametrize("order", ORDERS)
def test_many_documents_are_found_as_one_by_one(
    order: str, seed: int, tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    rng = np.random.default_rng(seed)
    paths = write_corpora(write_corpus, [rng.integers(1, 12, 30).tolist() for _ in range(2)])
    config = weighted_run(tmp_path, paths, split="80,20,0", **ORDERS[order])
    zindex.build(config, SerialExecutor())
    edit_here(config, 20, sequence_length=6)
    # The last ones are in another split.
    documents = np.sort(rng.choice(30, 7, replace=False)).tolist()
    before = find_all(config, documents)
    assert len(before) == 4
    assert all(together == alone for together, _, alone in before)
    assert all(set(some) <= set(together) for together, some, _ in before)
    assert find_all(config, []) == [[[], [], []]] * 4
    zindex.build(config, SerialExecutor(), inverse=True)
    assert find_all(config, documents) == before
    [first, *_] = OpenedRun(open_journal(config), SerialExecutor()).sources
    assert isinstance(first, StreamSource)
    assert (first.inverse is not None) == (order == "megatron")
