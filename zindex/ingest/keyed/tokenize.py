"""Tokenise texts, conversations and preference pairs to a keyed store, in one import."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from zindex.errors import ConfigError, SourceError
from zindex.ingest.corpora.tokenize_corpus import read_identity
from zindex.ingest.records.import_records import import_records
from zindex.ingest.records.open_files import TextKind, open_texts
from zindex.ingest.records.read_partitions import try_first
from zindex.io.objects import PlaceLike
from zindex.sources.sample_files import OnDamage, Paths
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store, open_store
from zindex.store.records import BYTE_GRID
from zindex.store.tokenizer_note import read_note
from zindex.text import token_records
from zindex.text.chat_template import CHATML, ChatTemplate, open_template
from zindex.text.conversations import ConversationParser
from zindex.text.loss_masks import Turns
from zindex.text.text_encoder import TextEncoder, TokenizerLike
from zindex.text.token_records import Keep, PositionIds, SpecialInText, TrainType
from zindex.text.tokenizer_settings import TokenizerSettings

logger = logging.getLogger(__name__)


def tokenize(
    source: Paths,
    target: PlaceLike,
    train_type: TrainType,
    *,
    tokenizer: TokenizerLike,
    kind: TextKind | None = None,
    chat_template: str | os.PathLike[str] | None = None,
    template_variables: Mapping[str, Any] | None = None,
    date: str | None = None,
    columns: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
    train_on: Sequence[str] = ("assistant",),
    turns: Turns = "all",
    max_length: int | None = None,
    keep: Keep = "start",
    append_eod: bool | int | str = True,
    prepend_bod: bool | int | str = False,
    position_ids: PositionIds = "doc_reset",
    token_dtype: str = "int32",
    special_in_text: SpecialInText = "parse",
    part_nbytes: int | None = None,
    on_damage: OnDamage = "error",
    keep_tokenizer: bool = True,
    restart: bool = False,
    grid: ChunkGrid = BYTE_GRID,
    client: Any = None,
    num_processes: int | None = None,
    progress: bool = False,
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
        and a rejected answer; ``"grpo"``: several answers with rewards.
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
        Maximum tokens of a sequence; in a group, of the prompt and of each response. Records whose
        answer has no trained token left are kept, counted in the attribute ``num_untrained``, and
        reported in a warning.
    keep
        Which end of a longer sequence to keep. A response always keeps its start, and the prompt of
        a group its end.
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
    encoder = TextEncoder(tokenizer)
    known = encoder.settings()
    given = chat_template if chat_template is None else os.fspath(chat_template)
    template = open_template(given, known, variables=template_variables, date=date)
    if template is not None and template.text == CHATML:
        _check_marks(encoder)
    settings = token_records.TokenSettings(
        train_type,
        max_length=max_length,
        keep=keep,
        position_ids=position_ids,
        token_dtype=token_dtype,
        begin_id=_find_begin(encoder, known, prepend_bod),
        end_id=_find_end(encoder, known, append_eod),
        special_in_text=special_in_text,
    )
    if template is not None and not template.is_plain:
        _check_ends(train_type, append_eod, prepend_bod)
        _check_asking(template, train_type)
    files, files_fingerprint = open_texts(source, kind, part_nbytes, on_damage)
    records = token_records.TokenRecords(
        files,
        files_fingerprint,
        settings=settings,
        encoder=encoder,
        template=template,
        parser=ConversationParser(columns, roles),
        cutter_settings={"trained_roles": train_on, "turns": turns},
        skip_damaged=on_damage == "skip",
    )
    records.keeps_tokenizer = keep_tokenizer
    try_first(records)
    store = import_records(
        records,
        target,
        fields=tuple(settings.dtypes),
        dtypes=settings.dtypes,
        on_damage=on_damage,
        restart=restart,
        grid=grid,
        client=client,
        num_processes=num_processes,
        progress=progress,
    )
    _warn_untrained(store)
    return store


def _check_ends(
    train_type: TrainType, append_eod: bool | int | str, prepend_bod: bool | int | str
) -> None:
    """Raise for begin and end tokens that no record gets, or warn for conversations."""
    given = {"append_eod (--append-eod)": append_eod, "prepend_bod (--prepend-bod)": prepend_bod}
    if append_eod is True:  # the default
        del given["append_eod (--append-eod)"]
    names = " and ".join(name for name, token in given.items() if token is not False)
    if not names or train_type == "seq":
        return
    if train_type != "sft":
        raise ConfigError(
            f"{names} must be left out for {train_type} with this chat template, which says itself "
            "where texts begin and end; leave it out, or take chat_template='plain' "
            "(--chat-template plain)"
        )
    logger.warning(
        "%s: only applies to documents, as the chat template itself marks the start and end of "
        "conversations",
        names,
    )


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
            "and it names no tokenizer; ask whoever made it"
        )
    return dict(facts)


def _describe_corpus(store: Store) -> dict[str, Any]:
    """Return the settings of a corpus for pre-training; empty if its tokenizer is unknown."""
    made = read_identity(store)
    if made is None and (note := read_note(store.root)) is not None:
        made = {"tokenizer": note.identity, "vocab_size": note.vocab_size}
    return {} if made is None else {"train_type": "pretrain", **made}


def _check_marks(encoder: TextEncoder) -> None:
    """Warn if the markers of ChatML are not tokens, which is rarely intended."""
    if not {"<|im_start|>", "<|im_end|>"} <= set(encoder.special_texts()):
        logger.warning(
            "the tokenizer has no special tokens <|im_start|> and <|im_end|>, so these markers of "
            "the chat template become several tokens each; add them to the tokenizer, or "
            "choose another chat template"
        )


def _check_asking(template: ChatTemplate, train_type: TrainType) -> None:
    """Warn if a template has no generation prompt: headers are then trained with the answers."""
    asked = [{"role": "user", "content": "a"}]
    try:
        is_asking = template.render(asked) != template.render(asked, add_generation_prompt=True)
    except SourceError:  # the template rejects this conversation
        return
    if train_type != "seq" and not is_asking and not template.has_generation:
        logger.warning(
            "the chat template has no generation prompt (add_generation_prompt has no effect), so "
            "the header of each answer, such as 'assistant:', is trained, too; make the template "
            "write that header if add_generation_prompt is true"
        )


def _find_end(
    encoder: TextEncoder, known: TokenizerSettings, token: bool | int | str
) -> int | None:
    """Return the id that ends documents; ``UNKNOWN_ID`` if the tokenizer does not define it."""
    try:
        return encoder.find_end(token, "append_eod (--append-eod)")
    except ConfigError:
        if token is not True or "eos_token" in known.special_tokens:
            raise
        return token_records.UNKNOWN_ID  # an error only if there are documents


def _find_begin(
    encoder: TextEncoder, known: TokenizerSettings, token: bool | int | str
) -> int | None:
    """Return the id that begins documents."""
    what = "prepend_bod (--prepend-bod)"
    if token is not True:
        return encoder.find_id(token, what)
    if "bos_token" not in known.special_tokens:
        raise ConfigError(
            f"{what} needs a beginning of documents, the tokenizer names no bos_token; give the id "
            "or the text itself"
        )
    return encoder.find_id(known.special_tokens["bos_token"], what)
