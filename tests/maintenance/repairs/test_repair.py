"""All damage of a committed store is found and rebuilt, and nothing else is written."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.conftest import WriteCorpus
from tests.damage import flip
from tests.indexing.runs import LENGTHS, make_config
from tests.store.stores import ONE, build_arrays, count_up
from tests.trees import all_files
from zindex.config import DatasetConfig
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    NotReadyError,
    SourceError,
    StoreError,
    StoreNotFoundError,
    VerificationError,
)
from zindex.execution.executor import SerialExecutor
from zindex.ingest.convert import convert
from zindex.maintenance.repairs.repair import RepairResult, repair
from zindex.plan.packing import PackingRules
from zindex.store.commit import canonical_json, fingerprint
from zindex.store.layout import ChunkGrid, PaddedGrid
from zindex.store.verify import verify_store

#: Kind of store, and settings of the run or of the conversion that makes it.
STORES: dict[str, tuple[str, dict[str, Any]]] = {
    "tokens": ("tokens", {}),
    "tokens, zstd": ("tokens", {"grid": ChunkGrid(4, 16, "zstd")}),
    "link": ("tokens", {"link": True}),
    "megatron": ("gpt", {}),
    "megatron, last epoch apart": ("gpt", {"samples": {"train": 20}}),
    "scalable": ("gpt", {"order": "scalable"}),
    "scalable, zstd": ("gpt", {"order": "scalable", "grid": ChunkGrid(2, 4, "zstd")}),
    "megatron, of an earlier version": ("gpt", {"grid": PaddedGrid()}),
    "minimal": ("gpt", {"order": "scalable", "store": "minimal"}),
    "packed": ("packed", {"packing": PackingRules(3), "samples": {"train": 40}}),
    "packed, of an earlier version": ("packed", {"packing": PackingRules(), "grid": PaddedGrid()}),
    "packed, minimal": ("packed", {"packing": PackingRules(), "store": "minimal"}),
    "greedy": ("blend", {"grid": ChunkGrid(4, 8)}),
    "greedy, by sizes": ("blend", {"blend": "sizes"}),
    "keyed": ("blend", {"order": "scalable", "grid": ChunkGrid(4, 8)}),
    "keyed, minimal": ("blend", {"order": "scalable", "store": "minimal"}),
    "keyed, by sizes": ("blend", {"order": "scalable", "blend": "sizes"}),
    "uniform": ("blend", {"order": "scalable", "shuffle": "uniform", "grid": ChunkGrid(4, 8)}),
}
#: A byte of a large corpus that no digest covers, in its second shard.
UNSAMPLED = 100_000


class Case:
    """A committed store, its source, and its bytes."""

    def __init__(
        self, folder: Path, name: str, write_corpus: WriteCorpus, lengths: list[int], **grid: Any
    ) -> None:
        kind, settings = STORES[name]
        settings = settings | grid
        prefixes = [write_corpus(lengths * n, name=f"corpus-{n}") for n in (1, 2)]
        self.source: str | None = prefixes[0]
        self.config = None
        if kind == "tokens":
            settings = {"grid": ChunkGrid(4, 16)} | settings
            (store,) = convert(prefixes[0], folder / "made", client=SerialExecutor(), **settings)
            self.root = Path(str(store.root))
        else:
            members: list[Any] = [prefixes[0]]
            if kind == "blend":
                weights = (3.0, 1.0) if "blend" not in settings else (None, None)
                members = [
                    DatasetConfig(path, weight=weight)
                    for path, weight in zip(prefixes, weights, strict=True)
                ]
                settings = {"samples": {"train": 41}} | settings
                self.source = None
            own = {"split": "100,0,0"} | settings
            self.config = make_config(folder, *members, **own)
            results = zindex.build(self.config, SerialExecutor())
            key = (None if kind == "blend" else prefixes[0], "train")
            self.root = Path(str(results[key].store.root))
        self.golden = all_files(self.root)
        self.shards = [key for key in self.golden if "/c/" in key]
        self.metadata = [key for key in self.golden if key.endswith("zarr.json")]
        self.metadata += ["_zindex/plan.json", "_zindex/manifest.json"]

    def stamps(self) -> dict[str, int]:
        """Return the inode of every file: it changes when a file is replaced."""
        return {key: (self.root / key).stat().st_ino for key in self.golden}

    def repair(self, **settings: Any) -> RepairResult:
        """Repair the store, or its run where only that has the weights."""
        weights = self.root / "dataset_weight/c/0"
        key = "dataset_weight/c/0"
        if key in self.golden and (
            not weights.exists() or weights.read_bytes() != self.golden[key]
        ):
            results = repair(self.config, **settings)
            return next(result for result in results if result.root == self.root)
        (result,) = repair(self.root, **({"source": self.source} | settings))
        return result

    def check_repair(self, damaged: set[str]) -> None:
        """Check that verify reports exactly the damaged files, and that only they are rebuilt."""
        found = {damage.key for damage in verify_store(self.root).damages}
        assert found == damaged
        before = {key: stamp for key, stamp in self.present_stamps().items() if key not in damaged}
        result = self.repair()
        assert set(result.rebuilt) == damaged
        assert result.num_rebuilt == len(damaged & set(self.shards))
        assert result.num_shards == len(self.shards)
        assert all_files(self.root) == self.golden
        after = self.stamps()
        assert {key: after[key] for key in before} == before
        assert verify_store(self.root).is_sound

    def present_stamps(self) -> dict[str, int]:
        files = {key: self.root / key for key in self.golden}
        return {key: path.stat().st_ino for key, path in files.items() if path.exists()}

    def harm(self, rng: np.random.Generator) -> set[str]:
        """Damage files such that a repair is possible; return their keys."""
        kind = rng.choice(["flip", "truncate", "delete", "extend", "swap", "zeros"])
        keys = self.shards if kind == "swap" or rng.random() < 0.7 else self.metadata
        key = str(rng.choice(keys))
        path, content = self.root / key, self.golden[key]
        if kind == "swap":
            other = str(rng.choice(self.shards))
            if content == self.golden[other]:
                return set()
            path.write_bytes(self.golden[other])
            (self.root / other).write_bytes(content)
            return {key, other}
        if kind == "delete":
            path.unlink()
        else:
            changed = bytearray(content)
            if kind == "flip":
                changed[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
            elif kind == "truncate":
                del changed[int(rng.integers(len(content))) :]
            elif kind == "extend":
                changed += rng.bytes(int(rng.integers(1, 40)))
            else:
                changed = bytearray(len(content))
            path.write_bytes(changed)
        return {key}


@pytest.fixture
def make_case(tmp_path: Path, write_corpus: WriteCorpus) -> Callable[[str], Case]:
    return lambda name: Case(tmp_path, name, write_corpus, LENGTHS)


@pytest.fixture
def large(tmp_path: Path, write_corpus: WriteCorpus) -> Case:
    """Tokens in 3 shards of 64 KiB; the digest in their plan samples only the first."""
    grid = ChunkGrid(4096, 16_384)
    return Case(tmp_path, "tokens", write_corpus, [40_000], grid=grid)


@pytest.mark.parametrize("name", STORES)
def test_damage_is_reported_and_only_that_is_rebuilt(
    name: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(name)
    rng = np.random.default_rng(list(name.encode()))
    for _ in range(10):
        case.check_repair(case.harm(rng))


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_thousands_of_damages(name: str, make_case: Callable[[str], Case]) -> None:
    case = make_case(name)
    rng = np.random.default_rng([1, *name.encode()])
    for _ in range(-(-10_000 // len(STORES))):
        case.check_repair(case.harm(rng))


@pytest.mark.parametrize("name", STORES)
def test_all_shards_are_damaged(name: str, make_case: Callable[[str], Case]) -> None:
    case = make_case(name)
    for key in case.shards:
        (case.root / key).unlink()
    case.check_repair(set(case.shards))


@pytest.mark.parametrize("name", STORES)
def test_without_root_and_manifest_every_shard_is_recomputed_and_compared(
    name: str, make_case: Callable[[str], Case]
) -> None:
    """Swapped shards pass their own checksums."""
    case = make_case(name)
    (case.root / "zarr.json").write_bytes(b"{")
    (case.root / "_zindex/manifest.json").unlink()
    harmed = {"zarr.json", "_zindex/manifest.json"}
    long = ("tokens/", "shuffle_index/", "dataset_sample_index/")
    keys = [key for key in case.shards if key.startswith(long)]
    if len(keys) > 1 and case.golden[keys[0]] != case.golden[keys[1]]:
        harmed |= {keys[0], keys[1]}
        (case.root / keys[0]).write_bytes(case.golden[keys[1]])
        (case.root / keys[1]).write_bytes(case.golden[keys[0]])
    assert set(case.repair().rebuilt) == harmed
    assert all_files(case.root) == case.golden
    assert verify_store(case.root).is_sound


def test_swapped_shards_and_no_manifest(make_case: Callable[[str], Case]) -> None:
    """The root proves that something is wrong, and no more."""
    case = make_case("greedy")
    first, second = "dataset_sample_index/c/0", "dataset_sample_index/c/1"
    (case.root / first).write_bytes(case.golden[second])
    (case.root / second).write_bytes(case.golden[first])
    (case.root / "_zindex/manifest.json").unlink()
    assert set(case.repair().rebuilt) == {first, second, "_zindex/manifest.json"}
    assert all_files(case.root) == case.golden


def test_a_changed_manifest_is_not_trusted(make_case: Callable[[str], Case]) -> None:
    case = make_case("megatron")
    path = case.root / "_zindex/manifest.json"
    rows = json.loads(path.read_bytes())
    rows["sample_index"][0][1] += 1
    path.write_bytes(canonical_json(rows).encode())
    assert case.repair().rebuilt == ("_zindex/manifest.json",)
    path.write_bytes(canonical_json(rows).encode())
    (case.root / "zarr.json").unlink()
    assert set(case.repair().rebuilt) >= {"_zindex/manifest.json", "zarr.json"}
    assert all_files(case.root) == case.golden


def test_folders_in_place_of_a_shard_and_of_the_root(make_case: Callable[[str], Case]) -> None:
    case = make_case("megatron")
    damaged = {case.shards[0], "zarr.json"}
    for key in damaged:
        (case.root / key).unlink()
        (case.root / key / "empty").mkdir(parents=True)
    case.check_repair(damaged)


def test_a_sound_store_is_not_written(make_case: Callable[[str], Case]) -> None:
    case = make_case("scalable")
    before = case.stamps()
    result = case.repair(source=None)
    assert (result.rebuilt, result.num_rebuilt, result.num_shards) == ((), 0, len(case.shards))
    assert case.stamps() == before


def test_files_of_a_killed_repair_are_removed_and_not_damage(
    make_case: Callable[[str], Case],
) -> None:
    case = make_case("scalable")
    left = case.root / "_zindex/repair/gpt-train/shuffle_index/c/1"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half a sh")
    report = verify_store(case.root)
    assert report.is_sound
    assert not report.notes
    (case.root / "shuffle_index/c/1").unlink()
    assert case.repair().rebuilt == ("shuffle_index/c/1",)
    assert all_files(case.root) == case.golden
    # Those of a repair that died after it had put everything in place.
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half a sh")
    assert case.repair().rebuilt == ()
    assert all_files(case.root) == case.golden


def test_pure_functions_of_the_plan_need_no_source(make_case: Callable[[str], Case]) -> None:
    case = make_case("megatron")
    for key in ("document_index/c/0", "shuffle_index/c/1", "zarr.json", "_zindex/plan.json"):
        (case.root / key).unlink()
        assert case.repair(source=None).rebuilt == (key,)
    assert all_files(case.root) == case.golden


def test_a_run_names_the_sources(make_case: Callable[[str], Case], tmp_path: Path) -> None:
    case = make_case("greedy")
    assert case.config is not None
    samples = sorted((tmp_path / "index").glob("gpt-*/sample_index/c/0/0"))
    assert len(samples) == 2
    golden = [path.read_bytes() for path in samples]
    for path in samples:
        path.write_bytes(b"")
    results = repair(case.config)
    assert sorted(result.num_rebuilt for result in results) == [0, 1, 1]
    assert [path.read_bytes() for path in samples] == golden
    # Only the run has the plan of the store.
    for key in ("zarr.json", "_zindex/plan.json"):
        (case.root / key).write_bytes(b"")
    with pytest.raises(VerificationError, match=r"plan.json .* both are damaged; name"):
        repair(case.root)
    (result,) = [result for result in repair(case.config) if result.rebuilt]
    assert set(result.rebuilt) == {"zarr.json", "_zindex/plan.json"}
    assert all_files(case.root) == case.golden


def test_a_directory_of_stores(make_case: Callable[[str], Case], tmp_path: Path) -> None:
    case = make_case("keyed")
    (case.root / "dataset_index/c/2").unlink()
    (tmp_path / "index" / "notes.txt").write_text("mine")
    results = repair(tmp_path / "index")
    assert [result.rebuilt for result in results if result.rebuilt] == [("dataset_index/c/2",)]
    assert len(results) == 3


def test_a_run_that_is_not_built_is_skipped(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    config = make_config(tmp_path, write_corpus(LENGTHS))
    results = repair(config)
    assert {result.is_built for result in results} == {False}
    with pytest.raises(StoreNotFoundError, match=r"no zindex store at .*, nor directly below it"):
        repair(tmp_path / "index")


def test_an_unfinished_store_is_refused(make_case: Callable[[str], Case]) -> None:
    case = make_case("megatron")
    for key in ("zarr.json", "_zindex/manifest.json"):
        (case.root / key).unlink()
    (case.root / "shuffle_index/c/0").unlink()
    with pytest.raises(NotReadyError, match=r"must be committed to be repaired, \d+ of \d+ shards"):
        case.repair()


def test_the_source_must_be_the_right_one(
    make_case: Callable[[str], Case], write_corpus: WriteCorpus
) -> None:
    other = write_corpus([length + 1 for length in LENGTHS], name="other")
    case = make_case("tokens")
    (case.root / "tokens/c/0").unlink()
    with pytest.raises(ConfigError, match="give --source PREFIX"):
        case.repair(source=None)
    with pytest.raises(FingerprintMismatchError, match=r"other must be what .* was converted from"):
        case.repair(source=other)
    with pytest.raises(SourceError):
        case.repair(source="/nowhere")


def test_an_index_needs_the_lengths_that_it_was_made_from(
    make_case: Callable[[str], Case], write_corpus: WriteCorpus
) -> None:
    other = write_corpus([length + 1 for length in LENGTHS], name="other")
    case = make_case("minimal")
    (case.root / "sample_index/c/0/0").unlink()
    with pytest.raises(ConfigError, match="give --source with its token store or prefix"):
        case.repair(source=None)
    with pytest.raises(FingerprintMismatchError, match="must have the lengths of digest"):
        case.repair(source=other)


def test_lost_weights_need_the_run(make_case: Callable[[str], Case]) -> None:
    case = make_case("keyed")
    (case.root / "dataset_weight/c/0").unlink()
    with pytest.raises(VerificationError, match=r"must have its dataset_weight .*; name the"):
        repair(case.root)


def test_a_rebuilt_shard_that_differs_is_refused(large: Case) -> None:
    (large.root / "tokens/c/1").unlink()
    flip(f"{large.source}.bin", UNSAMPLED)
    with pytest.raises(VerificationError, match=r"shard tokens/c/1 of .* numpy \d.* differ"):
        large.repair()
    assert not (large.root / "tokens/c/1").exists()


@pytest.mark.parametrize("is_missing", [False, True])
def test_shards_that_the_root_refutes_are_not_put_in_place(
    large: Case, *, is_missing: bool
) -> None:
    """The tokens changed beyond the digest's sample, and no manifest names the damaged shard."""
    flip(large.root / "tokens/c/1", 3)
    if is_missing:
        (large.root / "tokens/c/1").unlink()
    (large.root / "_zindex/manifest.json").unlink()
    flip(f"{large.source}.bin", UNSAMPLED, -1)
    before = all_files(large.root)
    with pytest.raises(VerificationError, match=r"the checksums of its zarr.json.* are not kept"):
        large.repair()
    assert all_files(large.root) == before


def test_shards_that_an_unproven_manifest_refutes_are_not_kept(large: Case) -> None:
    flip(large.root / "tokens/c/1", 3)
    (large.root / "zarr.json").unlink()
    flip(f"{large.source}.bin", UNSAMPLED)
    before = all_files(large.root)
    with pytest.raises(VerificationError, match=r"shard tokens/c/1 of .* what was rebuilt has"):
        large.repair()
    assert all_files(large.root) == before


def rewrite_plan(root: Path, *, whole: bool = True, **changes: Any) -> None:
    """Change the spec in plan.json, with matching digests; damage the rest of the commit."""
    path = root / "_zindex/plan.json"
    fields = json.loads(path.read_bytes())
    del fields["plan_sha256"]
    fields["spec"] |= changes
    if whole:
        named = {"kind": fields["kind"], "spec": fields["spec"]}
        fields["fingerprint"] = fingerprint(named)
    fields["plan_sha256"] = fingerprint(fields)
    path.write_bytes(canonical_json(fields).encode())
    damage_commit(root)


def damage_commit(root: Path) -> None:
    (root / "zarr.json").write_bytes(b"{")
    (root / "_zindex/manifest.json").write_bytes(b"")


@pytest.mark.parametrize("name", ["megatron", "scalable", "minimal", "packed", "keyed", "uniform"])
def test_a_plan_without_other_evidence_is_not_trusted(
    name: str, make_case: Callable[[str], Case]
) -> None:
    """Its seed was changed, and its digests with it."""
    case = make_case(name)
    rewrite_plan(case.root, seed=99)
    (case.root / case.shards[0]).unlink()
    before = all_files(case.root)
    message = r"passes its own checksums, and holds other values .* or name the run file that built"
    with pytest.raises(VerificationError, match=message):
        case.repair()
    assert all_files(case.root) == before
    # The run proves its plan.
    assert case.config is not None
    if not name.startswith("packed"):
        repair(case.config)
        assert all_files(case.root) == case.golden
    else:
        with pytest.raises(VerificationError, match=r"plan.json .* both are damaged"):
            repair(case.config)
        assert all_files(case.root) == before


def test_a_plan_with_another_fingerprint_is_damaged(make_case: Callable[[str], Case]) -> None:
    case = make_case("scalable")
    rewrite_plan(case.root, whole=False, seed=99)
    assert "_zindex/plan.json" in {damage.key for damage in verify_store(case.root).damages}
    with pytest.raises(VerificationError, match=r"must have a sound zarr.json or plan.json"):
        case.repair()


@pytest.mark.parametrize("name", ["megatron", "scalable", "packed", "keyed"])
def test_without_intact_shards_the_run_is_required(
    name: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(name)
    damage_commit(case.root)
    for key in case.shards:
        if not key.startswith("dataset_weight"):
            (case.root / key).unlink()
    before = all_files(case.root)
    with pytest.raises(VerificationError, match=r"must have a sound shard that agrees with its pl"):
        case.repair()
    assert all_files(case.root) == before
    assert case.config is not None
    repair(case.config)
    assert all_files(case.root) == case.golden


def test_tokens_are_rebuilt_from_a_source_that_fits_their_plan(
    make_case: Callable[[str], Case],
) -> None:
    case = make_case("tokens")
    damage_commit(case.root)
    for key in case.shards:
        (case.root / key).unlink()
    case.repair()
    assert all_files(case.root) == case.golden


def test_sound_tokens_are_not_replaced_by_those_of_a_changed_source(large: Case) -> None:
    """The digest in the plan covers only samples of the tokens."""
    damage_commit(large.root)
    flip(f"{large.source}.bin", UNSAMPLED)
    before = all_files(large.root)
    message = r"tokens/c/1 of .* passes its own .* name the unchanged .bin/.idx pair with --source"
    with pytest.raises(VerificationError, match=message):
        large.repair()
    assert all_files(large.root) == before


def test_a_failed_repair_puts_nothing_in_place(make_case: Callable[[str], Case]) -> None:
    """Documents are recomputed before the samples need the source."""
    case = make_case("scalable")
    rewrite_plan(case.root, seed=99)
    before = all_files(case.root)
    with pytest.raises(ConfigError, match="give --source with its token store or prefix"):
        case.repair(source=None)
    assert all_files(case.root) == before


def test_a_store_of_another_kind_is_not_repaired_by_shards(tmp_path: Path) -> None:
    build_arrays(tmp_path / "store", {ONE: count_up(20)})
    (tmp_path / "store/one/c/0").unlink()
    with pytest.raises(StoreError, match=r"must hold tokens, records, an index or a blend"):
        repair(tmp_path / "store")


def test_a_linked_bin_is_not_rebuilt(make_case: Callable[[str], Case]) -> None:
    case = make_case("link")
    os.truncate(f"{case.source}.bin", 8)
    (damage,) = verify_store(case.root).damages
    assert damage.problem == "must have the 240 bytes of the tokens of this store: it has 8"
    with pytest.raises(
        SourceError, match=r"corpus-1.bin must have the 240 bytes of .*: it has 8; restore"
    ):
        case.repair()
