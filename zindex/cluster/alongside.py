"""The context that every rank of a job enters: idle processors of its nodes build as it trains."""

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zindex.cluster.job import JobPlace, find_job
from zindex.cluster.network import LOOPBACK, own_address
from zindex.cluster.rendezvous import Rendezvous, receive_by_store, send_by_store
from zindex.cluster.resources import choose_memory, choose_scratch, choose_threads, open_scratch
from zindex.cluster.settings import NodeSettings
from zindex.cluster.starting import Node, connect, prepare_scheduler, start_and_wait, start_node
from zindex.cluster.watchdog import Watchdog
from zindex.errors import ConfigError, check_choice
from zindex.execution.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zindex.config import RunConfig
    from zindex.indexing.background_build import BackgroundBuild
    from zindex.indexing.run_plan import ResultKey
    from zindex.indexing.store_build import BuildResult

logger = logging.getLogger("zindex.cluster")

_entered = count()


@dataclass(eq=False)
class Cluster:
    """A Dask cluster on the nodes of a job, seen from one of its ranks; a context manager.

    Made by `alongside`, which has the parameters.
    """

    #: This rank's place in the job.
    job: JobPlace
    _settings: NodeSettings
    _job_folder: str | os.PathLike[str] | None
    _host: str | None
    _encryption: str
    #: Whether nodes meet in torch's store.
    _uses_store: bool
    #: A ``distributed.Client`` on rank 0, the default of its process; None on the others.
    client: Any = field(default=None, init=False)
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _rendezvous: Rendezvous | None = field(default=None, init=False)
    _node: Node | None = field(default=None, init=False)

    @property
    def address(self) -> str | None:
        """The scheduler's address, once this node knows it."""
        facts = None if self._rendezvous is None else self._rendezvous.read()
        return None if facts is None else facts["address"]

    @property
    def folder(self) -> Path | None:
        """Directory of address, certificate and logs; None on ranks that start nothing."""
        return None if self._rendezvous is None else self._rendezvous.folder

    def __enter__(self) -> "Cluster":
        with ExitStack() as stack:
            if self.job.rank == 0:
                self._start_scheduler(stack)
            elif self.job.is_first_of_node:
                self._start_worker(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.client = None

    def _start_scheduler(self, stack: ExitStack) -> None:
        """Start the scheduler and this node's worker, and connect."""
        settings, timeout = self._settings, self._settings.start_timeout
        if self._host is not None:
            host = self._host
        else:
            host = LOOPBACK if settings.num_nodes == 1 else own_address(self.job.master)
        rendezvous = self._open_rendezvous(stack)
        prepare_scheduler(rendezvous, settings, host, self._encryption)
        stack.callback(rendezvous.stop)
        facts = start_and_wait(rendezvous, settings, stack)
        if self._uses_store:
            send_by_store(self.job, rendezvous.pack(), timeout)
        self.client = connect(rendezvous, timeout, stack)
        logger.info(
            "a Dask cluster for %d node%s is at %s; its logs are in %s",
            settings.num_nodes,
            "" if settings.num_nodes == 1 else "s",
            facts["address"],
            rendezvous.folder,
        )
        stack.enter_context(Watchdog(self.client, settings.num_nodes))

    def _start_worker(self, stack: ExitStack) -> None:
        """Start this node's worker, which waits for the scheduler."""
        if self._uses_store:
            self._settings.packed = receive_by_store(self.job, self._settings.start_timeout)
        else:
            self._open_rendezvous(stack)
        self._node = start_node(self._settings, stack)

    def _open_rendezvous(self, stack: ExitStack) -> Rendezvous:
        """Return the rendezvous of this cluster's processes, and have the node use it."""
        if self._job_folder is not None:
            rendezvous = Rendezvous.of_job(self._job_folder, self.job.job_id)
        else:
            assert self._settings.scratch is not None
            rendezvous = Rendezvous(stack.enter_context(open_scratch(Path(self._settings.scratch))))
        self._settings.rendezvous = str(rendezvous.folder)
        self._rendezvous = rendezvous
        return rendezvous

    def begin_build(
        self,
        config: "RunConfig | Mapping[str, Any] | str | os.PathLike[str]",
        *,
        progress: bool = False,
    ) -> "BackgroundBuild[dict[ResultKey, BuildResult]]":
        """Start to build a run in the background of rank 0, while the job sets up its model.

        The permutations of blends whose sizes are known start before any dataset is opened.

        Parameters
        ----------
        config
            A ``RunConfig``, the mapping of one, or the path of its YAML file.
        progress
            Whether to show bars on a terminal, or log lines elsewhere.

        Returns
        -------
        building
            Rank 0 waits for it before it opens datasets. On other ranks it is done from the start:
            their datasets wait for the commits of rank 0.
        """
        # Imported late: ranks that build nothing need not load the builders.
        from zindex.indexing.background_build import BackgroundBuild

        timeline = Timeline()
        run = None
        if self.client is not None:
            from zindex.indexing.run import build

            run = partial(build, config, self.client, progress=progress, timeline=timeline)
        return BackgroundBuild(run, timeline=timeline)

    def wait_until_ended(self) -> None:
        """Wait on other ranks than 0 until rank 0 has left the block; workers keep running."""
        if self._node is not None:
            self._node.wait()


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
    """Return a Dask cluster on this job's nodes, for every rank: ``with alongside() as cluster:``.

    Rank 0 starts the scheduler, the first rank of each node the node's worker, and rank 0 gets a
    client, which is the default of `zindex.build` and of datasets. The other ranks start nothing
    and import nothing of Dask. A supervisor restarts processes that end, and a build resumes from
    its finished shards. All processes end when the block is left, and when a rank dies in any way.

    Parameters
    ----------
    folder
        Directory that all nodes share, for the address, the certificate (private to the user) and
        the logs. None takes a temporary one on a single machine, and torch's store across machines.
    threads
        Threads of each node's worker; None leaves two processors to each rank.
    memory
        Limit of each worker: bytes, a text such as ``"16GiB"``, a share of the machine's memory, or
        None for a quarter. A worker above it is restarted.
    nice
        Niceness of the workers, so that training has priority: 0 to 19.
    host
        Address at which the scheduler listens; None means loopback on a single machine, and
        elsewhere the address at which this machine is known to the job.
    encryption
        ``tls`` admits only processes of this run, which authenticate by a certificate made for it.
        ``none`` lets everybody who reaches the scheduler run code, and logs a warning unless that
        is on loopback.
    rendezvous
        How nodes learn the scheduler's address: ``file`` in ``folder``, ``torch`` by the store at
        ``MASTER_ADDR``. None takes the folder if there is one.
    num_nodes
        Nodes of the job, where the launcher does not set it.
    start_timeout
        Seconds that a scheduler and one worker have to start. Nodes may join later.
    scratch
        Directory of each machine for temporary files and compiled kernels; None means
        ``SLURM_TMPDIR`` or the system's.
    dashboard
        Port of Dask's dashboard on rank 0's machine, on loopback; 0 takes a free one, None serves
        none.
    job
        This rank's place, with a ``job_id`` that all ranks share and no other cluster has; None
        reads it from the launcher's variables.

    Returns
    -------
    cluster
        A context manager; inside the block rank 0 has its ``client``.

    Raises
    ------
    ConfigError
        If a setting makes no sense, the launcher's variables are missing or inconsistent, or no
        scheduler or worker starts in time.

    Examples
    --------
    >>> with alongside(threads=1) as cluster:  # doctest: +SKIP
    ...     zindex.build("run.yaml")
    """
    check_choice("encryption", encryption, ("tls", "none"))
    check_choice("rendezvous", rendezvous, (None, "file", "torch"))
    if rendezvous == "file" and folder is None:
        raise ConfigError(
            "rendezvous='file' needs folder=, a directory that all nodes share, got None"
        )
    if job is None:
        found = find_job()
        # All ranks enter their clusters in the same order.
        job = replace(found, job_id=f"{found.job_id}-{next(_entered)}")
    settings = NodeSettings(
        name=f"{os.uname().nodename}-{job.rank}",
        threads=choose_threads(threads, job.local_world_size),
        memory=choose_memory(memory),
        nice=nice,
        scratch=choose_scratch(scratch),
        num_ranks=job.local_world_size,
        start_timeout=start_timeout,
        dashboard=dashboard,
        num_nodes=num_nodes or job.num_nodes,
    )
    meets_in_store = folder is None if rendezvous is None else rendezvous == "torch"
    uses_store = settings.num_nodes > 1 and meets_in_store
    return Cluster(job, settings, folder, host, encryption, uses_store)
