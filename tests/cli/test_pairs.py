"""The commands ``zindex merge`` and ``zindex count``."""

import json
from pathlib import Path

from tests.cli.commands import fail, succeed
from tests.conftest import WriteCorpus


def test_merge(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    first, second = write_corpus([3, 4], name="a"), write_corpus([5], name="b", modes=[7])
    target = str(tmp_path / "all")
    assert f"{first} has none; leave the modes out" in fail("merge", first, second, target)
    line = f"{target}: 3 documents, 3 sequences, 12 tokens of 2 corpora"
    assert line in succeed("merge", first, second, target, "--no-multimodal")
    assert "all.bin exists; choose another prefix" in fail("merge", first, target)
    options = ("--overwrite", "--restart", "--json", "--to", "bin", "--multimodal")
    facts = json.loads(succeed("merge", second, target, *options))
    assert facts["path"] == target
    assert (facts["num_sources"], facts["num_tokens"]) == (1, 5)
    assert Path(f"{target}.idx").read_bytes() == Path(f"{second}.idx").read_bytes()
    store = str(tmp_path / "all.zarr")
    line = f"{store}: 2 documents, 2 sequences, 7 tokens of 1 corpus"
    assert line in succeed("merge", first, store, "--to", "zarr")


def test_count(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    first, second = write_corpus([3, 4], name="a"), write_corpus([5], name="b")
    counts = {first: [2, 3], second: [1, 2]}
    assert json.loads(succeed("count", first, second)) == counts
    file = tmp_path / "counts.json"
    file.write_text("older")
    output = succeed("count", first, second, "--output", file)
    assert output == f"{file}: 3 sequences of 2 corpora\n"
    assert json.loads(file.read_text()) == counts
    assert "1 sequence of 1 corpus" in succeed("count", second, "--output", file)
    assert "both files of a .bin/.idx pair must be readable" in fail("count", "none")
