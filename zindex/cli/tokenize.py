"""``zindex tokenize``: texts and dialogues to token stores and corpora."""

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from zindex.cli.options import (
    choice,
    choose_processes,
    damage_option,
    echo_json,
    join_options,
    json_option,
    one_or_all,
    parse_pairs,
    record_store_options,
    repeatable,
)
from zindex.errors import ConfigError

# Options of corpora alone, and of records alone.
_CORPUS_NAMES = ("to", "split_sentences", "language", "overwrite")
_RECORD_NAMES = (
    *("roles", "chat_template", "variables", "date", "train_on", "turns", "max_length", "keep"),
    *("prepend_bod", "position_ids", "special_in_text", "chunk_nbytes", "shard_nbytes"),
)

_text_options = join_options(
    choice("--kind", ["jsonl", "parquet", "text"], help="Format of the files."),
    click.option(
        "--column",
        "columns",
        multiple=True,
        metavar="NAME=FIELD",
        help="The field with a value, such as prompt=question; repeatable. For pretrain just the "
        "field with the text, such as content.",
    ),
    repeatable(
        "--role",
        "roles",
        metavar="ROLE=NAME",
        help="A role of the template and its name in the data; repeatable.",
    ),
    click.option(
        "--chat-template",
        metavar="NAME|FILE",
        help="chatml, plain, the name of a template of the tokenizer, or a file. [default: the "
        "tokenizer's template]",
    ),
    repeatable(
        "--variable",
        "variables",
        metavar="NAME=JSON",
        help="A further variable of the template; repeatable.",
    ),
    click.option("--date", metavar="YYYY-MM-DD", help="The current date in the template."),
)
_token_options = join_options(
    click.option(
        "--train-on",
        multiple=True,
        default=("assistant",),
        show_default=True,
        metavar="ROLE",
        help="A role whose messages are targets; headers are targets too, except the assistant's; "
        "repeatable.",
    ),
    choice(
        "--turns",
        ["all", "last"],
        default="all",
        help="Whether all of these messages are targets or only the last.",
    ),
    click.option("--max-length", type=click.IntRange(1), help="Truncate sequences to this."),
    choice(
        "--keep",
        ["start", "end"],
        default="start",
        help="The end of a truncated sequence that is kept.",
    ),
    click.option(
        "--append-eod",
        metavar="auto|none|TOKEN",
        help="Token after each document, by id or text; auto is the tokenizer's eos_token. "
        "[default: auto; none with --split-sentences]",
    ),
    click.option(
        "--prepend-bod",
        default="none",
        show_default=True,
        metavar="auto|none|TOKEN",
        help="Token before each document; auto is the tokenizer's bos_token.",
    ),
    choice(
        "--position-ids",
        ["doc_reset", "none"],
        default="doc_reset",
        help="For sft: positions from 0 in each dialogue, or none.",
    ),
    click.option(
        "--token-dtype",
        help="Dtype of the ids. [default: int32; for pretrain uint16 if the vocabulary fits]",
    ),
    choice(
        "--special-in-text",
        ["parse", "refuse"],
        default="parse",
        help="Whether special tokens in a text become tokens or count as damage.",
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
        help="Type, if the name is ambiguous: huggingface, sentencepiece, tiktoken, wordpiece, "
        "bpe, byte-level, null, or Megatron's name of one.",
    ),
    repeatable(
        "--tokenizer-option",
        "tokenizer_options",
        metavar="NAME=JSON",
        help="An argument of the tokenizer, such as lower_case=false; repeatable.",
    ),
)
_corpus_options = join_options(
    choice(
        "--to",
        ["zarr", "bin"],
        default="zarr",
        help="For pretrain: a Zarr token store, or TARGET.bin and TARGET.idx.",
    ),
    click.option(
        "--split-sentences",
        is_flag=True,
        help="For pretrain: each sentence becomes a sequence, as BERT and T5 need.",
    ),
    click.option(
        "--language", default="en", show_default=True, help="Language of the texts, for sentences."
    ),
    click.option("--overwrite", is_flag=True, help="With --to bin: replace an existing pair."),
)
_work_options = join_options(
    click.option("--part-nbytes", type=click.IntRange(1), help="Bytes that one task reads."),
    damage_option("damaged records", "the work"),
    click.option(
        "--restart",
        is_flag=True,
        help="Remove unfinished work at TARGET first; no other process may be working there.",
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
    help="Kind of training data: documents, dialogues, pairs or groups of answers, or a corpus "
    "for pre-training.",
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
    """Tokenise texts or dialogues into a store.

    SOURCE is a jsonl or Parquet file, a text file that is one document, a folder or a brace
    pattern, on a file system or in an object store. TARGET is the store. Resumes from finished
    shards.
    """
    num_processes = choose_processes(scheduler, num_processes)
    source = one_or_all(sources)
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
        columns=dict(parse_pairs(columns, "--column", "prompt=question")),
        roles=dict(parse_pairs(roles, "--role", "gpt=assistant")),
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
    """Write a keyed store and print its summary."""
    from zindex.ingest.keyed.tokenize import tokenize
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
        echo_json(facts | {"seconds": time.monotonic() - start})
        return
    skipped = facts["num_skipped"]
    values = ", ".join(f"{count:,} in {name}" for name, count in facts["num_values"].items())
    click.echo(
        f"{facts['store']}: {facts['num_records']:,} records for {facts['train_type']}, values: "
        f"{values or 'none'}"
        + (f"; {skipped:,} damaged records or files were left out" if skipped else "")
    )


def _make_corpus(source: Any, target: str, as_json: bool, *, codec: str, **settings: Any) -> None:
    """Write a corpus for pre-training and print its summary."""
    from dataclasses import asdict

    from zindex.ingest.convert import TOKEN_GRID
    from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus
    from zindex.store.layout import ChunkGrid

    start = time.monotonic()
    grid = None
    if codec == "zstd":
        grid = ChunkGrid(TOKEN_GRID.chunk_length, TOKEN_GRID.shard_length, "zstd")
    made = tokenize_corpus(source, target, grid=grid, **settings)
    if as_json:
        echo_json(asdict(made) | {"seconds": time.monotonic() - start})
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
    """Return the tokenizer, or its path where the path determines its type."""
    parsed = _parse_json("--tokenizer-option", "lower_case=false", options)
    if kind is None and not parsed:
        if path is None:
            raise ConfigError(
                "--tokenizer must be given, got none; give its path, or a --tokenizer-type that "
                "needs no file"
            )
        return path
    from zindex.text.tokenizers.open_tokenizer import open_text_tokenizer

    return open_text_tokenizer(path, kind, **parsed)


def _check_given(context: click.Context, train_type: str, to: str) -> None:
    """Refuse options that do not apply to the kind of training."""
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


def _parse_json(option: str, example: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``NAME=JSON``."""
    values = {}
    for name, text in parse_pairs(pairs, option, example):
        try:
            values[name] = json.loads(text)
        except ValueError as error:
            raise ConfigError(
                f"{option} {name} must have a value in JSON, got {text!r}: {error}; write texts "
                f"in quotes, as in {option} '{name}=\"text\"'"
            ) from error
    return values


def _parse_token(text: str) -> bool | int | str:
    """Return a token by id or text; True is the tokenizer's own, False none."""
    if text in ("auto", "none"):
        return text == "auto"
    return int(text) if text.isdecimal() else text
