"""Answers name documents by the fields that their corpora keep."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import fail, succeed
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import save_tokenizer
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus
from zindex.inspection.answers.find import find
from zindex.inspection.answers.info import info
from zindex.inspection.answers.run_order import RunOrder
from zindex.inspection.answers.show import show
from zindex.inspection.answers.trace import trace

SERIAL = SerialExecutor()


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """A blend of a corpus with ids and urls, one with numbers, and one that keeps nothing."""
    save_tokenizer(tmp_path / "tokenizer")
    web = [
        {"text": f"Web {i}." * (i % 3), "id": f"w{i}", "url": f"https://a.org/{i}"}
        for i in range(20)
    ]
    code = [{"text": f"Code {i}.", "id": i % 10} for i in range(20)]
    for name, rows in (("web", web), ("code", code), ("bare", [{"text": "abc"}] * 20)):
        path = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        settings: Any = {"tokenizer": tmp_path / "tokenizer", "client": SERIAL}
        settings["prepend_bod"] = False
        tokenize_corpus(path, tmp_path / f"{name}.zarr", **settings)
    return {
        "datasets": [
            {"path": str(tmp_path / f"{name}.zarr"), "weight": 1.0}
            for name in ("web", "code", "bare")
        ],
        "sequence_length": 8,
        "samples": {"train": 30},
        "split": "100,0,0",
        "index": str(tmp_path / "index"),
    }


def test_traces_name_sources(config: dict[str, Any]) -> None:
    order = RunOrder(config)
    found = trace(order, position=(0, 30))
    for sample in found.samples:
        for part in sample.parts:
            alone = show(sample.dataset, document=part.document, tokenizer=True).fields[0]
            assert part.source == alone.source
            assert alone.texts is not None
            if sample.dataset_id == 0:
                number = alone.texts[0].split()[1].split(".")[0]
                assert part.source == {"id": f"w{number}", "url": f"https://a.org/{number}"}
            elif sample.dataset_id == 2:
                assert part.source is None
    lines = found.to_lines()
    assert any(line.startswith("    id w") and "url https://a.org/" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)
    parts = [part for sample in found.to_json()["samples"] for part in sample["parts"]]
    assert {"source" in part for part in parts} == {True, False}
    assert json.dumps(parts)
    first = trace(order, position=0, tokenizer=True).samples[0]
    assert first.parts[0].source == found.samples[0].parts[0].source


def test_documents_are_found_by_their_ids(config: dict[str, Any]) -> None:
    order = RunOrder(config)
    [one] = find(order, source_id="w4", client=SERIAL).documents
    assert one == find(order, "web", one.document).documents[0]
    assert one.source == {"id": "w4", "url": "https://a.org/4"}
    assert find(order, source_id="https://a.org/4", field="url", client=SERIAL).documents == (one,)
    assert "  id w4, url https://a.org/4" in find(order, "web", one.document).to_lines()
    both = find(order, source_id=3, client=SERIAL)  # an id that two documents have
    assert [each.document for each in both.documents] == [3, 13]
    assert json.loads(json.dumps(both.to_json()))["documents"][0]["source"] == {"id": 3}
    # A document without tokens is in no sample, and an unknown id nowhere.
    for source_id in ("w3", "nope"):
        nothing = find(order, source_id=source_id, client=SERIAL)
        assert nothing.to_lines() == ["no document of the run has this text or id"]
    assert find(order, "code", source_id="w4", client=SERIAL).documents == ()


def test_refusals(config: dict[str, Any]) -> None:
    order = RunOrder(config)
    with pytest.raises(ConfigError, match=r"bare.zarr must keep the ids of its documents"):
        find(order, "bare", source_id="w4", client=SERIAL)
    with pytest.raises(ConfigError, match="must keep the warc of its documents, none does"):
        find(order, source_id="w4", field="warc", client=SERIAL)
    with pytest.raises(ConfigError, match="find needs one of document"):
        find(order, "web", 1, source_id="w4")
    with pytest.raises(ConfigError, match=r"tokens .*are those of a document, got them"):
        find(order, source_id="w4", tokens=(0, 1))


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "ab", "id": "x\x1b[2J\n\ud800"}])
    own: Any = {"tokenizer": save_tokenizer(tmp_path / "t"), "client": SERIAL}
    tokenize_corpus(source, tmp_path / "s", **own)
    shown = show(tmp_path / "s", document=0)
    assert shown.to_lines()[2] == r"  id x\x1b[2J\n\ud800"
    assert shown.fields[0].source == {"id": "x\x1b[2J\n\ud800"}


def test_commands(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    shown = json.loads(succeed("show", tmp_path / "web.zarr", "--document", 1, "--json"))
    assert shown["fields"][0]["source"] == {"id": "w2", "url": "https://a.org/2"}
    assert "\n  id w2, url https://a.org/2\n" in succeed(
        "show", tmp_path / "web.zarr", "--document", 1
    )
    found = succeed("find", tmp_path / "run.yaml", "--id", "https://a.org/2", "--field", "url")
    assert found.startswith("web, document 1, tokens 0:13: ")
    assert "got 'x'" in fail("find", tmp_path / "run.yaml", "--dataset", "x", "--id", "w2")
    assert info(tmp_path / "web.zarr").facts["fields"] == ["id: 50 uint8", "url: 310 uint8"]


def test_the_option_of_tokenize(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "ab", "id": "x", "lang": "en"}])
    common = (source, "--for", "pretrain", "--tokenizer", save_tokenizer(tmp_path / "t"))

    def tokenize(name: str, *options: object) -> Any:
        succeed("tokenize", source, tmp_path / name, *common[1:], *options, "--processes", 1)
        return show(tmp_path / name, document=0).fields[0].source

    assert tokenize("default") == {"id": "x"}
    assert tokenize("chosen", "--metadata", "lang, id") == {"lang": "en", "id": "x"}
    assert tokenize("none", "--metadata", "none") is None
    target = (tmp_path / "bad", *common[1:])
    message = fail("tokenize", source, *target, "--metadata", "id,", "--processes", 1)
    assert "--metadata must name fields separated by commas, or be none, got 'id,'" in message
    message = fail("tokenize", source, *target, "--to", "bin", "--metadata", "id")
    assert "--metadata must be left out with --for pretrain --to bin" in message
    assert not (tmp_path / "bad").exists()
