"""What growing stores must do in every object store."""

from pathlib import Path
from threading import Thread

from tests.cli.commands import succeed
from tests.cloud.servers import Bucket
from tests.growing.rollouts import grow, numbers_of, rollout
from zindex.growing.compaction import compact
from zindex.growing.eviction import evict, find_unused, remove_unused
from zindex.growing.growing_log import GrowingLog
from zindex.growing.inspection import verify_growing
from zindex.growing.writer import GrowingWriter, append
from zindex.keyed import DatasetFactory
from zindex.keyed.growing_dataset import GrowingDataset, growing_loader


def write(store: str, worker: int) -> None:
    """Append a worker's records, two in each generation."""
    with GrowingWriter(store, max_records=2) as writer:
        for number in range(8):
            writer.add(rollout(10 * worker + number))


def read(store: str) -> list[list[int]]:
    dataset = GrowingDataset("grpo", store, round_size=8, patience=30, num_samples=16)
    return [numbers_of(batch) for batch in growing_loader(dataset, 4, rank=0, num_ranks=1)]


class GrowingContract:
    """Run against a ``bucket`` of a server."""

    def test_writers_and_readers_share_a_store(self, bucket: Bucket) -> None:
        store = f"{bucket.url}/rollouts"
        writers = [Thread(target=write, args=(store, worker)) for worker in range(2)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert append(store, [rollout(99)], key="once") == 9
        assert append(store, [rollout(99)], key="once") == 9
        batches = read(store)
        drawn = {number for batch in batches for number in batch}
        assert len(drawn) == 16
        assert drawn < {*range(8), *range(10, 18), 99}
        assert compact(store) == 1
        assert read(store) == batches
        evict(store, keep_generations=1)
        assert find_unused(store) == []  # too young
        remove_unused(find_unused(store, hours=-1))
        assert not bucket.keys("rollouts/_zindex/files/")
        assert read(store) == batches
        assert verify_growing(store).is_sound
        assert "growing store" in succeed("info", store)
        assert len(DatasetFactory.load("grpo", store, 1)) == 1

    def test_readers_follow_the_head(self, bucket: Bucket) -> None:
        store = f"{bucket.url}/rollouts"
        grow(store, range(3))
        log = GrowingLog(store)
        assert not log.advance()
        for number in range(3, 12):
            grow(store, [number])
        assert log.advance()
        assert log.history.number == 10

    def test_a_copy_on_disk_is_the_same_store(self, bucket: Bucket, tmp_path: Path) -> None:
        store = f"{bucket.url}/rollouts"
        for first in (0, 8):
            grow(store, range(first, first + 8))
        batches = read(store)
        for key, content in bucket.contents("rollouts/").items():
            path = tmp_path / "copy" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        assert read(str(tmp_path / "copy")) == batches
