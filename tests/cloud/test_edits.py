"""Runs in object storage are edited like others: journal, sets and added data lie there."""

from collections.abc import Callable

import pytest

import zindex
from tests.cloud.servers import Bucket
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.maintenance.edits.walks import edit_here, walk_run
from zindex.config import RunConfig
from zindex.datasets.run_datasets import open_run
from zindex.errors import ConfigError, FingerprintMismatchError
from zindex.execution.executor import SerialExecutor
from zindex.maintenance.edits.journal import append_entry, open_journal
from zindex.maintenance.edits.verify_journal import verify_journal
from zindex.plan.journal import Change

AddCorpus = Callable[[str, list[int]], str]


@pytest.fixture
def add_corpus(bucket: Bucket, write_corpus: WriteCorpus) -> AddCorpus:
    """Put a corpus into the bucket, and return its URL."""

    def add(name: str, lengths: list[int]) -> str:
        prefix = write_corpus(lengths, name=name)
        [store] = zindex.convert(prefix, f"{bucket.url}/{name}.zarr", client=SerialExecutor())
        return str(store.root)

    return add


def test_a_run_in_object_storage_is_edited(
    bucket: Bucket, add_corpus: AddCorpus, tokenizer: FakeTokenizer
) -> None:
    web, code = add_corpus("web", [5, 7, 3] * 9), add_corpus("code", [4, 9] * 8)
    config = RunConfig.from_json(
        {
            "datasets": [{"path": web, "weight": 2.0}, {"path": code, "weight": 1.0}],
            "sequence_length": 4,
            "split": "100,0,0",
            "samples": {"train": 40},
            "order": "scalable",
            "index": f"{bucket.url}/index",
            "grid": {"chunk_length": 16, "shard_length": 32},
        }
    )
    before = walk_run(config)
    added = add_corpus("added", [6] * 12)
    edit_here(config, 15, add={added: 1.0}, reweight={code: 2.0})
    edit_here(config, 20, sequence_length=6)
    samples = walk_run(config)
    assert samples[:15] == before[:15]
    assert len(set(samples)) == len(samples)
    assert verify_journal(config, client=SerialExecutor()).num_edits == 2
    dataset = open_run(config, tokenizer, create_attention_mask=False)["train"]
    assert dataset.paths == (web, code, added)
    assert [len(dataset[i]["tokens"]) for i in (0, 14, 15, 19, 20)] == [4, 4, 4, 4, 6]
    journal = open_journal(config)
    assert str(journal.folder).startswith(bucket.url)
    with pytest.raises(ConfigError, match="must be one of the run, got 's3://other/web'"):
        edit_here(config, 20, drop=["s3://other/web"])
    edit_here(config, 25, num_samples=30)
    with pytest.raises(FingerprintMismatchError, match="edit 3 of the run must be made by one"):
        append_entry(journal, 26, Change({}, {}, skip=(26, 27)), journal.state, {})
