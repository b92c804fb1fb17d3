"""What every object store must do: the same tests for every server."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.cli.commands import succeed
from tests.cloud.servers import CANARY, Bucket
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.damage import flipped
from tests.indexing.runs import GRID, LENGTHS, make_config
from tests.store.stores import ONE, count_up, plan_arrays
from tests.trees import all_files
from zindex.config import DatasetConfig
from zindex.datasets.run_datasets import open_run
from zindex.errors import NotReadyError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.inspection.tables.plan_table import report_run
from zindex.io import files
from zindex.io.objects import place_of
from zindex.maintenance.repairs.repair import repair
from zindex.store.commit import begin_store
from zindex.store.layout import ChunkGrid
from zindex.store.shard_files import store_shard
from zindex.store.verify import verify_store

SERIAL = SerialExecutor()


class ObjectStoreContract:
    """Run against a ``bucket`` of a server."""

    def test_a_file_is_written_once(self, bucket: Bucket) -> None:
        path = place_of(f"{bucket.url}/a folder/ü%41.json")
        assert not files.exists(path)
        assert files.write_once(path, [b"one ", memoryview(b"two")])
        assert not files.write_once(path, [b"other"])
        assert files.read_file(path) == b"one two"
        assert bucket.keys() == ["a folder/ü%41.json"]
        assert files.write_once(path, [b"better"], replace=True)
        assert files.read_file(path) == b"better"
        assert files.file_nbytes(path) == 6
        assert bytes(files.read_range(path, 1, 4)) == b"ett"
        assert bytes(files.read_range(path, 4, 40)) == b"er"
        assert bytes(files.read_range(path, 40, 44)) == b""
        files.remove_file(path)
        files.remove_file(path)
        with pytest.raises(
            StoreNotFoundError, match=r"no object \w+://.*/ü%41.json; check the URL"
        ):
            files.read_file(path)

    def test_names_are_listed(self, bucket: Bucket) -> None:
        root = place_of(bucket.url)
        assert files.list_names(root) == set()
        for key in ("a/c/0", "a/c/1", "a/c/2/0", "ab/c/5", "a/zarr.json"):
            files.write_once(root / key, [b"x"])
        assert files.list_names(root) == {"a", "ab"}
        assert files.list_names(root / "a") == {"c", "zarr.json"}
        assert files.list_names(root / "nothing") == set()
        assert set(files.list_keys(root / "a" / "c")) == {"0", "1"}
        assert set(files.list_keys(root / "a" / "c", depth=2)) == {"2/0"}

    def test_a_corpus_comes_back_byte_for_byte(
        self, bucket: Bucket, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        prefix = write_corpus(LENGTHS, sequences_per_document=3)
        [store] = zindex.convert(prefix, f"{bucket.url}/corpus.zarr", client=SERIAL, grid=GRID)
        [plain] = zindex.convert(prefix, tmp_path / "corpus.zarr", client=SERIAL, grid=GRID)
        assert store.fingerprint == plain.fingerprint
        assert bucket.contents("corpus.zarr/") == all_files(Path(plain.root))
        zindex.export(store.root, tmp_path / "back", client=SERIAL)
        for suffix in ("bin", "idx"):
            back = (tmp_path / f"back.{suffix}").read_bytes()
            assert back == Path(f"{prefix}.{suffix}").read_bytes()

    @pytest.mark.parametrize(
        ("order", "store", "codec"),
        [("megatron", "all", "none"), ("scalable", "all", "zstd"), ("scalable", "minimal", "none")],
    )
    def test_a_run_gives_the_same_samples_as_on_disk(
        self,
        bucket: Bucket,
        write_corpus: WriteCorpus,
        tmp_path: Path,
        order: Any,
        store: Any,
        codec: Any,
    ) -> None:
        prefixes = [write_corpus(LENGTHS, name="a"), write_corpus([9] * 12, name="b")]
        settings: dict[str, Any] = {
            "order": order,
            "store": store,
            "samples": {"train": 40, "valid": 3},
            "grid": ChunkGrid(4, 16, codec),
        }
        samples = []
        for place in (bucket.url, str(tmp_path)):
            zindex.convert(prefixes, place, client=SERIAL, grid=ChunkGrid(8, 32, codec))
            members = [DatasetConfig(f"{place}/{name}.zarr", weight=1.5) for name in "ab"]
            config = make_config(tmp_path, *members, index=f"{place}/index", **settings)
            assert not report_run(config).rows[0].committed
            zindex.build(config, SERIAL)
            report = report_run(config)
            assert all(row.committed for row in (*report.rows, *report.blends))
            assert report.fits
            datasets = open_run(config, FakeTokenizer())
            samples.append(
                {
                    split: [dataset[i] for i in range(len(dataset))]
                    for split, dataset in datasets.items()
                }
            )
        remote, local = samples
        assert remote.keys() == local.keys() >= {"train", "valid"}
        for split, items in local.items():
            assert len(remote[split]) == len(items) > 0
            for got, expected in zip(remote[split], items, strict=True):
                assert got.keys() == expected.keys()
                for name in expected:
                    np.testing.assert_array_equal(got[name], expected[name])

    def test_an_interrupted_build_goes_on_from_its_shards(
        self, bucket: Bucket, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        config = make_config(
            tmp_path, write_corpus(LENGTHS), index=f"{bucket.url}/index", order="scalable"
        )
        first = next(iter(zindex.build(config, SERIAL).values()))
        prefix = f"index/{first.store.root.name}/"
        whole = bucket.contents(prefix)
        shards = sorted(key for key in whole if "/c/" in key)
        bucket.remove(f"{prefix}zarr.json", f"{prefix}{shards[0]}", f"{prefix}{shards[-1]}")
        bucket.write(f"{prefix}{shards[1]}", whole[shards[1]][:-3])
        with pytest.raises(NotReadyError, match=rf"{len(shards) - 2} of {len(shards)} shards"):
            zindex.open_store(first.store.root)
        again = next(iter(zindex.build(config, SERIAL).values()))
        assert (again.num_written, again.num_shards) == (3, len(shards))
        assert bucket.contents(prefix) == whole

    def test_a_store_is_followed_while_it_is_built(self, bucket: Bucket) -> None:
        plan = begin_store(plan_arrays(place_of(f"{bucket.url}/store"), {ONE: count_up(10)}))
        [layout] = plan.layouts
        store = zindex.open_store(plan.root, follow=0.1)
        store_shard(plan.root, layout, 0, lambda: count_up(10)[:6])
        assert store["one"][4:6].tolist() == [4, 5]
        with pytest.raises(NotReadyError, match=r"store"):
            store["one"][6]
        store_shard(plan.root, layout, 1, lambda: count_up(10)[6:])
        np.testing.assert_array_equal(store["one"], count_up(10))

    def test_damage_is_found_and_repaired(self, bucket: Bucket, write_corpus: WriteCorpus) -> None:
        prefix = write_corpus(LENGTHS)
        [store] = zindex.convert(prefix, f"{bucket.url}/corpus.zarr", client=SERIAL, grid=GRID)
        assert verify_store(store.root).is_sound
        whole = bucket.contents()
        bucket.write("corpus.zarr/tokens/c/3", flipped(whole["corpus.zarr/tokens/c/3"], 5))
        bucket.remove("corpus.zarr/tokens/c/7")
        report = verify_store(store.root)
        assert [damage.key for damage in report.damages] == ["tokens/c/3", "tokens/c/7"]
        repair(store.root, source=prefix)
        assert bucket.contents() == whole
        assert verify_store(store.root).is_sound

    def test_commands_take_urls(
        self, bucket: Bucket, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        prefix, url = write_corpus(LENGTHS), f"{bucket.url}/corpus.zarr"
        run_file = tmp_path / "run.yaml"
        run_file.write_text(
            f"datasets: [{url}]\nsequence_length: 4\nsplit: '100,0,0'\nindex: {bucket.url}/index\n"
        )

        succeed("convert", prefix, url)
        assert f"any amount free at {bucket.url}/index" in succeed("plan", run_file)
        succeed("build", run_file)
        assert "1 of them built" in succeed("plan", run_file)
        succeed("verify", url, f"{bucket.url}/index")
        succeed("export", url, tmp_path / "back")
        assert (tmp_path / "back.bin").read_bytes() == Path(f"{prefix}.bin").read_bytes()

    def test_nothing_there(self, bucket: Bucket) -> None:
        with pytest.raises(StoreNotFoundError, match=rf"no zindex store at {bucket.url}/corpus;"):
            zindex.open_store(f"{bucket.url}/corpus")

    def test_no_secret_is_pickled_shown_or_stored(
        self, bucket: Bucket, write_corpus: WriteCorpus
    ) -> None:
        [store] = zindex.convert(
            write_corpus(LENGTHS), f"{bucket.url}/corpus.zarr", client=SERIAL, grid=GRID
        )
        reader = store["tokens"]
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(reader)), np.arange(60))
        for secret in (CANARY, bucket.secret):
            for thing in (store, reader, store.root):
                assert secret.encode() not in pickle.dumps(thing)
                assert secret not in repr(thing)
            assert not any(secret.encode() in value for value in bucket.contents().values())
