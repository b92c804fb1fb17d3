"""Removal of duplicates: against naive references, workers, interruptions and bad input."""

import gzip
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zindex
from tests.sources.archives import write_jsonl
from zindex.errors import ConfigError, FingerprintMismatchError, SourceError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.dedup.dedup import Deduplicated, dedup
from zindex.ingest.dedup.duplicates import cut_shingles


def make_texts(seed: int, count: int = 160) -> list[str]:
    """Return texts of which half are edits of earlier ones."""
    rng = random.Random(seed)
    texts: list[list[str]] = []
    for _ in range(count):
        if texts and rng.random() < 0.5:
            text = list(rng.choice(texts))
            for _ in range(rng.randrange(7)):
                text[rng.randrange(len(text))] = str(rng.randrange(500))
        else:
            text = [str(rng.randrange(500)) for _ in range(rng.randrange(3, 120))]
        texts.append(text)
    return [" ".join(text) for text in texts]


def write_texts(path: Path, texts: list[str]) -> Path:
    return write_jsonl(path, [{"text": text, "id": i} for i, text in enumerate(texts)])


def read_kept(target: Path) -> list[int]:
    lines = b"".join(path.read_bytes() for path in sorted(target.glob("*.jsonl")))
    return [json.loads(line)["id"] for line in lines.splitlines()]


def read_dropped(target: Path) -> list[dict[str, Any]]:
    lines = b"".join(path.read_bytes() for path in sorted(target.glob("dropped/*.ndjson")))
    return [json.loads(line) for line in lines.splitlines()]


def content(target: Path) -> dict[str, bytes]:
    files = (path for path in target.rglob("*") if path.is_file())
    return {str(path.relative_to(target)): path.read_bytes() for path in files}


def similarity(one: str, other: str) -> float:
    first, second = cut_shingles(one.split()), cut_shingles(other.split())
    return len(first & second) / len(first | second)


@pytest.mark.parametrize(("seed", "threshold"), [(0, 0.8), (1, 0.8), (2, 0.6), (3, 0.9), (4, 0.3)])
def test_near_duplicates_equal_brute_force(tmp_path: Path, seed: int, threshold: float) -> None:
    pytest.importorskip("rensa")
    texts = make_texts(seed)
    source = write_texts(tmp_path / "a.jsonl", texts)
    result = dedup(source, tmp_path / "out", near=threshold, part_nbytes=8_000, num_processes=1)
    kept, dropped = read_kept(tmp_path / "out"), read_dropped(tmp_path / "out")
    assert sorted([*kept, *(fact["line"] - 1 for fact in dropped)]) == list(range(len(texts)))
    assert kept == sorted(kept)
    reasons = [fact["reason"] for fact in dropped]
    assert (result.num_kept, result.num_near) == (len(kept), reasons.count("near"))
    for fact in dropped:
        number, other = fact["line"] - 1, fact["of"]["line"] - 1
        assert other < number
        assert other in kept or fact["reason"] == "exact"
        if fact["reason"] == "near":
            assert fact["similarity"] == round(similarity(texts[number], texts[other]), 6)
            assert fact["similarity"] >= threshold
        else:
            assert other == texts.index(texts[number])
    # The reference compares each text with all that were kept before.
    naive: list[int] = []
    for number, text in enumerate(texts):
        if all(similarity(text, texts[other]) < threshold for other in naive):
            naive.append(number)
    assert len(set(kept) ^ set(naive)) <= 0.02 * len(texts)


def test_lines_are_kept_byte_for_byte(tmp_path: Path) -> None:
    lines = [
        b'{"text": "a",  "n": 12345678901234567890123, "x": null}',
        b'{ "text" : "a" }\r',
        b'{"x": 1.0e5, "text": "\\u00e9"}\r',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines) + b"\n\n")
    result = dedup(tmp_path / "a.jsonl", tmp_path / "out", num_processes=1)
    kept = b"\n".join(lines[::2]) + b"\n"
    assert (tmp_path / "out/part-000000.jsonl").read_bytes() == kept
    assert result == Deduplicated(str(tmp_path / "out"), 3, 2, 1, 0, 0, 0, len(kept))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "out"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    texts = make_texts(7, 300)
    write_texts(folder / "a.jsonl", texts[:150])
    plain = write_texts(folder / "b.jsonl", texts[150:])
    with gzip.open(folder / "b.jsonl.gz", "wb") as stream:
        stream.write(plain.read_bytes())
    plain.unlink()
    write_jsonl(folder / "bench/q.jsonl", [{"q": texts[9]}, {"q": texts[250]}])
    return folder


@pytest.fixture(scope="module")
def settings(sources: Path) -> dict[str, Any]:
    pytest.importorskip("rensa")
    named = [sources / "a.jsonl", sources / "b.jsonl.gz"]
    given = {"near": 0.7, "decontaminate": sources / "bench", "part_nbytes": 9_000}
    return {"source": named, **given}


@pytest.fixture(scope="module")
def expected(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    target = tmp_path_factory.mktemp("expected") / "out"
    result = dedup(target=target, num_processes=1, **settings)
    assert min(result.num_exact, result.num_near, result.num_contaminated) > 0
    assert len(list(target.glob("part-*"))) > 5
    return content(target)


def test_workers_do_not_matter(
    settings: dict[str, Any], expected: Any, client: Any, tmp_path: Path
) -> None:
    dedup(target=tmp_path / "out", client=client, **settings)
    assert content(tmp_path / "out") == expected


class StoppedError(Exception):
    """Stands for the end of the process."""


class StoppingExecutor(SerialExecutor):
    """Ends before one of its tasks, counted from 0."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.keys = number, list[str]()

    async def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if len(self.keys) == self.number:
            raise StoppedError
        self.keys.append(options["key"])
        return await super().run(function, *args, **options)


def test_an_interrupted_call_resumes(
    settings: dict[str, Any], expected: Any, tmp_path: Path
) -> None:
    whole = StoppingExecutor(-1)
    dedup(target=tmp_path / "whole", client=whole, **settings)
    for number in range(0, len(whole.keys), 5):
        target = tmp_path / str(number)
        with pytest.raises(StoppedError):
            dedup(target=target, client=StoppingExecutor(number), **settings)
        assert not target.exists()
        dedup(target=target, client=StoppingExecutor(-1), **settings)
        assert content(target) == expected
        assert not target.with_name(f"{number}.work").exists()


def test_finished_parts_are_not_computed_again(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "a.jsonl", make_texts(3, 60))
    given: dict[str, Any] = {"source": source, "part_nbytes": 4_000, "near": None}
    whole = StoppingExecutor(-1)
    dedup(target=tmp_path / "whole", client=whole, **given)
    num_written = sum("-write-" in key for key in whole.keys)
    assert num_written > 2
    with pytest.raises(StoppedError):
        dedup(target=tmp_path / "out", client=StoppingExecutor(len(whole.keys) - 1), **given)
    # Of the same size: what is read now is no record.
    source.write_bytes(b"x" * source.stat().st_size)
    written = {path: path.stat().st_ino for path in tmp_path.glob("out.work/**/part-*")}
    assert written
    dedup(target=tmp_path / "out", client=SerialExecutor(), **given)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    inodes = {path.stat().st_ino for path in (tmp_path / "out").rglob("part-*")}
    assert set(written.values()) <= inodes


def test_a_finished_call_returns_its_result(sources: Path, tmp_path: Path) -> None:
    given = {"source": sources / "a.jsonl", "target": tmp_path / "out", "num_processes": 1}
    bench = {"decontaminate": sources / "bench/q.jsonl"}
    first = dedup(**given, **bench)
    assert dedup(**given, **bench) == first
    with pytest.raises(FingerprintMismatchError, match="out must be new, it exists with other"):
        dedup(**given)


def test_unfinished_output_of_other_settings(sources: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"source": sources / "a.jsonl", "target": tmp_path / "out"}
    with pytest.raises(StoppedError):
        dedup(client=StoppingExecutor(2), field="text", **given)
    with pytest.raises(FingerprintMismatchError, match="what differs: field"):
        dedup(num_processes=1, **given)
    result = dedup(num_processes=1, restart=True, **given)
    assert result.num_records == 150


def test_only_lists(sources: Path, tmp_path: Path) -> None:
    whole, listed = (
        dedup(sources / "a.jsonl", tmp_path / name, list_only=is_list, num_processes=1)
        for name, is_list in (("whole", False), ("list", True))
    )
    assert (listed.num_kept, listed.nbytes) == (whole.num_kept, whole.nbytes)
    assert not list((tmp_path / "list").glob("*.jsonl"))
    assert read_dropped(tmp_path / "list") == read_dropped(tmp_path / "whole") != []


def test_contaminated_records(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(40)]
    texts = [" ".join(words), " ".join(words[20:32]), " ".join(words), " ".join(words[20:33])]
    source = write_texts(tmp_path / "a.jsonl", texts)
    first = write_jsonl(tmp_path / "one.jsonl", [{"q": "W20, " + " ".join(words[21:33])}])
    second = write_jsonl(tmp_path / "two.jsonl", [{"q": " ".join(words), "id": "x"}])
    result = dedup(source, tmp_path / "out", decontaminate=[first, second], num_processes=1)
    assert [(item.num_dropped, item.num_texts, item.num_short) for item in result.benchmarks] == [
        *((1, 1, 0), (2, 2, 1)),
    ]
    assert (result.num_contaminated, result.num_exact, read_kept(tmp_path / "out")) == (3, 0, [1])
    facts = read_dropped(tmp_path / "out")
    assert [fact["line"] for fact in facts] == [1, 3, 4]
    assert facts[0]["ngram"] == " ".join(words[:13])
    assert (facts[2]["benchmark"], facts[2]["ngram"]) == (str(first), " ".join(words[20:33]))


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "id": 0}\n{"body": "b"}\n')
    with pytest.raises(SourceError, match=r"a.jsonl, line 2: a record must have a text"):
        dedup(path, tmp_path / "out", num_processes=1)
    result = dedup(path, tmp_path / "out", on_damage="skip", num_processes=1)
    assert (result.num_records, result.num_skipped) == (1, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"near": 0.0}, r"above 0 and at most 1, got 0\.0"),
        ({"near": 80.0}, r"above 0 and at most 1, got 80\.0"),
        ({"near": float("nan")}, "above 0 and at most 1, got nan"),
        ({"ngram": 0}, "at least 1 word, got 0"),
        ({"part_nbytes": 0}, "at least 1, got 0"),
    ],
)
def test_wrong_settings(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    source = write_texts(tmp_path / "a.jsonl", ["a"])
    with pytest.raises(ConfigError, match=message):
        dedup(source, tmp_path / "out", **given)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("near", [None, 0.8])
def test_files_without_records(tmp_path: Path, near: float | None) -> None:
    if near is not None:
        pytest.importorskip("rensa")
    (tmp_path / "a.jsonl").write_text("")
    result = dedup(tmp_path / "a.jsonl", tmp_path / "out", near=near, num_processes=1)
    assert (result.num_records, result.num_kept) == (0, 0)


def test_stores_are_refused(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "a.jsonl", ["a"])
    zindex.import_records(source, tmp_path / "s", client=SerialExecutor())
    with pytest.raises(ConfigError, match=r"dedup reads jsonl files, .*/s is a store; remove the"):
        dedup([source, tmp_path / "s"], tmp_path / "out")


def test_the_library_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rensa", None)
    source = write_texts(tmp_path / "a.jsonl", ["a"])
    with pytest.raises(ConfigError, match=r"needs the library rensa, .* install zindex\[dedup\]"):
        dedup(source, tmp_path / "out", near=0.8)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_texts_without_words_are_never_near(tmp_path: Path) -> None:
    pytest.importorskip("rensa")
    source = write_texts(tmp_path / "a.jsonl", ["...", "?", "", "a", "A!"])
    result = dedup(source, tmp_path / "out", near=0.5, num_processes=1)
    assert (result.num_near, read_kept(tmp_path / "out")) == (1, [0, 1, 2, 3])
