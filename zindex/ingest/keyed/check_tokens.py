"""Compare the tokens and masks of conversations with those of transformers; nothing is written."""

import datetime
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Unpack

import numpy as np

from zindex.arrays import BoolArray, Int64Array
from zindex.errors import ConfigError, SourceError
from zindex.ingest.keyed.open_token_records import TokenOptions, open_token_records
from zindex.lazy import need
from zindex.sources.sample_files import Paths
from zindex.text.conversations import Dialogue
from zindex.text.loss_masks import MaskedText
from zindex.text.record_recipe import DIALOGUE
from zindex.text.text_encoder import TextEncoder, TokenizerLike
from zindex.text.token_records import TokenRecords
from zindex.text.token_settings import TrainType

logger = logging.getLogger(__name__)

#: What differs: a conversation is refused by one of both, its text, its ids, its mask, or only what
#: zindex reads of its record.
What = Literal["refused", "text", "ids", "mask", "record"]
# Characters of each text around a difference.
_AROUND = 30


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """A conversation that zindex and transformers make different tokens of."""

    #: Key and file of its record.
    key: str
    url: str
    what: What
    message: str


@dataclass(slots=True)
class TokenCheck:
    """The result of a comparison."""

    #: Conversations compared, those that both refuse, and those whose masks were compared too.
    num_dialogues: int = 0
    num_refused: int = 0
    num_masks: int = 0
    #: Documents, which have no chat template.
    num_documents: int = 0
    differences: list[TokenDifference] = field(default_factory=list)


def check_tokens(
    source: Paths,
    train_type: TrainType,
    *,
    tokenizer: TokenizerLike,
    **options: Unpack[TokenOptions],
) -> TokenCheck:
    """Compare all conversations of files with ``apply_chat_template`` of transformers.

    Parameters
    ----------
    source, train_type, tokenizer, options
        As for `zindex.ingest.keyed.tokenize.tokenize`. Sequences are not truncated, and today's
        date replaces ``date``, because transformers knows no other.

    Returns
    -------
    check
        Counts, and each difference. Masks are compared where the template has generation blocks and
        all answers are trained: transformers has no others.

    Raises
    ------
    ConfigError
        If transformers is not installed, or the tokenizer is not one of its or a
        ``tokenizer.json``.
    StoreNotFoundError
        If a file is missing.
    """
    if options.get("date") is not None:
        options["date"] = datetime.date.today().isoformat()
    records = open_token_records(source, train_type, tokenizer=tokenizer, **options)
    if records.recipe.is_steps:
        raise ConfigError(
            "a comparison with transformers (--check) needs whole answers, "
            f"{records.settings.kind!r} encodes each step by itself; leave it out"
        )
    if records.reader.cutter is None:
        raise ConfigError(
            "a comparison with transformers (--check) needs a chat template, and the tokenizer has "
            "none; name one with chat_template (--chat-template)"
        )
    reference = _open_reference(tokenizer, records.encoder)
    check = TokenCheck()
    for number in range(records.files.num_parts):
        for sample in records.files.read_part(number):
            _check_sample(records, reference, sample, check)
    return check


def _check_sample(
    records: TokenRecords, reference: Any, sample: dict[str, Any], check: TokenCheck
) -> None:
    """Compare the conversations of one record."""
    where = str(sample["__key__"]), str(sample["__url__"])
    try:
        dialogues = records.reader.read_dialogues(sample)
    except SourceError as error:
        check.differences.append(TokenDifference(*where, "refused", str(error)))
        return
    check.num_documents += not dialogues
    for dialogue in dialogues:
        check.num_dialogues += 1
        found = _compare(records, reference, dialogue, dialogue.messages, check)
        raw = sample.get("messages")
        if found is None and isinstance(raw, list) and raw != dialogue.messages:
            other = _compare(records, reference, dialogue, raw, TokenCheck())
            if other is not None:
                found = "record", f"as the record writes the messages: {other[1]}"
        if found is not None:
            check.differences.append(TokenDifference(*where, *found))


def _compare(
    records: TokenRecords,
    reference: Any,
    dialogue: Dialogue,
    messages: Sequence[Mapping[str, Any]],
    check: TokenCheck,
) -> tuple[What, str] | None:
    """Return the first difference of a conversation; None if there is none."""
    template, cutter = records.reader.template, records.reader.cutter
    assert template is not None
    assert cutter is not None
    is_asked = records.recipe.has_prompt and not records.recipe.answers
    has_mask = records.recipe.whole == DIALOGUE and cutter.trains_blocks(dialogue)
    options = {**template.variables, **dialogue.variables, "tools": dialogue.tools}
    options |= {"chat_template": template.text, "add_generation_prompt": is_asked}
    theirs = error = own = None
    try:
        theirs = reference.apply_chat_template(list(messages), tokenize=False, **options)
    except Exception as caught:  # a template may raise anything
        error = caught
    try:
        own = records.reader.cut_dialogue(dialogue)
    except SourceError as refusal:
        if theirs is None:
            check.num_refused += 1
            return None
        return "refused", f"only zindex refuses it: {refusal}"
    if theirs is None:
        return "refused", f"only transformers refuses it: {type(error).__name__}: {error}"
    text = "".join(part.text for part in own)
    if not theirs.startswith(text):
        return "text", _show(text, theirs)
    options |= {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": has_mask}
    found = reference.apply_chat_template(list(messages), **options)
    ids, mask = _encode(records.encoder, own)
    expected = np.array(found["input_ids"], np.int64)[: len(ids) if text != theirs else None]
    if not np.array_equal(ids, expected):
        place = _first_difference(ids, expected)
        return "ids", (
            f"from token {place:,} on: {ids[place : place + 5].tolist()} instead of "
            f"{expected[place : place + 5].tolist()}"
        )
    if has_mask:
        check.num_masks += 1
        blocks = np.array(found["assistant_masks"], np.bool_)
        if not np.array_equal(mask, blocks):
            place = _first_difference(mask, blocks)
            return "mask", f"token {place:,} is {'not ' * (not mask[place])}trained"
    return None


def _encode(encoder: TextEncoder, parts: Sequence[MaskedText]) -> tuple[Int64Array, BoolArray]:
    """Return the ids and the mask of parts."""
    within = [number > 0 for number in range(len(parts))]
    found = encoder.encode_spans([x.text for x in parts], within, [x.spans for x in parts])
    ids, masks = zip(*found, strict=True)
    return np.concatenate(ids), np.concatenate(masks)


def _first_difference(one: Sequence[Any] | Any, other: Sequence[Any] | Any) -> int:
    """Return the first place at which two sequences differ, or the end of the shorter one."""
    same: Iterator[bool] = (a != b for a, b in zip(one, other, strict=False))
    return next((i for i, differs in enumerate(same) if differs), min(len(one), len(other)))


def _show(own: str, theirs: str) -> str:
    """Return where two texts differ."""
    place = _first_difference(own, theirs)
    shown = [repr(text[max(0, place - _AROUND) : place + _AROUND]) for text in (own, theirs)]
    return f"at character {place:,}: {shown[0]} instead of {shown[1]}"


def _open_reference(tokenizer: Any, encoder: TextEncoder) -> Any:
    """Return the tokenizer of transformers: the one given, or that of a file and its folder."""
    if hasattr(tokenizer, "apply_chat_template") and hasattr(tokenizer, "backend_tokenizer"):
        return tokenizer
    library = need("transformers", "a comparison with transformers (--check)")
    settings = encoder.settings()
    known = {**settings.special_tokens}
    if encoder.path is not None:
        folder = encoder.path.parent
        if (folder / "tokenizer_config.json").is_file():
            options: Any = {"local_files_only": True, "trust_remote_code": False}
            try:
                return library.AutoTokenizer.from_pretrained(str(folder), **options)
            except Exception as error:  # of any of its classes
                logger.warning(
                    "%s: transformers does not open this folder (%s), so its tokenizer.json alone "
                    "is compared",
                    folder,
                    error,
                )
        return library.PreTrainedTokenizerFast(tokenizer_file=str(encoder.path), **known)
    rust = getattr(encoder.tokenizer, "tokenizer", encoder.tokenizer)
    if not hasattr(rust, "encode_batch_fast"):
        raise ConfigError(
            "a comparison with transformers (--check) needs a tokenizer.json or a tokenizer of "
            f"transformers, got {type(encoder.tokenizer).__name__}; give one of these"
        )
    return library.PreTrainedTokenizerFast(tokenizer_object=rust, **known)
