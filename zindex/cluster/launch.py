"""``alongside``, the context that every rank of a job enters.

Idle processors of its nodes build as it trains.
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
from zindex.cluster.isolation import StepFeedback
from zindex.cluster.job import JobPlace, find_job
from zindex.cluster.network import LOOPBACK, own_address
from zindex.cluster.rendezvous import Rendezvous, receive_by_store, send_by_store
from zindex.cluster.resources import choose_memory, choose_scratch, choose_threads, open_scratch
from zindex.cluster.settings import IDLE, NodeSettings
from zindex.cluster.watchdog import Watchdog
from zindex.errors import ConfigError, check_choice
from zindex.execution.executor import coming_clients

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zindex.config import RunConfig
    from zindex.indexing.run_build import RunBuild


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
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _rendezvous: Rendezvous | None = field(default=None, init=False)
    # This node's part of the cluster, and the thread that starts it again when it is killed.
    _node: starting.NodeKeeper | None = field(default=None, init=False)
    _keeper: threading.Thread | None = field(default=None, init=False)
    _feedback: StepFeedback = field(default_factory=StepFeedback, init=False)
    # Nodes of other jobs.
    _borrowed: SlurmNodes | None = field(default=None, init=False)
    # The client, or why there is none; set by a thread that closes it at the end of the block.
    _connection: "Future[Any] | None" = field(default=None, init=False)
    _is_ended: threading.Event = field(default_factory=threading.Event, init=False)

    @property
    def client(self) -> Any:
        """A ``distributed.Client`` on rank 0, the default of its process; None on the others.

        The first access waits for the scheduler and one worker.

        Raises
        ------
        ConfigError
            If they do not start in time.
        """
        return None if self._connection is None else self._connection.result()

    @property
    def address(self) -> str | None:
        """The scheduler's address, once this node knows it; rank 0 waits for it."""
        if self._connection is not None:
            self._connection.result()
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

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        self._connection = None

    def _start_scheduler(self, stack: ExitStack) -> None:
        """Start the scheduler and this node's worker; connect behind the job's own start."""
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

    def _connect(
        self,
        connection: "Future[Any]",
        rendezvous: Rendezvous,
        node: starting.Node,
        keeper: starting.NodeKeeper,
    ) -> None:
        """Connect to the scheduler once it has a worker, and stay so until the block ends."""
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
                "a Dask cluster for %d node%s is at %s; its logs are in %s",
                settings.num_nodes,
                "" if settings.num_nodes == 1 else "s",
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
            self._open_rendezvous(stack)
        self._node = starting.NodeKeeper(starting.start_node(self._settings, stack), self._settings)
        self._is_ended.clear()
        arguments = (self._is_ended,)
        self._keeper = threading.Thread(target=self._node.keep, args=arguments, daemon=True)
        self._keeper.start()
        stack.callback(self._keeper.join)
        stack.callback(self._is_ended.set)

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
    ) -> "RunBuild":
        """Start to build a run in the background of rank 0, while the job sets up its model.

        Parameters
        ----------
        config, progress
            As of `zindex.begin_build`.

        Returns
        -------
        building
            Futures of all stores, on every rank; see `zindex.begin_build`.
        """
        # Imported late: it takes longer than entering the block.
        from zindex.cluster.begin_build import start_build

        building = start_build(config, lambda: self.client, self.job, progress=progress)
        if self._borrowed is not None:
            self._borrowed.serve(building, config, self._settings.num_nodes)
        return building

    def adapt(self, minimum: int = 0, maximum: int = 1, *, options: Sequence[str] = ()) -> None:
        """Ask Slurm for more nodes while builds need them, and hand them back before training.

        Each is a job of its own, which runs one worker with the processors and the memory of that
        job: nodes may differ. On ranks other than 0 this does nothing.

        Parameters
        ----------
        minimum
            Nodes to ask for at once.
        maximum
            Nodes to ask for at most: each `begin_build` asks for as many as its forecast makes use
            of. All are handed back at the end of that build, at the first `step` and at the end of
            the block.
        options
            Options of ``sbatch``, such as ``["--partition=cpu", "--cpus-per-task=64"]``; none
            means ``--exclusive``.

        Raises
        ------
        ConfigError
            If the numbers make no sense, the nodes could not meet here, or Slurm refuses.

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
            self._settings, name="", threads=None, memory=None, num_ranks=0, scheduler_host=None
        )
        self._borrowed = SlurmNodes(self._rendezvous, settings, options, maximum)
        self._stack.callback(self._borrowed.hand_back)
        self._borrowed.request(minimum)

    def step(self) -> None:
        """Mark the end of a training step, on every rank: workers yield if steps take longer.

        The worker of this node is paused for a part of the time while the median step beside it is
        more than 0.5 % above that of steps with the worker almost paused. Costs microseconds.
        """
        if self._borrowed is not None and self._borrowed.number:
            threading.Thread(target=self._borrowed.hand_back, daemon=True).start()
        if self._node is not None:
            self._feedback.step()
            self._node.set_share(self._feedback.share)

    def wait_until_ended(self) -> None:
        """Wait on other ranks than 0 until rank 0 has left the block; workers keep running."""
        if self._keeper is not None:
            self._keeper.join()


def alongside(
    folder: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    memory: int | str | float | None = None,
    nice: int = IDLE,
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
    client, which is the default of `zindex.build` and of datasets. The block is entered at once:
    what needs the client waits for it. The other ranks start nothing
    and import nothing of Dask. A supervisor restarts processes that end, and is itself restarted; a
    build resumes from its finished shards, and goes on in threads of its process if the cluster is
    lost for a minute. All processes end when the block is left, and when a rank dies in any way.

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
        Niceness of the workers, 0 to 19: at 19 they run, and access disks, only when nothing else
        wants to, in a control group of their own where one can be made.
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
