"""Ceph's object gateway on this machine alone, in memory: monitor, manager, one OSD and RGW.

Debian's packages ``ceph-mon ceph-mgr ceph-osd radosgw ceph-common`` bring the programs. Nothing is
replicated, and everything listens on the loopback only.
"""

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cloud.servers import CANARY, ObjectServer, environment, free_port, wait_for_port

PROGRAMS = (
    "ceph-mon",
    "ceph-mgr",
    "ceph-osd",
    "radosgw",
    "radosgw-admin",
    "ceph",
    "monmaptool",
    "ceph-authtool",
)

# ``tcp_nodelay``: without it every request takes 40 ms. ``osd class update on start``: there is no
# map of racks to update. ``memstore``: a store in memory needs no device.
_CONFIG = """\
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{port}/0
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon max pg per osd = 1000
osd class update on start = false
osd objectstore = memstore
memstore device bytes = 2147483648
mon data = {folder}/mon
mon data avail crit = 1
mgr data = {folder}/mgr
osd data = {folder}/osd
osd failsafe full ratio = 1
keyring = {folder}/keyring
run dir = {folder}
pid file = {folder}/$name.pid
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
log to stderr = false
err to stderr = false

[client.rgw]
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{gateway} tcp_nodelay=1
rgw enable usage log = false
rgw thread pool size = 64
"""

_NULL = subprocess.DEVNULL
# Each daemon may do everything: nobody else reaches them.
_DAEMONS = ("mon.", "mgr.x", "osd.0", "client.admin", "client.rgw")


def missing_programs() -> list[str]:
    """Return which of Ceph's programs this machine lacks."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


@contextmanager
def ceph_server(folder: Path) -> Iterator[ObjectServer]:
    """Run Ceph's gateway until the block is left; it takes some ten seconds to come up."""
    config = folder / "ceph.conf"
    port, gateway, fsid = free_port(), free_port(), str(uuid.uuid4())
    config.write_text(_CONFIG.format(folder=folder, port=port, gateway=gateway, fsid=fsid))
    keyring = str(folder / "keyring")
    subprocess.run(["ceph-authtool", "--create-keyring", keyring], check=True, stdout=_NULL)
    for name in _DAEMONS:
        may = [word for kind in ("mon", "osd", "mgr") for word in ("--cap", kind, "allow *")]
        add = ["ceph-authtool", keyring, "--gen-key", "-n", name, *may]
        subprocess.run(add, check=True, stdout=_NULL)
    for name in ("mon", "mgr", "osd", "rgw"):
        (folder / name).mkdir()
    with ExitStack() as stack:

        def call(*command: str) -> None:
            subprocess.run(
                [command[0], "-c", str(config), *command[1:]],
                check=True,
                timeout=120,
                stdout=_NULL,
                stderr=subprocess.PIPE,
            )

        def start(*command: str) -> "subprocess.Popen[bytes]":
            return stack.enter_context(
                _running([command[0], "-c", str(config), "-f", *command[1:]])
            )

        monmap = str(folder / "monmap")
        addresses = f"[v2:127.0.0.1:{port}]"
        create = ["monmaptool", "--create", "--fsid", fsid, "--addv", "a", addresses, monmap]
        subprocess.run(create, check=True, stdout=_NULL)
        call("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        monitor = start("ceph-mon", "-i", "a")
        wait_for_port(port, monitor)
        start("ceph-mgr", "-i", "x")
        osd = str(uuid.uuid4())
        call("ceph", "osd", "new", osd, "0")
        call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        call("ceph", "osd", "crush", "add", "osd.0", "1", "root=default", "host=here")
        start("ceph-osd", "-i", "0")
        user = ["user", "create", "--uid=zindex", "--display-name=zindex"]
        keys = ["--access-key=user", f"--secret-key={CANARY}"]
        call("radosgw-admin", "-n", "client.rgw", *user, *keys)
        wait_for_port(gateway, start("radosgw", "-n", "client.rgw"))
        endpoint = f"http://127.0.0.1:{gateway}"
        yield ObjectServer(endpoint, environment(endpoint))


@contextmanager
def _running(command: Sequence[str]) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a daemon in the foreground of a process of its own, until the block is left."""
    process = subprocess.Popen(command, stdout=_NULL, stderr=_NULL, env=dict(os.environ))
    try:
        yield process
    finally:
        process.terminate()
        deadline = time.monotonic() + 10
        try:
            process.wait(deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
