"""What fields of records are made of: texts, masks, and values of their tokens."""

import re
from typing import Any

import pytest

from tests.text.small_tokenizer import read_ids
from tests.text.test_token_records import END, make, open_records
from zindex.errors import ConfigError, SourceError
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.text.chat_template import PLAIN
from zindex.text.conversations import ConversationParser
from zindex.text.record_recipe import recipe_of

ANSWER = [Field("prompt", axes="prompt"), Field("answer", axes="answer")]


def test_independent_texts() -> None:
    schema = RecordSchema("pair", [Field("query", axes="query"), Field("text", axes="text")])
    [record] = make([{"query": "a", "text": "bc"}], schema, template=None, end_id=END)
    assert [read_ids(record[name]) for name in ("query", "text")] == ["a<eod>", "bc<eod>"]
    [record] = make([{"query": "abc", "text": "d"}], schema, end_id=END, max_length=2)
    assert [read_ids(record[name]) for name in ("query", "text")] == ["ab", "d<eod>"]
    with pytest.raises(SourceError, match=r"query and text must be texts, got 5, in record '0/0'"):
        make([{"query": 5, "text": "a"}], schema)


def test_values_of_tokens_are_cut_with_them() -> None:
    schema = RecordSchema(
        "scored",
        [
            *ANSWER,
            Field("weight", values="weights", like="answer", dtype="float32", made_of="weight"),
            Field("bytes", values="numbers", like="answer"),
            Field("level", values="numbers", dtype="int8", default=3),
        ],
    )
    row = {"prompt": "pq", "answer": "abcd", "weight": [0, 0.5, 1, 2], "bytes": [1, 2, 3, 4]}
    for keep, kept in (("start", slice(0, 2)), ("end", slice(2, 4))):
        limits = {"max_length": 4 if keep == "start" else 2, "keep": keep}
        [record] = make([row], schema, template=PLAIN, **limits)
        assert read_ids(record["answer"]) == "abcd"[kept]
        assert record["weight"].tolist() == row["weight"][kept]
        assert record["bytes"].tolist() == row["bytes"][kept]
        assert (record["level"].tolist(), record["level"].dtype) == ([3], "int8")


def test_values_of_responses() -> None:
    schema = RecordSchema(
        "judged",
        [
            Field("prompt", axes="prompt"),
            Field("responses", axes=("group", "response")),
            Field("logprobs", values="floats", like="responses"),
            Field("lengths", values="numbers", like="responses", axes="group"),
        ],
    )
    row: dict[str, Any] = {"prompt": "p", "responses": ["ab", "c"]}
    row |= {"logprobs": [[-1, -2], [-3]], "lengths": [2, 1]}
    [record] = make([row], schema, template=PLAIN, max_answer=1)
    assert record["logprobs"].tolist() == [-1, -3]
    assert record["logprobs_length"].tolist() == record["responses_length"].tolist() == [1, 1]
    assert record["lengths"].tolist() == [2, 1]
    for change, message in (
        ({"logprobs": [[-1], [-3]]}, "many values as its text has tokens, 2, got 1 values"),
        ({"logprobs": [[-1, -2]]}, "many values as 'responses' has answers, 2, got 1 values"),
        ({"lengths": 5}, "many values as 'responses' has answers, 2, got 5"),
        ({"lengths": None}, "must have lengths in 'lengths', and no empty text, this one has"),
    ):
        with pytest.raises(SourceError, match=re.escape(message)):
            make([row | change], schema, template=PLAIN)


@pytest.mark.parametrize("separator", ["\n", "", " ки\n"])
def test_steps(separator: str) -> None:
    row = {"prompt": "p", "completions": ["one", "é"], "labels": [True, 0.5]}
    [record] = make([row], "prm", step_separator=separator)
    text = f"<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\none{separator}é{separator}"
    assert read_ids(record["sequence"]) == text
    prefix = text.encode().index(b"one")
    ends = [len(f"one{separator}".encode()), len(f"one{separator}é{separator}".encode())]
    size = len(text.encode()) - prefix
    found = record["step_mask"][-size:].nonzero()[0].tolist()
    assert found == [end - 1 for end in ends]
    assert not record["step_mask"][:-size].any()
    assert record["step_labels"][record["step_mask"]].tolist() == [1.0, 0.5]
    assert not record["step_labels"][~record["step_mask"]].any()


def test_steps_without_a_label_are_not_marked() -> None:
    rows = [{"prompt": "p", "steps": ["a", "b", "c"], "step_labels": [1, None, 0]}]
    [record] = make(rows, "prm", template=PLAIN, step_separator="")
    assert record["step_mask"].tolist() == [False, True, False, True]
    assert record["step_labels"].tolist() == [0, 1, 0, 0]


def test_steps_are_cut_with_their_labels() -> None:
    row = {"prompt": "pqr", "steps": ["ab", "cd"], "labels": [1, 2]}
    for limits, text, labels in (
        ({"max_length": 6}, "pqrab\n", [0, 0, 0, 0, 0, 1]),
        ({"max_length": 4, "keep": "end"}, "\ncd\n", [1, 0, 0, 2]),
        ({"max_prompt": 1, "max_answer": 3}, "rab\n", [0, 0, 0, 1]),
    ):
        [record] = make([row], "prm", template=PLAIN, **limits)
        assert read_ids(record["sequence"]) == text
        assert record["step_labels"].tolist() == labels
    records = open_records([[row]], "prm", template=PLAIN, max_length=3)
    assert len(list(records.read_part(0))) == 1
    assert records.counts["num_untrained"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"labels": [1]},
            "'step_labels' must be a list with as many values as 'steps' has texts, 2",
        ),
        ({"labels": [1, "b"]}, "'step_labels' must have flat numbers, got [1, 'b']"),
        ({"steps": ["a", ""]}, "steps must be texts that are not empty, got ''"),
        ({"steps": "ab"}, "field 'steps' must hold a list as steps, it holds str"),
        (
            {"completions": ["a"]},
            "must have one field for its steps, this one has 'steps' and 'comp",
        ),
    ],
)
def test_damaged_steps(change: dict[str, Any], message: str) -> None:
    row = {"prompt": "p", "steps": ["a", "b"], "labels": [1, 0]}
    with pytest.raises(SourceError, match=re.escape(message) + r".* in record '0/0' of a"):
        make([row | change], "prm")
    records = open_records([[row, row | change, row]], "prm", skip=True)
    assert [record["__key__"] for record in records.read_part(0)] == ["0/0", "0/2"]
    assert records.num_skipped == 1


def test_tokens_of_a_teacher() -> None:
    rows = [
        {"prompt": "p", "completion": "ab", "topk_ids": [[1], [2, 3], []]}
        | {"topk_logprobs": [[-1], [-2, -3], []]},
        {"prompt_ids": [7], "completion_ids": [5, 6], "logprobs": [{"5": -1}, {"6": -2, "9": -3}]},
        {"prompt": "p", "completion_ids": [5], "topk_ids": [[1]], "topk_logprobs": [[-0.5]]},
    ]
    text, ids, mixed = make(rows, "distill")
    assert read_ids(text["completion"]) == "ab<|im_end|>"
    assert text["topk_ids"].tolist() == [1, 2, 3]
    assert text["topk_logprobs_length"].tolist() == [1, 2, 0]
    assert (ids["prompt"].tolist(), ids["completion"].tolist()) == ([7], [5, 6])
    assert ids["completion_mask"].all()
    assert (ids["topk_ids"].tolist(), ids["topk_ids_length"].tolist()) == ([5, 6, 9], [1, 2])
    assert ids["topk_ids"].dtype == ids["completion"].dtype == "int32"
    assert read_ids(mixed["prompt"]).endswith("assistant\n")
    [record] = make(rows[:1], "distill", max_answer=2)
    assert record["topk_logprobs_length"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topk_ids": [[1]]}, "'topk_ids' must be a list with as many values as its text has tok"),
        ({"topk_logprobs": [[-1, -2], [-3]]}, "many values as 'topk_ids' in each item, got [2, 1]"),
        ({"topk_logprobs": [[-1], ["x"]]}, "'topk_logprobs' must have flat numbers, got ['x']"),
        ({"topk_logprobs": [[-1], [float("inf")]]}, "finite numbers that fit float32, got inf"),
        ({"topk_ids": [[1], [-2]]}, "token ids from 0 on that fit int32, got -2"),
        (
            {"completion_ids": [5, 260]},
            "completion_ids must be ids of the tokenizer, from 0 to 259",
        ),
        (
            {"completion_ids": [5, 0.5]},
            "'completion_ids' must have whole numbers (int32), got [5, 0",
        ),
        ({"topk_logprobs": [{"a": 1}, {}]}, "must have token ids as names, got 'a'"),
    ],
)
def test_damaged_tokens_of_a_teacher(change: dict[str, Any], message: str) -> None:
    row = {"prompt_ids": [1], "completion_ids": [5, 6]}
    row |= {"topk_ids": [[1], [2]], "topk_logprobs": [[-1], [-2]]}
    make([row], "distill")
    with pytest.raises(SourceError, match=re.escape(message) + r".* in record '0/0' of a"):
        make([row | change], "distill")


def test_prompts_keep_all_other_fields() -> None:
    rows = [{"prompt": "p", "answer": "4", "source": "x", "level": 2}, {"prompt": "q"}]
    one, other = make(rows, "prompts", max_length=3)
    assert read_ids(one["prompts"]) == "nt\n"
    assert one.keys() - other.keys() == {"ground_truth", "source", "level"}
    assert (one["ground_truth"], one["level"]) == ("4", 2)
    with pytest.raises(
        SourceError, match="must not have a field 'prompts', as the store has a key"
    ):
        make([{"prompt": "p", "prompts": 1}], "prompts")


def test_columns_name_the_fields_of_own_parts() -> None:
    schema = RecordSchema("scored", [*ANSWER, Field("score", values="floats")])
    parser = ConversationParser({"answer": "a", "score": "s"}, parts=recipe_of(schema).parts)
    [record] = make([{"prompt": "p", "a": "x", "s": 1}], schema, parser=parser, template=PLAIN)
    assert (read_ids(record["answer"]), record["score"].tolist()) == ("x", [1.0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([Field("a", values="floats")], "it has no field of token ids"),
        ([*ANSWER, Field("b", axes="b", made_of="document")], "'document' must be its only source"),
        ([*ANSWER, Field("b", axes=("g", "b"))], "'b' must be its only answers"),
        ([*ANSWER, Field("b", values="numbers", made_of="positions")], "positions, 'b', must be l"),
        (
            [Field("a", axes="a", made_of=("b", "c"))],
            "'a' must be made of one text, or of the prom",
        ),
        (
            [
                Field("a", axes="a", made_of=("prompt", "answer")),
                Field("b", values="floats", like="a"),
            ],
            "values belong to the tokens of one text, or to each text of a list",
        ),
    ],
)
def test_refused_recipes(fields: list[Field], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        recipe_of(RecordSchema("x", fields))
