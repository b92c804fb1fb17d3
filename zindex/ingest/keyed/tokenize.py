"""Tokenise texts, conversations and preference pairs to a keyed store, in one import."""

import logging
from typing import Any, Unpack

from zindex.errors import ConfigError
from zindex.ingest.corpora.tokenize_corpus import read_identity
from zindex.ingest.keyed.open_token_records import TokenOptions, open_token_records
from zindex.ingest.records.import_records import import_records
from zindex.ingest.records.read_partitions import try_first
from zindex.io.objects import PlaceLike
from zindex.sources.sample_files import Paths
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store, open_store
from zindex.store.records import BYTE_GRID
from zindex.store.tokenizer_note import read_note
from zindex.text.text_encoder import TokenizerLike
from zindex.text.token_records import DECODED, UNREAD
from zindex.text.token_settings import TrainType

logger = logging.getLogger(__name__)


def tokenize(
    source: Paths,
    target: PlaceLike,
    train_type: TrainType,
    *,
    tokenizer: TokenizerLike,
    keep_tokenizer: bool = True,
    restart: bool = False,
    grid: ChunkGrid = BYTE_GRID,
    client: Any = None,
    num_processes: int | None = None,
    progress: bool = False,
    **options: Unpack[TokenOptions],
) -> Store:
    """Tokenise files of texts or JSON objects into a keyed store, in the source's order.

    Parameters
    ----------
    source
        Jsonl or Parquet files, or text files with one document each; folders or brace patterns
        separated by commas, or a list of them; local or in an object store.
    target
        Location of the store.
    train_type
        ``"seq"``: documents; ``"sft"``: conversations, or prompts with answers; ``"dpo"``: a chosen
        and a rejected answer; ``"grpo"``: several answers with rewards; ``"kto"``: an answer and
        whether it is desirable; ``"reward"``: a pair, and by how much it differs; ``"prm"``: the
        steps of an answer and a label for each; ``"prompts"``: prompts alone, with the other fields
        of their objects; ``"distill"``: an answer and the most probable tokens of a teacher. Or a
        `zindex.keyed.RecordSchema`, or its YAML file.
    tokenizer
        The path of a ``tokenizer.json`` or of its folder, visible to every worker; or an object or
        function, see `TextEncoder`.
    kind
        Format of the files; None detects it from their names.
    chat_template
        None uses the tokenizer's own. Otherwise ``"chatml"``, ``"plain"`` (concatenated texts), the
        name of one of the tokenizer's templates, the text of a template, or its file.
    template_variables
        Additional variables of the template.
    date
        The current date in the template, as YYYY-MM-DD.
    columns
        Names of fields that differ from the usual ones, by their meaning; see
        ``zindex.text.conversations.COLUMNS``.
    roles
        Names of roles in the template, by their names in the objects.
    train_on
        Roles whose messages are trained. For the assistant, only its content is trained; for other
        roles, everything that a message adds to the text, including its header.
    turns
        ``"last"`` trains only the last of these messages of each conversation.
    max_length
        Maximum tokens of a sequence; of a prompt with an answer; in a group, of the prompt and of
        each response. Records whose answer has no trained token left are kept,
        counted in the attribute ``num_untrained``, and reported in a warning.
    max_prompt, max_answer
        For kinds with a prompt, maximum tokens of the prompt, which keeps its end, and of each
        answer, which keeps its start. They apply before ``max_length``.
    keep
        Which end of a sequence or pair that exceeds ``max_length`` to keep. Both answers of a pair
        keep the same tokens of the prompt: ``"start"`` truncates the answers, ``"end"`` the prompt
        to what the longer answer leaves. In a group, a response always keeps its start, and the
        prompt its end.
    on_long
        ``"truncate"`` records that exceed a limit, ``"drop"`` them, or ``"error"``. The attributes
        ``num_truncated``, ``num_dropped`` and ``num_cut_tokens`` count them and the tokens that
        were removed; `zindex.ingest.keyed.open_token_records.measure_lengths` counts them, and a
        histogram of all lengths, without writing anything.
    append_eod
        Token appended to documents, and to conversations with the template ``"plain"``: its id or
        text, True for the ``eos_token`` of the tokenizer, False for none. Other templates end
        conversations themselves.
    prepend_bod
        Token prepended to them, likewise; True for the ``bos_token``.
    position_ids
        ``"doc_reset"`` stores positions from 0 for each conversation, ``"none"`` stores none.
    token_dtype
        Dtype of the ids.
    special_in_text
        ``"parse"``: special tokens in the text of a user become special tokens, as in transformers'
        ``apply_chat_template``. ``"refuse"``: a message or document that contains one counts as
        damage.
    unread_fields
        ``"report"``: records with a field that nothing reads are counted by field in attributes
        ``num_unread.FIELD``, and reported in a warning. ``"refuse"``: such a record counts as
        damage.
    step_separator
        For steps: the text after each step, by default a newline, whose last token is labelled. It
        is encoded by itself, as each step is; if it is empty, the last token of a step is labelled.
    media
        For sft: how many tokens an image takes, as a `zindex.text.media.MediaRule` or the arguments
        of `zindex.text.media.PatchRule` or `zindex.text.media.ProcessorRule`. The field ``media``
        of the store then has references to the images and their tokens; see
        `zindex.text.media.read_media`. None: images count as damage.
    keep_tokenizer
        Whether the store also keeps the files of the tokenizer, or only its identity, its number of
        ids and the digest of its vocabulary.
    part_nbytes, on_damage, restart, grid, client, num_processes, progress
        See `zindex.ingest.records.import_records.import_records`. Objects that cannot be converted
        count as damage.

    Returns
    -------
    store
        The opened store: the keys are its fields, and `describe_tokens` returns its settings.

    Raises
    ------
    ConfigError
        If a setting is out of range, or the tokenizer lacks a required token. The first object is
        converted before anything is written.
    SourceError
        If an object cannot be converted.
    StoreNotFoundError
        If a file is missing.
    FingerprintMismatchError
        If the location has other content.

    Notes
    -----
    Law: the store depends only on the objects, the tokenizer and the settings, not on the parts of
    the files, the number of workers, or interruptions.
    """
    records = open_token_records(source, train_type, tokenizer=tokenizer, **options)
    records.keeps_tokenizer = keep_tokenizer
    try_first(records)
    store = import_records(
        records,
        target,
        fields=records.stored_fields,
        dtypes=records.dtypes,
        on_damage=options.get("on_damage", "error"),
        restart=restart,
        grid=grid,
        client=client,
        num_processes=num_processes,
        progress=progress,
    )
    _warn_untrained(store)
    _warn_unread(store)
    return store


def _warn_untrained(store: Store) -> None:
    """Warn about records without any trained token."""
    count = store.attributes.get("num_untrained", 0)
    if count:
        logger.warning(
            "%s: in %s of %s records an answer has no trained token, because it is empty or "
            "truncated by max_length; increase max_length, or set keep='end'",
            store.root,
            f"{count:,}",
            f"{store.spec['num_records']:,}",
        )


def _warn_unread(store: Store) -> None:
    """Report fields that nothing read, and what was decoded of JSON texts."""
    for prefix, write, text in (
        (
            UNREAD,
            logger.warning,
            "fields that nothing read: %s; name what they are with columns (--column), or refuse "
            "such records with unread_fields='refuse' (--unread-fields refuse)",
        ),
        (DECODED, logger.info, "decoded JSON texts: %s"),
    ):
        found = count_notes(store, prefix)
        if found:
            listed = ", ".join(f"{name} in {count:,} records" for name, count in found.items())
            write(f"%s: {text}", store.root, listed)


def count_notes(store: Store, prefix: str) -> dict[str, int]:
    """Return the counts of records of a store whose attributes have a prefix, by the rest."""
    found = sorted(store.attributes.items())
    return {name.removeprefix(prefix): x for name, x in found if name.startswith(prefix)}


def describe_tokens(store: Store | PlaceLike) -> dict[str, Any]:
    """Return the settings with which the tokens of a store were created.

    Parameters
    ----------
    store
        A store created by ``tokenize`` or ``tokenize_corpus``, or a corpus that keeps its
        tokenizer; or its location.

    Returns
    -------
    facts
        ``train_type``, which is ``"pretrain"`` for a corpus, the SHA-256 of the ``tokenizer``'s
        file, its ``vocab_size``, the ``chat_template`` with its text, and every setting by its
        name.

    Raises
    ------
    ConfigError
        If the store was not created from texts.
    """
    store = store if isinstance(store, Store) else open_store(store)
    facts = _describe_corpus(store) if store.kind == "tokens" else store.spec.get("import")
    if not isinstance(facts, dict) or "tokenizer" not in facts:
        raise ConfigError(
            f"{store.root} must be a store made of texts by tokenize, its kind is {store.kind!r} "
            "and it names no tokenizer; ask its author"
        )
    return dict(facts)


def _describe_corpus(store: Store) -> dict[str, Any]:
    """Return the settings of a corpus for pre-training; empty if its tokenizer is unknown."""
    made = read_identity(store)
    if made is None and (note := read_note(store.root)) is not None:
        made = {"tokenizer": note.identity, "vocab_size": note.vocab_size}
    return {} if made is None else {"train_type": "pretrain", **made}
