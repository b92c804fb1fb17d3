"""Everything but the cluster works where the system calls of Linux are missing."""

import dataclasses
import os
from pathlib import Path

import pytest

import zindex
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.forked import run_fresh
from zindex.config import load_config
from zindex.io import system_calls
from zindex.store.verify import verify_store

SCRIPT = """
import os
import sys
from pathlib import Path

import numpy as np

import zindex
from zindex.cli import main
from zindex.inspection.bench.machine import describe_machine
from zindex.io.machine import count_cpus
from zindex.io.system_calls import DIRECT, memory_nbytes


def run(*arguments):
    main(list(map(str, arguments)), standalone_mode=False)


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    assert DIRECT == 0
    assert count_cpus() >= 1 and memory_nbytes() > 1 << 20
    assert describe_machine()["system"]
    run("convert", "web", "web.zarr", "--chunk-length", 16, "--shard-length", 64)
    run("convert", "code", "code.zarr", "--codec", "zstd")
    Path("a.jsonl").write_text('{"input_ids": [1, 2, 3]}\\n' * 9)
    run("convert", "a.jsonl", "a", "--dtype", "input_ids=int32", "--processes", 2)
    run("import", "a.jsonl", "records")
    run("merge", "web", "code", "merged", "--to", "bin")
    run("export", "web.zarr", "back")
    for suffix in ("bin", "idx"):
        assert Path(f"back.{suffix}").read_bytes() == Path(f"web.{suffix}").read_bytes()
    Path("run.yaml").write_text(
        "sequence_length: 4\\nsplit: [1]\\norder: scalable\\nsamples: 100\\n"
        "grid: {chunk_length: 64, shard_length: 128}\\n"
        "datasets: [{path: web.zarr, weight: 1}, {path: code.zarr, weight: 2}]\\n"
    )
    for command in ("plan", "build", "verify", "repair"):
        run(command, "run.yaml")
    run("trace", "run.yaml", "--position", "0:2")
    with zindex.loader("run.yaml", Tokenizer(), micro_batch_size=4) as batches:
        tokens = np.concatenate([batch["tokens"].numpy() for batch in batches])
    assert tokens.shape == (100, 4)
    print(tokens.sum())
"""
TOKENIZER = """

class Tokenizer:
    vocab_size, eod, pad = 2**31 - 1, -1, -2
    unique_identifiers = {"name": "none"}
"""


def test_convert_build_and_load_without_them(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    for name in ("web", "code"):
        write_corpus([7] * 40, name=name)
    script = tmp_path / "script.py"
    head, main = SCRIPT.split("\n\n\ndef run")
    script.write_text(f"{head}\n{TOKENIZER}\n\ndef run{main}")
    emulator = Path(__file__).with_name("like_macos.py")
    printed = run_fresh(str(emulator), str(script), str(tmp_path), check=True).stdout
    found = verify_store(tmp_path / "web.zarr")
    assert found.is_sound
    # What was built there is what is built here, to the digest in the names of the stores.
    built = sorted(path.name for path in (tmp_path / "index").glob("gpt-*"))
    config = load_config(tmp_path / "run.yaml")
    config = dataclasses.replace(config, index=str(tmp_path / "other"))
    assert all(result.num_written for result in zindex.build(config).values())
    assert sorted(path.name for path in (tmp_path / "other").glob("gpt-*")) == built
    with zindex.loader(config, FakeTokenizer(), micro_batch_size=4) as batches:
        assert int(printed.split()[-1]) == sum(int(batch["tokens"].sum()) for batch in batches)


def test_fallbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(10)))
    descriptor = os.open(path, os.O_RDONLY)
    monkeypatch.delattr(os, "preadv")
    monkeypatch.delattr(os, "posix_fadvise")
    monkeypatch.delattr(os, "sched_getaffinity")
    try:
        first, second = bytearray(4), bytearray(9)
        buffers = [memoryview(first), memoryview(second)]
        assert system_calls.read_vector(descriptor, buffers, 3) == 7
        assert (bytes(first), bytes(second[:4])) == (b"\3\4\5\6", b"\7\10\11\0")
        system_calls.read_ahead(descriptor, 0, 10)
        system_calls.drop_cached(descriptor)
    finally:
        os.close(descriptor)
    assert system_calls.own_cpus() == set(range(os.cpu_count() or 1))
