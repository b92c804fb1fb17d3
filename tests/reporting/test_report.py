"""Reports as files, JSON and lines, from Python and from the shell."""

import json
from pathlib import Path

import pytest

import zindex
from tests.cli.commands import fail, succeed
from tests.conftest import WriteCorpus
from tests.forked import run_fresh
from tests.indexing.runs import make_run
from tests.inspection.answers.test_info import write_yaml
from zindex.errors import ConfigError


def test_command(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    run_file = write_yaml(tmp_path / "run.yaml", config)
    output = tmp_path / "report.html"
    sizes = ("--global-batch-size", 8, "--ranks", 4, "--nodes", 2, "--cache-nbytes", 1000)
    printed = succeed("report", run_file, "--output", output, *sizes)
    lines = printed.splitlines()
    assert lines[0].endswith(": 40 samples, 4 tokens per sample")
    assert "to the first batch" in printed
    assert lines[-1] == f"report: {output}"
    assert all(len(line) <= 80 for line in lines[:-1])
    assert output.read_text().startswith("<!DOCTYPE html>")
    [found] = json.loads(succeed("report", run_file, *sizes, "--json"))["runs"]
    assert found["reads"]["settings"]["num_nodes"] == 2
    assert [item["num_samples"] for item in found["datasets"]] == [30, 10]
    other = write_yaml(tmp_path / "other.yaml", make_run(tmp_path, write_corpus, seed=3))
    both = json.loads(succeed("report", run_file, other, "--output", output, "--json"))
    assert both["difference"]["is_same"] is False
    assert "Comparison of " in output.read_text()


def test_only_a_report_is_replaced(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    run_file = write_yaml(tmp_path / "run.yaml", config)
    text = Path(run_file).read_text()
    line = fail("report", run_file, "--output", run_file)
    assert "a report replaces only another report" in line
    assert Path(run_file).read_text() == text
    line = fail("report", run_file, "--output", tmp_path / "none" / "report.html")
    assert "a report needs an existing folder" in line
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match="only another report"):
        zindex.report(config, output=tmp_path)
    line = fail("report", run_file, "--split", "test")
    assert "test has none; choose one of train, valid" in line
    line = fail("report", run_file, "--nodes", 3, "--ranks", 8)
    assert "8 ranks on 3 nodes" in line
    with pytest.raises(ConfigError, match="max_observed"):
        zindex.report(config, max_observed=3)


def test_no_torch_is_needed(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    run_file = write_yaml(tmp_path / "run.yaml", make_run(tmp_path, write_corpus))
    code = (
        f"import sys, zindex; zindex.report({str(run_file)!r}).to_html()\n"
        "print({'dask', 'distributed', 'numba', 'torch', 'xarray', 'zarr'} & {*sys.modules})"
    )
    assert run_fresh("-c", code, check=True).stdout.splitlines()[-1] == "set()"


def test_a_tokenizer_that_is_named_must_be_there(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    with pytest.raises(ConfigError):
        zindex.report(config, tokenizer=str(tmp_path / "no-tokenizer"))
    [run] = zindex.report(config).runs
    assert run.samples_problem is not None
    assert len(run.samples) == 6
    [run] = zindex.report(config, tokenizer=None, num_shown=2).runs
    assert (run.samples_problem, len(run.samples)) == (None, 2)
