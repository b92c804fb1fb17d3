"""``zindex tokenize``: text and conversations to token stores and corpora."""

import json
from collections.abc import Sequence
from typing import Any

import click

from zindex.cli import options
from zindex.errors import ConfigError
from zindex.wording import count_noun

# Options of corpora alone, and of records alone.
_CORPUS_NAMES = ("to", "split_sentences", "language", "metadata", "overwrite")
_RECORD_NAMES = (
    *("roles", "chat_template", "template_variables", "date", "train_on", "turns", "max_length"),
    *("max_prompt", "max_answer", "keep", "on_long", "dry_run", "check", "media", "position_ids"),
    *("special_in_text", "unread_fields", "step_separator", "chunk_nbytes", "shard_nbytes"),
)
# The kinds of records of `zindex.formats.keyed.schema_presets`, which takes long to import.
_KINDS = ("seq", "sft", "dpo", "grpo", "kto", "reward", "prm", "prompts", "distill")

# Options of writing alone.
_STORE_NAMES = ("keep_tokenizer", "restart", "grid", "client", "num_processes", "progress")


class _Kind(click.Choice[str]):
    """The name of a kind of records, or the YAML file of a schema."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a name, or the path of a file."""
        if str(value).endswith((".yaml", ".yml")):
            return value
        return super().convert(value, param, ctx)


def _parse_token(text: str, flag: str) -> bool | int | str:
    """Return a token by id or text; True is the tokenizer's default, False none."""
    if text in ("auto", "none"):
        return text == "auto"
    return int(text) if text.isdecimal() else text


def _parse_names(text: str, flag: str) -> list[str]:
    """Return the names of fields, separated by commas."""
    names = [] if text == "none" else [name.strip() for name in text.split(",")]
    if "" in names:
        raise ConfigError(f"{flag} must name fields separated by commas, or be none, got {text!r}")
    return names


_text_options = options.join(
    options.choice("--kind", ["jsonl", "parquet", "text"], help="Format of the files."),
    options.value(
        "--column",
        "columns",
        multiple=True,
        metavar="NAME=FIELD",
        help="Field that holds a value, such as prompt=question; repeatable. For pretrain, the "
        "text field, such as content.",
    ),
    options.mapping(
        "--role",
        "roles",
        metavar="ROLE=NAME",
        example="gpt=assistant",
        help="Role of the template and its name in the data; repeatable.",
    ),
    options.value(
        "--chat-template",
        metavar="NAME|FILE",
        help="chatml, plain, the name of a template of the tokenizer, or a file. [default: the "
        "template of the tokenizer]",
    ),
    options.mapping(
        "--variable",
        "template_variables",
        metavar="NAME=JSON",
        example="enable_thinking=false, or 'name=\"text\"' for a text",
        parse=json.loads,
        help="Additional template variable; repeatable.",
    ),
    options.value("--date", metavar="YYYY-MM-DD", help="The current date in the template."),
)
_token_options = options.join(
    options.value(
        "--train-on",
        multiple=True,
        default=("assistant",),
        metavar="ROLE",
        help="Role whose messages are targets, including their headers except for the assistant; "
        "repeatable.",
    ),
    options.first_choice(
        "--turns", ["all", "last"], "Whether all of these messages are targets or only the last."
    ),
    options.value("--max-length", type=click.IntRange(1), help="Truncate longer sequences."),
    options.value(
        "--max-prompt",
        type=click.IntRange(1),
        help="For kinds with a prompt: truncate longer prompts, which keep their end.",
    ),
    options.value(
        "--max-answer",
        type=click.IntRange(1),
        help="For kinds with a prompt: truncate longer answers, which keep their start.",
    ),
    options.first_choice("--keep", ["start", "end"], "Which end of a truncated sequence to keep."),
    options.first_choice(
        "--on-long",
        ["truncate", "drop", "error"],
        "Whether to truncate records that exceed a limit, to leave them out, or to stop.",
    ),
    options.flag(
        "--dry-run",
        "Write nothing: show a histogram of lengths, and what the limits would cost.",
    ),
    options.parsed(
        "--append-eod",
        parse=_parse_token,
        metavar="auto|none|TOKEN",
        help="Token to append to each document, by id or text; auto is the tokenizer's eos_token. "
        "[default: auto; none with --split-sentences]",
    ),
    options.parsed(
        "--prepend-bod",
        parse=_parse_token,
        metavar="auto|none|TOKEN",
        help="Token to prepend to each document, by id or text; auto is the tokenizer's bos_token. "
        "[default: none; for pretrain what the tokenizer itself adds to each text]",
    ),
    options.first_choice(
        "--position-ids",
        ["doc_reset", "none"],
        "For sft: positions that restart at 0 in each conversation, or none.",
    ),
    options.value(
        "--token-dtype",
        help="Dtype of the token ids. [default: int32; for pretrain uint16 if the vocabulary fits]",
    ),
    options.first_choice(
        "--special-in-text",
        ["parse", "refuse"],
        "Whether special tokens in text become tokens or count as damage.",
    ),
    options.first_choice(
        "--unread-fields",
        ["report", "refuse"],
        "Whether records with fields that nothing reads are counted or count as damage.",
    ),
)
_step_option = options.parsed(
    "--step-separator",
    parse=lambda text, flag: text.replace("\\n", "\n").replace("\\t", "\t"),
    metavar="TEXT",
    help="For prm: text after each step, whose last token is labelled. [default: \\n]",
)
_media_option = options.mapping(
    "--media",
    "media",
    metavar="NAME=JSON",
    example="num_tokens=576, or 'placeholder=\"<image>\"' for a text",
    parse=json.loads,
    help="For sft: how images become tokens: the placeholder and the sizes, such as patch_size=14, "
    "or a processor's folder; repeatable.",
)
_tokenizer_options = options.join(
    options.value(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json, SentencePiece .model, .tiktoken file, WordPiece vocab.txt, or a "
        "folder with one of them.",
    ),
    options.value(
        "--tokenizer-type",
        metavar="TYPE",
        help="Type, if the path is ambiguous: huggingface, sentencepiece, tiktoken, wordpiece, "
        "bpe, byte-level, null, or a tokenizer type of Megatron.",
    ),
    options.mapping(
        "--tokenizer-option",
        "tokenizer_options",
        metavar="NAME=JSON",
        example="lower_case=false, or 'name=\"text\"' for a text",
        parse=json.loads,
        help="Argument of the tokenizer, such as lower_case=false; repeatable.",
    ),
    options.keep_tokenizer,
)
_corpus_options = options.join(
    options.first_choice(
        "--to", ["zarr", "bin"], "For pretrain: a Zarr token store, or TARGET.bin and TARGET.idx."
    ),
    options.flag(
        "--split-sentences", "For pretrain: each sentence becomes a sequence, as BERT and T5 need."
    ),
    options.value("--language", default="en", help="Language, for sentence splitting."),
    options.parsed(
        "--metadata",
        parse=_parse_names,
        metavar="FIELD,...|none",
        help="For pretrain: fields of the source to keep for each document, the one that "
        "identifies it first. [default: id,url where they exist]",
    ),
    options.flag("--overwrite", "With --to bin: replace an existing pair."),
)
_work_options = options.join(
    options.value("--part-nbytes", type=click.IntRange(1), help="Bytes per task."),
    options.damage("damaged records", "the command"),
    options.restart("Remove unfinished output at TARGET"),
    options.flag(
        "--check",
        "Write nothing: compare the conversations with apply_chat_template of transformers.",
    ),
    options.record_store,
)


@click.command("tokenize", cls=options.SourcesCommand)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("target", metavar="TARGET")
@options.value(
    "--for",
    "train_type",
    type=_Kind([*_KINDS, "pretrain"]),
    required=True,
    help="Kind of records: documents (seq), conversations (sft), preference pairs (dpo), groups of "
    "answers (grpo), answers with a label (kto), pairs with a margin (reward), steps with labels "
    "(prm), prompts alone (prompts), a teacher's most probable tokens (distill); the YAML file of "
    "a schema; or a corpus (pretrain).",
)
@_tokenizer_options
@_text_options
@_token_options
@_step_option
@_media_option
@_corpus_options
@_work_options
@options.summary(timed=True)
@click.pass_context
def tokenize_command(
    context: click.Context,
    /,
    sources: tuple[str, ...],
    target: str,
    train_type: str,
    tokenizer: str | None,
    tokenizer_type: str | None,
    tokenizer_options: dict[str, Any],
    columns: tuple[str, ...],
    **settings: Any,
) -> tuple[Any, ...]:
    """Tokenise text or conversations.

    SOURCE is a jsonl or Parquet file, a text file with one document, a folder or a brace pattern,
    on a file system or in an object store. TARGET is the new store. Resumes from finished shards.
    """
    given = _open_tokenizer(tokenizer, tokenizer_type, tokenizer_options)
    is_corpus = train_type == "pretrain"
    others = _RECORD_NAMES if is_corpus else _CORPUS_NAMES
    _refuse_others(context, others, train_type, settings["to"])
    settings = {
        name: value
        for name, value in options.use_record_store(**settings).items()
        if name not in others and value is not None
    }
    settings |= {"tokenizer": given, "progress": True}
    source = options.one_or_all(sources)
    if is_corpus:
        return _make_corpus(source, target, column=_text_column(columns), **settings)
    settings["columns"] = options.parse_pairs(columns, "--column", "prompt=question")
    is_checked, is_measured = settings.pop("check"), settings.pop("dry_run")
    if is_checked or is_measured:
        settings = {name: value for name, value in settings.items() if name not in _STORE_NAMES}
        return (_check if is_checked else _measure)(source, train_type, **settings)
    return _make_store(source, target, train_type, **settings)


def _measure(source: Any, train_type: Any, **settings: Any) -> tuple[dict[str, Any], str]:
    """Return the lengths of records, which are not written, and what limits cost."""
    from zindex.ingest.keyed.open_token_records import measure_lengths

    report = measure_lengths(source, train_type, **settings)
    lines = "\n".join(report.to_lines())
    return report.to_json(), (
        f"{count_noun(report.num_records, 'record')} for {train_type}; nothing was written"
        f"{options.describe_skipped(report.num_skipped)}\n{lines}"
    )


def _make_store(
    source: Any, target: str, train_type: Any, **settings: Any
) -> tuple[dict[str, Any], str]:
    """Write a keyed store and return its summary."""
    from zindex.ingest.keyed.tokenize import count_notes, tokenize
    from zindex.text.token_records import DECODED, UNREAD

    store = tokenize(source, target, train_type, **settings)
    counts = {item["name"]: item["num_values"] for item in store.spec["fields"]}
    facts = {
        **options.describe_records(store),
        "train_type": store.spec["import"]["train_type"],
        "num_untrained": store.attributes.get("num_untrained", 0),
        **{name: store.attributes[name] for name in _COSTS if name in store.attributes},
        "num_unread": count_notes(store, UNREAD),
        "num_decoded": count_notes(store, DECODED),
        "num_values": {name: count for name, count in counts.items() if name != "__key__"},
    }
    values = ", ".join(f"{count:,} in {name}" for name, count in facts["num_values"].items())
    return facts, (
        f"{facts['store']}: {count_noun(facts['num_records'], 'record')} for "
        f"{facts['train_type']}, values: {values or 'none'}{_describe_costs(facts)}"
        f"{options.describe_skipped(facts['num_skipped'])}"
    )


# Attributes of stores that count what limits have cost.
_COSTS = ("num_truncated", "num_dropped", "num_cut_tokens")


def _describe_costs(facts: dict[str, Any]) -> str:
    """Return the end of a sentence on records that exceed a limit, if there are any."""
    truncated, dropped, tokens = (facts.get(name, 0) for name in _COSTS)
    lost = f"{count_noun(truncated, 'record')} lost {count_noun(tokens, 'token')} to limits"
    parts = [lost] if truncated else []
    verb = "was" if dropped == 1 else "were"
    parts += [f"{count_noun(dropped, 'longer record')} {verb} left out"] if dropped else []
    return "".join(f"; {part}" for part in parts)


def _check(source: Any, train_type: Any, **settings: Any) -> tuple[dict[str, Any], str, int]:
    """Compare conversations with transformers, and return a summary and the exit code."""
    from dataclasses import asdict

    from zindex.ingest.keyed.check_tokens import check_tokens
    from zindex.text.encoded_files import locate

    check = check_tokens(source, train_type, **settings)
    lines = [
        f"{locate({'__url__': item.url, '__key__': item.key})}: {item.what}: {item.message}"
        for item in check.differences
    ]
    count = len(check.differences)
    lines.append(
        f"{count_noun(check.num_dialogues, 'conversation')} compared with transformers: text and "
        f"ids of {check.num_dialogues - check.num_refused - count:,} are equal, with "
        f"{count_noun(check.num_masks, 'mask')}; both refuse {check.num_refused:,}; {count:,} "
        "differ"
    )
    return asdict(check), "\n".join(lines), int(count > 0)


def _make_corpus(
    source: Any, target: str, grid: Any, **settings: Any
) -> tuple[dict[str, Any], str]:
    """Write a corpus for pre-training and return its summary."""
    from dataclasses import asdict, replace

    from zindex.ingest.convert import TOKEN_GRID
    from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus

    own = None if grid.codec == "none" else replace(TOKEN_GRID, codec=grid.codec)
    made = tokenize_corpus(source, target, grid=own, **settings)
    return asdict(made), (
        f"{made.place}: {count_noun(made.num_tokens, 'token')} ({made.token_dtype}) in "
        f"{count_noun(made.num_documents, 'document')} and "
        f"{count_noun(made.num_sequences, 'sequence')}"
        f"{options.describe_skipped(made.num_skipped)}"
    )


def _open_tokenizer(path: str | None, kind: str | None, settings: dict[str, Any]) -> Any:
    """Return the tokenizer, or its path where the path determines its type."""
    if kind is None and not settings:
        if path is None:
            raise ConfigError(
                "--tokenizer must be given, got none; give its path, or a --tokenizer-type that "
                "needs no file"
            )
        return path
    from zindex.text.tokenizers.open_tokenizer import open_text_tokenizer

    return open_text_tokenizer(path, kind, **settings)


def _refuse_others(context: click.Context, others: Sequence[str], train_type: str, to: str) -> None:
    """Raise if options are given that do not apply to the type of training."""
    what = f"--for {train_type}"
    if train_type == "pretrain":
        others = (*others, *(("codec", "metadata") if to == "bin" else ("overwrite",)))
        what += f" --to {to}"
    options.refuse(context, others, f"must be left out with {what}, which does not take it")


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
