"""The command ``zindex tokenize``: texts and dialogues to token stores."""

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import click

from zindex.cli_options import join_options, json_option, record_store_options
from zindex.errors import ConfigError

_text_options = join_options(
    click.option("--kind", type=click.Choice(["jsonl", "text"]), help="What the files are."),
    click.option(
        "--column",
        "columns",
        multiple=True,
        metavar="NAME=FIELD",
        help="Where something is that is called otherwise, such as prompt=question; repeatable.",
    ),
    click.option(
        "--role",
        "roles",
        multiple=True,
        metavar="ROLE=NAME",
        help="What the template calls a role of the data; repeatable.",
    ),
    click.option(
        "--chat-template",
        metavar="NAME|FILE",
        help="chatml, plain, one of the tokenizer's by name, or a file; without it the tokenizer's "
        "own.",
    ),
    click.option(
        "--variable",
        "variables",
        multiple=True,
        metavar="NAME=JSON",
        help="What the template is given besides; repeatable.",
    ),
    click.option("--date", metavar="YYYY-MM-DD", help="What a template writes as today."),
)
_token_options = join_options(
    click.option(
        "--train-on",
        multiple=True,
        default=("assistant",),
        show_default=True,
        metavar="ROLE",
        help="A role whose messages are trained, other than the assistant's with their headers; "
        "repeatable.",
    ),
    click.option(
        "--turns",
        type=click.Choice(["all", "last"]),
        default="all",
        show_default=True,
        help="Which of these messages are trained.",
    ),
    click.option("--max-length", type=click.IntRange(1), help="Tokens to keep of each sequence."),
    click.option(
        "--keep",
        type=click.Choice(["start", "end"]),
        default="start",
        show_default=True,
        help="Which end of a longer one.",
    ),
    click.option(
        "--append-eod",
        default="auto",
        show_default=True,
        metavar="auto|none|TOKEN",
        help="Id or text of the token behind documents; auto: the tokenizer's eos_token.",
    ),
    click.option(
        "--prepend-bod",
        default="none",
        show_default=True,
        metavar="auto|none|TOKEN",
        help="Of the token before documents; auto: the tokenizer's bos_token.",
    ),
    click.option(
        "--position-ids",
        type=click.Choice(["doc_reset", "none"]),
        default="doc_reset",
        show_default=True,
        help="Of sft: positions from 0 in each dialogue, or none.",
    ),
    click.option("--token-dtype", default="int32", show_default=True, help="Of the ids."),
    click.option(
        "--special-in-text",
        type=click.Choice(["parse", "refuse"]),
        default="parse",
        show_default=True,
        help="Whether special tokens written in a text become such tokens, or are damage.",
    ),
)
_work_options = join_options(
    click.option("--part-nbytes", type=click.IntRange(1), help="Bytes that one task reads."),
    click.option(
        "--on-damage",
        type=click.Choice(["error", "skip"]),
        default="error",
        show_default=True,
        help="Whether what makes no record stops the work, or is left out and counted.",
    ),
    click.option(
        "--restart",
        is_flag=True,
        help="Remove what is unfinished at TARGET first; no other work may be running there.",
    ),
    record_store_options,
)


@click.command("tokenize")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@click.option(
    "--for",
    "train_type",
    type=click.Choice(["seq", "sft", "dpo", "grpo"]),
    required=True,
    help="What is trained: documents, dialogues, pairs or groups of answers.",
)
@click.option(
    "--tokenizer", required=True, metavar="PATH", help="A tokenizer.json, or a folder with one."
)
@_text_options
@_token_options
@_work_options
@json_option
def tokenize_command(
    sources: tuple[str, ...],
    target: str,
    columns: tuple[str, ...],
    roles: tuple[str, ...],
    variables: tuple[str, ...],
    append_eod: str,
    prepend_bod: str,
    codec: str,
    chunk_nbytes: int,
    shard_nbytes: int,
    scheduler: str | None,
    num_processes: int | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Tokenise texts or dialogues into a keyed store, once.

    SOURCE is a jsonl file, a file of text that is one document, a folder or a brace pattern, here
    or in an object store. TARGET is the store. What is finished already is kept.
    """
    from zindex.building.keyed.tokenize import tokenize
    from zindex.store.layout import ChunkGrid

    if scheduler is None and num_processes is None:
        num_processes = len(os.sched_getaffinity(0))
    start = time.monotonic()
    store = tokenize(
        sources[0] if len(sources) == 1 else sources,
        target,
        columns=dict(_split(columns, "--column", "prompt=question")),
        roles=dict(_split(roles, "--role", "gpt=assistant")),
        template_variables=_parse_variables(variables),
        append_eod=_parse_token(append_eod),
        prepend_bod=_parse_token(prepend_bod),
        grid=ChunkGrid(chunk_nbytes, shard_nbytes, "zstd" if codec == "zstd" else "none"),
        client=scheduler,
        num_processes=num_processes,
        progress=True,
        **settings,
    )
    counts = {item["name"]: item["num_values"] for item in store.spec["fields"]}
    facts = {
        "store": str(store.root),
        "fingerprint": store.fingerprint,
        "train_type": settings["train_type"],
        "num_records": store.spec["num_records"],
        "num_files": store.spec["num_urls"],
        "num_skipped": store.attributes["num_skipped"],
        "num_untrained": store.attributes.get("num_untrained", 0),
        "num_values": {name: count for name, count in counts.items() if name != "__key__"},
    }
    if as_json:
        click.echo(json.dumps(facts | {"seconds": time.monotonic() - start}, indent=2))
        return
    skipped = facts["num_skipped"]
    values = ", ".join(f"{count:,} in {name}" for name, count in facts["num_values"].items())
    click.echo(
        f"{facts['store']}: {facts['num_records']:,} records for {facts['train_type']}, values: "
        f"{values or 'none'}"
        + (f"; {skipped:,} damaged records or files were left out" if skipped else "")
    )


def _split(pairs: Sequence[str], option: str, example: str) -> list[tuple[str, str]]:
    """Return the two sides of each ``NAME=VALUE``."""
    found = []
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name or not value:
            raise ConfigError(f"{option} must be like {example}, got {pair!r}")
        found.append((name, value))
    return found


def _parse_variables(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the variables of a template."""
    variables = {}
    for name, text in _split(pairs, "--variable", "enable_thinking=false"):
        try:
            variables[name] = json.loads(text)
        except ValueError as error:
            raise ConfigError(
                f"--variable {name} must have a value in JSON, got {text!r}: {error}; write texts "
                f"in quotes, as in --variable '{name}=\"text\"'"
            ) from error
    return variables


def _parse_token(text: str) -> bool | int | str:
    """Return which token is meant: True for the tokenizer's own, False for none."""
    if text in ("auto", "none"):
        return text == "auto"
    return int(text) if text.isdecimal() else text
