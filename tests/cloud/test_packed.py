"""Packed runs in object storage: built, resumed and read there as on a disk."""

from pathlib import Path

import numpy as np

import zindex
from tests.cloud.servers import Bucket
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.indexing.runs import make_config
from zindex.datasets.run_datasets import open_run
from zindex.execution.executor import SerialExecutor
from zindex.io import files
from zindex.io.objects import place_of
from zindex.plan.packing import PackingRules
from zindex.store.layout import ChunkGrid

LENGTHS = [3, 5, 2, 7, 0, 4, 6, 1, 9, 0, 8, 13, 1, 25, 3, 1, 2]
SERIAL = SerialExecutor()


def test_packed_runs_lie_in_object_storage_too(
    bucket: Bucket, write_corpus: WriteCorpus, tmp_path: Path, tokenizer: FakeTokenizer
) -> None:
    prefix = write_corpus(LENGTHS)
    [corpus] = zindex.convert(prefix, f"{bucket.url}/corpus.zarr", client=SERIAL)
    remote, local = (
        make_config(
            tmp_path,
            path,
            split="100,0,0",
            sequence_length=8,
            samples={"train": 40},
            packing=PackingRules(3),
            index=index,
            grid=ChunkGrid(16, 64),
        )
        for path, index in (
            (str(corpus.root), f"{bucket.url}/index"),
            (prefix, str(tmp_path / "index")),
        )
    )
    [there] = zindex.build(remote, SERIAL).values()
    [here] = zindex.build(local, SERIAL).values()
    assert there.store.fingerprint == here.store.fingerprint
    for name in here.store.layouts:
        np.testing.assert_array_equal(there.store[name][:], here.store[name][:])
    [distant], [near] = (open_run(config, tokenizer)["train"] for config in (remote, local))
    assert len(distant) == len(near)
    everything = range(len(near))
    expected = near.__getitems__(everything).tensors
    for name, values in distant.__getitems__(everything).tensors.items():
        np.testing.assert_array_equal(values.numpy(), expected[name].numpy())
    # A build that died before its commit and its last shard goes on from what is there.
    root = place_of(str(there.store.root))
    for key in ("zarr.json", "part_index/c/0/0"):
        files.remove_file(root / key)
    [again] = zindex.build(remote, SERIAL).values()
    assert again.num_written == 1
    assert again.store.fingerprint == here.store.fingerprint
