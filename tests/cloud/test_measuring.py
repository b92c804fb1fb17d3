"""``zindex bench`` on an object store: it measures, and leaves no object behind."""

from pathlib import Path

from tests.cloud.servers import Bucket
from zindex.execution.executor import SerialExecutor
from zindex.indexing.run import build
from zindex.inspection.bench.bandwidths import measure_bandwidths, scratch_place
from zindex.inspection.bench.short_builds import KINDS, describe_build, write_synthetic
from zindex.io.objects import place_of


def test_bandwidths_of_a_bucket(bucket: Bucket) -> None:
    found = measure_bandwidths(place_of(f"{bucket.url}/indices"), seconds=0.05)
    assert found.write > 0
    assert found.read > 0
    assert found.is_read_cached is False
    assert bucket.keys() == []


def test_short_builds_go_there_and_are_removed(bucket: Bucket, tmp_path: Path) -> None:
    corpus = write_synthetic(tmp_path, num_datasets=2, num_documents=50, document_length=400)
    with scratch_place(place_of(f"{bucket.url}/indices")) as scratch:
        run, _ = describe_build(corpus, str(scratch / "index"), KINDS["scalable, minimal"])
        build(run, SerialExecutor())
        assert len(bucket.keys()) > 2
    assert bucket.keys() == []
