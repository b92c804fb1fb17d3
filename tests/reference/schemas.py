"""JSON Schemas of the YAML files, generated from the code that reads these files.

``python -m tests.reference.schemas`` writes them: `zindex/run.schema.json` for run files, and
`zindex/streaming/mixture.schema.json` for streaming mixtures.
"""

import dataclasses
import inspect
import json
import re
import types
import typing
from pathlib import Path
from typing import Any

import zindex.streaming
from zindex.config import DatasetConfig, RunConfig
from zindex.plan.split import SPLIT_NAMES
from zindex.streaming.configuration.registry import OFFERED

ROOT = Path(__file__).parents[2]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}
# Numbers that may also be written as texts such as 1.5B.
NUMBERS = {"weight", "tokens", "epochs", "max_epochs", "surplus"}
DESCRIPTIONS = {
    "datasets": "Datasets of the run: paths, or mappings with a path and at most one share.",
    "path": "A Zarr store, or the prefix of a .bin/.idx pair; relative to the folder of this file.",
    "seed": "Seed of every shuffle.",
    "samples": "Samples of each split, such as 1M, or of train; a split without has one epoch.",
    "order": "Megatron Core's order, bit for bit, or the scalable one.",
    "drop_last_partial_validation_sequence": "Whether valid drops a last sample with fewer tokens.",
    "grid": "Chunks and shards of the index stores.",
    "chunk_length": "Elements of an inner chunk.",
    "shard_length": "Elements of a shard, a multiple of chunk_length.",
    "codec": "Compression of the chunks.",
}


def main() -> None:
    """Write both schemas."""
    for path, schema in generate().items():
        path.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")


def generate() -> dict[Path, dict[str, Any]]:
    """Return the schemas by the paths of their files."""
    return {
        ROOT / "zindex" / "run.schema.json": run_schema(),
        ROOT / "zindex" / "streaming" / "mixture.schema.json": mixture_schema(),
    }


def run_schema() -> dict[str, Any]:
    """Return the schema of a run file."""
    schema = describe_dataclass(RunConfig)
    dataset = describe_dataclass(DatasetConfig)
    schema["properties"]["split"] |= {
        "type": ["string", "array"],
        "items": {"type": "number", "minimum": 0},
        "maxItems": 3,
    }
    schema["properties"]["datasets"] |= {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [{"type": "string"}, dataset]},
    }
    return {"$schema": DIALECT, "title": "zindex run", **schema}


def describe_dataclass(kind: type) -> dict[str, Any]:
    """Return the schema of a mapping whose keys are the fields of a dataclass."""
    hints, comments = typing.get_type_hints(kind), read_comments(kind)
    properties, required = {}, []
    for field in dataclasses.fields(kind):
        found = {} if field.name == "datasets" else describe_type(hints[field.name])
        if field.name in NUMBERS:
            found = {"type": ["number", "string", "null"]}
        description = comments.get(field.name) or DESCRIPTIONS.get(field.name)
        assert description, f"{kind.__name__}.{field.name} has no description"
        properties[field.name] = {"description": description, **found}
        if field.default is dataclasses.MISSING:
            if field.default_factory is dataclasses.MISSING:
                required.append(field.name)
        elif field.default is not None:
            properties[field.name]["default"] = field.default
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def describe_type(hint: Any) -> dict[str, Any]:
    """Return the schema of a value of an annotated type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [describe_type(item) for item in arguments if item is not type(None)]
        null = [{"type": "null"}] if type(None) in arguments else []
        return {"anyOf": options + null}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is dict:  # samples by split, or of train
        count = {"type": ["integer", "string", "null"], "minimum": 0}
        properties = dict.fromkeys(SPLIT_NAMES, count)
        mapping = {"type": "object", "properties": properties, "additionalProperties": False}
        return {"anyOf": [mapping, {"type": ["integer", "string"], "minimum": 0}]}
    if dataclasses.is_dataclass(hint):
        return describe_dataclass(typing.cast("type", hint))
    return {"type": JSON_TYPES[hint]}


def read_comments(kind: type) -> dict[str, str]:
    """Return the ``#:`` comments above the fields of a dataclass."""
    comments: dict[str, str] = {}
    lines: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        stripped = line.strip()
        field = re.match(r"(\w+):", stripped)
        if stripped.startswith("#:"):
            lines.append(stripped.removeprefix("#:").strip())
            continue
        if field and lines:
            comments[field[1]] = " ".join(lines).replace("``", "").replace("`", "")
        lines = []
    return comments


def mixture_schema() -> dict[str, Any]:
    """Return the schema of a streaming mixture: objects by ``target`` and ``params``."""
    targets = {name: describe_target(getattr(zindex.streaming, name)) for name in OFFERED}
    node = {"$ref": "#/$defs/node"}
    for schema in targets.values():
        for name, value in schema["properties"].items():
            if name == "datasets":
                value |= {"type": "array", "items": node}
            elif name.endswith("process_fn"):
                value |= node
    mapping = {
        "type": "object",
        "properties": {
            "target": {
                "description": "What to make: a name that zindex offers, or that your program "
                "registers or allows.",
                "type": "string",
                "anyOf": [{"enum": list(OFFERED)}, {"pattern": "."}],
            },
            "params": {
                "description": "Keyword arguments of the target; null for none.",
                "type": ["object", "null"],
            },
            "include": {
                "description": "Another YAML file, relative to this one, in place of a target.",
                "type": "string",
            },
            "name": {
                "description": "Name of a dataset in a mixture; its state is kept by it.",
                "type": "string",
            },
            "percent": {
                "description": "Share of a dataset in its mixture, in proportion to the others: a "
                "number, or a mapping from samples of the mixture, from 0 on, to numbers.",
                "type": ["number", "string", "object"],
                "patternProperties": {"^[0-9_]+$": {"type": ["number", "string"]}},
                "additionalProperties": False,
            },
            "max_epochs": {
                "description": "Epochs after which a dataset of a cyclic mixture is exhausted.",
                "type": ["integer", "string"],
                "minimum": 1,
            },
        },
        "allOf": [
            {
                "if": {"required": ["target"], "properties": {"target": {"const": name}}},
                "then": {"properties": {"params": schema}},
            }
            for name, schema in targets.items()
        ],
    }
    return {
        "$schema": DIALECT,
        "title": "zindex streaming mixture",
        "$ref": "#/$defs/node",
        "$defs": {"node": {"anyOf": [{"type": ["string", "null"]}, mapping]}},
    }


def describe_target(target: Any) -> dict[str, Any]:
    """Return the schema of the params of a class or function."""
    signature = inspect.signature(target)
    documented = read_parameters(inspect.getdoc(target) or "")
    properties: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        properties[name] = {"description": documented.get(name, name)}
        if isinstance(parameter.default, str | int | float):
            properties[name]["default"] = parameter.default
    open_ended = any(item.kind is item.VAR_KEYWORD for item in signature.parameters.values())
    closed = {} if open_ended else {"additionalProperties": False}
    return {"type": ["object", "null"], "properties": properties, **closed}


def read_parameters(docstring: str) -> dict[str, str]:
    """Return the descriptions of the parameters of a numpydoc docstring."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", docstring, re.M | re.S)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (section[1] if section else "").splitlines():
        if line and not line[0].isspace():
            names = [name.strip() for name in line.split(",")]
        elif line.strip():
            for name in names:
                found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return {name: text.replace("``", "").replace("`", "") for name, text in found.items()}


def make_page() -> str:
    """Return the reference of the YAML files, as Markdown tables of both schemas."""
    run, mixture = generate().values()
    dataset = run["properties"]["datasets"]["items"]["anyOf"][1]
    lines = ["# YAML files", "", "## Run files", "", *_table(run), "", "### Datasets", ""]
    lines += [*_table(dataset), "", "## Streaming mixtures", ""]
    mapping = mixture["$defs"]["node"]["anyOf"][1]
    lines += [*_table(mapping), ""]
    for item in mapping["allOf"]:
        name = item["if"]["properties"]["target"]["const"]
        lines += [f"### {name}", "", *_table(item["then"]["properties"]["params"]), ""]
    return "\n".join(lines)


def _table(schema: dict[str, Any]) -> list[str]:
    """Return the rows of a table of the properties of a schema."""
    rows = ["| key | meaning | default |", "|---|---|---|"]
    for name, value in schema["properties"].items():
        default = json.dumps(value["default"]) if "default" in value else ""
        description = value["description"].replace("|", "\\|")
        rows.append(f"| `{name}` | {description} | {f'`{default}`' if default else ''} |")
    return rows


if __name__ == "__main__":
    main()
