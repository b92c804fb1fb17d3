"""Documents, samples and records as they are shown."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import zindex
from tests.cli.commands import fail, invoke, succeed
from tests.conftest import WriteCorpus
from tests.indexing.runs import make_run
from tests.inspection.answers.test_info import write_yaml
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import save_tokenizer
from zindex.cli import main
from zindex.config import RunConfig
from zindex.errors import ConfigError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.growing.writer import append
from zindex.ingest.keyed.tokenize import tokenize
from zindex.inspection.answers.info import ls
from zindex.inspection.answers.record_statistics import measure_records
from zindex.inspection.answers.show import show
from zindex.inspection.answers.trace import trace
from zindex.plan.packing import PackingRules

DIALOGUE = [{"role": "user", "content": "Say a"}, {"role": "assistant", "content": "a\nb"}]


class Letters:
    """A tokenizer of letters."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


def test_documents(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    prefix = write_corpus([3, 5, 2], tokens=[*b"abcdefghij"])
    zindex.convert(prefix, tmp_path / "c.zarr", client=SerialExecutor())
    for path in (prefix, f"{prefix}.idx", f"{prefix}.bin", str(tmp_path / "c.zarr")):
        [field] = show(path, document=1).fields
        assert field.value == [*b"defgh"]
        assert field.name.endswith("document 1, tokens 0:5")
        assert show(path, document=1, tokenizer=Letters()).fields[0].texts == ("defgh",)
    assert show(prefix, document=2).to_lines()[1:] == [
        "corpus, document 2, tokens 0:2:",
        "  105 106",
    ]


@pytest.mark.parametrize("packing", [None, PackingRules(2)])
@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_samples_are_those_of_traces(
    write_corpus: WriteCorpus, tmp_path: Path, packing: Any, order: Any
) -> None:
    config = make_run(tmp_path, write_corpus, packing=packing, order=order)
    run_file = write_yaml(tmp_path / "run.yaml", config)
    zindex.build(config, SerialExecutor())
    for position in (0, 7, 39):
        [sample] = trace(config, position=position).samples
        shown = show(run_file, sample=position)
        assert [field.name.split(", ", 1)[1] for field in shown.fields] == [
            f"document {part.document:,}, tokens {part.start}:{part.stop}" for part in sample.parts
        ]
    members = RunConfig(**vars(config) | {"datasets": config.datasets[:1]})
    zindex.build(members, SerialExecutor())
    indices = [item for item in ls(config.index) if item.facts.get("source") == [
        config.datasets[0].path
    ] and item.facts.get("split") == "train" and item.kind != "blend"]  # fmt: skip
    assert indices
    for item in indices:
        shown = show(item.path, sample=3)
        tokens = [token for field in shown.fields for token in field.value]
        assert 1 <= len(tokens) <= 5
        with pytest.raises(ConfigError, match=r"a sample must be in \[0, "):
            show(item.path, sample=item.facts["num_samples"])


def test_records(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"messages": DIALOGUE}] * 2)
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    settings: dict[str, Any] = {"tokenizer": tokenizer, "chat_template": "chatml"}
    store = tokenize(source, tmp_path / "s", "sft", client=SerialExecutor(), **settings)
    path = str(store.root)
    tokens = store["sequence_value"][: len(store["sequence_value"]) // 2].tolist()
    mask = store["loss_mask_value"][: len(tokens)].astype(bool).tolist()
    numbers, text = show(path, record=1), show(path, record=1, tokenizer=tokenizer)
    for shown in (numbers, text):
        [field] = [each for each in shown.fields if each.name == "sequence"]
        assert (field.value, field.mask) == (tokens, mask)
        assert "loss_mask" not in [each.name for each in shown.fields]
    assert field.texts is not None
    assert [part.strip() for part in field.texts if "a\nb" in part] == ["a\nb<|im_end|>"]
    assert json.loads(json.dumps(text.to_json()))["fields"][0]["mask"] == mask
    styled = numbers.to_lines(lambda text, mask: f"<{text}>" if mask else text)
    trained = [int(word.strip("<>")) for line in styled for word in line.split() if "<" in word]
    assert trained == [token for token, flag in zip(tokens, mask, strict=True) if flag]


def test_values_of_any_kind(tmp_path: Path) -> None:
    rows = [{"text": "one\ttwo " * 30, "facts": {"a": [1, 2]}, "number": 4}]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    zindex.import_records(source, tmp_path / "s", client=SerialExecutor())
    lines = show(tmp_path / "s", record=0).to_lines()
    assert all(len(line) <= 80 for line in lines)
    assert "".join(line[2:] for line in lines[2:5]).startswith("one\\ttwo one\\ttwo")


def test_refusals(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    with pytest.raises(StoreNotFoundError, match=r"pair at .*/none\.zarr, nothing is there; check"):
        show(tmp_path / "none.zarr", document=3)
    prefix = write_corpus([3, 5, 2])
    config = make_run(tmp_path, write_corpus)
    zindex.build(config, SerialExecutor())
    with pytest.raises(ConfigError, match=r"and record .*, got 0; name one"):
        show(prefix)
    with pytest.raises(ConfigError, match=r"and record .*, got 2; name one"):
        show(prefix, document=1, record=1)
    with pytest.raises(ConfigError, match=r"document must be in \[0, 3\).*got 3"):
        show(prefix, document=3)
    with pytest.raises(ConfigError, match="records are shown of stores"):
        show(prefix, record=3)
    [blend] = [item.path for item in ls(config.index) if "blend-train" in item.path]
    with pytest.raises(ConfigError, match=r"of indices of one corpus, .* is a blend"):
        show(blend, sample=3)
    for name in Path(config.index).glob("names-*"):
        name.unlink()
    [index, *_] = [item.path for item in ls(config.index) if "gpt-train" in item.path]
    with pytest.raises(ConfigError, match="no run in its folder names it"):
        show(index, sample=3)


def test_commands(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([3, 5, 2])
    assert json.loads(succeed("show", prefix, "--document", 1, "--json")) == {
        "title": f"{prefix}, document 1",
        "fields": [{"name": "corpus, document 1, tokens 0:5", "value": [3, 4, 5, 6, 7]}],
    }
    assert succeed("show", prefix, "--document", 1).endswith("  3 4 5 6 7\n")
    assert fail("show", prefix).startswith(
        "Error: show needs one of --document, --sample and --record"
    )
    assert invoke("show", prefix, "--document", "x").exit_code == 2


def test_groups_are_shown_answer_by_answer(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "responses": ["a b", "c"], "rewards": [0.5, 1]}]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    settings: dict[str, Any] = {"tokenizer": tokenizer, "chat_template": "chatml"}
    tokenize(source, tmp_path / "s", "grpo", client=SerialExecutor(), **settings)
    shown = show(tmp_path / "s", record=0, tokenizer=tokenizer)
    fields = {field.name: field for field in shown.fields}
    names = ["prompts", "responses 0", "responses 1", "rewards", "__key__", "__url__"]
    assert list(fields) == names
    for name, text in (("responses 0", "a b"), ("responses 1", "c")):
        assert fields[name].mask == [True] * len(fields[name].value)
        assert "".join(fields[name].texts or ()).startswith(text)
    assert fields["rewards"].value == [0.5, 1.0]


def test_fields_that_only_look_like_masks_and_lengths_are_shown(tmp_path: Path) -> None:
    rows = [{"a": [1, 2], "a_mask": [1], "a_length": 7, "b": [3], "b_length": [4], "c_mask": "m", "c": "t"}]  # fmt: skip  # noqa: E501
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    dtypes = {name: "int32" for name in ("a", "a_mask", "b", "b_length")}
    zindex.import_records(source, tmp_path / "s", dtypes=dtypes, client=SerialExecutor())
    names = [field.name for field in show(tmp_path / "s", record=0).fields]
    assert names == [*rows[0], "__key__", "__url__"]


def test_masks_are_coloured_unless_no_color_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"messages": DIALOGUE}])
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    settings: dict[str, Any] = {"tokenizer": tokenizer, "chat_template": "chatml"}
    tokenize(source, tmp_path / "s", "sft", client=SerialExecutor(), **settings)
    command = ["show", str(tmp_path / "s"), "--record", "0", "--decode"]
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = CliRunner().invoke(main, command, color=True).stdout
    assert "\x1b[32ma\x1b[0m" in coloured  # the answer's first line is green
    assert "\x1b[2mSay a<|im_end|>\x1b[0m" in coloured  # the question is dim
    monkeypatch.setenv("NO_COLOR", "1")
    plain = CliRunner().invoke(main, command, color=True).stdout
    assert "\x1b" not in plain
    assert plain == click.unstyle(coloured)


def test_masks_of_a_users_own_kind(tmp_path: Path) -> None:
    """They are those that it declares: fields of weights with the axes of another field."""
    schema = RecordSchema(
        "critique",
        [
            Field("draft", axes="token"),
            Field("is_error", values="weights", like="draft"),
            Field("critiques", axes=("group", "word")),
            Field("kept", values="weights", like="critiques", dtype="float32"),
            Field("chosen", values="weights", like="critiques", axes="group"),
            Field("plan", axes="step"),
            Field("plan_mask", values="numbers", like="plan"),
        ],
    )
    record = {
        "draft": [5, 6, 7],
        "is_error": [True, False, True],
        "critiques": [[1, 2], [3]],
        "kept": [[0.5, 0.0], [1.0]],
        "chosen": [True, False],
        "plan": [8],
        "plan_mask": [4],
    }
    append(tmp_path / "growing", [record], kind=schema)
    shown = show(tmp_path / "growing", record=0).fields
    assert [(field.name, field.value, field.mask) for field in shown][:6] == [
        ("draft", [5, 6, 7], [True, False, True]),
        ("critiques 0", [1, 2], [True, False]),
        ("critiques 1", [3], [True]),
        ("chosen", [True, False], None),
        ("plan", [8], None),
        ("plan_mask", [4], None),
    ]
    targets = measure_records(tmp_path / "growing").targets
    assert [(each.name, each.num_tokens, each.num_targets) for each in targets] == [
        ("draft", 3, 2),
        ("critiques", 3, 2),
    ]


def test_masks_of_a_users_own_kind_of_text(tmp_path: Path) -> None:
    schema = RecordSchema(
        "answer",
        [Field("query", axes="query"), Field("is_kept", values="weights", like="query")],
    )
    source = write_jsonl(tmp_path / "a.jsonl", [{"query": "ab"}])
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    tokenize(source, tmp_path / "s", schema, tokenizer=tokenizer, client=SerialExecutor())
    [field, *_] = show(tmp_path / "s", record=0, tokenizer=tokenizer).fields
    assert (field.name, field.mask) == ("query", [True] * len(field.value))
    assert "is_kept" not in [each.name for each in show(tmp_path / "s", record=0).fields]
