"""Texts, dialogues and pairs of answers to a keyed store, through a tokenizer, in one import."""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from zindex.building.records.import_records import import_records
from zindex.building.records.record_files import Paths, own_copy
from zindex.building.records.text_sources import TextKind, open_texts
from zindex.errors import ConfigError, SourceError
from zindex.sources.damage_log import OnDamage
from zindex.store.layout import ChunkGrid
from zindex.store.objects import PlaceLike
from zindex.store.open import Store, open_store
from zindex.store.records import BYTE_GRID
from zindex.text.chat_template import CHATML, ChatTemplate, open_template
from zindex.text.conversations import RowReader
from zindex.text.loss_masks import Turns
from zindex.text.text_encoder import TextEncoder, TokenizerLike
from zindex.text.token_records import (
    UNKNOWN_ID,
    Keep,
    PositionIds,
    SpecialInText,
    TokenRecords,
    TokenSettings,
    TrainType,
)
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
        Jsonl or Parquet files, or files of text that are a document each; folders or brace
        patterns with commas between, or a list of them; here or in an object store.
    target
        Place of the store.
    train_type
        ``"seq"``: documents; ``"sft"``: dialogues, or prompts with answers; ``"dpo"``: a chosen and
        a rejected answer; ``"grpo"``: several answers with rewards.
    tokenizer
        The path of a ``tokenizer.json`` or of its folder, which every worker must see; or an
        object or function, see `TextEncoder`.
    kind
        What the files are; None tells it from their names.
    chat_template
        None: the tokenizer's own. Else ``"chatml"``, ``"plain"`` (texts one after the other), the
        name of one of the tokenizer's, a template's text, or its file.
    template_variables
        What the template is given besides.
    date
        The day that a template writes as today, as YYYY-MM-DD.
    columns
        Field of the objects by what it holds, where it is called otherwise; see
        ``zindex.text.conversations.COLUMNS``.
    roles
        What roles of the objects are called in the template.
    train_on
        Roles whose messages are trained. Of the assistant that is what it says; of other roles it
        is all that a message adds to the text, its header too.
    turns
        ``"last"``: of these messages only the last of each dialogue.
    max_length
        Tokens that are kept of a sequence; of a group, of the prompt and of each response. Records
        with an answer of which no token is trained then stay, are counted in the attribute
        ``num_untrained``, and told in a warning.
    keep
        Which end of a longer sequence is kept; of a response it is always the start, and of the
        prompt of a group always the end.
    append_eod
        Token behind documents, and behind dialogues where the template is ``"plain"``: its id or
        text, True for the ``eos_token`` of the tokenizer, False for none. Other templates say
        themselves where a dialogue ends.
    prepend_bod
        Token before them, likewise; True for the ``bos_token``.
    position_ids
        ``"doc_reset"`` stores positions from 0 for each dialogue, ``"none"`` stores none.
    token_dtype
        Of the ids.
    special_in_text
        ``"parse"``: special tokens that are written in a user's text become special tokens, as in
        transformers' ``apply_chat_template``. ``"refuse"``: a message or document with the text of
        one is damage.
    part_nbytes, on_damage, restart, grid, client, num_processes, progress
        See `zindex.building.records.import_records.import_records`. Objects that make no record
        are damage.

    Returns
    -------
    store
        The opened store: the keys are its fields, and `describe_tokens` tells how it was made.

    Raises
    ------
    ConfigError
        If a setting is out of range, or the tokenizer lacks what it asks for: that is found by the
        first object, before anything is written.
    SourceError
        If an object makes no record.
    StoreNotFoundError
        If a file is missing.
    FingerprintMismatchError
        If the place holds something else.

    Notes
    -----
    Law: the store depends on the objects, the tokenizer and the settings alone; not on how the
    files are cut, nor on how many workers there are, nor on how often the work was broken off.
    """
    encoder = TextEncoder(tokenizer)
    known = encoder.settings()
    given = chat_template if chat_template is None else os.fspath(chat_template)
    template = open_template(given, known, variables=template_variables, date=date)
    if template is not None and template.text == CHATML:
        _check_marks(encoder)
    settings = TokenSettings(
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
    records = TokenRecords(
        files,
        files_fingerprint,
        settings=settings,
        encoder=encoder,
        template=template,
        reader=RowReader(columns, roles),
        cutter_settings={"trained_roles": train_on, "turns": turns},
        skip_damaged=on_damage == "skip",
    )
    _try_first(records)
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
    _tell_untrained(store)
    return store


def _try_first(records: TokenRecords) -> None:
    """Make the first record, for what its tokens lack is an error before anything is written."""
    trial = records.over(own_copy(records.files))
    opened: Any = trial.files.read_part(0)
    with closing(opened) as samples:
        list(trial.convert(islice(samples, 1)))


def _check_ends(
    train_type: TrainType, append_eod: bool | int | str, prepend_bod: bool | int | str
) -> None:
    """Refuse ends that no record has, or say that dialogues do not have them."""
    given = {"append_eod (--append-eod)": append_eod, "prepend_bod (--prepend-bod)": prepend_bod}
    if append_eod is True:  # which nobody asked for
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
        "%s: this counts for documents alone, for the chat template says itself where dialogues "
        "begin and end",
        names,
    )


def _tell_untrained(store: Store) -> None:
    """Warn of records from which nothing is learnt."""
    count = store.attributes.get("num_untrained", 0)
    if count:
        logger.warning(
            "%s: of %s of %s records an answer has no token that is trained, because max_length "
            "has cut it off or because it is empty; take a larger max_length, or keep='end'",
            store.root,
            f"{count:,}",
            f"{store.spec['num_records']:,}",
        )


def describe_tokens(store: Store | PlaceLike) -> dict[str, Any]:
    """Return how the tokens of a store were made.

    Parameters
    ----------
    store
        A store that ``tokenize`` has made, or its place.

    Returns
    -------
    facts
        ``train_type``, the SHA-256 of the ``tokenizer``'s file, its ``vocab_size``, the
        ``chat_template`` with its text, and every setting by its name.

    Raises
    ------
    ConfigError
        If the store was not made of texts.
    """
    store = store if isinstance(store, Store) else open_store(store)
    facts = store.spec.get("import")
    if not isinstance(facts, dict) or "tokenizer" not in facts:
        raise ConfigError(
            f"{store.root} must be a store made of texts by tokenize, its kind is {store.kind!r} "
            "and it names no tokenizer; ask whoever made it"
        )
    return dict(facts)


def _check_marks(encoder: TextEncoder) -> None:
    """Warn if the marks of ChatML are no tokens, for nobody may have meant that."""
    if not {"<|im_start|>", "<|im_end|>"} <= set(encoder.special_texts()):
        logger.warning(
            "the tokenizer has no special tokens <|im_start|> and <|im_end|>, so that these marks "
            "of the chat template become several tokens each; add them to the tokenizer, or "
            "choose another chat template"
        )


def _check_asking(template: ChatTemplate, train_type: TrainType) -> None:
    """Warn if a template does not ask for answers, whose headers are then taken for their text."""
    asked = [{"role": "user", "content": "a"}]
    try:
        is_asking = template.render(asked) != template.render(asked, add_generation_prompt=True)
    except SourceError:  # it wants other dialogues than this one
        return
    if train_type != "seq" and not is_asking and not template.has_generation:
        logger.warning(
            "the chat template does not ask for answers (add_generation_prompt changes nothing), "
            "so that what it writes before them, such as 'assistant:', is trained as part of them; "
            "let it end with that where add_generation_prompt is true"
        )


def _find_end(
    encoder: TextEncoder, known: TokenizerSettings, token: bool | int | str
) -> int | None:
    """Return the id behind documents; ``UNKNOWN_ID``: one that nobody knows."""
    try:
        return encoder.find_end(token, "append_eod (--append-eod)")
    except ConfigError:
        if token is not True or "eos_token" in known.special_tokens:
            raise
        return UNKNOWN_ID  # which matters only if a document comes


def _find_begin(
    encoder: TextEncoder, known: TokenizerSettings, token: bool | int | str
) -> int | None:
    """Return the id before documents."""
    what = "prepend_bod (--prepend-bod)"
    if token is not True:
        return encoder.find_id(token, what)
    if "bos_token" not in known.special_tokens:
        raise ConfigError(
            f"{what} needs a beginning of documents, the tokenizer names no bos_token; give the id "
            "or the text itself"
        )
    return encoder.find_id(known.special_tokens["bos_token"], what)
