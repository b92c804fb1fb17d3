"""The rendezvous of a cluster's processes."""

import os
import stat
from pathlib import Path

import pytest

from zindex.cluster.certificates import PAIR, make_certificate, make_security, read_certificate
from zindex.cluster.manual import stop_all
from zindex.cluster.rendezvous import LOGS, Rendezvous
from zindex.errors import ConfigError

FACTS = {"address": "tls://127.0.0.1:1", "num_nodes": 2}


def make_rendezvous(folder: Path, *, tls: bool = True) -> Rendezvous:
    rendezvous = Rendezvous(folder)
    rendezvous.create()
    if tls:
        make_certificate().write(folder)
    rendezvous.publish(FACTS)
    return rendezvous


def test_only_the_owner_may_enter(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "rendezvous"
    make_rendezvous(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / PAIR[1]).stat().st_mode) == 0o600
    folder.chmod(0o755)
    Rendezvous(folder).create()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    rendezvous = make_rendezvous(tmp_path)
    (tmp_path / PAIR[1]).chmod(0o640)
    with pytest.raises(ConfigError, match="must be readable by its owner alone, its mode is 640"):
        _ = rendezvous.tls_folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(ConfigError, match="it belongs to user 12345"):
        Rendezvous(tmp_path).create()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "rendezvous").write_text("")
    with pytest.raises(ConfigError, match="must be a directory that can be made"):
        Rendezvous(tmp_path / "rendezvous").create()


@pytest.mark.parametrize(
    ("node", "age", "is_left"),
    [
        (f"{os.uname().nodename}-{2**22 + 1}", 0, False),  # killed, on this machine
        (f"{os.uname().nodename}-{os.getpid()}", 0, True),
        ("far-away-77", 30, True),
        ("far-away-77", 700, False),
        (None, 30, True),  # starting
        (None, 700, False),
    ],
)
@pytest.mark.parametrize("sweeper", ["start", "down"])
def test_keys_of_killed_jobs_are_swept(
    node: str | None, age: int, is_left: bool, sweeper: str, tmp_path: Path
) -> None:
    killed = make_rendezvous(tmp_path / "job-1")
    entry = killed.folder / (PAIR[1] if node is None else f"nodes/{node}")
    entry.touch()
    os.utime(entry, (entry.stat().st_mtime - age,) * 2)
    if sweeper == "start":
        make_rendezvous(tmp_path / "job-2")
    elif is_left:
        with pytest.raises(ConfigError, match="none was started there"):
            stop_all(tmp_path)
    else:
        assert stop_all(tmp_path) == []
    left = {path.name for path in killed.folder.iterdir()}
    assert (set(PAIR) | {"cluster.json"} if is_left else set()) == left - {"logs", "nodes"}


def test_a_cluster_without_encryption_removes_the_key_before_it(tmp_path: Path) -> None:
    make_rendezvous(tmp_path)
    assert make_rendezvous(tmp_path, tls=False).tls_folder is None


def test_jobs_of_one_folder_have_their_own(tmp_path: Path) -> None:
    one, two = (Rendezvous.of_job(tmp_path, job) for job in ("slurm-1/../x", "slurm-2"))
    assert one.folder.parent == two.folder.parent == tmp_path
    assert one.folder != two.folder


@pytest.mark.parametrize("tls", [True, False])
def test_a_rendezvous_is_sent_whole(tls: bool, tmp_path: Path) -> None:
    rendezvous = make_rendezvous(tmp_path / "one", tls=tls)
    other = Rendezvous(tmp_path / "two")
    other.unpack(rendezvous.pack())
    assert other.read() == FACTS
    assert (other.tls_folder is not None) == tls
    if tls:
        assert read_certificate(other.folder) == read_certificate(rendezvous.folder)
        assert "PRIVATE" not in repr(read_certificate(other.folder))


def test_a_stop_keeps_logs_and_removes_the_key(tmp_path: Path) -> None:
    rendezvous = make_rendezvous(tmp_path)
    assert rendezvous.find_stop() is None
    rendezvous.stop()
    first = rendezvous.find_stop()
    assert first is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOGS, "nodes", "stop"]
    rendezvous.create()
    assert rendezvous.find_stop() is None


def test_a_timeout_quotes_the_last_log_line(tmp_path: Path) -> None:
    rendezvous = Rendezvous(tmp_path)
    rendezvous.create()
    prefix = "2026-11-27 02:19:52 zindex: the scheduler"
    said = f"{prefix} has 1 of 2 processors\nOSError: the port is taken\n\n"
    restarted = f"{prefix} ended with 1; it starts again\nState start\n"
    for content in ("OSError: the port is taken\n\n", said, said + restarted):
        (tmp_path / LOGS / "scheduler.log").write_text(content)
        with pytest.raises(ConfigError, match=r"\(its last words: OSError: the port is taken\)"):
            rendezvous.wait(0.0)


def test_half_an_address_is_none(tmp_path: Path) -> None:
    rendezvous = make_rendezvous(tmp_path)
    (tmp_path / "cluster.json").write_text('{"addr')
    assert rendezvous.read() is None


def test_nodes_are_listed_while_they_run(tmp_path: Path) -> None:
    rendezvous = make_rendezvous(tmp_path)
    with rendezvous.register_node():
        assert rendezvous.nodes == [f"{os.uname().nodename}-{os.getpid()}"]
    assert rendezvous.nodes == []


def test_security_demands_encryption(tmp_path: Path) -> None:
    rendezvous = make_rendezvous(tmp_path)
    security = make_security(rendezvous.tls_folder)
    assert security.require_encryption
    assert make_security(None) is None
    with pytest.raises(ConfigError, match="must hold the certificate of a running cluster"):
        read_certificate(tmp_path / "none")
