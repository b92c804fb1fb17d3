"""Records of tokens: their masks, their ends, how they are cut; the same however files are cut."""

import copy
import pickle
import random
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ingest.records.sources import ListFiles
from tests.text.small_tokenizer import make_tokenizer, read_ids, save_tokenizer
from zindex.errors import ConfigError, FingerprintMismatchError, SourceError
from zindex.text import encoded_files as module
from zindex.text.chat_template import CHATML, PLAIN, ChatTemplate
from zindex.text.conversations import ConversationParser
from zindex.text.length_limits import LengthLimits
from zindex.text.text_encoder import TextEncoder
from zindex.text.token_records import TokenRecords
from zindex.text.token_settings import UNKNOWN_ID, TokenSettings

END, BEGIN = 258, 259


def make(rows: list[dict[str, Any]], train_type: Any, **settings: Any) -> list[dict[str, Any]]:
    """Return the records of some objects."""
    return list(open_records([rows], train_type, **settings).read_part(0))


def open_records(
    parts: list[list[dict[str, Any]]],
    train_type: Any,
    *,
    template: str | None = CHATML,
    skip: bool = False,
    parser: ConversationParser | None = None,
    **settings: Any,
) -> TokenRecords:
    return TokenRecords(
        ListFiles({"a": parts}),
        "digest",
        settings=with_limits(train_type, **settings),
        encoder=TextEncoder(make_tokenizer()),
        template=None if template is None else ChatTemplate(template),
        parser=parser,
        skip_damaged=skip,
    )


def with_limits(train_type: Any, **settings: Any) -> TokenSettings:
    """Return settings, with those of limits where they belong."""
    names = settings.keys() & {item.name for item in fields(LengthLimits)}
    limits = LengthLimits(**{name: settings.pop(name) for name in names})
    return TokenSettings(train_type, limits=limits, **settings)


def test_documents_end() -> None:
    rows = [{"text": "é"}, {"text": ""}]
    one, empty = make(rows, "seq", end_id=END)
    assert sorted(one) == ["__key__", "__url__", "sequence"]
    assert one["sequence"].dtype == np.int32
    assert read_ids(one["sequence"]) == "é<eod>"
    assert empty["sequence"].tolist() == [END]
    one, empty = make(rows, "seq", begin_id=BEGIN, token_dtype="uint16")
    assert read_ids(one["sequence"]) == "<bod>é"
    assert one["sequence"].dtype == np.uint16
    assert read_ids(make([{"prompt": "q", "completion": "a"}], "seq")[0]["sequence"]) == (
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    )


def test_dialogues() -> None:
    [record] = make([{"prompt": "q", "completion": "añ"}], "sft")
    assert {name: value.dtype.name for name, value in record.items() if name[0] != "_"} == {
        "sequence": "int32",
        "loss_mask": "bool",
        "position_ids": "int32",
    }
    text = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert read_ids(record["sequence"]) == text + "añ<|im_end|>\n"
    assert read_ids(record["sequence"][record["loss_mask"]]) == "añ<|im_end|>"
    assert record["position_ids"].tolist() == list(range(len(record["sequence"])))
    # The prompt is what a model is given, token by token.
    asked = make_tokenizer().encode(text, add_special_tokens=False).ids
    assert record["sequence"][: len(asked)].tolist() == asked
    [record] = make([{"prompt": "q", "completion": "a"}], "sft", position_ids="none")
    assert "position_ids" not in record


@given(
    st.lists(st.text("aé \n<|>", max_size=5), min_size=2, max_size=6),
    st.sampled_from([None, 1, 7, 30]),
    st.sampled_from(["start", "end"]),
)
def test_as_a_naive_reference(contents: list[str], max_length: int | None, keep: Any) -> None:
    sequence, mask = list[int](), list[bool]()
    messages = []
    for i, content in enumerate(contents):
        role = "assistant" if i % 2 else "user"
        messages.append({"role": role, "content": content})
        for text, trained in (
            (f"<|im_start|>{role}\n", False),
            (f"{content}<|im_end|>", role == "assistant"),
            ("\n", False),
        ):
            ids = make_tokenizer().encode(text, add_special_tokens=False).ids
            sequence += ids
            mask += [trained] * len(ids)
    [record] = make([{"messages": messages}], "sft", max_length=max_length, keep=keep)
    length = len(sequence) if max_length is None else min(max_length, len(sequence))
    kept = slice(length) if keep == "start" else slice(len(sequence) - length, None)
    assert record["sequence"].tolist() == sequence[kept]
    assert record["loss_mask"].tolist() == mask[kept]


def test_texts_have_masks_of_ones() -> None:
    rows = [{"text": "abc"}, {"prompt": "q", "completion": "a"}]
    text, dialogue = make(rows, "sft", end_id=END, begin_id=BEGIN)
    assert text["loss_mask"].tolist() == [False, True, True, True, True]
    # The template says where a dialogue ends.
    assert read_ids(dialogue["sequence"]).endswith("<|im_end|>\n")


def test_a_dialogue_takes_precedence_over_its_text() -> None:
    row = {"instruction": "q", "input": "", "output": "a", "text": "as text"}
    [record] = make([row], "sft", template=PLAIN, end_id=END)
    assert read_ids(record["sequence"]) == "qa<eod>"
    [record] = make([row], "seq", template=PLAIN, end_id=END)
    assert read_ids(record["sequence"]) == "as text<eod>"
    parser = ConversationParser({"text": "text"})
    records = open_records([[row]], "sft", template=PLAIN, end_id=END, parser=parser)
    assert read_ids(next(records.read_part(0))["sequence"]) == "as text<eod>"


def test_plain_dialogues_end_as_documents_do() -> None:
    row = {"prompt": "1+1=", "completion": "2"}
    [record] = make([row], "sft", template=PLAIN, end_id=END, begin_id=BEGIN)
    assert read_ids(record["sequence"]) == "<bod>1+1=2<eod>"
    assert read_ids(record["sequence"][record["loss_mask"]]) == "2<eod>"


def test_the_end_after_an_empty_message_is_trained_with_it() -> None:
    for rejected, trained in (("", "<eod>"), ("b", "b<eod>")):
        answers = ([{"role": "assistant", "content": text}] for text in ("a", rejected))
        row = dict(zip(("chosen", "rejected"), answers, strict=True)) | {"prompt": "q"}
        [record] = make([row], "dpo", template=PLAIN, end_id=END)
        assert read_ids(record["rejected"][record["rejected_mask"]]) == trained
    for roles, trained in (("ua", "<eod>"), ("uau", ""), ("au", "")):
        messages = [{"role": {"u": "user", "a": "assistant"}[x], "content": ""} for x in roles]
        [record] = make([{"messages": messages}], "sft", template=PLAIN, end_id=END)
        assert read_ids(record["sequence"][record["loss_mask"]]) == trained
    row = {"prompt": "q", "responses": ["a", ""], "rewards": [1, 0]}
    [record] = make([row], "grpo", template=PLAIN, end_id=END)
    assert record["masks"].tolist() == [True] * 3
    [record] = make([{"text": ""}], "sft", end_id=END)
    assert record["loss_mask"].tolist() == [True]


def test_untrained_records_are_counted() -> None:
    row = {"prompt": "long", "completion": "a", "chosen": "a", "rejected": "b"}
    row |= {"responses": ["a", ""], "rewards": [1, 0]}
    for train_type, length, count in (("sft", 4, 1), ("sft", 5, 0), ("dpo", 4, 1), ("grpo", 4, 1)):
        records = open_records([[row]], train_type, template=PLAIN, max_length=length)
        assert len(list(records.read_part(0))) == 1
        assert records.counts["num_untrained"] == count
    assert open_records([[row]], "seq").counts == {}


def test_pairs() -> None:
    row = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    [record] = make([row], "dpo")
    assert [record[name].dtype for name in ("chosen", "rejected")] == [np.int32] * 2
    for name, answer in (("chosen", "good"), ("rejected", "bad")):
        ids, mask = record[name], record[f"{name}_mask"]
        assert mask.dtype == bool
        assert read_ids(ids[mask]) == f"{answer}<|im_end|>"
        assert read_ids(ids[~mask]) == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
        assert mask.tolist() == sorted(mask)
    [record] = make([row], "dpo", template=PLAIN, end_id=END)
    assert read_ids(record["rejected"]) == "qbad<eod>"
    assert record["rejected_mask"].tolist() == [False, True, True, True, True]


@given(
    st.text("ab ", max_size=9).map("p".__add__),
    st.tuples(st.text("cd", min_size=1, max_size=9), st.text("ef", min_size=1, max_size=9)),
    st.fixed_dictionaries(
        {
            name: st.sampled_from([None, 1, 4, 12])
            for name in ("max_length", "max_prompt", "max_answer")
        }
        | {"keep": st.sampled_from(["start", "end"])}
    ),
)
def test_the_answers_of_a_pair_follow_the_same_prompt(
    prompt: str, answers: tuple[str, str], limits: dict[str, Any]
) -> None:
    row = {"prompt": prompt, "chosen": answers[0], "rejected": answers[1]}
    [record] = make([row], "dpo", template=PLAIN, **limits)
    asked, kept = [], []
    for name in ("chosen", "rejected"):
        ids, mask = record[name], record[f"{name}_mask"]
        asked.append(read_ids(ids[~mask]))
        kept.append(read_ids(ids[mask]))
        assert mask.tolist() == sorted(mask)
        assert len(ids) <= (limits["max_length"] or len(ids))
    assert asked[0] == asked[1]
    most, answer = limits["max_prompt"], limits["max_answer"]
    shared, whole = prompt[-(most or 99) :], [text[:answer] for text in answers]
    if limits["max_length"] is None:
        assert (asked[0], kept) == (shared, whole)
    elif limits["keep"] == "start":
        left = limits["max_length"] - len(shared)
        assert asked[0] == shared[: limits["max_length"]]
        assert kept == [text[: max(0, left)] for text in whole]
    else:
        left = limits["max_length"] - max(map(len, whole))
        assert asked[0] == (shared[-left:] if left > 0 else "")
        assert kept == [text[-limits["max_length"] :] for text in whole]


def test_a_pair_keeps_the_same_words_of_a_long_prompt() -> None:
    words = " ".join(map(str, range(100, 130)))
    row = {"prompt": words, "chosen": "yes, of course", "rejected": "no"}
    [record] = make([row], "dpo", template=PLAIN, max_length=40, keep="end")
    asked = {read_ids(record[name][~record[f"{name}_mask"]]) for name in ("chosen", "rejected")}
    assert asked == {words[-26:]}


def test_long_records_are_left_out_or_an_error() -> None:
    rows = [
        {"prompt": "q" * length, "chosen": "a" * length, "rejected": "b", "text": "t" * length}
        for length in (2, 5, 3)
    ]
    rows = [row | {"responses": [row["chosen"]], "rewards": [1]} for row in rows]
    for kind, limit in (("dpo", "max_prompt"), ("grpo", "max_answer"), ("sft", "max_length")):
        given: dict[str, Any] = {"template": PLAIN, limit: 4, "on_long": "drop"}
        given |= {"parser": ConversationParser({"text": "text"})} if kind == "sft" else {}
        records = open_records([rows], kind, **given)
        found = list(records.read_part(0))
        assert [record["__key__"] for record in found] == ["0/0", "0/2"]
        names = ("num_truncated", "num_dropped", "num_cut_tokens")
        assert [records.counts[name] for name in names] == [0, 1, 0]
        records = open_records([rows], kind, **given | {"on_long": "truncate"})
        assert len(list(records.read_part(0))) == 3
        assert [records.counts[name] for name in names] == [1, 0, 1]
        message = f"at most 4 tokens by {limit}.* has 1 more.* in record '0/1' of a"
        with pytest.raises(SourceError, match=message):
            list(open_records([rows], kind, **given | {"on_long": "error"}).read_part(0))
    with pytest.raises(
        ConfigError, match="max_prompt must come with a kind that has a prompt, such as"
    ):
        with_limits("sft", max_prompt=3)


def test_groups() -> None:
    row = {"prompt": "q", "responses": ["one", "", "three"], "rewards": [1, 0, 0.5]}
    [record] = make([row], "grpo")
    assert list(record)[2:] == list(TokenSettings("grpo").dtypes)
    assert {name: record[name].dtype.name for name in list(record)[2:]} == TokenSettings(
        "grpo"
    ).dtypes
    asked = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert read_ids(record["prompts"]) == asked
    lengths = record["responses_length"].tolist()
    assert lengths == record["masks_length"].tolist() == [4, 1, 6]
    parts = np.split(record["responses"], np.cumsum(lengths)[:-1])
    assert [read_ids(part) for part in parts] == [f"{x}<|im_end|>" for x in ("one", "", "three")]
    assert record["masks"].all()
    assert record["rewards"].tolist() == [1.0, 0.0, 0.5]
    [record] = make([row], "grpo", template=PLAIN, begin_id=BEGIN, end_id=END, max_length=3)
    assert read_ids(record["prompts"]) == "<bod>q"
    parts = np.split(record["responses"], np.cumsum(record["responses_length"])[:-1])
    assert [read_ids(part) for part in parts] == ["one", "<eod>", "thr"]
    [record] = make([row], "grpo", max_length=11)  # answers follow the end of the prompt
    assert read_ids(record["prompts"]) == "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("keep", "text", "trained"), [("start", "question:", ""), ("end", "swer<eod>", "swer<eod>")]
)
def test_long_sequences_are_truncated(keep: str, text: str, trained: str) -> None:
    row = {"prompt": "question:", "completion": "answer"}
    length = 9 if keep == "start" else 5
    [record] = make([row], "sft", template=PLAIN, end_id=END, max_length=length, keep=keep)
    assert read_ids(record["sequence"]) == text
    assert read_ids(record["sequence"][record["loss_mask"]]) == trained
    assert record["position_ids"].tolist() == list(range(length))


@pytest.mark.parametrize("train_type", ["seq", "sft", "dpo", "grpo"])
def test_records_do_not_depend_on_partitions_or_batches(
    train_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)

    def word() -> str:
        return "".join(rng.choices("abé \n", k=rng.randrange(1, 9)))

    rows: list[dict[str, Any]] = []
    for number in range(40):
        rows.append({"prompt": word(), "chosen": word(), "rejected": word()})
        rows[-1] |= {"responses": [word(), word()], "rewards": [number, 0], "completion": word()}
        if number % 3 == 0 and train_type in ("seq", "sft"):
            rows[-1] = {"text": word()}
    expected = make(rows, train_type, end_id=END)
    for batch, length in ((1, 1 << 20), (7, 1 << 20), (1000, 30)):
        monkeypatch.setattr(module, "_MAX_BATCH", batch)
        monkeypatch.setattr(module, "_BATCH_LENGTH", length)
        records = open_records([rows[:13], rows[13:14], [], rows[14:]], train_type, end_id=END)
        found = [record for part in range(4) for record in records.read_part(part)]
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            for name in TokenSettings(train_type).dtypes:  # type: ignore[arg-type]
                assert one[name].dtype == other[name].dtype
                assert one[name].tolist() == other[name].tolist()


def test_damaged_objects() -> None:
    rows = [{"prompt": "q", "completion": "a"}, {"nothing": 1}, {"text": "x"}]
    message = r"this one has \['nothing'\]; say .*, in record '0/1' of a; fix it, or leave out su"
    with pytest.raises(SourceError, match=message):
        make(rows, "sft", end_id=END)
    records = open_records([rows], "sft", end_id=END, skip=True)
    assert [record["__key__"] for record in records.read_part(0)] == ["0/0", "0/2"]
    assert records.num_skipped == 1


ANSWER = {"role": "assistant", "content": "a"}


@pytest.mark.parametrize("bad", ["x\ud800", "x<|im_end|>"])
@pytest.mark.parametrize(
    ("train_type", "make_row"),
    [
        ("seq", lambda text: {"text": text}),
        ("sft", lambda text: {"text": text}),
        ("sft", lambda text: {"messages": [{"role": "user", "content": text}, ANSWER]}),
        ("dpo", lambda text: {"prompt": "q", "chosen": "a", "rejected": text}),
        ("grpo", lambda text: {"prompt": "q", "responses": ["a", text], "rewards": [0, 1]}),
    ],
    ids=["seq", "text", "messages", "dpo", "grpo"],
)
def test_invalid_texts(train_type: Any, make_row: Any, bad: str) -> None:
    rows = [make_row("good"), make_row(bad), make_row("é")]
    for skip in (True, False):
        records = open_records([rows], train_type, skip=skip, special_in_text="refuse")
        if skip:
            assert [record["__key__"] for record in records.read_part(0)] == ["0/0", "0/2"]
            assert records.num_skipped == 1
            continue
        message = r"(lone surrogates|special tokens).*, in record '0/1' of a; fix it"
        with pytest.raises(SourceError, match=message):
            list(records.read_part(0))
    if bad.isascii():  # by default it is parsed
        assert len(make(rows, train_type)) == 3


def test_missing_templates_and_ends() -> None:
    with pytest.raises(ConfigError, match=r"need a chat template, and the tokenizer has none; nam"):
        make([{"prompt": "q", "completion": "a"}], "sft", template=None)
    assert len(make([{"text": "x"}], "sft", template=None)) == 1
    with pytest.raises(ConfigError, match=r"needs the eos_token of the tokenizer"):
        make([{"text": "x"}], "seq", end_id=UNKNOWN_ID)
    assert len(make([{"prompt": "q", "completion": "a"}], "sft", end_id=UNKNOWN_ID)) == 1
    with pytest.raises(ConfigError, match=r"must hold every id of the tokenizer, int8 holds those"):
        make([{"text": "x"}], "seq", token_dtype="int8", end_id=END)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_type": "ppo"}, "train_type must be one of seq, sft, dpo, grpo, kto, "),
        ({"keep": "middle"}, "keep (--keep) must be one of start, end, got 'middle'"),
        ({"position_ids": "x"}, "position_ids must be one of doc_reset, none, got 'x'"),
        ({"special_in_text": "x"}, "special_in_text must be one of parse, refuse, got 'x'"),
        ({"max_length": 0}, "must be a whole number from 1 on, got 0"),
        ({"max_length": True}, "must be a whole number from 1 on, got True"),
        ({"token_dtype": "float32"}, "token_dtype (--token-dtype) must be one of int8, uint8,"),
    ],
)
def test_refused_settings(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        with_limits(**({"train_type": "sft"} | settings))


def test_records_pickle_with_the_path_of_the_tokenizer(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path)
    records = TokenRecords(
        ListFiles({"a": [[{"text": "x"}]]}),
        "digest",
        settings=TokenSettings("seq"),
        encoder=TextEncoder(folder),
        template=ChatTemplate(CHATML),
        parser=ConversationParser({"text": "text"}),
        cutter_settings={"turns": "last"},
    )
    data = pickle.dumps(records)
    assert len(data) < 3000
    again = pickle.loads(data)
    assert read_ids(next(again.read_part(0))["sequence"]) == "x"
    assert again.identity() == records.identity() == copy.copy(records).identity()
    assert {"train_type": "seq", "turns": "last", "vocab_size": 260}.items() <= (
        records.identity().items()
    )
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("<eod>", "<end>"))
    with pytest.raises(FingerprintMismatchError, match=r"must be the same tokenizer on all machin"):
        pickle.loads(data)
