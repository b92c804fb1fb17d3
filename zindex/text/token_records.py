"""Tokenise files of documents, conversations, preference pairs and answer groups into records."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.errors import ConfigError, SourceError
from zindex.sources.sample_files import SampleFiles
from zindex.text.chat_template import ChatTemplate
from zindex.text.conversations import ConversationParser
from zindex.text.encoded_files import EncodedFiles, Sample, fit_ids, locate
from zindex.text.kept_tokenizer import count_ids
from zindex.text.length_limits import Cut, LengthReport
from zindex.text.loss_masks import MaskedText
from zindex.text.media import MEDIA, MediaRule, Medium, cut_media, place_media, write_media
from zindex.text.record_json import find_json_texts
from zindex.text.record_recipe import Encoded, Recipe
from zindex.text.record_sequences import SequenceReader, TextSequence
from zindex.text.text_encoder import TextEncoder
from zindex.text.token_settings import TokenSettings
from zindex.text.token_spans import Span

#: Prefixes of attributes that count records: with a JSON text that was decoded, with a field that
#: nothing reads.
DECODED, UNREAD = "num_decoded.", "num_unread."
_MAX_NOTES = 64
# How masks are made: changes with the tokens or masks of any text.
_MASKS = "whole texts"
_NO_MASK = np.zeros(0, np.bool_)

# A part and whether it follows other text, and its ids and mask.
_Key = tuple[MaskedText, bool]
# A record before its texts are tokenised: its object, its sequences, and its values by key.
_Draft = tuple[Sample, list[TextSequence], dict[str, Any]]


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
        self._num_ids = count_ids(encoder)
        #: Reads the sequences and the values of JSON objects.
        self.reader = SequenceReader(
            settings,
            encoder,
            template,
            ConversationParser(parts=settings.recipe.parts) if parser is None else parser,
            cutter_settings or {},
            media,
            self._num_ids,
        )
        #: Records with an answer that has no trained token; documents do not count.
        self.num_untrained = 0
        #: Records that are longer than a limit, and what that has cost.
        self.num_truncated = self.num_dropped = self.num_cut_tokens = 0
        #: Receives the length of every record, if set.
        self.report: LengthReport | None = None
        # Records by the name of what was normalised or not read. It is replaced, never modified:
        # the copies of other threads share it.
        self._notes: Mapping[str, int] = {}
        self._no_ids = np.zeros(0, settings.token_dtype)
        self._own_ids: dict[tuple[int, bool], Encoded] = {}
        self.media = media
        self._media_id: int | None = None
        if media is not None:
            self._media_id = encoder.find_id(media.placeholder, "placeholder of media (--media)")

    @property
    def recipe(self) -> Recipe:
        """What records are made of."""
        return self.reader.recipe

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the records, besides the files, as JSON values."""
        settings = self.settings.identity()
        reader = self.reader
        template = None if reader.template is None else reader.template.identity()
        cutting = {} if reader.cutter is None else reader.cutter.identity()
        own = settings | {"chat_template": template} | reader.parser.identity() | cutting
        media = {} if self.media is None else {"media": self.media.identity()}
        return super().identity() | own | {"masks": _MASKS} | media

    @property
    def dtypes(self) -> dict[str, str]:
        """Fields of numbers of a record in order, with their dtypes."""
        return self.settings.dtypes | ({} if self.media is None else {MEDIA: "uint8"})

    @property
    def stored_fields(self) -> tuple[str, ...] | None:
        """Fields of a record in order; None if records have others, or lack texts."""
        recipe = self.recipe
        if recipe.schema.keeps_fields or any(item.optional for item in recipe.schema.texts):
            return None
        return (*recipe.schema.layout, *([] if self.media is None else [MEDIA]))

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
        if not self.recipe.has_masks:
            del counts["num_untrained"]
        return {**counts, **self._notes}

    def _note(self, sample: Sample) -> None:
        """Count what is decoded of a record, and its fields that nothing reads.

        Raises
        ------
        SourceError
            If there are such fields and they are rejected.
        """
        unread = [] if self.recipe.schema.keeps_fields else self.reader.find_unread(sample)
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
        sequences, values = self.reader.read(sample)
        texts = [part.text for sequence in sequences for part in sequence.parts]
        return (sample, sequences, values), texts

    def _encode(self, batch: Sequence[_Draft]) -> dict[_Key, Encoded]:
        # Equal parts are tokenised once.
        keys = (sequence.keys for _, sequences, _ in batch for sequence in sequences)
        return self._encode_parts([*dict.fromkeys(chain.from_iterable(keys))], batch)

    def _finish(self, batch: Sequence[_Draft], encoded: Mapping[_Key, Encoded]) -> Iterator[Sample]:
        found = self._join_all([x for _, sequences, _ in batch for x in sequences], encoded)
        is_limited = self.report is not None or bool(self.settings.limits.limits)
        for sample, sequences, values in batch:
            whole = [*islice(found, len(sequences))]
            cut = self._cut_lengths(sample, [len(ids) for ids, _ in whole]) if is_limited else None
            if cut is not None and cut.lost and self.settings.limits.on_long == "drop":
                self.num_dropped += 1
                continue
            kept, spans, media = self._cut(sequences, whole, cut)
            try:
                record = self.recipe.make(whole, kept, spans, values)
                if self.recipe.schema.keeps_fields:
                    record |= self.reader.keep_fields(sample, record)
            except SourceError as error:
                self.refuse(sample, error)
                continue
            if self.recipe.has_masks:
                answers = kept[self.recipe.has_prompt :]
                self.num_untrained += not all(mask.any() for _, mask in answers)
            if self.media is not None:
                record[MEDIA] = write_media(media)
            yield {"__key__": sample["__key__"], "__url__": sample["__url__"]} | record

    def _cut(
        self, sequences: Sequence[TextSequence], whole: Sequence[Encoded], cut: Cut | None
    ) -> tuple[Sequence[Encoded], Sequence[Span] | None, Sequence[Medium]]:
        """Return what is kept of the sequences of a record, its spans, and the images in it.

        There are no spans if all is kept.
        """
        media: Sequence[Medium] = ()
        if self.media is not None and sequences[0].media:
            places = np.flatnonzero(whole[0].ids == self._media_id)
            media = place_media(sequences[0].media, sequences[0].counts, places)
        if cut is None or not cut.lost:
            return whole, None, media
        self.num_truncated += 1
        self.num_cut_tokens += sum(cut.lost.values())
        spans = cut.spans
        if media:
            span, media = cut_media(media, *spans[0])
            spans = [span]
        kept = [
            Encoded(ids[start:stop], mask[start:stop])
            for (ids, mask), (start, stop) in zip(whole, spans, strict=True)
        ]
        return kept, spans, media

    def _encode_parts(self, keys: Sequence[_Key], batch: Sequence[_Draft]) -> dict[_Key, Encoded]:
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
            key: Encoded(flat[start:stop], mask)
            for key, (_, mask), (start, stop) in zip(keys, found, pairwise(stops), strict=True)
        }

    def _encode_keys(self, keys: Sequence[_Key]) -> Sequence[tuple[Int64Array, BoolArray]]:
        """Return the ids and masks of parts; documents have no masks."""
        texts, within = [part.text for part, _ in keys], [follows for _, follows in keys]
        if not self.recipe.has_masks:
            return [(ids, _NO_MASK) for ids in self.encoder.encode_parts(texts, within)]
        return self.encoder.encode_spans(texts, within, [part.spans for part, _ in keys])

    def _fit_part(self, sample: Sample, ids: Int64Array, cause: ConfigError) -> None:
        """Raise with the place of a record if ids of it do not fit."""
        try:
            fit_ids(ids, self.settings.token_dtype, self._num_ids)
        except ConfigError as error:
            raise ConfigError(f"{error}, in {locate(sample)}") from cause

    def _cut_lengths(self, sample: Sample, lengths: Sequence[int]) -> Cut:
        """Return what is kept of the sequences of a record, and count its lengths."""
        limits, recipe = self.settings.limits, self.recipe
        if recipe.has_prompt:
            cut = limits.cut_answers(lengths, joined=recipe.is_joined)
        else:
            cut = limits.cut_sequence(*lengths)
        if self.report is not None:
            prompt, *answers = lengths
            parts: dict[str, Sequence[int]] = {"sequence": lengths}
            if recipe.has_prompt:
                parts = {"prompt": [prompt]}
            if recipe.has_prompt and recipe.answers:
                parts["answer"] = answers
            if recipe.is_joined:
                parts["sequence"] = [prompt + answer for answer in answers]
            self.report.add(parts, cut)
            return cut
        try:
            limits.check(cut)
        except SourceError as error:
            raise SourceError(f"{error}, in {locate(sample)}") from None
        return cut

    def _join_all(
        self, sequences: Sequence[TextSequence], parts: Mapping[_Key, Encoded]
    ) -> Iterator[Encoded]:
        """Yield whole sequences of a batch, given their parts."""
        keys = [sequence.keys for sequence in sequences]
        pieces, counts = list[Encoded](), list[int]()
        for sequence, own in zip(sequences, keys, strict=True):
            count = len(pieces)
            if sequence.begin_id is not None:
                pieces.append(self._one(sequence.begin_id, False))
            pieces += [parts[key] for key in own]
            if sequence.end_id is not None:
                pieces.append(self._one(sequence.end_id, sequence.trains_end))
            counts.append(sum([len(piece.ids) for piece in pieces[count:]]))
        ids = np.concatenate([self._no_ids, *(piece.ids for piece in pieces)])
        masks = np.concatenate([_NO_MASK, *(piece.mask for piece in pieces)])
        bounds = pairwise(accumulate(counts, initial=0))
        for sequence, own, (start, stop) in zip(sequences, keys, bounds, strict=True):
            found = Encoded(ids[start:stop], masks[start:stop])
            if sequence.given is not None:
                found = Encoded(sequence.given, np.full(len(sequence.given), sequence.is_answer))
            elif sequence.marks is not None:
                found = self._mark_steps(found.ids, [parts[key] for key in own], sequence.marks)
            yield found

    def _mark_steps(
        self, ids: AnyArray, parts: Sequence[Encoded], marks: Sequence[bool]
    ) -> Encoded:
        """Return an answer of steps; its mask marks the last token of each."""
        mask = np.zeros(len(ids), np.bool_)
        stops = np.cumsum([len(part.ids) for part in parts], dtype=np.int64)
        each = len(parts) // max(1, len(marks))  # a step alone, or with its separator
        mask[stops[each - 1 :: each] - 1] = marks
        return Encoded(ids, mask)

    def _one(self, number: int, is_trained: bool) -> Encoded:
        """Return the id of a begin or an end as a sequence."""
        found = self._own_ids.get((number, is_trained))
        if found is None:
            ids = fit_ids(np.array([number], np.int64), self.settings.token_dtype)
            mask = np.full(int(self.recipe.has_masks), is_trained)
            found = self._own_ids[number, is_trained] = Encoded(ids, mask)
        return found
