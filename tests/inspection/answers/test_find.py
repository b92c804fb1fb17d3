"""Where documents and texts are in runs of every kind."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import fail, succeed
from tests.conftest import WriteCorpus, numbers
from tests.indexing.runs import make_config, make_run
from tests.inspection.answers.brute_force import KINDS, draw_run
from tests.inspection.answers.test_info import write_yaml
from zindex.config import DatasetConfig
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.inspection.answers.find import find
from zindex.inspection.answers.run_order import RunOrder


@pytest.mark.parametrize("seed", numbers(1, 12))
@pytest.mark.parametrize("kind", KINDS)
def test_seen_and_to_come(kind: str, seed: int, tmp_path: Path, write_corpus: WriteCorpus) -> None:
    run = draw_run(kind, seed + 200, tmp_path, write_corpus)
    order = RunOrder(run.config, run.split)
    consumed = len(order) // 2
    for document in range(6):
        [found] = find(
            order, 0, document, consumed=consumed, num_ranks=2, micro_batch_size=2,
            global_batch_size=8,
        ).documents  # fmt: skip
        corpus = int(order.paths[0][-1])
        assert (found.start, found.stop) == (0, run.lengths[corpus][document])
        tokens = {run.token(corpus, document, place) for place in range(found.stop)}
        wanted = [position for position, sample in enumerate(run.samples) if sample.held & tokens]
        assert [each.position for each in found.samples] == wanted
        assert [each.position for each in found.seen] == [p for p in wanted if p < consumed]
        assert [each.position for each in found.to_come] == [p for p in wanted if p >= consumed]
        assert [each.step for each in found.samples] == [p // 8 for p in wanted]
        assert [each.rank for each in found.samples] == [p % 4 // 2 for p in wanted]
        assert [each.epoch for each in found.samples] == [run.samples[p].epoch for p in wanted]
        assert all({part.document for part in each.parts} == {document} for each in found.samples)
        is_seen = [each["is_seen"] for each in found.to_json()["samples"]]
        assert is_seen == [p < consumed for p in wanted]


def encode(text: str) -> list[int]:
    return [*text.encode()]


def test_texts(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    members = [
        DatasetConfig(write_corpus([11, 6], name=name, tokens=encode(text)), weight=1.0)
        for name, text in (("web", "abc abxababcabcab"), ("code", "ab cabc abcxxxxxx"))
    ]
    config = make_config(tmp_path, *members, split="100,0,0", samples={"train": 20})
    order = RunOrder(config)
    found = find(order, text="abc", tokenizer=encode, client=SerialExecutor())
    places = [
        (order.labels[each.dataset], each.document, each.start, each.stop)
        for each in found.documents
    ]
    # With the space before; the end of one document and the start of the next is no place.
    assert places == [("web", 0, 0, 3), ("web", 1, 1, 4), ("code", 0, 4, 7), ("code", 0, 7, 11)]
    assert found.num_matches == 4
    for each in found.documents:
        [alone] = find(order, each.dataset, each.document, tokens=(each.start, each.stop)).documents
        assert alone == each
    one = find(order, "code", text="xxxxxx", tokenizer=encode, client=SerialExecutor())
    assert [(each.document, each.start, each.stop) for each in one.documents] == [(1, 0, 6)]
    nothing = find(order, text="abcd", tokenizer=encode, client=SerialExecutor())
    assert nothing.documents == ()
    assert nothing.to_lines() == ["no document of the run has this text or id"]


def test_refusals(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    order = RunOrder(make_run(tmp_path, write_corpus))
    with pytest.raises(ConfigError, match=r"find needs one of document .*, source_id"):
        find(order, "web")
    with pytest.raises(ConfigError, match=r"find needs one of document .*, source_id"):
        find(order, "web", 1, text="a")
    with pytest.raises(ConfigError, match="a document needs dataset"):
        find(order, document=1)
    with pytest.raises(ConfigError, match="one of the run, got 'nope'; it has web, code"):
        find(order, "nope", 1)
    with pytest.raises(ConfigError, match=r"document must be in \[0, 10\).*got 10"):
        find(order, "web", 10)
    with pytest.raises(ConfigError, match=r"tokens must lie in \[0, 5\).*got \[2, 6\)"):
        find(order, "web", 0, tokens=(2, 6))
    with pytest.raises(ConfigError, match=r"tokens .* are those of a document"):
        find(order, text="a", tokens=(2, 6), tokenizer=encode)
    with pytest.raises(ConfigError, match=r"a run must name its tokenizer, for .* keep none"):
        find(order, text="a")
    with pytest.raises(ConfigError, match="a text to find must have tokens, got ''"):
        find(order, text="", tokenizer=lambda text: [])
    with pytest.raises(ConfigError, match=r"consumed .*must be a whole number of at least 0"):
        find(order, "web", 0, consumed=-1)


def test_documents_of_other_splits_are_nowhere(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    assert find(config, "web", 9).documents[0].samples == ()
    assert find(config, "web", 9, split="valid").documents[0].samples != ()


def test_commands(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    run_file = write_yaml(tmp_path / "run.yaml", config)
    options = ("--dataset", "web", "--document", 3, "--tokens", "1:4", "--consumed", 20)
    wanted = find(config, "web", 3, tokens=(1, 4), consumed=20)
    assert json.loads(succeed("find", run_file, *options, "--json")) == json.loads(
        json.dumps(wanted.to_json())
    )
    printed = succeed("find", run_file, *options)
    assert printed.splitlines() == wanted.to_lines()
    assert printed.startswith("web, document 3, tokens 1:4: ")
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert fail("find", run_file, "--document", 3).startswith("Error: a document needs --dataset")
