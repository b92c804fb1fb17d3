"""Writers, readers and a compactor of a growing store that are killed and started again.

``python -m tests.harnesses.growth --trials 200 --seed 0``

Each trial forks up to three writers, one or two ranks of a reader, and a compactor that also
evicts. Some are killed at random moments, some before one of their calls to the file system, and
all are started again until the work is done. Then every generation must be there once, each rank
must have read the same records at the same positions in all its lives, each round must follow from
the log, and replays must be equal: at once, and after all is compacted, evicted and collected.
"""

import itertools
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.harnesses.interception import CLIENT, intercepted
from tests.harnesses.running import report, run_trials
from tests.killing import exit_code, fork, kill_process
from zindex.errors import NotReadyError
from zindex.growing.compaction import compact
from zindex.growing.eviction import evict, find_unused, remove_unused
from zindex.growing.growing_log import GrowingLog, is_growing
from zindex.growing.history import History, parse_entry
from zindex.growing.inspection import verify_growing
from zindex.growing.rounds import Round, RoundJournal, RoundRules
from zindex.growing.writer import append
from zindex.keyed.growing_dataset import GrowingDataset, growing_loader
from zindex.keyed.growing_store import GrowingStore

Record = dict[str, Any]
_PATIENCE = 0.1
# Mean seconds between two kills, and calls before which a process may be killed.
_PAUSE, _MAX_CALLS = 0.03, 400


def make_record(writer: int, number: int, place: int) -> Record:
    """Return a record that its first values identify."""
    sizes = [1 + (writer + number) % 3, 1 + place % 4]
    responses = [[100 * writer + number] * size for size in sizes]
    return {
        "prompts": [writer, number, place],
        "responses": responses,
        "masks": [[1] * size for size in sizes],
        "rewards": [float(number), float(place)],
        "logprobs": [[0.5 * number] * size for size in sizes],
    }


@dataclass(frozen=True)
class Plan:
    """What the processes of a trial do."""

    folder: Path
    #: Records of each generation of each writer.
    sizes: tuple[tuple[int, ...], ...]
    num_ranks: int
    batch_size: int
    rules: RoundRules
    #: Whether old generations are evicted meanwhile.
    evicts: bool

    @property
    def store(self) -> Path:
        """The store."""
        return self.folder / "store"

    def open_reader(self, num_samples: int | None = None) -> GrowingDataset:
        """Open the rounds."""
        return GrowingDataset(
            "grpo", self.store, **asdict(self.rules), patience=_PATIENCE, num_samples=num_samples
        )

    def is_over(self) -> bool:
        """Return whether all writers have finished."""
        return all((self.folder / f"done-{i}").exists() for i in range(len(self.sizes)))


def write(plan: Plan, writer: int) -> None:
    """Append all generations of a writer, from the first on."""
    for number, size in enumerate(plan.sizes[writer]):
        records = [make_record(writer, number, place) for place in range(size)]
        append(plan.store, records, version=number // 2, key=f"{writer}/{number}")
    (plan.folder / f"done-{writer}").touch()


def read(plan: Plan, rank: int) -> None:
    """Read batches from the last state on, and note what they have."""
    while not is_growing(plan.store):
        time.sleep(0.002)
    path, log = plan.folder / f"state-{rank}", plan.folder / f"log-{rank}"
    batches = growing_loader(
        plan.open_reader(), plan.batch_size, rank=rank, num_ranks=plan.num_ranks
    )
    if path.exists():
        batches.load_state_dict(json.loads(path.read_bytes()))
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    while True:
        was_over, position = plan.is_over(), batches.consumed_samples
        try:
            batch = next(iter(batches))
        except NotReadyError:
            if was_over:
                return
            continue
        os.write(lines, json.dumps([position, identify(batch)]).encode() + b"\n")
        path.with_suffix(".new").write_text(json.dumps(batches.state_dict()))
        os.replace(path.with_suffix(".new"), path)


def identify(batch: dict[str, torch.Tensor]) -> list[list[int]]:
    """Return which records a batch has, after checking all their values."""
    found: list[list[int]] = batch["prompts"].tolist()
    for row, (writer, number, place) in enumerate(found):
        record = make_record(writer, number, place)
        assert batch["policy_version"][row] == number // 2
        assert batch["rewards"][row].tolist() == record["rewards"]
        for name in ("responses", "masks", "logprobs"):
            for item, values in enumerate(record[name]):
                assert batch[name][row, item, : len(values)].tolist() == values
                assert not batch[name][row, item, len(values) :].any()
    return found


def maintain(plan: Plan) -> None:
    """Compact, evict and look for garbage until the writers have finished."""
    while not plan.is_over():
        with suppress(FileNotFoundError):  # not made yet
            compact(plan.store, min_count=2)
            if plan.evicts:
                evict(plan.store, keep_versions=3)
            remove_unused(find_unused(plan.store))
        time.sleep(0.005)


def draw_plan(rng: random.Random, folder: Path) -> Plan:
    """Draw what a trial does."""
    num_ranks, batch_size = rng.choice((1, 2)), rng.randint(1, 3)
    sizes = [
        tuple(rng.randint(1, 5) for _ in range(rng.randint(3, 8)))
        for _ in range(rng.choice((1, 2, 2, 3)))
    ]
    rules = RoundRules(
        num_ranks * batch_size * rng.randint(1, 2),
        staleness=rng.choice((None, None, 1, 2)),
        priority=rng.choice(("new", "old")),
        num_uses=rng.choice((1, 1, 2)),
        shuffle=rng.random() < 0.8,
        seed=rng.randrange(100),
    )
    return Plan(folder, tuple(sizes), num_ranks, batch_size, rules, rng.random() < 0.3)


def trial(rng: random.Random) -> str:
    """Kill processes of one store until it is complete."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # forks do not inherit threads
    try:
        with tempfile.TemporaryDirectory() as work:
            plan = draw_plan(rng, Path(work))
            num_deaths = _run(plan, rng)
            assert exit_code(fork(lambda: check(plan))) == 0
    finally:
        torch.set_num_threads(num_threads)
    return f"deaths {num_deaths}"


def _run(plan: Plan, rng: random.Random) -> int:
    """Run all processes to their end, and return how many deaths there were."""
    works: dict[str, Callable[[], object]] = {"compactor": lambda: maintain(plan)}
    for writer in range(len(plan.sizes)):
        works[f"writer {writer}"] = lambda writer=writer: write(plan, writer)
    for rank in range(plan.num_ranks):
        works[f"rank {rank}"] = lambda rank=rank: read(plan, rank)
    num_kills, num_deaths = rng.randint(3, 9), 0
    running = {fork(_dying(plan, work, rng, num_kills)): name for name, work in works.items()}
    next_kill = time.monotonic() + rng.expovariate(1 / _PAUSE)
    try:
        while running:
            # Not of any child: this process may have others.
            ended = (os.waitpid(child, os.WNOHANG) for child in running)
            child, status = next((found for found in ended if found[0]), (0, 0))
            if child:
                name, code = running.pop(child), os.waitstatus_to_exitcode(status)
                assert code in (0, -signal.SIGKILL), f"{name} ended with {code}"
                if code:
                    num_deaths += 1
                    again = _dying(plan, works[name], rng, num_kills - num_deaths)
                    running[fork(again)] = name
            elif num_deaths < num_kills and time.monotonic() > next_kill:
                os.kill(rng.choice(sorted(running)), signal.SIGKILL)
                next_kill = time.monotonic() + rng.expovariate(1 / _PAUSE)
            else:
                time.sleep(0.001)
    finally:
        for child in running:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            exit_code(child)
    return num_deaths


def _dying(
    plan: Plan, work: Callable[[], object], rng: random.Random, num_left: int
) -> Callable[[], object]:
    """Return work that may die before one of its calls, if kills are left."""
    if num_left <= 0 or rng.random() < 0.5:
        return work
    last, numbers = rng.randrange(_MAX_CALLS), itertools.count()

    def count(name: str, call: Callable[[], Any], *args: Any, **settings: Any) -> Any:
        if next(numbers) == last:
            kill_process()
        return call()

    def run() -> None:
        CLIENT.set(0)
        with intercepted(count, str(plan.store)):
            work()

    return run


def check(plan: Plan) -> None:
    """Check the store and what was read."""
    log = GrowingLog(plan.store)
    _check_generations(plan, log)
    rounds = _check_rounds(plan, log)
    seen = dict(_read_logs(plan))
    num_samples = len(rounds) * plan.rules.round_size
    assert len(seen) == num_samples
    if not rounds:  # all records were stale before there were enough
        return
    uses = [tuple(item) for item in seen.values()]
    assert all(uses.count(item) <= plan.rules.num_uses for item in uses)
    assert replay(plan, num_samples) == seen
    compact(plan.store, min_count=2)
    assert replay(plan, num_samples) == seen
    evict(plan.store, keep_generations=1)
    remove_unused(find_unused(plan.store, hours=-1))

    assert replay(plan, num_samples) == seen
    report = verify_growing(plan.store)
    assert report.is_sound, report.damages


def _check_generations(plan: Plan, log: GrowingLog) -> None:
    """Check that each append was committed once, with all its records one after the other."""
    chosen = np.arange(log.history.num_generations)
    store = GrowingStore.over(log, chosen, is_dense=True)
    found = store.fetch(0, len(store.column("prompts").values), "prompts").reshape(-1, 3)  # type: ignore[arg-type]
    expected = {
        (writer, number): size
        for writer, sizes in enumerate(plan.sizes)
        for number, size in enumerate(sizes)
    }
    offset = log.history.record_offset.tolist()
    for first, last in itertools.pairwise(offset):
        rows = found[first:last].tolist()
        writer, number, _ = rows[0]
        assert expected.pop((writer, number)) == len(rows)
        assert rows == [[writer, number, place] for place in range(len(rows))]
    assert not expected


def _check_rounds(plan: Plan, log: GrowingLog) -> list[Round]:
    """Check that the rules give each round from the log up to its generation."""
    journal = RoundJournal(log, "train", plan.rules)
    contents = [*log.log.read_after(0)]
    rounds: list[Round] = []
    while (found := journal.read(len(rounds))) is not None:
        history = History(len(log.schema.fields))
        for at, content in enumerate(contents[: found.generation], 1):
            history.add(at, parse_entry(content, "a commit"))
        assert plan.rules.choose(history, rounds[-1] if rounds else None) == found
        rounds.append(found)
    return rounds


def _read_logs(plan: Plan) -> Iterator[tuple[int, list[int]]]:
    """Yield position and record of each sample that a rank has read, the same in all its lives."""
    seen: dict[int, list[int]] = {}
    for rank in range(plan.num_ranks):
        for line in (plan.folder / f"log-{rank}").read_text().splitlines():
            position, records = json.loads(line)
            for place, record in enumerate(records, position + rank * plan.batch_size):
                assert seen.setdefault(place, record) == record, place
    yield from seen.items()


def replay(plan: Plan, num_samples: int) -> dict[int, list[int]]:
    """Read all samples by one rank in batches of another size."""
    batches = growing_loader(plan.open_reader(num_samples), 5, rank=0, num_ranks=1)
    found = [record for batch in batches for record in identify(batch)]
    return dict(enumerate(found))


if __name__ == "__main__":
    raise SystemExit(report(partial(run_trials, trial, seconds=120)))
