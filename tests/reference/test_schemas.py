"""JSON Schemas of the YAML files: they are what the code gives, and they know right from wrong."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.reference.schemas import ROOT, generate, make_page, mixture_schema, run_schema

RUN = jsonschema.Draft202012Validator(run_schema())
MIXTURE = jsonschema.Draft202012Validator(mixture_schema())


@pytest.mark.parametrize("path", list(generate()), ids=lambda path: path.name)
def test_the_schema_file_is_up_to_date(path: Path) -> None:
    found = json.loads(path.read_text())
    assert found == generate()[path], "run python -m tests.reference.schemas"


def yaml_blocks(guide: str) -> list[Any]:
    text = (ROOT / "zindex" / guide / "README.md").read_text()
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def test_run_files_of_the_guide_are_valid() -> None:
    blocks = yaml_blocks("indexing")
    assert len(blocks) >= 3
    for block in blocks:
        RUN.validate(block)


def test_mixtures_of_the_guide_and_of_the_example_are_valid() -> None:
    example = yaml.safe_load((ROOT / "examples" / "05_streaming.yaml").read_text())
    for block in [*yaml_blocks("streaming"), example]:
        MIXTURE.validate(block)


@pytest.mark.parametrize(
    "change",
    [
        {"sequence_lenght": 4096},
        {"order": "random"},
        {"split": [99, "1", 0]},
        {"datasets": []},
        {"datasets": [{"path": "a", "wieght": 1}]},
        {"samples": {"training": 3}},
        {"packing": {"long_documents": "keep"}},
    ],
    ids=str,
)
def test_wrong_run_files_are_refused(change: dict[str, Any]) -> None:
    right = {"sequence_length": 8, "datasets": ["a"]}
    assert RUN.is_valid(right)
    assert not RUN.is_valid(right | change)


@pytest.mark.parametrize("change", [{"split": [99, 1, 0]}, {"samples": "1M"}, {"samples": 7}])
def test_short_forms_are_valid(change: dict[str, Any]) -> None:
    RUN.validate({"sequence_length": 8, "datasets": ["a"]} | change)


def test_a_wrong_parameter_of_a_target_is_refused() -> None:
    right = {"target": "TextPacking", "params": {"sequence_length": 8, "tokenizer": "t.json"}}
    assert MIXTURE.is_valid(right)
    assert not MIXTURE.is_valid(right | {"params": {"sequence_lenght": 8}})
    assert MIXTURE.is_valid({"target": "my.Dataset", "params": {"anything": 1}})


def test_the_page_names_every_setting() -> None:
    page = make_page()
    for name in ("sequence_length", "max_epochs", "MetaDistributedWebDataset", "meta_names"):
        assert name in page
