"""Nodes that are asked of Slurm and handed back; ``systems/test_slurm.py`` asks a real one."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.cli.commands import fail
from tests.cluster.test_manual import write_run
from tests.conftest import WriteCorpus
from zindex.cluster import alongside
from zindex.cluster.adapt import SlurmNodes
from zindex.cluster.node import Node
from zindex.cluster.rendezvous import Rendezvous
from zindex.cluster.settings import NodeSettings
from zindex.errors import ConfigError

_PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
echo "nodes $SLURM_NNODES" >> {log}
{body}
"""


class Programs:
    """Programs of Slurm that write down how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "calls"
        self.write("sbatch", "echo '7;cluster'")
        self.write("squeue", "echo queued")
        self.write("scancel", "")

    def write(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(_PROGRAM.format(log=self.log, body=body))
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(f"{name} ")]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_NNODES", "5")
    return Programs(tmp_path / "bin")


@pytest.fixture
def rendezvous(tmp_path: Path) -> Rendezvous:
    found = Rendezvous(tmp_path / "cluster")
    found.create()
    return found


def test_nodes_are_asked_for_once_and_handed_back(
    programs: Programs, rendezvous: Rendezvous
) -> None:
    nodes = SlurmNodes(rendezvous, NodeSettings(memory="1GiB"), ["--partition=cpu"])
    for number in (2, 1, 2, 5):
        nodes.request(number)
    first, second = programs.calls("sbatch")
    assert "--array=1-2 --nodes=1" in first
    assert "--partition=cpu" in first
    assert "--exclusive" not in first
    assert "--array=1-3 --nodes=1" in second
    # The options of a job around this process are not those of the new ones.
    assert "nodes 5" not in programs.log.read_text()
    [line] = (rendezvous.folder / "adapt.json").read_text().splitlines()
    settings = NodeSettings(**json.loads(line))
    assert (settings.memory, settings.is_tied_to_pipe) == ("1GiB", False)
    assert settings.rendezvous == str(rendezvous.folder.resolve())
    nodes.check()
    nodes.hand_back()
    nodes.hand_back()
    assert programs.calls("scancel") == ["scancel 7 7"]
    assert nodes.number == 0


def test_jobs_that_have_ended_are_named(programs: Programs, rendezvous: Rendezvous) -> None:
    nodes = SlurmNodes(rendezvous, NodeSettings())
    nodes.request(1)
    assert "--exclusive" in programs.calls("sbatch")[0]
    programs.write("squeue", "echo 'Invalid job id' >&2; exit 1")
    with pytest.raises(ConfigError, match=r"must run a worker, job 7 has ended; see the logs"):
        nodes.check()


def test_a_slurm_that_refuses(
    programs: Programs, rendezvous: Rendezvous, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = SlurmNodes(rendezvous, NodeSettings())
    nodes.request(1)
    programs.write("scancel", "echo 'no controller' >&2; exit 1")
    nodes.hand_back()  # training goes on; the nodes end with the scheduler
    assert "Slurm refuses scancel: no controller" in caplog.text
    programs.write("sbatch", "echo 'invalid partition' >&2; exit 1")
    with pytest.raises(ConfigError, match="refuses sbatch: invalid partition; correct the options"):
        nodes.request(1)


def test_without_slurm(
    rendezvous: Rendezvous, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"by sbatch, got .*No such file"):
        SlurmNodes(rendezvous, NodeSettings()).request(1)


def test_a_node_ends_without_a_scheduler(tmp_path: Path) -> None:
    settings = NodeSettings(
        str(tmp_path / "cluster"),
        threads=0,
        scratch=str(tmp_path),
        start_timeout=0.5,
        is_tied_to_pipe=False,
        ends_with_scheduler=True,
    )
    Node(settings).run()  # it returns
    assert not Rendezvous(tmp_path / "cluster").nodes


@pytest.mark.parametrize("end", ["build", "step", "block"])
def test_a_cluster_asks_for_what_its_builds_use(
    programs: Programs, tmp_path: Path, write_corpus: WriteCorpus, end: str
) -> None:
    run_file = write_run(tmp_path, write_corpus)
    with alongside(tmp_path / "cluster", threads=1, scratch=tmp_path) as cluster:
        cluster.adapt(2, 8)
        assert "--array=1-2" in programs.calls("sbatch")[0]
        assert not programs.calls("scancel")
        if end == "build":
            cluster.begin_build(run_file).wait()
        if end == "step":
            cluster.step()
        deadline = time.monotonic() + 60
        while end != "block" and not programs.calls("scancel"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    # A small build asks for no more.
    assert len(programs.calls("sbatch")) == 1
    assert programs.calls("scancel") == ["scancel 7"]


def test_clusters_whose_nodes_cannot_meet() -> None:
    with alongside(threads=1) as cluster:
        with pytest.raises(ConfigError, match="a directory that all nodes share"):
            cluster.adapt(maximum=2)
        with pytest.raises(ConfigError, match="0 <= minimum <= maximum, got 3 and 2"):
            cluster.adapt(3, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--adapt", "0:2"], "--adapt must be MAX or MIN:MAX nodes, such as 1:16, got '0:2'"),
        (["--adapt", "many"], "got 'many'"),
        (["--adapt", "2"], "--adapt asks Slurm for nodes; give --cluster slurm, too"),
        (["--adapt", "2", "--cluster", "mpi"], "only Slurm is asked for nodes"),
        (["--slurm-options=-p cpu"], "are those of --adapt, which is missing"),
    ],
)
def test_options_that_make_no_sense(
    tmp_path: Path, write_corpus: WriteCorpus, options: list[str], message: str
) -> None:
    assert message in fail("build", *options, write_run(tmp_path, write_corpus))
