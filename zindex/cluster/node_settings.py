"""What the process that looks after a node is told: as one line of JSON."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class NodeSettings:
    """What one node runs."""

    #: Directory where the cluster meets; None where only its content is handed over.
    meeting: str | None
    #: Of the worker, among those of the cluster; empty lets the node choose.
    name: str
    #: Threads of the worker; None leaves that to the node, 0 runs no worker there.
    threads: int | None = None
    #: What the worker may take, as of `choose_memory`.
    memory: int | str | float | None = None
    nice: int = 10
    #: Directory of the node for temporary files; None leaves that to the node.
    scratch: str | None = None
    #: Training processes of the node.
    num_ranks: int = 0
    #: Seconds that a worker looks for a scheduler before it starts anew.
    patience: float = 60.0
    #: The address to listen at where the scheduler runs; None runs no scheduler here.
    scheduler_host: str | None = None
    #: The port of the dashboard, on loopback; None serves no page.
    dashboard: int | None = None
    num_nodes: int = 1
    #: Whether this node ends with the pipe that its settings came through.
    lifeline: bool = True
    #: The content of a meeting that this node does not share.
    packed: dict[str, Any] | None = field(default=None, repr=False)

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))
