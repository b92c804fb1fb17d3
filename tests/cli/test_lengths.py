"""The command ``zindex lengths``: what it reads, what it prints, and how it fails."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.cli.commands import fail, succeed
from tests.sources.archives import write_jsonl
from zindex.cli import measure as cli_measure
from zindex.execution import process_executor
from zindex.streaming.lengths.statistics import Lengths

CONFIG = """
target: MergedDataset
params:
  datasets:
  - target: JsonlIterableDataset
    params: {path: "${variables:folder}/a.jsonl", part_nbytes: 200}
    name: a
    percent: ${variables:share}
  - target: JsonlIterableDataset
    params: {path: "${variables:folder}/b.jsonl"}
    name: b
    percent: 0.25
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name, size in (("a", 40), ("b", 5)):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": "x" * n} for n in range(size)])
    (tmp_path / "mix.yaml").write_text(CONFIG)
    return tmp_path / "mix.yaml"


def arguments_of(config: Path) -> tuple[object, ...]:
    return ("lengths", config, "--set", f"folder={config.parent}", "--set", "share=0.75")


def run(config: Path, *arguments: object) -> str:
    return succeed(*arguments_of(config), "--processes", 1, *arguments)


def test_text(config: Path) -> None:
    lines = run(config, "--samples", "0.1K", "--ranks", 2, "--workers", 0).splitlines()
    assert lines[1].split()[:3] == ["40", "780", "characters"]
    assert "a run of 100 samples:" in lines
    assert any(line.startswith("- 'b' comes 5.00 times, 25 samples drawn of 5:") for line in lines)


def test_json_and_a_picture(config: Path, tmp_path: Path) -> None:
    figure = tmp_path / "lengths.svg"
    fields = json.loads(run(config, "--json", "--figure", figure, "--sequence-lengths", "8, 16"))
    lengths = Lengths.from_json(fields["lengths"])
    assert lengths["a"].num_tokens == 780
    assert [row["sequence_length"] for row in fields["advice"]["sequence_lengths"]] == [8, 16]
    assert figure.read_bytes().startswith(b"<?xml")


def test_some_samples(config: Path) -> None:
    fields = json.loads(run(config, "--json", "--read", 5))
    lengths = Lengths.from_json(fields["lengths"])
    assert lengths["a"].is_estimate
    assert not lengths["b"].is_estimate


def test_tokens_by_a_tokenizer_in_processes(config: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("x", "isolated")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    arguments = ("--tokenizer", tmp_path, "--tokens", "7.8K", "--processes", 2, "--json")
    fields = json.loads(run(config, *arguments))
    lengths = Lengths.from_json(fields["lengths"])
    assert (lengths["a"].num_tokens, lengths["a"].unit) == (780, "tokens")
    assert sum(drawn["num_tokens"] for drawn in fields["advice"]["draws"]) == pytest.approx(
        7800, abs=1
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "share"], "--set must be like share=0.5, with a value of YAML, got 'share'"),
        (["--set", "share=["], "--set must be like share=0.5, with a value of YAML, got 'share=['"),
        (
            ["--object", "a=no.such.module"],
            "--object must be like encoder=mypackage.data.encoder, got 'a=no.such.module': No "
            "module named 'no'; set PYTHONPATH",
        ),
        (["--object", "a=json.none"], "module 'json' has no attribute 'none'; set PYTHONPATH"),
        (["--samples", "many"], "--samples must be a number such as 1.5B, 300M or 2e9, got 'many'"),
        (["--samples", "1.5"], "--samples must be a whole number, got 1.5"),
        (["--sequence-lengths", "8,x"], "--sequence-lengths must be numbers such as 2048,4096"),
        (
            ["--tokens", "5K"],
            "--tokens needs lengths in tokens, those of 'a' are in characters; count them with "
            "--tokenizer FILE, or give --samples",
        ),
        (
            ["--samples", "5", "--tokens", "5"],
            "must be given by --samples or by --tokens, at",
        ),
    ],
)
def test_mistakes_are_one_line(config: Path, arguments: list[str], message: str) -> None:
    assert message in fail(*arguments_of(config), *arguments)


def double(samples: Iterable[Any]) -> Iterator[Any]:
    for sample in samples:
        yield sample
        yield dict(sample)


def test_objects_of_python(config: Path) -> None:
    text = CONFIG.replace("part_nbytes: 200", 'process_fn: "${dynamic_objs:twice}"')
    config.write_text(text)
    assert "pass dynamic_objs={'twice': ...} (--object twice=MODULE.NAME)" in (
        fail(*arguments_of(config))
    )
    fields = json.loads(run(config, "--json", "--object", f"twice={__name__}.double"))
    assert Lengths.from_json(fields["lengths"])["a"].num_samples == 80


def test_little_is_counted_in_this_process(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_executor, "ProcessExecutor", None)
    succeed(*arguments_of(config))


def test_without_torch(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_measure, "find_spec", lambda name: None)
    line = fail(*arguments_of(config))
    assert "Error: streams need torch, which is not installed; install zindex[streaming]" in line


def test_a_store_of_records(tmp_path: Path) -> None:
    rows = [{"text": "x" * n, "from": "ab"[n % 2]} for n in range(5)]
    succeed("import", write_jsonl(tmp_path / "a.jsonl", rows), tmp_path / "s")
    lines = succeed("lengths", tmp_path / "s").splitlines()
    assert lines[0] == f"{tmp_path}/s: 5 records"
    assert lines[-1].split() == ["5", "100%", str(tmp_path / "a.jsonl")]
    figure = tmp_path / "a.png"
    facts = json.loads(
        succeed("lengths", tmp_path / "s", "--by", "from", "--json", "--figure", figure)
    )
    assert facts["sources"] == [["a", 3], ["b", 2]]
    assert facts["lengths"][0]["quantiles"]["1"] == 4
    assert figure.stat().st_size
    line = fail("lengths", tmp_path / "s", "--ranks", 2)
    assert f"--ranks must come with a CONFIG.yaml, {tmp_path}/s is a store" in line


def test_paths_of_neither(config: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        assert f"or of a store, {path} is neither; check the path" in fail("lengths", path)
    assert "--by must come with a store" in fail("lengths", config, "--by", "a")
