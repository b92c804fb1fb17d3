"""What is said of a machine is so, and is JSON."""

import json
import os
import sys
from pathlib import Path

from zindex.inspection.bench.machine import describe_machine, list_versions
from zindex.io.system_calls import peak_nbytes


def test_machine_is_described(tmp_path: Path) -> None:
    facts = json.loads(json.dumps(describe_machine(tmp_path)))
    assert facts["num_processors"] == len(os.sched_getaffinity(0))
    assert facts["memory_nbytes"] > 1 << 28
    assert facts["processor"]
    assert facts["file_system"]


def test_versions_of_installed_packages() -> None:
    versions = list_versions()
    assert versions["python"] == sys.version.split()[0]
    assert {"numpy", "zarr", "dask"} <= versions.keys()


def test_peak_memory_grows_with_allocations() -> None:
    before = peak_nbytes()
    held = b"x" * (2 * before)
    assert peak_nbytes() >= before + len(held) // 2
