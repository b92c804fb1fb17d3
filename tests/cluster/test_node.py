"""The supervisor of a node, as a process."""

import subprocess
from pathlib import Path

from tests.cluster.processes import wait_for
from zindex.cluster.settings import NodeSettings
from zindex.cluster.starting import NODE_COMMAND


def test_a_node_that_is_terminated_ends_without_a_word(tmp_path: Path) -> None:
    folder = tmp_path / "rendezvous"
    settings = NodeSettings(str(folder), threads=1, memory=1 << 30, scratch=str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(NODE_COMMAND, **pipes) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        node.stdin.write(settings.to_json().encode() + b"\n")
        node.stdin.flush()
        wait_for(lambda: any((folder / "logs").glob("worker-*")), "a worker starts")
        node.terminate()
        output = node.stdout.read()  # the pipe to it stays open
        assert (node.wait(), output) == (0, b"")
