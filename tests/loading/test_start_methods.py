"""Loader workers of every start method terminate, also if the parent has read the data."""

import os
from pathlib import Path

import pytest

import zindex
from tests.conftest import WriteCorpus
from tests.forked import ROOT, run_python
from tests.indexing.runs import LENGTHS
from zindex.execution.executor import SerialExecutor

SCRIPT = Path(__file__).with_name("start_methods.py")


def load(tmp_path: Path, write_corpus: WriteCorpus, num_workers: int) -> None:
    """Load a run with every start method in a process of its own."""
    pairs = [write_corpus(LENGTHS * n, name=f"corpus-{n}") for n in (1, 2)]
    (store,) = zindex.convert(pairs[1:], tmp_path, client=SerialExecutor())
    members = "".join(f"  - {{path: {path}, weight: 1}}\n" for path in (pairs[0], store.root))
    run_file = tmp_path / "run.yaml"
    run_file.write_text(
        "sequence_length: 4\nseed: 1\nsplit: '1,0,0'\nindex: index\n"
        f"samples: {{train: 200}}\ndatasets:\n{members}"
    )
    command = ["-W", "ignore", str(SCRIPT), str(run_file), str(num_workers)]
    done = run_python(*command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == [
        *("fork untouched", "forkserver untouched", "threads"),
        *("fork touched", "forkserver touched", "spawn touched"),
    ]
    assert len({digest for _, digest in lines}) == 1


def test_two_workers_of_every_kind(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    load(tmp_path, write_corpus, 2)


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_two_hundred_workers_in_all(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    load(tmp_path, write_corpus, 34)
