"""A cluster that is started, listed and stopped by hand."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.cluster.processes import wait_for
from tests.conftest import WriteCorpus
from zindex.cli import main
from zindex.cluster.manual import list_workers, stop_all


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_two_machines_build_and_end(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    folder = tmp_path / "cluster"
    try:
        first = run("cluster", "up", str(folder), "--threads", "1")
        assert first.exit_code == 0, first.output
        second = run("cluster", "up", str(folder), "--threads", "2", "--nice", "15")
        assert "joins the cluster at tls://127.0.0.1:" in second.output
        wait_for(lambda: len(list_workers(folder)[1]) == 2, "both workers are there")
        shown = run("cluster", "status", str(folder))
        assert "2 workers" in shown.output
        found = json.loads(run("cluster", "status", str(folder), "--json").output)
        assert sorted(worker["threads"] for worker in found["workers"]) == [1, 2]

        run_file = write_run(tmp_path, write_corpus)
        address = found["address"]
        without = run("build", "--cluster", address, str(run_file))
        assert without.exit_code == 1
        assert "needs its certificate, got no folder" in without.output
        built = run("build", "--cluster", address, "--cluster-folder", str(folder), str(run_file))
        assert built.exit_code == 0, built.output
        assert "1 index is built in" in built.output
    finally:
        ended = run("cluster", "down", str(folder))
    assert ended.exit_code == 0, ended.output
    gone = run("cluster", "status", str(folder))
    assert gone.exit_code == 1
    assert "must be the folder of a running cluster, none is there" in gone.output


def write_run(folder: Path, write_corpus: WriteCorpus) -> Path:
    """Write a run of one small corpus."""
    corpus = write_corpus([40] * 30)
    run_file = folder / "run.yaml"
    settings: dict[str, Any] = {
        "datasets": [{"path": corpus}],
        "sequence_length": 16,
        "split": "100,0,0",
        "index": str(folder / "index"),
    }
    run_file.write_text(json.dumps(settings))
    return run_file


def test_without_a_cluster_nothing_is_stopped(tmp_path: Path) -> None:
    ended = run("cluster", "down", str(tmp_path))
    assert ended.exit_code == 1
    assert "none was started there" in ended.output


def test_a_machine_that_is_down_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("logs", "nodes"):
        (tmp_path / name).mkdir()
    (tmp_path / "nodes" / "far-away-77").touch()
    assert stop_all(tmp_path, timeout=0.0) == ["far-away-77"]
    monkeypatch.setattr("zindex.cluster.manual.stop_all", partial(stop_all, timeout=0.0))
    ended = run("cluster", "down", str(tmp_path))
    assert ended.exit_code == 1
    assert "far-away-77 has not ended" in ended.output
