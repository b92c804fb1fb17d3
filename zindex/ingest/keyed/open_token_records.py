"""Open texts, conversations, pairs and groups as records of tokens, with all settings checked."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict, Unpack

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
from zindex.text.record_recipe import DOCUMENT, PROMPT
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


class TokenOptions(TypedDict, total=False):
    """Settings of tokenised records with their files; see `zindex.ingest.keyed.tokenize`."""

    kind: TextKind | None
    chat_template: str | os.PathLike[str] | None
    template_variables: Mapping[str, Any] | None
    date: str | None
    columns: Mapping[str, str] | None
    roles: Mapping[str, str] | None
    train_on: Sequence[str]
    turns: Turns
    max_length: int | None
    max_prompt: int | None
    max_answer: int | None
    keep: Keep
    on_long: OnLong
    append_eod: bool | int | str
    prepend_bod: bool | int | str
    position_ids: PositionIds
    token_dtype: str
    special_in_text: SpecialInText
    unread_fields: UnreadFields
    step_separator: str
    media: MediaRule | Mapping[str, Any] | None
    part_nbytes: int | None
    on_damage: OnDamage


def open_token_records(
    source: Paths,
    train_type: TrainType,
    *,
    tokenizer: TokenizerLike,
    **options: Unpack[TokenOptions],
) -> TokenRecords:
    """Return the records of files; parameters as of `zindex.ingest.keyed.tokenize.tokenize`."""
    unknown = sorted(options.keys() - TokenOptions.__annotations__.keys())
    if unknown:
        raise TypeError(
            f"options of tokens must be among {', '.join(TokenOptions.__annotations__)}, got "
            f"{', '.join(unknown)}"
        )
    encoder = TextEncoder(tokenizer)
    known = encoder.settings()
    given = options.get("chat_template")
    template = open_template(
        given if given is None else os.fspath(given),
        known,
        variables=options.get("template_variables"),
        date=options.get("date"),
    )
    if template is not None and template.text == CHATML:
        _check_marks(encoder)
    end, begin = options.get("append_eod", True), options.get("prepend_bod", False)
    settings = TokenSettings(
        train_type,
        limits=LengthLimits(**_choose(LengthLimits, options)),
        begin_id=encoder.find_begin(begin, "prepend_bod (--prepend-bod)"),
        end_id=_find_end(encoder, known, end),
        **_choose(TokenSettings, options),
    )
    if template is not None and not template.is_plain:
        _check_ends(settings, end, begin)
        _check_asking(template, settings)
    rule, on_damage = open_rule(options.get("media")), options.get("on_damage", "error")
    files, files_fingerprint = open_texts(
        source, options.get("kind"), options.get("part_nbytes"), on_damage
    )
    cutting = {"trained_roles": "train_on", "turns": "turns"}
    return TokenRecords(
        files,
        files_fingerprint,
        settings=settings,
        encoder=encoder,
        template=template,
        parser=ConversationParser(
            options.get("columns"),
            options.get("roles"),
            keeps_images=rule is not None,
            parts=settings.recipe.parts,
        ),
        media=rule,
        cutter_settings={
            name: options[key]  # type: ignore[literal-required]
            for name, key in cutting.items()
            if key in options
        },
        skip_damaged=on_damage == "skip",
    )


def _choose(kind: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a dataclass."""
    return {item.name: options[item.name] for item in fields(kind) if item.name in options}


def measure_lengths(
    source: Paths,
    train_type: TrainType,
    *,
    tokenizer: TokenizerLike,
    **options: Unpack[TokenOptions],
) -> LengthReport:
    """Tokenise files without writing anything, and return the lengths and what limits would cost.

    Parameters
    ----------
    source, train_type, tokenizer, options
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
    records = own_copy(open_token_records(source, train_type, tokenizer=tokenizer, **options))
    report = records.report = LengthReport(records.settings.limits)
    for part in range(records.num_parts):
        for _ in records.read_part(part):
            pass
    report.num_skipped = records.num_skipped
    return report


def _check_ends(
    settings: TokenSettings, append_eod: bool | int | str, prepend_bod: bool | int | str
) -> None:
    """Raise for begin and end tokens that no record gets, or warn for conversations."""
    given = {"append_eod (--append-eod)": append_eod, "prepend_bod (--prepend-bod)": prepend_bod}
    if append_eod is True:  # the default
        del given["append_eod (--append-eod)"]
    names = " and ".join(name for name, token in given.items() if token is not False)
    if not names or settings.recipe.whole == DOCUMENT or not settings.recipe.parts & {PROMPT}:
        return
    if settings.recipe.has_prompt:
        raise ConfigError(
            f"{names} must be left out for {settings.kind} with this chat template, which says "
            "itself where texts begin and end; leave it out, or take chat_template='plain' "
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


def _check_asking(template: ChatTemplate, settings: TokenSettings) -> None:
    """Warn if a template has no generation prompt: headers are then trained with the answers."""
    asked = [{"role": "user", "content": "a"}]
    try:
        is_asking = template.render(asked) != template.render(asked, add_generation_prompt=True)
    except SourceError:  # the template rejects this conversation
        return
    is_trained = settings.recipe.has_masks and settings.recipe.whole != DOCUMENT
    if is_trained and not is_asking and not template.has_generation:
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
