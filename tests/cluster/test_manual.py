"""A cluster that is started, listed and stopped by hand."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import fail, invoke, succeed
from tests.cluster.processes import wait_for
from tests.conftest import WriteCorpus
from zindex.cluster.manual import list_workers, stop_all


def test_two_machines_build_and_end(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    folder = tmp_path / "cluster"
    try:
        succeed("cluster", "up", folder, "--threads", 1)
        second = invoke("cluster", "up", folder, "--threads", 2, "--nice", 15)
        assert "joins the cluster at tls://127.0.0.1:" in second.output
        wait_for(lambda: len(list_workers(folder)[1]) == 2, "both workers are there")
        assert "2 workers" in succeed("cluster", "status", folder)
        found = json.loads(succeed("cluster", "status", folder, "--json"))
        assert sorted(worker["threads"] for worker in found["workers"]) == [1, 2]

        run_file = write_run(tmp_path, write_corpus)
        address = found["address"]
        without = fail("build", "--cluster", address, run_file)
        assert "needs its certificate, got no folder" in without
        built = succeed("build", "--cluster", address, "--cluster-folder", folder, run_file)
        assert "1 index is built in" in built
    finally:
        ended = invoke("cluster", "down", folder)
    assert ended.exit_code == 0, ended.output
    gone = fail("cluster", "status", folder)
    assert "must be the folder of a running cluster, none is there" in gone


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
    assert "none was started there" in fail("cluster", "down", tmp_path)


def test_a_machine_that_is_down_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("logs", "nodes"):
        (tmp_path / name).mkdir()
    (tmp_path / "nodes" / "far-away-77").touch()
    assert stop_all(tmp_path, timeout=0.0) == ["far-away-77"]
    monkeypatch.setattr("zindex.cluster.manual.stop_all", partial(stop_all, timeout=0.0))
    ended = invoke("cluster", "down", tmp_path)
    assert ended.exit_code == 1
    assert "far-away-77 has not stopped" in ended.output
