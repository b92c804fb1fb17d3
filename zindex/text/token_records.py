"""Records of token ids from files of texts: documents, dialogues, pairs and groups of answers."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from zindex.errors import ConfigError, FingerprintMismatchError, SourceError
from zindex.sources.sample_files import SampleFiles
from zindex.sources.wrapped_files import WrappedFiles
from zindex.store.records import LENGTH_SUFFIX
from zindex.text.chat_template import ChatTemplate
from zindex.text.conversations import Dialogue, RowReader
from zindex.text.loss_masks import DialogueCutter, Piece
from zindex.text.piece_encoder import PieceEncoder
from zindex.text.text_checks import SpecialTexts, check_unicode
from zindex.text.text_encoder import TextEncoder

Sample = dict[str, Any]
Array = npt.NDArray[Any]
TrainType = Literal["seq", "sft", "dpo", "grpo"]
Keep = Literal["start", "end"]
PositionIds = Literal["doc_reset", "none"]
SpecialInText = Literal["parse", "refuse"]

# Characters that are tokenised together; how many does not change what comes out.
_BATCH_LENGTH = 1 << 18
_MAX_BATCH = 1024
_TOKEN_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
#: In place of the id of a token that there shall be, but that the tokenizer does not name.
UNKNOWN_ID = -1


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """How records of tokens are made of texts, beside tokenizer and template."""

    train_type: TrainType
    #: Tokens that a sequence has at most, a prompt and each response of a group too; None: any.
    max_length: int | None = None
    #: Which end of a longer one is kept.
    keep: Keep = "start"
    #: Positions of the tokens of a dialogue, from 0 in each; or none are stored.
    position_ids: PositionIds = "doc_reset"
    token_dtype: str = "int32"
    #: Id that goes before and behind each document, and behind what a plain template makes.
    begin_id: int | None = None
    end_id: int | None = None
    #: Whether special tokens that are written in a text become such tokens, or are damage.
    special_in_text: SpecialInText = "parse"

    def __post_init__(self) -> None:
        choices = {
            "train_type": TrainType,
            "keep": Keep,
            "position_ids": PositionIds,
            "special_in_text": SpecialInText,
        }
        for name, kinds in choices.items():
            known = get_args(kinds)
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        length = self.max_length
        if length is not None and (type(length) is not int or length < 1):
            raise ConfigError(f"max_length must be a whole number from 1 on, got {length!r}")
        if self.token_dtype not in _TOKEN_DTYPES:
            raise ConfigError(
                f"token_dtype (--token-dtype) must be one of {', '.join(_TOKEN_DTYPES)}, got "
                f"{self.token_dtype!r}"
            )

    @property
    def dtypes(self) -> dict[str, str]:
        """Fields of a record, in their order, and the dtype of each."""
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
class _Run:
    """One sequence before its text is tokens."""

    pieces: Sequence[Piece]
    #: Ids before and behind it.
    begin_id: int | None = None
    end_id: int | None = None
    #: Whether it goes on from another text.
    is_answer: bool = False
    #: Whether the id behind it is trained.
    trains_end: bool = True
    #: Whether the end of a longer one is kept whatever the settings say, for answers follow it.
    keeps_end: bool = False

    @property
    def keys(self) -> Iterator[tuple[str, bool]]:
        """Of each piece the text, and whether there is text before it."""
        for number, piece in enumerate(self.pieces):
            yield piece.text, self.is_answer or number > 0


@dataclass(frozen=True, slots=True)
class _Draft:
    """A record before its texts are tokens."""

    sample: Sample
    runs: Sequence[_Run]
    rewards: Sequence[float] = ()


class TokenRecords(WrappedFiles):
    """Files of texts or of JSON objects as records of token ids.

    Parameters
    ----------
    files, files_fingerprint
        See `WrappedFiles`; their samples are JSON objects.
    settings
        What records are made.
    encoder
        The tokenizer.
    template
        Makes dialogues text; None: there must be none.
    reader
        What the objects mean; by default `RowReader` with no names of one's own.
    cutter_settings
        ``trained_roles`` and ``turns`` of `DialogueCutter`.
    skip_damaged
        Whether objects that make no record are left out and counted; else they are an error.

    Raises
    ------
    ConfigError
        If a setting is out of range, or special tokens are to be refused that nobody knows.

    Notes
    -----
    A mask says of each token of its sequence whether it is a target of the loss; a dataset that
    predicts the next token therefore takes it from the second token on. Masks are always there,
    also where all tokens are trained. An object that holds a dialogue and a text is a dialogue,
    unless documents are asked for, or ``columns`` name the text. Law: records do not depend on how
    files are cut.
    """

    def __init__(
        self,
        files: SampleFiles,
        files_fingerprint: str,
        *,
        settings: TokenSettings,
        encoder: TextEncoder,
        template: ChatTemplate | None = None,
        reader: RowReader | None = None,
        cutter_settings: Mapping[str, Any] | None = None,
        skip_damaged: bool = False,
    ) -> None:
        super().__init__(files, files_fingerprint)
        self.settings = settings
        self.encoder = encoder
        self.template = template
        self.reader = RowReader() if reader is None else reader
        self.skip_damaged = skip_damaged
        self.cutter = (
            None
            if template is None
            else DialogueCutter(template, ends=encoder.special_texts(), **(cutter_settings or {}))
        )
        #: Records with an answer of which no token is trained; of documents none are counted.
        self.num_untrained = 0
        self._special = (
            SpecialTexts(encoder.special_texts()) if settings.special_in_text == "refuse" else None
        )
        self._pieces = PieceEncoder(encoder)
        self._tokenizer = encoder.identity()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if multiprocessing.parent_process() is not None:
            # One of many processes leaves the other cores to its neighbours.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if self.encoder.identity() != self._tokenizer:
            raise FingerprintMismatchError(
                f"{self.encoder.path} must be the same tokenizer on all machines while tokens are "
                "made, here it is another one; put the same file there"
            )

    def identity(self) -> dict[str, Any]:
        """Return what decides the records beside the files, as JSON values."""
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
            **self.reader.identity(),
            **({} if self.cutter is None else self.cutter.identity()),
        }

    @property
    def counts(self) -> dict[str, int]:
        """Records so far in this process that are counted, by the attribute of the store."""
        return {} if self.settings.train_type == "seq" else {"num_untrained": self.num_untrained}

    def convert(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the records that JSON objects make, in their order."""
        batch: list[_Draft] = []
        length = 0
        for sample in samples:
            try:
                draft = self._draft(sample)
                for piece in chain.from_iterable(run.pieces for run in draft.runs):
                    check_unicode(piece.text)
            except SourceError as error:
                if not self.skip_damaged:
                    raise _at(sample, error) from error
                self.num_refused += 1
                continue
            batch.append(draft)
            length += sum(len(piece.text) for run in draft.runs for piece in run.pieces)
            if length >= _BATCH_LENGTH or len(batch) >= _MAX_BATCH:
                yield from self._encode(batch)
                batch, length = [], 0
        yield from self._encode(batch)

    def _draft(self, sample: Sample) -> _Draft:
        """Return what a JSON object holds."""
        kind = self.settings.train_type
        if kind == "dpo":
            runs = []
            for dialogue in self._check(self.reader.read_pair(sample)):
                prompt, answer = self._need_cutter().cut_answer(dialogue)
                runs.append(self._run([Piece(prompt, False), *answer], dialogue))
            return _Draft(sample, runs)
        if kind == "grpo":
            group = self.reader.read_group(sample)
            dialogues = self._check(group.answers)
            answers = [self._need_cutter().cut_answer(dialogue) for dialogue in dialogues]
            asked = _Run([Piece(answers[0][0], False)], self._ends()[0], keeps_end=True)
            answered = [
                replace(self._run(pieces, dialogue), begin_id=None, is_answer=True)
                for (_, pieces), dialogue in zip(answers, dialogues, strict=True)
            ]
            return _Draft(sample, [asked, *answered], group.rewards)
        text = None
        if kind == "seq" or "text" in self.reader.columns or not self.reader.holds_dialogue(sample):
            text = self.reader.read_text(sample)
        if text is not None:
            if self._special is not None:
                self._special.check(text)
            return _Draft(sample, [_Run([Piece(text, True)], *self._document_ends())])
        [dialogue] = self._check([self.reader.read_dialogue(sample)])
        cutter = self._need_cutter()
        pieces = [Piece(cutter.text(dialogue), True)] if kind == "seq" else cutter.cut(dialogue)
        return _Draft(sample, [self._run(pieces, dialogue)])

    def _check(self, dialogues: Sequence[Dialogue]) -> Sequence[Dialogue]:
        """Return dialogues in which no special token is written, where that is refused."""
        if self._special is not None:
            for dialogue in dialogues:
                self._special.check([*dialogue.messages, dialogue.tools])
        return dialogues

    def _run(self, pieces: Sequence[Piece], dialogue: Dialogue) -> _Run:
        """Return a dialogue as a sequence."""
        trains_end = self._need_cutter().trains_end(dialogue)
        return _Run(pieces, *self._ends(), trains_end=trains_end)

    def _need_cutter(self) -> DialogueCutter:
        """Return what cuts dialogues; an error if there is no chat template."""
        if self.cutter is None:
            raise ConfigError(
                "dialogues and answers need a chat template, and the tokenizer has none; name one "
                "with chat_template (--chat-template): 'chatml', a file, or 'plain' for texts one "
                "after the other"
            )
        return self.cutter

    def _ends(self) -> tuple[int | None, int | None]:
        """Return the ids around dialogues: none where the template says where they end."""
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
        """Yield the records of some drafts; equal pieces are tokenised once."""
        keys = dict.fromkeys(chain.from_iterable(run.keys for one in batch for run in one.runs))
        found = self._pieces.encode([key[0] for key in keys], [key[1] for key in keys])
        ids = dict(zip(keys, map(self._fit, found), strict=True))
        for draft in batch:
            runs = [self._join(run, ids) for run in draft.runs]
            answers = runs[1:] if self.settings.train_type == "grpo" else runs
            self.num_untrained += not all(mask.any() for _, mask in answers)
            record = {name: draft.sample[name] for name in ("__key__", "__url__")}
            yield record | self._make(runs, draft.rewards)

    def _fit(self, ids: npt.NDArray[np.int64]) -> Array:
        """Return ids in the dtype in which they are stored."""
        limits = np.iinfo(self.settings.token_dtype)
        if len(ids) and not (limits.min <= ids.min() and ids.max() <= limits.max):
            raise ConfigError(
                f"token_dtype (--token-dtype) must hold every id of the tokenizer, {limits.dtype} "
                f"does not hold {ids.max() if ids.max() > limits.max else ids.min()}; take a wider "
                "one, such as int32"
            )
        return ids.astype(self.settings.token_dtype)

    def _join(self, run: _Run, ids: Mapping[tuple[str, bool], Array]) -> tuple[Array, Array]:
        """Return the ids and the mask of a sequence."""
        parts, marks = [], []
        for key, piece in zip(run.keys, run.pieces, strict=True):
            parts.append(ids[key])
            marks.append(np.full(len(ids[key]), piece.trained))
        if run.begin_id is not None:
            parts.insert(0, self._fit(np.array([run.begin_id])))
            marks.insert(0, np.array([False]))
        if run.end_id is not None:
            parts.append(self._fit(np.array([run.end_id])))
            marks.append(np.array([run.trains_end]))
        length = self.settings.max_length
        # The beginning of an answer is what follows from its prompt.
        start = run.is_answer or (self.settings.keep == "start" and not run.keeps_end)
        cut = slice(None) if length is None else slice(length) if start else slice(-length, None)
        none = np.empty(0, self.settings.token_dtype)
        return np.concatenate([none, *parts])[cut], np.concatenate([none[:0] > 0, *marks])[cut]

    def _make(self, runs: Sequence[tuple[Array, Array]], rewards: Sequence[float]) -> Sample:
        """Return the fields of a record."""
        kind = self.settings.train_type
        sequence, mask = runs[0]
        if kind == "seq":
            return {"sequence": sequence}
        if kind == "sft":
            record = {"sequence": sequence, "loss_mask": mask}
            if self.settings.position_ids == "doc_reset":
                record["position_ids"] = np.arange(len(sequence), dtype=np.int32)
            return record
        if kind == "dpo":
            rejected, rejected_mask = runs[1]
            return {
                "chosen": sequence,
                "rejected": rejected,
                "chosen_mask": mask,
                "rejected_mask": rejected_mask,
            }
        lengths = np.array([len(ids) for ids, _ in runs[1:]], np.int64)
        return {
            "prompts": sequence,
            "responses": np.concatenate([ids for ids, _ in runs[1:]]),
            f"responses{LENGTH_SUFFIX}": lengths,
            "masks": np.concatenate([mask for _, mask in runs[1:]]),
            f"masks{LENGTH_SUFFIX}": lengths,
            "rewards": np.array(rewards, np.float32),
        }


def _at(sample: Sample, error: SourceError) -> SourceError:
    """Return an error that says in which object it is."""
    return SourceError(
        f"{error}, in record {sample.get('__key__')!r} of {sample.get('__url__')}; mend it, or "
        "leave out such records with on_damage='skip' (--on-damage skip)"
    )
