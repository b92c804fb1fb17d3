"""Simulate the reads of a training run on object storage, from its order and its chunks."""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError, check_whole
from zindex.indexing.ensure import MAX_COMPUTED_ROWS
from zindex.inspection.answers.run_order import RunOrder
from zindex.inspection.answers.steps import Steps
from zindex.reporting.chunks_read import ROUNDS, ArrayReads, find_chunks
from zindex.store.chunk_cache import CACHE_NBYTES
from zindex.store.chunk_fetch import Part, coalesce

#: Samples to simulate; a longer run is simulated up to the last whole step.
MAX_SAMPLES = 1 << 14
# Default ranks of a node, and samples of a rank per step.
_RANKS, _SHARE = 8, 32
# Cache limits to compare, as multiples of the given one.
_CACHE_FACTORS = (0.0, 0.25, 4.0)


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The loaders of a training run, and their connection to the store."""

    #: Samples per step over all ranks, and per rank and micro-batch (None: the rank's share).
    global_batch_size: int = 256
    micro_batch_size: int | None = None
    #: Data-parallel ranks, and the nodes that they are spread over.
    num_ranks: int = 8
    num_nodes: int = 1
    #: Loader workers per rank, batches that each prefetches, and bytes of its chunk cache.
    num_workers: int = 2
    prefetch: int = 2
    cache_nbytes: int = CACHE_NBYTES
    #: Bytes per second of each node, seconds per request, and concurrent requests per worker.
    bandwidth: float = 1e9
    latency: float = 0.03
    num_requests: int = 64
    #: Rows up to which each process computes an index or blend instead of reading it.
    max_computed_rows: int = MAX_COMPUTED_ROWS

    def __post_init__(self) -> None:
        for name in ("num_nodes", "num_workers", "prefetch", "num_requests"):
            check_whole(name, getattr(self, name), 1)
        for name in ("cache_nbytes", "max_computed_rows"):
            check_whole(name, getattr(self, name), 0)
        self.steps.positions_of(0)  # checks the sizes of batches
        if self.num_ranks % self.num_nodes:
            raise ConfigError(
                f"nodes must have equally many ranks, got {self.num_ranks} ranks on "
                f"{self.num_nodes} nodes; change one of the two"
            )
        if not (self.bandwidth > 0 and self.latency >= 0):
            raise ConfigError(
                "bandwidth must be above 0 and latency at least 0, got "
                f"{self.bandwidth:g} B/s and {self.latency:g} s; name another"
            )

    @property
    def steps(self) -> Steps:
        """Batches of the run, as its ranks take them."""
        return Steps(self.global_batch_size, self.num_ranks, self.micro_batch_size)


def choose_settings(num_samples: int, **given: Any) -> ReadSettings:
    """Return settings with defaults that fit the given ones, and a run that may be short.

    Parameters
    ----------
    num_samples
        Samples of the run.
    given
        Fields of `ReadSettings`; None for the default.

    Examples
    --------
    >>> found = choose_settings(10**6, num_ranks=512, latency=None)
    >>> found.global_batch_size, found.latency
    (16384, 0.03)
    >>> choose_settings(10**6, global_batch_size=12).num_ranks
    4
    """
    known = {name: value for name, value in given.items() if value is not None}
    size, num_ranks = known.get("global_batch_size"), known.get("num_ranks")
    own = known.get("micro_batch_size")
    if num_ranks is None:
        num_nodes = known.get("num_nodes", 1)
        num_ranks = num_nodes * (_RANKS if size is None else math.gcd(_RANKS, size // (own or 1)))
    if size is None:
        share = own or max(1, min(_SHARE, num_samples // max(1, num_ranks)))
        size = num_ranks * share
        if size > num_samples and "num_ranks" not in known:
            size, num_ranks = 1, 1
            known = known | {"num_nodes": 1, "micro_batch_size": None}
    return ReadSettings(**known | {"global_batch_size": size, "num_ranks": num_ranks})


@dataclass(slots=True)
class WorkerReads:
    """Reads of one loader worker."""

    rank: int
    worker: int
    num_requests: int = 0
    nbytes: int = 0
    #: Chunks that were cached, and those that were requested.
    num_hits: int = 0
    num_misses: int = 0
    #: Largest size of the cache.
    cache_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeReads:
    """Reads of all workers of one node."""

    node: int
    num_requests: int
    nbytes: int
    num_hits: int
    num_misses: int
    #: Sum of the largest caches of its workers.
    cache_nbytes: int
    #: Seconds until every rank of the node has its first batch, without the start of processes.
    first_batch_seconds: float


@dataclass(frozen=True, slots=True)
class ReadFigures:
    """Result of a simulation of the first steps of a run."""

    settings: ReadSettings
    num_steps: int
    #: Steps of the whole run.
    num_run_steps: int
    nodes: tuple[NodeReads, ...]
    workers: tuple[WorkerReads, ...]
    #: Bytes of each step: mean over the nodes.
    step_nbytes: tuple[float, ...]
    #: Bytes by array.
    array_nbytes: dict[str, int]
    #: Bytes of the tokens of the samples.
    useful_nbytes: int
    #: Whether some chunks are compressed: bytes are those before compression.
    is_compressed: bool
    #: Seconds to the first batch, and until every worker has read ahead: of the slowest node.
    first_batch_seconds: float
    ahead_seconds: float
    #: Seconds of reading per step once the caches are warm, and which resource it waits for.
    step_seconds: float
    limited_by: str
    #: Bytes and share of hits with other cache limits, by limit.
    other_caches: dict[int, tuple[int, float]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all nodes."""
        return sum(node.nbytes for node in self.nodes)

    @property
    def num_requests(self) -> int:
        """Requests of all nodes."""
        return sum(node.num_requests for node in self.nodes)

    @property
    def hit_share(self) -> float:
        """Share of chunks that were cached."""
        hits = sum(node.num_hits for node in self.nodes)
        return hits / max(1, hits + sum(node.num_misses for node in self.nodes))

    def to_json(self) -> dict[str, Any]:
        """Return the fields and totals as JSON values."""
        totals = {name: getattr(self, name) for name in ("nbytes", "num_requests", "hit_share")}
        caches = [
            {"cache_nbytes": limit, "nbytes": nbytes, "hit_share": share}
            for limit, (nbytes, share) in self.other_caches.items()
        ]
        return asdict(self) | {"totals": totals, "other_caches": caches}


class _Cache:
    """Chunks that a worker has, least recently used first."""

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes, self.peak = limit, 0, 0
        self.chunks: OrderedDict[tuple[int, int], int] = OrderedDict()
        #: Shards whose index was read.
        self.shards: set[tuple[int, int]] = set()

    def use(self, key: tuple[int, int]) -> bool:
        """Return whether a chunk is cached, and mark it as used."""
        if key not in self.chunks:
            return False
        self.chunks.move_to_end(key)
        return True

    def add(self, key: tuple[int, int], nbytes: int) -> None:
        """Keep a chunk, and evict others."""
        if nbytes > self.limit:
            return
        self.chunks[key] = nbytes
        self.nbytes += nbytes
        while self.nbytes > self.limit:
            self.nbytes -= self.chunks.popitem(last=False)[1]
        self.peak = max(self.peak, self.nbytes)


class _Simulation:
    """The reads of all workers, batch by batch."""

    def __init__(self, reads: Sequence[ArrayReads], settings: ReadSettings, limit: int) -> None:
        self.reads, self.settings = reads, settings
        self.caches = [_Cache(limit) for _ in range(settings.num_ranks * settings.num_workers)]
        self.workers = [
            WorkerReads(*divmod(number, settings.num_workers)) for number in range(len(self.caches))
        ]
        #: Bytes and seconds of waiting of the batches that were read, in order.
        self.batches: list[tuple[int, int, float]] = []
        self.array_nbytes: Counter[str] = Counter()

    def run(self, table: AnyArray) -> None:
        """Read batches; the rows of the table are batch, round, array and chunk, sorted."""
        ranks, workers = self.settings.num_ranks, self.settings.num_workers
        bounds = np.flatnonzero(np.append(True, (np.diff(table[:2]) != 0).any(0))).tolist()
        last, total = -1, [0, 0.0]
        for start, stop in zip(bounds, [*bounds[1:], table.shape[1]], strict=True):
            batch = int(table[0, start])
            if batch != last and last >= 0:
                self.batches.append((last, *total))  # type: ignore[arg-type]
                total = [0, 0.0]
            last = batch
            turn, rank = divmod(batch, ranks)
            found = self._read(rank * workers + turn % workers, *table[2:, start:stop].tolist())
            total = [before + more for before, more in zip(total, found, strict=True)]
        self.batches.append((last, *total))  # type: ignore[arg-type]

    def _read(self, worker: int, arrays: Iterable[int], chunks: Iterable[int]) -> tuple[int, float]:
        """Read the chunks of one round; return bytes and seconds of waiting."""
        cache, counts = self.caches[worker], self.workers[worker]
        missed: dict[tuple[int, int], list[int]] = {}
        for array, chunk in zip(arrays, chunks, strict=True):
            if cache.use((array, chunk)):
                counts.num_hits += 1
            else:
                shard = chunk // self.reads[array].form.chunks_per_shard
                is_flat = self.reads[array].form.flat
                missed.setdefault((array, 0 if is_flat else shard), []).append(chunk)
        if not missed:
            return 0, 0.0
        num_requests, nbytes, wanted = 0, 0, 0
        for (array, shard), own in missed.items():
            spans = coalesce(self._locate(array, own))
            num_requests += len(spans)
            size = sum(span.stop - span.start for span in spans)
            form = self.reads[array].form
            if not form.flat:
                wanted += len(own) * form.chunk_nbytes
                if (array, shard) not in cache.shards:
                    cache.shards.add((array, shard))
                    num_requests += 1
                    size += form.tail_nbytes(shard)
            self.array_nbytes[self.reads[array].name] += size
            nbytes += size
        if 4 * wanted <= cache.limit:  # the reader does not cache a long pass
            for (array, _), own in missed.items():
                form = self.reads[array].form
                for chunk in () if form.flat else own:
                    cache.add((array, chunk), form.chunk_nbytes)
        counts.num_misses += sum(map(len, missed.values()))
        counts.num_requests += num_requests
        counts.nbytes += nbytes
        counts.cache_nbytes = cache.peak
        waits = -(-num_requests // self.settings.num_requests)
        return nbytes, waits * self.settings.latency

    def _locate(self, array: int, chunks: list[int]) -> list[Part]:
        """Return the positions of chunks of one file."""
        reads = self.reads[array]
        nbytes, per_shard = reads.chunk_nbytes, reads.form.chunks_per_shard
        places = chunks if reads.form.flat else [chunk % per_shard for chunk in chunks]
        return [Part(place, place * nbytes, nbytes) for place in places]


def simulate_reads(order: RunOrder, settings: ReadSettings) -> ReadFigures:
    """Return the reads of the first steps of a run, with cold caches at its start.

    Parameters
    ----------
    order
        The run; its order, and the chunk and shard layout of its stores, decide what is read.
    settings
        Loaders and their connection.

    Raises
    ------
    ConfigError
        If the run is shorter than one step.

    Notes
    -----
    Reads are those of ``zindex.loader`` from object stores: whole inner chunks, neighboring ones
    in one request, and an LRU cache per worker. Stores on a file system are treated alike, so the
    figures also give the pages that a shared file system must deliver. Not simulated: read-ahead of
    sequentially read blends, which moves reads to earlier batches, and the lengths of documents
    that each process reads once to compute a small index. Time: a round of requests of a batch
    takes the latency, all bytes of a node share its bandwidth.
    """
    size = settings.global_batch_size
    num_run_steps = len(order) // size
    if not num_run_steps:
        raise ConfigError(
            f"reads are simulated for whole steps, the run has {len(order):,} samples and a step "
            f"{size:,}; lower global_batch_size (--global-batch-size)"
        )
    steps = settings.steps
    num_steps = min(num_run_steps, max(1, MAX_SAMPLES // size))
    positions = np.arange(num_steps * size)
    reads = find_chunks(order, positions, settings.max_computed_rows)
    turn = settings.num_ranks * (settings.micro_batch_size or size // settings.num_ranks)
    batches = positions // turn * settings.num_ranks + steps.ranks_of(positions)
    table = _make_table(reads, batches)
    simulation = _Simulation(reads, settings, settings.cache_nbytes)
    simulation.run(table)
    others = {}
    for factor in _CACHE_FACTORS:
        other = _Simulation(reads, settings, int(factor * settings.cache_nbytes))
        other.run(table)
        hits, misses, nbytes = (
            sum(getattr(worker, name) for worker in other.workers)
            for name in ("num_hits", "num_misses", "nbytes")
        )
        others[other.caches[0].limit] = nbytes, hits / max(1, hits + misses)
    return _summarize(simulation, num_steps, num_run_steps, others)


def _make_table(reads: Sequence[ArrayReads], batches: Int64Array) -> AnyArray:
    """Return the chunks of each batch once: rows batch, round, array and chunk, sorted."""
    columns = []
    for number, read in enumerate(reads):
        pairs = np.unique(np.stack([batches[read.owners], read.chunks]), axis=1)
        same = np.full((2, pairs.shape[1]), [[read.round], [number]])
        columns.append(np.stack([pairs[0], *same, pairs[1]]))
    table = np.concatenate([np.empty((4, 0), np.int64), *columns], axis=1)
    return table[:, np.lexsort(table[::-1])]


def _summarize(
    simulation: _Simulation,
    num_steps: int,
    num_run_steps: int,
    others: dict[int, tuple[int, float]],
) -> ReadFigures:
    """Return the figures of a simulation."""
    settings, reads = simulation.settings, simulation.reads
    columns = np.array(simulation.batches).T
    batches, (nbytes, waits) = columns[0].astype(np.int64), columns[1:]
    turns, ranks = np.divmod(batches, settings.num_ranks)
    num_turns = int(turns.max()) + 1
    steps = turns * num_steps // num_turns
    nodes = ranks // (settings.num_ranks // settings.num_nodes)
    cells = nodes * num_steps + steps
    shape = settings.num_nodes, num_steps
    by_step = np.bincount(cells, nbytes, num_steps * settings.num_nodes).reshape(shape)
    # All workers of a node begin at once; the first batches are those of the first workers.
    opening = np.bincount(nodes, nbytes * (turns < settings.num_workers), settings.num_nodes)
    first_waits = np.zeros(settings.num_nodes)
    np.maximum.at(first_waits, nodes, waits * (turns == 0))
    first_seconds = first_waits + opening / settings.bandwidth
    is_ahead = turns < settings.num_workers * settings.prefetch
    workers_of = ranks * settings.num_workers + turns % settings.num_workers
    ahead_waits = np.bincount(workers_of, waits * is_ahead, len(simulation.workers))
    ahead_nbytes = np.bincount(nodes, nbytes * is_ahead, settings.num_nodes)
    by_node = ahead_waits.reshape(settings.num_nodes, -1).max(1)
    ahead_seconds = by_node + ahead_nbytes / settings.bandwidth
    later = steps >= num_steps // 2
    num_later = num_steps - num_steps // 2
    transfer = by_step[:, num_steps // 2 :].mean(1).max() / settings.bandwidth
    by_rank = np.bincount(ranks, waits * later, settings.num_ranks)
    waiting = by_rank.max() / num_later / settings.num_workers
    workers = simulation.workers
    return ReadFigures(
        settings=settings,
        num_steps=num_steps,
        num_run_steps=num_run_steps,
        nodes=tuple(
            _sum_node(number, workers, settings, float(first_seconds[number]))
            for number in range(settings.num_nodes)
        ),
        workers=tuple(workers),
        step_nbytes=tuple(by_step.mean(0).tolist()),
        array_nbytes={name: simulation.array_nbytes[name] for name in ROUNDS},
        useful_nbytes=sum(each.useful_nbytes for each in reads if each.name == "tokens"),
        is_compressed=any(not each.form.chain.plain for each in reads),
        first_batch_seconds=float(first_seconds.max()),
        ahead_seconds=float(ahead_seconds.max()),
        step_seconds=float(max(transfer, waiting)),
        limited_by="bandwidth" if transfer >= waiting else "latency",
        other_caches=others,
    )


def _sum_node(
    node: int, workers: Sequence[WorkerReads], settings: ReadSettings, first_seconds: float
) -> NodeReads:
    """Return the sums of the workers of a node."""
    per_node = settings.num_ranks // settings.num_nodes
    own = [worker for worker in workers if worker.rank // per_node == node]
    names = ("num_requests", "nbytes", "num_hits", "num_misses", "cache_nbytes")
    sums = {name: sum(getattr(worker, name) for worker in own) for name in names}
    return NodeReads(node, **sums, first_batch_seconds=first_seconds)
