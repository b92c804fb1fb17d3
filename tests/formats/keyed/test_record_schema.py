"""Declared kinds of records: their settings, their layout, and the check of one record."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError, SourceError
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.formats.keyed.schema_presets import (
    GRPO,
    KTO,
    PRESETS,
    PROMPTS,
    find_schema,
    find_token_keys,
)

YAML = """\
name: critique
fields:
  prompt: {axes: prompt, pads_left: true, mask: prompt_mask}
  critique: {axes: critique}
  critique_mask: {values: weights, like: critique}
  scores: {values: floats, axes: aspect}
  verdict: {values: text, optional: true}
"""
CRITIQUE = RecordSchema(
    "critique",
    [
        Field("prompt", axes="prompt", pads_left=True, mask="prompt_mask"),
        Field("critique", axes="critique"),
        Field("critique_mask", values="weights", like="critique"),
        Field("scores", values="floats", axes="aspect"),
        Field("verdict", values="text", optional=True),
    ],
)


def test_a_schema_is_a_yaml_file(tmp_path: Path) -> None:
    (tmp_path / "critique.yaml").write_text(YAML)
    schema = find_schema(tmp_path / "critique.yaml")
    assert schema == find_schema(str(tmp_path / "critique.yaml")) == CRITIQUE
    assert find_schema(schema) is schema
    assert schema.keys == ("prompt", "critique", "critique_mask", "scores")
    assert schema.layout == {
        "prompt": "int32",
        "critique": "int32",
        "critique_mask": "bool",
        "scores": "float32",
        "verdict": None,
    }
    (tmp_path / "bad.yml").write_text(YAML.replace("values: text", "value: text"))
    with pytest.raises(ConfigError, match=r"bad.yml.*: field 'verdict' .* has no setting 'value'"):
        find_schema(tmp_path / "bad.yml")


@pytest.mark.parametrize("schema", [*PRESETS.values(), CRITIQUE], ids=lambda item: item.name)
def test_a_schema_survives_json_without_order(schema: RecordSchema) -> None:
    stored = json.loads(json.dumps(schema.to_json(), sort_keys=True))
    assert RecordSchema.from_json(stored) == schema
    assert find_token_keys({"import": {"schema": stored}}) == schema.token_keys


def test_the_layout_of_groups_has_the_lengths_of_items() -> None:
    assert GRPO.layout == {
        "prompts": "int32",
        "responses": "int32",
        "responses_length": "int64",
        "masks": "bool",
        "masks_length": "int64",
        "rewards": "float32",
    }
    assert "| `masks` | `masks` | weights | (group, response), as `responses` | bool | 0 |" in (
        GRPO.document()
    )


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"fields": {"a": None}}, "a kind of records must have a name, got ''"),
        ({"name": "x"}, "fields of a kind of records must be a mapping from different names"),
        ({"name": "x", "fields": {}}, "the kind 'x' must have fields, got []"),
        ({"name": "x", "fields": {"a": 5}}, "field 'a' of a kind of records must be a mapping of"),
        ({"name": "x", "fields": {"a": {"vlaues": "ids"}}}, "'vlaues' (did you mean 'values'?)"),
        ({"a": {"values": "id"}}, "values of field 'a' must be one of ids, weights, floats, num"),
        ({"a": {"axes": [1]}}, "axes of field 'a' must be a text or a list of names, got (1,)"),
        ({"a": {"axes": ["b", "c", "d"]}}, "at most two axes and a shift of 0 or 1, got the axes"),
        ({"a": {"axes": "t", "pad": True}}, "pad of field 'a' must be float or none or int, got T"),
        ({"a": {"mask": "m"}}, "field 'a' of one value per record must have no mask; leave it out"),
        ({"a": {"axes": "t", "default": 0}}, "several values per record must have no default"),
        ({"a": {"values": "text", "like": "b"}}, "field 'a' of texts must have no like; leave it"),
        ({"a": {"axes": "t", "dtype": "float32"}}, "dtype of field 'a' must be one of ids, such"),
        (
            {"a": {"values": "floats", "dtype": "x"}},
            "must be one of floats, such as float32, got 'x",
        ),
        (
            {"a": {"like": "b"}},
            "another field of numbers, which is not like it, got 'b'; there are []",
        ),
        (
            {"a": {"axes": "t"}, "b": {"like": "a", "axes": "u"}},
            "must begin like those of 'a', ['t'",
        ),
        (
            {"a": {"axes": "t", "mask": "b"}, "b": None},
            "names of their own, got b twice; rename one",
        ),
        ({"a": {"axes": ["g", "t"]}, "a_length": {"axes": "g"}}, "got a_length twice"),
        (
            {"a": {"like": "b"}, "b": {"like": "a"}},
            "another field of numbers, which is not like it",
        ),
        ({"name": "x", "fields": [{"name": "a"}, {"name": "a"}]}, "from different names to sett"),
        ({"name": "x", "fields": {"a": None}, "modes": 5}, "modes of the kind 'x' must be one of"),
        ({"name": "x", "fields": {"a": None}, "keeps_fields": "no"}, "must be true or false, got"),
        ({"a": {"values": "text"}}, "must have a field of numbers, and windows none of texts"),
        ({"a": {"axes": "t", "shift": 1}}, "windows as its only mode to shift a, got records"),
        ({"name": "x", "fields": {"a": None}, "modes": ["x"]}, "modes of the kind 'x' must be one"),
    ],
)
def test_refused_declarations(declared: dict[str, Any], message: str) -> None:
    if not declared.keys() & {"name", "fields"}:
        declared = {"name": "x", "fields": declared}
    with pytest.raises(ConfigError, match=re.escape(message)):
        RecordSchema.from_json(declared)


def test_a_record_is_flattened() -> None:
    found = GRPO.flatten(
        {
            "__key__": "0",
            "prompts": [1, 2],
            "responses": [np.array([3, 4]), []],
            "masks": [[True, False], []],
            "rewards": [1, 0.5],
        }
    )
    assert list(found) == list(GRPO.layout)
    assert {name: value.dtype.name for name, value in found.items()} == GRPO.layout
    assert {name: value.tolist() for name, value in found.items()} == {
        "prompts": [1, 2],
        "responses": [3, 4],
        "responses_length": [2, 0],
        "masks": [True, False],
        "masks_length": [2, 0],
        "rewards": [1.0, 0.5],
    }
    record = {"prompt": [], "critique": [], "critique_mask": [], "scores": [], "verdict": {"a": 1}}
    assert CRITIQUE.flatten(record)["verdict"] == {"a": 1}
    assert "verdict" not in CRITIQUE.flatten(record | {"verdict": None})
    assert PROMPTS.flatten({"prompts": [1], "source": "x"}).keys() == {"prompts", "source"}


GOOD: dict[str, Any] = {
    "prompt": [1],
    "completion": [2, 3],
    "completion_mask": [1, 0],
    "label": True,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"label": None},
            "a record of 'kto' must have the key 'label', it has prompt, completion, "
            "completion_mask; add it",
        ),
        ({"lable": 1}, "got 'lable' (did you mean 'label'?)"),
        ({"label": [True, True]}, "'label' must have one number per record, got [True, True]"),
        ({"label": 0.5}, "'label' must have true and false (bool), got 0.5; convert them, or decl"),
        ({"label": 2}, "'label' must have true and false (bool), got 2"),
        ({"prompt": [0.5]}, "'prompt' must have whole numbers (int32), got [0.5]"),
        ({"prompt": [True]}, "'prompt' must have whole numbers (int32), got [True]"),
        ({"prompt": [-1]}, "'prompt' must have token ids from 0 on that fit int32, got -1"),
        (
            {"prompt": [2**31]},
            "'prompt' must have token ids from 0 on that fit int32, got 2147483648",
        ),
        ({"prompt": [2**70]}, "'prompt' must have flat numbers, got [1180591620717411303424]"),
        ({"prompt": [[1]]}, "'prompt' must have flat numbers, got [[1]]"),
        ({"prompt": "text"}, "'prompt' must have flat numbers, got 'text'"),
        (
            {"completion": [2]},
            "'completion_mask' must have the lengths of 'completion', [1], got [2]",
        ),
    ],
)
def test_a_damaged_record_names_its_key(change: dict[str, Any], message: str) -> None:
    KTO.flatten(GOOD)
    with pytest.raises(SourceError, match=re.escape(message)):
        KTO.flatten(GOOD | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"responses": [[1], 2]}, "'responses' must have flat numbers, got 2"),
        ({"responses": 5}, "'responses' must be a list of lists of numbers, got 5"),
        ({"masks": [[1], []]}, "'masks' must have the lengths of 'responses', [1, 2], got [1, 0]"),
        ({"rewards": [1.0]}, "'rewards' must have the lengths of 'responses', [2], got [1]"),
        (
            {"rewards": [1.0, np.nan]},
            "'rewards' must have finite numbers that fit float32, got nan",
        ),
        (
            {"rewards": [1.0, 1e39]},
            "'rewards' must have finite numbers that fit float32, got 1e+39",
        ),
    ],
)
def test_a_damaged_group_names_its_key(change: dict[str, Any], message: str) -> None:
    group = {"prompts": [], "responses": [[1], [2, 3]], "masks": [[1], [0, 1]], "rewards": [0, 1]}
    GRPO.flatten(group)
    with pytest.raises(SourceError, match=re.escape(message)):
        GRPO.flatten(group | change)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=4))
def test_values_are_kept(items: list[list[int]]) -> None:
    schema = RecordSchema("x", [Field("a", axes=("g", "t")), Field("n", like="a", axes="g")])
    found = schema.flatten({"a": items, "n": [len(item) for item in items]})
    parts = np.split(found["a"], np.cumsum(found["a_length"]))[:-1]
    assert [part.tolist() for part in parts] == items
    assert found["n"].tolist() == found["a_length"].tolist()
