"""Tokenise texts to a pre-training corpus: a Zarr token store or a ``.bin/.idx`` pair.

The first stage encodes each partition of the source once, into scratch files in the store. The
sums of their counts are the positions of all tokens; the second stage writes each shard of the
store, or each span of the ``.bin``, from the scratch files. Both stages keep finished work.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, get_args

import numpy as np

from zindex.errors import ConfigError, SourceError, check_choice
from zindex.execution.executor import run_builds
from zindex.formats.token_dtypes import DType
from zindex.ingest.convert import convert_corpus
from zindex.ingest.corpora import text_documents, write_pair
from zindex.ingest.corpora.corpus import COUNTS, CorpusForm
from zindex.ingest.driver import Claim, Workers, open_workers
from zindex.ingest.records.open_files import TextKind, open_texts
from zindex.ingest.records.partitions import read_source
from zindex.ingest.records.read_partitions import read_partition, try_first
from zindex.io.local import local_path
from zindex.io.objects import PlaceLike, place_of
from zindex.sources.damage_log import OnDamage
from zindex.sources.sample_files import Paths, SampleFiles
from zindex.store.commit import fingerprint
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store
from zindex.store.records import CORPUS_KIND, check_fields
from zindex.store.scratch import end_import
from zindex.text.text_encoder import TextEncoder, TokenizerLike

logger = logging.getLogger(__name__)

#: Fields of the source that a store keeps by default.
DEFAULT_FIELDS = ("id", "url")
#: Attribute of a store with the identity of its texts and settings.
TEXTS = "texts"
# Documents of which one must have each field that is to be kept.
_NUM_FIRST = 1000
# Minimum bytes per task: a tokenizer needs about a second for them.
_LEAST_NBYTES = 1 << 20
_DTYPES = ("auto", "uint16", "int32", "uint8", "int16", "int64")


@dataclass(frozen=True, slots=True)
class TokenizedCorpus:
    """The location and counts of a corpus created from texts."""

    #: Location of the store, or path of the pair without suffix.
    place: str
    num_documents: int
    num_sequences: int
    num_tokens: int
    token_dtype: str
    #: Skipped documents, or truncated files.
    num_skipped: int
    #: Ids that were added, by ``before_text`` and ``after_text``, around each document or sentence,
    #: and ``before_document`` and ``after_document``.
    added: dict[str, list[int]]


def tokenize_corpus(
    source: Paths,
    target: PlaceLike,
    *,
    tokenizer: TokenizerLike,
    to: CorpusForm = "zarr",
    kind: TextKind | None = None,
    column: str = "text",
    append_eod: bool | int | str | None = None,
    prepend_bod: bool | int | str | None = None,
    split_sentences: bool = False,
    language: str = "en",
    special_tokens: bool | None = None,
    metadata: Sequence[str] | None = None,
    token_dtype: str = "auto",
    part_nbytes: int | None = None,
    on_damage: OnDamage = "error",
    keep_tokenizer: bool = True,
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
        Jsonl or Parquet files, or text files with one document each; folders or brace patterns
        separated by commas, or a list of them; local or in an object store.
    target
        Location of the store; with ``to="bin"`` the path of the pair without suffix.
    tokenizer
        The path of a tokenizer, visible to every worker, or an object or function, see
        `zindex.text.text_encoder.TextEncoder`.
    to
        ``"bin"`` writes the pair that Megatron's ``IndexedDatasetBuilder`` would write from the
        same documents, ``"zarr"`` the store that ``zindex convert`` would create from this pair.
    kind
        Format of the files; None detects it from their names.
    column
        Field or column with the text.
    append_eod
        Token appended to each document that has tokens: its id or text, True for the tokenizer's
        own, False for none; None means True, or False with ``split_sentences``.
    prepend_bod
        Token prepended to each document, also to an empty one: its id or text, True for the
        tokenizer's ``bos_token``, False for none; None adds what the tokenizer adds by itself.
    split_sentences
        Whether each sentence becomes a sequence, as BERT and T5 need, instead of each document. A
        list of sentences instead of a text is always split as given.
    language
        Language of the texts, whose rules split sentences.
    special_tokens
        Whether the tokenizer adds its special tokens to each text or sentence, such as those of the
        template in a ``tokenizer.json``; None: unless ``prepend_bod`` is given.
    metadata
        Fields of the source to keep for each document in the store, so that `zindex.show`,
        `zindex.trace` and `zindex.find` name them: text, numbers or other JSON values. The first
        one identifies documents. None keeps ``id`` and ``url``, where they exist; a pair keeps
        none.
    token_dtype
        Dtype of the ids; ``"auto"`` uses uint16 for vocabularies below 65,500 ids, otherwise int32.
    part_nbytes, on_damage, restart, client, num_processes, progress
        See `zindex.ingest.records.import_records.import_records`. Documents without a text are
        damage.
    keep_tokenizer
        Whether the store also keeps the files of the tokenizer, or only its identity, its number of
        ids and the digest of its vocabulary. A pair keeps neither.
    overwrite
        Whether to replace an existing pair.
    grid
        Elements per chunk and shard of the store, and the codec; None uses the defaults.

    Returns
    -------
    corpus
        The location and counts of the corpus.

    Raises
    ------
    ConfigError
        If a setting is out of range, or the tokenizer lacks a required token.
    SourceError
        If a document is damaged, or none of the first 1,000 has a field to keep.
    StoreNotFoundError
        If a file is missing.
    StoreError
        If a pair already exists.
    FingerprintMismatchError
        If the location has other content.

    Notes
    -----
    Law: the corpus depends only on the texts, the tokenizer and the settings, not on the parts of
    the files, the number of workers, or interruptions. A document without tokens has no sequences.
    A pair equals that of Megatron-LM's ``tools/preprocess_data.py`` with one partition or
    ``--keep-sequential-samples``; ``prepend_bod=False`` is its
    ``--tokenizer-hf-no-include-special-tokens``, the default of Megatron Core 0.16. The store keeps
    the ids that were added.
    """
    check_choice("to (--to)", to, get_args(CorpusForm))
    encoder = TextEncoder(tokenizer)
    if append_eod is None:
        append_eod = not split_sentences
    before, after = _find_template(encoder, prepend_bod, special_tokens, split_sentences)
    begin = False if prepend_bod is None else prepend_bod
    fields = _choose_fields(metadata, to)
    settings = text_documents.TextSettings(
        column,
        _find_dtype(encoder, token_dtype),
        begin_id=encoder.find_begin(begin, "prepend_bod (--prepend-bod)"),
        end_id=encoder.find_end(append_eod, "append_eod (--append-eod)"),
        language=language if split_sentences else None,
        special_tokens=bool(before or after),
        metadata=fields,
    )
    files, files_fingerprint = open_texts(
        source,
        kind,
        part_nbytes,
        on_damage,
        [column],
        optional_columns=fields,
        least_nbytes=_LEAST_NBYTES,
    )
    _check_fields(files, metadata or ())
    skips = on_damage == "skip"
    texts = text_documents.TextDocuments(
        files, files_fingerprint, settings=settings, encoder=encoder, skip_damaged=skips
    )
    texts.keeps_tokenizer = keep_tokenizer
    try_first(texts)
    base = str(local_path(str(target), "a .bin/.idx pair")) if to == "bin" else None
    if base is not None:
        write_pair.check_pair(base, overwrite=overwrite)
    identity = {
        "source": texts.fingerprint(),
        "skip_damaged": texts.skip_damaged,
        "to": to,
        **texts.identity(),
    }
    claim = Claim(
        place_of(target) if base is None else write_pair.work_folder(base), identity, CORPUS_KIND
    )
    with open_workers(client, num_processes, progress, read_partition, source=texts) as workers:
        added = {
            "before_document": [] if settings.begin_id is None else [settings.begin_id],
            "before_text": before,
            "after_text": after,
            "after_document": [] if settings.end_id is None else [settings.end_id],
        }
        found = {name: ids for name, ids in added.items() if ids}
        work = _Work(texts, claim, base, grid, overwrite, workers, found)
        return run_builds(claim.run(work.find, work.make, restart=restart))


def _find_template(
    encoder: TextEncoder,
    prepend_bod: bool | int | str | None,
    special_tokens: bool | None,
    split_sentences: bool,
) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer is to add before and after each text."""
    if special_tokens is None:
        special_tokens = prepend_bod is None
    if not special_tokens:
        return [], []
    if prepend_bod is not None and prepend_bod is not False:
        raise ConfigError(
            "special_tokens must be left out with prepend_bod, which replaces the tokens that the "
            f"tokenizer adds, got prepend_bod={prepend_bod!r}; give one of them"
        )
    before, after = encoder.find_template()
    if split_sentences and (before or after):
        logger.warning(
            "the tokenizer adds the ids %s before and %s after each sentence, as Megatron's "
            "preprocess_data does; --prepend-bod none (prepend_bod=False) leaves them out",
            before,
            after,
        )
    return before, after


def _choose_fields(metadata: Sequence[str] | None, to: CorpusForm) -> tuple[str, ...]:
    """Return the names of the fields to keep."""
    if metadata is None:
        return DEFAULT_FIELDS if to == "zarr" else ()
    names = tuple(dict.fromkeys([metadata] if isinstance(metadata, str) else metadata))
    if names and to == "bin":
        raise ConfigError(
            f"metadata (--metadata) must be left out for a .bin/.idx pair, which has no place for "
            f"it, got {', '.join(names)}; write a store (--to zarr)"
        )
    check_fields(names)
    return names


def _check_fields(files: SampleFiles, names: Sequence[str]) -> None:
    """Raise if none of the first documents has a field that is to be kept."""
    if not names:
        return
    opened: Any = files.read_part(0)
    with closing(opened) as samples:
        first = list(islice(samples, _NUM_FIRST))
    known = sorted({name for sample in first for name in sample if not name.startswith("__")})
    for name in names:
        if first and name not in known:
            raise SourceError(
                f"metadata (--metadata) must name fields of the documents, got {name!r}, which "
                f"none of the first {len(first):,} has; there are {', '.join(known[:8])}"
            )


def _find_dtype(encoder: TextEncoder, given: str) -> str:
    """Return the name of the dtype of the tokens."""
    check_choice("token_dtype (--token-dtype)", given, _DTYPES)
    if given != "auto":
        return given
    return np.dtype(DType.optimal_dtype(encoder.vocab_size())).name


@dataclass(frozen=True, slots=True)
class _Work:
    """The target corpus; ``base`` is the path of a pair without suffix, None for a store."""

    texts: text_documents.TextDocuments
    claim: Claim
    base: str | None
    grid: ChunkGrid | None
    overwrite: bool
    workers: Workers
    added: dict[str, list[int]]

    def find(self) -> TokenizedCorpus | None:
        """Return the corpus if it is a committed store; another store is an error."""
        if self.base is not None:
            return None
        other = "a corpus of other texts, or made with other settings"
        store = self.claim.find_store(read_identity, other)
        if store is None:
            return None
        return self._describe(store.spec | {"num_skipped": store.attributes[TEXTS]["num_skipped"]})

    def _describe(self, facts: dict[str, Any]) -> TokenizedCorpus:
        """Return the location and counts of the corpus."""
        return TokenizedCorpus(
            self.base or str(self.claim.root),
            token_dtype=self.texts.settings.token_dtype,
            added=self.added,
            **{name: facts[name] for name in (*COUNTS, "num_skipped")},
        )

    async def make(self) -> TokenizedCorpus:
        """Encode the texts, write the corpus, and commit it."""
        if self.base is None:
            return await self._write()
        # An earlier call may have been interrupted while renaming the files.
        facts = await asyncio.to_thread(write_pair.finish_pair, self.base, replace=self.overwrite)
        if facts is not None:
            return self._describe(facts)
        with write_pair.shared(self.base, replace=self.overwrite):
            return await self._write()

    async def _write(self) -> TokenizedCorpus:
        """Encode the texts, and write the corpus."""
        root, identity = self.claim.root, self.claim.identity
        dtype = self.texts.settings.token_dtype
        metadata = self.texts.settings.metadata
        work = self.texts, self.claim, self.workers, text_documents.text_records(dtype, metadata)
        results = await read_source(
            *work, stage="texts", verb="tokenize", least_nbytes=_LEAST_NBYTES
        )
        streams = [item for result in results for item in result.streams]
        tag = fingerprint(identity | {"streams": [item.name for item in streams]})[:12]
        corpus = await asyncio.to_thread(
            text_documents.encoded_corpus, root, tag, dtype, streams, metadata
        )
        num_skipped = sum(result.num_skipped for result in results)
        facts = {name: getattr(corpus, name) for name in COUNTS} | {"num_skipped": num_skipped}
        if not corpus.num_tokens:
            logger.warning(
                "%s has no tokens: its texts are empty, damaged or missing", self.base or root
            )
        if self.base is not None:
            await write_pair.write_pair(
                corpus, tag, self.base, self.workers, facts, verb="write", replace=self.overwrite
            )
            return self._describe(facts)
        made = {TEXTS: {"identity": identity, "num_skipped": num_skipped, "added": self.added}}
        own: dict[str, Any] = {"facts": made, "keep": self.texts.keep_tokenizer}
        own |= {"sources": self.texts.urls, "verb": ": write"}
        await convert_corpus(corpus, root, self.workers, self.grid, **own)
        await asyncio.to_thread(end_import, root)
        return self._describe(facts)


def read_identity(store: Store) -> Any:
    """Return the identity with which a store was created from texts, if it was."""
    made = store.attributes.get(TEXTS)
    return made.get("identity") if isinstance(made, dict) else None
