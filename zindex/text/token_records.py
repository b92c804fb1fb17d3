"""Tokenise files of documents, conversations, preference pairs and answer groups into records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.errors import ConfigError, SourceError
from zindex.sources.sample_files import SampleFiles
from zindex.text.chat_template import ChatTemplate
from zindex.text.conversations import ConversationParser, Dialogue
from zindex.text.encoded_files import EncodedFiles, Sample, fit_ids
from zindex.text.kept_tokenizer import count_ids
from zindex.text.length_limits import Cut, LengthReport
from zindex.text.loss_masks import DialogueCutter, MaskedText
from zindex.text.media import (
    MEDIA,
    MediaRule,
    Medium,
    cut_media,
    expand,
    find_media,
    place_media,
    write_media,
)
from zindex.text.record_json import find_json_texts
from zindex.text.text_checks import SpecialTexts
from zindex.text.text_encoder import TextEncoder
from zindex.text.token_settings import UNKNOWN_ID, TokenSettings

#: Prefixes of attributes that count records: with a JSON text that was decoded, with a field that
#: nothing reads.
DECODED, UNREAD = "num_decoded.", "num_unread."
_MAX_NOTES = 64
# How masks are made: changes with the tokens or masks of any text.
_MASKS = "whole texts"
_NO_MASK = np.zeros(0, np.bool_)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One sequence before it is tokenised."""

    parts: Sequence[MaskedText]
    #: Ids before and after it.
    begin_id: int | None = None
    end_id: int | None = None
    #: Whether it continues another text.
    is_answer: bool = False
    #: Whether the id after it is trained.
    trains_end: bool = True
    #: Images in it, and the tokens of each.
    media: Sequence[Medium] = ()
    counts: Sequence[int] = ()

    @property
    def keys(self) -> list[tuple[MaskedText, bool]]:
        """Each part, and whether it follows other text."""
        follows = self.is_answer
        return [(part, follows or number > 0) for number, part in enumerate(self.parts)]


# A part and whether it follows other text, and its ids and mask.
_Key = tuple[MaskedText, bool]
_Encoded = tuple[AnyArray, BoolArray]
# A record before its texts are tokenised: its object, its sequences, and the rewards of a group.
_Draft = tuple[Sample, list[_Sequence], Sequence[float]]


class TokenRecords(EncodedFiles):
    """Files of texts or JSON objects as records of token ids.

    Parameters
    ----------
    files, files_fingerprint, encoder, skip_damaged
        See `EncodedFiles`; the samples are JSON objects.
    settings
        The kind of records.
    template
        Renders conversations; None rejects them.
    parser
        Parses the objects; None uses a `ConversationParser` with the usual names.
    cutter_settings
        ``trained_roles`` and ``turns`` of `DialogueCutter`.
    media
        How many tokens an image takes; None rejects images. The parser must keep them.

    Raises
    ------
    ConfigError
        If a setting is out of range, or special tokens are to be rejected but the tokenizer lists
        none.

    Notes
    -----
    A mask marks the tokens that are targets of the loss; a dataset that predicts the next token
    therefore reads it from the second token on. All records have masks, even if all tokens are
    trained. An object with a conversation and a text is a conversation, unless documents are
    wanted, or ``columns`` name the text. Law: records do not depend on how files are partitioned.
    """

    def __init__(
        self,
        files: SampleFiles,
        files_fingerprint: str,
        *,
        settings: TokenSettings,
        encoder: TextEncoder,
        template: ChatTemplate | None = None,
        parser: ConversationParser | None = None,
        cutter_settings: Mapping[str, Any] | None = None,
        media: MediaRule | None = None,
        skip_damaged: bool = False,
    ) -> None:
        super().__init__(files, files_fingerprint, encoder=encoder, skip_damaged=skip_damaged)
        self.settings = settings
        self.template = template
        self.parser = ConversationParser() if parser is None else parser
        special = encoder.special_texts()
        self.cutter: DialogueCutter | None = None
        if template is not None:
            self.cutter = DialogueCutter(template, ends=special, **(cutter_settings or {}))
        #: Records with an answer that has no trained token; documents do not count.
        self.num_untrained = 0
        #: Records that are longer than a limit, and what that has cost.
        self.num_truncated = self.num_dropped = self.num_cut_tokens = 0
        #: Receives the length of every record, if set.
        self.report: LengthReport | None = None
        # Records by the name of what was normalised or not read. It is replaced, never modified:
        # the copies of other threads share it.
        self._notes: Mapping[str, int] = {}
        self._num_ids = count_ids(encoder)
        self._names = tuple(settings.dtypes)
        self._no_ids = np.zeros(0, settings.token_dtype)
        self._own_ids: dict[int, AnyArray] = {}
        self.media = media
        self._media_id: int | None = None
        if media is not None:
            if settings.train_type != "sft":
                raise ConfigError(
                    f"media (--media) must be left out for {settings.train_type}: images are for "
                    "sft"
                )
            self._media_id = encoder.find_id(media.placeholder, "placeholder of media (--media)")
        self._special = SpecialTexts(special) if settings.special_in_text == "refuse" else None

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the records, besides the files, as JSON values."""
        settings = asdict(self.settings)
        del settings["token_dtype"]  # already in the fields of the store
        settings |= settings.pop("limits")
        template = None if self.template is None else self.template.identity()
        cutting = {} if self.cutter is None else self.cutter.identity()
        own = settings | {"chat_template": template} | self.parser.identity() | cutting
        media = {} if self.media is None else {"media": self.media.identity()}
        return super().identity() | own | {"masks": _MASKS} | media

    @property
    def dtypes(self) -> dict[str, str]:
        """Fields of a record in order, with their dtypes."""
        return self.settings.dtypes | ({} if self.media is None else {MEDIA: "uint8"})

    @property
    def counts(self) -> dict[str, int]:
        """Counts of this process's records so far, by attribute of the store."""
        counts = {"num_untrained": self.num_untrained}
        if self.settings.limits.limits:
            counts |= {
                "num_truncated": self.num_truncated,
                "num_dropped": self.num_dropped,
                "num_cut_tokens": self.num_cut_tokens,
            }
        if self.settings.train_type == "seq":
            del counts["num_untrained"]
        return {**counts, **self._notes}

    def _note(self, sample: Sample) -> None:
        """Count what is decoded of a record, and its fields that nothing reads.

        Raises
        ------
        SourceError
            If there are such fields and they are rejected.
        """
        unread = self.parser.find_unread(sample, self.settings.train_type)
        if unread and self.settings.unread_fields == "refuse":
            raise SourceError(
                "an object must have no fields that nothing reads with unread_fields='refuse' "
                f"(--unread-fields refuse), this one has {', '.join(map(repr, unread))}"
            )
        names = [f"{DECODED}{name}" for name in find_json_texts(sample)]
        for name in [*names, *(f"{UNREAD}{name}" for name in unread)]:
            if name in self._notes or len(self._notes) < _MAX_NOTES:
                self._notes = {**self._notes, name: self._notes.get(name, 0) + 1}

    def _draft(self, sample: Sample) -> tuple[_Draft, Sequence[str]]:
        self._note(sample)
        sequences, rewards = self._cut(sample)
        texts = [part.text for sequence in sequences for part in sequence.parts]
        return (sample, sequences, rewards), texts

    def _cut(self, sample: Sample) -> tuple[list[_Sequence], Sequence[float]]:
        """Return the sequences of a JSON object, and the rewards of a group."""
        kind = self.settings.train_type
        if kind == "dpo":
            return self._cut_answers(self.parser.read_pair(sample)), ()
        if kind == "grpo":
            group = self.parser.read_group(sample)
            return self._cut_answers(group.answers), group.rewards
        text = self._read_text(sample)
        if text is not None:
            if self._special is not None:
                self._special.check(text)
            return [_Sequence([MaskedText.whole(text)], *self._document_ends())], ()
        [dialogue] = self._check([self.parser.read_dialogue(sample)])
        cutter = self._need_cutter()
        if kind == "seq":
            return [self._sequence([MaskedText.whole(cutter.text(dialogue))], dialogue)], ()
        masked = cutter.cut(dialogue)
        if self.media is None:
            return [self._sequence([masked], dialogue)], ()
        media = find_media(dialogue.messages, sample)
        counts = [self.media.count(item.height, item.width) for item in media]
        masked = expand(masked, self.media.placeholder, counts)
        return [replace(self._sequence([masked], dialogue), media=media, counts=counts)], ()

    def _cut_answers(self, dialogues: Sequence[Dialogue]) -> list[_Sequence]:
        """Return the prompt that conversations share, and the answer of each."""
        answers = [self._need_cutter().cut_answer(item) for item in self._check(dialogues)]
        asked = _Sequence([MaskedText(answers[0][0])], self._ends()[0])
        answered = [
            replace(self._sequence([answer], dialogue), begin_id=None, is_answer=True)
            for (_, answer), dialogue in zip(answers, dialogues, strict=True)
        ]
        return [asked, *answered]

    def read_dialogues(self, sample: Sample) -> Sequence[Dialogue]:
        """Return the conversations of a JSON object; none if it is a document.

        Raises
        ------
        SourceError
            If it is damaged.
        """
        kind = self.settings.train_type
        if kind == "dpo":
            return self._check(self.parser.read_pair(sample))
        if kind == "grpo":
            return self._check(self.parser.read_group(sample).answers)
        if self._read_text(sample) is not None:
            return []
        return self._check([self.parser.read_dialogue(sample)])

    def _read_text(self, sample: Sample) -> str | None:
        """Return the text of a document; None if the object is a conversation."""
        is_text = self.settings.train_type == "seq" or "text" in self.parser.columns
        if is_text or not self.parser.holds_dialogue(sample):
            return self.parser.read_text(sample)
        return None

    def _check(self, dialogues: Sequence[Dialogue]) -> Sequence[Dialogue]:
        """Return conversations; raise for special tokens in their texts if so configured."""
        if self._special is not None:
            for dialogue in dialogues:
                self._special.check([*dialogue.messages, dialogue.tools, dialogue.variables])
        return dialogues

    def _sequence(self, parts: Sequence[MaskedText], dialogue: Dialogue) -> _Sequence:
        """Return a conversation as a sequence."""
        trains_end = self._need_cutter().trains_end(dialogue)
        return _Sequence(parts, *self._ends(), trains_end=trains_end)

    def _need_cutter(self) -> DialogueCutter:
        """Return the cutter of conversations; an error if there is no chat template."""
        if self.cutter is None:
            raise ConfigError(
                "dialogues and answers need a chat template, and the tokenizer has none; name one "
                "with chat_template (--chat-template): 'chatml', a file, or 'plain' for texts one "
                "after the other"
            )
        return self.cutter

    def _ends(self) -> tuple[int | None, int | None]:
        """Return the ids around conversations: none if the template marks their ends."""
        if self.template is None or not self.template.is_plain:
            return None, None
        return self._document_ends()

    def _document_ends(self) -> tuple[int | None, int | None]:
        """Return the ids around documents."""
        if self.settings.end_id == UNKNOWN_ID:
            raise ConfigError(
                "append_eod (--append-eod) needs an end of documents, and the tokenizer names no "
                "eos_token; give the id or the text of one, or False (none) to do without"
            )
        return self.settings.begin_id, self.settings.end_id

    def _encode(self, batch: Sequence[_Draft]) -> Iterator[Sample]:
        # Equal parts are tokenised once.
        keys = [[sequence.keys for sequence in sequences] for _, sequences, _ in batch]
        unique = dict.fromkeys(key for own in keys for found in own for key in found)
        parts = self._encode_parts(list(unique), batch)
        settings = self.settings
        has_masks, is_measured = settings.train_type != "seq", self.report is not None
        has_limits = is_measured or bool(settings.limits.limits)
        for (sample, sequences, rewards), own in zip(batch, keys, strict=True):
            pairs = [
                self._join(sequence, [parts[key] for key in found], has_mask=has_masks)
                for sequence, found in zip(sequences, own, strict=True)
            ]
            media: Sequence[Medium] = ()
            if self.media is not None and sequences[0].media:
                places = np.flatnonzero(pairs[0][0] == self._media_id)
                media = place_media(sequences[0].media, sequences[0].counts, places)
            if has_limits:
                cut = self._cut_lengths(sample, [len(ids) for ids, _ in pairs])
                if cut.lost and settings.limits.on_long == "drop":
                    self.num_dropped += 1
                    continue
                if cut.lost:
                    self.num_truncated += 1
                    self.num_cut_tokens += sum(cut.lost.values())
                    spans = cut.spans
                    if media:
                        span, media = cut_media(media, *spans[0])
                        spans = [span]
                    pairs = [
                        (ids[start:stop], mask[start:stop])
                        for (ids, mask), (start, stop) in zip(pairs, spans, strict=True)
                    ]
            if has_masks:
                answers = pairs[1:] if settings.has_prompts else pairs
                self.num_untrained += not all(mask.any() for _, mask in answers)
            record = {"__key__": sample["__key__"], "__url__": sample["__url__"]}
            if self.media is not None:
                record[MEDIA] = write_media(media)
            yield record | self._make(pairs, rewards)

    def _encode_parts(self, keys: Sequence[_Key], batch: Sequence[_Draft]) -> dict[_Key, _Encoded]:
        """Return the ids and masks of parts of a batch, in the dtypes in which they are stored."""
        if not keys:
            return {}

        def encode(numbers: Sequence[int]) -> Sequence[tuple[Int64Array, BoolArray]]:
            return self._encode_keys([keys[number] for number in numbers])

        found = self._encode_once(keys, encode)
        flat = np.concatenate([ids for ids, _ in found])
        try:
            flat = fit_ids(flat, self.settings.token_dtype, self._num_ids)
        except ConfigError as error:
            for sample, sequences, _ in batch:  # the first record with an id that does not fit
                own = {key for sequence in sequences for key in sequence.keys}
                for key, (ids, _) in zip(keys, found, strict=True):
                    if key in own:
                        self._fit_part(sample, ids, error)
            raise
        stops = accumulate((len(ids) for ids, _ in found), initial=0)
        return {
            key: (flat[start:stop], mask)
            for key, (_, mask), (start, stop) in zip(keys, found, pairwise(stops), strict=True)
        }

    def _encode_keys(self, keys: Sequence[_Key]) -> Sequence[tuple[Int64Array, BoolArray]]:
        """Return the ids and masks of parts; documents have no masks."""
        texts, within = [part.text for part, _ in keys], [follows for _, follows in keys]
        if self.settings.train_type == "seq":
            return [(ids, _NO_MASK) for ids in self.encoder.encode_parts(texts, within)]
        return self.encoder.encode_spans(texts, within, [part.spans for part, _ in keys])

    def _fit_part(self, sample: Sample, ids: Int64Array, cause: ConfigError) -> None:
        """Raise with the place of a record if ids of it do not fit."""
        try:
            fit_ids(ids, self.settings.token_dtype, self._num_ids)
        except ConfigError as error:
            where = f"record {sample['__key__']!r} of {sample['__url__']}"
            raise ConfigError(f"{error}, in {where}") from cause

    def _cut_lengths(self, sample: Sample, lengths: Sequence[int]) -> Cut:
        """Return what is kept of the sequences of a record, and count its lengths."""
        limits, joined = self.settings.limits, self.settings.train_type == "dpo"
        if self.settings.has_prompts:
            cut = limits.cut_answers(lengths, joined=joined)
        else:
            cut = limits.cut_sequence(lengths[0])
        if self.report is not None:
            prompt, *answers = lengths
            parts: dict[str, Sequence[int]] = {"sequence": lengths}
            if self.settings.has_prompts:
                parts = {"prompt": [prompt], "answer": answers}
                parts |= {"sequence": [prompt + answer for answer in answers]} if joined else {}
            self.report.add(parts, cut)
            return cut
        try:
            limits.check(cut)
        except SourceError as error:
            key, url = sample.get("__key__"), sample.get("__url__")
            raise SourceError(f"{error}, in record {key!r} of {url}") from None
        return cut

    def _join(self, sequence: _Sequence, parts: Sequence[_Encoded], *, has_mask: bool) -> _Encoded:
        """Return the ids of a whole sequence, and its mask, which is empty without one."""
        found = list(parts)
        if sequence.begin_id is not None:
            found.insert(0, (self._fit_id(sequence.begin_id), np.zeros(1, np.bool_)))
        if sequence.end_id is not None:
            trained = np.full(1, sequence.trains_end)
            found.append((self._fit_id(sequence.end_id), trained))
        if len(found) == 1:
            return found[0]
        ids = np.concatenate([ids for ids, _ in found] or [self._no_ids])
        return ids, np.concatenate([mask for _, mask in found]) if has_mask and found else _NO_MASK

    def _fit_id(self, number: int) -> AnyArray:
        """Return the id of a begin or an end as an array."""
        if number not in self._own_ids:
            ids = np.array([number], np.int64)
            self._own_ids[number] = fit_ids(ids, self.settings.token_dtype)
        return self._own_ids[number]

    def _make(
        self, pairs: Sequence[tuple[AnyArray, BoolArray]], rewards: Sequence[float]
    ) -> Sample:
        """Return the fields of a record."""
        if self.settings.train_type == "dpo":  # both answers follow the same tokens
            (asked, untrained), *rest = pairs
            pairs = [
                (np.concatenate((asked, ids)), np.concatenate((untrained, mask)))
                for ids, mask in rest
            ]
        sequences, masks = zip(*pairs, strict=True)
        kind = self.settings.train_type
        if kind == "grpo":
            lengths = np.array([*map(len, sequences[1:])], np.int64)
            answers, trained = np.concatenate(sequences[1:]), np.concatenate(masks[1:])
            scores = np.array(rewards, np.float32)
            values = [sequences[0], answers, lengths, trained, lengths, scores]
        elif kind == "seq":
            values = [*sequences]
        else:
            values = [*sequences, *masks]
            if kind == "sft" and self.settings.position_ids == "doc_reset":
                values.append(np.arange(len(sequences[0]), dtype=np.int32))
        return dict(zip(self._names, values, strict=True))
