"""The command ``zindex tokenize``: texts and dialogues to token stores and corpora."""

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import click

from zindex.cli.options import join_options, json_option, record_store_options
from zindex.errors import ConfigError

# Options of corpora alone, and of records alone.
_CORPUS_NAMES = ("to", "split_sentences", "language", "overwrite")
_RECORD_NAMES = (
    *("roles", "chat_template", "variables", "date", "train_on", "turns", "max_length", "keep"),
    *("prepend_bod", "position_ids", "special_in_text", "chunk_nbytes", "shard_nbytes"),
)

_text_options = join_options(
    click.option(
        "--kind", type=click.Choice(["jsonl", "parquet", "text"]), help="What the files are."
    ),
    click.option(
        "--column",
        "columns",
        multiple=True,
        metavar="NAME=FIELD",
        help="Where something is that is called otherwise, such as prompt=question; repeatable. "
        "For pretrain the field with the text alone, such as content.",
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
        metavar="auto|none|TOKEN",
        help="Id or text of the token behind documents; auto, the default: the tokenizer's "
        "eos_token. With --split-sentences the default is none.",
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
    click.option(
        "--token-dtype",
        help="Of the ids; by default int32, for pretrain uint16 where the vocabulary fits.",
    ),
    click.option(
        "--special-in-text",
        type=click.Choice(["parse", "refuse"]),
        default="parse",
        show_default=True,
        help="Whether special tokens written in a text become such tokens, or are damage.",
    ),
)
_tokenizer_options = join_options(
    click.option(
        "--tokenizer",
        metavar="PATH",
        help="A tokenizer.json, a SentencePiece .model, a .tiktoken file, a vocab.txt of "
        "WordPiece, or a folder with one.",
    ),
    click.option(
        "--tokenizer-type",
        metavar="TYPE",
        help="What it is, if its name does not tell: huggingface, sentencepiece, tiktoken, "
        "wordpiece, bpe, byte-level, null, or Megatron's name of one.",
    ),
    click.option(
        "--tokenizer-option",
        "tokenizer_options",
        multiple=True,
        metavar="NAME=JSON",
        help="An argument of it, such as lower_case=false; repeatable.",
    ),
)
_corpus_options = join_options(
    click.option(
        "--to",
        type=click.Choice(["zarr", "bin"]),
        default="zarr",
        show_default=True,
        help="Of pretrain: a token store, as of convert, or TARGET.bin and TARGET.idx.",
    ),
    click.option(
        "--split-sentences",
        is_flag=True,
        help="Of pretrain: each sentence becomes a sequence, as BERT and T5 need.",
    ),
    click.option(
        "--language", default="en", show_default=True, help="Of the texts, for their sentences."
    ),
    click.option("--overwrite", is_flag=True, help="With --to bin: replace a pair that is there."),
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
    type=click.Choice(["seq", "sft", "dpo", "grpo", "pretrain"]),
    required=True,
    help="What is trained: documents, dialogues, pairs or groups of answers; pretrain makes a "
    "corpus that build takes.",
)
@_tokenizer_options
@_text_options
@_token_options
@_corpus_options
@_work_options
@json_option
@click.pass_context
def tokenize_command(
    context: click.Context,
    /,
    sources: tuple[str, ...],
    target: str,
    train_type: str,
    tokenizer: str | None,
    tokenizer_type: str | None,
    tokenizer_options: tuple[str, ...],
    to: str,
    columns: tuple[str, ...],
    roles: tuple[str, ...],
    variables: tuple[str, ...],
    append_eod: str | None,
    token_dtype: str | None,
    prepend_bod: str,
    codec: str,
    chunk_nbytes: int,
    shard_nbytes: int,
    scheduler: str | None,
    num_processes: int | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Tokenise texts or dialogues into a store, once.

    SOURCE is a jsonl or Parquet file, a file of text that is one document, a folder or a brace
    pattern, here or in an object store. TARGET is the store. What is finished already is kept.
    """
    if scheduler is None and num_processes is None:
        num_processes = len(os.sched_getaffinity(0))
    source = sources[0] if len(sources) == 1 else sources
    given = _open_tokenizer(tokenizer, tokenizer_type, tokenizer_options)
    _check_given(context, train_type, to)
    common = {"client": scheduler, "num_processes": num_processes, "progress": True}
    if train_type == "pretrain":
        kept = ("kind", "part_nbytes", "on_damage", "restart", "overwrite")
        _make_corpus(
            source,
            target,
            as_json,
            tokenizer=given,
            to=to,
            column=_text_column(columns),
            append_eod=None if append_eod is None else _parse_token(append_eod),
            split_sentences=settings["split_sentences"],
            language=settings["language"],
            token_dtype=token_dtype or "auto",
            codec=codec,
            **{name: settings[name] for name in kept},
            **common,
        )
        return
    for name in _CORPUS_NAMES:
        settings.pop(name, None)
    _make_store(
        source,
        target,
        as_json,
        tokenizer=given,
        train_type=train_type,
        columns=dict(_split(columns, "--column", "prompt=question")),
        roles=dict(_split(roles, "--role", "gpt=assistant")),
        template_variables=_parse_json("--variable", "enable_thinking=false", variables),
        append_eod=_parse_token(append_eod or "auto"),
        token_dtype=token_dtype or "int32",
        prepend_bod=_parse_token(prepend_bod),
        cut=(chunk_nbytes, shard_nbytes, codec),
        **settings,
        **common,
    )


def _make_store(
    source: Any, target: str, as_json: bool, *, cut: tuple[int, int, str], **settings: Any
) -> None:
    """Make a keyed store, and say what is in it."""
    from zindex.building.keyed.tokenize import tokenize
    from zindex.store.layout import ChunkGrid

    start = time.monotonic()
    codec: Any = cut[2]
    store = tokenize(source, target, grid=ChunkGrid(cut[0], cut[1], codec), **settings)
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


def _make_corpus(source: Any, target: str, as_json: bool, *, codec: str, **settings: Any) -> None:
    """Make a corpus for pre-training, and say what is in it."""
    from dataclasses import asdict

    from zindex.building.convert import TOKEN_GRID
    from zindex.building.corpora.tokenize_corpus import tokenize_corpus
    from zindex.store.layout import ChunkGrid

    start = time.monotonic()
    grid = None
    if codec == "zstd":
        grid = ChunkGrid(TOKEN_GRID.chunk_length, TOKEN_GRID.shard_length, "zstd")
    made = tokenize_corpus(source, target, grid=grid, **settings)
    if as_json:
        facts = asdict(made) | {"seconds": time.monotonic() - start}
        click.echo(json.dumps(facts, indent=2))
        return
    click.echo(
        f"{made.place}: {made.num_tokens:,} tokens ({made.token_dtype}) in {made.num_documents:,} "
        f"documents and {made.num_sequences:,} sequences"
        + (
            f"; {made.num_skipped:,} damaged records or files were left out"
            * bool(made.num_skipped)
        )
    )


def _open_tokenizer(path: str | None, kind: str | None, options: Sequence[str]) -> Any:
    """Return the tokenizer, or its path where that tells what it is."""
    parsed = _parse_json("--tokenizer-option", "lower_case=false", options)
    if kind is None and not parsed:
        if path is None:
            raise ConfigError(
                "--tokenizer must be given, got none; give its path, or a --tokenizer-type that "
                "needs no file"
            )
        return path
    from zindex.text.tokenizers.opening import open_text_tokenizer

    return open_text_tokenizer(path, kind, **parsed)


def _check_given(context: click.Context, train_type: str, to: str) -> None:
    """Refuse options that the kind of training does not take."""
    names = _RECORD_NAMES if train_type == "pretrain" else _CORPUS_NAMES
    if train_type == "pretrain" and to == "bin":
        names = (*names, "codec")
    elif train_type == "pretrain":
        names = (*names, "overwrite")
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = next(item.opts[0] for item in context.command.params if item.name == name)
            what = f"--for {train_type}" + f" --to {to}" * (train_type == "pretrain")
            raise ConfigError(f"{option} must be left out with {what}, which does not take it")


def _text_column(columns: Sequence[str]) -> str:
    """Return the field with the text of documents."""
    if not columns:
        return "text"
    name, separator, field = columns[0].partition("=")
    if len(columns) > 1 or (separator and (name != "text" or not field)):
        raise ConfigError(
            "--column must name the one field with the text for --for pretrain, such as content, "
            f"got {' and '.join(columns)}"
        )
    return field if separator else name


def _split(pairs: Sequence[str], option: str, example: str) -> list[tuple[str, str]]:
    """Return the two sides of each ``NAME=VALUE``."""
    found = []
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name or not value:
            raise ConfigError(f"{option} must be like {example}, got {pair!r}")
        found.append((name, value))
    return found


def _parse_json(option: str, example: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``NAME=JSON``."""
    values = {}
    for name, text in _split(pairs, option, example):
        try:
            values[name] = json.loads(text)
        except ValueError as error:
            raise ConfigError(
                f"{option} {name} must have a value in JSON, got {text!r}: {error}; write texts "
                f"in quotes, as in {option} '{name}=\"text\"'"
            ) from error
    return values


def _parse_token(text: str) -> bool | int | str:
    """Return which token is meant: True for the tokenizer's own, False for none."""
    if text in ("auto", "none"):
        return text == "auto"
    return int(text) if text.isdecimal() else text
