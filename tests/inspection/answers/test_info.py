"""What is at a path: every kind, whole, unfinished and damaged."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import zindex
from tests.cli.commands import fail, invoke, succeed
from tests.conftest import WriteCorpus
from tests.indexing.runs import make_run
from tests.maintenance.edits.walks import edit_here, weighted_run, write_corpora
from tests.sources.archives import write_jsonl, write_tar
from tests.text.small_tokenizer import save_tokenizer
from zindex.config import RunConfig
from zindex.errors import StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.inspection.answers.info import info, info_lines, ls, ls_lines
from zindex.plan.packing import PackingRules


def write_yaml(path: Path, config: RunConfig, **others: Any) -> Path:
    """Write a run file that describes a configuration."""
    names = ("sequence_length", "seed", "split", "index", "samples", "order", "store", "shuffle")
    values: dict[str, Any] = {name: getattr(config, name) for name in names} | others
    values["grid"] = {"chunk_length": 2, "shard_length": 4}
    values["datasets"] = [{"path": item.path, "weight": item.weight} for item in config.datasets]
    if config.packing is not None:
        values["packing"] = {"max_documents": config.packing.max_documents}
    path.write_text(json.dumps(values))
    return path


def test_corpora_and_pairs_count_the_same(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    prefix = write_corpus([3, 5, 1, 7], name="pair")
    zindex.convert(prefix, tmp_path / "c.zarr", client=SerialExecutor())
    corpus, pair = info(tmp_path / "c.zarr"), info(f"{prefix}.bin")
    assert (corpus.kind, pair.kind, pair.path) == ("corpus", "pair", prefix)
    for found in (corpus, pair, info(prefix), info(f"{prefix}.idx")):
        assert found.is_whole
        assert found.facts["num_documents"] == 4
        assert found.facts["num_tokens"] == 16
        assert found.facts["token_dtype"] == "int32"
        assert found.facts["lengths"] == {"min": 1, "median": 4, "mean": 4.0, "max": 7}
        assert found.modified is not None
        assert found.modified.endswith("+00:00")
    sizes = [os.path.getsize(f"{prefix}{suffix}") for suffix in (".bin", ".idx")]
    assert pair.nbytes == sum(sizes)


def test_stores_name_their_sources_and_their_maker(
    write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    paths = [write_corpus([3, 5, 1, 7], name=name) for name in ("a", "b")]
    texts = write_jsonl(tmp_path / "t.jsonl", [{"text": "ab"}, {"text": "abc"}])
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    serial = SerialExecutor()
    zindex.convert(paths[0], tmp_path / "a.zarr", client=serial)
    zindex.merge(paths, tmp_path / "merged.zarr", client=serial)
    zindex.tokenize_corpus(texts, tmp_path / "t.zarr", tokenizer=tokenizer, client=serial)
    zindex.tokenize(texts, tmp_path / "r.zarr", "seq", tokenizer=tokenizer, client=serial)
    wanted = {"a": paths[:1], "merged": paths, "t": [texts], "r": [texts]}
    for name, sources in wanted.items():
        facts = info(tmp_path / f"{name}.zarr").facts
        # Stores of records read the places of their files; others keep the names.
        shown = map(str, sources) if name == "r" else (Path(source).name for source in sources)
        assert facts["source"] == [*shown]
        assert facts["made_by"] == f"zindex {zindex.__version__}"
        assert "num_sources" not in facts
    assert info(tmp_path / "r.zarr").facts["lengths"] == {
        "sequence": {"min": 3, "median": 3, "mean": 3.5, "max": 4}
    }
    own = RecordSchema("own", [Field("query", axes="query"), Field("text", axes="text")])
    rows = write_jsonl(tmp_path / "own.jsonl", [{"query": "a", "text": "abc"}])
    zindex.tokenize(rows, tmp_path / "own.zarr", own, tokenizer=tokenizer, client=serial)
    assert set(info(tmp_path / "own.zarr").facts["lengths"]) == {"query", "text"}
    assert "  lengths            sequence: min 3, median 3, mean 3.5, max 4\n" in succeed(
        "info", tmp_path / "r.zarr"
    )


@pytest.mark.parametrize("packing", [None, PackingRules()])
def test_runs_and_their_stores(
    write_corpus: WriteCorpus, tmp_path: Path, packing: PackingRules | None
) -> None:
    config = make_run(tmp_path, write_corpus, packing=packing)
    run_file = write_yaml(tmp_path / "run.yaml", config)
    before = info(run_file)
    assert before.kind == "run"
    assert before.health == f"0 of {before.facts['num_stores']} stores are built"
    zindex.build(config, SerialExecutor())
    found = info(run_file)
    assert found.is_whole
    assert found.facts["samples"]["train"] == 40
    assert found.facts["num_built"] == found.facts["num_stores"] == 6
    assert "num_edits" in found.facts
    stores = {item.path: item for item in ls(config.index)}
    assert sorted(item.kind for item in stores.values()) == sorted(
        ["blend"] * 2 + ["packed index" if packing else "index"] * 4
    )
    assert all(item.is_whole for item in stores.values())
    [blend] = [item for path, item in stores.items() if "blend-train" in path]
    assert blend.facts["num_samples"] == 40
    assert blend.facts["source"] == [item.path for item in config.datasets]


def test_edits_are_counted(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    paths = write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 12, [4, 10, 2] * 11])
    config = weighted_run(tmp_path, paths)
    run_file = write_yaml(tmp_path / "run.yaml", config)
    edit_here(config, 20, reweight={paths[1]: 3.0})
    assert info(run_file).facts["num_edits"] == 1


def test_unfinished_and_damaged_stores(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    prefix = write_corpus([3, 5, 1, 7])
    zindex.convert(prefix, tmp_path / "c.zarr", client=SerialExecutor())
    shard = tmp_path / "c.zarr" / "tokens" / "c" / "0"
    content = shard.read_bytes()
    shard.write_bytes(content[:-3])
    found = info(tmp_path / "c.zarr")
    assert found.health == f"damaged: tokens/c/0 has {len(content) - 3:,} of {len(content):,} bytes"
    shard.unlink()
    assert info(tmp_path / "c.zarr").health == "damaged: tokens/c/0 is missing"
    (tmp_path / "c.zarr" / "zarr.json").unlink()
    assert info(tmp_path / "c.zarr").health == "3 of 4 shards are built"
    Path(f"{prefix}.bin").write_bytes(b"")
    found = info(prefix)
    assert (found.kind, found.is_whole) == ("pair", False)
    assert found.health.startswith("damaged: ")
    plan = tmp_path / "c.zarr" / "_zindex" / "plan.json"
    plan.write_bytes(plan.read_bytes().replace(b"tokens", b"TOKENS", 1))
    assert "fails its digest" in info(tmp_path / "c.zarr").health


def test_files_of_samples(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "a.jsonl", [{"text": "ab", "id": n} for n in range(5)])
    found = info(lines)
    assert (found.kind, found.facts) == ("jsonl", {"num_records": 5, "fields": ["text", "id"]})
    with open(lines, "a") as stream:
        stream.write('{"text": "without an end"}')
    assert info(lines).facts["num_records"] == 6
    archive = write_tar(tmp_path / "b.tar", [("x.txt", b"ab"), ("x.id", b"1"), ("y.txt", b"cd")])
    found = info(archive)
    assert (found.kind, found.facts["num_records"]) == ("tar", 2)
    assert found.facts["fields"] == ["id: 1", "txt: 2"]
    Path(archive).write_bytes(Path(archive).read_bytes()[:700])
    assert info(archive).health.startswith("damaged: ")
    (tmp_path / "c.jsonl").write_bytes(b"not json\n")
    assert info(tmp_path / "c.jsonl").health.startswith("damaged: ")
    (tmp_path / "d.parquet").write_bytes(b"PAR0")
    assert info(tmp_path / "d.parquet").health.startswith("damaged: ")
    (tmp_path / "e.txt").write_text("")
    assert info(tmp_path / "e.txt").kind == "file"
    assert [item.kind for item in ls(tmp_path)] == ["jsonl", "tar", "jsonl", "parquet"]
    assert info(tmp_path).facts["content"] == {"jsonl": 2, "parquet": 1, "tar": 1}


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["a", "b", "c"]}), tmp_path / "a.parquet")
    assert info(tmp_path / "a.parquet").facts == {"num_records": 3, "fields": ["text"]}


def test_mixtures_of_streams_are_no_runs(tmp_path: Path) -> None:
    mixture = tmp_path / "mixture.yaml"
    mixture.write_text("# samples\ntarget: MergedDataset\nparams: {datasets: []}\n")
    [found] = ls(tmp_path)
    assert (found.kind, found.is_whole) == ("mixture", True)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"file of samples at .*nothing, nothing is there"):
        info(tmp_path / "nothing")
    with pytest.raises(StoreNotFoundError, match=r"must be a folder at .*nothing, there is none"):
        ls(tmp_path / "nothing")


def test_screens_fit(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    long = tmp_path / ("a-folder-with-a-long-name" * 4)
    long.mkdir()
    write_jsonl(long / f"{'name' * 30}.jsonl", [{"field" * 20: 1}])
    write_corpus([3, 5], name=f"{long.name}/corpus")
    assert all(len(line) <= 80 for line in [*ls_lines(ls(long)), *info_lines(ls(long))])
    assert ls_lines(ls(tmp_path / long.name / "..")) != []


def test_commands(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    prefix = write_corpus([3, 5, 1, 7], name="pair")
    assert "  documents    4\n" in succeed("info", prefix)
    [found] = json.loads(succeed("info", prefix, "--json"))["paths"]
    assert found["facts"]["num_tokens"] == 16
    assert found["is_whole"]
    [entry] = json.loads(succeed("ls", tmp_path, "--json"))["entries"]
    assert entry["path"] == prefix
    assert "pair  16 tokens" in succeed("ls", tmp_path)
    (tmp_path / "one").mkdir()
    write_jsonl(tmp_path / "one" / "a.jsonl", [{"text": "ab"}])
    assert "folder  1 entry " in succeed("ls", tmp_path)
    assert "jsonl  1 record " in succeed("ls", tmp_path / "one")
    Path(f"{prefix}.bin").write_bytes(b"")
    assert invoke("info", prefix).exit_code == 1
    assert "nothing is there; check the path" in fail("info", tmp_path / "nothing")
