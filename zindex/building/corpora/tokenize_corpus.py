"""Texts to a pre-training corpus, through a tokenizer: a Zarr token store or a ``.bin/.idx`` pair.

The first stage makes tokens of each run of parts of the source once, and leaves them beside the
store; sums over their counts say where everything goes; the second stage writes each shard, or
each span of the ``.bin``, out of them. Both skip what is done already.
"""

import asyncio
import logging
import os
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np

from zindex.building.convert import plan_corpus, write_corpus
from zindex.building.corpora.encoded_corpus import EncodedCorpus
from zindex.building.corpora.text_documents import (
    EncodedPortion,
    TextDocuments,
    TextSettings,
    encode_portion,
)
from zindex.building.corpora.write_pair import (
    SPAN_TOKENS,
    check_pair,
    finish_pair,
    work_folder,
    write_pair,
)
from zindex.building.executor import Executor, open_executor, run_builds, run_together
from zindex.building.process_executor import open_processes
from zindex.building.progress import Progress, open_progress
from zindex.building.records.portions import (
    MAX_PARTS,
    PORTION_NBYTES,
    count_all_lines,
    cut_portions,
    return_value,
)
from zindex.building.records.reading import Portion
from zindex.building.records.record_files import Paths, own_copy
from zindex.building.records.text_sources import TextKind, open_texts
from zindex.building.records.unfinished import check_claim, check_unfinished
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    NotReadyError,
    StoreError,
    StoreNotFoundError,
)
from zindex.formats.token_dtypes import DType
from zindex.sources.damage_log import OnDamage
from zindex.store.identity import fingerprint
from zindex.store.layout import ChunkGrid
from zindex.store.local import local_path
from zindex.store.objects import Place, PlaceLike, place_of
from zindex.store.open import open_store
from zindex.store.scratch import begin_import, end_import
from zindex.text.text_encoder import TextEncoder, TokenizerLike

logger = logging.getLogger(__name__)

CorpusForm = Literal["zarr", "bin"]
#: Attribute of a store under which it says of which texts it was made, and how.
TEXTS = "texts"
_KIND = "tokens"
# Least bytes that a task reads: a tokenizer takes about a second for them.
_LEAST_NBYTES = 1 << 20
_DTYPES = ("auto", "uint16", "int32", "uint8", "int16", "int64")


@dataclass(frozen=True, slots=True)
class TokenizedCorpus:
    """What was made of texts."""

    #: Place of the store, or path of the pair without suffix.
    place: str
    num_documents: int
    num_sequences: int
    num_tokens: int
    token_dtype: str
    #: Damaged documents, or rests of files, that were left out.
    num_skipped: int


def tokenize_corpus(
    source: Paths,
    target: PlaceLike,
    *,
    tokenizer: TokenizerLike,
    to: CorpusForm = "zarr",
    kind: TextKind | None = None,
    column: str = "text",
    append_eod: bool | int | str | None = None,
    split_sentences: bool = False,
    language: str = "en",
    special_tokens: bool = False,
    token_dtype: str = "auto",
    part_nbytes: int | None = None,
    on_damage: OnDamage = "error",
    restart: bool = False,
    overwrite: bool = False,
    grid: ChunkGrid | None = None,
    client: Any = None,
    num_processes: int | None = None,
    progress: bool = False,
) -> TokenizedCorpus:
    """Tokenise texts into a corpus for pre-training, in the source's order.

    Parameters
    ----------
    source
        Jsonl or Parquet files, or files of text that are a document each; folders or brace
        patterns with commas between, or a list of them; here or in an object store.
    target
        Place of the store; with ``to="bin"`` the path of the pair without its suffix.
    tokenizer
        The path of a tokenizer, which every worker must see, or an object or function, see
        `zindex.text.text_encoder.TextEncoder`.
    to
        ``"zarr"`` makes the store that ``zindex convert`` would make of the pair, ``"bin"`` the
        pair that Megatron's ``IndexedDatasetBuilder`` would make document after document.
    kind
        What the files are; None tells it from their names.
    column
        Field or column with the text.
    append_eod
        Token behind each document that has tokens: its id or text, True for the tokenizer's own,
        False for none; None is True, but with ``split_sentences`` False.
    split_sentences
        Whether each sentence becomes a sequence of its own, as BERT and T5 need; else each
        document is one.
    language
        Of the texts, for that.
    special_tokens
        Whether the tokenizer puts its own tokens around each text.
    token_dtype
        Of the ids; ``"auto"`` takes uint16 for a vocabulary below 65,500 ids, else int32.
    part_nbytes, on_damage, restart, client, num_processes, progress
        See `zindex.building.records.import_records.import_records`. Documents without a text are
        damage.
    overwrite
        Whether a pair that is there may be replaced.
    grid
        Elements per chunk and shard of the store, and the codec; None takes the defaults.

    Returns
    -------
    corpus
        Its place and counts.

    Raises
    ------
    ConfigError
        If a setting is out of range, or the tokenizer lacks what it asks for.
    SourceError
        If a document is damaged.
    StoreNotFoundError
        If a file is missing.
    StoreError
        If a pair is there already.
    FingerprintMismatchError
        If the place holds something else.

    Notes
    -----
    Law: the corpus depends on the texts, the tokenizer and the settings alone; not on how files
    are cut, how many workers there are, nor how often the work was broken off. A document without
    tokens is one without sequences. Source: Megatron-LM ``tools/preprocess_data.py``.
    """
    if to not in get_args(CorpusForm):
        raise ConfigError(f"to (--to) must be 'zarr' or 'bin', got {to!r}; name one of these")
    if client is not None and num_processes is not None:
        raise ConfigError(
            "client (--scheduler) and num_processes (--processes) both say where the work is done; "
            "give one of them"
        )
    encoder = TextEncoder(tokenizer)
    if append_eod is None:
        append_eod = not split_sentences
    settings = TextSettings(
        column,
        _find_dtype(encoder, token_dtype),
        end_id=encoder.find_end(append_eod, "append_eod (--append-eod)"),
        language=language if split_sentences else None,
        special_tokens=special_tokens,
    )
    files, files_fingerprint = open_texts(
        source, kind, part_nbytes, on_damage, [column], least_nbytes=_LEAST_NBYTES
    )
    texts = TextDocuments(
        files,
        files_fingerprint,
        settings=settings,
        encoder=encoder,
        skip_damaged=on_damage == "skip",
    )
    _try_first(texts)
    base = str(local_path(str(target), "a .bin/.idx pair")) if to == "bin" else None
    if base is not None:
        check_pair(base, overwrite=overwrite)
        os.makedirs(os.path.dirname(base), exist_ok=True)
    work = _Work(texts, place_of(target) if base is None else work_folder(base), base)
    work.grid, work.restart, work.overwrite = grid, restart, overwrite
    place = (
        open_executor(client)
        if num_processes is None
        else open_processes(num_processes, encode_portion)
    )
    with place as executor, open_progress(progress) as shown:
        return run_builds(work.run(executor, shown))


def _find_dtype(encoder: TextEncoder, given: str) -> str:
    """Return the name of the dtype of the tokens."""
    if given not in _DTYPES:
        raise ConfigError(
            f"token_dtype (--token-dtype) must be one of {', '.join(_DTYPES)}, got {given!r}; name "
            "one of these"
        )
    if given != "auto":
        return given
    return np.dtype(DType.optimal_dtype(encoder.vocab_size())).name


def _try_first(texts: TextDocuments) -> None:
    """Encode the first document, for what the tokenizer lacks is an error before any work."""
    trial = texts.over(own_copy(texts.files))
    for part in range(min(1, trial.num_parts)):
        opened: Any = trial.read_texts(part)
        with closing(opened) as found:
            trial.encode(list(islice(found, 1)))


class _Work:
    """One corpus in the making.

    Parameters
    ----------
    texts
        The documents.
    root
        Place of the store, or the folder of the pair's work.
    base
        Path of the pair without suffix; None for a store.
    """

    def __init__(self, texts: TextDocuments, root: Place, base: str | None) -> None:
        self.texts = texts
        self.root = root
        self.base = base
        self.grid: ChunkGrid | None = None
        self.restart = False
        self.overwrite = False
        self.identity = {
            "source": texts.fingerprint(),
            "skip_damaged": texts.skip_damaged,
            "to": "zarr" if base is None else "bin",
            **texts.identity(),
        }

    async def run(self, executor: Executor, shown: Progress) -> TokenizedCorpus:
        """Return what was made."""
        found = None if self.base is not None else await asyncio.to_thread(self._find)
        if found is not None:
            return found
        await asyncio.to_thread(
            check_unfinished, self.root, self.identity, restart=self.restart, kind=_KIND
        )
        await asyncio.to_thread(begin_import, self.root, self.identity)
        if self.base is not None:
            facts = await asyncio.to_thread(finish_pair, self.base, replace=self.overwrite)
            if facts is not None:  # a call before died over the renaming
                return self._describe(facts, facts["num_skipped"])
        try:
            return await self._make(executor, shown)
        except FileNotFoundError as error:  # such as StoreNotFoundError
            # Whoever makes the same at the same time has removed the work after its end.
            found = None if self.base is not None else await asyncio.to_thread(self._find)
            if found is not None:
                return found
            if self.base is not None and os.path.exists(f"{self.base}.idx"):
                raise StoreError(
                    f"{self.base}.bin must be one call's alone, another one has finished it "
                    "meanwhile; use it"
                ) from error
            raise

    def _find(self) -> TokenizedCorpus | None:
        """Return the store if it is finished, or None; another one is an error."""
        try:
            store = open_store(self.root, kind=_KIND)
        except (NotReadyError, StoreNotFoundError):
            return None
        made = store.attributes.get(TEXTS)
        if not isinstance(made, dict) or made.get("identity") != self.identity:
            raise FingerprintMismatchError(
                f"{self.root} holds a corpus of other texts, or made with other settings; choose "
                "another place or remove the store"
            )
        end_import(self.root)
        return self._describe(store.spec, made["num_skipped"])

    def _describe(self, spec: dict[str, Any], num_skipped: int) -> TokenizedCorpus:
        """Return what was made."""
        return TokenizedCorpus(
            str(self.root) if self.base is None else self.base,
            spec["num_documents"],
            spec["num_sequences"],
            spec["num_tokens"],
            self.texts.settings.token_dtype,
            num_skipped,
        )

    async def _make(self, executor: Executor, shown: Progress) -> TokenizedCorpus:
        """Make tokens of the texts, write them all, and commit."""
        name = self.root.name
        portions = list(
            cut_portions(self.texts, self.identity, PORTION_NBYTES, MAX_PARTS, _LEAST_NBYTES)
        )
        source = await count_all_lines(self.texts, executor, name)
        held = await executor.hold(return_value, source, key=f"texts-{name[:28]}-files")
        with shown.step(f"{name}: tokenize", len(portions)) as advance:

            async def encode(portion: Portion) -> EncodedPortion:
                key = f"texts-{portion.name}"
                made = await executor.run(encode_portion, held, self.root, portion, key=key)
                await asyncio.to_thread(check_claim, self.root, self.identity)
                advance(1)
                return made

            results = await run_together(map(encode, portions))
        segments = [segment for result in results for segment in result.segments]
        num_skipped = sum(result.num_skipped for result in results)
        dtype = self.texts.settings.token_dtype
        tag = fingerprint(self.identity | {"portions": [item.name for item in portions]})[:12]
        corpus = await asyncio.to_thread(EncodedCorpus(self.root, tag, dtype, segments).save)
        spec = {
            "num_documents": corpus.num_documents,
            "num_sequences": corpus.num_sequences,
            "num_tokens": corpus.num_tokens,
        }
        if not corpus.num_tokens:
            target = str(self.root) if self.base is None else self.base
            logger.warning("%s has no tokens: its texts are empty, damaged, or not there", target)
        if self.base is not None:
            with shown.step(f"{name}: write", -(-corpus.num_tokens // SPAN_TOKENS)) as advance:
                facts = spec | {"num_skipped": num_skipped}
                await write_pair(corpus, self.base, executor, advance, facts)
            await asyncio.to_thread(finish_pair, self.base, replace=self.overwrite)
            return self._describe(spec, num_skipped)
        plan = await plan_corpus(corpus, self.root, False, self.grid, executor)
        with shown.step(f"{name}: write", plan.num_shards) as advance:
            made = {TEXTS: {"identity": self.identity, "num_skipped": num_skipped}}
            await write_corpus(corpus, plan, executor, advance, made)
        await asyncio.to_thread(end_import, self.root)
        return self._describe(spec, num_skipped)
