"""Schemas of growing stores: inferred from the first records, and checked for all others."""

from typing import Any

import numpy as np
import pytest
import torch

from zindex.errors import ConfigError, SourceError
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.formats.keyed.schema_presets import find_schema
from zindex.growing.fields import VERSION_KEY, GrowingSchema, infer_schema

RECORD = {"responses": [[1, 2], [3]], "masks": [[1, 0], [1]], "rewards": [1, 0], "truth": "x"}


def describe(schema: GrowingSchema) -> dict[str, str]:
    return {key.name: f"{key.shape} {key.dtype}" for key in schema.keys if key.name != VERSION_KEY}


def test_a_schema_is_inferred_from_the_first_records() -> None:
    first = RECORD | {"empty": [], "score": 0.5, "raw": b"\0", "meta": {"a": 1}, "late": []}
    schema = infer_schema([first, first | {"late": [[0.5]]}])
    assert describe(schema) == {
        "responses": "group int32",
        "masks": "group bool",
        "rewards": "row float32",
        "truth": "text uint8",
        "empty": "row int32",
        "score": "scalar float32",
        "raw": "bytes uint8",
        "meta": "json uint8",
        "late": "group float32",
    }
    assert schema.keys[-1].name == VERSION_KEY


def test_arrays_and_tensors_keep_their_dtypes() -> None:
    record = {
        "ids": torch.arange(3),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "groups": [np.ones(2, np.uint16), np.ones(1, np.uint16)],
        "plane": np.zeros((2, 3), np.float64),
        "label": np.bool_(True),
        "given": [1, 2],
    }
    schema = infer_schema([record], {"given": "int64"})
    assert describe(schema) == {
        "ids": "row int64",
        "half": "row float32",
        "groups": "group uint16",
        "plane": "group float64",
        "label": "scalar bool",
        "given": "row int64",
    }
    fields = dict(
        zip([name for name, _, _ in schema.fields], schema.flatten([record], 4), strict=True)
    )
    assert fields["ids"].values.tolist() == [0, 1, 2]
    assert fields["groups_length"].values.tolist() == [2, 1]
    assert fields["plane_length"].values.tolist() == [3, 3]
    assert fields[VERSION_KEY].values.tolist() == [4]


def test_values_and_lengths_are_flat() -> None:
    schema = infer_schema([RECORD])
    other = {"responses": [], "masks": [], "rewards": [], "truth": "öü"}
    found = schema.flatten([RECORD, other], 0)
    names = [name for name, _, _ in schema.fields]
    values = {name: field.values.tolist() for name, field in zip(names, found, strict=True)}
    lengths = {name: field.lengths.tolist() for name, field in zip(names, found, strict=True)}
    assert values["responses"] == [1, 2, 3]
    assert values["responses_length"] == [2, 1]
    assert lengths["responses"] == [3, 0]
    assert lengths["responses_length"] == [2, 0]
    assert values["masks"] == [True, False, True]
    assert bytes(values["truth"]).decode() == "xöü"
    assert lengths["truth"] == [1, 4]
    assert [field.values.dtype.name for field in found] == [dtype for _, dtype, _ in schema.fields]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"responses": [1, 2]},
            r"'responses' must be a list or an array of numbers|'responses' must",
        ),
        ({"responses": "ab"}, r"'responses' must be a list of lists or arrays of numbers, as in"),
        ({"responses": [[1, -5], [3]]}, r"'responses' must be from 0 to 9, got -5 in record 1;"),
        ({"responses": [[1, 10], [3]]}, r"'responses' must be from 0 to 9, got 10 in record 1;"),
        (
            {"responses": [[1, 2**40], [3]]},
            r"'responses' must fit int32, as in the first .* record 1",
        ),
        ({"responses": [[1, 2**70], [3]]}, r"'responses' must be a list or an array|'responses'"),
        ({"responses": [[0.5], [3]]}, r"'responses' must fit int32"),
        ({"masks": [[2, 0], [1]]}, r"'masks' must fit bool"),
        ({"rewards": [float("nan"), 0.0]}, r"'rewards' must be finite, got nan in record 1; fix"),
        ({"rewards": [1e60, 0.0]}, r"'rewards' must fit float32"),
        ({"rewards": 1.0}, r"'rewards' must be a list or an array of numbers, as in the first"),
        ({"truth": 5}, r"'truth' must be a text, as in the first generation, got 5 in record 1;"),
        ({"more": 1}, r"record 1 has more; fix the record, or begin a new store"),
        ({"policy_version": 1}, r"must not have the key policy_version, which its store adds"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    schema = infer_schema([RECORD], num_ids=10)
    with pytest.raises(SourceError, match=message):
        schema.flatten([RECORD, RECORD | changes], 0)


def test_a_missing_key_is_named() -> None:
    schema = infer_schema([RECORD])
    short = {name: value for name, value in RECORD.items() if name != "truth"}
    with pytest.raises(SourceError, match=r"must have the keys .*, record 0 lacks truth; fix"):
        schema.flatten([short], 0)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"a": object()}, r"'a' must be a text, a number, or one or two levels"),
        ({"a": [[[1]]]}, r"'a' must be a text, a number, or one or two levels"),
        ({"a": [1, [2]]}, r"'a' must be a text, a number, or one or two levels"),
        ({}, r"the first generation must have records, .* got none; append one or more"),
    ],
)
def test_first_records_must_be_numbers_or_texts(record: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        infer_schema([record])


@pytest.mark.parametrize(
    ("record", "dtypes", "message"),
    [
        ({"__key__": 1}, {}, r"a key must be a text other than __key__, __url__, policy_version"),
        ({"a": [[1]], "a_length": 1}, {}, r"must not be called 'a_length', which is reserved"),
        ({"a": 1}, {"b": "int8"}, r"dtypes must be of keys of the records, a, got b; leave them"),
        ({"a": 1}, {"a": "U5"}, r"must have a dtype such as int32, float64 or bool, got 'U5'"),
        ({f"k{i}": 1 for i in range(70)}, {}, r"records must have at most 64 fields"),
    ],
)
def test_keys_and_dtypes_that_cannot_be_stored(
    record: dict[str, Any], dtypes: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        infer_schema([record], dtypes)


GRPO = {
    "prompts": torch.arange(2),
    "responses": [[1, 2], [3]],
    "masks": [[1, 0], [1]],
    "rewards": [1.0, 0.0],
    "extra": [5, 6, 7],
}


def test_a_declared_kind_gives_dtypes_and_lengths() -> None:
    schema = infer_schema([GRPO], kind=find_schema("grpo"))
    assert describe(schema) == {
        "prompts": "row int32",
        "responses": "group int32",
        "masks": "group bool",
        "rewards": "row float32",
        "extra": "row int32",
    }
    assert {key.name: key.like for key in schema.keys if key.like} == {
        "masks": "responses",
        "rewards": "responses",
    }
    weights = infer_schema([GRPO | {"masks": [[0.5, 0.0], [1.0]]}], kind=find_schema("grpo"))
    assert describe(weights)["masks"] == "group float32"
    own = RecordSchema("own", [Field("state", axes="token"), Field("seen", like="state")])
    with pytest.raises(SourceError, match=r"token ids of 'state' must be from 0 to"):
        infer_schema([{"state": [1], "seen": [1]}], kind=own).flatten(
            [{"state": [-1], "seen": [1]}], 0
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": [1.0]}, r"rewards and responses .* one length, got 1 and 2 in record 1; fix"),
        ({"masks": [[1, 0], [1, 1]]}, r"masks and responses .*, got 2 and 1 in record 1; fix"),
        ({"masks": [[1, 0]]}, r"masks and responses .*, got 1 and 2 in record 1; fix the record"),
    ],
)
def test_declared_lengths_are_checked(changes: dict[str, Any], message: str) -> None:
    schema = infer_schema([GRPO], kind=find_schema("grpo"))
    with pytest.raises(SourceError, match=message):
        schema.flatten([GRPO, GRPO | changes], 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"masks": None},
            r"a record of 'grpo' must have the keys prompts, .* first one lacks masks",
        ),
        (
            {"rewards": 1.0},
            r"'rewards' must be numbers with 1 axes, as declared, got 1.0 in record",
        ),
    ],
)
def test_first_records_must_be_as_declared(changes: dict[str, Any], message: str) -> None:
    record = {name: value for name, value in (GRPO | changes).items() if value is not None}
    with pytest.raises(SourceError, match=message):
        infer_schema([record], kind=find_schema("grpo"))


KTO = {"prompt": [1], "completion": [2], "completion_mask": [1], "label": 1}


def test_declared_weights_are_true_or_false_also_if_the_first_ones_are_numbers() -> None:
    schema = infer_schema([KTO], kind=find_schema("kto"))
    assert describe(schema)["label"] == "scalar bool"
    with pytest.raises(
        SourceError, match=r"numbers of 'label' must fit bool, .* got 2 in record 0"
    ):
        schema.flatten([KTO | {"label": 2}], 0)


@pytest.mark.parametrize("prompt", ["hello", {"a": 1}, [0.5]])
def test_the_first_values_are_those_that_are_declared(prompt: Any) -> None:
    message = "'prompt' must be (numbers with 1 axes, as declared|one of ids, such as int32), got"
    with pytest.raises((SourceError, ConfigError), match=message):
        infer_schema([KTO | {"prompt": prompt}], kind=find_schema("kto"))
