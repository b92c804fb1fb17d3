"""``cluster/torchrun``: two nodes of two ranks on this machine, and strangers at their cluster."""

import json
import subprocess
import sys
from contextlib import ExitStack

import psutil

from tests.cloud.servers import free_port
from tests.cluster.systems.runs import Run
from tests.cluster.systems.watched import FOLDERS, ROOT, Watched, check_tls, running, wait_for


def own_address() -> str:
    """Return an address of this machine that others could reach, or the loopback's."""
    addresses = [item for items in psutil.net_if_addrs().values() for item in items]
    found = [item.address for item in addresses if item.family.name == "AF_INET"]
    outside = (address for address in found if not address.startswith("127."))
    return next(outside, "127.0.0.1")


def test_a_job_of_two_nodes_refuses_strangers(
    run: Run, golden: dict[str, str], watched: Watched
) -> None:
    address = own_address()
    settings = {"NUM_NODES": "2", "RANKS_PER_NODE": "2", "RUN_ID": "7", "MASTER_ADDR": address}
    settings["MASTER_PORT"] = str(free_port())
    seen = run.folder / "seen"
    command = [str(FOLDERS / "torchrun" / "launch.sh"), *run.train("--num-workers=2")]
    logs = [run.folder / f"node-{node}.log" for node in range(2)]
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                running(
                    [*command, f"--until={seen}"],
                    watched.environment(NODE_RANK=str(node), **settings),
                    logs[node],
                )
            )
            for node in range(2)
        ]
        wait_for(run.folder / "ready-0", logs[0])
        check_strangers(watched, run, address)
        seen.touch()
        for node, process in enumerate(nodes):
            assert process.wait(200) == 0, logs[node].read_text()
            assert "Warning" not in logs[node].read_text()
        watched.check_end()
    run.check(golden, 4, "torchrun")


def check_strangers(watched: Watched, run: Run, address: str) -> None:
    """Fail unless all that the cluster listens at is for its own processes only."""
    (rendezvous,) = (run.folder / "cluster").iterdir()
    assert {path.stat().st_mode & 0o077 for path in (rendezvous, rendezvous / "cluster.key")} == {0}
    listeners = watched.listeners("zindex.cluster")
    assert {listener.host for listener in listeners} == {address}
    assert len(listeners) == 3, listeners  # of the scheduler and two workers
    for listener in listeners:
        check_tls(listener, rendezvous / "cluster.crt")
    found = json.loads((rendezvous / "cluster.json").read_text())["address"]
    host, port = found.removeprefix("tls://").rsplit(":", 1)
    command = [sys.executable, "-m", "tests.cluster.systems.intruder", host, port]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    outcomes = json.loads(done.stdout)
    # What does not speak TLS is cut off; who does is told that its certificate is another one.
    assert outcomes["plain"].startswith(("CommClosedError: ", "OSError: ")), outcomes
    assert "does not match. Check your security settings" in outcomes["other"]
