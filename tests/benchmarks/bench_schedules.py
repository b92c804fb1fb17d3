"""Sequence packing: Megatron's scheduler against the balanced one, on the same lengths.

``python -m tests.benchmarks.bench_schedules --batches 400 --runs 3 --checkout Megatron-LM``

Global batches have random numbers of ranks and of sub-samples, whose lengths have one of several
distributions. The work of a sub-sample of n tokens is ``n * (n + 12 * 4096)``, the excess of a
batch that of the busiest rank over the mean. Without a checkout the rival is Megatron's rule in
plain Python. Planning is timed per sub-sample, the median of five times for each batch; schedulers
take turns, each in a process of its own.
"""

import gc
import json
import statistics
import time
from typing import Any, NamedTuple

import numpy as np

from tests.benchmarks.record import Record, Table, show
from tests.benchmarks.turns import MADE, make_parser, take_turns
from tests.samples.schedules.packing_process import import_schedules
from tests.samples.schedules.test_packs import pack_plainly
from zindex.arrays import Int64Array
from zindex.datasets.data_schedule import BalancedScheduler, DpBalancedScheduler
from zindex.samples.schedules.packs import PackRules

THEIRS, PLAIN = "megatron main, dp_balanced", "Python, in order"
IN_ORDER, BALANCED = "zindex, dp_balanced", "zindex, balanced"
LINEAR = 12 * 4096
_NUM_TIMES = 5
KINDS = ("lognormal", "uniform", "short", "heavy tail", "half to full")


class Batch(NamedTuple):
    """The sub-samples of a global batch, and the tokens and the number of ranks."""

    lengths: Int64Array
    limit: int
    num_ranks: int


def draw(generator: np.random.Generator, kind: str) -> Batch:
    """Return a global batch whose lengths have a distribution."""
    num_ranks, limit = int(generator.choice([2, 8, 32])), int(generator.choice([8192, 32768]))
    size = num_ranks * int(generator.integers(4, 64))
    if kind == "lognormal":
        lengths = np.exp(generator.normal(np.log(limit / 16), 1.2, size))
    elif kind == "uniform":
        lengths = generator.integers(1, limit + 1, size)
    elif kind == "short":
        lengths = generator.integers(1, limit // 32, size)
    elif kind == "heavy tail":
        is_long = generator.random(size) < 0.05
        lengths = np.where(is_long, limit, generator.integers(1, limit // 64, size))
    else:
        lengths = generator.integers(limit // 2, limit + 1, size)
    return Batch(np.clip(lengths, 1, limit).astype(np.int64), limit, num_ranks)


def find_scheduler(name: str, checkout: str) -> Any:
    """Return the scheduler of a contender; Megatron's is imported from a checkout."""
    if name == THEIRS:
        return import_schedules(checkout).DpBalancedScheduler
    return {PLAIN: _Plain, IN_ORDER: DpBalancedScheduler, BALANCED: BalancedScheduler}[name]


class _Plain(DpBalancedScheduler):
    """Megatron's rule in plain Python."""

    def get_groups_and_subsamples(self, sample_id_seqlens: Any) -> Any:
        lengths = [length for _, length in sample_id_seqlens]
        packs = pack_plainly(lengths, PackRules(self.max_seq_len_all_ranks, self.dp_size))
        assert packs is not None
        return self._share_packs(packs)


def plan(scheduler: Any, batch: Batch, num_times: int = 1) -> tuple[Any, float]:
    """Return the sub-samples of each micro-batch and rank, and the seconds that it takes.

    Their median if it is done several times, without collecting garbage, as by ``timeit``.
    """
    planner = scheduler(batch.limit, 1, batch.num_ranks, None)
    planner.linear = LINEAR
    numbered = list(enumerate(batch.lengths.tolist()))
    seconds = []
    gc.disable()
    for _ in range(num_times):
        start = time.perf_counter()
        groups = planner.get_groups_and_subsamples(numbered)
        seconds.append(time.perf_counter() - start)
    gc.enable()
    return groups, statistics.median(seconds)


def find_excess(groups: Any, batch: Batch) -> float:
    """Return the work of the busiest rank over the mean, less 1."""
    work = batch.lengths * (batch.lengths + LINEAR)
    ranks = np.array([[work[pack].sum() for pack in group] for group in groups]).sum(axis=0)
    return float(ranks.max() / ranks.mean() - 1)


def is_accepted(batch: Batch) -> bool:
    """Return whether Megatron packs a batch: it moves no sub-sample of the first pack."""
    packs = pack_plainly(batch.lengths.tolist(), PackRules(batch.limit, 1))
    assert packs is not None
    num_movable = sum(len(pack) - 1 for pack in packs[1:])
    return num_movable >= -len(packs) % batch.num_ranks


def run_worker(name: str, kind: str, num_batches: str, checkout: str) -> None:
    """Plan the batches of one distribution, and print the figures as JSON."""
    scheduler = find_scheduler(name, checkout)
    generator = np.random.default_rng(KINDS.index(kind))
    batches: list[Batch] = []
    while len(batches) < int(num_batches):
        batch = draw(generator, kind)
        batches += [batch] if is_accepted(batch) else []
    for batch in batches[:3]:
        plan(scheduler, batch)  # compiles
    found = [plan(scheduler, batch, _NUM_TIMES) for batch in batches]
    excess = [find_excess(plans, batch) for (plans, _), batch in zip(found, batches, strict=True)]
    in_order = [find_excess(plan(_Plain, batch)[0], batch) for batch in batches]
    figures = {
        "median_excess_share": float(np.median(excess)),
        "worst_excess_share": max(excess),
        "above_in_order_share": float((np.array(excess) > np.array(in_order) + 1e-12).mean()),
        "num_micro_batches": sum(len(plans) for plans, _ in found),
        "sub_sample_ns": 1e9
        * sum(seconds for _, seconds in found)
        / sum(len(batch.lengths) for batch in batches),
    }
    print(json.dumps(figures | {MADE: {}}))


def compare(kind: str, num_batches: int, num_runs: int, checkout: str) -> Table:
    """Return the table of one distribution."""
    contenders = (THEIRS if checkout else PLAIN, IN_ORDER, BALANCED)
    return Table.of_runs(
        kind.replace(" ", "-"),
        f"packing {num_batches} global batches of {kind} lengths",
        take_turns(__spec__.name, contenders, num_runs, kind, num_batches, checkout),
        rival=contenders[0],
        ratio_of="sub_sample_ns",
    )


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, num_worker_arguments=4)
    parser.add_argument("--batches", type=int, default=400, help="of each distribution")
    parser.add_argument("--checkout", default="", help="of NVIDIA/Megatron-LM, for its scheduler")
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker)
        return
    tables = []
    for kind in KINDS:
        tables.append(compare(kind, arguments.batches, arguments.runs, arguments.checkout))
        show(tables[-1])
    Record.of("bench_schedules", tables, arguments.folder).write(arguments.json)


if __name__ == "__main__":
    main()
