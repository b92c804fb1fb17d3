"""Object stores in child processes: they work, or say at once why not."""

import json
import os
from typing import Any

import pytest

from tests.cloud.servers import Bucket
from tests.forked import run_python
from tests.store.stores import ONE, build_arrays, count_up
from zindex.io.objects import place_of


def run_module(bucket: Bucket, name: str, *arguments: str) -> list[Any]:
    """Return what a process prints, as JSON lines; one that hangs is an error."""
    environment = os.environ | bucket.server.environment
    done = run_python("-m", f"tests.cloud.{name}", *arguments, env=environment, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_children(
    bucket: Bucket, method: str, touched: str, num_children: int
) -> tuple[list[str], list[str]]:
    """Return what the parent read, and what all children read; a child that hangs is an error."""
    url = f"{bucket.url}/store"
    build_arrays(place_of(url), {ONE: count_up(10)})
    lines = run_module(bucket, "fork_process", method, touched, url, str(num_children))
    parent = [line for line in lines if isinstance(line, str)]
    children = [text for line in lines if isinstance(line, list) for text in line]
    assert len(children) == 2 * num_children
    return parent, children


@pytest.mark.parametrize("touched", ["touched", "untouched"])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_children_of_other_start_methods_read(bucket: Bucket, method: str, touched: str) -> None:
    parent, children = run_children(bucket, method, touched, 2)
    assert parent == (["45"] if touched == "touched" else [])
    assert set(children) == {"45"}


def test_a_fork_reads_what_its_parent_did_not_touch(bucket: Bucket) -> None:
    assert run_children(bucket, "fork", "untouched", 4) == ([], ["45"] * 8)


def test_a_fork_of_a_process_that_has_read_is_refused(bucket: Bucket) -> None:
    parent, children = run_children(bucket, "fork", "touched", 4)
    assert parent == ["45"]
    [message] = set(children)
    assert message.startswith(f"ForkedStoreError: {bucket.url}/store/zarr.json cannot be used here")
    assert "multiprocessing_context='forkserver' or 'spawn'" in message


def test_workers_of_a_loader_are_not_forked_from_a_process_that_has_read(bucket: Bucket) -> None:
    url = f"{bucket.url}/store"
    build_arrays(place_of(url), {ONE: count_up(10)})
    assert run_module(bucket, "loader_process", url) == [[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]]


@pytest.mark.slow
@pytest.mark.parametrize("touched", ["touched", "untouched"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_no_hang_in_many_children(bucket: Bucket, method: str, touched: str) -> None:
    _, children = run_children(bucket, method, touched, 40)
    refused = method == "fork" and touched == "touched"
    assert all(text.startswith("ForkedStoreError") == refused for text in children)
