"""Tokenize files of documents, dialogues, preference pairs and answer groups into records."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.errors import ConfigError, FingerprintMismatchError, SourceError, check_choice
from zindex.sources.sample_files import SampleFiles, WrappedFiles
from zindex.store.records import LENGTH_SUFFIX
from zindex.text.chat_template import ChatTemplate
from zindex.text.conversations import ConversationParser, Dialogue
from zindex.text.loss_masks import DialogueCutter, MaskedText
from zindex.text.text_checks import SpecialTexts, check_unicode
from zindex.text.text_encoder import TextEncoder

Sample = dict[str, Any]
TrainType = Literal["seq", "sft", "dpo", "grpo"]
Keep = Literal["start", "end"]
PositionIds = Literal["doc_reset", "none"]
SpecialInText = Literal["parse", "refuse"]

# Characters per call of the tokenizer; the records do not depend on it.
_BATCH_LENGTH = 1 << 18
_MAX_BATCH = 1024
_TOKEN_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
#: Placeholder of a required id that the tokenizer does not name.
UNKNOWN_ID = -1


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Settings of records besides tokenizer and template."""

    train_type: TrainType
    #: Maximal tokens of a sequence, and of a prompt and each response of a group; None: unlimited.
    max_length: int | None = None
    #: Which end of a longer one is kept.
    keep: Keep = "start"
    #: Store the positions of a dialogue's tokens, from 0 in each; or none.
    position_ids: PositionIds = "doc_reset"
    token_dtype: str = "int32"
    #: Ids before and after each document, and after the text of a plain template.
    begin_id: int | None = None
    end_id: int | None = None
    #: Whether special tokens that are written in a text become such tokens, or are refused.
    special_in_text: SpecialInText = "parse"

    def __post_init__(self) -> None:
        choices = {
            "train_type": TrainType,
            "keep": Keep,
            "position_ids": PositionIds,
            "special_in_text": SpecialInText,
        }
        for name, kinds in choices.items():
            check_choice(name, getattr(self, name), get_args(kinds))
        length = self.max_length
        if length is not None and (type(length) is not int or length < 1):
            raise ConfigError(f"max_length must be a whole number from 1 on, got {length!r}")
        check_choice("token_dtype (--token-dtype)", self.token_dtype, _TOKEN_DTYPES)

    @property
    def dtypes(self) -> dict[str, str]:
        """Fields of a record in order, with their dtypes."""
        ids = self.token_dtype
        if self.train_type == "seq":
            return {"sequence": ids}
        if self.train_type == "sft":
            positions = {"position_ids": "int32"} if self.position_ids == "doc_reset" else {}
            return {"sequence": ids, "loss_mask": "bool"} | positions
        if self.train_type == "dpo":
            masks = {"chosen_mask": "bool", "rejected_mask": "bool"}
            return {"chosen": ids, "rejected": ids} | masks
        return {
            "prompts": ids,
            "responses": ids,
            f"responses{LENGTH_SUFFIX}": "int64",
            "masks": "bool",
            f"masks{LENGTH_SUFFIX}": "int64",
            "rewards": "float32",
        }


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One sequence before it is tokenized."""

    parts: Sequence[MaskedText]
    #: Ids before and after it.
    begin_id: int | None = None
    end_id: int | None = None
    #: Whether it continues another text.
    is_answer: bool = False
    #: Whether the id after it is trained.
    trains_end: bool = True
    #: Whether the end of a longer one is kept in any case, because answers follow it.
    keeps_end: bool = False

    @property
    def keys(self) -> Iterator[tuple[str, bool]]:
        """The text of each part, and whether it follows other text."""
        for number, part in enumerate(self.parts):
            yield part.text, self.is_answer or number > 0


@dataclass(frozen=True, slots=True)
class _Draft:
    """A record before its texts are tokenized."""

    sample: Sample
    sequences: Sequence[_Sequence]
    rewards: Sequence[float] = ()


class TokenRecords(WrappedFiles):
    """Files of texts or JSON objects as records of token ids.

    Parameters
    ----------
    files, files_fingerprint
        See `WrappedFiles`; the samples are JSON objects.
    settings
        The kind of records.
    encoder
        The tokenizer.
    template
        Renders dialogues; None refuses them.
    parser
        Parses the objects; None: a `ConversationParser` with the usual names.
    cutter_settings
        ``trained_roles`` and ``turns`` of `DialogueCutter`.
    skip_damaged
        Whether damaged objects are skipped and counted; else they are an error.

    Raises
    ------
    ConfigError
        If a setting is out of range, or special tokens are to be refused but the tokenizer lists
        none.

    Notes
    -----
    A mask marks the tokens that are targets of the loss; a dataset that predicts the next token
    therefore reads it from the second token on. All records have masks, also if all tokens are
    trained. An object with a dialogue and a text is a dialogue, unless documents are wanted, or
    ``columns`` name the text. Law: records do not depend on how files are partitioned.
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
        skip_damaged: bool = False,
    ) -> None:
        super().__init__(files, files_fingerprint)
        self.settings = settings
        self.encoder = encoder
        self.template = template
        self.parser = ConversationParser() if parser is None else parser
        self.skip_damaged = skip_damaged
        self.cutter = (
            None
            if template is None
            else DialogueCutter(template, ends=encoder.special_texts(), **(cutter_settings or {}))
        )
        #: Records with an answer that has no trained token; documents do not count.
        self.num_untrained = 0
        self._special = (
            SpecialTexts(encoder.special_texts()) if settings.special_in_text == "refuse" else None
        )
        self._tokenizer = encoder.identity()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if multiprocessing.parent_process() is not None:
            # One of many worker processes must not use all cores.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if self.encoder.identity() != self._tokenizer:
            raise FingerprintMismatchError(
                f"{self.encoder.path} must be the same tokenizer on all machines while tokens are "
                "made, here it is another one; put the same file there"
            )

    def identity(self) -> dict[str, Any]:
        """Return what decides the records besides the files, as JSON values."""
        settings = self.settings
        return {
            "train_type": settings.train_type,
            "tokenizer": self._tokenizer,
            "vocab_size": self.encoder.vocab_size(),
            "chat_template": None if self.template is None else self.template.identity(),
            "max_length": settings.max_length,
            "keep": settings.keep,
            "position_ids": settings.position_ids,
            "begin_id": settings.begin_id,
            "end_id": settings.end_id,
            "special_in_text": settings.special_in_text,
            **self.parser.identity(),
            **({} if self.cutter is None else self.cutter.identity()),
        }

    @property
    def counts(self) -> dict[str, int]:
        """Counts of this process's records so far, by attribute of the store."""
        return {} if self.settings.train_type == "seq" else {"num_untrained": self.num_untrained}

    def convert(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the records of JSON objects, in order."""
        batch: list[_Draft] = []
        length = 0
        for sample in samples:
            try:
                draft = self._draft(sample)
                texts = [text for sequence in draft.sequences for text, _ in sequence.keys]
                for text in texts:
                    check_unicode(text)
            except SourceError as error:
                if not self.skip_damaged:
                    raise _locate(sample, error) from error
                self.num_refused += 1
                continue
            batch.append(draft)
            length += sum(map(len, texts))
            if length >= _BATCH_LENGTH or len(batch) >= _MAX_BATCH:
                yield from self._encode(batch)
                batch, length = [], 0
        yield from self._encode(batch)

    def _draft(self, sample: Sample) -> _Draft:
        """Return the sequences of a JSON object."""
        kind = self.settings.train_type
        if kind == "dpo":
            sequences = []
            for dialogue in self._check(self.parser.read_pair(sample)):
                prompt, answer = self._need_cutter().cut_answer(dialogue)
                sequences.append(self._sequence([MaskedText(prompt, False), *answer], dialogue))
            return _Draft(sample, sequences)
        if kind == "grpo":
            group = self.parser.read_group(sample)
            dialogues = self._check(group.answers)
            answers = [self._need_cutter().cut_answer(dialogue) for dialogue in dialogues]
            asked = _Sequence([MaskedText(answers[0][0], False)], self._ends()[0], keeps_end=True)
            answered = [
                replace(self._sequence(parts, dialogue), begin_id=None, is_answer=True)
                for (_, parts), dialogue in zip(answers, dialogues, strict=True)
            ]
            return _Draft(sample, [asked, *answered], group.rewards)
        text = None
        if kind == "seq" or "text" in self.parser.columns or not self.parser.holds_dialogue(sample):
            text = self.parser.read_text(sample)
        if text is not None:
            if self._special is not None:
                self._special.check(text)
            return _Draft(sample, [_Sequence([MaskedText(text, True)], *self._document_ends())])
        [dialogue] = self._check([self.parser.read_dialogue(sample)])
        cutter = self._need_cutter()
        parts = [MaskedText(cutter.text(dialogue), True)] if kind == "seq" else cutter.cut(dialogue)
        return _Draft(sample, [self._sequence(parts, dialogue)])

    def _check(self, dialogues: Sequence[Dialogue]) -> Sequence[Dialogue]:
        """Return dialogues; refuse those with special tokens in their texts if that is set."""
        if self._special is not None:
            for dialogue in dialogues:
                self._special.check([*dialogue.messages, dialogue.tools])
        return dialogues

    def _sequence(self, parts: Sequence[MaskedText], dialogue: Dialogue) -> _Sequence:
        """Return a dialogue as a sequence."""
        trains_end = self._need_cutter().trains_end(dialogue)
        return _Sequence(parts, *self._ends(), trains_end=trains_end)

    def _need_cutter(self) -> DialogueCutter:
        """Return the cutter of dialogues; an error if there is no chat template."""
        if self.cutter is None:
            raise ConfigError(
                "dialogues and answers need a chat template, and the tokenizer has none; name one "
                "with chat_template (--chat-template): 'chatml', a file, or 'plain' for texts one "
                "after the other"
            )
        return self.cutter

    def _ends(self) -> tuple[int | None, int | None]:
        """Return the ids around dialogues: none if the template marks their ends."""
        if self.template is None or not self.template.is_plain:
            return None, None
        return self._document_ends()

    def _document_ends(self) -> tuple[int | None, int | None]:
        """Return the ids around documents."""
        if self.settings.end_id == UNKNOWN_ID:
            raise ConfigError(
                "append_eod (--append-eod) needs an end of documents, and the tokenizer names no "
                "eos_token; give the id or the text of one, or False (none) to join documents "
                "without"
            )
        return self.settings.begin_id, self.settings.end_id

    def _encode(self, batch: Sequence[_Draft]) -> Iterator[Sample]:
        """Yield the records of drafts; equal parts are tokenized once."""
        sequences = chain.from_iterable(draft.sequences for draft in batch)
        keys = dict.fromkeys(chain.from_iterable(sequence.keys for sequence in sequences))
        found = self.encoder.encode_parts([key[0] for key in keys], [key[1] for key in keys])
        ids = dict(zip(keys, map(self._fit, found), strict=True))
        for draft in batch:
            pairs = [self._join(sequence, ids) for sequence in draft.sequences]
            answers = pairs[1:] if self.settings.train_type == "grpo" else pairs
            self.num_untrained += not all(mask.any() for _, mask in answers)
            record = {name: draft.sample[name] for name in ("__key__", "__url__")}
            yield record | self._make(pairs, draft.rewards)

    def _fit(self, ids: Int64Array) -> AnyArray:
        """Return ids in the dtype in which they are stored."""
        limits = np.iinfo(self.settings.token_dtype)
        if len(ids) and not (limits.min <= ids.min() and ids.max() <= limits.max):
            raise ConfigError(
                f"token_dtype (--token-dtype) must hold every id of the tokenizer, {limits.dtype} "
                f"does not hold {ids.max() if ids.max() > limits.max else ids.min()}; take a wider "
                "one, such as int32"
            )
        return ids.astype(self.settings.token_dtype)

    def _join(
        self, sequence: _Sequence, ids: Mapping[tuple[str, bool], AnyArray]
    ) -> tuple[AnyArray, BoolArray]:
        """Return the ids and the mask of a sequence."""
        found = [self._fit(np.empty(0, np.int64))]
        flags = [False]
        if sequence.begin_id is not None:
            found.append(self._fit(np.array([sequence.begin_id])))
            flags.append(False)
        for key, part in zip(sequence.keys, sequence.parts, strict=True):
            found.append(ids[key])
            flags.append(part.trained)
        if sequence.end_id is not None:
            found.append(self._fit(np.array([sequence.end_id])))
            flags.append(sequence.trains_end)
        mask = np.repeat(flags, [len(part) for part in found])
        length = self.settings.max_length
        # An answer continues its prompt, so its beginning is kept.
        keeps_start = self.settings.keep == "start" and not sequence.keeps_end
        kept = slice(length) if sequence.is_answer or keeps_start else slice(-(length or 0), None)
        return np.concatenate(found)[kept], mask[kept]

    def _make(
        self, pairs: Sequence[tuple[AnyArray, BoolArray]], rewards: Sequence[float]
    ) -> Sample:
        """Return the fields of a record."""
        kind = self.settings.train_type
        sequence, mask = pairs[0]
        if kind == "seq":
            return {"sequence": sequence}
        if kind == "sft":
            record = {"sequence": sequence, "loss_mask": mask}
            if self.settings.position_ids == "doc_reset":
                record["position_ids"] = np.arange(len(sequence), dtype=np.int32)
            return record
        if kind == "dpo":
            rejected, rejected_mask = pairs[1]
            return {
                "chosen": sequence,
                "rejected": rejected,
                "chosen_mask": mask,
                "rejected_mask": rejected_mask,
            }
        responses, masks = zip(*pairs[1:], strict=True)
        lengths = np.array([*map(len, responses)], np.int64)
        return {
            "prompts": sequence,
            "responses": np.concatenate(responses),
            f"responses{LENGTH_SUFFIX}": lengths,
            "masks": np.concatenate(masks),
            f"masks{LENGTH_SUFFIX}": lengths,
            "rewards": np.array(rewards, np.float32),
        }


def _locate(sample: Sample, error: SourceError) -> SourceError:
    """Return an error that names its object."""
    return SourceError(
        f"{error}, in record {sample.get('__key__')!r} of {sample.get('__url__')}; mend it, or "
        "leave out such records with on_damage='skip' (--on-damage skip)"
    )
