"""Synthetic data are what they say, and builds of them are measured stage by stage."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.turns import folder_nbytes
from zindex.execution.executor import SerialExecutor, embedded_client
from zindex.forecast.job import Job
from zindex.ingest.length_source import open_source
from zindex.inspection.bench.short_builds import (
    KINDS,
    describe_build,
    measure_task_seconds,
    run_build,
    write_synthetic,
)


def test_datasets_have_their_own_lengths_and_the_mean_that_was_asked_for(tmp_path: Path) -> None:
    data = write_synthetic(tmp_path, num_datasets=3, num_documents=5000, document_length=500)
    sources = [open_source(prefix) for prefix in data.prefixes]
    assert [source.facts.num_sequences for source in sources] == [5000, 5001, 5002]
    assert len({source.facts.length_digest for source in sources}) == 3
    assert data.num_documents == 15_003
    assert data.num_tokens == sum(source.facts.num_tokens for source in sources)
    assert data.num_tokens / data.num_documents == pytest.approx(500, rel=0.05)
    again = write_synthetic(tmp_path / "x", num_datasets=1, num_documents=5000, document_length=500)
    lengths = [open_source(each.prefixes[0]).lengths(0, 5000) for each in (data, again)]
    assert np.array_equal(*lengths)


@pytest.mark.parametrize("kind", KINDS)
def test_a_build_is_measured_by_stages(tmp_path: Path, kind: str) -> None:
    data = write_synthetic(
        tmp_path / "data", num_datasets=2, num_documents=400, document_length=500
    )
    index = str(tmp_path / "index")
    run, job = describe_build(data, index, KINDS[kind], shard_length=32)
    with embedded_client(1) as client:
        measured = run_build(run, job, client)
    stages = {"check", "documents", "samples"}
    if kind != "scalable, minimal":
        stages |= {"shuffle", "blend"}
    if kind == "megatron":
        stages |= {"count", "describe", "store"}
    assert set(measured.stage_seconds) == stages == set(job.loads())
    assert all(seconds > 0 for seconds in measured.stage_seconds.values())
    assert folder_nbytes(index) > 0.9 * replace(job, num_tokens=0.98 * job.num_tokens).nbytes
    assert isinstance(job, Job)


def test_an_empty_task_is_timed() -> None:
    seconds, processor_seconds = measure_task_seconds(SerialExecutor(), num_tasks=5)
    assert seconds > 0
    assert processor_seconds >= 0
