"""The context that every rank of a job enters: its nodes' processors build while it trains."""

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from zindex.cluster.certificates import make_certificate
from zindex.cluster.job import JobPlace, find_job
from zindex.cluster.meeting import Meeting
from zindex.cluster.network import LOOPBACK, own_address, warn_if_open
from zindex.cluster.node_settings import NodeSettings
from zindex.cluster.resources import choose_memory, choose_scratch, choose_threads
from zindex.cluster.scratch import open_scratch
from zindex.cluster.starting import Node, check_node, connect, start_node
from zindex.cluster.torch_store import publish_by_store, receive_by_store
from zindex.cluster.watchdog import Watchdog
from zindex.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zindex.cluster.begun_build import BegunBuild
    from zindex.config import RunConfig

logger = logging.getLogger("zindex.cluster")

_entered = count()


class Cluster:
    """A Dask cluster beside a job, as one of its ranks sees it; a context manager.

    Made by `alongside`.
    """

    def __init__(self, job: JobPlace, options: "Options") -> None:
        #: This rank's place in the job.
        self.job = job
        #: A ``distributed.Client`` on rank 0, its default one; None on the others.
        self.client: Any = None
        self._options = options
        self._stack = ExitStack()
        self._meeting: Meeting | None = None
        self._node: Node | None = None

    @property
    def address(self) -> str | None:
        """The scheduler's address, once it is known to this node."""
        facts = None if self._meeting is None else self._meeting.read()
        return None if facts is None else facts["address"]

    @property
    def folder(self) -> Path | None:
        """Where address, certificate and logs lie; None on ranks that start nothing."""
        return None if self._meeting is None else self._meeting.folder

    def __enter__(self) -> "Cluster":
        with ExitStack() as stack:
            if self.job.rank == 0:
                self._lead(stack)
            elif self.job.is_first_of_node:
                self._join(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self.client = None

    def _lead(self, stack: ExitStack) -> None:
        """Start the scheduler and this node's worker, and connect."""
        options, job = self._options, self.job
        host = options.listen_host(job)
        meeting = self._meeting = self._make_meeting(stack)
        meeting.create()
        stack.callback(meeting.stop)
        if options.encryption == "tls":
            make_certificate().write(meeting.folder)
        warn_if_open(host, options.encryption)
        settings = options.node_settings(job, str(meeting.folder))
        settings.scheduler_host, settings.dashboard = host, options.dashboard
        node = start_node(settings, stack)
        facts = meeting.wait(options.start_timeout, check_node(node, meeting))
        if options.by_store(job):
            publish_by_store(job, meeting.pack(), options.start_timeout)
        self.client = connect(meeting, options.start_timeout, stack)
        logger.info(
            "a Dask cluster for %d node%s is at %s; its logs are in %s",
            options.count_nodes(job),
            "" if options.count_nodes(job) == 1 else "s",
            facts["address"],
            meeting.folder,
        )
        stack.enter_context(Watchdog(self.client, options.count_nodes(job)))

    def _join(self, stack: ExitStack) -> None:
        """Start this node's worker, which finds the scheduler by itself."""
        options = self._options
        if options.by_store(self.job):
            packed = receive_by_store(self.job, options.start_timeout)
            settings = options.node_settings(self.job, None)
            settings.packed = packed
        else:
            self._meeting = self._make_meeting(stack)
            settings = options.node_settings(self.job, str(self._meeting.folder))
        self._node = start_node(settings, stack)

    def begin_build(
        self,
        config: "RunConfig | Mapping[str, Any] | str | os.PathLike[str]",
        *,
        progress: bool = False,
    ) -> "BegunBuild":
        """Begin to build a run behind rank 0, so that the job goes on with what comes first.

        The permutations of blends whose sizes are known begin before any dataset is opened.

        Parameters
        ----------
        config
            A ``RunConfig``, the mapping of one, or the path of its YAML file.
        progress
            Whether to show bars on a terminal, or log lines elsewhere.

        Returns
        -------
        building
            To be waited for before datasets are opened on rank 0. On other ranks it is done at
            once: their datasets wait for what rank 0 commits.
        """
        # Ranks and nodes that only help need not load what builds.
        from zindex.cluster.begun_build import BegunBuild

        begun = BegunBuild()
        if self.client is not None:
            begun.start(config, self.client, progress=progress)
        return begun

    def wait_until_ended(self) -> None:
        """Wait on other ranks than 0 until rank 0 has left the block; their workers work on."""
        if self._node is not None:
            self._node.wait()

    def _make_meeting(self, stack: ExitStack) -> Meeting:
        """Return where the processes of this cluster meet."""
        options = self._options
        if options.folder is not None:
            return Meeting.of_job(options.folder, self.job.job_id)
        return Meeting(stack.enter_context(open_scratch(Path(options.scratch))))


@dataclass
class Options:
    """How a cluster is to be; see `alongside`."""

    folder: str | os.PathLike[str] | None
    threads: int | None
    memory: int | str | float | None
    nice: int
    host: str | None
    encryption: str
    rendezvous: str | None
    num_nodes: int | None
    start_timeout: float
    scratch: str
    dashboard: int | None

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("encryption", self.encryption, ("tls", "none")),
            ("rendezvous", self.rendezvous, (None, "file", "torch")),
        ):
            if value not in choices:
                raise ConfigError(f"{name} must be one of {choices}, got {value!r}")
        if self.rendezvous == "file" and self.folder is None:
            raise ConfigError(
                "rendezvous='file' needs folder=, a directory that all nodes share, got None"
            )

    def count_nodes(self, job: JobPlace) -> int:
        """Return the nodes that are expected."""
        return self.num_nodes or job.num_nodes

    def by_store(self, job: JobPlace) -> bool:
        """Return whether nodes get the address by torch's store."""
        if self.rendezvous is not None:
            return self.rendezvous == "torch" and self.count_nodes(job) > 1
        return self.folder is None and self.count_nodes(job) > 1

    def listen_host(self, job: JobPlace) -> str:
        """Return the address that the scheduler listens at."""
        if self.host is not None:
            return self.host
        return LOOPBACK if self.count_nodes(job) == 1 else own_address(job.master)

    def node_settings(self, job: JobPlace, meeting: str | None) -> NodeSettings:
        """Return what this rank's node runs."""
        return NodeSettings(
            meeting,
            name=f"{os.uname().nodename}-{job.rank}",
            threads=choose_threads(self.threads, job.local_world_size),
            memory=choose_memory(self.memory),
            nice=self.nice,
            scratch=self.scratch,
            num_ranks=job.local_world_size,
            patience=self.start_timeout,
            num_nodes=self.count_nodes(job),
        )


def alongside(
    folder: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    memory: int | str | float | None = None,
    nice: int = 10,
    host: str | None = None,
    encryption: Literal["tls", "none"] = "tls",
    rendezvous: Literal["file", "torch"] | None = None,
    num_nodes: int | None = None,
    start_timeout: float = 120.0,
    scratch: str | os.PathLike[str] | None = None,
    dashboard: int | None = None,
    job: JobPlace | None = None,
) -> Cluster:
    """Return a Dask cluster beside this job, for every rank to enter: ``with alongside() as c:``.

    Rank 0 starts the scheduler, the first rank of each node the node's worker, and rank 0 gets a
    client, which `zindex.build` and datasets then use by themselves. The other ranks start nothing
    and import nothing of Dask. What ends is started again: a build goes on from its finished
    shards. Everything ends when the block is left, and when a rank dies, however it dies.

    Parameters
    ----------
    folder
        Directory that all nodes share, where they find the address, the certificate (private to
        the user) and the logs. None takes a temporary one on a single machine, and torch's store
        across machines.
    threads
        Threads of each node's worker; None leaves two processors to each rank.
    memory
        What each worker may take: bytes, a text such as ``"16GiB"``, a share of the machine's
        memory, or None for a quarter. A worker that takes more is started anew.
    nice
        How far workers stand back behind training: 0 to 19.
    host
        Address that the scheduler listens at; None means loopback on a single machine, and
        elsewhere the address under which this machine is known to the job.
    encryption
        ``tls`` lets only processes of this run take part, by a certificate made for it. ``none``
        lets everybody who reaches the scheduler run code: it warns where that is not loopback.
    rendezvous
        How nodes learn of the scheduler: ``file`` in ``folder``, ``torch`` by the store at
        ``MASTER_ADDR``. None takes the folder if there is one.
    num_nodes
        Nodes of the job, where the launcher does not say.
    start_timeout
        Seconds until a scheduler and one worker must be there. Nodes that come later are welcome.
    scratch
        Directory of each machine for temporary files and compiled kernels; None means
        ``SLURM_TMPDIR`` or the system's.
    dashboard
        Port of Dask's dashboard on rank 0's machine, on loopback; 0 takes a free one, None serves
        none.
    job
        This rank's place, its ``job_id`` the same on all ranks and of no other cluster; None finds
        it from the launcher's variables.

    Returns
    -------
    cluster
        To be entered; its ``client`` is there afterwards on rank 0.

    Raises
    ------
    ConfigError
        If a setting makes no sense, the launcher's variables are not there or do not fit together,
        or no scheduler or worker comes in time.

    Examples
    --------
    >>> with alongside(threads=1) as cluster:  # doctest: +SKIP
    ...     zindex.build("run.yaml")
    """
    options = Options(
        folder,
        threads,
        memory,
        nice,
        host,
        encryption,
        rendezvous,
        num_nodes,
        start_timeout,
        choose_scratch(scratch),
        dashboard,
    )
    if job is None:
        found = find_job()
        # Ranks enter one cluster after the other in the same order.
        job = replace(found, job_id=f"{found.job_id}-{next(_entered)}")
    return Cluster(job, options)
