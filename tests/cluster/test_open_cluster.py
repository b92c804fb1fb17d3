"""The cluster that a build names."""

from pathlib import Path

import pytest

from tests.cli.commands import fail, succeed
from tests.cluster.test_manual import write_run
from tests.conftest import WriteCorpus
from zindex.cluster.open_cluster import open_cluster, split_host
from zindex.cluster.rendezvous import Rendezvous
from zindex.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("pbs", {}, "a cluster must be torchrun, slurm, mpi, k8s, ssh or the address"),
        ("ssh", {}, "a cluster by ssh needs hosts, got none"),
        ("ssh", {"hosts": ["-oProxyCommand=x"]}, "a host must be like node1"),
        ("tls://127.0.0.1:1", {}, "needs its certificate, got no folder"),
        # A cluster that has ended removes its certificate.
        ("tls://127.0.0.1:1", {"folder": "/none"}, "/none must hold the certificate of a running"),
        ("tcp://127.0.0.1:1", {"start_timeout": 0.2}, "a Dask scheduler must answer at tcp://127"),
        ("slurm", {}, "run it under srun"),
        ("mpi", {}, "run it under mpirun"),
        ("k8s", {}, "set ZINDEX_NUM_NODES in the pods of an indexed Job"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_clusters_that_are_none(
    name: str, settings: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(variable, raising=False)
    with (
        pytest.raises(ConfigError, match=message),
        open_cluster(name, **settings),  # type: ignore[arg-type]
    ):
        pass


@pytest.mark.parametrize("text", ["", ":22", "node:ssh", "-node", "node:22:23"])
def test_hosts_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="a host must be like"):
        split_host(text)


def test_one_pod_is_a_cluster(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    monkeypatch.setenv("ZINDEX_NUM_NODES", "1")
    run_file = write_run(tmp_path, write_corpus)
    arguments = ("build", "--cluster", "k8s", "--threads", 1, "--scratch", tmp_path)
    assert "1 index is built in" in succeed(*arguments, run_file)


@pytest.mark.timeout(60)
def test_a_pod_that_comes_after_the_build_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = {"JOB_COMPLETION_INDEX": "1", "ZINDEX_NUM_NODES": "2", "ZINDEX_JOB_ID": "late"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    rendezvous = Rendezvous.of_job(tmp_path, "k8s-late")
    rendezvous.create()
    rendezvous.stop()
    with open_cluster(
        "k8s", folder=tmp_path, start_timeout=0.5, threads=1, scratch=tmp_path
    ) as client:
        assert client is None
    assert [text for text in caplog.messages if "k8s-late, it has left it" in text]


def test_a_build_runs_in_one_place(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    run_file = write_run(tmp_path, write_corpus)
    places = ("--cluster", "k8s", "--scheduler", "tcp://127.0.0.1:1")
    line = fail("build", *places, run_file)
    assert "--scheduler and --cluster both say where to build" in line
