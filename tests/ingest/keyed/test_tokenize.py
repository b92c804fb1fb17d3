"""Texts to keyed stores: the same bytes, independent of workers and interruptions."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.forked import run_python
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import make_tokenizer, read_ids, save_tokenizer
from tests.trees import all_files
from zindex.errors import ConfigError, FingerprintMismatchError, SourceError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.keyed.tokenize import count_notes, describe_tokens, tokenize
from zindex.ingest.records import partitions
from zindex.ingest.records import read_partitions as reading
from zindex.ingest.records.import_records import import_records
from zindex.maintenance.repairs.repair import repair
from zindex.store.layout import ChunkGrid
from zindex.store.record_reader import RecordReader
from zindex.store.verify import verify_store
from zindex.text.chat_template import CHATML
from zindex.text.token_records import DECODED, UNREAD

SERIAL = SerialExecutor()
SMALL = ChunkGrid(chunk_length=64, shard_length=256)
ROWS: dict[str, list[dict[str, Any]]] = {
    "seq": [{"text": f"née {i} " * (i % 5)} for i in range(40)],
    "sft": [
        {"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "é"}]}
        for i in range(40)
    ],
    "dpo": [{"prompt": f"{i}?", "chosen": "yes" * (i + 1), "rejected": "no"} for i in range(20)],
    "grpo": [
        {"prompt": f"{i}?", "responses": ["x"] * (1 + i % 3), "rewards": [i] * (1 + i % 3)}
        for i in range(20)
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer with a template, and files of every kind."""
    save_tokenizer(tmp_path / "tokenizer", chat_template=CHATML)
    for name, rows in ROWS.items():
        half = len(rows) // 2
        write_jsonl(tmp_path / name / "a.jsonl", rows[:half])
        write_jsonl(tmp_path / name / "b.jsonl", rows[half:])
    return tmp_path


def read_all(root: Any) -> list[dict[str, Any]]:
    reader = RecordReader(root)
    return reader.read_many(range(len(reader)))


@pytest.mark.parametrize("train_type", ["seq", "sft", "dpo", "grpo"])
def test_the_fields_are_the_keys(train_type: Any, folder: Path) -> None:
    root = folder / "store"
    store = tokenize(
        folder / train_type,
        root,
        train_type,
        tokenizer=folder / "tokenizer",
        client=SERIAL,
        grid=SMALL,
    )
    records = read_all(store)
    assert len(records) == len(ROWS[train_type])
    assert [record["__key__"] for record in records[:2]] == ["0", "1"]
    assert records[-1]["__url__"].endswith("b.jsonl")
    fields = {item["name"]: item for item in store.spec["fields"] if item["name"] != "__key__"}
    assert all(not item["has_forms"] for item in fields.values())
    ids = {"seq": "sequence", "sft": "sequence", "dpo": "chosen", "grpo": "prompts"}[train_type]
    row, text = ROWS[train_type][3], read_ids(records[3][ids])
    if train_type == "seq":
        assert text == f"{row['text']}<eod>"
    else:
        assert text.startswith("<|im_start|>user\n3?<|im_end|>\n<|im_start|>assistant\n")
    assert store.spec.get("has_records", True)
    assert verify_store(root).is_sound
    assert store[f"{ids}_value"].dtype == np.int32


def test_stores_are_the_same_however_they_are_made(
    folder: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for number, (part_nbytes, buffer, partition, where) in enumerate(
        [(None, 1 << 20, 1 << 30, SERIAL), (50, 100, 1, SERIAL), (300, 1 << 20, 1, client)]
    ):
        monkeypatch.setattr(reading, "BUFFER_NBYTES", buffer)
        monkeypatch.setattr(partitions, "PARTITION_NBYTES", partition)
        root = folder / f"{number}/s"
        tokenize(
            folder / "sft",
            root,
            "sft",
            tokenizer=folder / "tokenizer",
            part_nbytes=part_nbytes,
            client=where,
            grid=SMALL,
        )
        digests.append(all_files(root))
    assert digests[0] == digests[1] == digests[2]


def test_work_goes_on_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(SerialExecutor):
        """Fails after some tasks; those that are done already count too."""

        def __init__(self, left: int) -> None:
            super().__init__()
            self.left = left

        async def run(self, *args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("the machine is gone")
            return await super().run(*args, **options)

    monkeypatch.setattr(partitions, "PARTITION_NBYTES", 1)
    settings: Any = {"tokenizer": folder / "tokenizer", "part_nbytes": 100, "grid": SMALL}
    source = folder / "sft"
    tokenize(source, folder / "0/s", "sft", client=SERIAL, **settings)
    ends = 0
    for left in range(3, 300, 17):
        with suppress(RuntimeError):
            tokenize(source, folder / "1/s", "sft", client=Broken(left), **settings)
            break
        ends += 1
    assert 2 < ends < 17
    assert all_files(folder / "0/s") == all_files(folder / "1/s")
    # Another tokenizer or other settings make another store.
    for other in ({"max_length": 5}, {"chat_template": "plain"}, {"turns": "last"}):
        with pytest.raises(FingerprintMismatchError, match="imported with other settings"):
            tokenize(source, folder / "1/s", "sft", client=SERIAL, **settings | other)


def test_an_unfinished_store_says_what_differs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PARTITION_NBYTES", 1)
    rows = [*ROWS["sft"], {"damaged": 1}]
    source = write_jsonl(folder / "in.jsonl", rows)
    settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL, "part_nbytes": 500}
    with pytest.raises(SourceError, match=r"this one has \['damaged'\].* in line 41 of .*in\."):
        tokenize(source, folder / "s", "sft", **settings)
    with pytest.raises(
        FingerprintMismatchError, match=r"what differs: keep, max_length, on_damage"
    ):
        tokenize(
            source, folder / "s", "sft", max_length=9, keep="end", on_damage="skip", **settings
        )
    store = tokenize(source, folder / "s", "sft", on_damage="skip", restart=True, **settings)
    assert store.spec["num_records"] == 40
    assert store.attributes["num_skipped"] == 1


def test_records_that_teach_nothing_are_told(
    folder: Path, client: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PARTITION_NBYTES", 1)
    rows = [{"prompt": "q" * (i % 3), "completion": "a"} for i in range(1, 30) if i % 3]
    source = write_jsonl(folder / "in.jsonl", rows)
    settings: Any = {"tokenizer": folder / "tokenizer", "chat_template": "plain"}
    for name, where in (("1", SERIAL), ("2", client), ("2", client)):
        caplog.clear()
        store = tokenize(
            source, folder / name, "sft", max_length=2, part_nbytes=90, client=where, **settings
        )
        assert store.attributes["num_untrained"] == 10
        assert store.spec["num_records"] == 20
        [line] = [x for x in caplog.messages if "trained" in x]
        assert "in 10 of 20 records an answer has no trained token, because it is empty" in line
    caplog.clear()
    store = tokenize(source, folder / "3", "sft", client=SERIAL, **settings)
    assert store.attributes["num_untrained"] == 0
    assert "trained" not in caplog.text


def test_what_is_not_read_is_reported(
    folder: Path, client: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PARTITION_NBYTES", 1)
    rows = [
        {"prompt": "q", "completion": "a", "tools": "[]", "chat_template_kwargs": {}}
        | ({"score": 1} if i % 2 else {"score": None, "id": str(i)})
        for i in range(30)
    ]
    source = write_jsonl(folder / "in.jsonl", rows)
    settings: Any = {"tokenizer": folder / "tokenizer", "part_nbytes": 200}
    for name, where in (("1", SERIAL), ("2", client), ("2", client)):
        caplog.clear()
        store = tokenize(source, folder / name, "sft", client=where, **settings)
        assert count_notes(store, UNREAD) == {"id": 15, "score": 15}
        assert count_notes(store, DECODED) == {"tools": 30}
        [line] = [x for x in caplog.messages if "fields that nothing read" in x]
        assert "id in 15 records, score in 15 records; name what they are with columns" in line
    settings |= {"unread_fields": "refuse", "client": SERIAL}
    with pytest.raises(SourceError, match=r"--unread-fields refuse\), this one has 'id', in line"):
        tokenize(source, folder / "3", "sft", **settings)
    store = tokenize(source, folder / "3", "sft", on_damage="skip", **settings)
    assert store.attributes["num_skipped"] == 30


def test_variables_of_a_record_reach_the_template(folder: Path) -> None:
    rows = [
        {"prompt": "q", "completion": "a", "chat_template_kwargs": {"mood": "good"}},
        {"prompt": "q", "completion": "a"},
    ]
    source = write_jsonl(folder / "in.jsonl", rows)
    template = "{{ mood }}{% for m in messages %}{{ m.content }}{% endfor %}"
    store = tokenize(
        source,
        folder / "s",
        "sft",
        tokenizer=folder / "tokenizer",
        chat_template=template,
        template_variables={"mood": "bad"},
        client=SERIAL,
    )
    assert [read_ids(record["sequence"]) for record in read_all(store)] == ["goodqa", "badqa"]


def test_readers_can_ask_how_tokens_were_made(folder: Path) -> None:
    store = tokenize(
        folder / "dpo",
        folder / "s",
        "dpo",
        tokenizer=folder / "tokenizer",
        client=SERIAL,
        max_length=9,
        columns={"prompt": "prompt"},
    )
    facts = describe_tokens(store)
    assert describe_tokens(store.root) == facts
    file = (folder / "tokenizer/tokenizer.json").read_bytes()
    expected = {
        "train_type": "dpo",
        "tokenizer": hashlib.sha256(file).hexdigest(),
        "vocab_size": 260,
        "max_length": 9,
        "keep": "start",
        "train_on": ["assistant"],
        "columns": {"prompt": "prompt"},
        "begin_id": None,
        "end_id": 258,
    }
    assert expected.items() <= facts.items()
    assert facts["chat_template"]["text"] == CHATML
    assert json.loads(json.dumps(facts)) == facts
    other = import_records(folder / "seq", folder / "other", client=SERIAL)
    with pytest.raises(ConfigError, match=r"must be a store made of texts by tokenize, its kind i"):
        describe_tokens(other)


def test_ends_of_documents(folder: Path) -> None:
    def make(name: str, tokenizer: Any = folder / "tokenizer", **settings: Any) -> str:
        store = tokenize(
            folder / "seq", folder / name, "seq", tokenizer=tokenizer, client=SERIAL, **settings
        )
        return read_ids(RecordReader(store).read(1)["sequence"])

    assert make("1") == "née 1 <eod>"
    assert make("2", append_eod=False, prepend_bod=True) == "<bod>née 1 "
    assert make("3", append_eod="<|im_end|>", prepend_bod=258) == "<eod>née 1 <|im_end|>"
    plain = make_tokenizer()
    assert make("4", plain, append_eod="<eod>") == "née 1 <eod>"
    with pytest.raises(ConfigError, match=r"append_eod \(--append-eod\) needs the eos_token of"):
        make("5", plain)
    with pytest.raises(ConfigError, match=r"prepend_bod \(--prepend-bod\) needs the bos_token of"):
        make("6", plain, prepend_bod=True)
    for name, settings in (("append_eod", {"append_eod": -1}), ("prepend", {"prepend_bod": 260})):
        with pytest.raises(ConfigError, match=rf"{name}.* an id from 0 on, below 260, got "):
            make("7", **settings)


def test_ends_that_a_chat_template_says_itself(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL}
    message = r"append_eod .* and prepend_bod .* must be left out for dpo with this chat template, "
    with pytest.raises(ConfigError, match=message):
        tokenize(folder / "dpo", folder / "s", "dpo", append_eod=258, prepend_bod=True, **settings)
    tokenize(folder / "dpo", folder / "1", "dpo", append_eod=False, **settings)
    assert not caplog.text
    tokenize(folder / "sft", folder / "2", "sft", append_eod="<eod>", **settings)
    assert "append_eod (--append-eod): only applies to documents" in caplog.text


def test_missing_requirements_fail_before_anything_is_written(folder: Path) -> None:
    def count(text: str) -> list[int]:
        return [len(text)]

    kinds: Any = {"sft": "need a chat template", "seq": "needs the eos_token of the tokenizer"}
    for kind, message in kinds.items():
        with pytest.raises(ConfigError, match=message):
            tokenize(folder / kind, folder / "s", kind, tokenizer=count, client=SERIAL)
        assert not (folder / "s").exists()


def test_markers_without_special_tokens_are_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def count(text: str) -> list[int]:
        return [len(text)]

    tokenize(
        folder / "sft", folder / "s", "sft", tokenizer=count, chat_template="chatml", client=SERIAL
    )
    assert "the tokenizer has no special tokens <|im_start|> and <|im_end|>" in caplog.text


def test_a_tokenizer_with_a_name_for_its_end(folder: Path) -> None:
    class Words:
        eos_token_id = 7

        def encode(self, text: str) -> list[int]:
            return [len(word) for word in text.split()]

    store = tokenize(folder / "seq", folder / "s", "seq", tokenizer=Words(), client=SERIAL)
    assert RecordReader(store).read(1)["sequence"].tolist() == [3, 1, 7]


def test_files_of_text_are_documents(folder: Path) -> None:
    (folder / "texts").mkdir()
    for name in ("a.txt", "b.md"):
        (folder / "texts" / name).write_text(f"in {name}")
    both = [folder / "texts/a.txt", folder / "texts/b.md"]
    settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL}
    for number, source in enumerate((folder / "texts", both)):
        store = tokenize(source, folder / str(number), "seq", **settings)
        records = read_all(store)
        assert [read_ids(record["sequence"]) for record in records] == [
            "in a.txt<eod>",
            "in b.md<eod>",
        ]
        assert records[1]["__url__"].endswith("b.md")
    write_jsonl(folder / "texts/c.jsonl", [{"text": "a line"}])
    store = tokenize(folder / "texts", folder / "lines", "seq", **settings)
    assert [read_ids(record["sequence"]) for record in read_all(store)] == ["a line<eod>"]
    store = tokenize(folder / "texts", folder / "texts.zarr", "seq", kind="text", **settings)
    assert store.spec["num_records"] == 2
    kind: Any = "tar"
    with pytest.raises(
        ConfigError, match=r"kind \(--kind\) must be one of jsonl, parquet, text, got"
    ):
        tokenize(folder / "texts", folder / "x", "seq", kind=kind, **settings)


def test_nothing_to_tokenize(folder: Path) -> None:
    write_jsonl(folder / "in.jsonl", [])
    store = tokenize(
        folder / "in.jsonl", folder / "s", "seq", tokenizer=folder / "tokenizer", client=SERIAL
    )
    assert store.spec["num_records"] == 0


def test_damaged_shards_are_repaired_from_a_copy(folder: Path) -> None:
    settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL, "grid": SMALL}
    root, copy = folder / "s", folder / "again"
    tokenize(folder / "sft", root, "sft", **settings)
    before = all_files(root)
    for shard in ("sequence_value/c/1", "loss_mask_value/c/0", "key_text/c/0"):
        (root / shard).unlink()
    with pytest.raises(ConfigError, match=r"tokenise the same texts with the same settings at ano"):
        repair(root, source=str(folder / "sft"))
    settings["grid"] = ChunkGrid(32, 64)  # another one holds the same records
    tokenize(folder / "sft", copy, "sft", **settings)
    [result] = repair(root, source=str(copy))
    assert result.num_rebuilt == 3
    assert all_files(root) == before


@pytest.mark.slow
def test_processes_make_the_same_store(folder: Path) -> None:
    settings: Any = {"tokenizer": folder / "tokenizer", "grid": SMALL}
    tokenize(folder / "grpo", folder / "0/s", "grpo", client=SERIAL, **settings)
    tokenize(folder / "grpo", folder / "1/s", "grpo", num_processes=2, **settings)
    assert all_files(folder / "0/s") == all_files(folder / "1/s")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_kills", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_work_is_never_half_read_and_always_finished(folder: Path, num_kills: int) -> None:
    rows = [{"text": f"née {i} " * (i % 40)} for i in range(150)]
    source = write_jsonl(folder / "many.jsonl", rows)
    arguments = [source, folder / "kills", num_kills, folder / "tokenizer"]
    (folder / "kills").mkdir()
    done = run_python("-m", "tests.ingest.records.kill_loop", *map(str, arguments), check=True)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == num_kills
    assert all(report["second"] == 0 and report["same"] for report in reports), reports
    assert sum(report["rewritten"] for report in reports) == 0


def test_a_template_that_does_not_ask_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    for asks, text in ((False, template), (True, template + "{{ add_generation_prompt }}")):
        caplog.clear()
        settings: Any = {"tokenizer": folder / "tokenizer", "client": SERIAL}
        with suppress(SourceError):
            tokenize(folder / "sft", folder / f"s{asks}", "sft", chat_template=text, **settings)
        assert ("the chat template has no generation prompt" in caplog.text) is not asks
