"""The `alongside` context manager, which every rank of a job enters.

Idle CPU cores of its nodes build indices while it trains.
"""

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zindex.cluster import starting
from zindex.cluster.adapt import SlurmNodes
from zindex.cluster.bandwidth import check_bandwidth
from zindex.cluster.isolation import StepFeedback
from zindex.cluster.job import JobPlace, find_job
from zindex.cluster.network import LOOPBACK, own_address
from zindex.cluster.rendezvous import POLL_SECONDS, Rendezvous, receive_by_store, send_by_store
from zindex.cluster.resources import choose_memory, choose_scratch, choose_threads, open_scratch
from zindex.cluster.settings import IDLE, NodeSettings
from zindex.cluster.termination import before_termination
from zindex.cluster.watchdog import Watchdog
from zindex.errors import ConfigError, check_choice
from zindex.execution.executor import coming_clients
from zindex.io.backoff import Backoff, poll_until
from zindex.wording import count_noun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zindex.config import RunConfig
    from zindex.indexing.run_build import RunBuild


logger = logging.getLogger("zindex.cluster")

_entered = count()


@dataclass(eq=False)
class Cluster:
    """A Dask cluster on the nodes of a job, as a context manager on each rank.

    Created by `alongside`, which documents the parameters.
    """

    #: Rank and size of this process in the job.
    job: JobPlace
    _settings: NodeSettings
    _job_folder: str | os.PathLike[str] | None
    _host: str | None
    _encryption: str
    #: Whether nodes exchange the address through torch's store.
    _uses_store: bool
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _rendezvous: Rendezvous | None = field(default=None, init=False)
    # This node's processes, and the thread that restarts them when they are killed.
    _node: starting.NodeKeeper | None = field(default=None, init=False)
    _keeper: threading.Thread | None = field(default=None, init=False)
    _feedback: StepFeedback = field(default_factory=StepFeedback, init=False)
    # Nodes requested as separate Slurm jobs.
    _borrowed: SlurmNodes | None = field(default=None, init=False)
    # Future of the client, or its error; set by a thread that closes the client at exit.
    _connection: "Future[Any] | None" = field(default=None, init=False)
    _is_ended: threading.Event = field(default_factory=threading.Event, init=False)

    @property
    def client(self) -> Any:
        """A ``distributed.Client`` on rank 0, the default client of its process; None elsewhere.

        The first access blocks until the scheduler and one worker have started.

        Raises
        ------
        ConfigError
            If they do not start in time.
        """
        return None if self._connection is None else self._connection.result()

    @property
    def address(self) -> str | None:
        """Scheduler address, or None while this node does not know it; rank 0 blocks for it."""
        if self._connection is not None:
            self._connection.result()
        facts = None if self._rendezvous is None else self._rendezvous.read()
        return None if facts is None else facts["address"]

    @property
    def folder(self) -> Path | None:
        """Directory of the address, certificate and logs; None on ranks that start nothing."""
        return None if self._rendezvous is None else self._rendezvous.folder

    def __enter__(self) -> "Cluster":
        with ExitStack() as stack:
            if self.job.rank == 0:
                self._start_scheduler(stack)
            elif self.job.is_first_of_node:
                self._start_worker(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        self._connection = None

    def _start_scheduler(self, stack: ExitStack) -> None:
        """Start the scheduler and this node's worker, and connect in the background."""
        settings = self._settings
        if self._host is not None:
            host = self._host
        else:
            host = LOOPBACK if settings.num_nodes == 1 else own_address(self.job.master)
        rendezvous = self._open_rendezvous(stack)
        starting.prepare_scheduler(rendezvous, settings, host, self._encryption)
        stack.callback(rendezvous.stop)
        node = starting.start_node(settings, stack)
        self._node = starting.NodeKeeper(node, settings)
        self._is_ended.clear()
        connection = self._connection = Future()
        arguments = connection, rendezvous, node, self._node
        thread = threading.Thread(target=self._connect, args=arguments, daemon=True)
        thread.start()

        def disconnect() -> None:
            connection.exception()  # it is connected, or cannot be
            self._is_ended.set()
            thread.join()

        stack.callback(disconnect)
        coming_clients.append(connection)
        stack.callback(coming_clients.remove, connection)
        stack.enter_context(before_termination(self._node.close, at_once=False))

    def _connect(
        self,
        connection: "Future[Any]",
        rendezvous: Rendezvous,
        node: starting.Node,
        keeper: starting.NodeKeeper,
    ) -> None:
        """Connect to the scheduler once it has a worker; disconnect at the end of the block."""
        settings = self._settings
        with ExitStack() as stack:
            try:
                facts = starting.wait_for_scheduler(rendezvous, settings, node)
                if self._uses_store:
                    send_by_store(self.job, rendezvous.pack(), settings.start_timeout)
                client = starting.connect(rendezvous, settings.start_timeout, stack)
                stack.enter_context(Watchdog(client, settings.num_nodes))
            except Exception as error:
                logger.warning("%s", error)
                connection.set_exception(error)
                return
            logger.info(
                "a Dask cluster for %s is at %s; its logs are in %s",
                count_noun(settings.num_nodes, "node"),
                facts["address"],
                rendezvous.folder,
            )
            connection.set_result(client)
            keeper.keep(self._is_ended)
            self._is_ended.wait()

    def _start_worker(self, stack: ExitStack) -> None:
        """Start this node's worker, which waits for the scheduler."""
        if self._uses_store:
            self._settings.packed = receive_by_store(self.job, self._settings.start_timeout)
        else:
            # An earlier cluster may have left one, which remains until rank 0 removes it.
            self._settings.earlier_stop = self._open_rendezvous(stack).find_stop()
        self._node = starting.NodeKeeper(starting.start_node(self._settings, stack), self._settings)
        self._is_ended.clear()
        arguments = (self._is_ended,)
        self._keeper = threading.Thread(target=self._node.keep, args=arguments, daemon=True)
        self._keeper.start()
        stack.callback(self._keeper.join)
        stack.callback(self._is_ended.set)
        stack.enter_context(before_termination(self._node.close, at_once=True))

    def _open_rendezvous(self, stack: ExitStack) -> Rendezvous:
        """Open the rendezvous of the cluster, and register it in the node settings."""
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
    ) -> "RunBuild":
        """Start building a run in the background of rank 0, while the job sets up its model.

        Parameters
        ----------
        config, progress
            See `zindex.begin_build`.

        Returns
        -------
        building
            Futures of all stores, on every rank; see `zindex.begin_build`.
        """
        # Imported late, because the import takes longer than entering the block.
        from zindex.cluster.begin_build import start_build

        building = start_build(config, lambda: self.client, self.job, progress=progress)
        if self._borrowed is not None:
            self._borrowed.serve(building, config, self._settings.num_nodes)
        return building

    def adapt(self, minimum: int = 0, maximum: int = 1, *, options: Sequence[str] = ()) -> None:
        """Request extra Slurm nodes while builds need them, and release them before training.

        Each node is a separate Slurm job that runs one worker with the CPUs and memory of that job,
        so nodes may differ. Does nothing on ranks other than 0.

        Parameters
        ----------
        minimum
            Nodes to request immediately.
        maximum
            Maximum number of nodes: each `begin_build` requests as many as its forecast can use.
            All are released when that build ends, at the first `step`, and at the end of the
            block.
        options
            Options of ``sbatch``, such as ``["--partition=cpu", "--cpus-per-task=64"]``; by default
            ``--exclusive``.

        Raises
        ------
        ConfigError
            If the numbers are invalid, the nodes cannot reach this cluster, or Slurm rejects them.

        Examples
        --------
        >>> with alongside("/shared/cluster") as cluster:  # doctest: +SKIP
        ...     cluster.adapt(maximum=16, options=["--partition=cpu"])
        ...     cluster.begin_build("run.yaml").wait()
        """
        if not 0 <= minimum <= maximum:
            raise ConfigError(
                f"adapt must have 0 <= minimum <= maximum, got {minimum} and {maximum}"
            )
        if self.job.rank:
            return
        if self._rendezvous is None or self._job_folder is None or self._uses_store:
            raise ConfigError(
                "adapt needs a directory that all nodes share, inside of the block; enter "
                "alongside(folder)"
            )
        settings = replace(
            self._settings,
            name="",
            threads=None,
            memory=None,
            bandwidth=None,
            num_ranks=0,
            scheduler_host=None,
        )
        self._borrowed = SlurmNodes(self._rendezvous, settings, options, maximum)
        self._stack.callback(self._borrowed.hand_back)
        self._borrowed.request(minimum)

    def step(self) -> None:
        """Mark the end of a training step, on every rank; workers are throttled if steps slow down.

        Throttles this node's worker while the median step is more than 0.5 % slower than with the
        worker almost paused. Costs microseconds.
        """
        if self._borrowed is not None and self._borrowed.number:
            threading.Thread(target=self._borrowed.hand_back, daemon=True).start()
        if self._node is not None:
            self._feedback.step()
            self._node.set_share(self._feedback.share)

    def wait_until_ended(self) -> None:
        """On ranks other than 0, block until rank 0 leaves the block; workers keep running.

        If there was a request to stop before this rank came, rank 0 may have left the block, or
        will enter it in another attempt: this returns if it does not within ``start_timeout``.
        """
        keeper, rendezvous = self._keeper, self._rendezvous
        if keeper is None:
            return
        earlier, seconds = self._settings.earlier_stop, self._settings.start_timeout
        if rendezvous is not None and earlier is not None:

            def goes_on() -> bool:
                is_removed = rendezvous.find_stop() != earlier
                return is_removed or rendezvous.read() is not None or not keeper.is_alive()

            if not poll_until(goes_on, Backoff(POLL_SECONDS, timeout=seconds)):
                logger.warning(
                    "rank 0 must run the cluster in %s, it has left it, and started none in %g s",
                    *(rendezvous.folder, seconds),
                )
                return
        keeper.join()


def alongside(
    folder: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    memory: int | str | float | None = None,
    nice: int = IDLE,
    bandwidth: float | None = 0.5,
    host: str | None = None,
    encryption: Literal["tls", "none"] = "tls",
    rendezvous: Literal["file", "torch"] | None = None,
    num_nodes: int | None = None,
    start_timeout: float = 120.0,
    scratch: str | os.PathLike[str] | None = None,
    dashboard: int | None = None,
    job: JobPlace | None = None,
) -> Cluster:
    """Run a Dask cluster on this job's nodes; enter on every rank: ``with alongside() as c:``.

    Rank 0 starts the scheduler, and the first rank of each node starts its worker. Rank 0 gets a
    client, the default of `zindex.build` and of datasets. Entering does not block: the first use
    of the client waits for it. Other ranks start no processes
    and do not import Dask. A supervisor restarts processes that end, and is restarted itself. A
    build resumes from its finished shards, and continues in local threads if the cluster is lost
    for a minute. All processes stop at the end of the block, or when a rank dies for any reason. If
    SIGTERM ends a rank, the worker of its node first transfers its results to others.

    Parameters
    ----------
    folder
        Directory shared by all nodes, for the address, the certificate (private to the user) and
        the logs. None uses a temporary one on a single machine, or torch's store across machines.
    threads
        Threads per worker; None leaves two CPUs to each rank, and respects ``bandwidth``.
    memory
        Memory limit per worker: bytes, a string such as ``"16GiB"``, a fraction of the machine's
        memory, or None for a quarter. A worker above its limit is restarted.
    nice
        Niceness of the workers, 0 to 19. At 19 they use CPUs and disks only when these are idle, in
        a separate control group if one can be created.
    bandwidth
        Maximum share of each machine's memory bandwidth for its worker, above 0 and at most 1; None
        sets no limit. Processors with resctrl enforce it where this user may write
        ``/sys/fs/resctrl``; elsewhere the bandwidth is measured, and the worker gets fewer threads.
    host
        Address at which the scheduler listens; None means loopback on a single machine, and
        otherwise the address by which the job knows this machine.
    encryption
        ``tls`` admits only processes of this run, which authenticate with its certificate.
        ``none`` lets anyone who can reach the scheduler run code, and logs a warning unless that
        is on loopback.
    rendezvous
        How nodes learn the scheduler's address: ``file`` uses ``folder``, ``torch`` uses the store
        at ``MASTER_ADDR``. None uses the folder if one is given.
    num_nodes
        Number of nodes in the job, if the launcher does not set it.
    start_timeout
        Timeout for starting the scheduler and one worker, in seconds. Nodes may join later.
    scratch
        Local directory for temporary files and compiled kernels; None means ``SLURM_TMPDIR`` or the
        system default.
    dashboard
        Port of Dask's dashboard on rank 0's machine, on loopback; 0 picks a free port, None
        disables it.
    job
        Rank and size of this process, with a ``job_id`` shared by all ranks and unique to this
        cluster; None reads them from the launcher's variables.

    Returns
    -------
    cluster
        A context manager; inside the block rank 0 has its ``client``.

    Raises
    ------
    ConfigError
        If a setting is invalid, the launcher's variables are missing or inconsistent, or no
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
        threads=None if threads is None else choose_threads(threads, job.local_world_size),
        memory=choose_memory(memory),
        nice=nice,
        bandwidth=check_bandwidth(bandwidth),
        scratch=choose_scratch(scratch),
        num_ranks=job.local_world_size,
        start_timeout=start_timeout,
        dashboard=dashboard,
        num_nodes=num_nodes or job.num_nodes,
    )
    meets_in_store = folder is None if rendezvous is None else rendezvous == "torch"
    uses_store = settings.num_nodes > 1 and meets_in_store
    return Cluster(job, settings, folder, host, encryption, uses_store)
