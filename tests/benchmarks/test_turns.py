"""Contenders take turns in processes of their own, and must make the same."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import turns
from tests.benchmarks.turns import MADE, TOGETHER, digest, make_parser, run_once, take_turns

WORKER = """
import json, os, sys

def main():
    _, name, made = sys.argv[1:]
    with open(os.environ["TURNS_LOG"], "a") as stream:
        print(name, os.getpid(), os.environ.get("NUMBA_CACHE_DIR"), file=stream)
    print("something to say")
    print(json.dumps({"seconds": len(name), "made": json.loads(made).get(name, {})}))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file into which workers of the module ``turns_worker`` write who they are."""
    (tmp_path / "turns_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TURNS_LOG", str(tmp_path / "log"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv(TOGETHER, raising=False)
    return tmp_path / "log"


def test_turns(log: Path) -> None:
    runs = take_turns("turns_worker", ("a", "bb"), 2, "{}")
    assert runs == {"a": [{"seconds": 1}, {"seconds": 1}], "bb": [{"seconds": 2}, {"seconds": 2}]}
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [name for name, _, _ in lines] == ["a", "bb", "a", "bb"]
    assert len({str(os.getpid())} | {process for _, process, _ in lines}) == 5
    (kernels,) = {kernels for _, _, kernels in lines}
    assert kernels != "None"


def test_kernels_as_the_environment_says(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_turns("turns_worker", ("a",), 1, "{}", keep_kernels=False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/mine")
    take_turns("turns_worker", ("a",), 1, "{}")
    assert [line.split()[2] for line in log.read_text().splitlines()] == ["None", "/mine"]


def test_bare_processes_share_a_home_in_each_round(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker says its environment; where modules are found is that of the sources."""
    worker = (
        WORKER.replace('os.environ["TURNS_LOG"]', "sys.argv[3]")
        .replace('os.environ.get("NUMBA_CACHE_DIR")', "os.environ")
        .replace("json.loads(made).get(name, {})", "{}")
    )
    (log.parent / "turns_worker.py").write_text(worker)
    monkeypatch.setattr(turns, "ROOT", log.parent)
    take_turns("turns_worker", ("a", "b"), 2, log, bare=True)
    lines = [line.split(maxsplit=2)[2] for line in log.read_text().splitlines()]
    names = set(re.findall(r"'([A-Z_]+)':", " ".join(lines)))
    assert "HOME" in names
    assert names <= {"HOME", "PATH", "TMPDIR", "LD_LIBRARY_PATH", "LC_CTYPE"}
    assert lines[0] == lines[1] != lines[2] == lines[3]


def test_together(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOGETHER, "1")
    monkeypatch.syspath_prepend(log.parent)
    before = sys.argv
    assert run_once("turns_worker", "a", "{}") == {"seconds": 1, MADE: {}}
    assert log.read_text().split()[1] == str(os.getpid())
    assert sys.argv is before


def test_same_work(log: Path) -> None:
    made = {"a": {"order": "1", "other": "2"}, "bb": {"order": "1"}}
    assert take_turns("turns_worker", ("a", "bb"), 1, json.dumps(made))["bb"] == [{"seconds": 2}]


def test_other_work_is_an_error(log: Path) -> None:
    made = {"a": {"order": "1"}, "bb": {"order": "2"}}
    with pytest.raises(AssertionError, match="bb must make the same order as a"):
        take_turns("turns_worker", ("a", "bb"), 1, json.dumps(made))


def test_digest_knows_values_dtype_and_shape() -> None:
    values = np.arange(6, dtype=np.int32)
    alike = [values, values.copy(), np.repeat(values, 2)[::2]]
    others = [
        values.astype(np.int64),
        values.reshape(2, 3),
        values + 1,
    ]
    assert len({digest(each) for each in alike}) == 1
    assert len({digest(each) for each in [values, *others]}) == 4
    assert digest(values, values) != digest(np.concatenate([values, values]))


def test_parser() -> None:
    options = make_parser("Title.\n\nMore.", num_worker_arguments=2).parse_args(
        ["--worker", "name", "x", "--json", "out.json"]
    )
    assert options.worker == ["name", "x"]
    assert (options.runs, options.folder, options.json) == (3, None, "out.json")
