"""Open texts, conversations, pairs and groups as records of tokens, with all settings checked."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from zindex.errors import ConfigError, SourceError
from zindex.ingest.records.open_files import TextKind, open_texts
from zindex.ingest.records.read_partitions import own_copy
from zindex.sources.damage_log import OnDamage
from zindex.sources.sample_files import Paths
from zindex.text.chat_template import CHATML, ChatTemplate, open_template
from zindex.text.conversations import ConversationParser
from zindex.text.length_limits import Keep, LengthLimits, LengthReport, OnLong
from zindex.text.loss_masks import Turns
from zindex.text.media import MediaRule, open_rule
from zindex.text.text_encoder import TextEncoder, TokenizerLike
from zindex.text.token_records import TokenRecords
from zindex.text.token_settings import (
    UNKNOWN_ID,
    PositionIds,
    SpecialInText,
    TokenSettings,
    TrainType,
    UnreadFields,
)
from zindex.text.tokenizer_settings import TokenizerSettings

logger = logging.getLogger(__name__)


def open_token_records(
    source: Paths,
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
    max_prompt: int | None = None,
    max_answer: int | None = None,
    keep: Keep = "start",
    on_long: OnLong = "truncate",
    append_eod: bool | int | str = True,
    prepend_bod: bool | int | str = False,
    position_ids: PositionIds = "doc_reset",
    token_dtype: str = "int32",
    special_in_text: SpecialInText = "parse",
    unread_fields: UnreadFields = "report",
    media: MediaRule | Mapping[str, Any] | None = None,
    part_nbytes: int | None = None,
    on_damage: OnDamage = "error",
) -> TokenRecords:
    """Return the records of files; parameters as of `zindex.ingest.keyed.tokenize.tokenize`."""
    encoder = TextEncoder(tokenizer)
    known = encoder.settings()
    given = chat_template if chat_template is None else os.fspath(chat_template)
    template = open_template(given, known, variables=template_variables, date=date)
    if template is not None and template.text == CHATML:
        _check_marks(encoder)
    settings = TokenSettings(
        train_type,
        limits=LengthLimits(max_length, max_prompt, max_answer, keep, on_long),
        position_ids=position_ids,
        token_dtype=token_dtype,
        begin_id=encoder.find_begin(prepend_bod, "prepend_bod (--prepend-bod)"),
        end_id=_find_end(encoder, known, append_eod),
        special_in_text=special_in_text,
        unread_fields=unread_fields,
    )
    if template is not None and not template.is_plain:
        _check_ends(train_type, append_eod, prepend_bod)
        _check_asking(template, train_type)
    rule = open_rule(media)
    files, files_fingerprint = open_texts(source, kind, part_nbytes, on_damage)
    return TokenRecords(
        files,
        files_fingerprint,
        settings=settings,
        encoder=encoder,
        template=template,
        parser=ConversationParser(columns, roles, keeps_images=rule is not None),
        media=rule,
        cutter_settings={"trained_roles": train_on, "turns": turns},
        skip_damaged=on_damage == "skip",
    )


def measure_lengths(source: Paths, train_type: TrainType, **settings: Any) -> LengthReport:
    """Tokenise files without writing anything, and return the lengths and what limits would cost.

    Parameters
    ----------
    source, train_type, settings
        As of `open_token_records`.

    Returns
    -------
    report
        A histogram of the lengths of each part of a record, and for each limit the records that are
        longer and the tokens that it removes.

    Raises
    ------
    ConfigError, SourceError, StoreNotFoundError
        As `zindex.ingest.keyed.tokenize.tokenize`; records that are too long are only counted.

    Notes
    -----
    Runs in this process, in which the tokenizer uses all cores.
    """
    records = own_copy(open_token_records(source, train_type, **settings))
    report = records.report = LengthReport(records.settings.limits)
    for part in range(records.num_parts):
        for _ in records.read_part(part):
            pass
    report.num_skipped = records.num_skipped
    return report


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
        return UNKNOWN_ID  # an error only if there are documents
