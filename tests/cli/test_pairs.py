"""The commands ``zindex merge`` and ``zindex count``."""

import json
from pathlib import Path

from click.testing import CliRunner

from tests.conftest import WriteCorpus
from zindex.cli import main


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == code, done.output
    return done.output


def test_merge(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    first, second = write_corpus([3, 4], name="a"), write_corpus([5], name="b", modes=[7])
    target = str(tmp_path / "all")
    message = run("merge", first, second, target, code=1)
    assert f"{first} has none; leave the modes out" in message
    line = f"{target}: 3 documents, 3 sequences, 12 tokens of 2 corpora"
    assert line in run("merge", first, second, target, "--no-multimodal")
    assert "all.bin exists; choose another prefix" in run("merge", first, target, code=1)
    options = ("--overwrite", "--restart", "--json", "--to", "bin", "--multimodal")
    output = run("merge", second, target, *options)
    facts = json.loads(output[output.index("{") :])
    assert facts["path"] == target
    assert (facts["num_sources"], facts["num_tokens"]) == (1, 5)
    assert Path(f"{target}.idx").read_bytes() == Path(f"{second}.idx").read_bytes()
    store = str(tmp_path / "all.zarr")
    line = f"{store}: 2 documents, 2 sequences, 7 tokens of 1 corpus"
    assert line in run("merge", first, store, "--to", "zarr")


def test_count(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    first, second = write_corpus([3, 4], name="a"), write_corpus([5], name="b")
    counts = {first: [2, 3], second: [1, 2]}
    assert json.loads(run("count", first, second)) == counts
    file = tmp_path / "counts.json"
    file.write_text("older")
    output = run("count", first, second, "--output", str(file))
    assert output == f"{file}: 3 sequences of 2 corpora\n"
    assert json.loads(file.read_text()) == counts
    assert "1 sequences of 1 corpus" in run("count", second, "--output", str(file))
    assert "both files of a .bin/.idx pair must be readable" in run("count", "none", code=1)
