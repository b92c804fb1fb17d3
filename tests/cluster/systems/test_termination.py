"""A job of torchrun that is taken away: by SIGTERM to its agent, as in Kubernetes, or to all."""

import signal
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from tests.cloud.servers import free_port
from tests.cluster.systems.watched import FOLDERS, ROOT, Watched, running, wait_for


def test_nodes_that_are_terminated_hand_over_their_results(
    tmp_path: Path, watched: Watched, programs: Path
) -> None:
    settings = {"NUM_NODES": "2", "RANKS_PER_NODE": "2", "RUN_ID": "7", "MASTER_ADDR": "127.0.0.1"}
    settings["MASTER_PORT"] = str(free_port())
    script = ROOT / "tests" / "cluster" / "systems" / "terminated.py"
    command = [str(FOLDERS / "torchrun" / "launch.sh"), str(script), str(tmp_path)]
    logs = [tmp_path / f"node-{node}.log" for node in range(2)]
    places = [Watched(tmp_path / f"scratch-{node}", programs) for node in range(2)]
    with ExitStack() as stack:
        agents = []
        for node, place in enumerate(places):
            place.scratch.mkdir()
            stack.callback(place.end)
            environment = place.environment(NODE_RANK=str(node), **settings)
            agents.append(stack.enter_context(running(command, environment, logs[node])))
        wait_for(tmp_path / "held", logs[0])
        # A container is killed as soon as its first process, the agent, has ended.

        agents[1].send_signal(signal.SIGTERM)
        agents[1].wait(200)
        assert places[1].processes("zindex.cluster") == []
        places[1].check_end()
        (tmp_path / "read").touch()
        wait_for(tmp_path / "copied", logs[0])
        assert (tmp_path / "copied").read_text() == "5"
        assert not (tmp_path / "made").exists()  # it was not made again
        # Slurm, and an init process of a container, signal all processes.
        for process in places[0].processes():
            with suppress(psutil.NoSuchProcess):  # it may end as soon as another one is told
                process.send_signal(signal.SIGTERM)
        agents[0].wait(200)
        places[0].check_end()
    for log in logs:
        assert "zindex" not in log.read_text()
    (rendezvous,) = (tmp_path / "cluster").iterdir()
    assert not list(rendezvous.glob("cluster.*"))
    said = "".join(log.read_text() for log in (rendezvous / "logs").iterdir())
    assert "retires: results move" in said
    assert "Traceback" not in said
